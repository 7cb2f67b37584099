//! One event or message: its content, the queues and subscribers that it went to, and every attempt to deliver it.
//!
//! Events and messages are entries of one log. The log drops old entries, but a queue keeps a copy of a redriven one. So
//! the pages of a queue link here with the queue and the tenant, from which the copy can be read.

use askama::Template;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Content, Kind, Visit, link, plain, segment,
    subscribers::{answer, outcome},
};
use crate::{dashboard::format, http::Problem};
use signalbox_access::{Caller, Scope};
use signalbox_api::{
    events::{DeliveryAttempt, DeliveryResult},
    queues::MessageState,
};
use signalbox_bus::{EventId, SubscriptionStatus, is_audit_topic};
use signalbox_queues::{Act, Stored};

/// Queues, and subscribers, on the page.
const MAX_PLACES: usize = 50;
/// Dead letters of a subscriber among which the event is searched.
const MAX_DEAD_LETTERS: usize = 500;
/// Attempts to deliver that a subscriber's log has.
const MAX_ATTEMPTS: usize = 50;

#[derive(Debug, Template)]
#[template(path = "dashboard/event.html")]
struct Page {
    id: u64,
    entry: Entry,
    /// Whether the log still has it.
    logged: bool,
    queues: Vec<QueueRow>,
    subscribers: Vec<SubscriberRow>,
    more: bool,
    may_use: bool,
    /// Whether the caller may see more than single tenants.
    whole: bool,
    now_ms: u64,
}

#[derive(Debug)]
struct QueueRow {
    name: String,
    /// The event in this queue, if it is there.
    stored: Option<Stored>,
    state: &'static str,
    class: &'static str,
    details: String,
}

#[derive(Debug)]
struct SubscriberRow {
    name: String,
    state: &'static str,
    class: &'static str,
    details: String,
    attempts: Vec<DeliveryAttempt>,
    /// Whether the caller may see and repeat its deliveries.
    own: bool,
    /// Whether it waits for another attempt, so that it can be skipped.
    waits: bool,
}

/// An entry of the log.
#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    topic: String,
    // Earlier releases stored it as `environment`.
    #[serde(alias = "environment")]
    tenant: String,
    #[serde(default)]
    object: String,
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    data: Option<Box<RawValue>>,
}

fn unknown(id: &str) -> Problem {
    let detail = format!(
        "Unknown event `{id}`: it never existed, is no longer retained, or belongs to another tenant."
    );
    Problem::not_found("unknown_event", detail)
}

pub(super) async fn content(visit: Visit<'_>) -> Result<Content, Problem> {
    let Visit { app, caller, view, now_ms, .. } = visit;
    let id: u64 = view.name.parse().map_err(|_| unknown(&view.name))?;
    let logged = app.queues.log_entry(id).await?;
    let copy = match (&logged, &*view.queue) {
        (None, queue) if !queue.is_empty() => {
            let tenant = Some(&*view.tenant).filter(|tenant| !tenant.is_empty());
            app.queues.message(queue, id, tenant, Act::Show).await?
        }
        _ => None,
    };
    let copy = copy.filter(|copy| shows(caller, copy));
    let body = logged.as_deref().or(copy.as_ref().map(|copy| &*copy.message.body));
    let entry: Entry =
        body.and_then(|body| serde_json::from_slice(body).ok()).ok_or_else(|| unknown(&view.name))?;
    let foreign = caller.tenants().is_some_and(|own| !own.contains(&entry.tenant));
    if foreign || is_audit_topic(&entry.topic) && !caller.has_any(&[Scope::Audit]) {
        return Err(unknown(&view.name));
    }
    let (queues, more_queues) = queues(visit, id, &entry).await?;
    let (subscribers, more_subscribers) = subscribers(visit, id, &entry).await?;
    plain(&Page {
        id,
        entry,
        logged: logged.is_some(),
        queues,
        subscribers,
        more: more_queues || more_subscribers,
        may_use: caller.has_any(&[Scope::Queues]),
        whole: caller.tenants().is_none(),
        now_ms,
    })
}

/// The data with line breaks; verbatim if a reader of JSON would change it, such as a number with many digits.
fn pretty(data: &RawValue) -> String {
    let compact = |value: &serde_json::Value| value.to_string().len() == data.get().len();
    let value = serde_json::from_str::<serde_json::Value>(data.get()).ok();
    let text = value.filter(compact).and_then(|value| serde_json::to_string_pretty(&value).ok());
    text.unwrap_or_else(|| data.get().to_owned())
}

/// Tokens that are confined to tenants do not see dead letters.
fn shows(caller: &Caller, stored: &Stored) -> bool {
    let own = |own: &[String]| stored.place != MessageState::Dead && own.contains(&stored.message.tenant);
    caller.tenants().is_none_or(own)
}

/// The queues whose pattern matches, and the one that the address names.
async fn queues(
    Visit { app, caller, view, now_ms, .. }: Visit<'_>,
    id: u64,
    entry: &Entry,
) -> Result<(Vec<QueueRow>, bool), Problem> {
    let text = format!("{}:{}:{}", entry.tenant, entry.kind, entry.topic);
    let mut names: Vec<String> = app.bus.handle().queues(|all| {
        let places = all.matching(&text);
        places.iter().filter_map(|place| all.at(*place)).map(|queue| queue.name.to_string()).collect()
    });
    if !view.queue.is_empty() && !names.contains(&view.queue) {
        names.insert(0, view.queue.clone());
    }
    let more = names.len() > MAX_PLACES;
    names.truncate(MAX_PLACES);
    let mut rows = Vec::new();
    for name in names {
        let stored = app.queues.message(&name, id, Some(&entry.tenant), Act::Show).await?;
        rows.push(queue_row(name, stored.filter(|one| shows(caller, one)), now_ms));
    }
    Ok((rows, more))
}

fn queue_row(name: String, stored: Option<Stored>, now_ms: u64) -> QueueRow {
    let until = |stored: &Stored| {
        stored.at_ms.map_or_else(String::new, |at| format!("for {}", format::until(now_ms, at)))
    };
    let (state, class, details) = match &stored {
        None => ("not in the queue", "idle", "it was acknowledged, dropped or expired".to_owned()),
        Some(stored) => match stored.place {
            MessageState::Waiting => ("waiting", "good", String::new()),
            MessageState::Delayed => ("delayed", "warn", until(stored)),
            MessageState::InFlight => ("in flight", "good", until(stored)),
            MessageState::Dead => {
                let when = stored.at_ms.map(|at| format::ago(now_ms, at)).unwrap_or_default();
                ("dead letter", "bad", format!("{when}: {}", stored.reason.as_deref().unwrap_or("no reason")))
            }
        },
    };
    QueueRow { name, stored, state, class, details }
}

/// The subscribers of its topic. Only a caller that sees all tenants sees them.
async fn subscribers(
    visit: Visit<'_>,
    id: u64,
    entry: &Entry,
) -> Result<(Vec<SubscriberRow>, bool), Problem> {
    if visit.caller.tenants().is_some() {
        return Ok((Vec::new(), false));
    }
    let mut all = visit.app.bus.handle().subscriptions().await?;
    all.retain(|one| one.subscription.topics.contains(&entry.topic) && one.subscription.takes(&entry.tenant));
    let more = all.len() > MAX_PLACES;
    all.truncate(MAX_PLACES);
    let mut rows = Vec::new();
    for status in &all {
        rows.push(subscriber_row(visit, id, status).await?);
    }
    Ok((rows, more))
}

async fn subscriber_row(
    Visit { app, caller, now_ms, .. }: Visit<'_>,
    id: u64,
    status: &SubscriptionStatus,
) -> Result<SubscriberRow, Problem> {
    let (bus, token) = (app.bus.handle(), &status.subscription.token);
    let name = app.bus.name_of(token);
    // Only the subscriber and root may see its deliveries.
    let own = caller.is_root() || (*token == *caller.bus_client() && caller.has_any(&[Scope::Subscribe]));
    let mut row = SubscriberRow {
        name,
        state: "not shown",
        class: "idle",
        details: "only the subscriber and root see its deliveries".to_owned(),
        attempts: Vec::new(),
        own,
        waits: false,
    };
    if !own {
        return Ok(row);
    }
    row.attempts = bus.deliveries(token, MAX_ATTEMPTS).await?;
    row.attempts.retain(|one| (one.first..=one.last).contains(&id));
    let dead = if status.numbers.dead > 0 {
        bus.dead_letters(token, None, MAX_DEAD_LETTERS).await?.items
    } else {
        Vec::new()
    };
    let dead = dead.into_iter().find(|letter| letter.event.id.0 == id);
    let last = row.attempts.first().map(|one| one.result);
    row.waits = dead.is_none() && last == Some(DeliveryResult::Retried);
    row.details = String::new();
    (row.state, row.class) = match (&dead, last) {
        (Some(letter), _) => {
            row.details = format!("{}: {}", format::ago(now_ms, letter.died_ms), letter.reason);
            ("dead letter", "bad")
        }
        (None, Some(DeliveryResult::Retried)) => ("waits for a retry", "warn"),
        (None, Some(last)) => outcome(last),
        (None, None)
            if status.numbers.oldest_at.is_some_and(|oldest| EventId(id).accepted_ms() >= oldest.ms()) =>
        {
            ("waiting or delivered", "idle")
        }
        (None, None) => {
            row.details = "it is not among the last attempts, and nothing older than it waits".to_owned();
            ("delivered", "good")
        }
    };
    Ok(row)
}

#[cfg(test)]
mod tests {
    use signalbox_queues::Taken;

    use super::*;

    #[test]
    fn data_is_shown_with_line_breaks_unless_that_would_change_it() {
        let pretty = |text: &str| super::pretty(&RawValue::from_string(text.to_owned()).unwrap());
        assert_eq!(pretty(r#"{"a":1}"#), "{\n  \"a\": 1\n}");
        assert_eq!(pretty("1.00000000000000000000001"), "1.00000000000000000000001");
    }

    #[test]
    fn a_message_that_left_its_queue_cannot_be_changed() {
        let shown = |stored| {
            let entry = r#"{"type":"create","topic":"mail","tenant":"a/b"}"#;
            let page = Page {
                id: 7,
                entry: serde_json::from_str(entry).unwrap(),
                logged: true,
                queues: vec![queue_row("mail".to_owned(), stored, 0)],
                subscribers: Vec::new(),
                more: false,
                may_use: true,
                whole: false,
                now_ms: 0,
            };
            page.render().unwrap()
        };
        let gone = shown(None);
        assert!(gone.contains("not in the queue") && !gone.contains("/queues/mail/messages"), "{gone}");
        let tenant = "a/b".to_owned();
        let message = Taken { id: 7, attempt: 1, tenant, backlog: 1, body: Vec::new() };
        let stored = |place| Some(Stored { place, at_ms: None, reason: None, message: message.clone() });
        let (waiting, dead) = (shown(stored(MessageState::Waiting)), shown(stored(MessageState::Dead)));
        assert!(waiting.contains("\"/queues/mail/messages/7?tenant=a%2Fb\""), "{waiting}");
        assert!(!waiting.contains("/redrive") && dead.contains("/messages/7/redrive?tenant=a%2Fb"));
    }
}
