//! Many labels in one request, each with its own result, not atomically. And lists.

use std::collections::BTreeMap;

use axum::{
    Json as Answer,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use futures_util::{StreamExt as _, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    ManageMachines, ReadMachines, TellFacts,
    confined::OfMachine,
    key,
    params::{MachineName, label_name},
    removes,
    views::{changed, row},
};
use crate::http::{
    App, Problem,
    body::{Body, JsonBytes, Query, RawBytes, parse},
    path::Path,
};
use signalbox_api::machines::{Item, Items, LabelPage, Results, Retried};
use signalbox_machines::{Error, Filter, Status, Update};

/// Items of one request.
const MAX_ITEMS: usize = 1_000;
/// Items that are worked on at a time.
const AT_A_TIME: usize = 100;
/// Labels of a page: the default and the maximum.
const PAGE: usize = 100;
const MAX_PAGE: usize = 1_000;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list, create_many, update_many)).routes(routes!(retry_all))
}

impl Body for Items {}

/// Which labels are listed.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// Only those in this state.
    state: Option<String>,
    /// Only those with this status.
    status: Option<Status>,
    /// Only those that are suspended, or are not.
    suspended: Option<bool>,
    /// Only those whose last failure contains this text.
    error: Option<String>,
    /// Only those that have been in their state for at least this long: `2h`.
    older_than: Option<String>,
    /// Only those that have been in their state for less than this: `2h`.
    younger_than: Option<String>,
    /// Only those with these values of metadata, as a JSON object of paths: `{"user.plan":"pro"}`.
    metadata: Option<String>,
    /// `name` (the default), `oldest` or `newest`: by how long they have been in their state.
    sort: Option<String>,
    /// Also return how many match.
    count: Option<bool>,
    /// The `next` of the previous page.
    cursor: Option<String>,
    /// 1 to 1,000; default 100.
    limit: Option<usize>,
}

impl Wanted {
    fn filter(&self) -> Result<Filter, Problem> {
        let metadata = match &self.metadata {
            None => BTreeMap::new(),
            Some(text) => serde_json::from_str(text).map_err(|_| {
                Problem::unprocessable(
                    "invalid_filter",
                    "`metadata` must be a JSON object of paths and values",
                )
            })?,
        };
        Ok(Filter {
            state: self.state.clone(),
            status: self.status,
            suspended: self.suspended,
            error: self.error.clone(),
            older_than_seconds: age("older_than", self.older_than.as_deref())?,
            younger_than_seconds: age("younger_than", self.younger_than.as_deref())?,
            metadata,
        })
    }
}

/// Parses `2h` to seconds.
pub(super) fn age(name: &str, text: Option<&str>) -> Result<Option<u64>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let seconds = signalbox_condition::duration(text);
    let detail = || format!("`{name}` must be a duration such as 30m, 2h or 1d12h");
    seconds.map(Some).ok_or_else(|| Problem::unprocessable("invalid_filter", detail()))
}

/// The length of a page.
pub(super) fn limit(asked: Option<usize>) -> Result<usize, Problem> {
    let limit = asked.unwrap_or(PAGE);
    let detail = || format!("`limit` must be between 1 and {MAX_PAGE}");
    let valid = (1..=MAX_PAGE).contains(&limit);
    valid.then_some(limit).ok_or_else(|| Problem::unprocessable("invalid_limit", detail()))
}

/// The labels whose actions are retried.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// Only those in this state.
    state: Option<String>,
}

/// List labels
///
/// By state, status, age, error and metadata. A search by a value that the machine indexes (`index`) costs as much as it
/// finds. Others read labels, at most 10,000 or about 4 MiB per page; then the page may be shorter than the limit although there is
/// a next one. A token can read four lists at a time.
#[utoipa::path(get, path = "/state-machines/{machine}/labels", params(Wanted),
    responses((status = 200, body = LabelPage),
    (status = "default", description = "422 invalid_filter, too_many_labels | 404 unknown_state")))]
async fn list(
    _: OfMachine<ReadMachines>,
    State(app): State<App>,
    Path(MachineName(machine)): Path<MachineName>,
    Query(wanted): Query<Wanted>,
) -> Result<Answer<LabelPage>, Problem> {
    let limit = limit(wanted.limit)?;
    let filter = wanted.filter()?;
    let (search, cursor) = (&app.machines.search, wanted.cursor.as_deref());
    let found = match wanted.sort.as_deref() {
        None | Some("name") => search.page(&machine, &filter, cursor, limit).await?,
        Some("oldest") => search.by_age(&machine, &filter, true, cursor, limit).await?,
        Some("newest") => search.by_age(&machine, &filter, false, cursor, limit).await?,
        Some(_) => {
            return Err(Problem::unprocessable("invalid_sort", "`sort` must be name, oldest or newest"));
        }
    };
    let total = match wanted.count {
        Some(true) => Some(search.count(&machine, &filter).await?),
        _ => None,
    };
    Ok(Answer(LabelPage {
        labels: found.labels.into_iter().map(row).collect(),
        create: format!("/state-machines/{machine}/labels/:name"),
        next: found.next,
        total: total.map(|total| total.count),
        total_is_exact: total.map(|total| total.exact),
    }))
}

/// Create many labels
///
/// `{"labels":[{"name","metadata","idempotency_key"?}]}`, up to 1,000; returns a result for each, in order.
#[utoipa::path(post, path = "/state-machines/{machine}/labels", request_body = Items,
    responses((status = 200, body = Results), (status = "default", description = "422 too_many_items")))]
async fn create_many(
    OfMachine { 0: caller, .. }: OfMachine<TellFacts>,
    State(app): State<App>,
    Path(MachineName(machine)): Path<MachineName>,
    JsonBytes(body): JsonBytes,
) -> Result<Answer<Results>, Problem> {
    let items = read(&app, &machine, &body).await?;
    let labels = app.machines.labels.by(&caller.name);
    let (labels, machine) = (&labels, machine.as_str());
    let work = |item: Item| async move {
        let result = match label_name(&item.name) {
            Ok(()) => {
                let key = item.idempotency_key.as_deref();
                let created = labels.create(machine, &item.name, &item.metadata, false, key).await;
                created.map_err(Problem::from)
            }
            Err(problem) => Err(problem),
        };
        item_result(item.name, result, StatusCode::CREATED)
    };
    Ok(Answer(Results { results: stream::iter(items).map(work).buffered(AT_A_TIME).collect().await }))
}

/// Update the metadata of many labels
///
/// `{"labels":[{"name","metadata","idempotency_key"?}]}`, up to 1,000; returns a result for each, in order. With
/// `application/merge-patch+json`, null removes a member.
#[utoipa::path(patch, path = "/state-machines/{machine}/labels", request_body = Items,
    responses((status = 200, body = Results), (status = "default", description = "422 too_many_items")))]
async fn update_many(
    OfMachine { 0: caller, .. }: OfMachine<TellFacts>,
    State(app): State<App>,
    Path(MachineName(machine)): Path<MachineName>,
    headers: HeaderMap,
    RawBytes(body): RawBytes,
) -> Result<Answer<Results>, Problem> {
    let patch = removes(&headers)?;
    let items = read(&app, &machine, &body).await?;
    let labels = app.machines.labels.by(&caller.name);
    let (labels, machine) = (&labels, machine.as_str());
    let work = |item: Item| async move {
        let key = item.idempotency_key.as_deref();
        let update = Update { metadata: &item.metadata, patch, key };
        let result = match label_name(&item.name) {
            Ok(()) => labels.update(machine, &item.name, &update).await.map_err(Problem::from),
            Err(problem) => Err(problem),
        };
        item_result(item.name, result, StatusCode::OK)
    };
    Ok(Answer(Results { results: stream::iter(items).map(work).buffered(AT_A_TIME).collect().await }))
}

async fn read(app: &App, machine: &str, body: &[u8]) -> Result<Vec<Item>, Problem> {
    let items: Items = parse(body)?;
    app.machines.definitions.current(machine).await?;
    if items.labels.len() > MAX_ITEMS {
        let detail = format!("send at most {MAX_ITEMS} labels at a time, not {}", items.labels.len());
        return Err(Problem::unprocessable("too_many_items", detail));
    }
    Ok(items.labels)
}

fn item_result(name: String, result: Result<signalbox_machines::Answer, Problem>, good: StatusCode) -> Value {
    let (status, mut value) = match result {
        Ok(answer) => {
            // A thousand answers do not repeat the metadata.
            let answer = signalbox_machines::Answer { metadata: None, ..answer };
            (good.as_u16(), serde_json::to_value(changed(name, answer)).unwrap_or_default())
        }
        Err(problem) => (
            problem.status().as_u16(),
            json!({"name": name, "code": problem.code(), "detail": problem.detail()}),
        ),
    };
    value["result"] = json!(status);
    value
}

/// Retry the actions of all errored labels
///
/// With an `Idempotency-Key`, a repeat retries no label that the first request has retried.
#[utoipa::path(post, path = "/state-machines/{machine}/retry", params(Which), responses((status = 200, body = Retried),
    (status = "default", description = "404 unknown_state | 422 invalid_idempotency_key, idempotency_conflict | \
        503 fabric_full, busy")))]
async fn retry_all(
    OfMachine { 0: caller, .. }: OfMachine<ManageMachines>,
    State(app): State<App>,
    Path(MachineName(machine)): Path<MachineName>,
    Query(which): Query<Which>,
    headers: HeaderMap,
) -> Result<Answer<Retried>, Problem> {
    let version = app.machines.definitions.current(&machine).await?;
    if let Some(state) = which.state.as_ref().filter(|state| version.machine.state(state).is_none()) {
        return Err(Error::NoSuchState(state.clone()).into());
    }
    let labels = app.machines.labels.by(&caller.name).once(key(&headers)?, None);
    let (mut retried, mut cursor) = (0, None::<String>);
    loop {
        let errored = Some(Status::Errored);
        let names = app.machines.label_store.list(&machine, &[], errored, cursor.as_deref(), PAGE).await?;
        let Some(last) = names.last().cloned() else { break };
        for name in names {
            if let Some(state) = &which.state {
                let record = app.machines.label_store.label_or_tombstone(&machine, &name).await;
                if !record.is_ok_and(|record| *record.state == **state) {
                    continue;
                }
            }
            match labels.retry(&machine, &name).await {
                Ok(answer) => retried += u64::from(!answer.repeated),
                // Another request was faster.
                Err(Error::NotErrored | Error::Gone | Error::NoSuchLabel) => {}
                // It keeps the others from nothing.
                Err(Error::Unreadable) => app.machines.label_store.report_unreadable(&machine, &name),
                Err(error) => return Err(error.into()),
            }
        }
        cursor = Some(last);
    }
    Ok(Answer(Retried { retried }))
}
