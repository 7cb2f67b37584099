//! The bus compared with brokers: one publisher, one consumer, 200 bytes of data, one message at a time and a hundred
//! at a time, from the first publish until the last message has been handled and acknowledged.
//!
//! Their features differ, and the table lists them. The bus accepts and delivers by HTTP, to consumers it does not
//! know; the others are used through a library in the consumer's own process. A Redis that one of them uses writes its
//! log as the fabric does.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, bail};
use tokio::time::Instant;

use super::{
    node::{self, Node},
    streams::Streams,
    testbed::{Audience, Testbed},
};
use crate::{
    compare::{Comparison, Contender, Measure, Sample},
    load::Plan,
    process::{CpuTime, Pid},
    report::{Table, grouped, ratio, target},
    session::{Output, Session},
};

/// How long one turn may take.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The systems that are measured in turns.
pub(crate) enum Broker<'a> {
    Signalbox(&'a Testbed),
    Streams(Box<Streams>),
    Node(Box<Node>),
}

/// How many messages, and how many at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) messages: u64,
    pub(crate) batch: u64,
}

pub(crate) async fn measure(session: &Session, testbed: &Testbed, output: &mut Output) -> anyhow::Result<()> {
    let folder = session.folder("brokers")?;
    let mut brokers = vec![("bus, in order for each object".to_owned(), None, Broker::Signalbox(testbed))];
    let others = others(&folder, output).await?;
    brokers.extend(others.into_iter().map(|(name, target, broker)| (name, Some(target), broker)));
    for batch in [1, 100] {
        let messages = match (session.quick, batch) {
            (true, _) => 2_000,
            (false, 1) => 20_000,
            (false, _) => 40_000,
        };
        let work = Work { messages, batch };
        let mut contenders: Vec<Contender> =
            brokers.iter().map(|(name, target, _)| Contender::new(name, *target)).collect();
        for round in 0..=session.rounds.min(3) {
            for ((name, _, broker), contender) in brokers.iter_mut().zip(&mut contenders) {
                let sample = turn(broker, work).await.with_context(|| format!("a turn of {name}"))?;
                // The first round warms everything up.
                if round > 0 {
                    contender.samples.push(sample);
                }
            }
        }
        let how = if batch == 1 { "one by one".to_owned() } else { format!("{batch} at a time") };
        let mut notes = vec![format!(
            "{messages} messages of 200 bytes in a turn, to one subscriber; until all are handled; CPU: of all that take \
             part, clients included"
        )];
        for ((name, _, broker), contender) in brokers.iter().zip(&contenders) {
            if let Broker::Node(node) = broker
                && node.behind() > 0
            {
                notes.push(format!("{name}: {} messages were out of order for their object", node.behind()));
            }
            let failed: u64 = contender.samples.iter().map(|sample| sample.failed).sum();
            if failed > 0 {
                notes.push(format!("{name}: {failed} messages came out of order or again"));
            }
        }
        let title = format!("the bus and brokers, published {how}");
        output.table(table(&Comparison { title, measure: Measure::Rate, contenders, notes }))?;
    }
    Ok(())
}

/// All others that can be had: a name, the ratio of rates that ours has to reach, and the broker.
pub(crate) async fn others(
    folder: &Path,
    output: &mut Output,
) -> anyhow::Result<Vec<(String, f64, Broker<'static>)>> {
    let streams = Broker::Streams(Box::new(Streams::start(folder).await?));
    let mut all = vec![("Redis Streams, one consumer of a group, in order".to_owned(), 1.0, streams)];
    let nodes = node::all(folder, output).await?;
    all.extend(nodes.into_iter().map(|(name, target, node)| (name, target, Broker::Node(Box::new(node)))));
    Ok(all)
}

/// Rates, costs, and how often the bus is as fast.
fn table(comparison: &Comparison) -> Table {
    let mut table = Table::new(
        &comparison.title,
        &[
            "",
            "messages/s",
            "CPU µs per message",
            "CPU ÷ the bus's (range)",
            "the bus ÷ rate (range)",
            "target",
        ],
    );
    for (index, contender) in comparison.contenders.iter().enumerate() {
        table.rows.push(vec![
            contender.name.clone(),
            grouped(contender.median(|sample| sample.rate)),
            format!("{:.1}", contender.median(|sample| sample.cpu_us)),
            ratio(comparison.ratio(index, Measure::Cpu)),
            ratio(comparison.ratio(index, Measure::Rate)),
            target(comparison, index),
        ]);
    }
    table.notes.clone_from(&comparison.notes);
    table
}

/// One turn of a broker.
pub(crate) async fn turn(broker: &mut Broker<'_>, work: Work) -> anyhow::Result<Sample> {
    let pids = match broker {
        Broker::Signalbox(testbed) => testbed.pids(),
        Broker::Streams(streams) => vec![streams.server(), std::process::id()],
        Broker::Node(node) => node.pids(),
    };
    let handling = async {
        match broker {
            Broker::Signalbox(testbed) => through_signalbox(testbed, work).await,
            Broker::Streams(streams) => streams.turn(work).await,
            Broker::Node(node) => node.turn(work).await,
        }
    };
    measured(&pids, work, handling).await
}

/// The result of `handling`, which handles the messages and returns how many came out of order or repeatedly. The CPU
/// time is that of `pids`.
pub(crate) async fn measured(
    pids: &[Pid],
    work: Work,
    handling: impl Future<Output = anyhow::Result<u64>>,
) -> anyhow::Result<Sample> {
    let (begun, cpu) = (Instant::now(), cpu(pids));
    let behind = tokio::time::timeout(MAX_WAIT, handling).await.context("it takes too long")??;
    let (elapsed, cpu) = (begun.elapsed(), self::cpu(pids).saturating_sub(cpu));
    #[allow(clippy::cast_precision_loss)]
    let messages = work.messages as f64;
    Ok(Sample {
        rate: messages / elapsed.as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / messages,
        busy: cpu.as_secs_f64() / elapsed.as_secs_f64(),
        failed: behind,
        ..Sample::default()
    })
}

fn cpu(pids: &[Pid]) -> Duration {
    CpuTime::of(pids).on_cpu
}

async fn through_signalbox(testbed: &Testbed, work: Work) -> anyhow::Result<u64> {
    let behind = testbed.receivers.behind();
    let expected = testbed.receivers.events() + work.messages;
    let batch = usize::try_from(work.batch)?;
    let requests = testbed.prepared(Audience::AtOnce, batch, work.messages / work.batch);
    let connections = if work.batch == 1 { 64 } else { 16 };
    let outcome = testbed.ends.run(Plan::once(testbed.pacemaker(), requests, connections, MAX_WAIT)).await?;
    if outcome.failed > 0 {
        bail!("{} publish requests failed: {}", outcome.failed, outcome.first_failure.unwrap_or_default());
    }
    testbed.drained(expected).await?;
    Ok(testbed.receivers.behind() - behind)
}
