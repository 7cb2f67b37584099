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
//!
//! A server may be the primary of a service that Sentinels monitor (`redis+sentinel://host:port,host:port/NAME`): then the
//! connection follows the primary, see the module `sentinel`.
//!
//! A password that is stored in a file can be changed while everything runs. If the server rejects the login, the file is
//! read again, and a connection with the new password replaces the old one.

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
    Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, ToRedisArgs,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use crate::{
    Error, Key, Kind, Role,
    address::Address,
    replicas::{Replicas, WaitReplicas},
    sentinel::{self, Primary, Service},
    wire::Wire,
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

/// Commands that block in Redis. On a shared connection they would delay all later commands.
const BLOCKING: [&str; 8] = ["BLPOP", "BRPOP", "BLMOVE", "BLMPOP", "BZPOPMIN", "BZPOPMAX", "BZMPOP", "WAIT"];

/// How long the kernel waits for a peer that does not acknowledge data.
const SILENCE: Duration = Duration::from_secs(10);
/// The number of consecutive late replies after which the connection is replaced.
const MAX_LATE_REPLIES: u32 = 3;

/// The beginning of keys with a shard tag.
const SHARD_TAG: &str = "{s";

/// A connection to the server of role `R`, shared by cloning.
#[derive(Clone)]
pub struct Redis<R> {
    pub(crate) address: Arc<Address>,
    /// The monitored service, if the URL names Sentinels.
    pub(crate) service: Option<Arc<Service>>,
    line: Arc<Line>,
    dedicated: bool,
    options: Options,
    pub(crate) replicas: Arc<Replicas>,
    /// The prefix of keys without a shard tag: see [`crate::Shard::home`].
    home: Arc<str>,
    role: PhantomData<fn() -> R>,
}

/// The current connection, which all clones share.
struct Line {
    /// `None` until the Sentinels have reported a primary.
    wire: RwLock<Option<(Option<Primary>, Wire)>>,
    /// The password from the file that the connection used to log in.
    password: RwLock<Option<String>>,
    late: AtomicU32,
}

impl Line {
    fn new(wire: Option<Wire>, password: Option<String>) -> Arc<Self> {
        let wire = RwLock::new(wire.map(|wire| (None, wire)));
        Arc::new(Self { wire, password: RwLock::new(password), late: AtomicU32::new(0) })
    }
}

impl<R: Role> std::fmt::Debug for Redis<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("role", &R::NAME).finish_non_exhaustive()
    }
}

impl<R: Role> Redis<R> {
    /// Prepares a connection to `url`: `redis://host:port/`, `rediss://host:port/` for TLS,
    /// `redis+unix:///path` for a socket, `redis+cluster://host:port,host:port/` for some nodes of a cluster,
    /// or `redis+sentinel://host:port,host:port/NAME` for the primary of a service that Sentinels monitor.
    /// `user:password@` or `?password_file=/path` specify the login, and `?ca_file=/path` the authorities for
    /// TLS. The connection is opened by the first command, so a daemon starts while its Redis is down. Must
    /// be called inside a tokio runtime.
    ///
    /// # Errors
    /// If the URL is invalid, or a file that it names cannot be read.
    pub fn open(url: &str, options: Options) -> Result<Self, Error> {
        let failed = |source| Error::new(R::NAME, "opening the URL", source);
        let address = Address::read(url, settings()).map_err(failed)?;
        let password = address.password().map_err(failed)?;
        let service = address.follow().map_err(failed)?;
        let wire = match &service {
            Some(_) => None,
            None => Some(
                address
                    .connect(None, password.as_deref(), options, Some(options.response_timeout))
                    .map_err(failed)?,
            ),
        };
        Ok(Self {
            address: Arc::new(address),
            service,
            line: Line::new(wire, password),
            dedicated: false,
            options,
            replicas: Arc::default(),
            home: Arc::from(""),
            role: PhantomData,
        })
    }

    /// The host and port of the primary that the Sentinels reported last. `None` before that, and for other
    /// URLs.
    pub fn primary(&self) -> Option<(String, u16)> {
        self.service.as_ref().and_then(|service| service.known())
    }

    /// Opens a dedicated connection for commands that block in Redis, without a response timeout.
    pub fn dedicated(&self) -> Result<Self, Error> {
        let failed = |source| Error::new(R::NAME, "preparing a dedicated connection", source);
        let password = self.address.password().map_err(failed)?;
        let wire = match &self.service {
            Some(_) => None,
            None => {
                Some(self.address.connect(None, password.as_deref(), self.options, None).map_err(failed)?)
            }
        };
        Ok(Self { line: Line::new(wire, password), dedicated: true, ..self.clone() })
    }

    /// The same connection, but with `tag` in front of every key without a shard tag.
    pub(crate) fn at_home(&self, tag: &str) -> Self {
        Self { home: Arc::from(tag), ..self.clone() }
    }

    /// The name of `key` on the server.
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
    pub async fn now_ms(&self) -> Result<u64, Error> {
        let (seconds, micros): (u64, u64) = self.command("TIME").query().await?;
        Ok(seconds * 1000 + micros / 1000)
    }

    /// Sends a command, and processes the result like [`Self::noted`].
    pub(crate) async fn send<T>(
        &self,
        operation: &str,
        call: impl AsyncFnOnce(Wire) -> Result<T, RedisError>,
    ) -> Result<T, Error> {
        let result = match (self.wire().await, &self.service) {
            (Ok((Some(primary), wire)), Some(service)) => tokio::select! {
                biased;
                result = call(wire) => result,
                () = service.replaced(&primary) => Err(sentinel::replaced()),
            },
            (Ok((_, wire)), _) => call(wire).await,
            (Err(error), _) => Err(error),
        };
        self.noted(operation, result)
    }

    /// The replicas that must confirm the writes of a script before it succeeds.
    pub(crate) fn wait_replicas(&self) -> WaitReplicas {
        self.address.wait_replicas
    }

    /// The connection and, if Sentinels report it, the primary that it is connected to.
    async fn wire(&self) -> Result<(Option<Primary>, Wire), RedisError> {
        let primary = match &self.service {
            Some(service) => Some(service.primary(self.options.connect_timeout).await?),
            None => None,
        };
        if let Some(wire) = self.line.wire.read().as_ref().filter(|(to, _)| *to == primary) {
            return Ok(wire.clone());
        }
        let mut current = self.line.wire.write();
        // Several commands may detect the change, but only the first of them replaces the connection.
        if let Some(wire) = current.as_ref().filter(|(to, _)| *to == primary) {
            return Ok(wire.clone());
        }
        let password = self.line.password.read().clone();
        let wire = self.connect(primary.as_ref(), password.as_deref())?;
        self.replicas.forget();
        Ok(current.insert((primary, wire)).clone())
    }

    fn connect(&self, primary: Option<&Primary>, password: Option<&str>) -> Result<Wire, RedisError> {
        let response_timeout = (!self.dedicated).then_some(self.options.response_timeout);
        self.address.connect(primary, password, self.options, response_timeout)
    }

    /// Processes the result of a command: replaces a connection that no longer returns replies, or that can
    /// no longer log in.
    fn noted<T>(&self, operation: &str, result: Result<T, RedisError>) -> Result<T, Error> {
        let late = match &result {
            Err(error) if error.is_timeout() => self.line.late.fetch_add(1, Ordering::Relaxed) + 1,
            _ => {
                self.line.late.store(0, Ordering::Relaxed);
                0
            }
        };
        if late == MAX_LATE_REPLIES {
            tracing::warn!(role = R::NAME, "no replies from Redis, reconnecting");
            self.renew();
            self.line.late.store(0, Ordering::Relaxed);
        }
        if result.as_ref().is_err_and(is_rejected_login) {
            self.log_in_again();
        }
        let result = result.map_err(|source| Error::new(R::NAME, operation, source));
        if let (Some(service), Err(error)) = (&self.service, &result)
            && matches!(error.kind(), Kind::Unavailable | Kind::Refused)
        {
            service.suspect();
        }
        result
    }

    /// Logs in again if the password in the file has changed.
    fn log_in_again(&self) {
        let Ok(Some(fresh)) = self.address.password() else { return };
        let mut current = self.line.password.write();
        // Several commands fail with the old password, but only the first of them replaces the connection.
        if current.as_deref() == Some(&*fresh) {
            return;
        }
        tracing::info!(role = R::NAME, "the password of Redis was changed, reconnecting");
        self.replace(Some(&fresh));
        *current = Some(fresh);
    }

    /// Replaces the connection. Pending calls wait for their replies on the former one.
    pub(crate) fn renew(&self) {
        let password = self.line.password.read().clone();
        self.replace(password.as_deref());
    }

    fn replace(&self, password: Option<&str>) {
        let mut current = self.line.wire.write();
        let Some((primary, wire)) = &mut *current else { return };
        if let Ok(fresh) = self.connect(primary.as_ref(), password) {
            *wire = fresh;
        }
    }
}

/// Whether the server rejected the login, or requires one.
fn is_rejected_login(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

/// Socket options with which the kernel detects a silent peer.
fn settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE / 4);
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive).set_user_timeout(SILENCE)
}

/// One command for the server of role `R`.
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
        self.redis.send(self.name, async |mut wire| self.cmd.query_async(&mut wire).await).await
    }

    /// Sends the command for its effect.
    pub async fn run(self) -> Result<(), Error> {
        self.query::<redis::Value>().await.map(drop)
    }
}

/// Several commands in one round trip.
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

    /// Whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.pipeline.is_empty()
    }

    /// Sends all commands. `T` is a collection or tuple with one item per command, in order.
    pub async fn query<T: FromRedisValue>(self) -> Result<T, Error> {
        self.redis.send("a batch", async |mut wire| self.pipeline.query_async(&mut wire).await).await
    }
}
