//! Single messages over HTTP: listed, shown, redriven and dropped.

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::system::System;

use super::{call, message, ok, payloads, pull, put, receipts};

#[tokio::test(flavor = "multi_thread")]
async fn one_message_is_listed_shown_redriven_and_dropped_wherever_it_is() {
    let system = System::start("one-message").await;
    let at = system.pacemaker;
    put(&system, "email", json!({"pattern": ".*:email_event:.*", "backoff_seconds": 3600})).await;
    let mut delayed = message("1", "later");
    delayed["delay_seconds"] = json!(3600);
    let id =
        async |body: Value| ok(&system, at, "POST", "/messages", Some(body)).await["id"].as_u64().unwrap();
    let (flies, waits, later) =
        (id(message("1", "flies")).await, id(message("1", "waits")).await, id(delayed).await);
    let pulled = pull(&system, "email", json!({"max": 1})).await;
    assert_eq!(payloads(&pulled), ["flies"]);

    let list = async |state: &str| {
        ok(&system, at, "GET", &format!("/queues/email/messages?state={state}"), None).await
    };
    let flying = list("in_flight").await;
    assert_eq!((&flying["messages"][0]["message"]["id"], &flying["next"]), (&json!(flies), &Value::Null));
    assert_eq!(flying["messages"][0]["until"], pulled["messages"][0]["lease_until"]);
    assert!(flying["messages"][0]["message"].get("receipt").is_none(), "{flying}");
    assert_eq!(list("delayed").await["messages"][0]["message"]["payload"], "later");

    let target = |id: u64| format!("/queues/email/messages/{id}");
    for (id, state) in [(flies, "in_flight"), (waits, "waiting"), (later, "delayed")] {
        assert_eq!(ok(&system, at, "GET", &target(id), None).await["state"], state);
    }
    let redrive = async |id: u64| system.api("POST", &format!("{}/redrive", target(id)), None).await;
    assert_eq!(redrive(later).await.json(), json!({"messages": 1}));
    eventually("the delay to end", async || {
        let shown = system.api("GET", &target(later), None).await.json();
        if shown["state"] == "waiting" { Ok(()) } else { Err(shown) }
    })
    .await;
    assert_eq!(redrive(later).await.json(), json!({"messages": 0}), "a repeat changes nothing");
    let busy = redrive(flies).await;
    assert_eq!((busy.status, &busy.json()["code"]), (409, &json!("message_in_flight")));

    // A dead letter is found in the same way.
    ok(&system, at, "POST", "/queues/email/reject", Some(json!({"receipts": receipts(&pulled)}))).await;
    let dead = ok(&system, at, "GET", &target(flies), None).await;
    assert_eq!((&dead["state"], &dead["reason"]), (&json!("dead"), &json!("rejected")));
    assert_eq!(redrive(flies).await.json(), json!({"messages": 1}));
    assert_eq!(system.api("DELETE", &target(waits), None).await.status, 204);
    let gone = system.api("DELETE", &target(waits), None).await;
    assert_eq!((gone.status, &gone.json()["code"]), (404, &json!("unknown_message")));
    // It waits again, and the log has its first entry.
    assert_eq!(ok(&system, at, "GET", &target(flies), None).await["state"], "waiting");
    assert_eq!(payloads(&pull(&system, "email", json!({"max": 9})).await), ["later", "flies"]);

    for (target, status, code) in [
        ("/queues/email/messages", 400, "invalid_query"),
        ("/queues/email/messages?state=waiting", 400, "invalid_query"),
        ("/queues/email/messages?state=delayed&limit=0", 422, "invalid_limit"),
        ("/queues/email/messages?state=delayed&cursor=%21", 422, "invalid_cursor"),
        ("/queues/none/messages?state=delayed", 404, "unknown_queue"),
        ("/queues/email/messages/1", 404, "unknown_message"),
    ] {
        let answer = system.api("GET", target, None).await;
        assert_eq!((answer.status, &answer.json()["code"]), (status, &json!(code)), "{target}");
    }

    // A confined token names its tenant, and finds nothing of others.
    let body = json!({"name": "five", "scopes": ["queues", "read"], "tenants": ["5"]});
    let token = ok(&system, at, "POST", "/tokens", Some(body)).await["token"].as_str().unwrap().to_owned();
    for (method, target) in [
        ("GET", "/queues/email/messages?state=in_flight".to_owned()),
        ("GET", target(later)),
        ("DELETE", target(later)),
        ("DELETE", format!("{}?tenant=1", target(later))),
        ("POST", format!("{}/redrive", target(later))),
    ] {
        assert_eq!(call(&system, &token, method, &target, None).await.status, 403, "{method} {target}");
    }
    for method in ["GET", "DELETE"] {
        let answer = call(&system, &token, method, &format!("{}?tenant=5", target(later)), None).await;
        assert_eq!((answer.status, &answer.json()["code"]), (404, &json!("unknown_message")));
    }
    assert_eq!(ok(&system, at, "GET", &target(later), None).await["state"], "in_flight");
    system.stop().await;
}
