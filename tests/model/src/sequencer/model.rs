//! A shard with its producers, workers, backend, sweeper and operator, and everything that can go wrong with them.
//!
//! A worker that freezes lives on as a **ghost**: it may go on where it was at any time, or never. So one fault stands for
//! a crash at every step and for a pause beyond every lease; another process takes its place at once, under a new number.
//! A reply that is lost leaves its caller where it was, to call again. A call that was given up may arrive **late**, after
//! everything that came of its repeat. A request that was given up may reach the backend as late as that.
//!
//! Leases run out for whoever is frozen, gone, or does not know that it has one. For the others they do not: that would
//! be a ghost whose place nobody takes, and the model has those already.

use std::collections::BTreeMap;
use std::fmt;

use super::receiver::Receiver;
use super::reference::{Committed, NewEvent, Reference, Skipped, Standing, Taken, Visit};
use super::{Id, Object, Worker};
use crate::explore::Model;
use crate::{Violation, ensure};

/// What happens to an event that failed often enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// It is tried again.
    Block,
    /// It is given up, and the next one tells.
    Skip,
    /// It waits for an operator.
    Park,
}

/// A call of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Offer {
    /// So many events are accepted for the object's sink.
    Accept(u8),
    /// So many are put out, to be fanned out later.
    PutOut(u8),
}

/// How often which fault may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// The backend refuses.
    pub refusals: u8,
    /// The backend has the event, and its answer is lost.
    pub unconfirmed: u8,
    /// A request is given up and arrives later.
    pub slow: u8,
    /// A worker freezes.
    pub frozen: u8,
    /// A script ran, and its reply is lost.
    pub lost: u8,
    /// A call is given up and arrives later.
    pub late: u8,
}

/// What is explored.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Outcome {
    Commit,
    Fail,
    GiveUp,
    Park,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Step {
    Idle,
    /// It is about to send the event, or has.
    Holding(Visit),
    /// It knows what to say of it.
    Settling(Visit, Outcome),
}

impl Step {
    fn visit_mut(&mut self) -> Option<&mut Visit> {
        match self {
            Self::Idle => None,
            Self::Holding(visit) | Self::Settling(visit, _) => Some(visit),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Process {
    number: Worker,
    step: Step,
}

/// A shard, who works for it, and what may still happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    shard: Reference,
    /// How many calls were made for each object.
    offered: Vec<usize>,
    workers: Vec<Process>,
    ghosts: Vec<Process>,
    /// Requests on their way to the backend that nobody waits for.
    requests: Vec<Visit>,
    /// Calls on their way to the shard that nobody waits for.
    calls: Vec<(Worker, Visit, Outcome)>,
    faults: Faults,
    receiver: Receiver,
    /// Commits of other objects since an object became ready.
    passed: BTreeMap<Object, u32>,
    next_number: Worker,
}

/// How the backend answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has the event and says so.
    Confirmed,
    /// It has not, and says so.
    Refused,
    /// It has, and nobody hears.
    Unconfirmed,
    /// It will have.
    Slow,
}

/// How a call to the shard goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// As it should.
    Answered,
    /// It runs, and the reply is lost.
    Lost,
    /// It will run.
    Late,
}

/// Who acts: a worker or a ghost, by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A worker.
    Worker(usize),
    /// One that froze.
    Ghost(usize),
}

/// One step of somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A producer makes its next call.
    Offer(Object),
    /// The next object without a backend is drained by one event.
    Drain,
    /// A worker takes an object.
    Take(usize, Call),
    /// The event is sent.
    Send(Who, Answer),
    /// The outcome is told.
    Settle(Who, Call),
    /// A worker freezes, and another takes its place.
    Freeze(usize),
    /// A request that was given up arrives.
    RequestArrives(usize),
    /// A call that was given up arrives.
    CallArrives(usize),
    /// The sweep sees a lease that ran out.
    Expire(Object),
    /// The sweep sees a retry that has come.
    Wake(Object),
    /// An operator unparks an object.
    Unpark(Object),
    /// An operator gives up the head of an object.
    Skip(Object, Id),
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |who: &Who| match who {
            Who::Worker(place) => format!("worker {place}"),
            Who::Ghost(place) => format!("ghost {place}"),
        };
        match self {
            Self::Offer(object) => write!(formatter, "a producer calls for {object}"),
            Self::Drain => write!(formatter, "drain"),
            Self::Take(place, Call::Answered) => write!(formatter, "worker {place} takes"),
            Self::Take(place, call) => write!(formatter, "worker {place} takes ({call:?})"),
            Self::Send(who, answer) => write!(formatter, "{} sends: {answer:?}", name(who)),
            Self::Settle(who, Call::Answered) => write!(formatter, "{} settles", name(who)),
            Self::Settle(who, call) => write!(formatter, "{} settles ({call:?})", name(who)),
            Self::Freeze(place) => write!(formatter, "worker {place} freezes"),
            Self::RequestArrives(_) => write!(formatter, "a slow request arrives"),
            Self::CallArrives(_) => write!(formatter, "a late call arrives"),
            Self::Expire(object) => write!(formatter, "the lease of {object} runs out"),
            Self::Wake(object) => write!(formatter, "the retry of {object} has come"),
            Self::Unpark(object) => write!(formatter, "an operator unparks {object}"),
            Self::Skip(object, id) => write!(formatter, "an operator skips {id} of {object}, twice"),
        }
    }
}

impl State {
    fn process(&mut self, who: Who) -> &mut Process {
        match who {
            Who::Worker(place) => &mut self.workers[place],
            Who::Ghost(place) => &mut self.ghosts[place],
        }
    }

    /// A ghost that has nothing left to do is gone.
    fn put(&mut self, who: Who, step: Step) {
        match who {
            Who::Ghost(place) if step == Step::Idle => {
                self.ghosts.remove(place);
            }
            _ => self.process(who).step = step,
        }
    }

    fn receive(&mut self, visit: Visit) -> Result<(), Violation> {
        self.receiver.receive(&self.shard, visit.object, visit.event, visit.gap)
    }

    /// Runs the script that settles a visit, and checks that it did so for nobody but the holder.
    fn settle(&mut self, worker: Worker, visit: Visit, outcome: Outcome) -> Result<Committed, Violation> {
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

    /// Nobody that is ready is passed by more than a quantum of each other object.
    fn pass_by(&mut self, committed: Object) -> Result<(), Violation> {
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

    fn after_settling(&mut self, who: Who, settled: Committed) -> Result<(), Violation> {
        match settled {
            Committed::Next(visit) => {
                self.receiver.check_same(visit.event)?;
                self.put(who, Step::Holding(visit));
            }
            Committed::Released | Committed::Stale => self.put(who, Step::Idle),
        }
        Ok(())
    }
}

impl Sequencer {
    fn offer(&self, state: &mut State, object: Object) -> Result<(), Violation> {
        let Some(place) = self.objects.iter().position(|(other, ..)| *other == object) else { return Ok(()) };
        let offer = self.objects[place].2[state.offered[place]];
        let (Offer::Accept(count) | Offer::PutOut(count)) = offer;
        // Ids that tell the object, so that it makes no difference who was first among objects.
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
        for &object in state.shard.objects.keys() {
            match state.shard.standing(object) {
                Standing::Leased if Self::may_expire(state, object) => actions.push(Action::Expire(object)),
                Standing::Retry(_) => actions.push(Action::Wake(object)),
                Standing::Parked => {
                    actions.push(Action::Unpark(object));
                    let head = state.shard.queued(object).first().map(|event| event.id);
                    actions.extend(head.map(|id| Action::Skip(object, id)));
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
            Action::Expire(object) => {
                next.shard.expire(object);
                let standing = next.shard.standing(object);
                ensure(standing == Standing::Ready || next.shard.without.is_some(), "O7", || {
                    format!("the lease of {object} ran out, and it is {standing:?}")
                })?;
            }
            Action::Wake(object) => next.shard.wake(object),
            Action::Unpark(object) => {
                next.shard.unpark(object);
            }
            Action::Skip(object, id) => {
                next.shard.skip(object, id);
                let repeated = next.shard.skip(object, id);
                ensure(repeated == Skipped::Refused, "O9", || {
                    format!("the repeat of skipping {id} gave up another: {:?}", next.shard.accepted)
                })?;
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
            // Who waits for a ghost waits for ever.
            Action::Send(who, answer) => matches!(who, Who::Ghost(_)) || *answer != Answer::Confirmed,
            Action::Settle(who, call) => matches!(who, Who::Ghost(_)) || *call != Call::Answered,
            Action::Take(_, call) => *call != Call::Answered,
            Action::Freeze(_) | Action::RequestArrives(_) | Action::CallArrives(_) => true,
            // Nor does anybody need another event to be accepted.
            Action::Offer(_) => true,
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

    /// Workers differ by what they do, not by number; an epoch by whether it is the one that may commit; attempts up to
    /// their limit.
    fn canonical(&self, state: &State) -> State {
        let mut canonical = state.clone();
        let limit = self.max_attempts;
        let State { shard, workers, ghosts, requests, calls, .. } = &mut canonical;
        let living = |worker: Worker, visit: &Visit| {
            let object = state.shard.objects.get(&visit.object);
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
        let held = |worker: Worker| state.shard.held_by(worker).map(|visit| visit.object);
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
        canonical.next_number = 0;
        canonical
    }
}
