//! The Redis servers of Signalbox as types.
//!
//! Four servers with four jobs stand behind the product (see `docs/keys.md`). A command that reaches the wrong one
//! does silent harm, so each *role* is a Rust type of its own: [`RoutesMaster`], [`RoutesReplica`], [`Stats`] and
//! [`Fabric`]. Keys carry the key space they belong to ([`Key`]), scripts the role they run on ([`Script`]), and the
//! compiler refuses to mix them.
//!
//! There is no product logic here, only four things that every subsystem needs:
//!
//! * [`Redis`]: a cheap-to-clone connection that reconnects for ever and fails fast while the server is away;
//! * [`Script`]: an atomic operation in Lua, called by digest and loaded again when the server forgot it;
//! * [`Subscription`]: pub/sub as a stream of notices that says when messages may have been missed;
//! * [`keys`]: the one place where key names are spelled, each with its type, lifetime, writer and readers.

mod clock;
mod connection;
mod error;
mod key;
pub mod keys;
mod role;
mod script;
mod shard;
mod subscription;
mod wire;

pub use clock::Clock;
pub use connection::{Batch, Command, Options, Redis};
pub use error::{Error, Kind};
pub use key::{FabricSpace, Key, RoutesSpace, StatsSpace};
pub use role::{FabricRole, Role, RoutesMasterRole, RoutesReplicaRole, StatsRole};
pub use script::{Call, Script};
pub use shard::{MAX_SHARDS, Shard, Tag};
pub use subscription::{Notice, Subscription};

// The value conversions are redis-rs' own; callers need them to name what a command or script returns.
pub use redis::{FromRedisValue, ToRedisArgs, Value, from_redis_value};

/// The routes master: the table that replicas follow. Written by the pacemaker and, by hand, by operators.
pub type RoutesMaster = Redis<RoutesMasterRole>;
/// The routes replica beside a router. Written by replication only.
pub type RoutesReplica = Redis<RoutesReplicaRole>;
/// The statistics server: counters by the sidecars, membership sets by the pacemaker.
pub type Stats = Redis<StatsRole>;
/// The fabric: desired state, events, queues and machines. Only pacemakers come here.
pub type Fabric = Redis<FabricRole>;
