//! Who is asking, and may they.
//!
//! A token comes as `Authorization: Bearer T`, or as the user name of Basic, which is what a browser can send and what
//! clients of the event bus send. A handler names the permission it needs as a type, `Granted<ManageRoutes>`, so that
//! a route without one is visible where it is written.

use std::marker::PhantomData;

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::{App, Problem};
use crate::tokens::{Caller, Scope};

/// What a route asks of its caller.
pub(crate) trait Permission: Send + Sync {
    /// Any of these scopes is enough; none means that only root may.
    const ANY_OF: &'static [Scope];
}

/// Change the route table.
#[derive(Debug)]
pub(crate) enum ManageRoutes {}
impl Permission for ManageRoutes {
    const ANY_OF: &'static [Scope] = &[Scope::Routes];
}

/// Look at the route table.
#[derive(Debug)]
pub(crate) enum ReadRoutes {}
impl Permission for ReadRoutes {
    const ANY_OF: &'static [Scope] = &[Scope::Read, Scope::Routes];
}

/// Look at everything: the dashboard.
#[derive(Debug)]
pub(crate) enum ReadAll {}
impl Permission for ReadAll {
    const ANY_OF: &'static [Scope] = &[Scope::Read];
}

/// Publish events.
#[derive(Debug)]
pub(crate) enum PublishEvents {}
impl Permission for PublishEvents {
    const ANY_OF: &'static [Scope] = &[Scope::Publish];
}

/// Subscribe to events.
#[derive(Debug)]
pub(crate) enum SubscribeToEvents {}
impl Permission for SubscribeToEvents {
    const ANY_OF: &'static [Scope] = &[Scope::Subscribe];
}

/// Whatever every client may do.
#[derive(Debug)]
pub(crate) enum BeKnown {}
impl Permission for BeKnown {
    const ANY_OF: &'static [Scope] = Scope::ALL;
}

/// Hand out tokens.
#[derive(Debug)]
pub(crate) enum RootOnly {}
impl Permission for RootOnly {
    const ANY_OF: &'static [Scope] = &[];
}

/// A caller who has the permission `P`.
#[derive(Debug)]
pub(crate) struct Granted<P>(pub(crate) Caller, PhantomData<P>);

impl<P: Permission> FromRequestParts<App> for Granted<P> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let unauthorized = |code, detail| Problem::new(StatusCode::UNAUTHORIZED, code, detail);
        let token = presented(&parts.headers).ok_or_else(|| {
            unauthorized(
                "token_required",
                "send `Authorization: Bearer <token>`, or the token as Basic user name",
            )
        })?;
        let caller = app
            .authenticate(&token)
            .await?
            .ok_or_else(|| unauthorized("token_unknown", "this token is not known (any more)"))?;
        if !caller.has_any(P::ANY_OF) {
            let needed: Vec<&str> = P::ANY_OF.iter().map(|scope| scope.as_str()).collect();
            let detail = match needed.as_slice() {
                [] => "only the root token may do this".to_owned(),
                scopes => format!("the token needs the scope {}", scopes.join(" or ")),
            };
            return Err(Problem::forbidden("scope_missing", detail));
        }
        Ok(Self(caller, PhantomData))
    }
}

/// The token of a request, whichever way it came.
fn presented(headers: &HeaderMap) -> Option<String> {
    let (scheme, credentials) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    let credentials = credentials.trim();
    let token = if scheme.eq_ignore_ascii_case("bearer") {
        credentials.to_owned()
    } else if scheme.eq_ignore_ascii_case("basic") {
        let decoded = String::from_utf8(STANDARD.decode(credentials).ok()?).ok()?;
        // Names and tokens hold colons in the event bus, passwords do not matter: the last colon divides.
        decoded.rsplit_once(':').map_or(decoded.clone(), |(user, _)| user.to_owned())
    } else {
        return None;
    };
    (!token.is_empty() && token.len() <= 1024).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(value: &str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        presented(&headers)
    }

    #[test]
    fn a_token_comes_as_bearer_or_as_basic_user() {
        assert_eq!(token("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(token("bearer  abc ").as_deref(), Some("abc"));
        assert_eq!(token(&format!("Basic {}", STANDARD.encode("a:b:x"))).as_deref(), Some("a:b"));
        assert_eq!(token(&format!("Basic {}", STANDARD.encode("abc:"))).as_deref(), Some("abc"));
        assert_eq!(token(&format!("Basic {}", STANDARD.encode("abc"))).as_deref(), Some("abc"));
        for bad in ["Bearer ", "Bearer", "Digest abc", "Basic !!!", "Basic Og=="] {
            assert_eq!(token(bad), None, "{bad}");
        }
    }
}
