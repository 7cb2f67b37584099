//! The OpenAPI document, made from the handlers.

use axum::{
    Router,
    body::Bytes,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use serde_json::{Map, Value, json};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        Components, Info, OpenApi, OpenApiBuilder,
        security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};

use crate::app::App;

/// Title, security schemes and what is common to all routes.
pub(crate) fn head() -> OpenApi {
    let mut info = Info::new("Signalbox pacemaker", env!("CARGO_PKG_VERSION"));
    info.description = Some(
        "The control plane of Signalbox. Errors are application/problem+json with a stable `code`. Unknown fields of a body \
         are rejected (422 `unknown_field`), as are unknown query parameters (400 `invalid_query`). Values that are not \
         valid are 422 `invalid_<thing>`; the event bus answers 400 with the same codes, as clients of Routemaster \
         expect. A body that is not JSON is 400 `malformed_json`, a body above 1 MiB is 413 `body_too_large`. Every \
         change can be repeated: if a response is lost, send the request again."
            .to_owned(),
    );
    let mut components = Components::new();
    let scheme = |scheme| SecurityScheme::Http(HttpBuilder::new().scheme(scheme).build());
    components.add_security_scheme("bearer", scheme(HttpAuthScheme::Bearer));
    components.add_security_scheme("basic", scheme(HttpAuthScheme::Basic));
    // Types of `signalbox_api` refer to these by name, because subsystems own them.
    register::<signalbox_machines::Status>(&mut components);
    register::<signalbox_machines::Cause>(&mut components);
    let none: [&str; 0] = [];
    OpenApiBuilder::new()
        .info(info)
        .components(Some(components))
        .security(Some([SecurityRequirement::new("bearer", none), SecurityRequirement::new("basic", none)]))
        .build()
}

fn register<T: ToSchema + PartialSchema>(components: &mut Components) {
    components.schemas.insert(T::name().into_owned(), T::schema());
}

/// The document as text, made once.
#[derive(Debug, Clone)]
pub(crate) struct Document(String);

impl Document {
    /// `spellings`: paths and the second path that each answers to.
    pub(crate) fn new(document: &OpenApi, spellings: &[(&str, &str)]) -> Self {
        // Serialising what the macros made cannot fail; an empty document would show in the test of it.
        let mut document = serde_json::to_value(document).unwrap_or_default();
        let mut paths = document.get_mut("paths").and_then(Value::as_object_mut);
        if let Some(paths) = &mut paths {
            for &(path, other) in spellings {
                let copy = paths.get(path).cloned().unwrap_or_default();
                paths.insert(other.to_owned(), copy);
            }
        }
        for (path, operations) in paths.into_iter().flatten() {
            for (method, operation) in operations.as_object_mut().into_iter().flatten() {
                finish(method, path, operation);
            }
        }
        Self(serde_json::to_string_pretty(&document).unwrap_or_default())
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

/// Completes an operation with what handlers need not repeat: a unique name, the section, the errors that operations share, a
/// description of every answer, and the media type of errors.
fn finish(method: &str, path: &str, operation: &mut Value) {
    let parts = path.split(['/', '{', '}', '.']).filter(|part| !part.is_empty());
    let name = std::iter::once(method).chain(parts).collect::<Vec<_>>().join("_");
    operation["operationId"] = Value::String(name);
    if operation["tags"].is_null() {
        operation["tags"] = json!([tag(path.split('/').nth(1).unwrap_or_default())]);
    }
    parameters(path, operation);
    errors(operation);
    common(method, path, operation);
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

/// Adds the parts of the path that the handler does not declare: they are text.
fn parameters(path: &str, operation: &mut Value) {
    let declared = operation.get_mut("parameters").map(Value::take).unwrap_or_default();
    let declared = declared.as_array().map_or(&[][..], Vec::as_slice);
    let names = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let missing = names.filter(|name| declared.iter().all(|one| one["name"] != *name));
    let text = |name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}});
    let all: Vec<Value> = missing.map(text).chain(declared.iter().cloned()).collect();
    if !all.is_empty() {
        operation["parameters"] = all.into();
    }
}

/// Divides the errors of an operation, which a handler declares as one text:
/// `404 unknown_queue | 422 out_of_range, invalid_tenant`.
fn errors(operation: &mut Value) {
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    let Some(declared) = responses.remove("default") else { return };
    for error in declared["description"].as_str().unwrap_or_default().split(" | ") {
        let (status, codes) = error.split_once(' ').unwrap_or((error, ""));
        add(responses, status, codes);
    }
}

/// The section of the document that the routes with this first part belong to.
fn tag(first: &str) -> &str {
    match first {
        "acme" | "certificates" => "certificates",
        "api_tokens" | "bus" | "pulse" | "subscriber" | "subscribers" | "subscription" | "subscriptions"
        | "topics" => "bus",
        "backends" | "objects" => "objects",
        "check" | "health" | "metrics" | "pacemakers" => "health",
        "events" => "live",
        "instances" | "nodes" => "instances",
        "messages" | "queues" => "queues",
        "state-machines" => "machines",
        other => other,
    }
}

/// Adds the errors that follow from what an operation takes, so that a handler lists only others.
///
/// The extractors of [`auth`](crate::http::auth) reject callers of every operation that requires a token, and those of
/// [`body`](crate::http::body) and [`path`](crate::http::path) reject a path, a query and a body.
fn common(method: &str, path: &str, operation: &mut Value) {
    let first = path.split('/').nth(1).unwrap_or_default();
    let names = operation["parameters"].as_array().into_iter().flatten().filter(|one| one["in"] == "query");
    let query: Vec<String> = names.filter_map(|one| one["name"].as_str().map(str::to_owned)).collect();
    let asks = |name: &str| query.iter().any(|one| one == name);
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    let has_body = operation.get("requestBody").is_some();
    let is_object = *body == json!({"type": "object"});
    // Its handler reads the body as one of the API's types; others check JSON of any shape.
    let is_typed = !body.is_null() && !is_object && tag(first) != "bus" && !path.ends_with("{label}");
    let changes = method != "get";
    let of_host = path.contains("{hostname}") || path.contains("{server_name}");
    let of_instance = path.starts_with("/instances/{id}");
    let of_table = matches!(first, "hosts" | "instances" | "nodes" | "routes");
    let changes_table = changes && (of_table || first == "certificates");
    let changes_queue = first == "queues" && matches!(method, "put" | "patch");
    let replaces =
        changes_queue || (method == "put" && matches!(path, "/hosts/{hostname}" | "/instances/{id}"));
    let (of_label, is_label) = (path.contains("{label}"), path.ends_with("{label}"));
    let (of_queue, of_part) = (path.starts_with("/queues/{name}"), path.contains("{tenant}"));
    // `security(())` marks an operation as open; all others inherit the requirement of the document.
    let is_closed = operation.get("security").is_none();
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    // An operation that documents a 500 maps an unavailable fabric to it.
    let maps_unavailable = responses.contains_key("500");
    for (status, codes, applies) in [
        ("400", "invalid_path", path.contains('{')),
        ("400", "invalid_query", !query.is_empty()),
        ("400", "malformed_json, json_too_deep, json_not_interoperable, unreadable_body", has_body),
        ("400", "invalid_precondition", replaces),
        ("401", "token_required, token_unknown", is_closed),
        ("403", "scope_missing, confined_token, cross_site, csrf", is_closed),
        ("403", "host_not_allowed", of_host || of_instance),
        ("403", "not_yours", asks("subscriber")),
        ("404", "unknown_instance", path.starts_with("/instances/{id}/")),
        ("404", "unknown_queue", of_queue && (method, path) != ("put", "/queues/{name}")),
        ("404", "unknown_machine", path.contains("{machine}")),
        ("404", "unknown_label", of_label && !(is_label && matches!(method, "post" | "delete"))),
        ("404", "unknown_task", path.contains("{task}")),
        ("404", "unknown_subscription", asks("subscriber")),
        ("408", "body_too_slow", has_body),
        ("409", "foreign_key", changes && matches!(first, "hosts" | "certificates")),
        ("412", "queue_changed", changes_queue),
        ("413", "body_too_large", has_body),
        ("415", "unsupported_media_type", has_body),
        ("422", "unknown_field, missing_field, invalid_body", is_typed),
        ("422", "invalid_cursor", asks("cursor") && !path.ends_with("/labels")),
        ("422", "invalid_limit", asks("limit") && !matches!(first, "audit" | "subscriber")),
        ("422", "invalid_sort", asks("sort")),
        ("422", "invalid_wait", asks("wait")),
        ("422", "invalid_hostname", of_host),
        ("422", "invalid_id", of_instance),
        ("422", "invalid_label", first == "nodes"),
        ("422", "invalid_tenant", of_part || (first == "queues" && asks("tenant"))),
        ("422", "invalid_label_name", of_label),
        ("422", "out_of_range, invalid_weights", changes_queue),
        ("429", "too_many_attempts, token_limit_reached", is_closed),
        ("503", "fabric_unavailable, fabric_uninitialized", is_closed && !maps_unavailable),
        ("503", "routes_unavailable", changes_table || (of_table && !of_instance)),
        ("503", "routes_resyncing", changes_table),
        ("503", "queue_ending, busy", changes_queue),
        ("503", "fabric_full, busy", of_label && changes && !path.ends_with("/simulate")),
        (
            "504",
            "not_converged, no_router, convergence_unknown: the change is applied",
            changes_table && asks("wait"),
        ),
    ] {
        if applies {
            add(responses, status, codes);
        }
    }
}

/// Adds codes to the description of an answer, and the answer where it is missing.
fn add(responses: &mut Map<String, Value>, status: &str, codes: &str) {
    let answer = responses.entry(status).or_insert_with(
        || json!({"description": "", "content": {"application/json": {"schema": {"$ref": PROBLEM}}}}),
    );
    let described = answer["description"].as_str().unwrap_or_default();
    let separator = if described.is_empty() { "" } else { ", " };
    answer["description"] = format!("{codes}{separator}{described}").into();
}

const PROBLEM: &str = "#/components/schemas/Problem";

pub(crate) fn routes(document: Document) -> Router<App> {
    // All responses share these bytes: the document needs no token, and it is large.
    let text = Bytes::from(document.0);
    let answer = move || async move { ([(header::CONTENT_TYPE, "application/json")], text).into_response() };
    Router::new().route("/openapi.json", get(answer))
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        fs,
        path::Path,
    };

    use serde_json::Value;

    use crate::http::auth::LISTS;

    fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push((path.display().to_string(), fs::read_to_string(path).unwrap()));
            }
        }
    }

    /// The names of a file's types in the document.
    fn schemas(text: &str) -> Vec<String> {
        let mut names = Vec::new();
        for rest in text.split("ToSchema)").skip(1) {
            let end = rest.find("struct ").into_iter().chain(rest.find("enum ")).min().unwrap_or(0);
            let (attributes, item) = rest.split_at(end);
            let renamed = attributes.split("schema(as = ").nth(1).and_then(|rest| rest.split(')').next());
            let own = item.split(|char: char| !char.is_alphanumeric() && char != '_').nth(1);
            names.extend(renamed.or(own).map(str::to_owned));
        }
        names
    }

    /// utoipa keeps one of two schemas of the same name, without a word.
    #[test]
    fn no_two_types_have_one_name_in_the_document() {
        let mut files = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/src"), &mut files);
        let mut seen = BTreeMap::<String, String>::new();
        for (file, text) in &files {
            for name in schemas(text) {
                if let Some(other) = seen.insert(name.clone(), file.clone()) {
                    panic!(
                        "{name} is in {other} and in {file}: give one another name with #[schema(as = …)]"
                    );
                }
            }
        }
        assert!(seen.contains_key("QueueNumbers") && seen.len() > 80, "{seen:?}");
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document: Value =
            serde_json::from_str(&crate::router::document(utoipa::openapi::OpenApi::default())).unwrap();
        let text = document.to_string();
        let references: BTreeSet<&str> =
            text.split("\"#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(references.contains("Problem") && references.len() > 50, "{references:?}");
        let missing: Vec<_> =
            references.iter().filter(|name| document["components"]["schemas"][**name].is_null()).collect();
        assert!(missing.is_empty(), "described nowhere: {missing:?}");
    }

    #[test]
    fn every_list_takes_a_place() {
        let document: Value =
            serde_json::from_str(&crate::router::document(utoipa::openapi::OpenApi::default())).unwrap();
        let mut missing = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
                let has_pages =
                    parameters.iter().any(|one| one["name"] == "cursor" || one["name"] == "limit");
                let one = (method.to_uppercase(), path.clone());
                let is_known = LISTS.contains(&(&*one.0, &*one.1));
                if has_pages && !is_known {
                    missing.push(one);
                }
            }
        }
        assert!(missing.is_empty(), "not in LISTS: {missing:#?}");
        for (method, path) in LISTS {
            assert!(
                document["paths"][path][method.to_lowercase()].is_object(),
                "{method} {path} does not exist"
            );
        }
    }

    /// Clients that do not read must not stop what other processes with their token do.
    #[test]
    fn work_does_not_wait_for_responses_that_are_not_read() {
        let is_work = |method: &str, path: &str| crate::http::auth::is_work(&method.parse().unwrap(), path);
        for (method, path) in [
            ("POST", "/instances/{id}/heartbeat"),
            ("PUT", "/instances/{id}"),
            ("POST", "/queues/{name}/ack"),
            ("POST", "/topics/{name}"),
            ("PATCH", "/state-machines/{machine}/labels"),
            // It waits itself.
            ("POST", "/queues/{name}/pull"),
        ] {
            assert!(is_work(method, path), "{method} {path}");
        }
        for (method, path) in crate::http::auth::READS {
            assert!(crate::http::audit::is_data(&method, path), "{method} {path} is no data traffic");
            assert!(!is_work(method.as_str(), path), "{method} {path}");
        }
        assert!(!is_work("GET", "/queues") && !is_work("PUT", "/queues/{name}"));
    }

    #[test]
    fn shared_answers_follow_from_what_an_operation_takes() {
        let document: Value =
            serde_json::from_str(&crate::router::document(utoipa::openapi::OpenApi::default())).unwrap();
        let answers = |path: &str, method: &str| {
            let responses = document["paths"][path][method]["responses"].as_object().unwrap();
            responses.keys().cloned().collect::<BTreeSet<_>>()
        };
        assert!(
            ["400", "413", "415"]
                .iter()
                .all(|status| answers("/queues/{name}/ack", "post").contains(*status))
        );
        assert!(answers("/instances/{id}", "delete").contains("400"));
        assert_eq!(answers("/health", "get"), ["200".to_owned()].into(), "open, and it takes nothing");
        let of_backends = ["200", "401", "403", "429", "503"].map(str::to_owned);
        assert_eq!(
            answers("/backends", "get"),
            of_backends.into(),
            "a token is required, and it takes nothing"
        );
        assert!(!answers("/pulse", "get").contains("503"), "an unavailable fabric is 500 no_pulse there");
        let publish = &document["paths"]["/topics/{name}"]["post"]["responses"];
        let codes = publish["403"]["description"].as_str().unwrap();
        assert!(codes.contains("scope_missing") && codes.contains("topic_claimed"), "{codes}");
    }

    #[test]
    fn a_path_and_the_errors_of_an_operation_are_described_in_parts() {
        let document: Value =
            serde_json::from_str(&crate::router::document(utoipa::openapi::OpenApi::default())).unwrap();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for operation in operations.as_object().unwrap().values() {
                let mut statuses = operation["responses"].as_object().unwrap().keys();
                assert!(statuses.all(|status| status.parse::<u16>().is_ok()), "{path}: {operation}");
                let declared = operation["parameters"].as_array().into_iter().flatten();
                let parts = declared.filter(|one| one["in"] == "path").count();
                assert_eq!(parts, path.matches('{').count(), "{path}: {operation}");
            }
        }
        let responses = &document["paths"]["/queues/{name}/dead/redrive"]["post"]["responses"];
        assert_eq!(responses["404"]["description"], "unknown_queue");
    }

    /// Routes without a description are not in the document.
    #[test]
    fn routes_come_from_their_descriptions() {
        let mut files = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
        let by_hand: Vec<&str> = files
            .iter()
            .filter(|(file, _)| {
                let within = file.rsplit_once("/admin-api/src/").map_or(&**file, |(_, within)| within);
                !within.contains("test")
            })
            .flat_map(|(_, text)| text.split("#[cfg(test)]").next())
            .flat_map(|text| text.split(".route(").skip(1))
            .filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
            .collect();
        let copied = crate::api::bus::OTHER_SPELLINGS.map(|(_, other)| other);
        let by_hand: Vec<&str> = by_hand.into_iter().filter(|path| !copied.contains(path)).collect();
        assert_eq!(by_hand, ["/openapi.json"], "describe it with #[utoipa::path]");
    }
}
