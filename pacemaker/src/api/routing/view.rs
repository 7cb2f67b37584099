//! The API's view of instances.

use serde::Serialize;

use signalbox_route_table::{Health, Record, State};
use signalbox_routing::{Live, RouteChange};

/// An instance.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct InstanceView {
    #[schema(example = "i-7")]
    pub(super) id: String,
    #[schema(example = "127.0.0.1:9001")]
    address: String,
    #[schema(example = json!(["shop.example"]))]
    hostnames: Vec<String>,
    #[schema(example = "17")]
    version_type_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    version_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    application_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_id: Option<String>,
    weight: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<Health>,
    state: State,
    /// When a draining instance is removed, in unix milliseconds of the routes primary's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    drain_deadline_ms: Option<u64>,
    /// Rises with each change of any instance.
    revision: u64,
    /// Requests in flight, as the routers reported within the last seconds. Absent where the edge does not count them:
    /// it counts them for hosts whose policy has p2c, or any feature that takes requests off the hot path.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<u64>,
    #[serde(flatten)]
    table: Option<TableView>,
}

/// The route table's data about an instance. Absent while the routes primary does not answer.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct TableView {
    /// Whether this revision is in the table.
    routed: bool,
    /// When the lease expires without a heartbeat, in unix milliseconds of the routes primary's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_expires_ms: Option<u64>,
    /// Whether its checks pass. Absent without a health check.
    #[serde(skip_serializing_if = "Option::is_none")]
    healthy: Option<bool>,
    /// The result of the check that made it unhealthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    unhealthy_because: Option<String>,
    /// Time of the last change of its health, in unix milliseconds of the routes primary's clock; absent until the
    /// first change.
    #[serde(skip_serializing_if = "Option::is_none")]
    health_since_ms: Option<u64>,
    /// Faults reported since it was registered.
    faults: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_fault: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_fault_ms: Option<u64>,
}

impl InstanceView {
    pub(super) fn new(id: &str, record: Record, live: Option<Live>) -> Self {
        let Record { revision, desired } = record;
        let spec = desired.spec;
        let text = |label: signalbox_route_table::Label| label.as_str().to_owned();
        let table = live.map(|live| TableView {
            routed: live.revision == Some(revision),
            lease_expires_ms: live.lease_expires_ms,
            healthy: spec.health.is_some().then_some(live.unhealthy.is_none()),
            unhealthy_because: live.unhealthy,
            health_since_ms: live.health_ms,
            faults: live.faults,
            last_fault: live.last_fault,
            last_fault_ms: live.last_fault_ms,
        });
        Self {
            id: id.to_owned(),
            address: spec.address.to_string(),
            hostnames: spec.hostnames.iter().map(ToString::to_string).collect(),
            version_type_id: text(spec.version_type_id),
            version_id: spec.version_id.map(text),
            application_id: spec.application_id.map(text),
            workspace_id: spec.workspace_id.map(text),
            node_id: spec.node_id.map(text),
            weight: spec.weight,
            lease_seconds: spec.lease_seconds,
            health: spec.health,
            state: desired.state,
            drain_deadline_ms: desired.drain_deadline_ms,
            revision,
            in_flight: None,
            table,
        }
    }

    /// Adds the requests in flight.
    pub(super) fn with_in_flight(self, in_flight: Option<u64>) -> Self {
        Self { in_flight, ..self }
    }
}

/// An instance after a change, and the serial of the table with it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct ChangedInstance {
    #[serde(flatten)]
    instance: InstanceView,
    /// The serial of the route table with this change in it.
    serial: u64,
    /// The newest epoch of the table; serials are only comparable within one epoch.
    epoch: String,
    /// Whether anything changed.
    changed: bool,
    /// The instance that lost its address to this one and was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    displaced: Option<String>,
}

impl ChangedInstance {
    /// `None` when the change removed the instance.
    pub(super) fn new(change: RouteChange) -> Option<Self> {
        let changed = change.kind != signalbox_routing::ChangeKind::Unchanged;
        Some(Self {
            instance: InstanceView::new(&change.subject, change.record?, None),
            serial: change.serial,
            epoch: change.epoch,
            changed,
            displaced: change.displaced.map(|id| id.to_string()),
        })
    }
}
