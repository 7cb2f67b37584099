//! Authentication and authorization of requests.
//!
//! A token comes as `Authorization: Bearer T`, or as the user name of Basic, which is what clients of the event bus send.
//! A browser that has logged in brings a session in its place (see [`super::session`]). A handler names the permission it needs as a type, `Granted<ManageRoutes>`, so that
//! a route without one is visible where it is written.

use std::marker::PhantomData;

use axum::{
    extract::FromRequestParts,
    http::{StatusCode, request::Parts},
};
use signalbox_daemon::presented;

use super::{App, Problem, session::check_site};
use signalbox_access::{Caller, Scope};

/// The permission that a route requires of its caller.
pub(crate) trait Permission: Send + Sync {
    /// Any of these scopes is enough; none means that only root may.
    const ANY_OF: &'static [Scope];
}

/// Refuses what a token is not for.
pub(crate) trait Confined {
    /// # Errors
    /// `environment_missing` when the caller's token is not for this environment.
    fn check_environment(&self, environment: &str) -> Result<(), Problem>;
}

impl Confined for Caller {
    fn check_environment(&self, environment: &str) -> Result<(), Problem> {
        if self.may_use(environment) {
            return Ok(());
        }
        Err(Problem::forbidden(
            "environment_missing",
            format!("the token is not for the environment {environment:?}"),
        ))
    }
}

/// Change the route table.
#[derive(Debug)]
pub(crate) enum ManageRoutes {}
impl Permission for ManageRoutes {
    const ANY_OF: &'static [Scope] = &[Scope::Routes];
}

/// Read the route table.
#[derive(Debug)]
pub(crate) enum ReadRoutes {}
impl Permission for ReadRoutes {
    const ANY_OF: &'static [Scope] = &[Scope::Read, Scope::Routes];
}

/// Read everything: the dashboard.
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

/// A caller with the permission `P`.
#[derive(Debug)]
pub(crate) struct Granted<P>(pub(crate) Caller, PhantomData<P>);

impl<P: Permission> FromRequestParts<App> for Granted<P> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        check_site(&parts.method, &parts.headers)?;
        let caller = who(parts, app).await?;
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

/// The caller, by token or by session.
async fn who(parts: &Parts, app: &App) -> Result<Caller, Problem> {
    let unauthorized = |code, detail| Problem::new(StatusCode::UNAUTHORIZED, code, detail);
    let unknown = || unauthorized("token_unknown", "unknown or revoked token");
    if let Some(token) = presented(&parts.headers) {
        return app.authenticate(&token).await?.ok_or_else(unknown);
    }
    if let Some(session) = app.sessions.acting(&parts.method, &parts.headers)? {
        return app.remember(&session.digest).await?.ok_or_else(unknown);
    }
    let detail = "send `Authorization: Bearer <token>`, or the token as Basic user name";
    Err(unauthorized("token_required", detail))
}
