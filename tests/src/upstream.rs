//! An application behind the edge that behaves as the test configures it, by path or for every
//! request.
//!
//! | path | answer |
//! |---|---|
//! | `/status/N` | that status |
//! | `/bytes/N` | a body of that many bytes |
//! | `/echo` | the request exactly as it arrived, head and body |
//! | `/hold` | nothing, until the test calls [`App::release`] |
//! | `/close` | none: the connection ends after the request was read |
//! | `/half` | half of the body it promised, then the connection ends |
//! | an upgrade | 101, then an echo of every byte |
//! | else | 200 with the application's name, also in `X-App` |

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use signalbox_stack::Reservation;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{AbortHandle, JoinSet},
};

/// How an application treats every request, whatever its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// By path, as the table of this module shows.
    ByPath,
    /// This status.
    Status(u16),
    /// The connection ends after the request was read.
    Close,
    /// By path, after this many milliseconds.
    Slow(u64),
    /// No answer ever, on a connection that stays open.
    Hang,
}

#[derive(Debug)]
struct Shared {
    name: String,
    hits: AtomicU64,
    connections: AtomicUsize,
    running: AtomicUsize,
    mode: watch::Sender<Mode>,
    released: watch::Sender<bool>,
}

/// A running application. Dropping it is killing it.
#[derive(Debug)]
pub struct App {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    task: Option<AbortHandle>,
    /// Keeps the port reserved while the application is dead, so that no other process listens
    /// there.
    _port: Reservation,
}

impl App {
    /// Starts an application on a free port.
    ///
    /// # Panics
    /// When there is none.
    pub async fn start(name: &str) -> Self {
        let mut reservation = Reservation::default();
        let port = reservation.add().expect("a free port");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.expect("a reserved port");
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            hits: AtomicU64::new(0),
            connections: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            mode: watch::channel(Mode::ByPath).0,
            released: watch::channel(false).0,
        });
        let address = listener.local_addr().expect("bound");
        let task = tokio::spawn(accept(listener, shared.clone())).abort_handle();
        Self { address, shared, task: Some(task), _port: reservation }
    }

    /// The name, which is also the body of its plain answers.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// How many requests were read completely.
    pub fn hits(&self) -> u64 {
        self.shared.hits.load(Ordering::SeqCst)
    }

    /// How many connections were ever accepted.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many requests wait at `/hold`.
    pub fn running(&self) -> usize {
        self.shared.running.load(Ordering::SeqCst)
    }

    /// Treats every request from now on in this way.
    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// Answers what waits at `/hold`, and lets later ones pass.
    pub fn release(&self) {
        self.shared.released.send_replace(true);
    }

    /// Ends the application immediately, with every connection, as `kill -9` would. Its address
    /// refuses connections from then on.
    pub async fn kill(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            // The sockets are closed when the task is gone, which the runtime does in its own time.
            while !task.is_finished() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Starts a killed application again at the same address.
    ///
    /// # Panics
    /// When it still runs.
    pub async fn start_again(&mut self) {
        let listener = TcpListener::bind(self.address).await.expect("the port it had");
        self.task = Some(tokio::spawn(accept(listener, self.shared.clone())).abort_handle());
    }
}

impl Drop for App {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // The set ends with this task, and every connection with it.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        shared.connections.fetch_add(1, Ordering::SeqCst);
        connections.spawn(serve(stream, shared.clone()));
    }
}

/// A request as it arrived.
struct Received {
    target: String,
    upgrade: bool,
    bytes: Vec<u8>,
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let mut stream = BufReader::new(stream);
    // An error means that the client disconnected, which it may do.
    while let Ok(Some(request)) = read_request(&mut stream).await {
        shared.hits.fetch_add(1, Ordering::SeqCst);
        match answer(&mut stream, &request, &shared).await {
            Ok(true) => {}
            Ok(false) | Err(_) => return,
        }
    }
}

async fn read_request(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Received>> {
    let mut bytes = Vec::new();
    loop {
        let before = bytes.len();
        if stream.read_until(b'\n', &mut bytes).await? == 0 {
            return Ok(None);
        }
        if &bytes[before..] == b"\r\n" {
            break;
        }
    }
    let head = String::from_utf8_lossy(&bytes).into_owned();
    let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let header = |name: &str| {
        head.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned())
    };
    let length = header("content-length").and_then(|length| length.parse::<usize>().ok()).unwrap_or(0);
    let upgrade = header("upgrade").is_some();
    let head_bytes = bytes.len();
    bytes.resize(head_bytes + length, 0);
    stream.read_exact(&mut bytes[head_bytes..]).await?;
    Ok(Some(Received { target, upgrade, bytes }))
}

/// Answers; false when the connection is to end.
async fn answer(stream: &mut BufReader<TcpStream>, request: &Received, shared: &Shared) -> io::Result<bool> {
    let mode = *shared.mode.borrow();
    match mode {
        Mode::ByPath => {}
        Mode::Status(status) => return plain(stream, shared, status, b"as configured").await,
        Mode::Close => return Ok(false),
        Mode::Slow(ms) => tokio::time::sleep(std::time::Duration::from_millis(ms)).await,
        Mode::Hang => {
            let mut mode = shared.mode.subscribe();
            let _ = mode.wait_for(|mode| *mode != Mode::Hang).await;
            return Ok(false);
        }
    }
    if request.upgrade {
        return tunnel(stream).await;
    }
    let path = request.target.split('?').next().unwrap_or_default();
    let mut parts = path.trim_start_matches('/').splitn(2, '/');
    let (what, number) = (parts.next().unwrap_or_default(), parts.next().and_then(|n| n.parse().ok()));
    match (what, number) {
        ("status", Some(status)) => {
            plain(stream, shared, u16::try_from(status).unwrap_or(500), shared.name.as_bytes()).await
        }
        ("bytes", Some(count)) => plain(stream, shared, 200, &vec![b'x'; count]).await,
        ("echo", None) => plain(stream, shared, 200, &request.bytes).await,
        ("hold", None) => {
            shared.running.fetch_add(1, Ordering::SeqCst);
            let mut released = shared.released.subscribe();
            let _ = released.wait_for(|released| *released).await;
            shared.running.fetch_sub(1, Ordering::SeqCst);
            plain(stream, shared, 200, shared.name.as_bytes()).await
        }
        ("close", None) => Ok(false),
        ("half", None) => {
            stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf.").await?;
            Ok(false)
        }
        _ => plain(stream, shared, 200, shared.name.as_bytes()).await,
    }
}

async fn plain(
    stream: &mut BufReader<TcpStream>,
    shared: &Shared,
    status: u16,
    body: &[u8],
) -> io::Result<bool> {
    // 204 and 304 have no body and must not announce one.
    let (length, body) = match status {
        204 | 304 => (String::new(), &[][..]),
        _ => (format!("Content-Length: {}\r\n", body.len()), body),
    };
    let mut answer =
        format!("HTTP/1.1 {status} As Configured\r\nX-App: {}\r\n{length}\r\n", shared.name).into_bytes();
    answer.extend(body);
    stream.get_mut().write_all(&answer).await?;
    Ok(true)
}

async fn tunnel(stream: &mut BufReader<TcpStream>) -> io::Result<bool> {
    let head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    stream.get_mut().write_all(head).await?;
    let mut piece = vec![0; 4096];
    loop {
        let count = stream.read(&mut piece).await?;
        if count == 0 {
            return Ok(false);
        }
        stream.get_mut().write_all(&piece[..count]).await?;
    }
}
