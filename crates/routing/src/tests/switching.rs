//! Switching a host to another version, and draining nodes.

use serde_json::json;

use super::*;
use crate::{Error, registry::NotSwitched};
use signalbox_access::Caller;
use signalbox_route_table::{Label, Policy};

const HOST: &str = "a.example";

fn version(name: &str) -> Label {
    Label::parse(name, "version_type_id").unwrap()
}

impl Rig {
    async fn switch(&self, to: &str) -> Result<signalbox_api::routes::SwitchedHost, Error> {
        self.registry.switch_version(&Caller::root(), &host(HOST), &version(to), 600).await
    }

    async fn state(&self, id: &str) -> State {
        self.store.stored(&instance_id(id)).await.unwrap().unwrap().record.desired.state
    }

    async fn refused(&self, to: &str) -> NotSwitched {
        let serial = self.serial().await;
        let error = self.switch(to).await.unwrap_err();
        assert_eq!(self.serial().await, serial, "a refused switch does nothing");
        match error {
            Error::CannotSwitch { reason, .. } => reason,
            other => panic!("{other}"),
        }
    }
}

fn ids(ids: &[impl AsRef<str>]) -> Vec<&str> {
    ids.iter().map(AsRef::as_ref).collect()
}

#[tokio::test]
async fn the_new_version_is_active_before_the_old_one_drains() {
    let rig = Rig::new().await;
    rig.put("old-1", spec(9001, &[HOST], "17")).await;
    rig.put("old-2", spec(9002, &[HOST], "16")).await;
    rig.put("new-1", spec(9003, &[HOST], "18")).await;
    rig.put("new-2", spec(9004, &[HOST], "18")).await;
    rig.registry.drain(&Caller::root(), &instance_id("new-2"), 600).await.unwrap();
    let shares = json!([{"version_type": "17", "percent": 95}, {"version_type": "18", "percent": 5}]);
    let policy: Policy = serde_json::from_value(json!({"shares": shares, "hold_ms": 7})).unwrap();
    rig.registry.set_policy(&Caller::root(), &host(HOST), &policy, None).await.unwrap();
    let serial = rig.serial().await;

    let switched = rig.switch("18").await.unwrap();
    assert_eq!(switched.resumed, ["new-2"]);
    assert_eq!(switched.drained, ["old-1", "old-2"]);
    assert!(switched.changed);
    // In, all requests over, out, out, no split: one serial each, and the answer's is the last.
    assert_eq!((switched.serial, rig.serial().await), (serial + 5, serial + 5));
    let order: Vec<(String, Vec<String>)> =
        rig.routes("XRANGE", &["changes", &format!("{}", serial + 1), "+"]).await;
    let kinds: Vec<String> = order.iter().map(|(_, fields)| format!("{} {}", fields[1], fields[3])).collect();
    let host = "host_altered a.example";
    assert_eq!(kinds, ["resumed new-2", host, "draining old-1", "draining old-2", host]);
    let left = rig.table(HOST).await.policy.unwrap();
    let left: serde_json::Value = serde_json::from_str(&left).unwrap();
    assert_eq!(left["draining"], json!(["127.0.0.1:9001", "127.0.0.1:9002"]));
    assert_eq!((left["hold_ms"].as_u64(), left.get("shares")), (Some(7), None));

    let again = rig.switch("18").await.unwrap();
    assert!(!again.changed && again.resumed.is_empty() && again.drained.is_empty());
    assert_eq!((again.serial, rig.serial().await), (serial + 5, serial + 5));
    // And back, while the old ones are there.
    let back = rig.switch("17").await.unwrap();
    assert_eq!((ids(&back.resumed), ids(&back.drained)), (vec!["old-1"], vec!["new-1", "new-2"]));
    assert_eq!(rig.state("old-1").await, State::Active);
}

#[tokio::test]
async fn a_host_is_not_switched_to_a_version_without_instances() {
    let rig = Rig::new().await;
    assert_eq!(rig.refused("18").await, NotSwitched::NoInstance);
    rig.put("old", spec(9001, &[HOST, "b.example"], "17")).await;
    assert_eq!(rig.refused("18").await, NotSwitched::NoInstance);
    // Of the version, and of another host.
    rig.put("elsewhere", spec(9002, &["b.example"], "18")).await;
    assert_eq!(rig.refused("18").await, NotSwitched::NoInstance);
    // The other name would have no instance left.
    rig.put("new", spec(9003, &[HOST], "18")).await;
    assert_eq!(rig.refused("18").await, NotSwitched::Incomplete(vec!["b.example".to_owned()]));
    rig.put("new", spec(9003, &[HOST, "b.example"], "18")).await;
    assert_eq!(rig.switch("18").await.unwrap().drained, ["old"]);
}

#[tokio::test]
async fn a_token_that_may_not_touch_all_of_it_touches_none() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &[HOST], "17")).await;
    rig.put("old", spec(9002, &[HOST, "b.example"], "17")).await;
    rig.put("new", spec(9003, &[HOST, "b.example"], "18")).await;
    let hosts = vec![signalbox_access::HostPattern::new(host(HOST))];
    let tenant = Caller::named("t".to_owned(), vec![signalbox_access::Scope::Routes], Some(hosts));
    let refused = rig.registry.switch_version(&tenant, &host(HOST), &version("18"), 1).await;
    assert!(matches!(refused, Err(Error::InstanceNotAllowed)));
    assert_eq!(rig.state("one").await, State::Active);
}

#[tokio::test]
async fn a_node_is_drained_and_resumed_as_one() {
    let rig = Rig::new().await;
    let on = |port, node: &str| Spec { node_id: Some(version(node)), ..spec(port, &[HOST], "1") };
    rig.put("one", on(9001, "n1")).await;
    rig.put("two", on(9002, "n1")).await;
    rig.put("other", on(9003, "n2")).await;
    let drained = rig.registry.drain_node(&Caller::root(), &version("n1"), Some(600)).await.unwrap();
    assert_eq!(drained.ids, [instance_id("one"), instance_id("two")]);
    assert_eq!((rig.state("one").await, rig.state("other").await), (State::Draining, State::Active));
    let resumed = rig.registry.drain_node(&Caller::root(), &version("n1"), None).await.unwrap();
    assert_eq!(resumed.ids, [instance_id("one"), instance_id("two")]);
    assert_eq!(resumed.serial, rig.serial().await);
    assert_eq!(rig.table(HOST).await.policy, None);
    let again = rig.registry.drain_node(&Caller::root(), &version("n1"), None).await.unwrap();
    assert!(again.ids.is_empty());
}

#[tokio::test]
async fn instances_on_standby_get_no_requests_until_their_version_is_promoted() {
    let rig = Rig::new().await;
    rig.put("old", spec(9001, &[HOST], "17")).await;
    let standby = async |id: &str, port| {
        let caller = Caller::root();
        rig.registry.put_as(&caller, &instance_id(id), spec(port, &[HOST], "18"), State::Standby, None).await
    };
    standby("new-1", 9002).await.unwrap();
    standby("new-2", 9003).await.unwrap();
    let waiting = |policy: Option<String>| {
        let policy: serde_json::Value = serde_json::from_str(&policy.unwrap()).unwrap();
        policy["draining"].clone()
    };
    assert_eq!(waiting(rig.table(HOST).await.policy), json!(["127.0.0.1:9002", "127.0.0.1:9003"]));
    // Registering one again, as its supervisor does, leaves it there.
    rig.put("new-1", spec(9002, &[HOST], "18")).await;
    assert_eq!(rig.state("new-1").await, State::Standby);
    let serial = rig.serial().await;

    let switched = rig.switch("18").await.unwrap();
    assert_eq!((ids(&switched.resumed), ids(&switched.drained)), (vec!["new-1", "new-2"], vec!["old"]));
    let order: Vec<(String, Vec<String>)> =
        rig.routes("XRANGE", &["changes", &format!("{}", serial + 1), "+"]).await;
    let kinds: Vec<String> = order.iter().map(|(_, fields)| format!("{} {}", fields[1], fields[3])).collect();
    // Bound to the old version, the new ones in, all requests moved in one step, the old one removed, then the binding.
    let host = format!("host_altered {HOST}");
    assert_eq!(kinds, [&host, "resumed new-1", "resumed new-2", &host, "draining old", &host]);
    assert_eq!(waiting(rig.table(HOST).await.policy), json!(["127.0.0.1:9001"]));
}

#[tokio::test]
async fn the_health_of_an_instance_on_standby_is_unknown_until_a_check_has_passed() {
    let rig = Rig::new().await;
    let health = serde_json::from_value(json!({"tcp": true})).unwrap();
    let checked = Spec { health: Some(health), ..spec(9001, &[HOST], "17") };
    let (caller, id) = (Caller::root(), instance_id("new"));
    rig.registry.put_as(&caller, &id, checked.clone(), State::Standby, None).await.unwrap();
    let unhealthy = async || rig.store.live(std::slice::from_ref(&id)).await.unwrap().remove(0).unhealthy;
    assert_eq!(unhealthy().await.as_deref(), Some("no check has passed yet"));
    assert!(matches!(
        rig.switch("17").await,
        Err(Error::CannotSwitch { reason: NotSwitched::Unhealthy, .. })
    ));
    // An instance that takes part immediately counts as healthy, as without a check.
    let other = Spec { address: spec(9002, &[HOST], "17").address, ..checked };
    rig.registry.put(&caller, &id, other).await.unwrap();
    assert_eq!(unhealthy().await, None);
}
