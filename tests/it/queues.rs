//! Queues over HTTP, against real pacemakers.

use std::{collections::BTreeSet, net::SocketAddr, sync::Mutex};

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::http::moment;
use signalbox_tests::{
    http::{Request, Response},
    system::System,
};

mod messages;
mod rejected;

fn address(url: &str) -> SocketAddr {
    url.trim_start_matches("http://").parse().unwrap()
}

async fn call(system: &System, token: &str, method: &str, target: &str, body: Option<&Value>) -> Response {
    let request = Request::new(method, &system.pacemaker.to_string(), target).token(token);
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    request.send(system.pacemaker).await.unwrap_or_else(|error| panic!("{method} {target}: {error}"))
}

async fn ok(system: &System, to: SocketAddr, method: &str, target: &str, body: Option<Value>) -> Value {
    let answer = system.api_at(to, method, target, body).await;
    assert!((200..300).contains(&answer.status), "{method} {target}: {} {}", answer.status, answer.text());
    if answer.text().is_empty() { Value::Null } else { answer.json() }
}

async fn put(system: &System, name: &str, definition: Value) {
    ok(system, system.pacemaker, "PUT", &format!("/queues/{name}"), Some(definition)).await;
}

fn message(tenant: &str, payload: &str) -> Value {
    json!({"tenant": tenant, "type": "email_event", "name": "opened", "payload": payload})
}

fn payloads(pulled: &Value) -> Vec<String> {
    let messages = pulled["messages"].as_array().unwrap_or_else(|| panic!("{pulled}"));
    messages.iter().map(|message| message["payload"].as_str().unwrap().to_owned()).collect()
}

fn receipts(pulled: &Value) -> Vec<String> {
    let messages = pulled["messages"].as_array().unwrap();
    messages.iter().map(|message| message["receipt"].as_str().unwrap().to_owned()).collect()
}

async fn pull(system: &System, name: &str, body: Value) -> Value {
    ok(system, system.pacemaker, "POST", &format!("/queues/{name}/pull"), Some(body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_life_cycle_of_a_queue() {
    let system = System::start("queues").await;
    let at = system.pacemaker;
    let definition = json!({"pattern": ".*:email_event:.*", "lease_seconds": 60, "max_attempts": 2});
    let made = system.api_at(at, "PUT", "/queues/email", Some(definition.clone())).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let again = system.api_at(at, "PUT", "/queues/email", Some(definition)).await;
    assert_eq!((again.status, again.json()["lease_seconds"].as_f64()), (200, Some(60.0)));

    let messages = json!([message("1", "a"), message("1", "b"), message("2", "c"),
        {"tenant": "1", "type": "page", "name": "viewed"}]);
    let ids = ok(&system, at, "POST", "/messages", Some(messages)).await;
    assert!(ids.as_array().unwrap().iter().all(|one| one["status"] == 200), "{ids}");
    let alone = ok(&system, at, "POST", "/messages", Some(message("2", "d"))).await;
    assert!(alone["id"].as_u64() > ids[3]["id"].as_u64());

    let tenants = ok(&system, at, "GET", "/queues/email/tenants", None).await;
    let row = |n: usize| &tenants["tenants"][n];
    assert_eq!(
        (&row(0)["tenant"], &row(0)["waiting"], &row(0)["weight"]),
        (&json!("1"), &json!(2), &json!(1))
    );
    assert!(row(1)["oldest_age_ms"].is_u64() && tenants["next"].is_null(), "{tenants}");
    let peeked = ok(&system, at, "POST", "/queues/email/peek", Some(json!({}))).await;
    assert_eq!(payloads(&peeked), ["a", "c"]);

    // By way of the admin listener, as the documentation has it.
    let pulled = ok(&system, system.admin, "POST", "/queues/email/pull", Some(json!({"max": 3}))).await;
    assert_eq!(payloads(&pulled), ["a", "c", "b"]);
    let first = &pulled["messages"][0];
    assert_eq!(
        (&first["tenant"], &first["type"], &first["name"]),
        (&json!("1"), &json!("email_event"), &json!("opened"))
    );
    assert_eq!((&first["attempt"], &first["id"]), (&json!(1), &ids[0]["id"]));
    let receipts = receipts(&pulled);
    let acked =
        ok(&system, at, "POST", "/queues/email/ack", Some(json!({"receipts": [receipts[0], "nonsense"]})))
            .await;
    assert_eq!(acked["results"][0]["result"], "acked");
    assert_eq!(acked["results"][1]["code"], "invalid_receipt");
    let extended = ok(
        &system,
        at,
        "POST",
        "/queues/email/extend",
        Some(json!({"receipts": [receipts[1]], "lease_seconds": 600})),
    )
    .await;
    assert!(moment(&extended["results"][0]["lease_until"]) > moment(&first["lease_until"]), "{extended}");
    let back = ok(&system, at, "POST", "/queues/email/nack", Some(json!({"receipts": [receipts[2]]}))).await;
    assert_eq!(back["results"][0]["result"], "back");
    let again = pull(&system, "email", json!({})).await;
    assert_eq!(payloads(&again), ["d", "b"]);
    assert_eq!(again["messages"][1]["attempt"], 2);

    // The second time it is a dead letter.
    let receipt = again["messages"][1]["receipt"].as_str().unwrap();
    let dead = ok(
        &system,
        at,
        "POST",
        "/queues/email/nack",
        Some(json!({"receipts": [receipt], "delay_seconds": 5})),
    )
    .await;
    assert_eq!(dead["results"][0]["result"], "dead");
    let letters = ok(&system, at, "GET", "/queues/email/dead", None).await;
    assert_eq!(
        (&letters["dead"][0]["reason"], &letters["dead"][0]["message"]["payload"]),
        (&json!("nacked"), &json!("b"))
    );
    assert_eq!(ok(&system, at, "POST", "/queues/email/dead/redrive", None).await["messages"], 1);
    let redriven = pull(&system, "email", json!({"auto_ack": true})).await;
    assert_eq!(payloads(&redriven), ["b"]);
    assert!(redriven["messages"][0]["receipt"].is_null(), "{redriven}");
    let empty = pull(&system, "email", json!({})).await;
    assert!(empty["messages"].as_array().unwrap().is_empty() && empty["next_due_in_ms"].is_u64(), "{empty}");

    let metrics = system.api_at(at, "GET", "/metrics", None).await.text();
    for line in [
        r#"signalbox_queues_messages{queue="email",state="in_flight"} 2"#,
        r#"signalbox_queues_settled_messages_total{queue="email",result="acked"} 1"#,
        r#"signalbox_queues_dwell_seconds_count{queue="email",tenant="quiet"} 5"#,
        r#"signalbox_queues_moved_messages_total{queue="email",state="redriven"} 1"#,
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }
    let shown = ok(&system, at, "GET", "/queues", None).await;
    assert_eq!(shown["queues"][0]["messages"]["in_flight"], 2, "{shown}");
    assert_eq!(system.api_at(at, "DELETE", "/queues/email", None).await.status, 204);
    assert_eq!(system.api_at(at, "DELETE", "/queues/email", None).await.status, 404);
    assert_eq!(system.api_at(at, "POST", "/queues/email/pull", None).await.status, 404);
    let left: Vec<String> = system.cli(System::FABRIC, "KEYS queue:*").await;
    assert_eq!(left, ["queue:|acked"], "receipts of all queues, for some minutes");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_pacemakers_share_a_queue_and_lose_no_message() {
    let system = System::start("queues-two").await;
    let second = system.stack.add_pacemaker().await.unwrap();
    let (one, two) = (system.pacemaker, address(second.address()));
    // A publish by way of the other, right after a queue was confirmed, is in the queue.
    for round in 0..20 {
        let (name, text) = (format!("q{round}"), round.to_string());
        put(&system, &name, json!({"pattern": format!("{round}:.*")})).await;
        ok(&system, two, "POST", "/messages", Some(message(&text, &text))).await;
        let pulled = ok(&system, two, "POST", &format!("/queues/{name}/pull"), Some(json!({}))).await;
        assert_eq!(payloads(&pulled), [text]);
        assert_eq!(system.api_at(one, "DELETE", &format!("/queues/{name}"), None).await.status, 204);
        assert_eq!(system.api_at(two, "GET", &format!("/queues/{name}/tenants"), None).await.status, 404);
    }

    // A publication wakes waiting consumers of both pacemakers.
    put(&system, "q", json!({"pattern": ".*", "lease_seconds": 1})).await;
    let wait = |to: SocketAddr| {
        let token = system.token.clone();
        let request = Request::new("POST", "localhost", "/queues/q/pull").token(&token);
        let request = request.json(&json!({"max": 1, "wait_seconds": 30}));
        tokio::spawn(async move { request.send(to).await })
    };
    let waiting = async |to: SocketAddr| {
        eventually("a pull to wait", || async {
            let text = system.api_at(to, "GET", "/metrics", None).await.text();
            let line = text.lines().find(|line| line.starts_with("signalbox_queues_waiting_pulls"));
            if line == Some("signalbox_queues_waiting_pulls 1") { Ok(()) } else { Err(format!("{line:?}")) }
        })
        .await;
    };
    let pulls = [wait(one), wait(two)];
    waiting(one).await;
    waiting(two).await;
    ok(&system, one, "POST", "/messages", Some(json!([message("1", "a"), message("2", "b")]))).await;
    let mut got = BTreeSet::new();
    for pull in pulls {
        got.extend(payloads(&pull.await.unwrap().unwrap().json()));
    }
    assert_eq!(got, BTreeSet::from(["a".to_owned(), "b".to_owned()]));

    // Messages leased to dead consumers are redelivered: they never acknowledge, and one pacemaker
    // is killed.
    let dying = wait(two);
    waiting(two).await;
    second.kill().await.unwrap();
    let _ = dying.await;
    ok(&system, one, "POST", "/messages", Some(message("3", "c"))).await;
    let again = Mutex::new(BTreeSet::new());
    eventually("every message to be redelivered", || async {
        let pulled = pull(&system, "q", json!({"max": 10, "wait_seconds": 5})).await;
        let mut again = again.lock().unwrap();
        again.extend(payloads(&pulled));
        if again.len() == 3 { Ok(()) } else { Err(format!("{again:?}")) }
    })
    .await;
    system.stop().await;
}

/// A service registers its queue at every start; an operator has paused a tenant in the meantime.
#[tokio::test(flavor = "multi_thread")]
async fn settings_of_a_tenant_survive_a_new_definition_and_concurrent_changes_do_not_overwrite_each_other() {
    let system = System::start("queues-tenants").await;
    let at = system.pacemaker;
    put(&system, "q", json!({"pattern": ".*", "weights": {"1": 3}})).await;
    let tenant = ok(&system, at, "PATCH", "/queues/q/tenants/2", Some(json!({"paused": true}))).await;
    assert_eq!((&tenant["paused"], &tenant["weight"]), (&json!(true), &json!(1)), "{tenant}");
    let limits = json!({"weight": 2, "in_flight_limit": 1, "rate_per_second": 0.5});
    ok(&system, at, "PUT", "/queues/q/tenants/3", Some(limits)).await;
    put(&system, "q", json!({"pattern": ".*:email_event:.*"})).await;
    let queue = ok(&system, at, "GET", "/queues/q", None).await;
    assert_eq!(queue["weights"], json!({"1": 3, "3": 2}), "{queue}");
    assert_eq!(queue["tenants"]["2"], json!({"paused": true}), "{queue}");
    assert_eq!(queue["tenants"]["3"]["rate_per_second"], 0.5, "{queue}");
    ok(&system, at, "POST", "/messages", Some(json!([message("2", "paused"), message("1", "a")]))).await;
    assert_eq!(payloads(&pull(&system, "q", json!({"auto_ack": true})).await), ["a"]);

    // Two operators read the same definition: the second change is rejected, and changes nothing.
    let read = system.api_at(at, "GET", "/queues/q", None).await;
    let tag = read.header("ETag").unwrap().to_owned();
    let change = async |tag: &str, body: Value| {
        let request = Request::new("PATCH", &at.to_string(), "/queues/q").token(&system.token);
        request.header("If-Match", tag).json(&body).send(at).await.unwrap()
    };
    assert_eq!(change(&tag, json!({"lease_seconds": 7, "weights": {"1": null}})).await.status, 200);
    let late = change(&tag, json!({"max_attempts": 1})).await;
    assert_eq!((late.status, late.json()["code"].as_str()), (412, Some("queue_changed")), "{}", late.text());
    let queue = ok(&system, at, "GET", "/queues/q", None).await;
    assert_eq!((&queue["lease_seconds"], &queue["max_attempts"]), (&json!(7.0), &json!(20)), "{queue}");
    assert_eq!((&queue["weights"], &queue["revision"]), (&json!({"3": 2}), &late.json()["revision"]));
    let new = Request::new("PUT", &at.to_string(), "/queues/q").token(&system.token);
    let new = new.header("If-None-Match", "*").json(&json!({"pattern": ".*"})).send(at).await.unwrap();
    assert_eq!(new.status, 412, "{}", new.text());

    ok(&system, at, "PATCH", "/queues/q/tenants/2", Some(json!({"paused": false}))).await;
    assert_eq!(payloads(&pull(&system, "q", json!({})).await), ["paused"]);
    let unknown = system.api_at(at, "PATCH", "/queues/nobody/tenants/2", Some(json!({"paused": true}))).await;
    assert_eq!(unknown.status, 404);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_delayed_rejected_bounded_and_pulled_from_several_queues() {
    let system = System::start("queues-features").await;
    let at = system.pacemaker;
    put(&system, "mail", json!({"pattern": ".*:email_event:.*", "max_waiting_per_tenant": 2})).await;
    put(&system, "page", json!({"pattern": ".*:page:.*"})).await;
    let mut later = message("1", "later");
    later["delay_seconds"] = json!(1);
    ok(&system, at, "POST", "/messages", Some(later)).await;
    ok(&system, at, "POST", "/messages", Some(message("1", "a"))).await;
    let full = system.api_at(at, "POST", "/messages", Some(message("1", "b"))).await;
    assert_eq!((full.status, full.json()["code"].as_str()), (429, Some("queue_limit_reached")));
    assert!(full.header("Retry-After").is_some());
    let page = json!({"tenant": "1", "type": "page", "name": "viewed", "payload": "p"});
    ok(&system, at, "POST", "/messages", Some(page)).await;

    let several =
        json!({"queues": [{"name": "mail", "weight": 2}, {"name": "page"}], "max": 10, "lease_seconds": 600});
    let pulled = ok(&system, at, "POST", "/messages/pull", Some(several)).await;
    let mut found: Vec<(String, String)> = pulled["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["queue"].as_str().unwrap().into(), one["payload"].as_str().unwrap().into()))
        .collect();
    found.sort();
    assert_eq!(found, [("mail".to_owned(), "a".to_owned()), ("page".to_owned(), "p".to_owned())]);
    let unknown = json!({"queues": [{"name": "mail"}, {"name": "nobody"}]});
    let unknown = system.api_at(at, "POST", "/messages/pull", Some(unknown)).await;
    assert_eq!((unknown.status, unknown.json()["queue"].as_str()), (404, Some("nobody")));
    let twice = json!({"queues": [{"name": "mail"}, {"name": "mail"}]});
    assert_eq!(
        system.api_at(at, "POST", "/messages/pull", Some(twice)).await.json()["code"],
        "invalid_queues"
    );

    let mail = pulled["messages"].as_array().unwrap().iter().find(|one| one["queue"] == "mail").unwrap();
    let receipt = json!({"receipts": [mail["receipt"]]});
    let rejected = ok(&system, at, "POST", "/queues/mail/reject", Some(receipt)).await;
    assert_eq!(rejected["results"][0]["result"], "dead");
    let other = json!({"tenant": "2"});
    assert_eq!(ok(&system, at, "POST", "/queues/mail/dead/redrive", Some(other)).await["messages"], 0);
    let own = json!({"ids": [mail["id"]], "rate_per_second": 10});
    assert_eq!(ok(&system, at, "POST", "/queues/mail/dead/redrive", Some(own)).await["messages"], 1);
    assert_eq!(payloads(&pull(&system, "mail", json!({"auto_ack": true})).await), ["a"]);
    assert_eq!(payloads(&pull(&system, "mail", json!({"wait_seconds": 30})).await), ["later"]);

    ok(&system, at, "PATCH", "/queues/mail", Some(json!({"overflow": "drop_oldest"}))).await;
    let three = json!([message("3", "x"), message("3", "y"), message("3", "z")]);
    let ids = ok(&system, at, "POST", "/messages", Some(three)).await;
    let gaps = ok(&system, at, "GET", "/queues/mail/gaps", None).await;
    assert_eq!((&gaps["gaps"][0]["tenant"], &gaps["gaps"][0]["messages"]), (&json!("3"), &json!(1)));
    assert_eq!(gaps["gaps"][0]["first"], ids[0]["id"], "{gaps}");
    assert_eq!(payloads(&pull(&system, "mail", json!({"auto_ack": true})).await), ["y", "z"]);

    // A pull that waits learns that its queue is gone.
    let token = system.token.clone();
    let request = Request::new("POST", "localhost", "/queues/page/pull").token(&token);
    let request = request.json(&json!({"wait_seconds": 30}));
    let waiting = tokio::spawn(async move { request.send(at).await });
    eventually("a pull to wait", || async {
        let text = system.api_at(at, "GET", "/metrics", None).await.text();
        let line = text.lines().find(|line| line.starts_with("signalbox_queues_waiting_pulls"));
        if line == Some("signalbox_queues_waiting_pulls 1") { Ok(()) } else { Err(format!("{line:?}")) }
    })
    .await;
    assert_eq!(system.api_at(at, "DELETE", "/queues/page", None).await.status, 204);
    let ended = waiting.await.unwrap().unwrap();
    assert_eq!((ended.status, ended.json()["code"].as_str()), (404, Some("unknown_queue")));
    system.stop().await;
}
