//! The clients' tokens, for root.
//!
//! Only the digest of a token is stored, unless `bus.legacy_token_list` is on: then tokens are listed, as Routemaster does. The digest
//! is in the fabric only. Sidecars do not know these tokens, so they do not read statistics.

use axum::{
    Json as Answer,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::subscriptions::random_hex;
use crate::api::machines::end_tasks_of;
use crate::http::{
    App, Problem,
    audit::Notes,
    auth::{RootOnly, Whole},
    body::JsonBytes,
    path::Path,
};
use signalbox_access::{Scope, digest};
use signalbox_api::{
    Time,
    events::{ClientToken, ClientTokenRotation, NewClientToken, OldClientToken},
};
use signalbox_bus::{
    ApiToken, Error,
    intake::{self, NEW_TOKEN, TOKEN_NAME},
};

const CODE: &str = "invalid_api_token";
/// Scopes of a client, unless the request has others.
const DEFAULT_SCOPES: [Scope; 2] = [Scope::Publish, Scope::Subscribe];
/// Time for which the replaced token stays valid, unless the request has another.
const OVERLAP_SECONDS: u64 = 3600;
const MAX_OVERLAP_SECONDS: u64 = 30 * 24 * 3600;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, create, remove_by_token))
        .routes(routes!(remove))
        .routes(routes!(rotate))
}

/// List the clients with tokens
///
/// Tokens themselves are listed only if `bus.legacy_token_list` is on.
#[utoipa::path(get, path = "/api_tokens", responses((status = 200, body = Vec<ClientToken>)))]
async fn list(_: Whole<RootOnly>, State(app): State<App>) -> Result<Answer<Vec<ClientToken>>, Problem> {
    let tokens = app.bus.handle.api_tokens().await?;
    let listed = |token: ApiToken| ClientToken {
        name: token.name,
        token: token.listed.filter(|_| app.bus.legacy_token_list),
    };
    let mut views: Vec<ClientToken> = tokens.into_values().map(listed).collect();
    views.sort_by(|one, other| (&one.name, &one.token).cmp(&(&other.name, &other.token)));
    Ok(Answer(views))
}

/// Create a client's token
///
/// Topics are claimed by the client, and it has at most one subscription. Making the same one again changes nothing.
#[utoipa::path(post, path = "/api_tokens", request_body = NewClientToken, responses((status = 201, body = ClientToken),
    (status = "default", description = "400 invalid_api_token | 403 limit_reached | 409 token_exists")))]
async fn create(
    _: Whole<RootOnly>,
    State(app): State<App>,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Problem> {
    let NewClientToken { name, token, scopes, expires_at } = intake::object(intake::text(&body)?, CODE)?;
    let expires_at_ms = expires_at.map(Time::ms);
    if !intake::is_token(&name) {
        return Err(Problem::bad_request(CODE, format!("`name` must match {TOKEN_NAME}")));
    }
    let token = token_or_new(token, &name)?;
    let scopes = scopes.unwrap_or_else(|| DEFAULT_SCOPES.into());
    if scopes.is_empty() {
        return Err(Problem::bad_request(CODE, "`scopes` must contain at least one scope"));
    }
    let now_ms = app.tokens.now_ms();
    if expires_at_ms.is_some_and(|end| end <= now_ms) {
        return Err(Problem::bad_request(CODE, "`expires_at` must be in the future"));
    }
    let client = digest(&token);
    let made = ApiToken::new(
        name.clone(),
        scopes.into_iter().map(|scope| scope.as_str().to_owned()).collect(),
        client.clone(),
        expires_at_ms,
        app.bus.legacy_token_list.then(|| token.clone()),
    );
    app.bus.handle.create_api_token(&client, made).await?;
    app.attempts.lock().created(&client);
    Ok(shown(StatusCode::CREATED, name, token))
}

/// Rotate a client's token
///
/// The answer shows another token. The previous tokens stay valid for a while, so that the client can change over. Its topics
/// and its subscription stay.
#[utoipa::path(post, path = "/api_tokens/{name}/rotate", request_body = ClientTokenRotation,
    responses((status = 200, body = ClientToken),
    (status = "default", description = "400 invalid_api_token | 403 limit_reached | 404 unknown_api_token | \
        409 token_exists, ambiguous_name")))]
async fn rotate(
    _: Whole<RootOnly>,
    State(app): State<App>,
    Path(name): Path<String>,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Problem> {
    let ClientTokenRotation { token, overlap_seconds } = intake::object(intake::text(&body)?, CODE)?;
    let overlap = overlap_seconds.unwrap_or(OVERLAP_SECONDS);
    if overlap > MAX_OVERLAP_SECONDS {
        let detail = format!("`overlap_seconds` must be between 0 and {MAX_OVERLAP_SECONDS}");
        return Err(Problem::bad_request(CODE, detail));
    }
    let clients = app.bus.clients_named(&name).await?;
    let [client] = clients.as_slice() else {
        return Err(if clients.is_empty() {
            Problem::not_found("unknown_api_token", format!("no client has the name `{name}`"))
        } else {
            let detail = format!("{} clients have the name `{name}`", clients.len());
            Problem::new(StatusCode::CONFLICT, "ambiguous_name", detail)
        });
    };
    let token = token_or_new(token, &name)?;
    let (fresh, now_ms) = (digest(&token), app.tokens.now_ms());
    let listed = app.bus.legacy_token_list.then_some(&*token);
    let until_ms = now_ms + overlap * 1000;
    app.bus.handle.rotate_api_token(client, &fresh, listed, until_ms, now_ms).await?;
    app.attempts.lock().created(&fresh);
    Ok(shown(StatusCode::OK, name, token))
}

/// Delete a client's tokens
///
/// Its subscription ends with them. If several clients have the name, all are deleted. Repeating it is not an error. The name can
/// also be one of the client's tokens. Prefer `DELETE /api_tokens` then: a proxy in between may log paths.
#[utoipa::path(delete, path = "/api_tokens/{name}", responses((status = 204)))]
async fn remove(
    _: Whole<RootOnly>,
    State(app): State<App>,
    notes: Notes,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    let mut clients = app.bus.clients_named(&name).await?;
    if clients.is_empty() {
        clients.extend(client_with(&app, &name).await?);
    }
    delete(&app, &notes, clients).await
}

/// Delete a client's tokens by one of them
///
/// As by name, for callers that know the token only. A token must not be part of a path, which is logged.
#[utoipa::path(delete, path = "/api_tokens", request_body = OldClientToken, responses((status = 204),
    (status = "default", description = "400 invalid_api_token")))]
async fn remove_by_token(
    _: Whole<RootOnly>,
    State(app): State<App>,
    notes: Notes,
    JsonBytes(body): JsonBytes,
) -> Result<StatusCode, Problem> {
    let OldClientToken { token } = intake::object(intake::text(&body)?, CODE)?;
    let client = client_with(&app, &token).await?;
    delete(&app, &notes, client.into_iter().collect()).await
}

async fn client_with(app: &App, token: &str) -> Result<Option<String>, Problem> {
    let found = app.bus.handle.find_api_token(&digest(token), app.tokens.now_ms()).await?;
    Ok(found.map(|(client, _)| client))
}

async fn delete(app: &App, notes: &Notes, clients: Vec<String>) -> Result<StatusCode, Problem> {
    let registry = app.bus.handle.registry();
    let deleted: Vec<&ApiToken> =
        clients.iter().filter_map(|client| registry.api_tokens.get(client)).collect();
    let names: Vec<_> =
        deleted.iter().map(|token| json!({"name": token.name, "scopes": token.scopes})).collect();
    notes.before(names.into());
    for client in &clients {
        match app.bus.handle.delete_api_token(client).await {
            Ok(()) | Err(Error::NoSuchToken) => {}
            Err(error) => return Err(error.into()),
        }
        end_tasks_of(app, client).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

fn shown(status: StatusCode, name: String, token: String) -> Response {
    let view = Answer(ClientToken { name, token: Some(token) });
    (status, [(header::CACHE_CONTROL, "no-store")], view).into_response()
}

fn token_or_new(token: Option<String>, name: &str) -> Result<String, Problem> {
    let token = token.unwrap_or_else(|| format!("{name}--{}", random_hex()));
    if intake::is_new_token(&token) {
        return Ok(token);
    }
    let hint = if token.len() > 64 { "; give a shorter name, or a `token` of your own" } else { "" };
    Err(Problem::bad_request(CODE, format!("`token` must match {NEW_TOKEN}{hint}")))
}
