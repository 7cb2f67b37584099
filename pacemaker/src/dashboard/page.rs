//! Shared parts of all pages: authentication, the frame, and the headers.

use std::time::Duration;

use askama::Template;
use axum::{
    Extension,
    extract::{FromRequestParts, State},
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Redirect, Response},
};
use tokio::time::{Instant, timeout_at};

use super::{
    assets::STAMP,
    pages::{self, Content, Kind, View},
};
use crate::dashboard::Site;
use crate::http::{
    Problem, Query,
    auth::{Credential, Reader},
    session::Session,
    slots::InProgress,
};
use signalbox_access::Caller;

/// Only the dashboard's own files, no inline code, and no embedding. Images may be `data:`, because icons in styles are.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// How long it may take to find out who is asking.
pub(super) const PATIENCE: Duration = Duration::from_millis(900);

/// The caller of a page.
#[derive(Debug, Clone)]
pub(super) struct Viewer {
    pub(super) caller: Caller,
    /// The credential of the caller.
    pub(super) credential: Credential,
    /// `None` for a client that sends its token with each request.
    pub(super) session: Option<Session>,
}

impl FromRequestParts<Site> for Viewer {
    type Rejection = Response;

    /// Redirects a browser without a session to the login; any other client gets 401.
    async fn from_request_parts(parts: &mut Parts, app: &Site) -> Result<Self, Response> {
        let accepted = parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
        let browser = accepted.contains("text/html") && !parts.headers.contains_key(header::AUTHORIZATION);
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        let begun = Instant::now();
        let read = async {
            let Reader { caller, credential } = Reader::from_request_parts(parts, app).await?;
            let session = app.sessions.of(&parts.headers).await?;
            Ok(Self { caller, credential, session })
        };
        let read = timeout_at(begun + PATIENCE, read).await.unwrap_or_else(|_| {
            Err(Problem::unavailable(
                "fabric_unavailable",
                "The fabric Redis, which has the sessions, does not respond.",
            ))
        });
        match read {
            Ok(viewer) => Ok(viewer),
            Err(problem) if browser && problem.status() == StatusCode::UNAUTHORIZED => {
                let next: String = url::form_urlencoded::byte_serialize(target.as_bytes()).collect();
                Err(Redirect::to(&format!("/dashboard/login?next={next}")).into_response())
            }
            Err(problem) if browser => Err(rejection(&problem)),
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
    /// `None` for a page that does not exist.
    kind: Option<Kind>,
    groups: [(&'static str, &'static [Kind]); Kind::GROUPS.len()],
    /// How many problems there are, and whether one of them is critical.
    problems: usize,
    critical: bool,
    /// The name of this installation.
    environment: &'a str,
    /// The name of the caller.
    name: &'a str,
    csrf: &'a str,
    can_log_out: bool,
    /// The address of the page's stream; empty for a page that does not exist, which nothing updates.
    stream: String,
    /// The rendered page.
    body: &'a str,
}

impl Frame<'_> {
    fn is(&self, kind: Kind) -> bool {
        self.kind == Some(kind)
    }

    /// Whether the navigation shows `kind` as the current page.
    fn is_current(&self, kind: &Kind) -> bool {
        self.kind.is_some_and(|shown| shown.title() == kind.title())
    }
}

/// A parameter in the path of a page. An invalid one is a problem, as it is in the API.
#[derive(Debug, FromRequestParts)]
#[from_request(via(axum::extract::Path), rejection(Problem))]
pub(super) struct Path<T>(pub(super) T);

/// The dashboard
///
/// A page for browsers. Redirects a browser without a session to `/dashboard/login`.
#[utoipa::path(get, path = "/", tag = "dashboard", responses(
    (status = 200, body = String, content_type = "text/html"),
    (status = 303, description = "A browser without a session: redirected to the login"),
    (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem)))]
pub(super) async fn front(
    viewer: Viewer,
    State(app): State<Site>,
    Extension(place): Extension<InProgress>,
    Query(view): Query<View>,
) -> Result<Response, Problem> {
    let content = content(&app, &viewer, &view, &place).await;
    framed(&app, &viewer, Some(&view), content)
}

pub(super) async fn page(
    viewer: Viewer,
    State(app): State<Site>,
    Path(kind): Path<String>,
    Extension(place): Extension<InProgress>,
    Query(mut view): Query<View>,
) -> Result<Response, Problem> {
    let Some(named) = Kind::named(&kind) else {
        let problem =
            Problem::not_found("unknown_page", format!("Unknown page `{kind}`. The overview is at `/`."));
        // A browser gets a page with the navigation.
        return match viewer.session {
            Some(_) => framed(&app, &viewer, None, Err(problem)),
            None => Err(problem),
        };
    };
    view.kind = named;
    let content = content(&app, &viewer, &view, &place).await;
    framed(&app, &viewer, Some(&view), content)
}

/// The content of a page. It reads as much as a list of the API, and takes the place of one until it is sent.
async fn content(app: &Site, viewer: &Viewer, view: &View, place: &InProgress) -> Result<Content, Problem> {
    place.take_list(&app.limits.lists, &viewer.caller).await?;
    pages::content(app, &viewer.caller, view, 0, Instant::now()).await
}

/// A page, or what is shown instead of it, in the frame of all pages. `view` is absent for an unknown page.
fn framed(
    app: &Site,
    viewer: &Viewer,
    view: Option<&View>,
    content: Result<Content, Problem>,
) -> Result<Response, Problem> {
    let (status, body) = match content {
        Ok(Content { html, .. }) => (StatusCode::OK, html),
        // The stream replaces the notice as soon as the page can be rendered.
        Err(problem) => (problem.status(), pages::notice(&problem)?),
    };
    let (problems, critical) = app.dashboard.checkups.count(&viewer.caller);
    let frame = Frame {
        stamp: &STAMP,
        version: env!("CARGO_PKG_VERSION"),
        title: view.map_or_else(|| "Not found".to_owned(), View::title),
        kind: view.map(|view| view.kind),
        groups: Kind::GROUPS,
        problems,
        critical,
        environment: &app.dashboard.environment,
        name: viewer.caller.person().unwrap_or(&viewer.caller.name),
        can_log_out: viewer.session.as_ref().is_some_and(Session::can_log_out),
        csrf: viewer.session.as_ref().map_or("", |session| &session.csrf),
        stream: view.map(View::stream).unwrap_or_default(),
        body: &body,
    };
    html(status, &frame)
}

/// A problem as HTML, without the frame, which needs an authenticated caller.
fn rejection(problem: &Problem) -> Response {
    match pages::notice(problem) {
        Ok(text) => with_headers((problem.status(), text).into_response()),
        Err(problem) => problem.into_response(),
    }
}

/// A rendered page with the headers of all pages.
pub(super) fn html(status: StatusCode, page: &impl Template) -> Result<Response, Problem> {
    Ok(with_headers((status, pages::render(page)?).into_response()))
}

pub(super) fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    response
}
