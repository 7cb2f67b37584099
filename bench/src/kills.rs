//! Requests that fail when instances die under load. Of four instances, one is gone every second for half a second, with
//! all its connections, as after `kill -9`. Each proxy has the retries that an operator would configure for idempotent
//! requests.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time,
};

use crate::{
    hosts::Table as Hosts,
    load::{Choice, Ends, Pace, Plan, Requests},
    machine::installed,
    peers::{
        Proxy, caddy,
        edge::{self, Variant},
        envoy, haproxy, nginx, sozu, traefik,
    },
    redis,
    report::{Table, grouped},
    session::{Output, Session},
};

const INSTANCES: usize = 4;
/// Requests a second: far from what any of them can do, so that failures are all that differs.
const RATE: f64 = 1_000.0;
const CONNECTIONS: usize = 32;
const HOST: &str = "hot-0000000.customers.example";

/// An instance that can be killed and starts again at its address.
struct Instance {
    address: SocketAddr,
    /// The listener and its connections, which end with it.
    life: Option<JoinSet<()>>,
}

impl Instance {
    async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut instance = Self { address, life: None };
        instance.live(listener);
        Ok(instance)
    }

    fn live(&mut self, listener: TcpListener) {
        let mut life = JoinSet::new();
        life.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                connections.spawn(answer(stream));
            }
        });
        self.life = Some(life);
    }

    async fn kill(&mut self) {
        if let Some(mut life) = self.life.take() {
            life.shutdown().await;
        }
    }

    async fn start_again(&mut self) -> anyhow::Result<()> {
        let listener = TcpListener::bind(self.address).await?;
        self.live(listener);
        Ok(())
    }
}

/// Requests here have no bodies, so one is complete when an empty line has come.
async fn answer(mut stream: TcpStream) {
    let mut received = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut chunk).await {
        received.extend_from_slice(&chunk[..count]);
        if received.ends_with(b"\r\n\r\n") {
            received.clear();
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n").await.is_err() {
                return;
            }
        }
    }
}

/// The proxies, each with its configuration for failures: the one that its documentation recommends if instances come
/// and go. `bench/peers/` and `bench/src/peers/` have the complete configurations.
const PEERS: &[(&str, &str)] = &[
    ("edge", "defaults"),
    (
        "static nginx",
        "max_fails=0; proxy_next_upstream error timeout invalid_header http_502 http_503 http_504",
    ),
    ("HAProxy", "retries 3; option redispatch"),
    ("Envoy", "num_retries 3, retry_on connect-failure,refused-stream,reset,gateway-error, previous_hosts"),
    ("Traefik", "retry middleware, attempts 4"),
    ("Caddy", "lb_retries 3"),
    ("sozu", "defaults; it has no setting"),
];

pub(crate) async fn measure(session: &Session, output: &mut Output) -> anyhow::Result<()> {
    let seconds = if session.quick { 3 } else { u64::from(session.seconds).max(10) };
    let title =
        format!("instances killed under load ({RATE:.0} requests/s for {seconds} s, one killed each second)");
    let mut table =
        Table::new(&title, &["", "answered", "failed", "p99 ms", "max ms", "retries as configured"]);
    for (name, retries) in PEERS {
        let program = name.to_lowercase();
        if matches!(*name, "HAProxy" | "Caddy") && !installed(&program) {
            output.skipped(format!("kills, {name}: not installed (Debian package {program})"))?;
            continue;
        }
        if *name == "sozu" && !installed(&program) {
            output.skipped(format!("kills, sozu: {}", sozu::MISSING))?;
            continue;
        }
        match one(session, name, seconds).await {
            Ok(mut row) => {
                row.push((*retries).to_owned());
                table.rows.push(row);
            }
            Err(error) if *name == "edge" => return Err(error),
            Err(error) => output.skipped(format!("kills, {name}: {error:#}"))?,
        }
    }
    output.table(table)
}

async fn one(session: &Session, name: &str, seconds: u64) -> anyhow::Result<Vec<String>> {
    let root = session.folder(&format!("kills-{}", name.replace(' ', "-")))?;
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        instances.push(Instance::start().await?);
    }
    let addresses: Vec<SocketAddr> = instances.iter().map(|instance| instance.address).collect();
    let core = session.cores.worker;
    let mut redis = None;
    let proxy: Proxy = match name {
        "edge" => {
            let server = redis::Server::start(&root, "replica").await?;
            Hosts::new("hot", 1, &addresses, INSTANCES).load(&server.routes()?).await?;
            let edge = edge::start(&root, core, &Variant::default(), &server.socket, 1).await?;
            redis = Some(server);
            edge.proxy
        }
        "static nginx" => nginx::plain(&root, core, &addresses, 1).await?,
        "HAProxy" => haproxy::plain(&root, core, &addresses).await?,
        "Envoy" => envoy::plain(&root, core, &addresses).await?,
        "Traefik" => traefik::plain(&root, core, &addresses).await?,
        "sozu" => sozu::plain(&root, core, &addresses, HOST).await?,
        _ => caddy::plain(&root, core, &addresses).await?,
    };
    crate::edge::routes_soon(&proxy, HOST).await?;
    // Its instances are not used: the ones that can be killed are ours.
    let ends = Ends::start(1, &session.cores.others)?;
    let requests = Arc::new(Requests::for_hosts([HOST]));
    let plan = Plan {
        choice: Choice::Uniform,
        pace: Pace::Sleepy { rate: RATE },
        ramp: Duration::from_millis(200),
        ..Plan::once(proxy.address, requests, CONNECTIONS, Duration::from_secs(seconds))
    };
    let killer = tokio::spawn(async move {
        for second in 0..seconds as usize {
            let victim = &mut instances[second % INSTANCES];
            time::sleep(Duration::from_millis(500)).await;
            victim.kill().await;
            time::sleep(Duration::from_millis(500)).await;
            victim.start_again().await?;
        }
        // They live on until the load has ended.
        anyhow::Ok(instances)
    });
    let outcome = ends.run(plan).await?;
    drop(killer.await??);
    drop(redis);
    let milliseconds = |nanos: u64| format!("{:.1}", nanos as f64 / 1e6);
    Ok(vec![
        proxy.name.clone(),
        grouped(outcome.completed as f64),
        grouped(outcome.failed as f64),
        milliseconds(outcome.latency.quantile(0.99)),
        milliseconds(outcome.latency.quantile(1.0)),
    ])
}
