//! Responses of instances, byte by byte, as clients of each protocol receive them.

use std::net::SocketAddr;

use signalbox_stack::Reservation;
use signalbox_tests::{
    http::{Connection, Request, Response},
    http2::Exchange,
    system::System,
    upstream::App,
};

use super::raw::Raw;

/// What a client receives.
enum Wanted {
    /// The instance's own response: status, body, headers that it must have and must not have.
    Own(u16, &'static str, &'static [&'static str], &'static [&'static str]),
    /// 502 of the edge with this code.
    Edge(&'static str),
    /// No complete response, because nginx noticed too late.
    Broken,
}

use Wanted::{Broken, Edge, Own};

/// Name, bytes of the instance, whether it then closes the connection, what clients receive.
const CASES: [(&str, &str, bool, Wanted); 20] = [
    ("length", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", false, Own(200, "ok", &[], &[])),
    (
        "chunks",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n",
        false,
        Own(200, "ok", &[], &[]),
    ),
    ("end", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok", true, Own(200, "ok", &[], &[])),
    ("old", "HTTP/1.0 200 OK\r\n\r\nok", true, Own(200, "ok", &[], &[])),
    ("bare-lines", "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", false, Own(200, "ok", &[], &[])),
    (
        "no-content",
        "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\nX-Kept: 1\r\n\r\n",
        false,
        Own(204, "", &["X-Kept"], &["Content-Length"]),
    ),
    (
        "no-content-with-length",
        "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello",
        true,
        Own(204, "", &[], &["Content-Length"]),
    ),
    (
        "not-modified",
        "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 5\r\n\r\n",
        false,
        Own(304, "", &["ETag"], &[]),
    ),
    (
        "named",
        "HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop,x-other , Content-Length\r\nX-Hop: 1\r\nX-Other: 1\r\nX-Kept: 1\r\nContent-Length: 2\r\n\r\nok",
        false,
        Own(200, "ok", &["X-Kept"], &["X-Hop", "X-Other", "Keep-Alive"]),
    ),
    (
        "offers-upgrade",
        "HTTP/1.1 200 OK\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nok",
        true,
        Own(200, "ok", &[], &["Upgrade"]),
    ),
    (
        "poison",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison",
        false,
        Own(200, "ok", &[], &[]),
    ),
    (
        "claims",
        "HTTP/1.1 200 OK\r\nX-Signalbox-Error: claimed\r\nX-Accel-Redirect: /x\r\nContent-Length: 2\r\n\r\nok",
        false,
        Own(200, "ok", &[], &["X-Signalbox-Error", "X-Accel-Redirect"]),
    ),
    (
        "early-hints",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        false,
        Edge("interim_response"),
    ),
    (
        "switch",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nbytes",
        false,
        Edge("interim_response"),
    ),
    // It names headers of the edge's own answer.
    (
        "names-the-code",
        "HTTP/1.1 103 Early Hints\r\nConnection: X-Signalbox-Error, Content-Type, Date\r\n\r\n",
        false,
        Edge("interim_response"),
    ),
    ("ssh", "SSH-2.0-OpenSSH_9\r\n", false, Edge("not_http")),
    ("nothing", "", true, Edge("connection_broken")),
    ("half-a-head", "HTTP/1.1 200 OK\r\nContent-Le", true, Edge("connection_broken")),
    ("short", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok", true, Broken),
    ("bad-chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n", true, Broken),
];

/// A client's protocol.
const PROTOCOLS: [&str; 3] = ["1.0", "1.1", "2"];

async fn receive(protocol: &str, edge: SocketAddr, h2c: SocketAddr, host: &str) -> std::io::Result<Response> {
    match protocol {
        "2" => Exchange::get(h2c, host, &[]).await?.end().await,
        "1.1" => Request::get(host, "/").header("Connection", "close").send(edge).await,
        _ => {
            let request = format!("GET / HTTP/1.0\r\nHost: {host}\r\n\r\n");
            Connection::open(edge).await?.send_raw(request.as_bytes()).await
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_client_receives_the_same_of_a_response_whatever_its_bytes_are() {
    let mut ports = Reservation::default();
    let h2c = SocketAddr::from(([127, 0, 0, 1], ports.add().unwrap()));
    let system = System::with("attack-responses", |builder| {
        builder.without_pacemaker().without_sidecar().nginx("EDGE_H2C_LISTEN", h2c.to_string())
    })
    .await;
    for text in [
        "upstream sent no valid HTTP/1.0 header",
        "upstream prematurely closed connection",
        "upstream sent invalid chunked response",
    ] {
        system.allow(text);
    }
    let good = App::start("good").await;
    system.route("good.test", &good).await;
    let ways = [
        ("hot", r#"{"ejection":false}"#),
        ("full", r#"{"ejection":false,"timeouts":{"read_ms":20000}}"#),
        ("buffered", r#"{"ejection":false,"buffering":true}"#),
    ];
    let mut instances = Vec::new();
    for (name, bytes, closes, _) in &CASES {
        let instance = if *closes { Raw::closing(*bytes).await } else { Raw::saying(*bytes).await };
        for (way, policy) in ways {
            let host = format!("{way}.{name}.test");
            system.cli::<()>(System::PRIMARY, &format!("SADD instances:{host} {}", instance.address)).await;
            system.cli::<()>(System::PRIMARY, &format!("SET policy:{host} {policy}")).await;
        }
        instances.push(instance);
    }
    system.settle().await;
    let mut wrong = Vec::new();
    for (name, _, _, wanted) in &CASES {
        for (way, _) in ways {
            for protocol in PROTOCOLS {
                let host = format!("{way}.{name}.test");
                let received = receive(protocol, system.edge, h2c, &host).await;
                let fine = match (wanted, &received) {
                    (Broken, Err(_)) => true,
                    // Without chunks and lengths, the end of the connection is the end of the response.
                    (Broken, Ok(response)) => {
                        protocol == "1.0"
                            && response.header("Content-Length").is_none()
                            && response.status == 200
                    }
                    (Edge(code), Ok(response)) => (response.status, response.reason()) == (502, *code),
                    (Own(status, body, with, without), Ok(response)) => {
                        response.status == *status
                            && response.text() == *body
                            && with.iter().all(|name| response.header(name).is_some())
                            && without.iter().all(|name| response.header(name).is_none())
                    }
                    (_, Err(_)) => false,
                };
                if !fine {
                    wrong.push(format!("{host} over HTTP/{protocol}: {received:?}"));
                }
                let next = receive(protocol, system.edge, h2c, "good.test").await.unwrap();
                assert_eq!((next.status, next.text().as_str()), (200, "good"), "after {host}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    system.stop().await;
}
