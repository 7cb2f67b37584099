//! The state shared by the handlers of the API.

use std::{ops::Deref, sync::Arc};

use axum::http::StatusCode;
use parking_lot::Mutex;
use serde::Deserialize;
use signalbox_access::{Caller, Tokens, digest};
use signalbox_acme::Acme;
use signalbox_bus::intake;
use signalbox_certificates::Certificates;
use signalbox_daemon::{Attempts, door::Door};
use signalbox_lease::Presence;
use signalbox_route_table::Network;
use signalbox_routing::{Registry, Routers};
use signalbox_settings::within;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    api::{
        bus,
        check::Checks,
        routing::{Directory, TableNames},
        sequencer,
    },
    http::{
        Problem,
        audit::{AuditTrail, ClientAddress},
        cursor::Cursors,
        metrics::Metrics,
        rates::Rates,
        session::{Holder, Session, Sessions},
        slots::{Buffers, Slots},
    },
};

/// Requests with `wait` on one pacemaker, and of one token.
const MAX_WAITS: usize = 10_000;
const MAX_WAITS_PER_TOKEN: usize = 1_000;
/// Simulations and plans that are computed on one pacemaker, and for one token: they use processors that all requests need.
const MAX_COMPUTATIONS: usize = 4;
const MAX_COMPUTATIONS_PER_TOKEN: usize = 2;
/// Dumps of the route table on one pacemaker, and of one token.
const MAX_DUMPS: usize = 16;
const MAX_DUMPS_PER_TOKEN: usize = 2;
/// Lists of large items on one pacemaker, and of one token: each reads up to about 8 MiB.
const MAX_LISTS: usize = 32;
const MAX_LISTS_PER_TOKEN: usize = 4;

/// All handles behind one reference count, because every request clones it several times.
#[derive(Debug, Clone)]
pub struct App(Arc<Parts>);

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// The handles themselves.
#[derive(Debug)]
pub struct Parts {
    /// Which requests the listener accepts, and the addresses of their clients.
    pub door: Door,
    /// Networks whose clients read metrics without a token.
    pub metrics_networks: Vec<Network>,
    /// Who may do what.
    pub tokens: Tokens,
    /// Failed attempts to authenticate.
    pub attempts: Mutex<Attempts>,
    /// Records of changes and log-ins.
    pub audit: AuditTrail,
    /// Instances and policies.
    pub registry: Registry,
    /// Certificates of server names.
    pub certificates: Certificates,
    /// Automatic HTTPS.
    pub acme: Acme,
    /// What the routers report.
    pub routers: Routers,
    /// The event bus.
    pub bus: bus::Front,
    /// The sequencer.
    pub sequencer: sequencer::Front,
    /// Streams of events.
    pub live: signalbox_stream::Hub,
    /// Pull queues.
    pub queues: signalbox_queues::Handle,
    /// Of browsers that have logged in.
    pub sessions: Sessions,
    /// Of lists from which a token sees only a part.
    pub cursors: Cursors,
    /// State machines.
    pub machines: signalbox_machines::Handle,
    /// The running pacemakers.
    pub presence: Presence,
    /// Metrics of requests and of subsystems.
    pub metrics: Metrics,
    /// Limits of one token for resources that it holds.
    pub limits: Limits,
    /// All hosts, for lists that are sorted or searched.
    pub directory: Directory,
    /// The names of the route table, for dumps.
    pub table_names: TableNames,
    /// The latest consistency check.
    pub checks: Checks,
    /// Canceled when requests that wait must end.
    pub shutdown: CancellationToken,
}

/// The section `limits` of the configuration: limits of one token.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "`defaults.toml` describes the keys")]
pub struct LimitOptions {
    #[serde(deserialize_with = "within::<_, _, 0, 1_000_000>")]
    pub token_requests_per_second: u32,
    #[serde(deserialize_with = "within::<_, _, 0, 10_000_000>")]
    pub token_events_per_second: u32,
    #[serde(deserialize_with = "within::<_, _, 0, 100_000_000>")]
    pub token_instances: u64,
    #[serde(deserialize_with = "within::<_, _, 0, 1_000_000>")]
    pub token_new_names_per_day: u64,
}

/// Limits of one token for resources that it holds.
#[derive(Debug)]
pub struct Limits {
    /// Requests that are not answered yet.
    pub in_progress: Slots,
    /// Requests whose unread bodies are read.
    pub(crate) drains: Semaphore,
    /// Streams of events.
    pub streams: Slots,
    /// Requests that wait for routers or labels.
    pub waits: Slots,
    /// Pulls that wait for messages.
    pub pulls: Slots,
    /// Dumps of the route table that are being sent.
    pub dumps: Slots,
    /// Lists of large items that are being read or sent: hosts, instances, certificates, and the audit log.
    pub lists: Slots,
    /// Bytes of requests, and of large responses that are not sent yet.
    pub buffers: Buffers,
    /// Simulations and plans that are being computed.
    pub computations: Slots,
    /// Requests per second.
    pub requests: Rates,
    /// Events and messages to publish per second.
    pub events: Rates,
}

impl Limits {
    /// `connections`, `streams` and `pulls` are the limits for all tokens together. A token may hold half of the connections
    /// with requests in progress, a quarter of the streams, and half of the pulls. `events` counts events of state machines as
    /// well.
    pub fn new(
        rates: &LimitOptions,
        events: Arc<signalbox_access::Rates>,
        connections: usize,
        streams: usize,
        pulls: usize,
    ) -> Self {
        let requests = Arc::new(signalbox_access::Rates::new(rates.token_requests_per_second));
        Self {
            requests: Rates::new("requests", "limits.token_requests_per_second", requests),
            events: Rates::new("events to publish", "limits.token_events_per_second", events),
            in_progress: Slots::new("requests in progress", usize::MAX, (connections / 2).max(1)),
            drains: Semaphore::new((connections / 4).max(1)),
            streams: Slots::new("streams of events", usize::MAX, (streams / 4).max(1)),
            waits: Slots::new("requests that wait", MAX_WAITS, MAX_WAITS_PER_TOKEN),
            pulls: Slots::new("pulls that wait", usize::MAX, (pulls / 2).max(1)),
            dumps: Slots::new("dumps of the route table", MAX_DUMPS, MAX_DUMPS_PER_TOKEN),
            lists: Slots::with_waiting("lists", MAX_LISTS, MAX_LISTS_PER_TOKEN),
            buffers: Buffers::default(),
            computations: Slots::new("simulations and plans", MAX_COMPUTATIONS, MAX_COMPUTATIONS_PER_TOKEN),
        }
    }
}

impl App {
    /// Counts events that a caller wants to publish.
    ///
    /// # Errors
    /// 429 `token_limit_reached` if the caller's token has used up its rate.
    pub(crate) fn count_events(&self, caller: &Caller, count: usize) -> Result<(), Problem> {
        self.limits.events.take(caller, count, self.tokens.now_ms())
    }

    /// Combines the handles.
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// The holder of `token`; `None` if it is unknown. Tokens that are in memory are found first, so valid tokens in use are
    /// not affected by failed attempts from the same address.
    ///
    /// # Errors
    /// `too_many_attempts` if the address has presented too many unknown tokens: then the token is not looked up.
    pub async fn authenticate(
        &self,
        token: &str,
        ClientAddress(address): ClientAddress,
    ) -> Result<Option<Caller>, Problem> {
        let digest = digest(token);
        let now_ms = self.tokens.now_ms();
        if let Some(caller) = self.bus.known(&digest, now_ms) {
            self.tokens.used(&format!("~{}", caller.bus_client()));
            return Ok(Some(caller));
        }
        if let Some(caller) = self.tokens.cached(&digest) {
            return Ok(Some(caller));
        }
        {
            let attempts = self.attempts.lock();
            if !attempts.was_valid(&digest) {
                attempts.check(address, now_ms).map_err(too_many_attempts)?;
            }
            if attempts.is_unknown(&digest, now_ms) {
                return Ok(None);
            }
        }
        let mut caller = self.tokens.of_digest(&digest).await?;
        if caller.is_none() && intake::is_token(token) {
            caller = self.bus.look_up(&digest, now_ms).await?;
        }
        if caller.is_some() {
            self.attempts.lock().succeeded(&digest);
            return Ok(caller);
        }
        self.attempts.lock().failed(address, &digest, now_ms);
        Ok(None)
    }

    /// For whom a browser acts, unless the token has been revoked since.
    pub async fn remember(&self, session: &Session) -> Result<Option<Caller>, Problem> {
        match &session.holder {
            Holder::Token(digest) => {
                if let Some(caller) = self.tokens.of_digest(digest).await? {
                    return Ok(Some(caller));
                }
                Ok(self.bus.known(digest, self.tokens.now_ms()))
            }
            Holder::Person { name, token } => {
                let caller = self.tokens.of_name(token).await?;
                if caller.is_none() {
                    tracing::warn!(
                        token,
                        "`login.proxy_tokens` names a token that does not exist or has expired"
                    );
                }
                Ok(caller.map(|caller| caller.for_person(name.clone())))
            }
        }
    }
}

fn too_many_attempts(seconds: u32) -> Problem {
    let detail = format!("Too many unknown tokens from this address. Try again in {seconds} s.");
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_attempts", detail).retry_after(seconds)
}
