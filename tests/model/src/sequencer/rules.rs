//! The predicates that one state of the shard shows: O4, O6, O8, O9, O11, O12, and O3 for events not yet sent. The
//! others concern sent and committed events: see the model.

use std::collections::BTreeMap;

use super::reference::{Lease, ObjectState, Reference};
use super::{Id, Object, Place, Sink};
use crate::{Violation, ensure};

impl Reference {
    /// Checks everything that a single state can show.
    ///
    /// # Errors
    /// The first predicate that does not hold.
    pub fn check(&self) -> Result<(), Violation> {
        for (object, state) in &self.objects {
            check_chain(*object, state)?;
            self.check_standing(*object, state)?;
        }
        self.check_places()?;
        self.check_holders()?;
        self.check_ready()
    }

    /// O6: backlog ⇒ exactly one of ready, leased, retry-due, parked.
    fn check_standing(&self, object: Object, state: &ObjectState) -> Result<(), Violation> {
        let waiting_list = if state.sink == Sink::Bus { &self.outbox } else { &self.ready };
        let standings = [
            ("ready", waiting_list.contains(&object)),
            ("leased", state.lease.is_some()),
            ("retry", state.retry_at_ms.is_some()),
            ("parked", state.parked),
        ];
        let found: Vec<_> = standings.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect();
        ensure(found.len() == usize::from(state.has_backlog()), "O6", || {
            let backlog = if state.has_backlog() { "a backlog" } else { "no backlog" };
            format!("object {object} has {backlog} and is {found:?}")
        })
    }

    /// O8 and O9: an accepted event is in exactly one place, and what is in flight is not queued.
    fn check_places(&self) -> Result<(), Violation> {
        let mut found: BTreeMap<Id, Vec<Place>> = BTreeMap::new();
        for (object, state) in &self.objects {
            for event in &state.queue {
                found.entry(event.id).or_default().push(Place::Queued);
            }
            if let Some(event) = state.flight {
                ensure(state.queue.iter().all(|queued| queued.id != event.id), "O8", || {
                    format!("event {} of object {object} is in flight and queued", event.id)
                })?;
                found.entry(event.id).or_default().push(Place::InFlight);
            }
        }
        for (id, (object, place)) in &self.accepted {
            let expected: &[Place] = match place {
                Place::Queued | Place::InFlight => std::slice::from_ref(place),
                Place::Published | Place::Dead => &[],
            };
            let seen = found.remove(id).unwrap_or_default();
            ensure(seen == expected, "O9", || {
                format!("event {id} of object {object} should be {place:?} and is found {seen:?}")
            })?;
        }
        ensure(found.is_empty(), "O9", || format!("never accepted: {found:?}"))
    }

    /// O11: a worker holds at most one.
    fn check_holders(&self) -> Result<(), Violation> {
        let mut holders = BTreeMap::new();
        for (object, state) in &self.objects {
            let Some(Lease { worker, .. }) = state.lease else { continue };
            if let Some(other) = holders.insert(worker, object) {
                return Err(Violation::new(
                    "O11",
                    format!("worker {worker} holds objects {other} and {object}"),
                ));
            }
        }
        Ok(())
    }

    /// O12: ready holds each object once.
    fn check_ready(&self) -> Result<(), Violation> {
        for list in [&self.ready, &self.outbox] {
            let mut sorted: Vec<_> = list.iter().collect();
            sorted.sort_unstable();
            ensure(sorted.is_sorted_by(|before, after| before < after), "O12", || {
                format!("ready is {list:?}")
            })?;
        }
        Ok(())
    }
}

/// O4 and O3 for what an object still has to send: ids rise, and each `prev` is the event before.
fn check_chain(object: Object, state: &ObjectState) -> Result<(), Violation> {
    let chain: Vec<_> = state.flight.iter().chain(&state.queue).collect();
    for pair in chain.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        ensure(before.id < after.id, "O1", || {
            format!("event {} of object {object} precedes {}", before.id, after.id)
        })?;
        ensure(after.prev == Some(before.id), "O3", || {
            format!(
                "event {} of object {object} follows {} and has prev {:?}",
                after.id, before.id, after.prev
            )
        })?;
    }
    Ok(())
}
