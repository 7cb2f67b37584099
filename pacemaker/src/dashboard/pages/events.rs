//! Events: the live tail, topics, and subscribers with their backlog.

use askama::Template;

use super::{Content, Kind, link, render, segment};
use crate::{
    api::bus::visible_callback,
    dashboard::{MAX_ROWS, Site, format},
    http::Problem,
};
use signalbox_access::{Caller, Scope};
use signalbox_bus::{OnExhausted, SubscriptionStatus};

/// Maximum dead letters on the page.
const MAX_DEAD_LETTERS: usize = 20;

#[derive(Debug, Template)]
#[template(path = "dashboard/events.html")]
struct Page {
    topics: Vec<TopicRow>,
    subscribers: Vec<SubscriberRow>,
    /// The environments of a token that is limited to some.
    environments: Vec<String>,
    confined: bool,
}

#[derive(Debug)]
struct TopicRow {
    name: String,
    publisher: String,
    events: u64,
    subscribers: usize,
}

#[derive(Debug)]
struct SubscriberRow {
    name: String,
    link: String,
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
    callback: String,
    topics: String,
    max_events: u64,
    timeout: String,
    concurrency: u64,
    on_exhausted: &'static str,
    batches: u64,
    /// Whether the caller is root or the subscriber itself.
    own: bool,
    letters: Vec<LetterRow>,
    more: bool,
}

#[derive(Debug)]
struct LetterRow {
    id: u64,
    topic: String,
    object: String,
    link: String,
    attempts: u32,
    reason: String,
    died: String,
}

pub(super) async fn content(app: &Site, caller: &Caller, name: &str) -> Result<Content, Problem> {
    let html = if name.is_empty() { all(app, caller).await? } else { subscriber(app, caller, name).await? };
    Ok(Content { html, charts: Vec::new() })
}

async fn all(app: &Site, caller: &Caller) -> Result<String, Problem> {
    if let Some(own) = caller.environments() {
        // Topics and subscribers are shared by all environments.
        let environments = own.to_vec();
        return render(&Page { topics: Vec::new(), subscribers: Vec::new(), environments, confined: true });
    }
    let bus = app.bus.handle();
    let now_ms = app.dashboard.now_ms();
    let subscriptions = bus.subscriptions().await?;
    let topics = bus.topics().await?.into_iter().take(MAX_ROWS).map(|topic| TopicRow {
        publisher: topic.publisher.map_or_else(String::new, |client| app.bus.name_of(&client)),
        events: topic.events,
        subscribers: subscriptions.iter().filter(|one| one.subscription.topics.contains(&topic.name)).count(),
        name: topic.name,
    });
    let topics = topics.collect();
    let subscribers = subscriptions.iter().take(MAX_ROWS).map(|one| row(app, one, now_ms)).collect();
    render(&Page { topics, subscribers, environments: Vec::new(), confined: false })
}

fn row(app: &Site, status: &SubscriptionStatus, now_ms: u64) -> SubscriberRow {
    let (subscription, gauges) = (&status.subscription, &status.gauges);
    let name = app.bus.name_of(&subscription.token);
    SubscriberRow {
        link: link(Kind::Events, &name),
        name,
        health: gauges.health,
        queued: gauges.queued,
        behind: gauges
            .oldest_ms
            .map_or_else(String::new, |oldest| format::span(now_ms.saturating_sub(oldest))),
        dead: gauges.dead,
        sent: gauges.sent,
        attempted: gauges.last_attempted_ms.map_or_else(|| "never".to_owned(), |at| format::ago(now_ms, at)),
        disabled: subscription.disabled.clone(),
    }
}

async fn subscriber(app: &Site, caller: &Caller, name: &str) -> Result<String, Problem> {
    let bus = app.bus.handle();
    let now_ms = app.dashboard.now_ms();
    let subscriptions = bus.subscriptions().await?;
    let mut named = subscriptions.iter().filter(|one| app.bus.name_of(&one.subscription.token) == name);
    let status = named.next().ok_or(signalbox_bus::Error::NoSuchSubscription)?;
    let subscription = &status.subscription;
    let is_subscriber = subscription.token == *caller.bus_client();
    let own = caller.is_root() || (is_subscriber && caller.has_any(&[Scope::Subscribe]));
    let (mut letters, mut more) = (Vec::new(), false);
    // Only the subscriber and root may see the contents of its events.
    if own && status.gauges.dead > 0 {
        let page = bus.dead_letters(&subscription.token, None, MAX_DEAD_LETTERS).await?;
        more = page.cursor.is_some();
        letters = page.items;
    }
    render(&SubscriberPage {
        row: row(app, status, now_ms),
        query: segment(name),
        callback: visible_callback(&subscription.callback, caller, own).to_owned(),
        topics: subscription.topics.iter().cloned().collect::<Vec<_>>().join(", "),
        max_events: subscription.max_events,
        timeout: format::span(subscription.timeout_ms),
        concurrency: subscription.concurrency,
        on_exhausted: match subscription.on_exhausted {
            OnExhausted::Dead => "become dead letters; their lane continues",
            OnExhausted::Block => "are retried without limit; their lane waits",
        },
        batches: status.gauges.batches,
        own,
        letters: letters
            .into_iter()
            .map(|letter| LetterRow {
                id: letter.event.id.0,
                topic: letter.event.topic.clone(),
                link: link(Kind::Objects, &letter.event.object),
                object: letter.event.object.clone(),
                attempts: letter.attempts,
                reason: letter.reason,
                died: format::ago(now_ms, letter.died_ms),
            })
            .collect(),
        more,
    })
}
