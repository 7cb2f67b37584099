//! What is wrong now, in words, with the way to mend it. Pure: the overview brings what was read.

use super::{Kind, link};
use crate::dashboard::{store::Sums, words};
use signalbox_bus::SubscriptionStatus;
use signalbox_queues::QueueNumbers;
use signalbox_routing::RouterReport;
use signalbox_sequencer::BackendStatus;

/// Requests in a minute below which a share of errors says nothing.
const ENOUGH_REQUESTS: u64 = 20;
/// Server errors in a hundred requests that are worth a word.
const ERRORS_PERCENT: u64 = 5;
/// Below it a subscriber's deliveries are slowed down noticeably.
const LOW_HEALTH: u8 = 50;
/// How old the oldest waiting batch may be.
const OLD_BATCH_MS: u64 = 60_000;
/// How long before its end a certificate is worth a word.
const ENDS_SOON_SECONDS: u64 = 14 * 86_400;
/// Parked objects that are named.
const NAMED: usize = 3;

/// Something that somebody should look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// Whether requests or events suffer from it at this moment.
    pub(super) grave: bool,
    pub(super) what: String,
    pub(super) mend: String,
    /// Where it is mended or seen in full.
    pub(super) link: String,
}

fn finding(
    grave: bool,
    what: impl Into<String>,
    mend: impl Into<String>,
    link: impl Into<String>,
) -> Finding {
    Finding { grave, what: what.into(), mend: mend.into(), link: link.into() }
}

/// Which servers do not answer.
pub(super) fn of_servers(up: &[(&'static str, bool)]) -> Vec<Finding> {
    let down = up.iter().filter(|(_, up)| !up);
    down.map(|(name, _)| {
        let so = match *name {
            "routes" => "Routers go on with the table they have; nothing can be changed.",
            "stats" => "Requests are served and counted later; there are no numbers, and nobody can wait for routers.",
            _ => "Requests are served; events are refused and nothing can be changed.",
        };
        let mend = format!("Start the Redis server of the role {name}, or look into its log. {so}");
        finding(true, format!("The {name} Redis does not answer."), mend, "")
    })
    .collect()
}

/// How a Redis server keeps what it has, by its INFO.
pub(super) fn of_settings(role: &str, info: &str) -> Vec<Finding> {
    let says = |field: &str| {
        let mut fields = info.lines().filter_map(|line| line.trim_end().split_once(':'));
        fields.find(|(name, _)| *name == field).map_or("", |(_, value)| value)
    };
    let lost = match role {
        "routes" => "routes",
        "stats" => "counters",
        _ => "events and what is wanted of the table",
    };
    let mut findings = Vec::new();
    let policy = says("maxmemory_policy");
    if !policy.is_empty() && policy != "noeviction" {
        let what = format!("The {role} Redis throws away {lost} when memory is short ({policy}).");
        let mend =
            "CONFIG SET maxmemory-policy noeviction helps at once; write it into its configuration, too.";
        findings.push(finding(true, what, mend, ""));
    }
    if says("aof_enabled") == "0" {
        let what = format!("The {role} Redis writes no append-only file: a restart loses {lost}.");
        let mend = "CONFIG SET appendonly yes writes it at once; write it into its configuration, too.";
        findings.push(finding(true, what, mend, ""));
    } else if says("aof_last_write_status") == "err" || says("aof_last_bgrewrite_status") == "err" {
        let what = format!("The {role} Redis could not write its append-only file the last time.");
        findings.push(finding(
            true,
            what,
            "Look whether its disk is full or broken: its log says which.",
            "",
        ));
    }
    findings
}

/// A certificate that ends at that second.
pub(super) fn of_certificate(name: &str, ends: u64, now: u64) -> Option<Finding> {
    let mend = format!("Give it a new one: PUT /certificates/{name}.");
    match ends.checked_sub(now) {
        None | Some(0) => {
            let since = words::span(now.saturating_sub(ends) * 1000);
            let what = format!("The certificate of {name} ended {since} ago: browsers refuse it.");
            Some(finding(true, what, mend, ""))
        }
        Some(left) if left <= ENDS_SOON_SECONDS => {
            let what = format!("The certificate of {name} ends in {}.", words::span(left * 1000));
            Some(finding(false, what, mend, ""))
        }
        Some(_) => None,
    }
}

/// Labels of a machine whose actions have failed for good, and those that move in circles.
pub(super) fn of_machine(name: &str, errored: u64, looping: u64) -> Vec<Finding> {
    let to = || link(Kind::Machines, name);
    let mut findings = Vec::new();
    if errored > 0 {
        let what = format!("The actions of {errored} labels of the machine {name} failed for good.");
        findings.push(finding(true, what, "Mend what they call, then have them tried again.", to()));
    }
    if looping > 0 {
        let what = format!("{looping} labels of the machine {name} move in circles.");
        let mend = "They go on a second after each fifty moves. A gate on the way has to wait for something.";
        findings.push(finding(false, what, mend, to()));
    }
    findings
}

/// What routers report. `reports` is none when the stats Redis is away, which is told already.
pub(super) fn of_routers(
    reports: Option<&[RouterReport]>,
    in_step: impl Fn(&RouterReport) -> bool,
) -> Vec<Finding> {
    let Some(reports) = reports else { return Vec::new() };
    if reports.is_empty() {
        let mend = "Start nginx and, beside it, the sidecar: it is the sidecar that reports. If both run, look at \
            whether it reaches the stats Redis.";
        return vec![finding(true, "No router has reported in the last ten seconds.", mend, "")];
    }
    let mut findings = Vec::new();
    for router in reports {
        let node = &router.node;
        if let Some(alarm) = &router.alarm {
            let mend = "It keeps the last good table. When the table is as it must be, have it accepted with \
                POST /edge/accept at its admin listener.";
            findings.push(finding(true, format!("Router {node} raises an alarm: {alarm}"), mend, ""));
        } else if router.age_ms > 3000 {
            let what = format!("Router {node} has been silent for {}.", words::span(router.age_ms));
            findings.push(finding(false, what, "Look whether nginx and the sidecar run there.", ""));
        } else if !in_step(router) {
            let what = format!("Router {node} serves an older table: serial {}.", router.serial);
            let mend = "It catches up by itself within a second. If it does not, look whether its replica follows \
                the routes master.";
            findings.push(finding(false, what, mend, ""));
        }
    }
    findings
}

/// A host: its name, its addresses, and how many of them are well.
pub(super) fn of_host(name: &str, addresses: usize, well: usize) -> Option<Finding> {
    let to = link(Kind::Host, name);
    if addresses == 0 {
        let mend =
            "Its requests are answered 503. Register an instance (PUT /instances/{id}), or remove the host.";
        return Some(finding(true, format!("{name} has no instance."), mend, to));
    }
    if well == 0 {
        let mend =
            "Requests are tried all the same. Look at why the checks fail, and start instances that work.";
        return Some(finding(true, format!("No instance of {name} is well."), mend, to));
    }
    None
}

/// An instance that its health check calls unhealthy.
pub(super) fn of_instance(id: &str, host: &str, unhealthy: Option<&str>) -> Option<Finding> {
    let why = unhealthy?;
    let mend = "It gets no requests until its check succeeds again, unless most instances of the host fail.";
    Some(finding(false, format!("Instance {id} is unhealthy: {why}"), mend, link(Kind::Host, host)))
}

/// A version type's last minute.
pub(super) fn of_traffic(id: &str, host: &str, minute: &Sums) -> Option<Finding> {
    let bad = minute.server_errors * 100 >= minute.requests * ERRORS_PERCENT;
    if minute.requests < ENOUGH_REQUESTS || minute.server_errors == 0 || !bad {
        return None;
    }
    let share = words::percent(minute.server_errors, minute.requests);
    let what = format!("Version type {id} answered {share} of the last minute's requests with 5xx.");
    let mend = "Look into the application's log. When a new version is to blame, switch the host back or take its \
        share away.";
    Some(finding(true, what, mend, link(Kind::Host, host)))
}

/// A subscriber of the bus, by its name.
pub(super) fn of_subscriber(name: &str, status: &SubscriptionStatus, now_ms: u64) -> Option<Finding> {
    let to = link(Kind::Events, name);
    let gauges = &status.gauges;
    if let Some(why) = &status.subscription.disabled {
        let mend = "Nothing is sent to it. It starts again when the subscriber subscribes again.";
        return Some(finding(true, format!("Subscriber {name} is disabled: {why}"), mend, to));
    }
    if gauges.health < LOW_HEALTH {
        let what = format!("Deliveries to {name} fail: its health is {} of 100.", gauges.health);
        let mend = "They are slowed down and tried again. Look at the last error and at whether its callback answers.";
        return Some(finding(true, what, mend, to));
    }
    if gauges.dead > 0 {
        let what = format!("{} events for {name} are dead letters.", gauges.dead);
        return Some(finding(false, what, "Mend the receiver, then redrive them, or forget them.", to));
    }
    let age = now_ms.saturating_sub(gauges.oldest_ms.unwrap_or(now_ms));
    if age > OLD_BATCH_MS + status.subscription.timeout_ms {
        let what = format!("{name} is {} behind, with {} events waiting.", words::span(age), gauges.queued);
        let mend =
            "Its callback is slower than the events come: more `concurrency` or larger batches (`max`) help.";
        return Some(finding(false, what, mend, to));
    }
    None
}

/// A queue.
pub(super) fn of_queue(name: &str, numbers: &QueueNumbers, to: String) -> Option<Finding> {
    (numbers.dead > 0).then(|| {
        let what = format!("{} messages of the queue {name} are dead letters.", numbers.dead);
        finding(false, what, "Mend the consumer, then put them back, or forget them.", to)
    })
}

/// What the sequencer cannot go on with. `parked` are objects that wait for a decision.
pub(super) fn of_objects(parked: &[String], backends: &[BackendStatus]) -> Vec<Finding> {
    let to = || link(Kind::Objects, "");
    let mut findings = Vec::new();
    if !parked.is_empty() {
        let more = if parked.len() > NAMED { ", …" } else { "" };
        let names: Vec<&str> = parked.iter().take(NAMED).map(String::as_str).collect();
        let what = format!("Objects wait for a decision: {}{more}", names.join(", "));
        let mend = "Mend their backend and try again, or give the event at the head up.";
        findings.push(finding(true, what, mend, to()));
    }
    for one in backends {
        if let Some(why) = &one.backend.disabled {
            let mend =
                "Nothing is sent to it. It starts again when it is defined again (PUT /backends/{name}).";
            findings.push(finding(true, format!("Backend {} is disabled: {why}", one.name), mend, to()));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_away_is_named() {
        let found = of_servers(&[("routes", true), ("stats", false), ("fabric", true)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].grave && found[0].what.contains("stats"), "{found:?}");
    }

    #[test]
    fn routers_are_quiet_when_all_is_well() {
        let router = |alarm: Option<&str>, age_ms| RouterReport {
            node: "r1".to_owned(),
            serial: 5,
            epoch: "e".to_owned(),
            age_ms,
            workers: serde_json::Value::Null,
            alarm: alarm.map(str::to_owned),
            address: None,
            in_flight: std::collections::BTreeMap::new(),
        };
        let found = |reports: &[RouterReport], in_step: bool| {
            of_routers(Some(reports), |_| in_step).into_iter().map(|one| one.what).collect::<String>()
        };
        assert_eq!(found(&[router(None, 100)], true), "");
        assert!(found(&[], true).contains("No router"));
        assert!(found(&[router(Some("table_lost"), 100)], true).contains("table_lost"));
        assert!(found(&[router(None, 5000)], true).contains("silent for 5 s"));
        assert!(found(&[router(None, 100)], false).contains("serial 5"));
        assert_eq!(of_routers(None, |_| false), []);
    }

    #[test]
    fn a_few_errors_are_no_finding() {
        let minute = |requests, server_errors| Sums { requests, server_errors, ..Sums::default() };
        for (requests, errors, told) in
            [(1000, 0, false), (1000, 49, false), (1000, 50, true), (19, 19, false), (20, 1, true)]
        {
            let found = of_traffic("17", "a.example", &minute(requests, errors));
            assert_eq!(found.is_some(), told, "{errors} of {requests}");
        }
    }

    #[test]
    fn a_host_needs_an_instance_that_is_well() {
        assert!(of_host("a.example", 0, 0).unwrap().what.contains("no instance"));
        assert!(of_host("a.example", 2, 0).unwrap().what.contains("is well"));
        assert_eq!(of_host("a.example", 2, 1), None);
    }

    #[test]
    fn servers_that_forget_are_named() {
        let info = |policy: &str, file: &str, wrote: &str| {
            format!(
                "# Memory\r\nmaxmemory_policy:{policy}\r\naof_enabled:{file}\r\naof_last_write_status:{wrote}\r\n"
            )
        };
        let found = |policy: &str, file: &str, wrote: &str| {
            let found = of_settings("stats", &info(policy, file, wrote));
            found.into_iter().map(|one| one.what).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(found("noeviction", "1", "ok"), "");
        assert!(found("allkeys-lru", "1", "ok").contains("throws away counters"));
        assert!(found("noeviction", "0", "ok").contains("append-only"));
        assert!(found("noeviction", "1", "err").contains("could not write"));
        // A server that does not say is not accused.
        assert_eq!(of_settings("routes", ""), []);
    }

    #[test]
    fn certificates_are_named_two_weeks_before_they_end() {
        let day = 86_400;
        let found = |ends| of_certificate("a.example", ends, 100 * day);
        assert_eq!(found(115 * day), None);
        assert!(found(114 * day).is_some_and(|one| !one.grave && one.what.contains("ends in 14 d")));
        assert!(found(98 * day).is_some_and(|one| one.grave && one.what.contains("ended 2 d ago")));
        assert!(found(100 * day).is_some_and(|one| one.grave));
    }

    #[test]
    fn labels_that_failed_or_go_in_circles_are_named() {
        assert_eq!(of_machine("drip", 0, 0), []);
        let found = of_machine("drip", 2, 1);
        assert!(found[0].grave && found[0].link.ends_with("name=drip"));
        assert!(!found[1].grave && found[1].what.contains("circles"));
    }

    #[test]
    fn many_parked_objects_are_not_all_named() {
        let parked: Vec<String> = (0..5).map(|number| format!("o{number}")).collect();
        assert!(of_objects(&parked, &[]).remove(0).what.ends_with("o0, o1, o2, …"));
        assert!(of_objects(&parked[..2], &[]).remove(0).what.ends_with("o0, o1"));
        assert_eq!(of_objects(&[], &[]), []);
    }
}
