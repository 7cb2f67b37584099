//! `signalbox deploy`: a host moves to new instances as a whole, or stays as it was.

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{http::Request, load::Load, system::System, upstream::App};

use super::command::type_in;

const HOST: &str = "shop.test";

async fn old_version(system: &System) -> Vec<App> {
    let mut apps = Vec::new();
    for name in ["old-1", "old-2"] {
        let app = App::start(name).await;
        system.register(name, &app, HOST, "1").await;
        apps.push(app);
    }
    apps
}

/// ID and state of each instance of the host.
async fn instances(system: &System) -> Vec<(String, String)> {
    let answer = system.api("GET", &format!("/instances?host={HOST}"), None).await.json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let all = answer["instances"].as_array().unwrap();
    all.iter().map(|one| (text(&one["id"]), text(&one["state"]))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deploy_under_load_moves_every_request_and_fails_none() {
    let system = System::start("deploy").await;
    let old = old_version(&system).await;
    let new = [App::start("new-1").await, App::start("new-2").await];
    let addresses = new.each_ref().map(|app| app.address.to_string());
    let load = Load::start(system.edge, 6, |_| Request::get(HOST, "/"));
    load.pass(100).await;

    let deploy = ["deploy", HOST, "--target", &addresses[0], &addresses[1], "--version", "2", "--json"];
    let said = type_in(&system, &deploy).await.done();
    let said: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(said["drained"], json!(["old-1", "old-2"]));
    assert_eq!(said["resumed"], json!(["shop.test-2-1", "shop.test-2-2"]));

    // The promotion is acknowledged: what begins now reaches the new version.
    eventually("the last request of the old version to be answered", || async {
        let before: u64 = old.iter().map(App::hits).sum();
        load.pass(60).await;
        let after: u64 = old.iter().map(App::hits).sum();
        if after == before { Ok(()) } else { Err(after - before) }
    })
    .await;
    assert!(new.iter().all(|app| app.hits() > 0));

    // Interrupted or not, a deploy may be repeated.
    type_in(&system, &deploy).await.done();
    let states: Vec<String> = instances(&system).await.into_iter().map(|(_, state)| state).collect();
    assert_eq!(states, ["draining", "draining", "active", "active"]);
    let host = system.api("GET", &format!("/hosts/{HOST}"), None).await.json();
    assert_eq!(host.get("rules"), None, "the traffic split of the promotion is gone");

    let account = load.stop().await;
    assert_eq!(account.failed(), 0, "codes {:?}, broken {:?}", account.codes, account.broken.first());
    let hits: u64 = old.iter().chain(&new).map(App::hits).sum();
    assert_eq!(hits, account.answered(), "each request reached one instance once");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deploy_with_a_target_that_never_becomes_healthy_changes_nothing() {
    let system = System::start("deploy-unhealthy").await;
    let old = old_version(&system).await;
    let good = App::start("good").await;
    let mut dead = App::start("dead").await;
    dead.kill().await;
    let addresses = [good.address.to_string(), dead.address.to_string()];
    let load = Load::start(system.edge, 4, |_| Request::get(HOST, "/"));
    load.pass(50).await;

    let deploy = ["deploy", HOST, "--target", &addresses[0], "--target", &addresses[1], "--timeout", "4s"];
    let said = type_in(&system, &deploy).await;
    assert_eq!(said.code, Some(69), "{} {}", said.out, said.wrong);
    let expected = format!("nothing was changed: {} was not healthy within 4 s", dead.address);
    assert!(said.wrong.contains(&expected), "{}", said.wrong);
    let active = |id: &str| (id.to_owned(), "active".to_owned());
    assert_eq!(instances(&system).await, [active("old-1"), active("old-2")]);

    // An address of the running version is rejected before anything is registered.
    let taken = old[0].address.to_string();
    let said = type_in(&system, &["deploy", HOST, "--target", &taken]).await;
    assert_eq!(said.code, Some(65), "{} {}", said.out, said.wrong);
    assert!(said.wrong.contains("already serves shop.test as version 1"), "{}", said.wrong);

    let twice = ["deploy", HOST, "--target", &addresses[0], &addresses[0]];
    let said = type_in(&system, &twice).await;
    assert_eq!(said.code, Some(64), "{} {}", said.out, said.wrong);
    assert!(said.wrong.contains(&format!("the target {} is named twice", addresses[0])), "{}", said.wrong);

    load.pass(50).await;
    let account = load.stop().await;
    assert_eq!(account.failed(), 0, "codes {:?}, broken {:?}", account.codes, account.broken.first());
    assert_eq!(good.hits(), 0, "only checks of health reach it");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_deploy_of_a_host_begins_when_its_health_is_known() {
    let system = System::start("deploy-first").await;
    let app = App::start("first").await;
    let address = app.address.to_string();
    let said = type_in(&system, &["deploy", HOST, "--target", &address, "--health-path", "/"]).await.done();
    assert!(said.out.starts_with("shop.test is served by version "), "{}", said.out);
    assert_eq!(system.get(HOST, "/").await.status, 200);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deploy_whose_promotion_is_rejected_removes_its_targets() {
    let system = System::start("deploy-rejected").await;
    let (old, new) = (App::start("old").await, App::start("new").await);
    let both = json!({"address": old.address.to_string(), "hostnames": [HOST, "other.test"], "version_type_id": "1"});
    assert_eq!(system.api("PUT", "/instances/old?wait=20s", Some(both)).await.status, 201);
    // The new version would leave other.test without an instance.
    let address = new.address.to_string();
    let said = type_in(&system, &["deploy", HOST, "--target", &address, "--version", "2"]).await;
    assert_eq!(said.code, Some(65), "{} {}", said.out, said.wrong);
    assert!(said.wrong.contains("(version_incomplete)"), "{}", said.wrong);
    assert_eq!(instances(&system).await, [("old".to_owned(), "active".to_owned())]);
    for host in [HOST, "other.test"] {
        assert_eq!(system.get(host, "/").await.text(), "old");
    }
    system.stop().await;
}
