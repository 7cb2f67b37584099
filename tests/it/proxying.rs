//! How the edge handles a request between the client and the instance.

use signalbox_testkit::{equal, eventually};
use signalbox_tests::{
    http::{Connection, Request},
    load,
    system::System,
    upstream::{App, Mode},
};

/// The first header of this name in an echoed request.
fn header<'a>(echo: &'a str, name: &str) -> Option<&'a str> {
    echo.lines()
        .filter_map(|line| line.split_once(": "))
        .find(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_receives_the_clients_address_and_the_log_has_the_request_id() {
    let system = System::edge_only("headers").await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;

    let echo = system.get("app.test:8080", "/echo?a=b%20c").await.text();
    assert!(echo.starts_with("GET /echo?a=b%20c HTTP/1.1\r\n"), "the target is passed on as it came: {echo}");
    assert_eq!(header(&echo, "Host"), Some("app.test:8080"));
    assert_eq!(header(&echo, "X-Forwarded-Host"), Some("app.test:8080"));
    assert_eq!(header(&echo, "X-Forwarded-For"), Some("127.0.0.1"));
    assert_eq!(header(&echo, "X-Forwarded-Proto"), Some("http"));
    let id = header(&echo, "X-Request-ID").unwrap().to_owned();
    assert_eq!(id.len(), 32, "{id}");
    assert!(id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");

    // A request ID that cannot break the log is kept.
    let request = Request::get("app.test", "/echo").header("X-Request-ID", "client-id-0001");
    let echo = request.send(system.edge).await.unwrap().text();
    assert_eq!(header(&echo, "X-Request-ID"), Some("client-id-0001"));
    let hostile = Request::get("app.test", "/echo").header("X-Request-ID", r#"","key":"1","x":""#);
    let echo = hostile.send(system.edge).await.unwrap().text();
    assert_eq!(header(&echo, "X-Request-ID").map(str::len), Some(32), "{echo}");

    let lines = system.log_lines_when(3).await;
    // A miss is a list that begins with the look-up.
    assert!(lines[0]["upstream_addr"].as_str().unwrap().ends_with(&app.address.to_string()), "{}", lines[0]);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_arrive_complete_on_every_path() {
    let system = System::edge_only("bodies").await;
    let app = App::start("app").await;
    system.route("cold.test", &app).await;
    system.route("ruled.test", &app).await;
    system.cli::<()>(System::PRIMARY, r#"SET policy:ruled.test {"v":1}"#).await;
    system.settle().await;
    // More than nginx keeps in memory, so that the body goes through a file as well.
    for size in [0, 1, 20_000, 3_000_000] {
        let body: Vec<u8> = (0..size).map(|n: usize| b"abcdefghijklmnopqrstuvwxyz"[n % 26]).collect();
        // The first is the miss path (the host is not known to the worker), the next the hot one, the last @full.
        for host in ["cold.test", "cold.test", "ruled.test"] {
            let request = Request::new("POST", host, "/echo").body(body.clone());
            let answer = request.send(system.edge).await.unwrap();
            assert_eq!(answer.status, 200, "{host}, {size}");
            assert!(answer.body.ends_with(&body), "{host}: a body of {size} bytes changed on the way");
            assert!(
                answer.body.len() > body.len() && answer.body.starts_with(b"POST /echo"),
                "{host}, {size}"
            );
        }
        // A name that comes into being is a miss again.
        system.cli::<()>(System::PRIMARY, "DEL instances:cold.test").await;
        system.settle().await;
        system.route("cold.test", &app).await;
        system.settle().await;
    }
    let chunked = "POST /echo HTTP/1.1\r\nHost: cold.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    let answer = Connection::open(system.edge).await.unwrap().send_raw(chunked.as_bytes()).await.unwrap();
    assert!(answer.text().ends_with("\r\n\r\nabcde"), "{}", answer.text());
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_passes_in_both_directions() {
    let system = System::edge_only("websocket").await;
    let app = App::start("app").await;
    system.route("socket.test", &app).await;
    system.settle().await;
    // Twice: through the miss path and through the hot one.
    for round in 0..2 {
        let mut connection = Connection::open(system.edge).await.unwrap();
        let upgrade = Request::get("socket.test", "/live")
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(connection.send(&upgrade).await.unwrap().status, 101, "round {round}");
        for message in [&b"\x81\x03one"[..], b"\x82\x04\x00\xff\r\n"] {
            connection.write(message).await.unwrap();
            assert_eq!(connection.read_exactly(message.len()).await.unwrap(), message);
        }
    }
    // Any other protocol stays outside: it would go past routing and log.
    let other = Request::get("socket.test", "/echo").header("Connection", "Upgrade").header("Upgrade", "h2c");
    let answer = other.send(system.edge).await.unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(header(&answer.text(), "Upgrade"), None, "{}", answer.text());
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_refuses_connections_is_skipped() {
    let system = System::edge_only("refuses").await;
    let (mut dead, alive) = (App::start("dead").await, App::start("alive").await);
    system.route("app.test", &dead).await;
    system.route("app.test", &alive).await;
    system.settle().await;
    system.allow("connect() failed");
    dead.kill().await;
    // A connection that was refused has carried nothing, so even a POST may try the next instance.
    for method in ["GET", "POST"] {
        for _ in 0..20 {
            let answer = Request::new(method, "app.test", "/").body("x").send(system.edge).await.unwrap();
            assert_eq!((answer.status, &*answer.text()), (200, "alive"));
        }
    }
    assert_eq!(alive.hits(), 40);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_idempotent_requests_are_repeated() {
    let system = System::edge_only("repeats").await;
    system.allow("upstream prematurely closed connection");
    let good = App::start("good").await;
    for (n, mode) in [Mode::Close, Mode::Status(502), Mode::Status(503)].into_iter().enumerate() {
        // Another one each time, and few enough failures that it is not ejected before the POSTs come.
        let (host, bad) = (format!("app{n}.test"), App::start("bad").await);
        bad.set(mode);
        system.route(&host, &bad).await;
        system.route(&host, &good).await;
        system.settle().await;
        for _ in 0..6 {
            let answer = system.get(&host, "/").await;
            assert_eq!((answer.status, &*answer.text()), (200, "good"), "a GET, {mode:?}");
        }
        // A POST has reached the instance: whatever it did, it must not do twice.
        let before = bad.hits() + good.hits();
        let mut failed = 0;
        for _ in 0..10 {
            let answer = Request::new("POST", &host, "/").body("x").send(system.edge).await.unwrap();
            failed += u64::from(answer.status >= 500);
        }
        assert_eq!(bad.hits() + good.hits() - before, 10, "{mode:?}: each POST reaches one instance");
        assert!(failed > 0, "{mode:?}: the bad instance had none of ten, the test shows nothing");
    }
    // The application's own answers are not changed: a plain 500 is passed through with its
    // headers.
    good.set(Mode::Status(500));
    system.route("broken.test", &good).await;
    system.settle().await;
    let answer = system.get("broken.test", "/").await;
    assert_eq!((answer.status, &*answer.text(), answer.reason()), (500, "as configured", ""));
    assert!(answer.header("X-App").is_some());
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_error_of_the_edge_has_a_reason() {
    let system = System::edge_only("reasons").await;
    let mut app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;
    system.allow("upstream prematurely closed connection");
    system.allow("connect() failed");

    let check = async |host: &str, path: &str, status: u16, reason: &str| {
        let answer = system.get(host, path).await;
        assert_eq!((answer.status, answer.reason()), (status, reason), "{host}{path}: {}", answer.text());
        assert_eq!(answer.header("Content-Type"), Some("application/problem+json"), "{host}{path}");
        let problem = answer.json();
        assert_eq!((&problem["status"], &problem["code"]), (&status.into(), &reason.into()), "{host}{path}");
        assert!(problem["request_id"].is_string(), "{host}{path}: {problem}");
    };
    check("nobody.test", "/", 404, "no_route").await;
    check("app.test", "/close", 502, "connection_broken").await;
    let long = format!("/{}", "x".repeat(40_000));
    let answer = system.get("app.test", &long).await;
    assert_eq!((answer.status, answer.reason()), (414, "uri_too_long"));
    // An instance's own errors are not the edge's: no reason, its own body.
    let answer = system.get("app.test", "/status/404").await;
    assert_eq!((answer.status, &*answer.text(), answer.reason()), (404, "app", ""));
    app.kill().await;
    check("app.test", "/", 502, "connect_failed").await;
    system.cli::<()>(System::PRIMARY, "SET logkey:nobody.test 1").await;
    system.settle().await;
    check("nobody.test", "/", 503, "no_instance").await;
    let malformed =
        Connection::open(system.edge).await.unwrap().send_raw(b"GET / HTTP/x\r\n\r\n").await.unwrap();
    assert_eq!((malformed.status, malformed.reason()), (400, "bad_request"));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_instances_are_reused() {
    let system = System::edge_only("keepalive").await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;
    let account = load::send(system.edge, 1, 200, |_| Request::get("app.test", "/")).await;
    assert_eq!(account.codes.get(&200), Some(&200), "{:?}", account.broken);
    // Two workers, each with one for its misses and one for the rest.
    assert!(app.connections() <= 4, "{} connections for 200 requests of one client", app.connections());
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_keeps_its_connection() {
    let system = System::edge_only("client-keepalive").await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.route("ruled.test", &app).await;
    system.cli::<()>(System::PRIMARY, r#"SET policy:ruled.test {"v":1}"#).await;
    system.cli::<()>(System::PRIMARY, "SET logkey:empty.test 1").await;
    system.settle().await;
    let mut connection = Connection::open(system.edge).await.unwrap();
    // A miss, hits, a host with a policy, answers of the edge's own, and an instance's errors.
    for (host, path, status) in [
        ("app.test", "/", 200),
        ("app.test", "/", 200),
        ("ruled.test", "/", 200),
        ("ruled.test", "/", 200),
        ("nobody.test", "/", 404),
        ("empty.test", "/", 503),
        ("app.test", "/status/404", 404),
        ("app.test", "/status/500", 500),
        ("app.test", "/status/503", 503),
        ("app.test", "/bytes/100000", 200),
    ] {
        let answer = connection.send(&Request::get(host, path)).await.unwrap();
        assert_eq!(answer.status, status, "{host}{path}");
        assert!(answer.keeps_alive(), "{host}{path}: the connection ends after {answer:?}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_shared_fairly_by_its_instances() {
    // One worker, because each worker has its own round-robin position.
    let system =
        System::with("round-robin", |builder| builder.without_pacemaker().without_sidecar().workers(1)).await;
    let apps = [App::start("a").await, App::start("b").await, App::start("c").await];
    for app in &apps {
        system.route("app.test", app).await;
    }
    system.settle().await;
    let account = load::send(system.edge, 1, 300, |_| Request::get("app.test", "/")).await;
    assert_eq!(account.codes.get(&200), Some(&300), "{:?}", account.broken);
    for app in &apps {
        assert!((99..=101).contains(&app.hits()), "{}: {} of 300", app.name(), app.hits());
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_disconnects_affects_no_other() {
    let system = System::edge_only("client-gone").await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.cli::<()>(System::PRIMARY, "SET logkey:app.test 5").await;
    system.settle().await;
    let mut impatient = Connection::open(system.edge).await.unwrap();
    impatient.write(&Request::get("app.test", "/hold").to_bytes()).await.unwrap();
    eventually("requests held", async || equal(app.running(), 1)).await;
    drop(impatient);
    let lines = system.log_lines_when(1).await;
    assert_eq!((&lines[0]["code"], &lines[0]["key"]), (&499.into(), &"5".into()), "{lines:?}");
    app.release();
    assert_eq!(system.get("app.test", "/").await.status, 200);
    system.stop().await;
}
