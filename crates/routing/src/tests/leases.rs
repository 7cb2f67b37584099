//! Leases and drains, on a clock that the test sets.

use super::*;
use crate::{
    ChangeKind, Error,
    store::{Due, Fence},
};
use signalbox_access::Caller;
use signalbox_api::Time;

const START: u64 = 1_800_000_000_000;

impl Rig {
    /// Sweeps at `now_ms`; the number of instances that ended.
    async fn sweep_at(&self, now_ms: u64) -> usize {
        self.store.set_clock_ms(now_ms);
        self.sweeper().pass(1).await.unwrap()
    }

    /// Sweeps each second up to `until_ms`, as a running pacemaker does.
    async fn sweep_until(&self, from_ms: u64, until_ms: u64) -> usize {
        let mut ended = 0;
        for now_ms in (from_ms..=until_ms).step_by(1000) {
            ended += self.sweep_at(now_ms).await;
        }
        ended
    }

    async fn heartbeat(&self, id: &str) -> Result<signalbox_api::routes::Heartbeat, Error> {
        self.registry.heartbeat(&Caller::root(), &instance_id(id)).await
    }

    async fn is_wanted(&self, id: &str) -> bool {
        self.store.stored(&instance_id(id)).await.unwrap().is_some()
    }
}

#[tokio::test]
async fn a_lease_ends_without_heartbeats_and_not_before() {
    let rig = Rig::new().await;
    rig.sweep_at(START).await;
    rig.put("i", leased(9001, &["a.example"], 5)).await;
    assert_eq!(rig.sweep_until(START, START + 4000).await, 0);
    assert_eq!(rig.addresses("a.example").await, ["127.0.0.1:9001"]);
    let serial = rig.serial().await;
    assert_eq!(rig.sweep_at(START + 5000).await, 1);
    assert!(rig.addresses("a.example").await.is_empty());
    assert!(!rig.is_wanted("i").await);
    assert_eq!(rig.serial().await, serial + 1);
    assert!(matches!(rig.heartbeat("i").await, Err(Error::NoInstance(_))));
    assert!(rig.outstanding().await.is_empty());
    assert_eq!(rig.routes::<u64>("ZCARD", &["leases"]).await, 0);
}

#[tokio::test]
async fn a_heartbeat_renews_without_a_serial() {
    let rig = Rig::new().await;
    rig.sweep_at(START).await;
    rig.put("i", leased(9001, &["a.example"], 5)).await;
    let serial = rig.serial().await;
    for second in 1..20 {
        rig.store.set_clock_ms(START + second * 1000);
        let renewed = rig.heartbeat("i").await.unwrap();
        assert_eq!(renewed.lease_seconds, Some(5));
        assert_eq!(renewed.lease_expires_at.map(Time::ms), Some(START + (second + 5) * 1000));
        assert_eq!(rig.sweep_at(START + second * 1000).await, 0);
    }
    assert_eq!(rig.serial().await, serial);
    // A repeated registration is as good as a heartbeat.
    rig.put("i", leased(9001, &["a.example"], 5)).await;
    assert_eq!(rig.sweep_until(START + 20_000, START + 23_000).await, 0);
    assert_eq!(rig.sweep_at(START + 25_000).await, 1);
}

#[tokio::test]
async fn after_an_absence_each_lease_gets_a_full_period() {
    let rig = Rig::new().await;
    rig.sweep_at(START).await;
    rig.put("short", leased(9001, &["a.example"], 5)).await;
    rig.put("long", leased(9002, &["a.example"], 50)).await;
    // No sweep for an hour: no heartbeat could arrive.
    let back = START + 3_600_000;
    assert_eq!(rig.sweep_at(back).await, 0);
    assert_eq!(rig.sweep_until(back, back + 4000).await, 0);
    assert_eq!(rig.addresses("a.example").await.len(), 2);
    assert_eq!(rig.sweep_at(back + 5000).await, 1);
    assert_eq!(rig.addresses("a.example").await, ["127.0.0.1:9002"]);
    assert_eq!(rig.sweep_until(back + 6000, back + 49_000).await, 0);
    assert_eq!(rig.sweep_at(back + 50_000).await, 1);
}

#[tokio::test]
async fn it_is_not_an_absence_while_another_pacemaker_runs() {
    let rig = Rig::new().await;
    rig.sweep_at(START).await;
    rig.put("i", leased(9001, &["a.example"], 5)).await;
    // The one that sweeps is gone; the other takes heartbeats and has yet to take the lease over.
    for second in 1..=6 {
        rig.store.set_clock_ms(START + second * 1000);
        assert!(!rig.store.sweep(0, 3000, 0).await.unwrap().after_absence);
    }
    assert_eq!(rig.sweep_at(START + 7000).await, 1);
}

#[tokio::test]
async fn a_drained_instance_is_removed_at_its_deadline() {
    let rig = Rig::new().await;
    rig.sweep_at(START).await;
    rig.put("i", spec(9001, &["a.example"], "1")).await;
    rig.put("j", spec(9002, &["a.example"], "1")).await;
    rig.registry.drain(&Caller::root(), &instance_id("i"), 3).await.unwrap();
    assert_eq!(rig.sweep_until(START, START + 2000).await, 0);
    assert_eq!(rig.addresses("a.example").await.len(), 2);
    assert_eq!(rig.sweep_at(START + 3000).await, 1);
    let table = rig.table("a.example").await;
    assert_eq!((table.addresses, table.policy), (vec!["127.0.0.1:9002".to_owned()], None));
}

#[tokio::test]
async fn a_drain_that_was_called_off_removes_nothing() {
    let rig = Rig::new().await;
    rig.sweep_at(START).await;
    rig.put("i", spec(9001, &["a.example"], "1")).await;
    rig.registry.drain(&Caller::root(), &instance_id("i"), 3).await.unwrap();
    rig.registry.resume(&Caller::root(), &instance_id("i")).await.unwrap();
    assert_eq!(rig.sweep_until(START, START + 9000).await, 0);
    assert!(rig.is_wanted("i").await);
}

#[tokio::test]
async fn an_instance_registered_in_the_moment_of_its_end_stays() {
    let rig = Rig::new().await;
    rig.sweep_at(START).await;
    rig.put("i", leased(9001, &["a.example"], 5)).await;
    rig.sweep_until(START, START + 4000).await;
    rig.store.set_clock_ms(START + 5000);
    let stored = rig.store.stored(&instance_id("i")).await.unwrap().unwrap();
    let mark = rig.mark().await;
    let fence = Fence { lease: "sweeper", epoch: 1 };
    // The sweeper dies between the table and the fabric…
    rig.store.mark_outstanding(&stored).await.unwrap();
    let expired = rig
        .store
        .apply(&instance_id("i"), Projection::Expired(&stored.record), Some(&mark), Some(fence))
        .await;
    assert!(matches!(expired.unwrap(), Applied::Done { .. }));
    // …the owner registers again, exactly as before…
    let change = rig.put("i", leased(9001, &["a.example"], 5)).await;
    assert_eq!(change.kind, ChangeKind::Altered);
    assert_eq!(rig.addresses("a.example").await, ["127.0.0.1:9001"]);
    // …and the late second half finds another record than it read.
    assert_eq!(rig.registry.remove_exactly(&stored, ChangeKind::LeaseEnded).await.unwrap(), None);
    assert!(rig.is_wanted("i").await);
}

#[tokio::test]
async fn an_end_that_was_interrupted_is_completed() {
    let rig = Rig::new().await;
    rig.sweep_at(START).await;
    rig.put("i", leased(9001, &["a.example"], 5)).await;
    rig.sweep_until(START, START + 4000).await;
    rig.store.set_clock_ms(START + 5000);
    let stored = rig.store.stored(&instance_id("i")).await.unwrap().unwrap();
    let mark = rig.mark().await;
    let fence = Fence { lease: "sweeper", epoch: 1 };
    rig.store.mark_outstanding(&stored).await.unwrap();
    rig.store
        .apply(&instance_id("i"), Projection::Expired(&stored.record), Some(&mark), Some(fence))
        .await
        .unwrap();
    assert!(rig.is_wanted("i").await);
    rig.reconcile().await;
    assert!(!rig.is_wanted("i").await);
    assert!(rig.outstanding().await.is_empty());
}

#[tokio::test]
async fn a_lease_that_was_renewed_after_the_check_does_not_end() {
    let rig = Rig::new().await;
    rig.sweep_at(START).await;
    rig.put("i", leased(9001, &["a.example"], 5)).await;
    rig.sweep_until(START, START + 4000).await;
    rig.store.set_clock_ms(START + 5000);
    let due = rig.store.sweep(1, 3000, 10).await.unwrap();
    assert_eq!(due, Due { after_absence: false, ids: vec!["i".to_owned()] });
    rig.heartbeat("i").await.unwrap();
    let stored = rig.store.stored(&instance_id("i")).await.unwrap().unwrap();
    let mark = rig.mark().await;
    let applied =
        rig.store.apply(&instance_id("i"), Projection::Expired(&stored.record), Some(&mark), None).await;
    assert_eq!(applied.unwrap(), Applied::Early);
    assert_eq!(rig.addresses("a.example").await, ["127.0.0.1:9001"]);
}

#[tokio::test]
async fn a_sweeper_of_before_is_fenced_out_and_begins_above() {
    let rig = Rig::new().await;
    rig.store.set_clock_ms(START);
    rig.store.sweep(9, 3000, 10).await.unwrap();
    assert!(matches!(rig.store.sweep(8, 3000, 10).await, Err(Error::Fenced { epoch: 9 })));
    let mut sweeper = rig.sweeper();
    assert!(matches!(sweeper.pass(8).await, Err(Error::Fenced { epoch: 9 })));
    // Its next epoch is one that the table accepts, though this fabric never counted so far.
    let mut lease = rig.lease("sweeper");
    lease.fenced(9);
    assert_eq!(lease.hold().await.unwrap(), Some(10));
}

#[tokio::test]
async fn an_instance_without_a_lease_never_ends() {
    let rig = Rig::new().await;
    rig.sweep_at(START).await;
    rig.put("i", spec(9001, &["a.example"], "1")).await;
    assert_eq!(rig.heartbeat("i").await.unwrap().lease_seconds, None);
    assert_eq!(rig.sweep_until(START, START + 5000).await, 0);
    assert!(rig.is_wanted("i").await);
}
