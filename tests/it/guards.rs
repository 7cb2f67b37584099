//! Limits and rules of single hosts, and protections that apply to all hosts.

use serde_json::{Value, json};
use signalbox_testkit::{equal, eventually};
use signalbox_tests::{
    http::{Connection, Request, Response},
    load,
    system::System,
    upstream::App,
};

async fn rule(system: &System, host: &str, policy: &Value) {
    system.cli::<()>(System::PRIMARY, &format!("SET policy:{host} {policy}")).await;
    system.settle().await;
}

/// An edge with one application at `app.test` under this policy.
async fn guarded(name: &str, policy: Value) -> (System, App) {
    let system = System::edge_only(name).await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.cli::<()>(System::PRIMARY, "SET logkey:app.test 17").await;
    rule(&system, "app.test", &policy).await;
    (system, app)
}

async fn send(system: &System, request: Request) -> Response {
    request.send(system.edge).await.unwrap()
}

fn get() -> Request {
    Request::get("app.test", "/")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limited_client_receives_the_time_to_retry() {
    // A burst of three requests, then one per thousand seconds, so that the test does not depend on
    // a clock.
    let limits = json!({"requests": {"per_second": 0.001, "burst": 2, "by": {"header": "X-Key"}}});
    let (system, app) = guarded("rate", json!({"limits": limits})).await;
    for key in ["one", "two"] {
        for n in 0..5 {
            let answer = send(&system, get().header("X-Key", key)).await;
            if n < 3 {
                assert_eq!(answer.status, 200, "{key}, request {n}");
            } else {
                assert_eq!(
                    (answer.status, answer.reason()),
                    (429, "too_many_requests"),
                    "{key}, request {n}"
                );
                let wait: u64 = answer.header("Retry-After").unwrap().parse().unwrap();
                assert!((900..=1000).contains(&wait), "{wait}");
            }
        }
    }
    // Leaving the header out is no way around it: then the address counts.
    let account = load::send(system.edge, 2, 10, |_| get()).await;
    assert_eq!((account.codes[&200], account.codes[&429]), (3, 7));
    assert_eq!(app.hits(), 9);
    let lines = system.log_lines_when(20).await;
    assert!(lines.iter().all(|line| line["key"] == "17"), "refused requests count for the host");
    assert_eq!(lines.iter().filter(|line| line["code"] == 429).count(), 11);
    let metrics = system.metrics().await;
    assert!(metrics.contains(&("signalbox_edge_limited_total".to_owned(), 11.0)), "{metrics:?}");
    system.stop().await;
}

/// The workers of the router share the count. Each pair of them that decides at the same instant counts both requests.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_arrive_at_the_same_instant_are_all_counted() {
    let limits = json!({"requests": {"per_second": 0.001, "burst": 2, "by": {"header": "X-Key"}}});
    let (system, _app) = guarded("rate-instant", json!({"limits": limits})).await;
    for key in 0..100 {
        let sent = load::send(system.edge, 8, 16, move |_| get().header("X-Key", &key.to_string())).await;
        assert_eq!((sent.codes[&200], sent.codes[&429]), (3, 13), "key {key}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_of_a_client_are_limited() {
    let limits = json!({"connections": {"most": 2, "by": "address"}});
    let (system, app) = guarded("connections", json!({"limits": limits})).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut connection = Connection::open(system.edge).await.unwrap();
        connection.write(&Request::get("app.test", "/hold").to_bytes()).await.unwrap();
        held.push(connection);
    }
    eventually("requests held", async || equal(app.running(), 2)).await;
    for _ in 0..3 {
        let answer = send(&system, get()).await;
        assert_eq!((answer.status, answer.reason()), (429, "too_many_connections"));
    }
    // One client disconnects, the other gets its answer: both slots are free again.
    held.pop();
    app.release();
    system.until_status("app.test", 200).await;
    drop(held);
    for _ in 0..20 {
        assert_eq!(send(&system, get()).await.status, 200, "a place that was not given back");
    }
    // Also when the instance is gone.
    system.allow("connect() failed");
    system.allow("prematurely closed connection");
    let mut app = app;
    app.kill().await;
    for _ in 0..5 {
        assert_eq!(send(&system, get()).await.status, 502);
    }
    app.start_again().await;
    system.until_status("app.test", 200).await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_and_methods_are_bounded_by_host() {
    let (system, app) = guarded("bodies", json!({"body_bytes": 1000, "methods": ["get", "post"]})).await;
    let post = |size: usize| Request::new("POST", "app.test", "/").body(vec![b'x'; size]);
    assert_eq!(send(&system, post(1000)).await.status, 200);
    let answer = send(&system, post(1001)).await;
    assert_eq!((answer.status, answer.reason()), (413, "body_too_large"));
    // A body without an announced length is limited as well.
    let chunked = |size: usize| {
        let head = "POST / HTTP/1.1\r\nHost: app.test\r\nTransfer-Encoding: chunked\r\n\r\n";
        format!("{head}{size:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(size)).into_bytes()
    };
    let raw =
        async |bytes: Vec<u8>| Connection::open(system.edge).await.unwrap().send_raw(&bytes).await.unwrap();
    assert_eq!(raw(chunked(1000)).await.status, 200);
    assert_eq!(raw(chunked(1001)).await.status, 413);
    let before = app.hits();
    for method in ["PUT", "DELETE", "PATCH"] {
        let answer = send(&system, Request::new(method, "app.test", "/")).await;
        assert_eq!((answer.status, answer.reason()), (405, "method_not_allowed"), "{method}");
        assert_eq!(answer.header("Allow"), Some("GET, HEAD, POST"), "{method}");
    }
    assert_eq!(app.hits(), before);
    let mut connection = Connection::open(system.edge).await.unwrap();
    assert_eq!(connection.send(&Request::new("HEAD", "app.test", "/")).await.unwrap().status, 200);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_and_response_headers_are_changed_but_not_those_of_the_edge() {
    let policy = json!({"headers": {
        "request": {"set": {"X-Env": "live", "Host": "evil", "X-Forwarded-For": "evil", "Connection": "evil",
            "X-Bad": "a\r\nX-Injected:1"}, "remove": ["X-Debug", "X-Request-ID"]},
        "response": {"set": {"X-Frame-Options": "DENY", "Content-Length": "1"}, "remove": ["X-App"]}}});
    let (system, _app) = guarded("headers-policy", policy).await;
    let answer = send(&system, Request::get("app.test", "/echo").header("X-Debug", "1")).await;
    let echo = answer.text();
    assert!(echo.contains("X-Env: live\r\n"), "{echo}");
    assert!(!echo.contains("X-Debug") && !echo.contains("evil") && !echo.contains("X-Injected"), "{echo}");
    assert!(echo.contains("X-Request-ID: "), "{echo}");
    assert_eq!(answer.header("X-Frame-Options"), Some("DENY"));
    assert_eq!(answer.header("X-App"), None);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn maintenance_answers_all_clients_except_those_with_access() {
    let policy = json!({"maintenance": {"status": 503, "body": "back\u{20}soon", "content_type": "text/x-note",
        "retry_after": 60, "except_header": {"name": "X-Preview", "value": "letmein"}}});
    // No instance is needed for it, and no blanks in what is typed into redis-cli.
    let policy = serde_json::from_str(&policy.to_string().replace("back soon", "back_soon")).unwrap();
    let (system, app) = guarded("maintenance", policy).await;
    let answer = send(&system, get()).await;
    assert_eq!((answer.status, &*answer.text()), (503, "back_soon"));
    assert_eq!(answer.header("Content-Type"), Some("text/x-note"));
    assert_eq!(answer.header("Retry-After"), Some("60"));
    assert_eq!(answer.reason(), "maintenance");
    assert_eq!(send(&system, get().header("X-Preview", "guess")).await.status, 503);
    assert_eq!(send(&system, get().header("X-Preview", "letmein")).await.status, 200);
    assert_eq!(app.hits(), 1);
    // Certificates are renewed all the same.
    let challenge = Request::get("app.test", "/.well-known/acme-challenge/token");
    assert_eq!(send(&system, challenge).await.status, 200);
    // Without a body: the edge's own, in the form that was asked for.
    system.cli::<()>(System::PRIMARY, "DEL instances:app.test").await;
    rule(&system, "app.test", &json!({"maintenance": {}})).await;
    let answer = send(&system, get()).await;
    assert_eq!((answer.status, &answer.json()["code"]), (503, &json!("maintenance")));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_is_redirected_to_https_or_rejected() {
    let system = System::with("https", |builder| {
        builder.without_pacemaker().without_sidecar().nginx("EDGE_HTTPS_PORT", "8443")
    })
    .await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    rule(&system, "app.test", &json!({"https": "redirect"})).await;
    let answer = system.get("app.test:8080", "/path?q=1%20x").await;
    assert_eq!(answer.status, 301);
    assert_eq!(answer.header("Location"), Some("https://app.test:8443/path?q=1%20x"));
    let answer = Request::new("POST", "app.test", "/").body("x").send(system.edge).await.unwrap();
    assert_eq!(answer.status, 308, "a POST stays one");
    let challenge = system.get("app.test", "/.well-known/acme-challenge/token").await;
    assert_eq!((challenge.status, app.hits()), (200, 1));
    // The header is trusted only from trusted proxies.
    let claim = Request::get("app.test", "/").header("X-Forwarded-Proto", "https");
    assert_eq!(claim.send(system.edge).await.unwrap().status, 301);
    rule(&system, "app.test", &json!({"https": "only"})).await;
    let answer = system.get("app.test", "/").await;
    assert_eq!((answer.status, answer.reason()), (403, "https_only"));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_instance_is_reached_only_with_a_ticket() {
    let system = System::edge_only("target").await;
    let apps = [App::start("a").await, App::start("b").await, App::start("c").await];
    for app in &apps {
        system.route("app.test", app).await;
        system.route("closed.test", app).await;
    }
    let key = std::fs::read_to_string(system.stack.layout().edge_key()).unwrap();
    let key = derive(key.trim(), "target");
    let draining = json!({"target_header": true, "draining": [apps[2].address.to_string()]});
    rule(&system, "app.test", &draining).await;
    rule(&system, "closed.test", &json!({"balance": {"algorithm": "p2c"}})).await;
    let ticket = |host: &str, address: &str, expires: u64| {
        format!("{address};{expires};{}", hmac(&key, &format!("{host}\n{address}\n{expires}")))
    };
    let ask = async |host: &str, ticket: &str| {
        Request::get(host, "/").header("X-Signalbox-Target", ticket).send(system.edge).await.unwrap()
    };
    const FAR: u64 = 99_999_999_999;
    for app in &apps {
        let address = app.address.to_string();
        for _ in 0..5 {
            let answer = ask("app.test", &ticket("app.test", &address, FAR)).await;
            assert_eq!(answer.header("X-App"), Some(app.name()), "{answer:?}");
        }
    }
    let address = apps[0].address.to_string();
    let good = ticket("app.test", &address, FAR);
    for bad in [
        "nonsense".to_owned(),
        address.clone(),
        format!("{address};{FAR};00"),
        good.replace(&format!(";{FAR};"), &format!(";{};", FAR - 1)),
        ticket("other.test", &address, FAR),
        ticket("app.test", &address, 1),
    ] {
        let answer = ask("app.test", &bad).await;
        assert_eq!((answer.status, answer.reason()), (403, "bad_ticket"), "{bad}");
    }
    let answer = ask("app.test", &ticket("app.test", "127.0.0.1:1", FAR)).await;
    assert_eq!((answer.status, answer.reason()), (503, "target_gone"));
    // Where it is not allowed the header is like any other.
    let account = load::send(system.edge, 1, 60, move |_| {
        Request::get("closed.test", "/").header("X-Signalbox-Target", &good)
    })
    .await;
    assert_eq!(account.apps.len(), 3, "{account:?}");
    system.stop().await;
}

/// HMAC-SHA-256 in hexadecimal, by openssl: what a script of an operator would use.
fn hmac(hex_key: &str, text: &str) -> String {
    use std::io::Write as _;
    let mut openssl = std::process::Command::new("openssl")
        .args(["dgst", "-sha256", "-mac", "HMAC", "-macopt", &format!("hexkey:{hex_key}")])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("openssl");
    openssl.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = String::from_utf8(openssl.wait_with_output().unwrap().stdout).unwrap();
    output.trim().rsplit(' ').next().unwrap().to_owned()
}

/// The key for one purpose, as every router derives it.
fn derive(hex_key: &str, purpose: &str) -> String {
    hmac(hex_key, &format!("signalbox {purpose}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_host_is_answered_with_a_page_or_a_problem_as_accepted() {
    let system = System::edge_only("default-page").await;
    for (accept, html) in [
        (None, false),
        (Some("*/*"), false),
        (Some("application/json"), false),
        (Some("text/html,application/xhtml+xml,*/*;q=0.8"), true),
        (Some("application/json, text/html"), false),
    ] {
        let mut request = Request::get("nobody.test", "/<script>");
        if let Some(accept) = accept {
            request = request.header("Accept", accept);
        }
        let answer = send(&system, request).await;
        assert_eq!((answer.status, answer.reason()), (404, "no_route"), "{accept:?}");
        let kind = answer.header("Content-Type").unwrap();
        assert_eq!(kind.starts_with("text/html"), html, "{accept:?}: {kind}");
        assert_eq!(answer.header("Vary"), Some("Accept"));
        if html {
            assert!(answer.text().contains("No application is registered"), "{}", answer.text());
            assert!(!answer.text().contains("<script>"), "{}", answer.text());
        } else {
            assert_eq!(answer.json()["code"], "no_route");
        }
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_continues_or_begins_with_the_id_of_the_log() {
    let system = System::edge_only("trace").await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;
    let header = |echo: &str, name: &str| {
        let line = echo.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}: ")));
        line.map(|line| line[name.len() + 2..].to_owned())
    };
    let echo = system.get("app.test", "/echo").await.text();
    let trace = header(&echo, "traceparent").unwrap();
    let parts: Vec<&str> = trace.split('-').collect();
    assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [2, 32, 16, 2], "{trace}");
    assert_eq!(Some(parts[1].to_owned()), header(&echo, "x-request-id"));
    let given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let request = Request::get("app.test", "/echo").header("traceparent", given).header("tracestate", "a=b");
    let echo = send(&system, request).await.text();
    assert_eq!(header(&echo, "traceparent").as_deref(), Some(given));
    assert_eq!(header(&echo, "tracestate").as_deref(), Some("a=b"));
    // An unreadable `traceparent` is not a trace, and its `tracestate` is dropped.
    let request =
        Request::get("app.test", "/echo").header("traceparent", "00-zz").header("tracestate", "a=b");
    let echo = send(&system, request).await.text();
    assert_ne!(header(&echo, "traceparent").as_deref(), Some("00-zz"));
    assert_eq!(header(&echo, "tracestate"), None, "{echo}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_can_be_smuggled_in_another() {
    let system = System::edge_only("smuggling").await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.route("ruled.test", &app).await;
    rule(&system, "ruled.test", &json!({"balance": {"algorithm": "p2c"}})).await;
    system.allow("client sent invalid chunked body");
    let hidden = "GET /hidden HTTP/1.1\r\nHost: app.test\r\n\r\n";
    let length = hidden.len();
    let bodies = [
        // Two lengths that differ, or are none.
        format!("Content-Length: {length}\r\nContent-Length: 0\r\n\r\n{hidden}"),
        format!("Content-Length: +{length}\r\n\r\n{hidden}"),
        format!("Content-Length: 0x{length:x}\r\n\r\n{hidden}"),
        format!("Content-Length: {length}, {length}\r\n\r\n{hidden}"),
        "Content-Length: -1\r\n\r\n".to_owned() + hidden,
        // A length and chunks.
        format!("Content-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}", length + 5),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {}\r\n\r\n0\r\n\r\n{hidden}", length + 5),
        // Codings that only one side understands.
        format!("Transfer-Encoding: xchunked\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding:\u{b}chunked\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        // Invalid header names, and continued lines.
        format!("Content-Length : {length}\r\n\r\n{hidden}"),
        format!("Transfer-Encoding : chunked\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        format!("X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        // Chunks that are none.
        format!("Transfer-Encoding: chunked\r\n\r\nzz\r\n{hidden}"),
        format!("Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{hidden}"),
        format!("Transfer-Encoding: chunked\r\n\r\n-1\r\n{hidden}"),
        format!("X: a\0b\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        // Lines that only one of the two sides considers ended or continued.
        format!("Content-Length:\r\n {length}\r\n\r\n{hidden}"),
        format!("X: y\rContent-Length: {length}\r\n\r\n{hidden}"),
        format!(
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n{length:x}\r\n{hidden}\r\n0\r\n\r\n"
        ),
        format!(
            "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n{length:x}\r\n{hidden}\r\n0\r\n\r\n"
        ),
        // Extensions of chunks: plain, with a quoted end, ended by half an end of line, without end; and trailers.
        format!("Transfer-Encoding: chunked\r\n\r\n{length:x};name=value\r\n{hidden}\r\n0\r\n\r\n"),
        format!("Transfer-Encoding: chunked\r\n\r\n{length:x};a=\"\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: chunked\r\n\r\n2;\nxx\r\n{length:x}\r\n{hidden}\r\n0\r\n\r\n"),
        format!("Transfer-Encoding: chunked\r\n\r\n{length:x};{}\r\n{hidden}\r\n0\r\n\r\n", "x".repeat(9000)),
        format!("Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{hidden}\r\n0\r\nHost: evil.test\r\n\r\n"),
    ];
    for host in ["app.test", "ruled.test"] {
        for body in &bodies {
            let before = app.hits();
            let bytes = format!("POST /seen HTTP/1.1\r\nHost: {host}\r\n{body}");
            let mut connection = Connection::open(system.edge).await.unwrap();
            let answer = connection.send_noise(bytes.as_bytes()).await;
            // Refused; or passed on as the one request that the edge and the instance both see.
            if let Some(answer) = &answer {
                assert!(matches!(answer.status, 200 | 400 | 413 | 501), "{bytes:?}: {answer:?}");
            }
            assert_eq!(send(&system, Request::get("app.test", "/check")).await.status, 200);
            let seen = app.hits() - before - 1;
            assert!(seen <= 1, "{bytes:?} became {seen} requests");
        }
    }
    // Each with the check behind it, over two hosts, and nothing else.
    let lines = system.log_lines_when(bodies.len() * 4).await;
    assert!(lines.iter().all(|line| line["uri"] != "/hidden"), "{lines:?}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_of_a_connection_stay_on_it() {
    let system = System::edge_only("hop-by-hop").await;
    let app = App::start("app").await;
    for host in ["app.test", "ruled.test"] {
        system.route(host, &app).await;
    }
    rule(&system, "ruled.test", &json!({"balance": {"algorithm": "p2c"}})).await;
    for host in ["app.test", "ruled.test"] {
        let request = Request::get(host, "/echo")
            .header("Connection", "keep-alive, X-Forwarded-For, X-Request-ID")
            .header("Keep-Alive", "timeout=5")
            .header("Proxy-Connection", "keep-alive")
            .header("Proxy", "http://evil.test/")
            .header("TE", "trailers")
            .header("X-Forwarded-Host", "evil.test")
            .header("X-Real-IP", "203.0.113.1");
        let echo = send(&system, request).await.text();
        let lower = echo.to_ascii_lowercase();
        for name in ["keep-alive:", "proxy-connection:", "proxy:", "te:", "evil.test"] {
            assert!(
                !lower.contains(&format!("\n{name}")) && !lower.contains("evil.test"),
                "{host}, {name}: {echo}"
            );
        }
        // A client cannot remove headers that the edge sets by naming them in `Connection`.
        assert!(echo.contains("X-Forwarded-For: 127.0.0.1\r\n"), "{echo}");
        assert!(echo.contains("X-Real-IP: 127.0.0.1\r\n"), "{echo}");
        assert!(lower.contains("x-request-id: "), "{echo}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarded_addresses_are_accepted_only_from_trusted_proxies() {
    let system = System::with("forwarders", |builder| {
        builder.without_pacemaker().without_sidecar().nginx("EDGE_FORWARDERS", "127.0.0.0/8 10.0.0.0/8")
    })
    .await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    rule(&system, "app.test", &json!({"https": "redirect"})).await;
    let request = Request::get("app.test", "/echo")
        .header("X-Forwarded-For", "203.0.113.9, 10.1.2.3")
        .header("X-Forwarded-Proto", "https");
    let answer = send(&system, request).await;
    assert_eq!(answer.status, 200, "it came over https: {answer:?}");
    let echo = answer.text();
    assert!(echo.contains("X-Real-IP: 203.0.113.9\r\n"), "the last one that is not trusted: {echo}");
    assert!(echo.contains("X-Forwarded-For: 203.0.113.9, 10.1.2.3, 127.0.0.1\r\n"), "{echo}");
    assert!(echo.contains("X-Forwarded-Proto: https\r\n"), "{echo}");
    assert_eq!(system.get("app.test", "/").await.status, 301);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_protocol_carries_the_clients_address() {
    let mut reservation = signalbox_stack::Reservation::default();
    let port = reservation.add().expect("a free port");
    let system = System::with("proxy-protocol", |builder| {
        builder
            .without_pacemaker()
            .without_sidecar()
            .nginx("EDGE_LISTEN", format!("127.0.0.1:{port} proxy_protocol"))
            .nginx("EDGE_FORWARDERS", "127.0.0.1")
            .nginx("EDGE_REAL_IP_HEADER", "proxy_protocol")
    })
    .await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;
    let edge = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let get = "GET /echo HTTP/1.1\r\nHost: app.test\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n";
    let announced = format!("PROXY TCP4 203.0.113.7 127.0.0.1 5555 80\r\n{get}");
    let echo = Connection::open(edge).await.unwrap().send_raw(announced.as_bytes()).await.unwrap().text();
    assert!(echo.contains("X-Real-IP: 203.0.113.7\r\n"), "{echo}");
    assert!(echo.contains("X-Forwarded-For: 203.0.113.7\r\n"), "{echo}");
    let silent = Connection::open(edge).await.unwrap().send_noise(get.as_bytes()).await;
    assert!(silent.is_none_or(|answer| answer.status == 400), "a request without a Host header is rejected");
    system.allow("broken header");
    system.stop().await;
}
