//! Queues over HTTP. Publishing messages (`POST /messages`) is the bus' part.

mod consume;
mod definitions;
mod look;
mod problems;

use std::ops::Deref;

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
    OpenApiRouter::new().merge(definitions::routes()).merge(consume::routes()).merge(look::routes())
}

/// A queue as this pacemaker knows it. An unknown one may have been created through another pacemaker a moment ago.
async fn find(app: &App, name: &str) -> Result<Matchable, Problem> {
    let bus = app.bus.handle();
    if let Some(queue) = bus.queues(|queues| queues.get(name).cloned()) {
        return Ok(queue);
    }
    bus.look_again().await?;
    bus.queues(|queues| queues.get(name).cloned()).ok_or_else(|| Error::NoSuchQueue.into())
}

/// Runs an operation that depends on a queue's definition. If a shard did not know the definition, it is configured
/// and the operation runs once more.
async fn with_queue<T, F: Future<Output = Result<T, Error>> + Send>(
    app: &App,
    name: &str,
    act: impl Fn(Matchable) -> F,
) -> Result<T, Problem> {
    match act(find(app, name).await?).await {
        Err(Error::NoSuchQueue | Error::Behind | Error::Stale) => {
            if !app.bus.handle().configure_queue(name).await? {
                return Err(Error::NoSuchQueue.into());
            }
            Ok(act(find(app, name).await?).await?)
        }
        result => Ok(result?),
    }
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
