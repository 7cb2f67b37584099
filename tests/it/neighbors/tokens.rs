//! Neighbors that share the limits of tokens: rates, streams, pulls that wait, requests in progress, attempts to authenticate.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    events::Stream,
    http::{Connection, Request, Response},
    neighbor::{assert_undisturbed, p99},
    system::System,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinHandle,
    time::{Duration, timeout},
};

fn limits<const N: usize>(all: [(&str, i64); N]) -> toml::Table {
    all.map(|(key, limit)| (key.to_owned(), limit.into())).into_iter().collect()
}

async fn ask(system: &System, token: &str, method: &str, target: &str, body: Option<&Value>) -> Response {
    let request = Request::new(method, &system.pacemaker.to_string(), target).token(token);
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    request.send(system.pacemaker).await.unwrap_or_else(|error| panic!("{method} {target}: {error}"))
}

/// The latencies of the victim's calls: reading, and `/health`.
async fn calls(system: &System, token: &str) -> [Duration; 2] {
    let read = async || assert_eq!(ask(system, token, "GET", "/queues", None).await.status, 200);
    let health = async || assert_eq!(ask(system, token, "GET", "/health", None).await.status, 200);
    [p99(20, read).await, p99(20, health).await]
}

fn assert_calls_undisturbed(without: [Duration; 2], with: [Duration; 2]) {
    assert_undisturbed("a call", without[0], with[0]);
    assert_undisturbed("/health", without[1], with[1]);
}

/// Sends a request again and again on some connections, until the flag is set. Returns the statuses other than 200.
fn flood(to: SocketAddr, requests: Vec<Request>, ended: &Arc<AtomicBool>) -> JoinHandle<Vec<u16>> {
    let ended = Arc::clone(ended);
    tokio::spawn(async move {
        let mut others = Vec::new();
        for request in requests.iter().cycle() {
            if ended.load(Ordering::Relaxed) {
                break;
            }
            match request.send(to).await {
                Ok(response) if response.status == 200 => {}
                Ok(response) => others.push(response.status),
                Err(_) => others.push(0),
            }
        }
        others
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_uses_up_its_rate_does_not_delay_others() {
    let system = System::with("neighbor-rate", |builder| {
        builder.without_sidecar().pacemaker("limits", limits([("token_requests_per_second", 60)]))
    })
    .await;
    let (noisy, quiet) = (system.token("noisy", &["read"]).await, system.token("quiet", &["read"]).await);
    let without = calls(&system, &quiet).await;
    let ended = Arc::new(AtomicBool::new(false));
    let request = Request::get("localhost", "/queues").token(&noisy);
    let floods: Vec<_> = (0..4).map(|_| flood(system.pacemaker, vec![request.clone()], &ended)).collect();
    eventually("the noisy token to be limited", async || {
        let status = ask(&system, &noisy, "GET", "/queues", None).await.status;
        if status == 429 { Ok(()) } else { Err(status) }
    })
    .await;
    let with = calls(&system, &quiet).await;
    ended.store(true, Ordering::Relaxed);
    for task in floods {
        assert!(task.await.unwrap().iter().all(|status| *status == 429));
    }
    assert_calls_undisturbed(without, with);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_unknown_tokens_does_not_delay_the_calls_of_tokens_in_use() {
    let system = System::start("neighbor-unknown-tokens").await;
    let quiet = system.token("quiet", &["read"]).await;
    let without = calls(&system, &quiet).await;
    let ended = Arc::new(AtomicBool::new(false));
    let unknown = |part: u32| (0..2_000).map(move |n| format!("sbx_{:064x}", part * 10_000 + n));
    let requests =
        |part| unknown(part).map(|token| Request::get("localhost", "/queues").token(&token)).collect();
    let floods: Vec<_> = (0..4).map(|part| flood(system.pacemaker, requests(part), &ended)).collect();
    eventually("the client to be blocked", async || {
        let status = ask(&system, &format!("sbx_{:064x}", 99_999), "GET", "/queues", None).await.status;
        if status == 429 { Ok(()) } else { Err(status) }
    })
    .await;
    let with = calls(&system, &quiet).await;
    ended.store(true, Ordering::Relaxed);
    for task in floods {
        assert!(task.await.unwrap().iter().all(|status| matches!(status, 401 | 429)));
    }
    assert_calls_undisturbed(without, with);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_holds_all_its_streams_and_pulls_leaves_those_of_others_as_they_were() {
    let system = System::with("neighbor-streams", |builder| {
        builder
            .without_sidecar()
            .pacemaker("bus", limits([("streams", 16)]))
            .pacemaker("queues", limits([("waiting_pulls", 16)]))
    })
    .await;
    let noisy = system.token("noisy", &["read", "queues"]).await;
    let quiet = system.token("quiet", &["read", "publish", "queues"]).await;
    for name in ["noisy", "quiet"] {
        let queue = json!({"pattern": format!("{name}:.*")});
        let made = ask(&system, &system.token, "PUT", &format!("/queues/{name}"), Some(&queue)).await;
        assert_eq!(made.status, 201, "{}", made.text());
    }
    let mut streams = Vec::new();
    while streams.last().is_none_or(|stream: &Stream| stream.status == 200) {
        assert!(streams.len() < 16, "all streams are the noisy token's");
        streams.push(Stream::open(system.pacemaker, &noisy, "/events", None).await);
    }
    let pull = json!({"max": 1, "wait_seconds": 20});
    let pull_noisy = Request::new("POST", "localhost", "/queues/noisy/pull").token(&noisy).json(&pull);
    let mut pulls = Vec::new();
    for _ in 0..16 {
        let mut connection = Connection::open(system.pacemaker).await.unwrap();
        connection.write(&pull_noisy.to_bytes()).await.unwrap();
        pulls.push(connection);
    }
    eventually("no pull to be left for the noisy token", async || {
        let status = pull_noisy.send(system.pacemaker).await.unwrap().status;
        if status == 429 { Ok(()) } else { Err(status) }
    })
    .await;
    let mut stream = Stream::open(system.pacemaker, &quiet, "/events", None).await;
    assert_eq!(stream.status, 200);
    let event = json!({"type": "update", "url": "https://a.test/1", "tenant": "quiet"});
    let publish = async {
        let sent = ask(&system, &quiet, "POST", "/topics/orders", Some(&event)).await;
        assert_eq!(sent.status, 200, "{}", sent.text());
    };
    let pulled = ask(&system, &quiet, "POST", "/queues/quiet/pull", Some(&pull));
    let (pulled, ()) = tokio::join!(pulled, publish);
    assert_eq!(pulled.json()["messages"].as_array().map(Vec::len), Some(1), "{}", pulled.text());
    assert!(stream.next().await.is_some(), "the event arrives on the stream");
    system.stop().await;
}

/// Sends bytes from another address of this machine.
async fn send_from(ip: Ipv4Addr, to: SocketAddr, bytes: &[u8]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((ip, 0).into()).unwrap();
    let mut stream = socket.connect(to).await.unwrap();
    // The server may have closed the connection.
    let _closed = stream.write_all(bytes).await;
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_sends_bodies_slowly_uses_at_most_half_of_the_connections() {
    let system =
        System::with("neighbor-uploads", |builder| builder.without_sidecar().pacemaker("connections", 64))
            .await;
    let (noisy, quiet) = (system.token("noisy", &["publish"]).await, system.token("quiet", &["read"]).await);
    let without = calls(&system, &quiet).await;
    let slow =
        Request::new("POST", "localhost", "/topics/orders").token(&noisy).json(&json!({"type": "noop"}));
    let bytes = slow.to_bytes();
    let mut held = Vec::new();
    for _ in 0..80 {
        held.push(send_from(Ipv4Addr::new(127, 0, 0, 5), system.pacemaker, &bytes[..bytes.len() - 1]).await);
    }
    let mut refused = 0;
    for stream in &mut held {
        let mut begin = [0; 12];
        let read = timeout(Duration::from_millis(20), stream.read_exact(&mut begin)).await;
        refused += usize::from(read.is_ok_and(|read| read.is_ok()) && &begin == b"HTTP/1.1 429");
    }
    // 32 are in progress. Of the others, those whose connection was closed before the answer was read are not counted.
    assert!((1..=48).contains(&refused), "{refused} requests are rejected");
    let with = calls(&system, &quiet).await;
    assert_calls_undisturbed(without, with);
    system.stop().await;
}
