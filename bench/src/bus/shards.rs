//! What an event costs if the fabric is a Redis Cluster, by the number of its nodes. All nodes are on this machine, so the rate does not
//! grow with them; what must not grow either is the work for each event.

use std::time::Duration;

use anyhow::{Context as _, bail};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{
    load::{self, Run, Way},
    testbed::{ARRAY, Audience, Testbed},
};
use crate::{
    compare::median_of,
    load::Pace,
    process::Pid,
    redis::Server,
    report::{Table, grouped},
    session::{Output, Session},
};

/// The first slot of each node, so that each of the shards `{s0}`, `{s1}`, … has a node of its own.
const FIRST_SLOTS: [&[u16]; 3] = [&[0], &[0, 12_288], &[0, 4_096, 8_192, 12_288]];
const SLOTS: u16 = 16_384;
/// How long a new cluster may take until it serves.
const MAX_MEETING: Duration = Duration::from_secs(30);

const WAYS: [Way; 2] = [
    Way { audience: Audience::Ten, events: 1, connections: 256, share: None, target: None },
    Way { audience: Audience::One, events: ARRAY, connections: 16, share: None, target: None },
];

pub(super) async fn measure(session: &Session, output: &mut Output) -> anyhow::Result<()> {
    let mut table = Table::new(
        "a fabric of several nodes",
        &[
            "published",
            "subscribers",
            "nodes and shards",
            "accepted/s",
            "CPU µs per event: all nodes",
            "busiest node",
            "pacemaker",
            "scripts called per event",
            "commands per event, those of scripts included",
        ],
    );
    for first_slots in FIRST_SLOTS {
        let cluster = Cluster::start(first_slots).await?;
        let testbed = Testbed::start_on(&Audience::ALL, 0, Some(&cluster)).await?;
        for way in WAYS {
            table.rows.push(row(session, &cluster, &testbed, way).await?);
        }
        testbed.stack.stop().await;
    }
    table.notes.push(
        "each shard has a node of its own; the nodes, the pacemaker, publishers and subscribers share the cores \
         of this machine"
            .to_owned(),
    );
    output.table(table)
}

async fn row(
    session: &Session,
    cluster: &Cluster,
    testbed: &Testbed,
    way: Way,
) -> anyhow::Result<Vec<String>> {
    let (warm, measured) = if session.quick { (100, 400) } else { (1_000, 4_000) };
    load::once(testbed, way, Pace::Closed, Duration::from_millis(warm)).await?;
    let (calls, cpu) = (cluster.calls()?, cluster.cpu());
    let mut runs: Vec<Run> = Vec::new();
    for _ in 0..session.rounds.min(3) {
        runs.push(load::once(testbed, way, Pace::Closed, Duration::from_millis(measured)).await?);
    }
    let events: f64 = runs.iter().map(Run::events).sum();
    let calls = cluster.calls()? - calls;
    let spent: Vec<f64> = cluster
        .cpu()
        .iter()
        .zip(cpu)
        .map(|(after, before)| after.saturating_sub(before).as_secs_f64())
        .collect();
    let per_event = |seconds: f64| format!("{:.1}", seconds * 1e6 / events);
    Ok(vec![
        way.describe(),
        way.audience.subscribers().to_string(),
        spent.len().to_string(),
        grouped(median_of(runs.iter().map(Run::rate))),
        per_event(spent.iter().sum()),
        per_event(spent.iter().copied().fold(0.0, f64::max)),
        format!("{:.1}", median_of(runs.iter().map(Run::pacemaker_cpu))),
        format!("{:.2}", calls.scripts / events),
        format!("{:.1}", calls.commands / events),
    ])
}

/// A Redis Cluster without replicas.
pub(super) struct Cluster {
    nodes: Vec<Server>,
    _folder: TempDir,
}

/// Commands that nodes have executed so far.
#[derive(Debug, Clone, Copy)]
struct Calls {
    scripts: f64,
    /// Of clients and of scripts.
    commands: f64,
}

impl std::ops::Sub for Calls {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self { scripts: self.scripts - earlier.scripts, commands: self.commands - earlier.commands }
    }
}

impl Cluster {
    async fn start(first_slots: &[u16]) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("signalbox-bench-")?;
        if first_slots.len() == 1 {
            let node = Server::start_durable(folder.path(), "node-0").await?;
            return Ok(Self { nodes: vec![node], _folder: folder });
        }
        let mut nodes = Vec::new();
        for number in 0..first_slots.len() {
            nodes.push(Server::start_node(folder.path(), &format!("node-{number}")).await?);
        }
        let cluster = Self { nodes, _folder: folder };
        let ends = first_slots.iter().skip(1).copied().chain([SLOTS]);
        for ((node, first), end) in cluster.nodes.iter().zip(first_slots).zip(ends) {
            node.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &(end - 1).to_string()])?;
            let first = &cluster.nodes[0];
            if node.address != first.address {
                let (port, bus) = (first.address.port().to_string(), first.cluster_port()?);
                node.ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
            }
        }
        let begun = Instant::now();
        while !cluster.serves()? {
            if begun.elapsed() > MAX_MEETING {
                bail!("a cluster of {} nodes does not serve", cluster.nodes.len());
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(cluster)
    }

    /// Whether each node knows all others and all slots.
    fn serves(&self) -> anyhow::Result<bool> {
        let size = format!("cluster_size:{}\r", self.nodes.len());
        self.nodes.iter().try_fold(true, |all, node| {
            let info: String = node.ask(&["CLUSTER", "INFO"])?;
            Ok(all && info.contains("cluster_state:ok") && info.contains(&size))
        })
    }

    /// The pacemaker's settings for it: one shard for each node. A single shard needs no cluster.
    pub(super) fn settings(&self) -> anyhow::Result<toml::Table> {
        let mut settings = toml::Table::new();
        let first = self.nodes.first().context("a cluster has a node")?;
        let scheme = if self.nodes.len() == 1 { "redis" } else { "redis+cluster" };
        settings.insert("fabric".to_owned(), format!("{scheme}://{}/", first.address).into());
        settings.insert("fabric_shards".to_owned(), i64::try_from(self.nodes.len())?.into());
        Ok(settings)
    }

    pub(super) fn pids(&self) -> Vec<Pid> {
        self.nodes.iter().map(Server::id).collect()
    }

    fn cpu(&self) -> Vec<Duration> {
        self.pids().iter().map(|pid| crate::process::CpuTime::of(&[*pid]).on_cpu).collect()
    }

    fn calls(&self) -> anyhow::Result<Calls> {
        let mut calls = Calls { scripts: 0.0, commands: 0.0 };
        for node in &self.nodes {
            let info: String = node.ask(&["INFO", "commandstats"])?;
            for line in info.lines().filter_map(|line| line.strip_prefix("cmdstat_")) {
                let (name, counters) = line.split_once(":calls=").context("a counter of a command")?;
                let number: f64 = counters.split(',').next().unwrap_or_default().parse()?;
                calls.commands += number;
                if name == "evalsha" {
                    calls.scripts += number;
                }
            }
        }
        Ok(calls)
    }
}
