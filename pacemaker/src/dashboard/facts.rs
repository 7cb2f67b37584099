//! Converts the pacemaker's data to facts for the diagnosis, and its findings to groups on pages.
//!
//! The rules are in `signalbox-diagnosis`, which `signalbox doctor` also uses.

use signalbox_diagnosis::{
    self as diagnosis, Severity, Subject, kinds,
    machines::{Held, Machine, Passed},
    messages::{Backend, Subscriber},
    routers::{Router, Table},
    traffic::VersionType,
};

use super::{
    pages::{Kind, busy, found, link},
    store::Sums,
};
use signalbox_api::{Time, machines::PassedLimit};
use signalbox_bus::SubscriptionStatus;
use signalbox_machines::{Counts, LabelStore, Status};
use signalbox_routing::RouterReport;
use signalbox_sequencer::BackendStatus;

/// Findings of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group<'a> {
    /// What is wrong, for all of them.
    pub(super) title: String,
    pub(super) findings: &'a [diagnosis::Finding],
    /// The first of them, which are named.
    pub(super) named: &'a [diagnosis::Finding],
}

impl Group<'_> {
    pub(super) fn first(&self) -> &diagnosis::Finding {
        &self.findings[0]
    }

    pub(super) fn is_critical(&self) -> bool {
        self.first().severity == Severity::Critical
    }
}

/// Checks that were skipped for the same reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SkippedTogether {
    pub(super) checks: Vec<&'static str>,
    pub(super) reason: String,
}

/// Skipped checks by reason, in their order.
pub(super) fn skipped_together(skipped: &[diagnosis::Skipped]) -> Vec<SkippedTogether> {
    let mut together: Vec<SkippedTogether> = Vec::new();
    for one in skipped {
        match together.iter_mut().find(|same| same.reason == one.reason) {
            Some(same) => same.checks.push(one.check),
            None => together.push(SkippedTogether { checks: vec![one.check], reason: one.reason.clone() }),
        }
    }
    together
}

/// Findings by kind, the worst first. Of each kind, at most `names` are named.
pub(super) fn groups(findings: &[diagnosis::Finding], names: usize) -> Vec<Group<'_>> {
    kinds(findings)
        .map(|(title, same)| Group { title, findings: same, named: &same[..same.len().min(names)] })
        .collect()
}

/// The address of the page about a subject; empty if there is none.
pub(super) fn page_of(subject: &Subject) -> String {
    match subject {
        Subject::Host(host) | Subject::VersionType { host, .. } => link(Kind::Host, host),
        Subject::Instance { id, .. } => link(Kind::Instances, id),
        Subject::Subscriber(name) => link(Kind::Subscribers, name),
        Subject::Queue(name) => link(Kind::Queues, name),
        Subject::Objects | Subject::Backend(_) => link(Kind::Objects, ""),
        Subject::StateMachine(name) => link(Kind::Machines, name),
        Subject::Certificate(name) => found(Kind::Certificates, name),
        Subject::Router(_) | Subject::Routers => link(Kind::Routers, ""),
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
    let (requests, failed) = (minute.requests, minute.failed());
    VersionType { id: id.to_owned(), host: host.to_owned(), requests, failed }
}

pub(super) fn subscriber(name: String, status: &SubscriptionStatus) -> Subscriber {
    let numbers = &status.numbers;
    Subscriber {
        name,
        disabled: status.subscription.disabled.clone(),
        health: numbers.health.into(),
        dead: numbers.dead,
        queued: numbers.events,
        oldest_ms: numbers.oldest_at.map(Time::ms),
        batch_timeout_ms: Some(status.subscription.timeout_ms),
    }
}

pub(super) fn backend(status: &BackendStatus) -> Backend {
    Backend { name: status.name.clone(), disabled: status.backend.disabled.clone(), dead: status.dead }
}

/// A machine, with an example of labels that cannot continue.
pub(super) async fn machine(
    labels: &LabelStore,
    name: String,
    counts: &Counts,
) -> Result<Machine, signalbox_machines::Error> {
    let held = async |status| {
        let mut held = Held { count: busy(counts, status), example: None };
        if held.count > 0 {
            let first = labels.list(&name, &[], Some(status), None, 1).await?;
            let found = labels.records(&name, first).await?.pop();
            held.example = found.and_then(|(label, record)| Some((label, record.work.error?.to_string())));
        }
        Ok::<_, signalbox_machines::Error>(held)
    };
    let mut stuck = Held { count: counts.stuck.values().sum(), example: None };
    if let Some(gate) = counts.stuck.keys().next() {
        let label = labels.list(&name, &[gate], None, None, 1).await?.pop();
        stuck.example = label.map(|label| (label, gate.clone()));
    }
    Ok(Machine {
        failed: held(Status::Errored).await?,
        waiting_for_feed: held(Status::Choosing).await?,
        stuck,
        looping: busy(counts, Status::Looping),
        passed: counts.alerts.iter().map(passed).collect(),
        name,
    })
}

fn passed(alert: &PassedLimit) -> Passed {
    Passed { state: alert.state.clone(), limit: alert.limit.clone(), value: alert.value, most: alert.most }
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
                ejected: std::collections::BTreeMap::new(),
            };
            router(&report, "e2", 5).table
        };
        assert_eq!(table("e2 e1", 5), Table::Current);
        assert_eq!(table("e2 e1", 6), Table::Current, "a change arrived while the serial was read");
        assert_eq!(table("e2", 3), Table::Behind(2));
        assert_eq!(table("e1", 5), Table::Other);
    }

    #[test]
    fn findings_of_one_kind_are_one_group() {
        let hosts = (0..7).map(|n| format!("h{n}.example"));
        let state = diagnosis::hosts::Reading::default().state(0);
        let rule = |name| diagnosis::hosts::host(&diagnosis::hosts::Host { name, state: state.clone() });
        let findings: Vec<_> = hosts.filter_map(rule).collect();
        let groups = groups(&findings, 5);
        assert_eq!((groups.len(), groups[0].named.len(), groups[0].findings.len()), (1, 5, 7));
        assert_eq!(groups[0].title, "7 findings: host without instance");
        assert_eq!(page_of(&groups[0].named[0].subject), "/dashboard/host?name=h0.example");
        assert_eq!(super::groups(&findings[..1], 5)[0].title, "Host h0.example has no instance.");
    }

    #[test]
    fn a_finding_links_to_the_page_of_its_subject() {
        let page = |subject: Subject| page_of(&subject);
        assert!(page(Subject::StateMachine("drip".to_owned())).ends_with("name=drip"));
        let instance = Subject::Instance { id: "i-1".to_owned(), host: "a.example".to_owned() };
        assert_eq!(page(instance), "/dashboard/instances?name=i-1");
        assert_eq!(page(Subject::Bus), "");
    }
}
