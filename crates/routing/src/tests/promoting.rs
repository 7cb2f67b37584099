//! Promoting a version type of a host, undoing that, and draining nodes.

use serde_json::json;

use super::*;
use crate::{Error, NotPromoted, PromotionTimes};
use signalbox_access::Caller;
use signalbox_api::Time;
use signalbox_api::routes::PromotedHost;
use signalbox_route_table::{Label, Policy};

const HOST: &str = "a.example";
const TIMES: PromotionTimes = PromotionTimes { drain_seconds: 30, undo_seconds: 3600 };

fn version(name: &str) -> Label {
    Label::parse(name, "version_type_id").unwrap()
}

impl Rig {
    async fn promote(&self, to: &str) -> Result<PromotedHost, Error> {
        self.registry.promote(&Caller::root(), &host(HOST), &version(to), TIMES).await
    }

    async fn undo(&self, of: &str) -> Result<PromotedHost, Error> {
        self.registry.undo_promotion(&Caller::root(), &host(HOST), &version(of), None, TIMES).await
    }

    /// Registers an instance again, as a process does whose heartbeat is answered with 404.
    async fn register_again(&self, id: &str, spec: Spec) -> State {
        self.registry.remove(&Caller::root(), &instance_id(id)).await.unwrap();
        self.put(id, spec).await;
        self.state(id).await
    }

    async fn shares(&self) -> serde_json::Value {
        let policy = self.store.policy(&host(HOST)).await.unwrap();
        policy.map_or(json!(null), |policy| json!(policy.value.shares))
    }

    async fn set_split(&self, shares: serde_json::Value) {
        let policy: Policy = serde_json::from_value(json!({"shares": shares, "hold_ms": 7})).unwrap();
        self.registry.set_policy(&Caller::root(), &host(HOST), &policy, None).await.unwrap();
    }

    async fn state(&self, id: &str) -> State {
        self.store.stored(&instance_id(id)).await.unwrap().unwrap().record.desired.state
    }

    async fn refused(&self, to: &str) -> NotPromoted {
        let serial = self.serial().await;
        let error = self.promote(to).await.unwrap_err();
        assert_eq!(self.serial().await, serial, "a rejected promotion changes nothing");
        match error {
            Error::CannotPromote { reason, .. } => reason,
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

    let promoted = rig.promote("18").await.unwrap();
    assert_eq!(promoted.resumed, ["new-2"]);
    assert_eq!(promoted.drained, ["old-1", "old-2"]);
    assert!(promoted.changed);
    // In, all requests over, out, out, no split: one serial each, and the answer's is the last.
    assert_eq!((promoted.serial, rig.serial().await), (serial + 5, serial + 5));
    let order: Vec<(String, Vec<String>)> =
        rig.routes("XRANGE", &["changes", &format!("{}", serial + 1), "+"]).await;
    let kinds: Vec<String> = order.iter().map(|(_, fields)| format!("{} {}", fields[1], fields[3])).collect();
    let host = "host_altered a.example";
    assert_eq!(kinds, ["resumed new-2", host, "draining old-1", "draining old-2", host]);
    let left = rig.table(HOST).await.policy.unwrap();
    let left: serde_json::Value = serde_json::from_str(&left).unwrap();
    assert_eq!(left["draining"], json!(["127.0.0.1:9001", "127.0.0.1:9002"]));
    assert_eq!((left["hold_ms"].as_u64(), left.get("shares")), (Some(7), None));

    let again = rig.promote("18").await.unwrap();
    assert!(!again.changed && again.resumed.is_empty() && again.drained.is_empty());
    assert_eq!((again.serial, rig.serial().await), (serial + 5, serial + 5));
    // And back, while the old ones are there.
    let back = rig.promote("17").await.unwrap();
    assert_eq!((ids(&back.resumed), ids(&back.drained)), (vec!["old-1"], vec!["new-1", "new-2"]));
    assert_eq!(rig.state("old-1").await, State::Active);
}

#[tokio::test]
async fn a_version_without_instances_is_not_promoted() {
    let rig = Rig::new().await;
    assert_eq!(rig.refused("18").await, NotPromoted::NoInstance);
    rig.put("old", spec(9001, &[HOST, "b.example"], "17")).await;
    assert_eq!(rig.refused("18").await, NotPromoted::NoInstance);
    // Of the version, and of another host.
    rig.put("elsewhere", spec(9002, &["b.example"], "18")).await;
    assert_eq!(rig.refused("18").await, NotPromoted::NoInstance);
    // The other name would have no instance left.
    rig.put("new", spec(9003, &[HOST], "18")).await;
    assert_eq!(rig.refused("18").await, NotPromoted::Incomplete(vec!["b.example".to_owned()]));
    rig.put("new", spec(9003, &[HOST, "b.example"], "18")).await;
    assert_eq!(rig.promote("18").await.unwrap().drained, ["old"]);
}

#[tokio::test]
async fn a_token_that_may_not_touch_all_of_it_touches_none() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &[HOST], "17")).await;
    rig.put("old", spec(9002, &[HOST, "b.example"], "17")).await;
    rig.put("new", spec(9003, &[HOST, "b.example"], "18")).await;
    let hosts = vec![signalbox_access::HostPattern::new(host(HOST))];
    let tenant = Caller::named("t".to_owned(), vec![signalbox_access::Scope::Routes], Some(hosts));
    let refused = rig.registry.promote(&tenant, &host(HOST), &version("18"), TIMES).await;
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
    let node = async |deadline_seconds| {
        let mut done = Vec::new();
        let reached =
            rig.registry.drain_node(&Caller::root(), &version("n1"), deadline_seconds, &mut done).await;
        (reached.unwrap().1, done)
    };
    let (_, drained) = node(Some(600)).await;
    assert_eq!(subjects(&drained), ["one", "two"]);
    assert_eq!((rig.state("one").await, rig.state("other").await), (State::Draining, State::Active));
    let (serial, resumed) = node(None).await;
    assert_eq!(subjects(&resumed), ["one", "two"]);
    assert_eq!(serial, rig.serial().await);
    assert_eq!(rig.table(HOST).await.policy, None);
    assert_eq!(subjects(&node(None).await.1), [""; 0]);
}

#[tokio::test]
async fn instances_on_standby_get_no_requests_until_their_version_is_promoted() {
    let rig = Rig::new().await;
    rig.put("old", spec(9001, &[HOST], "17")).await;
    let standby = async |id: &str, port| {
        let caller = Caller::root();
        rig.registry.put_as(&caller, &instance_id(id), spec(port, &[HOST], "18"), true, None).await
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

    let promoted = rig.promote("18").await.unwrap();
    assert_eq!((ids(&promoted.resumed), ids(&promoted.drained)), (vec!["new-1", "new-2"], vec!["old"]));
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
    rig.registry.put_as(&caller, &id, checked.clone(), true, None).await.unwrap();
    let unhealthy = async || rig.store.live(std::slice::from_ref(&id)).await.unwrap().remove(0).unhealthy;
    assert_eq!(unhealthy().await.as_deref(), Some("no check has passed yet"));
    assert!(matches!(
        rig.promote("17").await,
        Err(Error::CannotPromote { reason: NotPromoted::Unhealthy, .. })
    ));
    // An instance that takes part immediately counts as healthy, as without a check.
    let other = Spec { address: spec(9002, &[HOST], "17").address, ..checked };
    rig.registry.put(&caller, &id, other).await.unwrap();
    assert_eq!(unhealthy().await, None);
}

#[tokio::test]
async fn a_replaced_version_that_registers_again_is_on_standby_until_it_is_promoted() {
    let rig = Rig::new().await;
    rig.put("old", spec(9001, &[HOST], "17")).await;
    rig.put("new", spec(9002, &[HOST], "18")).await;
    rig.promote("18").await.unwrap();
    assert_eq!(rig.register_again("old", spec(9001, &[HOST], "17")).await, State::Standby);
    assert_eq!(rig.register_again("new", spec(9002, &[HOST], "18")).await, State::Active);
    // Another instance of the old version, and a version that was never replaced.
    assert_eq!(rig.register_again("late", spec(9003, &[HOST], "17")).await, State::Standby);
    assert_eq!(rig.register_again("next", spec(9004, &[HOST], "19")).await, State::Active);
    // Its process is replaced in place by the promoted version.
    rig.put("late", spec(9003, &[HOST], "18")).await;
    assert_eq!(rig.state("late").await, State::Active);

    assert_eq!(ids(&rig.promote("17").await.unwrap().resumed), ["old"]);
    assert_eq!(rig.register_again("old", spec(9001, &[HOST], "17")).await, State::Active);
    assert_eq!(rig.register_again("new", spec(9002, &[HOST], "18")).await, State::Standby);
    // A host that was removed knows nothing of it.
    rig.registry.remove_host(&Caller::root(), &host(HOST)).await.unwrap();
    assert_eq!(rig.register_again("new", spec(9002, &[HOST], "18")).await, State::Active);
}

#[tokio::test]
async fn a_registration_that_read_an_outdated_promotion_is_not_active() {
    let rig = Rig::new().await;
    rig.put("old", spec(9001, &[HOST], "17")).await;
    rig.put("new", spec(9002, &[HOST], "18")).await;
    let late = crate::store::Desire {
        id: &instance_id("late"),
        before: None,
        after: Some(&Desired::new(spec(9003, &[HOST], "17"), State::Active)),
        owner: None,
        registrant: None,
        promotions: Some(vec![0]),
    };
    rig.promote("18").await.unwrap();
    assert_eq!(rig.store.desire(late).await.unwrap(), crate::store::DesireOutcome::Changed);
}

#[tokio::test]
async fn replaced_instances_drain_then_stand_by_and_are_removed_when_nothing_can_be_undone() {
    let rig = Rig::new().await;
    let mut sweeper = rig.sweeper();
    rig.store.set_clock_ms(1_000_000);
    rig.put("old", spec(9001, &[HOST], "17")).await;
    rig.put("new", spec(9002, &[HOST], "18")).await;
    let promoted = rig.promote("18").await.unwrap();
    assert_eq!(promoted.undo_until.map(Time::ms), Some(1_000_000 + 3_600_000));
    assert!(!rig.promote("18").await.unwrap().changed, "a repetition, without a policy");
    let policy = async || {
        let policy: serde_json::Value = serde_json::from_str(&rig.table(HOST).await.policy.unwrap()).unwrap();
        (policy["draining"].clone(), policy["standby"].clone())
    };
    let mut sweep_at = async |ms: u64| {
        rig.store.set_clock_ms(ms);
        sweeper.pass(1).await.unwrap();
    };
    let (old, none) = (json!(["127.0.0.1:9001"]), json!(null));
    sweep_at(1_029_000).await;
    assert_eq!((rig.state("old").await, policy().await), (State::Draining, (old.clone(), none)));
    sweep_at(1_030_000).await;
    assert_eq!((rig.state("old").await, policy().await), (State::Standby, (old.clone(), old)));
    sweep_at(4_599_000).await;
    assert_eq!(rig.state("old").await, State::Standby);
    sweep_at(4_600_000).await;
    assert!(rig.store.stored(&instance_id("old")).await.unwrap().is_none());
    assert!(matches!(rig.undo("18").await, Err(Error::NothingToUndo { .. })));
}

#[tokio::test]
async fn a_promotion_is_undone_to_the_split_of_before_and_only_once() {
    let rig = Rig::new().await;
    let split = json!([{"version_type": "17", "percent": 95}, {"version_type": "18", "percent": 5}]);
    rig.put("old", spec(9001, &[HOST], "17")).await;
    rig.put("new", spec(9002, &[HOST], "18")).await;
    rig.set_split(split.clone()).await;
    rig.promote("18").await.unwrap();
    assert_eq!(rig.shares().await, json!(null));

    assert!(matches!(rig.undo("19").await, Err(Error::NothingToUndo { .. })));
    let undone = rig.undo("18").await.unwrap();
    assert_eq!((ids(&undone.resumed), ids(&undone.drained)), (vec!["old"], vec![]));
    assert_eq!(
        (undone.version_type_id, undone.version_types),
        (None, vec!["17".to_owned(), "18".to_owned()])
    );
    assert_eq!(rig.shares().await, split);
    // A lost reply is answered by the same result.
    let (again, serial) = (rig.undo("18").await.unwrap(), rig.serial().await);
    assert_eq!((again.changed, again.serial), (false, serial));
    assert_eq!(rig.register_again("old", spec(9001, &[HOST], "17")).await, State::Active);

    // A later promotion of the same version type is not undone by a late repetition that names the first.
    let first = rig.store.promotion(&host(HOST)).await.unwrap().unwrap().value.undone.unwrap().at_ms;
    rig.store.set_clock_ms(first + 60_000);
    rig.promote("18").await.unwrap();
    let (caller, of) = (Caller::root(), version("18"));
    let late = rig.registry.undo_promotion(&caller, &host(HOST), &of, Some(first), TIMES).await;
    assert!(matches!(late, Err(Error::NothingToUndo { .. })));
}

#[tokio::test]
async fn undoing_holds_the_promoted_version_back() {
    let rig = Rig::new().await;
    rig.put("old", spec(9001, &[HOST], "17")).await;
    // As a deploy registers it: nothing but the old version is served before.
    let (caller, new) = (Caller::root(), instance_id("new"));
    rig.registry.put_as(&caller, &new, spec(9002, &[HOST], "18"), true, None).await.unwrap();
    rig.promote("18").await.unwrap();
    let undone = rig.undo("18").await.unwrap();
    assert_eq!((ids(&undone.resumed), ids(&undone.drained)), (vec!["old"], vec!["new"]));
    assert_eq!(rig.register_again("new", spec(9002, &[HOST], "18")).await, State::Standby);
    // What an operator drained stays drained.
    rig.promote("18").await.unwrap();
    rig.registry.drain(&Caller::root(), &instance_id("old"), 600).await.unwrap();
    assert!(matches!(
        rig.undo("18").await,
        Err(Error::CannotPromote { reason: NotPromoted::NoInstance, .. })
    ));
    assert_eq!((rig.state("old").await, rig.state("new").await), (State::Draining, State::Active));
}

#[tokio::test]
async fn an_interrupted_promotion_remembers_what_was_served_before_it() {
    let rig = Rig::new().await;
    rig.put("old", spec(9001, &[HOST], "17")).await;
    rig.put("new", spec(9002, &[HOST], "18")).await;
    rig.promote("18").await.unwrap();
    let wanted = rig.store.promotion(&host(HOST)).await.unwrap().unwrap();
    // As if the process had died before it drained the old instance.
    let pending = crate::Promotion { pending: true, ..wanted.value.clone() };
    rig.registry.resume(&Caller::root(), &instance_id("old")).await.unwrap();
    let set = rig.registry.set_resource(&Caller::root(), &host(HOST), Some(&pending), None).await;
    set.unwrap();
    assert_eq!(rig.promote("18").await.unwrap().drained, ["old"]);
    let after = rig.store.promotion(&host(HOST)).await.unwrap().unwrap().value;
    assert_eq!(after, wanted.value);
}

#[tokio::test]
async fn a_share_of_a_version_type_on_standby_resumes_it() {
    let rig = Rig::new().await;
    rig.put("old", spec(9001, &[HOST], "17")).await;
    rig.put("new", spec(9002, &[HOST], "18")).await;
    rig.promote("18").await.unwrap();
    assert_eq!(rig.register_again("old", spec(9001, &[HOST], "17")).await, State::Standby);
    rig.set_split(json!([{"version_type": "18", "percent": 100}, {"version_type": "17", "percent": 0}]))
        .await;
    assert_eq!(rig.state("old").await, State::Standby);
    rig.set_split(json!([{"version_type": "18", "percent": 95}, {"version_type": "17", "percent": 5}])).await;
    assert_eq!(rig.state("old").await, State::Active);
    assert_eq!(rig.register_again("old", spec(9001, &[HOST], "17")).await, State::Active);
}

#[tokio::test]
async fn a_share_of_a_version_type_without_an_instance_is_rejected() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &[HOST], "17")).await;
    let check = async |shares: serde_json::Value| {
        let policy: Policy = serde_json::from_value(json!({"shares": shares})).unwrap();
        match rig.registry.check_shares_are_served(&host(HOST), &policy).await {
            Ok(()) => Vec::new(),
            Err(Error::UnknownShares { version_types, .. }) => version_types,
            Err(error) => panic!("{error}"),
        }
    };
    let typo = json!([{"version_type": "typo", "percent": 100}]);
    assert_eq!(check(typo.clone()).await, ["typo"]);
    assert!(
        check(json!([{"version_type": "17", "percent": 100}, {"version_type": "9", "percent": 0}]))
            .await
            .is_empty()
    );
    // Setting the same split again is a repetition.
    rig.set_split(typo.clone()).await;
    assert!(check(typo).await.is_empty());
}

#[tokio::test]
async fn a_promotion_survives_the_loss_of_either_server() {
    let rig = Rig::new().await;
    rig.put("old", spec(9001, &[HOST], "17")).await;
    rig.put("new", spec(9002, &[HOST], "18")).await;
    rig.promote("18").await.unwrap();
    let promotion = rig.store.promotion(&host(HOST)).await.unwrap().unwrap();
    rig.fabric::<()>("FLUSHALL", &[]).await;
    rig.reconcile().await;
    assert_eq!(rig.store.promotion(&host(HOST)).await.unwrap().unwrap(), promotion);
    rig.routes::<()>("FLUSHALL", &[]).await;
    rig.reconcile().await;
    let table: String = rig.routes("HGET", &["promotion:a.example", "promotion"]).await;
    assert_eq!(serde_json::from_str::<crate::Promotion>(&table).unwrap(), promotion.value);
    rig.check_catalog().await;
}
