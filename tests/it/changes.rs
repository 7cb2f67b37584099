//! A change of the table reaches every worker, through primary, replica and client tracking, whichever client made it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::json;
use signalbox_stack::Ports;
use signalbox_testkit::{
    eventually,
    wire::{Fault, Wire},
};
use signalbox_tests::{http::Request, load::Load, system::System, upstream::App};

#[tokio::test(flavor = "multi_thread")]
async fn a_line_typed_into_redis_cli_routes() {
    let system = System::edge_only("by-hand").await;
    let app = App::start("app").await;
    // Requested before it exists, so that the negative lookup is cached and must be invalidated.
    assert_eq!(system.get("hand.test", "/").await.status, 404);
    system.cli::<()>(System::PRIMARY, &format!("SADD instances:hand.test {}", app.address)).await;
    // No serial, no acknowledgement: the push alone must do.
    system.until_answered_by("hand.test", &app).await;
    system.cli::<()>(System::PRIMARY, &format!("SREM instances:hand.test {}", app.address)).await;
    system.until_status("hand.test", 404).await;
    system.cli::<()>(System::PRIMARY, "SET logkey:hand.test 4").await;
    system.until_status("hand.test", 503).await;
    system.cli::<()>(System::PRIMARY, &format!("SADD instances:hand.test {}", app.address)).await;
    system.until_answered_by("hand.test", &app).await;
    system.cli::<()>(System::PRIMARY, "RENAME instances:hand.test instances:moved.test").await;
    system.until_answered_by("moved.test", &app).await;
    system.until_status("hand.test", 503).await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn adding_or_removing_a_wildcard_changes_the_names_below_it() {
    let system = System::edge_only("wildcards").await;
    let [wild, deep] = [App::start("wild").await, App::start("deep").await];
    system.route("*.wild.test", &wild).await;
    system.until_answered_by("a.deep.wild.test", &wild).await;
    system.route("*.deep.wild.test", &deep).await;
    system.until_answered_by("a.deep.wild.test", &deep).await;
    assert_eq!(system.get("b.wild.test", "/").await.text(), "wild");
    system.cli::<()>(System::PRIMARY, "DEL instances:*.deep.wild.test").await;
    system.until_answered_by("a.deep.wild.test", &wild).await;
    system.cli::<()>(System::PRIMARY, "DEL instances:*.wild.test").await;
    system.until_status("a.deep.wild.test", 404).await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_waited_is_served_by_every_worker() {
    let system = System::start("put-wait").await;
    let [first, second] = [App::start("first").await, App::start("second").await];
    assert_eq!(system.get("shop.test", "/").await.status, 404);
    let put = async |id: &str, app: &App| {
        let body =
            json!({"address": app.address.to_string(), "hostnames": ["shop.test"], "version_type_id": "17"});
        let answer = system.api("PUT", &format!("/instances/{id}?wait=20s"), Some(body)).await;
        assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
    };
    // Nothing is waited for below: an acknowledged change is everywhere. Each request is a new connection, so that
    // both workers get some.
    put("i-1", &first).await;
    for _ in 0..30 {
        assert_eq!(system.get("shop.test", "/").await.text(), "first");
    }
    put("i-2", &second).await;
    let deleted = system.api("DELETE", "/instances/i-1?wait=20s", None).await;
    assert!(matches!(deleted.status, 200 | 204), "{}", deleted.text());
    let before = first.hits();
    for _ in 0..30 {
        assert_eq!(system.get("shop.test", "/").await.text(), "second");
    }
    assert_eq!(first.hits(), before, "a deleted instance got a request");
    let deleted = system.api("DELETE", "/instances/i-2?wait=20s", None).await;
    assert!(matches!(deleted.status, 200 | 204), "{}", deleted.text());
    // The name stays known, without an instance, until the host is removed.
    for _ in 0..30 {
        assert_eq!(system.get("shop.test", "/").await.status, 503);
    }
    let removed = system.api("DELETE", "/hosts/shop.test?wait=20s", None).await;
    assert!(matches!(removed.status, 200 | 204), "{}", removed.text());
    for _ in 0..30 {
        assert_eq!(system.get("shop.test", "/").await.status, 404);
    }
    system.stop().await;
}

/// The race that a second connection for lookups loses now and then: a lookup's answer arrives after the push that
/// made it stale.
#[tokio::test(flavor = "multi_thread")]
async fn bursts_of_changes_under_load_leave_no_stale_route() {
    let system = System::edge_only("bursts").await;
    change_in_bursts(&system, 20, &[200, 404]).await;
    system.stop().await;
}

/// The same with the commands of a lookup torn apart, so that changes come between its two halves.
#[tokio::test(flavor = "multi_thread")]
async fn bursts_of_changes_in_mid_lookup_leave_no_stale_route() {
    let ports = Ports::free().unwrap();
    let wire = Wire::to(SocketAddr::from(([127, 0, 0, 1], ports.routes_replica))).await;
    let system = System::with("bursts-torn", |builder| {
        let builder = builder.without_pacemaker().without_sidecar().ports(ports);
        builder.nginx("ROUTES_REPLICA", wire.address.to_string())
    })
    .await;
    wire.set(Fault::Trickle);
    // Some take longer than a request waits. That is "unknown", and never "there is no such host".
    change_in_bursts(&system, 8, &[200, 404, 503]).await;
    system.stop().await;
}

/// Many clients look up names that are not cached yet while these names change several times.
async fn change_in_bursts(system: &System, rounds: u64, expected_codes: &[u16]) {
    const NAMES: u64 = 25;
    let [old, new] = [App::start("old").await, App::start("new").await];
    let round = Arc::new(AtomicU64::new(0));
    let asked = round.clone();
    let load = Load::start(system.edge, 8, move |n| {
        Request::get(&format!("n{}.r{}.test", n % NAMES, asked.load(Ordering::SeqCst)), "/")
    });
    for number in 1..=rounds {
        round.store(number, Ordering::SeqCst);
        let name = |n: u64| format!("instances:n{n}.r{number}.test");
        // Each name: old, then both, then new; then every fifth is gone, and back as old.
        for n in 0..NAMES {
            system.cli::<()>(System::PRIMARY, &format!("SADD {} {}", name(n), old.address)).await;
        }
        for n in 0..NAMES {
            system.cli::<()>(System::PRIMARY, &format!("SADD {} {}", name(n), new.address)).await;
            system.cli::<()>(System::PRIMARY, &format!("SREM {} {}", name(n), old.address)).await;
        }
        for n in (0..NAMES).step_by(5) {
            system.cli::<()>(System::PRIMARY, &format!("DEL {}", name(n))).await;
        }
        for n in (0..NAMES).step_by(10) {
            system.cli::<()>(System::PRIMARY, &format!("SADD {} {}", name(n), old.address)).await;
        }
        system.settle().await;
        for n in 0..NAMES {
            let host = format!("n{n}.r{number}.test");
            for _ in 0..3 {
                let answer = system.get(&host, "/").await;
                let expected = match n {
                    n if n % 10 == 0 => (200, "old"),
                    n if n % 5 == 0 => (404, ""),
                    _ => (200, "new"),
                };
                let seen = (answer.status, answer.header("X-App").unwrap_or_default());
                assert_eq!(seen, expected, "{host} is stale");
            }
        }
    }
    let account = load.stop().await;
    assert_eq!(account.broken, Vec::<String>::new());
    let surprises: Vec<_> = account.codes.keys().filter(|code| !expected_codes.contains(code)).collect();
    assert!(surprises.is_empty(), "while names changed: {:?}", account.codes);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_names_every_worker_and_waits_for_the_last() {
    let system = System::edge_only("ack").await;
    system.settle().await;
    let serial: i64 = system.cli(System::PRIMARY, "INCR serial").await;
    let ack = system.edge_api(&format!("/edge/ack?serial={serial}&wait=20")).await.json();
    assert_eq!(ack["reached"], true, "{ack}");
    let workers = ack["workers"].as_array().unwrap();
    assert_eq!(workers.len(), system.workers().len(), "{ack}");
    assert!(workers.iter().all(|worker| worker["serial"].as_i64() >= Some(serial)), "{ack}");
    // A serial that was never assigned is never reached.
    let ack = system.edge_api(&format!("/edge/ack?serial={}&wait=0.2", serial + 1000)).await.json();
    assert_eq!((&ack["reached"], &ack["serial"]), (&false.into(), &serial.into()), "{ack}");
    let bad = system.edge_api("/edge/ack?serial=x").await;
    assert_eq!(bad.status, 400, "{}", bad.text());
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_unknown_hosts_evicts_no_route() {
    let system = System::edge_only("flood").await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;
    system.until_answered_by("app.test", &app).await;
    let account = signalbox_tests::load::send(system.edge, 8, 12_000, |n| {
        Request::get(&format!("x{n}.flood.test"), "/")
    })
    .await;
    assert_eq!(account.codes.get(&404), Some(&12_000), "{:?} {:?}", account.codes, account.broken.first());
    let status = system.edge_api("/edge/status").await.json();
    assert!(status["known"].as_u64() >= Some(1), "the route is still cached: {status}");
    // With every Redis gone, only the cache can know it.
    for part in System::REDIS {
        system.kill(part).await;
    }
    for _ in 0..20 {
        assert_eq!(system.get("app.test", "/").await.text(), "app");
    }
    eventually("the edge to report that it serves from its cache", || async {
        let status = system.edge_api("/edge/status").await.json();
        if status["connected"] == false { Ok(()) } else { Err(status) }
    })
    .await;
    system.stop().await;
}
