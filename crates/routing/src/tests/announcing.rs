//! The events about the table, for any crash of the announcing pacemaker.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use signalbox_store::Notice;
use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{Announce, Announcer, EventKind, RouteEvent, Routers, announcer::Progress};
use signalbox_access::Caller;

const START: u64 = 1_800_000_000_000;

/// Records published events as a bus does: the same key means the same event.
#[derive(Debug, Clone, Default)]
pub(super) struct Ears(Arc<Heard>);

#[derive(Debug, Default)]
pub(super) struct Heard {
    events: Mutex<Vec<(&'static str, RouteEvent)>>,
    /// How many events it takes before it refuses; `usize::MAX` refuses none.
    capacity: AtomicUsize,
}

impl Ears {
    pub(super) fn open() -> Self {
        let ears = Self::default();
        ears.take(usize::MAX);
        ears
    }

    pub(super) fn take(&self, capacity: usize) {
        self.0.capacity.store(capacity, Ordering::SeqCst);
    }

    pub(super) fn events(&self) -> Vec<(&'static str, RouteEvent)> {
        self.0.events.lock().unwrap().clone()
    }

    /// Topics and what they were about.
    fn published(&self) -> Vec<String> {
        let word = |(topic, event): &(&str, RouteEvent)| match topic {
            &"table.resynced" => format!(
                "{topic} {}-{} {}",
                event.data["from"],
                event.data["to"],
                event.data["reason"].as_str().unwrap()
            ),
            _ => format!("{topic} {}", event.object.rsplit_once(':').unwrap().1),
        };
        self.events().iter().map(word).collect()
    }
}

impl Announce for Ears {
    async fn announce(&self, topic: &'static str, events: Vec<RouteEvent>) -> bool {
        let objects: std::collections::BTreeSet<_> = events.iter().map(|event| &event.object).collect();
        assert_eq!(objects.len(), events.len(), "one of each object at a time, or a refusal could swap two");
        for event in events {
            let mut heard = self.0.events.lock().unwrap();
            if heard.len() >= self.0.capacity.load(Ordering::SeqCst) {
                return false;
            }
            match heard.iter().find(|(_, known)| known.key == event.key) {
                Some((_, known)) => assert_eq!(*known, event, "the same key, the same event"),
                None => heard.push((topic, event)),
            }
        }
        true
    }
}

impl Announcer<Ears> {
    pub(super) async fn check_expiries_under(&mut self, epoch: u64) {
        self.held(epoch);
        self.check_expiries().await;
    }

    async fn check_alarms_under(&mut self, epoch: u64) {
        self.held(epoch);
        self.check_alarms().await;
    }
}

impl Rig {
    pub(super) fn announcer(&self, ears: &Ears) -> Announcer<Ears> {
        self.announcer_with_alarms(ears, watch::channel(()).1)
    }

    fn announcer_with_alarms(&self, ears: &Ears, alarms: watch::Receiver<()>) -> Announcer<Ears> {
        let (lease, interval) = (self.lease("announcer"), Duration::from_secs(1));
        Announcer::new(self.store.clone(), lease, ears.clone(), interval, alarms, Metrics::default())
    }

    /// A report of a router's sidecar.
    async fn report(&self, node: &str, alarm: &str) {
        self.report_long_ago(node, alarm, 0).await;
    }

    /// The same, as if this many seconds had passed since.
    async fn report_long_ago(&self, node: &str, alarm: &str, seconds: u64) {
        let stats = self.servers.stats();
        let now_ms = stats.now_ms().await.unwrap() - 1000 * seconds;
        let fields = [("serial", "5"), ("epoch", "e"), ("workers", "[]"), ("alarm", alarm)];
        stats.command("HSET").arg(format!("router:{node}")).arg(&fields).run().await.unwrap();
        stats.command("ZADD").arg("routers").arg(now_ms).arg(node).run().await.unwrap();
    }

    /// Publishes everything.
    async fn publish(&self, ears: &Ears) {
        let mut announcer = self.announcer(ears);
        while announcer.pass().await.unwrap() == Progress::Some {}
    }

    async fn remove(&self, id: &str) {
        self.registry.remove(&Caller::root(), &instance_id(id)).await.unwrap();
    }
}

#[tokio::test]
async fn each_change_is_published_in_the_order_of_its_serial() {
    let rig = Rig::new().await;
    let (root, ears) = (Caller::root(), Ears::open());
    rig.store.set_clock_ms(START);
    rig.sweeper().pass(1).await.unwrap();
    rig.put("i", spec(9001, &["a.example"], "1")).await;
    rig.put("i", spec(9001, &["a.example", "b.example"], "1")).await;
    rig.registry.drain(&root, &instance_id("i"), 60).await.unwrap();
    rig.registry.resume(&root, &instance_id("i")).await.unwrap();
    rig.put("thief", spec(9001, &["a.example"], "2")).await;
    rig.put("leased", leased(9002, &["c.example"], 2)).await;
    rig.registry.drain(&root, &instance_id("thief"), 1).await.unwrap();
    for seconds in 1..4 {
        rig.store.set_clock_ms(START + seconds * 1000);
        rig.sweeper().pass(1).await.unwrap();
    }
    rig.put("last", spec(9003, &["d.example"], "1")).await;
    rig.remove("last").await;
    rig.registry.remove_host(&root, &host("d.example")).await.unwrap();
    rig.publish(&ears).await;
    assert_eq!(
        ears.published(),
        [
            "instance.registered i",
            "instance.altered i",
            "instance.draining i",
            "instance.resumed i",
            "instance.removed i",
            "instance.registered thief",
            "instance.registered leased",
            "instance.draining thief",
            "instance.drained thief",
            "instance.lease_expired leased",
            "instance.registered last",
            "instance.removed last",
            "host.removed d.example",
        ]
    );
    let events = ears.events();
    let serials: Vec<u64> = events.iter().map(|(_, event)| event.data["serial"].as_u64().unwrap()).collect();
    assert!(serials.is_sorted() && serials.last() == Some(&rig.serial().await), "{serials:?}");
    let epoch = rig.mark().await.epoch;
    assert_eq!(
        events[4].1.data,
        json!({"id": "i", "address": "127.0.0.1:9001", "hostnames": ["a.example", "b.example"],
            "version_type_id": "1", "weight": 1, "displaced_by": "thief", "serial": serials[4], "epoch": epoch})
    );
    assert_eq!((events[4].1.kind, events[4].1.at_ms), (EventKind::Delete, Some(START)));
    assert_eq!(events[9].1.data["hostnames"], json!(["c.example"]), "a removal has the former data");
    assert_eq!(events[12].1.data["hostname"], "d.example");
    // Nothing is published twice, and changes that routers cannot see are not published.
    rig.put("leased", leased(9002, &["c.example"], 9)).await;
    rig.publish(&ears).await;
    rig.put("leased", leased(9002, &["c.example"], 10)).await;
    rig.publish(&ears).await;
    assert_eq!(ears.published()[13..], ["instance.registered leased"]);
    rig.check_catalog().await;
}

#[tokio::test]
async fn one_fault_in_ten_seconds_is_published() {
    let rig = Rig::new().await;
    let ears = Ears::open();
    rig.put("i", spec(9001, &["a.example"], "1")).await;
    for (at, count) in [(0, 3), (9_999, 1), (10_000, 2)] {
        rig.store.set_clock_ms(START + at);
        for _ in 0..count {
            rig.registry.fault(&Caller::root(), &instance_id("i"), "answers 500", None).await.unwrap();
        }
    }
    rig.publish(&ears).await;
    assert_eq!(ears.published(), ["instance.registered i", "instance.unhealthy i", "instance.unhealthy i"]);
    let data: Vec<Value> = ears.events().into_iter().map(|(_, event)| event.data).collect();
    assert_eq!((&data[1]["faults"], &data[1]["fault"]), (&json!(1), &json!("answers 500")));
    assert_eq!((&data[2]["faults"], &data[2]["serial"]), (&json!(5), &json!(rig.serial().await)));
}

#[tokio::test]
async fn policies_and_health_are_published_and_are_not_gaps() {
    use crate::store::{Diagnosis, Fence};
    let rig = Rig::new().await;
    let (root, ears) = (Caller::root(), Ears::open());
    let health = serde_json::from_value(json!({"path": "/"})).unwrap();
    rig.put("i", Spec { health: Some(health), ..spec(9001, &["a.example"], "1") }).await;
    let policy = serde_json::from_value(json!({"hold_ms": 1})).unwrap();
    rig.registry.set_policy(&root, &host("a.example"), &policy, None).await.unwrap();
    let (id, fence) = (instance_id("i"), Fence { lease: "prober", epoch: 1 });
    for unhealthy in [Some("status 500"), None] {
        let diagnosis = Diagnosis { id: &id, address: "127.0.0.1:9001", unhealthy };
        rig.store.diagnose(diagnosis, &rig.mark().await, fence).await.unwrap();
    }
    rig.registry.remove_policy(&root, &host("a.example")).await.unwrap();
    rig.publish(&ears).await;
    let expected = [
        "instance.registered i",
        "host.altered a.example",
        "instance.unhealthy i",
        "instance.healthy i",
        "host.altered a.example",
    ];
    assert_eq!(ears.published(), expected);
    let events = ears.events();
    assert_eq!(events[2].1.data["health"], "status 500");
    assert_eq!(events[3].1.data.get("health"), None);
    assert_eq!((&*events[1].1.url, &events[1].1.data["hostname"]), ("/hosts/a.example", &json!("a.example")));
}

#[tokio::test]
async fn an_announcer_that_died_between_change_and_event_is_replaced() {
    let rig = Rig::new().await;
    let ears = Ears::open();
    for port in 1..=5 {
        rig.put(&format!("i{port}"), spec(port, &["a.example"], "1")).await;
    }
    // It got as far as two events, and never noted that.
    ears.take(2);
    assert_eq!(rig.announcer(&ears).pass().await.unwrap(), Progress::NotNow);
    ears.take(usize::MAX);
    rig.publish(&ears).await;
    let expected: Vec<String> = (1..=5).map(|n| format!("instance.registered i{n}")).collect();
    assert_eq!(ears.published(), expected);
    // One that published and died before storing its place is followed by one that publishes the same under the same
    // keys.
    let () = rig.fabric("DEL", &["routes:announced"]).await;
    rig.publish(&ears).await;
    assert_eq!(ears.published(), expected);
}

#[tokio::test]
async fn two_concurrent_announcers_publish_everything_once() {
    let rig = Rig::new().await;
    let ears = Ears::open();
    let (mut one, mut two) = (rig.announcer(&ears), rig.announcer(&ears));
    for n in 0..250_u16 {
        rig.put(&format!("i{n}"), spec(9000 + n, &[&format!("h{n}.example")], "1")).await;
        if n % 20 == 0 {
            tokio::try_join!(one.pass(), two.pass()).unwrap();
        }
    }
    rig.publish(&ears).await;
    let expected: Vec<String> = (0..250).map(|n| format!("instance.registered i{n}")).collect();
    assert_eq!(ears.published(), expected);
}

#[tokio::test]
async fn a_direct_change_by_an_operator_is_a_gap() {
    let rig = Rig::new().await;
    let ears = Ears::open();
    rig.put("i", spec(9001, &["a.example"], "1")).await;
    rig.publish(&ears).await;
    let serial = rig.serial().await;
    for _ in 0..3 {
        let () = rig.routes("INCR", &["serial"]).await;
    }
    rig.publish(&ears).await;
    rig.publish(&ears).await;
    rig.put("j", spec(9002, &["a.example"], "1")).await;
    rig.publish(&ears).await;
    let gap = format!("table.resynced {}-{} gap", serial + 1, serial + 3);
    assert_eq!(ears.published(), ["instance.registered i", &gap, "instance.registered j"]);
    assert_eq!(ears.events()[1].1.object, "signalbox:table");
}

#[tokio::test]
async fn a_list_that_does_not_reach_back_is_a_gap() {
    let rig = Rig::new().await;
    let ears = Ears::open();
    rig.publish(&ears).await;
    let serial = rig.serial().await;
    for n in 1..=9 {
        rig.put(&format!("i{n}"), spec(9000 + n, &["a.example"], "1")).await;
    }
    // As after a long time without the fabric.
    let () = rig.routes("XTRIM", &["changes", "MAXLEN", "2"]).await;
    rig.publish(&ears).await;
    let gap = format!("table.resynced {}-{} gap", serial + 1, serial + 7);
    assert_eq!(ears.published(), [&gap, "instance.registered i8", "instance.registered i9"]);
    // All of it gone.
    rig.remove("i1").await;
    let () = rig.routes("DEL", &["changes"]).await;
    rig.publish(&ears).await;
    assert_eq!(ears.published()[3..], [format!("table.resynced {0}-{0} gap", serial + 10)]);
}

#[tokio::test]
async fn the_list_is_bounded() {
    let rig = Rig::new().await;
    rig.put("i", spec(9001, &["a.example"], "1")).await;
    for at in 0..6000_u64 {
        rig.store.set_clock_ms(START + at * 10_000);
        rig.store.fault(&instance_id("i"), "x", None).await.unwrap();
    }
    let length: u64 = rig.routes("XLEN", &["changes"]).await;
    assert!((4096..4300).contains(&length), "{length}");
}

#[tokio::test]
async fn a_reseeded_table_is_published_once_without_its_seeding() {
    let rig = Rig::new().await;
    let ears = Ears::open();
    for n in 1..=5 {
        rig.put(&format!("i{n}"), spec(9000 + n, &["a.example"], "1")).await;
    }
    rig.publish(&ears).await;
    let published_up_to = rig.serial().await;
    let () = rig.routes("FLUSHALL", &[]).await;
    rig.publish(&ears).await;
    assert_eq!(ears.published().len(), 5, "a lost table has to be restored by the reconciler first");
    rig.reconcile().await;
    rig.put("new", spec(9010, &["b.example"], "1")).await;
    rig.publish(&ears).await;
    rig.reconcile().await;
    rig.publish(&ears).await;
    let serial = rig.serial().await;
    let resynced = format!("table.resynced {}-{} reseeded", published_up_to + 1, serial - 1);
    assert_eq!(ears.published()[5..], [&resynced, "instance.registered new"]);
    assert_eq!(ears.events()[5].1.data["epoch"], rig.mark().await.epoch);
}

#[tokio::test]
async fn a_table_restored_from_an_older_copy_publishes_no_old_changes() {
    let rig = Rig::new().await;
    let ears = Ears::open();
    rig.put("i1", spec(9001, &["a.example"], "1")).await;
    let copy = rig.dump().await;
    rig.put("i2", spec(9002, &["a.example"], "1")).await;
    rig.publish(&ears).await;
    let published_up_to = rig.serial().await;
    rig.restore(&copy).await;
    rig.reconcile().await;
    rig.publish(&ears).await;
    let resynced = format!("table.resynced {}-{} reseeded", published_up_to + 1, rig.serial().await);
    assert_eq!(ears.published(), ["instance.registered i1", "instance.registered i2", &resynced]);
}

#[tokio::test]
async fn an_overtaken_announcer_moves_nothing_back() {
    let rig = Rig::new().await;
    let ears = Ears::open();
    rig.publish(&ears).await;
    let seen = rig.store.announced().await.unwrap();
    rig.put("i", spec(9001, &["a.example"], "1")).await;
    rig.publish(&ears).await;
    let now = rig.store.announced().await.unwrap();
    assert!(now.serial > seen.serial);
    // It slept since it read the place.
    assert!(!rig.store.announced_up_to(&seen, &seen).await.unwrap());
    assert_eq!(rig.store.announced().await.unwrap(), now);
    // Published changes have happened: the fabric requires the table to contain them.
    assert_eq!(rig.store.table_state().await.unwrap().serial, now.serial);
}

#[tokio::test]
async fn nothing_is_published_of_a_table_that_is_being_seeded_or_unknown() {
    let rig = Rig::new().await;
    let ears = Ears::open();
    rig.publish(&ears).await;
    rig.put("i", spec(9001, &["a.example"], "1")).await;
    let () = rig.fabric("HSET", &["routes:table", "seeding", "token"]).await;
    assert_eq!(rig.announcer(&ears).pass().await.unwrap(), Progress::NotNow);
    let () = rig.fabric("HSET", &["routes:table", "seeding", ""]).await;
    let lineage: String = rig.fabric("HGET", &["routes:table", "epoch"]).await;
    let () = rig.fabric("HSET", &["routes:table", "epoch", "another"]).await;
    assert_eq!(rig.announcer(&ears).pass().await.unwrap(), Progress::NotNow);
    assert_eq!(ears.published(), [""; 0]);
    let () = rig.fabric("HSET", &["routes:table", "epoch", &lineage]).await;
    rig.publish(&ears).await;
    assert_eq!(ears.published(), ["instance.registered i"]);
}

#[tokio::test]
async fn a_change_that_another_pacemaker_completed_is_published() {
    let rig = Rig::new().await;
    let ears = Ears::open();
    // The fabric has it, and the pacemaker that was to project it died.
    let wanted = Desired::new(spec(9001, &["a.example"], "1"), State::Active);
    let id = instance_id("i");
    let desire = crate::store::Desire {
        id: &id,
        before: None,
        after: Some(&wanted),
        owner: None,
        registrant: None,
        promotions: None,
    };
    rig.store.desire(desire).await.unwrap();
    rig.publish(&ears).await;
    assert_eq!(ears.published(), [""; 0]);
    rig.reconcile().await;
    rig.publish(&ears).await;
    assert_eq!(ears.published(), ["instance.registered i"]);
}

#[tokio::test]
async fn a_serial_that_was_set_back_by_hand_stops_no_change() {
    let rig = Rig::new().await;
    let ears = Ears::open();
    for n in 1..=3 {
        rig.put(&format!("i{n}"), spec(9000 + n, &["a.example"], "1")).await;
    }
    rig.publish(&ears).await;
    // The table lost published changes, and the fabric lost the place: the change is made, and the list starts again.
    let serial = rig.serial().await;
    let () = rig.fabric("HSET", &["routes:table", "serial", "1"]).await;
    let () = rig.routes("SET", &["serial", &(serial - 2).to_string()]).await;
    rig.put("after", spec(9009, &["b.example"], "1")).await;
    assert_eq!(rig.addresses("b.example").await, ["127.0.0.1:9009"]);
    assert_eq!(rig.routes::<u64>("XLEN", &["changes"]).await, 1);
}

#[tokio::test]
async fn an_unavailable_fabric_or_a_lost_place_loses_no_event() {
    let rig = Rig::new().await;
    let ears = Ears::open();
    rig.put("i", spec(9001, &["a.example"], "1")).await;
    rig.publish(&ears).await;
    // An older fabric: later changes are published again under the same keys, and nothing is left out.
    let place: Vec<String> = rig.fabric("HGETALL", &["routes:announced"]).await;
    rig.put("j", spec(9002, &["a.example"], "1")).await;
    rig.publish(&ears).await;
    let args: Vec<&str> =
        std::iter::once("routes:announced").chain(place.iter().map(String::as_str)).collect();
    let () = rig.fabric("HSET", &args).await;
    rig.put("k", spec(9003, &["a.example"], "1")).await;
    rig.publish(&ears).await;
    assert_eq!(ears.published(), ["instance.registered i", "instance.registered j", "instance.registered k"]);
}

#[tokio::test]
async fn a_router_that_rejects_the_table_is_published_once() {
    let rig = Rig::new().await;
    let ears = Ears::open();
    let (alarm, heard) = watch::channel(());
    let mut announcer = rig.announcer_with_alarms(&ears, heard.clone());
    rig.report("r-1", "").await;
    rig.report("r-2", "statistics_late").await;
    announcer.check_alarms_under(1).await;
    assert!(
        ears.events().is_empty(),
        "alarms about counting do not concern the table: {:?}",
        ears.published()
    );
    rig.report("r-1", "table_regressed").await;
    announcer.check_alarms_under(1).await;
    assert!(ears.events().is_empty(), "no router is read before an alarm was announced");
    alarm.send_replace(());
    // The bus refuses it first: then it is brought again.
    ears.take(0);
    announcer.check_alarms_under(1).await;
    assert!(ears.events().is_empty());
    ears.take(usize::MAX);
    announcer.check_alarms_under(1).await;
    alarm.send_replace(());
    announcer.check_alarms_under(1).await;
    // Another pacemaker acquires the lease, and finds the published state.
    rig.announcer_with_alarms(&ears, heard.clone()).check_alarms_under(2).await;
    assert_eq!(ears.published(), ["routers r-1"]);
    let (_, event) = &ears.events()[0];
    assert_eq!(event.data, json!({"router": "r-1", "change": "rejects", "alarm": "table_regressed"}));
    // One that died after publishing, before it could note so, is followed by one that publishes the same.
    rig.servers.fabric().command("DEL").arg("routes:alarms:published").run().await.unwrap();
    announcer.check_alarms_under(3).await;
    assert_eq!(ears.events().len(), 1);
    for (reported, change) in [("", "accepts"), ("epoch_unknown", "rejects"), ("statistics_late", "accepts")]
    {
        rig.report("r-1", reported).await;
        alarm.send_replace(());
        announcer.check_alarms_under(3).await;
        assert_eq!(ears.events().last().unwrap().1.data["change"], change);
    }
    assert_eq!(ears.events().len(), 4);
}

#[tokio::test]
async fn a_silent_router_is_published_after_confirmation() {
    let rig = Rig::new().await;
    let ears = Ears::open();
    let (alarm, heard) = watch::channel(());
    let mut announcer = rig.announcer_with_alarms(&ears, heard);
    // (seconds since its last report, alarm, published change)
    for (seconds, alarmed, published) in [
        (1, "", None),
        // As after an outage of the Redis: everybody's report is old, until they have made one.
        (30, "", None),
        (0, "", None),
        (12, "", None),
        (14, "", None),
        (16, "", Some("silent")),
        (40, "", None),
        (0, "", Some("reports")),
        (20, "table_regressed", None),
        (25, "table_regressed", Some("silent")),
        (1, "table_regressed", Some("rejects")),
        (1, "", Some("accepts")),
    ] {
        let before = ears.events().len();
        rig.report_long_ago("r-1", alarmed, seconds).await;
        alarm.send_replace(());
        announcer.check_alarms_under(1).await;
        let changes: Vec<Value> =
            ears.events()[before..].iter().map(|(_, event)| event.data["change"].clone()).collect();
        assert_eq!(changes, published.map(Value::from).into_iter().collect::<Vec<_>>(), "{seconds} s ago");
    }
    let keys: std::collections::BTreeSet<String> =
        ears.events().into_iter().map(|(_, event)| event.key).collect();
    assert_eq!(keys.len(), ears.events().len(), "two of one key would be taken for one");
}

#[tokio::test]
async fn an_alarm_announced_by_a_sidecar_is_received() {
    const REPORT: &str = include_str!("../../../../sidecar/src/edge/scripts/report.lua");
    let rig = Rig::new().await;
    let (ears, stats, stop) = (Ears::open(), rig.servers.stats(), CancellationToken::new());
    let routers = Routers::start(rig.store.clone(), stop.clone());
    let mut heard = routers.alarms();
    let mut announcer = rig.announcer_with_alarms(&ears, routers.alarms());
    let soon = Duration::from_secs(30);
    // The subscription is active.
    time::timeout(soon, heard.changed()).await.unwrap().unwrap();
    let report = async |serial: &str, alarm: &str| {
        let command = stats.command("EVAL").arg(REPORT).arg(2).arg("router:r-1").arg("routers").arg("r-1");
        let command = command.arg(serial).arg("e").arg("[]").arg(alarm).arg("http://127.0.0.1:1");
        command.arg("routers").arg(60).arg("{}").arg("[]").arg("{}").query::<u64>().await.unwrap();
    };
    for (alarm, change) in [("", None), ("table_regressed", Some("rejects")), ("", Some("accepts"))] {
        report("5", alarm).await;
        time::timeout(soon, heard.changed()).await.expect("what changed is announced").unwrap();
        announcer.check_alarms_under(1).await;
        let last = ears.events().last().map(|(_, event)| event.data["change"].clone());
        assert_eq!(last, change.map(Value::from), "{alarm}");
    }
    // The same again, and another serial, are no reason to look.
    let mut messages = stats.subscribe(&["routers"]);
    assert!(matches!(time::timeout(soon, messages.next()).await.unwrap(), Notice::Resumed));
    report("5", "").await;
    report("6", "").await;
    match time::timeout(soon, messages.next()).await.unwrap() {
        Notice::Message { payload, .. } => assert_eq!(payload, "r-1 6"),
        other => panic!("{other:?}"),
    }
    stop.cancel();
}
