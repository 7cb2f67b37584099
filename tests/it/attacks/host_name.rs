//! An anonymous client tries to make an instance see another host name than the one that routed the request.

use signalbox_tests::{
    http::{Connection, Response},
    system::System,
    upstream::App,
};

/// Sends the bytes as they are to an edge with one instance that echoes the request.
async fn attack(system: &System, request: &str) -> Response {
    Connection::open(system.edge).await.unwrap().send_raw(request.as_bytes()).await.unwrap()
}

/// The values of a header in a request as an instance received it.
fn received<'a>(echo: &'a str, name: &str) -> Vec<&'a str> {
    let head = echo.split("\r\n\r\n").next().unwrap_or_default();
    let headers = head.lines().filter_map(|line| line.split_once(": "));
    headers.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_receives_the_host_that_routed_the_request() {
    let system = System::edge_only("attack-host").await;
    let app = App::start("app").await;
    system.route("open.test", &app).await;
    system.settle().await;
    for (request, host) in [
        // An absolute request line decides the route. The Host line must not reach the instance.
        ("GET http://open.test/echo HTTP/1.1\r\nHost: guarded.test\r\n\r\n", "open.test"),
        ("GET http://OPEN.test:81/echo HTTP/1.1\r\nHost: open.test.evil.test\r\n\r\n", "open.test"),
        // Without a Host line, an instance that does not speak HTTP would read the body as
        // commands.
        ("GET http://open.test/echo HTTP/1.0\r\n\r\n", "open.test"),
        // The Host of an ordinary client arrives unchanged, including its port.
        ("GET /echo HTTP/1.1\r\nHost: open.test\r\n\r\n", "open.test"),
        ("GET /echo HTTP/1.1\r\nHost: Open.Test:8080\r\n\r\n", "open.test:8080"),
        ("GET http://open.test:8080/echo HTTP/1.1\r\nHost: open.test:8080\r\n\r\n", "open.test:8080"),
    ] {
        let response = attack(&system, request).await;
        let echo = response.text();
        assert_eq!(response.status, 200, "{request:?}: {echo}");
        assert_eq!(received(&echo, "host"), [host], "{request:?}: {echo}");
        assert_eq!(received(&echo, "x-forwarded-host"), [host], "{request:?}: {echo}");
    }
    system.stop().await;
}
