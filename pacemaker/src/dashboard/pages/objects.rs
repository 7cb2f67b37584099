//! Objects: the parked ones, and one object with its chain of events.

use askama::Template;

use super::{
    Content, Kind, Visit, event_link, link,
    list::{self, Heading, List},
    plain, segment,
};
use crate::{api::sequencer::objects, dashboard::format, http::Problem};
use signalbox_api::objects::ObjectState;
use signalbox_bus::{Event, EventId, intake};
use signalbox_sequencer::Numbers;

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
    numbers: Numbers,
    may_decide: bool,
    now_ms: u64,
}

#[derive(Debug)]
struct ParkedRow {
    name: String,
    since_ms: u64,
    status: ObjectState,
}

#[derive(Debug, Template)]
#[template(path = "dashboard/object.html")]
struct ObjectPage<'a> {
    name: &'a str,
    status: ObjectState,
    chain: Vec<Event>,
    /// The id of the newest event that is no longer available.
    gone: Option<EventId>,
    may_decide: bool,
    now_ms: u64,
}

pub(super) async fn list(Visit { app, caller, view, now_ms, .. }: Visit<'_>) -> Result<Content, Problem> {
    let sequencer = &app.sequencer.handle;
    let query = list::query(view, "parked_since");
    let page = objects::parked(app, &query).await?;
    let headings = HEADINGS.len() - usize::from(!caller.is_root());
    let list = List::new(view, &query, &page, "Object", &HEADINGS[..headings]);
    let mut parked = Vec::new();
    for (name, since_ms) in page.items {
        // It was unparked and removed since the list was read.
        let Some(status) = sequencer.object(&name).await? else { continue };
        parked.push(ParkedRow { name, since_ms, status });
    }
    let numbers = sequencer.numbers().await?;
    plain(&Page { list, parked, numbers, may_decide: caller.is_root(), now_ms })
}

/// The state of an event's delivery to a backend; empty without one.
fn delivery(status: &ObjectState, id: u64) -> &'static str {
    match (&status.backend, status.in_flight, status.next_id, status.last_sent_id) {
        (_, Some(flight), ..) if flight == id => "in flight",
        (_, _, Some(head), _) if head == id && status.parked_since.is_some() => "parked",
        (Some(_), _, Some(head), _) if id >= head => "waiting",
        (_, _, _, Some(sent)) if id <= sent => "sent",
        _ => "",
    }
}

pub(super) async fn object(Visit { app, caller, view, now_ms, .. }: Visit<'_>) -> Result<Content, Problem> {
    let name = &*view.name;
    intake::object_name(name)?;
    let status = objects::state(app, caller, name).await?;
    // Events for a backend are in the object's queue until they are sent, all others in the log until they expire.
    let mut chain = match status.backend {
        Some(_) => app.sequencer.handle.queue(name, MAX_EVENTS).await?,
        None => Vec::new(),
    };
    let before = |events: &[Event]| events.last().map_or(status.last_id.map(EventId), |event| event.prev);
    let mut gone = before(&chain);
    while let Some(id) = gone.filter(|_| chain.len() < MAX_EVENTS) {
        let Some(event) = app.bus.handle().event(id).await? else { break };
        chain.push(event);
        gone = before(&chain);
    }
    gone = gone.filter(|_| chain.len() < MAX_EVENTS);
    plain(&ObjectPage { name, status, chain, gone, may_decide: caller.is_root(), now_ms })
}
