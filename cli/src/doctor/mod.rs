//! `signalbox doctor`: what is misconfigured or unhealthy, and how to mend it.
//!
//! Two halves that do not know each other: [`facts`] looks at a running system (its API, its metrics, and its Redis
//! servers where these can be reached) and changes nothing; [`rules`] judges what was seen, without any I/O. What could
//! not be looked at is said, too: silence would be taken for health.

mod facts;
mod metrics;
mod rules;
mod server;

use serde::Serialize;

use crate::{
    exit::Failure,
    remote::Remote,
    terminal::{self, Progress},
};

/// Flags of `signalbox doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A Redis server of a system elsewhere to look at, as ROLE=URL; the roles are routes, routes-replica, stats and fabric
    #[arg(long, value_name = "ROLE=URL", value_parser = server::Target::parse)]
    redis: Vec<server::Target>,
    /// Do not test whether requests are counted, which takes a few seconds where they are not
    #[arg(long)]
    skip_log: bool,
    #[command(flatten)]
    remote: Remote,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// Something does not work, or will be lost when the next thing fails.
    Broken,
    /// It works, and somebody should look at it.
    Warning,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    severity: Severity,
    /// The rule, for programs.
    rule: &'static str,
    /// What it is about.
    about: String,
    /// What is wrong.
    what: String,
    /// How to mend it.
    mend: String,
}

#[derive(Serialize)]
struct Answer<'a> {
    healthy: bool,
    findings: &'a [Finding],
    /// What could not be looked at, and why.
    unseen: &'a [String],
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let progress = Progress::new();
    let facts = facts::gather(&args, &progress).await?;
    drop(progress);
    let findings = rules::judge(&facts);
    let broken = findings.iter().filter(|finding| finding.severity == Severity::Broken).count();
    let answer = Answer { healthy: broken == 0, findings: &findings, unseen: &facts.unseen };
    args.remote.show(&answer, print)?;
    match broken {
        0 => Ok(()),
        1 => Err(Failure::broken("1 thing has to be mended")),
        _ => Err(Failure::broken(format!("{broken} things have to be mended"))),
    }
}

fn print(answer: &Answer<'_>) {
    for Finding { severity, rule, about, what, mend } in answer.findings {
        let mark = if *severity == Severity::Broken { "BROKEN " } else { "warning" };
        terminal::line(&format!("{mark}  {about}: {what}  [{rule}]"));
        terminal::line(&format!("         {mend}"));
    }
    for unseen in answer.unseen {
        terminal::line(&format!("unseen   {unseen}"));
    }
    if answer.findings.is_empty() {
        terminal::line("healthy");
    }
}
