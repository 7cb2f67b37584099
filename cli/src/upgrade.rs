//! `signalbox upgrade --check`: reports whether a running system can be upgraded to the version of this command, and the steps
//! that remain. It changes nothing, because packages and images are installed by other programs.

use serde::Serialize;
use signalbox_client::health::PacemakerList;
use signalbox_diagnosis::{Diagnosis, Severity};

use crate::{
    check, doctor,
    exit::Failure,
    terminal::{Progress, out},
};

#[derive(Debug, clap::Args)]
// The group of its own arguments would be called `Args`, like that of the flattened ones.
#[group(skip)]
pub(crate) struct Args {
    /// Report only. Packages and images are installed by other programs
    #[arg(long, required = true)]
    check: bool,
    #[command(flatten)]
    system: doctor::Args,
}

/// The major and the minor number of a release. Suffixes such as `-rc.1` are ignored.
fn release(version: &str) -> Option<(u64, u64)> {
    let numbers = version.split(['-', '+']).next()?.split('.').map(|number| number.parse().ok());
    match numbers.collect::<Option<Vec<u64>>>()?[..] {
        [major, minor, _patch] => Some((major, minor)),
        _ => None,
    }
}

/// Whether programs of both versions work side by side: they differ by at most one minor version.
fn are_neighbors(one: &str, other: &str) -> bool {
    let releases = release(one).zip(release(other));
    releases.is_some_and(|(one, other)| one.0 == other.0 && one.1.abs_diff(other.1) <= 1)
}

/// The facts that the decision depends on.
struct Facts {
    /// Node and version of each pacemaker.
    pacemakers: Vec<(String, String)>,
    routers: usize,
    diagnosis: Diagnosis,
    /// Violated invariants of the stored data.
    inconsistencies: usize,
}

/// The answer.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Report {
    /// The version of this command.
    version: String,
    /// Whether the upgrade can start.
    possible: bool,
    /// Problems that must be fixed first.
    blockers: Vec<String>,
    /// Effects that users notice during the upgrade.
    effects: Vec<String>,
    /// The remaining steps, in this order.
    steps: Vec<String>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let Args { check: _, system } = args;
    let client = system.remote.client()?;
    let progress = Progress::new();
    let pacemakers = client.get::<PacemakerList>("/pacemakers").await?.pacemakers;
    let routers = client.routes().convergence().await?.routers.len();
    let diagnosis = doctor::diagnose(&system, &progress).await?;
    let inconsistencies = check::consistency(&system.remote, &progress).await?.findings.len();
    drop(progress);
    let pacemakers = pacemakers.into_iter().map(|one| (one.node, one.version)).collect();
    let facts = Facts { pacemakers, routers, diagnosis, inconsistencies };
    let report = assess(env!("CARGO_PKG_VERSION"), &facts);
    system.remote.show(&report, print)?;
    if report.possible { Ok(()) } else { Err(Failure::broken("the upgrade cannot start yet")) }
}

/// Decides whether the upgrade can start.
fn assess(version: &str, facts: &Facts) -> Report {
    let mut blockers = Vec::new();
    let mut steps = Vec::new();
    for (node, runs) in &facts.pacemakers {
        if runs == version {
            continue;
        }
        steps.push(format!("Restart pacemaker {node} ({runs}) with {version}."));
        if !are_neighbors(runs, version) {
            blockers.push(format!(
                "Pacemaker {node} runs {runs}. Only neighboring minor versions work side by side: upgrade to the versions between \
                 {runs} and {version} first."
            ));
        }
    }
    let critical = facts.diagnosis.findings.iter().filter(|one| one.severity == Severity::Critical);
    blockers.extend(critical.map(|one| format!("{}: {} {} [{}]", one.subject, one.problem, one.fix, one.id)));
    if facts.inconsistencies > 0 {
        let count = facts.inconsistencies;
        blockers.push(format!("`signalbox check` finds {count} violated invariants of the stored data."));
    }
    // They report no version, so these steps are always listed.
    steps.push(format!("Restart each sidecar whose machine has {version} installed since its last start."));
    steps.push("Reload each edge. If nginx itself is new, restart it, one router at a time.".to_owned());
    let mut effects = Vec::new();
    if facts.pacemakers.len() < 2 {
        effects.push(
            "One pacemaker: changes and events are rejected for the seconds of its restart.".to_owned(),
        );
    }
    if facts.routers < 2 {
        effects.push(
            "One router: if nginx is restarted, connections are refused until it runs again. The stop waits for requests in \
             flight, for up to WORKER_SHUTDOWN.".to_owned(),
        );
    }
    Report { version: version.to_owned(), possible: blockers.is_empty(), blockers, effects, steps }
}

fn print(report: &Report) {
    for blocker in &report.blockers {
        out!("blocked   {blocker}");
    }
    for effect in &report.effects {
        out!("effect    {effect}");
    }
    for (number, step) in report.steps.iter().enumerate() {
        out!("step {}    {step}", number + 1);
    }
    if report.possible {
        out!("The upgrade to {} can start", report.version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(versions: &[&str]) -> Facts {
        let pacemakers = versions.iter().map(|version| ("p".to_owned(), (*version).to_owned())).collect();
        Facts { pacemakers, routers: 2, diagnosis: Diagnosis::default(), inconsistencies: 0 }
    }

    #[test]
    fn only_neighboring_versions_are_upgraded_or_rolled_back() {
        for (runs, to, possible) in [
            ("0.1.0", "0.1.0", true),
            ("0.1.0", "0.1.9", true),
            ("0.1.3", "0.2.0", true),
            ("0.3.0", "0.2.1", true),
            ("0.2.0-rc.1", "0.2.0", true),
            ("0.1.9", "0.3.0", false),
            ("0.4.0", "0.2.0", false),
            ("1.9.0", "2.0.0", false),
            ("unknown", "0.2.0", false),
        ] {
            let report = assess(to, &facts(&[runs, to]));
            assert_eq!(report.possible, possible, "{runs} to {to}: {report:?}");
            let restarts = report.steps.iter().filter(|step| step.contains("pacemaker")).count();
            assert_eq!(restarts, usize::from(runs != to), "{report:?}");
        }
    }

    #[test]
    fn inconsistent_data_blocks_the_upgrade() {
        let report = assess("0.1.0", &Facts { inconsistencies: 2, ..facts(&["0.1.0"]) });
        assert!(!report.possible && report.blockers[0].contains("signalbox check"), "{report:?}");
    }

    #[test]
    fn a_part_that_exists_once_is_an_effect() {
        let report = assess("0.1.0", &Facts { routers: 1, ..facts(&["0.1.0"]) });
        assert!(report.possible && report.effects.len() == 2, "{report:?}");
        assert!(assess("0.1.0", &facts(&["0.1.0", "0.1.0"])).effects.is_empty());
    }
}
