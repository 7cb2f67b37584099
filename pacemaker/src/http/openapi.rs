//! The OpenAPI document, made from the handlers.

use axum::{Router, http::header, response::IntoResponse, routing::get};
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
         may not have are errors (422 `unknown_field`), as are query parameters (400 `invalid_query`). A body that is \
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
        Self(document.to_pretty_json().unwrap_or_default())
    }
}

pub(super) fn routes(document: Document) -> Router<App> {
    let answer =
        move || async move { ([(header::CONTENT_TYPE, "application/json")], document.0).into_response() };
    Router::new().route("/openapi.json", get(answer))
}
