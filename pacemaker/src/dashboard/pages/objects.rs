//! Objects: the parked ones, and one object with its chain of events.

use askama::Template;

use super::{Content, Kind, link, render, segment};
use crate::{dashboard::Site, dashboard::format, http::Problem};
use signalbox_access::Caller;
use signalbox_bus::{Event, EventId, intake};

/// Maximum parked objects on the page. Each one is read on its own.
const MAX_PARKED: usize = 50;
/// Maximum events of a chain.
const MAX_EVENTS: usize = 20;

#[derive(Debug, Template)]
#[template(path = "dashboard/objects.html")]
struct List {
    parked: Vec<ParkedRow>,
    backends: Vec<BackendRow>,
    /// Objects that wait for a retry.
    retry: u64,
    /// Objects with an event in flight.
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
    /// The first queued event, which `skip` must name.
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
    /// The id of the newest event that is no longer available.
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
    /// The state of its delivery to a backend; empty without one.
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
    for (name, since_ms) in sequencer.parked(MAX_PARKED).await? {
        // It was unparked and removed since the list was read.
        let Some(status) = sequencer.object(&name).await? else { continue };
        parked.push(ParkedRow {
            link: link(Kind::Objects, &name),
            path: segment(&name),
            since: format::ago(now_ms, since_ms),
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
            format!("Unknown object `{name}`: it has no events and no state."),
        )
    })?;
    let now_ms = app.dashboard.now_ms();
    let state = |id: EventId| match (&status.backend, status.flight, status.head, status.last_sent) {
        (_, Some(flight), ..) if flight == id => "in flight",
        (_, _, Some(head), _) if head == id && status.parked_since_ms.is_some() => "parked",
        (Some(_), _, Some(head), _) if id >= head => "waiting",
        (_, _, _, Some(sent)) if id <= sent => "sent",
        _ => "",
    };
    // Events for a backend are in the object's queue until they are sent, all others in the log until they expire.
    let mut events = match status.backend {
        Some(_) => app.sequencer.handle.queue(name, MAX_EVENTS).await?,
        None => Vec::new(),
    };
    let before = |events: &[Event]| events.last().map_or(status.last_id, |event| event.prev);
    let mut gone = before(&events);
    while let Some(id) = gone.filter(|_| events.len() < MAX_EVENTS) {
        let Some(event) = app.bus.handle().event(id).await? else { break };
        events.push(event);
        gone = before(&events);
    }
    let more = events.len() >= MAX_EVENTS;
    let row = |event: Event| EventRow {
        id: event.id.0,
        kind: event.kind.as_str(),
        when: format::ago(now_ms, event.id.accepted_ms()),
        prev: event.prev.map(|prev| prev.0),
        state: state(event.id),
        data: event.data.map(|data| data.get().to_owned()),
        topic: event.topic,
        environment: event.environment,
    };
    let chain = events.into_iter().map(row).collect();
    render(&Page {
        path: segment(name),
        data: status.data.map(|data| data.get().to_owned()),
        queued: status.waiting + u64::from(status.flight.is_some()),
        backend: status.backend,
        in_flight: status.flight.map(|id| id.0),
        head: status.head.map(|id| id.0),
        owner: status.owner,
        parked: status.parked_since_ms.map(|since| format::ago(now_ms, since)),
        attempts: status.attempts,
        why: status.why,
        next_try: status.retry_at_ms.map(|at| format::span(at.saturating_sub(now_ms))),
        last_sent: status.last_sent.map(|id| id.0),
        gone: gone.filter(|_| !more).map(|id| id.0),
        chain,
        may_decide: caller.is_root(),
        name: name.to_owned(),
    })
}
