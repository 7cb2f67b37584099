//! The state shared by the handlers of the bus.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use axum::http::HeaderMap;

use crate::http::{Problem, auth::check_whole};
use signalbox_access::{Caller, Scope, Tokens};
use signalbox_api::events::Numbers;
use signalbox_bus::Webhooks;
use signalbox_bus::{
    ApiToken, Error, EventId, Handle, Metrics, NewGroup, Options, Registry, WantedBackend,
    intake::{self, Limits},
};

/// The handles and limits. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Front {
    pub(super) handle: Handle,
    pub(super) webhooks: Webhooks,
    pub(super) metrics: Metrics,
    pub(crate) limits: Limits,
    /// Whether tokens are stored and listed in clear text.
    pub(super) legacy_token_list: bool,
    topic_metrics: bool,
    /// Overdue jobs from which the scaling pulse is slow.
    pub(super) overdue_jobs: u64,
    now: fn() -> SystemTime,
}

impl Front {
    /// The bus behind `handle`; `now` is the clock.
    pub fn new(
        handle: Handle,
        webhooks: Webhooks,
        metrics: Metrics,
        options: &Options,
        now: fn() -> SystemTime,
    ) -> Self {
        let limits = Limits::new(options);
        Self {
            handle,
            webhooks,
            metrics,
            limits,
            legacy_token_list: options.legacy_token_list,
            topic_metrics: options.topic_metrics,
            overdue_jobs: options.overdue_jobs,
            now,
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        let since = (self.now)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// The client with the token of this digest, as far as this process knows.
    pub(crate) fn known(&self, digest: &str, now_ms: u64) -> Option<Caller> {
        self.handle.client_of(digest, now_ms).map(|(client, token)| caller(client, token))
    }

    /// The clients of this name.
    pub(super) async fn clients_named(&self, name: &str) -> Result<Vec<String>, Problem> {
        let all = self.handle.api_tokens().await?;
        Ok(all.into_iter().filter(|(_, token)| token.name == name).map(|(client, _)| client).collect())
    }

    /// The public name of a client.
    pub fn name_of(&self, client: &str) -> String {
        self.handle.registry().name_of(client)
    }

    /// The client with the token of this digest. It may have been made elsewhere a moment ago.
    pub(crate) async fn look_up(&self, digest: &str, now_ms: u64) -> Result<Option<Caller>, Problem> {
        if !self.handle.is_ready() {
            // Clients whose tokens were lost with the old fabric must not get the answer that their tokens are
            // invalid.
            return Err(super::problems::uninitialized());
        }
        let found = self.handle.find_api_token(digest, now_ms).await?;
        Ok(found.map(|(client, token)| caller(client, token)))
    }

    /// Ends what a client has on the bus whose token was deleted: its subscription, and its claims of topics, which root gets.
    /// A later token of the same name starts with nothing.
    pub(crate) async fn end_client(&self, client: &str) -> Result<(), Problem> {
        match self.handle.end_client(client, &Caller::root().bus_client()).await {
            // There is no registry that the client could be in.
            Ok(()) | Err(Error::Uninitialized) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Which clients have a valid token. Call it after the clients were read: a token that is missing here has been deleted then.
    pub(crate) async fn validity(&self, tokens: &Tokens) -> Result<Validity, Problem> {
        let now_ms = self.now_ms();
        let listed = tokens.list().await?;
        let named = listed
            .into_iter()
            .map(|token| {
                let newest = token.expires_at.is_none_or(|end| now_ms < end.ms());
                (format!("@{}", token.name), newest || !token.replaced_until.is_empty())
            })
            .collect();
        let of_bus = self.handle.api_tokens().await?;
        let of_bus = of_bus
            .into_iter()
            .map(|(client, token)| (client, token.valid(now_ms).next().is_some()))
            .collect();
        Ok(Validity { named, of_bus })
    }

    /// Ends what clients without a valid token still have. Of a client whose tokens have all expired, the subscription ends; its
    /// topics stay with its name, because a rotation can renew it. Of a token that was deleted by a process which died before it
    /// could end the client, everything ends.
    pub async fn end_lost_clients(&self, tokens: &Tokens) -> Result<(), Problem> {
        let registry = self.handle.registry();
        if registry.subscriptions.is_empty() {
            return Ok(());
        }
        let validity = self.validity(tokens).await?;
        for client in registry.subscriptions.keys() {
            match validity.of(client) {
                Valid::Yes => continue,
                Valid::Expired => self.handle.unsubscribe(client).await?,
                Valid::Deleted => self.end_client(client).await?,
            }
            tracing::info!(client = registry.name_of(client), "subscription without a valid token ended");
        }
        Ok(())
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
    /// in both. `count` checks the number of events before they are published.
    pub(crate) async fn publish_group(
        &self,
        caller: &Caller,
        object: String,
        headers: &HeaderMap,
        body: &[u8],
        count: impl FnOnce(usize) -> Result<(), Problem>,
    ) -> Result<Vec<EventId>, Problem> {
        let header = super::topics::idempotency_key(headers)?.map(str::to_owned);
        let group = intake::group(body, object, self.limits).inspect_err(|_| self.metrics.invalid())?;
        if header.is_some() && group.idempotency_key.is_some() && header != group.idempotency_key {
            let detail = "the header Idempotency-Key and `idempotency_key` differ";
            return Err(Problem::bad_request("invalid_idempotency_key", detail));
        }
        if group.state.is_some() {
            // Events have tenants, the state of an object has none: it is the same for all of them.
            check_whole(caller)?;
        }
        count(group.events.len())?;
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

    /// All metrics of the bus.
    pub(crate) async fn metrics_text(&self) -> Result<String, std::fmt::Error> {
        let numbers = self.handle.numbers().await;
        let numbers = numbers
            .inspect_err(|error| tracing::debug!(%error, "the numbers of the bus cannot be read now"))
            // Those of another tenant are not for every reader of metrics.
            .map(|numbers| Numbers {
                topics: if self.topic_metrics { numbers.topics } else { BTreeMap::new() },
                ..numbers
            });
        self.metrics.encode(numbers.as_ref().ok().map(|numbers| (numbers, self.handle.credentials())))
    }
}

/// Whether a client has a valid token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Valid {
    Yes,
    /// All of them have expired.
    Expired,
    /// They were deleted.
    Deleted,
}

/// The clients that have tokens, with whether one of their tokens is valid.
#[derive(Debug)]
pub(crate) struct Validity {
    named: BTreeMap<String, bool>,
    of_bus: BTreeMap<String, bool>,
}

impl Validity {
    /// That of a client. Root and Signalbox's own clients are always valid.
    pub(crate) fn of(&self, client: &str) -> Valid {
        let known = match self.of_bus.get(client) {
            None if client.starts_with('@') && client != Caller::root().bus_client() => {
                self.named.get(client)
            }
            None => return Valid::Yes,
            known => known,
        };
        match known {
            Some(true) => Valid::Yes,
            Some(false) => Valid::Expired,
            None => Valid::Deleted,
        }
    }

    /// Whether a client that has started a task has no valid token any more. Signalbox's own clients start none.
    pub(crate) fn has_ended(&self, client: &str) -> bool {
        let is_deleted = !client.starts_with('@') && !self.of_bus.contains_key(client);
        is_deleted || self.of(client) != Valid::Yes
    }
}

fn scopes(client: &ApiToken) -> Vec<Scope> {
    let scopes: BTreeSet<Scope> = client.scopes.iter().filter_map(|scope| Scope::from_word(scope)).collect();
    scopes.into_iter().collect()
}

fn caller(client: String, token: ApiToken) -> Caller {
    let scopes = scopes(&token);
    Caller::of_bus(client, token.name, scopes)
}

/// The public name of a client.
pub(super) fn name_of(client: &str, registry: &Registry) -> String {
    registry.name_of(client)
}
