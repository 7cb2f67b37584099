//! A shard, who works for it, and what of it makes a difference.

use std::collections::BTreeMap;

use super::action::Who;
use super::model::Faults;
use super::receiver::Receiver;
use super::reference::Reference;
use super::{Committed, Id, Object, Place, Visit, Worker};
use crate::{Violation, ensure};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Outcome {
    Commit,
    Fail,
    GiveUp,
    Park,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Step {
    Idle,
    /// It is about to send the event, or has.
    Holding(Visit),
    /// It knows the outcome to report.
    Settling(Visit, Outcome),
}

impl Step {
    pub(super) fn visit_mut(&mut self) -> Option<&mut Visit> {
        match self {
            Self::Idle => None,
            Self::Holding(visit) | Self::Settling(visit, _) => Some(visit),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) number: Worker,
    pub(super) step: Step,
}

/// A shard, who works for it, and what may still happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) shard: Reference,
    /// How many calls were made for each object.
    pub(super) offered: Vec<usize>,
    pub(super) workers: Vec<Process>,
    pub(super) ghosts: Vec<Process>,
    /// Requests under way to the backend whose sender stopped waiting.
    pub(super) requests: Vec<Visit>,
    /// Calls under way to the shard whose sender stopped waiting.
    pub(super) calls: Vec<(Worker, Visit, Outcome)>,
    /// Skips whose reply was lost: the operator will repeat them, later.
    pub(super) skips: Vec<(Object, Id)>,
    pub(super) faults: Faults,
    pub(super) receiver: Receiver,
    /// Commits of other objects since an object became ready.
    pub(super) passed: BTreeMap<Object, u32>,
    pub(super) next_number: Worker,
}

impl State {
    pub(super) fn process(&mut self, who: Who) -> &mut Process {
        match who {
            Who::Worker(place) => &mut self.workers[place],
            Who::Ghost(place) => &mut self.ghosts[place],
        }
    }

    /// A ghost that has nothing left to do is gone.
    pub(super) fn put(&mut self, who: Who, step: Step) {
        match who {
            Who::Ghost(place) if step == Step::Idle => {
                self.ghosts.remove(place);
            }
            _ => self.process(who).step = step,
        }
    }

    pub(super) fn receive(&mut self, visit: Visit) -> Result<(), Violation> {
        self.receiver.receive(&self.shard, visit.object, visit.event, visit.gap)
    }

    /// Runs the script that settles a visit, and checks that only the holder can do so.
    pub(super) fn settle(
        &mut self,
        worker: Worker,
        visit: Visit,
        outcome: Outcome,
    ) -> Result<Committed, Violation> {
        let Visit { object, epoch, event, .. } = visit;
        let truth = self.shard.visit(object);
        let holder = self.shard.objects.get(&object).and_then(|state| state.lease).map(|lease| lease.worker);
        let settled = match outcome {
            Outcome::Commit => self.shard.commit(worker, object, epoch, event.id, 0),
            Outcome::Fail => self.shard.fail(worker, object, epoch, event.id, 0),
            Outcome::GiveUp => self.shard.give_up(worker, object, epoch, event.id, 0),
            Outcome::Park => self.shard.park(worker, object, epoch, event.id),
        };
        if settled == Committed::Stale {
            return Ok(settled);
        }
        ensure(truth.is_some() && holder == Some(worker), "O10", || {
            format!("worker {worker} settled {} of object {object}, which {holder:?} holds", event.id)
        })?;
        ensure(truth.is_none_or(|truth| truth.epoch == epoch), "O5", || {
            format!("{outcome:?} of epoch {epoch} settled what another epoch has: {truth:?}")
        })?;
        ensure(truth.is_none_or(|truth| truth.event.id == event.id), "O9", || {
            format!("{outcome:?} of event {} settled another: {truth:?}", event.id)
        })?;
        if outcome == Outcome::Commit {
            ensure(self.receiver.has(event.id), "O9", || format!("event {} never arrived", event.id))?;
            self.receiver.check_order(&self.shard, object, event.id)?;
            self.pass_by(object)?;
        }
        Ok(settled)
    }

    /// Runs the script that skips the head of an object, and checks that it dropped nothing else.
    pub(super) fn skip(&mut self, object: Object, id: Id) -> Result<(), Violation> {
        let head = self.shard.queued(object).first().map(|event| event.id);
        self.shard.skip(object, id);
        let gone = head.filter(|head| self.shard.place_of(*head) == Some(Place::Dead));
        ensure(gone.is_none_or(|gone| gone == id), "O9", || format!("skipping {id} again dropped {gone:?}"))
    }

    /// No ready object is passed by more than a quantum of each other object.
    pub(super) fn pass_by(&mut self, committed: Object) -> Result<(), Violation> {
        let others = u32::try_from(self.shard.objects.len()).unwrap_or(u32::MAX) - 1;
        let bound = others * self.shard.settings.quantum;
        for (object, passed) in self.passed.iter_mut().filter(|(object, _)| **object != committed) {
            *passed += 1;
            ensure(*passed <= bound, "bound", || {
                format!(
                    "object {object} is ready, and others had {passed} commits since; the bound is {bound}"
                )
            })?;
        }
        Ok(())
    }

    pub(super) fn after_settling(&mut self, who: Who, settled: Committed) -> Result<(), Violation> {
        match settled {
            Committed::Next(visit) => {
                self.receiver.check_same(visit.event)?;
                self.put(who, Step::Holding(visit));
            }
            Committed::Released | Committed::Stale => self.put(who, Step::Idle),
        }
        Ok(())
    }

    /// Workers differ by what they do, not by number; an epoch by whether it is the one that may commit; attempts up to
    /// their limit.
    pub(super) fn canonical(&self, limit: u32) -> State {
        let mut canonical = self.clone();
        let State { shard, workers, ghosts, requests, calls, .. } = &mut canonical;
        let living = |worker: Worker, visit: &Visit| {
            let object = self.shard.objects.get(&visit.object);
            object.is_some_and(|object| {
                object.epoch == visit.epoch && object.lease.is_some_and(|lease| lease.worker == worker)
            })
        };
        let simplify = |worker: Worker, visit: &mut Visit| {
            visit.epoch = u64::from(living(worker, visit));
            visit.attempts = visit.attempts.min(limit);
        };
        for process in workers.iter_mut().chain(ghosts.iter_mut()) {
            let number = process.number;
            if let Some(visit) = process.step.visit_mut() {
                simplify(number, visit);
            }
        }
        calls.iter_mut().for_each(|(worker, visit, _)| simplify(*worker, visit));
        requests.iter_mut().for_each(|visit| (visit.epoch, visit.attempts) = (0, 0));
        for object in shard.objects.values_mut() {
            object.epoch = u64::from(object.lease.is_some());
            object.attempts = object.attempts.min(limit);
        }
        let held = |worker: Worker| self.shard.held_by(worker).map(|visit| visit.object);
        workers.sort_by_key(|process| (process.step, held(process.number)));
        ghosts.sort_by_key(|process| (process.step, held(process.number)));
        let order: Vec<_> = workers.iter().chain(ghosts.iter()).map(|process| process.number).collect();
        let rename = |number: &mut Worker| {
            let place = order.iter().position(|other| other == number);
            *number = place.and_then(|place| Worker::try_from(place).ok()).unwrap_or(Worker::MAX);
        };
        workers.iter_mut().chain(ghosts.iter_mut()).for_each(|process| rename(&mut process.number));
        calls.iter_mut().for_each(|(worker, ..)| rename(worker));
        for lease in shard.objects.values_mut().filter_map(|object| object.lease.as_mut()) {
            rename(&mut lease.worker);
        }
        calls.sort_unstable();
        requests.sort_unstable();
        canonical.skips.sort_unstable();
        canonical.next_number = 0;
        canonical
    }
}
