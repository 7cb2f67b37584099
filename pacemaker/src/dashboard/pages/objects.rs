//! Objects: those that wait for a decision, and one with the chain of its events.

use askama::Template;

use super::{Content, Kind, link, render, segment};
use crate::{dashboard::Site, dashboard::words, http::Problem};
use signalbox_access::Caller;
use signalbox_bus::{Event, EventId, intake};

/// Parked objects that are shown, each with a look at why.
const PARKED: usize = 50;
/// Events of the chain, newest first.
const CHAIN: usize = 20;

#[derive(Debug, Template)]
#[template(path = "dashboard/objects.html")]
struct List {
    parked: Vec<ParkedRow>,
    backends: Vec<BackendRow>,
    retry: u64,
    leased: u64,
    may_decide: bool,
}

#[derive(Debug)]
struct ParkedRow {
    name: String,
    link: String,
    path: String,
    since: String,
    attempts: u64,
    why: String,
    queued: u64,
    /// The event at the head, which `skip` has to name.
    head: Option<u64>,
}

#[derive(Debug)]
struct BackendRow {
    name: String,
    path: String,
    prefix: String,
    objects: u64,
    events: u64,
    dead: u64,
    disabled: Option<String>,
}

#[derive(Debug, Template)]
#[template(path = "dashboard/object.html")]
struct Page {
    name: String,
    path: String,
    data: Option<String>,
    backend: Option<String>,
    queued: u64,
    in_flight: Option<u64>,
    head: Option<u64>,
    owner: Option<String>,
    parked: Option<String>,
    attempts: u64,
    why: Option<String>,
    next_try: Option<String>,
    last_sent: Option<u64>,
    chain: Vec<EventRow>,
    /// The id before the oldest shown, of which the log has nothing any more.
    gone: Option<u64>,
    may_decide: bool,
}

#[derive(Debug)]
struct EventRow {
    id: u64,
    topic: String,
    kind: &'static str,
    environment: String,
    when: String,
    prev: Option<u64>,
    /// Where its delivery to a backend stands, for an object with a queue.
    state: &'static str,
    data: Option<String>,
}

pub(super) async fn content(app: &Site, caller: &Caller, name: &str) -> Result<Content, Problem> {
    let html = if name.is_empty() { list(app, caller).await? } else { object(app, caller, name).await? };
    Ok(Content { html, charts: Vec::new() })
}

async fn list(app: &Site, caller: &Caller) -> Result<String, Problem> {
    let sequencer = &app.sequencer.handle;
    let now_ms = app.dashboard.now_ms();
    let mut parked = Vec::new();
    for (name, since_ms) in sequencer.parked(PARKED).await? {
        // Gone again between the two looks: nothing to show.
        let Some(status) = sequencer.object(&name).await? else { continue };
        parked.push(ParkedRow {
            link: link(Kind::Objects, &name),
            path: segment(&name),
            since: words::ago(now_ms, since_ms),
            attempts: status.attempts,
            why: status.why.unwrap_or_default(),
            queued: status.waiting + u64::from(status.flight.is_some()),
            head: status.head.map(|id| id.0),
            name,
        });
    }
    let numbers = sequencer.numbers().await?;
    let backend = |one: signalbox_sequencer::BackendStatus| BackendRow {
        path: segment(&one.name),
        name: one.name,
        prefix: one.backend.prefix,
        objects: one.objects,
        events: one.events,
        dead: one.dead,
        disabled: one.backend.disabled,
    };
    render(&List {
        parked,
        backends: numbers.backends.into_iter().map(backend).collect(),
        retry: numbers.retry,
        leased: numbers.leased,
        may_decide: caller.is_root(),
    })
}

async fn object(app: &Site, caller: &Caller, name: &str) -> Result<String, Problem> {
    intake::object_name(name)?;
    let status = app.sequencer.handle.object(name).await?;
    let status = status.ok_or_else(|| {
        Problem::not_found(
            "unknown_object",
            format!("Nothing is known of {name}: it had no events and has no state."),
        )
    })?;
    let now_ms = app.dashboard.now_ms();
    let state = |id: EventId| match (&status.backend, status.flight, status.head, status.last_sent) {
        (_, Some(flight), ..) if flight == id => "being sent",
        (_, _, Some(head), _) if head == id && status.parked_since_ms.is_some() => "parked",
        (Some(_), _, Some(head), _) if id >= head => "waiting",
        (_, _, _, Some(sent)) if id <= sent => "sent",
        _ => "",
    };
    // What waits for a backend is in the object's own queue, everything else in the log, as long as it is kept.
    let mut events = match status.backend {
        Some(_) => app.sequencer.handle.queue(name, CHAIN).await?,
        None => Vec::new(),
    };
    let before = |events: &[Event]| events.last().map_or(status.last_id, |event| event.prev);
    let mut gone = before(&events);
    while let Some(id) = gone.filter(|_| events.len() < CHAIN) {
        let Some(event) = app.bus.handle().event(id).await? else { break };
        events.push(event);
        gone = before(&events);
    }
    let more = events.len() >= CHAIN;
    let row = |event: Event| {
        // A tenant's token sees its own environments' events only.
        let own = caller.may_use(&event.environment);
        EventRow {
            id: event.id.0,
            kind: event.kind.as_str(),
            when: words::ago(now_ms, event.id.accepted_ms()),
            prev: event.prev.map(|prev| prev.0),
            state: state(event.id),
            data: event.data.filter(|_| own).map(|data| data.get().to_owned()),
            topic: if own { event.topic } else { String::new() },
            environment: if own { event.environment } else { "another's".to_owned() },
        }
    };
    let chain = events.into_iter().map(row).collect();
    render(&Page {
        path: segment(name),
        data: status.data.filter(|_| caller.environments().is_none()).map(|data| data.get().to_owned()),
        queued: status.waiting + u64::from(status.flight.is_some()),
        backend: status.backend,
        in_flight: status.flight.map(|id| id.0),
        head: status.head.map(|id| id.0),
        owner: status.owner,
        parked: status.parked_since_ms.map(|since| words::ago(now_ms, since)),
        attempts: status.attempts,
        why: status.why,
        next_try: status.retry_at_ms.map(|at| words::span(at.saturating_sub(now_ms))),
        last_sent: status.last_sent.map(|id| id.0),
        gone: gone.filter(|_| !more).map(|id| id.0),
        chain,
        may_decide: caller.is_root(),
        name: name.to_owned(),
    })
}
