//! A stand-in for the API of a container engine: the list of containers and the stream of events, on a Unix socket.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    sync::broadcast,
    task::JoinHandle,
};

/// A running stand-in. Dropping it ends it.
#[derive(Debug)]
pub struct Engine {
    /// Where it listens.
    pub socket: PathBuf,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    containers: Mutex<BTreeMap<String, Value>>,
    /// What the list is answered with, if it is not the list.
    instead: Mutex<Option<String>>,
    events: broadcast::Sender<String>,
}

impl Engine {
    /// Starts an engine without containers.
    ///
    /// # Panics
    /// When the socket cannot be made.
    pub fn start(folder: &Path) -> Self {
        let socket = folder.join("engine.sock");
        let shared = Arc::new(Shared {
            containers: Mutex::default(),
            instead: Mutex::default(),
            events: broadcast::channel(100).0,
        });
        let task = listen(&socket, shared.clone());
        Self { socket, shared, task }
    }

    /// Ends it, as if the engine were stopped. The containers continue.
    pub async fn stop(&mut self) {
        self.task.abort();
        while !self.task.is_finished() {
            tokio::task::yield_now().await;
        }
        let _absent = std::fs::remove_file(&self.socket);
    }

    /// Starts it again.
    pub fn start_again(&mut self) {
        self.task = listen(&self.socket, self.shared.clone());
    }

    /// Adds a container in the network of the host, or changes its labels.
    pub fn run(&self, id: &str, labels: &[(&str, &str)]) {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        let container = json!({"Id": id, "Names": [format!("/{id}")], "Image": "image:1", "Labels": labels,
            "Status": "Up 1 second", "Ports": [], "NetworkSettings": {"Networks": {}},
            "HostConfig": {"NetworkMode": "host"}});
        self.lock().insert(id.to_owned(), container);
        self.announce("start", id, "");
    }

    /// Removes a container, as if its process had ended.
    pub fn end(&self, id: &str) {
        self.lock().remove(id);
        self.announce("die", id, "");
    }

    /// Removes a container without an event.
    pub fn lose(&self, id: &str) {
        self.lock().remove(id);
    }

    /// Sends a signal to a container, which ignores it.
    pub fn signal(&self, id: &str, signal: &str) {
        self.announce("kill", id, signal);
    }

    /// Answers the list with this text, and announces a change.
    pub fn answer(&self, text: Option<&str>) {
        *self.shared.instead.lock().unwrap_or_else(PoisonError::into_inner) = text.map(str::to_owned);
        self.announce("start", "any", "");
    }

    fn announce(&self, action: &str, id: &str, signal: &str) {
        let event = json!({"Type": "container", "Action": action, "Actor": {"ID": id, "Attributes": {"signal": signal}}});
        // Without a listener nothing is announced.
        let _sent = self.shared.events.send(format!("{event}\n"));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Value>> {
        self.shared.containers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn listen(socket: &Path, shared: Arc<Shared>) -> JoinHandle<()> {
    let listener = UnixListener::bind(socket).expect("a socket");
    tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve(stream, shared.clone()));
        }
    })
}

async fn serve(stream: UnixStream, shared: Arc<Shared>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let mut header = String::new();
    while stream.read_line(&mut header).await? > 2 {
        header.clear();
    }
    let stream = stream.get_mut();
    if line.starts_with("GET /events?") {
        let mut events = shared.events.subscribe();
        let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head).await?;
        while let Ok(event) = events.recv().await {
            stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
        }
        return Ok(());
    }
    let is_list = line.starts_with("GET /containers/json?");
    let body = shared.instead.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let list = || {
        let containers = shared.containers.lock().unwrap_or_else(PoisonError::into_inner);
        Value::from_iter(containers.values().cloned()).to_string()
    };
    let body = body.unwrap_or_else(list);
    let status = if is_list && !body.is_empty() { "200 OK" } else { "500 Internal Server Error" };
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await
}
