//! A real ACME server: Pebble, which rejects nonces and forgets authorizations on purpose, and a name server for it.
//!
//! The pacemaker reaches it directly over TLS ([`AcmeServer::directory`]), or through a relay ([`AcmeServer::relayed`]) that sees
//! each request and can answer it in Pebble's place.

use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use signalbox_testkit::{Ports, eventually};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    task::{AbortHandle, JoinSet},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::tls::{self, Authority};

/// A request on its way to the ACME server.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Its path: `/order-plz` for a new order, `/chalZ/…` for a challenge, `/finalize-order/…`, `/certZ/…`.
    pub path: String,
    /// The signed content; null for a GET or an empty one.
    pub payload: Value,
    /// Requests before this one.
    pub number: usize,
    /// The status of the answer, once there is one.
    pub status: Option<u16>,
}

impl Seen {
    /// The names of a new order.
    pub fn ordered(&self) -> Vec<String> {
        let identifiers = self.payload["identifiers"].as_array().cloned().unwrap_or_default();
        identifiers.iter().filter_map(|one| one["value"].as_str().map(str::to_owned)).collect()
    }
}

/// The treatment of a request.
#[derive(Debug, Clone)]
pub enum Act {
    /// Pebble answers it.
    Pass,
    /// The relay answers: status line, header lines, body.
    Answer(&'static str, &'static str, &'static str),
    /// Pebble answers it, and the connection ends before the answer.
    Lose,
}

type Hook = Arc<dyn Fn(&Seen) -> Act + Send + Sync>;

/// Pebble with its name server and relay. All names resolve to 127.0.0.1.
pub struct AcmeServer {
    ports: [u16; 6],
    authority: Authority,
    folder: TempDir,
    processes: Vec<Child>,
    relay: SocketAddr,
    task: AbortHandle,
    seen: Arc<Mutex<Vec<Seen>>>,
    hook: Arc<Mutex<Hook>>,
    _reserved: Ports,
}

impl AcmeServer {
    /// Reserves its addresses. It answers after [`Self::start`].
    ///
    /// # Panics
    /// When the machine has no port or no temporary folder.
    pub async fn reserve() -> Self {
        let mut reserved = Ports::default();
        let ports = [(); 6].map(|()| reserved.reserve());
        let authority = Authority::new("acme authority");
        let certificate = authority.issue("localhost", "acme server");
        let folder = TempDir::with_prefix("signalbox-acme-").expect("a temporary folder");
        for (name, text) in
            [("cert.pem", &certificate.chain), ("key.pem", &certificate.key), ("ca.pem", &authority.pem)]
        {
            std::fs::write(folder.path().join(name), text).expect("a file");
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let relay = listener.local_addr().expect("bound");
        let (seen, hook): (Arc<Mutex<Vec<Seen>>>, Arc<Mutex<Hook>>) =
            (Arc::default(), Arc::new(Mutex::new(Arc::new(|_: &Seen| Act::Pass))));
        let to = SocketAddr::from(([127, 0, 0, 1], ports[0]));
        let acceptor = tls::acceptor(&certificate);
        let relaying = relay_all(listener, acceptor, to, authority.pem.clone(), seen.clone(), hook.clone());
        let task = tokio::spawn(relaying).abort_handle();
        Self { ports, authority, folder, processes: Vec::new(), relay, task, seen, hook, _reserved: reserved }
    }

    /// The URL of its directory, over TLS with a certificate of [`Self::ca_file`].
    pub fn directory(&self) -> String {
        format!("https://localhost:{}/dir", self.ports[0])
    }

    /// The URL of its directory behind the relay, which has the certificate of the server.
    pub fn relayed(&self) -> String {
        format!("https://localhost:{}/dir", self.relay.port())
    }

    /// The authority that signed the certificate of the server itself.
    pub fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The treatment of each request from now on.
    pub fn on_request(&self, hook: impl Fn(&Seen) -> Act + Send + Sync + 'static) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(hook);
    }

    /// All requests so far, those that the relay answered included.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often a name was ordered. A request with a rejected nonce (400) is not counted.
    pub fn orders_of(&self, name: &str) -> usize {
        let orders =
            |one: &&Seen| one.ordered().iter().any(|ordered| ordered == name) && one.status != Some(400);
        self.seen().iter().filter(orders).count()
    }

    /// Starts it. It validates names at `http_port`, and its certificates are valid for so many seconds.
    ///
    /// # Panics
    /// When `pebble` is not installed, or does not answer.
    pub async fn start(&mut self, http_port: u16, valid_seconds: u64) {
        let [listen, management, tls, dns, dns_management, _] = self.ports;
        let local = |port: u16| format!("127.0.0.1:{port}");
        let config = json!({"pebble": {
            "listenAddress": local(listen), "managementListenAddress": local(management),
            "certificate": self.folder.path().join("cert.pem"), "privateKey": self.folder.path().join("key.pem"),
            "httpPort": http_port, "tlsPort": tls, "ocspResponderURL": "",
            "externalAccountBindingRequired": false, "certificateValidityPeriod": valid_seconds,
        }});
        let file = self.folder.path().join("pebble.json");
        std::fs::write(&file, config.to_string()).expect("a file");
        let log = || {
            let path = self.folder.path().join("log");
            Stdio::from(std::fs::File::options().create(true).append(true).open(path).expect("a file"))
        };
        let mut pebble = Command::new("pebble");
        pebble.arg("-config").arg(&file).args(["-dnsserver", &local(dns)]);
        // A rejected nonce is tried three times. With many more of them, orders fail that the tests count.
        pebble.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", "5");
        let mut names = Command::new("pebble-challtestsrv");
        names.args([
            "-defaultIPv4",
            "127.0.0.1",
            "-defaultIPv6",
            "",
            "-http01",
            "",
            "-https01",
            "",
            "-tlsalpn01",
            "",
        ]);
        names.args(["-dns01", &local(dns), "-management", &local(dns_management)]);
        for mut command in [pebble, names] {
            let started = command.stdin(Stdio::null()).stdout(log()).stderr(log()).kill_on_drop(true).spawn();
            self.processes.push(started.expect("pebble (apt install pebble)"));
        }
        eventually("the ACME server to answer", || async {
            let answer = self.call(listen, "GET", "/dir").await.map_err(|error| error.to_string())?;
            TcpStream::connect(local(dns_management)).await.map_err(|error| error.to_string())?;
            if answer.contains("newOrder") { Ok(()) } else { Err(answer) }
        })
        .await;
    }

    /// Kills it. Its accounts, orders and certificates are lost.
    ///
    /// # Panics
    /// When a process cannot be killed.
    pub async fn kill(&mut self) {
        for mut process in self.processes.drain(..) {
            process.kill().await.expect("a process of this test");
        }
    }

    /// The root certificate of the certificates that it issues, PEM.
    ///
    /// # Panics
    /// Without an answer.
    pub async fn root(&self) -> String {
        let answer = self.call(self.ports[1], "GET", "/roots/0").await.expect("an answer");
        answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
    }

    /// Where the name server takes `POST /set-txt` and `/clear-txt`.
    pub fn name_server(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.ports[4]))
    }

    async fn call(&self, port: u16, method: &str, path: &str) -> io::Result<String> {
        let to = SocketAddr::from(([127, 0, 0, 1], port));
        let mut stream = tls::connect(to, "localhost", &self.authority.pem, b"http/1.1").await?;
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        // The server does not always end TLS in an orderly way.
        let _ = stream.read_to_end(&mut answer).await;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

impl Drop for AcmeServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn relay_all(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    to: SocketAddr,
    authority: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    hook: Arc<Mutex<Hook>>,
) {
    let numbers = Arc::new(AtomicUsize::new(0));
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (acceptor, authority) = (acceptor.clone(), authority.clone());
        let (seen, hook, numbers) = (seen.clone(), hook.clone(), numbers.clone());
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let _ = relay_one(stream, to, &authority, &seen, &hook, &numbers).await;
        });
    }
}

async fn relay_one(
    stream: TlsStream<TcpStream>,
    to: SocketAddr,
    authority: &str,
    seen: &Mutex<Vec<Seen>>,
    hook: &Mutex<Hook>,
    numbers: &AtomicUsize,
) -> io::Result<()> {
    let mut client = BufReader::new(stream);
    let (mut head, mut length, mut path) = (String::new(), 0_usize, String::new());
    loop {
        let mut line = String::new();
        if client.read_line(&mut line).await? == 0 || line == "\r\n" {
            break;
        }
        let lower = line.to_ascii_lowercase();
        if path.is_empty() {
            path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        }
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if !lower.starts_with("connection:") {
            head.push_str(&line);
        }
    }
    if path.is_empty() {
        return Ok(());
    }
    let mut body = vec![0; length];
    client.read_exact(&mut body).await?;
    let signed: Value = serde_json::from_slice(&body).unwrap_or_default();
    let payload = URL_SAFE_NO_PAD.decode(signed["payload"].as_str().unwrap_or_default()).unwrap_or_default();
    let payload = serde_json::from_slice(&payload).unwrap_or_default();
    let one = Seen { path, payload, number: numbers.fetch_add(1, Ordering::SeqCst), status: None };
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(one.clone());
    let hook = hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let act = hook(&one);
    let answered = |head: &str| {
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter_mut().filter(|seen| seen.number == one.number).for_each(|seen| seen.status = status);
    };
    if let Act::Answer(status, headers, body) = act {
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\n{headers}Content-Type: application/problem+json\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        );
        answered(&answer);
        client.write_all(answer.as_bytes()).await?;
        return client.shutdown().await;
    }
    let mut server = tls::connect(to, "localhost", authority, b"http/1.1").await?;
    let request = format!("{head}Connection: close\r\n\r\n");
    server.write_all(request.as_bytes()).await?;
    server.write_all(&body).await?;
    let mut answer = Vec::new();
    let _ = server.read_to_end(&mut answer).await;
    answered(&String::from_utf8_lossy(&answer[..answer.len().min(64)]));
    if matches!(act, Act::Lose) {
        return Ok(());
    }
    client.write_all(&answer).await?;
    client.shutdown().await
}
