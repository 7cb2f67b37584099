//! Key names with the type of their server.

use std::{fmt, marker::PhantomData};

use redis::{RedisWrite, ToRedisArgs, ToSingleRedisArg};

/// The key space of the route table (primary and replicas).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoutesSpace {}
/// The key space of the statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsSpace {}
/// The key space of the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FabricSpace {}

/// A key of the space `S`. Only the builders in [`crate::keys`] create keys, so every name is defined in one place.
#[derive(Clone, PartialEq, Eq)]
pub struct Key<S> {
    name: String,
    space: PhantomData<fn() -> S>,
}

impl<S> Key<S> {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), space: PhantomData }
    }

    /// The name of the key in Redis.
    pub fn as_str(&self) -> &str {
        &self.name
    }
}

impl<S> fmt::Debug for Key<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.name, f)
    }
}

impl<S> fmt::Display for Key<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl<S> ToRedisArgs for Key<S> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg(self.name.as_bytes());
    }
}

impl<S> ToSingleRedisArg for Key<S> {}
