//! Certificates: those of the route table, and the state of automatic HTTPS.

use askama::Template;

use super::{Content, Visit, list::ROWS, plain};
use crate::{
    dashboard::{MAX_ROWS, format},
    http::{Problem, list::contains},
};
use signalbox_api::{
    Time,
    acme::{AutomaticCertificate, AutomaticState},
};
use signalbox_certificates::{Facts, PageLimits};
use signalbox_diagnosis::thresholds::CERTIFICATE_WARNING_DAYS;
use signalbox_route_table::Hostname;
use signalbox_store::PAGE_BYTES;

/// Names that are checked for one page.
const MAX_EXAMINED: usize = 5_000;
/// The list to which cursors belong.
const LIST: &str = "certificates";
const DAY_SECONDS: u64 = 86_400;

#[derive(Debug, Template)]
#[template(path = "dashboard/certificates.html")]
struct Page<'a> {
    search: &'a str,
    /// Server names with their certificates.
    rows: Vec<(String, Facts)>,
    next: Option<String>,
    first: Option<String>,
    /// Names with automatic HTTPS.
    automatic: Vec<AutomaticCertificate>,
    more: bool,
    /// Set if the search ended before it examined every certificate.
    examined: bool,
    now_ms: u64,
}

pub(super) async fn content(Visit { app, caller, view, now_ms, .. }: Visit<'_>) -> Result<Content, Problem> {
    let wanted = view.search.trim().to_lowercase();
    let covered = |name: &str| Hostname::parse(name).is_ok_and(|name| caller.may_touch(&name));
    let cursor = Some(&*view.cursor).filter(|cursor| !cursor.is_empty());
    let after = app.cursors.read(caller, LIST, cursor).await?;
    let limits = PageLimits { items: ROWS, bytes: PAGE_BYTES, examined: MAX_EXAMINED };
    let is_shown = |name: &str| contains(&wanted, [name]) && covered(name);
    let page = app.certificates.page(after, limits, is_shown).await?;
    let examined = page.next.is_some() && page.found.len() < ROWS;
    let next = app.cursors.write(caller, LIST, page.next).await?.map(|cursor| view.at_cursor(&cursor));
    // Without the fabric there is no table.
    let mut names = app.acme.after(None, MAX_ROWS + 1).await.unwrap_or_default();
    names.retain(|one| contains(&wanted, [&*one.server_name]) && covered(&one.server_name));
    let more = names.len() > MAX_ROWS;
    names.truncate(MAX_ROWS);
    plain(&Page {
        search: &view.search,
        rows: page.found.into_iter().map(|(name, found)| (name, found.facts)).collect(),
        next,
        first: view.first_page(),
        automatic: names,
        more,
        examined,
        now_ms,
    })
}

/// The CSS class of a certificate's state, the time that it has left, and its end.
fn life(facts: &Facts, now_ms: u64) -> (&'static str, String, String) {
    let (now, ends) = (now_ms / 1000, u64::try_from(facts.not_after).unwrap_or(0));
    let left = ends.saturating_sub(now) / DAY_SECONDS;
    let (class, left) = match left {
        _ if ends <= now => ("bad", "expired".to_owned()),
        0..CERTIFICATE_WARNING_DAYS => ("warn", format!("{left} d")),
        _ => ("good", format!("{left} d")),
    };
    (class, left, format::time(ends * 1000))
}

/// The CSS class of a state of automatic HTTPS, and the state in words.
fn shown(state: AutomaticState) -> (&'static str, &'static str) {
    match state {
        AutomaticState::Issued => ("good", "issued"),
        AutomaticState::Ordering => ("warn", "being obtained"),
        AutomaticState::Failing => ("bad", "failing"),
        AutomaticState::Off => ("idle", "off: no ACME server is configured"),
    }
}

fn time(at: Option<Time>) -> String {
    at.map_or_else(|| "–".to_owned(), |at| format::time(at.ms()))
}
