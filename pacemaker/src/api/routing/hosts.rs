//! Hosts.

use axum::{
    Json as Answer,
    extract::State as AppState,
    http::{HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    answers::{NotConverged, Refused},
    changes::WaitQuery,
    wait::wait,
};
use crate::http::{
    App, Problem, SERIAL_HEADER,
    auth::{Granted, ManageRoutes, ReadRoutes},
    body::Query,
    path::Path,
};
use signalbox_route_table::{Hostname, Policy, TableHost, page};
use signalbox_routing::Error;

/// Maximum number of hosts that one request examines for a confined token.
const MAX_LOOKED_AT: usize = 20_000;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, super::policies::put, remove))
}

/// The position to continue from.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// The `next` of the previous page.
    pub(crate) cursor: Option<String>,
    /// Items of a page, 1 to 1000; default 100.
    pub(crate) limit: Option<usize>,
}

/// A host and its entry in the route table.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct HostView {
    #[schema(example = "shop.example")]
    hostname: String,
    addresses: Vec<String>,
    instance_ids: Vec<String>,
    /// The key under which its requests are counted.
    log_key: Option<String>,
    /// The entry of the route table for the edge except the addresses: the policy, and log keys, weights and health of
    /// single addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    policy: Option<serde_json::Value>,
    /// The policy as it was set; only for a single host.
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<Policy>,
    /// Registered through this API; otherwise written directly to the routes primary.
    registered: bool,
}

impl HostView {
    fn new(hostname: String, host: TableHost, registered: bool) -> Self {
        let TableHost { addresses, instance_ids, log_key, policy } = host;
        Self {
            hostname,
            addresses,
            instance_ids,
            log_key,
            policy: policy.map(policy_value),
            rules: None,
            registered,
        }
    }
}

/// A policy as JSON; an invalid one that was written directly is shown as text.
pub(super) fn policy_value(policy: String) -> serde_json::Value {
    serde_json::from_str(&policy).unwrap_or(serde_json::Value::String(policy))
}

/// A page of hosts, ordered by name.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct HostList {
    hosts: Vec<HostView>,
    /// Pass it as `cursor` for the next page. Absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// List the registered hosts
///
/// Includes hosts without an instance. Entries that were written directly are not included; see `/routes/dump`.
#[utoipa::path(get, path = "/hosts", tag = "hosts", params(PageQuery), responses(
    (status = 200, body = HostList),
    (status = 422, description = "invalid_cursor, invalid_limit", body = Problem),
    (status = 503, description = "routes_unavailable", body = Problem)))]
async fn list(
    caller: Granted<ReadRoutes>,
    AppState(app): AppState<App>,
    Query(query): Query<PageQuery>,
) -> Result<Answer<HostList>, Problem> {
    let limit = page::limit(query.limit)?;
    let mut after = query.cursor.as_deref().map(page::decode).transpose()?;
    let store = app.registry.store();
    let mut names: Vec<String> = Vec::new();
    let mut looked_at = 0;
    while names.len() <= limit && looked_at < MAX_LOOKED_AT {
        let chunk = store.hosts_after(after.as_deref(), page::MAX_LIMIT).await?;
        let Some(last) = chunk.last() else { break };
        looked_at += chunk.len();
        after = Some(last.clone());
        let visible = |name: &String| Hostname::parse(name).is_ok_and(|name| caller.0.may_touch(&name));
        names.extend(chunk.into_iter().filter(visible));
    }
    let next = if names.len() > limit {
        names.truncate(limit);
        names.last().map(|last| page::encode(last))
    } else {
        after.filter(|_| looked_at >= MAX_LOOKED_AT).map(|last| page::encode(&last))
    };
    let hosts = store.table_hosts(&names).await?;
    let hosts = names.into_iter().zip(hosts).map(|(name, host)| HostView::new(name, host, true)).collect();
    Ok(Answer(HostList { hosts, next }))
}

/// Show a host
#[utoipa::path(get, path = "/hosts/{hostname}", tag = "hosts", params(("hostname" = String, Path)), responses(
    (status = 200, body = HostView), (status = 403, description = "host_not_allowed", body = Problem),
    (status = 404, description = "unknown_host", body = Problem),
    (status = 422, description = "invalid_hostname", body = Problem),
    (status = 503, description = "routes_unavailable", body = Problem)))]
async fn get(
    caller: Granted<ReadRoutes>,
    AppState(app): AppState<App>,
    Path(hostname): Path<Hostname>,
) -> Result<Answer<HostView>, Problem> {
    if !caller.0.may_touch(&hostname) {
        return Err(Error::HostNotAllowed { hostname: hostname.to_string() }.into());
    }
    let store = app.registry.store();
    let name = hostname.to_string();
    let registered = store.host_version_types(std::slice::from_ref(&name)).await?.pop().flatten().is_some();
    let host = store.table_hosts(std::slice::from_ref(&name)).await?.pop().unwrap_or_default();
    let rules = store.policy(&hostname).await?.map(|wanted| wanted.value);
    let registered = registered || rules.is_some();
    if !registered && !host.exists() {
        return Err(Error::NoHost.into());
    }
    Ok(Answer(HostView { rules, ..HostView::new(name, host, registered) }))
}

/// Remove a host
///
/// Its instances stop serving it; an instance without another host is removed as well, and so are entries that were
/// written directly. The host answers 404 from then on. The call can be repeated.
#[utoipa::path(delete, path = "/hosts/{hostname}", tag = "hosts", params(("hostname" = String, Path), WaitQuery), responses(
    (status = 204, headers(("x-signalbox-serial" = u64, description = "The serial of the route table with this \
        change in it"))),
    (status = 409, description = "foreign_key", body = Problem),
    (status = 422, description = "invalid_hostname, invalid_wait", body = Problem), Refused, NotConverged))]
async fn remove(
    caller: Granted<ManageRoutes>,
    AppState(app): AppState<App>,
    Path(hostname): Path<Hostname>,
    Query(query): Query<WaitQuery>,
) -> Result<Response, Problem> {
    let patience = query.patience()?;
    let change = app.registry.remove_host(&caller.0, &hostname).await?;
    wait(&app, &change.epoch, change.serial, patience).await?;
    Ok((StatusCode::NO_CONTENT, [(SERIAL_HEADER.clone(), HeaderValue::from(change.serial))]).into_response())
}
