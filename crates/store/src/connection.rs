//! A connection that always reconnects.
//!
//! redis-rs's connection manager reconnects. This module configures it: while the server is unavailable, a command fails
//! within about half a second instead of waiting for the reconnect, because every caller has a better reaction than waiting
//! (answer 503, keep the last state, retry later). The next command tries to connect again.
//!
//! A peer that disappears silently (a cut cable, a frozen machine) leaves a connection that appears to be alive. The kernel
//! closes it after [`SILENCE`]. Three late replies in a row have the same effect, because a proxy in between may continue to
//! acknowledge data.
//!
//! The fabric may be a Redis Cluster (`redis+cluster://host:port,host:port/`): then redis-rs's cluster client
//! replaces the manager and finds the node of each key.

use std::{
    borrow::Cow,
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use redis::{
    Cmd, FromRedisValue, Pipeline, RedisError, ToRedisArgs,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use crate::{
    Error, Key, Role,
    wire::{Target, Wire},
};

/// The time limits of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The time limit of a command. After it, the outcome is unknown.
    pub response_timeout: Duration,
    /// The time limit of one attempt to connect.
    pub connect_timeout: Duration,
}

impl Default for Options {
    /// Five seconds for a reply (a large script behind a slow disk is not a failure), one for a connection.
    fn default() -> Self {
        Self { response_timeout: Duration::from_secs(5), connect_timeout: Duration::from_secs(1) }
    }
}

/// Commands that block in Redis. On a shared connection they would delay all commands behind them.
const BLOCKING: [&str; 8] = ["BLPOP", "BRPOP", "BLMOVE", "BLMPOP", "BZPOPMIN", "BZPOPMAX", "BZMPOP", "WAIT"];

/// How long the kernel waits for a peer that does not acknowledge data.
const SILENCE: Duration = Duration::from_secs(10);
/// The number of consecutive late replies after which the connection is replaced.
const MAX_LATE_REPLIES: u32 = 3;

/// The beginning of keys with a shard tag.
const SHARD_TAG: &str = "{s";

/// A connection to the server of role `R`, shared by cloning.
pub struct Redis<R> {
    pub(crate) target: Arc<Target>,
    line: Arc<Line>,
    dedicated: bool,
    options: Options,
    /// The prefix of keys without a shard tag: see [`crate::Shard::home`].
    home: Arc<str>,
    role: PhantomData<fn() -> R>,
}

/// The current connection of all clones.
struct Line {
    wire: RwLock<Wire>,
    late: AtomicU32,
}

impl Line {
    fn new(wire: Wire) -> Arc<Self> {
        Arc::new(Self { wire: RwLock::new(wire), late: AtomicU32::new(0) })
    }
}

impl<R> Clone for Redis<R> {
    fn clone(&self) -> Self {
        Self {
            target: Arc::clone(&self.target),
            line: Arc::clone(&self.line),
            dedicated: self.dedicated,
            options: self.options,
            home: Arc::clone(&self.home),
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
    /// Prepares a connection to `url` (`redis://host:port/`, `redis+unix:///path` for a socket, or
    /// `redis+cluster://host:port,host:port/` for some nodes of a cluster). Nothing is connected before the first
    /// command, so a daemon starts while its Redis is down. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If the URL is invalid.
    pub fn open(url: &str, options: Options) -> Result<Self, Error> {
        let failed = |source| Error::new(R::NAME, "opening the URL", source);
        let target = Target::read(url, settings()).map_err(failed)?;
        let wire = target.connect(options, Some(options.response_timeout)).map_err(failed)?;
        Ok(Self {
            target: Arc::new(target),
            line: Line::new(wire),
            dedicated: false,
            options,
            home: Arc::from(""),
            role: PhantomData,
        })
    }

    /// Opens a dedicated connection for commands that block in Redis, without a response timeout.
    ///
    /// # Errors
    /// If the connection cannot be prepared.
    pub fn dedicated(&self) -> Result<Self, Error> {
        let wire = self
            .target
            .connect(self.options, None)
            .map_err(|source| Error::new(R::NAME, "preparing a dedicated connection", source))?;
        Ok(Self { line: Line::new(wire), dedicated: true, ..self.clone() })
    }

    /// The same connection, which adds `tag` before every key without a shard tag.
    pub(crate) fn at_home(&self, tag: &str) -> Self {
        Self { home: Arc::from(tag), ..self.clone() }
    }

    /// `key` as the server knows it.
    pub(crate) fn name_of<'k>(&self, key: &'k Key<R::Space>) -> Cow<'k, str> {
        if self.home.is_empty() || key.as_str().starts_with(SHARD_TAG) {
            Cow::Borrowed(key.as_str())
        } else {
            Cow::Owned(format!("{}{key}", self.home))
        }
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
    /// If the server does not respond.
    pub async fn now_ms(&self) -> Result<u64, Error> {
        let (seconds, micros): (u64, u64) = self.command("TIME").query().await?;
        Ok(seconds * 1000 + micros / 1000)
    }

    pub(crate) fn wire(&self) -> Wire {
        self.line.wire.read().clone()
    }

    /// Records the result of a command, and replaces a connection that no longer returns replies.
    pub(crate) fn noted<T>(&self, operation: &str, result: Result<T, RedisError>) -> Result<T, Error> {
        let late = match &result {
            Err(error) if error.is_timeout() => self.line.late.fetch_add(1, Ordering::Relaxed) + 1,
            _ => {
                self.line.late.store(0, Ordering::Relaxed);
                0
            }
        };
        if late == MAX_LATE_REPLIES {
            tracing::warn!(role = R::NAME, "no replies from Redis, reconnecting");
            if let Ok(fresh) = self.target.connect(self.options, Some(self.options.response_timeout)) {
                *self.line.wire.write() = fresh;
            }
            self.line.late.store(0, Ordering::Relaxed);
        }
        result.map_err(|source| Error::new(R::NAME, operation, source))
    }
}

/// Socket options with which the kernel detects a silent peer.
fn settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE / 4);
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive).set_user_timeout(SILENCE)
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
        self.cmd.arg(&*self.redis.name_of(key));
        self
    }

    /// Appends an argument that is not a key (a collection appends each of its items).
    #[must_use]
    pub fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.cmd.arg(arg);
        self
    }

    /// Sends the command and reads its reply as `T`.
    ///
    /// # Errors
    /// When the server is unavailable or rejects the command, or when the reply is not a `T`.
    pub async fn query<T: FromRedisValue>(self) -> Result<T, Error> {
        let mut connection = self.redis.wire();
        self.redis.noted(self.name, self.cmd.query_async(&mut connection).await)
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
        let mut cmd = redis::cmd(name);
        cmd.arg(&*self.redis.name_of(key));
        cmd.arg(args);
        self.pipeline.add_command(cmd);
        self
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.pipeline.is_empty()
    }

    /// Sends everything; `T` is a collection or tuple with one item for each command, in order.
    ///
    /// # Errors
    /// When the server is unavailable, or when any of the commands failed.
    pub async fn query<T: FromRedisValue>(self) -> Result<T, Error> {
        let mut connection = self.redis.wire();
        self.pipeline
            .query_async(&mut connection)
            .await
            .map_err(|source| Error::new(R::NAME, "a batch", source))
    }
}
