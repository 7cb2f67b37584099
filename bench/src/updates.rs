//! The cost of one change of one host, and the time until it is served, by the number of hosts: our edge, Envoy with
//! hosts in a file (xDS), Traefik with its file provider, HAProxy with a map and its runtime API.
//!
//! Every host leads to one of a few instances; a change moves one host to another. This favors Envoy and Traefik,
//! which would need a cluster or service for each host if every host had separate instances. One request per
//! millisecond checks whether the change is effective; the result is the CPU time of the proxy (ours with its Redis)
//! from the change until it is served and all activity has ended.

use std::{
    io::{Read as _, Write as _},
    net::SocketAddr,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::bail;
use tokio::time::{self, Instant};

use crate::{
    compare::median_of,
    hosts::Table as Hosts,
    load::Ends,
    machine::installed,
    peers::{
        Proxy,
        edge::{self, Variant},
        envoy, haproxy, traefik,
    },
    probe::Probe,
    process::{CpuTime, Pid},
    redis,
    report::Table,
    session::{Output, Session},
};

const INSTANCES: usize = 4;
/// How long a peer may take to serve its first table, and a change.
const PATIENCE: Duration = Duration::from_secs(120);
/// Rest is when a tenth of a second costs no more than this.
const REST: Duration = Duration::from_millis(2);
const REST_PATIENCE: Duration = Duration::from_secs(20);

/// How a contender receives a change.
enum Way {
    Ours(redis::Server),
    Envoy { file: PathBuf, version: u64 },
    Traefik { file: PathBuf },
    Haproxy { socket: PathBuf, map: PathBuf },
}

struct Contender {
    proxy: Proxy,
    way: Way,
    /// The processes whose CPU time counts.
    pids: Vec<Pid>,
}

pub(crate) async fn measure(session: &Session, output: &mut Output) -> anyhow::Result<()> {
    let sizes: &[usize] = if session.quick { &[100, 1_000] } else { &[1_000, 10_000, 100_000] };
    let changes = if session.quick { 3 } else { 10 };
    let ends = Ends::start(INSTANCES, &session.cores.others)?;
    let title = format!("one change of one host ({changes} changes each, medians)");
    let mut table = Table::new(&title, &["", "hosts", "CPU ms", "served after ms", "resident MiB"]);
    for name in ["edge", "Envoy", "Traefik", "HAProxy"] {
        for size in sizes {
            let root = session.folder(&format!("updates-{name}-{size}"))?;
            let hosts = Hosts::new("shop", *size, ends.instances(), 1);
            match one(session, &root, name, &hosts, ends.instances(), changes).await {
                Ok(row) => table.rows.push(row),
                Err(error) if name == "edge" => return Err(error),
                Err(error) => {
                    output.skipped(format!("updates, {name} with {size} hosts: {error:#}"))?;
                    // A larger table would exceed its limits as well.
                    break;
                }
            }
        }
    }
    table.notes.push("the edge with its Redis; peers alone, without whatever makes their files".to_owned());
    output.table(table)
}

async fn one(
    session: &Session,
    root: &Path,
    name: &str,
    hosts: &Hosts,
    instances: &[SocketAddr],
    changes: usize,
) -> anyhow::Result<Vec<String>> {
    let names: Vec<String> = hosts.hosts().collect();
    // As the table has them: in turn.
    let mut places: Vec<usize> = (0..names.len()).map(|at| at % instances.len()).collect();
    let mut contender = start(session, root, name, hosts, &names, &places, instances).await?;
    served(&contender.proxy, &names[names.len() - 1], instances[places[names.len() - 1]]).await?;
    rest(&contender.pids).await;
    let (mut cpu, mut after) = (Vec::new(), Vec::new());
    for change in 0..changes {
        let which = change * 37 % names.len();
        // In use, as the hosts of a living application are.
        served(&contender.proxy, &names[which], instances[places[which]]).await?;
        rest(&contender.pids).await;
        let (from, to) = (places[which], (places[which] + 1) % instances.len());
        places[which] = to;
        let file = contender.file_of(&names, &places, instances);
        let before = CpuTime::of(&contender.pids);
        let begun = Instant::now();
        contender.apply(&names[which], instances[from], (to, instances[to]), file).await?;
        let at = served(&contender.proxy, &names[which], instances[to]).await?;
        rest(&contender.pids).await;
        after.push((at - begun).as_secs_f64() * 1e3);
        cpu.push((CpuTime::of(&contender.pids) - before).on_cpu.as_secs_f64() * 1e3);
    }
    let memory: u64 = contender.pids.iter().filter_map(|pid| crate::process::private_memory(*pid).ok()).sum();
    Ok(vec![
        contender.proxy.name.clone(),
        crate::report::grouped(names.len() as f64),
        format!("{:.2}", median_of(cpu)),
        format!("{:.1}", median_of(after)),
        (memory / (1024 * 1024)).to_string(),
    ])
}

async fn start(
    session: &Session,
    root: &Path,
    name: &str,
    hosts: &Hosts,
    names: &[String],
    places: &[usize],
    instances: &[SocketAddr],
) -> anyhow::Result<Contender> {
    let core = session.cores.worker;
    let pairs = || names.iter().map(String::as_str).zip(places.iter().copied());
    let (proxy, way) = match name {
        "edge" => {
            let redis = redis::Server::start(root, "replica").await?;
            hosts.load(&redis.routes()?).await?;
            let edge = edge::start(root, core, &Variant::default(), &redis.socket, 1).await?;
            (edge.proxy, Way::Ours(redis))
        }
        "Envoy" => {
            let (proxy, file) = envoy::dynamic(root, core, instances, &envoy::hosts_file(0, pairs())).await?;
            (proxy, Way::Envoy { file, version: 0 })
        }
        "Traefik" => {
            let (proxy, file) =
                traefik::dynamic(root, core, &traefik::hosts_file(instances, pairs())).await?;
            (proxy, Way::Traefik { file })
        }
        _ => {
            if !installed("haproxy") {
                bail!("not installed (Debian package haproxy)");
            }
            let (proxy, socket, map) = haproxy::mapped(root, core, instances, pairs()).await?;
            (proxy, Way::Haproxy { socket, map })
        }
    };
    let mut pids = proxy.workers.clone();
    if let Way::Ours(redis) = &way {
        pids.push(redis.id());
    }
    Ok(Contender { proxy, way, pids })
}

impl Contender {
    /// The content for contenders that read a file. Generating it is not part of the measured cost.
    fn file_of(&mut self, names: &[String], places: &[usize], instances: &[SocketAddr]) -> String {
        let pairs = names.iter().map(String::as_str).zip(places.iter().copied());
        match &mut self.way {
            Way::Envoy { version, .. } => {
                *version += 1;
                envoy::hosts_file(*version, pairs)
            }
            Way::Traefik { .. } => traefik::hosts_file(instances, pairs),
            Way::Ours(_) | Way::Haproxy { .. } => String::new(),
        }
    }

    async fn apply(
        &self,
        host: &str,
        from: SocketAddr,
        (number, to): (usize, SocketAddr),
        file: String,
    ) -> anyhow::Result<()> {
        match &self.way {
            Way::Ours(redis) => {
                let routes = redis.routes()?;
                let key = signalbox_store::keys::routes::instances(host);
                let mut batch = routes.batch();
                batch.add("SADD", &key, to.to_string());
                batch.add("SREM", &key, from.to_string());
                batch.add("INCRBY", &signalbox_store::keys::routes::serial(), 1);
                batch.query::<Vec<signalbox_store::Value>>().await?;
                Ok(())
            }
            Way::Envoy { file: place, .. } | Way::Traefik { file: place } => {
                // Written atomically; Envoy watches for renames only.
                let new = place.with_extension("new");
                std::fs::write(&new, file)?;
                Ok(std::fs::rename(&new, place)?)
            }
            Way::Haproxy { socket, map } => {
                let mut stream = UnixStream::connect(socket)?;
                stream.write_all(format!("set map {} {host} to{number}\n", map.display()).as_bytes())?;
                let mut said = String::new();
                stream.read_to_string(&mut said)?;
                if said.trim().is_empty() { Ok(()) } else { bail!("HAProxy answered: {said}") }
            }
        }
    }
}

/// When `host` was first answered by the instance at `wanted`.
async fn served(proxy: &Proxy, host: &str, wanted: SocketAddr) -> anyhow::Result<Instant> {
    let deadline = Instant::now() + PATIENCE;
    let mut probe = None;
    loop {
        let mut open = match probe.take() {
            Some(open) => open,
            None => Probe::connect(proxy.address)?,
        };
        // A proxy that replaces its listener breaks connections; the request is repeated.
        if let Ok(reply) = open.get(host, "/") {
            let port = String::from_utf8_lossy(&reply.body).trim().parse::<u16>().ok();
            if reply.status == 200 && port == Some(wanted.port()) {
                return Ok(Instant::now());
            }
            probe = Some(open);
        }
        if Instant::now() > deadline {
            bail!("{host} is not served as it should be after {} s", PATIENCE.as_secs());
        }
        time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until the processes have nothing left to do.
async fn rest(pids: &[Pid]) {
    let deadline = Instant::now() + REST_PATIENCE;
    while Instant::now() < deadline {
        let before = CpuTime::of(pids);
        time::sleep(Duration::from_millis(100)).await;
        if (CpuTime::of(pids) - before).on_cpu < REST {
            return;
        }
    }
}
