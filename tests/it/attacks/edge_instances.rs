//! Instances with unexpected answers. A client that knows such an address must not be able to take the instance, or
//! others, away from everybody else.

use signalbox_tests::{
    http::Request,
    system::System,
    upstream::{App, Mode},
};

use super::raw::Raw;

async fn states(system: &System, host: &str) -> Vec<String> {
    let answer = system.edge_api(&format!("/edge/outliers?host={host}")).await.json();
    let instances = answer["instances"].as_array().unwrap();
    instances.iter().map(|instance| instance["state"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn response_headers_that_are_too_large_eject_no_instance() {
    let system = System::edge_only("attack-large-headers").await;
    system.allow("upstream sent too big header");
    let answer = |size: usize| {
        let cookie = "x".repeat(size);
        format!("HTTP/1.1 200 OK\r\nSet-Cookie: a={cookie}\r\nContent-Length: 2\r\n\r\nok")
    };
    let (good, large) = (
        Raw::saying(answer(15_000)).await,
        [Raw::saying(answer(20_000)).await, Raw::saying(answer(20_000)).await],
    );
    for host in ["large.test", "ruled.test"] {
        for app in &large {
            system.cli::<()>(System::PRIMARY, &format!("SADD instances:{host} {}", app.address)).await;
        }
    }
    system.cli::<()>(System::PRIMARY, r#"SET policy:ruled.test {"balance":{"algorithm":"p2c"}}"#).await;
    system.cli::<()>(System::PRIMARY, &format!("SADD instances:good.test {}", good.address)).await;
    system.settle().await;
    let response = system.get("good.test", "/").await;
    assert_eq!((response.status, response.text().as_str()), (200, "ok"));
    for host in ["large.test", "ruled.test"] {
        for _ in 0..12 {
            let before: u64 = large.iter().map(Raw::connections).sum();
            let response = system.get(host, "/").await;
            assert_eq!(
                (response.status, response.reason()),
                (502, "response_headers_too_large"),
                "{response:?}"
            );
            let after: u64 = large.iter().map(Raw::connections).sum();
            assert_eq!(after - before, 1, "it is not asked again: {host}");
        }
        assert_eq!(states(&system, host).await, ["in", "in"], "{host}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_nginx_cannot_forward_becomes_one_of_the_edge() {
    let system = System::edge_only("attack-not-http").await;
    system.allow("upstream sent no valid HTTP/1.0 header");
    let early =
        "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    for (name, bytes, code) in
        [("early", early, "interim_response"), ("ssh", "SSH-2.0-OpenSSH_9\r\n", "not_http")]
    {
        let app = Raw::saying(bytes).await;
        for (kind, policy) in [
            ("plain", None),
            ("light", Some(r#"{"balance":{"algorithm":"p2c"}}"#)),
            ("full", Some(r#"{"timeouts":{"read_ms":5000}}"#)),
        ] {
            let host = format!("{kind}.{name}.test");
            system.cli::<()>(System::PRIMARY, &format!("SADD instances:{host} {}", app.address)).await;
            if let Some(policy) = policy {
                system.cli::<()>(System::PRIMARY, &format!("SET policy:{host} {policy}")).await;
            }
            system.settle().await;
            for method in ["GET", "HEAD", "POST"] {
                let before = app.connections();
                let response = Request::new(method, &host, "/").send(system.edge).await;
                let response =
                    response.unwrap_or_else(|error| panic!("{method} {host}: no complete answer: {error}"));
                assert_eq!(
                    (response.status, response.reason()),
                    (502, code),
                    "{method} {host}: {response:?}"
                );
                assert_eq!(
                    app.connections() - before,
                    1,
                    "{method} {host}: it is asked once, on a new connection"
                );
            }
        }
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_method_that_may_not_be_repeated_is_sent_once() {
    let system = System::edge_only("attack-methods").await;
    for text in ["prematurely closed connection", "connect() failed"] {
        system.allow(text);
    }
    let (one, two) = (App::start("one").await, App::start("two").await);
    for host in ["app.test", "chosen.test", "ruled.test"] {
        for app in [&one, &two] {
            system.route(host, app).await;
        }
    }
    for (host, policy) in [
        ("app.test", r#"{"ejection":false}"#),
        ("chosen.test", r#"{"ejection":false,"retries":{"attempts":2}}"#),
        ("ruled.test", r#"{"ejection":false,"balance":{"algorithm":"p2c"}}"#),
    ] {
        if host != "app.test" {
            system.cli::<()>(System::PRIMARY, &format!("SET policy:{host} {policy}")).await;
        }
    }
    system.settle().await;
    let hits = || one.hits() + two.hits();
    for host in ["app.test", "chosen.test", "ruled.test"] {
        for mode in [Mode::ByPath, Mode::Status(503), Mode::Close] {
            for method in ["CHARGE", "FOO", "MKCOL", "PROPPATCH", "MOVE", "POST", "PATCH", "GET"] {
                // Connections to both that the edge keeps, which the next answer may end.
                for app in [&one, &two] {
                    app.set(Mode::ByPath);
                }
                for _ in 0..8 {
                    assert_eq!(system.get(host, "/").await.status, 200);
                }
                for app in [&one, &two] {
                    app.set(mode);
                }
                let before = hits();
                let status = Request::new(method, host, "/").send(system.edge).await.unwrap().status;
                let wanted = match mode {
                    Mode::ByPath => 200,
                    Mode::Status(status) => status,
                    _ => 502,
                };
                assert_eq!(status, wanted, "{method} {host} {mode:?}");
                let most = if method == "GET" { 4 } else { 1 };
                let sent = hits() - before;
                assert!((1..=most).contains(&sent), "{method} {host} {mode:?} was sent {sent} times");
            }
        }
    }
    // After a refused connection, nothing has been sent: any method goes to another instance.
    let (mut one, two) = (one, two);
    two.set(Mode::ByPath);
    one.kill().await;
    for host in ["app.test", "chosen.test", "ruled.test"] {
        for method in ["CHARGE", "MOVE", "POST"] {
            for _ in 0..4 {
                let response = Request::new(method, host, "/").send(system.edge).await.unwrap();
                assert_eq!(response.status, 200, "{method} {host}: {response:?}");
            }
        }
    }
    system.stop().await;
}
