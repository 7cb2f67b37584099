//! `signalbox check`: checks whether events, queues, objects and labels of a running system are consistent.

use std::time::Duration;

use signalbox_client::{health::Check, with_query};

use crate::{
    exit::Failure,
    remote::Remote,
    terminal::{Progress, out},
};

/// The time limit of one call, which checks a part of all objects or labels.
const PATIENCE: Duration = Duration::from_secs(300);

/// The check ends after this many findings.
const MAX_FINDINGS: usize = 1_000;

/// Prints the findings. Fails with "broken" if there are any.
pub(crate) async fn run(remote: Remote) -> Result<(), Failure> {
    let progress = Progress::new();
    let answer = consistency(&remote, &progress).await?;
    drop(progress);
    remote.show(&answer, print)?;
    match answer.findings.len() {
        0 => Ok(()),
        1 => Err(Failure::broken("1 problem found")),
        count => Err(Failure::broken(format!("{count} problems found"))),
    }
}

/// The findings of all subsystems.
pub(crate) async fn consistency(remote: &Remote, progress: &Progress) -> Result<Check, Failure> {
    let client = remote.patient(PATIENCE)?;
    progress.say("checking subscribers, queues and objects");
    let mut answer: Check = client.get("/check").await?;
    while let Some(next) = answer.next.take().filter(|_| answer.findings.len() < MAX_FINDINGS) {
        progress.say(&format!("checking labels of state machines: {}", answer.checked));
        let more: Check = client.get(&with_query("/check", &[("cursor", next)])).await?;
        answer.consistent &= more.consistent;
        answer.findings.extend(more.findings);
        answer.checked += more.checked;
        answer.next = more.next;
    }
    Ok(answer)
}

fn print(answer: &Check) {
    for finding in &answer.findings {
        out!(
            "{:<10} {:<4} shard {} {}: {}",
            finding.subsystem,
            finding.predicate,
            finding.shard,
            finding.name,
            finding.what,
        );
    }
    if answer.findings.is_empty() {
        out!(
            "consistent: {}; {} labels and index entries checked",
            answer.subsystems.join(", "),
            answer.checked
        );
    }
}
