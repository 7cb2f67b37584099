//! Neighbors that share connections and file descriptors of the pacemaker.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};
use signalbox_tests::{
    http::{Connection, Request, Response},
    neighbor::{assert_undisturbed, p99},
    system::System,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

async fn ask(system: &System, method: &str, target: &str, body: Option<Value>) -> Response {
    system.api_at(system.pacemaker, method, target, body).await
}

/// Sends a request from another address of this machine, and keeps the connection. Returns the begin of the response.
async fn keep(ip: Ipv4Addr, to: SocketAddr, request: &Request) -> (TcpStream, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((ip, 0).into()).unwrap();
    let mut stream = socket.connect(to).await.unwrap();
    let mut begin = vec![0; 12];
    let sent = stream.write_all(&request.to_bytes()).await;
    let read = if sent.is_ok() { stream.read(&mut begin).await.unwrap_or(0) } else { 0 };
    (stream, String::from_utf8_lossy(&begin[..read]).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_keeps_connections_open_does_not_take_them_from_others() {
    let system =
        System::with("neighbor-idle", |builder| builder.without_sidecar().pacemaker("connections", 64)).await;
    let token = system.token("noisy", &["read"]).await;
    let health = async || assert_eq!(ask(&system, "GET", "/health", None).await.status, 200);
    let without = p99(20, health).await;
    let request = Request::get("localhost", "/queues").token(&token);
    let mut held = Vec::new();
    for number in 0..150 {
        let (stream, begin) = keep(Ipv4Addr::new(127, 0, 0, 5), system.pacemaker, &request).await;
        assert_eq!(begin, "HTTP/1.1 200", "connection {number}");
        held.push(stream);
    }
    assert_undisturbed("/health", without, p99(20, health).await);
    drop(held);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_pulls_that_wait_delay_neither_messages_nor_requests_of_others() {
    let system = System::with("neighbor-pulls", |builder| builder.without_sidecar()).await;
    for name in ["noisy", "quiet"] {
        let definition = json!({"pattern": format!("{name}:.*")});
        let made = ask(&system, "PUT", &format!("/queues/{name}"), Some(definition)).await;
        assert_eq!(made.status, 201, "{}", made.text());
    }
    let message = json!({"tenant": "quiet", "type": "job", "name": "done"});
    let round = async || {
        let pull = ask(&system, "POST", "/queues/quiet/pull", Some(json!({"max": 1, "wait_seconds": 20})));
        let send = ask(&system, "POST", "/messages", Some(message.clone()));
        let (pulled, sent) = tokio::join!(pull, send);
        assert_eq!(sent.status, 200, "{}", sent.text());
        let pulled = pulled.json();
        assert_eq!(pulled["messages"].as_array().map(Vec::len), Some(1), "{pulled}");
        let receipt = json!({"receipts": [pulled["messages"][0]["receipt"]]});
        let acknowledged = ask(&system, "POST", "/queues/quiet/ack", Some(receipt)).await;
        assert!(acknowledged.status < 300, "{}", acknowledged.text());
    };
    let health = async || assert_eq!(ask(&system, "GET", "/health", None).await.status, 200);
    let without = [p99(10, round).await, p99(20, health).await];
    let token = system.token("noisy", &["queues"]).await;
    let pull = Request::new("POST", "localhost", "/queues/noisy/pull").token(&token);
    let bytes = pull.json(&json!({"max": 1, "wait_seconds": 20})).to_bytes();
    let mut held = Vec::new();
    for _ in 0..1_000 {
        let mut connection = Connection::open(system.pacemaker).await.unwrap();
        connection.write(&bytes).await.unwrap();
        held.push(connection);
    }
    let with = [p99(10, round).await, p99(20, health).await];
    assert_undisturbed("a message", without[0], with[0]);
    assert_undisturbed("/health", without[1], with[1]);
    drop(held);
    system.stop().await;
}
