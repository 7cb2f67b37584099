//! Instances: the list, and one instance with its registration, health and traffic.

use std::time::Duration;

use askama::Template;
use tokio::time::Instant;

use super::{
    Content, Kind, Visit,
    charts::{self, Charting, Subject},
    link,
    list::ROWS,
    overview, plain, segment, with_charts,
};
use crate::{
    dashboard::{
        checkup::by,
        format,
        store::{Range, Times},
    },
    http::{Problem, list::contains},
};
use signalbox_access::Scope;
use signalbox_route_table::{Hostname, InstanceId, Label, State};
use signalbox_routing::{Live, Stored, in_flight};
use signalbox_store::Pace;

/// Instances that are read by one call, and for one page.
const CHUNK: usize = 500;
const SEARCH_CHUNK: usize = 2000;
const MAX_EXAMINED: usize = 20_000;
/// After this time, a search shows what it has found. The next page continues it.
const SEARCH_TIME: Duration = Duration::from_millis(200);
/// The list to which cursors belong.
const LIST: &str = "instances";
/// Minutes of response times in the tile.
const MINUTES: i64 = 15;
/// Longer ranges would have no values.
const KEPT_MINUTES: i64 = 2 * 24 * 60;
const STATS: &str = "the stats Redis";

#[derive(Debug, Template)]
#[template(path = "dashboard/instances.html")]
struct List<'a> {
    search: &'a str,
    rows: Vec<(Stored, Live)>,
    /// Whether an instance of this page has a node.
    nodes: bool,
    next: Option<String>,
    first: Option<String>,
    /// Set if the search ended before it examined every instance.
    examined: bool,
}

#[derive(Debug, Template)]
#[template(path = "dashboard/instance.html")]
struct Page<'a> {
    stored: &'a Stored,
    live: Live,
    /// `None` if they are not counted.
    in_flight: Option<u64>,
    times: String,
    charting: Charting,
    /// Why there are no statistics.
    outage: Option<&'a String>,
    may_change: bool,
    /// By the clock of the route table.
    now_ms: u64,
}

/// How a state is shown: a word, and its color.
fn shown(state: State, unhealthy: bool) -> (&'static str, &'static str) {
    match state {
        State::Active if unhealthy => ("unhealthy", "bad"),
        State::Active => ("active", "good"),
        State::Draining => ("draining", "warn"),
        State::Standby => ("standby", "idle"),
    }
}

/// The latest fault and when it was reported; empty if there is none.
pub(super) fn last_fault(live: &Live, now_ms: u64) -> String {
    match (&live.last_fault, live.last_fault_ms) {
        (Some(fault), Some(at)) => format!("{fault} ({})", format::ago(now_ms, at)),
        (fault, _) => fault.clone().unwrap_or_default(),
    }
}

pub(super) async fn list(Visit { app, caller, view, .. }: Visit<'_>) -> Result<Content, Problem> {
    let store = app.registry.store();
    let wanted = view.search.trim().to_lowercase();
    let cursor = Some(&*view.cursor).filter(|cursor| !cursor.is_empty());
    let mut after = app.cursors.read(caller, LIST, cursor).await?;
    let mut found: Vec<Stored> = Vec::new();
    let (mut examined, mut ended) = (0, false);
    let mut pace = Pace::new(if wanted.is_empty() { CHUNK } else { SEARCH_CHUNK });
    let begin = Instant::now();
    while found.len() <= ROWS && examined < MAX_EXAMINED && !ended && begin.elapsed() < SEARCH_TIME {
        let ids = store.ids_after(after.as_deref(), pace.count()).await?;
        ended = ids.len() < pace.count();
        examined += ids.len();
        after = ids.last().map(ToString::to_string).or(after);
        let stored = store.stored_many(&ids).await?;
        pace.read(ids.len(), stored.iter().map(Stored::bytes).sum());
        found.extend(
            stored.into_iter().filter(|one| {
                caller.may_touch_all(&one.record.desired.spec.hostnames) && matches(one, &wanted)
            }),
        );
    }
    let mut next = after.filter(|_| !ended);
    let examined = next.is_some() && found.len() <= ROWS;
    if found.len() > ROWS {
        found.truncate(ROWS);
        next = found.last().map(|one| one.id.to_string());
    }
    let next = app.cursors.write(caller, LIST, next).await?.map(|cursor| view.at_cursor(&cursor));
    let ids: Vec<InstanceId> = found.iter().map(|one| one.id.clone()).collect();
    let live = store.live(&ids).await?;
    let nodes = found.iter().any(|one| one.record.desired.spec.node_id.is_some());
    let rows = found.into_iter().zip(live).collect();
    plain(&List { search: &view.search, rows, nodes, next, first: view.first_page(), examined })
}

fn matches(stored: &Stored, wanted: &str) -> bool {
    let spec = &stored.record.desired.spec;
    let address = spec.address.to_string();
    let node = spec.node_id.iter().map(Label::as_str);
    let texts = [stored.id.as_str(), &address, spec.version_type_id.as_str()];
    contains(wanted, texts.into_iter().chain(node).chain(spec.hostnames.iter().map(Hostname::as_str)))
}

pub(super) async fn instance(visit: Visit<'_>) -> Result<Content, Problem> {
    let Visit { app, caller, view, deadline, .. } = visit;
    let id = InstanceId::parse(&view.name)?;
    let store = app.registry.store();
    let stored = app.registry.instance(caller, &id).await?;
    let spec = &stored.record.desired.spec;
    let live = store.live(std::slice::from_ref(&id)).await?.pop().unwrap_or_default();
    let now_ms = store.table_now_ms().await?;
    let address = [spec.address.to_string()];
    let counted = if caller.may_count_as(spec.version_type_id.as_str()) { &address[..] } else { &[] };
    let (traffic, range) = (&app.dashboard.traffic, Range::named(&view.range));
    let specs = [spec];
    let (under_way, times, history, changes) = tokio::join!(
        by(deadline, STATS, async { Ok::<_, String>(in_flight(store, &specs).await) }),
        by(deadline, STATS, traffic.instance_latencies(counted, MINUTES)),
        by(deadline, STATS, traffic.instance_latencies(counted, range.minutes())),
        charts::changes(visit, Subject::Instance(id.as_str()), range),
    );
    let under_way = under_way.ok().and_then(|mut counts| counts.pop().flatten());
    let times: Option<Times> = times.ok().and_then(|times| times.of(&address[0]));
    let mut drawn = Vec::new();
    if let Ok(history) = &history {
        drawn = vec![charts::responses(history, range), charts::latency(history, range)];
    }
    let mut charting = Charting::new(view, range, changes, String::new());
    charting.ranges.retain(|(name, ..)| Range::named(name).minutes() <= KEPT_MINUTES);
    let minutes = range.minutes_per_point();
    charting.resolution = format!("Each point is {minutes} min of responses; they are kept for 2 days.");
    charting.complete(range, visit.now_ms, &mut drawn);
    let page = Page {
        stored: &stored,
        live,
        in_flight: under_way,
        times: overview::percentiles(times),
        charting,
        outage: history.as_ref().err(),
        may_change: caller.has_any(&[Scope::Routes]),
        now_ms,
    };
    with_charts(&page, drawn)
}
