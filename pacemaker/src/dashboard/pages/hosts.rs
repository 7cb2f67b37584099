//! All hosts.

use askama::Template;
use tokio::time::Instant;

use super::{
    Content, Kind, View, link,
    list::{self, Heading, List},
    overview::Numbers,
    render,
};
use crate::{
    api::routing::HostSummary,
    dashboard::{Site, checkup::by, store::Sums},
    http::{
        Problem,
        list::{Field, Listing, SortKey},
    },
};
use signalbox_access::Caller;

/// Minutes of latencies read.
const MINUTES: i64 = 15;
const HEADINGS: [Heading; 7] = [
    ("host", "hostname", false),
    ("state", "state", false),
    ("instances", "instances", true),
    ("version types", "", false),
    ("requests/s", "requests", true),
    ("5xx", "errors", true),
    ("p50 / p95 / p99, last 15 min", "", true),
];

/// A host with the requests of its last minute.
struct Busy {
    host: HostSummary,
    minute: Option<Sums>,
}

const FIELDS: [Field<Busy>; 5] = [
    ("hostname", |one| SortKey::from(one.host.name.as_str())),
    ("state", |one| SortKey::from(badness(&one.host))),
    ("instances", |one| SortKey::from(one.host.instances as u64)),
    ("requests", |one| SortKey::from(one.minute.map(|minute| minute.requests))),
    ("errors", |one| SortKey::from(one.minute.map(|minute| minute.server_errors))),
];

/// 0 if all instances are healthy, 2 if none is.
fn badness(host: &HostSummary) -> u64 {
    match host.healthy() {
        0 => 2,
        healthy => u64::from(healthy < host.instances),
    }
}

#[derive(Debug, Template)]
#[template(path = "dashboard/hosts.html")]
struct Page {
    list: List,
    rows: Vec<Row>,
    /// Why there are no statistics.
    outage: String,
}

#[derive(Debug)]
struct Row {
    name: String,
    link: String,
    instances: usize,
    healthy: usize,
    versions: Vec<String>,
    has_policy: bool,
    numbers: Option<Numbers>,
}

pub(super) async fn content(
    app: &Site,
    caller: &Caller,
    view: &View,
    deadline: Instant,
) -> Result<Content, Problem> {
    let checkup = app.dashboard.checkups.get(app, caller, deadline).await;
    let hosts = match &checkup.hosts {
        Ok(hosts) => hosts,
        Err(reason) => return Err(Problem::unavailable("routes_unavailable", reason.clone())),
    };
    let busy = |host: &HostSummary| Busy { minute: checkup.minute_of(host), host: host.clone() };
    let listing = Listing {
        name: |one: &Busy| one.host.name.as_str(),
        texts: |one| one.host.versions.iter().map(String::as_str).collect(),
        fields: &FIELDS,
    };
    let query = list::query(view, "hostname");
    let page = listing.page(hosts.iter().map(busy).collect(), &query)?;
    let list = List::new(view, &query, &page, "Host or version type", &HEADINGS);
    let ids: Vec<String> = page.items.iter().flat_map(|one| one.host.versions.iter().cloned()).collect();
    let latencies = app.dashboard.traffic.latencies(&ids, MINUTES);
    let latencies = by(deadline, "the stats Redis", latencies).await.ok();
    let rows = page.items.into_iter().map(|Busy { host, minute }| {
        let times = latencies.as_ref().and_then(|latencies| latencies.of_all(&host.versions));
        Row {
            link: link(Kind::Host, host.name.as_str()),
            name: host.name.to_string(),
            instances: host.instances,
            healthy: host.healthy(),
            numbers: minute.map(|minute| Numbers::new(&minute, times)),
            versions: host.versions.into_iter().collect(),
            has_policy: host.has_policy,
        }
    });
    let outage = checkup.minute.as_ref().err().cloned().unwrap_or_default();
    Ok(Content { html: render(&Page { list, rows: rows.collect(), outage })?, charts: Vec::new() })
}
