//! The clients' tokens, for root.
//!
//! The original lists them, so they are stored as they are; nothing else of Signalbox stores a token.

use std::collections::BTreeSet;

use axum::{
    Json as Answer,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{front::external_token, subscriptions::random_hex};
use crate::http::{
    App, Problem,
    auth::{Granted, RootOnly},
    body::JsonBytes,
    path::Path,
};
use signalbox_access::Scope;
use signalbox_bus::{
    ApiToken, Error,
    intake::{self, TOKEN_NAME},
};

const CODE: &str = "invalid_api_token";
/// The default scopes of a client.
const DEFAULT_SCOPES: [Scope; 3] = [Scope::Publish, Scope::Subscribe, Scope::Read];

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(remove))
}

/// A client's token.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = BusTokenView)]
pub(crate) struct TokenView {
    #[schema(example = "billing")]
    name: String,
    #[schema(example = "billing--5f1d7a84db00d2fce00b31a7fc73224f")]
    token: String,
}

/// A token to create.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewApiToken {
    /// `[a-z0-9:_-]{1,64}`.
    name: String,
    /// The token; by default generated as `name--` and 32 hexadecimal digits.
    token: Option<String>,
    /// Default: `publish`, `subscribe` and `read`.
    scopes: Option<BTreeSet<Scope>>,
}

/// List the clients' tokens
#[utoipa::path(get, path = "/api_tokens", tag = "bus", responses((status = 200, body = Vec<TokenView>)))]
async fn list(_: Granted<RootOnly>, State(app): State<App>) -> Result<Answer<Vec<TokenView>>, Problem> {
    let tokens = app.bus.handle.api_tokens().await?;
    Ok(Answer(tokens.into_iter().map(|(token, client)| TokenView { name: client.name, token }).collect()))
}

/// Create a client's token
///
/// The token identifies the client: it claims topics, and has at most one subscription. Creating the same token again
/// changes nothing.
#[utoipa::path(post, path = "/api_tokens", tag = "bus", request_body = NewApiToken, responses(
    (status = 201, body = TokenView), (status = 400, description = "invalid_api_token", body = Problem),
    (status = 403, description = "limit_reached", body = Problem),
    (status = 409, description = "token_exists", body = Problem)))]
async fn create(
    _: Granted<RootOnly>,
    State(app): State<App>,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Problem> {
    let NewApiToken { name, token, scopes } = intake::object(intake::text(&body)?, CODE)?;
    check("name", &name)?;
    let token = token.unwrap_or_else(|| format!("{name}--{}", random_hex()));
    check("token", &token)?;
    let scopes = scopes.unwrap_or_else(|| DEFAULT_SCOPES.into());
    if scopes.is_empty() {
        return Err(Problem::bad_request(CODE, "`scopes` must hold at least one"));
    }
    let scopes = scopes.into_iter().map(|scope| scope.as_str().to_owned()).collect();
    let client = ApiToken { name: name.clone(), scopes };
    app.bus.handle.create_api_token(&token, client.clone()).await?;
    app.tokens.sync(&external_token(&token, &client)).await?;
    let answer = Answer(TokenView { name, token });
    Ok((StatusCode::CREATED, [(header::CACHE_CONTROL, "no-store")], answer).into_response())
}

/// Delete a client's token
///
/// Its subscription ends with it. The call can be repeated.
#[utoipa::path(delete, path = "/api_tokens/{token}", tag = "bus", params(("token" = String, Path)), responses(
    (status = 204)))]
async fn remove(
    _: Granted<RootOnly>,
    State(app): State<App>,
    Path(token): Path<String>,
) -> Result<StatusCode, Problem> {
    match app.bus.handle.delete_api_token(&token).await {
        Ok(()) | Err(Error::NoSuchToken) => {
            app.tokens.revoke(&token).await;
            Ok(StatusCode::NO_CONTENT)
        }
        Err(error) => Err(error.into()),
    }
}

fn check(member: &str, text: &str) -> Result<(), Problem> {
    if intake::is_token(text) {
        return Ok(());
    }
    let hint = if text.len() > 64 { "; give a shorter name, or a `token` of your own" } else { "" };
    Err(Problem::bad_request(CODE, format!("`{member}` must match {TOKEN_NAME}{hint}")))
}
