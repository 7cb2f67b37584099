//! Whatever a client sends, the edge's own answers are problem documents with a code; and what nginx and an application read
//! differently does not lead past a guard.

use serde_json::json;
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::{Connection, Request},
    system::System,
    upstream::App,
};

#[tokio::test(flavor = "multi_thread")]
async fn every_malformed_request_is_answered_with_a_problem_document() {
    let system = System::start("attack-malformed").await;
    for text in ["client sent invalid chunked body", "client intended to send too large body"] {
        system.allow(text);
    }
    let app = App::start("app").await;
    for host in ["app.test", "ruled.test", "bounded.test"] {
        system.route(host, &app).await;
    }
    for (host, policy) in [
        ("ruled.test", json!({"balance": {"algorithm": "p2c"}})),
        // Its bodies are read by Lua.
        ("bounded.test", json!({"body_bytes": 1000, "limits": {"connections": {"most": 3}}})),
    ] {
        system.cli::<()>(System::PRIMARY, &format!("SET policy:{host} {policy}")).await;
    }
    system.settle().await;
    let chunked = "Transfer-Encoding: chunked\r\n\r\n";
    let requests: Vec<String> = ["app.test", "ruled.test", "bounded.test", "unknown.test"]
        .iter()
        .flat_map(|host| {
            ["0x5\r\nhello\r\n0\r\n\r\n", "-1\r\n", "zz\r\n", "5\r\nhelloX\r\n", "fffffffffffffffff\r\n"]
                .map(|body| format!("PUT / HTTP/1.1\r\nHost: {host}\r\n{chunked}{body}"))
        })
        .chain(
            [
                "GET / HTTP/1.1\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
                "GET / HTTP/9.9\r\nHost: a\r\n\r\n",
                "TRACE / HTTP/1.1\r\nHost: app.test\r\n\r\n",
                "CONNECT app.test:80 HTTP/1.1\r\nHost: app.test\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: app.test\r\nTransfer-Encoding: gzip\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 99999999\r\n\r\n",
                "GET /.signalbox/refused HTTP/1.1\r\nHost: app.test\r\n\r\n",
                "nonsense\r\n\r\n",
            ]
            .map(str::to_owned),
        )
        .chain([format!("GET / HTTP/1.1\r\nHost: app.test\r\nX: {}\r\n\r\n", "x".repeat(70_000))])
        .chain([format!("GET /{} HTTP/1.1\r\nHost: app.test\r\n\r\n", "x".repeat(70_000))])
        .collect();
    for request in &requests {
        for listener in [system.edge, system.admin] {
            let shown = &request[..request.len().min(90)];
            let response = Connection::open(listener).await.unwrap().send_noise(request.as_bytes()).await;
            let response = response.unwrap_or_else(|| panic!("no answer: {shown:?}"));
            // The edge alone rejects `body_bytes`; the rest fails in nginx.
            assert!(response.status >= 400, "{shown:?}: {response:?}");
            assert_eq!(
                response.header("Content-Type"),
                Some("application/problem+json"),
                "{shown:?}: {response:?}"
            );
            let problem = response.json();
            assert!(problem["code"].is_string() && problem["detail"].is_string(), "{shown:?}: {problem}");
            assert_eq!(problem["status"], response.status, "{shown:?}: {problem}");
            // RFC 9110, 15.5.6.
            assert_eq!(response.header("Allow").is_some(), response.status == 405, "{shown:?}: {response:?}");
        }
    }
    // No connection of a limit is still claimed by a request that ended like this.
    for _ in 0..5 {
        assert_eq!(system.get("bounded.test", "/").await.status, 200);
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_line_of_the_log_is_valid_json() {
    let system = System::edge_only("attack-log").await;
    let app = App::start("app").await;
    for host in ["app.test", "ruled.test"] {
        system.route(host, &app).await;
    }
    system.cli::<()>(System::PRIMARY, r#"SET policy:ruled.test {"timeouts":{"read_ms":5000}}"#).await;
    system.settle().await;
    let lines: [(&[u8], &str); 8] = [
        (b"/caf%C3%A9", "/caf\u{e9}"),
        (b"/caf\xc3\xa9", "/caf\u{e9}"),
        (b"/%c0%ae?q=%ff", "/%c0%ae"),
        (b"/%ed%a0%80", "/%ed%a0%80"),
        (b"/%f5%80%80%80", "/%f5%80%80%80"),
        (b"/a\xff?q=1", "-"),
        (b"/%22%5C%0A", "/\"\\\n"),
        (b"/plain", "/plain"),
    ];
    let mut expected = Vec::new();
    for host in ["app.test", "ruled.test", "none.test"] {
        for (path, logged) in lines {
            let request = [b"GET ", path, b" HTTP/1.1\r\nHost: ", host.as_bytes(), b"\r\n\r\n"].concat();
            Connection::open(system.edge).await.unwrap().send_raw(&request).await.unwrap();
            expected.push((host.to_owned(), logged.to_owned()));
        }
    }
    for host in [&b"caf\xe9.test"[..], b"\xff"] {
        let request = [b"GET /host HTTP/1.1\r\nHost: ", host, b"\r\n\r\n"].concat();
        Connection::open(system.edge).await.unwrap().send_raw(&request).await.unwrap();
        expected.push(("-".to_owned(), "/host".to_owned()));
    }
    let log = eventually("the log to have all lines", || {
        let bytes = std::fs::read(system.access_log()).unwrap();
        let lines: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        let found = lines.len();
        std::future::ready((found > expected.len()).then_some(lines).ok_or(found))
    })
    .await;
    let mut logged: Vec<(String, String)> = log
        .iter()
        .filter(|line| !line.is_empty())
        .map(|line| {
            let line: serde_json::Value = serde_json::from_slice(line).unwrap();
            (line["host"].as_str().unwrap().to_owned(), line["uri"].as_str().unwrap().to_owned())
        })
        .filter(|(_, uri)| expected.iter().any(|(_, known)| known == uri))
        .collect();
    // Each worker writes its lines in blocks.
    logged.sort();
    expected.sort();
    assert_eq!(logged, expected);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_an_acme_challenge_only_to_nginx_does_not_pass_a_guard() {
    let system = System::edge_only("attack-acme").await;
    let app = App::start("app").await;
    for (host, policy) in
        [("https.test", json!({"https": "only"})), ("closed.test", json!({"maintenance": {"status": 503}}))]
    {
        system.route(host, &app).await;
        system.cli::<()>(System::PRIMARY, &format!("SET policy:{host} {policy}")).await;
    }
    system.settle().await;
    for host in ["https.test", "closed.test"] {
        assert_eq!(system.get(host, "/.well-known/acme-challenge/abc-_09").await.status, 200, "{host}");
        let hits = app.hits();
        for target in [
            "/admin/../.well-known/acme-challenge/x",
            "/.well-known/acme-challenge/../../admin",
            "/.well-known/acme-challenge/..%2f..%2fadmin",
            "/.well-known/acme-challenge/x/../y",
            "/.well-known/acme-challenge/x/admin",
            "/.well-known/acme-challenge/x?y",
            "/.well-known/acme-challenge/",
            "/%2e/.well-known/acme-challenge/x",
            "//.well-known/acme-challenge/x",
            "/.well-known//acme-challenge/x",
            "/.well-known/acme%2dchallenge/x",
            "http://other.test/.well-known/acme-challenge/x",
        ] {
            let response = Request::get(host, target).send(system.edge).await.unwrap();
            assert!(matches!(response.status, 400 | 403 | 404 | 503), "{host} {target}: {response:?}");
        }
        assert_eq!(app.hits(), hits, "a request passed a guard");
    }
    system.stop().await;
}
