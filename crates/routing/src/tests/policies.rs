//! Policies of hosts, from the desired state to the edge's data.

use serde_json::{Value, json};

use super::*;
use crate::{
    AlteredPolicy, Error,
    store::{ResourceOutcome, ResourceProjected},
};
use signalbox_access::Caller;
use signalbox_route_table::Policy;

const HOST: &str = "a.example";

fn policy(json: Value) -> Policy {
    serde_json::from_value::<Policy>(json).unwrap().check().unwrap()
}

impl Rig {
    async fn set_policy(&self, json: Value) -> (bool, u64) {
        let (root, host, policy) = (Caller::root(), host(HOST), policy(json));
        let (set, _) = self.registry.set_policy(&root, &host, &policy, None).await.unwrap();
        (set.changed, set.serial)
    }

    async fn remove_policy(&self) -> (bool, u64) {
        let removed = self.registry.remove_policy(&Caller::root(), &host(HOST)).await.unwrap();
        (removed.changed, removed.serial)
    }

    /// The edge's data.
    async fn projected(&self) -> Option<Value> {
        self.table(HOST).await.policy.map(|text| serde_json::from_str(&text).unwrap())
    }
}

#[tokio::test]
async fn a_policy_is_there_before_the_first_instance_and_after_the_last() {
    let rig = Rig::new().await;
    let serial = rig.serial().await;
    assert_eq!(rig.set_policy(json!({"hold_ms": 5000})).await, (true, serial + 1));
    assert_eq!(rig.projected().await, Some(json!({"v": 1, "hold_ms": 5000})));
    assert_eq!(rig.store.hosts_after(None, 10).await.unwrap(), [HOST]);
    rig.put("one", spec(9001, &[HOST], "1")).await;
    assert_eq!(rig.projected().await, Some(json!({"v": 1, "hold_ms": 5000})));
    rig.registry.remove(&Caller::root(), &instance_id("one")).await.unwrap();
    assert_eq!(rig.projected().await, Some(json!({"v": 1, "hold_ms": 5000})));
    assert!(rig.remove_policy().await.0);
    assert_eq!(rig.projected().await, None);
    // It was registered: the name stays known without its policy.
    assert!(rig.table(HOST).await.exists());
    assert!(rig.outstanding().await.is_empty());
    rig.check_catalog().await;
}

#[tokio::test]
async fn a_name_that_was_known_by_its_policy_alone_goes_with_it() {
    let rig = Rig::new().await;
    rig.set_policy(json!({"https": "only"})).await;
    rig.remove_policy().await;
    assert!(!rig.table(HOST).await.exists());
    assert!(rig.store.hosts_after(None, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_repetition_changes_nothing_and_raises_nothing() {
    let rig = Rig::new().await;
    let (changed, serial) = rig.set_policy(json!({"methods": ["GET", "post"]})).await;
    assert!(changed);
    assert_eq!(rig.set_policy(json!({"methods": ["POST", "GET"]})).await, (false, serial));
    assert_eq!(rig.serial().await, serial);
    // An empty policy is the same as none.
    assert_eq!(rig.set_policy(json!({})).await, (true, serial + 1));
    assert_eq!(rig.remove_policy().await, (false, serial + 1));
    assert_eq!((rig.serial().await, rig.projected().await), (serial + 1, None));
}

#[tokio::test]
async fn data_of_the_table_is_added_to_the_policy() {
    let rig = Rig::new().await;
    rig.store.set_clock_ms(1_000_000);
    rig.put("one", Spec { weight: 3, ..spec(9001, &[HOST], "17") }).await;
    // Weights have no meaning for a single instance.
    assert_eq!(rig.projected().await, None);
    rig.put("two", Spec { weight: 0, ..spec(9002, &[HOST], "17") }).await;
    let weights = json!({"127.0.0.1:9001": 3, "127.0.0.1:9002": 0});
    assert_eq!(rig.projected().await, Some(json!({"v": 1, "weights": weights})));
    rig.store.set_clock_ms(2_000_000);
    rig.put("two", spec(9003, &[HOST], "17")).await;
    let shares = json!([{"version_type": "17", "percent": 100}]);
    rig.set_policy(json!({"slow_start_ms": 1000, "shares": shares})).await;
    let expected = json!({
        "v": 1, "slow_start_ms": 1000, "shares": shares,
        "weights": {"127.0.0.1:9001": 3, "127.0.0.1:9003": 1},
        "log_keys": {"127.0.0.1:9001": "17", "127.0.0.1:9003": "17"},
        // One is where it was; the other is at a new address.
        "joined": {"127.0.0.1:9001": 1_000_000, "127.0.0.1:9003": 2_000_000},
    });
    assert_eq!(rig.projected().await, Some(expected));
    // A change of an existing instance does not start it slowly.
    rig.store.set_clock_ms(3_000_000);
    rig.put("one", spec(9001, &[HOST], "17")).await;
    assert_eq!(rig.projected().await.unwrap()["joined"]["127.0.0.1:9001"], 1_000_000);
}

#[tokio::test]
async fn texts_of_a_policy_reach_the_edge_as_they_are() {
    let rig = Rig::new().await;
    let body = "back soon: \"quotes\", \\ backslashes, \n lines, ünïcödé, %d and }";
    rig.set_policy(json!({"maintenance": {"body": body}})).await;
    let mut projected = rig.projected().await.unwrap();
    let since = projected["maintenance"].as_object_mut().and_then(|part| part.remove("since_ms"));
    assert!(since.is_some_and(|since| since.is_u64()), "{projected}");
    assert_eq!(projected, json!({"v": 1, "maintenance": {"body": body, "by": "root"}}));
    assert!(!rig.set_policy(json!({"maintenance": {"body": body}})).await.0);
}

#[tokio::test]
async fn a_late_projection_changes_nothing() {
    let rig = Rig::new().await;
    let (name, mark) = (host(HOST), rig.mark().await);
    let (old, new) = (policy(json!({"hold_ms": 1})), policy(json!({"hold_ms": 2})));
    let rule = async |revision, policy: Option<&Policy>| {
        rig.store.project_resource(&name, revision, policy, Some(&mark)).await.unwrap()
    };
    let serial = rig.serial().await;
    assert_eq!(rule(2, Some(&new)).await, ResourceProjected::Done { serial: serial + 1 });
    assert_eq!(rule(1, Some(&old)).await, ResourceProjected::Stale { revision: 2 });
    assert_eq!(rule(2, Some(&new)).await, ResourceProjected::Done { serial: serial + 1 });
    assert_eq!(rule(3, None).await, ResourceProjected::Done { serial: serial + 2 });
    assert_eq!(rule(2, Some(&new)).await, ResourceProjected::Stale { revision: 3 });
    assert_eq!(rig.projected().await, None);
    let ttl: i64 = rig.routes("TTL", &["rules:a.example"]).await;
    assert!((1..=3600).contains(&ttl), "{ttl}");
    rule(4, Some(&old)).await;
    assert_eq!(rig.routes::<i64>("TTL", &["rules:a.example"]).await, -1);
    assert_eq!(rig.projected().await, Some(json!({"v": 1, "hold_ms": 1})));
}

#[tokio::test]
async fn another_table_gets_no_policy() {
    let rig = Rig::new().await;
    let mark = rig.mark().await;
    let set = policy(json!({"hold_ms": 1}));
    for wrong in [TableMark { epoch: "x".into(), ..mark.clone() }, TableMark { serial: 99, ..mark.clone() }] {
        let ruling = rig.store.project_resource(&host(HOST), 1, Some(&set), Some(&wrong)).await;
        assert!(matches!(ruling, Err(Error::Resyncing { .. })), "{ruling:?}");
    }
    let () = rig.routes("SADD", &["policy:a.example", "x"]).await;
    let serial = rig.serial().await;
    let ruling = rig.store.project_resource(&host(HOST), 1, Some(&set), Some(&mark)).await;
    assert!(matches!(&ruling, Err(Error::Blocked { key, .. }) if key == "policy:a.example"), "{ruling:?}");
    assert_eq!(rig.routes::<u64>("EXISTS", &["rules:a.example"]).await, 0);
    assert_eq!(rig.serial().await, serial);
}

#[tokio::test]
async fn a_change_that_was_interrupted_is_completed() {
    let rig = Rig::new().await;
    let name = host(HOST);
    let set = policy(json!({"hold_ms": 1}));
    // The client's pacemaker died before the table had the policy.
    rig.store.desire_resource(&name, Some(&set), None).await.unwrap();
    assert_eq!(rig.projected().await, None);
    rig.reconcile().await;
    assert_eq!(rig.projected().await, Some(json!({"v": 1, "hold_ms": 1})));
    rig.store.desire_resource::<Policy>(&name, None, None).await.unwrap();
    rig.reconcile().await;
    assert_eq!(rig.projected().await, None);
    assert!(rig.outstanding().await.is_empty());
    // Repeating it does the same without the reconciler.
    rig.store.desire_resource(&name, Some(&set), None).await.unwrap();
    let (changed, serial) = rig.set_policy(json!({"hold_ms": 1})).await;
    assert!(!changed && serial == rig.serial().await);
    assert_eq!(rig.projected().await, Some(json!({"v": 1, "hold_ms": 1})));
}

#[tokio::test]
async fn a_policy_that_another_client_changed_is_not_replaced() {
    let rig = Rig::new().await;
    let (root, name) = (Caller::root(), host(HOST));
    let set = async |hold_ms: u64, expected: u64| {
        let policy = policy(json!({"hold_ms": hold_ms}));
        rig.registry.set_policy(&root, &name, &policy, Some(expected)).await.map(|(set, _)| set)
    };
    assert!(set(1, 0).await.unwrap().changed);
    let read = rig.store.policy(&name).await.unwrap().unwrap().revision;
    assert!(matches!(set(2, 0).await, Err(Error::PolicyChanged { revision }) if revision == read));
    assert!(set(2, read).await.unwrap().changed);
    assert!(matches!(set(3, read).await, Err(Error::PolicyChanged { revision }) if revision > read));
    assert_eq!(rig.projected().await, Some(json!({"v": 1, "hold_ms": 2})));
}

#[tokio::test]
async fn an_instance_that_another_client_changed_is_not_replaced() {
    let rig = Rig::new().await;
    let (root, id) = (Caller::root(), instance_id("one"));
    let put = async |version: &str, expected: u64| {
        rig.registry.put_as(&root, &id, spec(9001, &[HOST], version), false, Some(expected)).await
    };
    assert!(matches!(put("1", 7).await, Err(Error::InstanceChanged { revision: 0 })));
    put("1", 0).await.unwrap();
    let read = rig.store.stored(&id).await.unwrap().unwrap().record.revision;
    assert!(matches!(put("2", 0).await, Err(Error::InstanceChanged { revision }) if revision == read));
    put("2", read).await.unwrap();
    assert!(matches!(put("3", read).await, Err(Error::InstanceChanged { revision }) if revision > read));
    assert_eq!(
        rig.store.stored(&id).await.unwrap().unwrap().record.desired.spec.version_type_id.as_str(),
        "2"
    );
}

#[tokio::test]
async fn a_table_that_was_lost_gets_its_policies_again() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &[HOST], "1")).await;
    let before = rig.set_policy(json!({"hold_ms": 1})).await.1;
    let () = rig.routes("FLUSHALL", &[]).await;
    rig.reconcile().await;
    assert_eq!(rig.projected().await, Some(json!({"v": 1, "hold_ms": 1})));
    assert!(rig.serial().await > before);
    assert!(!rig.set_policy(json!({"hold_ms": 1})).await.0);
}

#[tokio::test]
async fn a_fabric_that_was_lost_takes_policies_over() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &[HOST], "1")).await;
    rig.set_policy(json!({"hold_ms": 1, "shares": [{"version_type": "1", "percent": 100}]})).await;
    let wanted = rig.store.policy(&host(HOST)).await.unwrap();
    let projected = rig.projected().await;
    let () = rig.fabric("FLUSHALL", &[]).await;
    rig.reconcile().await;
    assert_eq!(rig.store.policy(&host(HOST)).await.unwrap(), wanted);
    assert_eq!(rig.projected().await, projected);
    // Later changes continue from there.
    assert!(rig.set_policy(json!({"hold_ms": 2})).await.0);
    assert_eq!(rig.projected().await, Some(json!({"v": 1, "hold_ms": 2})));
}

#[tokio::test]
async fn a_policy_without_a_record_is_removed() {
    let rig = Rig::new().await;
    rig.set_policy(json!({"hold_ms": 1})).await;
    rig.put("later", spec(9001, &["b.example"], "1")).await;
    // As a fabric restored without it would have it, after other changes.
    let () = rig.fabric("HDEL", &["routes:policies", HOST]).await;
    rig.reconcile().await;
    assert_eq!(rig.projected().await, None);
    assert!(rig.outstanding().await.is_empty());
}

/// A later Signalbox stored it.
#[tokio::test]
async fn a_policy_that_cannot_be_read_hides_no_other_and_can_be_removed() {
    let rig = Rig::new().await;
    rig.set_policy(json!({"hold_ms": 1})).await;
    let other = policy(json!({"hold_ms": 2}));
    rig.registry.set_policy(&Caller::root(), &host("b.example"), &other, None).await.unwrap();
    let revision = rig.store.policy(&host(HOST)).await.unwrap().unwrap().revision;
    let later = format!(r#"{{"revision":{revision},"policy":{{"hold_ms":1,"later":2}}}}"#);
    let () = rig.fabric("HSET", &["routes:policies", HOST, &later]).await;
    rig.reconcile().await;
    assert_eq!(rig.projected().await, Some(json!({"v": 1, "hold_ms": 1})));
    let names = [HOST.to_owned(), "b.example".to_owned()];
    let found = rig.store.policies(&names).await.unwrap();
    assert!(matches!(&found[..], [Some(Err(Error::Record(_))), Some(Ok(_))]), "{found:?}");
    assert!(rig.remove_policy().await.0);
    assert_eq!(rig.projected().await, None);
}

#[tokio::test]
async fn a_removed_host_takes_its_policy_along() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &[HOST], "1")).await;
    rig.set_policy(json!({"hold_ms": 1})).await;
    rig.registry.remove_host(&Caller::root(), &host(HOST)).await.unwrap();
    assert!(!rig.table(HOST).await.exists());
    assert_eq!(rig.store.policy(&host(HOST)).await.unwrap(), None);
    // Given again afterwards it is a new one, and a removal that comes late leaves it.
    rig.set_policy(json!({"hold_ms": 2})).await;
    rig.store.remove_host(&host(HOST), 1, Some(&rig.mark().await)).await.unwrap();
    assert_eq!(rig.projected().await, Some(json!({"v": 1, "hold_ms": 2})));
    rig.check_catalog().await;
}

#[tokio::test]
async fn a_confined_token_sets_policies_only_of_its_hosts() {
    let rig = Rig::new().await;
    let hosts = vec![signalbox_access::HostPattern::new(host("b.example"))];
    let tenant = Caller::named("t".to_owned(), vec![signalbox_access::Scope::Routes], Some(hosts));
    let set = policy(json!({"hold_ms": 1}));
    for refused in [
        rig.registry.set_policy(&tenant, &host(HOST), &set, None).await.map(|(set, _)| set),
        rig.registry.remove_policy(&tenant, &host(HOST)).await,
    ] {
        assert!(matches!(refused, Err(Error::HostNotAllowed { .. })));
    }
    rig.registry.set_policy(&tenant, &host("b.example"), &set, None).await.unwrap();
}

#[tokio::test]
async fn a_policy_that_changed_since_it_was_read_is_left() {
    let rig = Rig::new().await;
    rig.set_policy(json!({"hold_ms": 1})).await;
    let read = rig.store.policy(&host(HOST)).await.unwrap().unwrap().revision;
    rig.set_policy(json!({"hold_ms": 2})).await;
    let mine = policy(json!({"hold_ms": 3}));
    let outcome = rig.store.desire_resource(&host(HOST), Some(&mine), Some(read)).await.unwrap();
    assert_eq!(outcome, ResourceOutcome::Changed);
    assert_eq!(rig.projected().await, Some(json!({"v": 1, "hold_ms": 2})));
}

/// As an earlier version stored it. What a rule rejects now must not keep a host paused.
#[tokio::test]
async fn a_stored_policy_that_would_be_rejected_now_can_be_altered_in_its_parts() {
    let rig = Rig::new().await;
    let (root, name) = (Caller::root(), host(HOST));
    let rejected = json!({"body_bytes": 1000, "upstream": {"protocol": "grpc"}});
    let stored = serde_json::from_value::<Policy>(rejected).unwrap();
    assert_eq!(stored.clone().check().unwrap_err().field, "body_bytes");
    rig.registry.set_policy(&root, &name, &stored, None).await.unwrap();
    let pause = |json: Value| Some(serde_json::from_value(json).unwrap());
    let paused = rig.registry.set_pause(&root, &name, pause(json!({"wait_ms": 1}))).await.unwrap();
    assert!(paused.after.has_mode() && paused.change.changed);
    let shares =
        |percent: u8| [serde_json::from_value(json!({"version_type": "1", "percent": percent})).unwrap()];
    rig.registry.check_replace_shares(&root, &name, &shares(100)).await.unwrap();
    rig.registry.replace_shares(&root, &name, &shares(100)).await.unwrap();
    let rules = |service: &str| {
        Some(vec![serde_json::from_value(json!({"path": "/a", "service": service})).unwrap()])
    };
    rig.registry.set_paths(&root, &name, rules("b.example")).await.unwrap();
    // The new part is validated as before.
    let field = |refused: Result<AlteredPolicy, Error>| match refused {
        Err(Error::Invalid(invalid)) => invalid.field,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        field(rig.registry.set_pause(&root, &name, pause(json!({"wait_ms": 0}))).await),
        "pause.wait_ms"
    );
    assert_eq!(field(rig.registry.replace_shares(&root, &name, &shares(99)).await), "shares");
    assert_eq!(field(rig.registry.set_paths(&root, &name, rules(HOST)).await), "service");
    rig.registry.set_paths(&root, &name, None).await.unwrap();
    let resumed = rig.registry.set_pause(&root, &name, None).await.unwrap();
    let split = json!([{"version_type": "1", "percent": 100}]);
    let left = json!({"body_bytes": 1000, "upstream": {"protocol": "grpc"}, "shares": split});
    assert_eq!(serde_json::to_value(&resumed.after).unwrap(), left);
}

/// Its parts may not make it longer, but they may be removed.
#[tokio::test]
async fn a_stored_policy_that_is_too_long_can_be_resumed() {
    let rig = Rig::new().await;
    let (root, name) = (Caller::root(), host(HOST));
    let page = |code: u16| (code.to_string(), json!({"body": "x".repeat(8192)}));
    let pages: serde_json::Map<_, _> = (500..508).map(page).collect();
    let long = json!({"error_pages": pages, "pause": {"wait_ms": 1}});
    let stored = serde_json::from_value::<Policy>(long).unwrap();
    assert_eq!(stored.clone().check().unwrap_err().field, "policy");
    rig.registry.set_policy(&root, &name, &stored, None).await.unwrap();
    let longer = serde_json::from_value(json!({"path": "/a", "service": "b.example"})).unwrap();
    let refused = rig.registry.set_paths(&root, &name, Some(vec![longer])).await.unwrap_err();
    assert!(matches!(&refused, Error::Invalid(invalid) if invalid.field == "policy"), "{refused:?}");
    assert!(!rig.registry.set_pause(&root, &name, None).await.unwrap().after.has_mode());
}
