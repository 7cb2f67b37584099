//! The state shared by the handlers of the API.

use std::{ops::Deref, sync::Arc};

use signalbox_access::{Caller, Tokens};
use signalbox_certificates::Certificates;
use signalbox_lease::Presence;
use signalbox_routing::{Registry, Routers};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{bus, sequencer},
    http::{Problem, metrics::Metrics, session::Sessions},
};

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
    /// Cancelled to end waiting requests.
    pub(crate) shutdown: CancellationToken,
}

impl App {
    pub(crate) fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// The caller of `token`. Tokens of the event bus are checked first: they are in memory, and most requests have
    /// one.
    pub(crate) async fn authenticate(&self, token: &str) -> Result<Option<Caller>, Problem> {
        if let Some(caller) = self.bus.known(token) {
            return Ok(Some(caller));
        }
        if let Some(caller) = self.tokens.authenticate(token).await? {
            return Ok(Some(caller));
        }
        self.bus.look_up(token).await
    }

    /// The caller whose token had this digest at login, unless it has been revoked since.
    pub(crate) async fn remember(&self, digest: &str) -> Result<Option<Caller>, Problem> {
        if let Some(caller) = self.tokens.of_digest(digest).await? {
            return Ok(Some(caller));
        }
        Ok(self.bus.of_digest(digest))
    }
}
