//! The real scripts against the reference of the protocol model: the same calls to both, then their complete contents
//! are compared. So the properties that the model explores in every state hold for the scripts.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*, test_runner::Config};
use signalbox_api::Time;
use signalbox_protocol_model::sequencer::{
    Committed as Expected, NewEvent, Place, Reference, Settings, Skipped, Standing, Taken as Given,
};

use super::support::*;
use crate::store::{Committed, Failed, Held, Sending};
use signalbox_bus::OnFailure;

const OBJECTS: u32 = 3;
const WORKERS: u32 = 3;
const QUANTUM: u32 = 3;
const PAUSE_MS: u64 = 1_500;
const READY: &str = "object:objects.with.events@search";

#[derive(Debug, Clone)]
enum Step {
    Accept(u32, usize),
    /// A worker requests an object, possibly while it holds one after a lost reply.
    Take(u32),
    /// A worker's event was accepted. The commit is repeated if its reply was lost.
    Commit(u32, bool),
    Fail(u32),
    Park(u32),
    Beat(u32),
    /// A worker acts on an expired lease: the one that was lost this many leases ago.
    Stale(usize),
    Unpark(u32),
    Skip(u32),
    /// An operator names an event that is not at the head.
    SkipAnother(u32),
    Advance(u64),
    FlushScripts,
}

fn step() -> impl Strategy<Value = Step> {
    let (object, worker) = (|| 0..OBJECTS, || 0..WORKERS);
    prop_oneof![
        6 => (object(), 1..4usize).prop_map(|(object, events)| Step::Accept(object, events)),
        8 => worker().prop_map(Step::Take),
        8 => (worker(), prop::bool::weighted(0.2)).prop_map(|(worker, lost)| Step::Commit(worker, lost)),
        3 => worker().prop_map(Step::Fail),
        2 => worker().prop_map(Step::Park),
        1 => worker().prop_map(Step::Beat),
        2 => (0..6usize).prop_map(Step::Stale),
        2 => object().prop_map(Step::Unpark),
        2 => object().prop_map(Step::Skip),
        1 => object().prop_map(Step::SkipAnother),
        3 => prop_oneof![Just(PAUSE_MS), Just(LEASE_MS - 1), Just(LEASE_MS)].prop_map(Step::Advance),
        1 => Just(Step::FlushScripts),
    ]
}

/// A worker's lease in both implementations, and how much of its visit is done.
#[derive(Debug, Clone)]
struct Holding {
    held: Held,
    sending: Sending,
    object: u32,
    epoch: u64,
    served: u32,
}

struct Both {
    world: World,
    reference: Reference,
    holding: BTreeMap<u32, Holding>,
    over: Vec<(u32, Holding)>,
}

fn name(object: u32) -> String {
    format!("work:{object}")
}

fn place(name: &str) -> u32 {
    name.trim_start_matches("work:").parse().unwrap()
}

impl Both {
    async fn new() -> Self {
        let world = World::start().await;
        world.backend("search", "work:", OnFailure::Block).await;
        let settings = Settings { quantum: QUANTUM, capacity: 1_000, lease_ms: LEASE_MS as i64 };
        Self { world, reference: Reference::new(settings), holding: BTreeMap::new(), over: Vec::new() }
    }

    fn now(&self) -> i64 {
        self.world.clock.load(std::sync::atomic::Ordering::SeqCst) as i64
    }

    async fn ready(&self) -> Vec<u32> {
        strings(&self.world.redis, "ZRANGE", &[READY, "0", "-1"])
            .await
            .iter()
            .map(|name| place(name))
            .collect()
    }

    /// A take without free workers only sweeps.
    async fn sweep(&mut self) {
        self.world.stores[0].take(&[], LEASE_MS, 100).await.unwrap();
        let swept = self.reference.sweep(self.now());
        let ready = self.ready().await;
        self.reference.agree(&swept, &ready).unwrap_or_else(|difference| panic!("{difference}"));
        let over: Vec<u32> = self
            .holding
            .iter()
            .filter(|(worker, _)| self.reference.held_by(**worker).is_none())
            .map(|(worker, _)| *worker)
            .collect();
        for worker in over {
            self.ends(worker);
        }
    }

    fn ends(&mut self, worker: u32) {
        self.over.extend(self.holding.remove(&worker).map(|holding| (worker, holding)));
    }

    async fn run(&mut self, step: &Step) {
        let now = self.now();
        match *step {
            Step::Accept(object, events) => {
                let ids = self.world.publish(&name(object), events).await;
                let events: Vec<NewEvent> = ids.iter().map(|id| NewEvent { id: *id, topic: 0 }).collect();
                self.reference.accept(object, &events).unwrap();
            }
            Step::Take(worker) => self.take(worker).await,
            Step::Commit(worker, lost) => self.commit(worker, lost).await,
            Step::Fail(worker) => {
                let Some(one) = self.holding.get(&worker).cloned() else { return };
                let id = one.sending.id();
                assert!(self.world.fail(&one.held, id, &Failed::Retry { pause_ms: PAUSE_MS }).await);
                let at = now + PAUSE_MS as i64;
                assert_eq!(self.reference.fail(worker, one.object, one.epoch, id, at), Expected::Released);
                self.ends(worker);
            }
            Step::Park(worker) => {
                let Some(one) = self.holding.get(&worker).cloned() else { return };
                let id = one.sending.id();
                assert!(self.world.fail(&one.held, id, &Failed::Park).await);
                assert_eq!(self.reference.park(worker, one.object, one.epoch, id), Expected::Released);
                self.ends(worker);
            }
            Step::Beat(worker) => {
                let Some(one) = self.holding.get(&worker) else { return };
                let beat =
                    self.world.stores[0].beat(std::slice::from_ref(&one.held), LEASE_MS).await.unwrap();
                assert_eq!(beat == 1, self.reference.renew(worker, one.object, one.epoch, now));
            }
            Step::Stale(which) => {
                let Some((worker, one)) = self.over.iter().rev().nth(which).cloned() else { return };
                let id = one.sending.id();
                assert_eq!(self.world.commit(&one.held, id, 0, true).await, Committed::Lost);
                assert_eq!(self.reference.commit(worker, one.object, one.epoch, id, now), Expected::Stale);
            }
            Step::Unpark(object) => {
                // The real one also ends the pause of a retry, which the reference cannot do.
                if matches!(self.reference.standing(object), Standing::Retry(_)) {
                    return;
                }
                let done = self.world.unpark(&name(object)).await == "done";
                assert_eq!(done, self.reference.unpark(object) == Skipped::Done);
            }
            Step::Skip(object) => {
                let head = self.reference.queued(object).first().map_or(1, |event| event.id);
                let done = self.world.skip(&name(object), head).await == "done";
                assert_eq!(done, self.reference.skip(object, head) == Skipped::Done);
            }
            Step::SkipAnother(object) => {
                let another = self.reference.queued(object).get(1).map_or(1, |event| event.id);
                assert_ne!(self.world.skip(&name(object), another).await, "done");
                assert_eq!(self.reference.skip(object, another), Skipped::Refused);
            }
            Step::Advance(ms) => self.world.advance(ms),
            Step::FlushScripts => self.world.redis.command("SCRIPT").arg("FLUSH").run().await.unwrap(),
        }
    }

    async fn take(&mut self, worker: u32) {
        self.sweep().await;
        let got = self.world.take("search", &format!("w{worker}")).await;
        let expected = self.reference.take(worker, self.now());
        let Some(visit) = expected.visit() else {
            assert_eq!(got, None);
            return;
        };
        let got = got.expect("an object");
        assert_eq!((place(&got.held.object), got.sending.id()), (visit.object, visit.event.id));
        assert_eq!(got.sending.attempts + 1, visit.attempts);
        self.same_gap(&got.sending, visit.gap.map(|gap| (gap.first, gap.last, gap.count)));
        let before = self.holding.get(&worker);
        let served = before.map_or(0, |before| before.served);
        if let Given::Own(_) = expected {
            assert_eq!(
                before.map(|before| &before.held),
                Some(&got.held),
                "its own lease, under its own epoch"
            );
            self.reference.renew(worker, visit.object, visit.epoch, self.now());
        }
        let holding = Holding {
            held: got.held,
            sending: got.sending,
            object: visit.object,
            epoch: visit.epoch,
            served,
        };
        self.holding.insert(worker, holding);
    }

    async fn commit(&mut self, worker: u32, lost: bool) {
        let Some(one) = self.holding.get(&worker).cloned() else { return };
        let (id, reported, more) = (one.sending.id(), one.sending.gaps.len(), one.served + 1 < QUANTUM);
        let mut got = self.world.commit(&one.held, id, reported, more).await;
        if lost {
            let again = self.world.commit(&one.held, id, reported, more).await;
            let wanted = if got == Committed::Done { Committed::Lost } else { got.clone() };
            assert_eq!(again, wanted);
        }
        match (self.reference.commit(worker, one.object, one.epoch, id, self.now()), &mut got) {
            (Expected::Next(visit), Committed::Next(sending)) => {
                assert_eq!((sending.id(), sending.attempts + 1), (visit.event.id, visit.attempts));
                self.same_gap(sending, visit.gap.map(|gap| (gap.first, gap.last, gap.count)));
                let holding = Holding { sending: sending.clone(), served: one.served + 1, ..one };
                self.holding.insert(worker, holding);
            }
            (Expected::Released, Committed::Done) => self.ends(worker),
            (expected, got) => panic!("{got:?}, expected {expected:?}"),
        }
    }

    /// The reference has one gap where the scripts have several.
    fn same_gap(&self, sending: &Sending, gap: Option<(u64, u64, u32)>) {
        let words = |text: &String| -> Vec<u64> {
            text.split(' ').take(3).map(|word| word.parse().unwrap()).collect()
        };
        let gaps: Vec<Vec<u64>> = sending.gaps.iter().map(words).collect();
        let merged = gaps.first().zip(gaps.last()).map(|(first, last)| {
            (first[0], last[1], u32::try_from(gaps.iter().map(|gap| gap[2]).sum::<u64>()).unwrap())
        });
        assert_eq!(merged, gap);
    }

    async fn compare(&self, when: &str) {
        self.world.expect_consistent(when).await;
        self.reference.check().unwrap_or_else(|violation| panic!("{when}: {violation}"));
        assert_eq!(self.ready().await, self.reference.ready(), "{when}: ready objects");
        let mut dead = Vec::new();
        for object in 0..OBJECTS {
            let status = self.world.stores[0].status(&name(object)).await.unwrap();
            let standing = match &status {
                Some(one) if one.lease_until.is_some() => Standing::Leased,
                Some(one) if one.parked => Standing::Parked,
                Some(one) if one.next_try_at.is_some() => {
                    Standing::Retry(one.next_try_at.map_or(0, Time::ms) as i64)
                }
                Some(one) if one.backend.is_some() => Standing::Ready,
                _ => Standing::Idle,
            };
            assert_eq!(standing, self.reference.standing(object), "{when}: {object}");
            let list = format!("object:{}:events", name(object));
            let id = |entry: &String| entry[6..].split(',').next().unwrap().parse::<u64>().unwrap();
            let queued: Vec<u64> =
                strings(&self.world.redis, "LRANGE", &[&list, "0", "-1"]).await.iter().map(id).collect();
            let wanted: Vec<u64> = self.reference.queued(object).iter().map(|event| event.id).collect();
            assert_eq!(queued, wanted, "{when}: waiting events of {object}");
            assert_eq!(
                status.and_then(|status| status.in_flight),
                self.reference.visit(object).map(|visit| visit.event.id),
                "{when}: in flight of {object}"
            );
            dead.extend(self.reference.events_in(object, Place::Dead));
        }
        dead.sort_unstable();
        let mut letters: Vec<u64> = self
            .world
            .handle()
            .dead("search", 1_000)
            .await
            .unwrap()
            .iter()
            .map(|one| one.event.get()[6..].split(',').next().unwrap().parse().unwrap())
            .collect();
        letters.sort_unstable();
        // The oldest letters were dropped.
        let kept = letters.len();
        assert!(kept == dead.len() || kept == 5, "{when}: {letters:?} of {dead:?}");
        assert!(letters.iter().all(|id| dead.contains(id)), "{when}: {letters:?} of {dead:?}");
    }
}

fn cases(default: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn the_scripts_do_what_the_reference_does() {
    // For a longer run: PROPTEST_CASES=1000.
    let config = Config { failure_persistence: None, max_shrink_iters: 100, ..Config::with_cases(cases(12)) };
    proptest!(config, |(steps in vec(step(), 1..60))| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut both = Both::new().await;
            for (place, step) in steps.iter().enumerate() {
                both.run(step).await;
                both.compare(&format!("step {place}, {step:?}")).await;
            }
        });
    });
}
