//! All hosts.

use askama::Template;

use super::{
    Content, Kind, Visit, link,
    list::{self, Heading, List},
    overview::{Numbers, color},
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
use signalbox_diagnosis::hosts::State;
use signalbox_store::traffic::Recent;

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

/// A host with its state and the requests of its last minute.
struct Busy {
    host: HostSummary,
    state: State,
    minute: Option<Sums>,
}

const FIELDS: [Field<Busy>; 5] = [
    ("hostname", |one| SortKey::from(one.host.name.as_str())),
    ("state", |one| SortKey::from(badness(one))),
    ("instances", |one| SortKey::from(one.host.instances as u64)),
    ("requests", |one| SortKey::from(one.minute.map(|minute| minute.requests))),
    ("errors", |one| SortKey::from(one.minute.map(|minute| minute.server_errors))),
];

/// Orders hosts by their conditions, and those in the same condition by their requests.
fn badness(one: &Busy) -> u64 {
    const MAX_REQUESTS: u64 = (1 << 40) - 1;
    let requests = one.minute.map_or(0, |minute| minute.requests.min(MAX_REQUESTS));
    (one.state.condition as u64) << 40 | requests
}

#[derive(Debug, Template)]
#[template(path = "dashboard/hosts.html")]
struct Page<'a> {
    list: List,
    rows: Vec<(HostSummary, State, Option<Numbers>)>,
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
    let busy = |(host, state): (&HostSummary, State)| Busy {
        minute: checkup.minute_of(host),
        host: host.clone(),
        state,
    };
    let listing = Listing {
        name: |one: &Busy| one.host.name.as_str(),
        texts: |one| {
            let versions = one.host.versions.iter().map(String::as_str);
            versions.chain([one.state.short.as_str()]).collect()
        },
        fields: &FIELDS,
    };
    let query = list::query(view, "hostname");
    let page = listing.page(hosts.iter().zip(checkup.states(caller, hosts)).map(busy).collect(), &query)?;
    let list = List::new(view, &query, &page, "Host, state or version type", &HEADINGS);
    let mut ids: Vec<String> = page.items.iter().flat_map(|one| one.host.versions.iter().cloned()).collect();
    ids.retain(|id| caller.may_count_as(id));
    let estimated = checkup.estimated(page.items.iter().map(|one| &one.host));
    let traffic = &app.dashboard.traffic;
    let (latencies, exact) = tokio::join!(
        by(deadline, "the stats Redis", traffic.latencies(&ids, MINUTES)),
        by(deadline, "the stats Redis", traffic.minute(&estimated)),
    );
    let (latencies, exact) = (latencies.ok(), exact.unwrap_or_default());
    let row = |Busy { host, state, minute }: Busy| {
        let times = latencies.as_ref().and_then(|latencies| latencies.of_all(&host.versions));
        let minute = minute.map(|estimate| {
            let ids = host.versions.iter();
            let counted = |minute: &Recent| {
                Sums::of(ids.filter_map(|id| exact.get(id).or_else(|| minute.by_id.get(id))))
            };
            checkup.minute.as_ref().map_or(estimate, |minute| counted(minute))
        });
        (host, state, minute.map(|minute| Numbers::new(&minute, times)))
    };
    let rows = page.items.into_iter().map(row).collect();
    plain(&Page { list, rows, outage: checkup.minute.as_ref().err() })
}
