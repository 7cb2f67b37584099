//! The view that a driver of the real scripts compares.

use std::collections::BTreeSet;

use super::reference::{ObjectState, Reference};
use super::{Event, Gap, Id, Object, Place, Standing, Visit};

impl Reference {
    /// Which state an object is in.
    #[must_use]
    pub fn standing(&self, object: Object) -> Standing {
        let Some(state) = self.objects.get(&object) else { return Standing::Idle };
        match state {
            _ if state.lease.is_some() => Standing::Leased,
            ObjectState { parked: true, .. } => Standing::Parked,
            ObjectState { retry_at_ms: Some(at), .. } => Standing::Retry(*at),
            _ if state.has_backlog() => Standing::Ready,
            _ => Standing::Idle,
        }
    }

    /// The event in an object's flight slot, and its holder.
    #[must_use]
    pub fn visit(&self, object: Object) -> Option<Visit> {
        let state = self.objects.get(&object)?;
        let lease = state.lease?;
        Some(Visit {
            object,
            epoch: state.epoch,
            event: state.flight?,
            gap: state.gap,
            attempts: state.attempts,
            lease_until_ms: lease.until_ms,
        })
    }

    /// The queue of an object without the event in flight, head first.
    #[must_use]
    pub fn queued(&self, object: Object) -> Vec<Event> {
        self.objects.get(&object).map(|state| state.queue.iter().copied().collect()).unwrap_or_default()
    }

    /// The last id of an object.
    #[must_use]
    pub fn last(&self, object: Object) -> Option<Id> {
        self.objects.get(&object)?.last
    }

    /// The gap that an object's next event has to report.
    #[must_use]
    pub fn gap(&self, object: Object) -> Option<Gap> {
        self.objects.get(&object)?.gap
    }

    /// The objects that wait for a worker, the next first.
    #[must_use]
    pub fn ready(&self) -> Vec<Object> {
        self.ready.iter().copied().collect()
    }

    /// The objects that wait to be drained, the next first.
    #[must_use]
    pub fn outbox(&self) -> Vec<Object> {
        self.outbox.iter().copied().collect()
    }

    /// The events of an object that are in this place, in order of acceptance.
    #[must_use]
    pub fn events_in(&self, object: Object, place: Place) -> Vec<Id> {
        self.accepted.iter().filter(|(_, at)| **at == (object, place)).map(|(id, _)| *id).collect()
    }

    /// Where an event is; `None` if it was never accepted.
    #[must_use]
    pub fn place_of(&self, id: Id) -> Option<Place> {
        self.accepted.get(&id).map(|(_, place)| *place)
    }

    /// When a sweep has something to do next, in milliseconds.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<i64> {
        let due = |state: &ObjectState| state.lease.map(|lease| lease.until_ms).or(state.retry_at_ms);
        self.objects.values().filter_map(due).min()
    }

    /// Takes over the ready list of a real shard, if it differs only in the order of the objects of the last sweep.
    ///
    /// # Errors
    /// The observed list, if it is not such a list.
    pub fn agree(&mut self, swept: &[Object], observed: &[Object]) -> Result<(), String> {
        let stayed = self.ready.len().saturating_sub(swept.len());
        let mine = self.ready();
        let sorted = |objects: &[Object]| objects.iter().copied().collect::<BTreeSet<_>>();
        let fits = observed.len() == mine.len()
            && observed[..stayed] == mine[..stayed]
            && sorted(&observed[stayed..]) == sorted(&mine[stayed..]);
        if !fits {
            return Err(format!(
                "ready is {observed:?}, expected {mine:?}, the last {} in any order",
                swept.len()
            ));
        }
        self.ready = observed.iter().copied().collect();
        Ok(())
    }
}
