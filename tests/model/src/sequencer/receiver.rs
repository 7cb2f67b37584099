//! The receiver of the events, and the properties of its log: O1, O2 and O3.

use std::collections::{BTreeMap, BTreeSet};

use super::reference::Reference;
use super::{Event, Gap, Id, Object, Place};
use crate::{Violation, ensure};

/// The log of all receivers. It knows the accepted events, so that it can detect deviations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Receiver {
    accepted: BTreeMap<Id, (Object, Event)>,
    received: BTreeSet<Id>,
    /// Named by gaps that it received.
    missing: BTreeSet<Id>,
}

impl Receiver {
    pub(super) fn accepted(&mut self, object: Object, events: &[Event]) {
        self.accepted.extend(events.iter().map(|event| (event.id, (object, *event))));
    }

    pub(super) fn has(&self, id: Id) -> bool {
        self.received.contains(&id)
    }

    pub(super) fn log(&self, object: Object) -> Vec<Id> {
        let of_object = |id: &&Id| self.accepted.get(*id).is_some_and(|(other, _)| *other == object);
        self.received.iter().filter(of_object).copied().collect()
    }

    /// O2: an event does not change after it was accepted.
    pub(super) fn check_same(&self, event: Event) -> Result<(), Violation> {
        let accepted = self.accepted.get(&event.id).map(|(_, accepted)| *accepted);
        ensure(accepted == Some(event), "O2", || format!("accepted was {accepted:?}, now it is {event:?}"))
    }

    /// O1: what is committed follows what is committed or dead.
    pub(super) fn check_order(&self, shard: &Reference, object: Object, id: Id) -> Result<(), Violation> {
        let open = |before: &&Id| {
            matches!(shard.place_of(**before), Some(Place::Queued | Place::InFlight))
                && self.accepted.get(*before).is_some_and(|(other, _)| *other == object)
        };
        let overtaken: Vec<_> =
            self.accepted.keys().take_while(|before| **before < id).filter(open).collect();
        ensure(overtaken.is_empty(), "O1", || format!("event {id} is published before {overtaken:?}"))
    }

    /// A request arrives.
    pub(super) fn receive(
        &mut self,
        shard: &Reference,
        object: Object,
        event: Event,
        gap: Option<Gap>,
    ) -> Result<(), Violation> {
        self.check_same(event)?;
        if let Some(gap) = gap {
            self.missing.extend(self.accepted.range(gap.first..=gap.last).map(|(id, _)| *id));
        }
        // A dead letter that was still on its way is named by a gap, and may come at any time.
        if !self.received.insert(event.id) || shard.place_of(event.id) == Some(Place::Dead) {
            return Ok(());
        }
        let log = self.log(object);
        ensure(log.last() == Some(&event.id), "O1", || format!("event {} comes after {log:?}", event.id))?;
        let known =
            event.prev.is_none_or(|prev| self.received.contains(&prev) || self.missing.contains(&prev));
        ensure(known, "O3", || format!("event {} has prev {:?}, received {log:?}", event.id, event.prev))
    }
}
