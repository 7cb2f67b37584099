//! The edge against its peers: CPU for a request, rate and latency, and memory for a cached host.
//!
//! A proxy's cost is measured as its one worker's CPU time per request, because that depends neither on the generator
//! nor on how the cores are shared. A rate describes the proxy only when its worker was busy all the time; turns below
//! [`SATURATED`] are noted.

use std::{fs, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use signalbox_store::{RoutesPrimary, keys};

use crate::{
    compare::{Comparison, Contender, Measure, Sample},
    hosts::Table,
    load::{Choice, Ends, Outcome, Pace, Plan, Requests},
    machine::installed,
    peers::{
        Proxy, caddy,
        edge::{self, Edge, Variant},
        envoy, haproxy, nginx, sozu, traefik,
    },
    probe::{Probe, acknowledged, fetch},
    process::private_memory,
    redis,
    report::{Figure, Figures},
    session::{Output, Session},
    tls,
};

/// From which share of its core on a worker counts as busy.
const SATURATED: f64 = 0.97;
/// Connections that keep a worker busy: enough for it never to wait, no more than a load balancer in front would open.
const CONNECTIONS: usize = 64;
/// Instances behind every proxy.
const INSTANCES: usize = 8;
/// Paths of the host that leads them to services.
const PATHS: usize = 20;
/// A turn during which other processes used this much of a core is repeated, as long as there is time for it.
const DISTURBED: f64 = 0.10;
/// Load before each turn that is not measured.
const RAMP: Duration = Duration::from_millis(100);

/// Policies that need more than a set of addresses, with their names. `SHARES` is replaced by two version types, one
/// of which gets a twentieth of the requests.
const POLICIES: [(&str, &str); 3] = [
    ("p2c", r#"{"balance":{"algorithm":"p2c"}}"#),
    ("hash by header", r#"{"balance":{"algorithm":"hash","header":"user-agent"}}"#),
    ("canary", SHARES),
];
const SHARES: &str = r#"{"shares":[{"version_type":"1","percent":95},{"version_type":"2","percent":5}],"log_keys":{"FIRST":"2"}}"#;

/// A proxy that takes turns, and the ratio it has to reach.
type Entrant<'a> = (&'a Proxy, Option<f64>);

/// Everything that runs while the edge is measured.
struct Bench<'a> {
    session: &'a Session,
    ends: Ends,
    redis: redis::Server,
    edge: Edge,
    /// A changed copy of the edge.
    other: Option<Edge>,
    fixed: Proxy,
}

pub(crate) async fn measure(session: &Session, output: &mut Output) -> anyhow::Result<()> {
    let root = session.folder("edge")?;
    let core = session.cores.worker;
    let ends = Ends::start(INSTANCES, &session.cores.others)?;
    let redis = redis::Server::start(&root, "replica").await?;
    let routes = redis.routes()?;
    let hot = Table::new("hot", 1, ends.instances(), INSTANCES);
    let many = Table::new("shop", if session.quick { 2_000 } else { 10_000 }, ends.instances(), 2);
    hot.load(&routes).await?;
    many.load(&routes).await?;
    let edge = edge::start(&root, core, &Variant::default(), &redis.socket, 1).await?;
    let other = match &session.against {
        Some(variant) => Some(edge::start(&root, core, variant, &redis.socket, 1).await?),
        None => None,
    };
    let fixed = nginx::plain(&root, core, ends.instances(), 1).await?;
    let bench = Bench { session, ends, redis, edge, other, fixed };
    for edge in [Some(&bench.edge), bench.other.as_ref()].into_iter().flatten() {
        routes_soon(&edge.proxy, &hot.host(0)).await?;
    }

    let comparison = bench.one_hot_host(&root, &hot, output).await?;
    let full_rate = comparison.contenders[1].median(|sample| sample.rate);
    output.comparison(comparison, "request")?;
    for policy in POLICIES {
        output.comparison(bench.with_policy(&routes, policy).await?, "request")?;
    }
    output.comparison(bench.paths(&root, &routes).await?, "request")?;
    output.comparison(bench.two_workers(&root, &hot).await?, "request")?;
    for (count, target) in [(100, None), (many.len(), Some(0.88))] {
        let table = Table::new("shop", count, bench.ends.instances(), 2);
        output.comparison(bench.many_hosts(&table, &bench.fixed, target).await?, "request")?;
    }
    let thousand = Table::new("shop", 1_000, bench.ends.instances(), 2);
    let blocks = nginx::server_blocks(&root, core, &thousand).await?;
    output.comparison(bench.many_hosts(&thousand, &blocks, Some(1.0)).await?, "request")?;
    drop(blocks);
    output.comparison(bench.latency(&hot, full_rate / 2.0).await?, "request")?;
    output.figures(bench.memory_per_host().await?)?;
    tls::measure(bench.session, &bench.ends, &bench.redis, output).await?;
    bench.no_errors()
}

/// Waits until a new edge has connected to its Redis and routes.
pub(crate) async fn routes_soon(proxy: &Proxy, host: &str) -> anyhow::Result<()> {
    let mut last = String::new();
    for _ in 0..250 {
        match Probe::connect(proxy.address).and_then(|mut probe| probe.get(host, "/")) {
            Ok(reply) if reply.status == 200 => return Ok(()),
            Ok(reply) => last = format!("{} {}", reply.status, String::from_utf8_lossy(&reply.body)),
            Err(error) => last = error.to_string(),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("{} does not route {host}: {last}", proxy.name)
}

impl Bench<'_> {
    /// All peers, one host with all instances.
    async fn one_hot_host(
        &self,
        root: &Path,
        hot: &Table,
        output: &mut Output,
    ) -> anyhow::Result<Comparison> {
        let core = self.session.cores.worker;
        let instances = self.ends.instances();
        let lookup = nginx::lookup(root, core, &self.redis).await?;
        let mut peers = Vec::new();
        if installed("haproxy") {
            peers.push((haproxy::plain(root, core, instances).await?, Some(1.0)));
        } else {
            output.skipped("HAProxy: not installed (Debian package haproxy)".to_owned())?;
        }
        if installed("caddy") {
            peers.push((caddy::plain(root, core, instances).await?, Some(2.0)));
        } else {
            output.skipped("Caddy: not installed (Debian package caddy)".to_owned())?;
        }
        match envoy::plain(root, core, instances).await {
            Ok(proxy) => peers.push((proxy, Some(2.0))),
            Err(error) => output.skipped(format!("Envoy: {error:#}"))?,
        }
        match traefik::plain(root, core, instances).await {
            Ok(proxy) => peers.push((proxy, Some(2.0))),
            Err(error) => output.skipped(format!("Traefik: {error:#}"))?,
        }
        if installed("sozu") {
            match sozu::plain(root, core, instances, &hot.host(0)).await {
                Ok(proxy) => peers.push((proxy, Some(2.0))),
                Err(error) => output.skipped(format!("sozu: {error:#}"))?,
            }
        } else {
            output.skipped(format!("sozu: {}", sozu::MISSING))?;
        }
        for (proxy, _) in &peers {
            routes_soon(proxy, &hot.host(0)).await?;
        }
        let mut entrants: Vec<Entrant<'_>> = vec![(&self.edge.proxy, None), (&self.fixed, Some(0.90))];
        entrants.extend(self.other.as_ref().map(|other| (&other.proxy, None)));
        entrants.push((&lookup, None));
        entrants.extend(peers.iter().map(|(proxy, target)| (proxy, *target)));
        self.compare("one hot host".to_owned(), hot, &entrants, Pace::Closed).await
    }

    /// The edge with a policy, and the static peer; one host.
    async fn with_policy(
        &self,
        routes: &RoutesPrimary,
        (name, policy): (&str, &str),
    ) -> anyhow::Result<Comparison> {
        let table = Table::new(&name.replace(' ', "-"), 1, self.ends.instances(), INSTANCES);
        let policy = policy.replace("FIRST", &self.ends.instances()[0].to_string());
        routes.command("SET").key(&keys::routes::policy(&table.host(0))).arg(policy).run().await?;
        table.load(routes).await?;
        routes_soon(&self.edge.proxy, &table.host(0)).await?;
        let mut entrants: Vec<Entrant<'_>> = vec![(&self.edge.proxy, None), (&self.fixed, Some(0.80))];
        entrants.extend(self.other.as_ref().map(|other| (&other.proxy, None)));
        self.compare(format!("one host with a policy: {name}"), &table, &entrants, Pace::Closed).await
    }

    /// The edge and one static peer, hosts as likely as each other.
    async fn many_hosts(
        &self,
        table: &Table,
        peer: &Proxy,
        target: Option<f64>,
    ) -> anyhow::Result<Comparison> {
        let mut entrants: Vec<Entrant<'_>> = vec![(&self.edge.proxy, None), (peer, target)];
        entrants.extend(self.other.as_ref().map(|other| (&other.proxy, None)));
        self.compare(format!("{} hosts, uniform", table.len()), table, &entrants, Pace::Closed).await
    }

    /// One host with paths that lead to services, and static nginx with as many locations.
    async fn paths(&self, root: &Path, routes: &RoutesPrimary) -> anyhow::Result<Comparison> {
        let services = Table::new("service", PATHS, self.ends.instances(), 2);
        let host = Table::new("paths", 1, self.ends.instances(), INSTANCES).host(0);
        let rule = |(index, service): (usize, String)| {
            format!(r#"{{"path":"{}","service":"{service}"}}"#, nginx::path_of(index))
        };
        let rules: Vec<String> = services.hosts().enumerate().map(rule).collect();
        let policy = format!(r#"{{"paths":[{}]}}"#, rules.join(","));
        routes.command("SET").key(&keys::routes::policy(&host)).arg(policy).run().await?;
        services.load(routes).await?;
        let peer = nginx::locations(root, self.session.cores.worker, &services).await?;
        let request = |index| {
            let path = nginx::path_of(index);
            format!(
                "GET {path}/orders/42?page=2 HTTP/1.1\r\nHost: {host}\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"
            )
            .into_bytes()
        };
        let requests = Arc::new(Requests::of((0..PATHS).map(request)));
        let mut entrants: Vec<Entrant<'_>> = vec![(&self.edge.proxy, None), (&peer, Some(0.80))];
        entrants.extend(self.other.as_ref().map(|other| (&other.proxy, None)));
        self.compare_requests(format!("one host, {PATHS} paths"), requests, &entrants, Pace::Closed).await
    }

    /// Two workers of the edge and of static nginx, which share the core: what the workers of a router cost each other.
    async fn two_workers(&self, root: &Path, hot: &Table) -> anyhow::Result<Comparison> {
        let core = self.session.cores.worker;
        let variant = Variant { name: "edge, 2 workers".to_owned(), ..Variant::default() };
        let edge = edge::start(root, core, &variant, &self.redis.socket, 2).await?;
        let peer = nginx::plain(root, core, self.ends.instances(), 2).await?;
        routes_soon(&edge.proxy, &hot.host(0)).await?;
        let entrants = [(&edge.proxy, None), (&peer, Some(0.90))];
        self.compare("one hot host, 2 workers".to_owned(), hot, &entrants, Pace::Closed).await
    }

    /// Latency at a rate that neither has trouble with.
    async fn latency(&self, hot: &Table, rate: f64) -> anyhow::Result<Comparison> {
        let mut entrants: Vec<Entrant<'_>> = vec![(&self.edge.proxy, None), (&self.fixed, Some(1.2))];
        entrants.extend(self.other.as_ref().map(|other| (&other.proxy, None)));
        let title = format!("latency at {rate:.0} requests/s, half of what static nginx can");
        self.compare(title, hot, &entrants, Pace::Open { rate }).await
    }

    async fn compare(
        &self,
        title: String,
        table: &Table,
        entrants: &[Entrant<'_>],
        pace: Pace,
    ) -> anyhow::Result<Comparison> {
        let requests = Arc::new(Requests::for_hosts(table.hosts()));
        self.compare_requests(title, requests, entrants, pace).await
    }

    /// Lets the entrants take turns.
    async fn compare_requests(
        &self,
        title: String,
        requests: Arc<Requests>,
        entrants: &[Entrant<'_>],
        pace: Pace,
    ) -> anyhow::Result<Comparison> {
        let plan = |proxy: &Proxy, choice, pace| Plan {
            target: proxy.address,
            requests: Arc::clone(&requests),
            choice,
            connections: CONNECTIONS,
            pace,
            ramp: RAMP,
            duration: self.session.turn,
            watch: proxy.workers.clone(),
            helpers: proxy.helpers.clone(),
        };
        for (proxy, _) in entrants {
            proxy.cut_log()?;
            let once = Plan {
                ramp: Duration::ZERO,
                duration: Duration::from_secs(20),
                ..plan(proxy, Choice::EachOnce, Pace::Closed)
            };
            expect_no_failure(proxy, &self.ends.run(once).await?)?;
            // A few thousand requests more, until a just-in-time compiler has seen enough of them.
            self.ends.run(plan(proxy, Choice::Uniform, Pace::Closed)).await?;
        }
        let mut contenders: Vec<Contender> =
            entrants.iter().map(|(proxy, target)| Contender::new(&proxy.name, *target)).collect();
        let mut spare = self.session.rounds * entrants.len();
        for round in 0..self.session.rounds {
            // There and back, so that a machine that gets slower is unfair to each in turn.
            let mut order: Vec<usize> = (0..entrants.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let proxy = entrants[index].0;
                let outcome = loop {
                    let turn = plan(proxy, Choice::Uniform, pace);
                    let outcome =
                        self.ends.run(turn).await.with_context(|| format!("asking {}", proxy.name))?;
                    expect_no_failure(proxy, &outcome)?;
                    if outcome.disturbance() < DISTURBED || spare == 0 {
                        break outcome;
                    }
                    spare -= 1;
                };
                contenders[index].samples.push(sample(&outcome));
            }
        }
        let measure = if matches!(pace, Pace::Open { .. }) { Measure::P99 } else { Measure::Cpu };
        let mut notes = if measure == Measure::Cpu { idle_turns(&contenders) } else { Vec::new() };
        notes.extend(disturbed_turns(&contenders));
        Ok(Comparison { title, measure, contenders, notes })
    }

    /// The memory per host in a worker's cache: its private memory before and after requests for many hosts.
    async fn memory_per_host(&self) -> anyhow::Result<Figures> {
        let count = if self.session.quick { 20_000 } else { 100_000 };
        let worker = *self.edge.proxy.workers.first().context("the edge has no worker")?;
        let table = Table::new("memory", count, self.ends.instances(), 2);
        let routes = self.redis.routes()?;
        table.load(&routes).await?;
        // A lookup waits behind the pushes of the load. A request would be answered 503 after 250 ms.
        let serial: u64 = routes.command("GET").key(&keys::routes::serial()).query().await?;
        acknowledged(self.edge.admin, serial)?;
        let before = private_memory(worker)?;
        let requests = Arc::new(Requests::for_hosts(table.hosts()));
        let plan = Plan::once(self.edge.proxy.address, requests, CONNECTIONS, Duration::from_secs(60));
        expect_no_failure(&self.edge.proxy, &self.ends.run(plan).await?)?;
        let after = private_memory(worker)?;
        let status = fetch(self.edge.admin, "/edge/status")?;
        #[allow(clippy::cast_precision_loss)]
        let bytes = after.saturating_sub(before) as f64 / count as f64;
        let figure = Figure {
            what: "private memory of the worker".to_owned(),
            samples: count as u64,
            p50: bytes,
            p99: bytes,
            max: bytes,
            target: Some(300.0),
            unit: "bytes a host",
        };
        Ok(Figures {
            title: format!("memory for each of {count} cached hosts"),
            figures: vec![figure],
            notes: vec![
                "resident memory, with what the garbage collector has not given back yet".to_owned(),
                format!("/edge/status: {}", String::from_utf8_lossy(&status.body).trim()),
            ],
        })
    }

    /// A fast edge that logs errors is not fast.
    fn no_errors(&self) -> anyhow::Result<()> {
        let log = self.edge.proxy.log.with_file_name("error.log");
        let text = fs::read_to_string(&log).unwrap_or_default();
        if let Some(line) = text.lines().find(|line| line.contains("[error]") || line.contains("[alert]")) {
            bail!("the edge logged an error while it was measured: {line}");
        }
        Ok(())
    }
}

fn expect_no_failure(proxy: &Proxy, outcome: &Outcome) -> anyhow::Result<()> {
    match &outcome.first_failure {
        Some(first) => bail!("{}: {} requests failed, the first with: {first}", proxy.name, outcome.failed),
        None => Ok(()),
    }
}

fn sample(outcome: &Outcome) -> Sample {
    #[allow(clippy::cast_precision_loss)]
    let milliseconds = |share| outcome.latency.quantile(share) as f64 / 1e6;
    Sample {
        rate: outcome.rate(),
        cpu_us: outcome.cpu_micros(),
        p50_ms: milliseconds(0.5),
        p99_ms: milliseconds(0.99),
        busy: outcome.busy(),
        generator_busy: outcome.generator_busy(),
        disturbance: outcome.disturbance(),
        failed: outcome.failed,
    }
}

fn disturbed_turns(contenders: &[Contender]) -> Option<String> {
    let all = || contenders.iter().flat_map(|contender| &contender.samples);
    let disturbed = all().filter(|sample| sample.disturbance >= DISTURBED).count();
    (disturbed > 0).then(|| {
        format!("{disturbed} of {} turns were disturbed by other processes on the machine", all().count())
    })
}

fn idle_turns(contenders: &[Contender]) -> Vec<String> {
    let note = |contender: &Contender| {
        let idle = contender.samples.iter().filter(|sample| sample.busy < SATURATED).count();
        (idle > 0).then(|| {
            format!(
                "{}: the worker was not busy in {idle} of {} turns, its rate is a lower bound",
                contender.name,
                contender.samples.len()
            )
        })
    };
    contenders.iter().filter_map(note).collect()
}
