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
use signalbox_diagnosis::{Finding, Severity, Skipped, kinds, thousands};

use crate::{
    exit::Failure,
    remote::Remote,
    terminal::{self, Progress, out},
};

/// Findings of one kind that are printed.
const MAX_NAMED: usize = 5;

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
    let url = args.remote.client()?.url().trim_end_matches('/').to_owned();
    args.remote.show(&answer, |answer| print(answer, &url))?;
    let summary = diagnosis.summary();
    match critical {
        0 if diagnosis.findings.is_empty() => Ok(()),
        0 => {
            terminal::error(&summary);
            Ok(())
        }
        _ => Err(Failure::broken(summary)),
    }
}

/// Prints findings by kind, as the dashboard's page Problems does.
fn print(answer: &Answer<'_>, url: &str) {
    for (title, same) in kinds(answer.findings) {
        let first = &same[0];
        let severity = if first.severity == Severity::Critical { "CRITICAL" } else { "warning " };
        out!("{severity}  {title}  [{}]", first.id);
        if same.len() > 1 {
            same.iter().take(MAX_NAMED).for_each(|one| out!("          - {}", one.problem));
        }
        if same.len() > MAX_NAMED {
            out!("          - {} more: -o json lists all", thousands(same.len() - MAX_NAMED));
        }
        out!("          {}", first.fix);
        out!("          {url}{}", first.runbook());
    }
    for Skipped { check, reason } in answer.skipped {
        out!("skipped   {check}: {reason}");
    }
    if answer.findings.is_empty() {
        let skipped = match answer.skipped.len() {
            0 => String::new(),
            1 => " (1 check skipped)".to_owned(),
            skipped => format!(" ({skipped} checks skipped)"),
        };
        out!("No problems found{skipped}");
    }
}
