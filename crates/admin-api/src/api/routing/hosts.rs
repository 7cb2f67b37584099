//! Hosts.

use std::time::Duration;

use axum::{
    Extension, Json as Answer,
    extract::State as AppState,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    changes::WaitQuery,
    directory::HostSummary,
    errors::check_host,
    policies::{note_before, raw, without_passwords},
    wait::{Removed, wait},
};
use crate::http::{
    App, Problem,
    audit::Notes,
    auth::{Confined, Hosts, ManageRoutes, Permission as _, ReadRoutes},
    body::Query,
    list::{ListQuery, Listing, SortKey},
    path::Path,
    precondition::tagged,
    slots::InProgress,
};
use signalbox_access::Caller;
use signalbox_api::{
    Time,
    routes::{Host, HostList, Promotion, Undoable},
};
use signalbox_route_table::{Hostname, InstanceId, Label, Policy, Share, TableHost, page};
use signalbox_routing::{Error, HostTable, Stored, host_pace, host_state};
use signalbox_store::PAGE_BYTES;

/// Maximum number of hosts that one request examines for a confined token.
const MAX_EXAMINED: usize = 20_000;
/// The list to which cursors belong.
const LIST: &str = "hosts";

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, super::policies::put, remove))
}

/// The position to continue from.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// Only names that contain this text.
    pub(crate) search: Option<String>,
    /// The `next` of the previous page.
    pub(crate) cursor: Option<String>,
    /// Items of a page, 1 to 1000; default 100. A page of large items may have fewer and still a `next`.
    pub(crate) limit: Option<usize>,
}

/// `policy` is that of the table, as the caller may see it.
fn view(hostname: String, host: TableHost, policy: Option<Value>, registered: bool) -> Host {
    let TableHost { addresses, instance_ids, log_key, policy: _ } = host;
    Host {
        hostname,
        addresses,
        instance_ids,
        log_key,
        policy,
        rules: None,
        promotion: None,
        registered,
        state: None,
    }
}

/// A promotion as the API shows it.
fn promotion_view(promotion: signalbox_routing::Promotion, now_ms: u64) -> Promotion {
    let texts =
        |labels: &[Label]| labels.iter().map(|label| label.as_str().to_owned()).collect::<Vec<String>>();
    let undo = promotion.undo(now_ms).map(|before| Undoable {
        version_types: texts(&before.version_types),
        shares: before.shares.as_ref().map(|shares| shares.iter().map(Share::part).collect()),
        until: Time::from_ms(before.until_ms),
    });
    Promotion {
        version_type_id: promotion.version_type.as_ref().map(|label| label.as_str().to_owned()),
        at: Time::from_ms(promotion.at_ms),
        superseded: texts(&promotion.superseded),
        undo,
    }
}

/// Hosts with their states: the first of `names`, until they have about [`PAGE_BYTES`], and one at least. Other requests get their
/// turn between the parts.
async fn views(app: &App, names: &[String], caller: &Caller) -> Result<Vec<Host>, Problem> {
    let store = app.registry.store();
    let (mut hosts, mut tables) = (Vec::new(), Vec::new());
    let (mut bytes, mut pace) = (PAGE_BYTES, host_pace());
    while hosts.len() < names.len() && bytes > 0 {
        let part = store.table_hosts_part(&names[hosts.len()..], &mut pace).await?;
        for mut host in part {
            if bytes == 0 {
                break;
            }
            bytes = bytes.saturating_sub(host.bytes());
            let policy = host.policy.take().map(parsed);
            tables.push(HostTable::with_policy(&host, policy.as_ref().unwrap_or(&Value::Null)));
            let policy = policy.map(|policy| visible(policy, caller));
            hosts.push(view(names[hosts.len()].clone(), host, policy, true));
        }
        tokio::task::yield_now().await;
    }
    let states = store.host_states(tables, |id| caller.may_count_as(id)).await?;
    for (host, state) in hosts.iter_mut().zip(states) {
        host.state = Some(host_state(state));
    }
    Ok(hosts)
}

/// A policy of the table. One that was written by hand and is not JSON is its text.
fn parsed(policy: String) -> Value {
    serde_json::from_str(&policy).unwrap_or(Value::String(policy))
}

/// A policy of the table as the caller may see it.
fn visible(mut policy: Value, caller: &Caller) -> Value {
    let secrets = may_see_secrets(caller);
    if policy.is_string() {
        return if secrets { policy } else { Value::String(REDACTED.to_owned()) };
    }
    Policy::hide_passwords(&mut policy);
    if !secrets {
        redact(&mut policy);
    }
    policy
}

/// A policy of the table as the caller may see it. One that was written by hand and is not JSON is shown as its text.
pub(super) fn policy_value(policy: String, caller: &Caller) -> Value {
    visible(parsed(policy), caller)
}

/// Shown in place of a secret.
const REDACTED: &str = "(hidden)";

/// Whether the caller may see values of headers in policies: credentials for instances, and the one that lets a client past
/// maintenance. A caller who may set them may read them.
fn may_see_secrets(caller: &Caller) -> bool {
    caller.has_any(ManageRoutes::ANY_OF)
}

/// Hides the values of headers in a policy that may be secrets.
fn redact(policy: &mut Value) {
    let hide = |value: &mut Value| *value = Value::String(REDACTED.to_owned());
    if let Some(value) = policy.pointer_mut("/maintenance/except_header/value") {
        hide(value);
    }
    if let Some(headers) = policy.pointer_mut("/headers/request/set").and_then(Value::as_object_mut) {
        headers.values_mut().for_each(hide);
    }
}

/// The policy as it was set, as the caller may see it.
pub fn visible_policy(rules: Policy, caller: &Caller) -> Policy {
    let rules = without_passwords(&rules);
    if may_see_secrets(caller) {
        return rules;
    }
    let redacted = serde_json::to_value(&rules).and_then(|mut value| {
        redact(&mut value);
        serde_json::from_value(value)
    });
    redacted.unwrap_or_default()
}

/// How hosts are listed: a search also covers version types.
pub(super) const LISTING: Listing<'static, HostSummary> = Listing {
    name: |host| host.name.as_str(),
    texts: |host| host.versions.iter().map(String::as_str).collect(),
    fields: &[
        ("hostname", |host| SortKey::from(host.name.as_str())),
        ("instances", |host| SortKey::from(host.instances as u64)),
        ("healthy", |host| SortKey::from(host.healthy() as u64)),
        ("unhealthy", |host| SortKey::from(host.unhealthy.len() as u64)),
    ],
};

/// How long a list waits for a reading of all hosts.
const PATIENCE: Duration = Duration::from_secs(10);

/// The hosts that a token covers, from a reading that is used for all lists: of a large table it may be some seconds old.
pub async fn all(app: &App, caller: &Caller, patience: Duration) -> Result<Vec<HostSummary>, Problem> {
    let reading = app.directory.hosts(app.registry.store(), patience).await;
    let reading = reading.map_err(|detail| Problem::unavailable("routes_unavailable", detail))?;
    let whole = caller.is_unconfined();
    Ok(reading.hosts.iter().filter(|host| whole || caller.may_touch(&host.name)).cloned().collect())
}

/// List the registered hosts
///
/// Includes hosts without an instance. Entries that were written directly are not included; see `/routes/dump`. Sorted by
/// `hostname`, `instances`, `healthy` or `unhealthy`; a search covers names and version types. A list of a large table that is
/// searched or sorted may be some seconds old. A page ends early, with a `next`, when it has about 4 MiB. If the path rules of its
/// hosts lead to more than 256 services, the `state` of the hosts with the most services is `unknown`. A token can read four lists
/// at a time: of hosts, instances, certificates, labels, or the audit log. A further one waits for two seconds at most.
#[utoipa::path(get, path = "/hosts", params(ListQuery), responses((status = 200, body = HostList)))]
async fn list(
    caller: Confined<ReadRoutes, Hosts>,
    AppState(app): AppState<App>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<HostList>, Problem> {
    if query.search.is_none() && query.sort.is_none() {
        return list_by_name(&app, &caller, &query).await;
    }
    let limited = ListQuery { limit: Some(page::limit(query.limit)?), ..query };
    let page = LISTING.page(all(&app, &caller, PATIENCE).await?, &limited)?;
    let names: Vec<String> = page.items.iter().map(|host| host.name.to_string()).collect();
    let hosts = views(&app, &names, &caller).await?;
    let next = match hosts.len().checked_sub(1) {
        Some(last) if hosts.len() < names.len() => LISTING.behind(&page.items[last], &limited)?,
        _ => page.next,
    };
    Ok(Answer(HostList { hosts, next, total: Some(page.total as u64) }))
}

/// A page of hosts in the order of their names, which the table has an index of.
async fn list_by_name(app: &App, caller: &Caller, query: &ListQuery) -> Result<Answer<HostList>, Problem> {
    let limit = page::limit(query.limit)?;
    let mut after = app.cursors.read(caller, LIST, query.cursor.as_deref()).await?;
    let store = app.registry.store();
    let mut names: Vec<String> = Vec::new();
    let mut examined = 0;
    while names.len() <= limit && examined < MAX_EXAMINED {
        let chunk = store.hosts_after(after.as_deref(), page::MAX_LIMIT).await?;
        let Some(last) = chunk.last() else { break };
        examined += chunk.len();
        after = Some(last.clone());
        let visible = |name: &String| Hostname::parse(name).is_ok_and(|name| caller.may_touch(&name));
        names.extend(chunk.into_iter().filter(visible));
    }
    let mut next = if names.len() > limit {
        names.truncate(limit);
        names.last().cloned()
    } else {
        after.filter(|_| examined >= MAX_EXAMINED)
    };
    let hosts = views(app, &names, caller).await?;
    if hosts.len() < names.len() {
        next = hosts.last().map(|host| host.hostname.clone());
    }
    let next = app.cursors.write(caller, LIST, next).await?;
    Ok(Answer(HostList { hosts, next, total: None }))
}

/// Show a host
///
/// `ETag` is the revision of its policy, `"0"` without one.
#[utoipa::path(get, path = "/hosts/{hostname}", responses((status = 200, body = Host),
    (status = "default", description = "404 unknown_host")))]
async fn get(
    caller: Confined<ReadRoutes, Hosts>,
    AppState(app): AppState<App>,
    Path(hostname): Path<Hostname>,
    Extension(place): Extension<InProgress>,
) -> Result<Response, Problem> {
    check_host(&caller, &hostname)?;
    let store = app.registry.store();
    let name = hostname.to_string();
    let registered = store.host_version_types(std::slice::from_ref(&name)).await?.pop().flatten().is_some();
    let host = store.table_hosts(std::slice::from_ref(&name)).await?.pop().unwrap_or_default();
    let wanted = store.policy(&hostname).await?;
    let revision = wanted.as_ref().map_or(0, |wanted| wanted.revision);
    let rules = wanted.map(|wanted| raw(&visible_policy(wanted.value, &caller)));
    let promotion = match store.promotion(&hostname).await? {
        Some(promotion) => Some(promotion_view(promotion.value, store.table_now_ms().await?)),
        None => None,
    };
    let registered = registered || rules.is_some();
    if !registered && !host.exists() {
        return Err(Error::NoHost.into());
    }
    let table = HostTable::new(&host);
    // To read the hosts to which its rules lead can be as much work as a list.
    if table.all_services().next().is_some() {
        place.take_list(&app.limits.lists, &caller).await?;
    }
    let state = store.host_states(vec![table], |id| caller.may_count_as(id)).await?;
    let state = state.into_iter().next().map(host_state);
    let policy = host.policy.clone().map(|policy| policy_value(policy, &caller));
    let shown = Host { rules, promotion, state, ..view(name, host, policy, registered) };
    Ok(tagged(StatusCode::OK, revision, Answer(shown)))
}

/// Remove a host
///
/// Its instances stop serving it; an instance without another host is removed as well, and so are entries that were
/// written directly. The host answers 404 from then on. The call can be repeated.
#[utoipa::path(delete, path = "/hosts/{hostname}", params(WaitQuery), responses(Removed))]
async fn remove(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(hostname): Path<Hostname>,
    Query(query): Query<WaitQuery>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    note_before(&app, &notes, &caller, &hostname).await?;
    for Stored { id, record, .. } in instances_of(&app, &caller, &hostname).await? {
        let mut left = record.desired.spec.hostnames.clone();
        left.retain(|name| *name != hostname);
        let left: Vec<String> = left.iter().map(ToString::to_string).collect();
        let after = (!left.is_empty()).then(|| json!({"id": id.to_string(), "hostnames": left}));
        notes.instance(Some(json!(super::view::instance(id.as_str(), record, None, None))), after);
    }
    let change = app.registry.remove_host(&caller, &hostname).await?;
    let serial = wait(&app, &change.epoch, change.serial, patience).await?;
    Ok((StatusCode::NO_CONTENT, serial).into_response())
}

/// The instances of a host, for the audit log. None for a caller without access to the host.
pub(super) async fn instances_of(
    app: &App,
    caller: &Caller,
    hostname: &Hostname,
) -> Result<Vec<Stored>, Problem> {
    if !caller.may_touch(hostname) {
        return Ok(Vec::new());
    }
    let store = app.registry.store();
    let ids = store.ids_of_host(hostname).await?;
    let mut ids: Vec<InstanceId> = ids.iter().filter_map(|id| InstanceId::parse(id).ok()).collect();
    ids.sort_unstable();
    let mut instances = store.stored_many(&ids).await?;
    instances.retain(|one| one.record.desired.spec.hostnames.contains(hostname));
    Ok(instances)
}
