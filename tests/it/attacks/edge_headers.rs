//! A client tries to speak for the edge, or for a proxy that is not there, by the headers of its request; an instance by those
//! of its answer.

use std::net::SocketAddr;

use signalbox_stack::Reservation;
use signalbox_tests::{
    http::{Connection, Request},
    system::System,
    upstream::App,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::raw::Raw;
use crate::fuzz::edge::{DATA, END_STREAM, GOAWAY, HEADERS, RST_STREAM, connection};

/// Headers by which proxies report what they know about the client.
pub(super) const CLAIMS: [(&str, &str); 19] = [
    ("X-Forwarded-For", "6.6.6.6"),
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-Host", "claimed.test"),
    ("X-Forwarded-Port", "666"),
    ("X-Forwarded-Prefix", "/claimed"),
    ("X-Forwarded-Server", "claimed"),
    ("X-Forwarded-Ssl", "on"),
    ("X-Real-IP", "6.6.6.6"),
    ("Forwarded", "for=6.6.6.6;proto=https"),
    ("X-Original-URL", "/claimed"),
    ("X-Rewrite-URL", "/claimed"),
    ("X-Client-IP", "6.6.6.6"),
    ("True-Client-IP", "6.6.6.6"),
    ("X-Signalbox-Target", "claimed"),
    ("X-Signalbox-Error", "claimed"),
    ("X-Signalbox-Accept", "claimed"),
    ("X-Signalbox-Serial", "claimed"),
    ("X-Signalbox-Proof", "claimed"),
    // CGI would turn it into the environment variable HTTP_PROXY.
    ("Proxy", "claimed"),
];

fn claiming(host: &str) -> Request {
    CLAIMS.iter().fold(Request::get(host, "/echo"), |request, (name, value)| request.header(name, value))
}

/// The values of a header in a request as an instance received it.
fn received<'a>(echo: &'a str, name: &str) -> Vec<&'a str> {
    let headers = echo.lines().filter_map(|line| line.split_once(": "));
    headers.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarding_headers_of_clients_are_dropped() {
    let system = System::edge_only("attack-claims").await;
    let app = App::start("app").await;
    for host in ["app.test", "ruled.test"] {
        system.route(host, &app).await;
    }
    system.cli::<()>(System::PRIMARY, r#"SET policy:ruled.test {"balance":{"algorithm":"p2c"}}"#).await;
    system.settle().await;
    for (host, port) in [("app.test", "80"), ("ruled.test", "80"), ("app.test:8080", "8080")] {
        for _ in 0..2 {
            let echo = claiming(host).send(system.edge).await.unwrap().text();
            for wrong in ["6.6.6.6", "claimed", ": 666\r", "https", ": on\r"] {
                assert!(!echo.contains(wrong), "{host}: {wrong} in {echo}");
            }
            assert_eq!(received(&echo, "X-Forwarded-For"), ["127.0.0.1"], "{echo}");
            assert_eq!(received(&echo, "X-Forwarded-Proto"), ["http"], "{echo}");
            assert_eq!(received(&echo, "X-Forwarded-Port"), [port], "{echo}");
            assert_eq!(received(&echo, "X-Real-IP"), ["127.0.0.1"], "{echo}");
        }
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_trusted_proxies_report_the_client() {
    let start = async |name: &str, networks: &str| {
        let system = System::with(name, |builder| {
            builder.without_pacemaker().without_sidecar().nginx("EDGE_FORWARDERS", networks)
        })
        .await;
        let app = App::start("app").await;
        system.route("app.test", &app).await;
        system.settle().await;
        (system, app)
    };
    let (system, _app) = start("trusted", "127.0.0.0/8").await;
    let echo = claiming("app.test").send(system.edge).await.unwrap().text();
    assert_eq!(received(&echo, "X-Forwarded-For"), ["6.6.6.6, 127.0.0.1"], "{echo}");
    for (name, value) in
        [("X-Forwarded-Port", "666"), ("Forwarded", "for=6.6.6.6;proto=https"), ("X-Real-IP", "6.6.6.6")]
    {
        assert_eq!(received(&echo, name), [value], "{echo}");
    }
    let plain = Request::get("app.test", "/echo").send(system.edge).await.unwrap().text();
    assert_eq!(received(&plain, "X-Forwarded-For"), ["127.0.0.1"], "{plain}");
    assert_eq!(received(&plain, "X-Forwarded-Port"), ["80"], "{plain}");
    system.stop().await;
    // A client that goes around the trusted proxies is a stranger.
    let (system, _app) = start("untrusted", "10.0.0.0/8").await;
    let echo = claiming("app.test").send(system.edge).await.unwrap().text();
    for wrong in ["6.6.6.6", "claimed", ": 666\r", "https"] {
        assert!(!echo.contains(wrong), "{wrong} in {echo}");
    }
    assert_eq!(received(&echo, "X-Forwarded-For"), ["127.0.0.1"], "{echo}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_connection_names_stay_on_the_connection() {
    let system = System::edge_only("attack-connection").await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;
    for _ in 0..2 {
        let request = Request::new("POST", "app.test", "/echo")
            .header("Connection", "close, X-Secret,x-other , Host, Content-Length, X-Forwarded-For")
            .header("X-Secret", "1")
            .header("X-Other", "2")
            .header("X-Kept", "3")
            .body("body");
        let response = request.send(system.edge).await.unwrap();
        let echo = response.text();
        assert_eq!(response.status, 200, "{echo}");
        assert!(received(&echo, "X-Secret").is_empty() && received(&echo, "X-Other").is_empty(), "{echo}");
        assert_eq!(
            (received(&echo, "X-Kept"), received(&echo, "Host")),
            (vec!["3"], vec!["app.test"]),
            "{echo}"
        );
        assert_eq!(received(&echo, "X-Forwarded-For"), ["127.0.0.1"], "{echo}");
        assert_eq!(received(&echo, "X-Forwarded-Port"), ["80"], "{echo}");
        assert!(echo.ends_with("\r\n\r\nbody"), "{echo}");
    }
    // An upgrade to anything but WebSocket ends at the edge, with the settings that belong to it.
    let upgrade = Request::get("app.test", "/echo")
        .header("Connection", "Upgrade, HTTP2-Settings")
        .header("Upgrade", "h2c")
        .header("HTTP2-Settings", "AAMAAABkAAQAAP__");
    let echo = upgrade.send(system.edge).await.unwrap().text();
    assert!(received(&echo, "HTTP2-Settings").is_empty() && received(&echo, "Upgrade").is_empty(), "{echo}");
    // Without the option in Connection, Upgrade is a header of the client that means nothing.
    for (connection, upgrade, edges) in [
        ("close", "websocket", "other.example"),
        ("close, x-upgrade", "websocket", ""),
        ("close", "websocket", ""),
        ("close", "websocket upgrade", ""),
        ("close", "websocket, upgrade", "other.example"),
    ] {
        let mut request =
            Request::get("app.test", "/echo").header("Connection", connection).header("Upgrade", upgrade);
        if !edges.is_empty() {
            request = request.header("CDN-Loop", edges);
        }
        let response = request.send(system.edge).await.unwrap();
        let echo = response.text();
        assert_eq!(response.status, 200, "{connection}, {upgrade}, {edges}: {echo}");
        assert!(received(&echo, "Upgrade").is_empty(), "{connection}, {upgrade}, {edges}: {echo}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_line_of_a_repeated_connection_header_is_evaluated() {
    let system = System::edge_only("attack-connection-lines").await;
    let app = App::start("app").await;
    for host in ["app.test", "ruled.test"] {
        system.route(host, &app).await;
    }
    system.cli::<()>(System::PRIMARY, r#"SET policy:ruled.test {"balance":{"algorithm":"p2c"}}"#).await;
    system.settle().await;
    for (host, first) in [("app.test", "close"), ("app.test", "keep-alive"), ("ruled.test", "close")] {
        let request = Request::get(host, "/echo")
            .header("Connection", first)
            .header("X-Secret", "1")
            .header("Connection", "X-Secret, X-Real-IP, X-Forwarded-For, X-Request-ID, CDN-Loop");
        let echo = request.send(system.edge).await.unwrap().text();
        assert!(received(&echo, "X-Secret").is_empty(), "{host}, {first}: {echo}");
        assert_eq!(received(&echo, "X-Real-IP"), ["127.0.0.1"], "{host}, {first}: {echo}");
        assert_eq!(received(&echo, "X-Forwarded-For"), ["127.0.0.1"], "{host}, {first}: {echo}");
        assert_eq!(received(&echo, "X-Request-ID").len(), 1, "{host}, {first}: {echo}");
        assert_eq!(received(&echo, "CDN-Loop").len(), 1, "{host}, {first}: {echo}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_context_is_continued_only_if_it_is_valid() {
    let system = System::edge_only("attack-trace").await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let send = async |value: &str| {
        let request =
            Request::get("app.test", "/echo").header("traceparent", value).header("tracestate", "a=b");
        let echo = request.send(system.edge).await.unwrap().text();
        (received(&echo, "traceparent").join(";"), received(&echo, "tracestate").join(";"))
    };
    for valid in [
        format!("00-{trace}-{parent}-01"),
        format!("cc-{trace}-{parent}-00"),
        format!("01-{trace}-{parent}-00-what-the-future-will-be-like"),
    ] {
        assert_eq!(send(&valid).await, (valid.clone(), "a=b".to_owned()), "{valid}");
    }
    for wrong in [
        format!("00-{}-{parent}-01", "0".repeat(32)),
        format!("00-{trace}-{}-01", "0".repeat(16)),
        format!("ff-{trace}-{parent}-01"),
        format!("00-{trace}-{parent}-01-extra"),
        format!("00-{trace}-{parent}-01 junk"),
        format!("01-{trace}-{parent}-01junk"),
        format!("00-{}-{parent}-01", trace.to_uppercase()),
    ] {
        let (started, state) = send(&wrong).await;
        assert!(started != wrong && started.starts_with("00-") && started.len() == 55, "{wrong}: {started}");
        assert_eq!(state, "", "{wrong}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_header_with_an_invalid_port_is_rejected() {
    let system = System::edge_only("attack-port").await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.route("[::1]", &app).await;
    system.settle().await;
    for _ in 0..2 {
        for host in [
            "app.test:abc",
            "app.test:99999",
            "app.test:65536",
            "app.test:8080x",
            "app.test:-1",
            "[::1]:abc",
            "app.test:80:90",
            "[::1]:80:90",
        ] {
            let hits = app.hits();
            let response = system.get(host, "/").await;
            assert_eq!((response.status, response.reason()), (400, "bad_request"), "{host}: {response:?}");
            assert_eq!(app.hits(), hits, "{host}");
        }
        for host in [
            "app.test",
            "app.test:",
            "app.test:80",
            "app.test:65535",
            "app.test:00080",
            "[::1]",
            "[::1]:8080",
        ] {
            assert_eq!(system.get(host, "/").await.status, 200, "{host}");
        }
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_cannot_pass_for_the_edge() {
    let system = System::edge_only("attack-spoof").await;
    let app = Raw::saying(
        "HTTP/1.1 500 Oops\r\nX-Signalbox-Error: spoof\r\nX-Signalbox-Serial: 5\r\nX-Signalbox-Generation: 5\r\nX-Kept: 1\r\n\
         X-Accel-Redirect: /steered\r\nX-Accel-Limit-Rate: 1\r\nContent-Length: 0\r\n\r\n",
    )
    .await;
    for host in ["app.test", "ruled.test"] {
        system.cli::<()>(System::PRIMARY, &format!("SADD instances:{host} {}", app.address)).await;
    }
    system.cli::<()>(System::PRIMARY, r#"SET policy:ruled.test {"balance":{"algorithm":"p2c"}}"#).await;
    system.settle().await;
    for host in ["app.test", "app.test", "ruled.test"] {
        let response = Connection::open(system.edge).await.unwrap().send(&Request::get(host, "/")).await;
        let response =
            response.unwrap_or_else(|error| panic!("{host}: the answer did not arrive as it is: {error}"));
        assert_eq!((response.status, response.header("X-Kept")), (500, Some("1")), "{response:?}");
        for name in ["X-Signalbox-Error", "X-Signalbox-Serial", "X-Signalbox-Generation"] {
            assert_eq!(response.header(name), None, "{response:?}");
        }
    }
    system.stop().await;
}

/// Sends one HTTP/2 request, a field per line, and returns the payloads of its response's frames.
async fn over_http2(to: SocketAddr, fields: &str) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(&connection(fields.as_bytes())).await.unwrap();
    let mut payloads = Vec::new();
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            break;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await.unwrap();
        match head[3] {
            DATA | HEADERS => {
                payloads.extend(payload);
                if head[4] & END_STREAM != 0 {
                    break;
                }
            }
            RST_STREAM | GOAWAY => break,
            _ => {}
        }
    }
    String::from_utf8_lossy(&payloads).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_the_connection_in_an_http2_request_do_not_reach_the_instance() {
    let mut ports = Reservation::default();
    let h2c = SocketAddr::from(([127, 0, 0, 1], ports.add().unwrap()));
    let system = System::with("attack-http2-fields", |builder| {
        builder.without_pacemaker().without_sidecar().nginx("EDGE_H2C_LISTEN", h2c.to_string())
    })
    .await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;
    let request = ":method: GET\n:scheme: http\n:authority: app.test\n:path: /echo\n";
    // RFC 9113 (8.2.2) calls such a request malformed; nginx accepts it.
    for (field, value) in [
        ("connection", "x-own"),
        ("transfer-encoding", "chunked"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "x-own"),
        ("upgrade", "h2c"),
    ] {
        let before = app.hits();
        let echo = over_http2(h2c, &format!("{request}{field}: {value}\nx-known: yes\n")).await;
        if app.hits() == before {
            continue;
        }
        assert_eq!(app.hits(), before + 1, "{field}");
        assert_eq!(received(&echo, "x-known"), ["yes"], "{field}: {echo}");
        assert!(!received(&echo, field).contains(&value), "{field}: {echo}");
    }
    // A pseudo-header after other fields (8.3) cannot name another host or path.
    for field in [":authority: other.test", ":path: /hold", "host: other.test"] {
        let before = app.hits();
        let echo = over_http2(h2c, &format!("{request}x-known: yes\n{field}\n")).await;
        assert_eq!(app.hits(), before, "{field}: {echo}");
    }
    let echo = over_http2(h2c, request).await;
    assert_eq!(received(&echo, "Host"), ["app.test"], "{echo}");
    system.stop().await;
}

/// A complete answer for another request of the connection, as an instance would forge it: a HEADERS frame with `:status:
/// 200` of the static table and a DATA frame, both for stream 1.
const FORGED_FRAMES: &[u8] = b"\0\0\x01\x01\x04\0\0\0\x01\x88\0\0\x06\0\x01\0\0\0\x01FORGED";

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_switches_protocols_writes_nothing_to_a_connection_that_others_use() {
    let mut ports = Reservation::default();
    let h2c = SocketAddr::from(([127, 0, 0, 1], ports.add().unwrap()));
    let system = System::with("attack-switch", |builder| {
        builder.without_pacemaker().without_sidecar().nginx("EDGE_H2C_LISTEN", h2c.to_string())
    })
    .await;
    let head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let forger = Raw::saying([head, FORGED_FRAMES].concat()).await;
    for host in ["plain.test", "ruled.test"] {
        system.cli::<()>(System::PRIMARY, &format!("SADD instances:{host} {}", forger.address)).await;
    }
    system.cli::<()>(System::PRIMARY, r#"SET policy:ruled.test {"timeouts":{"read_ms":5000}}"#).await;
    system.settle().await;
    for host in ["plain.test", "ruled.test"] {
        for fields in
            ["upgrade: websocket\n", "connection: upgrade\nupgrade: websocket\n", "upgrade: h2c\n", ""]
        {
            let request = format!(":method: GET\n:scheme: http\n:authority: {host}\n:path: /\n{fields}");
            for _ in 0..2 {
                let answer = over_http2(h2c, &request).await;
                assert!(!answer.contains("FORGED"), "{host} {fields}: {answer}");
                assert!(answer.contains("interim_response"), "{host} {fields}: {answer}");
            }
        }
        for (version, fields) in [
            ("1.0", "Connection: upgrade\r\nUpgrade: websocket\r\n"),
            ("1.1", "Connection: upgrade\r\nUpgrade: h2c\r\n"),
            ("1.1", ""),
        ] {
            let mut stream = TcpStream::connect(system.edge).await.unwrap();
            let request = format!("GET / HTTP/{version}\r\nHost: {host}\r\n{fields}\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            // The edge closes the connection: the answer of its instance had begun.
            stream.read_to_end(&mut answer).await.unwrap();
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.starts_with("HTTP/1.1 502 "), "{version} {fields}: {answer}");
            assert!(!answer.contains("FORGED"), "{version} {fields}: {answer}");
        }
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_clients_that_speak_http_1_1_can_ask_for_a_websocket() {
    let mut ports = Reservation::default();
    let h2c = SocketAddr::from(([127, 0, 0, 1], ports.add().unwrap()));
    let system = System::with("attack-upgrade-versions", |builder| {
        builder.without_pacemaker().without_sidecar().nginx("EDGE_H2C_LISTEN", h2c.to_string())
    })
    .await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;
    let request = ":method: GET\n:scheme: http\n:authority: app.test\n:path: /echo\nupgrade: websocket\nconnection: upgrade\n";
    let echo = over_http2(h2c, request).await;
    assert!(received(&echo, "Upgrade").is_empty() && received(&echo, "Connection").is_empty(), "{echo}");
    let mut stream = TcpStream::connect(system.edge).await.unwrap();
    let request = "GET /echo HTTP/1.0\r\nHost: app.test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut echo = String::new();
    stream.read_to_string(&mut echo).await.unwrap();
    assert!(received(&echo, "Upgrade").is_empty(), "{echo}");
    system.stop().await;
}
