//! Converts the pacemaker's data to facts for the diagnosis, and its findings to rows of the overview.
//!
//! The rules are in `signalbox-diagnosis`, which `signalbox doctor` also uses.

use signalbox_diagnosis::{
    self as diagnosis, Severity, Subject,
    machines::{Held, Machine},
    messages::{Backend, Subscriber},
    routers::{Router, Table},
    traffic::VersionType,
};

use super::{Kind, link};
use crate::dashboard::store::Sums;
use signalbox_bus::SubscriptionStatus;
use signalbox_machines::Counts;
use signalbox_routing::RouterReport;
use signalbox_sequencer::BackendStatus;

/// A row of the overview.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) id: &'static str,
    pub(super) critical: bool,
    pub(super) problem: String,
    pub(super) fix: String,
    /// The address of the page about its subject; empty if there is none.
    pub(super) link: String,
}

impl From<diagnosis::Finding> for Finding {
    fn from(finding: diagnosis::Finding) -> Self {
        Self {
            id: finding.id,
            critical: finding.severity == Severity::Critical,
            link: page_of(&finding.subject),
            problem: finding.problem,
            fix: finding.fix,
        }
    }
}

fn page_of(subject: &Subject) -> String {
    match subject {
        Subject::Host(host) | Subject::Instance { host, .. } | Subject::VersionType { host, .. } => {
            link(Kind::Host, host)
        }
        Subject::Subscriber(name) => link(Kind::Events, name),
        Subject::Queue(name) => link(Kind::Queues, name),
        Subject::Objects | Subject::Backend(_) => link(Kind::Objects, ""),
        Subject::StateMachine(name) => link(Kind::Machines, name),
        _ => String::new(),
    }
}

/// A router's report, compared with the table of `epoch` at `serial`.
pub(super) fn router(report: &RouterReport, epoch: &str, serial: u64) -> Router {
    let own = report.epoch.split(' ').next().unwrap_or("");
    let table = match serial.saturating_sub(report.serial) {
        _ if own != epoch => Table::Other,
        0 => Table::Current,
        behind => Table::Behind(behind),
    };
    Router { node: report.node.clone(), age_ms: report.age_ms, alarm: report.alarm.clone(), table }
}

pub(super) fn version_type(id: &str, host: &str, minute: &Sums) -> VersionType {
    let Sums { requests, server_errors, .. } = *minute;
    VersionType { id: id.to_owned(), host: host.to_owned(), requests, server_errors }
}

pub(super) fn subscriber(name: String, status: &SubscriptionStatus) -> Subscriber {
    let gauges = &status.gauges;
    Subscriber {
        name,
        disabled: status.subscription.disabled.clone(),
        health: gauges.health.into(),
        dead: gauges.dead,
        queued: gauges.queued,
        oldest_ms: gauges.oldest_ms,
        batch_timeout_ms: Some(status.subscription.timeout_ms),
    }
}

pub(super) fn backend(status: BackendStatus) -> Backend {
    Backend { name: status.name, disabled: status.backend.disabled, dead: status.dead }
}

pub(super) fn machine(name: String, counts: &Counts) -> Machine {
    let count = |status: &str| counts.busy.get(status).copied().unwrap_or(0);
    let held = |count| Held { count, example: None };
    Machine {
        name,
        failed: held(count("errored")),
        waiting_for_feed: held(count("choosing")),
        stuck: held(counts.stuck.values().sum()),
        looping: count("looping"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_is_compared_with_the_table() {
        let table = |epoch: &str, serial| {
            let report = RouterReport {
                node: "r1".to_owned(),
                serial,
                epoch: epoch.to_owned(),
                age_ms: 100,
                workers: serde_json::Value::Null,
                alarm: None,
                address: None,
                in_flight: std::collections::BTreeMap::new(),
                requested_names: Vec::new(),
            };
            router(&report, "e2", 5).table
        };
        assert_eq!(table("e2 e1", 5), Table::Current);
        assert_eq!(table("e2 e1", 6), Table::Current, "a change arrived while the serial was read");
        assert_eq!(table("e2", 3), Table::Behind(2));
        assert_eq!(table("e1", 5), Table::Other);
    }

    #[test]
    fn a_finding_links_to_the_page_of_its_subject() {
        let page = |subject: Subject| page_of(&subject);
        assert!(page(Subject::StateMachine("drip".to_owned())).ends_with("name=drip"));
        let instance = Subject::Instance { id: "i-1".to_owned(), host: "a.example".to_owned() };
        assert_eq!(page(instance), page(Subject::Host("a.example".to_owned())));
        assert_eq!(page(Subject::Bus), "");
    }
}
