//! The event ordering algorithm as it was published: the ancestor of ours, with the faults that it has.
//!
//! Producers push events to `OBJ:events` and the object to `objects.with.events`; a worker moves the object to its own
//! list, claims it with `SETNX OBJ:event.worker`, and serves it until nothing is left, which a script notices and releases
//! the claim. Its own lists let it go on after a crash. What it gets wrong:
//!
//! * `restart()` claims in the name of a literal `2`. A worker of another name that crashed as owner does not recognise
//!   itself, drops the object and leaves it claimed; and one that comes back takes the claim of worker 2 for its own, which breaks the order.
//! * The invariant that it calls central (no more main events than entries for the object) does not hold, even if nothing
//!   ever goes wrong: an entry is dropped by a worker that is not the owner.
//! * A worker that does not come back blocks its object for ever, and so does a lost reply of `SETNX`.
//! * A worker stays with an object while events keep coming, and with an event that the backend never takes.

use std::collections::VecDeque;
use std::fmt;

use crate::explore::Model;
use crate::{Violation, ensure};

/// The published algorithm in some surroundings.
#[derive(Clone, Debug, Default)]
pub struct Published {
    /// `restart()` claims in the worker's own name.
    pub own_name: bool,
    /// For each object, its pushes: how many events each (the first is the main one).
    pub pushes: Vec<Vec<u8>>,
    /// How many workers there are. They are named 1, 2, …
    pub workers: usize,
    /// How often which fault may happen.
    pub faults: Faults,
    /// An event that the backend never takes: object and place.
    pub poison: Option<(usize, u8)>,
    /// Check the invariant that it calls central.
    pub central: bool,
    /// Check that no object waits while so many events of others are sent.
    pub patience: Option<u8>,
}

/// How often which fault may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// A worker crashes and restarts.
    pub crashes: u8,
    /// A worker crashes and does not come back.
    pub departures: u8,
    /// The reply of `SETNX` is lost.
    pub lost: u8,
}

/// An event by its place in its object's order, and whether it is a main one.
type Event = (u8, bool);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// `BRPOPLPUSH objects.with.events event.worker:W:object`
    Main,
    /// `SETNX OBJ:event.worker W`
    Claim,
    /// The script that takes the next event or releases the object.
    Next,
    /// `GET event.worker:W:event.id`, `GET OBJ:last.event.id`
    Read,
    /// `send_event` with this id and prev.
    Send(u8, u8),
    /// The transaction that forgets the event and sets the last id.
    Done,
    /// `RPOP event.worker:W:object`
    Drop,
    /// `LLEN event.worker:W:object`
    Restart,
    /// `SETNX OBJ:event.worker 2`
    RestartClaim,
    /// `GET OBJ:event.worker`, after a claim that was won or not.
    RestartOwner(bool),
    /// It does not come back.
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Worker {
    step: Step,
    object: Option<usize>,
    event: Option<Event>,
    event_id: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Object {
    events: VecDeque<Event>,
    owner: Option<u8>,
    last: u8,
    pushed: u8,
    calls: usize,
    /// Places of events and their ids, in order of first receipt.
    received: Vec<(u8, u8)>,
    /// Events of others that were sent while this one waited for a worker.
    waited: u8,
}

/// The keys of Redis, the workers' places in the program, and the backend's log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    objects: Vec<Object>,
    listed: VecDeque<usize>,
    next_id: u8,
    workers: Vec<Worker>,
    faults: Faults,
}

/// One step of somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A producer's transaction, for this object.
    Push(usize),
    /// The next command of this worker.
    Step(usize),
    /// The same for a `SETNX`, whose reply is lost, so that it is repeated.
    LoseReply(usize),
    /// A worker crashes and restarts.
    Crash(usize),
    /// A worker crashes and does not come back.
    Depart(usize),
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Push(object) => write!(formatter, "push to object {object}"),
            Self::Step(worker) => write!(formatter, "worker {} steps", worker + 1),
            Self::LoseReply(worker) => {
                write!(formatter, "worker {} claims, and the reply is lost", worker + 1)
            }
            Self::Crash(worker) => write!(formatter, "worker {} crashes", worker + 1),
            Self::Depart(worker) => write!(formatter, "worker {} crashes for good", worker + 1),
        }
    }
}

fn name(worker: usize) -> u8 {
    u8::try_from(worker + 1).unwrap_or(u8::MAX)
}

impl State {
    fn push(&mut self, object: usize, count: u8) {
        let place = &mut self.objects[object];
        place.events.extend((0..count).map(|n| (place.pushed + n, n == 0)));
        place.pushed += count;
        place.calls += 1;
        self.listed.push_back(object);
    }

    /// The next command of a worker.
    fn step(&mut self, model: &Published, number: usize) -> Result<(), Violation> {
        let mut worker = self.workers[number].clone();
        worker.step = match (worker.step, worker.object) {
            (Step::Main, _) => {
                worker.object = self.listed.pop_front();
                if worker.object.is_some() { Step::Claim } else { Step::Main }
            }
            (Step::Claim, Some(object)) => {
                if self.claim(object, name(number)) {
                    Step::Next
                } else {
                    Step::Drop
                }
            }
            (Step::Next, Some(object)) => self.next_event(object, &mut worker),
            (Step::Read, Some(object)) => Step::Send(worker.event_id, self.objects[object].last),
            (Step::Send(id, prev), Some(object)) => self.send(model, object, &worker, id, prev)?,
            (Step::Done, Some(object)) => {
                worker.event = None;
                self.objects[object].last = worker.event_id;
                Step::Next
            }
            (Step::Restart, Some(_)) => Step::RestartClaim,
            (Step::RestartClaim, Some(object)) => {
                let claimed = if model.own_name { name(number) } else { 2 };
                Step::RestartOwner(self.claim(object, claimed))
            }
            (Step::RestartOwner(won), Some(object)) => {
                let mine = if model.own_name { name(number) } else { 2 };
                match worker.event {
                    _ if !won && self.objects[object].owner != Some(mine) => Step::Drop,
                    Some(_) => Step::Read,
                    None => Step::Next,
                }
            }
            (Step::Gone, _) => Step::Gone,
            _ => {
                worker.object = None;
                Step::Main
            }
        };
        self.workers[number] = worker;
        Ok(())
    }

    /// `SETNX`
    fn claim(&mut self, object: usize, name: u8) -> bool {
        let owner = &mut self.objects[object].owner;
        let free = owner.is_none();
        owner.get_or_insert(name);
        free
    }

    fn next_event(&mut self, object: usize, worker: &mut Worker) -> Step {
        let place = &mut self.objects[object];
        match place.events.pop_front() {
            Some(event) => {
                // The worker's list could hold more than one; it looks at the newest.
                worker.event = Some(event);
                self.next_id += 1;
                worker.event_id = self.next_id;
                Step::Read
            }
            None => {
                place.owner = None;
                Step::Drop
            }
        }
    }

    fn send(
        &mut self,
        model: &Published,
        object: usize,
        worker: &Worker,
        id: u8,
        prev: u8,
    ) -> Result<Step, Violation> {
        let Some((place, _)) = worker.event else { return Ok(Step::Done) };
        if model.poison == Some((object, place)) {
            return Ok(Step::Send(id, prev));
        }
        let log = &mut self.objects[object].received;
        if log.iter().all(|(other, _)| *other != place) {
            let before = log.last().copied().unwrap_or((u8::MAX, 0));
            let follows = log.is_empty() && place == 0 || before.0.checked_add(1) == Some(place);
            ensure(follows, "O1", || format!("event {place} of object {object} comes after {log:?}"))?;
            ensure(before.1 == prev, "O3", || {
                format!("event {place} says prev {prev}, received is {log:?}")
            })?;
            log.push((place, id));
        }
        for (other, waiting) in self.objects.iter_mut().enumerate() {
            let served = self.workers.iter().any(|worker| worker.object == Some(other));
            let waits = other != object && !waiting.events.is_empty() && !served;
            waiting.waited = if waits { waiting.waited + 1 } else { 0 };
        }
        Ok(Step::Done)
    }
}

impl Model for Published {
    type State = State;
    type Action = Action;

    fn initial(&self) -> State {
        let worker = Worker { step: Step::Main, object: None, event: None, event_id: 0 };
        State {
            objects: vec![Object::default(); self.pushes.len()],
            listed: VecDeque::new(),
            next_id: 0,
            workers: vec![worker; self.workers],
            faults: self.faults,
        }
    }

    fn actions(&self, state: &State) -> Vec<Action> {
        let may_push = |object: &usize| state.objects[*object].calls < self.pushes[*object].len();
        let mut actions: Vec<_> = (0..self.pushes.len()).filter(may_push).map(Action::Push).collect();
        for (number, worker) in state.workers.iter().enumerate() {
            let idle = worker.step == Step::Main && (state.listed.is_empty() || worker.object.is_some());
            if idle || worker.step == Step::Gone {
                continue;
            }
            actions.push(Action::Step(number));
            if state.faults.crashes > 0 && worker.step != Step::Main {
                actions.push(Action::Crash(number));
            }
            if state.faults.departures > 0 && worker.step != Step::Main {
                actions.push(Action::Depart(number));
            }
            if state.faults.lost > 0 && worker.step == Step::Claim {
                actions.push(Action::LoseReply(number));
            }
        }
        actions
    }

    fn apply(&self, state: &State, action: &Action) -> Result<State, Violation> {
        let mut next = state.clone();
        match *action {
            Action::Push(object) => {
                let calls = next.objects[object].calls;
                next.push(object, self.pushes[object][calls]);
            }
            Action::Step(worker) => next.step(self, worker)?,
            Action::LoseReply(worker) => {
                next.faults.lost -= 1;
                if let Some(object) = next.workers[worker].object {
                    next.claim(object, name(worker));
                }
            }
            Action::Crash(worker) => {
                next.faults.crashes -= 1;
                next.workers[worker].step = Step::Restart;
            }
            Action::Depart(worker) => {
                next.faults.departures -= 1;
                next.workers[worker].step = Step::Gone;
            }
        }
        Ok(next)
    }

    fn check(&self, state: &State) -> Result<(), Violation> {
        for (number, object) in state.objects.iter().enumerate() {
            let mains = object.events.iter().filter(|(_, main)| *main).count();
            let listed = state.listed.iter().filter(|other| **other == number).count();
            let held = state.workers.iter().filter(|worker| worker.object == Some(number)).count();
            ensure(!self.central || mains <= listed + held, "central", || {
                format!("object {number}: {mains} main events, listed {listed} times, held by {held} workers")
            })?;
            ensure(self.patience.is_none_or(|patience| object.waited < patience), "bound", || {
                format!("object {number} waited while {} events of others were sent", object.waited)
            })?;
        }
        Ok(())
    }

    fn is_fault(&self, action: &Action) -> bool {
        !matches!(action, Action::Step(_))
    }

    /// Every event that was pushed, and is no poison, has been received.
    fn is_settled(&self, state: &State) -> bool {
        state.objects.iter().enumerate().all(|(number, object)| {
            let poisoned = self.poison.is_some_and(|(other, place)| other == number && place < object.pushed);
            object.received.len() + usize::from(poisoned) >= usize::from(object.pushed)
        })
    }

    fn describe(&self, state: &State) -> String {
        let steps: Vec<_> = state.workers.iter().map(|worker| (worker.step, worker.object)).collect();
        let mut line = format!("listed {:?}; workers {steps:?}", state.listed);
        for (number, object) in state.objects.iter().enumerate() {
            let events: Vec<_> = object.events.iter().map(|(place, _)| place).collect();
            let received: Vec<_> = object.received.iter().map(|(place, _)| place).collect();
            line += &format!("; {number}: events {events:?}, owner {:?}, got {received:?}", object.owner);
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::{WEDGE, explore};

    const LIMIT: usize = 2_000_000;

    #[track_caller]
    fn finds(model: &Published, predicate: &str) {
        let found = explore(model, LIMIT).expect_err("nothing was found");
        println!("{found}");
        assert_eq!(found.violation.predicate, predicate, "{found}");
    }

    fn one_object(pushes: &[u8], workers: usize, faults: Faults) -> Published {
        Published { own_name: true, pushes: vec![pushes.to_vec()], workers, faults, ..Published::default() }
    }

    #[test]
    fn the_literal_2_breaks_the_order() {
        // Worker 1 comes back, finds "2" where worker 2 has claimed, and takes it for itself.
        let faults = Faults { crashes: 1, ..Faults::default() };
        finds(&Published { own_name: false, ..one_object(&[1, 1], 2, faults) }, "O1");
    }

    #[test]
    fn the_literal_2_blocks_an_object_for_ever() {
        let faults = Faults { crashes: 1, ..Faults::default() };
        finds(&Published { own_name: false, ..one_object(&[1], 1, faults) }, WEDGE);
    }

    #[test]
    fn the_central_invariant_is_false_without_any_fault() {
        finds(&Published { central: true, ..one_object(&[1, 1], 2, Faults::default()) }, "central");
    }

    #[test]
    fn a_worker_that_never_comes_back_blocks_its_object_for_ever() {
        finds(&one_object(&[1], 2, Faults { departures: 1, ..Faults::default() }), WEDGE);
    }

    #[test]
    fn a_lost_reply_of_a_claim_blocks_its_object_for_ever() {
        finds(&one_object(&[1], 2, Faults { lost: 1, ..Faults::default() }), WEDGE);
    }

    #[test]
    fn a_hot_object_starves_others_for_as_long_as_it_is_hot() {
        for patience in 1..=5 {
            let hot = vec![1; usize::from(patience) + 1];
            let pushes = vec![hot, vec![1]];
            let patience = Some(patience);
            finds(
                &Published { own_name: true, pushes, workers: 1, patience, ..Published::default() },
                "bound",
            );
        }
    }

    #[test]
    fn a_poison_event_wedges_its_object() {
        let poison = Some((0, 0));
        finds(&Published { poison, ..one_object(&[2], 2, Faults::default()) }, WEDGE);
    }

    #[test]
    fn a_poison_event_wedges_its_worker_for_other_objects() {
        let pushes = vec![vec![1], vec![1]];
        let model =
            Published { own_name: true, pushes, workers: 1, poison: Some((0, 0)), ..Published::default() };
        finds(&model, WEDGE);
    }

    #[test]
    fn with_its_own_name_a_worker_that_comes_back_keeps_order_and_finishes() {
        let pushes = vec![vec![2, 1], vec![1]];
        let faults = Faults { crashes: 2, ..Faults::default() };
        let model = Published { own_name: true, pushes, workers: 2, faults, ..Published::default() };
        match explore(&model, LIMIT) {
            Ok(report) => println!("published sequencer, own name: {report}"),
            Err(found) => panic!("{found}"),
        }
    }
}
