//! The isolation ladder: what a router still does when one part after another is gone.

use std::{net::SocketAddr, path::Path, time::Duration};

use signalbox_stack::Ports;
use signalbox_testkit::{
    eventually,
    wire::{Fault, Wire},
};
use signalbox_tests::{http::Request, system::System, upstream::App};

/// Waits until `/edge/status` shows `wanted` as its alarm.
async fn until_alarm(system: &System, wanted: impl Fn(Option<&str>) -> bool) {
    eventually("the alarm of /edge/status to change", || async {
        let status = system.edge_api("/edge/status").await.json();
        if wanted(status["alarm"].as_str()) { Ok(()) } else { Err(status) }
    })
    .await;
}

async fn until_in_snapshot(path: &Path, host: &str) {
    eventually("the host to be in the snapshot on disk", || async {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        if text.contains(host) { Ok(()) } else { Err(text) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn routing_continues_without_the_pacemaker() {
    let system = System::start("no-pacemaker").await;
    let [known, other] = [App::start("known").await, App::start("other").await];
    system.register("i-1", &known, "known.test", "1").await;
    system.register("i-2", &other, "other.test", "2").await;
    system.kill(System::PACEMAKER).await;
    // Both for a name that was requested before and for one that was not.
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
async fn routing_continues_without_the_primary() {
    let system = System::start("no-primary").await;
    let [known, other] = [App::start("known").await, App::start("other").await];
    system.register("i-1", &known, "known.test", "1").await;
    system.register("i-2", &other, "other.test", "2").await;
    system.get("known.test", "/").await;
    system.kill(System::PRIMARY).await;
    for _ in 0..10 {
        assert_eq!(system.get("known.test", "/").await.text(), "known");
        assert_eq!(
            system.get("other.test", "/").await.text(),
            "other",
            "never asked for, so the replica knows it"
        );
        assert_eq!(system.get("nobody.test", "/").await.status, 404);
    }
    system.start_part(System::PRIMARY).await;
    // Whichever names were requested in the meantime, a change after the return is served.
    let new = App::start("new").await;
    eventually("a registration after the primary's return", || async {
        let answer = system.try_register("i-3", &new, "new.test", "3").await;
        if matches!(answer.status, 200 | 201) { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    system.until_answered_by("new.test", &new).await;
    assert_eq!(system.get("known.test", "/").await.text(), "known");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_serve_known_hosts_without_the_replica() {
    let system = System::edge_only("no-replica").await;
    let [known, other] = [App::start("known").await, App::start("other").await];
    system.route("known.test", &known).await;
    system.settle().await;
    system.get("known.test", "/").await;
    system.kill(System::REPLICA).await;
    for _ in 0..20 {
        assert_eq!(system.get("known.test", "/").await.text(), "known");
    }
    // It is unknown whether this host exists, so the edge must not answer that it does not.
    let unknown = system.get("unknown.test", "/").await;
    assert_eq!(unknown.status, 503, "{}", unknown.text());
    assert!(!matches!(unknown.reason(), "" | "no_instance" | "no_route"), "{}", unknown.text());
    assert!(unknown.header("Retry-After").is_some());

    // Changes made during the outage are served afterwards, also for names that were cached.
    system.cli::<()>(System::PRIMARY, &format!("SADD instances:unknown.test {}", other.address)).await;
    system.cli::<()>(System::PRIMARY, &format!("SADD instances:known.test {}", other.address)).await;
    system.cli::<()>(System::PRIMARY, &format!("SREM instances:known.test {}", known.address)).await;
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
async fn a_replica_that_restarts_empty_is_filled_and_accepted() {
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
    eventually("the lines of app.test", || async {
        let lines = system.log_lines();
        let keys: Vec<_> =
            lines.iter().filter(|line| line["host"] == "app.test").map(|line| &line["key"]).collect();
        assert!(keys.iter().all(|key| **key == "17"), "{lines:?}");
        if keys.len() >= 10 { Ok(()) } else { Err(keys.len()) }
    })
    .await;
    // Everything returns, and so does the truth of the table.
    for part in [System::PRIMARY, System::REPLICA, System::STATS, System::FABRIC, System::PACEMAKER] {
        system.start_part(part).await;
    }
    system.route("app.test", &wild).await;
    system.cli::<()>(System::PRIMARY, &format!("SREM instances:app.test {}", app.address)).await;
    system.until_answered_by("app.test", &wild).await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_snapshot_is_rejected() {
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
async fn a_primary_that_lost_its_table_is_rejected_until_it_is_seeded_again() {
    let system = System::start("primary-empty").await;
    let [app, cold] = [App::start("app").await, App::start("cold").await];
    system.register("i-1", &app, "app.test", "17").await;
    system.register("i-2", &cold, "cold.test", "18").await;
    system.get("app.test", "/").await;
    // No pacemaker runs that could seed it again.
    system.kill(System::PACEMAKER).await;
    system.restart_empty(System::PRIMARY).await;
    // The replica has copied the emptiness: the danger is real.
    eventually("the replica to be as empty as its primary", || async {
        let size = system.try_cli::<i64>(System::REPLICA, "DBSIZE").await;
        if size.as_ref().is_ok_and(|size| *size == 0) { Ok(()) } else { Err(format!("{size:?}")) }
    })
    .await;
    until_alarm(&system, |alarm| alarm.is_some()).await;
    for _ in 0..20 {
        assert_eq!(system.get("app.test", "/").await.text(), "app");
    }
    // This includes a table that is being rebuilt.
    system.route("new.test", &cold).await;
    let new = system.get("new.test", "/").await;
    assert_ne!(new.status, 404, "unknown, not absent: {}", new.text());

    system.start_part(System::PACEMAKER).await;
    until_alarm(&system, |alarm| alarm.is_none()).await;
    eventually("the seeded table to be served", || async {
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
    assert_eq!(system.get("app.test", "/").await.status, 503, "registered still, and without an instance");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_pacemaker_seeds_an_empty_primary_automatically() {
    let system = System::start("seeded").await;
    let mut apps = Vec::new();
    for n in 0..20 {
        let app = App::start(&format!("app-{n}")).await;
        system.register(&format!("i-{n}"), &app, &format!("h{n}.test"), "17").await;
        apps.push(app);
    }
    let before: i64 = system.cli(System::PRIMARY, "GET serial").await;
    system.restart_empty(System::PRIMARY).await;
    eventually("the whole table to be back on the primary", || async {
        let serial = system.try_cli::<Option<i64>>(System::PRIMARY, "GET serial").await;
        let epoch = system.try_cli::<Option<String>>(System::PRIMARY, "GET epoch").await;
        match (serial, epoch) {
            (Ok(Some(serial)), Ok(Some(_))) if serial >= before => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    // Serial and epoch are written last: once they are visible, the rest of the table is too.
    for (n, app) in apps.iter().enumerate() {
        let addresses: Vec<String> =
            system.cli(System::PRIMARY, &format!("SMEMBERS instances:h{n}.test")).await;
        assert_eq!(addresses, [app.address.to_string()], "h{n}.test");
    }
    until_alarm(&system, |alarm| alarm.is_none()).await;
    for (n, app) in apps.iter().enumerate() {
        system.until_answered_by(&format!("h{n}.test"), app).await;
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manually_written_table_that_vanished_is_kept_too() {
    let system = System::edge_only("by-hand-empty").await;
    let [app, other] = [App::start("app").await, App::start("other").await];
    system.route("app.test", &app).await;
    system.settle().await;
    system.until_answered_by("app.test", &app).await;
    let epoch: Option<String> = system.cli(System::PRIMARY, "GET epoch").await;
    assert_eq!(epoch, None, "this table has no epoch");
    system.restart_empty(System::PRIMARY).await;
    until_alarm(&system, |alarm| alarm.is_some()).await;
    for _ in 0..20 {
        assert_eq!(system.get("app.test", "/").await.text(), "app");
    }
    // The operator writes it again, serial last, with at least the previous value: it is accepted.
    system.route("app.test", &other).await;
    system.cli::<()>(System::PRIMARY, "SET serial 1000").await;
    until_alarm(&system, |alarm| alarm.is_none()).await;
    system.until_answered_by("app.test", &other).await;
    system.stop().await;
}

/// A system whose workers reach the replica over a wire.
async fn with_wire(name: &str) -> (System, Wire) {
    let ports = Ports::free().unwrap();
    let wire = Wire::to(SocketAddr::from(([127, 0, 0, 1], ports.routes_replica))).await;
    let system = System::with(name, |builder| {
        let builder = builder.without_pacemaker().without_sidecar().ports(ports);
        builder.nginx("ROUTES_REPLICA", wire.address.to_string())
    })
    .await;
    (system, wire)
}

/// A connection can fail silently, fail in one direction only, or return in the middle of a
/// message.
#[tokio::test(flavor = "multi_thread")]
async fn a_replication_link_that_fails_in_any_way_is_noticed_and_repaired() {
    let (system, wire) = with_wire("link").await;
    // nginx logs a connection that is cut while it waits for the reply to its login.
    system.allow("recv() failed (104");
    let [one, two] = [App::start("one").await, App::start("two").await];
    let (mut now, mut next) = (&one, &two);
    system.route("app.test", now).await;
    system.settle().await;
    system.until_answered_by("app.test", now).await;
    for fault in [Fault::Silence, Fault::HalfClose, Fault::Cut, Fault::LoseReplies] {
        wire.set(fault);
        // The change happens while the link is down.
        system.route("app.test", next).await;
        system.cli::<()>(System::PRIMARY, &format!("SREM instances:app.test {}", now.address)).await;
        eventually(&format!("the workers to notice {fault:?}"), || async {
            // No request fails in the meantime.
            assert_eq!(system.get("app.test", "/").await.status, 200, "{fault:?}");
            let status = system.edge_api("/edge/status").await.json();
            if status["connected"] == false { Ok(()) } else { Err(status) }
        })
        .await;
        assert_eq!(system.get("app.test", "/").await.text(), now.name(), "{fault:?}: the last that is known");
        assert_eq!(system.get("unknown.test", "/").await.status, 503, "{fault:?}");
        wire.set(Fault::None);
        system.until_answered_by("app.test", next).await;
        system.settle().await;
        for _ in 0..10 {
            assert_eq!(system.get("app.test", "/").await.text(), next.name(), "{fault:?}");
        }
        std::mem::swap(&mut now, &mut next);
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_that_takes_too_long_is_abandoned() {
    let (system, wire) = with_wire("slow-link").await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;
    system.until_answered_by("app.test", &app).await;
    wire.set(Fault::Delay(Duration::from_secs(1)));
    // Whether there is such a host is not known in time. Then it is neither a 404 nor remembered as one.
    let unknown = system.get("late.test", "/").await;
    assert_eq!(unknown.status, 503, "{}", unknown.text());
    assert_ne!(unknown.reason(), "no_route");
    assert_eq!(system.get("app.test", "/").await.text(), "app");
    system.route("late.test", &app).await;
    wire.set(Fault::None);
    system.until_answered_by("late.test", &app).await;
    system.until_status("nobody.test", 404).await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_can_accept_a_table_that_was_rolled_back() {
    let system = System::edge_only("accept").await;
    let [old, new] = [App::start("old").await, App::start("new").await];
    system.route("app.test", &old).await;
    system.settle().await;
    system.cli::<()>(System::PRIMARY, "SET serial 100").await;
    system.settle().await;
    system.until_answered_by("app.test", &old).await;
    system.restart_empty(System::PRIMARY).await;
    system.route("app.test", &new).await;
    system.cli::<()>(System::PRIMARY, "SET serial 5").await;
    until_alarm(&system, |alarm| alarm.is_some()).await;
    assert_eq!(system.get("app.test", "/").await.text(), "old");
    let refused = system.edge_api("/edge/accept").await;
    assert_eq!(refused.status, 405, "looking must not accept: {}", refused.text());
    // A browser that is tricked into a POST must not accept either; the header is what it cannot be tricked into.
    let refused = system.api("POST", "/edge/accept", None).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    let accept = Request::new("POST", "localhost", "/edge/accept").header("X-Signalbox-Accept", "table");
    let accepted = accept.send(system.admin).await.unwrap();
    assert!(matches!(accepted.status, 200 | 202 | 204), "{} {}", accepted.status, accepted.text());
    until_alarm(&system, |alarm| alarm.is_none()).await;
    system.until_answered_by("app.test", &new).await;
    system.stop().await;
}
