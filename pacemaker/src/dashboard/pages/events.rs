//! Live events. The browser reads them from the API.

use askama::Template;

use super::{Content, render};
use crate::http::Problem;
use signalbox_access::Caller;

#[derive(Debug, Template)]
#[template(path = "dashboard/events.html")]
struct Page {
    /// The environments of a token that is limited to some.
    environments: Vec<String>,
    confined: bool,
}

pub(super) fn content(caller: &Caller) -> Result<Content, Problem> {
    let own = caller.environments();
    let page =
        Page { environments: own.map(<[String]>::to_vec).unwrap_or_default(), confined: own.is_some() };
    Ok(Content { html: render(&page)?, charts: Vec::new() })
}
