//! `signalbox check`: whether what must hold of a running system's events, queues, objects and labels does hold.

use std::time::Duration;

use signalbox_client::health::Check;

use crate::{
    exit::Failure,
    remote::Remote,
    terminal::{self, Progress},
};

/// Flags of `signalbox check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    remote: Remote,
}

/// How long the check may take: it looks at every object, a part at a time.
const PATIENCE: Duration = Duration::from_secs(300);

/// Findings after which nothing more is looked for.
const MOST: usize = 1_000;

/// Prints what is broken; fails with "broken" when something is.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = args.remote.patient(PATIENCE)?;
    let progress = Progress::new();
    progress.say("checking every subscriber, queue and object");
    let mut answer = client.health().check(None).await?;
    while let Some(next) = answer.next.take().filter(|_| answer.findings.len() < MOST) {
        progress.say(&format!("checking labels of state machines: {}", answer.checked));
        let more = client.health().check(Some(&next)).await?;
        answer.consistent &= more.consistent;
        answer.findings.extend(more.findings);
        answer.checked += more.checked;
        answer.next = more.next;
    }
    drop(progress);
    args.remote.show(&answer, print)?;
    match answer.findings.len() {
        0 => Ok(()),
        count => Err(Failure::broken(format!("{count} things are not as they must be"))),
    }
}

fn print(answer: &Check) {
    for finding in &answer.findings {
        terminal::line(&format!(
            "{:<10} {:<4} shard {} {}: {}",
            finding.subsystem, finding.predicate, finding.shard, finding.name, finding.what,
        ));
    }
    if answer.findings.is_empty() {
        terminal::line(&format!(
            "consistent: {}; {} labels and index entries checked",
            answer.subsystems.join(", "),
            answer.checked
        ));
    }
}
