//! A subscriber of the event bus. It records what it receives and answers as the test decides.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;
use signalbox_testkit::eventually;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
    time,
};

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
    /// When it is not an array.
    pub fn events(&self) -> Vec<Value> {
        serde_json::from_slice(&self.body).expect("a delivery is a JSON array")
    }
}

/// How a receiver answers a delivery.
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
    /// These bytes, and then the connection is closed.
    Broken(Vec<u8>),
    /// These bytes one by one, with a pause before each.
    Trickle(Vec<u8>, Duration),
    /// The same without announcing it.
    EndlessChunks,
    /// A head that does not end.
    EndlessHead,
    /// Another one, after a pause.
    After(Duration, Box<Answer>),
}

impl Answer {
    /// An answer without a body; `head` is its status and, if wanted, more lines.
    pub fn status(head: &str) -> Self {
        Self::Bytes(format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n").into_bytes())
    }
}

type Decide = dyn Fn(&Delivery) -> Answer + Send + Sync;

struct Shared {
    /// Nothing, when what came is not kept.
    deliveries: Option<Mutex<Vec<Delivery>>>,
    decide: Mutex<Arc<Decide>>,
    sent: AtomicU64,
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

/// Settings of `[bus]` with which it delivers to receivers on this machine.
pub fn allowed() -> toml::Table {
    let mut bus = toml::Table::new();
    bus.insert("allow_http".to_owned(), true.into());
    bus.insert("allow_networks".to_owned(), vec!["127.0.0.0/8"].into());
    bus
}

impl Receiver {
    /// Starts one that accepts everything.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn start() -> Self {
        Self::answering(|_| Answer::status("200 OK")).await
    }

    /// Starts one that answers as `decide` returns.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn answering(decide: impl Fn(&Delivery) -> Answer + Send + Sync + 'static) -> Self {
        Self::listen(decide, Some(Mutex::default())).await
    }

    /// Starts one that answers as `decide` returns and records nothing, for more deliveries than
    /// fit into memory.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn passing(decide: impl Fn(&Delivery) -> Answer + Send + Sync + 'static) -> Self {
        Self::listen(decide, None).await
    }

    async fn listen(
        decide: impl Fn(&Delivery) -> Answer + Send + Sync + 'static,
        deliveries: Option<Mutex<Vec<Delivery>>>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let decide: Arc<Decide> = Arc::new(decide);
        let shared = Arc::new(Shared { deliveries, decide: Mutex::new(decide), sent: AtomicU64::new(0) });
        let accepted = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            // The set ends with this task, and every connection with it.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                connections.spawn(serve(stream, Arc::clone(&accepted)));
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

    /// The deliveries received so far.
    ///
    /// # Panics
    /// When it keeps nothing.
    pub fn deliveries(&self) -> Vec<Delivery> {
        let kept = self.shared.deliveries.as_ref().expect("a receiver that keeps what comes");
        kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many bytes of endless answers were taken from it.
    pub fn sent_bytes(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// The events that came so far.
    pub fn events(&self) -> Vec<Value> {
        self.deliveries().iter().flat_map(Delivery::events).collect()
    }

    /// Waits until at least `count` events have come.
    pub async fn until_events(&self, count: usize) -> Vec<Value> {
        eventually(&format!("{count} events to be delivered"), || async {
            let events = self.events();
            if events.len() >= count { Ok(events) } else { Err(format!("{} came", events.len())) }
        })
        .await
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let _as_it_is = stream.set_nodelay(true);
    let mut stream = BufReader::new(stream);
    while let Some(delivery) = read(&mut stream).await {
        let decide = Arc::clone(&*shared.decide.lock().unwrap_or_else(PoisonError::into_inner));
        let mut answer = decide(&delivery);
        if let Some(kept) = &shared.deliveries {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(delivery);
        }
        while let Answer::After(pause, then) = answer {
            time::sleep(pause).await;
            answer = *then;
        }
        if !say(stream.get_mut(), answer, &shared).await {
            return;
        }
    }
}

/// Answers; false when the connection is to end.
async fn say(stream: &mut TcpStream, answer: Answer, shared: &Shared) -> bool {
    match answer {
        Answer::Bytes(bytes) => stream.write_all(&bytes).await.is_ok(),
        Answer::Hang => std::future::pending().await,
        Answer::Close | Answer::After(..) => false,
        Answer::Broken(bytes) => {
            let _gone = stream.write_all(&bytes).await;
            false
        }
        Answer::Trickle(bytes, pause) => {
            for byte in bytes {
                time::sleep(pause).await;
                if stream.write_all(&[byte]).await.is_err() {
                    return false;
                }
            }
            true
        }
        Answer::Endless => {
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n";
            endlessly(stream, head, &[b'x'; 65536], shared).await
        }
        Answer::EndlessChunks => {
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            let mut chunk = b"10000\r\n".to_vec();
            chunk.extend([b'x'; 65536]);
            chunk.extend(b"\r\n");
            endlessly(stream, head, &chunk, shared).await
        }
        Answer::EndlessHead => {
            endlessly(stream, b"HTTP/1.1 200 OK\r\nX-Endless: ", &[b'x'; 65536], shared).await
        }
    }
}

/// Writes until the connection is closed.
async fn endlessly(stream: &mut TcpStream, head: &[u8], piece: &[u8], shared: &Shared) -> bool {
    let mut done = stream.write_all(head).await;
    while done.is_ok() {
        done = stream.write_all(piece).await;
        shared.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
    }
    false
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
    // A question has none.
    let length = delivery.header("Content-Length").map_or(Some(0), |length| length.parse().ok())?;
    delivery.body = vec![0; length];
    stream.read_exact(&mut delivery.body).await.ok()?;
    Some(delivery)
}
