//! Tokens, and the audit log.

use askama::Template;

use super::{
    Content, View, Visit,
    list::{self, Heading, List},
    plain, segment,
};
use crate::{
    api::{self, tokens::LISTING},
    dashboard::{MAX_ROWS, format},
    http::Problem,
};
use signalbox_access::Scope;
use signalbox_api::{
    Time,
    audit::{Kind, Record},
    tokens::Token,
};

const HEADINGS: [Heading; 7] = [
    ("token", "name", false),
    ("scopes", "", false),
    ("confined to", "", false),
    ("expires", "expires", false),
    ("last used", "last_used", false),
    ("old secrets", "", true),
    ("actions", "", false),
];

#[derive(Debug, Template)]
#[template(path = "dashboard/tokens.html")]
struct TokensPage {
    /// `None` for a caller that may not see them.
    list: Option<List>,
    rows: Vec<Token>,
    now_ms: u64,
}

#[derive(Debug, Template)]
#[template(path = "dashboard/audit.html")]
struct AuditPage<'a> {
    view: &'a View,
    /// `None` for a caller that may not see them.
    records: Option<Vec<Record>>,
    next: Option<String>,
    first: Option<String>,
    now_ms: u64,
}

pub(super) async fn tokens(Visit { app, caller, view, now_ms, .. }: Visit<'_>) -> Result<Content, Problem> {
    if !caller.is_root() {
        return plain(&TokensPage { list: None, rows: Vec::new(), now_ms });
    }
    let query = list::query(view, "name");
    let page = LISTING.page(api::tokens::all(app).await?, &query)?;
    let list = List::new(view, &query, &page, "Token, scope or confinement", &HEADINGS);
    plain(&TokensPage { list: Some(list), rows: page.items, now_ms })
}

/// `name` is the token or person, `search` the beginning of a path, and `state` the kind of records to show.
pub(super) async fn audit(Visit { app, caller, view, now_ms, .. }: Visit<'_>) -> Result<Content, Problem> {
    let (mut records, mut next) = (None, None);
    if caller.has_any(&[Scope::Audit]) {
        let page = api::audit::matching(app, [&view.state, &view.name, &view.search, &view.cursor], MAX_ROWS)
            .await?;
        next = page.next.map(|cursor| view.at_cursor(&cursor));
        records = Some(page.records);
    }
    plain(&AuditPage { view, records, next, first: view.first_page(), now_ms })
}

fn confinement(token: &Token) -> String {
    let confined = [&token.hosts, &token.tenants, &token.machines, &token.version_types];
    confined.into_iter().flatten().flatten().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Whether a token has expired, and when it does in words.
fn expiry(token: &Token, now_ms: u64) -> (bool, String) {
    match token.expires_at.map(Time::ms) {
        Some(end) if end <= now_ms => (true, "expired".to_owned()),
        Some(end) => (false, format!("in {}", format::span(end - now_ms))),
        None => (false, "never".to_owned()),
    }
}
