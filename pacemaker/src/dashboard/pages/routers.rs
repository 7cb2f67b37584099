//! The routers: which serial each serves, and how long changes take to arrive.

use askama::Template;

use super::{
    Content, Visit,
    list::{self, Heading, List},
    plain,
};
use crate::{
    dashboard::{
        Site,
        checkup::{Head, by},
        format,
    },
    http::{
        Problem,
        list::{Listing, SortKey},
    },
};
use signalbox_diagnosis::thresholds::{ROUTER_FORGOTTEN_MS, ROUTER_SILENT_MS};
use signalbox_routing::{RouterReport, has_acknowledged};

const HEADINGS: [Heading; 7] = [
    ("router", "node", false),
    ("state", "", false),
    ("serial", "serial", true),
    ("behind by", "behind", true),
    ("last report", "age", true),
    ("propagation, p50 / p99", "", true),
    ("admin address", "", false),
];

#[derive(Debug, Template)]
#[template(path = "dashboard/routers.html")]
struct Page {
    list: List,
    head: Head,
    rows: Vec<RouterRow>,
}

/// A router, formatted.
#[derive(Debug)]
pub(super) struct RouterRow {
    pub(super) node: String,
    pub(super) serial: u64,
    pub(super) behind: u64,
    pub(super) state: String,
    pub(super) healthy: bool,
    /// How long changes took to reach the router.
    pub(super) propagation: String,
    pub(super) age_ms: u64,
    pub(super) age: String,
    pub(super) address: String,
}

const LISTING: Listing<'static, RouterRow> = Listing {
    name: |router| &router.node,
    texts: |router| vec![router.state.as_str(), router.address.as_str()],
    fields: &[
        ("node", |router| SortKey::from(&*router.node)),
        ("serial", |router| SortKey::from(router.serial)),
        ("behind", |router| SortKey::from(router.behind)),
        ("age", |router| SortKey::from(router.age_ms)),
    ],
};

pub(super) async fn content(Visit { app, view, deadline, .. }: Visit<'_>) -> Result<Content, Problem> {
    let store = app.registry.store();
    let missing =
        |reason| Problem::unavailable("routes_unavailable", format!("The routers cannot be read: {reason}."));
    let (head, reports) = tokio::join!(
        by(deadline, "the routes Redis", store.table_head()),
        by(deadline, "the stats Redis", store.routers(ROUTER_FORGOTTEN_MS)),
    );
    let head = Head::from(head.map_err(missing)?);
    let rows = reports.map_err(missing)?.iter().map(|one| row(app, one, &head)).collect();
    let query = list::query(view, "node");
    let page = LISTING.page(rows, &query)?;
    let list = List::new(view, &query, &page, "Router, state or address", &HEADINGS);
    plain(&Page { list, head, rows: page.items })
}

pub(super) fn row(app: &Site, router: &RouterReport, head: &Head) -> RouterRow {
    let in_sync = has_acknowledged(router, &head.epoch, head.serial);
    let silent = router.age_ms >= ROUTER_SILENT_MS;
    let state = match &router.alarm {
        Some(alarm) => alarm.clone(),
        None if silent => "silent".to_owned(),
        None if in_sync => "in sync".to_owned(),
        None => "behind".to_owned(),
    };
    let took = app.routers.percentiles(&router.node);
    RouterRow {
        healthy: in_sync && !silent && router.alarm.is_none(),
        node: router.node.clone(),
        serial: router.serial,
        behind: head.serial.saturating_sub(router.serial),
        state,
        propagation: took.map_or_else(
            || "–".to_owned(),
            |took| format!("{:.0} / {:.0} ms", took.p50_ms.trunc(), took.p99_ms.trunc()),
        ),
        age_ms: router.age_ms,
        age: format::ago(router.age_ms, 0),
        address: router.address.clone().unwrap_or_default(),
    }
}
