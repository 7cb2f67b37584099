//! The isolation ladder: what a router still does when one thing after another is gone.

use std::path::Path;

use signalbox_tests::{poll, system::System, upstream::App};

/// Waits until `/edge/status` shows `wanted` as its alarm.
async fn until_alarm(system: &System, wanted: impl Fn(Option<&str>) -> bool) {
    poll::until("the alarm of /edge/status to change", || async {
        let status = system.edge_api("/edge/status").await.json();
        if wanted(status["alarm"].as_str()) { Ok(()) } else { Err(status) }
    })
    .await;
}

async fn until_in_snapshot(path: &Path, host: &str) {
    poll::until("the host to be in the snapshot on disk", || async {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        if text.contains(host) { Ok(()) } else { Err(text) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_pacemaker_nothing_changes() {
    let system = System::start("no-pacemaker").await;
    let [known, other] = [App::start("known").await, App::start("other").await];
    system.register("i-1", &known, "known.test", "1").await;
    system.register("i-2", &other, "other.test", "2").await;
    system.kill(System::PACEMAKER).await;
    // Both a name that was asked for before and one that nobody asked for yet.
    for _ in 0..10 {
        assert_eq!(system.get("known.test", "/").await.text(), "known");
        assert_eq!(system.get("other.test", "/").await.text(), "other");
    }
    // The table can still be changed, by hand.
    system.route("hand.test", &other).await;
    system.until_answered_by("hand.test", &other).await;
    let away = system.api("GET", "/instances", None).await;
    assert_eq!((away.status, &away.json()["code"]), (503, &"pacemaker_unavailable".into()));
    system.start_part(System::PACEMAKER).await;
    assert_eq!(system.api("GET", "/instances/i-1", None).await.status, 200);
    assert_eq!(system.get("known.test", "/").await.text(), "known");
    assert_eq!(system.get("hand.test", "/").await.text(), "other", "a table written by hand is left alone");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_master_the_replica_serves() {
    let system = System::start("no-master").await;
    let [known, other] = [App::start("known").await, App::start("other").await];
    system.register("i-1", &known, "known.test", "1").await;
    system.register("i-2", &other, "other.test", "2").await;
    system.get("known.test", "/").await;
    system.kill(System::MASTER).await;
    for _ in 0..10 {
        assert_eq!(system.get("known.test", "/").await.text(), "known");
        assert_eq!(
            system.get("other.test", "/").await.text(),
            "other",
            "never asked for, so the replica knows it"
        );
        assert_eq!(system.get("nobody.test", "/").await.status, 404);
    }
    system.start_part(System::MASTER).await;
    // Whatever was asked for meanwhile, a change after the return is served.
    let new = App::start("new").await;
    poll::until("a registration after the master's return", || async {
        let answer = system.try_register("i-3", &new, "new.test", "3").await;
        if matches!(answer.status, 200 | 201) { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    system.until_answered_by("new.test", &new).await;
    assert_eq!(system.get("known.test", "/").await.text(), "known");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_replica_the_workers_serve_what_they_know() {
    let system = System::edge_only("no-replica").await;
    let [known, other] = [App::start("known").await, App::start("other").await];
    system.route("known.test", &known).await;
    system.settle().await;
    system.get("known.test", "/").await;
    system.kill(System::REPLICA).await;
    for _ in 0..20 {
        assert_eq!(system.get("known.test", "/").await.text(), "known");
    }
    // Nobody knows whether this exists, so nobody may say that it does not.
    let unknown = system.get("unknown.test", "/").await;
    assert_eq!(unknown.status, 503, "{}", unknown.text());
    assert!(!matches!(unknown.reason(), "" | "no_instance" | "no_route"), "{}", unknown.text());
    assert!(unknown.header("Retry-After").is_some());

    // What changes while it is away is served once it is back, also for names that were cached.
    system.cli::<()>(System::MASTER, &format!("SADD instances:unknown.test {}", other.address)).await;
    system.cli::<()>(System::MASTER, &format!("SADD instances:known.test {}", other.address)).await;
    system.cli::<()>(System::MASTER, &format!("SREM instances:known.test {}", known.address)).await;
    system.start_part(System::REPLICA).await;
    system.until_answered_by("unknown.test", &other).await;
    system.until_answered_by("known.test", &other).await;
    // And from then on everything is as before.
    system.settle().await;
    for _ in 0..20 {
        assert_eq!(system.get("known.test", "/").await.text(), "other");
    }
    system.route("later.test", &known).await;
    system.until_answered_by("later.test", &known).await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_restarts_empty_handed_is_filled_and_believed() {
    let system = System::start("replica-restart").await;
    let [app, late] = [App::start("app").await, App::start("late").await];
    system.register("i-1", &app, "app.test", "1").await;
    system.get("app.test", "/").await;
    for _ in 0..3 {
        system.kill(System::REPLICA).await;
        system.start_part(System::REPLICA).await;
        assert_eq!(system.get("app.test", "/").await.text(), "app");
    }
    system.register("i-2", &late, "late.test", "1").await;
    assert_eq!(system.get("late.test", "/").await.text(), "late");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_restarted_with_every_redis_gone_serves_from_its_snapshot() {
    let system = System::start("snapshot").await;
    let [app, wild] = [App::start("app").await, App::start("wild").await];
    system.register("i-1", &app, "app.test", "17").await;
    system.register("i-2", &wild, "*.wild.test", "18").await;
    system.get("app.test", "/").await;
    system.get("a.wild.test", "/").await;
    until_in_snapshot(&system.snapshot_path(), "app.test").await;
    until_in_snapshot(&system.snapshot_path(), "*.wild.test").await;
    for part in System::REDIS {
        system.kill(part).await;
    }
    system.kill(System::PACEMAKER).await;
    system.kill(System::NGINX).await;
    system.start_part_only(System::NGINX).await;
    system.until_answered_by("app.test", &app).await;
    for _ in 0..10 {
        assert_eq!(system.get("app.test", "/").await.text(), "app");
        assert_eq!(system.get("a.wild.test", "/").await.text(), "wild");
        let unknown = system.get("unknown.test", "/").await;
        assert_eq!(unknown.status, 503, "{}", unknown.text());
    }
    // The log key is part of what the snapshot knows.
    let lines = system.log_lines_when(1).await;
    assert!(
        lines.iter().filter(|line| line["host"] == "app.test").all(|line| line["key"] == "17"),
        "{lines:?}"
    );
    // Everything returns, and so does the truth of the table.
    for part in [System::MASTER, System::REPLICA, System::STATS, System::FABRIC, System::PACEMAKER] {
        system.start_part(part).await;
    }
    system.route("app.test", &wild).await;
    system.cli::<()>(System::MASTER, &format!("SREM instances:app.test {}", app.address)).await;
    system.until_answered_by("app.test", &wild).await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_was_damaged_is_not_believed() {
    let system = System::start("bad-snapshot").await;
    let app = App::start("app").await;
    system.register("i-1", &app, "app.test", "17").await;
    system.get("app.test", "/").await;
    until_in_snapshot(&system.snapshot_path(), "app.test").await;
    // The sidecar would write a good one again.
    system.kill(System::SIDECAR).await;
    for part in System::REDIS {
        system.kill(part).await;
    }
    system.kill(System::NGINX).await;
    let path = system.snapshot_path();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("app.test", "apx.test")).unwrap();
    system.start_part_only(System::NGINX).await;
    system.until_status("apx.test", 503).await;
    assert_eq!(system.get("app.test", "/").await.status, 503);
    system.allow("snapshot");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_lost_its_table_is_not_believed_until_it_is_seeded_again() {
    let system = System::start("master-empty").await;
    let [app, cold] = [App::start("app").await, App::start("cold").await];
    system.register("i-1", &app, "app.test", "17").await;
    system.register("i-2", &cold, "cold.test", "18").await;
    system.get("app.test", "/").await;
    // Nobody is there to seed it again, for now.
    system.kill(System::PACEMAKER).await;
    system.restart_empty(System::MASTER).await;
    // The replica has copied the emptiness: the danger is real.
    poll::until("the replica to be as empty as its master", || async {
        let size = system.try_cli::<i64>(System::REPLICA, "DBSIZE").await;
        if size.as_ref().is_ok_and(|size| *size == 0) { Ok(()) } else { Err(format!("{size:?}")) }
    })
    .await;
    until_alarm(&system, |alarm| alarm.is_some()).await;
    for _ in 0..20 {
        assert_eq!(system.get("app.test", "/").await.text(), "app");
    }
    // Not even a table that somebody begins to write anew.
    system.route("new.test", &cold).await;
    let new = system.get("new.test", "/").await;
    assert_ne!(new.status, 404, "unknown, not absent: {}", new.text());

    system.start_part(System::PACEMAKER).await;
    until_alarm(&system, |alarm| alarm.is_none()).await;
    poll::until("the seeded table to be served", || async {
        let answer = system.get("cold.test", "/").await;
        if answer.text() == "cold" { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    assert_eq!(system.get("app.test", "/").await.text(), "app");
    // And it is a table like any other again.
    let late = App::start("late").await;
    system.register("i-3", &late, "late.test", "19").await;
    assert_eq!(system.get("late.test", "/").await.text(), "late");
    let deleted = system.api("DELETE", "/instances/i-1?wait=20s", None).await;
    assert!(matches!(deleted.status, 200 | 204), "{}", deleted.text());
    assert_eq!(system.get("app.test", "/").await.status, 404);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_pacemaker_seeds_an_empty_master_by_itself() {
    let system = System::start("seeded").await;
    let app = App::start("app").await;
    for n in 0..50 {
        let answer = system.try_register(&format!("i-{n}"), &app, &format!("h{n}.test"), "17").await;
        assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
    }
    system.register("last", &app, "last.test", "17").await;
    let before: i64 = system.cli(System::MASTER, "GET serial").await;
    system.restart_empty(System::MASTER).await;
    poll::until("the whole table to be back on the master", || async {
        let serial = system.try_cli::<Option<i64>>(System::MASTER, "GET serial").await;
        let epoch = system.try_cli::<Option<String>>(System::MASTER, "GET epoch").await;
        match (serial, epoch) {
            (Ok(Some(serial)), Ok(Some(_))) if serial >= before => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    for n in 0..50 {
        let addresses: Vec<String> =
            system.cli(System::MASTER, &format!("SMEMBERS instances:h{n}.test")).await;
        assert_eq!(addresses, [app.address.to_string()], "h{n}.test");
    }
    until_alarm(&system, |alarm| alarm.is_none()).await;
    for n in 0..50 {
        system.until_answered_by(&format!("h{n}.test"), &app).await;
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_by_hand_that_vanished_is_kept_too() {
    let system = System::edge_only("by-hand-empty").await;
    let [app, other] = [App::start("app").await, App::start("other").await];
    system.route("app.test", &app).await;
    system.settle().await;
    system.until_answered_by("app.test", &app).await;
    let epoch: Option<String> = system.cli(System::MASTER, "GET epoch").await;
    assert_eq!(epoch, None, "nobody gave this table an epoch");
    system.restart_empty(System::MASTER).await;
    until_alarm(&system, |alarm| alarm.is_some()).await;
    for _ in 0..20 {
        assert_eq!(system.get("app.test", "/").await.text(), "app");
    }
    // The operator writes it again, serial last, as high as it was: it is believed.
    system.route("app.test", &other).await;
    system.cli::<()>(System::MASTER, "SET serial 1000").await;
    until_alarm(&system, |alarm| alarm.is_none()).await;
    system.until_answered_by("app.test", &other).await;
    system.stop().await;
}
