//! Calls against small servers of the tests: how the transport handles answers, silence and certificates.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

use std::{sync::Arc, time::Duration};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};
use signalbox_client::{Client, Error, health::Edge, tokens::TokenList};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

/// Reads one request: its head, and as much body as `Content-Length` announces.
async fn request(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut text = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let read = stream.read(&mut piece).await.unwrap();
        text.extend(&piece[..read]);
        let seen = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = seen.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                .map_or(0, |(_, length)| length.trim().parse::<usize>().unwrap());
            if body.len() >= length {
                return seen;
            }
        }
        assert!(read > 0, "cut after {seen:?}");
    }
}

async fn answer(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), status: &str, body: &str) -> String {
    let asked = request(stream).await;
    let length = body.len();
    let text = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    asked
}

/// A server that answers every request in the same way; its address, and the requests it received.
async fn server(status: &'static str, body: &'static str) -> (String, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (asked, requests) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _gone = asked.send(answer(&mut stream, status, body).await);
        }
    });
    (url, requests)
}

fn client(url: &str) -> Client {
    Client::builder(url).token("t0k").build().unwrap()
}

#[tokio::test]
async fn a_call_sends_its_token_path_and_body() {
    let (url, mut requests) = server("200 OK", r#"{"serial":3}"#).await;
    let body = json!({"a": 1});
    let answer: Value = client(&format!("{url}/")).call("PUT", "/instances/i-7", Some(&body)).await.unwrap();
    assert_eq!(answer, json!({"serial": 3}));
    let asked = requests.recv().await.unwrap().to_lowercase();
    assert!(asked.starts_with("put /instances/i-7 http/1.1"), "{asked}");
    assert!(asked.contains("authorization: bearer t0k") && asked.contains("application/json"), "{asked}");
    assert!(asked.ends_with(r#"{"a":1}"#), "{asked}");
}

#[tokio::test]
async fn an_answer_without_a_body_is_nothing() {
    let (url, _requests) = server("204 No Content", "").await;
    client(&url).routes().remove("i", None).await.unwrap();
    assert_eq!(client(&url).call::<Value>("DELETE", "/x", None).await.unwrap(), Value::Null);
}

#[tokio::test]
async fn a_refusal_has_its_code() {
    let body = r#"{"type":"about:blank","title":"Conflict","status":409,"code":"stale","detail":"why","lags":["r1"]}"#;
    let (url, _requests) = server("409 Conflict", body).await;
    let error = client(&url).routes().convergence().await.unwrap_err();
    assert_eq!((error.code(), error.status()), (Some("stale"), Some(409)));
    assert_eq!(error.to_string(), "why (stale)");
    let Error::Refused { problem, .. } = error else { panic!("{error}") };
    assert_eq!(problem.more["lags"], json!(["r1"]));
}

#[tokio::test]
async fn an_answer_of_another_program_is_not_accepted() {
    let (url, _requests) = server("502 Bad Gateway", "<html>").await;
    let error = client(&url).get::<TokenList>("/tokens").await.unwrap_err();
    assert!(matches!(error, Error::Foreign { status: 502, .. }) && error.is_unavailable(), "{error}");
    let (url, _requests) = server("200 OK", r#"{"tokens":7}"#).await;
    let error = client(&url).get::<TokenList>("/tokens").await.unwrap_err();
    assert!(matches!(error, Error::Unreadable { .. }) && !error.is_unavailable(), "{error}");
}

#[tokio::test]
async fn silence_and_slowness_are_distinguished() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let patient = Client::builder(&url).timeout(Duration::from_millis(50)).build().unwrap();
    let error = patient.get::<Edge>("/edge/status").await.unwrap_err();
    assert!(matches!(error, Error::Late { .. }), "{error}");
    drop(listener);
    let error = patient.get::<Edge>("/edge/status").await.unwrap_err();
    assert!(matches!(error, Error::Silent { .. }) && error.is_unavailable(), "{error}");
}

#[tokio::test]
async fn a_certificate_is_trusted_only_with_its_authority() {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that does not trust the certificate disconnects.
            if let Ok(mut stream) = acceptor.accept(stream).await {
                answer(&mut stream, "200 OK", "{}").await;
                let _gone = stream.shutdown().await;
            }
        }
    });
    let stranger = Client::builder(&url).build().unwrap().get::<Value>("/").await.unwrap_err();
    let Error::Silent { why, .. } = &stranger else { panic!("{stranger}") };
    assert!(why.contains("certificate"), "{why}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, cert.pem()).unwrap();
    let friend = Client::builder(&url).ca_file(&file).build().unwrap();
    assert_eq!(friend.get::<Value>("/").await.unwrap(), json!({}));
    std::fs::write(&file, "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n").unwrap();
    let error = Client::builder(&url).ca_file(&file).build().unwrap_err();
    assert!(matches!(error, Error::Trust { .. }), "{error}");
}

#[tokio::test]
async fn an_address_that_cannot_be_one_is_refused() {
    for url in ["", "127.0.0.1:8081", "redis://h/", "http://user@h/", "http://h/?x"] {
        let error = Client::builder(url).build().unwrap_err();
        assert!(matches!(error, Error::Address { .. }), "{url}: {error}");
    }
    let error = Client::builder("http://h").token("a\nb").build().unwrap_err();
    assert!(matches!(error, Error::Token), "{error}");
}

#[tokio::test]
async fn a_stream_is_read_until_its_end() {
    let (url, mut requests) = server("200 OK", "id: 1\ndata: [1,2]\n\n: quiet\n\ndata: x\n\n").await;
    let client = client(&url);
    let mut stream = client.stream("/stats/uncaught/stream?metric=requests").await.unwrap();
    assert!(requests.recv().await.unwrap().starts_with("GET /stats/uncaught/stream?metric=requests "));
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!((first.id.as_deref(), &*first.data), (Some("1"), "[1,2]"));
    assert_eq!(stream.next().await.unwrap().unwrap().data, "x");
    assert_eq!(stream.next().await.unwrap(), None);
}
