//! Access: tokens, and the audit log.

use askama::Template;

use super::{Content, render};
use crate::{
    api,
    dashboard::{MAX_ROWS, Site, format},
    http::Problem,
};
use signalbox_access::{Caller, Listed, Scope};
use signalbox_api::audit::Record;

#[derive(Debug, Template)]
#[template(path = "dashboard/access.html")]
struct Page {
    /// `None` for a caller that may not see them.
    tokens: Option<Vec<TokenRow>>,
    records: Option<Vec<RecordRow>>,
}

#[derive(Debug)]
struct TokenRow {
    name: String,
    scopes: String,
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
    kind: &'static str,
    who: String,
    address: String,
    what: String,
    result: String,
    refused: bool,
}

pub(super) async fn content(app: &Site, caller: &Caller) -> Result<Content, Problem> {
    let now_ms = app.dashboard.now_ms();
    let tokens = if caller.is_root() {
        let listed = app.tokens.list().await?;
        Some(listed.into_iter().take(MAX_ROWS).map(|listed| token(listed, now_ms)).collect())
    } else {
        None
    };
    let records = if caller.has_any(&[Scope::Audit]) {
        let records = api::audit::latest(app, MAX_ROWS).await?;
        Some(records.into_iter().map(|record| row(record, now_ms)).collect())
    } else {
        None
    };
    Ok(Content { html: render(&Page { tokens, records })?, charts: Vec::new() })
}

fn token(listed: Listed, now_ms: u64) -> TokenRow {
    let hosts = listed.hosts.iter().flatten().map(ToString::to_string);
    let environments = listed.environments.iter().flatten().cloned();
    let confined: Vec<String> = hosts.chain(environments).collect();
    let expired = listed.expires_ms.is_some_and(|end| end <= now_ms);
    TokenRow {
        scopes: listed.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(", "),
        confined: confined.join(", "),
        expires: match listed.expires_ms {
            Some(_) if expired => "expired".to_owned(),
            Some(end) => format!("in {}", format::span(end - now_ms)),
            None => "never".to_owned(),
        },
        expired,
        used: listed.last_used_ms.map_or_else(|| "never".to_owned(), |at| format::ago(now_ms, at)),
        old_secrets: listed.replaced_until_ms.len(),
        name: listed.name,
    }
}

fn row(record: Record, now_ms: u64) -> RecordRow {
    let token = record.who.unwrap_or_default();
    let code = record.code.unwrap_or_default();
    RecordRow {
        key: format!("{} {} {}", record.at_ms, record.request_id.unwrap_or_default(), record.target),
        at: format::ago(now_ms, record.at_ms),
        kind: record.kind.as_str(),
        who: record.person.map_or(token.clone(), |person| format!("{person} ({token})")),
        address: record.address,
        what: format!("{} {}", record.method, record.target),
        result: format!("{} {code}", record.status).trim().to_owned(),
        refused: record.kind == signalbox_api::audit::Kind::Refused,
    }
}
