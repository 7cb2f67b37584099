//! API tokens, managed by root.

use std::time::Duration;

use axum::{
    Json as Answer,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::api::machines::{end_tasks_of, is_machine_name};
use crate::http::{
    App, Problem,
    audit::Notes,
    auth::{RootOnly, Whole},
    body::{Body, Json, Query},
    list::{ListQuery, Listing, SortKey},
    path::Path,
};
use signalbox_access::{Dimension, Error, Grant, HostPattern, MAX_SECRETS, Rotated, Scope, confinement};
use signalbox_api::{
    Time,
    tokens::{NewToken, Rotation, Token, TokenList},
};
use signalbox_queues::is_part;
use signalbox_route_table::{Hostname, Label};

const MAX_HOST_PATTERNS: usize = 100;
const MAX_TENANTS: usize = 100;
const MAX_MACHINES: usize = 100;
const MAX_VERSION_TYPES: usize = 100;
/// How long the previous secrets stay valid after a rotation that does not specify it.
const OVERLAP_SECONDS: u64 = 3600;
const MAX_OVERLAP_SECONDS: u64 = 30 * 24 * 3600;

/// The routes of tokens.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(remove)).routes(routes!(rotate))
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Fabric(source) => {
                tracing::warn!(%source, "fabric did not answer a query about tokens");
                Self::unavailable("fabric_unavailable", "tokens cannot be checked at the moment; try again")
            }
            Error::Record(source) => {
                tracing::error!(%source, "stored token record not readable");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the pacemaker's log")
            }
        }
    }
}

impl Body for NewToken {}

impl Body for Rotation {}

/// How tokens are listed: a search also covers scopes and confinements.
pub const LISTING: Listing<'static, Token> = Listing {
    name: |token| &token.name,
    texts: |token| {
        let scopes = token.scopes.iter().map(|scope| scope.as_str());
        let confined = [&token.hosts, &token.tenants, &token.machines, &token.version_types];
        scopes.chain(confined.into_iter().flatten().flatten().map(String::as_str)).collect()
    },
    fields: &[
        ("name", |token| SortKey::from(&*token.name)),
        ("created", |token| SortKey::from(token.created_at.ms())),
        ("expires", |token| SortKey::from(token.expires_at.map(Time::ms))),
        ("last_used", |token| SortKey::from(token.last_used_at.map(Time::ms))),
    ],
};

/// List the tokens
///
/// Sorted by `name`, `created`, `expires` or `last_used`. Without `limit`, the answer contains all of them.
#[utoipa::path(get, path = "/tokens", params(ListQuery), responses((status = 200, body = TokenList)))]
async fn list(
    _: Whole<RootOnly>,
    State(app): State<App>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<TokenList>, Problem> {
    let page = LISTING.page(all(&app).await?, &query)?;
    Ok(Answer(TokenList { tokens: page.items, next: page.next, total: Some(page.total as u64) }))
}

/// All tokens, without their secrets.
pub async fn all(app: &App) -> Result<Vec<Token>, Problem> {
    Ok(app.tokens.list().await?)
}

/// Create a token
///
/// The answer is the only place where the secret is shown.
#[utoipa::path(post, path = "/tokens", request_body = NewToken, responses((status = 201, body = Token),
    (status = "default", description = "409 token_exists | 422 invalid_token_name, invalid_scopes, invalid_hostname, \
        too_many_hosts, invalid_tenants, invalid_machines, invalid_version_types, scope_not_confinable, \
        invalid_expiry")))]
async fn create(
    _: Whole<RootOnly>,
    State(app): State<App>,
    Json(new): Json<NewToken>,
) -> Result<Response, Problem> {
    let NewToken { name, mut scopes, hosts, tenants, machines, version_types, expires_at } = new;
    let expires_at_ms = expires_at.map(Time::ms);
    check_name(&name)?;
    scopes.sort_unstable();
    scopes.dedup();
    if scopes.is_empty() {
        return Err(Problem::unprocessable("invalid_scopes", "a token needs at least one scope"));
    }
    let hosts = hosts.map(patterns).transpose()?;
    if tenants.as_ref().is_some_and(|names| {
        names.is_empty() || names.len() > MAX_TENANTS || !names.iter().all(|name| is_part(name))
    }) {
        let detail = format!(
            "`tenants` must contain 1 to {MAX_TENANTS} names, each of 1 to 1024 printable characters without `:` and `|`"
        );
        return Err(Problem::unprocessable("invalid_tenants", detail));
    }
    if machines.as_ref().is_some_and(|names| {
        !(1..=MAX_MACHINES).contains(&names.len()) || !names.iter().all(|name| is_machine_name(name))
    }) {
        let detail =
            format!("`machines` must contain 1 to {MAX_MACHINES} names that match [A-Za-z0-9_-]{{1,64}}");
        return Err(Problem::unprocessable("invalid_machines", detail));
    }
    check_version_types(&scopes, version_types.as_deref())?;
    check_confinement(&scopes, hosts.is_some(), tenants.is_some(), machines.is_some())?;
    check_expiry(&app, expires_at_ms)?;
    let grant = Grant { scopes, hosts, tenants, machines, version_types };
    let made = app.tokens.create(name, grant, expires_at_ms).await?;
    let Some(made) = made else {
        let detail = "a token of this name exists; delete it first";
        return Err(Problem::new(StatusCode::CONFLICT, "token_exists", detail));
    };
    // The new token does not inherit what a deleted one of this name may have left behind. Not before the creation, which
    // fails if the name is in use.
    end_client(&app, &made.name).await?;
    Ok(shown(StatusCode::CREATED, made))
}

/// Rotate a token
///
/// The answer shows another secret. The secrets before stay valid for a while, so that clients can change over. Name, scopes,
/// topics and subscription of the token stay. Up to four secrets are valid together.
#[utoipa::path(post, path = "/tokens/{name}/rotate", request_body = Rotation, responses((status = 200, body = Token),
    (status = "default", description = "404 unknown_token | 409 too_many_secrets | 422 out_of_range, invalid_expiry | \
        503 busy")))]
async fn rotate(
    _: Whole<RootOnly>,
    State(app): State<App>,
    Path(name): Path<String>,
    Json(Rotation { overlap_seconds, expires_at }): Json<Rotation>,
) -> Result<Response, Problem> {
    let expires_at_ms = expires_at.map(Time::ms);
    let overlap = overlap_seconds.unwrap_or(OVERLAP_SECONDS);
    if overlap > MAX_OVERLAP_SECONDS {
        let detail = format!("`overlap_seconds` must be between 0 and {MAX_OVERLAP_SECONDS}");
        return Err(Problem::unprocessable("out_of_range", detail));
    }
    check_expiry(&app, expires_at_ms)?;
    match app.tokens.rotate(&name, Duration::from_secs(overlap), expires_at_ms).await? {
        Rotated::Done(made) => Ok(shown(StatusCode::OK, *made)),
        Rotated::Unknown => {
            Err(Problem::not_found("unknown_token", format!("no token has the name `{name}`")))
        }
        Rotated::TooMany => {
            let detail = format!(
                "{MAX_SECRETS} secrets of this token are valid; rotate with `overlap_seconds` 0 to end them, or wait"
            );
            Err(Problem::new(StatusCode::CONFLICT, "too_many_secrets", detail))
        }
        Rotated::Expired => {
            let detail = "the token has expired; set `expires_at` for the new secret";
            Err(Problem::unprocessable("invalid_expiry", detail))
        }
        Rotated::Busy => {
            Err(Problem::unavailable("busy", "other changes of this token interfere; try again"))
        }
    }
}

/// Revoke a token
///
/// It is rejected from the next request on. Its subscription and its tasks end, streams that it opened end within seconds, and its
/// topics belong to root. Definitions of state machines that it applied stay. Revoking it again is not an error.
#[utoipa::path(delete, path = "/tokens/{name}", responses((status = 204)))]
async fn remove(
    _: Whole<RootOnly>,
    State(app): State<App>,
    notes: Notes,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    if let Some(listed) = app.tokens.list().await?.into_iter().find(|listed| listed.name == name) {
        notes.before(json!(listed));
    }
    app.tokens.delete(&name).await?;
    end_client(&app, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends what the holder of a deleted token has started.
async fn end_client(app: &App, name: &str) -> Result<(), Problem> {
    let client = format!("@{name}");
    app.bus.end_client(&client).await?;
    end_tasks_of(app, &client).await
}

/// Rejects patterns that no version type matches, and those of a token that cannot register instances.
fn check_version_types(scopes: &[Scope], patterns: Option<&[String]>) -> Result<(), Problem> {
    let Some(patterns) = patterns else { return Ok(()) };
    let is_label = |text: &str| Label::parse(text, "version_types").is_ok() && !text.contains('*');
    let fits = |pattern: &String| is_label(pattern.strip_suffix('*').unwrap_or(pattern));
    if (1..=MAX_VERSION_TYPES).contains(&patterns.len()) && patterns.iter().all(fits) {
        if scopes.contains(&Scope::Routes) {
            return Ok(());
        }
        let detail = "only a token with the scope routes registers instances; leave out `version_types`";
        return Err(Problem::unprocessable("invalid_version_types", detail));
    }
    let detail = format!(
        "`version_types` must contain 1 to {MAX_VERSION_TYPES} patterns, such as `shop-1`, or `shop-*` for all that begin with `shop-`"
    );
    Err(Problem::unprocessable("invalid_version_types", detail))
}

/// Rejects scopes that would reach data of every tenant although the token is confined.
fn check_confinement(scopes: &[Scope], hosts: bool, tenants: bool, machines: bool) -> Result<(), Problem> {
    let lists = [(Dimension::Hosts, hosts), (Dimension::Tenants, tenants), (Dimension::Machines, machines)];
    let lists: Vec<Dimension> = lists.into_iter().filter_map(|(list, given)| given.then_some(list)).collect();
    confinement::check(scopes, &lists)
        .map_err(|refused| Problem::unprocessable("scope_not_confinable", refused.to_string()))
}

fn shown(status: StatusCode, token: Token) -> Response {
    (status, [(header::CACHE_CONTROL, "no-store")], Answer(token)).into_response()
}

fn check_expiry(app: &App, expires_at_ms: Option<u64>) -> Result<(), Problem> {
    if expires_at_ms.is_none_or(|end| end > app.tokens.now_ms()) {
        return Ok(());
    }
    Err(Problem::unprocessable(
        "invalid_expiry",
        "`expires_at` must be a time in the future, such as 2027-01-31T18:30:00Z",
    ))
}

fn check_name(name: &str) -> Result<(), Problem> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b":_-".contains(&byte);
    // Names of other callers in the audit log, and of their tenants.
    let reserved = ["root", "file", "signalbox"].contains(&name) || name.starts_with("machine:");
    if (1..=64).contains(&name.len()) && name.bytes().all(fits) && !reserved {
        return Ok(());
    }
    Err(Problem::unprocessable(
        "invalid_token_name",
        "a token's name must match [a-z0-9:_-]{1,64}, must not be root, file or signalbox, and must not begin with machine:",
    ))
}

fn patterns(hosts: Vec<String>) -> Result<Vec<HostPattern>, Problem> {
    if hosts.is_empty() || hosts.len() > MAX_HOST_PATTERNS {
        let detail =
            format!("`hosts` must contain 1 to {MAX_HOST_PATTERNS} patterns; leave it out for all hosts");
        return Err(Problem::unprocessable("too_many_hosts", detail));
    }
    let parse = |text: &String| Hostname::parse(text).map(HostPattern::new);
    hosts.iter().map(parse).collect::<Result<_, _>>().map_err(Problem::from)
}
