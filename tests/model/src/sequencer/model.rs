//! A shard with its producers, workers, backend, sweeper and operator, and all their faults.
//!
//! A worker that freezes continues to exist as a **ghost**: it may resume at any time, or never. So one fault covers a
//! crash at every step and a pause longer than any lease; another process replaces it immediately under a new number.
//! A lost reply leaves its caller in the same state, to call again. An abandoned call may arrive **late**, after every
//! effect of its repeat. An abandoned request may reach the backend as late as that.
//!
//! Expired leases of frozen or dead workers, or of workers that do not know that they hold one, are normal. A lease
//! that expires under a slow worker, which learns of it when it settles, is a separate fault (**overrun**).

use std::collections::BTreeMap;

pub use super::action::{Action, Answer, Call, Who};
use super::receiver::Receiver;
use super::reference::Reference;
pub use super::state::State;
use super::state::{Outcome, Process, Step};
use super::{NewEvent, Object, Standing, Taken, Worker};
use crate::explore::Model;
use crate::{Violation, ensure};

/// The treatment of an event that failed too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// It is tried again.
    Block,
    /// It is dropped, and the next one reports the gap.
    Skip,
    /// It waits for an operator.
    Park,
}

/// A call of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Offer {
    /// This many events are accepted for the object's sink.
    Accept(u8),
    /// This many events enter the outbox, to be fanned out later.
    PutOut(u8),
}

/// How often which fault may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// The backend refuses.
    pub refusals: u8,
    /// The backend has the event, and its answer is lost.
    pub unconfirmed: u8,
    /// A request is abandoned and arrives later.
    pub slow: u8,
    /// A worker freezes.
    pub frozen: u8,
    /// A script ran, and its reply is lost.
    pub lost: u8,
    /// A call is abandoned and arrives later.
    pub late: u8,
    /// A lease runs out under a worker that is at work.
    pub overruns: u8,
}

/// The explored configuration.
#[derive(Clone, Debug)]
pub struct Sequencer {
    /// For each object, what its producers call, in order, and what happens to what fails.
    pub objects: Vec<(Object, Policy, Vec<Offer>)>,
    /// How many workers there are.
    pub workers: usize,
    /// After how many attempts the policy decides.
    pub max_attempts: u32,
    /// How often which fault may happen.
    pub faults: Faults,
    /// The shard that it begins with, to leave out a part of the protocol.
    pub shard: Reference,
}

impl Sequencer {
    fn offer(&self, state: &mut State, object: Object) -> Result<(), Violation> {
        let Some(place) = self.objects.iter().position(|(other, ..)| *other == object) else { return Ok(()) };
        let offer = self.objects[place].2[state.offered[place]];
        let (Offer::Accept(count) | Offer::PutOut(count)) = offer;
        // IDs contain the object, so that the order among objects makes no difference.
        let last = state.shard.last(object).unwrap_or(u64::from(object) * 10);
        let new: Vec<_> =
            (1..=u64::from(count)).map(|n| NewEvent { id: last + n, topic: u32::from(n > 1) }).collect();
        let before = state.shard.clone();
        let accepted = match offer {
            Offer::Accept(_) => state.shard.accept(object, &new),
            Offer::PutOut(_) => state.shard.put_out(object, &new),
        };
        let Ok(events) = accepted else {
            return ensure(state.shard == before, "O9", || "refused events left something behind".to_owned());
        };
        state.offered[place] += 1;
        state.receiver.accepted(object, &events);
        for event in events {
            if state.shard.place_of(event.id) == Some(super::Place::Published) {
                state.receiver.check_order(&state.shard, object, event.id)?;
                state.receiver.receive(&state.shard, object, event, None)?;
            }
        }
        Ok(())
    }

    fn send(&self, state: &mut State, who: Who, answer: Answer) -> Result<(), Violation> {
        let Step::Holding(visit) = state.process(who).step else { return Ok(()) };
        match answer {
            Answer::Confirmed | Answer::Unconfirmed => state.receive(visit)?,
            Answer::Slow => state.requests.push(visit),
            Answer::Refused => {}
        }
        match answer {
            Answer::Confirmed => {}
            Answer::Refused => state.faults.refusals -= 1,
            Answer::Unconfirmed => state.faults.unconfirmed -= 1,
            Answer::Slow => state.faults.slow -= 1,
        }
        let policy =
            self.objects.iter().find(|(object, ..)| *object == visit.object).map(|(_, policy, _)| *policy);
        let outcome = match policy {
            _ if answer == Answer::Confirmed => Outcome::Commit,
            _ if visit.attempts < self.max_attempts => Outcome::Fail,
            Some(Policy::Skip) => Outcome::GiveUp,
            Some(Policy::Park) => Outcome::Park,
            Some(Policy::Block) | None => Outcome::Fail,
        };
        state.put(who, Step::Settling(visit, outcome));
        Ok(())
    }

    fn settle(&self, state: &mut State, who: Who, call: Call) -> Result<(), Violation> {
        let Process { number, step: Step::Settling(visit, outcome) } = *state.process(who) else {
            return Ok(());
        };
        match call {
            Call::Answered => {
                let settled = state.settle(number, visit, outcome)?;
                state.after_settling(who, settled)?;
            }
            Call::Lost => {
                state.faults.lost -= 1;
                state.settle(number, visit, outcome)?;
            }
            Call::Late => {
                state.faults.late -= 1;
                state.calls.push((number, visit, outcome));
            }
        }
        Ok(())
    }

    fn take(&self, state: &mut State, place: usize, call: Call) -> Result<(), Violation> {
        let taken = state.shard.take(state.workers[place].number, 0);
        if let Taken::New(visit) | Taken::Own(visit) = taken {
            state.receiver.check_same(visit.event)?;
        }
        if call == Call::Lost {
            state.faults.lost -= 1;
        } else if let Some(visit) = taken.visit() {
            state.workers[place].step = Step::Holding(visit);
        }
        Ok(())
    }

    fn actions_of(&self, state: &State, who: Who, process: Process, actions: &mut Vec<Action>) {
        let Faults { refusals, unconfirmed, slow, lost, late, .. } = state.faults;
        match process.step {
            Step::Idle => {}
            Step::Holding(_) => {
                actions.push(Action::Send(who, Answer::Confirmed));
                let answers =
                    [(Answer::Refused, refusals), (Answer::Unconfirmed, unconfirmed), (Answer::Slow, slow)];
                actions.extend(
                    answers.iter().filter(|(_, left)| *left > 0).map(|(how, _)| Action::Send(who, *how)),
                );
            }
            Step::Settling(..) => {
                actions.push(Action::Settle(who, Call::Answered));
                let calls = [(Call::Lost, lost), (Call::Late, late)];
                actions.extend(
                    calls.iter().filter(|(_, left)| *left > 0).map(|(how, _)| Action::Settle(who, *how)),
                );
            }
        }
    }

    /// The lease of an object may run out if its holder does not know of it or is frozen.
    fn may_expire(state: &State, object: Object) -> bool {
        let lease = state.shard.objects.get(&object).and_then(|state| state.lease);
        lease.is_some_and(|lease| {
            let holder = state.workers.iter().find(|worker| worker.number == lease.worker);
            holder.is_none_or(|holder| holder.step == Step::Idle)
        })
    }
}

impl Model for Sequencer {
    type State = State;
    type Action = Action;

    fn initial(&self) -> State {
        let count = Worker::try_from(self.workers).unwrap_or(Worker::MAX);
        State {
            shard: self.shard.clone(),
            offered: vec![0; self.objects.len()],
            workers: (0..count).map(|number| Process { number, step: Step::Idle }).collect(),
            ghosts: Vec::new(),
            requests: Vec::new(),
            calls: Vec::new(),
            skips: Vec::new(),
            faults: self.faults,
            receiver: Receiver::default(),
            passed: BTreeMap::new(),
            next_number: count,
        }
    }

    fn actions(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        for ((object, _, offers), made) in self.objects.iter().zip(&state.offered) {
            if *made < offers.len() {
                actions.push(Action::Offer(*object));
            }
        }
        if !state.shard.outbox.is_empty() {
            actions.push(Action::Drain);
        }
        for (place, worker) in state.workers.iter().enumerate() {
            self.actions_of(state, Who::Worker(place), *worker, &mut actions);
            let held = state.shard.held_by(worker.number).is_some();
            if worker.step == Step::Idle && (held || !state.shard.ready.is_empty()) {
                actions.push(Action::Take(place, Call::Answered));
                if !held && state.faults.lost > 0 {
                    actions.push(Action::Take(place, Call::Lost));
                }
            }
            if state.faults.frozen > 0 && (held || worker.step != Step::Idle) {
                actions.push(Action::Freeze(place));
            }
        }
        for (place, ghost) in state.ghosts.iter().enumerate() {
            self.actions_of(state, Who::Ghost(place), *ghost, &mut actions);
        }
        actions.extend((0..state.requests.len()).map(Action::RequestArrives));
        actions.extend((0..state.calls.len()).map(Action::CallArrives));
        actions.extend((0..state.skips.len()).map(Action::SkipAgain));
        for &object in state.shard.objects.keys() {
            match state.shard.standing(object) {
                Standing::Leased if Self::may_expire(state, object) => actions.push(Action::Expire(object)),
                Standing::Leased if state.faults.overruns > 0 => actions.push(Action::Overrun(object)),
                Standing::Retry(_) => actions.push(Action::Wake(object)),
                Standing::Parked => {
                    actions.push(Action::Unpark(object));
                    let head = state.shard.queued(object).first().map(|event| event.id);
                    actions.extend(head.map(|id| Action::Skip(object, id)));
                    let may_be_lost = state.faults.lost > 0;
                    actions.extend(head.filter(|_| may_be_lost).map(|id| Action::SkipLost(object, id)));
                }
                _ => {}
            }
        }
        actions
    }

    fn apply(&self, state: &State, action: &Action) -> Result<State, Violation> {
        let mut next = state.clone();
        match *action {
            Action::Offer(object) => self.offer(&mut next, object)?,
            Action::Drain => {
                if let Some((object, events)) = next.shard.drain(1) {
                    for event in events {
                        next.receiver.check_order(&next.shard, object, event.id)?;
                        next.receiver.receive(&next.shard, object, event, None)?;
                    }
                }
            }
            Action::Take(place, call) => self.take(&mut next, place, call)?,
            Action::Send(who, answer) => self.send(&mut next, who, answer)?,
            Action::Settle(who, call) => self.settle(&mut next, who, call)?,
            Action::Freeze(place) => {
                next.faults.frozen -= 1;
                let fresh = Process { number: next.next_number, step: Step::Idle };
                next.next_number += 1;
                let frozen = std::mem::replace(&mut next.workers[place], fresh);
                if frozen.step != Step::Idle {
                    next.ghosts.push(frozen);
                }
            }
            Action::RequestArrives(place) => {
                let visit = next.requests.remove(place);
                next.receive(visit)?;
            }
            Action::CallArrives(place) => {
                let (worker, visit, outcome) = next.calls.remove(place);
                next.settle(worker, visit, outcome)?;
            }
            Action::Expire(object) | Action::Overrun(object) => {
                next.faults.overruns -= u8::from(matches!(action, Action::Overrun(_)));
                next.shard.expire(object);
                let standing = next.shard.standing(object);
                ensure(standing == Standing::Ready, "O7", || {
                    format!("the lease of {object} ran out, and it is {standing:?}")
                })?;
            }
            Action::Wake(object) => next.shard.wake(object),
            Action::Unpark(object) => {
                next.shard.unpark(object);
            }
            Action::Skip(object, id) => next.skip(object, id)?,
            Action::SkipLost(object, id) => {
                next.faults.lost -= 1;
                next.skip(object, id)?;
                next.skips.push((object, id));
            }
            Action::SkipAgain(place) => {
                let (object, id) = next.skips.remove(place);
                next.skip(object, id)?;
            }
        }
        let ready = &next.shard.ready;
        next.passed.retain(|object, _| ready.contains(object));
        for object in ready {
            next.passed.entry(*object).or_default();
        }
        Ok(next)
    }

    fn check(&self, state: &State) -> Result<(), Violation> {
        state.shard.check()
    }

    fn is_fault(&self, action: &Action) -> bool {
        match action {
            // A settled state must be reachable without the help of ghosts.
            Action::Send(who, answer) => matches!(who, Who::Ghost(_)) || *answer != Answer::Confirmed,
            Action::Settle(who, call) => matches!(who, Who::Ghost(_)) || *call != Call::Answered,
            Action::Take(_, call) => *call != Call::Answered,
            Action::Freeze(_) | Action::Overrun(_) | Action::RequestArrives(_) | Action::CallArrives(_) => {
                true
            }
            // Nor may it depend on another event being accepted.
            Action::Offer(_) | Action::SkipLost(..) | Action::SkipAgain(_) => true,
            _ => false,
        }
    }

    fn is_settled(&self, state: &State) -> bool {
        state.shard.objects.values().all(|object| !object.has_backlog())
    }

    fn describe(&self, state: &State) -> String {
        let step = |step: &Step| match step {
            Step::Idle => "idle".to_owned(),
            Step::Holding(visit) => format!("has {} (epoch {})", visit.event.id, visit.epoch),
            Step::Settling(visit, outcome) => {
                format!("{outcome:?} {} (epoch {})", visit.event.id, visit.epoch)
            }
        };
        let steps =
            |processes: &[Process]| -> Vec<_> { processes.iter().map(|one| step(&one.step)).collect() };
        let mut line = format!("ready {:?}; workers {:?}", state.shard.ready(), steps(&state.workers));
        if !state.ghosts.is_empty() {
            line += &format!("; ghosts {:?}", steps(&state.ghosts));
        }
        for object in state.shard.objects.keys() {
            let queue: Vec<_> = state.shard.queued(*object).iter().map(|event| event.id).collect();
            let standing = state.shard.standing(*object);
            line += &format!(
                "; {object} is {standing:?}, queue {queue:?}, got {:?}",
                state.receiver.log(*object)
            );
        }
        line
    }

    fn canonical(&self, state: &State) -> State {
        state.canonical(self.max_attempts)
    }
}
