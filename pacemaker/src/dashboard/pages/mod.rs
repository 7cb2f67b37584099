//! The pages, one file each: what is read, and the template that shows it.

mod events;
mod findings;
mod host;
mod later;
mod machines;
mod objects;
mod overview;
mod queues;

use askama::Template;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use crate::dashboard::Site;
use crate::http::Problem;
use signalbox_access::Caller;

pub(super) use later::Later;
pub(super) use machines::Diagrams;

/// Which page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Overview,
    Host,
    Events,
    Queues,
    Objects,
    Machines,
    /// One label of a machine.
    Label,
    /// What another definition of a machine would change.
    Plan,
}

impl Kind {
    /// Those that every page links to.
    pub(super) const MAIN: [Self; 6] =
        [Self::Overview, Self::Host, Self::Events, Self::Queues, Self::Objects, Self::Machines];

    /// As it stands in addresses.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Host => "host",
            Self::Events => "events",
            Self::Queues => "queues",
            Self::Objects => "objects",
            Self::Machines => "machines",
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
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::MAIN.into_iter().chain([Self::Label, Self::Plan]).find(|kind| kind.name() == name)
    }
}

/// What a page may be asked for: the query of its address, and of its stream's.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Asked {
    /// Which page, for the stream; a page itself has it in its path.
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

impl Asked {
    pub(super) fn of(self, kind: Kind) -> View {
        let Self { page: _, name, sort, label, state, status, find, after, at } = self;
        View { kind, name, sort, label, state, status, find, after, at }
    }
}

/// A page with what it was asked for; what was not is empty.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) kind: Kind,
    /// The host, queue, object or machine.
    pub(super) name: String,
    /// By what a list is sorted.
    pub(super) sort: String,
    /// The label of a machine.
    label: String,
    /// Of which state, with which status, with what in front of their names and behind which name labels are listed.
    state: String,
    status: String,
    find: String,
    after: String,
    /// Which version of a definition.
    at: String,
}

impl View {
    /// A page about something.
    pub(super) fn of(kind: Kind, name: &str) -> Self {
        Asked { name: name.to_owned(), ..Asked::default() }.of(kind)
    }

    /// What stands in the title of the window.
    pub(super) fn title(&self) -> String {
        let named = [&self.label, &self.name].into_iter().find(|name| !name.is_empty());
        named.cloned().unwrap_or_else(|| self.kind.title().to_owned())
    }

    /// Where the page's changes come from.
    pub(super) fn stream(&self) -> String {
        format!("/dashboard/stream?{}", self.query(Some(self.kind.name())))
    }

    /// Where the page is.
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

/// A part of a path of the API.
fn segment(name: &str) -> String {
    // Spaces as `+` are for forms; in a path they stay a plus.
    url::form_urlencoded::byte_serialize(name.as_bytes()).collect::<String>().replace('+', "%20")
}

/// A page's inner part, and what its charts show.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) html: String,
    pub(super) charts: Vec<Chart>,
}

/// Lines over time. The browser keeps what it had before the first point.
#[derive(Debug, Serialize)]
pub(super) struct Chart {
    /// The element that it is drawn in.
    pub(super) id: &'static str,
    pub(super) unit: &'static str,
    pub(super) lines: Vec<Line>,
    /// Unix seconds.
    pub(super) x: Vec<i64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) label: String,
    /// The name of a colour of the style sheet.
    pub(super) colour: &'static str,
    pub(super) y: Vec<Option<f64>>,
}

/// Reads what a page shows. `round` counts the looks of a stream: the first one also reads what was before.
pub(super) async fn content(
    app: &Site,
    caller: &Caller,
    view: &View,
    round: u64,
) -> Result<Content, Problem> {
    match view.kind {
        Kind::Overview => overview::content(app, caller, round).await,
        Kind::Host => host::content(app, caller, &view.name, round).await,
        Kind::Events => events::content(app, caller, &view.name).await,
        Kind::Queues => queues::content(app, caller, view).await,
        Kind::Objects => objects::content(app, caller, &view.name).await,
        Kind::Machines | Kind::Label | Kind::Plan => machines::content(app, caller, view).await,
    }
}

#[derive(Debug, Template)]
#[template(path = "dashboard/notice.html")]
struct Notice<'a> {
    text: &'a str,
}

/// One sentence in the place of a page.
pub(super) fn notice(text: &str) -> Result<String, Problem> {
    render(&Notice { text })
}

pub(super) fn render(page: &impl Template) -> Result<String, Problem> {
    page.render().map_err(|error| {
        tracing::error!(%error, "a template of the dashboard failed");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the pacemaker's log")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_as_addresses_want_them() {
        assert_eq!(link(Kind::Host, "*.a&b=c.example"), "/dashboard/host?name=*.a%26b%3Dc.example");
        assert_eq!(segment("work:1/2 +x"), "work%3A1%2F2%20%2Bx");
        let view = View { sort: "age".to_owned(), ..View::of(Kind::Host, "a?b") };
        assert_eq!(view.stream(), "/dashboard/stream?page=host&name=a%3Fb&sort=age");
    }
}
