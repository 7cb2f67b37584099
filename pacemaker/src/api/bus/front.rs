//! The state shared by the handlers of the bus.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use axum::http::HeaderMap;

use crate::http::Problem;
use signalbox_access::{self as tokens, Caller, ExternalToken, ExternalTokens, Scope};
use signalbox_bus::Webhooks;
use signalbox_bus::{
    ApiToken, EventId, Gauges, Handle, Metrics, NewGroup, Options, Registry, SubscriberGauges, WantedBackend,
    intake::{self, Limits},
};

/// The handles and limits. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    pub(super) handle: Handle,
    pub(super) webhooks: Webhooks,
    pub(super) metrics: Metrics,
    pub(super) limits: Limits,
    /// The number of overdue jobs above which the scaling pulse is slow.
    pub(super) overdue_jobs: u64,
    now: fn() -> SystemTime,
}

impl Front {
    pub(crate) fn new(
        handle: Handle,
        webhooks: Webhooks,
        metrics: Metrics,
        options: &Options,
        now: fn() -> SystemTime,
    ) -> Self {
        let limits = Limits::new(options);
        Self { handle, webhooks, metrics, limits, overdue_jobs: options.overdue_jobs, now }
    }

    pub(super) fn now_ms(&self) -> u64 {
        let since = (self.now)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// The caller of `token`, if it is a token of the bus that this process knows.
    pub(crate) fn known(&self, token: &str) -> Option<Caller> {
        self.handle.registry().api_tokens.get(token).map(|client| caller(token, client))
    }

    /// The public name of a client.
    pub(crate) fn name_of(&self, client: &str) -> String {
        self.handle.registry().name_of(client)
    }

    /// The caller whose bus token has this digest, as far as this process knows.
    pub(crate) fn of_digest(&self, digest: &str) -> Option<Caller> {
        let registry = self.handle.registry();
        let mut tokens = registry.api_tokens.iter();
        // Only sessions of such clients get here, and a thousand digests cost less than one query of the fabric.
        tokens.find(|(token, _)| tokens::digest(token) == digest).map(|(token, client)| caller(token, client))
    }

    /// The caller of `token`, if it is a token of the bus.
    pub(crate) async fn look_up(&self, token: &str) -> Result<Option<Caller>, Problem> {
        if !intake::is_token(token) {
            return Ok(None);
        }
        if !self.handle.is_ready() {
            // Clients whose tokens were lost with the old fabric must not get the answer that their tokens are
            // invalid.
            return Err(super::problems::uninitialized());
        }
        Ok(self.handle.find_api_token(token).await?.map(|client| caller(token, &client)))
    }

    /// Checks that applications may publish events of the object.
    pub(crate) fn check_object(&self, object: &str) -> Result<(), Problem> {
        intake::object_name(object)?;
        if intake::is_reserved_object(object) {
            let detail = "object names that begin with `machine:` or `signalbox:` are reserved";
            return Err(Problem::forbidden("reserved_object", detail));
        }
        Ok(())
    }

    /// Publishes a group of events of one object. The idempotency key may be in the body, in the header, or the same
    /// in both.
    pub(crate) async fn publish_group(
        &self,
        caller: &Caller,
        object: String,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Vec<EventId>, Problem> {
        let header = super::topics::idempotency_key(headers)?.map(str::to_owned);
        let group = intake::group(body, object, self.limits).inspect_err(|_| self.metrics.invalid())?;
        if header.is_some() && group.idempotency_key.is_some() && header != group.idempotency_key {
            let detail = "the header Idempotency-Key and `idempotency_key` differ";
            return Err(Problem::bad_request("invalid_idempotency_key", detail));
        }
        let idempotency_key = group.idempotency_key.or(header);
        let events = group.events.into_iter();
        let events = events
            .map(|(topic, event)| Ok((topic, super::topics::addressed(event, caller)?)))
            .collect::<Result<_, Problem>>()?;
        let group = NewGroup { events, idempotency_key, ..group };
        let accepted = self.handle.publish_group(&caller.bus_client(), group).await;
        self.metrics.published(&accepted);
        Ok(accepted?)
    }

    /// Parses an operator's definition of a backend.
    pub(crate) fn wanted_backend(&self, name: &str, body: &[u8]) -> Result<WantedBackend, Problem> {
        Ok(intake::backend(name, body, self.limits)?)
    }

    /// The consistency violations in the data of the bus, with the names of clients.
    pub(crate) async fn check(&self) -> Result<Vec<signalbox_bus::Finding>, Problem> {
        let mut findings = self.handle.check().await?;
        let registry = self.handle.registry();
        for finding in &mut findings {
            finding.name = name_of(&finding.name, &registry);
        }
        Ok(findings)
    }

    /// Every token of the bus, for the token registry; none while the registry of the bus is not known.
    pub(crate) fn external_tokens(&self) -> ExternalTokens {
        let handle = self.handle.clone();
        ExternalTokens::new(move || {
            let registry = handle.is_ready().then(|| handle.registry())?;
            Some(registry.api_tokens.iter().map(|(token, client)| external_token(token, client)).collect())
        })
    }

    /// All metrics of the bus.
    pub(crate) async fn metrics_text(&self) -> Result<String, std::fmt::Error> {
        let gauges = self.handle.gauges().await;
        let gauges = gauges
            .inspect_err(|error| tracing::debug!(%error, "the numbers of the bus cannot be read now"))
            .map(|gauges| by_name(gauges, &self.handle.registry()));
        self.metrics.encode(gauges.as_ref().ok())
    }
}

fn scopes(client: &ApiToken) -> Vec<Scope> {
    let scopes: BTreeSet<Scope> = client.scopes.iter().filter_map(|scope| Scope::from_name(scope)).collect();
    scopes.into_iter().collect()
}

fn caller(token: &str, client: &ApiToken) -> Caller {
    Caller::of_bus(token.to_owned(), client.name.clone(), scopes(client))
}

/// The token in the form that the token registry needs.
pub(super) fn external_token(token: &str, client: &ApiToken) -> ExternalToken {
    ExternalToken { token: token.to_owned(), name: client.name.clone(), scopes: scopes(client) }
}

/// The public name of a client.
pub(super) fn name_of(client: &str, registry: &Registry) -> String {
    registry.name_of(client)
}

/// The numbers by name instead of token. Clients with the same name are combined.
pub(super) fn by_name(gauges: Gauges, registry: &Registry) -> Gauges {
    let mut subscribers: BTreeMap<String, SubscriberGauges> = BTreeMap::new();
    for (client, numbers) in gauges.subscribers {
        subscribers
            .entry(name_of(&client, registry))
            .and_modify(|sum| {
                sum.sent += numbers.sent;
                sum.queued += numbers.queued;
                sum.batches += numbers.batches;
                sum.dead += numbers.dead;
                sum.oldest_ms = sum.oldest_ms.into_iter().chain(numbers.oldest_ms).min();
                sum.last_attempted_ms = sum.last_attempted_ms.max(numbers.last_attempted_ms);
                sum.health = sum.health.min(numbers.health);
            })
            .or_insert(numbers);
    }
    Gauges { subscribers, ..gauges }
}
