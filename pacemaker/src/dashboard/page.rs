//! What all pages have in common: who looks, the frame, and the headers.

use askama::Template;
use axum::{
    extract::{FromRequestParts, Path, Query, State},
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Redirect, Response},
};

use super::{
    assets::STAMP,
    pages::{self, Asked, Content, Kind, View},
};
use crate::dashboard::Site;
use crate::http::{
    Problem,
    auth::{Granted, ReadAll},
    session::Session,
};
use signalbox_access::Caller;

/// Only our own files, nothing inside a page, and no frame around it. Images may be data: icons in styles are.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Who looks at a page.
#[derive(Debug, Clone)]
pub(super) struct Viewer {
    pub(super) caller: Caller,
    /// None for a program that brings its token with each request.
    pub(super) session: Option<Session>,
}

impl FromRequestParts<Site> for Viewer {
    type Rejection = Response;

    /// A browser without a session is shown the way in; a program is told 401.
    async fn from_request_parts(parts: &mut Parts, app: &Site) -> Result<Self, Response> {
        let accepted = parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
        let browser = accepted.contains("text/html") && !parts.headers.contains_key(header::AUTHORIZATION);
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        match Granted::<ReadAll>::from_request_parts(parts, app).await {
            Ok(Granted { 0: caller, .. }) => Ok(Self { caller, session: app.sessions.of(&parts.headers) }),
            Err(problem) if browser && problem.status() == StatusCode::UNAUTHORIZED => {
                let next: String = url::form_urlencoded::byte_serialize(target.as_bytes()).collect();
                Err(Redirect::to(&format!("/dashboard/login?next={next}")).into_response())
            }
            Err(problem) if browser => Err(refused(&problem)),
            Err(problem) => Err(problem.into_response()),
        }
    }
}

#[derive(Debug, Template)]
#[template(path = "dashboard/frame.html")]
struct Frame<'a> {
    stamp: &'a str,
    version: &'a str,
    title: String,
    kind: Kind,
    kinds: [Kind; Kind::MAIN.len()],
    /// Who is logged in.
    name: &'a str,
    csrf: &'a str,
    /// Where the page's changes come from.
    stream: String,
    /// A finished page.
    body: &'a str,
}

/// The dashboard
///
/// A page for browsers, which are sent to `/dashboard/login` when they have no session.
#[utoipa::path(get, path = "/", tag = "dashboard", responses(
    (status = 200, body = String, content_type = "text/html"),
    (status = 303, description = "To the login, for browsers"),
    (status = 401, body = Problem), (status = 403, body = Problem)))]
pub(super) async fn front(viewer: Viewer, State(app): State<Site>) -> Result<Response, Problem> {
    show(&app, &viewer, View::of(Kind::Overview, "")).await
}

pub(super) async fn page(
    viewer: Viewer,
    State(app): State<Site>,
    Path(kind): Path<String>,
    Query(asked): Query<Asked>,
) -> Result<Response, Problem> {
    let kind = Kind::named(&kind).ok_or_else(|| {
        Problem::not_found("unknown_page", "the dashboard has no such page; `/` is the first")
    })?;
    show(&app, &viewer, asked.of(kind)).await
}

async fn show(app: &Site, viewer: &Viewer, view: View) -> Result<Response, Problem> {
    let (status, body) = match pages::content(app, &viewer.caller, &view, 0).await {
        Ok(Content { html, .. }) => (StatusCode::OK, html),
        // The page still has its frame, and a stream that shows it when that is possible again.
        Err(problem) => (problem.status(), pages::notice(problem.detail())?),
    };
    let frame = Frame {
        stamp: &STAMP,
        version: env!("CARGO_PKG_VERSION"),
        title: view.title(),
        kind: view.kind,
        kinds: Kind::MAIN,
        name: &viewer.caller.name,
        csrf: viewer.session.as_ref().map_or("", |session| &session.csrf),
        stream: view.stream(),
        body: &body,
    };
    html(status, &frame)
}

/// A refusal for a browser, without a frame: there is nothing to be shown around it.
fn refused(problem: &Problem) -> Response {
    match pages::notice(problem.detail()) {
        Ok(text) => with_headers((problem.status(), text).into_response()),
        Err(problem) => problem.into_response(),
    }
}

/// A page as an answer.
pub(super) fn html(status: StatusCode, page: &impl Template) -> Result<Response, Problem> {
    Ok(with_headers((status, pages::render(page)?).into_response()))
}

fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    response
}
