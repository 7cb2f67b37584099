//! Instances are added, removed and killed under load, and no client sees an error.

use serde_json::json;
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::Request,
    load::{Account, Load},
    system::System,
    upstream::App,
};

fn expect_no_failure(account: &Account, least: u64) {
    assert_eq!(account.failed(), 0, "codes {:?}, broken {:?}", account.codes, account.broken.first());
    assert!(account.answered() >= least, "only {} requests, that shows nothing", account.answered());
}

/// A rolling deployment: register new instances and wait, remove old ones and wait, then stop the old ones.
async fn replace_all(method: &'static str) {
    let system = System::start(&format!("replace-{method}")).await;
    let mut instances = Vec::new();
    for n in 0..3 {
        let app = App::start(&format!("first-{n}")).await;
        system.register(&format!("first-{n}"), &app, "shop.test", "1").await;
        instances.push(app);
    }
    let load = Load::start(system.edge, 6, move |_| Request::new(method, "shop.test", "/").body("x"));
    load.pass(100).await;
    let mut hits = 0;
    for round in 0..3 {
        for (n, place) in instances.iter_mut().enumerate() {
            let new = App::start(&format!("r{round}-{n}")).await;
            system.register(&format!("r{round}-{n}"), &new, "shop.test", "1").await;
            load.pass(20).await;
            let name = place.name().to_owned();
            let deleted = system.api("DELETE", &format!("/instances/{name}?wait=20s"), None).await;
            assert!(matches!(deleted.status, 200 | 204), "{}", deleted.text());
            // Every worker has acknowledged, so no new request arrives. Requests in flight may finish.
            let mut old = std::mem::replace(place, new);
            eventually("the last request of the old instance to be answered", || async {
                let before = old.hits();
                load.pass(30).await;
                if old.hits() == before { Ok(()) } else { Err(before) }
            })
            .await;
            old.kill().await;
            hits += old.hits();
            load.pass(20).await;
        }
    }
    let account = load.stop().await;
    expect_no_failure(&account, 500);
    hits += instances.iter().map(App::hits).sum::<u64>();
    assert_eq!(hits, account.answered(), "each request reached one instance once");
    for app in &instances {
        assert!(app.hits() > 0, "{} never got a request", app.name());
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replacing_every_instance_under_load_fails_no_get() {
    replace_all("GET").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replacing_every_instance_under_load_fails_no_post() {
    replace_all("POST").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_killed_under_load_fail_no_idempotent_request() {
    let system = System::start("killed").await;
    let mut apps = Vec::new();
    for n in 0..3 {
        let app = App::start(&format!("app-{n}")).await;
        system.register(&format!("app-{n}"), &app, "shop.test", "1").await;
        apps.push(app);
    }
    for provoked in ["connect() failed", "prematurely closed connection", "Connection reset by peer"] {
        system.allow(provoked);
    }
    let load = Load::start(system.edge, 6, |_| Request::get("shop.test", "/bytes/2000"));
    load.pass(100).await;
    for round in 0..12 {
        // Two of three at a time: one reachable instance is enough.
        let (one, two) = (round % 3, (round + 1) % 3);
        apps[one].kill().await;
        apps[two].kill().await;
        load.pass(60).await;
        apps[one].start_again().await;
        apps[two].start_again().await;
        load.pass(60).await;
    }
    let account = load.stop().await;
    expect_no_failure(&account, 1000);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_of_nginx_under_load_fails_no_request() {
    let system = System::start("reload").await;
    let app = App::start("app").await;
    system.register("app", &app, "shop.test", "1").await;
    // One connection per request: a reload may close an idle connection just when a client sends on it.
    let load = Load::start(system.edge, 4, |_| Request::get("shop.test", "/").header("Connection", "close"));
    load.pass(50).await;
    for _ in 0..3 {
        let before = system.workers();
        system.signal(System::NGINX, nix::sys::signal::Signal::SIGHUP);
        eventually("new workers", || async {
            let workers = system.workers();
            if !workers.is_empty() && workers.iter().all(|pid| !before.contains(pid)) {
                Ok(())
            } else {
                Err(workers)
            }
        })
        .await;
        load.pass(50).await;
        // The new workers acknowledge as the old ones did, and the old ones delay no change.
        let body =
            json!({"address": app.address.to_string(), "hostnames": ["shop.test"], "version_type_id": "2"});
        let put = system.api("PUT", "/instances/app?wait=20s", Some(body)).await;
        assert_eq!(put.status, 200, "{}", put.text());
    }
    expect_no_failure(&load.stop().await, 200);
    system.stop().await;
}
