//! Log in with a token, and log out.

use askama::Template;
use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use serde::Deserialize;

use super::{assets::STAMP, page::html};
use crate::dashboard::Site;
use crate::http::{
    Form, Problem, Query,
    audit::{ClientAddress, Notes},
    session::check_site,
};
use signalbox_access::{self as tokens, Scope};
use signalbox_api::audit::Kind as Audited;

#[derive(Debug, Template)]
#[template(path = "dashboard/login.html")]
struct LoginPage<'a> {
    stamp: &'a str,
    next: &'a str,
    /// Why the previous attempt failed.
    refusal: Option<&'a str>,
}

#[derive(Debug, Deserialize)]
pub(super) struct LoginQuery {
    #[serde(default)]
    next: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Credentials {
    token: String,
    #[serde(default)]
    next: String,
}

pub(super) async fn form(Query(query): Query<LoginQuery>) -> Result<Response, Problem> {
    html(StatusCode::OK, &LoginPage { stamp: &STAMP, next: local_path(&query.next), refusal: None })
}

/// Opens a session. The form carries no CSRF value, because a forger would need a token. The site is checked nevertheless,
/// so that another site cannot log a visitor in with the attacker's token.
pub(super) async fn log_in(
    State(app): State<Site>,
    address: ClientAddress,
    notes: Notes,
    headers: HeaderMap,
    Form(credentials): Form<Credentials>,
) -> Result<Response, Problem> {
    check_site(&Method::POST, &headers)?;
    let next = local_path(&credentials.next);
    let token = credentials.token.trim();
    let reject =
        |refusal| html(StatusCode::UNAUTHORIZED, &LoginPage { stamp: &STAMP, next, refusal: Some(refusal) });
    let caller = match app.authenticate(token, address).await {
        Ok(Some(caller)) => caller,
        Ok(None) => {
            notes.kind(Audited::Refused);
            return reject("Invalid token.");
        }
        Err(problem) if problem.status() == StatusCode::UNAUTHORIZED => return reject(problem.detail()),
        Err(problem) => {
            let form = LoginPage { stamp: &STAMP, next, refusal: Some(problem.detail()) };
            let mut response = html(problem.status(), &form)?;
            if let Some(seconds) = problem.into_response().headers_mut().remove(header::RETRY_AFTER) {
                response.headers_mut().insert(header::RETRY_AFTER, seconds);
            }
            return Ok(response);
        }
    };
    notes.caller(&caller);
    if !caller.has_any(&[Scope::Read]) {
        notes.kind(Audited::Refused);
        return reject("The dashboard requires a token with the scope read.");
    }
    notes.kind(Audited::Login);
    let cookie = app.sessions.open(&tokens::digest(token), &headers).await?;
    Ok(redirect(next, cookie))
}

/// Ends the session, unless another site sent the request. A copy of the cookie does not work any more, either.
pub(super) async fn log_out(
    State(app): State<Site>,
    notes: Notes,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    check_site(&Method::POST, &headers)?;
    if let Some(session) = app.sessions.of(&headers).await? {
        notes.kind(Audited::Logout);
        if let Some(caller) = app.remember(&session).await? {
            notes.caller(&caller);
        }
    }
    Ok(redirect("/dashboard/login", app.sessions.close(&headers).await?))
}

fn redirect(to: &str, cookie: HeaderValue) -> Response {
    let mut response = Redirect::to(to).into_response();
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    response
}

/// The page to show after the login: one of the dashboard's own, never an address of another site.
fn local_path(next: &str) -> &str {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
    let ours = next.starts_with("/dashboard/") && !next.starts_with("/dashboard/log");
    if ours && next.bytes().all(plain) { next } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_redirects_only_to_pages_of_the_dashboard() {
        for ours in ["/dashboard/queues", "/dashboard/host?name=a.example"] {
            assert_eq!(local_path(ours), ours);
        }
        for other in [
            "//evil.example/",
            "https://evil.example",
            "/\\evil",
            "/dashboard/\\x",
            "",
            "/dashboard/a\r\nb",
            "/dashboard/logout",
        ] {
            assert_eq!(local_path(other), "/", "{other:?}");
        }
    }
}
