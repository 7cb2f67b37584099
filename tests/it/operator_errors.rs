//! Mistakes of clients and operators, and operations at a bad moment, affect no other client.

use std::{io::ErrorKind, net::SocketAddr};

use nix::sys::signal::Signal;
use serde_json::json;
use signalbox_stack::Reservation;
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::{Connection, Request},
    load,
    system::System,
    upstream::App,
};

fn upgrade(host: &str, to: &str) -> Request {
    Request::get(host, "/live").header("Connection", "Upgrade").header("Upgrade", to)
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_websockets_are_left_to_their_instance() {
    let system = System::edge_only("operator-websocket").await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;
    // Without a key: the instance decides whether this is a WebSocket, and the client gets its answer.
    let mut keyless = Connection::open(system.edge).await.unwrap();
    assert_eq!(keyless.send(&upgrade("app.test", "websocket")).await.unwrap().status, 101);
    // Reserved bits, a length of 2^63, a frame that never ends, a close of one byte: they arrive unchanged.
    for bytes in
        [&b"\xff\xff\xff\xff"[..], b"\x82\x7f\x80\0\0\0\0\0\0\0", b"\x81\x7e\xff\xff", b"\x88\x01\x03"]
    {
        keyless.write(bytes).await.unwrap();
        assert_eq!(keyless.read_exactly(bytes.len()).await.unwrap(), bytes);
    }
    drop(keyless);
    // Only WebSocket may switch protocols: requests of an h2c connection would bypass the edge.
    for protocol in ["h2c", "TLS/1.0", "websocket, h2c"] {
        let request = upgrade("app.test", protocol).header("HTTP2-Settings", "AAMAAABkAAQAAP__");
        let answer = request.send(system.edge).await.unwrap();
        assert_eq!((answer.status, &*answer.text()), (200, "app"), "{protocol}");
    }
    assert_eq!(system.get("app.test", "/").await.text(), "app");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_have_a_limit_and_requests_after_a_rejected_one_are_served() {
    let system = System::edge_only("operator-headers").await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;
    let long = |bytes: usize| Request::get("app.test", "/").header("X-Long", &"x".repeat(bytes));
    assert_eq!(long(15_000).send(system.edge).await.unwrap().status, 200);
    for request in [long(20_000), Request::get("app.test", &format!("/{}", "x".repeat(20_000)))] {
        let mut connection = Connection::open(system.edge).await.unwrap();
        let answer = connection.send_noise(&request.to_bytes()).await.expect("an answer");
        assert!(matches!(answer.status, 400 | 414 | 431), "{answer:?}");
    }
    let many = (0..200).fold(Request::get("app.test", "/"), |request, n| {
        request.header(&format!("X-Number-{n}"), &"x".repeat(500))
    });
    let answer = Connection::open(system.edge).await.unwrap().send_noise(&many.to_bytes()).await.unwrap();
    assert!(matches!(answer.status, 400 | 431), "{answer:?}");
    assert_eq!(system.get("app.test", "/").await.text(), "app");
    assert_eq!(app.hits(), 2, "nothing of the others arrived");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_an_unknown_instance_changes_nothing() {
    let system = System::start("operator-drain").await;
    let app = App::start("app").await;
    system.register("app", &app, "app.test", "17").await;
    let before: u64 = system.cli(System::PRIMARY, "GET serial").await;
    for method in ["POST", "DELETE"] {
        let unknown = system.api(method, "/instances/nobody/drain?wait=20s", None).await;
        assert_eq!((unknown.status, &unknown.json()["code"]), (404, &json!("unknown_instance")), "{method}");
        let empty = system.api(method, "/nodes/nowhere/drain?wait=20s", None).await;
        assert_eq!(empty.status, 200, "{}", empty.text());
    }
    let after: u64 = system.cli(System::PRIMARY, "GET serial").await;
    assert_eq!(before, after);
    assert_eq!(system.get("app.test", "/").await.text(), "app");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_download_survives_promotion_removal_and_reload() {
    const BODY: usize = 30_000_000;
    let system = System::start("operator-download").await;
    let (old, new) = (App::start("old").await, App::start("new").await);
    system.register("old", &old, "shop.test", "17").await;
    let mut download = Connection::open(system.edge).await.unwrap();
    let request = Request::get("shop.test", &format!("/bytes/{BODY}"));
    download.write(&request.to_bytes()).await.unwrap();
    let first = download.read_exactly(10_000).await.unwrap();
    assert!(first.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&first[..50]));
    let head = first.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    system.register("new", &new, "shop.test", "18").await;
    let switched = json!({"version_type_id": "18", "drain_seconds": 600});
    let answer = system.api("POST", "/hosts/shop.test/promote?wait=20s", Some(switched)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(system.get("shop.test", "/").await.text(), "new");
    let answer = system.api("DELETE", "/instances/old?wait=20s", None).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
    let before = system.workers();
    system.signal(System::NGINX, Signal::SIGHUP);
    eventually("new workers", || async {
        let workers = system.workers();
        let fresh = !workers.is_empty() && workers.iter().all(|pid| !before.contains(pid));
        if fresh { Ok(()) } else { Err(workers) }
    })
    .await;
    let rest = download.read_exactly(head + BODY - first.len()).await.unwrap();
    assert_eq!(first.len() - head + rest.len(), BODY);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acme_challenges_reach_the_instance_that_answers_them() {
    let (solver, app) = (App::start("solver").await, App::start("app").await);
    let address = solver.address.to_string();
    let system = System::with("operator-acme", |builder| {
        builder.without_pacemaker().without_sidecar().nginx("EDGE_ACME", address)
    })
    .await;
    system.route("app.test", &app).await;
    system.cli::<()>(System::PRIMARY, r#"SET policy:app.test {"https":"redirect"}"#).await;
    system.settle().await;
    let challenge = "/.well-known/acme-challenge/token";
    for host in ["app.test", "unknown.test"] {
        assert_eq!(system.get(host, challenge).await.text(), "solver", "{host}");
    }
    assert_eq!(system.get("app.test", "/").await.status, 301);
    // A path that only begins like a challenge, or leaves the folder, is an ordinary request.
    for path in ["/.well-known/acme-challenge", "/.well-known/acme-challenge/../../admin"] {
        assert_eq!(system.get("app.test", path).await.status, 301, "{path}");
    }
    assert_eq!((solver.hits(), app.hits()), (2, 0));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_agrees_with_what_requests_get() {
    let system = System::start("explain-agrees").await;
    let apps = [App::start("a").await, App::start("b").await, App::start("c").await, App::start("d").await];
    for (app, (version_type, weight)) in apps.iter().zip([("17", 3), ("17", 1), ("18", 1), ("18", 1)]) {
        let body = json!({
            "address": app.address, "hostnames": ["shop.test"], "version_type_id": version_type, "weight": weight,
        });
        let answer = system.api("PUT", &format!("/instances/{}", app.name()), Some(body)).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
    }
    let policy =
        json!({"shares": [{"version_type": "17", "percent": 60}, {"version_type": "18", "percent": 40}]});
    let answer = system.api("PUT", "/hosts/shop.test", Some(policy)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let drain =
        system.api("POST", "/instances/d/drain?wait=20s", Some(json!({"deadline_seconds": 600}))).await;
    assert_eq!(drain.status, 200, "{}", drain.text());
    let explained = system.api("GET", "/routes/explain?host=shop.test", None).await.json();
    let count = 2000;
    let account = load::send(system.edge, 4, count, |_| Request::get("shop.test", "/")).await;
    assert_eq!((account.failed(), account.answered()), (0, count), "codes {:?}", account.codes);
    for (app, expected) in apps.iter().zip([0.45, 0.15, 0.4, 0.0]) {
        let instance = explained["instances"].as_array().unwrap().iter().find(|one| one["id"] == app.name());
        let chance = instance.unwrap()["chance"].as_f64().unwrap();
        assert!((chance - expected).abs() < 1e-9, "{} {chance}: {explained}", app.name());
        // Six standard deviations: a correct system fails once in about a hundred million runs.
        let deviation = (count as f64 * chance * (1.0 - chance)).sqrt();
        let got = app.hits() as f64;
        let difference = (got - chance * count as f64).abs();
        assert!(difference <= 6.0 * deviation, "{} got {got} with chance {chance}", app.name());
    }
    system.stop().await;
}

/// The instance that `explain` names for a request with these properties.
async fn explained(system: &System, host: &str, what: &str, value: &str) -> serde_json::Value {
    let value = value.replace('%', "%25").replace(' ', "%20").replace(';', "%3B").replace('=', "%3D");
    let value = value.replace('&', "%26").replace('+', "%2B");
    let answer = system.api("GET", &format!("/routes/explain?host={host}&{what}={value}"), None).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["request"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_instance_that_explain_names_is_the_one_that_answers() {
    let system = System::start("explain-names").await;
    let apps = [App::start("a").await, App::start("b").await, App::start("c").await, App::start("d").await];
    let hosts = ["header.test", "cookie.test", "shares.test", "sticky.test", "turns.test"];
    for (app, (version_type, weight)) in apps.iter().zip([("17", 5), ("17", 1), ("18", 2), ("18", 1)]) {
        let body = json!({"address": app.address, "hostnames": hosts, "version_type_id": version_type, "weight": weight});
        let answer = system.api("PUT", &format!("/instances/{}", app.name()), Some(body)).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
    }
    let shares = json!([{"version_type": "17", "percent": 60}, {"version_type": "18", "percent": 40}]);
    for (host, policy) in [
        ("header.test", json!({"balance": {"algorithm": "hash", "header": "X-User"}})),
        ("cookie.test", json!({"balance": {"algorithm": "hash", "cookie": "sid"}})),
        (
            "shares.test",
            json!({"shares": shares, "shares_by": {"header": "X-Version"},
                "balance": {"algorithm": "hash", "cookie": "sid"}}),
        ),
        ("sticky.test", json!({"shares": shares, "sticky": {"cookie": "stay"}})),
        ("turns.test", json!({"balance": {"algorithm": "p2c"}})),
    ] {
        let answer = system.api("PUT", &format!("/hosts/{host}?wait=20s"), Some(policy)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let agree = async |host: &str, what: &str, value: String, by: &str| {
        let request = explained(&system, host, what, &value).await;
        let header = if what == "cookie" { format!("Cookie: {value}") } else { value };
        let (name, value) = header.split_once(": ").unwrap();
        let answer = Request::get(host, "/").header(name, value).send(system.edge).await.unwrap();
        let app = apps.iter().find(|app| app.name() == answer.text()).expect("one of ours");
        assert_eq!(
            (&request["by"], &request["address"]),
            (&json!(by), &json!(app.address)),
            "{header}: {request}"
        );
        app.name().to_owned()
    };
    let mut answered = std::collections::BTreeSet::new();
    for n in 0..20 {
        answered.insert(agree("header.test", "header", format!("X-User: user {n}"), "hash").await);
        agree("cookie.test", "cookie", format!("theme=dark; sid={n}-x"), "hash").await;
    }
    assert!(answered.len() > 1, "{answered:?}");
    // A version type that the request names, with round robin within it.
    let old = explained(&system, "shares.test", "header", "X-Version: 17").await;
    let among: Vec<_> = old["among"].as_array().unwrap().iter().map(|one| one["address"].clone()).collect();
    assert_eq!((&old["by"], among), (&json!("chance"), vec![json!(apps[0].address), json!(apps[1].address)]));
    // Sessions, also one whose instance drains in the meantime.
    for n in 0..20 {
        let first = system.get("sticky.test", "/").await;
        let cookie = first.header("Set-Cookie").and_then(|line| line.split(';').next()).unwrap().to_owned();
        assert_eq!(agree("sticky.test", "cookie", cookie, "session").await, first.text(), "{n}");
    }
    let there = loop {
        let first = system.get("sticky.test", "/").await;
        if first.text() == "a" {
            break first.header("Set-Cookie").and_then(|line| line.split(';').next()).unwrap().to_owned();
        }
    };
    let drain =
        system.api("POST", "/instances/a/drain?wait=20s", Some(json!({"deadline_seconds": 600}))).await;
    assert_eq!(drain.status, 200, "{}", drain.text());
    assert_eq!(agree("sticky.test", "cookie", there, "session").await, "a");
    for n in 0..20 {
        assert_ne!(agree("header.test", "header", format!("X-User: user {n}"), "hash").await, "a");
    }
    let turns = explained(&system, "turns.test", "cookie", "sid=1").await;
    assert_eq!((&turns["by"], turns["among"].as_array().unwrap().len()), (&json!("chance"), 3), "{turns}");
    let forged = explained(&system, "sticky.test", "cookie", "stay=AAAAAAAA.AAAAAAAAAAAAAAAA").await;
    assert_eq!(forged["by"], "chance", "{forged}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_knows_a_client_by_its_address_and_a_version_by_its_cookie() {
    // Clients with many addresses, as a trusted proxy reports them.
    let system =
        System::with("explain-addresses", |builder| builder.nginx("EDGE_FORWARDERS", "127.0.0.0/8")).await;
    let apps = [App::start("a").await, App::start("b").await, App::start("c").await, App::start("d").await];
    for (app, version_type) in apps.iter().zip(["17", "17", "17", "18"]) {
        let body = json!({"address": app.address, "hostnames": ["address.test", "version.test"], "version_type_id": version_type});
        let answer = system.api("PUT", &format!("/instances/{}", app.name()), Some(body)).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
    }
    let shares = json!([{"version_type": "17", "percent": 70}, {"version_type": "18", "percent": 30}]);
    for (host, policy) in [
        ("address.test", json!({"balance": {"algorithm": "hash", "address": true}})),
        (
            "version.test",
            json!({"shares": shares, "shares_by": {"cookie": "version", "header": "X-Version"}}),
        ),
    ] {
        let answer = system.api("PUT", &format!("/hosts/{host}?wait=20s"), Some(policy)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let mut answered = std::collections::BTreeSet::new();
    for n in 1..40 {
        let client = if n % 4 == 0 { format!("2001:db8::{n:x}") } else { format!("203.0.113.{n}") };
        let named = explained(&system, "address.test", "address", &client).await;
        let request = Request::get("address.test", "/").header("X-Forwarded-For", &client);
        let app = request.send(system.edge).await.unwrap().text();
        let address = apps.iter().find(|one| one.name() == app).map(|one| json!(one.address));
        assert_eq!(
            (&named["by"], Some(&named["address"])),
            (&json!("hash"), address.as_ref()),
            "{client}: {named}"
        );
        answered.insert(app);
    }
    assert!(answered.len() > 1, "{answered:?}");
    // By cookie: one version type has a single instance, the other one uses round robin.
    let asks = async |cookie: &str| {
        let request = Request::get("version.test", "/").header("Cookie", cookie);
        request.send(system.edge).await.unwrap().text()
    };
    let canary = explained(&system, "version.test", "cookie", "version=18").await;
    assert_eq!(
        (&canary["by"], &canary["version_type"], &canary["address"]),
        (&json!("only_one"), &json!("18"), &json!(apps[3].address)),
        "{canary}"
    );
    for _ in 0..20 {
        assert_eq!(asks("theme=dark; version=18").await, "d");
        assert_ne!(asks("version=17; version=18").await, "d", "the first cookie counts");
    }
    let old = explained(&system, "version.test", "cookie", "version=17; version=18").await;
    let among: Vec<f64> =
        old["among"].as_array().unwrap().iter().map(|one| one["chance"].as_f64().unwrap()).collect();
    assert_eq!((&old["by"], &old["version_type"], among.len()), (&json!("chance"), &json!("17"), 3), "{old}");
    assert!(among.iter().all(|chance| (chance - 1.0 / 3.0).abs() < 1e-9), "{old}");
    // An unknown version type is ignored: the shares decide.
    let stranger = explained(&system, "version.test", "cookie", "version=99").await;
    assert_eq!(
        (&stranger["version_type"], stranger["among"].as_array().unwrap().len()),
        (&json!(null), 4),
        "{stranger}"
    );
    let whole: f64 =
        stranger["among"].as_array().unwrap().iter().map(|one| one["chance"].as_f64().unwrap()).sum();
    assert!((whole - 1.0).abs() < 1e-9, "{stranger}");
    for (what, value, code) in [
        ("address", "203.0.113.300", "invalid_address"),
        ("address", "localhost", "invalid_address"),
        ("header", "no-colon", "invalid_header"),
        ("cookie", "nothing", "invalid_cookie"),
    ] {
        let answer =
            system.api("GET", &format!("/routes/explain?host=address.test&{what}={value}"), None).await;
        assert!(matches!(answer.status, 400 | 422), "{what}={value}: {}", answer.text());
        assert_eq!(answer.json()["code"], code, "{what}={value}");
    }
    system.stop().await;
}

/// An edge whose listener expects the PROXY protocol of `trusted`, with one application at `app.test`.
async fn proxied(name: &str, port: u16, trusted: &str) -> (System, App, SocketAddr) {
    let system = System::with(name, |builder| {
        builder
            .without_pacemaker()
            .without_sidecar()
            .nginx("EDGE_LISTEN", format!("127.0.0.1:{port} proxy_protocol"))
            .nginx("EDGE_FORWARDERS", trusted)
            .nginx("EDGE_REAL_IP_HEADER", "proxy_protocol")
    })
    .await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;
    (system, app, SocketAddr::from(([127, 0, 0, 1], port)))
}

/// The value of this header that the instance received, from an echoed request.
fn header_values<'a>(echo: &'a str, name: &str) -> Vec<&'a str> {
    let lines = echo.lines().filter_map(|line| line.split_once(": "));
    lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
}

const ECHO: &str = "GET /echo HTTP/1.1\r\nHost: app.test\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_proxy_header_changes_no_clients_address() {
    let mut reservation = Reservation::default();
    let port = reservation.add().expect("a free port");
    let (system, app, edge) = proxied("operator-proxy", port, "127.0.0.1").await;
    system.allow("broken header");
    system.allow("header is too large while reading PROXY protocol");
    let send = async |header: &[u8]| {
        let bytes = [header, ECHO.as_bytes()].concat();
        // The client keeps its side open, because nginx aborts a request whose client has closed the connection.
        let answer = Connection::open(edge).await.unwrap().send_raw(&bytes).await;
        answer.inspect_err(|error| assert_ne!(error.kind(), ErrorKind::TimedOut, "{header:?}")).ok()
    };
    let long = format!("PROXY TCP4 {} 127.0.0.1 5555 80\r\n", "1".repeat(200));
    for header in [
        &b"PROXY\r\n"[..],
        b"PROXY TCP4\r\n",
        b"PROXY TCP4 203.0.113.7\r\n",
        b"PROXY TCP4 203.0.113.7\r\nX-Real-IP: 6.6.6.6\r\n",
        b"PROXY TCP4 999.0.0.1 127.0.0.1 5555 80\r\n",
        b"PROXY TCP4 evil.test 127.0.0.1 5555 80\r\n",
        b"PROXY TCP4 203.0.113.7,6.6.6.6 127.0.0.1 5555 80\r\n",
        b"PROXY TCP9 203.0.113.7 127.0.0.1 5555 80\r\n",
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN 203.0.113.7 127.0.0.1 5555 80\r\n",
        b"proxy TCP4 203.0.113.7 127.0.0.1 5555 80\r\n",
        b"PROXY TCP4 203.0.113.7 127.0.0.1 5555 80\n",
        b"PROXY TCP4 203.0.113.7 127.0.0.1 5555 99999999\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff\xcb\0\x71\x07",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x01\xcb",
        b"\r\n\r\n\0\r\nQUIT\n\x2f\xff\0\0",
        long.as_bytes(),
    ] {
        let Some(answer) = send(header).await.filter(|answer| answer.status == 200) else { continue };
        // If the request is served, then with the real address of the client.
        let echo = answer.text();
        let shown = String::from_utf8_lossy(header);
        assert_eq!(header_values(&echo, "X-Real-IP"), ["127.0.0.1"], "{shown:?}: {echo}");
        assert_eq!(header_values(&echo, "X-Forwarded-For"), ["127.0.0.1"], "{shown:?}: {echo}");
    }
    // A second header is neither a header of this protocol nor a request.
    let before = app.hits();
    let twice = b"PROXY TCP4 203.0.113.7 127.0.0.1 5555 80\r\nPROXY TCP4 6.6.6.6 127.0.0.1 5555 80\r\n";
    assert!(send(twice).await.is_none_or(|answer| answer.status == 400));
    assert_eq!(app.hits(), before);
    // A valid header of a trusted sender is accepted, in both versions.
    let second = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x07\x7f\0\0\x01\x15\xb3\0\x50";
    for header in [&b"PROXY TCP4 203.0.113.7 127.0.0.1 5555 80\r\n"[..], second] {
        let echo = send(header).await.expect("an answer").text();
        assert_eq!(header_values(&echo, "X-Real-IP"), ["203.0.113.7"], "{echo}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_untrusted_sender_cannot_set_an_address_by_a_proxy_header() {
    let mut reservation = Reservation::default();
    let port = reservation.add().expect("a free port");
    let (system, _app, edge) = proxied("operator-proxy-stranger", port, "10.0.0.0/8").await;
    let bytes = format!("PROXY TCP4 203.0.113.7 127.0.0.1 5555 80\r\n{ECHO}");
    let echo = Connection::open(edge).await.unwrap().send_raw(bytes.as_bytes()).await.unwrap().text();
    assert_eq!(header_values(&echo, "X-Real-IP"), ["127.0.0.1"], "{echo}");
    assert_eq!(header_values(&echo, "X-Forwarded-For"), ["127.0.0.1"], "{echo}");
    system.stop().await;
}
