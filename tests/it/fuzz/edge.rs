//! Any bytes at the edge. Each name of the table has an instance of its own, which compares the host that it sees with the name
//! that routed the request.

use std::{net::SocketAddr, time::Duration};

use signalbox_stack::Reservation;
use signalbox_testkit::Fuzz;
use signalbox_tests::{http::Connection, system::System};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::instance::Instance;

/// Name, and policy: on the hot path, with guards, and below a wildcard.
const HOSTS: [(&str, &str); 4] = [
    ("plain.test", ""),
    (
        "guarded.test",
        r#"{"balance":{"algorithm":"p2c"},"limits":{"connections":{"most":50}},"methods":["GET","POST"]}"#,
    ),
    ("*.wild.test", ""),
    ("sticky.test", r#"{"sticky":{"cookie":"s"},"body_bytes":100,"target_header":true}"#),
];

const REQUESTS: [&str; 10] = [
    "GET / HTTP/1.1\r\nHost: plain.test\r\n\r\n",
    "POST /a?b HTTP/1.1\r\nHost: guarded.test:8080\r\nContent-Length: 5\r\n\r\nhello",
    "GET http://plain.test/x HTTP/1.1\r\nHost: guarded.test\r\nConnection: close, X-Own\r\nX-Own: 1\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a.wild.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: plain.test\r\n\r\nGET / HTTP/1.1\r\nHost: sticky.test\r\nCookie: s=abc\r\n\r\n",
    "PUT /%2e%2e/ HTTP/1.0\r\nHost: sticky.test.\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc",
    "GET / HTTP/1.1\r\nHost: b.wild.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    "HEAD / HTTP/1.1\r\nHost: PLAIN.test\r\nX-Forwarded-Host: evil.test\r\nX-Forwarded-For: 1.1.1.1\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: plain.test\r\nContent-Length: 44\r\n\r\nGET / HTTP/1.1\r\nHost: guarded.test\r\nX-Any: 1\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: .wild.test\r\n\r\n",
];

const WORDS: [&str; 40] = [
    "Host: guarded.test\r\n",
    "Host: plain.test\r\n",
    "Host: ",
    "Host:\t",
    "host:",
    "Host : x\r\n",
    " Host: plain.test\r\n",
    "\r\n",
    "\n",
    "\r",
    "\0",
    "\t",
    " ",
    ":",
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "Content-Length: +5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: identity, chunked\r\n",
    "Transfer-Encoding:\x0bchunked\r\n",
    "Connection: Host\r\n",
    "Connection: keep-alive\r\n",
    "Connection: Transfer-Encoding\r\n",
    "Connection: Content-Length\r\n",
    "http://guarded.test",
    "HTTP://plain.test@guarded.test/",
    "//guarded.test/",
    ":8080",
    ":99999",
    "%00",
    "%2f..",
    "@",
    "#",
    "?",
    "[::1]",
    "*",
    "0\r\n\r\n",
    "ffffffffffffffff\r\n",
    "GET / HTTP/1.1\r\n",
    "HTTP/1.0",
];

/// How long a request that may be incomplete waits for its answer.
const PATIENCE: Duration = Duration::from_millis(50);

struct Edge {
    system: System,
    instances: Vec<Instance>,
    h2c: SocketAddr,
    _ports: Reservation,
}

impl Edge {
    async fn start(name: &str) -> Self {
        let mut ports = Reservation::default();
        let h2c = SocketAddr::from(([127, 0, 0, 1], ports.add().unwrap()));
        let system = System::with(name, |builder| {
            builder.without_pacemaker().without_sidecar().nginx("EDGE_H2C_LISTEN", h2c.to_string())
        })
        .await;
        let mut instances = Vec::new();
        for (host, policy) in HOSTS {
            let instance = Instance::start(host).await;
            assert!(instance.answers().await);
            let address = instance.address;
            system.cli::<()>(System::PRIMARY, &format!("SADD instances:{host} {address}")).await;
            if !policy.is_empty() {
                system.cli::<()>(System::PRIMARY, &format!("SET policy:{host} {policy}")).await;
            }
            instances.push(instance);
        }
        system.settle().await;
        Self { system, instances, h2c, _ports: ports }
    }

    fn received(&self) -> u64 {
        self.instances.iter().map(Instance::received).sum()
    }

    /// Panics if an instance received what it should not have received. Returns whether a request arrived.
    fn check(&self, before: u64) -> bool {
        self.instances.iter().for_each(Instance::check);
        self.received() > before
    }

    /// Whatever clients send, nginx reports only the client's mistakes.
    async fn stop(self) {
        self.instances.iter().for_each(Instance::check);
        assert!(self.received() > 0, "no request reached an instance");
        let log = self.system.log_text(&System::NGINX);
        let lua = ["runtime error", "stack traceback", "attempt to ", "worker process"];
        let bad: Vec<&str> = log.lines().filter(|line| lua.iter().any(|text| line.contains(text))).collect();
        assert!(bad.is_empty(), "{bad:#?}");
        self.system.allow(", client: 127.0.0.1, server: ");
        self.system.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fuzz_edge_http1() {
    let edge = Edge::start("fuzz-http1").await;
    let mut fuzz = Fuzz::new("HTTP/1 at the edge", REQUESTS, &WORDS);
    while let Some(bytes) = fuzz.input() {
        let before = edge.received();
        let mut connection = Connection::open(edge.system.edge).await.unwrap();
        let answer = connection.send_noise_patiently(&bytes, PATIENCE).await;
        let status = answer.map_or(0, |answer| answer.status);
        assert_ne!(status, 500);
        if edge.check(before) {
            fuzz.accepted();
        }
    }
    edge.stop().await;
}

/// Header fields, a line each; an empty line and a body may follow.
const FIELDS: [&str; 6] = [
    ":method: GET\n:scheme: http\n:authority: plain.test\n:path: /",
    ":method: POST\n:scheme: http\n:authority: guarded.test:80\n:path: /a?b\ncontent-length: 5\n\nhello",
    ":method: GET\n:scheme: https\n:path: /\nhost: a.wild.test\ncookie: a=b\ncookie: s=c\nte: trailers",
    ":method: POST\n:scheme: http\n:authority: sticky.test\n:path: /\ncontent-type: application/grpc\n\nx",
    ":method: GET\n:scheme: http\n:authority: PLAIN.test\n:path: /\nhost: plain.test\nx-forwarded-host: evil.test",
    // An empty label was accepted in place of the `*` of a wildcard.
    ":method: GET\n:scheme: http\n:path: /\nhost: .wild.test",
];

const FIELD_WORDS: [&str; 24] = [
    "\n",
    ":authority: guarded.test\n",
    "host: guarded.test\n",
    "host: plain.test\r\n",
    ":path: http://guarded.test/\n",
    ":path: *",
    ":method: CONNECT\n",
    ":method: GET / HTTP/1.1\r\nHost: guarded.test\r\n",
    "transfer-encoding: chunked\n",
    "content-length: 0\n",
    "connection: host\n",
    "upgrade: websocket\n",
    "\r",
    "\0",
    " ",
    ":",
    ":99999",
    "@guarded.test",
    "\r\nHost: guarded.test",
    "/../",
    "te: gzip\n",
    ":protocol: websocket\n",
    "Host: guarded.test\n",
    ".",
];

/// A header block without compression (RFC 7541, section 6.2.2).
fn block(head: &[u8]) -> Vec<u8> {
    let mut block = Vec::new();
    for line in head.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        // The first byte may be the colon of a pseudo-header.
        let colon = line.iter().skip(1).position(|byte| *byte == b':').map_or(line.len(), |at| at + 1);
        let (name, value) = line.split_at(colon);
        let value = value.strip_prefix(b": ").or_else(|| value.strip_prefix(b":")).unwrap_or(value);
        block.push(0);
        for text in [name, value] {
            string(&mut block, text);
        }
    }
    block
}

fn string(block: &mut Vec<u8>, text: &[u8]) {
    match u8::try_from(text.len()) {
        Ok(length) if length < 127 => block.push(length),
        _ => {
            block.push(127);
            let mut rest = text.len() - 127;
            while rest >= 128 {
                block.push(u8::try_from(rest % 128).unwrap() | 128);
                rest /= 128;
            }
            block.push(u8::try_from(rest).unwrap());
        }
    }
    block.extend(text);
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A connection with one HTTP/2 request: a field per line, and a body after an empty line.
pub(crate) fn connection(input: &[u8]) -> Vec<u8> {
    let end = input.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = end.map_or((input, None), |end| (&input[..end], Some(&input[end + 2..])));
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    let ends = if body.is_none() { END_STREAM } else { 0 };
    bytes.extend(frame(HEADERS, END_HEADERS | ends, 1, &block(head)));
    if let Some(body) = body {
        bytes.extend(frame(DATA, END_STREAM, 1, body));
    }
    bytes
}

/// Sends the bytes and reads until the request is answered or rejected. A connection that stays silent is closed.
async fn exchange(to: SocketAddr, bytes: &[u8]) {
    const SILENCE: Duration = Duration::from_millis(200);
    let mut stream = TcpStream::connect(to).await.unwrap();
    if stream.write_all(bytes).await.is_err() {
        return;
    }
    let (mut held, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(Ok(count)) = timeout(SILENCE, stream.read(&mut piece)).await {
        if count == 0 {
            return;
        }
        held.extend(&piece[..count]);
        while held.len() >= 9 {
            let length = u32::from_be_bytes([0, held[0], held[1], held[2]]);
            let length = 9 + usize::try_from(length).unwrap();
            if held.len() < length {
                break;
            }
            let kind = held[3];
            held.drain(..length);
            if matches!(kind, HEADERS | RST_STREAM | GOAWAY) {
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fuzz_edge_http2() {
    let edge = Edge::start("fuzz-http2").await;
    let mut fuzz = Fuzz::new("HTTP/2 at the edge", FIELDS, &FIELD_WORDS);
    while let Some(input) = fuzz.input() {
        let mut bytes = connection(&input);
        // In a quarter of the inputs a byte of the frames changes as well.
        if fuzz.below(4) == 0 {
            let place = fuzz.below(bytes.len());
            bytes[place] ^= 1 << fuzz.below(8);
        }
        let before = edge.received();
        exchange(edge.h2c, &bytes).await;
        if edge.check(before) {
            fuzz.accepted();
        }
    }
    edge.stop().await;
}
