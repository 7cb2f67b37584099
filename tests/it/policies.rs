//! Policies of hosts through the API, with every daemon running. Policies reach every worker, version types are counted
//! separately, drains and switches lose no request, health is checked, and a lost table is restored.

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::Request,
    load::{Account, Load},
    system::System,
    upstream::{App, Mode},
};

async fn call(system: &System, method: &str, target: &str, body: Value) -> Value {
    let answer = system.api(method, target, Some(body)).await;
    assert!(matches!(answer.status, 200 | 201), "{method} {target}: {} {}", answer.status, answer.text());
    answer.json()
}

fn expect_no_failure(account: &Account, least: u64) {
    assert_eq!(account.failed(), 0, "codes {:?}, broken {:?}", account.codes, account.broken.first());
    assert!(account.answered() >= least, "only {} requests, that shows nothing", account.answered());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_active_in_every_worker_when_its_put_is_answered() {
    let system = System::start("policies-set").await;
    let app = App::start("one").await;
    // Before the first instance, and while requests are answered.
    let early = call(&system, "PUT", "/hosts/shop.test?wait=20s", json!({"hold_ms": 1})).await;
    assert_eq!(early["changed"], true);
    system.register("one", &app, "shop.test", "17").await;
    let load = Load::start(system.edge, 4, |_| Request::get("shop.test", "/"));
    for round in 0..10 {
        // None of this changes anything for clients of a host that is well.
        let policy =
            json!({"hold_ms": 100 + round, "retries": {"attempts": 2}, "timeouts": {"read_ms": 30000}});
        let set = call(&system, "PUT", "/hosts/shop.test?wait=20s", policy.clone()).await;
        assert_eq!(set["changed"], true, "{set}");
        let acknowledged = system.edge_api("/edge/ack").await.json();
        assert!(acknowledged["serial"].as_u64() >= set["serial"].as_u64(), "{acknowledged} {set}");
        assert_eq!(call(&system, "PUT", "/hosts/shop.test?wait=20s", policy).await["changed"], false);
        load.pass(10).await;
    }
    expect_no_failure(&load.stop().await, 100);
    let removed = system.api("DELETE", "/hosts/shop.test/policy?wait=20s", None).await;
    assert_eq!(removed.status, 204, "{}", removed.text());
    assert_eq!(system.get("shop.test", "/").await.text(), "one");
    system.stop().await;
}

/// A later Signalbox stored it.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_cannot_be_read_can_be_removed() {
    let system = System::start("policies-unreadable").await;
    call(&system, "PUT", "/hosts/shop.test?wait=20s", json!({"hold_ms": 1})).await;
    let stored: String = system.cli(System::FABRIC, "HGET routes:policies shop.test").await;
    let later = stored.replace("hold_ms", "later_ms");
    let _added: u64 = system.cli(System::FABRIC, &format!("HSET routes:policies shop.test {later}")).await;
    let removed = system.api("DELETE", "/hosts/shop.test/policy?wait=20s", None).await;
    assert_eq!(removed.status, 204, "{}", removed.text());
    let left: Option<String> = system.cli(System::FABRIC, "HGET routes:policies shop.test").await;
    assert_eq!(left, None);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promotion_and_its_undo_lose_no_request_and_count_each_version() {
    let system = System::start("policies-promote").await;
    let (old, new) = (App::start("old").await, App::start("new").await);
    system.register("old", &old, "shop.test", "17").await;
    let load = Load::start(system.edge, 6, |_| Request::get("shop.test", "/"));
    load.pass(50).await;
    let refused =
        system.api("POST", "/hosts/shop.test/promote", Some(json!({"version_type_id": "18"}))).await;
    assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("no_instance_of_version")));
    system.register("new", &new, "shop.test", "18").await;
    load.pass(50).await;
    let body = json!({"version_type_id": "18", "drain_seconds": 600});
    let promoted = call(&system, "POST", "/hosts/shop.test/promote?wait=20s", body.clone()).await;
    assert_eq!(promoted["drained"], json!(["old"]));
    // Requests under way may end; after that none arrive any longer.
    eventually("the last request of the old version to be answered", || async {
        let before = old.hits();
        load.pass(30).await;
        if old.hits() == before { Ok(()) } else { Err(before) }
    })
    .await;
    let at_promotion = old.hits();
    load.pass(50).await;
    assert_eq!(old.hits(), at_promotion);
    assert_eq!(call(&system, "POST", "/hosts/shop.test/promote?wait=20s", body).await["changed"], false);
    // The process of the old version still runs, and registers again after it was removed.
    let removed = system.api("DELETE", "/instances/old?wait=20s", None).await;
    assert_eq!(removed.status, 204, "{}", removed.text());
    system.register("old", &old, "shop.test", "17").await;
    load.pass(50).await;
    assert_eq!(old.hits(), at_promotion, "a promoted host keeps its version");
    // Back again: the old one is still there. Both served before.
    let undo = json!({"version_type_id": "18"});
    let back = call(&system, "POST", "/hosts/shop.test/promote/undo?wait=20s", undo.clone()).await;
    assert_eq!((&back["resumed"], &back["drained"]), (&json!(["old"]), &json!([])));
    system.until_answered_by("shop.test", &old).await;
    let again = call(&system, "POST", "/hosts/shop.test/promote/undo?wait=20s", undo).await;
    assert_eq!(again["changed"], false);
    let account = load.stop().await;
    expect_no_failure(&account, 200);
    let lines = system.log_lines_when((old.hits() + new.hits()) as usize).await;
    for (key, app) in [("17", &old), ("18", &new)] {
        let counted = lines.iter().filter(|line| line["key"] == key).count() as u64;
        assert_eq!(counted, app.hits(), "requests counted under {key}, and requests that {} had", app.name());
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_node_gets_no_new_requests_and_can_be_restored() {
    let system = System::start("policies-node").await;
    let (here, there) = (App::start("here").await, App::start("there").await);
    for (id, app, node) in [("here", &here, "n1"), ("there", &there, "n2")] {
        let body = json!({
            "address": app.address.to_string(), "hostnames": ["shop.test"], "version_type_id": "17", "node_id": node,
        });
        call(&system, "PUT", &format!("/instances/{id}?wait=20s"), body).await;
    }
    call(&system, "POST", "/nodes/n1/drain?wait=20s", json!({"deadline_seconds": 600})).await;
    let before = here.hits();
    for _ in 0..20 {
        assert_eq!(system.get("shop.test", "/").await.text(), "there");
    }
    assert_eq!(here.hits(), before);
    let resumed = system.api("DELETE", "/nodes/n1/drain?wait=20s", None).await;
    assert_eq!(resumed.json()["instances"], json!(["here"]));
    system.until_answered_by("shop.test", &here).await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_prober_finds_an_unhealthy_instance_and_notifies_all_routers() {
    let system = System::start("policies-health").await;
    let (well, sick) = (App::start("well").await, App::start("sick").await);
    for (id, app) in [("well", &well), ("sick", &sick)] {
        let health = json!({"path": "/", "interval_seconds": 1, "unhealthy_after": 1, "healthy_after": 1});
        let body = json!({
            "address": app.address.to_string(), "hostnames": ["shop.test"], "version_type_id": "17", "health": health,
        });
        call(&system, "PUT", &format!("/instances/{id}?wait=20s"), body).await;
    }
    let until = async |healthy: bool| {
        eventually("the health to change", || async {
            let view = system.api("GET", "/instances/sick", None).await.json();
            if view["healthy"] == healthy { Ok(()) } else { Err(view) }
        })
        .await;
    };
    sick.set(Mode::Status(500));
    until(false).await;
    let host = system.api("GET", "/hosts/shop.test", None).await.json();
    assert_eq!(host["policy"]["unhealthy"], json!([sick.address.to_string()]));
    // A pacemaker that dies loses none of this, and another one continues.
    system.kill(System::PACEMAKER).await;
    system.start_part(System::PACEMAKER).await;
    let host = system.api("GET", "/hosts/shop.test", None).await.json();
    assert_eq!(host["policy"]["unhealthy"], json!([sick.address.to_string()]));
    sick.set(Mode::ByPath);
    until(true).await;
    let host = system.api("GET", "/hosts/shop.test", None).await.json();
    assert_eq!(host.get("policy"), None, "{host}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_routes_primary_gets_its_policies_again() {
    let system = System::start("policies-reseed").await;
    let app = App::start("one").await;
    system.register("one", &app, "shop.test", "17").await;
    let policy = json!({"hold_ms": 1234, "shares": [{"version_type": "17", "percent": 100}]});
    call(&system, "PUT", "/hosts/shop.test?wait=20s", policy.clone()).await;
    let before = system.api("GET", "/hosts/shop.test", None).await.json();
    system.restart_empty(System::PRIMARY).await;
    eventually("the table to be seeded again", || async {
        let host = system.api("GET", "/hosts/shop.test", None).await;
        let host = if host.status == 200 { host.json() } else { Value::Null };
        if host["policy"] == before["policy"] && host["rules"] == policy { Ok(()) } else { Err(host) }
    })
    .await;
    // A replica that copies the new table answers nothing for a moment; who was cached stays served.
    system.until_answered_by("shop.test", &app).await;
    system.stop().await;
}

/// How many of `count` requests each application got.
async fn spread(system: &System, host: &str, count: u64, apps: &[&App]) -> Vec<u64> {
    let before: Vec<u64> = apps.iter().map(|app| app.hits()).collect();
    let account = signalbox_tests::load::send(system.edge, 4, count, {
        let host = host.to_owned();
        move |_| Request::get(&host, "/")
    })
    .await;
    assert_eq!((account.failed(), account.answered()), (0, count), "codes {:?}", account.codes);
    apps.iter().zip(before).map(|(app, before)| app.hits() - before).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_gets_its_share_and_the_clients_that_ask_for_it() {
    let system = System::start("policies-canary").await;
    let (old, new) = (App::start("old").await, App::start("new").await);
    system.register("old", &old, "shop.test", "17").await;
    system.register("new", &new, "shop.test", "18").await;
    let shares = |old: u32, new: u32| {
        json!({
            "shares": [{"version_type": "17", "percent": old}, {"version_type": "18", "percent": new}],
            "shares_by": {"header": "X-Version"},
        })
    };
    call(&system, "PUT", "/hosts/shop.test?wait=20s", shares(100, 0)).await;
    assert_eq!(spread(&system, "shop.test", 200, &[&old, &new]).await, [200, 0]);
    let asked = Request::get("shop.test", "/").header("X-Version", "18").send(system.edge).await.unwrap();
    assert_eq!(asked.text(), "new");
    call(&system, "PUT", "/hosts/shop.test?wait=20s", shares(80, 20)).await;
    // 2000 throws with 0.2: outside of these bounds once in some million runs (six deviations of 18).
    let canary = spread(&system, "shop.test", 2000, &[&old, &new]).await[1];
    assert!((292..=508).contains(&canary), "{canary} of 2000");
    // Weights within a version: a second old instance that weighs three times as much.
    let heavy = App::start("heavy").await;
    let body = json!({
        "address": heavy.address.to_string(), "hostnames": ["shop.test"], "version_type_id": "17", "weight": 3,
    });
    call(&system, "PUT", "/instances/heavy?wait=20s", body).await;
    call(&system, "PUT", "/hosts/shop.test?wait=20s", shares(100, 0)).await;
    let [light, heavy_hits, none] = spread(&system, "shop.test", 400, &[&old, &heavy, &new]).await[..] else {
        panic!()
    };
    assert_eq!(none, 0);
    assert!((250..=350).contains(&heavy_hits), "{light} and {heavy_hits}");
    // The counting key is that of the chosen instance.
    let lines = system.log_lines_after_a_last_request().await;
    let counted = lines.iter().filter(|line| line["key"] == "18").count() as u64;
    assert_eq!(counted, new.hits());
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unhealthy_instance_gets_no_requests_until_it_recovers_unless_most_are_unhealthy() {
    let system = System::start("policies-sick").await;
    let apps = [App::start("a").await, App::start("b").await, App::start("c").await];
    for app in &apps {
        let health = json!({"path": "/", "interval_seconds": 1, "unhealthy_after": 1, "healthy_after": 1});
        let body = json!({
            "address": app.address.to_string(), "hostnames": ["shop.test"], "version_type_id": "17", "health": health,
        });
        call(&system, "PUT", &format!("/instances/{}?wait=20s", app.name()), body).await;
    }
    // A check whose own rules fail while requests succeed: then only the edge's routing reflects
    // it.
    let recheck = async |name: &str, app: &App, path: &str, healthy: bool| {
        let health = json!({"path": path, "interval_seconds": 1, "unhealthy_after": 1, "healthy_after": 1});
        let body = json!({
            "address": app.address.to_string(), "hostnames": ["shop.test"], "version_type_id": "17", "health": health,
        });
        call(&system, "PUT", &format!("/instances/{name}?wait=20s"), body).await;
        eventually("the health to change and to be everywhere", || async {
            let view = system.api("GET", &format!("/instances/{name}"), None).await.json();
            if view["healthy"] != healthy {
                return Err(view);
            }
            let seen = system.api("GET", "/routes/convergence", None).await.json();
            if seen["converged"] == true { Ok(()) } else { Err(seen) }
        })
        .await;
    };
    recheck("a", &apps[0], "/status/500", false).await;
    // The checks are hits as well, so the bodies show which instance answered.
    for _ in 0..60 {
        let answered = system.get("shop.test", "/").await.text();
        assert!(["b", "c"].contains(&&*answered), "{answered}");
    }
    // Two of three are more than half: then health status is ignored.
    recheck("b", &apps[1], "/status/500", false).await;
    let mut answered = std::collections::BTreeSet::new();
    for _ in 0..60 {
        answered.insert(system.get("shop.test", "/").await.text());
    }
    assert_eq!(answered.len(), 3, "{answered:?}");
    recheck("b", &apps[1], "/", true).await;
    recheck("a", &apps[0], "/", true).await;
    system.until_answered_by("shop.test", &apps[0]).await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_requests_that_a_policy_allows_pass() {
    let system = System::start("policies-guards").await;
    let app = App::start("one").await;
    system.register("one", &app, "shop.test", "17").await;
    let policy = json!({
        "methods": ["GET", "POST"], "body_bytes": 10,
        "headers": {"request": {"set": {"X-Env": "live"}, "remove": ["X-Debug"]}, "response": {"set": {"X-Frame-Options": "DENY"}}},
    });
    call(&system, "PUT", "/hosts/shop.test?wait=20s", policy).await;
    let send = async |request: Request| request.send(system.edge).await.unwrap();
    assert_eq!(send(Request::new("DELETE", "shop.test", "/")).await.status, 405);
    assert_eq!(send(Request::new("POST", "shop.test", "/").body("12345678901")).await.status, 413);
    let echo =
        send(Request::get("shop.test", "/echo").header("X-Debug", "1").header("X-Env", "forged")).await;
    let seen = echo.text().to_ascii_lowercase();
    assert!(
        seen.contains("x-env: live\r\n") && !seen.contains("forged") && !seen.contains("x-debug"),
        "{seen}"
    );
    assert_eq!(echo.header("X-Frame-Options"), Some("DENY"));
    // Maintenance for everybody but those who know the word, and away again.
    let policy = json!({"maintenance": {
        "status": 503, "body": "back soon", "retry_after": 60, "except_header": {"name": "X-Preview", "value": "please"},
    }});
    call(&system, "PUT", "/hosts/shop.test?wait=20s", policy).await;
    let closed = system.get("shop.test", "/").await;
    assert_eq!(
        (closed.status, &*closed.text(), closed.header("Retry-After")),
        (503, "back soon", Some("60"))
    );
    let preview = send(Request::get("shop.test", "/").header("X-Preview", "please")).await;
    assert_eq!((preview.status, &*preview.text()), (200, "one"));
    let removed = system.api("DELETE", "/hosts/shop.test/policy?wait=20s", None).await;
    assert_eq!(removed.status, 204);
    assert_eq!(system.get("shop.test", "/").await.text(), "one");
    // Without instances, a request waits until one is registered.
    call(&system, "PUT", "/hosts/shop.test?wait=20s", json!({"hold_ms": 20000})).await;
    system.api("DELETE", "/instances/one?wait=20s", None).await;
    let edge = system.edge;
    let held = tokio::spawn(async move { Request::get("shop.test", "/").send(edge).await });
    system.register("one", &app, "shop.test", "17").await;
    assert_eq!(held.await.unwrap().unwrap().text(), "one");
    system.stop().await;
}
