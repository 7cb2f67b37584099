//! Deliveries to receivers of every kind, over real sockets.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::HeaderMap;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

use super::{BatchContents, Webhooks};
use crate::{Event, EventId, Kind, OnExhausted, Options, Subscription, metrics::Metrics};
use signalbox_egress::Secret;
use signalbox_egress::{Client, Lookup, Outcome, OwnAddresses, new_secret, system_lookup};

/// A request as it came over the wire.
#[derive(Debug, Clone)]
struct Received {
    line: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Received {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<Received> {
    let mut stream = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let line = lines.remove(0);
    let headers: Vec<(String, String)> = lines
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(n, v)| (n.to_owned(), v.to_owned()))
        .collect();
    let mut received = Received { line, headers, body: Vec::new() };
    received.body = vec![0; received.header("content-length")?.parse().ok()?];
    stream.read_exact(&mut received.body).await.ok()?;
    Some(received)
}

/// A receiver that handles each connection as configured.
struct Receiver {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    /// Answers every request with these bytes.
    async fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer: Arc<[u8]> = answer.into().into();
        Self::new(move |mut stream, requests| {
            let answer = Arc::clone(&answer);
            async move {
                while let Some(received) = read_request(&mut stream).await {
                    requests.lock().unwrap().push(received);
                    if stream.write_all(&answer).await.is_err() {
                        break;
                    }
                }
            }
        })
        .await
    }

    async fn new<F, W>(work: F) -> Self
    where
        F: Fn(TcpStream, Arc<Mutex<Vec<Received>>>) -> W + Send + 'static,
        W: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
            requests: Arc::default(),
        };
        let (connections, requests) = (Arc::clone(&receiver.connections), Arc::clone(&receiver.requests));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(work(stream, Arc::clone(&requests)));
            }
        });
        receiver
    }

    fn url(&self) -> String {
        format!("http://{}/events", self.address)
    }

    fn requests(&self) -> Vec<Received> {
        self.requests.lock().unwrap().clone()
    }
}

#[allow(clippy::disallowed_methods, reason = "signatures are verified against the real clock")]
fn now() -> SystemTime {
    SystemTime::now()
}

fn options() -> Options {
    Options {
        allow_http: true,
        allow_networks: vec!["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()],
        ..Options::default()
    }
}

fn webhooks(options: &Options) -> Webhooks {
    Webhooks::new(
        Client::new(&options.egress(OwnAddresses::default(), signalbox_egress::Budget::default()), now)
            .unwrap(),
        Metrics::default().deliveries,
    )
}

pub(crate) fn subscription(callback: &str) -> Arc<Subscription> {
    Arc::new(Subscription {
        token: "t".to_owned(),
        callback: callback.to_owned(),
        uuid: "cre:dential".to_owned(),
        timeout_ms: 0,
        max_events: 10,
        concurrency: 1,
        generation: 1,
        on_exhausted: OnExhausted::Dead,
        secrets: vec![Secret { secret: new_secret([1; 32]), until_ms: None }],
        disabled: None,
        paused: false,
        max_attempts: None,
        max_age_seconds: None,
        retry_seconds: Vec::new(),
        tenants: None,
        sealed: None,
        topics: ["orders".to_owned()].into(),
        changed_in: 0,
    })
}

fn batch() -> Arc<BatchContents> {
    let event = Event {
        id: EventId(7),
        prev: None,
        tprev: None,
        object: "https://shop.example/1".to_owned(),
        topic: "orders".to_owned(),
        kind: Kind::Create,
        tenant: "shop".to_owned(),
        url: "https://shop.example/1".to_owned(),
        timestamp_ms: 5,
        data: None,
        cause: None,
        rendered: OnceLock::new(),
    };
    let events = vec![Arc::new(event)];
    Arc::new(BatchContents {
        id: "aB3+/".to_owned(),
        created_ms: 0,
        attempts: 0,
        events,
        redriven: Vec::new(),
        gaps: Vec::new(),
    })
}

async fn deliver(to: &str) -> Outcome {
    webhooks(&options()).deliver(subscription(to), batch()).await
}

fn why(outcome: Outcome) -> String {
    match outcome {
        Outcome::Failed { why, .. } => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn nothing_is_sent_without_the_credentials_that_cannot_be_decrypted() {
    let receiver = Receiver::answering(OK).await;
    let mut locked = Subscription::clone(&subscription(&receiver.url()));
    (locked.uuid, locked.secrets, locked.sealed) = (String::new(), Vec::new(), Some("AAAA".to_owned()));
    let outcome = webhooks(&options()).deliver(Arc::new(locked), batch()).await;
    assert!(why(outcome).contains("edge_key_file"));
    assert!(receiver.requests().is_empty());
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[tokio::test]
async fn a_request_has_the_form_that_receivers_of_routemaster_expect() {
    let receiver = Receiver::answering(OK).await;
    assert_eq!(deliver(&format!("{}?a=b", receiver.url())).await, Outcome::Delivered);
    let request = receiver.requests().remove(0);
    assert_eq!(request.line, "POST /events?a=b HTTP/1.1");
    assert_eq!(request.header("content-type"), Some("application/json"));
    let basic = format!("Basic {}", STANDARD.encode("cre:dential:x"));
    assert_eq!(request.header("authorization"), Some(basic.as_str()));
    assert_eq!(request.header("host"), Some(receiver.address.to_string().as_str()));
    let events: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!(events[0]["id"], 7);
}

/// The original's own receiver compares the media type as text and refuses everything else.
#[tokio::test]
async fn a_receiver_that_answers_415_to_anything_but_json_gets_its_batches() {
    let receiver = Receiver::new(|mut stream, requests| async move {
        while let Some(received) = read_request(&mut stream).await {
            let exact = received.header("content-type") == Some("application/json");
            requests.lock().unwrap().push(received);
            let status = if exact { "204 No Content" } else { "415 Unsupported Media Type" };
            stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await.unwrap();
        }
    })
    .await;
    assert_eq!(deliver(&receiver.url()).await, Outcome::Delivered);
}

#[tokio::test]
async fn a_receiver_can_verify_the_signature_with_any_standard_webhooks_library() {
    let receiver = Receiver::answering(OK).await;
    let mut subscription = (*subscription(&receiver.url())).clone();
    let old = Secret { secret: new_secret([2; 32]), until_ms: Some(u64::MAX) };
    subscription.secrets.push(old);
    let (subscription, webhooks) = (Arc::new(subscription), webhooks(&options()));
    for _ in 0..2 {
        webhooks.deliver(Arc::clone(&subscription), batch()).await;
    }
    for request in receiver.requests() {
        let mut headers = HeaderMap::new();
        for (name, value) in &request.headers {
            headers.append(http::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
        }
        assert_eq!(request.header("webhook-id"), Some("aB3+/"), "the same at every attempt");
        for secret in &subscription.secrets {
            standardwebhooks::Webhook::new(&secret.secret).unwrap().verify(&request.body, &headers).unwrap();
        }
    }
}

#[tokio::test]
async fn connections_are_used_again() {
    let with_body = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    for answer in [OK, with_body] {
        let receiver = Receiver::answering(answer).await;
        let (webhooks, subscription) = (webhooks(&options()), subscription(&receiver.url()));
        for sent in 1..=20 {
            assert_eq!(webhooks.deliver(Arc::clone(&subscription), batch()).await, Outcome::Delivered);
            assert_eq!(receiver.requests().len(), sent);
        }
        // An answer's body is read while the next delivery is already wanted, so a second connection may be made.
        assert!(receiver.connections.load(Ordering::SeqCst) <= 3);
    }
}

/// The receiver closes each connection after its first answer without announcing it, as servers do with idle ones.
#[tokio::test]
async fn a_connection_that_was_closed_while_idle_costs_nothing() {
    let receiver = Receiver::new(|mut stream, requests| async move {
        if let Some(received) = read_request(&mut stream).await {
            requests.lock().unwrap().push(received);
            stream.write_all(OK.as_bytes()).await.unwrap();
        }
    })
    .await;
    let (webhooks, subscription) = (webhooks(&options()), subscription(&receiver.url()));
    for _ in 0..20 {
        assert_eq!(webhooks.deliver(Arc::clone(&subscription), batch()).await, Outcome::Delivered);
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let target = Receiver::answering(OK).await;
    for status in ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"] {
        let answer = format!("HTTP/1.1 {status}\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", target.url());
        let receiver = Receiver::answering(answer).await;
        assert!(why(deliver(&receiver.url()).await).contains("redirects are not followed"));
    }
    assert_eq!(target.requests().len(), 0);
}

#[tokio::test]
async fn a_receiver_that_hangs_costs_its_time_and_no_more() {
    let options = Options { delivery_ms: 50, ..options() };
    let half_a_head: &'static [u8] = b"HTTP/1.1 200 OK\r\nX-Slow: ";
    for start in [&b""[..], half_a_head] {
        let receiver = Receiver::new(move |mut stream, _| async move {
            read_request(&mut stream).await;
            stream.write_all(start).await.unwrap();
            std::future::pending::<()>().await;
        })
        .await;
        let outcome = webhooks(&options).deliver(subscription(&receiver.url()), batch()).await;
        assert_eq!(why(outcome), "no answer within 50 ms");
    }
}

/// Ten gigabytes are announced; the receiver detects that they are not read.
#[tokio::test]
async fn only_a_part_of_an_endless_answer_is_read() {
    for head in ["Content-Length: 10000000000", "Transfer-Encoding: chunked"] {
        let (told, mut refused) = tokio::sync::mpsc::channel(1);
        let receiver = Receiver::new(move |mut stream, _| {
            let told = told.clone();
            async move {
                read_request(&mut stream).await;
                let head = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n");
                stream.write_all(head.as_bytes()).await.unwrap();
                let chunk = [b"4000\r\n".as_slice(), &[b'x'; 0x4000], b"\r\n"].concat();
                let mut sent = 0_u64;
                while sent < 10_000_000_000 && stream.write_all(&chunk).await.is_ok() {
                    sent += chunk.len() as u64;
                }
                told.send(sent).await.unwrap();
            }
        })
        .await;
        assert_eq!(deliver(&receiver.url()).await, Outcome::Delivered);
        // The sockets' buffers hold more than was read.
        let sent = refused.recv().await.unwrap();
        assert!(sent < 64_000_000, "{sent} bytes were taken");
    }
}

#[tokio::test]
async fn an_endless_head_is_not_an_answer() {
    let receiver = Receiver::new(|mut stream, _| async move {
        read_request(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n").await;
        while stream.write_all(b"X-More: and more of the same, without an end\r\n").await.is_ok() {}
    })
    .await;
    assert_eq!(why(deliver(&receiver.url()).await), "the answer was not HTTP");
}

#[tokio::test]
async fn a_2xx_with_an_incomplete_body_is_a_success() {
    let receiver = Receiver::new(|mut stream, _| async move {
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf").await.unwrap();
    })
    .await;
    assert_eq!(deliver(&receiver.url()).await, Outcome::Delivered);
}

#[tokio::test]
async fn a_receiver_that_closes_half_way_has_not_taken_the_batch() {
    for half in ["", "HTTP/1.1 200 OK\r\nContent-"] {
        let receiver = Receiver::new(move |mut stream, _| async move {
            read_request(&mut stream).await;
            stream.write_all(half.as_bytes()).await.unwrap();
        })
        .await;
        assert_eq!(why(deliver(&receiver.url()).await), "the connection broke before an answer", "{half:?}");
    }
}

#[tokio::test]
async fn bytes_that_are_not_http_are_not_an_answer() {
    for noise in ["220 mail.example ESMTP\r\n", "-ERR unknown command 'POST'\r\n", "\0\0\0\0\0\0\0\0"] {
        let receiver = Receiver::answering(noise).await;
        assert_eq!(why(deliver(&receiver.url()).await), "the answer was not HTTP", "{noise:?}");
    }
}

#[tokio::test]
async fn a_refused_connection_is_a_failure_with_a_description() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    assert_eq!(why(deliver(&format!("http://{address}/")).await), "the connection was refused");
    assert_eq!(why(deliver("http://nowhere.invalid/").await), "no connection could be made");
}

#[tokio::test]
async fn answers_are_distinguished() {
    for (head, expected) in [
        ("410 Gone\r\n", Outcome::Gone),
        (
            "429 Too Many\r\nRetry-After: 7\r\n",
            Outcome::Failed { why: "answered 429".to_owned(), retry_after: Some(Duration::from_secs(7)) },
        ),
        (
            "500 Oops\r\nRetry-After: 7\r\n",
            Outcome::Failed { why: "answered 500".to_owned(), retry_after: None },
        ),
    ] {
        let receiver = Receiver::answering(format!("HTTP/1.1 {head}Content-Length: 0\r\n\r\n")).await;
        assert_eq!(deliver(&receiver.url()).await, expected, "{head}");
    }
}

#[tokio::test]
async fn private_addresses_are_refused_however_they_are_written() {
    let receiver = Receiver::answering(OK).await;
    let closed = webhooks(&Options { allow_http: true, ..Options::default() });
    let port = receiver.address.port();
    for host in [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0.0.0.0",
    ] {
        let outcome = closed.deliver(subscription(&format!("http://{host}:{port}/")), batch()).await;
        let why = why(outcome);
        assert_eq!(why, "the callback leads to a network that is not allowed", "{host}");
        let is_address = host != "localhost";
        assert_eq!(closed.forbids(&format!("http://{host}:{port}/")), is_address, "{host}");
        assert!(!why.contains("127"), "the subscriber learns nothing of our network");
    }
    assert_eq!(receiver.connections.load(Ordering::SeqCst), 0);
}

/// The name resolves to an allowed address at first, and to another one at the next lookup.
#[tokio::test]
async fn a_name_is_resolved_once_and_that_address_is_called() {
    let receiver = Receiver::answering(OK).await;
    let (lookups, counted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&lookups);
    let lookup: Lookup = Arc::new(move |name| {
        assert_eq!(name, "rebinding.example");
        // The second answer is a network that no option of this test opens.
        let address = if seen.fetch_add(1, Ordering::SeqCst) == 0 { "127.0.0.1:0" } else { "10.255.255.1:0" };
        counted.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move { Ok(vec![address.parse().unwrap()]) })
    });
    let webhooks = Webhooks::new(
        Client::with_lookup(
            &options().egress(OwnAddresses::default(), signalbox_egress::Budget::default()),
            now,
            lookup,
        )
        .unwrap(),
        Metrics::default().deliveries,
    );
    let to = format!("http://rebinding.example:{}/", receiver.address.port());
    assert_eq!(webhooks.deliver(subscription(&to), batch()).await, Outcome::Delivered);
    assert_eq!(lookups.load(Ordering::SeqCst), 1);
    // An open connection needs no lookup; a new connection gets the new address, which is rejected.
    assert_eq!(webhooks.deliver(subscription(&to), batch()).await, Outcome::Delivered);
    assert_eq!(lookups.load(Ordering::SeqCst), 1);
    let other = format!("http://rebinding.example:{}/", receiver.address.port() ^ 1);
    assert!(why(webhooks.deliver(subscription(&other), batch()).await).contains("not allowed"));
    assert!(system_lookup()("localhost".to_owned()).await.is_ok());
}

#[tokio::test]
async fn https_is_used_only_with_trusted_receivers() {
    let folder = tempfile::tempdir().unwrap();
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let ca_file = folder.path().join("ca.pem");
    std::fs::write(&ca_file, certified.cert.pem()).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key)
            .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let receiver = Receiver::new(move |stream, requests| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            while let Some(received) = read_request(&mut stream).await {
                requests.lock().unwrap().push(received);
                stream.write_all(OK.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    let to = subscription(&format!("https://localhost:{}/events", receiver.address.port()));
    let trusting = webhooks(&Options { ca_file: Some(ca_file), ..options() });
    assert_eq!(trusting.deliver(Arc::clone(&to), batch()).await, Outcome::Delivered);
    assert!(why(webhooks(&options()).deliver(to, batch()).await).starts_with("no TLS connection"));
    let plain = Receiver::answering(OK).await;
    let plain = subscription(&format!("https://{}/events", plain.address));
    assert!(matches!(webhooks(&options()).deliver(plain, batch()).await, Outcome::Failed { .. }));
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn certificates_that_cannot_be_read_are_an_error_at_the_start() {
    let options = Options { ca_file: Some("/nowhere/ca.pem".into()), ..options() };
    let error =
        Client::new(&options.egress(OwnAddresses::default(), signalbox_egress::Budget::default()), now)
            .unwrap_err();
    assert!(error.to_string().contains("/nowhere/ca.pem"));
}
