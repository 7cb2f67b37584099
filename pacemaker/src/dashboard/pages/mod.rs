//! The pages, one file each: what is read, and the template that shows it.

mod events;
mod findings;
mod host;
mod objects;
mod overview;
mod queues;

use askama::Template;
use axum::http::StatusCode;
use serde::Serialize;

use crate::{
    http::{App, Problem},
    tokens::Caller,
};

/// Which page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Overview,
    Host,
    Events,
    Queues,
    Objects,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [Self::Overview, Self::Host, Self::Events, Self::Queues, Self::Objects];

    /// As it stands in addresses.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Host => "host",
            Self::Events => "events",
            Self::Queues => "queues",
            Self::Objects => "objects",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Host => "Hosts",
            Self::Events => "Events",
            Self::Queues => "Queues",
            Self::Objects => "Objects",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A page with what it was asked for.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) kind: Kind,
    /// The host, queue or object; empty for none.
    pub(super) name: String,
    /// By what a list is sorted; empty for the usual.
    pub(super) sort: String,
}

impl View {
    /// Where the page's changes come from.
    pub(super) fn stream(&self) -> String {
        format!("/dashboard/stream?{}", self.query(Some(self.kind.name())))
    }

    fn query(&self, page: Option<&str>) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        let pairs = [("page", page.unwrap_or_default()), ("name", &self.name), ("sort", &self.sort)];
        query.extend_pairs(pairs.iter().filter(|(_, value)| !value.is_empty()));
        query.finish()
    }
}

/// The address of a page about something.
fn link(kind: Kind, name: &str) -> String {
    let view = View { kind, name: name.to_owned(), sort: String::new() };
    format!("/dashboard/{}?{}", kind.name(), view.query(None))
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
pub(super) async fn content(app: &App, caller: &Caller, view: &View, round: u64) -> Result<Content, Problem> {
    match view.kind {
        Kind::Overview => overview::content(app, caller, round).await,
        Kind::Host => host::content(app, caller, &view.name, round).await,
        Kind::Events => events::content(app, caller, &view.name).await,
        Kind::Queues => queues::content(app, caller, view).await,
        Kind::Objects => objects::content(app, caller, &view.name).await,
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
        let view = View { kind: Kind::Host, name: "a?b".to_owned(), sort: "age".to_owned() };
        assert_eq!(view.stream(), "/dashboard/stream?page=host&name=a%3Fb&sort=age");
    }
}
