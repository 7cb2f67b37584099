//! The API's view of instances.

use signalbox_api::{
    Time,
    routes::{ChangedInstance, Instance},
};
use signalbox_route_table::{Label, Record};
use signalbox_routing::{ChangeKind, Live, RouteChange};

/// `live` is what the route table knows of it; nothing while the routes primary does not answer.
pub(super) fn instance(id: &str, record: Record, live: Option<Live>, in_flight: Option<u64>) -> Instance {
    let Record { revision, desired } = record;
    let spec = desired.spec;
    let text = |label: Label| label.as_str().to_owned();
    let routed = live.as_ref().map(|live| live.revision == Some(revision));
    let healthy = live.as_ref().filter(|_| spec.health.is_some()).map(|live| live.unhealthy.is_none());
    let faults = live.as_ref().map(|live| live.faults);
    let live = live.unwrap_or_default();
    Instance {
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
        drain_deadline: desired.drain_deadline_ms.map(Time::from_ms),
        standby_until: desired.standby_until_ms.map(Time::from_ms),
        revision,
        in_flight,
        routed,
        lease_expires_at: live.lease_expires_ms.map(Time::from_ms),
        healthy,
        unhealthy_because: live.unhealthy,
        health_since: live.health_ms.map(Time::from_ms),
        faults,
        last_fault: live.last_fault,
        last_fault_at: live.last_fault_ms.map(Time::from_ms),
    }
}

/// Nothing when the change left no instance.
pub(super) fn changed(change: RouteChange) -> Option<ChangedInstance> {
    let changed = change.kind != ChangeKind::Unchanged;
    Some(ChangedInstance {
        instance: instance(&change.subject, change.record?, None, None),
        serial: change.serial,
        epoch: change.epoch,
        changed,
        displaced: change.displaced.map(|id| id.to_string()),
    })
}
