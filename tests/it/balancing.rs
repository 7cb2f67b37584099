//! The algorithms, traffic shares and sessions of a host's policy, as clients see them.
//!
//! Policies are written directly into the table, as an operator may do.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use signalbox_testkit::{equal, eventually};
use signalbox_tests::{
    http::{Connection, Request, Response},
    load,
    system::System,
    upstream::{App, Mode},
};

/// An edge with one worker, so that counts are exact.
async fn one_worker(name: &str) -> System {
    System::with(name, |builder| builder.without_pacemaker().without_sidecar().workers(1)).await
}

/// Starts `count` applications behind `host`, with this policy, and waits until it is served.
async fn serve(system: &System, host: &str, count: usize, policy: impl Fn(&[App]) -> Value) -> Vec<App> {
    let mut apps = Vec::new();
    for n in 0..count {
        apps.push(App::start(&format!("app-{n}")).await);
        system.route(host, &apps[n]).await;
    }
    rule(system, host, &policy(&apps)).await;
    apps
}

/// Writes the policy of `host` and waits until every worker serves it.
async fn rule(system: &System, host: &str, policy: &Value) {
    system.cli::<()>(System::PRIMARY, &format!("SET policy:{host} {policy}")).await;
    system.settle().await;
}

/// How many of `count` requests each application answered.
async fn spread(system: &System, host: &'static str, count: u64) -> BTreeMap<String, u64> {
    let account = load::send(system.edge, 4, count, move |_| Request::get(host, "/")).await;
    assert_eq!(account.codes.get(&200), Some(&count), "{:?} {:?}", account.codes, account.broken);
    account.apps
}

fn app(answer: &Response) -> String {
    answer.header("X-App").unwrap_or_else(|| panic!("no application answered: {answer:?}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_set_the_share_of_each_instance() {
    let system = one_worker("weights").await;
    let _apps = serve(&system, "app.test", 3, |apps| {
        json!({"v": 1, "weights": {apps[0].address.to_string(): 3, apps[1].address.to_string(): 1,
            apps[2].address.to_string(): 0}})
    })
    .await;
    let seen = spread(&system, "app.test", 400).await;
    assert_eq!((seen.get("app-0"), seen.get("app-1"), seen.get("app-2")), (Some(&300), Some(&100), None));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unhealthy_instance_gets_no_requests_unless_most_are_unhealthy() {
    let system = one_worker("unhealthy").await;
    let apps =
        serve(&system, "app.test", 3, |apps| json!({"unhealthy": [apps[0].address.to_string()]})).await;
    assert_eq!(spread(&system, "app.test", 100).await.get("app-0"), None);
    let two = json!({"unhealthy": [apps[0].address.to_string(), apps[1].address.to_string()]});
    rule(&system, "app.test", &two).await;
    assert_eq!(
        spread(&system, "app.test", 90).await.len(),
        3,
        "rather all than one that has to carry everything"
    );
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p2c_avoids_an_instance_that_is_busy() {
    let system = one_worker("p2c").await;
    let apps = serve(&system, "app.test", 2, |_| json!({"balance": {"algorithm": "p2c"}})).await;
    // One request hangs at one of them; everything else then goes to the other.
    let mut held = Connection::open(system.edge).await.unwrap();
    held.write(&Request::get("app.test", "/hold").to_bytes()).await.unwrap();
    eventually("requests held", async || equal(apps[0].running() + apps[1].running(), 1)).await;
    let (busy, idle) = if apps[0].running() == 1 { (&apps[0], &apps[1]) } else { (&apps[1], &apps[0]) };
    for _ in 0..30 {
        assert_eq!(app(&system.get("app.test", "/").await), idle.name());
    }
    // After the request ends, its count is subtracted and the instance is chosen again.
    busy.release();
    eventually("both to answer", || async {
        let spread = spread(&system, "app.test", 40).await;
        if spread.len() == 2 { Ok(()) } else { Err(spread) }
    })
    .await;
    // Requests that the client aborts, and requests on reused connections, are also subtracted.
    let mut kept = Connection::open(system.edge).await.unwrap();
    for _ in 0..20 {
        assert_eq!(kept.send(&Request::get("app.test", "/")).await.unwrap().status, 200);
    }
    let under_way = async || {
        let metrics = system.metrics().await;
        metrics.into_iter().find(|(name, _)| name == "signalbox_edge_in_flight").map(|(_, count)| count)
    };
    let slow = App::start("slow").await;
    slow.set(Mode::Hang);
    system.route("slow.test", &slow).await;
    rule(&system, "slow.test", &json!({"balance": {"algorithm": "p2c"}})).await;
    let mut away = Connection::open(system.edge).await.unwrap();
    away.write(&Request::get("slow.test", "/").to_bytes()).await.unwrap();
    eventually("requests under way", async || equal(under_way().await, Some(1.0))).await;
    drop(away);
    eventually("requests under way", async || equal(under_way().await, Some(0.0))).await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hash_brings_a_key_to_the_same_instance_at_every_worker() {
    let system = System::edge_only("hash").await;
    let mut apps =
        serve(&system, "app.test", 4, |_| json!({"balance": {"algorithm": "hash", "header": "X-User"}}))
            .await;
    let ask = async |user: u32| {
        let request = Request::get("app.test", "/").header("X-User", &format!("user-{user}"));
        app(&request.send(system.edge).await.unwrap())
    };
    let mut homes = BTreeMap::new();
    for user in 0..40 {
        let home = ask(user).await;
        for _ in 0..3 {
            assert_eq!(ask(user).await, home, "user {user}");
        }
        homes.insert(user, home);
    }
    assert_eq!(homes.values().collect::<std::collections::BTreeSet<_>>().len(), 4, "{homes:?}");
    // One instance leaves: only its users move.
    let gone = apps.remove(0);
    system.cli::<()>(System::PRIMARY, &format!("SREM instances:app.test {}", gone.address)).await;
    system.settle().await;
    for (user, home) in &homes {
        let now = ask(*user).await;
        assert!(now == *home || home == gone.name(), "user {user} moved from {home} to {now}");
    }
    // By cookie, and by address: one client is one address.
    rule(&system, "app.test", &json!({"balance": {"algorithm": "hash", "cookie": "sid"}})).await;
    let by_cookie = async |value: &str| {
        let request = Request::get("app.test", "/").header("Cookie", &format!("a=b; sid={value}"));
        app(&request.send(system.edge).await.unwrap())
    };
    assert_eq!(by_cookie("one").await, by_cookie("one").await);
    rule(&system, "app.test", &json!({"balance": {"algorithm": "hash", "address": true}})).await;
    assert_eq!(spread(&system, "app.test", 20).await.len(), 1);
    system.stop().await;
}

/// Four instances, of which the last is a canary.
fn canary(apps: &[App], more: Value) -> Value {
    let mut policy = json!({
        "log_keys": {apps[3].address.to_string(): "18"},
        "shares": [{"version_type": "17", "percent": 80}, {"version_type": "18", "percent": 20}],
    });
    policy.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    policy
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_gets_its_share_and_its_requests_are_counted_as_its_own() {
    let system = one_worker("canary").await;
    system.cli::<()>(System::PRIMARY, "SET logkey:app.test 17").await;
    let apps = serve(&system, "app.test", 4, |apps| {
        canary(apps, json!({"shares_by": {"header": "X-Version", "cookie": "version"}}))
    })
    .await;
    let seen = spread(&system, "app.test", 1000).await;
    // Chance: six standard deviations of 1000 draws at a fifth are 76.
    let canaries = seen.get("app-3").copied().unwrap_or(0);
    assert!((124..=276).contains(&canaries), "{seen:?}");
    let lines = system.log_lines_when(1000).await;
    for line in &lines {
        let is_canary = line["upstream_addr"].as_str().unwrap().ends_with(&apps[3].address.to_string());
        assert_eq!(line["key"], if is_canary { "18" } else { "17" }, "{line}");
    }
    // A request that names a version type gets it, if the version type has an instance.
    for (header, value, canary) in [
        ("X-Version", "18", true),
        ("X-Version", "17", false),
        ("Cookie", "version=18", true),
        ("Cookie", "version=17", false),
    ] {
        for _ in 0..10 {
            let answer = Request::get("app.test", "/").header(header, value).send(system.edge).await.unwrap();
            assert_eq!(app(&answer) == "app-3", canary, "{header}: {value}");
        }
    }
    let stranger = Request::get("app.test", "/").header("X-Version", "99");
    assert_eq!(stranger.send(system.edge).await.unwrap().status, 200);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_retried_on_another_version_is_counted_there() {
    let system = one_worker("canary-retry").await;
    system.cli::<()>(System::PRIMARY, "SET logkey:app.test 17").await;
    let mut apps = serve(&system, "app.test", 4, |apps| {
        canary(apps, json!({"shares_by": {"header": "X-Version"}, "ejection": false}))
    })
    .await;
    system.allow("connect() failed");
    apps[3].kill().await;
    // The first is a miss and goes through @full, the second is served on the hot path.
    for round in 1..=2 {
        let request = Request::get("app.test", "/").header("X-Version", "18");
        assert_eq!(request.send(system.edge).await.unwrap().status, 200);
        let line = &system.log_lines_when(round).await[round - 1];
        assert_eq!(line["key"], "17", "{line}");
        assert!(line["upstream_addr"].as_str().unwrap().contains(&apps[3].address.to_string()), "{line}");
    }
    system.stop().await;
}

/// `name=value` of the first cookie that an answer sets.
fn cookie_of(answer: &Response) -> Option<String> {
    answer.header("Set-Cookie").map(|line| line.split(';').next().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_stays_where_it_is_and_moves_when_its_instance_is_gone() {
    let system = System::edge_only("sticky").await;
    let mut apps =
        serve(&system, "app.test", 3, |_| json!({"sticky": {"cookie": "stay", "ttl_seconds": 600}})).await;
    let first = system.get("app.test", "/").await;
    let set = first.header("Set-Cookie").unwrap().to_owned();
    assert!(set.contains("HttpOnly") && set.contains("Max-Age=600") && set.contains("SameSite=Lax"), "{set}");
    let (cookie, home) = (cookie_of(&first).unwrap(), app(&first));
    let at = apps.iter().position(|one| one.name() == home).unwrap();
    for part in apps[at].address.to_string().split([':', '.']).filter(|part| part.len() > 1) {
        assert!(!cookie.contains(part), "{cookie} reveals {}", apps[at].address);
    }
    let ask = async |cookie: &str| {
        Request::get("app.test", "/").header("Cookie", cookie).send(system.edge).await.unwrap()
    };
    for _ in 0..20 {
        let answer = ask(&cookie).await;
        assert_eq!((app(&answer), cookie_of(&answer)), (home.clone(), None), "it has its cookie");
    }
    // A cookie that was made up is as good as none.
    let forged = ask("stay=AAAAAAAA.AAAAAAAAAAAAAAAA").await;
    assert_ne!(cookie_of(&forged), None);
    // While an instance drains it keeps its sessions and gets no new ones.
    let drain = json!({"sticky": {"cookie": "stay"}, "draining": [apps[at].address.to_string()]});
    rule(&system, "app.test", &drain).await;
    assert_eq!(app(&ask(&cookie).await), home);
    assert_eq!(spread(&system, "app.test", 30).await.get(&home), None);
    // Gone: another one, and a new cookie for it.
    rule(&system, "app.test", &json!({"sticky": {"cookie": "stay"}})).await;
    system.allow("connect() failed");
    apps[at].kill().await;
    let moved = ask(&cookie).await;
    assert_ne!(app(&moved), home);
    let new = cookie_of(&moved).expect("a new cookie for the new instance");
    assert_eq!(app(&ask(&new).await), app(&moved));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_outlive_a_restart_of_nginx_and_hold_at_every_worker() {
    let system = System::edge_only("sticky-restart").await;
    let _apps = serve(&system, "app.test", 4, |_| json!({"sticky": {"cookie": "stay"}})).await;
    let first = system.get("app.test", "/").await;
    let (cookie, home) = (cookie_of(&first).unwrap(), app(&first));
    let stays = async || {
        for _ in 0..10 {
            let request = Request::get("app.test", "/").header("Cookie", &cookie);
            assert_eq!(app(&request.send(system.edge).await.unwrap()), home);
        }
    };
    stays().await;
    system.restart(System::NGINX).await;
    stays().await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_joined_recently_starts_slowly() {
    let system = one_worker("slow-start").await;
    let now: Vec<i64> = system.cli(System::PRIMARY, "TIME").await;
    let _apps = serve(
        &system,
        "app.test",
        2,
        |apps| json!({"joined": {apps[0].address.to_string(): now[0] * 1000}, "slow_start_ms": 3_600_000}),
    )
    .await;
    let seen = spread(&system, "app.test", 220).await;
    assert!((15..=30).contains(&seen["app-0"]), "a tenth of what the other gets: {seen:?}");
    system.stop().await;
}

/// As above, by registration alone: only the pacemaker knows when an instance was added.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_registered_later_starts_slowly() {
    let system = System::with("slow-start-registered", |builder| builder.workers(1)).await;
    let (old, new) = (App::start("old").await, App::start("new").await);
    let put = async |policy: Value| {
        let answer = system.api("PUT", "/hosts/app.test?wait=20s", Some(policy)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    for wrong in [json!(-1), json!(0), json!(3_600_001), json!("soon")] {
        let refused = system.api("PUT", "/hosts/app.test", Some(json!({"slow_start_ms": wrong}))).await;
        assert_eq!(refused.status, 422, "{wrong}: {}", refused.text());
    }
    // An hour, so that no clock decides this test.
    put(json!({"slow_start_ms": 3_600_000})).await;
    system.register("old", &old, "app.test", "17").await;
    // It has been there for long.
    system.cli::<i64>(System::PRIMARY, "HSET instance:old joined_ms 1").await;
    system.register("new", &new, "app.test", "17").await;
    let explained = system.api("GET", "/routes/explain?host=app.test", None).await.json();
    let slow = |id: &str| {
        let instances = explained["instances"].as_array().unwrap().iter();
        instances.clone().find(|one| one["id"] == id).unwrap()["slow_start"].clone()
    };
    assert_eq!((slow("new"), slow("old")), (json!(0.1), Value::Null), "{explained}");
    let seen = spread(&system, "app.test", 220).await;
    assert!((15..=30).contains(&seen["new"]), "a tenth of what the other gets: {seen:?}");
    // A repeated registration does not restart it. Without the rule, the instance is treated like
    // the others.
    system.register("new", &new, "app.test", "17").await;
    put(json!({"balance": {"algorithm": "round_robin"}})).await;
    let seen = spread(&system, "app.test", 100).await;
    assert_eq!((seen["old"], seen["new"]), (50, 50));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_policy_routes_by_the_instance_set_alone() {
    let system = one_worker("nonsense").await;
    let apps = serve(&system, "app.test", 2, |_| json!({})).await;
    for policy in [
        r#"{"weights":[1,{"a":2}],"balance":"p2c","shares":[{"percent":"x"}],"sticky":7}"#,
        r#"{"balance":{"algorithm":"hash"},"retries":{"attempts":-3},"ejection":"yes","hold_ms":1e99}"#,
        r#"{"log_keys":{"x":[]},"joined":{"127.0.0.1:1":"soon"},"slow_start_ms":{},"limits":[[[]]]}"#,
        "[1,2,3]",
        "{{{{",
    ] {
        system.cli::<()>(System::PRIMARY, &format!("SET policy:app.test {policy}")).await;
        system.settle().await;
        let seen = spread(&system, "app.test", 20).await;
        assert_eq!(seen.values().collect::<Vec<_>>(), [&10, &10], "{policy}");
    }
    assert!(
        system.log_text(&System::NGINX).contains("the policy of app.test"),
        "the invalid policy was not logged"
    );
    drop(apps);
    system.stop().await;
}
