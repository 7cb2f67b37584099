//! Queues over HTTP. Publishing messages (`POST /messages`) is part of the bus.

mod consume;
mod definitions;
mod facets;
mod look;
mod messages;
mod problems;

use std::ops::Deref;

use axum::{
    body::HttpBody as _,
    extract::{MatchedPath, Request},
    http::Method,
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use utoipa_axum::router::OpenApiRouter;

use crate::http::auth::CheckEnvironment as _;
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
        .merge(facets::routes())
        .merge(look::routes())
        .merge(messages::routes())
        .layer(middleware::from_fn(expect_nothing_else))
}

/// Routes that have query parameters, which they check themselves.
const WITH_QUERY: [&str; 6] = [
    "/queues",
    "/queues/{name}/facets",
    "/queues/{name}/dead",
    "/queues/{name}/messages",
    "/queues/{name}/messages/{id}",
    "/queues/{name}/messages/{id}/redrive",
];

/// Rejects query parameters and bodies that a route does not have. Ignored, `DELETE /queues/q/dead` with a body that names
/// an environment would drop the dead letters of all.
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

/// Rejects a caller whose token is confined to environments and whose request names none.
fn whole_queue(caller: &Caller) -> Result<(), Problem> {
    match caller.environments() {
        None => Ok(()),
        Some(_) => Err(Problem::forbidden(
            "environment_missing",
            "the token is confined to environments; name one of them as `environment`",
        )),
    }
}

/// Rejects a request for an environment that the caller's token does not cover, or for all of them.
fn own_part(caller: &Caller, environment: Option<&str>) -> Result<(), Problem> {
    let Some(environment) = environment else { return whole_queue(caller) };
    caller.check_environment(environment)?;
    check_environment(environment)
}

/// The name of an environment in a path.
#[derive(Debug)]
struct Environment(String);

impl Deref for Environment {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Parameter for Environment {
    type Raw = String;

    fn check(raw: String) -> Result<Self, Problem> {
        check_environment(&raw)?;
        Ok(Self(raw))
    }
}

/// Rejects an invalid name of an environment.
fn check_environment(environment: &str) -> Result<(), Problem> {
    if is_part(environment) {
        return Ok(());
    }
    let detail = "the name of an environment must be 1 to 1024 printable characters without `:` and `|`";
    Err(Problem::unprocessable("invalid_environment", detail))
}
