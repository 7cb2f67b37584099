//! Recovery of one side's data from the other.

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::UnixStream,
};

use super::*;
use crate::{
    ChangeKind, Error,
    store::{Fence, Lineage},
};
use signalbox_access::Caller;

impl Rig {
    /// A copy of everything on the primary, and the way back to it.
    pub(super) async fn dump(&self) -> Vec<(String, Vec<u8>)> {
        let keys: Vec<String> = self.routes("KEYS", &["*"]).await;
        let mut copy = Vec::new();
        for key in keys {
            // A request's background work may have removed a key in the meantime.
            if let Some(value) = self.routes::<Option<Vec<u8>>>("DUMP", &[&key]).await {
                copy.push((key, value));
            }
        }
        copy
    }

    pub(super) async fn restore(&self, copy: &[(String, Vec<u8>)]) {
        let () = self.routes("FLUSHALL", &[]).await;
        for (key, value) in copy {
            self.store.routes().command("RESTORE").arg(key).arg(0).arg(value.as_slice()).run().await.unwrap();
        }
    }

    /// The commands that the routes primary receives from now on, line by line.
    async fn watch_primary(&self) -> BufReader<UnixStream> {
        let (_, socket): (String, String) = self.routes("CONFIG", &["GET", "unixsocket"]).await;
        let mut stream = BufReader::new(UnixStream::connect(socket).await.unwrap());
        stream.write_all(b"MONITOR\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).await.unwrap();
        assert_eq!(answer, "+OK\r\n");
        stream
    }

    /// The commands received until now.
    async fn commands(&self, stream: BufReader<UnixStream>) -> Vec<String> {
        let _: String = self.routes("ECHO", &["that is all"]).await;
        let (mut told, mut lines) = (Vec::new(), stream.lines());
        loop {
            let line = lines.next_line().await.unwrap().unwrap();
            if line.contains("that is all") {
                return told;
            }
            told.push(line);
        }
    }

    async fn dump_fabric(&self) -> Vec<(String, Vec<u8>)> {
        let keys: Vec<String> = self.fabric("KEYS", &["*"]).await;
        let mut copy = Vec::new();
        for key in keys {
            // A request's background work may have removed a key in the meantime.
            if let Some(value) = self.fabric::<Option<Vec<u8>>>("DUMP", &[&key]).await {
                copy.push((key, value));
            }
        }
        copy
    }

    async fn restore_fabric(&self, copy: &[(String, Vec<u8>)]) {
        let () = self.fabric("FLUSHALL", &[]).await;
        for (key, value) in copy {
            self.store.fabric().command("RESTORE").arg(key).arg(0).arg(value.as_slice()).run().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_first_start_gives_the_table_an_epoch_and_leaves_entries_made_by_hand() {
    let rig = Rig::bare().await;
    let () = rig.routes("SADD", &["instances:a.example", "10.0.0.1:80"]).await;
    let () = rig.routes("SET", &["serial", "41"]).await;
    rig.reconcile().await;
    let (lineage, serial, _) = rig.head().await;
    assert_eq!(lineage.split(' ').count(), 1);
    assert_eq!(serial, 42);
    assert_eq!(rig.addresses("a.example").await, ["10.0.0.1:80"]);
    // That was all: further passes change nothing.
    rig.reconcile().await;
    assert_eq!(rig.head().await, (lineage, serial, 0));
    rig.check_catalog().await;
}

#[tokio::test]
async fn nothing_is_accepted_before_the_first_reconciliation() {
    let rig = Rig::bare().await;
    let put = rig.registry.put(&Caller::root(), &instance_id("i"), spec(9001, &["a.example"], "1")).await;
    assert!(matches!(put, Err(Error::Resyncing { recorded: false })), "{put:?}");
    assert_eq!(rig.fabric::<u64>("DBSIZE", &[]).await, 0);
}

#[tokio::test]
async fn an_empty_primary_is_seeded_and_accepted_last() {
    let rig = Rig::new().await;
    rig.put("one", leased(9001, &["a.example"], 60)).await;
    rig.put("two", spec(9002, &["a.example", "b.example"], "2")).await;
    rig.put("gone", spec(9003, &["c.example"], "3")).await;
    rig.registry.remove(&Caller::root(), &instance_id("gone")).await.unwrap();
    let (lineage, serial, _) = rig.head().await;
    let before = rig.table("a.example").await;
    let () = rig.routes("FLUSHALL", &[]).await;
    rig.reconcile().await;
    let (now, seeded, _) = rig.head().await;
    assert!(seeded > serial, "{seeded} {serial}");
    // The new token precedes all that routers may know.
    assert!(now.ends_with(&format!(" {lineage}")), "{now} {lineage}");
    assert_eq!(rig.table("a.example").await, before);
    assert!(rig.routes::<Option<u64>>("ZSCORE", &["leases", "one"]).await.is_some());
    // A host without instances is still known.
    assert_eq!(rig.table("c.example").await.log_key.as_deref(), Some("3"));
    assert_eq!(rig.put("one", leased(9001, &["a.example"], 60)).await.kind, ChangeKind::Unchanged);
    rig.check_catalog().await;
}

#[tokio::test]
async fn a_primary_restored_from_an_older_copy_is_updated_under_a_new_epoch() {
    let rig = Rig::new().await;
    rig.put("stays", spec(9001, &["a.example"], "1")).await;
    rig.put("goes", spec(9002, &["a.example"], "1")).await;
    let old = rig.dump().await;
    rig.registry.remove(&Caller::root(), &instance_id("goes")).await.unwrap();
    rig.put("comes", spec(9003, &["b.example"], "1")).await;
    let (lineage, serial, _) = rig.head().await;
    rig.restore(&old).await;
    assert_eq!(rig.addresses("a.example").await.len(), 2);
    rig.reconcile().await;
    let (now, seeded, _) = rig.head().await;
    assert!(seeded > serial && now != lineage && now.ends_with(&lineage), "{now} {seeded}");
    assert_eq!(rig.addresses("a.example").await, ["127.0.0.1:9001"]);
    assert_eq!(rig.addresses("b.example").await, ["127.0.0.1:9003"]);
    assert!(rig.outstanding().await.is_empty());
}

async fn report(rig: &Rig, lineage: &str, serial: u64) {
    let stats = rig.store.stats();
    let now_ms = stats.now_ms().await.unwrap();
    stats.command("ZADD").arg("routers").arg(now_ms).arg("r-1").run().await.unwrap();
    let report = stats.command("HSET").arg("router:r-1");
    report.arg("serial").arg(serial).arg("epoch").arg(lineage).run().await.unwrap();
}

#[tokio::test]
async fn a_report_of_a_serial_that_the_table_cannot_have_reached_changes_nothing() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &["a.example"], "1")).await;
    let head = rig.head().await;
    for serial in [100_000_000_000_000, 999_999_999_999_999, u64::MAX] {
        report(&rig, &head.0, serial).await;
        rig.reconcile().await;
        assert_eq!(rig.head().await, head, "{serial}");
    }
}

#[tokio::test]
async fn a_table_with_a_lower_serial_than_routers_acknowledged_is_rejected() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &["a.example"], "1")).await;
    let (lineage, serial, _) = rig.head().await;
    // The fabric was restored from a copy; a router knows better.
    let witness = serial + 10_000;
    report(&rig, &lineage, witness).await;
    rig.reconcile().await;
    let (now, seeded, _) = rig.head().await;
    assert!(seeded > witness && now != lineage, "{seeded} {witness}");
}

#[tokio::test]
async fn a_seeding_that_was_interrupted_is_finished_with_the_same_token() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &["a.example"], "1")).await;
    let () = rig.routes("FLUSHALL", &[]).await;
    let state = rig.store.table_state().await.unwrap();
    let announced = TableState { lineage: format!("feed {}", state.lineage), seeding: true, ..state.clone() };
    assert!(rig.store.set_lineage(&state.lineage, &announced).await.unwrap());
    rig.reconcile().await;
    assert_eq!(rig.head().await.0, announced.lineage);
    assert_eq!(rig.addresses("a.example").await, ["127.0.0.1:9001"]);
    assert!(!rig.store.table_state().await.unwrap().seeding);
}

/// Regression: the table once kept its lineage while it was seeded, and each instance that was written raised its
/// serial: a router that had seen a few changes more accepted it before it contained all its hosts.
#[tokio::test]
async fn a_table_that_lost_a_few_changes_shows_no_lineage_until_it_is_complete() {
    let rig = Rig::new().await;
    for number in 0..5 {
        rig.put(&format!("i-{number}"), spec(9001 + number, &["a.example"], "1")).await;
    }
    let old = rig.dump().await;
    for number in 5..8 {
        rig.put(&format!("i-{number}"), spec(9001 + number, &["b.example"], "1")).await;
    }
    let (lineage, serial, _) = rig.head().await;
    rig.restore(&old).await;
    // As routers would see it: whether the lineage exists, after each write.
    let stream = rig.watch_primary().await;
    rig.reconcile().await;
    let (now, seeded, _) = rig.head().await;
    assert!(seeded > serial && now.ends_with(&lineage));
    let seen = rig.commands(stream).await;
    let place = |what: &str| seen.iter().position(|command| command.contains(what));
    let gone = place("\"DEL\" \"epoch\"").expect("the lineage is taken away");
    let back = place("\"SET\" \"epoch\"").expect("and given back");
    let writes: Vec<usize> =
        (0..seen.len()).filter(|at| seen[*at].contains("\"SADD\" \"instances:")).collect();
    assert!(!writes.is_empty() && writes.iter().all(|at| (gone..back).contains(at)), "{seen:#?}");
}

/// A primary that is replaced once more, by an empty one, while it is seeded, must not get the lineage with the hosts of
/// the second half only.
#[tokio::test]
async fn a_primary_that_is_emptied_in_mid_seeding_is_seeded_from_the_beginning() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &["a.example"], "1")).await;
    let () = rig.routes("FLUSHALL", &[]).await;
    let fence = Fence { lease: "reconcile", epoch: 1 };
    let state = rig.store.table_state().await.unwrap();
    let lineage = format!("feed {}", state.lineage);
    rig.store.begin_seeding("", "feed", fence).await.unwrap();
    let () = rig.routes("FLUSHALL", &[]).await;
    let ended = rig.store.publish_lineage("", &lineage, 9, Lineage::Reseeded, "feed", fence).await;
    assert!(matches!(ended, Err(Error::Resyncing { .. })), "{ended:?}");
    assert_eq!(rig.head().await.0, "");
    rig.reconcile().await;
    assert_eq!(rig.addresses("a.example").await, ["127.0.0.1:9001"]);
    assert!(rig.head().await.0.ends_with(&state.lineage));
    let left: Option<String> = rig.routes("GET", &["seeding"]).await;
    assert_eq!(left, None);
}

#[tokio::test]
async fn a_request_during_the_seeding_waits() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &["a.example"], "1")).await;
    let () = rig.routes("FLUSHALL", &[]).await;
    let mut reconciler = rig.reconciler();
    let caller = Caller::root();
    let id = instance_id("two");
    let put = rig.registry.put(&caller, &id, spec(9002, &["b.example"], "1"));
    let pass = async {
        rig.nudge.notified().await;
        reconciler.pass(1).await.unwrap();
    };
    let (change, ()) = tokio::join!(put, pass);
    let change = change.unwrap();
    assert!(rig.head().await.0.starts_with(&change.epoch));
    assert_eq!(rig.addresses("b.example").await, ["127.0.0.1:9002"]);
    assert_eq!(rig.addresses("a.example").await, ["127.0.0.1:9001"]);
}

#[tokio::test]
async fn a_fabric_that_was_replaced_takes_the_table_over() {
    let rig = Rig::new().await;
    rig.put("one", leased(9001, &["a.example"], 60)).await;
    rig.put("two", spec(9002, &["b.example"], "2")).await;
    let before = rig.head().await;
    let table = rig.dump().await.len();
    let () = rig.fabric("FLUSHALL", &[]).await;
    rig.reconcile().await;
    assert_eq!(rig.head().await, before);
    assert_eq!(rig.dump().await.len(), table);
    let again = rig.put("one", leased(9001, &["a.example"], 60)).await;
    assert_eq!(again.kind, ChangeKind::Unchanged);
    // Revisions continue above the existing ones, or the table would treat each change as stale.
    let altered = rig.put("two", spec(9002, &["b.example", "c.example"], "2")).await;
    assert!(altered.record.unwrap().revision > before.2);
    assert_eq!(rig.addresses("c.example").await, ["127.0.0.1:9002"]);
    assert_eq!(rig.store.hosts_after(None, 10).await.unwrap(), ["a.example", "b.example", "c.example"]);
}

#[tokio::test]
async fn a_fabric_that_lost_changes_takes_them_from_the_table() {
    let rig = Rig::new().await;
    rig.put("kept", spec(9001, &["a.example"], "1")).await;
    rig.put("removed", spec(9002, &["a.example"], "1")).await;
    rig.put("displaced", spec(9003, &["a.example"], "1")).await;
    let old = rig.dump_fabric().await;
    rig.registry.remove(&Caller::root(), &instance_id("removed")).await.unwrap();
    rig.put("new", spec(9003, &["b.example"], "1")).await;
    rig.put("kept", spec(9001, &["a.example", "c.example"], "1")).await;
    let before = rig.dump().await.len();
    rig.restore_fabric(&old).await;
    // A pacemaker that remembers higher revisions refuses to continue.
    let put = rig.registry.put(&Caller::root(), &instance_id("x"), spec(9009, &["x.example"], "1")).await;
    assert!(matches!(put, Err(Error::Resyncing { recorded: false })), "{put:?}");
    rig.reconcile().await;
    let ids: Vec<String> = rig.fabric("ZRANGE", &["routes:instances:index", "0", "-1"]).await;
    assert_eq!(ids, ["kept", "new"]);
    assert_eq!(rig.addresses("a.example").await, ["127.0.0.1:9001"]);
    assert_eq!(rig.addresses("c.example").await, ["127.0.0.1:9001"]);
    assert_eq!(rig.addresses("b.example").await, ["127.0.0.1:9003"]);
    assert_eq!(rig.dump().await.len(), before);
    assert_eq!(rig.put("x", spec(9009, &["x.example"], "1")).await.kind, ChangeKind::Registered);
}

#[tokio::test]
async fn a_pacemaker_without_memory_learns_from_the_table() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &["a.example"], "1")).await;
    let old = rig.dump_fabric().await;
    rig.put("two", spec(9002, &["b.example"], "1")).await;
    rig.restore_fabric(&old).await;
    let fresh = Rig { store: rig.another_store(), ..rig };
    let nudge = Arc::clone(&fresh.nudge);
    let rules = fresh.registry.rules().clone();
    let registry = Registry::new(fresh.store.clone(), rules, nudge, Metrics::default());
    let rig = Rig { registry, ..fresh };
    rig.reconcile().await;
    assert!(rig.store.stored(&instance_id("two")).await.unwrap().is_some());
    assert_eq!(rig.addresses("b.example").await, ["127.0.0.1:9002"]);
}

#[tokio::test]
async fn the_table_of_another_installation_is_left_alone() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &["a.example"], "1")).await;
    let () = rig.routes("FLUSHALL", &[]).await;
    let () = rig.routes("SET", &["epoch", "0123456789abcdef"]).await;
    let () = rig.routes("SADD", &["instances:theirs.example", "10.0.0.1:80"]).await;
    assert!(rig.reconciler().pass(1).await.is_err());
    assert_eq!(rig.head().await.0, "0123456789abcdef");
    assert!(rig.addresses("a.example").await.is_empty());
    // An operator can request that it is adopted.
    let () = rig.routes("DEL", &["epoch"]).await;
    rig.reconcile().await;
    assert_eq!(rig.addresses("a.example").await, ["127.0.0.1:9001"]);
    assert_eq!(rig.addresses("theirs.example").await, ["10.0.0.1:80"]);
}

#[tokio::test]
async fn a_lineage_does_not_grow_without_limit() {
    let rig = Rig::new().await;
    for _ in 0..20 {
        let () = rig.routes("DEL", &["epoch"]).await;
        rig.reconcile().await;
    }
    assert_eq!(rig.head().await.0.split(' ').count(), 16);
}

#[tokio::test]
async fn a_foreign_key_keeps_its_own_change_back_and_no_other() {
    let rig = Rig::new().await;
    let () = rig.routes("SET", &["instances:a.example", "x"]).await;
    let put =
        rig.registry.put(&Caller::root(), &instance_id("blocked"), spec(9001, &["a.example"], "1")).await;
    assert!(matches!(put, Err(Error::Blocked { recorded: true, .. })), "{put:?}");
    rig.put("free", spec(9002, &["b.example"], "1")).await;
    rig.reconcile().await;
    assert_eq!(rig.addresses("b.example").await, ["127.0.0.1:9002"]);
    assert_eq!(rig.outstanding().await.len(), 1);
    let () = rig.routes("DEL", &["instances:a.example"]).await;
    rig.reconcile().await;
    assert_eq!(rig.addresses("a.example").await, ["127.0.0.1:9001"]);
    assert!(rig.outstanding().await.is_empty());
}
