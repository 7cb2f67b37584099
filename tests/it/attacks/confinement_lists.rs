//! A confined token looks for other tenants in what surrounds its own data: cursors, refusals, and rules of hosts above its own.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::{Request, Response},
    system::System,
    upstream::App,
};

use super::raw::Raw;

/// A name that only the other tenant has.
const THEIRS: &str = "secret-of-six";

async fn ask(system: &System, token: &str, method: &str, target: &str, body: Option<Value>) -> Response {
    let request = Request::new(method, &system.pacemaker.to_string(), target).token(token);
    let request = match body {
        Some(body) => request.json(&body),
        None => request,
    };
    request.send(system.pacemaker).await.unwrap()
}

async fn make(system: &System, method: &str, target: &str, body: Value) -> Value {
    let answer = system.api(method, target, Some(body)).await;
    assert!((200..300).contains(&answer.status), "{method} {target}: {}", answer.text());
    answer.json()
}

async fn token(system: &System, name: &str, new: Value) -> String {
    let mut new = new;
    new["name"] = json!(name);
    make(system, "POST", "/tokens", new).await["token"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_shows_nothing_of_other_tenants_and_is_of_no_use_to_others() {
    let system = System::start("attack-cursors").await;
    make(&system, "PUT", "/queues/all", json!({"pattern": ".*"})).await;
    // A message of the other tenant is between those of the own one.
    for (tenant, delay) in [("5", 1000), (THEIRS, 2000), ("5", 3000)] {
        let message = json!({"tenant": tenant, "type": "mail", "name": "x", "delay_seconds": delay});
        make(&system, "POST", "/messages", message).await;
    }
    let [mine, other] = [
        token(&system, "mine", json!({"scopes": ["queues"], "tenants": ["5"]})).await,
        token(&system, "other", json!({"scopes": ["queues"], "tenants": ["5"]})).await,
    ];
    let target = "/queues/all/messages?state=delayed&tenant=5&limit=1";
    let first = ask(&system, &mine, "GET", target, None).await.json();
    let cursor = first["next"].as_str().unwrap();
    let decoded = String::from_utf8_lossy(&URL_SAFE_NO_PAD.decode(cursor).unwrap()).into_owned();
    assert!(!decoded.contains(THEIRS), "{decoded}");
    let page = |cursor: &str| format!("{target}&cursor={cursor}");
    let second = ask(&system, &mine, "GET", &page(cursor), None).await.json();
    assert_eq!(second["messages"].as_array().map(Vec::len), Some(1), "{second}");
    assert_ne!(first["messages"][0]["message"]["id"], second["messages"][0]["message"]["id"]);
    // Root's cursor, one of another token, and one of another list are rejected.
    let whole = system.api("GET", "/queues/all/messages?state=delayed&limit=1", None).await.json();
    let made_up = URL_SAFE_NO_PAD.encode("\u{1}0:1:x");
    for (token, cursor) in [(&mine, whole["next"].as_str().unwrap()), (&other, cursor), (&mine, &*made_up)] {
        let refused = ask(&system, token, "GET", &page(cursor), None).await;
        assert_eq!((refused.status, &refused.json()["code"]), (422, &json!("invalid_cursor")), "{cursor}");
    }
    let host = token(&system, "host", json!({"scopes": ["routes"], "hosts": ["*.a.test"]})).await;
    for list in ["hosts", "instances", "certificates", "acme/names"] {
        let chosen = URL_SAFE_NO_PAD.encode("\u{1}a");
        let refused = ask(&system, &host, "GET", &format!("/{list}?cursor={chosen}"), None).await;
        assert_eq!((refused.status, &refused.json()["code"]), (422, &json!("invalid_cursor")), "{list}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_names_no_host_of_another_tenant() {
    let system = System::start("attack-refusals").await;
    let app = App::start("theirs").await;
    let instance = json!({"address": app.address.to_string(), "version_type_id": "1",
        "hostnames": [format!("{THEIRS}.test"), "x.a.test"]});
    make(&system, "PUT", "/instances/theirs?wait=20s", instance).await;
    let mine = token(&system, "mine", json!({"scopes": ["routes", "read"], "hosts": ["*.a.test"]})).await;
    let own = json!({"address": "127.0.0.1:9", "hostnames": ["x.a.test"], "version_type_id": "2"});
    for (method, target, body) in [
        ("GET", "/instances/theirs", None),
        ("GET", "/dashboard/instances?name=theirs", None),
        ("PUT", "/instances/theirs", Some(own)),
        ("DELETE", "/instances/theirs", None),
        ("POST", "/instances/theirs/heartbeat", None),
        ("POST", "/instances/theirs/drain", None),
        ("DELETE", "/instances/theirs/drain", None),
        ("POST", "/instances/theirs/errors", Some(json!({"message": "x"}))),
        ("POST", "/hosts/x.a.test/promote", Some(json!({"version_type_id": "1"}))),
        ("POST", "/hosts/x.a.test/promote/undo", Some(json!({"version_type_id": "1"}))),
    ] {
        let answer = ask(&system, &mine, method, target, body).await;
        assert_eq!(answer.status, 403, "{method} {target}: {}", answer.text());
        assert!(!answer.text().contains(THEIRS), "{method} {target}: {}", answer.text());
    }
    // The name that decides, and the rules for paths below it, are the other tenant's.
    let paths = json!({"paths": [{"path": "/", "service": format!("{THEIRS}.test")}]});
    make(&system, "PUT", "/hosts/*.test/paths?wait=20s", paths).await;
    let explained = ask(&system, &mine, "GET", "/routes/explain?host=y.a.test&path=/z", None).await;
    assert_eq!(explained.status, 200, "{}", explained.text());
    assert!(!explained.text().contains(THEIRS), "{}", explained.text());
    let whole = system.api("GET", "/routes/explain?host=y.a.test&path=/z", None).await;
    assert!(whole.text().contains(THEIRS), "{}", whole.text());
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forward_authentication_does_not_lead_back_to_the_edge_without_end() {
    let system = System::edge_only("attack-forward-loop").await;
    let hidden = Raw::forwarding(system.edge).await;
    system.cli::<()>(System::PRIMARY, &format!("SADD instances:loop.test {}", hidden.address)).await;
    let policy = r#"{"access":{"forward":{"service":"loop.test"}}}"#;
    system.cli::<()>(System::PRIMARY, &format!("SET policy:loop.test {policy}")).await;
    system.settle().await;
    let response = Request::get("loop.test", "/").send(system.edge).await.unwrap();
    assert_eq!((response.status, response.reason()), (503, "access_unavailable"), "{response:?}");
    assert!(hidden.connections() <= 2, "{} requests of the edge to itself", hidden.connections());
    // It is logged as a failed try, and not as an answer that an operator has decided.
    eventually("the line of the request", || async {
        let lines = system.log_lines();
        let is_failed = |line: &&Value| {
            line["code"] == 503 && line["upstream_response_time"] == "0.000" && line["upstream_status"] == "-"
        };
        lines.iter().find(is_failed).map(drop).ok_or(lines)
    })
    .await;
    system.stop().await;
}
