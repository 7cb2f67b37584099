//! The event bus's HTTP API: every row of its table with good and bad bodies, as raw HTTP, against a real pacemaker.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::{Request, Response, credential},
    receiver::{self, Receiver},
    system::System,
};

/// A system whose bus may deliver to this machine.
pub(crate) struct Bus {
    pub(crate) system: System,
}

impl Bus {
    pub(crate) async fn start(name: &str) -> Self {
        Self::with(name, &[]).await
    }

    /// With more settings of `[bus]`.
    pub(crate) async fn with(name: &str, settings: &[(&str, i64)]) -> Self {
        let mut bus = receiver::allowed();
        bus.extend(settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())));
        let system = System::with(name, |builder| builder.pacemaker("bus", bus)).await;
        Self { system }
    }

    /// With tokens in lists, as Routemaster's clients expect.
    async fn with_listed_tokens(name: &str) -> Self {
        let mut bus = receiver::allowed();
        bus.insert("legacy_token_list".to_owned(), true.into());
        Self { system: System::with(name, |builder| builder.pacemaker("bus", bus)).await }
    }

    /// A client, which is called by its name.
    pub(crate) async fn client(&self, name: &str) -> String {
        let scopes = ["publish", "subscribe", "read"];
        let body = json!({"name": name, "token": credential(name), "scopes": scopes});
        let made = self.root("POST", "/api_tokens", Some(&body)).await;
        assert_eq!(made.status, 201, "{}", made.text());
        name.to_owned()
    }

    pub(crate) async fn root(&self, method: &str, target: &str, body: Option<&Value>) -> Response {
        self.call(&self.system.token, method, target, body).await
    }

    pub(crate) async fn call(
        &self,
        token: &str,
        method: &str,
        target: &str,
        body: Option<&Value>,
    ) -> Response {
        let body = body.map(Value::to_string);
        self.call_raw(token, method, target, body.as_deref()).await
    }

    pub(crate) async fn call_raw(
        &self,
        token: &str,
        method: &str,
        target: &str,
        body: Option<&str>,
    ) -> Response {
        let request = self.request(method, target).token(token);
        let request = match body {
            Some(body) => request.header("Content-Type", "application/json").body(body),
            None => request,
        };
        request.send(self.system.pacemaker).await.unwrap_or_else(|error| panic!("{method} {target}: {error}"))
    }

    pub(crate) async fn send(&self, request: Request) -> Response {
        request.send(self.system.pacemaker).await.unwrap_or_else(|error| panic!("{request:?}: {error}"))
    }

    pub(crate) fn request(&self, method: &str, target: &str) -> Request {
        Request::new(method, &self.system.pacemaker.to_string(), target)
    }

    pub(crate) async fn publish(&self, client: &str, topic: &str, number: usize) -> u64 {
        let event = json!({"type": "update", "url": format!("https://shop.example/orders/{number}")});
        let answer = self.call(client, "POST", &format!("/topics/{topic}"), Some(&event)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.header("X-Signalbox-Event-Id").unwrap().parse().unwrap()
    }

    pub(crate) async fn subscribe(&self, client: &str, topics: &[&str], callback: &str) {
        let body =
            json!({"topics": topics, "callback": callback, "uuid": format!("{client}-uuid"), "timeout": 0});
        let answer = self.call(client, "POST", "/subscription", Some(&body)).await;
        assert_eq!(answer.status, 204, "{}", answer.text());
    }
}

#[track_caller]
fn expect_code(answer: &Response, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(answer.header("Content-Type"), Some("application/problem+json"), "{}", answer.text());
    assert_eq!(answer.json()["code"], code, "{}", answer.text());
}

/// The topics of an answer without Signalbox's own.
pub(crate) fn applications_topics(answer: &Response) -> Vec<Value> {
    let own = |topic: &Value| topic["name"].as_str().is_some_and(|name| name.starts_with("signalbox."));
    answer.json().as_array().unwrap().iter().filter(|topic| !own(topic)).cloned().collect()
}

#[track_caller]
fn expect_empty(answer: &Response, status: u16) {
    assert_eq!((answer.status, answer.body.len()), (status, 0), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_endpoint_answers_as_routemasters_clients_expect() {
    let bus = Bus::with_listed_tokens("rows").await;
    let receiver = Receiver::start().await;
    let open = async |target| bus.send(bus.request("GET", target)).await;
    assert_eq!(open("/health").await.json(), json!({}));
    assert!(open("/health/ping").await.json()["pong"].as_u64() > Some(1_700_000_000_000));

    let none = bus.root("GET", "/api_tokens", None).await;
    assert_eq!((none.status, none.json()), (200, json!([])));
    let made = bus.root("POST", "/api_tokens", Some(&json!({"name": "shop"}))).await;
    assert_eq!(made.status, 201);
    let shop = made.json()["token"].as_str().unwrap().to_owned();
    assert_eq!(made.json(), json!({"name": "shop", "token": shop}));
    let random = shop.strip_prefix("shop--").unwrap();
    assert!(random.len() == 32 && random.bytes().all(|byte| byte.is_ascii_hexdigit()), "{shop}");
    let chosen = bus
        .root("POST", "/api_tokens", Some(&json!({"name": "billing", "token": "b:1_-4567890123456789"})))
        .await;
    assert_eq!(
        (chosen.status, chosen.json()),
        (201, json!({"name": "billing", "token": "b:1_-4567890123456789"}))
    );
    let listed = bus.root("GET", "/api_tokens", None).await.json();
    assert_eq!(
        listed,
        json!([{"name": "billing", "token": "b:1_-4567890123456789"}, {"name": "shop", "token": shop}])
    );

    for token in [&shop, &bus.system.token] {
        expect_empty(&bus.call(token, "GET", "/pulse", None).await, 204);
        expect_empty(&bus.call(token, "GET", "/pulse/scaling", None).await, 204);
    }

    assert_eq!(applications_topics(&bus.call(&shop, "GET", "/topics", None).await), [Value::Null; 0]);
    let event =
        json!({"type": "create", "url": "https://shop.example/1", "timestamp": null, "data": {"a": 1}});
    let published = bus.call(&shop, "POST", "/topics/orders", Some(&event)).await;
    expect_empty(&published, 200);
    let first: u64 = published.header("X-Signalbox-Event-Id").unwrap().parse().unwrap();
    let many = json!([event, {"type": "no"}, event]);
    let results = bus.call(&shop, "POST", "/topics/orders/events", Some(&many)).await;
    assert_eq!(results.status, 200, "{}", results.text());
    let results = results.json();
    assert_eq!((&results[0]["status"], &results[1]["status"]), (&json!(200), &json!(400)));
    assert_eq!(results[1]["code"], "invalid_event");
    assert!(results[0]["id"].as_u64() > Some(first) && results[2]["id"].as_u64() > results[0]["id"].as_u64());
    let topics = bus.call("b:1_-4567890123456789", "GET", "/topics", None).await;
    let orders = json!({"name": "orders", "publisher": "shop", "events": 3});
    assert_eq!(applications_topics(&topics), [orders]);
    expect_code(
        &bus.call("b:1_-4567890123456789", "POST", "/topics/orders", Some(&event)).await,
        403,
        "topic_claimed",
    );

    let wanted = json!({"topics": ["orders", "fresh"], "callback": receiver.url(), "uuid": "secret", "timeout": 3_600_000,
        "max": 10_000, "concurrency": 64});
    for (method, target) in
        [("POST", "/subscription"), ("PUT", "/subscription"), ("POST", "/subscriber"), ("PUT", "/subscriber")]
    {
        expect_empty(&bus.call("b:1_-4567890123456789", method, target, Some(&wanted)).await, 204);
    }
    let topics = bus.call(&shop, "GET", "/topics", None).await.json();
    assert_eq!(topics[0], json!({"name": "fresh", "publisher": null, "events": 0}));
    let seen = bus.call("b:1_-4567890123456789", "GET", "/subscriptions", None).await;
    assert_eq!(
        seen.json(),
        json!([{"subscriber": "billing", "callback": receiver.url(), "max_events": 10_000, "timeout": 3_600_000,
            "topics": ["fresh", "orders"], "events": {"sent": 0, "queued": 0, "oldest": null}, "health": 100,
            "concurrency": 64, "uuid": "secret"}])
    );
    assert_eq!(bus.call("b:1_-4567890123456789", "GET", "/subscribers", None).await.json(), seen.json());

    expect_empty(&bus.call("b:1_-4567890123456789", "DELETE", "/subscriber/topics/fresh", None).await, 204);
    expect_code(
        &bus.call("b:1_-4567890123456789", "DELETE", "/subscriber/topics/fresh", None).await,
        404,
        "unknown_topic",
    );
    expect_empty(&bus.call("b:1_-4567890123456789", "DELETE", "/subscriber", None).await, 204);
    for target in ["/subscriber", "/subscription", "/subscriber/topics/orders", "/subscription/topics/orders"]
    {
        expect_code(
            &bus.call("b:1_-4567890123456789", "DELETE", target, None).await,
            404,
            "unknown_subscription",
        );
    }
    expect_code(
        &bus.call("b:1_-4567890123456789", "DELETE", "/topics/orders", None).await,
        403,
        "topic_claimed",
    );
    expect_empty(&bus.call(&shop, "DELETE", "/topics/orders", None).await, 204);
    expect_code(&bus.call(&shop, "DELETE", "/topics/orders", None).await, 404, "unknown_topic");
    let numbers = bus.root("GET", "/bus/metrics", None).await;
    assert_eq!(numbers.status, 200);
    assert!(numbers.json()["jobs"]["scheduled"].is_u64(), "{}", numbers.text());
    let metrics = open("/metrics").await.text();
    assert!(metrics.contains("signalbox_bus_published_events_total{result=\"accepted\"} 3"), "{metrics}");

    expect_empty(&bus.root("DELETE", &format!("/api_tokens/{shop}"), None).await, 204);
    expect_empty(&bus.root("DELETE", &format!("/api_tokens/{shop}"), None).await, 204);
    expect_code(&bus.call(&shop, "GET", "/topics", None).await, 401, "token_unknown");
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_bodies_are_rejected_with_a_reason_and_change_nothing() {
    let bus = Bus::start("bad-bodies").await;
    let shop = bus.client("shop").await;
    let long = format!("https://a.example/{}", "x".repeat(1024));
    let large = "x".repeat(70_000);
    let event = |member: &str, value: Value| {
        let mut event = json!({"type": "update", "url": "https://a.example/1"});
        event[member] = value;
        event
    };
    let events = [
        event("type", json!("changed")),
        event("type", json!(7)),
        event("url", json!("ftp://a.example/")),
        event("url", json!("https://a.example/?q")),
        event("url", json!(long)),
        event("url", json!(null)),
        event("timestamp", json!("1700000000000")),
        event("timestamp", json!(-1)),
        event("timestamp", json!(1.5)),
        event("data", json!(large)),
        event("tenant", json!("a:b")),
        event("tenant", json!("a|b")),
        event("object", json!("machine:1")),
        event("colour", json!("red")),
        json!([]),
        json!(null),
        json!("x"),
        json!({}),
        json!({"type": "update"}),
    ];
    for event in events {
        let answer = bus.call(&shop, "POST", "/topics/orders", Some(&event)).await;
        assert_eq!(answer.status, 400, "{event}: {}", answer.text());
        assert_eq!(answer.json()["code"], "invalid_event", "{event}");
    }
    for (body, code) in
        [("", "malformed_json"), ("{", "malformed_json"), ("{}", "invalid_event"), ("[]", "invalid_event")]
    {
        expect_code(&bus.call_raw(&shop, "POST", "/topics/orders/events", Some(body)).await, 400, code);
    }
    for topic in ["Orders", "orders2", "or-ders", "signalbox.x", "a%0a", "%20", &"a".repeat(65)] {
        let answer =
            bus.call(&shop, "POST", &format!("/topics/{topic}"), Some(&event("type", json!("noop")))).await;
        expect_code(&answer, 400, "invalid_topic");
    }
    let subscription = |member: &str, value: Value| {
        let mut wanted = json!({"topics": ["orders"], "callback": "https://a.example/events"});
        wanted[member] = value;
        wanted
    };
    for wanted in [
        subscription("topics", json!([])),
        subscription("topics", json!(["Orders"])),
        subscription("topics", json!("x")),
        subscription("callback", json!("nowhere")),
        subscription("callback", json!(null)),
        subscription("callback", json!("https://u:p@a.example/")),
        subscription("timeout", json!(3_600_001)),
        subscription("timeout", json!(-1)),
        subscription("timeout", json!("500")),
        subscription("max", json!(0)),
        subscription("max", json!(10_001)),
        subscription("concurrency", json!(0)),
        subscription("concurrency", json!(65)),
        subscription("uuid", json!("a\r\nb")),
        subscription("colour", json!("red")),
        json!([]),
        json!(7),
    ] {
        for (method, target) in [("POST", "/subscription"), ("PUT", "/subscriber")] {
            let answer = bus.call(&shop, method, target, Some(&wanted)).await;
            assert_eq!(answer.status, 400, "{wanted}: {}", answer.text());
            assert_eq!(answer.json()["code"], "invalid_subscription", "{wanted}");
        }
    }
    for token in [
        json!({"name": "A"}),
        json!({"name": ""}),
        json!({"name": "a", "token": "b c"}),
        json!({"name": "a", "token": "b".repeat(19)}),
        json!({"name": "a", "token": "b".repeat(65)}),
        json!({"name": "a", "expires_at": 1}),
        json!({"name": "a", "expires_at": "1970-01-01T00:00:01Z"}),
        json!({"name": "x".repeat(65)}),
        json!({"name": "x".repeat(31)}),
        json!({"name": "a", "scopes": []}),
        json!({"name": "a", "scopes": ["fly"]}),
        json!({"name": 1}),
        json!({}),
        json!([]),
        json!({"name": "a", "colour": "red"}),
    ] {
        expect_code(&bus.root("POST", "/api_tokens", Some(&token)).await, 400, "invalid_api_token");
    }
    let key = async |key: &str| {
        let body = json!({"type": "noop", "url": "https://a.example/"});
        let request = bus.request("POST", "/topics/orders").token(&shop).header("Idempotency-Key", key);
        bus.send(request.json(&body)).await
    };
    expect_code(&key("").await, 400, "invalid_idempotency_key");
    expect_code(&key(&"k".repeat(300)).await, 400, "invalid_idempotency_key");
    let untyped = bus.send(bus.request("POST", "/topics/orders").token(&shop).body("{}")).await;
    expect_code(&untyped, 415, "unsupported_media_type");

    assert_eq!(applications_topics(&bus.root("GET", "/topics", None).await), [Value::Null; 0]);
    assert_eq!(bus.root("GET", "/subscriptions", None).await.json(), json!([]));
    assert_eq!(bus.root("GET", "/api_tokens", None).await.json(), json!([{"name": "shop"}]));
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_accepted_in_both_styles_and_limited_to_its_scopes() {
    let bus = Bus::start("styles").await;
    let shop = bus.client("a:b").await;
    let basic = format!("Basic {}", STANDARD.encode(format!("{}:x", credential(&shop))));
    for header in [format!("Bearer {}", credential(&shop)), basic] {
        let answer = bus.send(bus.request("GET", "/topics").header("Authorization", &header)).await;
        assert_eq!(answer.status, 200, "{header}");
    }
    let reader = json!({"name": "reader", "token": credential("reader"), "scopes": ["read"]});
    assert_eq!(bus.root("POST", "/api_tokens", Some(&reader)).await.status, 201);
    let event = json!({"type": "noop", "url": "https://a.example/"});
    expect_code(&bus.call("reader", "POST", "/topics/orders", Some(&event)).await, 403, "scope_missing");
    expect_code(&bus.call("reader", "DELETE", "/subscriber", None).await, 403, "scope_missing");
    assert_eq!(bus.call("reader", "GET", "/bus/metrics", None).await.status, 200);
    expect_code(&bus.call("reader", "GET", "/api_tokens", None).await, 403, "scope_missing");
    expect_code(&bus.call(&shop, "GET", "/api_tokens", None).await, 403, "scope_missing");
    // A pacemaker token is a client too, with its own name.
    let token = bus.system.token("publisher", &["publish"]).await;
    assert_eq!(bus.call(&token, "POST", "/topics/others", Some(&event)).await.status, 200);
    assert_eq!(bus.root("GET", "/topics", None).await.json()[0]["publisher"], "publisher");
    // The same with other scopes is not the same.
    let other = json!({"name": "reader", "token": credential("reader"), "scopes": ["publish"]});
    expect_code(&bus.root("POST", "/api_tokens", Some(&other)).await, 409, "token_exists");
    assert_eq!(bus.root("POST", "/api_tokens", Some(&reader)).await.status, 201);
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_of_routemaster_every_client_could_read_every_delivery_credential() {
    let bus = Bus::start("credentials").await;
    let (ann, bob) = (bus.client("ann").await, bus.client("bob").await);
    bus.subscribe(&ann, &["orders"], "https://ann.example/events?key=ann-key").await;
    let own = bus.call(&ann, "GET", "/subscriptions", None).await.json();
    assert_eq!(own[0]["uuid"], "ann-uuid");
    assert_eq!(own[0]["callback"], "https://ann.example/events?key=ann-key");
    assert_eq!(bus.root("GET", "/subscriptions", None).await.json()[0]["uuid"], "ann-uuid");
    // Routemaster's client fails if a subscription has no member `uuid`.
    let of_others = bus.call(&bob, "GET", "/subscriptions", None).await.json();
    assert!(of_others[0].get("uuid").is_some_and(Value::is_null), "{of_others}");
    for target in ["/subscriptions", "/subscribers", "/topics", "/bus/metrics"] {
        let seen = bus.call(&bob, "GET", target, None).await.text();
        assert!(
            !seen.contains("ann-uuid") && !seen.contains("ann-key") && !seen.contains("whsec_"),
            "{target}: {seen}"
        );
    }
    for (method, target) in [
        ("GET", "/subscriber/secret?subscriber=ann"),
        ("POST", "/subscriber/secret?subscriber=ann"),
        ("GET", "/subscriber/dead?subscriber=ann"),
        ("DELETE", "/subscriber/dead?subscriber=ann"),
        ("POST", "/subscriber/dead/redrive?subscriber=ann"),
        ("POST", "/subscriber/test?subscriber=ann"),
    ] {
        expect_code(&bus.call(&bob, method, target, None).await, 403, "not_yours");
    }
    expect_code(&bus.call(&bob, "GET", "/subscriber/secret", None).await, 404, "unknown_subscription");
    let secret = bus.call(&ann, "GET", "/subscriber/secret", None).await.json();
    assert!(secret["secret"].as_str().unwrap().starts_with("whsec_"));
    assert_eq!(bus.root("GET", "/subscriber/secret?subscriber=ann", None).await.json(), secret);
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_of_routemaster_any_client_could_delete_any_topic_and_break_its_subscriptions() {
    let bus = Bus::start("deleting").await;
    let (ann, bob) = (bus.client("ann").await, bus.client("bob").await);
    bus.publish(&ann, "orders", 1).await;
    bus.subscribe(&bob, &["orders", "others"], "https://bob.example/events").await;
    expect_code(&bus.call(&bob, "DELETE", "/topics/orders", None).await, 403, "topic_claimed");
    expect_code(&bus.call(&ann, "DELETE", "/topics/others", None).await, 403, "topic_claimed");
    expect_empty(&bus.root("DELETE", "/topics/others", None).await, 204);
    expect_empty(&bus.call(&ann, "DELETE", "/topics/orders", None).await, 204);
    let left = bus.call(&bob, "GET", "/subscriptions", None).await;
    assert_eq!((left.status, &left.json()[0]["topics"]), (200, &json!([])), "{}", left.text());
    expect_empty(&bus.call(&bob, "DELETE", "/subscriber", None).await, 204);
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_of_routemaster_a_rejected_topic_name_broke_the_list_of_topics() {
    let bus = Bus::start("poison").await;
    let shop = bus.client("shop").await;
    let event = json!({"type": "noop", "url": "https://a.example/"});
    expect_code(&bus.call(&shop, "POST", "/topics/Bad-Name", Some(&event)).await, 400, "invalid_topic");
    let wanted = json!({"topics": ["good", "Bad-Name"], "callback": "https://a.example/"});
    expect_code(&bus.call(&shop, "POST", "/subscription", Some(&wanted)).await, 400, "invalid_subscription");
    assert_eq!(applications_topics(&bus.call(&shop, "GET", "/topics", None).await), [Value::Null; 0]);
    bus.publish(&shop, "good", 1).await;
    assert_eq!(bus.call(&shop, "GET", "/topics", None).await.json()[0]["name"], "good");
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_under_an_idempotency_key_returns_the_first_result() {
    let bus = Bus::start("idempotency").await;
    let (shop, other) = (bus.client("shop").await, bus.client("other").await);
    let send = async |token: &str, target: &str, body: Value| {
        let request = bus.request("POST", target).token(token).header("Idempotency-Key", "\"order-7\"");
        bus.send(request.json(&body)).await
    };
    let event = json!({"type": "update", "url": "https://shop.example/7", "data": 1});
    let first = send(&shop, "/topics/orders", event.clone()).await;
    let again = send(&shop, "/topics/orders", event.clone()).await;
    assert_eq!((first.status, again.status), (200, 200));
    assert_eq!(first.header("X-Signalbox-Event-Id"), again.header("X-Signalbox-Event-Id"));
    let changed = json!({"type": "update", "url": "https://shop.example/7", "data": 2});
    expect_code(&send(&shop, "/topics/orders", changed).await, 422, "idempotency_conflict");
    let others = send(&other, "/topics/others", event.clone()).await;
    assert_ne!(first.header("X-Signalbox-Event-Id"), others.header("X-Signalbox-Event-Id"));
    let array = json!([event, event]);
    let many = send(&shop, "/topics/orders/events", array.clone()).await.json();
    assert_ne!(many[0]["id"], many[1]["id"], "each place has its own key");
    assert_eq!(send(&shop, "/topics/orders/events", array).await.json(), many);
    assert_eq!(bus.root("GET", "/topics", None).await.json()[0]["events"], 3);
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_token_ends_its_subscription() {
    let bus = Bus::start("token-end").await;
    let receiver = Receiver::start().await;
    let (shop, sub) = (bus.client("shop").await, bus.client("sub").await);
    bus.subscribe(&sub, &["orders"], &receiver.url()).await;
    bus.publish(&shop, "orders", 1).await;
    receiver.until_events(1).await;
    expect_empty(&bus.root("DELETE", "/api_tokens/sub", None).await, 204);
    expect_code(&bus.call(&sub, "GET", "/subscriptions", None).await, 401, "token_unknown");
    assert_eq!(bus.root("GET", "/subscriptions", None).await.json(), json!([]));
    bus.publish(&shop, "orders", 2).await;
    // Another subscriber's delivery of the same event shows that its time has come.
    let witness = Receiver::start().await;
    let other = bus.client("other").await;
    bus.subscribe(&other, &["orders"], &witness.url()).await;
    bus.publish(&shop, "orders", 3).await;
    witness.until_events(1).await;
    assert_eq!(receiver.events().len(), 1);
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_redis_the_bus_reports_it_and_recovers_automatically() {
    let bus = Bus::start("away").await;
    let shop = bus.client("shop").await;
    bus.publish(&shop, "orders", 1).await;
    bus.system.kill(System::FABRIC).await;
    let event = json!({"type": "update", "url": "https://shop.example/1"});
    let refused = bus.call(&shop, "POST", "/topics/orders", Some(&event)).await;
    expect_code(&refused, 503, "fabric_unavailable");
    assert!(refused.header("Retry-After").is_some_and(|after| after.parse::<u32>().is_ok()));
    let all = bus.call(&shop, "POST", "/topics/orders/events", Some(&json!([event, event]))).await;
    expect_code(&all, 503, "fabric_unavailable");
    for token in [&shop, &bus.system.token] {
        expect_code(&bus.call(token, "GET", "/pulse", None).await, 500, "no_pulse");
    }
    for (method, target, body) in [
        ("GET", "/topics", None),
        ("GET", "/subscriptions", None),
        ("GET", "/pulse/scaling", None),
        ("GET", "/bus/metrics", None),
        ("DELETE", "/subscriber", None),
        ("DELETE", "/topics/orders", None),
        ("POST", "/subscription", Some(json!({"topics": ["a"], "callback": "https://a.example/"}))),
    ] {
        let answer = bus.call(&shop, method, target, body.as_ref()).await;
        assert_eq!(answer.status, 503, "{method} {target}: {}", answer.text());
        assert!(answer.header("Retry-After").is_some(), "{method} {target}");
    }
    expect_code(&bus.call("nobody", "GET", "/topics", None).await, 503, "fabric_unavailable");
    bus.system.start_part(System::FABRIC).await;
    eventually("the bus to accept events again", || async {
        let answer = bus.call(&shop, "POST", "/topics/orders", Some(&event)).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    expect_empty(&bus.call(&shop, "GET", "/pulse", None).await, 204);
    bus.system.stop().await;
}

/// A pacemaker that saw the old one knows; one that starts afterwards knows from the stats Redis.
#[tokio::test(flavor = "multi_thread")]
async fn a_fabric_replaced_by_an_empty_one_accepts_nothing_until_an_operator_confirms_it() {
    let bus = Bus::start("replaced").await;
    let shop = bus.client("shop").await;
    bus.publish(&shop, "orders", 1).await;
    eventually("the fabric to be remembered", || async {
        let kept: Option<String> = bus.system.cli(System::STATS, "GET fabric").await;
        kept.ok_or("not yet")
    })
    .await;
    bus.system.restart_empty(System::FABRIC).await;
    let event = json!({"type": "update", "url": "https://shop.example/1"});
    for restarted in [false, true] {
        if restarted {
            bus.system.restart(System::PACEMAKER).await;
        }
        let token = if restarted { &bus.system.token } else { &shop };
        eventually("events to be refused for the right reason", || async {
            let answer = bus.call(token, "POST", "/topics/orders", Some(&event)).await;
            let said = answer.json()["code"] == "fabric_uninitialized" && answer.status == 503;
            if said { Ok(()) } else { Err(answer.text()) }
        })
        .await;
        expect_code(&bus.call(&shop, "GET", "/topics", None).await, 503, "fabric_uninitialized");
    }
    expect_empty(&bus.root("POST", "/bus/initialize", None).await, 204);
    expect_code(&bus.call(&shop, "GET", "/topics", None).await, 401, "token_unknown");
    bus.client("shop").await;
    bus.publish(&shop, "orders", 1).await;
    bus.system.stop().await;
}
