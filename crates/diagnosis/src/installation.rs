//! The processes and the machine that they run on.

use crate::{
    Finding,
    Severity::{Critical, Warning},
    Subject,
};

/// A daemon, or an endpoint of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Why it does not respond.
    pub failure: Option<String>,
}

/// A running pacemaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pacemaker {
    /// Its name.
    pub node: String,
    /// Its version.
    pub version: String,
}

/// Checks whether a part responds.
pub fn part(part: &Part) -> Option<Finding> {
    let reason = part.failure.as_deref()?;
    let problem = format!("{} does not respond: {reason}", part.name);
    let fix = "Start it, and check its log (`signalbox status` shows where it is). The other parts work without it.";
    Some(Finding::new(Critical, "part-unreachable", Subject::Part(part.name.clone()), problem, fix))
}

/// Checks that all pacemakers have the same version.
pub fn pacemakers(all: &[Pacemaker]) -> Option<Finding> {
    let first = all.first()?;
    all.iter().any(|one| one.version != first.version).then(|| {
        let versions: Vec<String> = all.iter().map(|one| format!("{} {}", one.node, one.version)).collect();
        let problem = format!("The pacemakers have different versions: {}.", versions.join(", "));
        let fix = "Finish the upgrade. Until then only features of the older version work everywhere.";
        Finding::new(Warning, "versions-differ", Subject::Pacemakers, problem, fix)
    })
}

/// Checks that named time zones can be used.
pub fn time_zones(known: bool) -> Option<Finding> {
    (!known).then(|| {
        let problem = "The time zone database is missing on this machine.";
        let fix = "Install tzdata (Debian: apt-get install tzdata). Until then gates with a time zone are rejected.";
        Finding::new(Critical, "time-zones-missing", Subject::LocalMachine, problem, fix)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_does_not_respond_is_a_finding() {
        let with = |failure: Option<&str>| {
            part(&Part { name: "sidecar".to_owned(), failure: failure.map(str::to_owned) })
        };
        assert_eq!(with(None), None);
        assert!(with(Some("refused")).is_some_and(|one| one.problem == "sidecar does not respond: refused"));
    }

    #[test]
    fn pacemakers_of_different_versions_are_a_finding() {
        let of = |versions: &[&str]| {
            let one = |version: &&str| Pacemaker { node: "p".to_owned(), version: (*version).to_owned() };
            pacemakers(&versions.iter().map(one).collect::<Vec<_>>()).map(|one| one.id)
        };
        assert_eq!((of(&[]), of(&["1"]), of(&["1", "1"])), (None, None, None));
        assert_eq!(of(&["1", "2"]), Some("versions-differ"));
    }

    #[test]
    fn missing_time_zones_are_a_finding() {
        assert_eq!(time_zones(true), None);
        assert_eq!(time_zones(false).map(|one| one.id), Some("time-zones-missing"));
    }
}
