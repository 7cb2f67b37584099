//! Side-by-side measurements of Signalbox and its peers. `docs/performance.md` explains how to read them.
//!
//! Everything runs on loopback, in a temporary folder, for a bounded time, and is removed afterwards. A figure is never an
//! assertion: a missed target is printed as missed.

mod bus;
mod compare;
mod edge;
mod histogram;
mod hosts;
mod kills;
mod lists;
mod load;
mod log;
mod machine;
mod machines;
mod objects;
mod peers;
mod probe;
mod process;
mod propagation;
mod queues;
mod redis;
mod report;
mod session;
mod sidecar;
mod tls;
mod updates;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    machine::Facts,
    peers::edge::Variant,
    session::{Output, Session},
};

/// Measures Signalbox and its peers side by side.
#[derive(Debug, Parser)]
#[command(name = "signalbox-bench", version)]
struct Arguments {
    /// The benchmark to run.
    #[arg(value_enum, default_value = "all")]
    what: What,
    /// How long each contender is measured in each comparison, in turns of one second.
    #[arg(long, default_value_t = 8)]
    seconds: u32,
    /// Short turns, small tables, a short log: whether it works, not how fast it is.
    #[arg(long)]
    quick: bool,
    /// Also write the results to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also measure a changed copy of nginx/ and lua/ in this folder, side by side with this tree's edge.
    #[arg(long, value_name = "FOLDER")]
    against: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Requests through the edge and through other proxies.
    Edge,
    /// The cost of one change, by the number of hosts.
    Updates,
    /// Requests that fail when instances die.
    Kills,
    /// From a change of the route table to the first request it routes.
    Propagation,
    /// Log lines to counters.
    Sidecar,
    /// Events through the bus and through brokers.
    Bus,
    /// Messages through queues that are pulled.
    Queues,
    /// Events of objects, in order, through the bus, HTTP backends and brokers.
    Objects,
    /// Pages and lists of 50,000 hosts and a million labels.
    Lists,
    /// State machines: conditions evaluated, labels moved and updated, a million waiting labels.
    Machines,
    /// All of them.
    All,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the runtime")
        .and_then(|runtime| runtime.block_on(until_stopped(arguments)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[allow(clippy::print_stderr, reason = "the last word of a program that has no log")]
            {
                eprintln!("signalbox-bench: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Runs the benchmarks until they are done or interrupted. Started processes end when they are dropped, in both cases.
async fn until_stopped(arguments: Arguments) -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        result = measure(arguments) => result,
        _ = terminated.recv() => anyhow::bail!("stopped"),
        _ = tokio::signal::ctrl_c() => anyhow::bail!("stopped"),
    }
}

async fn measure(arguments: Arguments) -> anyhow::Result<()> {
    let wanted = |what| arguments.what == what || arguments.what == What::All;
    let against = arguments.against.map(|source| Variant { name: "changed edge".to_owned(), source });
    let session = Session::new(arguments.seconds, arguments.quick, against)?;
    let mut output = Output::new(Facts::gather())?;
    if wanted(What::Edge) {
        Box::pin(edge::measure(&session, &mut output)).await.context("measuring the edge")?;
    }
    if wanted(What::Updates) {
        Box::pin(updates::measure(&session, &mut output)).await.context("measuring updates")?;
    }
    if wanted(What::Kills) {
        Box::pin(kills::measure(&session, &mut output)).await.context("measuring kills")?;
    }
    if wanted(What::Propagation) {
        Box::pin(propagation::measure(&session, &mut output)).await.context("measuring propagation")?;
    }
    if wanted(What::Sidecar) {
        Box::pin(sidecar::measure(&session, &mut output)).await.context("measuring the sidecar")?;
    }
    if wanted(What::Bus) {
        Box::pin(bus::measure(&session, &mut output)).await.context("measuring the bus")?;
    }
    if wanted(What::Queues) {
        Box::pin(queues::measure(&session, &mut output)).await.context("measuring queues")?;
    }
    if wanted(What::Objects) {
        Box::pin(objects::measure(&session, &mut output)).await.context("measuring objects")?;
    }
    if wanted(What::Machines) {
        Box::pin(machines::measure(&session, &mut output)).await.context("measuring machines")?;
    }
    if wanted(What::Lists) {
        Box::pin(lists::measure(&session, &mut output)).await.context("measuring lists")?;
    }
    if let Some(path) = &arguments.json {
        output.write_json(path)?;
    }
    Ok(())
}
