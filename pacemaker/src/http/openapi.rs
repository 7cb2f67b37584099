//! The OpenAPI document, made from the handlers.

use axum::{
    Router,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use serde_json::Value;
use utoipa::openapi::{
    Components, Info, OpenApi, OpenApiBuilder,
    security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
};

use super::App;

/// Title, security schemes and what is common to all routes.
pub(super) fn head() -> OpenApi {
    let mut info = Info::new("Signalbox pacemaker", env!("CARGO_PKG_VERSION"));
    info.description = Some(
        "The control plane of Signalbox. Errors are application/problem+json with a stable `code`. Fields that a body \
         may not have are errors (422 `unknown_field`), as are query parameters (400 `invalid_query`); the event bus says \
         400 where the other routes say 422, as the original did. A body that is \
         no JSON is 400 `malformed_json`, one above 1 MiB is 413 `body_too_large`. Every change can be repeated: when \
         an answer is lost, send the request again."
            .to_owned(),
    );
    let mut components = Components::new();
    let scheme = |scheme| SecurityScheme::Http(HttpBuilder::new().scheme(scheme).build());
    components.add_security_scheme("bearer", scheme(HttpAuthScheme::Bearer));
    components.add_security_scheme("basic", scheme(HttpAuthScheme::Basic));
    let none: [&str; 0] = [];
    OpenApiBuilder::new()
        .info(info)
        .components(Some(components))
        .security(Some([SecurityRequirement::new("bearer", none), SecurityRequirement::new("basic", none)]))
        .build()
}

/// The document of all routes.
pub(crate) fn document() -> String {
    let (_, document) = super::routes().split_for_parts();
    Document::new(&document).0
}

/// The document as text, made once.
#[derive(Debug, Clone)]
pub(super) struct Document(String);

impl Document {
    pub(super) fn new(document: &OpenApi) -> Self {
        // Serialising what the macros made cannot fail; an empty document would show in the test of it.
        let mut document = serde_json::to_value(document).unwrap_or_default();
        let paths = document.get_mut("paths").and_then(Value::as_object_mut);
        for (path, operations) in paths.into_iter().flatten() {
            for (method, operation) in operations.as_object_mut().into_iter().flatten() {
                finish(method, path, operation);
            }
        }
        Self(serde_json::to_string_pretty(&document).unwrap_or_default())
    }
}

/// What is the same for each operation and would only clutter the handlers: a unique name, a description of every
/// answer, and the media type of errors.
fn finish(method: &str, path: &str, operation: &mut Value) {
    let parts = path.split(['/', '{', '}', '.']).filter(|part| !part.is_empty());
    let name = std::iter::once(method).chain(parts).collect::<Vec<_>>().join("_");
    operation["operationId"] = Value::String(name);
    for (status, answer) in operation["responses"].as_object_mut().into_iter().flatten() {
        let Some(answer) = answer.as_object_mut() else { continue };
        let reason =
            StatusCode::from_bytes(status.as_bytes()).ok().and_then(|status| status.canonical_reason());
        let description = answer.entry("description").or_insert_with(|| "".into());
        if description.as_str().is_none_or(str::is_empty) {
            *description = reason.unwrap_or("").into();
        }
        let content = answer.get_mut("content").and_then(Value::as_object_mut);
        if let Some(content) = content
            && content.get("application/json").is_some_and(|json| json["schema"]["$ref"] == PROBLEM)
            && let Some(json) = content.remove("application/json")
        {
            content.insert("application/problem+json".to_owned(), json);
        }
    }
}

const PROBLEM: &str = "#/components/schemas/Problem";

pub(super) fn routes(document: Document) -> Router<App> {
    let answer =
        move || async move { ([(header::CONTENT_TYPE, "application/json")], document.0).into_response() };
    Router::new().route("/openapi.json", get(answer))
}
