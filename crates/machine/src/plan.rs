//! The changes that another version of a machine makes.

use std::collections::BTreeSet;

use jiff::Timestamp;
use signalbox_api::machines::StateChanges;
use signalbox_condition::{Condition, Feeds};

use crate::{
    definition::{Gate, Input, Kind, Machine, Next, State, Trigger},
    step::{self, Cause, Event, Label, Rest},
};

/// Compares the states of two versions, by name. Each list is in the order of its file. A state has also changed if it has
/// the same content, but its feeds, inputs or zone differ.
pub fn states(old: &Machine, new: &Machine) -> StateChanges {
    let outside = Outside::between(old, new);
    let changed = |was: &State, is: &State| was.says() != is.says() || outside.matters(was, is);
    StateChanges {
        added: names(new, |state| old.state(state.name()).is_none()),
        removed: names(old, |state| new.state(state.name()).is_none()),
        changed: names(new, |state| old.state(state.name()).is_some_and(|was| changed(was, state))),
    }
}

/// The unchanged states whose labels have to be indexed again when `new` replaces `old`.
pub fn reindexed(old: &Machine, new: &Machine) -> Vec<String> {
    if old.index() == new.index() {
        return Vec::new();
    }
    let changed: BTreeSet<String> = states(old, new).changed.into_iter().collect();
    names(new, |state| old.state(state.name()).is_some() && !changed.contains(state.name()))
}

/// Differences outside of the states: `timezone`, `hosts`, `index`, `feeds.NAME`, `inputs.TOPIC`, `webhooks` and `limits`, in
/// this order.
pub fn outside(old: &Machine, new: &Machine) -> Vec<String> {
    let outside = Outside::between(old, new);
    let zone = outside.zone.then(|| "timezone".to_owned());
    let feeds = outside.feeds.iter().map(|name| format!("feeds.{name}"));
    let inputs = outside.inputs.iter().map(|topic| format!("inputs.{topic}"));
    let webhooks = (old.webhooks() != new.webhooks()).then(|| "webhooks".to_owned());
    let limits = (old.limits() != new.limits()).then(|| "limits".to_owned());
    let listed = |machine: &Machine| machine.hosts().map(str::to_owned).collect::<BTreeSet<_>>();
    let hosts = (listed(old) != listed(new)).then(|| "hosts".to_owned());
    let index = (old.index() != new.index()).then(|| "index".to_owned());
    zone.into_iter()
        .chain(hosts)
        .chain(index)
        .chain(feeds)
        .chain(inputs)
        .chain(webhooks)
        .chain(limits)
        .collect()
}

fn names(machine: &Machine, keep: impl Fn(&State) -> bool) -> Vec<String> {
    machine.states().iter().filter(|state| keep(state)).map(|state| state.name().to_owned()).collect()
}

/// The names of parts outside of the states that differ.
struct Outside<'a> {
    feeds: BTreeSet<&'a str>,
    inputs: BTreeSet<&'a str>,
    zone: bool,
}

impl<'a> Outside<'a> {
    fn between(old: &'a Machine, new: &'a Machine) -> Self {
        let feeds = old.feeds().iter().chain(new.feeds()).map(|feed| &*feed.name);
        let inputs = old.inputs().iter().chain(new.inputs()).map(|input| &*input.topic);
        // Several inputs may use one topic, and their order matters.
        let of = |machine: &'a Machine, topic: &str| -> Vec<&'a Input> {
            machine.inputs().iter().filter(|input| *input.topic == *topic).collect()
        };
        Self {
            feeds: feeds.filter(|name| old.feed(name) != new.feed(name)).collect(),
            inputs: inputs.filter(|topic| of(old, topic) != of(new, topic)).collect(),
            zone: old.zone() != new.zone(),
        }
    }

    /// Whether these differences change the meaning of a state with the same content.
    fn matters(&self, was: &State, is: &State) -> bool {
        let by_input =
            |trigger: &Trigger| matches!(trigger, Trigger::Topic(topic) if self.inputs.contains(&**topic));
        feeds_of(is).any(|feed| self.feeds.contains(feed))
            || is.gate().is_some_and(|gate| gate.triggers.iter().any(by_input))
            || looks_at_other_times(was, is)
            || (self.zone && is.action().is_some() && chooses_by_clock(is))
    }
}

/// The feeds that a state may read in its condition or its transition.
fn feeds_of(state: &State) -> impl Iterator<Item = &str> {
    let condition = state.gate().into_iter().flat_map(|gate| gate.condition.feeds());
    condition.chain(conditions_of_next(state).flat_map(Condition::feeds)).chain(match state.next() {
        Some(Next::Context { path, .. }) => path.feed(),
        _ => None,
    })
}

fn conditions_of_next(state: &State) -> impl Iterator<Item = &Condition> {
    let branches = match state.next() {
        Some(Next::Condition { branches, .. }) => branches.as_slice(),
        _ => &[],
    };
    branches.iter().map(|(condition, _)| condition)
}

fn chooses_by_clock(state: &State) -> bool {
    let by_value = matches!(state.next(), Some(Next::Context { path, .. }) if path.reads_clock());
    by_value || conditions_of_next(state).any(Condition::reads_clock)
}

/// Whether a gate with the same content is evaluated at different times.
fn looks_at_other_times(was: &State, is: &State) -> bool {
    let (Some(was), Some(gate)) = (was.gate(), is.gate()) else { return false };
    let reads_clock = gate.condition.reads_clock() || chooses_by_clock(is);
    let zones = |gate: &'_ Gate| gate.daily().map(|(_, daily)| daily.zone.clone()).collect::<Vec<_>>();
    zones(was) != zones(gate) || (reads_clock && was.zone != gate.zone)
}

/// What would happen to a label if its gate were evaluated under another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// The label would move.
    Moves,
    /// The label would stay.
    Stays,
    /// A feed has to be queried first.
    NeedsFeed,
    /// The label's state does not exist in that version.
    Removed,
}

/// Whether a label in the state of that name would move if its gate were evaluated now, under `new`.
///
/// `label.state` is not used: state indexes of two versions are not comparable, but names are.
pub fn outlook(new: &Machine, state: &str, label: Label<'_>, feeds: &dyn Feeds, now: Timestamp) -> Outlook {
    let Some(state) = new.state(state) else { return Outlook::Removed };
    if !matches!(state.kind(), Kind::Gate(_)) {
        return Outlook::Stays;
    }
    let label = Label { state: state.index(), ..label };
    let decision =
        step::decide(new, label, Event::Again { cause: Cause::Metadata, trigger: None }, now, feeds);
    match decision.rest {
        _ if !decision.moves.is_empty() => Outlook::Moves,
        Rest::NeedsFeed(_) => Outlook::NeedsFeed,
        _ => Outlook::Stays,
    }
}
