//! Routers: they report, and they serve the newest table.

use crate::{
    Finding,
    Severity::{Critical, Warning},
    Subject,
    sidecar::Fault,
    text,
    thresholds::{ROUTER_EXCLUDED_MS, ROUTER_SILENT_MS, TABLE_ALARMS},
};

/// A router that reported in the last minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Router {
    /// Its name.
    pub node: String,
    /// Milliseconds since its last report.
    pub age_ms: u64,
    /// The problem that its nginx or its sidecar reports.
    pub alarm: Option<String>,
    /// Which table it serves.
    pub table: Table,
}

/// The table that a router serves, compared with the one in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// The newest.
    Current,
    /// This many changes are missing.
    Behind(u64),
    /// A table of another epoch.
    Other,
}

/// The nginx behind the admin address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nginx {
    /// Whether it is connected to its routes replica.
    pub connected: bool,
    /// Why it rejects the table in Redis.
    pub alarm: Option<String>,
}

/// Checks all routers.
pub fn routers(routers: &[Router]) -> Vec<Finding> {
    if routers.is_empty() {
        let fix = "Run a sidecar next to every nginx, and check that it reaches the stats Redis. Without a router, \
                   `?wait=` never succeeds.";
        let problem = "No router has reported in the last minute.";
        return vec![Finding::new(Critical, "no-router", Subject::Routers, problem, fix)];
    }
    routers.iter().flat_map(router).collect()
}

fn rejects_table(subject: Subject, who: &str, alarm: &str) -> Finding {
    let problem = format!("{who} rejects the table in Redis ({alarm}) and serves the last good one.");
    let fix = "The pacemaker restores the table automatically. To accept the table as it is, send POST /edge/accept with the \
               header `X-Signalbox-Accept: table` to the router's admin listener.";
    Finding::new(Critical, "router-rejects-table", subject, problem, fix)
}

fn router(router: &Router) -> Vec<Finding> {
    let node = &router.node;
    let subject = || Subject::Router(node.clone());
    let mut found = Vec::new();
    if let Some(alarm) = &router.alarm {
        found.push(match Fault::of_alarm(alarm) {
            Some(fault) => fault.finding(subject(), &format!("The sidecar of router {node}")),
            None if TABLE_ALARMS.contains(&&**alarm) => {
                rejects_table(subject(), &format!("Router {node}"), alarm)
            }
            None => {
                let problem = format!("Router {node} reports the alarm {alarm}.");
                let fix = "Check the logs of its nginx and its sidecar.";
                Finding::new(Critical, "router-alarm", subject(), problem, fix)
            }
        });
    }
    if router.age_ms >= ROUTER_SILENT_MS {
        // A few seconds may be a restart. After that, changes no longer wait for it.
        let severity = if router.age_ms > ROUTER_EXCLUDED_MS { Critical } else { Warning };
        let problem = format!("Router {node} has not reported for {}.", text::span(router.age_ms));
        let fix = "Check that nginx and the sidecar run there. If the router was removed, the finding disappears after a \
                   minute.";
        found.push(Finding::new(severity, "router-silent", subject(), problem, fix));
        return found;
    }
    let problem = match router.table {
        Table::Current => return found,
        Table::Behind(changes) => {
            format!("Router {node} is {} behind.", text::count(changes, "change"))
        }
        Table::Other => format!("Router {node} serves a table of another epoch."),
    };
    // An alarm explains an older table.
    if router.alarm.is_none() {
        let fix = "It normally catches up within a second. If it does not, check that its replica follows the routes \
                   primary.";
        found.push(Finding::new(Warning, "router-behind", subject(), problem, fix));
    }
    found
}

/// Checks the nginx behind the admin address.
pub fn nginx(nginx: &Nginx) -> Vec<Finding> {
    let mut found = Vec::new();
    if !nginx.connected {
        let problem = "nginx is not connected to its routes replica.";
        let fix = "Start the routes replica next to it. Until then it routes by the table that it has.";
        found.push(Finding::new(Critical, "replica-unreachable", Subject::Nginx, problem, fix));
    }
    if let Some(alarm) = &nginx.alarm {
        found.push(rejects_table(Subject::Nginx, "nginx", alarm));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;

    fn healthy() -> Router {
        Router { node: "r1".to_owned(), age_ms: 100, alarm: None, table: Table::Current }
    }

    fn ids(change: impl FnOnce(&mut Router)) -> Vec<(&'static str, Severity)> {
        let mut router = healthy();
        change(&mut router);
        routers(&[router]).into_iter().map(|one| (one.id, one.severity)).collect()
    }

    #[test]
    fn a_router_is_judged_by_its_last_report() {
        assert_eq!(ids(|_| ()), []);
        assert_eq!(ids(|router| router.age_ms = 2_999), []);
        assert_eq!(ids(|router| router.age_ms = 3_000), [("router-silent", Warning)]);
        assert_eq!(ids(|router| router.age_ms = 10_000), [("router-silent", Warning)]);
        assert_eq!(ids(|router| router.age_ms = 10_001), [("router-silent", Critical)]);
        assert_eq!(ids(|router| router.table = Table::Behind(3)), [("router-behind", Warning)]);
        assert_eq!(ids(|router| router.table = Table::Other), [("router-behind", Warning)]);
        assert_eq!(routers(&[])[0].id, "no-router");
    }

    #[test]
    fn an_old_report_does_not_describe_the_table() {
        let found = ids(|router| {
            router.age_ms = 5_000;
            router.table = Table::Behind(9);
        });
        assert_eq!(found, [("router-silent", Warning)]);
    }

    #[test]
    fn alarms_about_the_table_and_about_counting_are_different_findings() {
        let of = |alarm: &str| {
            ids(|router| {
                router.alarm = Some(alarm.to_owned());
                router.table = Table::Behind(1);
            })
        };
        assert_eq!(of("table_regressed"), [("router-rejects-table", Critical)]);
        assert_eq!(of("epoch_unknown"), [("router-rejects-table", Critical)]);
        assert_eq!(of("fenced"), [("sidecar-fenced", Critical)]);
        assert_eq!(of("new_in_a_later_version"), [("router-alarm", Critical)]);
    }

    #[test]
    fn nginx_needs_its_replica_and_a_table_that_it_accepts() {
        let ids = |connected, alarm: Option<&str>| {
            let found = nginx(&Nginx { connected, alarm: alarm.map(str::to_owned) });
            found.into_iter().map(|one| one.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(true, None), [""; 0]);
        assert_eq!(ids(false, None), ["replica-unreachable"]);
        assert_eq!(ids(true, Some("epoch_unknown")), ["router-rejects-table"]);
    }
}
