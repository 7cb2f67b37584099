//! How soon pages and lists of a large installation open, and how large they are: 50,000 hosts, 500 queues and a million
//! labels.
//!
//! Hosts, instances and queues are created through the API, labels as the benchmark of machines does it. Each list is
//! requested on one connection, as a browser or a client does, without compression. The first request is included, when no
//! cache has been filled yet.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::{task::spawn_blocking, time::Instant};

use crate::{
    bus::testbed::head,
    machines::{Machines, fill_parked, label},
    probe::Probe,
    report::{Table, grouped},
    session::{Output, Session},
};

/// Instances in a request.
const TOGETHER: usize = 500;
const QUEUES: usize = 500;
/// How often each list is requested.
const REQUESTS: usize = 20;
/// The targets: the median in milliseconds, and bytes.
const MAX_MS: f64 = 300.0;
const MAX_BYTES: usize = 2_000_000;

pub(crate) async fn measure(session: &Session, output: &mut Output) -> anyhow::Result<()> {
    let (hosts, labels) = if session.quick { (5_000, 20_000) } else { (50_000, 1_000_000) };
    let system = Machines::start().await?;
    let (pacemaker, token) = (system.testbed.pacemaker(), system.testbed.stack.token().to_owned());
    let begun = Instant::now();
    fill_hosts(&system, hosts).await?;
    for number in 0..QUEUES {
        let pattern = json!({"pattern": format!("none:none:t{number}")});
        call(&system, "PUT", &format!("/queues/queue-{number:03}"), &pattern)?;
    }
    fill_parked(&system, labels).await?;
    let filled = begun.elapsed();
    let columns = ["page or list", "bytes", "p50 ms", "max ms", "target: < 300 ms, < 2 MB"];
    let title = format!(
        "{} hosts, {QUEUES} queues, {} labels",
        grouped(thousands(hosts)),
        grouped(thousands(labels))
    );
    let mut table = Table::new(&title, &columns);
    for path in paths(hosts, labels) {
        let (token, asked) = (token.clone(), path.clone());
        let opened = spawn_blocking(move || open(pacemaker, &token, &asked)).await??;
        table.rows.push(opened.row(path));
    }
    table.notes.push(format!(
        "each requested {REQUESTS} times; the installation was filled in {:.0} s",
        filled.as_secs_f64()
    ));
    system.testbed.stack.stop().await;
    output.table(table)
}

fn host(number: u64) -> String {
    format!("site-{number:05}.lists.test")
}

#[allow(clippy::cast_precision_loss, reason = "display precision")]
fn thousands(count: u64) -> f64 {
    count as f64
}

async fn fill_hosts(system: &Machines, hosts: u64) -> anyhow::Result<()> {
    for first in (0..hosts).step_by(TOGETHER) {
        let instance = |number: u64| {
            json!({
                "id": format!("site-{number:05}-1"), "hostnames": [host(number)],
                "address": format!("127.{}.{}.{}:9", 1 + (number >> 16), (number >> 8) & 255, number & 255),
                "version_type_id": format!("v{}", number % 1000),
            })
        };
        let part: Vec<Value> = (first..(first + TOGETHER as u64).min(hosts)).map(instance).collect();
        let items = call(system, "PUT", "/instances", &part.into())?;
        let failed = items.as_array().into_iter().flatten().find(|one| one["status"].as_u64() > Some(299));
        ensure!(failed.is_none(), "an instance was rejected: {failed:?}");
    }
    Ok(())
}

fn call(system: &Machines, method: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
    system.testbed.call(method, path, system.testbed.stack.token(), Some(body))
}

/// The first page of each list, a search, another order, and pages about one thing.
fn paths(hosts: u64, labels: u64) -> Vec<String> {
    let (host, label) = (host(hosts - 1), label(labels - 1));
    let pages = [
        "/".to_owned(),
        "/dashboard/problems".to_owned(),
        "/dashboard/host".to_owned(),
        "/dashboard/host?sort=-requests".to_owned(),
        format!("/dashboard/host?search={host}"),
        format!("/dashboard/host?name={host}"),
        "/dashboard/instances".to_owned(),
        format!("/dashboard/instances?search=site-{:05}-1", hosts - 1),
        format!("/dashboard/instances?name=site-{:05}-1", hosts - 1),
        "/dashboard/queues".to_owned(),
        "/dashboard/queues?search=queue-499".to_owned(),
        "/dashboard/machines".to_owned(),
        "/dashboard/machines?name=parked".to_owned(),
        format!("/dashboard/machines?name=parked&find={label}"),
        "/dashboard/machines?name=parked&state=parked&status=waiting".to_owned(),
        format!("/dashboard/label?name=parked&label={label}"),
        "/hosts?limit=100".to_owned(),
        "/hosts?limit=100&sort=-hostname".to_owned(),
        format!("/hosts?search={host}"),
        "/instances?limit=100".to_owned(),
        format!("/instances?search=site-{:05}-1", hosts - 1),
        "/queues?limit=100".to_owned(),
        "/state-machines/parked/labels?limit=100".to_owned(),
        "/state-machines/parked/labels?limit=100&state=parked&count=true".to_owned(),
        format!("/state-machines/parked/labels/{label}"),
    ];
    pages.into()
}

/// How a list was opened.
struct Opened {
    bytes: usize,
    times: Vec<Duration>,
}

fn open(pacemaker: SocketAddr, token: &str, path: &str) -> anyhow::Result<Opened> {
    let mut probe = Probe::connect(pacemaker)?;
    let request = head("GET", path, token, 0);
    let mut opened = Opened { bytes: 0, times: Vec::with_capacity(REQUESTS) };
    for _ in 0..REQUESTS {
        let begun = Instant::now();
        let reply = probe.ask(request.as_bytes()).with_context(|| format!("GET {path}"))?;
        opened.times.push(begun.elapsed());
        ensure!(reply.status == 200, "GET {path}: {} {}", reply.status, String::from_utf8_lossy(&reply.body));
        opened.bytes = opened.bytes.max(reply.body.len());
    }
    opened.times.sort_unstable();
    Ok(opened)
}

impl Opened {
    fn row(&self, path: String) -> Vec<String> {
        let ms = |place: usize| self.times[place].as_secs_f64() * 1000.0;
        let (p50, max) = (ms(REQUESTS / 2), ms(REQUESTS - 1));
        let met = p50 < MAX_MS && self.bytes < MAX_BYTES;
        vec![
            format!("`{path}`"),
            grouped(thousands(self.bytes as u64)),
            format!("{p50:.1}"),
            format!("{max:.1}"),
            if met { "met" } else { "MISSED" }.to_owned(),
        ]
    }
}
