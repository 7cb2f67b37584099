//! `signalbox doctor`: reports what is misconfigured or unhealthy, and how to fix it.
//!
//! [`facts`] reads a running system (its API, its metrics, and its Redis servers where these can be reached) and changes
//! nothing. `signalbox-diagnosis` applies the rules, as it does for the dashboard. A check that could not be performed is
//! reported as skipped.

mod facts;
mod metrics;
mod server;

pub(crate) use facts::diagnose;
use serde::Serialize;
use signalbox_diagnosis::{Finding, Severity, Skipped};

use crate::{
    exit::Failure,
    remote::Remote,
    terminal::{self, Progress},
};

/// Flags of `signalbox doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Check this Redis server of another machine, as ROLE=URL; roles: routes, routes-replica, stats, fabric
    #[arg(long, value_name = "ROLE=URL", value_parser = server::Target::parse)]
    redis: Vec<server::Target>,
    /// Skip the check whether requests are counted, which takes up to ten seconds if they are not
    #[arg(long)]
    skip_log: bool,
    #[command(flatten)]
    pub(crate) remote: Remote,
}

#[derive(Serialize)]
struct Answer<'a> {
    /// Whether nothing critical was found.
    healthy: bool,
    findings: &'a [Finding],
    skipped: &'a [Skipped],
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let progress = Progress::new();
    let diagnosis = diagnose(&args, &progress).await?;
    drop(progress);
    let critical = diagnosis.critical();
    let answer =
        Answer { healthy: critical == 0, findings: &diagnosis.findings, skipped: &diagnosis.skipped };
    args.remote.show(&answer, print)?;
    match critical {
        0 => Ok(()),
        critical => {
            Err(Failure::broken(count(critical, "critical problem found", "critical problems found")))
        }
    }
}

fn print(answer: &Answer<'_>) {
    for Finding { id, severity, subject, problem, fix } in answer.findings {
        let severity = if *severity == Severity::Critical { "CRITICAL" } else { "warning " };
        terminal::line(&format!("{severity}  {subject}: {problem}  [{id}]"));
        terminal::line(&format!("          {fix}"));
    }
    for Skipped { check, reason } in answer.skipped {
        terminal::line(&format!("skipped   {check}: {reason}"));
    }
    if answer.findings.is_empty() {
        let skipped = match answer.skipped.len() {
            0 => String::new(),
            skipped => format!(" ({})", count(skipped, "check skipped", "checks skipped")),
        };
        terminal::line(&format!("No problems found{skipped}"));
    }
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
