//! Live events. The browser reads them from the API.

use askama::Template;

use super::{Content, View, render};
use crate::http::Problem;
use signalbox_access::Caller;

#[derive(Debug, Template)]
#[template(path = "dashboard/events.html")]
struct Page {
    /// The environments of a token that is limited to some.
    environments: Vec<String>,
    confined: bool,
    /// The topic of a link from elsewhere.
    topic: String,
}

pub(super) fn content(caller: &Caller, view: &View) -> Result<Content, Problem> {
    let own = caller.environments();
    let page = Page {
        environments: own.map(<[String]>::to_vec).unwrap_or_default(),
        confined: own.is_some(),
        topic: view.name.clone(),
    };
    Ok(Content { html: render(&page)?, charts: Vec::new() })
}
