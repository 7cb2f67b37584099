//! Starts the whole system on one machine: four Redis servers, nginx, pacemaker and sidecar, each as a child process
//! with its own log and data. `signalbox up` adds a terminal to this library; tests and benchmarks use it directly.
//!
//! ```no_run
//! # async fn example() -> Result<(), signalbox_stack::Error> {
//! use signalbox_stack::{Part, Stack};
//!
//! let stack = Stack::builder().temporary()?.workers(2).start().await?;
//! stack.part(&Part::ROUTES_PRIMARY).kill().await?;
//! println!("still routing at {}", stack.edge_url());
//! stack.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Data
//! Everything is stored in one folder (see [`Layout`]). A lock on `run/lock` ensures that only one stack uses it:
//!
//! ```text
//! token  token.sha256  edge.key  daemons.key      users/  passwords and ACL files of the Redis servers
//! node  pacemaker.toml  sidecar.toml            run/    lock, stack.json, <part>.pid, routes.sock
//! redis/<part>/  redis.conf and data            log/    <part>.log, access.log
//! nginx/  nginx.conf, conf/, lua/, nginx.pid, routes.snapshot
//! ```
//!
//! # Life of a stack
//! options checked → folder locked → leftovers ended → programs found → ports checked → guard → Redis servers →
//! pacemaker, sidecar, nginx → every worker linked to the replica. Nothing is started before the ports are known to
//! be free. Parts are stopped in the reverse order.
//!
//! # Invariants
//! * Every process is in one process group. The guard ends the group when the starting process ends, even if it was killed, so
//!   no process outlives a stack. The guard is `signalbox guard`, which is found next to the daemons.
//! * A part that was stopped through its [`PartHandle`] stays down until it is started through it. A part that dies is
//!   restarted after a growing delay, unless restarts are off.
//! * Several stacks can run on one machine with different ports and folders.

mod acl;
mod aof;
mod builder;
mod daemons;
mod error;
mod event;
mod group;
mod guard;
mod handle;
mod http;
mod layout;
mod nginx;
mod options;
mod part;
mod plan;
mod ports;
mod probe;
mod proc;
mod programs;
mod redis;
mod secrets;
mod stack;
mod supervisor;

pub use acl::{Server, User};
pub use aof::{AofRepair, repair_aof};
pub use builder::Builder;
pub use error::{Error, Kind};
pub use event::Event;
pub use guard::{GUARD_COMMAND, guard_main};
pub use handle::PartHandle;
pub use http::local_client;
pub use layout::Layout;
pub use nginx::{RenderedEdge, edge_variables, render_edge};
pub use nix::sys::signal::Signal;
pub use options::{EdgeOptions, Fsync, LogMode, Options, OtherPort, RedisOptions};
pub use part::Part;
pub use plan::RouterPorts;
pub use ports::{Ports, Reservation};
pub use probe::Probe;
pub use programs::own as own_program;
pub use secrets::Secrets;
pub use stack::{DescribedPart, Description, Router, Stack};
pub use supervisor::{Program, Status};
