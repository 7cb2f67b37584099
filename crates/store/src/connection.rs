//! A connection that reconnects for ever.
//!
//! redis-rs' manager does the reconnecting. What is set here is its temper: while the server is away a command fails
//! within about half a second instead of queueing behind the reconnect, because every caller has something better to
//! do than wait (answer 503, keep the last state, try again later). The next command tries to connect again.

use std::{marker::PhantomData, time::Duration};

use redis::{
    Cmd, FromRedisValue, Pipeline, ToRedisArgs,
    aio::{ConnectionManager, ConnectionManagerConfig},
};

use crate::{Error, Key, Role};

/// How patient a connection is.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How long a command may take before its outcome counts as unknown.
    pub response_timeout: Duration,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
}

impl Default for Options {
    /// Five seconds for a reply (a large script behind a slow disk is not dead), one for a connection.
    fn default() -> Self {
        Self { response_timeout: Duration::from_secs(5), connect_timeout: Duration::from_secs(1) }
    }
}

/// Commands that wait inside Redis. On a shared connection they would hold up everybody behind them.
const BLOCKING: [&str; 8] = ["BLPOP", "BRPOP", "BLMOVE", "BLMPOP", "BZPOPMIN", "BZPOPMAX", "BZMPOP", "WAIT"];

/// A connection to the server of role `R`, shared by cloning.
pub struct Redis<R> {
    pub(crate) client: redis::Client,
    manager: ConnectionManager,
    dedicated: bool,
    options: Options,
    role: PhantomData<fn() -> R>,
}

impl<R> Clone for Redis<R> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            manager: self.manager.clone(),
            dedicated: self.dedicated,
            options: self.options,
            role: PhantomData,
        }
    }
}

impl<R: Role> std::fmt::Debug for Redis<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("role", &R::NAME).finish_non_exhaustive()
    }
}

impl<R: Role> Redis<R> {
    /// Prepares a connection to `url` (`redis://host:port/`, or `redis+unix:///path` for a socket). Nothing is
    /// connected before the first command, so a daemon starts while its Redis is down. Must be called inside a tokio
    /// runtime.
    ///
    /// # Errors
    /// When the URL cannot be read.
    pub fn open(url: &str, options: Options) -> Result<Self, Error> {
        let failed = |source| Error::new(R::NAME, "opening the URL", source);
        let client = redis::Client::open(url).map_err(failed)?;
        let manager = manager(&client, options, Some(options.response_timeout)).map_err(failed)?;
        Ok(Self { client, manager, dedicated: false, options, role: PhantomData })
    }

    /// A connection of its own for commands that block in Redis, without a response timeout.
    ///
    /// # Errors
    /// When the connection cannot be prepared.
    pub fn dedicated(&self) -> Result<Self, Error> {
        let manager = manager(&self.client, self.options, None)
            .map_err(|source| Error::new(R::NAME, "preparing a dedicated connection", source))?;
        Ok(Self { manager, dedicated: true, ..self.clone() })
    }

    /// Starts a command.
    pub fn command(&self, name: &'static str) -> Command<'_, R> {
        debug_assert!(self.dedicated || !BLOCKING.contains(&name), "{name} needs a dedicated connection");
        Command { redis: self, name, cmd: redis::cmd(name) }
    }

    /// Starts a batch: many commands, one round trip, not atomic.
    pub fn batch(&self) -> Batch<'_, R> {
        Batch { redis: self, pipeline: Pipeline::new() }
    }

    /// The server's clock in unix milliseconds. Leases and deadlines use it, because the clocks of two daemons differ.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn now_ms(&self) -> Result<u64, Error> {
        let (seconds, micros): (u64, u64) = self.command("TIME").query().await?;
        Ok(seconds * 1000 + micros / 1000)
    }

    pub(crate) fn manager(&self) -> ConnectionManager {
        self.manager.clone()
    }
}

fn manager(
    client: &redis::Client,
    options: Options,
    response_timeout: Option<Duration>,
) -> Result<ConnectionManager, redis::RedisError> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(options.connect_timeout))
        .set_response_timeout(response_timeout)
        .set_min_delay(Duration::from_millis(50))
        .set_max_delay(Duration::from_millis(500))
        .set_number_of_retries(2);
    ConnectionManager::new_lazy_with_config(client.clone(), config)
}

/// One command on its way to the server of role `R`.
pub struct Command<'a, R> {
    redis: &'a Redis<R>,
    name: &'static str,
    cmd: Cmd,
}

impl<R: Role> Command<'_, R> {
    /// Appends a key of this server's key space.
    #[must_use]
    pub fn key(mut self, key: &Key<R::Space>) -> Self {
        self.cmd.arg(key);
        self
    }

    /// Appends an argument that is no key (a collection appends each of its items).
    #[must_use]
    pub fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.cmd.arg(arg);
        self
    }

    /// Sends the command and reads its reply as `T`.
    ///
    /// # Errors
    /// When the server is away or refuses, or when the reply is no `T`.
    pub async fn query<T: FromRedisValue>(self) -> Result<T, Error> {
        let mut connection = self.redis.manager();
        self.cmd.query_async(&mut connection).await.map_err(|source| Error::new(R::NAME, self.name, source))
    }

    /// Sends the command for its effect.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub async fn run(self) -> Result<(), Error> {
        self.query::<redis::Value>().await.map(drop)
    }
}

/// Many commands in one round trip.
pub struct Batch<'a, R> {
    redis: &'a Redis<R>,
    pipeline: Pipeline,
}

impl<R: Role> Batch<'_, R> {
    /// Adds a command about one key.
    pub fn add(&mut self, name: &'static str, key: &Key<R::Space>, args: impl ToRedisArgs) -> &mut Self {
        self.pipeline.cmd(name).arg(key).arg(args);
        self
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.pipeline.is_empty()
    }

    /// Sends everything; `T` is a collection or tuple with one item for each command, in order.
    ///
    /// # Errors
    /// When the server is away, or when any of the commands failed.
    pub async fn query<T: FromRedisValue>(self) -> Result<T, Error> {
        let mut connection = self.redis.manager();
        self.pipeline
            .query_async(&mut connection)
            .await
            .map_err(|source| Error::new(R::NAME, "a batch", source))
    }
}
