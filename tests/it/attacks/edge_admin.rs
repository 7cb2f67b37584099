//! A web page in an operator's browser tries to reach the admin listener: by a name of its own that leads to this machine (DNS
//! rebinding), or by requests across sites.

use signalbox_tests::{
    http::{Request, Response},
    system::System,
};

async fn send(system: &System, request: Request) -> Response {
    request.send(system.admin).await.unwrap()
}

fn refused(response: &Response) -> (u16, String) {
    assert_eq!(response.header("Content-Type"), Some("application/problem+json"), "{response:?}");
    let code = response.json()["code"].as_str().unwrap().to_owned();
    assert_eq!(response.reason(), code);
    (response.status, code)
}

#[tokio::test(flavor = "multi_thread")]
async fn only_names_of_the_admin_listener_are_answered() {
    let system = System::with("attack-rebinding", |builder| {
        builder.without_pacemaker().without_sidecar().nginx("ADMIN_NAMES", "admin.example Router-1")
    })
    .await;
    let port = system.admin.port();
    let paths =
        ["/edge/snapshot", "/edge/status", "/edge/connections", "/metrics", "/", "/stats", "/instances"];
    let evil =
        ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "admin.example.evil", "1a"];
    for host in evil {
        for path in paths {
            for host in [host.to_owned(), format!("{host}:{port}")] {
                let response = send(&system, Request::get(&host, path)).await;
                assert_eq!(refused(&response), (421, "unknown_admin_name".to_owned()), "{host}{path}");
            }
        }
        let accept = Request::new("POST", host, "/edge/accept").header("X-Signalbox-Accept", "table");
        assert_eq!(send(&system, accept).await.status, 421, "{host}");
    }
    // An absolute request line decides, as it does at the edge.
    let absolute = Request::get("localhost", "http://evil.example/edge/status");
    assert_eq!(send(&system, absolute).await.status, 421);
    for host in [
        "localhost",
        "LOCALHOST",
        "127.0.0.1",
        "[::1]",
        "10.1.2.3",
        "admin.example",
        "router-1",
        "Admin.Example.",
    ] {
        for host in [host.to_owned(), format!("{host}:{port}")] {
            assert_eq!(send(&system, Request::get(&host, "/edge/status")).await.status, 200, "{host}");
        }
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_other_sites_are_rejected() {
    let system = System::start("attack-cross-site").await;
    let host = system.admin.to_string();
    let accept = || Request::new("POST", &host, "/edge/accept").header("X-Signalbox-Accept", "table");
    let status = || Request::get(&host, "/edge/status");
    let api = || Request::get(&host, "/instances").token(&system.token);
    let own = format!("http://{host}");
    for request in [
        accept().header("Origin", "http://evil.example"),
        accept().header("Origin", "null"),
        accept().header("Origin", "null").header("Sec-Fetch-Site", "same-site"),
        accept().header("Origin", "null").header("Sec-Fetch-Site", "cross-site"),
        accept().header("Origin", &format!("http://127.0.0.1:{}", system.edge.port())),
        accept().header("Origin", &format!("{own}.evil.example")),
        accept().header("Sec-Fetch-Site", "cross-site").header("Sec-Fetch-Mode", "cors"),
        status().header("Sec-Fetch-Site", "cross-site").header("Sec-Fetch-Mode", "no-cors"),
        status().header("Origin", "http://evil.example"),
        api().header("Origin", "https://evil.example"),
        Request::get(&host, "/metrics")
            .header("Sec-Fetch-Site", "cross-site")
            .header("Sec-Fetch-Mode", "no-cors"),
    ] {
        let response = send(&system, request.clone()).await;
        assert_eq!(refused(&response), (403, "foreign_origin".to_owned()), "{request:?}");
    }
    for request in [
        accept(),
        accept()
            .header("Origin", &own)
            .header("Sec-Fetch-Site", "same-origin")
            .header("Sec-Fetch-Mode", "cors"),
        // A form of a page with the referrer policy no-referrer.
        accept().header("Origin", "null").header("Sec-Fetch-Site", "same-origin"),
        status().header("Sec-Fetch-Site", "none").header("Sec-Fetch-Mode", "navigate"),
        api().header("Origin", &own),
        // A link on another page.
        api().header("Sec-Fetch-Site", "cross-site").header("Sec-Fetch-Mode", "navigate"),
    ] {
        assert_eq!(send(&system, request.clone()).await.status, 200, "{request:?}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_not_allowed_gets_a_problem_document() {
    let system = System::with("attack-address", |builder| {
        builder
            .without_pacemaker()
            .without_sidecar()
            .nginx("ADMIN_ALLOW", "deny 127.0.0.2; allow 127.0.0.0/8;")
    })
    .await;
    for path in ["/edge/status", "/edge/connections", "/metrics"] {
        let from = tokio::net::TcpSocket::new_v4().unwrap();
        from.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut stream = from.connect(system.admin).await.unwrap();
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 403 "), "{path}: {text}");
        assert!(text.contains("X-Signalbox-Error: address_not_allowed\r\n"), "{path}: {text}");
        assert!(text.contains(r#""code":"address_not_allowed""#), "{path}: {text}");
    }
    system.allow("access forbidden by rule");
    system.stop().await;
}
