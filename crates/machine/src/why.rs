//! Why a label is in its state: the value of its gate's condition, what would open it, and its next evaluation.

use jiff::{Timestamp, ToSpan as _};
use serde_json::{Value as Json, json};
use signalbox_condition::{Earliest, Explanation, Feeds};

use crate::{
    definition::{Gate, Machine, Trigger},
    step::{self, Label, Status},
    time,
};

/// The explanation of a label at a gate.
#[derive(Debug, Clone)]
pub struct Why {
    /// The condition as a tree, with every operand's value and source, what blocks, and the fewest changes that would help.
    pub explanation: Explanation,
    /// The text of the condition.
    pub condition: String,
    /// When the gate could first open if only time changes. A part that depends on a feed can change only when the
    /// feed is queried next.
    pub earliest: Earliest,
    /// The next evaluation because of time: when, and by which trigger (or `feed`, `looping`).
    pub next: Option<(Timestamp, String)>,
    /// The other triggers of an evaluation.
    pub triggers: Vec<String>,
    /// When the label has to leave, and where it goes then.
    pub deadline: Option<(Timestamp, String)>,
    /// Whether any of the triggers can fire for a label that is already at the gate.
    pub looks_again: bool,
    /// Whether one of them is an interval: it pauses while only an update could help, and resumes with that update.
    pub has_interval: bool,
    /// The zone of its clock.
    pub zone: time::Local,
}

/// Why a label at a gate does not continue; `None` when it is not at a gate that could open.
///
/// A feed that was not queried is unknown: query those of [`signalbox_condition::Condition::feeds`] first. `again` is
/// when a label continues that loops, or that waits for a feed that failed.
#[must_use]
pub fn why(
    machine: &Machine,
    label: &Label<'_>,
    feeds: &dyn Feeds,
    now: Timestamp,
    again: Option<Timestamp>,
) -> Option<Why> {
    let gate = machine.at(label.state).gate()?;
    let zone = gate.zone.of(label.metadata);
    let facts = step::facts(machine, label, feeds, &zone.zone, now);
    let explanation = gate.condition.explain(&facts);
    let state = machine.at(label.state);
    let deadline = state.deadline_of(label.entered, label.metadata).zip(state.deadline());
    let deadline = deadline.map(|(at, deadline)| (at.max(now), machine.at(deadline.to).name().to_owned()));
    let next = next_look(gate, label, &facts, now, again);
    let earliest = earliest_look(gate, label, &facts, now, again);
    Some(Why {
        explanation,
        condition: gate.condition.text().to_owned(),
        earliest,
        next,
        triggers: gate.triggers.iter().map(Trigger::to_string).collect(),
        deadline,
        looks_again: gate.looks_again(),
        has_interval: gate.intervals().next().is_some(),
        zone,
    })
}

/// Evaluations that are searched for the first that could open the gate.
const MAX_LOOKS: usize = 400;

/// The first evaluation because of time at which the gate could open.
fn earliest_look(
    gate: &Gate,
    label: &Label<'_>,
    facts: &signalbox_condition::Facts<'_>,
    now: Timestamp,
    mut again: Option<Timestamp>,
) -> Earliest {
    let (mut at, mut label) = (now, *label);
    for _ in 0..MAX_LOOKS {
        let at_that_time = facts.at(at);
        let look = next_look(gate, &label, &at_that_time, at, again.take());
        label.status = Status::Waiting;
        let Some((look, _)) = look else {
            return Earliest::Never;
        };
        match gate.condition.earliest(&facts.at(look)) {
            Earliest::Now => return Earliest::At(look),
            Earliest::Never => return Earliest::Never,
            // Before this moment no evaluation opens it.
            Earliest::At(first) | Earliest::NotBefore(first) => {
                at = first.checked_sub(1.nanosecond()).unwrap_or(look).max(look);
            }
        }
    }
    Earliest::NotBefore(at)
}

fn next_look(
    gate: &Gate,
    label: &Label<'_>,
    facts: &signalbox_condition::Facts<'_>,
    now: Timestamp,
    again: Option<Timestamp>,
) -> Option<(Timestamp, String)> {
    if label.status == Status::Looping {
        return Some((again.unwrap_or(now).max(now), "looping".to_owned()));
    }
    let again = again.map(|at| (at.max(now), "feed".to_owned()));
    let interval = gate.next_interval(facts, label.metadata, label.entered, now);
    let daily = gate.next_daily(label.metadata, now);
    let looks = interval.into_iter().chain(daily);
    let looks = looks.filter_map(|(n, at)| Some((at, gate.triggers.get(n)?.to_string())));
    looks.chain(again).min_by_key(|(at, _)| *at)
}

impl Why {
    /// Whether the label is never evaluated again without an update or event for one of its triggers.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.next.is_none() && !self.has_interval && self.deadline.is_none()
    }

    /// `{"condition","result","tree","blocking","fewest","earliest","next","triggers","timezone","stuck"?}`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let mut json = self.explanation.to_json();
        let truth = match self.explanation.truth {
            signalbox_condition::Truth::True => json!(true),
            signalbox_condition::Truth::False => json!(false),
            signalbox_condition::Truth::Unknown => json!("unknown"),
        };
        json["result"] = truth;
        json["condition"] = self.condition.as_str().into();
        json["earliest"] = match self.earliest {
            Earliest::Now => json!("now"),
            Earliest::At(at) => json!(at.to_string()),
            Earliest::NotBefore(at) => json!(format!("not before {at}")),
            Earliest::Never => Json::Null,
        };
        json["next"] = match &self.next {
            Some((at, trigger)) => json!({ "at": at.to_string(), "trigger": trigger }),
            None => Json::Null,
        };
        if let Some((at, to)) = &self.deadline {
            json["deadline"] = json!({ "at": at.to_string(), "next": to });
        }
        json["triggers"] = self.triggers.iter().map(String::as_str).collect();
        json["timezone"] = self.zone.zone.name().into();
        if let Some(instead) = &self.zone.instead_of {
            json["timezone_instead_of"] = instead.clone();
        }
        if self.is_stuck() {
            // As in the counts of a machine, stuck labels are those that no update and no event moves.
            let member = if self.looks_again { "waits_for" } else { "stuck" };
            json[member] = match (self.looks_again, self.explanation.truth.holds()) {
                (true, false) => "an update, or an event, for one of its triggers".into(),
                (true, true) => "an update, or an event, for one of its triggers, or a request (signalbox labels evaluate), although the condition is true: the creation of a label is not an update".into(),
                (false, _) => "nothing evaluates it again, except a request (signalbox labels evaluate): the gate is evaluated only on entry, and the label is already there".into(),
            };
        }
        json
    }
}
