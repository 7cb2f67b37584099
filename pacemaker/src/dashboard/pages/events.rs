//! Live events. The browser reads them from the API.

use askama::Template;

use super::{Content, Visit, plain};
use crate::http::Problem;

#[derive(Debug, Template)]
#[template(path = "dashboard/events.html")]
struct Page<'a> {
    /// The tenants of a token that is limited to some.
    tenants: Option<&'a [String]>,
    /// The topic of a link from elsewhere.
    topic: &'a str,
}

pub(super) fn content(Visit { caller, view, .. }: Visit<'_>) -> Result<Content, Problem> {
    plain(&Page { tenants: caller.tenants(), topic: &view.name })
}
