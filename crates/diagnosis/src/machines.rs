//! State machines: labels that do not move, and feeds that fail.

use crate::{
    Finding,
    Severity::{Critical, Warning},
    Subject, text,
    thresholds::{MAX_FEED_FAILURE_PERCENT, MAX_LABEL_LAG_SECONDS},
};

/// A machine, and those of its labels that cannot continue on their own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Labels whose action failed permanently.
    pub failed: Held,
    /// Labels that wait for a feed that failed.
    pub waiting_for_feed: Held,
    /// Labels at a gate that nothing evaluates again.
    pub stuck: Held,
    /// Labels that made the largest allowed number of moves in a row.
    pub looping: u64,
    /// Limits of its states that are passed.
    pub passed: Vec<Passed>,
}

/// A limit of a state that is passed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Passed {
    /// The state.
    pub state: String,
    /// `labels`, or `age`, which is in seconds.
    pub limit: String,
    /// The current number.
    pub value: u64,
    /// The most that the definition allows.
    pub most: u64,
}

/// Labels with the same problem.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    /// How many.
    pub count: u64,
    /// One of them with its error or its gate, if the caller asked for it.
    pub example: Option<(String, String)>,
}

impl Held {
    fn example(&self) -> String {
        self.example
            .as_ref()
            .map_or_else(String::new, |(label, about)| format!(", such as {label:?} ({about})"))
    }
}

/// The evaluation of labels, over all machines.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Evaluation {
    /// How long the oldest label has been due.
    pub lag_seconds: f64,
    /// Feed requests that failed since the pacemakers started.
    pub feeds_failed: u64,
    /// Feed requests that were answered.
    pub feeds_answered: u64,
}

/// Checks a machine.
pub fn machine(machine: &Machine) -> Vec<Finding> {
    let Machine { name, failed, waiting_for_feed, stuck, looping, passed } = machine;
    let labels = |count| text::count(count, "label");
    let mut found = Vec::new();
    let mut add = |severity, id, problem: String, fix: &str| {
        found.push(Finding::new(severity, id, Subject::StateMachine(name.clone()), problem, fix));
    };
    if failed.count > 0 {
        let problem = format!(
            "The action of {} of the machine {name} failed permanently{}.",
            labels(failed.count),
            failed.example()
        );
        let fix = format!(
            "Fix what the action calls, then run `signalbox labels retry {name} --all`. `signalbox labels list {name} \
             --status errored` lists them."
        );
        add(Critical, "labels-failed", problem, &fix);
    }
    if waiting_for_feed.count > 0 {
        let problem = format!(
            "A feed fails that blocks {} of the machine {name}{}.",
            labels(waiting_for_feed.count),
            waiting_for_feed.example()
        );
        let fix = "Request the feed's address from the pacemaker's machine, and check `timeout` and `on_error` of the feed.";
        add(Critical, "feed-failing", problem, fix);
    }
    if stuck.count > 0 {
        let problem = format!(
            "{} of the machine {name} cannot move: the gate is evaluated on entry only{}.",
            labels(stuck.count),
            stuck.example()
        );
        let fix = format!(
            "Add a trigger that can fire for waiting labels, and apply it: `signalbox machines apply {name} --file …`."
        );
        add(Critical, "labels-stuck", problem, &fix);
    }
    if *looping > 0 {
        let problem = format!("{} of the machine {name} moved fifty times in a row.", labels(*looping));
        let fix = "The label continues a second later. Make a gate in the loop wait for a condition.";
        add(Warning, "labels-looping", problem, fix);
    }
    for Passed { state, limit, value, most } in passed {
        let problem = if limit == "age" {
            format!(
                "A label of the machine {name} has been in the state {state} for {value} s; the definition allows {most} s."
            )
        } else {
            format!(
                "{} of the machine {name} are in the state {state}; the definition allows {most}.",
                labels(*value)
            )
        };
        let fix = format!(
            "`signalbox labels list {name} --state {state} --first oldest` lists them, and `signalbox labels why` shows \
             what they wait for. If it is expected, raise `alert` of the state."
        );
        add(Warning, "state-limit-passed", problem, &fix);
    }
    found
}

/// Checks the evaluation of labels.
pub fn evaluation(evaluation: &Evaluation) -> Vec<Finding> {
    let Evaluation { lag_seconds, feeds_failed, feeds_answered } = evaluation;
    let mut found = Vec::new();
    if *lag_seconds > MAX_LABEL_LAG_SECONDS {
        let problem = format!("Labels are evaluated late: the oldest has been due for {lag_seconds:.0} s.");
        let fix = "Check that a pacemaker runs and reaches the fabric Redis. If one does, its log shows what delays it.";
        found.push(Finding::new(Critical, "labels-late", Subject::Labels, problem, fix));
    }
    let asked = feeds_failed.saturating_add(*feeds_answered);
    if feeds_failed.saturating_mul(100) > asked.saturating_mul(MAX_FEED_FAILURE_PERCENT) {
        let problem =
            format!("{feeds_failed} of {asked} requests to feeds failed since the pacemakers started.");
        let fix = "`signalbox labels why` shows which gate waits for a feed. Request the feed's address from the \
                   pacemaker's machine.";
        found.push(Finding::new(Warning, "feeds-failing", Subject::Feeds, problem, fix));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_cannot_continue_are_findings() {
        let held = || Held { count: 3, example: Some(("l".to_owned(), "answered 410".to_owned())) };
        let found = |change: fn(&mut Machine, Held)| {
            let mut one = Machine { name: "m".to_owned(), ..Machine::default() };
            change(&mut one, held());
            machine(&one)
        };
        assert_eq!(found(|_, _| ()), []);
        for (change, id) in [
            ((|one, held| one.failed = held) as fn(&mut Machine, Held), "labels-failed"),
            (|one, held| one.waiting_for_feed = held, "feed-failing"),
            (|one, held| one.stuck = held, "labels-stuck"),
        ] {
            let found = found(change);
            assert_eq!((found.len(), found[0].id, found[0].severity), (1, id, Critical));
            assert!(found[0].problem.contains("3 labels"), "{}", found[0].problem);
            assert!(found[0].problem.ends_with(", such as \"l\" (answered 410)."), "{}", found[0].problem);
        }
        let looping = found(|one, _| one.looping = 1);
        assert_eq!((looping[0].id, looping[0].severity), ("labels-looping", Warning));
        let passed = found(|one, held| {
            let (state, limit) = ("asked".to_owned(), "labels".to_owned());
            one.passed = vec![Passed { state, limit, value: held.count, most: 2 }];
        });
        assert_eq!((passed[0].id, passed[0].severity), ("state-limit-passed", Warning));
        assert!(
            passed[0].problem.starts_with("3 labels of the machine m are in the state asked"),
            "{passed:?}"
        );
    }

    #[test]
    fn late_evaluation_and_failing_feeds_are_findings() {
        let ids = |lag_seconds, feeds_failed, feeds_answered| {
            let found = evaluation(&Evaluation { lag_seconds, feeds_failed, feeds_answered });
            found.into_iter().map(|one| one.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(60.0, 1, 9), [""; 0]);
        assert_eq!(ids(60.1, 0, 0), ["labels-late"]);
        assert_eq!(ids(0.0, 2, 8), ["feeds-failing"]);
    }
}
