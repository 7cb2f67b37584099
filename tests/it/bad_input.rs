//! Whatever is sent to the API, it answers with a problem document, a suitable status and a stable code, and continues.

use std::{collections::BTreeSet, net::SocketAddr};

use serde_json::{Value, json};
use signalbox_tests::{
    http::{Connection, Request, Response},
    system::System,
    upstream::App,
};

mod routes;

use routes::{Body, ROUTES};

/// Expects a problem document with one of these statuses that reveals no internals.
#[track_caller]
fn expect_problem(what: &str, answer: &Response, statuses: &[u16]) -> String {
    let text = answer.text();
    assert!(statuses.contains(&answer.status), "{what}: {} is none of {statuses:?}: {text}", answer.status);
    assert_eq!(answer.header("Content-Type"), Some("application/problem+json"), "{what}: {text}");
    let problem = answer.json();
    assert_eq!(problem["status"], answer.status, "{what}: {text}");
    let code = problem["code"].as_str().unwrap_or_default();
    assert!(
        !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
        "{what}: the code {code:?} in {text}"
    );
    assert!(problem["title"].is_string() && problem["detail"].is_string(), "{what}: {text}");
    for secret in ["panicked", "src/", "WRONGTYPE", "ERR ", "NOSCRIPT", "os error"] {
        assert!(!text.contains(secret), "{what}: {secret:?} in {text}");
    }
    code.to_owned()
}

/// After all of it, the server does what it did before.
async fn expect_well(system: &System, app: &App) {
    let health = system.api("GET", "/health", None).await;
    assert_eq!(health.status, 200, "{}", health.text());
    system.register("well", app, "well.test", "1").await;
    assert_eq!(system.get("well.test", "/").await.text(), app.name());
    for part in [System::PACEMAKER, System::SIDECAR, System::NGINX] {
        assert_eq!(system.starts(&part), 1, "{part} was started again");
        let log = system.log_text(&part);
        assert!(!log.contains("panicked"), "{part} panicked:\n{log}");
    }
}

/// `host:port` of the listener, which is what a client puts into `Host`.
fn host(address: SocketAddr) -> String {
    address.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_is_in_this_list() {
    let system = System::start("openapi").await;
    let document = system.api("GET", "/openapi.json", None).await;
    assert_eq!(document.status, 200, "{}", document.text());
    let document = document.json();
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")));
    let mut unlisted = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            if !ROUTES.iter().any(|route| route.path == path && route.method == method) {
                unlisted.insert(format!("{method} {path}"));
            }
        }
    }
    assert!(unlisted.is_empty(), "routes without a test of bad input: {unlisted:#?}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_rejects_a_missing_or_wrong_token() {
    let system = System::start("tokens").await;
    let app = App::start("app").await;
    system.register("i-1", &app, "app.test", "17").await;
    // A token for everything but what is asked.
    let all = ["routes", "publish", "subscribe", "queues", "facts", "machines", "read"];
    for route in ROUTES.iter().filter(|route| !route.scope.is_empty()) {
        let what = format!("{} {}", route.method, route.path);
        let request = route.request(&host(system.admin));
        let none = request.send(system.admin).await.unwrap();
        expect_problem(&format!("{what} without a token"), &none, &[401]);
        let challenge = none.header("WWW-Authenticate").unwrap_or_default();
        assert!(challenge.starts_with("Basic realm=\"signalbox\""), "{what}: {challenge:?}");
        for header in
            ["Bearer nonsense", "Bearer ", "Basic ???", "Basic bm9uc2Vuc2U6", "Digest x", "Bearer a b"]
        {
            let answer = request.clone().header("Authorization", header).send(system.admin).await.unwrap();
            expect_problem(&format!("{what} with {header:?}"), &answer, &[401]);
        }
        if route.scope == "any" {
            continue;
        }
        // Reading is part of managing routes, on the pacemaker's side, and that of queues is part of using them.
        let of_queues = route.scope == "read" && route.path.starts_with("/queues");
        let of_machines = route.path.starts_with("/state-machines");
        let without: Vec<&str> = all
            .into_iter()
            .filter(|scope| *scope != route.scope && !(route.scope == "read" && *scope == "routes"))
            .filter(|scope| !(of_queues && *scope == "queues"))
            // The scope `facts` includes reading machines, and `machines` includes both.
            .filter(|scope| {
                !(of_machines && (*scope == "machines" || (*scope == "facts" && route.scope == "read")))
            })
            .collect();
        let also = match (of_queues, of_machines) {
            (true, _) => "-and-queues",
            (_, true) => "-and-machines",
            _ => "",
        };
        let name = format!("all-but-{}{also}", route.scope);
        let token = system.token(&name, &without).await;
        let answer = request.clone().token(&token).send(system.admin).await.unwrap();
        expect_problem(&format!("{what} without the scope {}", route.scope), &answer, &[403]);
    }
    // None of it had an effect.
    assert_eq!(system.get("app.test", "/").await.text(), "app");
    expect_well(&system, &app).await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_bodies_are_rejected() {
    let system = System::start("bodies-bad").await;
    let app = App::start("app").await;
    system.register("i-1", &app, "app.test", "17").await;
    let before: i64 = system.cli(System::PRIMARY, "GET serial").await;
    system.allow("client intended to send too large body");
    let deep = "[".repeat(100_000);
    let bodies: [(&str, &[u8]); 13] = [
        ("nothing", b""),
        ("half of JSON", b"{\"address\":"),
        ("no JSON", b"address=127.0.0.1"),
        ("bytes that are not UTF-8", b"\xff\xfe{}"),
        ("null", b"null"),
        ("a number", b"7"),
        ("a string", b"\"x\""),
        ("an empty object", b"{}"),
        ("wrong types", br#"{"address":5,"hostnames":"app.test","version_type_id":{},"name":[],"scopes":1}"#),
        ("an unknown field", br#"{"address":"127.0.0.1:1","hostnames":["x.test"],"version_type_id":"1","colour":"red","name":"n","scopes":["read"]}"#),
        ("a field twice", br#"{"address":"127.0.0.1:1","address":"127.0.0.1:2","hostnames":["x.test"],"version_type_id":"1","name":"n","name":"m","scopes":["read"]}"#),
        ("more than one document", b"{} {}"),
        ("a hundred thousand brackets", deep.as_bytes()),
    ];
    for route in ROUTES.iter().filter(|route| route.body != Body::None) {
        let route_name = format!("{} {}", route.method, route.path);
        for (name, body) in bodies {
            if route.body == Body::Optional && matches!(body, b"" | b"{}") {
                continue;
            }
            let request = route
                .request(&host(system.admin))
                .token(&system.token)
                .header("Content-Type", "application/json")
                .body(body);
            let answer = request.send(system.admin).await.unwrap();
            expect_problem(&format!("{route_name} with {name}"), &answer, &[400, 422]);
        }
        let untyped = route
            .request(&host(system.admin))
            .token(&system.token)
            .header("Content-Type", "text/plain")
            .body("{}");
        expect_problem(
            &format!("{route_name} as text"),
            &untyped.send(system.admin).await.unwrap(),
            &[400, 415, 422],
        );
        // Ten megabytes, announced and not, through nginx and past it.
        let large = vec![b' '; 10 << 20];
        for to in [system.admin, system.pacemaker] {
            let request = route
                .request(&host(to))
                .token(&system.token)
                .header("Content-Type", "application/json")
                .body(large.clone());
            let answer = request.send(to).await.unwrap();
            expect_problem(&format!("{route_name} with 10 MB"), &answer, &[413]);
        }
        let mut chunked = format!(
            "{} {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
            route.method,
            route.target(),
            system.token
        )
        .into_bytes();
        chunked.extend(format!("{:x}\r\n", large.len()).into_bytes());
        chunked.extend(&large);
        chunked.extend(b"\r\n0\r\n\r\n");
        let answer = Connection::open(system.pacemaker).await.unwrap().send_raw(&chunked).await.unwrap();
        expect_problem(&format!("{route_name} with 10 MB in chunks"), &answer, &[413]);
    }
    assert_eq!(
        system.cli::<i64>(System::PRIMARY, "GET serial").await,
        before,
        "none of it changed the table"
    );
    expect_well(&system, &app).await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_values_are_rejected() {
    let system = System::start("values").await;
    let app = App::start("app").await;
    let before: i64 = system.cli::<Option<i64>>(System::PRIMARY, "GET serial").await.unwrap_or(0);
    let good =
        json!({"address": app.address.to_string(), "hostnames": ["app.test"], "version_type_id": "17"});
    let long_label = format!("{}.test", "a".repeat(64));
    let bad: Vec<(&str, Value)> = [
        // Addresses: names, no port, ports that are none, other machines, our own ports, control characters.
        ("address", json!("localhost:9001")),
        ("address", json!("shop.example:80")),
        ("address", json!("127.0.0.1")),
        ("address", json!("127.0.0.1:")),
        ("address", json!("127.0.0.1:0")),
        ("address", json!("127.0.0.1:65536")),
        ("address", json!("127.0.0.1:-1")),
        ("address", json!("127.0.0.1:80:80")),
        ("address", json!("127.0.0.1:80\r\nX: y")),
        ("address", json!("127.0.0.1 :80")),
        ("address", json!("127.1:80")),
        ("address", json!("0177.0.0.1:80")),
        ("address", json!("2130706433:80")),
        ("address", json!("::1:80")),
        ("address", json!("8.8.8.8:53")),
        ("address", json!("0.0.0.0:80")),
        ("address", json!("169.254.169.254:80")),
        ("address", json!("[::ffff:8.8.8.8]:80")),
        ("address", json!("http://127.0.0.1:80")),
        ("address", json!("unix:relative.sock")),
        ("address", json!("unix:/tmp/a b")),
        ("address", json!("")),
        ("address", json!("x".repeat(100_000))),
        ("address", json!(system.edge.to_string())),
        ("address", json!(system.admin.to_string())),
        ("address", json!(system.pacemaker.to_string())),
        // Host names: too long, empty labels, control characters, the table's own syntax, addresses.
        ("hostnames", json!([])),
        ("hostnames", json!([""])),
        ("hostnames", json!(["."])),
        ("hostnames", json!([format!("{}.test", "a.".repeat(150))])),
        ("hostnames", json!(["a".repeat(300)])),
        ("hostnames", json!([long_label])),
        ("hostnames", json!(["a..test"])),
        ("hostnames", json!([".test"])),
        ("hostnames", json!(["a b.test"])),
        ("hostnames", json!(["a\u{0}.test"])),
        ("hostnames", json!(["a\n.test"])),
        ("hostnames", json!(["a.test:80"])),
        ("hostnames", json!(["http://a.test/"])),
        ("hostnames", json!(["a.*.test"])),
        ("hostnames", json!(["**.test"])),
        ("hostnames", json!(["a*.test"])),
        ("hostnames", json!(["m\u{fc}ller.test"])),
        ("hostnames", json!([null])),
        ("hostnames", json!(["ok.test", 5])),
        ("hostnames", json!((0..10_000).map(|n| format!("h{n}.test")).collect::<Vec<_>>())),
        ("version_type_id", json!(null)),
        ("version_type_id", json!("")),
        ("version_type_id", json!("a b")),
        ("version_type_id", json!("a\u{0}b")),
        ("version_type_id", json!("x".repeat(5_000))),
        ("version_type_id", json!(1.5)),
        ("version_id", json!(["3"])),
        ("weight", json!(1001)),
        ("weight", json!(-1)),
        ("weight", json!(1e30)),
        ("weight", json!("1")),
        ("lease_seconds", json!(0)),
        ("lease_seconds", json!(-5)),
        ("lease_seconds", json!(0.5)),
        ("lease_seconds", json!(99_999_999_999_u64)),
        ("health", json!({"path": "no-slash"})),
        ("health", json!({"path": "/\r\nHost: other"})),
        ("health", json!("/health")),
    ]
    .into();
    for (field, value) in &bad {
        let mut body = good.clone();
        body[*field] = value.clone();
        let what: String = format!("{field} = {value}").chars().take(120).collect();
        let answer = system.api("PUT", "/instances/i-1", Some(body)).await;
        expect_problem(&what, &answer, &[400, 422]);
    }
    for id in ["%00", "a%20b", "a%2fb", "%ff", "%0d%0aX:%20y", &"x".repeat(1000)] {
        for (method, suffix, body) in
            [("PUT", "", Some(&good)), ("GET", "", None), ("DELETE", "", None), ("POST", "/heartbeat", None)]
        {
            let answer = system.api(method, &format!("/instances/{id}{suffix}"), body.cloned()).await;
            expect_problem(&format!("{method} of the instance {id}"), &answer, &[400, 404, 422]);
        }
    }
    let names = ["%00", "a%20b", "a..b", "%ff", "a%2fb", &"x".repeat(300), &"a.".repeat(150)];
    for name in names {
        for method in ["GET", "DELETE"] {
            let target = format!("/hosts/{name}");
            let answer = system.api(method, &target, None).await;
            expect_problem(&format!("{method} {target}"), &answer, &[400, 404, 422]);
        }
        // An invalid host name is reported as having no route.
        let answer = system.api("GET", &format!("/routes/explain?host={name}"), None).await;
        assert!(answer.status < 500, "{name}: {} {}", answer.status, answer.text());
    }
    for query in ["wait=", "wait=x", "wait=-1s", "wait=5", "wait=1e9s", "wait=99999h", "wait=1s&wait=2s"] {
        let answer = system.api("PUT", &format!("/instances/i-1?{query}"), Some(good.clone())).await;
        // A bare number of seconds is generous, two waits are a matter of taste; neither may be a 5xx.
        assert!(answer.status < 500, "{query}: {} {}", answer.status, answer.text());
    }
    for target in [
        "/instances?limit=x",
        "/instances?limit=-1",
        "/instances?cursor=%00",
        "/instances?cursor=%ff%fe",
        "/hosts?limit=99999999999999999999",
        "/routes/explain",
        "/stats/version_type/17/history",
        "/stats/version_type/17/history?metric=nonsense",
        "/stats/version_type/17/history?metric=requests&step=0",
        "/stats/version_type/17/history?metric=requests&step=x",
        "/stats/version_type/17/history?metric=requests&start=9&end=1",
        "/stats/version_type/17/history?metric=requests&start=0&end=9999999999&step=1",
        "/stats/version_type/17/history?metric=requests&start=-9223372036854775808&end=9223372036854775807",
        "/stats/version_type/17/latency?start=9&end=1",
        "/stats/instance/no-such/latency",
        "/stats/nonsense/17",
        "/stats/version_type/a%20b",
        "/stats/version_type/%00",
    ] {
        let answer = system.api("GET", target, None).await;
        assert!(answer.status < 500, "{target}: {} {}", answer.status, answer.text());
        if answer.status >= 400 {
            expect_problem(target, &answer, &[400, 404, 422]);
        }
    }
    let serial: i64 = system.cli::<Option<i64>>(System::PRIMARY, "GET serial").await.unwrap_or(0);
    // The waits above may have registered the good one, once.
    assert!(serial <= before + 1, "bad values changed the table: {before}, {serial}");
    let keys: Vec<String> = system.cli(System::PRIMARY, "KEYS instances:*").await;
    assert!(keys.iter().all(|key| key == "instances:app.test"), "{keys:?}");
    expect_well(&system, &app).await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_methods_and_paths_are_rejected() {
    let system = System::start("not-there").await;
    let app = App::start("app").await;
    for to in [system.admin, system.pacemaker, system.sidecar] {
        for path in [
            "/nonsense",
            "/instances/i-1/nonsense",
            "/instances//",
            "/stats/x/y/z/w",
            "/%2e%2e/%2e%2e/etc/passwd",
            "/.git/config",
        ] {
            let answer = Request::get(&host(to), path).token(&system.token).send(to).await.unwrap();
            expect_problem(&format!("GET {path} at {to}"), &answer, &[400, 404]);
        }
    }
    for route in ROUTES {
        for method in ["PATCH", "TRACE", "BREW"] {
            if ROUTES.iter().any(|other| other.path == route.path && other.method == method) {
                continue;
            }
            let request = Request::new(method, &host(system.admin), &route.target()).token(&system.token);
            let answer = request.send(system.admin).await.unwrap();
            assert!(
                matches!(answer.status, 404 | 405),
                "{method} {}: {} {}",
                route.path,
                answer.status,
                answer.text()
            );
            // nginx rejects TRACE before it routes the request.
            if method != "TRACE" {
                expect_problem(&format!("{method} {}", route.path), &answer, &[404, 405]);
            }
        }
    }
    expect_well(&system, &app).await;
    system.stop().await;
}

/// Bytes that are not even HTTP, at every listener. Closing without a word is an answer as well.
#[tokio::test(flavor = "multi_thread")]
async fn every_listener_survives_random_bytes() {
    let system = System::start("noise").await;
    let app = App::start("app").await;
    let noise: [&[u8]; 9] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00\x00\x00\x00\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ];
    for to in [system.edge, system.admin, system.pacemaker, system.sidecar] {
        for bytes in noise {
            let mut connection = Connection::open(to).await.unwrap();
            // A noise request that announces a longer body gets no answer: the client disconnects.
            let answer = connection.send_noise(bytes).await;
            if let Some(answer) = answer {
                assert!((400..=505).contains(&answer.status), "{to}: {bytes:?} got {}", answer.status);
            }
        }
    }
    expect_well(&system, &app).await;
    system.stop().await;
}
