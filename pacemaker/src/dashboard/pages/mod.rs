//! One file per page: it reads the data and renders a template.

mod audit;
mod events;
mod findings;
mod host;
mod machines;
mod objects;
mod overview;
mod queues;
mod slow_facts;

use askama::Template;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use crate::dashboard::Site;
use crate::http::{
    Problem,
    auth::{check_divided, check_whole},
};
use signalbox_access::{Caller, Dimension};

pub(super) use machines::Diagrams;
pub(super) use slow_facts::SlowFactsCache;

/// The kinds of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Overview,
    Host,
    Events,
    Queues,
    Objects,
    Machines,
    /// Tokens and the audit log.
    Access,
    /// One label of a machine.
    Label,
    /// A preview of a new version of a machine.
    Plan,
}

impl Kind {
    /// The pages in the navigation.
    pub(super) const MAIN: [Self; 7] =
        [Self::Overview, Self::Host, Self::Events, Self::Queues, Self::Objects, Self::Machines, Self::Access];

    /// The name in addresses.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Host => "host",
            Self::Events => "events",
            Self::Queues => "queues",
            Self::Objects => "objects",
            Self::Machines => "machines",
            Self::Access => "access",
            Self::Label => "label",
            Self::Plan => "plan",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Host => "Hosts",
            Self::Events => "Events",
            Self::Queues => "Queues",
            Self::Objects => "Objects",
            Self::Machines | Self::Label | Self::Plan => "Machines",
            Self::Access => "Access",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::MAIN.into_iter().chain([Self::Label, Self::Plan]).find(|kind| kind.name() == name)
    }
}

/// The query parameters of a page and of its stream.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PageQuery {
    /// The page of a stream. The address of a page has it in its path.
    pub(super) page: String,
    name: String,
    sort: String,
    label: String,
    state: String,
    status: String,
    find: String,
    after: String,
    at: String,
}

impl PageQuery {
    pub(super) fn into_view(self, kind: Kind) -> View {
        let Self { page: _, name, sort, label, state, status, find, after, at } = self;
        View { kind, name, sort, label, state, status, find, after, at }
    }
}

/// A page with its parameters; absent parameters are empty.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) kind: Kind,
    /// The host, queue, object or machine.
    pub(super) name: String,
    /// The sort key of a list.
    pub(super) sort: String,
    /// The label of a machine.
    label: String,
    /// Which labels are listed: by state, by status, by prefix of the name, and after which name.
    state: String,
    status: String,
    find: String,
    after: String,
    /// The version of a definition.
    at: String,
}

impl View {
    /// A page about something.
    pub(super) fn of(kind: Kind, name: &str) -> Self {
        PageQuery { name: name.to_owned(), ..PageQuery::default() }.into_view(kind)
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
    fn address(&self) -> String {
        format!("/dashboard/{}?{}", self.kind.name(), self.query(None))
    }

    fn query(&self, page: Option<&str>) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        let pairs = [
            ("page", page.unwrap_or_default()),
            ("name", &self.name),
            ("sort", &self.sort),
            ("label", &self.label),
            ("state", &self.state),
            ("status", &self.status),
            ("find", &self.find),
            ("after", &self.after),
            ("at", &self.at),
        ];
        query.extend_pairs(pairs.iter().filter(|(_, value)| !value.is_empty()));
        query.finish()
    }
}

/// The address of a page about something.
fn link(kind: Kind, name: &str) -> String {
    View::of(kind, name).address()
}

/// A name as a path segment of the API.
fn segment(name: &str) -> String {
    // In a path `+` is a plus, not a space as in a form.
    url::form_urlencoded::byte_serialize(name.as_bytes()).collect::<String>().replace('+', "%20")
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
    pub(super) lines: Vec<Line>,
    /// Unix seconds.
    pub(super) x: Vec<i64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) label: String,
    /// The name of a color in `charts.js`.
    pub(super) color: &'static str,
    pub(super) y: Vec<Option<f64>>,
}

/// Reads and renders a page. `round` counts the refreshes of a stream: the first one reads longer periods for the charts.
pub(super) async fn content(
    app: &Site,
    caller: &Caller,
    view: &View,
    round: u64,
) -> Result<Content, Problem> {
    // The content of a page is divided between tenants in one way, or cannot be divided.
    match view.kind {
        Kind::Overview | Kind::Host => check_divided(caller, Dimension::Hosts)?,
        Kind::Queues => check_divided(caller, Dimension::Environments)?,
        Kind::Events if view.name.is_empty() => check_divided(caller, Dimension::Environments)?,
        Kind::Machines | Kind::Label | Kind::Plan => check_divided(caller, Dimension::Machines)?,
        Kind::Events | Kind::Objects | Kind::Access => check_whole(caller)?,
    }
    match view.kind {
        Kind::Overview => overview::content(app, caller, round).await,
        Kind::Host => host::content(app, caller, &view.name, round).await,
        Kind::Events => events::content(app, caller, &view.name).await,
        Kind::Queues => queues::content(app, caller, view).await,
        Kind::Objects => objects::content(app, caller, &view.name).await,
        Kind::Access => audit::content(app, caller).await,
        Kind::Machines | Kind::Label | Kind::Plan => machines::content(app, caller, view).await,
    }
}

#[derive(Debug, Template)]
#[template(path = "dashboard/notice.html")]
struct Notice<'a> {
    text: &'a str,
}

/// A message in place of a page.
pub(super) fn notice(text: &str) -> Result<String, Problem> {
    render(&Notice { text })
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
