//! Instances: the list, and one instance with its registration, health and traffic.

use std::time::Duration;

use askama::Template;
use tokio::time::Instant;

use super::{
    Content, Kind, View,
    charts::{self, Charting, Subject},
    link,
    list::ROWS,
    overview, render, segment,
};
use crate::{
    dashboard::{
        Site,
        checkup::by,
        format,
        store::{Range, Times},
    },
    http::{Problem, list::contains},
};
use signalbox_access::{Caller, Scope};
use signalbox_route_table::{Hostname, InstanceId, Label, State};
use signalbox_routing::{Error, Live, Stored, in_flight};

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
struct List {
    search: String,
    rows: Vec<Row>,
    /// Whether an instance of this page has a node.
    nodes: bool,
    next: Option<String>,
    first: Option<String>,
    /// Set if the search ended before it examined every instance.
    examined: bool,
}

#[derive(Debug)]
struct Row {
    id: String,
    link: String,
    address: String,
    hosts: Vec<(String, String)>,
    more_hosts: usize,
    version: String,
    node: String,
    state: &'static str,
    class: &'static str,
    why: String,
}

#[derive(Debug, Template)]
#[template(path = "dashboard/instance.html")]
struct Page {
    row: Row,
    path: String,
    weight: u32,
    /// `None` if they are not counted.
    in_flight: Option<u64>,
    times: String,
    lease: String,
    removed_in: String,
    health_since: String,
    has_health: bool,
    faults: u64,
    last_fault: String,
    spec: String,
    charting: Charting,
    /// Why there are no statistics.
    outage: String,
    may_change: bool,
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

fn row(stored: &Stored, live: &Live) -> Row {
    let desired = &stored.record.desired;
    let spec = &desired.spec;
    let (state, class) = shown(desired.state, live.unhealthy.is_some());
    let host = |host: &Hostname| (link(Kind::Host, host.as_str()), host.to_string());
    Row {
        id: stored.id.to_string(),
        link: link(Kind::Instances, stored.id.as_str()),
        address: spec.address.to_string(),
        hosts: spec.hostnames.iter().take(3).map(host).collect(),
        more_hosts: spec.hostnames.len().saturating_sub(3),
        version: spec.version_type_id.as_str().to_owned(),
        node: spec.node_id.as_ref().map_or_else(String::new, |node| node.as_str().to_owned()),
        state,
        class,
        why: live.unhealthy.clone().unwrap_or_default(),
    }
}

pub(super) async fn content(
    app: &Site,
    caller: &Caller,
    view: &View,
    deadline: Instant,
) -> Result<Content, Problem> {
    if !view.name.is_empty() {
        return instance(app, caller, view, deadline).await;
    }
    Ok(Content { html: list(app, caller, view).await?, charts: Vec::new() })
}

async fn list(app: &Site, caller: &Caller, view: &View) -> Result<String, Problem> {
    let store = app.registry.store();
    let wanted = view.search.trim().to_lowercase();
    let cursor = Some(&*view.cursor).filter(|cursor| !cursor.is_empty());
    let mut after = app.cursors.read(caller, LIST, cursor).await?;
    let mut found: Vec<Stored> = Vec::new();
    let (mut examined, mut ended) = (0, false);
    let chunk = if wanted.is_empty() { CHUNK } else { SEARCH_CHUNK };
    let begin = Instant::now();
    while found.len() <= ROWS && examined < MAX_EXAMINED && !ended && begin.elapsed() < SEARCH_TIME {
        let ids = store.ids_after(after.as_deref(), chunk).await?;
        ended = ids.len() < chunk;
        examined += ids.len();
        after = ids.last().map(ToString::to_string).or(after);
        let stored = store.stored_many(&ids).await?;
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
    let to = |cursor: String| View { cursor, ..view.clone() }.address();
    let next = app.cursors.write(caller, LIST, next).await?.map(to);
    let ids: Vec<InstanceId> = found.iter().map(|one| one.id.clone()).collect();
    let live = store.live(&ids).await?;
    let rows: Vec<Row> = found.iter().zip(&live).map(|(stored, live)| row(stored, live)).collect();
    let nodes = rows.iter().any(|row| !row.node.is_empty());
    let first = (!view.cursor.is_empty()).then(|| to(String::new()));
    render(&List { search: view.search.clone(), rows, nodes, next, first, examined })
}

fn matches(stored: &Stored, wanted: &str) -> bool {
    let spec = &stored.record.desired.spec;
    let address = spec.address.to_string();
    let node = spec.node_id.iter().map(Label::as_str);
    let texts = [stored.id.as_str(), &address, spec.version_type_id.as_str()];
    contains(wanted, texts.into_iter().chain(node).chain(spec.hostnames.iter().map(Hostname::as_str)))
}

async fn instance(app: &Site, caller: &Caller, view: &View, deadline: Instant) -> Result<Content, Problem> {
    let id = InstanceId::parse(&view.name)?;
    let store = app.registry.store();
    let stored = store.stored(&id).await?.ok_or_else(|| Error::NoInstance(id.clone()))?;
    let spec = &stored.record.desired.spec;
    if !caller.may_touch_all(&spec.hostnames) {
        return Err(Error::InstanceNotAllowed.into());
    }
    let live = store.live(std::slice::from_ref(&id)).await?.pop().unwrap_or_default();
    let now_ms = store.table_now_ms().await?;
    let address = [spec.address.to_string()];
    let (traffic, range) = (&app.dashboard.traffic, Range::named(&view.range));
    let specs = [spec];
    let (under_way, times, history, changes) = tokio::join!(
        by(deadline, STATS, async { Ok::<_, String>(in_flight(store, &specs).await) }),
        by(deadline, STATS, traffic.instance_latencies(&address, MINUTES)),
        by(deadline, STATS, traffic.instance_latencies(&address, range.minutes())),
        charts::changes(app, caller, Subject::Instance(id.as_str()), range, deadline),
    );
    let under_way = under_way.ok().and_then(|mut counts| counts.pop().flatten());
    let times: Option<Times> = times.ok().and_then(|times| times.of(&address[0]));
    let outage = history.as_ref().err().cloned().unwrap_or_default();
    let mut drawn = Vec::new();
    if let Ok(history) = &history {
        drawn = vec![charts::responses(history, range), charts::latency(history, range)];
    }
    let mut charting = Charting::new(view, range, changes, String::new());
    charting.ranges.retain(|(name, ..)| Range::named(name).minutes() <= KEPT_MINUTES);
    let minutes = range.minutes_per_point();
    charting.resolution = format!("Each point is {minutes} min of responses; they are kept for 2 days.");
    charting.complete(range, app.dashboard.now_ms(), &mut drawn);
    let left = |until: u64| format::span(until.saturating_sub(now_ms));
    let fault = live.last_fault.clone().unwrap_or_default();
    let html = render(&Page {
        charting,
        outage,
        row: row(&stored, &live),
        path: segment(id.as_str()),
        weight: spec.weight,
        in_flight: under_way,
        times: overview::percentiles(times),
        lease: live.lease_expires_ms.map(left).unwrap_or_default(),
        removed_in: stored.record.desired.drain_deadline_ms.map(left).unwrap_or_default(),
        health_since: live.health_ms.map(|at| format::ago(now_ms, at)).unwrap_or_default(),
        has_health: spec.health.is_some(),
        faults: live.faults,
        last_fault: match live.last_fault_ms {
            Some(at) => format!("{fault} ({})", format::ago(now_ms, at)),
            None => fault,
        },
        spec: serde_json::to_string_pretty(spec).unwrap_or_default(),
        may_change: caller.has_any(&[Scope::Routes]),
    })?;
    Ok(Content { html, charts: drawn })
}
