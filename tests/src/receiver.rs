//! A subscriber's side of the event bus: it keeps what it is sent and answers what the test says.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};

use crate::poll;

/// A delivery as it came over the wire.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// `POST /path HTTP/1.1`.
    pub line: String,
    /// The headers as they came.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Delivery {
    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// User name and password.
    pub fn basic(&self) -> Option<String> {
        let credentials = self.header("Authorization")?.strip_prefix("Basic ")?;
        String::from_utf8(STANDARD.decode(credentials).ok()?).ok()
    }

    /// The events of the body.
    ///
    /// # Panics
    /// When it is no array.
    pub fn events(&self) -> Vec<Value> {
        serde_json::from_slice(&self.body).expect("a delivery is a JSON array")
    }
}

/// What a receiver does with a delivery.
#[derive(Debug, Clone)]
pub enum Answer {
    /// These bytes.
    Bytes(Vec<u8>),
    /// None, on a connection that stays open.
    Hang,
    /// A success whose body does not end.
    Endless,
    /// None; the connection is closed in the middle of one.
    Close,
}

impl Answer {
    /// An answer without a body; `head` is its status and, if wanted, more lines.
    pub fn status(head: &str) -> Self {
        Self::Bytes(format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n").into_bytes())
    }
}

type Decide = dyn Fn(&Delivery) -> Answer + Send + Sync;

struct Shared {
    deliveries: Mutex<Vec<Delivery>>,
    decide: Mutex<Arc<Decide>>,
}

/// A running receiver.
pub struct Receiver {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    /// Starts one that takes everything.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn start() -> Self {
        Self::answering(|_| Answer::status("200 OK")).await
    }

    /// Starts one that answers as `decide` says.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn answering(decide: impl Fn(&Delivery) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let decide: Arc<Decide> = Arc::new(decide);
        let shared = Arc::new(Shared { deliveries: Mutex::default(), decide: Mutex::new(decide) });
        let accepted = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&accepted)));
            }
        });
        Self { address, shared, task: task.abort_handle() }
    }

    /// Answers differently from now on.
    pub fn decide(&self, decide: impl Fn(&Delivery) -> Answer + Send + Sync + 'static) {
        *self.shared.decide.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(decide);
    }

    /// The callback to subscribe with.
    pub fn url(&self) -> String {
        format!("http://{}/events", self.address)
    }

    /// What came so far.
    pub fn deliveries(&self) -> Vec<Delivery> {
        self.shared.deliveries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The events that came so far.
    pub fn events(&self) -> Vec<Value> {
        self.deliveries().iter().flat_map(Delivery::events).collect()
    }

    /// Waits until at least `count` events have come.
    pub async fn until_events(&self, count: usize) -> Vec<Value> {
        poll::until(&format!("{count} events to be delivered"), || async {
            let events = self.events();
            if events.len() >= count { Ok(events) } else { Err(format!("{} came", events.len())) }
        })
        .await
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let mut stream = BufReader::new(stream);
    while let Some(delivery) = read(&mut stream).await {
        let decide = Arc::clone(&*shared.decide.lock().unwrap_or_else(PoisonError::into_inner));
        let answer = decide(&delivery);
        shared.deliveries.lock().unwrap_or_else(PoisonError::into_inner).push(delivery);
        let done = match answer {
            Answer::Bytes(bytes) => stream.get_mut().write_all(&bytes).await,
            Answer::Hang => std::future::pending().await,
            Answer::Close => return,
            Answer::Endless => {
                let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n";
                let mut done = stream.get_mut().write_all(head).await;
                while done.is_ok() {
                    done = stream.get_mut().write_all(&[b'x'; 65536]).await;
                }
                done
            }
        };
        if done.is_err() {
            return;
        }
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Delivery> {
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
    let pairs = lines.iter().filter_map(|line| line.split_once(": "));
    let headers = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let mut delivery = Delivery { line, headers, body: Vec::new() };
    delivery.body = vec![0; delivery.header("Content-Length")?.parse().ok()?];
    stream.read_exact(&mut delivery.body).await.ok()?;
    Some(delivery)
}
