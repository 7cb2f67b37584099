//! Objects: the parked ones, and one object with its chain of events.

use askama::Template;

use super::{
    Content, Kind, View, event_link, link,
    list::{self, Heading, List},
    render, segment,
};
use crate::{
    api::sequencer::objects,
    dashboard::{Site, format},
    http::Problem,
};
use signalbox_access::Caller;
use signalbox_bus::{Event, EventId, intake};

/// The last column is for callers that may use its actions.
const HEADINGS: [Heading; 6] = [
    ("object", "object", false),
    ("parked", "parked_since", false),
    ("attempts", "", true),
    ("last error", "", false),
    ("queued", "", true),
    ("actions", "", false),
];
/// Maximum events of a chain.
const MAX_EVENTS: usize = 20;

#[derive(Debug, Template)]
#[template(path = "dashboard/objects.html")]
struct Page {
    list: List,
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
struct ObjectPage {
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
    link: String,
    topic: String,
    kind: &'static str,
    environment: String,
    when: String,
    prev: Option<u64>,
    /// The state of its delivery to a backend; empty without one.
    state: &'static str,
    data: Option<String>,
}

pub(super) async fn content(app: &Site, caller: &Caller, view: &View) -> Result<Content, Problem> {
    let html = if view.name.is_empty() {
        all(app, caller, view).await?
    } else {
        object(app, caller, &view.name).await?
    };
    Ok(Content { html, charts: Vec::new() })
}

async fn all(app: &Site, caller: &Caller, view: &View) -> Result<String, Problem> {
    let sequencer = &app.sequencer.handle;
    let now_ms = app.dashboard.now_ms();
    let query = list::query(view, "parked_since");
    let mut page = objects::parked(app, &query).await?;
    let found = std::mem::take(&mut page.items);
    let mut parked = Vec::new();
    for (name, since_ms) in &found {
        let (name, since_ms) = (name.clone(), *since_ms);
        // It was unparked and removed since the list was read.
        let Some(status) = sequencer.object(&name).await? else { continue };
        parked.push(ParkedRow {
            link: link(Kind::Objects, &name),
            path: segment(&name),
            since: format::ago(now_ms, since_ms),
            attempts: status.attempts,
            why: status.last_error.unwrap_or_default(),
            queued: status.queued,
            head: status.next_id,
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
    page.items = found;
    let headings = HEADINGS.len() - usize::from(!caller.is_root());
    let list = List::new(view, &query, &page, "Object", &HEADINGS[..headings]);
    render(&Page {
        list,
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
    let state = |id: u64| match (&status.backend, status.in_flight, status.next_id, status.last_sent_id) {
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
    let before = |events: &[Event]| events.last().map_or(status.last_id.map(EventId), |event| event.prev);
    let mut gone = before(&events);
    while let Some(id) = gone.filter(|_| events.len() < MAX_EVENTS) {
        let Some(event) = app.bus.handle().event(id).await? else { break };
        events.push(event);
        gone = before(&events);
    }
    let more = events.len() >= MAX_EVENTS;
    let row = |event: Event| EventRow {
        id: event.id.0,
        link: event_link(event.id.0),
        kind: event.kind.as_str(),
        when: format::ago(now_ms, event.id.accepted_ms()),
        prev: event.prev.map(|prev| prev.0),
        state: state(event.id.0),
        data: event.data.map(|data| data.get().to_owned()),
        topic: event.topic,
        environment: event.environment,
    };
    let chain = events.into_iter().map(row).collect();
    render(&ObjectPage {
        path: segment(name),
        data: status.data.map(|data| data.get().to_owned()),
        queued: status.queued,
        backend: status.backend,
        in_flight: status.in_flight,
        head: status.next_id,
        owner: status.owner,
        parked: status.parked_since_ms.map(|since| format::ago(now_ms, since)),
        attempts: status.attempts,
        why: status.last_error,
        next_try: status.next_try_ms.map(|at| format::span(at.saturating_sub(now_ms))),
        last_sent: status.last_sent_id,
        gone: gone.filter(|_| !more).map(|id| id.0),
        chain,
        may_decide: caller.is_root(),
        name: name.to_owned(),
    })
}
