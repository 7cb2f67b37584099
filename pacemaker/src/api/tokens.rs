//! Tokens over HTTP, for root.

use axum::{
    Json as Answer,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::http::{
    App, Problem,
    auth::{Granted, RootOnly},
    body::{Body, Json},
    path::Path,
};
use signalbox_access::{Error, HostPattern, Scope};
use signalbox_queues::is_part;
use signalbox_route_table::Hostname;

const MAX_HOST_PATTERNS: usize = 100;
const MAX_ENVIRONMENTS: usize = 100;

/// The routes of this room.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(remove))
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Fabric(source) => {
                tracing::warn!(%source, "tokens: the fabric did not answer");
                Self::unavailable("fabric_unavailable", "tokens cannot be checked at the moment; try again")
            }
            Error::Record(source) => {
                tracing::error!(%source, "tokens: a stored record is not readable");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the pacemaker's log")
            }
        }
    }
}

/// A token to be made.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewToken {
    /// `[a-z0-9:_-]{1,64}`, not `root`.
    #[schema(example = "deployer")]
    name: String,
    /// At least one.
    scopes: Vec<Scope>,
    /// Confine the token to these hosts: `shop.example`, or `*.shop.example` for everything below.
    hosts: Option<Vec<String>>,
    /// Confine the token to messages of these environments.
    environments: Option<Vec<String>>,
}

impl Body for NewToken {}

/// A token; the token itself is told only when it is made.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct TokenView {
    name: String,
    scopes: Vec<Scope>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    hosts: Option<Vec<HostPattern>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    environments: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

/// All tokens.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct TokenList {
    tokens: Vec<TokenView>,
}

/// List the tokens
#[utoipa::path(get, path = "/tokens", tag = "tokens", responses((status = 200, body = TokenList)))]
async fn list(_: Granted<RootOnly>, State(app): State<App>) -> Result<Answer<TokenList>, Problem> {
    let tokens = app.tokens.list().await?;
    let view = |listed: signalbox_access::store::Listed| TokenView {
        name: listed.name,
        scopes: listed.scopes,
        hosts: listed.hosts,
        environments: listed.environments,
        token: None,
    };
    Ok(Answer(TokenList { tokens: tokens.into_iter().map(view).collect() }))
}

/// Make a token
///
/// The answer is the only place where the token is ever shown.
#[utoipa::path(post, path = "/tokens", tag = "tokens", request_body = NewToken, responses(
    (status = 201, body = TokenView), (status = 409, description = "token_exists", body = Problem),
    (status = 422, description = "invalid_token_name, invalid_scopes, invalid_hostname, too_many_hosts, \
        invalid_environments", body = Problem)))]
async fn create(
    _: Granted<RootOnly>,
    State(app): State<App>,
    Json(new): Json<NewToken>,
) -> Result<Response, Problem> {
    let NewToken { name, mut scopes, hosts, environments } = new;
    check_name(&name)?;
    scopes.sort_unstable();
    scopes.dedup();
    if scopes.is_empty() {
        return Err(Problem::unprocessable("invalid_scopes", "a token needs at least one scope"));
    }
    let hosts = hosts.map(patterns).transpose()?;
    if environments.as_ref().is_some_and(|names| {
        names.is_empty() || names.len() > MAX_ENVIRONMENTS || !names.iter().all(|name| is_part(name))
    }) {
        let detail = format!(
            "give between 1 and {MAX_ENVIRONMENTS} environments, each of 1 to 1024 printable characters without `:` and `|`"
        );
        return Err(Problem::unprocessable("invalid_environments", detail));
    }
    let made = app.tokens.create(name.clone(), scopes.clone(), hosts.clone(), environments.clone()).await?;
    let Some(made) = made else {
        let detail = "there is a token of this name; delete it first";
        return Err(Problem::new(StatusCode::CONFLICT, "token_exists", detail));
    };
    let view = TokenView { name, scopes, hosts, environments, token: Some(made.token) };
    Ok((StatusCode::CREATED, [(header::CACHE_CONTROL, "no-store")], Answer(view)).into_response())
}

/// Revoke a token
///
/// It is refused from the next request on. Repeating it is no error.
#[utoipa::path(delete, path = "/tokens/{name}", tag = "tokens", params(("name" = String, Path)), responses(
    (status = 204)))]
async fn remove(
    _: Granted<RootOnly>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    app.tokens.delete(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn check_name(name: &str) -> Result<(), Problem> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b":_-".contains(&byte);
    if (1..=64).contains(&name.len()) && name.bytes().all(fits) && name != "root" {
        return Ok(());
    }
    Err(Problem::unprocessable(
        "invalid_token_name",
        "a token's name matches [a-z0-9:_-]{1,64} and is not root",
    ))
}

fn patterns(hosts: Vec<String>) -> Result<Vec<HostPattern>, Problem> {
    if hosts.is_empty() || hosts.len() > MAX_HOST_PATTERNS {
        let detail = format!("give between 1 and {MAX_HOST_PATTERNS} host patterns, or leave them out");
        return Err(Problem::unprocessable("too_many_hosts", detail));
    }
    let parse = |text: &String| Hostname::parse(text).map(HostPattern::new);
    hosts.iter().map(parse).collect::<Result<_, _>>().map_err(Problem::from)
}
