//! Queues over HTTP. Publishing messages (`POST /messages`) is part of the bus.

mod consume;
mod definitions;
mod look;
mod messages;
mod problems;
mod tenants;

use std::ops::Deref;

use axum::{
    body::HttpBody as _,
    extract::{MatchedPath, Request},
    http::Method,
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use utoipa_axum::router::OpenApiRouter;

use crate::http::auth::CheckTenant as _;
use crate::http::{App, Problem, auth::Permission, path::Parameter};
use signalbox_access::{Caller, Scope};
use signalbox_queues::{Error, Matchable, is_part};

/// Define, pull from and manage queues.
#[derive(Debug)]
enum UseQueues {}
impl Permission for UseQueues {
    const ANY_OF: &'static [Scope] = &[Scope::Queues];
}

/// Read queues.
#[derive(Debug)]
enum ReadQueues {}
impl Permission for ReadQueues {
    const ANY_OF: &'static [Scope] = &[Scope::Read, Scope::Queues];
}

/// The routes of this module.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .merge(definitions::routes())
        .merge(consume::routes())
        .merge(tenants::routes())
        .merge(look::routes())
        .merge(messages::routes())
        .layer(middleware::from_fn(expect_nothing_else))
}

/// Routes that have query parameters, which they check themselves.
const WITH_QUERY: [&str; 6] = [
    "/queues",
    "/queues/{name}/tenants",
    "/queues/{name}/dead",
    "/queues/{name}/messages",
    "/queues/{name}/messages/{id}",
    "/queues/{name}/messages/{id}/redrive",
];

/// Rejects query parameters and bodies that a route does not have. Ignored, `DELETE /queues/q/dead` with a body that names
/// a tenant would drop the dead letters of all.
async fn expect_nothing_else(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("", |path| path.as_str());
    if !WITH_QUERY.contains(&route) && request.uri().query().is_some_and(|query| !query.is_empty()) {
        let detail = "this route has no query parameters";
        return Problem::bad_request("invalid_query", detail).into_response();
    }
    let takes_none = matches!(*request.method(), Method::GET | Method::HEAD | Method::DELETE);
    if takes_none && !request.body().is_end_stream() {
        return Problem::bad_request("unexpected_body", "this call takes no body").into_response();
    }
    next.run(request).await
}

/// A queue as this pacemaker knows it. An unknown one may have been created through another pacemaker a moment ago.
async fn find(app: &App, name: &str) -> Result<Matchable, Problem> {
    let bus = app.bus.handle();
    if let Some(queue) = bus.queues(|queues| queues.get(name).cloned()) {
        return Ok(queue);
    }
    bus.refresh_registry().await?;
    bus.queues(|queues| queues.get(name).cloned()).ok_or_else(|| Error::NoSuchQueue.into())
}

/// A queue as the fabric has it now, with changes that were made through another pacemaker a moment ago.
async fn current(app: &App, name: &str) -> Result<Matchable, Problem> {
    app.bus.handle().refresh_registry().await?;
    find(app, name).await
}

/// Runs an operation that depends on the definitions of queues. If a shard did not know one of them, they are configured
/// and the operation runs once more.
async fn with_queues<T, F: Future<Output = Result<T, Error>> + Send>(
    app: &App,
    names: &[&str],
    act: impl Fn(Vec<Matchable>) -> F,
) -> Result<T, Problem> {
    match act(find_all(app, names).await?).await {
        Err(Error::NoSuchQueue | Error::Behind | Error::Stale) => {
            for name in names {
                if !app.bus.handle().configure_queue(name).await? {
                    return Err(Problem::from(Error::NoSuchQueue).with("queue", *name));
                }
            }
            Ok(act(find_all(app, names).await?).await?)
        }
        result => Ok(result?),
    }
}

async fn find_all(app: &App, names: &[&str]) -> Result<Vec<Matchable>, Problem> {
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        found.push(find(app, name).await.map_err(|problem| problem.with("queue", *name))?);
    }
    Ok(found)
}

/// Rejects a caller whose token is confined to tenants and whose request names none.
fn whole_queue(caller: &Caller) -> Result<(), Problem> {
    match caller.tenants() {
        None => Ok(()),
        Some(_) => Err(Problem::forbidden(
            "tenant_missing",
            "the token is confined to tenants; name one of them as `tenant`",
        )),
    }
}

/// Rejects a request for a tenant that the caller's token does not cover, or for all of them.
fn own_part(caller: &Caller, tenant: Option<&str>) -> Result<(), Problem> {
    let Some(tenant) = tenant else { return whole_queue(caller) };
    caller.check_tenant(tenant)?;
    check_tenant(tenant)
}

/// The name of a tenant in a path.
#[derive(Debug)]
struct TenantName(String);

impl Deref for TenantName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Parameter for TenantName {
    type Raw = String;

    fn check(raw: String) -> Result<Self, Problem> {
        check_tenant(&raw)?;
        Ok(Self(raw))
    }
}

/// Rejects an invalid name of a tenant.
fn check_tenant(tenant: &str) -> Result<(), Problem> {
    if is_part(tenant) {
        return Ok(());
    }
    let detail = "the name of a tenant must be 1 to 1024 printable characters without `:` and `|`";
    Err(Problem::unprocessable("invalid_tenant", detail))
}
