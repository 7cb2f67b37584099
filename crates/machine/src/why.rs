//! Why a label is in its state: the value of its gate's condition, what would open it, and its next evaluation.

use jiff::{Timestamp, ToSpan as _};
use serde_json::{Value as Json, json};
use signalbox_condition::{Earliest, Explanation, Feeds};

use crate::{
    definition::{Gate, Machine, Next, Trigger},
    step::{self, Label, Status},
    time,
};

/// The explanation of a label at a gate.
#[derive(Debug, Clone)]
pub struct Why {
    /// The condition as a tree, with the value and source of every operand, what blocks it, and the fewest
    /// changes that would make it true.
    pub explanation: Explanation,
    /// The state that the label reaches by `fewest`, if the gate has several, and they lead to another one than its default.
    pub towards: Option<String>,
    /// The text of the condition.
    pub condition: String,
    /// When the gate could first open if only time changes. A part that depends on a feed can change only when the
    /// feed is queried next.
    pub earliest: Earliest,
    /// The next time-based evaluation: its time, and its trigger (or `feed`, `looping`).
    pub next: Option<(Timestamp, String)>,
    /// The triggers that are not time-based.
    pub triggers: Vec<String>,
    /// The deadline of the state, and the state that follows it.
    pub deadline: Option<(Timestamp, String)>,
    /// Whether any trigger can fire for a label that is already at the gate.
    pub looks_again: bool,
    /// Whether one of the triggers is an interval. Its evaluations are skipped while only an update can make
    /// the condition true.
    pub has_interval: bool,
    /// The time zone that applies to the label.
    pub zone: time::Local,
}

/// Explains why a label at a gate does not continue; `None` if it is not at a gate that can open.
///
/// A feed that was not queried counts as unknown: query those of [`signalbox_condition::Condition::feeds`]
/// first. `again` is the time at which a label continues that pauses after many transitions or waits for a
/// failed feed.
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
    let mut explanation = gate.condition.explain(&facts);
    let towards = onward(machine, gate, &facts, &mut explanation);
    let state = machine.at(label.state);
    let deadline = state.deadline_of(label.entered, label.metadata).zip(state.deadline());
    let deadline = deadline.map(|(at, deadline)| (at.max(now), machine.at(deadline.to).name().to_owned()));
    let next = next_look(gate, label, &facts, now, again);
    let earliest = earliest_look(gate, label, &facts, now, again);
    Some(Why {
        explanation,
        towards,
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

/// The default state of a gate with conditions is where a label goes for which nothing else is true, often the way back. So the
/// changes that lead to another state are explained in the first place, if no client has to set metadata for them. Returns
/// that state.
fn onward(
    machine: &Machine,
    gate: &Gate,
    facts: &signalbox_condition::Facts<'_>,
    explanation: &mut Explanation,
) -> Option<String> {
    let Next::Condition { branches, default } = &gate.next else { return None };
    if explanation.truth.holds() {
        return None;
    }
    let onward = branches.iter().filter(|(_, to)| to != default);
    let ways = onward.filter_map(|(when, to)| Some((gate.condition.fewest_with(when, facts)?, to)));
    let (changes, to) = ways.min_by_key(|(changes, _)| changes.len())?;
    explanation.fewest = Some(changes);
    Some(machine.at(*to).name().to_owned())
}

/// Maximum number of evaluation times that are checked for the first at which the gate could open.
const MAX_LOOKS: usize = 400;

/// The first time-based evaluation at which the gate could open.
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
            // No evaluation before this time can open the gate.
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
    pub fn is_stuck(&self) -> bool {
        self.next.is_none() && !self.has_interval && self.deadline.is_none()
    }

    /// `{"condition","result","tree","blocking","fewest","towards"?,"earliest","next","triggers","timezone","stuck"?}`.
    pub fn to_json(&self) -> Json {
        let mut json = self.explanation.to_json();
        json["result"] = json!(self.explanation.truth);
        if let Some(towards) = &self.towards {
            json["towards"] = towards.as_str().into();
        }
        json["condition"] = self.condition.as_str().into();
        json["earliest"] = match self.earliest {
            Earliest::Now => json!("now"),
            Earliest::At(at) => json!(format!("{at:.3}")),
            Earliest::NotBefore(at) => json!(format!("not before {at:.3}")),
            Earliest::Never => Json::Null,
        };
        json["next"] = match &self.next {
            Some((at, trigger)) => json!({ "at": format!("{at:.3}"), "trigger": trigger }),
            None => Json::Null,
        };
        if let Some((at, to)) = &self.deadline {
            json["deadline"] = json!({ "at": format!("{at:.3}"), "next": to });
        }
        json["triggers"] = self.triggers.iter().map(String::as_str).collect();
        json["timezone"] = self.zone.zone.name().into();
        if let Some(instead) = &self.zone.instead_of {
            json["timezone_instead_of"] = instead.clone();
        }
        if self.is_stuck() {
            // As in the statistics of a machine, a label is stuck if neither an update nor an event can move
            // it.
            let member = if self.looks_again { "waits_for" } else { "stuck" };
            json[member] = match (self.looks_again, self.explanation.truth.holds()) {
                (true, false) => "an update, or an event, for one of its triggers".into(),
                (true, true) => "an update, or an event, for one of its triggers, or a request (signalbox labels evaluate): the condition is true, but no trigger has fired since it became true".into(),
                (false, _) => "nothing evaluates it again, except a request (signalbox labels evaluate): the gate is evaluated only on entry, and the label is already there".into(),
            };
        }
        json
    }
}
