//! Automatic HTTPS over HTTP: the state of each name, and renewals on request.

use axum::{Json as Answer, extract::State as AppState, http::StatusCode};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    api::routing::{PageQuery, check_host},
    http::{
        App, Problem,
        auth::{Confined, Hosts, ManageRoutes, ReadRoutes},
        body::Query,
        list::contains,
        path::Path,
    },
};
use signalbox_acme::Error;
use signalbox_api::acme::{AutomaticCertificate, AutomaticCertificateList};
use signalbox_route_table::{Hostname, page};
use signalbox_routing::Error as TableError;

/// Maximum number of names that one request examines for a confined token.
const MAX_EXAMINED: usize = 10_000;
/// The list to which cursors belong.
const LIST: &str = "acme";

/// The routes of this module.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get)).routes(routes!(renew))
}

/// List the names with automatic HTTPS
///
/// With the state of each certificate, and why it could not be obtained or renewed.
#[utoipa::path(get, path = "/acme/names", params(PageQuery),
    responses((status = 200, body = AutomaticCertificateList)))]
async fn list(
    caller: Confined<ReadRoutes, Hosts>,
    AppState(app): AppState<App>,
    Query(query): Query<PageQuery>,
) -> Result<Answer<AutomaticCertificateList>, Problem> {
    let limit = page::limit(query.limit)?;
    let mut after = app.cursors.read(&caller, LIST, query.cursor.as_deref()).await?;
    let wanted = query.search.as_deref().unwrap_or_default().to_lowercase();
    let mut found: Vec<AutomaticCertificate> = Vec::new();
    let (mut examined, mut more) = (0, true);
    while found.len() <= limit && examined < MAX_EXAMINED && more {
        let chunk = app.acme.after(after.as_deref(), limit + 1).await?;
        more = chunk.len() > limit;
        examined += chunk.len();
        after = chunk.last().map(|one| one.server_name.clone()).or(after);
        let visible = |one: &AutomaticCertificate| {
            contains(&wanted, [&*one.server_name])
                && Hostname::parse(&one.server_name).is_ok_and(|name| caller.may_touch(&name))
        };
        found.extend(chunk.into_iter().filter(visible));
    }
    let next = if found.len() > limit {
        found.truncate(limit);
        found.last().map(|one| one.server_name.clone())
    } else {
        after.filter(|_| more)
    };
    let next = app.cursors.write(&caller, LIST, next).await?;
    let directory = app.acme.directory().map(str::to_owned);
    Ok(Answer(AutomaticCertificateList { directory, names: found, next }))
}

/// Show a name with automatic HTTPS
#[utoipa::path(get, path = "/acme/names/{server_name}", responses((status = 200, body = AutomaticCertificate),
    (status = "default", description = "404 no_automatic_https")))]
async fn get(
    caller: Confined<ReadRoutes, Hosts>,
    AppState(app): AppState<App>,
    Path(name): Path<Hostname>,
) -> Result<Answer<AutomaticCertificate>, Problem> {
    check_host(&caller, &name)?;
    app.acme.get(&name).await?.map(Answer).ok_or_else(no_automatic_https)
}

/// Renew a certificate now
///
/// An attempt is made as soon as possible, whatever the schedule. The present certificate is served until another one has been
/// obtained. The call can be repeated.
#[utoipa::path(post, path = "/acme/names/{server_name}/renew", responses((status = 202, description = "Requested"),
    (status = "default", description = "404 no_automatic_https | 409 automatic_https_off")))]
async fn renew(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    Path(name): Path<Hostname>,
) -> Result<StatusCode, Problem> {
    check_host(&caller, &name)?;
    if app.acme.directory().is_none() {
        let detail = "automatic HTTPS is off: set `acme.directory` of the pacemaker";
        return Err(Problem::new(StatusCode::CONFLICT, "automatic_https_off", detail));
    }
    if app.acme.renew(&name).await? { Ok(StatusCode::ACCEPTED) } else { Err(no_automatic_https()) }
}

fn no_automatic_https() -> Problem {
    Problem::not_found(
        "no_automatic_https",
        "this name has no automatic HTTPS; set the policy \"tls\": \"auto\" of its host",
    )
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Fabric(error) => TableError::Fabric(error).into(),
            error @ (Error::Record(_) | Error::Reply) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "state of automatic HTTPS not processed"
                );
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the pacemaker's log")
            }
        }
    }
}
