//! Reading instances.

use axum::{Json as Answer, extract::State as AppState, http::StatusCode, response::Response};
use serde::Deserialize;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::view;
use crate::http::{
    App, Problem,
    auth::{Confined, Hosts, ReadRoutes},
    body::Query,
    list::{contains, shorten},
    path::Path,
    precondition::tagged,
};
use signalbox_access::Caller;
use signalbox_api::routes::{Instance, InstanceList};
use signalbox_route_table::{Hostname, InstanceId, Label, Spec, State, page};
use signalbox_routing::{Error, Live, Stored, in_flight};
use signalbox_store::{PAGE_BYTES, Pace};

/// Maximum number of instances that one request examines for its filter, and of their bytes. A page may be short or empty and still
/// have a cursor: then more instances have to be examined.
const MAX_EXAMINED: usize = 20_000;
const MAX_EXAMINED_BYTES: usize = 4 * PAGE_BYTES;
/// The list to which cursors belong.
const LIST: &str = "instances";
/// Instances that are read together, if they are small.
const CHUNK: usize = 500;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get))
}

/// The filter, and the position to continue from.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// The `next` of the previous page.
    cursor: Option<String>,
    /// Items of a page, 1 to 1000; default 100. A page of large items may have fewer and still a `next`.
    limit: Option<usize>,
    /// Only instances of this host name, exactly as registered.
    host: Option<String>,
    version_type: Option<String>,
    node: Option<String>,
    state: Option<State>,
    /// Only instances whose id, address, host names, version type or node contain this text.
    search: Option<String>,
}

/// A filter that was understood.
#[derive(Debug)]
struct Filter {
    host: Option<Hostname>,
    version_type: Option<Label>,
    node: Option<Label>,
    state: Option<State>,
    /// In lower case.
    search: String,
}

impl Filter {
    fn fits(&self, stored: &Stored, caller: &Caller) -> bool {
        let desired = &stored.record.desired;
        let spec = &desired.spec;
        self.host.as_ref().is_none_or(|host| spec.hostnames.contains(host))
            && self.version_type.as_ref().is_none_or(|wanted| *wanted == spec.version_type_id)
            && self.node.as_ref().is_none_or(|wanted| Some(wanted) == spec.node_id.as_ref())
            && self.state.is_none_or(|wanted| wanted == desired.state)
            && self.finds(stored)
            && caller.may_touch_all(&spec.hostnames)
    }

    fn finds(&self, stored: &Stored) -> bool {
        let spec = &stored.record.desired.spec;
        let address = spec.address.to_string();
        let node = spec.node_id.iter().map(Label::as_str);
        let texts = [stored.id.as_str(), &address, spec.version_type_id.as_str()];
        let hosts = spec.hostnames.iter().map(Hostname::as_str);
        contains(&self.search, texts.into_iter().chain(node).chain(hosts))
    }
}

/// List instances
///
/// In the order of their ids. A page of a filtered list may be short and still have a `next`: then more instances have to be
/// examined. A page also ends early when it has about 4 MiB. A token confined to hosts sees the instances that it may change.
#[utoipa::path(get, path = "/instances", params(ListQuery), responses((status = 200, body = InstanceList),
    (status = "default", description = "422 invalid_hostname, invalid_label")))]
async fn list(
    caller: Confined<ReadRoutes, Hosts>,
    AppState(app): AppState<App>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<InstanceList>, Problem> {
    let limit = page::limit(query.limit)?;
    let mut after = app.cursors.read(&caller, LIST, query.cursor.as_deref()).await?;
    let filter = Filter {
        host: query.host.as_deref().map(Hostname::parse).transpose()?,
        version_type: query.version_type.as_deref().map(|id| Label::parse(id, "version_type")).transpose()?,
        node: query.node.as_deref().map(|id| Label::parse(id, "node")).transpose()?,
        state: query.state,
        search: query.search.unwrap_or_default().to_lowercase(),
    };
    let mut source = Source::new(&app, filter.host.as_ref()).await?;
    let mut found: Vec<Stored> = Vec::new();
    let (mut examined, mut examined_bytes, mut found_bytes, mut ended) = (0, 0, 0, false);
    let mut pace = Pace::new(CHUNK);
    // One more than a page shows whether there is a next page.
    while found.len() <= limit
        && found_bytes <= PAGE_BYTES
        && examined < MAX_EXAMINED
        && examined_bytes < MAX_EXAMINED_BYTES
    {
        let ids = source.after(&app, after.as_deref(), pace.count()).await?;
        let Some(last) = ids.last() else {
            ended = true;
            break;
        };
        examined += ids.len();
        after = Some(last.to_string());
        let stored = app.registry.store().stored_many(&ids).await?;
        let bytes = stored.iter().map(Stored::bytes).sum();
        pace.read(ids.len(), bytes);
        examined_bytes += bytes;
        let fitting = stored.into_iter().filter(|stored| filter.fits(stored, &caller));
        found.extend(fitting.inspect(|stored| found_bytes += stored.bytes()));
    }
    let next = match shorten(&mut found, limit, Stored::bytes) {
        true => found.last().map(|stored| stored.id.to_string()),
        false => after.filter(|_| !ended),
    };
    let next = app.cursors.write(&caller, LIST, next).await?;
    let ids: Vec<InstanceId> = found.iter().map(|stored| stored.id.clone()).collect();
    let live = live(&app, &ids).await;
    let specs: Vec<&Spec> = found.iter().map(|stored| &stored.record.desired.spec).collect();
    let under_way = in_flight(app.registry.store(), &specs).await;
    let views = found.into_iter().zip(live).zip(under_way);
    let view = |((stored, live), under_way): ((Stored, Option<Live>), Option<u64>)| {
        view::instance(stored.id.as_str(), stored.record, live, under_way)
    };
    let instances = views.map(view).collect();
    Ok(Answer(InstanceList { instances, next }))
}

/// The source of IDs, in order: the fabric's index of all instances, or the table's set of one host, which is much
/// smaller.
enum Source {
    All,
    Host(Vec<InstanceId>),
}

impl Source {
    async fn new(app: &App, host: Option<&Hostname>) -> Result<Self, Error> {
        let Some(host) = host else { return Ok(Self::All) };
        let ids = app.registry.store().ids_of_host(host).await?;
        let mut ids = ids.iter().filter_map(|id| InstanceId::parse(id).ok()).collect::<Vec<_>>();
        ids.sort_unstable();
        Ok(Self::Host(ids))
    }

    async fn after(
        &mut self,
        app: &App,
        after: Option<&str>,
        count: usize,
    ) -> Result<Vec<InstanceId>, Error> {
        match self {
            Self::All => app.registry.store().ids_after(after, count).await,
            Self::Host(ids) => {
                let behind = |id: &&InstanceId| after.is_none_or(|after| id.as_str() > after);
                Ok(ids.iter().filter(behind).take(count).cloned().collect())
            }
        }
    }
}

/// The route table's data about instances; none while the primary is unavailable, which must not hide the rest.
async fn live(app: &App, ids: &[InstanceId]) -> Vec<Option<Live>> {
    match app.registry.store().live(ids).await {
        Ok(live) => live.into_iter().map(Some).collect(),
        Err(error) => {
            tracing::debug!(%error, "instances are shown without what the table knows");
            ids.iter().map(|_| None).collect()
        }
    }
}

/// Show an instance
///
/// `ETag` is its revision. For a token that is confined to hosts, an instance of other hosts does not exist.
#[utoipa::path(get, path = "/instances/{id}", responses((status = 200, body = Instance),
    (status = "default", description = "404 unknown_instance")))]
async fn get(
    caller: Confined<ReadRoutes, Hosts>,
    AppState(app): AppState<App>,
    Path(id): Path<InstanceId>,
) -> Result<Response, Problem> {
    let stored = app.registry.instance(&caller, &id).await?;
    let live = live(&app, std::slice::from_ref(&id)).await.pop().flatten();
    let under_way = in_flight(app.registry.store(), &[&stored.record.desired.spec]).await.pop().flatten();
    let revision = stored.record.revision;
    Ok(tagged(StatusCode::OK, revision, Answer(view::instance(id.as_str(), stored.record, live, under_way))))
}
