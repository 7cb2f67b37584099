//! The script that brings the table up to one instance's desired state.

use super::*;
use crate::{Error, store::Fence};

#[tokio::test]
async fn an_instance_gets_all_its_keys_and_one_serial() {
    let rig = Rig::new().await;
    let serial = rig.serial().await;
    let record = active(1, spec(9001, &["a.example", "*.a.example"], "17"));
    assert_eq!(rig.apply("i", Projection::Wanted(&record)).await, done(serial + 1, true));
    for name in ["a.example", "*.a.example"] {
        let table = rig.table(name).await;
        assert_eq!(table.addresses, ["127.0.0.1:9001"]);
        assert_eq!(table.instance_ids, ["i"]);
        assert_eq!(table.log_key.as_deref(), Some("17"));
        assert_eq!(table.policy, None);
    }
    rig.check_catalog().await;
}

#[tokio::test]
async fn a_lost_reply_may_be_answered_by_running_it_again() {
    let rig = Rig::new().await;
    let record = active(1, spec(9001, &["a.example"], "17"));
    rig.apply("i", Projection::Wanted(&record)).await;
    let serial = rig.serial().await;
    assert_eq!(rig.apply("i", Projection::Wanted(&record)).await, Applied::Same { serial });
    assert_eq!(rig.apply("i", Projection::Removed(2)).await, done(serial + 1, true));
    assert_eq!(rig.apply("i", Projection::Removed(2)).await, Applied::Same { serial: serial + 1 });
    assert!(rig.addresses("a.example").await.is_empty());
}

#[tokio::test]
async fn a_later_revision_that_routers_cannot_see_leaves_the_serial() {
    let rig = Rig::new().await;
    rig.apply("i", Projection::Wanted(&active(1, spec(9001, &["a.example"], "17")))).await;
    let serial = rig.serial().await;
    let leased = active(
        2,
        Spec { version_type_id: spec(1, &["x"], "17").version_type_id, ..leased(9001, &["a.example"], 9) },
    );
    assert_eq!(rig.apply("i", Projection::Wanted(&leased)).await, done(serial, false));
    let score: Option<u64> = rig.routes("ZSCORE", &["leases", "i"]).await;
    assert!(score.is_some());
}

#[tokio::test]
async fn a_stale_projection_changes_nothing() {
    let rig = Rig::new().await;
    let (old, new) = (active(1, spec(9001, &["a.example"], "1")), active(2, spec(9002, &["b.example"], "2")));
    rig.apply("i", Projection::Wanted(&new)).await;
    let serial = rig.serial().await;
    assert_eq!(rig.apply("i", Projection::Wanted(&old)).await, Applied::Stale { revision: 2 });
    assert_eq!(rig.apply("i", Projection::Removed(1)).await, Applied::Stale { revision: 2 });
    assert_eq!(rig.serial().await, serial);
    assert!(rig.addresses("a.example").await.is_empty());
    assert_eq!(rig.addresses("b.example").await, ["127.0.0.1:9002"]);
}

#[tokio::test]
async fn a_tombstone_keeps_a_late_projection_from_raising_the_dead() {
    let rig = Rig::new().await;
    let record = active(1, spec(9001, &["a.example"], "1"));
    // The removal overtakes the registration.
    rig.apply("i", Projection::Removed(2)).await;
    assert_eq!(rig.apply("i", Projection::Wanted(&record)).await, Applied::Stale { revision: 2 });
    assert!(rig.addresses("a.example").await.is_empty());
    let ttl: i64 = rig.routes("TTL", &["instance:i"]).await;
    assert!((1..=3600).contains(&ttl), "{ttl}");
    // A new registration is not mistaken for the old one.
    rig.apply("i", Projection::Wanted(&active(3, spec(9001, &["a.example"], "1")))).await;
    assert_eq!(rig.addresses("a.example").await, ["127.0.0.1:9001"]);
    assert_eq!(rig.routes::<i64>("TTL", &["instance:i"]).await, -1);
}

#[tokio::test]
async fn moving_takes_the_old_address_and_names_away() {
    let rig = Rig::new().await;
    rig.apply("i", Projection::Wanted(&active(1, spec(9001, &["a.example", "b.example"], "1")))).await;
    let serial = rig.serial().await;
    let moved = active(2, spec(9002, &["b.example", "c.example"], "1"));
    assert_eq!(rig.apply("i", Projection::Wanted(&moved)).await, done(serial + 1, true));
    assert!(rig.addresses("a.example").await.is_empty());
    assert_eq!(rig.addresses("b.example").await, ["127.0.0.1:9002"]);
    assert_eq!(rig.addresses("c.example").await, ["127.0.0.1:9002"]);
    assert_eq!(rig.routes::<Vec<String>>("HKEYS", &["addresses"]).await, ["127.0.0.1:9002"]);
    // The name stays known: its visitors get "unavailable", not "unknown host".
    assert_eq!(rig.table("a.example").await.log_key.as_deref(), Some("1"));
}

#[tokio::test]
async fn the_newest_registration_takes_an_address_over() {
    let rig = Rig::new().await;
    let old = active(1, spec(9001, &["a.example", "both.example"], "1"));
    let new = active(3, spec(9001, &["b.example", "both.example"], "2"));
    rig.apply("old", Projection::Wanted(&old)).await;
    let serial = rig.serial().await;
    let displaced = Some("old".to_owned());
    let taken = rig.apply("new", Projection::Wanted(&new)).await;
    assert_eq!(taken, Applied::Done { serial: serial + 1, visible: true, displaced });
    // Requests for a.example must not reach another's program.
    assert!(rig.addresses("a.example").await.is_empty());
    assert_eq!(rig.table("both.example").await.instance_ids, ["new"]);
    assert_eq!(rig.addresses("both.example").await, ["127.0.0.1:9001"]);
    // The removal of the displaced one comes later and leaves the address alone.
    assert_eq!(rig.apply("old", Projection::Removed(2)).await, done(serial + 1, false));
    assert_eq!(rig.addresses("both.example").await, ["127.0.0.1:9001"]);
    // So does its registration, if it was on its way all the time.
    assert_eq!(rig.apply("old", Projection::Wanted(&old)).await, Applied::Stale { revision: 2 });
}

#[tokio::test]
async fn an_earlier_registration_cannot_take_an_address_back() {
    let rig = Rig::new().await;
    let new = active(5, spec(9001, &["a.example"], "1"));
    rig.apply("new", Projection::Wanted(&new)).await;
    let old = active(4, spec(9001, &["b.example"], "1"));
    let refused = rig.apply("old", Projection::Wanted(&old)).await;
    assert_eq!(refused, Applied::Superseded { by: "new".to_owned() });
    assert!(rig.addresses("b.example").await.is_empty());
}

#[tokio::test]
async fn version_types_that_share_a_host_are_distinguished() {
    let rig = Rig::new().await;
    rig.apply("one", Projection::Wanted(&active(1, spec(9001, &["a.example"], "17")))).await;
    assert_eq!(rig.table("a.example").await.policy, None);
    rig.apply("two", Projection::Wanted(&active(2, spec(9002, &["a.example"], r#"1"8"#)))).await;
    let table = rig.table("a.example").await;
    let policy: serde_json::Value = serde_json::from_str(&table.policy.unwrap()).unwrap();
    let expected =
        serde_json::json!({"v": 1, "log_keys": {"127.0.0.1:9001": "17", "127.0.0.1:9002": "1\"8"}});
    assert_eq!(policy, expected);
    assert_eq!(table.log_key.as_deref(), Some("1\"8"));
    rig.apply("one", Projection::Removed(3)).await;
    assert_eq!(rig.table("a.example").await.policy, None);
}

#[tokio::test]
async fn a_draining_address_is_listed_and_receives_nothing() {
    let rig = Rig::new().await;
    rig.apply("old", Projection::Wanted(&active(1, spec(9001, &["a.example"], "1")))).await;
    rig.apply("new", Projection::Wanted(&active(2, spec(9002, &["a.example"], "1")))).await;
    let serial = rig.serial().await;
    let record = draining(3, spec(9001, &["a.example"], "1"), 4_000_000_000_000);
    assert_eq!(rig.apply("old", Projection::Wanted(&record)).await, done(serial + 1, true));
    let table = rig.table("a.example").await;
    assert_eq!(table.addresses, ["127.0.0.1:9001", "127.0.0.1:9002"]);
    assert_eq!(table.policy.as_deref(), Some(r#"{"v":1,"draining":["127.0.0.1:9001"]}"#));
    // Another deadline makes no difference to routers.
    let later = draining(4, spec(9001, &["a.example"], "1"), 5_000_000_000_000);
    assert_eq!(rig.apply("old", Projection::Wanted(&later)).await, done(serial + 1, false));
}

#[tokio::test]
async fn the_log_key_is_the_latest_active_registrations() {
    let rig = Rig::new().await;
    rig.apply("one", Projection::Wanted(&active(1, spec(9001, &["a.example"], "1")))).await;
    rig.apply("two", Projection::Wanted(&active(2, spec(9002, &["a.example"], "2")))).await;
    let far = 4_000_000_000_000;
    rig.apply("two", Projection::Wanted(&draining(3, spec(9002, &["a.example"], "2"), far))).await;
    assert_eq!(rig.table("a.example").await.log_key.as_deref(), Some("1"));
    rig.apply("one", Projection::Wanted(&draining(4, spec(9001, &["a.example"], "1"), far))).await;
    assert_eq!(rig.table("a.example").await.log_key.as_deref(), Some("1"));
}

#[tokio::test]
async fn an_unexpected_key_type_changes_nothing() {
    for (command, args, key) in [
        ("SET", ["instances:b.example", "x"], "instances:b.example"),
        ("SADD", ["logkey:b.example", "x"], "logkey:b.example"),
        ("SET", ["leases", "x"], "leases"),
        ("SET", ["serial", "x"], "serial"),
    ] {
        let rig = Rig::new().await;
        let () = rig.routes(command, &args).await;
        let mark = TableMark { serial: 0, ..rig.mark().await };
        let record = active(1, spec(9001, &["a.example", "b.example"], "1"));
        let applied =
            rig.store.apply(&instance_id("i"), Projection::Wanted(&record), Some(&mark), None).await;
        assert!(
            matches!(&applied, Err(Error::Blocked { key: blocked, .. }) if blocked == key),
            "{applied:?}"
        );
        assert!(rig.addresses("a.example").await.is_empty());
        assert_eq!(rig.routes::<u64>("EXISTS", &["instance:i", "addresses"]).await, 0);
    }
}

#[tokio::test]
async fn a_table_that_is_not_the_one_meant_is_not_written_to() {
    let rig = Rig::new().await;
    let record = active(1, spec(9001, &["a.example"], "1"));
    let mark = rig.mark().await;
    for wrong in [
        TableMark { epoch: "0".to_owned(), ..mark.clone() },
        TableMark { serial: mark.serial + 1, ..mark.clone() },
    ] {
        let applied =
            rig.store.apply(&instance_id("i"), Projection::Wanted(&record), Some(&wrong), None).await;
        assert!(matches!(applied, Err(Error::Resyncing { .. })), "{applied:?}");
    }
    let () = rig.routes("DEL", &["epoch"]).await;
    let applied = rig.store.apply(&instance_id("i"), Projection::Wanted(&record), Some(&mark), None).await;
    assert!(matches!(applied, Err(Error::Resyncing { .. })), "{applied:?}");
    assert!(rig.addresses("a.example").await.is_empty());
}

#[tokio::test]
async fn an_earlier_lease_is_fenced_out() {
    let rig = Rig::new().await;
    let mark = rig.mark().await;
    let apply = async |revision: u64, epoch: u64| {
        let record = active(revision, spec(9001, &["a.example"], &revision.to_string()));
        let fence = Fence { lease: "reconciler", epoch };
        rig.store.apply(&instance_id("i"), Projection::Wanted(&record), Some(&mark), Some(fence)).await
    };
    assert!(matches!(apply(1, 7).await, Ok(Applied::Done { .. })));
    assert!(matches!(apply(2, 6).await, Err(Error::Fenced { epoch: 7 })));
    assert_eq!(rig.table("a.example").await.log_key.as_deref(), Some("1"));
    assert!(matches!(apply(3, 8).await, Ok(Applied::Done { .. })));
}

#[tokio::test]
async fn entries_made_by_hand_stay() {
    let rig = Rig::new().await;
    let () = rig.routes("SADD", &["instances:a.example", "10.0.0.1:80"]).await;
    rig.apply("i", Projection::Wanted(&active(1, spec(9001, &["a.example"], "1")))).await;
    assert_eq!(rig.addresses("a.example").await, ["10.0.0.1:80", "127.0.0.1:9001"]);
    rig.apply("i", Projection::Removed(2)).await;
    assert_eq!(rig.addresses("a.example").await, ["10.0.0.1:80"]);
}
