//! The edge over TLS, with a certificate in the route table, next to static nginx with the same certificate in a file.
//!
//! What is compared is the CPU of the one worker for a new connection with its request, for a resumed one, and for a
//! request on a connection that is kept, over HTTP/1.1 and HTTP/2.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    client::Resumption,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use signalbox_seal::Keys;
use signalbox_store::keys;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::{JoinSet, spawn_blocking},
    time::Instant,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    compare::{Comparison, Contender, Measure, Sample},
    edge::routes_soon,
    histogram::Histogram,
    hosts::Table,
    load::{Ends, Requests, answer},
    machine::pin_current_thread,
    peers::{Proxy, edge, nginx},
    process::CpuTime,
    redis,
    session::{Output, Session},
};

/// Clients that ask at the same time, each over a connection of its own.
const CLIENTS: usize = 16;
/// The ratio to static nginx that each kind of connection should reach.
const TARGET: f64 = 0.90;

/// What a client does for each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    New,
    Resumed,
    Kept,
    Http2,
}

impl Kind {
    const ALL: [(Self, &str); 4] = [
        (Self::New, "TLS, a new connection for each request"),
        (Self::Resumed, "TLS, a resumed connection for each request"),
        (Self::Kept, "TLS, kept connections"),
        (Self::Http2, "TLS, kept connections, HTTP/2"),
    ];
}

/// A certificate of one name, and the keys of a key file.
#[derive(Debug)]
pub(crate) struct Identity {
    /// The name.
    pub(crate) name: String,
    /// PEM of the certificate.
    pub(crate) certificate: String,
    /// PEM of its private key.
    pub(crate) private_key: String,
    /// The content of the key file.
    pub(crate) key_file: String,
}

impl Identity {
    fn new(name: &str) -> anyhow::Result<Self> {
        let private_key = KeyPair::generate()?;
        let certificate = CertificateParams::new([name.to_owned()])?.self_signed(&private_key)?.pem();
        let key_file = "5a".repeat(32);
        Ok(Self { name: name.to_owned(), certificate, private_key: private_key.serialize_pem(), key_file })
    }

    /// The value of `cert:<name>` in the route table.
    fn in_table(&self) -> anyhow::Result<String> {
        let keys = Keys::parse(&self.key_file).map_err(anyhow::Error::msg)?;
        let sealed =
            keys.seal(&self.name, self.private_key.as_bytes()).context("encrypting a private key")?;
        Ok(serde_json::json!({"v": 1, "chain": self.certificate, "key": sealed}).to_string())
    }
}

pub(crate) async fn measure(
    session: &Session,
    ends: &Ends,
    redis: &redis::Server,
    output: &mut Output,
) -> anyhow::Result<()> {
    let root = session.folder("tls")?;
    let table = Table::new("secure", 1, ends.instances(), ends.instances().len());
    let identity = Identity::new(&table.host(0))?;
    let routes = redis.routes()?;
    let key = keys::routes::cert(&identity.name);
    routes.command("SET").key(&key).arg(identity.in_table()?).run().await?;
    table.load(&routes).await?;
    let proxies = start(session, &root, redis, ends, &identity).await?;
    for (kind, title) in Kind::ALL {
        let comparison = compare(session, &proxies, &identity, (kind, title)).await?;
        output.comparison(comparison, if kind == Kind::New { "connection" } else { "request" })?;
    }
    Ok(())
}

async fn start(
    session: &Session,
    root: &Path,
    redis: &redis::Server,
    ends: &Ends,
    identity: &Identity,
) -> anyhow::Result<[Proxy; 2]> {
    let core = session.cores.worker;
    let listener = Identity::new("listener.example")?;
    let (edge, tls) = edge::start_with_tls(root, core, &redis.socket, &listener).await?;
    routes_soon(&edge, &identity.name).await?;
    let edge = edge.with_address(tls);
    let fixed = nginx::with_tls(root, core, ends.instances(), identity).await?;
    Ok([edge, fixed])
}

/// Lets the edge and static nginx take turns.
async fn compare(
    session: &Session,
    proxies: &[Proxy; 2],
    identity: &Identity,
    (kind, title): (Kind, &str),
) -> anyhow::Result<Comparison> {
    let [edge, fixed] = proxies;
    let mut contenders =
        [Contender::new(&edge.name, None), Contender::new(&fixed.name, Some(TARGET))].to_vec();
    for round in 0..=session.rounds {
        for (proxy, contender) in proxies.iter().zip(&mut contenders) {
            proxy.cut_log()?;
            let sample = turn(session, proxy, identity, kind).await.with_context(|| proxy.name.clone())?;
            // The first round fills caches.
            if round > 0 {
                contender.samples.push(sample);
            }
        }
    }
    let notes = vec![format!("{CLIENTS} clients, TLS 1.3, ECDSA P-256, certificate of the route table")];
    Ok(Comparison { title: title.to_owned(), measure: Measure::Cpu, contenders, notes })
}

async fn turn(session: &Session, proxy: &Proxy, identity: &Identity, kind: Kind) -> anyhow::Result<Sample> {
    let (address, time, others) = (proxy.address, session.turn, session.cores.others.clone());
    let clients = Arc::new(Clients::new(identity, kind)?);
    let before = CpuTime::of(&proxy.workers);
    let began = Instant::now();
    let latencies = spawn_blocking(move || {
        pin_current_thread(&others)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(clients.run(address, time))
    })
    .await
    .context("the thread of the clients")??;
    let elapsed = began.elapsed().as_secs_f64();
    let spent = (CpuTime::of(&proxy.workers) - before).on_cpu.as_secs_f64();
    #[allow(clippy::cast_precision_loss)]
    let (count, milliseconds) =
        (latencies.count().max(1) as f64, |share| latencies.quantile(share) as f64 / 1e6);
    Ok(Sample {
        rate: count / elapsed,
        cpu_us: spent * 1e6 / count,
        p50_ms: milliseconds(0.5),
        p99_ms: milliseconds(0.99),
        busy: spent / elapsed,
        ..Sample::default()
    })
}

/// The clients of one turn.
#[derive(Debug)]
struct Clients {
    kind: Kind,
    name: String,
    connector: Connector,
}

/// Opens connections.
struct Connector(TlsConnector);

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connector")
    }
}

impl Clients {
    fn new(identity: &Identity, kind: Kind) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(identity.certificate.as_bytes())?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        if kind != Kind::Resumed {
            config.resumption = Resumption::disabled();
        }
        let protocol: &[u8] = if kind == Kind::Http2 { b"h2" } else { b"http/1.1" };
        config.alpn_protocols = vec![protocol.to_vec()];
        let connector = Connector(TlsConnector::from(Arc::new(config)));
        Ok(Self { kind, name: identity.name.clone(), connector })
    }

    async fn run(self: Arc<Self>, address: SocketAddr, time: Duration) -> anyhow::Result<Histogram> {
        let deadline = Instant::now() + time;
        let mut tasks = JoinSet::new();
        for _ in 0..CLIENTS {
            let clients = Arc::clone(&self);
            tasks.spawn(async move { clients.one(address, deadline).await });
        }
        let mut all = Histogram::default();
        while let Some(latencies) = tasks.join_next().await {
            for nanos in latencies.context("a client")?? {
                all.record(nanos);
            }
        }
        Ok(all)
    }

    /// One client. Returns how long each request took, in nanoseconds.
    async fn one(&self, address: SocketAddr, deadline: Instant) -> anyhow::Result<Vec<u64>> {
        if self.kind == Kind::Http2 {
            return self.over_http2(address, deadline).await;
        }
        let mut latencies = Vec::new();
        let mut kept = None;
        let mut resumed = 0_usize;
        while Instant::now() < deadline {
            let began = Instant::now();
            let mut stream = match kept.take() {
                Some(stream) => stream,
                None => self.connect(address).await?,
            };
            self.ask(&mut stream).await?;
            latencies.push(nanos(began));
            resumed += usize::from(is_resumed(&stream));
            let is_worn = latencies.len().is_multiple_of(PER_CONNECTION);
            kept = (self.kind == Kind::Kept && !is_worn).then_some(stream);
        }
        if self.kind == Kind::Resumed {
            ensure!(
                resumed * 2 > latencies.len(),
                "{resumed} of {} connections were resumed",
                latencies.len()
            );
        }
        Ok(latencies)
    }

    async fn connect(&self, address: SocketAddr) -> anyhow::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(self.name.clone())?;
        Ok(self.connector.0.connect(name, stream).await?)
    }

    /// Sends a request over HTTP/1.1 and reads its answer.
    async fn ask(&self, stream: &mut TlsStream<TcpStream>) -> anyhow::Result<()> {
        let requests = Requests::for_hosts([&self.name]);
        stream.write_all(requests.get(0)).await?;
        let mut received = Vec::new();
        loop {
            ensure!(stream.read_buf(&mut received).await? > 0, "the connection ended before an answer");
            if let Some(answer) = answer(&received)? {
                ensure!(answer.status == 200, "{}", String::from_utf8_lossy(&received));
                return Ok(());
            }
        }
    }

    async fn over_http2(&self, address: SocketAddr, deadline: Instant) -> anyhow::Result<Vec<u64>> {
        let mut latencies = Vec::new();
        while Instant::now() < deadline {
            let (sender, connection) = h2::client::handshake(self.connect(address).await?).await?;
            let driver = tokio::spawn(connection);
            let mut sender = sender.ready().await?;
            for _ in 0..PER_CONNECTION {
                if Instant::now() >= deadline {
                    break;
                }
                let began = Instant::now();
                let uri = format!("https://{}/orders/42?page=2", self.name);
                let request = http::Request::get(uri).header("user-agent", "bench").header("accept", "*/*");
                sender = sender.ready().await?;
                let response = sender.send_request(request.body(())?, true)?.0.await?;
                ensure!(response.status() == 200, "{response:?}");
                let mut body = response.into_body();
                while let Some(part) = body.data().await {
                    body.flow_control().release_capacity(part?.len())?;
                }
                latencies.push(nanos(began));
            }
            driver.abort();
        }
        Ok(latencies)
    }
}

/// Requests of a connection that is kept. The edge ends a connection after a thousand.
const PER_CONNECTION: usize = 900;

fn is_resumed(stream: &TlsStream<TcpStream>) -> bool {
    stream.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
}

fn nanos(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
