//! Tokens, and the audit log.

use askama::Template;

use super::{
    Content, View,
    list::{self, Heading, List},
    render, segment,
};
use crate::{
    api::{self, tokens::LISTING},
    dashboard::{MAX_ROWS, Site, format},
    http::Problem,
};
use signalbox_access::{Caller, Scope};
use signalbox_api::{audit::Record, tokens::Token};

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
    rows: Vec<TokenRow>,
}

#[derive(Debug, Template)]
#[template(path = "dashboard/audit.html")]
struct AuditPage {
    /// `None` for a caller that may not see them.
    records: Option<Vec<RecordRow>>,
    who: String,
    target: String,
    kinds: Vec<(&'static str, bool)>,
    next: Option<String>,
    first: Option<String>,
}

#[derive(Debug)]
struct TokenRow {
    name: String,
    path: String,
    scopes: Vec<&'static str>,
    confined: String,
    expires: String,
    expired: bool,
    used: String,
    old_secrets: usize,
}

#[derive(Debug)]
struct RecordRow {
    key: String,
    at: String,
    exact: String,
    before: String,
    after: String,
    kind: &'static str,
    who: String,
    address: String,
    what: String,
    result: String,
    refused: bool,
}

pub(super) async fn tokens(app: &Site, caller: &Caller, view: &View) -> Result<Content, Problem> {
    let page = if caller.is_root() {
        let query = list::query(view, "name");
        let page = LISTING.page(api::tokens::all(app).await?, &query)?;
        let list = List::new(view, &query, &page, "Token, scope or confinement", &HEADINGS);
        let now_ms = app.dashboard.now_ms();
        TokensPage { list: Some(list), rows: page.items.into_iter().map(|one| token(one, now_ms)).collect() }
    } else {
        TokensPage { list: None, rows: Vec::new() }
    };
    Ok(Content { html: render(&page)?, charts: Vec::new() })
}

/// `name` is the token or person, `search` the beginning of a path, and `state` the kind of records to show.
pub(super) async fn audit(app: &Site, caller: &Caller, view: &View) -> Result<Content, Problem> {
    let now_ms = app.dashboard.now_ms();
    let (mut records, mut next) = (None, None);
    if caller.has_any(&[Scope::Audit]) {
        let page = api::audit::matching(app, [&view.state, &view.name, &view.search, &view.cursor], MAX_ROWS)
            .await?;
        next = page.next.map(|cursor| View { cursor, ..view.clone() }.address());
        records = Some(page.records.into_iter().map(|record| row(record, now_ms)).collect());
    }
    let kinds = ["change", "login", "logout", "refused"].map(|kind| (kind, kind == view.state));
    let page = AuditPage {
        records,
        who: view.name.clone(),
        target: view.search.clone(),
        kinds: kinds.to_vec(),
        next,
        first: (!view.cursor.is_empty()).then(|| View { cursor: String::new(), ..view.clone() }.address()),
    };
    Ok(Content { html: render(&page)?, charts: Vec::new() })
}

fn token(token: Token, now_ms: u64) -> TokenRow {
    let expired = token.expires_at_ms.is_some_and(|end| end <= now_ms);
    let confined = [token.hosts, token.environments, token.machines, token.version_types];
    TokenRow {
        scopes: token.scopes.iter().map(|scope| scope.as_str()).collect(),
        confined: confined.into_iter().flatten().flatten().collect::<Vec<_>>().join(", "),
        expires: match token.expires_at_ms {
            Some(_) if expired => "expired".to_owned(),
            Some(end) => format!("in {}", format::span(end - now_ms)),
            None => "never".to_owned(),
        },
        expired,
        used: token.last_used_at_ms.map_or_else(|| "never".to_owned(), |at| format::ago(now_ms, at)),
        old_secrets: token.replaced_until_ms.len(),
        path: segment(&token.name),
        name: token.name,
    }
}

fn row(record: Record, now_ms: u64) -> RecordRow {
    let token = record.who.unwrap_or_default();
    let code = record.code.unwrap_or_default();
    RecordRow {
        key: format!("{} {} {}", record.at_ms, record.request_id.unwrap_or_default(), record.target),
        at: format::ago(now_ms, record.at_ms),
        exact: format::time(record.at_ms),
        before: json(record.before),
        after: json(record.after),
        kind: record.kind.as_str(),
        who: record.person.map_or(token.clone(), |person| format!("{person} ({token})")),
        address: record.address,
        what: format!("{} {}", record.method, record.target),
        result: format!("{} {code}", record.status).trim().to_owned(),
        refused: record.kind == signalbox_api::audit::Kind::Refused,
    }
}

fn json(value: Option<serde_json::Value>) -> String {
    value.and_then(|value| serde_json::to_string_pretty(&value).ok()).unwrap_or_default()
}
