//! All hosts.

use askama::Template;

use super::{
    Content, Kind, Visit, link,
    list::{self, Heading, List},
    overview::Numbers,
    plain,
};
use crate::{
    api::routing::HostSummary,
    dashboard::{checkup::by, store::Sums},
    http::{
        Problem,
        list::{Field, Listing, SortKey},
    },
};

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
struct Page<'a> {
    list: List,
    rows: Vec<(HostSummary, Option<Numbers>)>,
    /// Why there are no statistics.
    outage: Option<&'a String>,
}

pub(super) async fn content(visit: Visit<'_>) -> Result<Content, Problem> {
    let Visit { app, caller, view, deadline, .. } = visit;
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
    let row = |Busy { host, minute }: Busy| {
        let times = latencies.as_ref().and_then(|latencies| latencies.of_all(&host.versions));
        (host, minute.map(|minute| Numbers::new(&minute, times)))
    };
    let rows = page.items.into_iter().map(row).collect();
    plain(&Page { list, rows, outage: checkup.minute.as_ref().err() })
}
