//! One token tries to take the places of all others, and to send what receivers cannot parse.

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    events::Stream,
    http::{Connection, Request, Response},
    receiver,
    system::System,
};

async fn ask(system: &System, token: &str, method: &str, target: &str, body: Option<&Value>) -> Response {
    let request = Request::new(method, &system.admin.to_string(), target).token(token);
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    request.send(system.admin).await.unwrap_or_else(|error| panic!("{method} {target}: {error}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_token_does_not_take_all_streams() {
    let mut bus = receiver::allowed();
    bus.insert("streams".to_owned(), 8.into());
    let system = System::with("attack-many-streams", |builder| builder.pacemaker("bus", bus)).await;
    let greedy = system.token("greedy", &["read"]).await;
    let other = system.token("other", &["read"]).await;
    for (target, own) in [("/events", 2), ("/dashboard/stream?page=events", 25)] {
        let mut held = Vec::new();
        for number in 0..own {
            let stream = Stream::open(system.pacemaker, &greedy, target, None).await;
            assert_eq!(stream.status, 200, "{target} {number}");
            held.push(stream);
        }
        let one_more = Stream::open(system.pacemaker, &greedy, target, None).await;
        assert_eq!(one_more.status, 429, "one token holds more than {own} streams of {target}");
        let refused = Request::get(&system.pacemaker.to_string(), target).token(&greedy);
        let refused = refused.send(system.pacemaker).await.unwrap();
        assert_eq!(
            (refused.status, refused.json()["code"].as_str()),
            (429, Some("token_limit_reached")),
            "{target}"
        );
        assert!(
            refused.header("Retry-After").is_some() && refused.json()["limit"] == own,
            "{}",
            refused.text()
        );
        assert_eq!(Stream::open(system.pacemaker, &other, target, None).await.status, 200, "{target}");
        assert_eq!(Stream::open(system.pacemaker, &system.token, target, None).await.status, 200, "{target}");
    }
    // The sidecar's.
    eventually("the sidecar to know the token", || async {
        let answer = ask(&system, &greedy, "GET", "/stats/uncaught", None).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    let mut held = Vec::new();
    for number in 0..=16 {
        let stream = Stream::open(system.sidecar, &greedy, "/stats/uncaught/stream", None).await;
        assert_eq!(stream.status, if number < 16 { 200 } else { 429 }, "stream {number} of one token");
        held.push(stream);
    }
    let stream = Stream::open(system.sidecar, &system.token, "/stats/uncaught/stream", None).await;
    assert_eq!(stream.status, 200);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_token_does_not_claim_all_topics() {
    let mut bus = receiver::allowed();
    bus.insert("topics_per_client".to_owned(), 2.into());
    let system = System::with("attack-topics", |builder| builder.pacemaker("bus", bus)).await;
    let squatter = system.token("squatter", &["publish"]).await;
    let other = system.token("other", &["publish"]).await;
    let event = json!({"type": "update", "url": "https://shop.example/1"});
    for (topic, status) in [("a", 200), ("b", 200), ("c", 403), ("a", 200)] {
        let answer = ask(&system, &squatter, "POST", &format!("/topics/{topic}"), Some(&event)).await;
        assert_eq!(answer.status, status, "{topic}: {}", answer.text());
        if status == 403 {
            assert_eq!(answer.json()["code"], "limit_reached");
        }
    }
    assert_eq!(ask(&system, &other, "POST", "/topics/c", Some(&event)).await.status, 200);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn json_that_is_nested_too_deeply_is_refused_at_every_intake() {
    let system =
        System::with("attack-nesting", |builder| builder.pacemaker("bus", receiver::allowed())).await;
    let deep = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let url = "https://shop.example/1";
    // The body itself has up to four levels.
    for (depth, refused) in [(60, false), (65, true), (200, true), (100_000, true)] {
        let data = deep(depth);
        let intakes = [
            ("POST", "/topics/orders", format!(r#"{{"type":"update","url":"{url}","data":{data}}}"#)),
            (
                "POST",
                "/topics/orders/events",
                format!(r#"[{{"type":"update","url":"{url}","data":{data}}}]"#),
            ),
            ("POST", "/messages", format!(r#"{{"tenant":"5","type":"t","name":"n","payload":{data}}}"#)),
            (
                "POST",
                "/objects/work/events",
                format!(r#"{{"data":{data},"events":[{{"topic":"orders","type":"update"}}]}}"#),
            ),
            ("POST", "/subscription", format!(r#"{{"topics":["orders"],"callback":{data}}}"#)),
            ("PUT", "/instances/i", format!(r#"{{"address":{data}}}"#)),
            ("PUT", "/instances", format!("[{data}]")),
            ("PUT", "/hosts/a.test", format!(r#"{{"methods":{data}}}"#)),
            ("POST", "/tokens", format!(r#"{{"name":{data}}}"#)),
            ("PUT", "/queues/q", format!(r#"{{"pattern":{data}}}"#)),
            ("POST", "/state-machines/m/labels/l", format!(r#"{{"metadata":{{"a":{data}}}}}"#)),
            ("PATCH", "/state-machines/m/labels/l", format!(r#"{{"metadata":{{"a":{data}}}}}"#)),
            (
                "PATCH",
                "/state-machines/m/labels",
                format!(r#"{{"labels":[{{"name":"l","metadata":{{"a":{data}}}}}]}}"#),
            ),
        ];
        for (method, target, body) in intakes {
            let request = Request::new(method, &system.pacemaker.to_string(), target).token(&system.token);
            let request = request.header("Content-Type", "application/json").body(body);
            let answer = request.send(system.pacemaker).await.unwrap();
            let too_deep = answer.status == 400 && answer.text().contains(r#""code":"json_too_deep""#);
            assert_eq!(too_deep, refused, "{method} {target} at {depth}: {}", answer.text());
            if refused {
                assert!(answer.json()["detail"].as_str().unwrap().contains("64"), "{}", answer.text());
            }
        }
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_token_does_not_use_up_the_requests_and_events_of_others() {
    let system = System::with("attack-rates", |builder| {
        let limits = [("token_requests_per_second", 5.into()), ("token_events_per_second", 20.into())];
        builder.pacemaker(
            "limits",
            limits
                .map(|(key, limit): (_, toml::Value)| (key.to_owned(), limit))
                .into_iter()
                .collect::<toml::Table>(),
        )
    })
    .await;
    let greedy = system.token("greedy", &["read", "publish"]).await;
    let other = system.token("other", &["read", "publish"]).await;
    let events: Vec<Value> = (0..100).map(|_| json!({"type": "noop", "url": "https://a.test/1"})).collect();
    let events = Value::Array(events);
    assert_eq!(ask(&system, &greedy, "POST", "/topics/greedy/events", Some(&events)).await.status, 200);
    // The bucket is overdrawn by four seconds.
    let refused = ask(&system, &greedy, "POST", "/topics/greedy/events", Some(&events)).await;
    assert_eq!((refused.status, refused.json()["code"].as_str()), (429, Some("token_limit_reached")));
    let problem = refused.json();
    assert!(
        problem["limit"] == 20
            && problem["detail"].as_str().unwrap().contains("limits.token_events_per_second")
    );
    assert!(refused.header("Retry-After").is_some_and(|seconds| seconds.parse::<u32>().unwrap() >= 2));
    let refused = eventually("the token to use up its requests", || async {
        let answer = ask(&system, &greedy, "GET", "/instances", None).await;
        if answer.status == 429 { Ok(answer) } else { Err(answer.status) }
    })
    .await;
    assert_eq!(refused.json()["limit"], 5, "{}", refused.text());
    // What the token may not do is counted as well: each refusal is a record of the audit log.
    let refused = system.token("refused", &["facts"]).await;
    let mut statuses = Vec::new();
    for _ in 0..100 {
        statuses.push(ask(&system, &refused, "GET", "/instances", None).await.status);
    }
    assert!(statuses.starts_with(&[403]) && statuses.contains(&429), "{statuses:?}");
    for token in [&other, &system.token] {
        assert_eq!(ask(&system, token, "GET", "/instances", None).await.status, 200);
        assert_eq!(
            ask(&system, token, "POST", "/topics/others/events", Some(&events)).await.status,
            if token == &other { 200 } else { 403 }
        );
    }
    system.stop().await;
}

fn settings<const N: usize>(all: [(&str, i64); N]) -> toml::Table {
    all.map(|(key, value)| (key.to_owned(), value.into())).into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_token_does_not_fill_the_route_table() {
    let system = System::with("attack-many-instances", |builder| {
        builder.without_sidecar().pacemaker("limits", settings([("token_instances", 2)]))
    })
    .await;
    let put = async |token: &str, id: &str, port: u16, host: &str| {
        let body =
            json!({"address": format!("127.0.0.1:{port}"), "hostnames": [host], "version_type_id": "7"});
        let request = Request::new("PUT", "localhost", &format!("/instances/{id}")).token(token).json(&body);
        request.send(system.pacemaker).await.unwrap()
    };
    let greedy = system.token("greedy", &["routes"]).await;
    let other = system.token("other", &["routes"]).await;
    assert_eq!(put(&greedy, "i-1", 4001, "a.test").await.status, 201);
    assert_eq!(put(&greedy, "i-2", 4002, "b.test").await.status, 201);
    let refused = put(&greedy, "i-3", 4003, "c.test").await;
    assert_eq!((refused.status, refused.json()["code"].as_str()), (429, Some("token_limit_reached")));
    let problem = refused.json();
    assert!(problem["limit"] == 2 && problem["detail"].as_str().unwrap().contains("limits.token_instances"));
    let gone =
        Request::get("localhost", "/instances/i-3").token(&greedy).send(system.pacemaker).await.unwrap();
    assert_eq!(gone.status, 404, "{}", gone.text());
    // What it has can be changed, repeated and replaced.
    assert_eq!(put(&greedy, "i-1", 4001, "a2.test").await.status, 200);
    assert_eq!(put(&greedy, "i-1", 4001, "a2.test").await.status, 200);
    assert_eq!(put(&greedy, "i-4", 4001, "a.test").await.status, 201, "i-1 loses its address");
    assert_eq!(put(&greedy, "i-3", 4003, "c.test").await.status, 429);
    // Others are not affected, and an instance counts for the token that registered it last.
    assert_eq!(put(&other, "o-1", 4101, "o.test").await.status, 201);
    assert_eq!(put(&system.token, "r-1", 4201, "r.test").await.status, 201);
    assert_eq!(put(&system.token, "i-2", 4002, "b2.test").await.status, 200);
    assert_eq!(put(&greedy, "i-3", 4003, "c.test").await.status, 201);
    let delete = Request::new("DELETE", "localhost", "/instances/i-3").token(&greedy);
    assert_eq!(delete.send(system.pacemaker).await.unwrap().status, 204);
    assert_eq!(put(&greedy, "i-5", 4005, "e.test").await.status, 201);
    let metrics =
        Request::get("localhost", "/metrics").token(&system.token).send(system.pacemaker).await.unwrap();
    let counted = r#"signalbox_pacemaker_limited_requests_total{code="token_limit_reached"} 2"#;
    assert!(metrics.text().lines().any(|line| line == counted), "{}", metrics.text());
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_token_does_not_create_labels_without_end() {
    let system = System::with("attack-many-labels", |builder| {
        builder.without_sidecar().pacemaker("machines", settings([("labels", 2)]))
    })
    .await;
    let call = async |token: &str, method: &str, target: &str, body: Value| {
        let target = format!("/state-machines/m{target}");
        let request = Request::new(method, "localhost", &target).token(token);
        let request = match body {
            Value::Null => request,
            Value::String(yaml) => request.header("Content-Type", "application/yaml").body(yaml),
            body => request.json(&body),
        };
        request.send(system.pacemaker).await.unwrap()
    };
    let yaml = "state_machines:\n  m:\n    states: [{gate: asked, exit_condition: metadata.go, \
        triggers: [{metadata: go}], next: done}, {gate: done}]\n";
    let plan = call(&system.token, "POST", "/plan", yaml.into()).await.json();
    let applied = call(&system.token, "POST", "/apply", json!({"plan": plan["plan"]})).await;
    assert_eq!(applied.status, 200, "{}", applied.text());
    let teller = system.token("teller", &["facts"]).await;
    for label in ["a", "b"] {
        let made = call(&teller, "POST", &format!("/labels/{label}"), json!({"metadata": {}})).await;
        assert_eq!(made.status, 201, "{}", made.text());
    }
    let refused = call(&teller, "POST", "/labels/c", json!({"metadata": {}})).await;
    assert_eq!((refused.status, refused.json()["code"].as_str()), (429, Some("label_limit_reached")));
    let problem = refused.json();
    assert!(problem["limit"] == 2 && problem["detail"].as_str().unwrap().contains("machines.labels"));
    // Labels that exist change as before. A deleted one still takes memory.
    let moved = call(&teller, "PATCH", "/labels/a", json!({"metadata": {"go": true}})).await;
    assert_eq!(moved.status, 200, "{}", moved.text());
    let deleted = call(&teller, "DELETE", "/labels/b", Value::Null).await;
    assert!(deleted.status < 300, "{}", deleted.text());
    assert_eq!(call(&teller, "POST", "/labels/c", json!({"metadata": {}})).await.status, 429);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_token_does_not_take_all_dumps() {
    let system = System::with("attack-many-dumps", |builder| builder.without_sidecar()).await;
    // More than the buffers of a connection, so a dump that is not read stays open.
    for first in (1..6000).step_by(200) {
        let fill = format!(
            "EVAL for\ti={first},{}\tdo\tredis.call('SET','policy:h'..i..'.test',string.rep('x',4000))\tend 0",
            first + 199
        );
        system.cli::<()>(System::PRIMARY, &fill).await;
    }
    let greedy = system.token("greedy", &["read"]).await;
    let other = system.token("other", &["read"]).await;
    let dump = |token: &str| Request::get("localhost", "/routes/dump").token(token);
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut connection = Connection::open(system.pacemaker).await.unwrap();
        connection.write(&dump(&greedy).to_bytes()).await.unwrap();
        let head = connection.read_line_with("HTTP/1.1").await.unwrap();
        assert!(head.contains(" 200 "), "{head}");
        held.push(connection);
    }
    let refused = dump(&greedy).send(system.pacemaker).await.unwrap();
    assert_eq!((refused.status, refused.json()["code"].as_str()), (429, Some("token_limit_reached")));
    assert_eq!(refused.json()["limit"], 2, "{}", refused.text());
    for token in [&other, &system.token] {
        let mut connection = Connection::open(system.pacemaker).await.unwrap();
        connection.write(&dump(token).to_bytes()).await.unwrap();
        let head = connection.read_line_with("HTTP/1.1").await.unwrap();
        assert!(head.contains(" 200 "), "{head}");
    }
    drop(held);
    eventually("the places to be free again", || async {
        let answer = dump(&greedy).send(system.pacemaker).await.unwrap();
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    system.stop().await;
}

/// Events of one tenant with ten kilobytes each.
fn large_events(tenant: &str, object: &str, count: usize) -> Value {
    let data = "x".repeat(10_000);
    let event = |number| {
        json!({"type": "noop", "url": "https://a.test/1", "tenant": tenant,
            "object": format!("{object}{number}"), "data": data})
    };
    (0..count).map(event).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_tenant_does_not_fill_the_fabric() {
    let system = System::with("attack-many-bytes", |builder| {
        let mut bus = receiver::allowed();
        let short = settings([
            ("tenant_bytes", 300_000),
            ("log_seconds", 0),
            ("log_bytes", 0),
            ("housekeeping_ms", 200),
            ("delivery_ms", 1_000),
        ]);
        bus.extend(short);
        builder.without_sidecar().pacemaker("bus", bus)
    })
    .await;
    let publisher = system.token("publisher", &["publish"]).await;
    let api = async |method: &str, target: &str, body: Option<&Value>| {
        ask(&system, &system.token, method, target, body).await
    };
    let publish = async |tenant: &str, object: &str, count: usize| {
        let events = large_events(tenant, object, count);
        ask(&system, &publisher, "POST", "/topics/orders/events", Some(&events)).await
    };
    let stored = async || {
        let mut all: Vec<(String, u64)> = system.cli(System::FABRIC, "HGETALL bus:environments").await;
        // Signalbox publishes changes of this system.
        all.retain(|(name, _)| ["greedy", "other", "worker", "later"].contains(&name.as_str()));
        all
    };
    let is_full = |answer: &Response| {
        (answer.status, answer.json()["code"].as_str().map(str::to_owned))
            == (429, Some("tenant_limit_reached".to_owned()))
    };

    // A subscriber whose receiver does not answer: the log keeps what it has not received.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let callback = format!("http://{}/", silent.local_addr().unwrap());
    let subscription = json!({"topics": ["orders"], "callback": callback, "uuid": "u"});
    let subscriber = system.token("subscriber", &["subscribe"]).await;
    let subscribed = ask(&system, &subscriber, "POST", "/subscription", Some(&subscription)).await;
    assert_eq!(subscribed.status, 204, "{}", subscribed.text());
    let many = publish("greedy", "", 40).await;
    let results = many.json();
    let accepted = results.as_array().unwrap().iter().filter(|one| one.get("id").is_some()).count();
    assert!((25..30).contains(&accepted), "{accepted} of {}", results);
    let event = &large_events("greedy", "one", 1)[0];
    let refused = ask(&system, &publisher, "POST", "/topics/orders", Some(event)).await;
    assert!(is_full(&refused) && refused.header("Retry-After").is_some(), "{}", refused.text());
    let problem = refused.json();
    assert_eq!((problem["limit"].as_u64(), problem["tenant"].as_str()), (Some(300_000), Some("greedy")));
    assert!(problem["detail"].as_str().unwrap().contains("bus.tenant_bytes"), "{problem}");
    assert!(is_full(&publish("greedy", "", 2).await), "an array of refused events is refused");
    assert_eq!(publish("other", "", 20).await.status, 200);
    let bytes = stored().await;
    assert!(bytes.iter().all(|(_, bytes)| *bytes <= 300_000) && bytes.len() == 2, "{bytes:?}");

    // What waits for a backend, and what is delayed, is counted as well.
    let backend = json!({"prefix": "work:", "callback": callback, "uuid": "sequencer", "on_failure": "park"});
    let made = api("PUT", "/backends/silent", Some(&backend)).await;
    assert_eq!(made.status, 201, "{}", made.text());
    assert_eq!(publish("worker", "work:", 29).await.status, 200);
    assert!(is_full(&publish("worker", "work:", 1).await));
    let made = api("PUT", "/queues/late", Some(&json!({"pattern": "later:*:*"}))).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let message = |number: usize| {
        json!({"tenant": "later", "type": "t", "name": format!("n{number}"), "payload": "x".repeat(10_000),
            "delay_seconds": 3600})
    };
    let messages: Value = (0..14).map(message).collect();
    let many = ask(&system, &publisher, "POST", "/messages", Some(&messages)).await;
    assert_eq!(many.status, 200, "{}", many.text());
    let refused = eventually("the delayed messages to be too many", || async {
        let answer = ask(&system, &publisher, "POST", "/messages", Some(&message(99))).await;
        if answer.status == 429 { Ok(answer) } else { Err(answer.text()) }
    })
    .await;
    assert!(is_full(&refused) && refused.json()["tenant"] == "later", "{}", refused.text());

    // When the consumers are gone, nothing is counted, and the tenant may publish again.
    let ended = ask(&system, &subscriber, "DELETE", "/subscription", None).await;
    assert_eq!(ended.status, 204, "{}", ended.text());
    let removed = api("DELETE", "/backends/silent?queued=discard", None).await;
    assert!(removed.status < 300, "{}", removed.text());
    let removed = api("DELETE", "/queues/late", None).await;
    assert!(removed.status < 300, "{}", removed.text());
    eventually("nothing to be stored", || async {
        let bytes = stored().await;
        if bytes.is_empty() { Ok(()) } else { Err(bytes) }
    })
    .await;
    assert_eq!(publish("greedy", "", 20).await.status, 200);
    let metrics = api("GET", "/metrics", None).await;
    let counted = r#"signalbox_pacemaker_limited_requests_total{code="tenant_limit_reached"}"#;
    assert!(metrics.text().contains(counted), "{}", metrics.text());
    system.stop().await;
}
