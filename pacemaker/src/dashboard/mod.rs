//! The page at `/`: hosts, instances, routers and the last minute, for a person with a browser.
//!
//! One answer without scripts, pictures or anything fetched from elsewhere, behind a content security policy that
//! would not let it. The browser asks for the token as the user name of Basic authentication.
//!
//! Shows the first hosts and instances in the order of their names; who has more uses the API. Without the stats Redis
//! the page lacks the traffic and says so.

mod store;
mod view;

use askama::Template as _;
use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use rand::RngExt as _;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) use store::Traffic;

use crate::http::{
    App, Problem,
    auth::{Granted, ReadAll},
};
use view::Page;

/// The routes of this room.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(page))
}

/// The dashboard
#[utoipa::path(get, path = "/", tag = "dashboard", responses(
    (status = 200, body = String, content_type = "text/html"),
    (status = 401, body = Problem), (status = 403, body = Problem),
    (status = 503, description = "fabric_unavailable, routes_unavailable", body = Problem)))]
async fn page(caller: Granted<ReadAll>, State(app): State<App>) -> Result<Response, Problem> {
    // Only the style of this very answer is let through.
    let nonce = format!("{:032x}", rand::rng().random::<u128>());
    let page = Page::gather(&app, &caller.0, nonce.clone()).await?;
    let html = page.render().map_err(|error| {
        tracing::error!(%error, "the dashboard's template failed");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the pacemaker's log")
    })?;
    let policy = format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], html).into_response();
    let policy = HeaderValue::try_from(policy).map_err(|_| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the content security policy is no header",
        )
    })?;
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    Ok(response)
}
