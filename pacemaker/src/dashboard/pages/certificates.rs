//! Certificates: those of the route table, and the state of automatic HTTPS.

use askama::Template;

use super::{Content, View, list::ROWS, render};
use crate::{
    dashboard::{MAX_ROWS, Site, format},
    http::{Problem, list::contains},
};
use signalbox_access::Caller;
use signalbox_api::acme::{AutomaticCertificate, AutomaticState};
use signalbox_diagnosis::thresholds::CERTIFICATE_WARNING_DAYS;
use signalbox_route_table::Hostname;

/// Certificates that are read by one call, and for one page.
const CHUNK: usize = 200;
const MAX_EXAMINED: usize = 5_000;
/// The list to which cursors belong.
const LIST: &str = "certificates";
const DAY_SECONDS: u64 = 86_400;

#[derive(Debug, Template)]
#[template(path = "dashboard/certificates.html")]
struct Page {
    search: String,
    rows: Vec<Row>,
    next: Option<String>,
    first: Option<String>,
    /// Names with automatic HTTPS.
    automatic: Vec<AutomaticRow>,
    more: bool,
    /// Set if the search ended before it examined every certificate.
    examined: bool,
}

#[derive(Debug)]
struct Row {
    name: String,
    names: String,
    issuer: String,
    expires: String,
    left: String,
    class: &'static str,
}

/// A name with automatic HTTPS.
#[derive(Debug)]
struct AutomaticRow {
    name: String,
    class: &'static str,
    state: &'static str,
    expires: String,
    renewed: String,
    error: String,
}

pub(super) async fn content(app: &Site, caller: &Caller, view: &View) -> Result<Content, Problem> {
    let wanted = view.search.trim().to_lowercase();
    let covered = |name: &str| Hostname::parse(name).is_ok_and(|name| caller.may_touch(&name));
    let cursor = Some(&*view.cursor).filter(|cursor| !cursor.is_empty());
    let mut after = app.cursors.read(caller, LIST, cursor).await?;
    let (mut found, mut examined, mut ended) = (Vec::new(), 0, false);
    while found.len() <= ROWS && examined < MAX_EXAMINED && !ended {
        let chunk = app.certificates.after(after.as_deref(), CHUNK).await?;
        ended = chunk.len() < CHUNK;
        examined += chunk.len();
        after = chunk.last().map(|(name, _)| name.clone()).or(after);
        found.extend(chunk.into_iter().filter(|(name, _)| contains(&wanted, [&**name]) && covered(name)));
    }
    let mut next = after.filter(|_| !ended);
    let examined = next.is_some() && found.len() <= ROWS;
    if found.len() > ROWS {
        found.truncate(ROWS);
        next = found.last().map(|(name, _)| name.clone());
    }
    let to = |cursor: String| View { cursor, ..view.clone() }.address();
    let next = app.cursors.write(caller, LIST, next).await?.map(to);
    let now = app.dashboard.now_ms() / 1000;
    let rows = found.into_iter().map(|(name, found)| row(name, &found.facts, now)).collect();
    // Without the fabric there is no table.
    let mut names = app.acme.after(None, MAX_ROWS + 1).await.unwrap_or_default();
    names.retain(|one| contains(&wanted, [&*one.server_name]) && covered(&one.server_name));
    let more = names.len() > MAX_ROWS;
    names.truncate(MAX_ROWS);
    let page = Page {
        search: view.search.clone(),
        rows,
        next,
        first: (!view.cursor.is_empty()).then(|| to(String::new())),
        automatic: names.into_iter().map(automatic).collect(),
        more,
        examined,
    };
    Ok(Content { html: render(&page)?, charts: Vec::new() })
}

fn row(name: String, facts: &signalbox_certificates::Facts, now: u64) -> Row {
    let ends = u64::try_from(facts.not_after).unwrap_or(0);
    let left = ends.saturating_sub(now) / DAY_SECONDS;
    let (class, state) = match left {
        _ if ends <= now => ("bad", "expired".to_owned()),
        0..CERTIFICATE_WARNING_DAYS => ("warn", format!("{left} d")),
        _ => ("good", format!("{left} d")),
    };
    Row {
        names: facts.names.join(", "),
        issuer: facts.issuer.clone(),
        expires: format::time(ends * 1000),
        left: state,
        class,
        name,
    }
}

fn automatic(one: AutomaticCertificate) -> AutomaticRow {
    let at = |seconds: Option<u64>| seconds.map_or_else(|| "–".to_owned(), |at| format::time(at * 1000));
    let (class, state) = match one.state {
        AutomaticState::Issued => ("good", "issued"),
        AutomaticState::Ordering => ("warn", "being obtained"),
        AutomaticState::Failing => ("bad", "failing"),
        AutomaticState::Off => ("idle", "off: no ACME server is configured"),
    };
    let (expires, renewed) = (at(one.not_after), at(one.renews_at));
    let error = one.last_error.unwrap_or_default();
    AutomaticRow { name: one.server_name, class, state, expires, renewed, error }
}
