//! What queues reject: invalid input, and tokens without the scope or the tenant.

use serde_json::{Value, json};
use signalbox_tests::{http::Request, system::System};

use super::{call, message, ok, payloads, pull, put, receipts};

#[tokio::test(flavor = "multi_thread")]
async fn invalid_input_is_answered_clearly_and_no_message_is_lost() {
    let system = System::start("queues-bad-input").await;
    let at = system.pacemaker;
    put(&system, "q", json!({"pattern": ".*"})).await;
    put(&system, "other", json!({"pattern": ".*"})).await;
    for (name, body, status, code) in [
        ("q", json!({"pattern": "("}), 422, "invalid_pattern"),
        ("q", json!({"pattern": "a|b)|(?:c"}), 422, "invalid_pattern"),
        ("q", json!({"pattern": "a".repeat(10 << 10)}), 422, "invalid_pattern"),
        ("q", json!({"pattern": "((a{100}){100}){100}"}), 422, "invalid_pattern"),
        ("q", json!({"pattern": 7}), 422, "invalid_body"),
        ("q", json!({}), 422, "missing_field"),
        ("q", json!({"pattern": ".*", "colour": 1}), 422, "unknown_field"),
        ("q", json!({"pattern": ".*", "lease_seconds": 0}), 422, "out_of_range"),
        ("q", json!({"pattern": ".*", "in_flight_limit": 1_000_001}), 422, "out_of_range"),
        ("q", json!({"pattern": ".*", "weights": {"a:b": 1}}), 422, "invalid_weights"),
        ("q", json!({"pattern": ".*", "weights": {"a": 10_001}}), 422, "out_of_range"),
        ("q", json!({"pattern": ""}), 422, "invalid_pattern"),
        ("q", json!({"pattern": ".*", "max_waiting": 0}), 422, "out_of_range"),
        ("q", json!({"pattern": ".*", "backoff_seconds": 43_201}), 422, "out_of_range"),
        ("q", json!({"pattern": ".*", "overflow": "ignore"}), 422, "invalid_body"),
        ("%2E%2E", json!({"pattern": ".*"}), 422, "invalid_queue_name"),
        ("a%7Cb", json!({"pattern": ".*"}), 422, "invalid_queue_name"),
        ("a:b", json!({"pattern": ".*"}), 422, "invalid_queue_name"),
        (&"a".repeat(65), json!({"pattern": ".*"}), 422, "invalid_queue_name"),
    ] {
        let answer = system.api_at(at, "PUT", &format!("/queues/{name}"), Some(body.clone())).await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (status, Some(code)), "{body}");
    }
    let placed = system.api_at(at, "PUT", "/queues/q", Some(json!({"pattern": "5:(x"}))).await.json();
    assert_eq!(placed["position"], 3, "{placed}");
    // Valid patterns: nested stars, pipes and colons, and a tenant with the name of one of our
    // keys.
    for pattern in ["((.*)*)*", "a:b:c|d:e:f", "tenants:.*"] {
        put(&system, "fine", json!({"pattern": pattern})).await;
    }
    for (body, code) in [
        (json!({"type": "t", "name": "n"}), "invalid_message"),
        (json!({"tenant": "a:b", "type": "t", "name": "n"}), "invalid_message"),
        (json!({"tenant": "a|b", "type": "t", "name": "n"}), "invalid_message"),
        (json!({"tenant": "a", "type": "t\u{0}", "name": "n"}), "invalid_message"),
        (json!({"tenant": "a", "type": "t", "name": "n".repeat(4096)}), "invalid_message"),
        (json!({"tenant": "a", "type": "t", "name": "n", "payload": "x".repeat(70_000)}), "invalid_message"),
        (json!({"tenant": "a", "type": "t", "name": "n", "delay_seconds": 2_592_001}), "invalid_message"),
        (
            json!({"tenant": "a", "type": "t", "name": "n", "deliver_at": "2286-11-20T17:46:39Z"}),
            "invalid_message",
        ),
        (json!([]), "invalid_message"),
        (json!("text"), "invalid_message"),
    ] {
        let answer = system.api_at(at, "POST", "/messages", Some(body)).await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (400, Some(code)));
    }
    // JSON that consumers could fail to parse is rejected at every entrance.
    let deep = format!("{}{}", "[".repeat(70), "]".repeat(70));
    for (payload, code) in [
        (r#""\ud800""#, "json_not_interoperable"),
        ("1e999", "json_not_interoperable"),
        (&*deep, "json_too_deep"),
    ] {
        for (target, member, rest) in [
            ("/messages", "payload", r#""tenant":"a","type":"t","name":"n""#),
            ("/topics/orders", "data", r#""type":"update","url":"https://a.example/1""#),
            ("/objects/o/events", "data", r#""events":[{"topic":"orders","type":"update"}]"#),
        ] {
            let request = Request::new("POST", &at.to_string(), target)
                .token(&system.token)
                .header("Content-Type", "application/json")
                .body(format!("{{{rest},\"{member}\":{payload}}}"));
            let answer = request.send(at).await.unwrap();
            assert_eq!(
                (answer.status, answer.json()["code"].as_str()),
                (400, Some(code)),
                "{target}: {}",
                answer.text()
            );
        }
    }
    // Parameters that a route does not have are rejected. Ignored, a part would become the whole.
    for (method, target, body, code) in [
        ("GET", "/queues?name=q", None, "invalid_query"),
        ("POST", "/queues/q/pull?max=5", Some(json!({})), "invalid_query"),
        ("GET", "/queues/q/dead?queue=q", None, "invalid_query"),
        ("DELETE", "/queues/q/dead", Some(json!({"tenant": "a"})), "unexpected_body"),
        ("DELETE", "/queues/q", Some(json!({})), "unexpected_body"),
        ("GET", "/queues/q", Some(json!({})), "unexpected_body"),
    ] {
        let answer = system.api_at(at, method, target, body).await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (400, Some(code)), "{method} {target}");
    }
    let redrive = json!({"tenants": "a"});
    let answer = system.api_at(at, "POST", "/queues/q/dead/redrive", Some(redrive)).await;
    assert_eq!((answer.status, answer.json()["code"].as_str()), (422, Some("unknown_field")));
    let typed =
        system.api_at(at, "PUT", "/queues/q", Some(json!({"pattern": ".*", "lease_seconds": "x"}))).await;
    assert!(typed.text().contains("expected a number"), "{}", typed.text());
    let sent = ok(&system, at, "POST", "/messages", Some(message("tenants", "kept"))).await;

    let pulled = pull(&system, "q", json!({"max": 10})).await;
    assert_eq!(pulled["messages"][0]["id"], sent["id"]);
    let receipt = &receipts(&pulled)[0];
    for (target, body, status, code) in [
        ("/queues/nobody/pull", json!({}), 404, "unknown_queue"),
        ("/queues/q/pull", json!({"max": 0}), 422, "out_of_range"),
        ("/queues/q/pull", json!({"max": 1001}), 422, "out_of_range"),
        ("/queues/q/pull", json!({"wait_seconds": 31}), 422, "out_of_range"),
        ("/queues/q/pull", json!({"wait_seconds": -1}), 422, "out_of_range"),
        ("/queues/q/ack", json!({"receipts": []}), 422, "out_of_range"),
        ("/queues/q/ack", json!({"receipts": ["x"]}), 422, "invalid_receipt"),
        ("/queues/q/ack", json!({"receipts": ["x".repeat(5_000)]}), 422, "invalid_receipt"),
        ("/queues/other/ack", json!({"receipts": [receipt]}), 409, "receipt_of_other_queue"),
        ("/queues/q/nack", json!({"receipts": [receipt], "delay_seconds": 50_000}), 422, "out_of_range"),
        ("/queues/q/extend", json!({"receipts": [receipt], "lease_seconds": 0}), 422, "out_of_range"),
        ("/queues/q/peek", json!({"tenant": "a:b"}), 422, "invalid_tenant"),
    ] {
        let answer = system.api_at(at, "POST", target, Some(body.clone())).await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (status, Some(code)), "{target} {body}");
    }
    // After all that, the message is still held, and its receipt is good once.
    let ack = json!({"receipts": [receipt]});
    assert_eq!(
        ok(&system, at, "POST", "/queues/q/ack", Some(ack.clone())).await["results"][0]["result"],
        "acked"
    );
    let again = ok(&system, at, "POST", "/queues/q/ack", Some(ack.clone())).await;
    assert_eq!(again["results"][0]["result"], "already_acked", "the answer of the first call may be lost");
    let used = system.api_at(at, "POST", "/queues/q/nack", Some(ack)).await;
    assert_eq!((used.status, used.json()["code"].as_str()), (409, Some("receipt_used")));
    assert_eq!(payloads(&pull(&system, "other", json!({})).await), ["kept"]);

    // A receipt whose lease has expired settles nothing: another consumer has the message by now.
    put(&system, "brief", json!({"pattern": "brief:.*", "lease_seconds": 1})).await;
    ok(&system, at, "POST", "/messages", Some(message("brief", "slow"))).await;
    let old = receipts(&pull(&system, "brief", json!({})).await).remove(0);
    let again = pull(&system, "brief", json!({"wait_seconds": 30})).await;
    assert_eq!((payloads(&again), &again["messages"][0]["attempt"]), (vec!["slow".to_owned()], &json!(2)));
    let late = system.api_at(at, "POST", "/queues/brief/ack", Some(json!({"receipts": [old]}))).await;
    assert_eq!((late.status, late.json()["code"].as_str()), (410, Some("receipt_expired")));
    let new = json!({"receipts": receipts(&again)});
    assert_eq!(
        ok(&system, at, "POST", "/queues/brief/ack", Some(new)).await["results"][0]["result"],
        "acked"
    );
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_limited_to_its_scopes_and_tenants() {
    let system = System::start("queues-tokens").await;
    let new = json!({"name": "tenant", "scopes": ["publish", "queues"], "tenants": ["5"]});
    let made = system.api_at(system.pacemaker, "POST", "/tokens", Some(new)).await;
    assert_eq!((made.status, &made.json()["tenants"]), (201, &json!(["5"])), "{}", made.text());
    let tenant = made.json()["token"].as_str().unwrap().to_owned();
    let consumer = system.token("consumer", &["queues"]).await;
    let reader = system.token("reader", &["read"]).await;
    put(&system, "q", json!({"pattern": ".*"})).await;
    ok(&system, system.pacemaker, "POST", "/messages", Some(json!([message("6", "x"), message("5", "y")])))
        .await;

    let refused = async |token: &str, method: &str, target: &str, body: Option<Value>| {
        let answer = call(&system, token, method, target, body.as_ref()).await;
        assert_eq!(answer.status, 403, "{method} {target}: {}", answer.text());
        answer.json()["code"].as_str().unwrap().to_owned()
    };
    assert_eq!(call(&system, &tenant, "POST", "/messages", Some(&message("5", "mine"))).await.status, 200);
    assert_eq!(refused(&tenant, "POST", "/messages", Some(message("6", "yours"))).await, "tenant_missing");
    let mixed =
        call(&system, &tenant, "POST", "/messages", Some(&json!([message("5", "a"), message("55", "b")])))
            .await;
    assert_eq!(
        (&mixed.json()[0]["status"], &mixed.json()[1]["code"]),
        (&json!(200), &json!("tenant_missing"))
    );
    for (method, target) in [
        ("POST", "/queues/q/pull"),
        ("DELETE", "/queues/q"),
        ("DELETE", "/queues/q/tenants/6"),
        ("POST", "/queues/q/peek"),
        ("POST", "/queues/q/purge"),
        ("GET", "/queues/q/dead"),
        ("POST", "/queues/q/dead/redrive"),
    ] {
        refused(&tenant, method, target, None).await;
    }
    let tenants = call(&system, &tenant, "GET", "/queues/q/tenants", None).await.json();
    assert_eq!(tenants["tenants"].as_array().unwrap().len(), 1, "{tenants}");
    assert_eq!(tenants["tenants"][0]["waiting"], 3, "{tenants}");
    let own = call(&system, &tenant, "POST", "/queues/q/peek", Some(&json!({"tenant": "5"}))).await;
    assert_eq!(payloads(&own.json()), ["y", "mine", "a"]);

    // It pulls and settles what is its own, and names it.
    let pull = |tenant: &str| json!({"tenant": tenant, "max": 1});
    let mine = call(&system, &tenant, "POST", "/queues/q/pull", Some(&pull("5"))).await;
    assert_eq!((mine.status, payloads(&mine.json())), (200, vec!["y".to_owned()]), "{}", mine.text());
    assert_eq!(refused(&tenant, "POST", "/queues/q/pull", Some(pull("6"))).await, "tenant_missing");
    let receipts = json!({"receipts": [mine.json()["messages"][0]["receipt"]]});
    assert_eq!(call(&system, &tenant, "POST", "/queues/q/nack", Some(&receipts)).await.status, 200);
    let tenants = call(&system, &consumer, "POST", "/queues/q/pull", Some(&pull("tenants"))).await;
    assert_eq!((tenants.status, &tenants.json()["messages"]), (200, &json!([])), "a name like any other");
    let bad = call(&system, &consumer, "POST", "/queues/q/pull", Some(&pull("a|b"))).await;
    assert_eq!((bad.status, &bad.json()["code"]), (422, &json!("invalid_tenant")));

    // Nor does it publish events in the name of another, or watch them.
    let event = |tenant: &str| {
        let url = "https://shop.example/1";
        json!({"type": "update", "url": url, "tenant": tenant})
    };
    assert_eq!(refused(&tenant, "POST", "/topics/orders", Some(event("6"))).await, "tenant_missing");
    assert_eq!(call(&system, &tenant, "POST", "/topics/orders", Some(&event("5"))).await.status, 200);
    let mixed = json!([event("6"), event("5")]);
    let mixed = call(&system, &tenant, "POST", "/topics/orders/events", Some(&mixed)).await.json();
    assert_eq!((&mixed[0]["code"], &mixed[1]["status"]), (&json!("tenant_missing"), &json!(200)));
    let new = json!({"name": "watcher", "scopes": ["read"], "tenants": ["5"]});
    let watcher = system.api_at(system.pacemaker, "POST", "/tokens", Some(new)).await.json();
    let watcher = watcher["token"].as_str().unwrap();
    refused(watcher, "GET", "/events", None).await;
    refused(watcher, "GET", "/events?tenant=6", None).await;

    // A consumer of the whole queue may read the counts of what it may pull.
    assert_eq!(call(&system, &consumer, "GET", "/queues/q/tenants", None).await.status, 200);
    assert_eq!(call(&system, &consumer, "GET", "/queues/q/dead", None).await.status, 200);
    refused(&consumer, "POST", "/messages", Some(message("5", "z"))).await;
    refused(&reader, "POST", "/queues/q/pull", None).await;
    refused(&reader, "PUT", "/queues/r", Some(json!({"pattern": ".*"}))).await;
    assert_eq!(call(&system, &reader, "GET", "/queues/q/tenants", None).await.status, 200);
    let pulled = call(&system, &consumer, "POST", "/queues/q/pull", None).await;
    assert_eq!(pulled.json()["messages"].as_array().unwrap().len(), 6, "{}", pulled.text());
    assert_eq!(call(&system, "nobody-knows-me", "POST", "/queues/q/pull", None).await.status, 401);
    system.stop().await;
}

/// Whatever is in the log, the answer of a pull is readable, and each message can be settled: a message of one tenant must
/// not cost others their attempts.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_cannot_be_represented_can_be_settled() {
    let system = System::start("queues-poison").await;
    let at = system.pacemaker;
    put(&system, "q", json!({"pattern": ".*"})).await;
    let messages = json!([message("evil", "deep"), message("broken", "x"), message("good", "fine")]);
    let ids = ok(&system, at, "POST", "/messages", Some(messages)).await;
    // As an older version may have stored them.
    let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
    let entry = r#"{"id":1,"last":1,"object":"o","topic":"t","type":"k","tenant":"evil","data":DEEP}"#;
    for (place, body) in [(0, entry.replace("DEEP", &deep)), (1, "not-json".to_owned())] {
        let id = ids[place]["id"].as_u64().unwrap();
        let segment = id / 64_000_000;
        let _: i64 = system.cli(System::FABRIC, &format!("HSET bus:log:{segment} {id} {body}")).await;
    }
    let pulled = pull(&system, "q", json!({})).await;
    let of = |tenant: &str| {
        let all = pulled["messages"].as_array().unwrap();
        all.iter().find(|one| one["tenant"] == tenant).unwrap_or_else(|| panic!("{pulled}")).clone()
    };
    assert_eq!((&of("evil")["payload"], &of("evil")["payload_text"]), (&Value::Null, &json!(deep)));
    assert_eq!(of("broken")["payload_text"], "not-json");
    assert_eq!(of("good")["payload"], "fine");
    let acked = ok(&system, at, "POST", "/queues/q/ack", Some(json!({"receipts": receipts(&pulled)}))).await;
    assert!(acked["results"].as_array().unwrap().iter().all(|one| one["result"] == "acked"), "{acked}");
    system.allow("message in the log not readable");
    system.stop().await;
}
