//! A client or an instance tries to harm others by speaking gRPC where it is not expected.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::SendRequest;
use signalbox_stack::Reservation;
use signalbox_tests::{
    grpc::{Call, Service},
    system::System,
    upstream::App,
};
use tokio::net::TcpStream;

use super::edge_headers::CLAIMS;

/// An edge with a listener for HTTP/2 without TLS.
async fn start(name: &str) -> (System, SocketAddr, Reservation) {
    let mut ports = Reservation::default();
    let h2c = SocketAddr::from(([127, 0, 0, 1], ports.add().unwrap()));
    let system = System::with(name, |builder| {
        builder.without_pacemaker().without_sidecar().nginx("EDGE_H2C_LISTEN", h2c.to_string())
    })
    .await;
    (system, h2c, ports)
}

async fn client(to: SocketAddr) -> SendRequest<Bytes> {
    let (client, connection) = h2::client::handshake(TcpStream::connect(to).await.unwrap()).await.unwrap();
    tokio::spawn(async move {
        let _ended = connection.await;
    });
    client
}

/// Sends a request without a body and returns its status and body.
async fn ask(to: SocketAddr, method: &str, url: &str, kind: &str) -> (u16, http::HeaderMap, Vec<u8>) {
    let request =
        http::Request::builder().method(method).uri(url).header("content-type", kind).body(()).unwrap();
    let mut client = client(to).await.ready().await.unwrap();
    let (response, _) = client.send_request(request, true).unwrap();
    let response = response.await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let (mut body, mut bytes) = (response.into_body(), Vec::new());
    while let Some(piece) = body.data().await {
        bytes.extend(piece.unwrap());
    }
    (status, headers, bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_type_does_not_eject_instances_that_speak_http() {
    let (system, h2c, _ports) = start("attack-grpc").await;
    let apps = [App::start("one").await, App::start("two").await];
    for host in ["app.test", "ruled.test"] {
        for app in &apps {
            system.route(host, app).await;
        }
    }
    system.cli::<()>(System::PRIMARY, r#"SET policy:ruled.test {"balance":{"algorithm":"p2c"}}"#).await;
    system.settle().await;
    for host in ["app.test", "ruled.test"] {
        for method in ["GET", "POST"] {
            for kind in ["application/grpc", "application/grpc+proto"] {
                for _ in 0..8 {
                    let (status, _, body) = ask(h2c, method, &format!("http://{host}/"), kind).await;
                    let body = String::from_utf8_lossy(&body).into_owned();
                    assert_eq!(status, 200, "{method} {host} {kind}: {body}");
                    assert!(matches!(body.as_str(), "one" | "two"), "{body}");
                }
            }
        }
        let states = system.edge_api(&format!("/edge/outliers?host={host}")).await.json();
        for instance in states["instances"].as_array().unwrap() {
            assert_eq!((&instance["state"], &instance["failures"]), (&"in".into(), &0.into()), "{states}");
        }
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_does_not_steer_the_edge_by_grpc_headers() {
    let (system, h2c, _ports) = start("attack-grpc-steer").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let instance = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    let response = http::Response::builder()
                        .header("content-type", "application/grpc")
                        .header("x-accel-redirect", "/steered")
                        .header("x-accel-limit-rate", "1")
                        .header("x-signalbox-error", "spoof")
                        .header("x-signalbox-serial", "5")
                        .header("x-signalbox-generation", "5")
                        .header("grpc-status", "0")
                        .body(())
                        .unwrap();
                    respond.send_response(response, true).unwrap();
                }
            });
        }
    });
    system.cli::<()>(System::PRIMARY, &format!("SADD instances:grpc.test {address}")).await;
    system.cli::<()>(System::PRIMARY, r#"SET policy:grpc.test {"upstream":{"protocol":"grpc"}}"#).await;
    system.settle().await;
    for _ in 0..2 {
        let (status, headers, _) = ask(h2c, "POST", "http://grpc.test/pkg.S/M", "application/grpc").await;
        assert_eq!((status, headers["grpc-status"].to_str().unwrap()), (200, "0"), "{headers:?}");
        for name in ["x-signalbox-error", "x-signalbox-serial", "x-signalbox-generation"] {
            assert!(!headers.contains_key(name), "{name}: {headers:?}");
        }
    }
    let lines = system.log_lines_when(2).await;
    for line in &lines {
        assert_eq!((&line["method"], &line["uri"]), (&"POST".into(), &"/pkg.S/M".into()), "{line}");
    }
    instance.abort();
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_speaks_grpc_receives_no_claims_of_clients() {
    let (system, h2c, _ports) = start("attack-grpc-claims").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // It answers with the head of each request.
    let instance = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let mut head = String::new();
                    for (name, value) in request.headers() {
                        head += &format!("{name}: {}\n", value.to_str().unwrap());
                    }
                    let response = http::Response::builder()
                        .header("content-type", "application/grpc")
                        .body(())
                        .unwrap();
                    let mut body = respond.send_response(response, false).unwrap();
                    body.send_data(Bytes::from(head), true).unwrap();
                }
            });
        }
    });
    system.cli::<()>(System::PRIMARY, &format!("SADD instances:grpc.test {address}")).await;
    system.cli::<()>(System::PRIMARY, r#"SET policy:grpc.test {"upstream":{"protocol":"grpc"}}"#).await;
    system.settle().await;
    let request = http::Request::post("http://grpc.test/pkg.S/M").header("content-type", "application/grpc");
    let request = CLAIMS
        .iter()
        .chain(&[("traceparent", "claimed"), ("tracestate", "claimed=1"), ("X-Kept", "yes")])
        .fold(request, |request, (name, value)| request.header(*name, *value));
    let mut client = client(h2c).await.ready().await.unwrap();
    let (response, _) = client.send_request(request.body(()).unwrap(), true).unwrap();
    let (mut body, mut bytes) = (response.await.unwrap().into_body(), Vec::new());
    while let Some(piece) = body.data().await {
        bytes.extend(piece.unwrap());
    }
    let head = String::from_utf8(bytes).unwrap();
    let received = |name: &str| {
        let values = head.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        values.collect::<Vec<_>>()
    };
    assert_eq!(received("x-kept"), ["yes"], "{head}");
    for wrong in ["6.6.6.6", "claimed", ": 666\n", "https", ": on\n"] {
        assert!(!head.contains(wrong), "{wrong} in {head}");
    }
    for (name, value) in [
        ("host", "grpc.test"),
        ("x-forwarded-host", "grpc.test"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-port", "80"),
        ("x-real-ip", "127.0.0.1"),
    ] {
        assert_eq!(received(name), [value], "{name}: {head}");
    }
    for name in ["x-request-id", "traceparent", "cdn-loop"] {
        assert_eq!(received(name).len(), 1, "{name}: {head}");
    }
    instance.abort();
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_may_be_larger_than_the_largest_body() {
    let mut ports = Reservation::default();
    let h2c = SocketAddr::from(([127, 0, 0, 1], ports.add().unwrap()));
    let system = System::with("grpc-large", |builder| {
        let builder = builder.without_pacemaker().without_sidecar();
        builder.nginx("EDGE_H2C_LISTEN", h2c.to_string()).nginx("BODY_LIMIT", "64k")
    })
    .await;
    let service = Service::start("service").await;
    // A table that was written by hand may limit bodies. To know the size of a call, nginx would have to store it.
    let hosts = [
        ("grpc.test", r#"{"upstream":{"protocol":"grpc"}}"#),
        ("limited.test", r#"{"upstream":{"protocol":"grpc"},"body_bytes":1000}"#),
    ];
    for (host, policy) in hosts {
        system.cli::<()>(System::PRIMARY, &format!("SADD instances:{host} {}", service.address)).await;
        system.cli::<()>(System::PRIMARY, &format!("SET policy:{host} {policy}")).await;
    }
    system.settle().await;
    for (host, _) in hosts {
        let mut call = Call::open(h2c, host, "/echo").await.unwrap();
        let message = "x".repeat(20_000);
        for n in 0..20 {
            call.send(&message).unwrap();
            let answer = call.receive().await.unwrap().map(|answer| answer.len());
            assert_eq!(answer, Some(message.len()), "{host} after {n} messages");
        }
        call.close().unwrap();
        assert_eq!(call.end().await.unwrap()["grpc-status"], "0");
    }
    system.stop().await;
}
