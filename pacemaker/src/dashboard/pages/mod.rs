//! One file per page: it reads the data and renders a template.

mod access;
mod certificates;
mod charts;
mod event;
mod events;
mod host;
mod hosts;
mod instances;
mod list;
mod machines;
mod objects;
mod overview;
mod policy;
mod problems;
mod queues;
mod routers;
mod subscribers;
mod topics;
mod trial;

use std::time::Duration;

use askama::Template;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout, timeout_at};

use crate::dashboard::{Site, page};
use crate::http::{
    Problem,
    auth::{check_divided, check_whole},
};
use signalbox_access::{Caller, Dimension};
pub(super) use signalbox_diagnosis::thousands;

pub(super) use list::found;
pub(super) use machines::{Diagrams, busy};

/// A page is answered this long after its request arrived, without what could not be read.
const PAGE_PATIENCE: Duration = Duration::from_millis(1800);
/// Of that, the time for everything that a page can do without.
const SOURCE_PATIENCE: Duration = Duration::from_millis(1300);
/// How long a server that is asked whether it responds may take.
const PROBE_PATIENCE: Duration = Duration::from_millis(100);
/// A server that hangs never delays a page by more than two seconds, with the time in which the caller is recognized.
const _: () = assert!(
    PAGE_PATIENCE.as_millis() + PROBE_PATIENCE.as_millis() < 2000
        && SOURCE_PATIENCE.as_millis() < PAGE_PATIENCE.as_millis()
        && page::PATIENCE.as_millis() < SOURCE_PATIENCE.as_millis()
);

/// The kinds of pages.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Overview,
    /// What is wrong.
    Problems,
    Host,
    Instances,
    Routers,
    Certificates,
    Events,
    /// One event or message.
    Event,
    Topics,
    Subscribers,
    Queues,
    Objects,
    Machines,
    Tokens,
    /// The audit log.
    Audit,
    /// One label of a machine.
    Label,
    /// A preview of a new version of a machine.
    Plan,
    /// The editor of a host's policy.
    Policy,
}

impl Kind {
    /// The pages in the navigation, by group.
    pub(super) const GROUPS: [(&'static str, &'static [Self]); 5] = [
        ("", &[Self::Overview, Self::Problems]),
        ("Traffic", &[Self::Host, Self::Instances, Self::Routers, Self::Certificates]),
        ("Messages", &[Self::Events, Self::Topics, Self::Subscribers, Self::Queues, Self::Objects]),
        ("Workflows", &[Self::Machines]),
        ("Access", &[Self::Tokens, Self::Audit]),
    ];

    /// The name in addresses, and the title.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Overview => ("overview", "Overview"),
            Self::Problems => ("problems", "Problems"),
            Self::Host => ("host", "Hosts"),
            Self::Instances => ("instances", "Instances"),
            Self::Routers => ("routers", "Routers"),
            Self::Certificates => ("certificates", "Certificates"),
            Self::Events => ("events", "Live events"),
            Self::Event => ("event", "Live events"),
            Self::Topics => ("topics", "Topics"),
            Self::Subscribers => ("subscribers", "Subscribers"),
            Self::Queues => ("queues", "Queues"),
            Self::Objects => ("objects", "Objects"),
            Self::Machines => ("machines", "Machines"),
            Self::Tokens => ("tokens", "Tokens"),
            Self::Audit => ("audit", "Audit log"),
            Self::Label => ("label", "Machines"),
            Self::Plan => ("plan", "Machines"),
            Self::Policy => ("policy", "Hosts"),
        }
    }

    pub(super) fn name(self) -> &'static str {
        self.texts().0
    }

    pub(super) fn title(self) -> &'static str {
        self.texts().1
    }

    /// The lines of its icon, on a square of 16 units.
    pub(super) fn icon(self) -> &'static str {
        match self {
            Self::Overview => "M2.5 13.5v-5M6.2 13.5v-9M9.9 13.5v-6M13.5 13.5v-11",
            Self::Problems => "M8 2.2 14.5 13.5h-13zM8 6.5v3.2M8 11.4v.4",
            Self::Host | Self::Policy => {
                "M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8M1.8 8h12.4M8 1.8c4.2 4 4.2 8.4 0 12.4M8 1.8c-4.2 4-4.2 8.4 0 12.4"
            }
            Self::Instances => "M2 2.5h12v4.5H2zM2 9h12v4.5H2zM4.5 4.8h.1M4.5 11.3h.1",
            Self::Routers => {
                "M8 2v4M8 6 3.5 10M8 6l4.5 4M2 10h3v3.5H2zM11 10h3v3.5h-3zM6.5 10h3v3.5h-3zM8 6v4"
            }
            Self::Certificates => "M3.5 7.5h9v6h-9zM5.5 7.5v-2.5a2.5 2.5 0 0 1 5 0v2.5",
            Self::Events | Self::Event => "M1.5 8h3l2-5 3 10 2-5h3",
            Self::Topics => "M6.5 2 5 14M11 2 9.5 14M2.5 5.5h11.5M2 10.5h11.5",
            Self::Subscribers => "M8 2a4 4 0 0 0-4 4v3l-1.5 2.5h11L12 9V6a4 4 0 0 0-4-4M6.5 13.8h3",
            Self::Queues => "M2 3.5h12M2 6.5h12M2 9.5h8M2 12.5h5",
            Self::Objects => "M8 1.8 13.8 5v6L8 14.2 2.2 11V5zM2.2 5 8 8.2 13.8 5M8 8.2v6",
            Self::Machines | Self::Label | Self::Plan => {
                "M2 2.5h4.5v4H2zM9.5 9.5h4.5v4H9.5zM6.5 4.5h5v5M4.2 6.5v5h5.3"
            }
            Self::Tokens => "M5.5 7a3 3 0 1 0 0 2H10v2h2V9h2V7z",
            Self::Audit => "M3.5 1.8h6l3 3v9.4h-9zM9.5 1.8v3h3M5.5 8h5M5.5 11h5",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        let groups = Self::GROUPS.into_iter().flat_map(|(_, kinds)| kinds.iter().copied());
        groups.chain([Self::Label, Self::Plan, Self::Policy, Self::Event]).find(|kind| kind.name() == name)
    }
}

/// A page with its parameters; absent ones are empty. Others are ignored: links from elsewhere may carry some.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct View {
    #[serde(skip)]
    pub(super) kind: Kind,
    /// The page of a stream. The address of a page has it in its path.
    pub(super) page: String,
    /// The host, queue, object or machine.
    pub(super) name: String,
    /// Which items of a list are shown, in which order, and from where.
    pub(super) search: String,
    pub(super) sort: String,
    pub(super) cursor: String,
    /// The label of a machine.
    label: String,
    /// Which labels are listed: by state, by status, by prefix of the name, and after which name. For problems and the audit log,
    /// the kind.
    pub(super) state: String,
    status: String,
    find: String,
    after: String,
    /// The version of a definition, or an event.
    at: String,
    /// The time range of charts.
    range: String,
    /// Where a message is, if its log entry may be gone.
    queue: String,
    tenant: String,
    /// A request that is to be explained, as it was typed.
    method: String,
    url: String,
    header: String,
    address: String,
}

impl View {
    /// A page about something.
    pub(super) fn of(kind: Kind, name: &str) -> Self {
        Self { kind, name: name.to_owned(), ..Self::default() }
    }

    /// The title of the window.
    pub(super) fn title(&self) -> String {
        let named = [&self.label, &self.name].into_iter().find(|name| !name.is_empty());
        named.cloned().unwrap_or_else(|| self.kind.title().to_owned())
    }

    /// The address of the page's stream.
    pub(super) fn stream(&self) -> String {
        format!("/dashboard/stream?{}", self.query(Some(self.kind.name())))
    }

    /// The address of the page.
    pub(super) fn address(&self) -> String {
        match &*self.query(None) {
            "" => format!("/dashboard/{}", self.kind.name()),
            query => format!("/dashboard/{}?{query}", self.kind.name()),
        }
    }

    /// The address of the same list from `cursor` on.
    fn at_cursor(&self, cursor: &str) -> String {
        Self { cursor: cursor.to_owned(), ..self.clone() }.address()
    }

    /// The address of the list's first page, unless this is it.
    fn first_page(&self) -> Option<String> {
        (!self.cursor.is_empty()).then(|| self.at_cursor(""))
    }

    fn query(&self, page: Option<&str>) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        let pairs = [
            ("page", page.unwrap_or_default()),
            ("name", &self.name),
            ("search", &self.search),
            ("sort", &self.sort),
            ("cursor", &self.cursor),
            ("label", &self.label),
            ("state", &self.state),
            ("status", &self.status),
            ("find", &self.find),
            ("after", &self.after),
            ("at", &self.at),
            ("range", &self.range),
            ("queue", &self.queue),
            ("tenant", &self.tenant),
            ("method", &self.method),
            ("url", &self.url),
            ("header", &self.header),
            ("address", &self.address),
        ];
        query.extend_pairs(pairs.iter().filter(|(_, value)| !value.is_empty()));
        query.finish()
    }
}

/// The address of the page with all problems of one kind.
pub(super) fn problems_of(id: &str) -> String {
    View { state: id.to_owned(), ..View::of(Kind::Problems, "") }.address()
}

/// The address of a page about something.
pub(super) fn link(kind: Kind, name: &str) -> String {
    View::of(kind, name).address()
}

/// The address of the page of an event.
fn event_link(id: u64) -> String {
    link(Kind::Event, &id.to_string())
}

/// The address of the page of a message in a queue.
fn message_link(queue: &str, tenant: &str, id: u64) -> String {
    let view = View::of(Kind::Event, &id.to_string());
    View { queue: queue.to_owned(), tenant: tenant.to_owned(), ..view }.address()
}

/// A name as a path segment of the API.
fn segment(name: &str) -> String {
    // In a path `+` is a plus, not a space as in a form.
    url::form_urlencoded::byte_serialize(name.as_bytes()).collect::<String>().replace('+', "%20")
}

/// A page that is being read: who asked for what.
#[derive(Debug, Clone, Copy)]
struct Visit<'a> {
    app: &'a Site,
    caller: &'a Caller,
    view: &'a View,
    /// The refreshes of its stream: the first one reads longer periods for the charts.
    round: u64,
    /// The end of the time for everything that the page can do without.
    deadline: Instant,
    now_ms: u64,
}

/// A page's inner HTML and the points of its charts.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) html: String,
    pub(super) charts: Vec<Chart>,
}

/// Lines over time. The browser keeps the points that it has from before the first one.
#[derive(Debug, Serialize)]
pub(super) struct Chart {
    /// The element in which it is drawn, without `chart-`.
    pub(super) id: &'static str,
    pub(super) unit: &'static str,
    /// Whether its axis is logarithmic.
    pub(super) log: bool,
    pub(super) lines: Vec<Line>,
    /// Unix seconds.
    pub(super) x: Vec<i64>,
    /// The range that is shown.
    pub(super) from: i64,
    pub(super) to: i64,
    pub(super) marks: Vec<Mark>,
}

/// An event that all charts show.
#[derive(Debug, Serialize)]
pub(super) struct Mark {
    /// Unix seconds.
    pub(super) x: i64,
    pub(super) text: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) label: String,
    /// The name of a color in `charts.js`.
    pub(super) color: &'static str,
    pub(super) y: Vec<Option<f64>>,
}

/// Reads and renders a page that was asked for at `begun`.
///
/// # Errors
/// What to show instead: also if a server does not respond in time.
pub(super) async fn content(
    app: &Site,
    caller: &Caller,
    view: &View,
    round: u64,
    begun: Instant,
) -> Result<Content, Problem> {
    // The content of a page is divided between tenants in one way, or cannot be divided.
    match view.kind {
        Kind::Overview
        | Kind::Problems
        | Kind::Host
        | Kind::Policy
        | Kind::Instances
        | Kind::Certificates => {
            check_divided(caller, Dimension::Hosts)?;
        }
        Kind::Queues | Kind::Events | Kind::Event => check_divided(caller, Dimension::Tenants)?,
        Kind::Machines | Kind::Label | Kind::Plan => check_divided(caller, Dimension::Machines)?,
        Kind::Routers | Kind::Topics | Kind::Subscribers | Kind::Objects | Kind::Tokens | Kind::Audit => {
            check_whole(caller)?;
        }
    }
    let now_ms = app.dashboard.now_ms();
    let visit = Visit { app, caller, view, round, deadline: begun + SOURCE_PATIENCE, now_ms };
    let is_list = view.name.is_empty();
    let page = async {
        match view.kind {
            Kind::Overview => Box::pin(overview::content(visit)).await,
            Kind::Problems => Box::pin(problems::content(visit)).await,
            Kind::Host if is_list => hosts::content(visit).await,
            Kind::Host => Box::pin(host::content(visit)).await,
            Kind::Policy => policy::content(visit).await,
            Kind::Instances if is_list => instances::list(visit).await,
            Kind::Instances => Box::pin(instances::instance(visit)).await,
            Kind::Routers => routers::content(visit).await,
            Kind::Certificates => certificates::content(visit).await,
            Kind::Events => events::content(visit),
            Kind::Event => event::content(visit).await,
            Kind::Topics => topics::content(visit).await,
            Kind::Subscribers if is_list => subscribers::list(visit).await,
            Kind::Subscribers => Box::pin(subscribers::subscriber(visit)).await,
            Kind::Queues if is_list => queues::list(visit).await,
            Kind::Queues => Box::pin(queues::queue(visit)).await,
            Kind::Objects if is_list => objects::list(visit).await,
            Kind::Objects => objects::object(visit).await,
            Kind::Tokens => access::tokens(visit).await,
            Kind::Audit => access::audit(visit).await,
            Kind::Machines | Kind::Label | Kind::Plan => Box::pin(machines::content(visit)).await,
        }
    };
    match timeout_at(begun + PAGE_PATIENCE, page).await {
        Ok(Err(problem)) if problem.status() == StatusCode::SERVICE_UNAVAILABLE => {
            Err(silent(app).await.unwrap_or(problem))
        }
        Ok(content) => content,
        Err(_) => Err(silent(app).await.unwrap_or_else(|| {
            let detail = "A Redis server took too long. The page is shown as soon as it responds.";
            Problem::unavailable("fabric_unavailable", detail)
        })),
    }
}

/// Names the servers that do not respond, if any, in place of a page.
async fn silent(app: &Site) -> Option<Problem> {
    let (routes, fabric) = tokio::join!(
        timeout(PROBE_PATIENCE, app.registry.store().table_head()),
        timeout(PROBE_PATIENCE, app.presence.all()),
    );
    let (code, servers) = match (matches!(routes, Ok(Ok(_))), matches!(fabric, Ok(Ok(_)))) {
        (true, true) => return None,
        (false, true) => ("routes_unavailable", "The routes Redis does"),
        (true, false) => ("fabric_unavailable", "The fabric Redis does"),
        (false, false) => ("fabric_unavailable", "The routes Redis and the fabric Redis do"),
    };
    let detail = format!("{servers} not respond. The page is shown as soon as its data can be read.");
    Some(Problem::unavailable(code, detail))
}

#[derive(Debug, Template)]
#[template(path = "dashboard/notice.html")]
struct Notice<'a> {
    text: &'a str,
    status: u16,
}

/// A message in place of a page.
pub(super) fn notice(problem: &Problem) -> Result<String, Problem> {
    render(&Notice { text: problem.detail(), status: problem.status().as_u16() })
}

/// A page with charts.
fn with_charts(page: &impl Template, charts: Vec<Chart>) -> Result<Content, Problem> {
    Ok(Content { html: render(page)?, charts })
}

/// A page without charts.
fn plain(page: &impl Template) -> Result<Content, Problem> {
    with_charts(page, Vec::new())
}

pub(super) fn render(page: &impl Template) -> Result<String, Problem> {
    page.render().map_err(|error| {
        tracing::error!(%error, "dashboard template failed");
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "Internal error. See the pacemaker's log.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_in_addresses() {
        assert_eq!(link(Kind::Host, "*.a&b=c.example"), "/dashboard/host?name=*.a%26b%3Dc.example");
        assert_eq!(segment("work:1/2 +x"), "work%3A1%2F2%20%2Bx");
        let view = View { sort: "age".to_owned(), ..View::of(Kind::Host, "a?b") };
        assert_eq!(view.stream(), "/dashboard/stream?page=host&name=a%3Fb&sort=age");
    }
}
