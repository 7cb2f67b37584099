//! The sidecar: requests are counted, and counted in time.

use crate::{
    Finding,
    Severity::{Critical, Warning},
    Subject,
    thresholds::MAX_COUNTING_LAG_SECONDS,
};

/// Why a sidecar does not count. A router reports it as an alarm, and the sidecar itself as a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Another sidecar took over the node's log.
    Fenced,
    /// The stats Redis does not respond.
    StatsUnreachable,
    /// The stats Redis rejects writes.
    StatsRejected,
    /// A key holds a value of another type.
    StatsUnreadable,
    /// The access log cannot be read.
    LogUnreadable,
    /// Counters are far behind the log.
    Late,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 6] = [
        Self::Fenced,
        Self::StatsUnreachable,
        Self::StatsRejected,
        Self::StatsUnreadable,
        Self::LogUnreadable,
        Self::Late,
    ];

    /// The alarm of a router's report. The sidecar's metric has the same name.
    pub fn alarm(self) -> &'static str {
        self.words().0
    }

    /// The fault that a router reports as `alarm`.
    pub(crate) fn of_alarm(alarm: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.alarm() == alarm)
    }

    pub(crate) fn finding(self, subject: Subject, who: &str) -> Finding {
        let (_, id, problem, fix) = self.words();
        Finding::new(Critical, id, subject, format!("{who} {problem}."), fix)
    }

    /// The alarm, and of the finding its ID, the problem and the fix.
    fn words(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            Self::Fenced => (
                "fenced",
                "sidecar-fenced",
                "stopped counting: a newer sidecar counts the same router's log",
                "Two sidecars share a `node`. Stop one of them, or give it another `node`.",
            ),
            Self::StatsUnreachable => (
                "statistics_away",
                "sidecar-stats-unreachable",
                "cannot reach the stats Redis. The log is counted later, and nothing is lost",
                "Start the stats Redis, or check the network between them.",
            ),
            Self::StatsRejected => (
                "statistics_refused",
                "sidecar-stats-rejected",
                "counts nothing: the stats Redis rejects writes",
                "Check the memory and the disk of the stats Redis.",
            ),
            Self::StatsUnreadable => (
                "statistics_unreadable",
                "sidecar-stats-unreadable",
                "counts nothing: a key of the stats Redis has an unexpected type",
                "Find the program that writes to the stats Redis. The sidecar's log names the key.",
            ),
            Self::LogUnreadable => (
                "log_unreadable",
                "sidecar-log-unreadable",
                "cannot read the access log",
                "Allow the sidecar's user to read the file and to enter its folder.",
            ),
            Self::Late => ("statistics_late", LATE_ID, "counts requests too late", LATE_FIX),
        }
    }
}

const LATE_ID: &str = "sidecar-late";
const LATE_FIX: &str = "It catches up automatically if it is faster than the traffic. Otherwise the stats Redis is too \
                        slow or too far away.";

/// The metrics of the local sidecar.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counting {
    /// The reasons why it does not count.
    pub faults: Vec<Fault>,
    /// How far its counters are behind the log.
    pub lag_seconds: f64,
    /// The last rotation of the log failed.
    pub rotation_failed: bool,
}

impl Counting {
    fn is_late(&self) -> bool {
        self.lag_seconds > MAX_COUNTING_LAG_SECONDS
    }
}

/// Checks the local sidecar.
pub fn counting(counting: &Counting) -> Vec<Finding> {
    let mut found: Vec<Finding> =
        counting.faults.iter().map(|fault| fault.finding(Subject::Sidecar, "The sidecar")).collect();
    // A fault explains the delay.
    if counting.faults.is_empty() && counting.is_late() {
        let problem = format!("The sidecar's counters are {:.0} s behind the log.", counting.lag_seconds);
        found.push(Finding::new(Critical, LATE_ID, Subject::Sidecar, problem, LATE_FIX));
    }
    if counting.rotation_failed {
        let fix = "Allow the sidecar to rename files in the log's folder and to signal nginx. Until then the log grows.";
        let problem = "The sidecar cannot rotate the access log.";
        found.push(Finding::new(Warning, "log-rotation-fails", Subject::Sidecar, problem, fix));
    }
    found
}

/// Judges whether a request made for this check was counted. While the sidecar itself reports a fault, that fault explains it.
pub fn probe(counted: bool, counting: Option<&Counting>) -> Option<Finding> {
    let explained = counting.is_some_and(|counting| !counting.faults.is_empty() || counting.is_late());
    (!counted && !explained).then(|| {
        let problem = "nginx answers requests that are not counted: it does not write the log that the sidecar follows.";
        let fix = "Set `access_log` of nginx and of the sidecar to the same file, and check that its disk has free space. \
                   After another program moves the file, send nginx USR1.";
        Finding::new(Critical, "requests-not-counted", Subject::Nginx, problem, fix)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(change: impl FnOnce(&mut Counting)) -> Vec<&'static str> {
        let mut facts = Counting { lag_seconds: 0.4, ..Counting::default() };
        change(&mut facts);
        counting(&facts).into_iter().map(|one| one.id).collect()
    }

    #[test]
    fn counting_late_and_failed_rotations_are_findings() {
        assert_eq!(ids(|_| ()), [""; 0]);
        assert_eq!(ids(|facts| facts.lag_seconds = 10.0), [""; 0]);
        assert_eq!(ids(|facts| facts.lag_seconds = 10.1), ["sidecar-late"]);
        assert_eq!(ids(|facts| facts.rotation_failed = true), ["log-rotation-fails"]);
    }

    #[test]
    fn a_fault_replaces_its_consequences() {
        for fault in Fault::ALL {
            assert_eq!(Fault::of_alarm(fault.alarm()), Some(fault));
            let facts = Counting { faults: vec![fault], lag_seconds: 99.0, rotation_failed: false };
            assert_eq!(counting(&facts).len(), 1, "{fault:?}");
            assert_eq!(probe(false, Some(&facts)), None, "{fault:?}");
        }
        assert_eq!(Fault::of_alarm("table_regressed"), None);
    }

    #[test]
    fn an_uncounted_request_is_a_finding_unless_the_sidecar_explains_it() {
        let healthy = Counting::default();
        assert_eq!(probe(true, Some(&healthy)), None);
        assert_eq!(probe(false, Some(&healthy)).map(|one| one.id), Some("requests-not-counted"));
        assert_eq!(probe(false, None).map(|one| one.id), Some("requests-not-counted"));
    }
}
