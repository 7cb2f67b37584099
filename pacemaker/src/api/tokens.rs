//! API tokens, managed by root.

use axum::{
    Json as Answer,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::http::{
    App, Problem,
    auth::{Granted, RootOnly},
    body::{Body, Json},
    path::Path,
};
use signalbox_access::{Error, HostPattern};
use signalbox_api::tokens::{NewToken, Token, TokenList};
use signalbox_queues::is_part;
use signalbox_route_table::Hostname;

const MAX_HOST_PATTERNS: usize = 100;
const MAX_ENVIRONMENTS: usize = 100;

/// The routes of tokens.
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

impl Body for NewToken {}

/// List the tokens
#[utoipa::path(get, path = "/tokens", tag = "tokens", responses((status = 200, body = TokenList)))]
async fn list(_: Granted<RootOnly>, State(app): State<App>) -> Result<Answer<TokenList>, Problem> {
    let tokens = app.tokens.list().await?;
    let view = |listed: signalbox_access::Listed| Token {
        name: listed.name,
        scopes: listed.scopes,
        hosts: listed.hosts.map(texts),
        environments: listed.environments,
        token: None,
    };
    Ok(Answer(TokenList { tokens: tokens.into_iter().map(view).collect() }))
}

/// Create a token
///
/// The answer is the only place where the secret is shown.
#[utoipa::path(post, path = "/tokens", tag = "tokens", request_body = NewToken, responses(
    (status = 201, body = Token), (status = 409, description = "token_exists", body = Problem),
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
        let detail = "a token of this name exists; delete it first";
        return Err(Problem::new(StatusCode::CONFLICT, "token_exists", detail));
    };
    let view = Token { name, scopes, hosts: hosts.map(texts), environments, token: Some(made.token) };
    Ok((StatusCode::CREATED, [(header::CACHE_CONTROL, "no-store")], Answer(view)).into_response())
}

/// Revoke a token
///
/// It is rejected from the next request on. The call can be repeated.
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

fn texts(patterns: Vec<HostPattern>) -> Vec<String> {
    patterns.iter().map(ToString::to_string).collect()
}

fn check_name(name: &str) -> Result<(), Problem> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b":_-".contains(&byte);
    if (1..=64).contains(&name.len()) && name.bytes().all(fits) && name != "root" {
        return Ok(());
    }
    Err(Problem::unprocessable(
        "invalid_token_name",
        "a token's name must match [a-z0-9:_-]{1,64} and must not be root",
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
