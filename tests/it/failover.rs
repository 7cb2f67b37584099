//! Instances that fail, as clients see them: almost no client notices.

use std::{cell::RefCell, collections::BTreeSet};

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::{Connection, Request},
    load::{self, Load},
    system::System,
    upstream::{App, Mode},
};

async fn rule(system: &System, host: &str, policy: &Value) {
    system.cli::<()>(System::PRIMARY, &format!("SET policy:{host} {policy}")).await;
    system.settle().await;
}

/// The entry of `app` at `host` in the answer of `/edge/outliers`.
async fn instance_state(system: &System, host: &str, app: &App) -> Value {
    let answer = system.edge_api(&format!("/edge/outliers?host={host}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let address = app.address.to_string();
    let instances = answer.json()["instances"].clone();
    let found = instances.as_array().unwrap().iter().find(|one| one["address"] == *address);
    found.unwrap_or_else(|| panic!("no {address} in {}", answer.text())).clone()
}

/// A metric of the edge's own.
async fn metric(system: &System, name: &str) -> f64 {
    let metrics = system.metrics().await;
    metrics.iter().find(|(found, _)| found == name).unwrap_or_else(|| panic!("no {name} in {metrics:?}")).1
}

/// With a policy and without: @full and the hot path fail over by different code.
async fn an_instance_that_fails_is_ejected(name: &str, policy: Option<Value>) {
    let system = System::edge_only(name).await;
    let (bad, good, other) = (App::start("bad").await, App::start("good").await, App::start("other").await);
    for app in [&bad, &good, &other] {
        system.route("app.test", app).await;
    }
    system.settle().await;
    if let Some(policy) = &policy {
        rule(&system, "app.test", policy).await;
    }
    system.allow("prematurely closed connection");
    bad.set(Mode::Close);
    // Until it is out, its failures are made good by others.
    eventually("the instance to be ejected", || async {
        assert_eq!(system.get("app.test", "/").await.status, 200);
        let state = instance_state(&system, "app.test", &bad).await;
        if state["state"] == "ejected" { Ok(()) } else { Err(state) }
    })
    .await;
    // All workers know: none of them sends it requests while it is ejected. (The ejection may end
    // during this check.)
    let before = bad.hits();
    let account = load::send(system.edge, 8, 200, |_| Request::get("app.test", "/")).await;
    assert_eq!(account.codes.get(&200), Some(&200), "{account:?}");
    if instance_state(&system, "app.test", &bad).await["times"] == 1
        && instance_state(&system, "app.test", &bad).await["state"] == "ejected"
    {
        assert_eq!(bad.hits(), before, "an ejected instance got requests");
    }
    assert!(metric(&system, "signalbox_edge_ejections_total").await >= 1.0);
    assert!(metric(&system, "signalbox_edge_retries_total").await >= 1.0);
    // The instance is healthy again, and its ejection ends automatically.
    bad.set(Mode::ByPath);
    eventually("the instance to be back", || async {
        let answer = system.get("app.test", "/").await;
        if answer.header("X-App") == Some("bad") { Ok(()) } else { Err(answer.status) }
    })
    .await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_fails_on_the_hot_path_is_ejected_and_returns() {
    an_instance_that_fails_is_ejected("ejected-hot", None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_fails_under_a_policy_is_ejected_and_returns() {
    let policy = json!({"timeouts": {"read_ms": 30000}, "ejection": {"failures": 2, "first_ms": 400}});
    an_instance_that_fails_is_ejected("ejected-ruled", Some(policy)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_fails_under_p2c_is_ejected_and_returns() {
    let policy = json!({"balance": {"algorithm": "p2c"}, "ejection": {"failures": 2, "first_ms": 400}});
    an_instance_that_fails_is_ejected("ejected-p2c", Some(policy)).await;
}

/// Regression: refused connections used the retry budget. With none left, a request tried three
/// dead instances and failed.
#[tokio::test(flavor = "multi_thread")]
async fn several_dead_instances_in_a_row_fail_no_request_whatever_the_budget() {
    let system = System::edge_only("dead-row").await;
    let mut apps = Vec::new();
    for n in 0..6 {
        let app = App::start(&format!("app-{n}")).await;
        system.route("app.test", &app).await;
        apps.push(app);
    }
    system.allow("connect() failed");
    for app in &mut apps[1..] {
        app.kill().await;
    }
    // On the hot path, and in @full.
    for more in [json!({}), json!({"timeouts": {"read_ms": 30000}})] {
        let mut policy = json!({"retries": {"budget_percent": 0}, "ejection": false});
        policy.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        rule(&system, "app.test", &policy).await;
        for method in ["GET", "POST"] {
            let request = move |_| Request::new(method, "app.test", "/").body("x");
            let account = load::send(system.edge, 4, 60, request).await;
            assert_eq!(account.codes.get(&200), Some(&60), "{policy}, {method}: {account:?}");
        }
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn back_off_grows_each_time() {
    let system = System::edge_only("back-off").await;
    let (bad, good) = (App::start("bad").await, App::start("good").await);
    system.route("app.test", &bad).await;
    system.route("app.test", &good).await;
    let policy = json!({"ejection": {"failures": 2, "first_ms": 50, "longest_ms": 60000}});
    rule(&system, "app.test", &policy).await;
    bad.set(Mode::Status(503));
    eventually("the third ejection", || async {
        let answer = system.get("app.test", "/").await;
        assert_eq!((answer.status, answer.text()), (200, "good".to_owned()));
        let state = instance_state(&system, "app.test", &bad).await;
        if state["times"].as_u64() >= Some(3) { Ok(()) } else { Err(state) }
    })
    .await;
    let log = system.log_text(&System::NGINX);
    let ejections: Vec<&str> = log.lines().filter(|line| line.contains("is ejected for")).collect();
    for (line, wait) in ejections.iter().zip(["for 50 ms", "for 100 ms", "for 200 ms"]) {
        assert!(line.contains(wait), "{line}: {wait}");
    }
    assert!(ejections.len() >= 3, "{ejections:?}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn never_more_than_half_is_ejected() {
    let system = System::edge_only("half").await;
    let mut apps = Vec::new();
    for n in 0..4 {
        let app = App::start(&format!("app-{n}")).await;
        app.set(Mode::Status(503));
        system.route("app.test", &app).await;
        apps.push(app);
    }
    let lonely = App::start("lonely").await;
    lonely.set(Mode::Status(503));
    system.route("lonely.test", &lonely).await;
    let policy = json!({"ejection": {"failures": 1, "first_ms": 3_600_000, "longest_ms": 3_600_000}});
    rule(&system, "app.test", &policy).await;
    rule(&system, "lonely.test", &policy).await;
    for _ in 0..20 {
        assert_eq!(system.get("app.test", "/").await.status, 503, "the instances' own answer");
        assert_eq!(system.get("lonely.test", "/").await.status, 503);
    }
    let mut out = 0;
    for app in &apps {
        out += u64::from(instance_state(&system, "app.test", app).await["state"] == "ejected");
    }
    assert_eq!(out, 2, "half of four");
    assert_eq!(instance_state(&system, "lonely.test", &lonely).await["state"], "in");
    // The healthy ones of those that are left carry on.
    for app in &apps {
        app.set(Mode::ByPath);
    }
    assert_eq!(load::send(system.edge, 4, 40, |_| Request::get("app.test", "/")).await.codes[&200], 40);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_and_the_method_bound_the_tries() {
    let system = System::edge_only("attempts").await;
    let mut apps = Vec::new();
    for n in 0..5 {
        let app = App::start(&format!("app-{n}")).await;
        app.set(Mode::Close);
        system.route("app.test", &app).await;
        apps.push(app);
    }
    system.allow("prematurely closed connection");
    let hits = || apps.iter().map(App::hits).sum::<u64>();
    // The first two are served on the hot path, the last in @full.
    let cases = [("GET", 3, 3), ("GET", 1, 1), ("PUT", 2, 2), ("POST", 3, 1), ("GET", 100, 5)];
    let policies =
        [json!({}), json!({"balance": {"algorithm": "p2c"}}), json!({"timeouts": {"read_ms": 30000}})];
    for (more, (method, attempts, wanted)) in policies.iter().flat_map(|more| cases.map(|case| (more, case)))
    {
        let mut policy = json!({"retries": {"attempts": attempts}, "ejection": false});
        policy.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        rule(&system, "app.test", &policy).await;
        let before = hits();
        let answer = Request::new(method, "app.test", "/").body("x").send(system.edge).await.unwrap();
        assert_eq!((answer.status, answer.reason()), (502, "connection_broken"), "{method}, {attempts}");
        assert_eq!(hits() - before, wanted, "{policy}: {method}");
    }
    // Each of them another instance.
    assert!(apps.iter().all(|app| app.hits() > 0));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_keeps_retries_from_multiplying_the_load() {
    let system =
        System::with("budget", |builder| builder.without_pacemaker().without_sidecar().workers(1)).await;
    let apps = [App::start("a").await, App::start("b").await];
    for app in &apps {
        app.set(Mode::Close);
        system.route("none.test", app).await;
        system.route("some.test", app).await;
    }
    system.allow("prematurely closed connection");
    rule(&system, "none.test", &json!({"retries": {"budget_percent": 0}, "ejection": false})).await;
    let hits = || apps.iter().map(App::hits).sum::<u64>();
    for _ in 0..10 {
        assert_eq!(system.get("none.test", "/").await.status, 502);
    }
    assert_eq!(hits(), 10, "no budget, no retry");
    // A hundred in hand, ten a second, and a fifth of the requests: far from one for each.
    rule(&system, "some.test", &json!({"retries": {"budget_percent": 20}, "ejection": false})).await;
    let account = load::send(system.edge, 8, 1000, |_| Request::get("some.test", "/")).await;
    assert_eq!(account.codes.get(&502), Some(&1000), "{account:?}");
    let retried = hits() - 10 - 1000;
    assert!((100..900).contains(&retried), "{retried} retries of 1000 requests");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_were_not_sent_are_retried_whatever_the_budget() {
    let system = System::edge_only("refused").await;
    let (mut dead, alive) = (App::start("dead").await, App::start("alive").await);
    system.route("app.test", &dead).await;
    system.route("app.test", &alive).await;
    rule(&system, "app.test", &json!({"retries": {"budget_percent": 0}, "ejection": false})).await;
    system.allow("connect() failed");
    dead.kill().await;
    for method in ["GET", "POST"] {
        for _ in 0..10 {
            let answer = Request::new(method, "app.test", "/").body("x").send(system.edge).await.unwrap();
            assert_eq!((answer.status, &*answer.text()), (200, "alive"), "{method}");
        }
    }
    // And it takes nothing from the budget of those that were: more refusals than a budget has, then one failure.
    rule(&system, "app.test", &json!({"retries": {"budget_percent": 0.001}, "ejection": false})).await;
    let account = load::send(system.edge, 4, 600, |_| Request::get("app.test", "/")).await;
    assert_eq!(account.codes.get(&200), Some(&600), "{account:?}");
    dead.start_again().await;
    dead.set(Mode::Status(503));
    for _ in 0..8 {
        assert_eq!(&*system.get("app.test", "/").await.text(), "alive");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_instance_costs_only_its_timeout() {
    let system = System::edge_only("timeouts").await;
    let (hung, good) = (App::start("hung").await, App::start("good").await);
    system.route("app.test", &hung).await;
    system.route("app.test", &good).await;
    rule(&system, "app.test", &json!({"timeouts": {"read_ms": 100}, "ejection": false})).await;
    system.allow("timed out");
    hung.set(Mode::Hang);
    for _ in 0..6 {
        assert_eq!(&*system.get("app.test", "/").await.text(), "good");
    }
    assert!(hung.hits() > 0, "it got none, the test shows nothing");
    // Without another instance the answer is a 504 that names the reason.
    system.cli::<()>(System::PRIMARY, &format!("SREM instances:app.test {}", good.address)).await;
    system.settle().await;
    let answer = system.get("app.test", "/").await;
    assert_eq!((answer.status, answer.reason()), (504, "timeout"));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_retried_until_its_time_is_over() {
    let system = System::edge_only("retry-time").await;
    let mut apps = Vec::new();
    for n in 0..5 {
        let app = App::start(&format!("app-{n}")).await;
        app.set(Mode::Hang);
        system.route("app.test", &app).await;
        apps.push(app);
    }
    system.allow("timed out");
    let policy = json!({"timeouts": {"read_ms": 100}, "retries": {"timeout_ms": 50}, "ejection": false});
    rule(&system, "app.test", &policy).await;
    let answer = system.get("app.test", "/").await;
    assert_eq!((answer.status, answer.reason()), (504, "timeout"));
    // The first ended after the window, so no second one began.
    assert_eq!(apps.iter().map(App::hits).sum::<u64>(), 1);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_held_until_its_host_has_an_instance() {
    let system = System::edge_only("held").await;
    let app = App::start("app").await;
    rule(&system, "app.test", &json!({"hold_ms": 30_000})).await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        let mut connection = Connection::open(system.edge).await.unwrap();
        waiting.push(tokio::spawn(async move { connection.send(&Request::get("app.test", "/")).await }));
    }
    eventually("the requests to be held", || async {
        let held = metric(&system, "signalbox_edge_held_total").await;
        if held >= 5.0 { Ok(()) } else { Err(held) }
    })
    .await;
    system.route("app.test", &app).await;
    for request in waiting {
        let answer = request.await.unwrap().unwrap();
        assert_eq!((answer.status, &*answer.text()), (200, "app"));
    }
    // A request that waits without success gets an explanation.
    system.cli::<()>(System::PRIMARY, "DEL instances:app.test").await;
    rule(&system, "app.test", &json!({"hold_ms": 50})).await;
    let answer = system.get("app.test", "/").await;
    assert_eq!((answer.status, answer.reason()), (503, "no_instance"));
    system.stop().await;
}

/// The workers of before the reload still have to follow the table for the requests that they hold.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_wait_during_a_reload_continue_when_they_may() {
    let system = System::edge_only("held-reload").await;
    let app = App::start("app").await;
    system.route("paused.test", &app).await;
    rule(&system, "paused.test", &json!({"pause": {"wait_ms": 60_000}})).await;
    rule(&system, "*.empty.test", &json!({"hold_ms": 60_000})).await;
    let edge = system.edge;
    let mut waiting = Vec::new();
    for host in ["paused.test", "a.empty.test"].into_iter().cycle().take(6) {
        waiting.push(tokio::spawn(async move { Request::get(host, "/").send(edge).await }));
    }
    eventually("the requests to be held", || async {
        let held = metric(&system, "signalbox_edge_held_total").await;
        if held >= 6.0 { Ok(()) } else { Err(held) }
    })
    .await;
    let before = system.workers();
    system.signal(System::NGINX, nix::sys::signal::Signal::SIGHUP);
    eventually("new workers", || async {
        let workers = system.workers();
        let fresh = !workers.is_empty() && workers.iter().all(|pid| !before.contains(pid));
        if fresh { Ok(()) } else { Err(workers) }
    })
    .await;
    // The link to the replica is quiet for several seconds, then the requests are woken in vain, and later let go.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    rule(&system, "paused.test", &json!({"pause": {"wait_ms": 60_000, "most": 7}})).await;
    rule(&system, "*.empty.test", &json!({"hold_ms": 50_000})).await;
    assert!(waiting.iter().all(|one| !one.is_finished()), "nobody may continue yet");
    system.cli::<()>(System::PRIMARY, "DEL policy:paused.test").await;
    system.route("a.empty.test", &app).await;
    for request in waiting {
        let answer = request.await.unwrap().unwrap();
        assert_eq!((answer.status, &*answer.text()), (200, "app"));
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_held_while_the_only_instance_restarts() {
    let system = System::edge_only("restarts").await;
    let mut app = App::start("app").await;
    system.route("app.test", &app).await;
    rule(&system, "app.test", &json!({"hold_ms": 30_000})).await;
    assert_eq!(system.get("app.test", "/").await.status, 200);
    system.allow("connect() failed");
    system.allow("prematurely closed connection");
    system.allow("Connection reset by peer");
    app.kill().await;
    let edge = system.edge;
    let get = tokio::spawn(async move { Request::get("app.test", "/").send(edge).await });
    let post = Request::new("POST", "app.test", "/").body("x");
    let post = tokio::spawn(async move { post.send(edge).await });
    eventually("both to be held", || async {
        let held = metric(&system, "signalbox_edge_held_total").await;
        if held >= 2.0 { Ok(()) } else { Err(held) }
    })
    .await;
    // At the same address, so the table does not change.
    app.start_again().await;
    for request in [get, post] {
        let answer = request.await.unwrap().unwrap();
        assert_eq!((answer.status, &*answer.text()), (200, "app"));
    }
    // And at another one.
    app.kill().await;
    let get = tokio::spawn(async move { Request::get("app.test", "/").send(edge).await });
    eventually("it to be held", || async {
        let held = metric(&system, "signalbox_edge_held_total").await;
        if held >= 3.0 { Ok(()) } else { Err(held) }
    })
    .await;
    let new = App::start("new").await;
    system.route("app.test", &new).await;
    system.cli::<()>(System::PRIMARY, &format!("SREM instances:app.test {}", app.address)).await;
    let answer = get.await.unwrap().unwrap();
    assert_eq!((answer.status, &*answer.text()), (200, "new"));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_edge_reports_ejected_instances_and_their_reason() {
    let system = System::edge_only("outliers").await;
    let mut apps = Vec::new();
    for n in 0..4 {
        let app = App::start(&format!("app-{n}")).await;
        system.route("app.test", &app).await;
        apps.push(app);
    }
    let address = |n: usize| apps[n].address.to_string();
    system.cli::<()>(System::PRIMARY, "SET logkey:app.test 17").await;
    let policy = json!({"draining": [address(0)], "unhealthy": [address(1)], "weights": {address(2): 5},
        "log_keys": {address(3): "18"}});
    rule(&system, "app.test", &policy).await;
    assert_eq!(instance_state(&system, "app.test", &apps[0]).await["state"], "draining");
    assert_eq!(instance_state(&system, "app.test", &apps[1]).await["state"], "unhealthy");
    let third = instance_state(&system, "app.test", &apps[2]).await;
    assert_eq!(
        (&third["state"], &third["weight"], &third["version_type"]),
        (&json!("in"), &json!(5), &json!("17"))
    );
    assert_eq!(instance_state(&system, "app.test", &apps[3]).await["version_type"], "18");
    // For a plain host, a wildcard, an unknown host, and without a name.
    system.cli::<()>(System::PRIMARY, &format!("SADD instances:*.wild.test {}", address(0))).await;
    system.settle().await;
    let answer = system.edge_api("/edge/outliers?host=a.wild.test").await.json();
    assert_eq!((&answer["matched"], &answer["instances"][0]["state"]), (&json!("*.wild.test"), &json!("in")));
    assert_eq!(system.edge_api("/edge/outliers?host=nobody.test").await.status, 404);
    assert_eq!(system.edge_api("/edge/outliers").await.status, 400);
    assert_eq!(system.edge_api("/edge/outliers?host=%0a").await.status, 400);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_that_die_and_hang_under_every_policy_fail_no_idempotent_request() {
    let system = System::edge_only("policies-under-fire").await;
    let mut apps = Vec::new();
    for n in 0..4 {
        apps.push(App::start(&format!("app-{n}")).await);
    }
    const HOSTS: [&str; 5] = ["plain.test", "p2c.test", "hash.test", "canary.test", "sticky.test"];
    for host in HOSTS {
        for app in &apps {
            system.route(host, app).await;
        }
    }
    let canary = apps[3].address.to_string();
    let shares = json!([{"version_type": "17", "percent": 50}, {"version_type": "18", "percent": 50}]);
    for (host, mut policy) in [
        ("p2c.test", json!({"balance": {"algorithm": "p2c"}})),
        ("hash.test", json!({"balance": {"algorithm": "hash", "header": "X-User"}})),
        ("canary.test", json!({"log_keys": {canary: "18"}, "shares": shares})),
        ("sticky.test", json!({"sticky": {"cookie": "stay"}})),
    ] {
        policy["ejection"] = json!({"failures": 3, "first_ms": 100, "longest_ms": 1000});
        policy["v"] = json!(1);
        rule(&system, host, &policy).await;
    }
    for provoked in ["connect() failed", "prematurely closed connection", "Connection reset by peer"] {
        system.allow(provoked);
    }
    let load = Load::start(system.edge, 6, |n| {
        let host = HOSTS[usize::try_from(n).expect("64 bit") % HOSTS.len()];
        Request::get(host, "/bytes/2000").header("X-User", &format!("user-{}", n % 50))
    });
    load.pass(200).await;
    for round in 0..8 {
        // One dies and one answers 503; two are left.
        let (one, two) = (round % 4, (round + 1) % 4);
        apps[one].kill().await;
        apps[two].set(Mode::Status(503));
        load.pass(100).await;
        apps[one].start_again().await;
        apps[two].set(Mode::Close);
        load.pass(100).await;
        apps[two].set(Mode::ByPath);
        load.pass(50).await;
    }
    let account = load.stop().await;
    assert_eq!(account.failed(), 0, "codes {:?}, broken {:?}", account.codes, account.broken.first());
    assert!(account.answered() >= 2000, "only {} requests, that shows nothing", account.answered());
    // Neither worker counts any request as under way any longer. Each worker reports its own state.
    let idle = RefCell::new(BTreeSet::new());
    eventually("nothing to be under way", || async {
        let state = system.edge_api("/edge/outliers?host=p2c.test").await.json();
        let counts: Vec<u64> = state["instances"]
            .as_array()
            .unwrap()
            .iter()
            .map(|instance| instance["in_flight"].as_u64().unwrap())
            .collect();
        if counts.iter().all(|count| *count == 0) {
            idle.borrow_mut().insert(state["worker"].as_u64());
        }
        if idle.borrow().len() == 2 { Ok(()) } else { Err(state) }
    })
    .await;
    system.stop().await;
}
