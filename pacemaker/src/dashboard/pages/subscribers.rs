//! Subscribers: the list, and one with the log of its deliveries and its dead letters.

use std::sync::Arc;

use askama::Template;

use super::{
    Content, Kind, Visit, event_link, link,
    list::{self, Heading, List},
    plain, segment,
};
use crate::{
    api::bus::visible_callback,
    dashboard::format,
    http::{
        Problem,
        list::{Field, Listing, SortKey},
    },
};
use signalbox_access::Scope;
use signalbox_api::{
    Time,
    events::{DeliveryAttempt, DeliveryResult, SubscriberNumbers},
};
use signalbox_bus::{DeadLetter, OnExhausted, Subscription, SubscriptionStatus};

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
    now_ms: u64,
}

const FIELDS: [Field<SubscriberRow>; 7] = [
    ("subscriber", |row| SortKey::from(&*row.name)),
    ("health", |row| SortKey::from(u64::from(row.numbers.health))),
    ("queued", |row| SortKey::from(row.numbers.events)),
    ("oldest", |row| SortKey::from(row.behind_ms)),
    ("dead", |row| SortKey::from(row.numbers.dead)),
    ("sent", |row| SortKey::from(row.numbers.sent)),
    ("attempted", |row| SortKey::from(row.numbers.last_attempted_at.map(Time::ms))),
];

#[derive(Debug)]
struct SubscriberRow {
    name: String,
    subscription: Arc<Subscription>,
    numbers: SubscriberNumbers,
    /// What the caller may see of its address.
    callback: String,
    /// The age of its oldest queued event.
    behind_ms: Option<u64>,
}

#[derive(Debug, Template)]
#[template(path = "dashboard/subscriber.html")]
struct SubscriberPage {
    row: SubscriberRow,
    /// Whether the caller is root or the subscriber itself.
    own: bool,
    letters: Vec<DeadLetter>,
    /// The next and the first page of dead letters.
    next: Option<String>,
    first: Option<String>,
    attempts: Vec<DeliveryAttempt>,
    root: bool,
    now_ms: u64,
}

impl SubscriberRow {
    /// Whether deliveries fail, and are retried.
    fn fails(&self) -> bool {
        let Subscription { disabled, paused, .. } = &*self.subscription;
        self.numbers.health < 100 && self.numbers.events > 0 && disabled.is_none() && !paused
    }
}

pub(super) async fn list(visit: Visit<'_>) -> Result<Content, Problem> {
    let Visit { app, caller, view, now_ms, .. } = visit;
    let subscriptions = app.bus.handle().subscriptions().await?;
    let rows = subscriptions.into_iter().map(|one| row(visit, one)).collect();
    let listing = Listing {
        name: |row: &SubscriberRow| &row.name,
        texts: |row| row.subscription.topics.iter().chain([&row.callback]).map(String::as_str).collect(),
        fields: &FIELDS,
    };
    let query = list::query(view, "subscriber");
    let page = listing.page(rows, &query)?;
    let list = List::new(view, &query, &page, "Subscriber, topic or callback", &HEADINGS);
    plain(&Page { list, rows: page.items, root: caller.is_root(), now_ms })
}

/// The result of an attempt in words, and its CSS class.
pub(super) fn outcome(result: DeliveryResult) -> (&'static str, &'static str) {
    match result {
        DeliveryResult::Delivered => ("delivered", "good"),
        DeliveryResult::Retried => ("retried", "warn"),
        DeliveryResult::Dead => ("dead letter", "bad"),
        DeliveryResult::Gone => ("gone", "bad"),
        DeliveryResult::Waiting => ("waiting", "warn"),
    }
}

/// The error of an attempt, and what the subscriber answered.
pub(super) fn answer(attempt: &DeliveryAttempt) -> String {
    [&attempt.why, &attempt.response].into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(": ")
}

fn row(Visit { app, caller, now_ms, .. }: Visit<'_>, status: SubscriptionStatus) -> SubscriberRow {
    let SubscriptionStatus { subscription, numbers } = status;
    let own = subscription.token == *caller.bus_client();
    SubscriberRow {
        name: app.bus.name_of(&subscription.token),
        callback: visible_callback(&subscription.callback, caller, own).to_owned(),
        behind_ms: numbers.oldest_at.map(|oldest| now_ms.saturating_sub(oldest.ms())),
        subscription,
        numbers,
    }
}

pub(super) async fn subscriber(visit: Visit<'_>) -> Result<Content, Problem> {
    let Visit { app, caller, view, now_ms, .. } = visit;
    let name = &*view.name;
    let bus = app.bus.handle();
    let named = bus.subscriptions().await?.into_iter();
    let mut named = named.filter(|one| app.bus.name_of(&one.subscription.token) == name);
    let status = named.next().ok_or(signalbox_bus::Error::NoSuchSubscription)?;
    let subscription = &status.subscription;
    let is_subscriber = subscription.token == *caller.bus_client();
    let own = caller.is_root() || (is_subscriber && caller.has_any(&[Scope::Subscribe]));
    let (mut letters, mut next) = (Vec::new(), None);
    let cursor = Some(&*view.cursor).filter(|cursor| !cursor.is_empty());
    // Only the subscriber and root may see the contents of its events.
    if own && status.numbers.dead > 0 {
        let page = bus.dead_letters(&subscription.token, cursor, MAX_DEAD_LETTERS).await?;
        next = page.cursor.map(|cursor| view.at_cursor(&cursor));
        letters = page.items;
    }
    let attempts = if own { bus.deliveries(&subscription.token, MAX_ATTEMPTS).await? } else { Vec::new() };
    plain(&SubscriberPage {
        row: row(visit, status),
        own,
        letters,
        next,
        first: cursor.is_some().then(|| link(Kind::Subscribers, name)),
        attempts,
        root: caller.is_root(),
        now_ms,
    })
}
