//! In and out, by token.

use askama::Template;
use axum::{
    extract::{Form, Query, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use serde::Deserialize;

use super::{assets::STAMP, page::html};
use crate::dashboard::Site;
use crate::http::{Problem, session::check_site};
use signalbox_access::{self as tokens, Scope};

#[derive(Debug, Template)]
#[template(path = "dashboard/login.html")]
struct LoginPage<'a> {
    stamp: &'a str,
    next: &'a str,
    /// Why the last try did not do.
    refusal: Option<&'a str>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    #[serde(default)]
    next: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Credentials {
    token: String,
    #[serde(default)]
    next: String,
}

pub(super) async fn form(Query(asked): Query<Asked>) -> Result<Response, Problem> {
    html(StatusCode::OK, &LoginPage { stamp: &STAMP, next: place(&asked.next), refusal: None })
}

/// Opens a session. The form itself is not worth forging: it takes a token that only its owner has; but another site
/// must not log a visitor in as somebody else.
pub(super) async fn log_in(
    State(app): State<Site>,
    headers: HeaderMap,
    Form(credentials): Form<Credentials>,
) -> Result<Response, Problem> {
    check_site(&Method::POST, &headers)?;
    let next = place(&credentials.next);
    let token = credentials.token.trim();
    let refused =
        |refusal| html(StatusCode::UNAUTHORIZED, &LoginPage { stamp: &STAMP, next, refusal: Some(refusal) });
    let caller = match app.authenticate(token).await {
        Ok(Some(caller)) => caller,
        Ok(None) => return refused("This token is not known."),
        Err(problem) => return refused(problem.detail()),
    };
    if !caller.has_any(&[Scope::Read]) {
        return refused("This token has not the scope read, without which the dashboard shows nothing.");
    }
    let cookie = app.sessions.open(&tokens::digest(token), is_https(&headers));
    redirect(next, &cookie)
}

/// Ends the session. Whoever forges this gains nothing but the annoyance, and may not even that.
pub(super) async fn log_out(State(app): State<Site>, headers: HeaderMap) -> Result<Response, Problem> {
    check_site(&Method::POST, &headers)?;
    redirect("/dashboard/login", &app.sessions.close(is_https(&headers)))
}

fn redirect(to: &str, cookie: &str) -> Result<Response, Problem> {
    let mut response = Redirect::to(to).into_response();
    let cookie = HeaderValue::try_from(cookie).map_err(|_| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the cookie is no header")
    })?;
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(response)
}

/// Whether the browser speaks TLS to whatever is in front.
fn is_https(headers: &HeaderMap) -> bool {
    headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https")
}

/// Where to go after logging in: a page of ours, and nothing that a browser would take for another site.
fn place(next: &str) -> &str {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
    let ours = next.starts_with("/dashboard/") && !next.starts_with("/dashboard/log");
    if ours && next.bytes().all(plain) { next } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_sent_to_a_page_of_ours_only() {
        for ours in ["/dashboard/queues", "/dashboard/host?name=a.example"] {
            assert_eq!(place(ours), ours);
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
            assert_eq!(place(other), "/", "{other:?}");
        }
    }
}
