//! The scripts on a real Redis against a model in memory: for any order of worker calls, with lost replies, expired
//! leases and returning workers, both give the same answers and every predicate holds after every step.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::support::*;
use crate::store::{Committed, Failed, Held};
use signalbox_bus::OnFailure;

const OBJECTS: usize = 4;
const WORKERS: usize = 3;

#[derive(Debug, Clone)]
enum Step {
    Publish {
        object: usize,
        events: usize,
    },
    Take {
        worker: usize,
        lost: bool,
    },
    Commit {
        worker: usize,
        more: bool,
        lost: bool,
    },
    Retry {
        worker: usize,
        lost: bool,
    },
    Park {
        worker: usize,
    },
    Skip {
        worker: usize,
    },
    Release {
        worker: usize,
    },
    Beat {
        worker: usize,
    },
    /// A worker that lost its lease acts as if it still held it.
    Zombie {
        which: usize,
        skip: bool,
    },
    Decide {
        object: usize,
        skip: bool,
    },
    Advance(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let worker = 0..WORKERS;
    let object = 0..OBJECTS;
    prop_oneof![
        4 => (object.clone(), 1..4_usize).prop_map(|(object, events)| Step::Publish { object, events }),
        6 => (worker.clone(), any::<bool>()).prop_map(|(worker, lost)| Step::Take { worker, lost }),
        6 => (worker.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(worker, more, lost)| Step::Commit { worker, more, lost }),
        2 => (worker.clone(), any::<bool>()).prop_map(|(worker, lost)| Step::Retry { worker, lost }),
        1 => worker.clone().prop_map(|worker| Step::Park { worker }),
        1 => worker.clone().prop_map(|worker| Step::Skip { worker }),
        1 => worker.clone().prop_map(|worker| Step::Release { worker }),
        1 => worker.prop_map(|worker| Step::Beat { worker }),
        2 => (0..8_usize, any::<bool>()).prop_map(|(which, skip)| Step::Zombie { which, skip }),
        2 => (object, any::<bool>()).prop_map(|(object, skip)| Step::Decide { object, skip }),
        2 => prop_oneof![Just(1_000), Just(LEASE_MS - 1), Just(LEASE_MS)].prop_map(Step::Advance),
    ]
}

#[derive(Debug, Clone, PartialEq)]
enum State {
    Idle,
    Ready,
    Leased { worker: usize, until: u64 },
    Retry { at: u64 },
    Parked,
}

#[derive(Debug, Clone)]
struct Object {
    queue: VecDeque<u64>,
    flight: Option<u64>,
    state: State,
    attempts: u32,
    gaps: Vec<u64>,
}

struct Model {
    world: World,
    now: u64,
    objects: Vec<Object>,
    /// Objects that can be leased, the next one first.
    ready: VecDeque<usize>,
    /// The lease and event that each worker assumes it holds.
    held: BTreeMap<usize, (Held, u64)>,
    zombies: Vec<(Held, u64)>,
    accepted: Vec<Vec<u64>>,
    sent: Vec<Vec<u64>>,
    dead: Vec<Vec<u64>>,
    epoch: u64,
}

fn name(object: usize) -> String {
    format!("work:{object}")
}

fn worker_name(worker: usize) -> String {
    format!("w{worker}")
}

impl Model {
    async fn new() -> Self {
        let world = World::start().await;
        world.backend("search", "work:", OnFailure::Block).await;
        let object = Object {
            queue: VecDeque::new(),
            flight: None,
            state: State::Idle,
            attempts: 0,
            gaps: Vec::new(),
        };
        Self {
            world,
            now: START_MS,
            objects: vec![object; OBJECTS],
            ready: VecDeque::new(),
            held: BTreeMap::new(),
            zombies: Vec::new(),
            accepted: vec![Vec::new(); OBJECTS],
            sent: vec![Vec::new(); OBJECTS],
            dead: vec![Vec::new(); OBJECTS],
            epoch: 0,
        }
    }

    fn make_ready(&mut self, object: usize) {
        self.objects[object].state = State::Ready;
        self.ready.push_back(object);
    }

    /// After an event was sent or released: the object is ready if an event waits, otherwise idle.
    fn settle(&mut self, object: usize) {
        if self.objects[object].queue.is_empty() {
            self.objects[object].state = State::Idle;
        } else {
            self.make_ready(object);
        }
    }

    fn put_back(&mut self, object: usize) {
        if let Some(id) = self.objects[object].flight.take() {
            self.objects[object].queue.push_front(id);
        }
    }

    /// Sweeps expired leases in the order of their expiry, then due retries in the order of their times; ties
    /// are ordered by name.
    fn sweep(&mut self) {
        let now = self.now;
        let due = |time: fn(&State) -> Option<u64>, objects: &[Object]| {
            let mut due: Vec<(u64, usize)> = objects
                .iter()
                .enumerate()
                .filter_map(|(place, one)| Some((time(&one.state)?, place)))
                .filter(|(at, _)| *at <= now)
                .collect();
            due.sort_unstable();
            due
        };
        let leased = |state: &State| match state {
            State::Leased { until, .. } => Some(*until),
            _ => None,
        };
        let retry = |state: &State| match state {
            State::Retry { at } => Some(*at),
            _ => None,
        };
        for (_, object) in due(leased, &self.objects) {
            self.put_back(object);
            self.objects[object].attempts += 1;
            self.settle(object);
            // Its worker has not noticed yet.
            let name = name(object);
            let holder =
                self.held.iter().find(|(_, (held, _))| held.object == name).map(|(worker, _)| *worker);
            if let Some(worker) = holder {
                self.zombies.extend(self.held.remove(&worker));
            }
        }
        for (_, object) in due(retry, &self.objects) {
            self.make_ready(object);
        }
    }

    async fn act(&mut self, step: &Step) {
        match *step {
            Step::Publish { object, events } => self.publish(object, events).await,
            Step::Take { worker, lost } => self.take(worker, lost).await,
            Step::Commit { worker, more, lost } => self.commit(worker, more, lost).await,
            Step::Retry { worker, lost } => self.retry(worker, lost).await,
            Step::Park { worker } => self.end(worker, &Failed::Park).await,
            Step::Skip { worker } => self.end(worker, &Failed::Skip).await,
            Step::Release { worker } => self.end(worker, &Failed::Release).await,
            Step::Beat { worker } => self.beat(worker).await,
            Step::Zombie { which, skip } => self.zombie(which, skip).await,
            Step::Decide { object, skip } => self.decide(object, skip).await,
            Step::Advance(ms) => {
                self.now += ms;
                self.world.advance(ms);
            }
        }
    }

    async fn publish(&mut self, object: usize, events: usize) {
        let ids = self.world.publish(&name(object), events).await;
        self.accepted[object].extend(&ids);
        self.objects[object].queue.extend(ids);
        if self.objects[object].state == State::Idle {
            self.make_ready(object);
        }
    }

    /// The object that a worker holds, unless its lease was swept.
    fn holds(&self, worker: usize) -> Option<usize> {
        self.objects
            .iter()
            .position(|one| matches!(one.state, State::Leased { worker: holder, .. } if holder == worker))
    }

    async fn take(&mut self, worker: usize, lost: bool) {
        let mut taken = self.world.take("search", &worker_name(worker)).await;
        self.sweep();
        if lost {
            taken = self.world.take("search", &worker_name(worker)).await;
        }
        let until = self.now + LEASE_MS;
        let expected = self.holds(worker).or_else(|| self.ready.pop_front());
        let Some(object) = expected else {
            assert_eq!(taken, None);
            return;
        };
        let taken = taken.expect("an object is ready");
        let one = &mut self.objects[object];
        if one.flight.is_none() {
            one.flight = one.queue.pop_front();
            assert!(taken.held.epoch > self.epoch, "epochs rise");
            self.epoch = taken.held.epoch;
        }
        one.state = State::Leased { worker, until };
        assert_eq!(taken.held.object, name(object));
        assert_eq!(Some(taken.sending.id()), one.flight);
        assert_eq!(taken.sending.attempts, one.attempts);
        assert_eq!(taken.sending.gaps.len(), one.gaps.len());
        self.held.insert(worker, (taken.held, taken.sending.id()));
    }

    async fn commit(&mut self, worker: usize, more: bool, lost: bool) {
        let Some((held, id)) = self.held.remove(&worker) else { return };
        let object = self.holds(worker).expect("a lease that was not swept is valid");
        let reported = self.objects[object].gaps.len();
        let mut reply = self.world.commit(&held, id, reported, more).await;
        if lost {
            let again = self.world.commit(&held, id, reported, more).await;
            // After a release the lease is invalid; after a continuation the reply is the same.
            let expected = if reply == Committed::Done { Committed::Lost } else { reply.clone() };
            assert_eq!(again, expected);
            if again != Committed::Lost {
                reply = again;
            }
        }
        self.sent[object].push(id);
        let one = &mut self.objects[object];
        (one.flight, one.attempts) = (None, 0);
        one.gaps.clear();
        let next = if more { one.queue.pop_front() } else { None };
        match next {
            Some(next) => {
                one.flight = Some(next);
                one.state = State::Leased { worker, until: self.now + LEASE_MS };
                let Committed::Next(sending) = reply else { panic!("{reply:?}") };
                assert_eq!(sending.id(), next);
                self.held.insert(worker, (held, next));
            }
            None => {
                assert_eq!(reply, Committed::Done);
                self.settle(object);
                self.zombies.push((held, id));
            }
        }
    }

    async fn retry(&mut self, worker: usize, lost: bool) {
        let failed = Failed::Retry { pause_ms: 1_000 };
        if let Some((held, id)) = self.held.get(&worker).cloned() {
            self.end(worker, &failed).await;
            assert!(!lost || !self.world.fail(&held, id, &failed).await, "a repeat finds nothing");
        }
    }

    async fn end(&mut self, worker: usize, failed: &Failed) {
        let Some((held, id)) = self.held.remove(&worker) else { return };
        let object = self.holds(worker).expect("a lease that was not swept is valid");
        assert!(self.world.fail(&held, id, failed).await);
        self.zombies.push((held, id));
        if *failed == Failed::Skip {
            self.bury(object, id);
            self.objects[object].flight = None;
            return self.settle(object);
        }
        self.put_back(object);
        let one = &mut self.objects[object];
        match failed {
            Failed::Release => return self.settle(object),
            Failed::Park => one.state = State::Parked,
            _ => one.state = State::Retry { at: self.now + 1_000 },
        }
        one.attempts += 1;
    }

    fn bury(&mut self, object: usize, id: u64) {
        self.dead[object].push(id);
        self.objects[object].gaps.push(id);
        self.objects[object].attempts = 0;
    }

    async fn beat(&mut self, worker: usize) {
        let Some((held, _)) = self.held.get(&worker) else { return };
        assert_eq!(self.world.stores[0].beat(std::slice::from_ref(held), LEASE_MS).await.unwrap(), 1);
        let object = self.holds(worker).expect("a lease that was not swept is valid");
        self.objects[object].state = State::Leased { worker, until: self.now + LEASE_MS };
    }

    async fn zombie(&mut self, which: usize, skip: bool) {
        let Some((held, id)) = self.zombies.iter().rev().nth(which) else { return };
        if skip {
            assert!(!self.world.fail(held, *id, &Failed::Skip).await);
        } else {
            assert_eq!(self.world.commit(held, *id, 0, true).await, Committed::Lost);
        }
    }

    async fn decide(&mut self, object: usize, skip: bool) {
        let head = self.objects[object].queue.front().copied().unwrap_or_default();
        let word = if skip {
            self.world.skip(&name(object), head).await
        } else {
            self.world.unpark(&name(object)).await
        };
        let one = &mut self.objects[object];
        match one.state {
            State::Idle => assert_eq!(word, "idle"),
            State::Ready => assert_eq!(word, "ready"),
            State::Leased { .. } => assert_eq!(word, "leased"),
            State::Retry { .. } | State::Parked => {
                assert_eq!(word, "done");
                one.attempts = 0;
                if skip && let Some(id) = one.queue.pop_front() {
                    self.bury(object, id);
                }
                self.settle(object);
            }
        }
    }

    /// O9: accepted events are sent, dropped, waiting or in flight, in that order.
    async fn accounted(&self) {
        for (object, one) in self.objects.iter().enumerate() {
            let mut gone: Vec<u64> = self.sent[object].iter().chain(&self.dead[object]).copied().collect();
            gone.sort_unstable();
            gone.extend(one.flight);
            gone.extend(&one.queue);
            assert_eq!(gone, self.accepted[object]);
            let Some(status) = self.world.stores[0].status(&name(object)).await.unwrap() else {
                assert!(self.accepted[object].is_empty());
                continue;
            };
            assert_eq!(status.queued, (one.queue.len() + usize::from(one.flight.is_some())) as u64);
            assert_eq!(status.in_flight, one.flight);
            assert_eq!(status.attempts, u64::from(one.attempts));
            assert_eq!(status.parked, one.state == State::Parked);
            assert_eq!(status.next_try_at.is_some(), matches!(one.state, State::Retry { .. }));
            assert_eq!(status.backend.is_some(), one.state != State::Idle);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn queues_of_objects_behave_like_their_model(steps in proptest::collection::vec(step(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut model = Model::new().await;
            for step in &steps {
                model.act(step).await;
                model.world.expect_consistent(&format!("{step:?}")).await;
                model.accounted().await;
            }
        });
    }
}
