//! What the handlers of the API work with.

use std::{ops::Deref, sync::Arc};

use signalbox_access::{Caller, Tokens};
use signalbox_certificates::Certificates;
use signalbox_lease::Presence;
use signalbox_routing::{Registry, Routers};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{bus, check::Checks, routing::TableNames, sequencer},
    http::{Problem, metrics::Metrics, session::Sessions, slots::Slots},
};

/// Requests with `wait` on one pacemaker, and of one token.
const MAX_WAITS: usize = 10_000;
const MAX_WAITS_PER_TOKEN: usize = 1_000;
/// Dumps of the route table on one pacemaker, and of one token.
const MAX_DUMPS: usize = 16;
const MAX_DUMPS_PER_TOKEN: usize = 2;

/// All handles behind one reference count, because every request clones it several times.
#[derive(Debug, Clone)]
pub(crate) struct App(Arc<Parts>);

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// The handles themselves.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) tokens: Tokens,
    pub(crate) registry: Registry,
    pub(crate) certificates: Certificates,
    pub(crate) routers: Routers,
    pub(crate) bus: bus::Front,
    pub(crate) sequencer: sequencer::Front,
    pub(crate) live: signalbox_stream::Hub,
    pub(crate) queues: signalbox_queues::Handle,
    /// Of browsers that have logged in.
    pub(crate) sessions: Sessions,
    pub(crate) machines: signalbox_machines::Handle,
    pub(crate) presence: Presence,
    pub(crate) metrics: Metrics,
    /// What one token may hold at a time.
    pub(crate) limits: Limits,
    /// The names of the route table, for dumps.
    pub(crate) table_names: TableNames,
    /// The latest consistency check.
    pub(crate) checks: Checks,
    /// Cancelled when requests that wait must come to an end.
    pub(crate) shutdown: CancellationToken,
}

/// What one token may hold at a time.
#[derive(Debug)]
pub(crate) struct Limits {
    /// Streams of events.
    pub(crate) streams: Slots,
    /// Requests that wait for routers or labels.
    pub(crate) waits: Slots,
    /// Pulls that wait for messages.
    pub(crate) pulls: Slots,
    /// Dumps of the route table that are being sent.
    pub(crate) dumps: Slots,
}

impl Limits {
    /// `streams` and `pulls` are the limits for all tokens together. A token may hold a quarter of the streams and half of the
    /// pulls.
    pub(crate) fn new(streams: usize, pulls: usize) -> Self {
        Self {
            streams: Slots::new("streams of events", usize::MAX, (streams / 4).max(1)),
            waits: Slots::new("requests that wait", MAX_WAITS, MAX_WAITS_PER_TOKEN),
            pulls: Slots::new("pulls that wait", usize::MAX, (pulls / 2).max(1)),
            dumps: Slots::new("dumps of the route table", MAX_DUMPS, MAX_DUMPS_PER_TOKEN),
        }
    }
}

impl App {
    pub(crate) fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// Who presents `token`. Tokens of the event bus come first: they are in memory, and most requests carry one.
    pub(crate) async fn authenticate(&self, token: &str) -> Result<Option<Caller>, Problem> {
        if let Some(caller) = self.bus.known(token) {
            return Ok(Some(caller));
        }
        if let Some(caller) = self.tokens.authenticate(token).await? {
            return Ok(Some(caller));
        }
        self.bus.look_up(token).await
    }

    /// Who presented the token with this digest when logging in, unless it has been revoked since.
    pub(crate) async fn remember(&self, digest: &str) -> Result<Option<Caller>, Problem> {
        if let Some(caller) = self.tokens.of_digest(digest).await? {
            return Ok(Some(caller));
        }
        Ok(self.bus.of_digest(digest))
    }
}
