//! The OpenAPI document of the statistics, made from the handlers.

use utoipa::{
    OpenApi,
    openapi::{
        PathItem, RefOr,
        path::ParameterIn,
        security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};

use super::{
    history, latency, stream,
    subject::{PACEMAKER, TOTAL_PATH, UNCAUGHT_PATH},
    top, totals,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Signalbox sidecar",
        description = "Statistics of requests. Errors are application/problem+json with a stable `code`. A request needs the \
                       root token (401 `token_missing`, `token_unknown`) or a token with the scope `read` that is not \
                       confined (403 `scope_missing`, `confined_token`)."
    ),
    paths(totals::totals, top::top, history::history, latency::group, latency::instance, stream::stream)
)]
struct Statistics;

/// The document as JSON text.
pub fn document() -> String {
    let mut document = Statistics::openapi();
    let components = document.components.get_or_insert_default();
    for (name, scheme) in [("bearer", HttpAuthScheme::Bearer), ("basic", HttpAuthScheme::Basic)] {
        components.add_security_scheme(name, SecurityScheme::Http(HttpBuilder::new().scheme(scheme).build()));
    }
    let none: [&str; 0] = [];
    document.security =
        Some(vec![SecurityRequirement::new("bearer", none), SecurityRequirement::new("basic", none)]);
    let of_subject: Vec<(String, PathItem)> = (document.paths.paths.iter())
        .filter_map(|(path, item)| Some((path.strip_prefix("/stats/{kind}/{id}")?.to_owned(), item.clone())))
        .collect();
    for (rest, item) in of_subject {
        for name in [TOTAL_PATH, UNCAUGHT_PATH, PACEMAKER] {
            document.paths.paths.insert(format!("/stats/{name}{rest}"), without_subject(item.clone(), name));
        }
    }
    // Serializing the generated document cannot fail. An empty document would fail the test that compares it.
    document.to_json().unwrap_or_default()
}

/// The same endpoint for a subject that is part of the path.
fn without_subject(mut item: PathItem, name: &str) -> PathItem {
    if let Some(call) = &mut item.get {
        if let Some(parameters) = &mut call.parameters {
            parameters.retain(|one| !matches!(one, RefOr::T(one) if one.parameter_in == ParameterIn::Path));
        }
        call.operation_id = call.operation_id.take().map(|id| format!("{id}_{name}"));
    }
    item
}
