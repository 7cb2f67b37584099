//! Authentication and authorization of requests.
//!
//! A token is sent as `Authorization: Bearer T`, or as the user name of Basic authentication, as clients of the event bus do.
//! A browser that has logged in sends a session cookie instead (see [`super::session`]).
//!
//! A handler states two things in its signature: which permission the caller needs, and whose data it reads or changes.
//!
//! | extractor | caller | the handler |
//! |---|---|---|
//! | [`Whole<P>`] | has the permission, and its token is not confined | may use the data of every tenant |
//! | [`Confined<P, D>`](Confined) | has the permission, and its token is confined by `D` or not at all | must filter by the caller's list |
//! | [`ByReceipt<P>`](ByReceipt) | has the permission, and its token is confined to tenants or not at all | names messages by receipts only |
//! | [`Anyone`] | has a valid token | answers nothing about any tenant |
//!
//! There is no extractor that checks the scope only. A handler that does not consider confinement does not compile, or uses
//! [`Whole`] and is closed to confined tokens.

use std::{marker::PhantomData, ops::Deref};

use axum::{
    extract::{FromRequestParts, MatchedPath},
    http::{HeaderMap, Method, StatusCode, request::Parts},
};
use signalbox_daemon::{presented, serve::Peer};

use super::{
    App, Problem,
    audit::{ClientAddress, Notes, is_data},
    session::{Session, check_site},
    slots::InProgress,
};
use signalbox_access::{Caller, Dimension, Scope, digest};

/// The permission that a route requires of its caller.
pub(crate) trait Permission: Send + Sync {
    /// Any of these scopes is enough; none means that only root may.
    const ANY_OF: &'static [Scope];
}

/// Rejects requests for a tenant that the caller's token does not cover.
pub(crate) trait CheckTenant {
    /// # Errors
    /// `tenant_missing` if the caller's token is confined to other tenants.
    fn check_tenant(&self, tenant: &str) -> Result<(), Problem>;
}

impl CheckTenant for Caller {
    fn check_tenant(&self, tenant: &str) -> Result<(), Problem> {
        if self.may_use(tenant) {
            return Ok(());
        }
        Err(Problem::forbidden(
            "tenant_missing",
            format!("the token is confined to tenants that do not include {tenant:?}"),
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

/// List topics and subscriptions.
#[derive(Debug)]
pub(crate) enum ReadBus {}
impl Permission for ReadBus {
    const ANY_OF: &'static [Scope] = &[Scope::Read, Scope::Publish, Scope::Subscribe];
}

/// Hand out tokens.
#[derive(Debug)]
pub(crate) enum RootOnly {}
impl Permission for RootOnly {
    const ANY_OF: &'static [Scope] = &[];
}

/// Data that is divided between tenants by the hosts of the route table.
#[derive(Debug)]
pub(crate) enum Hosts {}

/// Data that is divided by the tenants of events and messages.
#[derive(Debug)]
pub(crate) enum Tenants {}

/// How the data of a handler is divided between tenants.
pub(crate) trait Divided: Send + Sync {
    const BY: Dimension;
}

impl Divided for Hosts {
    const BY: Dimension = Dimension::Hosts;
}

impl Divided for Tenants {
    const BY: Dimension = Dimension::Tenants;
}

/// Data that is divided between tenants by state machines.
#[derive(Debug)]
pub(crate) enum Machines {}

impl Divided for Machines {
    const BY: Dimension = Dimension::Machines;
}

/// A caller with the permission `P` whose token is not confined: for data that cannot be divided between tenants.
#[derive(Debug)]
pub(crate) struct Whole<P>(Caller, PhantomData<P>);

impl<P> Deref for Whole<P> {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.0
    }
}

impl<P: Permission> FromRequestParts<App> for Whole<P> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let caller = permitted::<P>(parts, app).await?;
        check_whole(&caller)?;
        Ok(Self(caller, PhantomData))
    }
}

/// A caller with the permission `P` whose token is confined by `D`, or not confined. The handler accesses only what the
/// caller's list covers: by `may_touch` and `may_touch_all`, by `check_tenant` and `tenants`, or through functions
/// of a subsystem that take the caller and do the same.
#[derive(Debug)]
pub(crate) struct Confined<P, D>(Caller, PhantomData<(P, D)>);

impl<P, D> Confined<P, D> {
    /// For an extractor that filters on behalf of its handlers.
    pub(crate) fn into_caller(self) -> Caller {
        self.0
    }
}

impl<P, D> Deref for Confined<P, D> {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.0
    }
}

impl<P: Permission, D: Divided> FromRequestParts<App> for Confined<P, D> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let caller = permitted::<P>(parts, app).await?;
        check_divided(&caller, D::BY)?;
        Ok(Self(caller, PhantomData))
    }
}

/// A caller with the permission `P` that names messages by their receipts. A receipt cannot be guessed, so only a client that
/// was allowed to pull the message has it.
#[derive(Debug)]
pub(crate) struct ByReceipt<P>(PhantomData<P>);

impl<P: Permission> FromRequestParts<App> for ByReceipt<P> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let caller = permitted::<P>(parts, app).await?;
        check_divided(&caller, Dimension::Tenants)?;
        Ok(Self(PhantomData))
    }
}

/// A valid token of any scope, for answers that contain nothing of any tenant. The caller is not available.
#[derive(Debug)]
pub(crate) struct Anyone(());

impl FromRequestParts<App> for Anyone {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        check_site(&parts.method, &parts.headers)?;
        who(parts, app).await.map(|_| Self(()))
    }
}

/// A client that may read metrics, which name subscribers, queues, backends and machines: the admin listener, which checks the
/// addresses of its own clients, a client in `metrics_networks`, or a caller who may read everything.
#[derive(Debug)]
pub(crate) struct MetricsReader(());

impl FromRequestParts<App> for MetricsReader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let peer = parts.extensions.get::<Peer>().map(|peer| peer.0.ip().to_canonical());
        let is_listed = |peer| app.metrics_networks.iter().any(|network| network.contains(peer));
        if !app.door.is_front(&parts.headers) && !peer.is_some_and(is_listed) {
            check_whole(&permitted::<ReadAll>(parts, app).await?)?;
        }
        Ok(Self(()))
    }
}

/// The credential of a request, to check it again while a stream is open. It does not contain the caller's
/// permissions: a handler also takes [`Whole`] or [`Confined`].
#[derive(Debug, Clone)]
pub enum Credential {
    /// The digest of a token.
    Token(String),
    /// The headers of the browser about its session.
    Session(HeaderMap),
}

impl Credential {
    /// Whether the token is still valid and `allowed` accepts its holder. While tokens cannot be read the answer is yes, so that
    /// an unavailable Redis does not end streams.
    pub async fn is_still(&self, app: &App, allowed: impl FnOnce(Caller) -> bool) -> bool {
        let session = match self {
            Self::Token(digest) => Session::of_token(digest.clone()),
            Self::Session(headers) => match app.sessions.of(headers).await {
                Ok(Some(session)) => session,
                Ok(None) => return false,
                Err(problem) => return problem.status().is_server_error(),
            },
        };
        match app.remember(&session).await {
            Ok(Some(caller)) => allowed(caller),
            Ok(None) => false,
            Err(_) => true,
        }
    }
}

impl FromRequestParts<App> for Credential {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        if let Some(token) = presented(&parts.headers) {
            return Ok(Self::Token(digest(&token)));
        }
        if app.sessions.of(&parts.headers).await?.is_some() {
            return Ok(Self::Session(parts.headers.clone()));
        }
        let detail = "the request carries no token and no session";
        Err(Problem::new(StatusCode::UNAUTHORIZED, "token_required", detail))
    }
}

/// A caller with the scope `read`, for the dashboard. Confinement is checked by each page (`dashboard/pages/mod.rs`).
#[derive(Debug)]
pub struct Reader {
    /// For whom the request acts.
    pub caller: Caller,
    /// What proves it.
    pub credential: Credential,
}

impl FromRequestParts<App> for Reader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let caller = permitted::<ReadAll>(parts, app).await?;
        let credential = Credential::from_request_parts(parts, app).await?;
        Ok(Self { caller, credential })
    }
}

/// Rejects a caller whose token is confined: the data cannot be divided between tenants.
pub fn check_whole(caller: &Caller) -> Result<(), Problem> {
    match caller.confinement().as_slice() {
        [] => Ok(()),
        confinement => Err(confined_token(confinement)),
    }
}

/// Rejects a caller whose token is confined, but not by `dimension`.
pub fn check_divided(caller: &Caller, dimension: Dimension) -> Result<(), Problem> {
    if caller.may_enter(dimension) { Ok(()) } else { Err(confined_token(&caller.confinement())) }
}

fn confined_token(confinement: &[Dimension]) -> Problem {
    let names: Vec<&str> = confinement.iter().map(|dimension| dimension.as_str()).collect();
    let detail = format!(
        "the token is confined to {}, and this cannot be limited to them; use a token that is not confined",
        names.join(" and ")
    );
    Problem::forbidden("confined_token", detail).with("confined_to", names)
}

/// Operations that may read or return megabytes, by method and route: a token can have few of them in progress at a time.
pub(crate) const LISTS: [(&str, &str); 29] = [
    ("GET", "/acme/names"),
    ("GET", "/audit"),
    ("GET", "/backends/{name}/dead"),
    ("GET", "/certificates"),
    ("GET", "/check"),
    ("GET", "/hosts"),
    ("GET", "/instances"),
    ("GET", "/objects"),
    ("GET", "/queues"),
    ("GET", "/queues/{name}/dead"),
    ("GET", "/queues/{name}/tenants"),
    ("GET", "/queues/{name}/messages"),
    ("POST", "/queues/{name}/peek"),
    ("GET", "/routes/explain"),
    ("DELETE", "/state-machines/{machine}"),
    ("GET", "/state-machines/{machine}"),
    ("GET", "/state-machines/{machine}/flow"),
    ("GET", "/state-machines/{machine}/labels"),
    ("GET", "/state-machines/{machine}/labels/{label}/activity"),
    ("GET", "/state-machines/{machine}/tasks"),
    ("POST", "/state-machines/{machine}/tasks"),
    ("GET", "/state-machines/{machine}/versions"),
    ("GET", "/state-machines/{machine}/versions/{version}"),
    ("GET", "/subscriber/dead"),
    ("GET", "/subscriber/deliveries"),
    ("GET", "/subscribers"),
    ("GET", "/subscriptions"),
    ("GET", "/tokens"),
    ("GET", "/topics"),
];

/// Whether the request is one of them.
fn is_list(parts: &Parts) -> bool {
    // A HEAD reads as much as the GET.
    let method = if parts.method == Method::HEAD { "GET" } else { parts.method.as_str() };
    route(parts).is_some_and(|route| LISTS.contains(&(method, route)))
}

/// Data traffic whose responses may be large. A pull waits until it may have the bytes of its messages.
pub(crate) const READS: [(Method, &str); 4] = [
    (Method::POST, "/queues/{name}/peek"),
    (Method::POST, "/state-machines/{machine}/labels/{label}/simulate"),
    (Method::POST, "/state-machines/{machine}/plan"),
    (Method::POST, "/subscriber/test"),
];

/// Whether the request is one that clients send while they work: it does not wait for responses that another process with the same
/// token does not read.
pub(crate) fn is_work(method: &Method, route: &str) -> bool {
    let registers = *method == Method::PUT && matches!(route, "/instances" | "/instances/{id}");
    let reads = || READS.iter().any(|(one, path)| one == method && *path == route);
    registers || (is_data(method, route) && !reads())
}

fn route(parts: &Parts) -> Option<&str> {
    parts.extensions.get::<MatchedPath>().map(MatchedPath::as_str)
}

/// The caller of a request, if its token has the permission.
async fn permitted<P: Permission>(parts: &Parts, app: &App) -> Result<Caller, Problem> {
    check_site(&parts.method, &parts.headers)?;
    let caller = who(parts, app).await?;
    if caller.has_any(P::ANY_OF) {
        if let Some(place) = parts.extensions.get::<InProgress>() {
            place.take(&app.limits.in_progress, &app.limits.buffers, &caller)?;
            if !route(parts).is_some_and(|route| is_work(&parts.method, route)) {
                place.check_unread()?;
            }
            if is_list(parts) {
                place.take_list(&app.limits.lists, &caller).await?;
            }
        }
        return Ok(caller);
    }
    let needed: Vec<&str> = P::ANY_OF.iter().map(|scope| scope.as_str()).collect();
    let detail = match needed.as_slice() {
        [] => "only the root token may do this".to_owned(),
        scopes => format!("the token needs the scope {}", scopes.join(" or ")),
    };
    Err(Problem::forbidden("scope_missing", detail))
}

/// The caller, by token or by session. The request is counted for its rate, whether it will be refused or not: a refusal is
/// written to the audit log.
async fn who(parts: &Parts, app: &App) -> Result<Caller, Problem> {
    let unauthorized = |code, detail| Problem::new(StatusCode::UNAUTHORIZED, code, detail);
    let unknown = || unauthorized("token_unknown", "unknown or revoked token");
    let caller = if let Some(token) = presented(&parts.headers) {
        app.authenticate(&token, ClientAddress::of(parts)).await?.ok_or_else(unknown)?
    } else if let Some(session) = app.sessions.acting(&parts.method, &parts.headers).await? {
        app.remember(&session).await?.ok_or_else(unknown)?
    } else {
        let detail = "send `Authorization: Bearer <token>`, or the token as Basic user name";
        return Err(unauthorized("token_required", detail));
    };
    if let Some(notes) = parts.extensions.get::<Notes>() {
        notes.caller(&caller);
    }
    app.limits.requests.take(&caller, 1, app.tokens.now_ms())?;
    Ok(caller)
}
