//! A host has one state, which every page, command and answer shows: what its requests get now.

use serde_json::{Value, json};
use signalbox_testkit::{PATIENCE, eventually, eventually_within};
use signalbox_tests::{
    http::Request,
    system::System,
    upstream::{App, Mode},
};

use super::command::type_in;

const HOST: &str = "shop.test";

async fn call(system: &System, method: &str, target: &str, body: Option<Value>) -> Value {
    let answer = system.api(method, target, body).await;
    assert!(answer.status < 300, "{method} {target}: {} {}", answer.status, answer.text());
    if answer.status == 204 { Value::Null } else { answer.json() }
}

/// Waits until everything that describes the host contains `short` or `sentence`.
async fn all_show(system: &System, condition: &str, short: &str, sentence: &str) {
    eventually_within(2 * PATIENCE, &format!("everything to show {sentence:?}"), || async {
        let host = call(system, "GET", &format!("/hosts/{HOST}"), None).await;
        let listed = call(system, "GET", "/hosts", None).await;
        let listed =
            listed["hosts"].as_array().and_then(|all| all.iter().find(|one| one["hostname"] == HOST));
        let explained = call(system, "GET", &format!("/routes/explain?host={HOST}"), None).await;
        let said =
            async |words: &str| type_in(system, &words.split(' ').collect::<Vec<_>>()).await.done().out;
        let page = async |address: &str| system.api("GET", address, None).await.text();
        let all = [
            ("GET /hosts/{host}", host["state"].to_string(), sentence),
            ("GET /hosts", listed.map(|one| one["state"].to_string()).unwrap_or_default(), sentence),
            ("GET /routes/explain", explained["state"].to_string(), sentence),
            ("hosts list", said("hosts list").await, short),
            ("hosts show", said(&format!("hosts show {HOST}")).await, sentence),
            ("routes explain", said(&format!("routes explain {HOST}")).await, sentence),
            ("the page", page(&format!("/dashboard/host?name={HOST}")).await, sentence),
            ("the list", page("/dashboard/host").await, short),
            ("the overview", page("/").await, short),
        ];
        let wrong: Vec<_> = all.iter().filter(|(_, text, wanted)| !text.contains(wanted)).collect();
        if !wrong.is_empty() {
            return Err(format!("{wrong:?}"));
        }
        if host["state"]["condition"] == condition { Ok(()) } else { Err(host["state"].to_string()) }
    })
    .await;
}

/// The kinds of problems that the page and the command report.
async fn problems(system: &System) -> Vec<String> {
    let said = type_in(system, &["doctor", "--skip-log", "--json"]).await.out;
    let said: Value = serde_json::from_str(&said).unwrap_or_default();
    let found = said["findings"].as_array().cloned().unwrap_or_default().into_iter();
    let mut kinds: Vec<String> = found.filter_map(|one| Some(one["id"].as_str()?.to_owned())).collect();
    let page = system.api("GET", "/dashboard/problems", None).await.text();
    let shown = page.split("data-finding=\"").skip(1).filter_map(|rest| rest.split('"').next());
    kinds.extend(shown.map(ToOwned::to_owned));
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

async fn send(system: &System, times: usize, status: u16) {
    for _ in 0..times {
        let answer = Request::get(HOST, "/").send(system.edge).await.expect("an answer");
        assert_eq!(answer.status, status, "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_mode_is_shown_everywhere_and_raises_no_alarm() {
    let system = System::start("host-modes").await;
    let app = App::start("app").await;
    let health =
        json!({"path": "/status/500", "interval_seconds": 1, "timeout_ms": 500, "unhealthy_after": 1});
    system.register("one", &app, HOST, "7").await;
    system.until_answered_by(HOST, &app).await;
    all_show(&system, "healthy", "healthy", "Requests are routed to an instance.").await;

    let policy = json!({"maintenance": {"status": 503, "since_ms": 1, "by": "forged"}});
    call(&system, "PUT", &format!("/hosts/{HOST}?wait=20s"), Some(policy.clone())).await;
    system.until_status(HOST, 503).await;
    let first = call(&system, "GET", &format!("/hosts/{HOST}"), None).await["rules"]["maintenance"].clone();
    assert!(first["by"] == "root" && first["since_ms"].as_u64() > Some(1_700_000_000_000), "{first}");
    all_show(&system, "maintenance", "maintenance", " UTC by root: the edge answers with 503.").await;
    // Another change does not begin it again, and a repeat changes nothing.
    let deploy = system.token("deploy", &["routes"]).await;
    let changed = json!({"maintenance": {"status": 503}, "hold_ms": 5});
    let put = Request::new("PUT", &system.admin.to_string(), &format!("/hosts/{HOST}"));
    let put = put.token(&deploy).json(&changed).send(system.admin).await.unwrap();
    assert_eq!(put.status, 200, "{}", put.text());
    let again = call(&system, "PUT", &format!("/hosts/{HOST}"), Some(changed)).await;
    assert_eq!((&again["changed"], &again["rules"]["maintenance"]), (&json!(false), &first));

    // Requests and instances of a closed host are no problem.
    let body = json!({"address": app.address.to_string(), "hostnames": [HOST], "version_type_id": "7", "health": health});
    call(&system, "PUT", "/instances/one", Some(body)).await;
    send(&system, 60, 503).await;
    eventually("the requests to be counted", || async {
        let totals = call(&system, "GET", "/stats/version_type/7", None).await;
        if totals["edge_5xx"].as_u64() >= Some(60) { Ok(()) } else { Err(totals.to_string()) }
    })
    .await;
    eventually("the instance to be unhealthy", || async {
        let one = call(&system, "GET", "/instances/one", None).await;
        if one["healthy"] == false { Ok(()) } else { Err(one.to_string()) }
    })
    .await;
    let found = problems(&system).await;
    let raised =
        found.iter().any(|id| ["server-errors", "host-unhealthy", "instance-unhealthy"].contains(&&**id));
    assert!(!raised, "{found:?}");

    let moved = json!({"redirect": {"to": "https://elsewhere.test"}});
    call(&system, "PUT", &format!("/hosts/{HOST}"), Some(moved)).await;
    all_show(&system, "redirects", "redirects", "Redirects to https://elsewhere.test.").await;
    call(&system, "PUT", &format!("/hosts/{HOST}"), Some(json!({}))).await;
    call(&system, "PUT", &format!("/hosts/{HOST}/pause"), Some(json!({}))).await;
    all_show(
        &system,
        "paused",
        "paused",
        " UTC by root: requests wait for up to 30 s until the host is resumed.",
    )
    .await;
    call(&system, "DELETE", &format!("/hosts/{HOST}/pause"), None).await;
    all_show(&system, "unhealthy", "unhealthy", "No instance is healthy").await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_and_ejections_are_shown_with_the_host() {
    let system = System::start("host-failing").await;
    let (good, bad) = (App::start("good").await, App::start("bad").await);
    system.register("good", &good, HOST, "7").await;
    system.register("bad", &bad, HOST, "7").await;
    let policy = json!({"ejection": {"first_ms": 60_000, "longest_ms": 60_000, "failures": 1}});
    call(&system, "PUT", &format!("/hosts/{HOST}?wait=20s"), Some(policy)).await;
    system.until_answered_by(HOST, &good).await;
    system.until_answered_by(HOST, &bad).await;
    bad.set(Mode::Status(503));
    eventually("the instance to be ejected", || async {
        let _answer = Request::get(HOST, "/").send(system.edge).await;
        let status = system.edge_api("/edge/status").await.json();
        let found = status["ejected"].as_object().cloned().unwrap_or_default();
        if found.contains_key(&bad.address.to_string()) { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    all_show(
        &system,
        "ejected",
        "1 of 2 ejected",
        "1 of 2 instances is ejected, because requests to them failed.",
    )
    .await;
    assert!(problems(&system).await.iter().any(|id| id == "instances-ejected"));

    good.set(Mode::Status(500));
    send(&system, 60, 500).await;
    let sentence = " requests/s failed in the last minute. 1 of 2 instances is ejected.";
    all_show(&system, "failing", "% failed", sentence).await;
    assert!(problems(&system).await.iter().any(|id| id == "server-errors"));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_serves_paths_only_is_no_problem_and_a_service_without_instances_is() {
    let system = System::start("host-paths").await;
    let app = App::start("app").await;
    system.register("api", &app, "api.test", "7").await;
    let rules = |path: &str, service: &str| json!({"paths": [{"path": path, "service": service}]});
    let set = format!("/hosts/{HOST}?wait=20s");
    call(&system, "PUT", &set, Some(rules("/api", "api.test"))).await;
    let sentence = "Requests for other paths than those of 1 path rule are answered with 503";
    all_show(&system, "paths_only", "paths only", sentence).await;
    assert!(!problems(&system).await.contains(&"host-without-instance".to_owned()));
    call(&system, "PUT", &set, Some(rules("/", "api.test"))).await;
    all_show(&system, "healthy", "healthy", "Requests are routed to an instance of api.test.").await;
    // Instances of the host itself get nothing.
    let own = App::start("own").await;
    system.register("own", &own, HOST, "8").await;
    call(&system, "PUT", &set, Some(rules("/", "empty.test"))).await;
    let sentence = "Requests are answered with 503: no instance of empty.test can receive them.";
    all_show(&system, "no_instance", "no instance of empty.test", sentence).await;
    send(&system, 1, 503).await;
    assert!(problems(&system).await.contains(&"host-without-instance".to_owned()));
    let both =
        json!({"paths": [{"path": "/", "service": "api.test"}, {"path": "/x", "service": "empty.test"}]});
    call(&system, "PUT", &set, Some(both)).await;
    let sentence = "Requests are routed to an instance of api.test. Paths that are routed to empty.test return 503: \
                    it has no active instance.";
    all_show(&system, "rule_without_instance", "rule without instance", sentence).await;
    assert!(problems(&system).await.contains(&"rule-without-instance".to_owned()));
    // A host that has lost its instances is not meant to do without.
    call(&system, "PUT", &set, Some(rules("/api", "api.test"))).await;
    call(&system, "DELETE", "/instances/own?wait=20s", None).await;
    let sentence = "Requests for other paths than those of 1 path rule are answered with 503: no instance can receive them.";
    all_show(&system, "no_instance", "no instance", sentence).await;
    assert!(problems(&system).await.contains(&"host-without-instance".to_owned()));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_not_healthy_while_its_requests_are_not_known() {
    let system = System::start("host-unknown").await;
    let app = App::start("app").await;
    system.register("one", &app, HOST, "7").await;
    system.until_answered_by(HOST, &app).await;
    system.kill(System::STATS).await;
    for target in [format!("/hosts/{HOST}"), format!("/routes/explain?host={HOST}")] {
        eventually("the state to be unknown", || async {
            let state = call(&system, "GET", &target, None).await["state"].clone();
            let is_honest = state["summary"].as_str().is_some_and(|text| text.contains("is not known"));
            if state["condition"] == "unknown" && is_honest { Ok(()) } else { Err(state.to_string()) }
        })
        .await;
    }
    system.start_part(System::STATS).await;
    system.stop().await;
}
