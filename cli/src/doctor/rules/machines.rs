//! What is wrong with labels of state machines and with their feeds.

use super::{Broken, Facts, Finding, Warning, finding};
use crate::doctor::facts::{Held, Machine};

/// Labels are looked at within a second of when they are due.
const LATE_SECONDS: f64 = 60.0;

pub(super) fn judge(facts: &Facts, found: &mut Vec<Finding>) {
    for Machine { name, errored, choosing, stuck } in &facts.machines {
        let about = format!("machine {name}");
        let such_as = |held: &Held| {
            held.such_as
                .as_ref()
                .map_or_else(String::new, |(label, why)| format!(", such as {label:?}: {why}"))
        };
        if errored.count > 0 {
            let what = format!("labels whose action failed for good: {}{}", errored.count, such_as(errored));
            let mend = format!(
                "mend what the action calls, then `signalbox labels retry {name} --all`; `signalbox labels list {name} --status errored` names them"
            );
            found.push(finding(Broken, "label_errored", &about, what, &mend));
        }
        if choosing.count > 0 {
            let what =
                format!("labels that wait for a feed that fails: {}{}", choosing.count, such_as(choosing));
            let mend = "ask its address from the pacemaker's machine, and look at `timeout` and `on_error` of the feed";
            found.push(finding(Broken, "feed_failing", &about, what, mend));
        }
        if stuck.count > 0 {
            let such_as = stuck.such_as.as_ref();
            let such_as =
                such_as.map_or_else(String::new, |(label, gate)| format!(", such as {label:?} at {gate}"));
            let what =
                format!("labels at gates that look on entry only, and never again: {}{such_as}", stuck.count);
            let mend = format!(
                "give these gates a trigger that can fire for labels that are there, and apply it: `signalbox machines apply {name} --file …`"
            );
            found.push(finding(Broken, "label_stuck", &about, what, &mend));
        }
    }
    let metrics = &facts.metrics;
    let late = metrics.most("signalbox_machines_due_lag_seconds").unwrap_or(0.0);
    if late > LATE_SECONDS {
        let what = format!("they are stuck: the oldest should have been looked at {late:.0} s ago");
        let mend = "a pacemaker must run and reach the fabric; if one does, its log says what holds it up";
        found.push(finding(Broken, "label_stuck", "labels", what, mend));
    }
    let asked = |result: &str| {
        let result = format!("result=\"{result}\"");
        let all = metrics.all("signalbox_machines_feeds_total");
        all.filter(|(labels, _)| labels.contains(&result)).map(|(_, count)| count).sum::<f64>()
    };
    let (failed, answered) = (asked("failed"), asked("ok"));
    if failed * 10.0 > failed + answered {
        let all = failed + answered;
        let what =
            format!("{failed} of {all} times they were asked since the pacemakers started, they failed");
        let mend = "a gate that waits for one is named by `signalbox labels why`; ask its address from the pacemaker's machine";
        found.push(finding(Warning, "feed_failing", "feeds", what, mend));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::rules::tests::{metrics, rules_of};

    #[test]
    fn labels_and_feeds_that_hold_things_up_are_named() {
        let held = || Held { count: 3, such_as: Some(("l".to_owned(), "answered 410".to_owned())) };
        let (name, other) = ("m".to_owned(), Machine { name: "rests".to_owned(), ..Machine::default() });
        let errored = Machine { name: name.clone(), errored: held(), ..Machine::default() };
        assert_eq!(rules_of(|facts| facts.machines = vec![other.clone(), errored]), ["label_errored"]);
        let choosing = Machine { name: name.clone(), choosing: held(), ..Machine::default() };
        assert_eq!(rules_of(|facts| facts.machines = vec![other.clone(), choosing]), ["feed_failing"]);
        let stuck = Machine { name, stuck: held(), ..Machine::default() };
        assert_eq!(rules_of(|facts| facts.machines = vec![other, stuck]), ["label_stuck"]);
        for (page, rules) in [
            ("signalbox_machines_due_lag_seconds 59", vec![]),
            ("signalbox_machines_due_lag_seconds 61", vec!["label_stuck"]),
            (
                "signalbox_machines_feeds_total{result=\"ok\"} 9\nsignalbox_machines_feeds_total{result=\"failed\"} 1",
                vec![],
            ),
            (
                "signalbox_machines_feeds_total{result=\"ok\"} 8\nsignalbox_machines_feeds_total{result=\"failed\"} 2",
                vec!["feed_failing"],
            ),
        ] {
            assert_eq!(rules_of(|facts| facts.metrics = metrics(page)), rules, "{page}");
        }
    }
}
