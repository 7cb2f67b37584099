//! What another version of a machine would change.

use jiff::Timestamp;
use signalbox_condition::Feeds;

use crate::{
    definition::{Kind, Machine},
    step::{self, Cause, Event, Label, Rest},
};

/// How the states of two versions differ, each list in the order of its file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct States {
    /// Only in the new one.
    pub added: Vec<String>,
    /// Only in the old one.
    pub removed: Vec<String>,
    /// In both, and saying something else.
    pub changed: Vec<String>,
}

/// Compares the states of two versions, by name.
#[must_use]
pub fn states(old: &Machine, new: &Machine) -> States {
    let names = |machine: &Machine, keep: &dyn Fn(&str) -> bool| -> Vec<String> {
        machine
            .states()
            .iter()
            .map(|state| state.name())
            .filter(|name| keep(name))
            .map(str::to_owned)
            .collect()
    };
    let says = |machine: &Machine, name: &str| machine.state(name).map(|state| state.says().to_owned());
    States {
        added: names(new, &|name| old.state(name).is_none()),
        removed: names(old, &|name| new.state(name).is_none()),
        changed: names(new, &|name| old.state(name).is_some() && says(old, name) != says(new, name)),
    }
}

/// What would become of a label if its gate looked under another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// It would move.
    Moves,
    /// It would stay.
    Stays,
    /// A feed would have to be asked first.
    NeedsFeed,
    /// Its state is not part of that version.
    Removed,
}

/// Whether a label in the state of that name would move if its gate looked at it now, under `new`.
///
/// `label.state` is not used: places in two versions do not belong together, names do.
#[must_use]
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
