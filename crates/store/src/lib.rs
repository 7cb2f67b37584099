//! The Redis servers of Signalbox as types.
//!
//! Signalbox uses four servers with four roles (see `docs/keys.md`). A command that reaches the wrong one would do silent
//! harm, so each *role* is a separate Rust type: [`RoutesPrimary`], [`RoutesReplica`], [`Stats`] and [`Fabric`]. Keys have
//! the type of their key space ([`Key`]) and scripts that of their role ([`Script`]), and the compiler rejects a mix.
//!
//! It contains no product logic, only what every subsystem needs:
//!
//! * [`Redis`]: a cheap-to-clone connection that always reconnects and fails fast while the server is unavailable;
//! * [`Script`]: an atomic operation in Lua, called by digest and reloaded if the server does not have it;
//! * [`list_page`], [`hash_part`] and [`Pace`]: reads of large values in parts;
//! * [`Combiner`]: calls of a script that several callers share;
//! * [`Subscription`]: pub/sub as a stream of notices that reports when messages may have been missed;
//! * [`keys`]: the only place that defines key names, each with its type, lifetime, writer and readers;
//! * [`traffic`]: the requests of the last minute, which the sidecar and the pacemaker read in the same way.

mod address;
mod clock;
mod combiner;
mod connection;
mod error;
mod key;
pub mod keys;
mod packed;
mod parts;
mod replicas;
mod role;
mod script;
mod sentinel;
mod shard;
mod subscription;
pub mod traffic;
mod wire;

pub use address::{redacted, with_login, without_login};
pub use clock::Clock;
pub use combiner::{Combiner, SharedResult};
pub use connection::{Batch, Command, Options, Redis};
pub use error::{Error, Kind};
pub use key::{FabricSpace, Key, RoutesSpace, StatsSpace};
pub use packed::unpacked;
pub use parts::{PAGE_BYTES, Pace, hash_part, list_end, list_page, list_part};
pub use role::{FabricRole, Role, RoutesPrimaryRole, RoutesReplicaRole, StatsRole};
pub use script::{Call, Script};
pub use shard::{MAX_SHARDS, Shard, Tag};
pub use subscription::{Notice, Subscription};

// redis-rs's value conversions, which callers need to name the result of a command or script.
pub use redis::{FromRedisValue, ToRedisArgs, Value, from_redis_value};

/// The routes primary: the table that replicas follow. Written by the pacemaker and, manually, by operators.
pub type RoutesPrimary = Redis<RoutesPrimaryRole>;
/// The routes replica next to a router. Written only by replication.
pub type RoutesReplica = Redis<RoutesReplicaRole>;
/// The statistics server: counters by the sidecars, membership sets by the pacemaker.
pub type Stats = Redis<StatsRole>;
/// The fabric: desired state, events, queues and machines. Used only by pacemakers.
pub type Fabric = Redis<FabricRole>;
