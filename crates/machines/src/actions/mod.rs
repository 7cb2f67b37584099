//! One attempt of an action: a webhook, a change of the route table, or an event.
//!
//! An attempt is counted in the label's record before it is made, and all attempts of a visit carry the same token, so
//! the receiver can distinguish a repeated attempt from another visit.

pub(crate) mod route;

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderName, HeaderValue, Method, Request, Uri, header};
use http_body_util::Full;
use serde_json::{Value, value::to_raw_value};
use signalbox_machine::{
    Machine, State, attempt,
    definition::Action,
    render::{self, Filling, token},
};

use crate::{AuditLog, Secrets, Version, log::shortened, record::Record, secrets::Values};
use signalbox_access::{Effect, Rates};
use signalbox_bus::{self as bus, Kind, NewEvent, Refusal, is_topic_name};
use signalbox_egress::{Client, Owner, Place};
use signalbox_routing::Registry;

/// Maximum size of a webhook's answer, bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// Bytes of an answer from which the log has an excerpt.
const EXCERPT_BYTES: usize = 1_200;

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is done, with the metadata update that its answer gives, if any.
    Done(Option<Value>),
    /// It failed.
    Failed {
        /// The reason, for people.
        why: String,
        /// Decides whether and when the action is attempted again.
        kind: attempt::Outcome,
    },
}

impl Outcome {
    /// There was no answer, or a temporary failure.
    fn failed(why: impl Into<String>) -> Self {
        Self::Failed { why: why.into(), kind: attempt::Outcome::Silence }
    }

    /// Another attempt would fail for the same reason.
    fn permanent(why: impl Into<String>) -> Self {
        Self::Failed { why: why.into(), kind: attempt::Outcome::Refused }
    }

    /// The word for history and metrics.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::Failed { kind: attempt::Outcome::Refused, .. } => "refused",
            Self::Failed { .. } => "failed",
        }
    }
}

/// An attempt that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempted {
    pub(crate) outcome: Outcome,
    /// The answer to a webhook.
    pub(crate) answer: Option<HttpAnswer>,
}

/// What the log has of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    /// The beginning of the body; `None` if there is none, or it is too large.
    pub(crate) excerpt: Option<String>,
}

impl From<Outcome> for Attempted {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, answer: None }
    }
}

/// The owner of a machine's calls. They count for the client that applied the definition, however many machines it has.
pub(crate) fn owner(version: &Version) -> Owner {
    let name = format!("machine {}", version.machine.name());
    match version.author.client() {
        Some(client) => Owner::of(client, &name),
        None => Owner::alone(&name),
    }
}

/// The client that publishes a machine's events: the one that applied the definition, so that its limits apply. Machines of
/// root, which has no limits, have topics of their own.
fn publisher(version: &Version) -> Cow<'_, str> {
    let of_machine = || Cow::Owned(format!("machine:{}", version.machine.name()));
    version.author.client().map_or_else(of_machine, Cow::Borrowed)
}

/// Performs actions.
#[derive(Debug)]
pub(crate) struct Actions {
    pub(crate) client: Client,
    pub(crate) bus: bus::Handle,
    pub(crate) routes: Registry,
    pub(crate) secrets: Secrets,
    pub(crate) audit: AuditLog,
    pub(crate) publish_rates: Arc<Rates>,
    /// The clock of `publish_rates`.
    pub(crate) wall_clock: fn() -> SystemTime,
}

impl Actions {
    /// The address that an attempt of the label's action would call.
    pub(crate) fn address(machine: &Machine, label: &str, record: &Record) -> Option<Uri> {
        let action = machine.state(&record.state).and_then(State::action)?;
        let filling = Filling { state_machine: machine.name(), label, metadata: &record.metadata };
        match action.request(filling) {
            Ok(render::Request::Webhook { url, .. }) => url.parse().ok(),
            _ => None,
        }
    }

    /// Makes one attempt of the action that the label is in. A call takes `place`, or waits for one within its timeout.
    pub(crate) async fn perform(
        &self,
        (version, label): (&Version, &str),
        record: &Record,
        place: Option<Place>,
    ) -> Attempted {
        let machine = &*version.machine;
        let Some(action) = machine.state(&record.state).and_then(State::action) else {
            return Outcome::failed("the state is not an action in the present definition").into();
        };
        let filling = Filling { state_machine: machine.name(), label, metadata: &record.metadata };
        let request = match action.request(filling) {
            Ok(request) => request,
            Err(unfilled) => return Outcome::permanent(unfilled.to_string()).into(),
        };
        let token =
            token(machine.name(), label, (record.origin, record.incarnation), record.visit, &record.state);
        let attempt = async {
            match request {
                render::Request::Webhook { url, body } => {
                    self.webhook((version, action), (&url, place), body.to_string(), &token).await
                }
                render::Request::Route(change) => route::apply(self, version, label, change).await.into(),
                render::Request::Publish { topic, kind, url, data } => {
                    self.publish(version, (&topic, &kind, url), data.as_ref(), token).await.into()
                }
            }
        };
        match tokio::time::timeout(action.timeout, Box::pin(attempt)).await {
            Ok(attempted) => attempted,
            Err(_) => Outcome::failed(format!("not done within {} ms", action.timeout.as_millis())).into(),
        }
    }

    async fn webhook(
        &self,
        (version, action): (&Version, &Action),
        (url, place): (&str, Option<Place>),
        body: String,
        token: &str,
    ) -> Attempted {
        let machine = &*version.machine;
        let method = Method::from_bytes(action.method.as_bytes()).unwrap_or(Method::POST);
        let request = Request::builder()
            .method(method)
            .uri(url)
            .header(header::CONTENT_TYPE, "application/json")
            .header("x-idempotency-token", token)
            .body(Full::from(body.clone()));
        let Ok(mut request) = request else { return Outcome::permanent("the URL cannot be used").into() };
        let secrets = match self.headers(machine, url, request.headers_mut()).await {
            Ok(secrets) => secrets,
            Err(why) => return Outcome::failed(why).into(),
        };
        if let Err(why) = self.sign((machine, url), &secrets, (token, &body), request.headers_mut()) {
            return Outcome::failed(why).into();
        }
        let place = match place {
            Some(place) => place,
            None => self.client.place(&owner(version), request.uri()).await,
        };
        let called = self.client.call(place, "machine action", request, action.timeout, MAX_ANSWER_BYTES);
        let answer = match called.await {
            Ok(answer) => answer,
            Err(why) => return Outcome::failed(why).into(),
        };
        let status = answer.status;
        let excerpt = answer.body.as_deref().filter(|body| !body.is_empty());
        let excerpt =
            excerpt.map(|body| shortened(&String::from_utf8_lossy(&body[..body.len().min(EXCERPT_BYTES)])));
        let outcome = if (200..300).contains(&status) {
            result(action, status, answer.body)
        } else {
            Outcome::Failed {
                why: format!("answered {status}"),
                kind: attempt::Outcome::Status { code: status, retry_after: answer.retry_after },
            }
        };
        Attempted { outcome, answer: Some(HttpAnswer { status, excerpt }) }
    }

    /// Adds the headers that the machine defines for this URL. Returns the secrets of the call.
    pub(crate) async fn headers(
        &self,
        machine: &Machine,
        url: &str,
        headers: &mut http::HeaderMap,
    ) -> Result<Values, String> {
        let secrets = self.secrets.values_for(machine, url).await?;
        for header in machine.headers_for(url) {
            let value = header.value(|name| secrets.get(name)).ok_or("a secret of its headers is not set")?;
            // The error contains neither name nor value, which may be a secret.
            let unusable = || "a header cannot be used".to_owned();
            let name = HeaderName::try_from(&*header.name).map_err(|_| unusable())?;
            let mut value = HeaderValue::try_from(value).map_err(|_| unusable())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(secrets)
    }

    /// Signs a webhook, if the machine has a secret for its address. All attempts of a visit have the same ID.
    fn sign(
        &self,
        (machine, url): (&Machine, &str),
        secrets: &Values,
        (token, body): (&str, &str),
        headers: &mut http::HeaderMap,
    ) -> Result<(), String> {
        let Some(name) = machine.secret_for(url) else { return Ok(()) };
        let secret = secrets.get(name).ok_or_else(|| format!("its secret {name} is not set"))?;
        let signed = self.client.sign(&secret, token, body.as_bytes(), headers);
        let wrong =
            || format!("its secret {name} is not valid: it must be whsec_ and 24 to 64 bytes in base64");
        signed.then_some(()).ok_or_else(wrong)
    }

    async fn publish(
        &self,
        version: &Version,
        (topic, kind, url): (&str, &str, String),
        data: Option<&Value>,
        token: String,
    ) -> Outcome {
        if let Err(denied) = version.may(Effect::Publish) {
            return Outcome::permanent(version.why_not(&denied));
        }
        let machine = version.machine.name();
        let kind = match kind {
            "create" => Kind::Create,
            "update" => Kind::Update,
            "delete" => Kind::Delete,
            "noop" => Kind::Noop,
            other => return Outcome::permanent(format!("{other:?} is not a type of events")),
        };
        if !is_topic_name(topic) {
            return Outcome::permanent(format!("{topic:?} is not a valid topic"));
        }
        if url.is_empty() || url.len() > 1024 || url.chars().any(char::is_control) {
            return Outcome::permanent("the url cannot be used");
        }
        let new = NewEvent {
            kind,
            url,
            timestamp_ms: None,
            data: data.and_then(|data| to_raw_value(data).ok()),
            tenant: Some(bus::tenant_of_machine(machine)),
            object: None,
            idempotency_key: Some(token),
        };
        if let Err(beyond) = self.count_event(version) {
            return beyond;
        }
        match self.bus.publish(&publisher(version), topic, vec![new]).await.pop() {
            // A conflict means that the event was published before, with other data because metadata has changed since.
            Some(Ok(_) | Err(Refusal::Conflict)) => Outcome::Done(None),
            Some(Err(refusal @ (Refusal::Claimed | Refusal::BadTopic))) => {
                Outcome::permanent(refusal.to_string())
            }
            Some(Err(refusal)) => Outcome::failed(refusal.to_string()),
            None => Outcome::failed("nothing was published"),
        }
    }

    /// Counts an event for the machine's author, together with those that it publishes itself.
    fn count_event(&self, version: &Version) -> Result<(), Outcome> {
        let Some(client) = version.author.client() else { return Ok(()) };
        let now = (self.wall_clock)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.publish_rates.take(client, 1, now_ms).map_err(|reached| {
            let why = format!(
                "limit of events to publish of the author's token reached ({} per second); publish fewer, or raise \
                 `limits.token_events_per_second`",
                reached.per_second
            );
            let retry_after = Some(Duration::from_millis(reached.wait_ms));
            Outcome::Failed { why, kind: attempt::Outcome::Status { code: 429, retry_after } }
        })
    }
}

/// The outcome of a successful answer. A part that becomes metadata and is not in it is a failure: the label would continue
/// without a value that the definition relies on.
fn result(action: &Action, status: u16, body: Option<Vec<u8>>) -> Outcome {
    if action.result.is_empty() {
        return Outcome::Done(None);
    }
    let Some(body) = body else {
        return Outcome::failed(format!("its answer is larger than {} KiB", MAX_ANSWER_BYTES / 1024));
    };
    let json = serde_json::from_slice::<Value>(&body).ok();
    match action.result_of(status, json.as_ref()) {
        Ok(update) => Outcome::Done(update),
        Err(why) => Outcome::failed(why),
    }
}
