//! From a request to the table, and what is left when the way is cut off.

use serde_json::json;

use super::*;
use crate::{
    ChangeKind, Error, Limits,
    store::{Desire, DesireOutcome},
};
use signalbox_access::{Caller, HostPattern, Scope};
use signalbox_route_table::{Pause, Policy};

/// Commits to the fabric as a request does, and stops there as if the process had died.
async fn commit(rig: &Rig, id: &str, spec: Spec) -> u64 {
    let id = instance_id(id);
    let sight = rig.store.sight(&id, &spec.address).await.unwrap();
    let after = Desired::new(spec, State::Active);
    let (before, owner) = (sight.current.as_ref(), sight.owner.as_ref());
    match rig
        .store
        .desire(Desire { id: &id, before, after: Some(&after), owner, registrant: None, promotions: None })
        .await
        .unwrap()
    {
        DesireOutcome::Accepted { revision, .. } => revision,
        other => panic!("{other:?}"),
    }
}

fn confined(hosts: &[&str]) -> Caller {
    let hosts = hosts.iter().map(|name| HostPattern::new(host(name))).collect();
    Caller::named("tenant".to_owned(), vec![Scope::Routes], Some(hosts))
}

#[tokio::test]
async fn a_repetition_changes_nothing_and_raises_nothing() {
    let rig = Rig::new().await;
    let first = rig.put("i", spec(9001, &["a.example"], "1")).await;
    assert_eq!(first.kind, ChangeKind::Registered);
    let again = rig.put("i", spec(9001, &["a.example"], "1")).await;
    assert_eq!((again.kind, again.serial), (ChangeKind::Unchanged, first.serial));
    assert_eq!(again.record, first.record);
    assert!(rig.outstanding().await.is_empty());
    let altered = rig.put("i", spec(9001, &["a.example"], "2")).await;
    assert_eq!((altered.kind, altered.serial), (ChangeKind::Altered, first.serial + 1));
    rig.check_catalog().await;
}

#[tokio::test]
async fn a_repetition_completes_what_an_interrupted_request_left() {
    let rig = Rig::new().await;
    commit(&rig, "i", spec(9001, &["a.example"], "1")).await;
    assert!(rig.addresses("a.example").await.is_empty());
    let change = rig.put("i", spec(9001, &["a.example"], "1")).await;
    assert_eq!(change.kind, ChangeKind::Unchanged);
    assert_eq!(rig.addresses("a.example").await, ["127.0.0.1:9001"]);
    assert!(rig.outstanding().await.is_empty());
}

#[tokio::test]
async fn removing_can_be_repeated_and_completes_an_interrupted_removal() {
    let rig = Rig::new().await;
    rig.put("i", spec(9001, &["a.example"], "1")).await;
    let root = Caller::root();
    let id = instance_id("i");
    // The fabric knows of the removal, the table does not.
    let current = rig.store.stored(&id).await.unwrap().unwrap();
    let desire = Desire {
        id: &id,
        before: Some(&current),
        after: None,
        owner: None,
        registrant: None,
        promotions: None,
    };
    assert!(matches!(rig.store.desire(desire).await.unwrap(), DesireOutcome::Accepted { .. }));
    assert_eq!(rig.addresses("a.example").await, ["127.0.0.1:9001"]);
    let serial = rig.serial().await;
    assert_eq!(rig.registry.remove(&root, &id).await.unwrap().serial, serial + 1);
    assert!(rig.addresses("a.example").await.is_empty());
    assert_eq!(rig.registry.remove(&root, &id).await.unwrap().serial, serial + 1);
    assert!(rig.outstanding().await.is_empty());
}

#[tokio::test]
async fn a_commit_over_something_else_than_was_read_is_lost() {
    let rig = Rig::new().await;
    rig.put("i", spec(9001, &["a.example"], "1")).await;
    let id = instance_id("i");
    let read = rig.store.stored(&id).await.unwrap();
    rig.put("i", spec(9001, &["a.example"], "2")).await;
    let desire = Desire {
        id: &id,
        before: read.as_ref(),
        after: None,
        owner: None,
        registrant: None,
        promotions: None,
    };
    assert_eq!(rig.store.desire(desire).await.unwrap(), DesireOutcome::Changed);
    // An owner of the address that appeared in the meantime is detected as well.
    let after = Desired::new(spec(9001, &["b.example"], "1"), State::Active);
    let desire = Desire {
        id: &instance_id("j"),
        before: None,
        after: Some(&after),
        owner: None,
        registrant: None,
        promotions: None,
    };
    assert_eq!(rig.store.desire(desire).await.unwrap(), DesireOutcome::Changed);
}

#[tokio::test]
async fn noting_an_earlier_change_as_done_leaves_the_later_one_outstanding() {
    let rig = Rig::new().await;
    let first = commit(&rig, "i", spec(9001, &["a.example"], "1")).await;
    let second = commit(&rig, "i", spec(9002, &["a.example"], "1")).await;
    let mark = rig.mark().await;
    // The slower of two requests returns from the table.
    assert!(!rig.store.settle("i", first, mark.serial + 1, &mark.epoch).await.unwrap());
    assert_eq!(rig.outstanding().await, [("i".to_owned(), second)]);
    assert_eq!(rig.mark().await.serial, mark.serial + 1);
    // A serial of another epoch, or a lower one, does not apply to this table.
    rig.store.settle("i", second, mark.serial + 9, "0").await.unwrap();
    rig.store.settle("i", second, mark.serial, &mark.epoch).await.unwrap();
    assert_eq!(rig.mark().await.serial, mark.serial + 1);
    assert!(rig.outstanding().await.is_empty());
}

#[tokio::test]
async fn a_fabric_that_was_emptied_this_moment_takes_nothing() {
    let rig = Rig::new().await;
    let after = Desired::new(spec(9001, &["a.example"], "1"), State::Active);
    let () = rig.fabric("FLUSHALL", &[]).await;
    let desire = Desire {
        id: &instance_id("i"),
        before: None,
        after: Some(&after),
        owner: None,
        registrant: None,
        promotions: None,
    };
    assert_eq!(rig.store.desire(desire).await.unwrap(), DesireOutcome::Behind);
    assert_eq!(rig.store.forget_host(&host("a.example")).await.unwrap(), DesireOutcome::Behind);
    assert_eq!(rig.fabric::<u64>("DBSIZE", &[]).await, 0);
}

#[tokio::test]
async fn taking_an_address_over_removes_its_previous_owner() {
    let rig = Rig::new().await;
    rig.put("old", spec(9001, &["a.example"], "1")).await;
    let change = rig.put("new", spec(9001, &["b.example"], "1")).await;
    assert_eq!(change.displaced, Some(instance_id("old")));
    assert_eq!(rig.store.stored(&instance_id("old")).await.unwrap(), None);
    assert_eq!(
        rig.registry.heartbeat(&Caller::root(), &instance_id("old")).await.unwrap_err().to_string(),
        "unknown instance old"
    );
    // Its late removal does not harm the new one, and the reconciler has only that to note.
    rig.registry.remove(&Caller::root(), &instance_id("old")).await.unwrap();
    rig.reconcile().await;
    assert_eq!(rig.addresses("b.example").await, ["127.0.0.1:9001"]);
    assert!(rig.outstanding().await.is_empty());
    rig.check_catalog().await;
}

#[tokio::test]
async fn requests_at_the_same_time_leave_one_owner() {
    let rig = Rig::new().await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..20 {
        let registry = rig.registry.clone();
        tasks.spawn(async move {
            let id = instance_id(&format!("i-{number}"));
            let spec = spec(9001, &[&format!("h{number}.example")], "1");
            registry.put(&Caller::root(), &id, spec).await.unwrap()
        });
    }
    while tasks.join_next().await.is_some() {}
    rig.reconcile().await;
    let owner: String = rig.fabric("HGET", &["routes:addresses", "127.0.0.1:9001"]).await;
    let ids: Vec<String> = rig.fabric("HKEYS", &["routes:instances"]).await;
    assert_eq!(ids, std::slice::from_ref(&owner));
    assert_eq!(rig.routes::<String>("HGET", &["addresses", "127.0.0.1:9001"]).await, owner);
    let sets: Vec<String> = rig.routes("KEYS", &["instances:*"]).await;
    assert_eq!(sets.len(), 1, "{sets:?}");
}

#[tokio::test]
async fn a_confined_token_keeps_to_its_hosts() {
    let rig = Rig::new().await;
    let tenant = confined(&["*.a.example"]);
    rig.put("theirs", spec(9001, &["x.b.example"], "1")).await;
    let put = async |id: &str, port: u16, names: &[&str]| {
        rig.registry.put(&tenant, &instance_id(id), spec(port, names, "1")).await
    };
    assert!(put("mine", 9002, &["x.a.example"]).await.is_ok());
    assert!(matches!(put("mine", 9002, &["a.example"]).await, Err(Error::HostNotAllowed { .. })));
    assert!(matches!(put("mine", 9002, &["x.a.example", "*"]).await, Err(Error::HostNotAllowed { .. })));
    // Neither by another's id nor by another's address.
    assert!(matches!(put("theirs", 9003, &["x.a.example"]).await, Err(Error::InstanceNotAllowed)));
    assert!(matches!(put("mine", 9001, &["x.a.example"]).await, Err(Error::AddressTaken)));
    let theirs = instance_id("theirs");
    assert!(matches!(rig.registry.remove(&tenant, &theirs).await, Err(Error::InstanceNotAllowed)));
    assert!(matches!(rig.registry.drain(&tenant, &theirs, 1).await, Err(Error::NoInstance(_))));
    assert!(matches!(rig.registry.heartbeat(&tenant, &theirs).await, Err(Error::NoInstance(_))));
    assert!(matches!(rig.registry.fault(&tenant, &theirs, "x", None).await, Err(Error::NoInstance(_))));
    assert_eq!(rig.addresses("x.b.example").await, ["127.0.0.1:9001"]);
}

#[tokio::test]
async fn an_unavailable_primary_gets_the_change_later() {
    let mut rig = Rig::new().await;
    rig.servers.routes.kill();
    let put = rig.registry.put(&Caller::root(), &instance_id("i"), spec(9001, &["a.example"], "1")).await;
    assert!(matches!(put, Err(Error::Table { recorded: true, .. })), "{put:?}");
    rig.servers.routes.start();
    rig.servers.answer().await;
    // The primary restarted empty, so it is seeded, including the change.
    rig.reconcile().await;
    assert_eq!(rig.addresses("a.example").await, ["127.0.0.1:9001"]);
    assert_eq!(rig.put("i", spec(9001, &["a.example"], "1")).await.kind, ChangeKind::Unchanged);
}

#[tokio::test]
async fn without_the_fabric_nothing_changes_but_leases_are_kept() {
    let mut rig = Rig::new().await;
    rig.put("i", leased(9001, &["a.example"], 30)).await;
    let serial = rig.serial().await;
    rig.servers.fabric.kill();
    let put = rig.registry.put(&Caller::root(), &instance_id("j"), spec(9002, &["a.example"], "1")).await;
    assert!(matches!(put, Err(Error::Fabric(_))), "{put:?}");
    let heartbeat = rig.registry.heartbeat(&Caller::root(), &instance_id("i")).await.unwrap();
    assert_eq!(heartbeat.lease_seconds, Some(30));
    assert_eq!(rig.serial().await, serial);
}

#[tokio::test]
async fn draining_is_an_alteration_that_a_repeated_put_leaves() {
    let rig = Rig::new().await;
    let root = Caller::root();
    rig.put("i", spec(9001, &["a.example"], "1")).await;
    let drained = rig.registry.drain(&root, &instance_id("i"), 60).await.unwrap();
    assert_eq!(drained.record.as_ref().unwrap().desired.state, State::Draining);
    let put = rig.put("i", spec(9001, &["a.example"], "1")).await;
    assert_eq!((put.kind, put.serial), (ChangeKind::Unchanged, drained.serial));
    let resumed = rig.registry.resume(&root, &instance_id("i")).await.unwrap();
    assert_eq!((resumed.kind, resumed.serial), (ChangeKind::Resumed, drained.serial + 1));
    assert_eq!(rig.table("a.example").await.policy, None);
    let again = rig.registry.resume(&root, &instance_id("i")).await.unwrap();
    assert_eq!((again.kind, again.serial), (ChangeKind::Unchanged, resumed.serial));
    assert!(matches!(rig.registry.drain(&root, &instance_id("x"), 1).await, Err(Error::NoInstance(_))));
}

#[tokio::test]
async fn draining_a_node_drains_its_instances_only() {
    let rig = Rig::new().await;
    for (id, port, node) in [("a", 9001, "n-1"), ("b", 9002, "n-2"), ("c", 9003, "n-1")] {
        let node_id = Some(signalbox_route_table::Label::parse(node, "node_id").unwrap());
        rig.put(id, Spec { node_id, ..spec(port, &["a.example"], "1") }).await;
    }
    let node = signalbox_route_table::Label::parse("n-1", "node").unwrap();
    let mut drained = Vec::new();
    rig.registry.drain_node(&Caller::root(), &node, Some(60), &mut drained).await.unwrap();
    assert_eq!(subjects(&drained), ["a", "c"]);
    let policy = rig.table("a.example").await.policy.unwrap();
    assert_eq!(policy, r#"{"v":1,"draining":["127.0.0.1:9001","127.0.0.1:9003"]}"#);
}

#[tokio::test]
async fn faults_are_counted_once_each_and_forgotten_with_the_instance() {
    let rig = Rig::new().await;
    let root = Caller::root();
    rig.put("i", spec(9001, &["a.example"], "1")).await;
    let serial = rig.serial().await;
    let fault = async |message: &str, fault_id: Option<&str>| {
        rig.registry.fault(&root, &instance_id("i"), message, fault_id).await.unwrap()
    };
    assert_eq!(fault("one", None).await, 1);
    assert_eq!(fault("two", Some("f-1")).await, 2);
    assert_eq!(fault("two", Some("f-1")).await, 2);
    assert_eq!(fault("three", Some("f-2")).await, 3);
    // An alteration keeps them.
    rig.put("i", spec(9001, &["a.example", "b.example"], "1")).await;
    let live = rig.store.live(&[instance_id("i")]).await.unwrap().pop().unwrap();
    assert_eq!((live.faults, live.last_fault.as_deref()), (3, Some("three")));
    assert_eq!(rig.serial().await, serial + 1);
    rig.registry.remove(&root, &instance_id("i")).await.unwrap();
    rig.put("i", spec(9001, &["a.example"], "1")).await;
    assert_eq!(rig.store.live(&[instance_id("i")]).await.unwrap()[0].faults, 0);
}

#[tokio::test]
async fn the_membership_sets_are_filled_even_if_the_stats_redis_comes_later() {
    let mut rig = Rig::new().await;
    rig.servers.stats.kill();
    let label = |text| Some(signalbox_route_table::Label::parse(text, "x").unwrap());
    let spec = Spec {
        workspace_id: label("w"),
        application_id: label("a"),
        version_id: label("v"),
        node_id: label("n"),
        ..spec(9001, &["a.example"], "17")
    };
    rig.put("i", spec).await;
    rig.servers.stats.start();
    rig.servers.answer().await;
    signalbox_testkit::eventually("the sets are filled", async || {
        rig.reconciler().pass(1).await.map_err(|error| error.to_string())?;
        for key in ["workspace:w", "application:a", "version:v", "node:n"] {
            let members: Vec<String> = rig
                .store
                .stats()
                .command("SMEMBERS")
                .arg(key)
                .query()
                .await
                .map_err(|error| error.to_string())?;
            if members != ["17"] {
                return Err(format!("{key}: {members:?}"));
            }
        }
        let waiting = rig.store.unreported(10).await.unwrap();
        if waiting.is_empty() { Ok(()) } else { Err(format!("{waiting:?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_token_registers_a_limited_number_of_new_names_and_existing_ones_without_limit() {
    let rig = Rig::new().await;
    rig.put("theirs", spec(9001, &["known.example"], "known")).await;
    let registry = rig.registry.clone().with_limits_per_token(Limits { instances: 0, names: 3 });
    let tenant = Caller::named("tenant".to_owned(), vec![Scope::Routes], None);
    let put = async |port: u16, name: &str, version: &str| {
        registry.put(&tenant, &instance_id("i"), spec(port, &[name], version)).await
    };
    assert!(put(9002, "a.example", "1").await.is_ok(), "a host and a version type");
    assert!(put(9002, "known.example", "known").await.is_ok(), "neither is new");
    assert!(put(9002, "a.example", "2").await.is_ok());
    for (name, version) in [("b.example", "1"), ("a.example", "3")] {
        let refused = put(9003, name, version).await;
        let is_limit = matches!(&refused, Err(Error::TokenNames { names: 3, seconds }) if *seconds > 86_000);
        assert!(is_limit, "{name} {version}: {refused:?}");
    }
    // A rollback, a host that was deleted, and a host that is named twice.
    assert!(put(9003, "a.example", "1").await.is_ok());
    let removed = registry.remove(&tenant, &instance_id("i")).await;
    assert!(removed.is_ok(), "{removed:?}");
    assert!(
        rig.registry.put(&Caller::root(), &instance_id("r"), spec(9004, &["c.example"], "4")).await.is_ok()
    );
    rig.check_catalog().await;
}

#[tokio::test]
async fn a_host_with_only_a_policy_is_a_new_name_of_its_token() {
    let rig = Rig::new().await;
    rig.put("theirs", spec(9001, &["known.example"], "known")).await;
    let registry = rig.registry.clone().with_limits_per_token(Limits { instances: 0, names: 2 });
    let tenant = Caller::named("tenant".to_owned(), vec![Scope::Routes], None);
    let policy = |hold_ms: u32| serde_json::from_value::<Policy>(json!({"hold_ms": hold_ms})).unwrap();
    let set = async |name: &str, hold_ms: u32| {
        registry.set_policy(&tenant, &host(name), &policy(hold_ms), None).await.map(drop)
    };
    for (name, number) in [("a.example", 1), ("known.example", 1), ("a.example", 2), ("b.example", 1)] {
        set(name, number).await.unwrap();
    }
    let is_limit = |refused: &Result<(), Error>| matches!(refused, Err(Error::TokenNames { names: 2, seconds }) if *seconds > 86_000);
    let pause = async |name: &str| {
        let pause = serde_json::from_value::<Pause>(json!({"wait_ms": 1})).unwrap();
        registry.set_pause(&tenant, &host(name), Some(pause)).await.map(drop)
    };
    let paths = async |name: &str| registry.set_paths(&tenant, &host(name), None).await.map(drop);
    for refused in [set("c.example", 1).await, pause("c.example").await] {
        assert!(is_limit(&refused), "{refused:?}");
    }
    assert!(rig.store.policy(&host("c.example")).await.unwrap().is_none());
    // Its instances need no new name, and a host without a policy needs none for the removal.
    let put = async |port: u16, name: &str| {
        registry.put(&tenant, &instance_id("i"), spec(port, &[name], "known")).await.map(drop)
    };
    put(9002, "b.example").await.unwrap();
    assert!(is_limit(&put(9003, "d.example").await));
    registry.remove_policy(&tenant, &host("a.example")).await.unwrap();
    registry.remove_policy(&tenant, &host("c.example")).await.unwrap();
    set("a.example", 1).await.unwrap();
    paths("a.example").await.unwrap();
    assert!(registry.set_policy(&Caller::root(), &host("e.example"), &policy(1), None).await.is_ok());
    rig.check_catalog().await;
}

#[tokio::test]
async fn a_version_type_or_host_that_was_registered_before_is_not_new() {
    let rig = Rig::new().await;
    let put = async |registry: &crate::Registry, caller: &Caller, id: &str, hosts: &[&str], version: &str| {
        let port = 9100 + u16::from(id.as_bytes()[0]);
        registry.put(caller, &instance_id(id), spec(port, hosts, version)).await.map(drop)
    };
    for version in ["old", "older", "now"] {
        put(&rig.registry, &Caller::root(), "i", &["shop.example"], version).await.unwrap();
    }
    let registry = rig.registry.clone().with_limits_per_token(Limits { instances: 0, names: 2 });
    let tenant = Caller::named("tenant".to_owned(), vec![Scope::Routes], None);
    put(&registry, &tenant, "a", &["a.example", "a.example"], "now").await.unwrap();
    // The host was deleted, and is counted already.
    registry.remove(&tenant, &instance_id("a")).await.unwrap();
    registry.remove_host(&Caller::root(), &host("a.example")).await.unwrap();
    put(&registry, &tenant, "a", &["a.example"], "now").await.unwrap();
    put(&registry, &tenant, "b", &["b.example"], "now").await.unwrap();
    // The limit is reached, and does not block a rollback.
    for version in ["old", "older"] {
        put(&registry, &tenant, "i", &["shop.example"], version).await.unwrap();
    }
    let refused = put(&registry, &tenant, "i", &["shop.example"], "new").await;
    assert!(matches!(refused, Err(Error::TokenNames { names: 2, .. })), "{refused:?}");
    rig.check_catalog().await;
}
