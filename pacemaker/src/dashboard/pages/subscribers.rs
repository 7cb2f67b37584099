//! Subscribers: the list, and one with the log of its deliveries and its dead letters.

use askama::Template;

use super::{
    Content, Kind, View, event_link, link,
    list::{self, Heading, List},
    render, segment,
};
use crate::{
    api::bus::visible_callback,
    dashboard::{Site, format},
    http::{
        Problem,
        list::{Field, Listing, SortKey},
    },
};
use signalbox_access::{Caller, Scope};
use signalbox_api::events::{DeliveryAttempt, DeliveryResult};
use signalbox_bus::{OnExhausted, SubscriptionStatus};

/// Dead letters and attempts to deliver on one page.
const MAX_DEAD_LETTERS: usize = 50;
const MAX_ATTEMPTS: usize = 50;
const HEADINGS: [Heading; 8] = [
    ("subscriber", "subscriber", false),
    ("state", "", false),
    ("health", "health", true),
    ("queued", "queued", true),
    ("oldest", "oldest", true),
    ("dead letters", "dead", true),
    ("delivered", "sent", true),
    ("last attempt", "attempted", true),
];

#[derive(Debug, Template)]
#[template(path = "dashboard/subscribers.html")]
struct Page {
    list: List,
    rows: Vec<SubscriberRow>,
    root: bool,
}

const FIELDS: [Field<SubscriberRow>; 7] = [
    ("subscriber", |row| SortKey::from(&*row.name)),
    ("health", |row| SortKey::from(u64::from(row.health))),
    ("queued", |row| SortKey::from(row.queued)),
    ("oldest", |row| SortKey::from(row.behind_ms)),
    ("dead", |row| SortKey::from(row.dead)),
    ("sent", |row| SortKey::from(row.sent)),
    ("attempted", |row| SortKey::from(row.attempted_ms)),
];

/// An attempt to deliver, formatted.
#[derive(Debug)]
pub(super) struct AttemptRow {
    pub(super) key: String,
    pub(super) at: String,
    pub(super) when: String,
    pub(super) result: &'static str,
    pub(super) class: &'static str,
    pub(super) status: String,
    pub(super) took: String,
    attempt: u32,
    events: u64,
    first: u64,
    first_link: String,
    pub(super) why: String,
    pub(super) next: String,
}

#[derive(Debug)]
struct SubscriberRow {
    name: String,
    topics: Vec<String>,
    callback: String,
    paused: bool,
    behind_ms: Option<u64>,
    attempted_ms: Option<u64>,
    link: String,
    /// The name, encoded for a query.
    query: String,
    health: u8,
    queued: u64,
    behind: String,
    dead: u64,
    sent: u64,
    attempted: String,
    disabled: Option<String>,
}

#[derive(Debug, Template)]
#[template(path = "dashboard/subscriber.html")]
struct SubscriberPage {
    row: SubscriberRow,
    /// The name, encoded for a query.
    query: String,
    topics: String,
    max_events: u64,
    timeout: String,
    concurrency: u64,
    on_exhausted: &'static str,
    batches: u64,
    /// Whether the caller is root or the subscriber itself.
    own: bool,
    letters: Vec<LetterRow>,
    /// The next and the first page of dead letters.
    next: Option<String>,
    first: Option<String>,
    attempts: Vec<AttemptRow>,
    root: bool,
}

#[derive(Debug)]
struct LetterRow {
    id: u64,
    event: String,
    topic: String,
    object: String,
    link: String,
    attempts: u32,
    reason: String,
    died: String,
}

impl SubscriberRow {
    /// Whether deliveries fail, and are retried.
    fn fails(&self) -> bool {
        self.health < 100 && self.queued > 0 && self.disabled.is_none() && !self.paused
    }
}

pub(super) async fn content(app: &Site, caller: &Caller, view: &View) -> Result<Content, Problem> {
    let html = if view.name.is_empty() {
        all(app, caller, view).await?
    } else {
        subscriber(app, caller, view).await?
    };
    Ok(Content { html, charts: Vec::new() })
}

async fn all(app: &Site, caller: &Caller, view: &View) -> Result<String, Problem> {
    let now_ms = app.dashboard.now_ms();
    let subscriptions = app.bus.handle().subscriptions().await?;
    let rows = subscriptions.iter().map(|one| row(app, caller, one, now_ms)).collect();
    let listing = Listing {
        name: |row: &SubscriberRow| &row.name,
        texts: |row| row.topics.iter().chain([&row.callback]).map(String::as_str).collect(),
        fields: &FIELDS,
    };
    let query = list::query(view, "subscriber");
    let page = listing.page(rows, &query)?;
    let list = List::new(view, &query, &page, "Subscriber, topic or callback", &HEADINGS);
    render(&Page { list, rows: page.items, root: caller.is_root() })
}

pub(super) fn attempt(one: DeliveryAttempt, now_ms: u64) -> AttemptRow {
    let (result, class) = match one.result {
        DeliveryResult::Delivered => ("delivered", "good"),
        DeliveryResult::Retried => ("retried", "warn"),
        DeliveryResult::Dead => ("dead letter", "bad"),
        DeliveryResult::Gone => ("gone", "bad"),
    };
    let answer = [one.why.clone(), one.response.clone()];
    AttemptRow {
        key: format!("{} {} {}", one.at, one.batch, one.attempt),
        at: format::time(one.at),
        when: format::ago(now_ms, one.at),
        result,
        class,
        status: one.status.map_or_else(|| "none".to_owned(), |status| status.to_string()),
        took: format!("{} ms", one.duration_ms),
        attempt: one.attempt,
        events: one.events,
        first: one.first,
        first_link: event_link(one.first),
        why: answer.into_iter().flatten().collect::<Vec<_>>().join(": "),
        next: one.next.map_or_else(String::new, |at| match at.saturating_sub(now_ms) {
            // An attempt that is due, or was made.
            0 => String::new(),
            left => format!("in {}", format::span(left)),
        }),
    }
}

fn row(app: &Site, caller: &Caller, status: &SubscriptionStatus, now_ms: u64) -> SubscriberRow {
    let (subscription, numbers) = (&status.subscription, &status.numbers);
    let name = app.bus.name_of(&subscription.token);
    SubscriberRow {
        link: link(Kind::Subscribers, &name),
        query: segment(&name),
        topics: subscription.topics.iter().cloned().collect(),
        callback: visible_callback(
            &subscription.callback,
            caller,
            subscription.token == *caller.bus_client(),
        )
        .to_owned(),
        paused: subscription.paused,
        behind_ms: numbers.oldest_ms.map(|oldest| now_ms.saturating_sub(oldest)),
        attempted_ms: numbers.last_attempted_ms,
        name,
        health: numbers.health,
        queued: numbers.events,
        behind: numbers
            .oldest_ms
            .map_or_else(String::new, |oldest| format::span(now_ms.saturating_sub(oldest))),
        dead: numbers.dead,
        sent: numbers.sent,
        attempted: numbers.last_attempted_ms.map_or_else(|| "never".to_owned(), |at| format::ago(now_ms, at)),
        disabled: subscription.disabled.clone(),
    }
}

async fn subscriber(app: &Site, caller: &Caller, view: &View) -> Result<String, Problem> {
    let name = &*view.name;
    let bus = app.bus.handle();
    let now_ms = app.dashboard.now_ms();
    let subscriptions = bus.subscriptions().await?;
    let mut named = subscriptions.iter().filter(|one| app.bus.name_of(&one.subscription.token) == name);
    let status = named.next().ok_or(signalbox_bus::Error::NoSuchSubscription)?;
    let subscription = &status.subscription;
    let is_subscriber = subscription.token == *caller.bus_client();
    let own = caller.is_root() || (is_subscriber && caller.has_any(&[Scope::Subscribe]));
    let (mut letters, mut next) = (Vec::new(), None);
    let cursor = Some(&*view.cursor).filter(|cursor| !cursor.is_empty());
    // Only the subscriber and root may see the contents of its events.
    if own && status.numbers.dead > 0 {
        let page = bus.dead_letters(&subscription.token, cursor, MAX_DEAD_LETTERS).await?;
        next = page.cursor.map(|cursor| View { cursor, ..view.clone() }.address());
        letters = page.items;
    }
    let attempts = if own { bus.deliveries(&subscription.token, MAX_ATTEMPTS).await? } else { Vec::new() };
    render(&SubscriberPage {
        row: row(app, caller, status, now_ms),
        query: segment(name),
        topics: subscription.topics.iter().cloned().collect::<Vec<_>>().join(", "),
        max_events: subscription.max_events,
        timeout: format::span(subscription.timeout_ms),
        concurrency: subscription.concurrency,
        on_exhausted: match subscription.on_exhausted {
            OnExhausted::Dead => "become dead letters; their lane continues",
            OnExhausted::Block => "are retried without limit; their lane waits",
        },
        batches: status.numbers.batches,
        own,
        letters: letters
            .into_iter()
            .map(|letter| LetterRow {
                id: letter.event.id.0,
                event: event_link(letter.event.id.0),
                topic: letter.event.topic.clone(),
                link: link(Kind::Objects, &letter.event.object),
                object: letter.event.object.clone(),
                attempts: letter.attempts,
                reason: letter.reason,
                died: format::ago(now_ms, letter.died_ms),
            })
            .collect(),
        next,
        first: cursor.is_some().then(|| link(Kind::Subscribers, name)),
        attempts: attempts.into_iter().map(|one| attempt(one, now_ms)).collect(),
        root: caller.is_root(),
    })
}
