//! Lanes and jobs against a model: random publishes, takes, acknowledgements, failures, crashes, scrubs, lost replies,
//! drops and changes of concurrency, with everything checked after every step.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*, test_runner::Config};

use super::{hands::*, support::*, truth::assert_true};
use crate::store::{PublishReply, Taken, Target};
use signalbox_store::FabricRole;
use signalbox_testkit::Server;

#[derive(Debug, Clone)]
enum Step {
    /// Objects and topics; with a lost reply the call is sent twice.
    Publish(Vec<(usize, usize)>, bool),
    /// A worker asks; with a lost reply it asks twice.
    Take(usize, bool),
    /// It acknowledges; with a lost reply, twice.
    Ack(usize, bool),
    /// It fails: pause and whether to halve.
    Nack(usize, u64, bool),
    Bury(usize),
    /// It dies silently. The work it held lives on as a zombie that may still try to commit.
    Crash(usize),
    /// A dead worker is detected (and living ones are not scrubbed).
    Scrub(usize),
    Zombie,
    Drop(usize),
    Concurrency(usize, u64),
    Advance(u64),
    FlushScripts,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (vec((0..5usize, 0..2usize), 1..12), any::<bool>()).prop_map(|(what, lost)| Step::Publish(what, lost)),
        10 => (0..4usize, prop::bool::weighted(0.2)).prop_map(|(worker, lost)| Step::Take(worker, lost)),
        8 => (0..4usize, prop::bool::weighted(0.2)).prop_map(|(worker, lost)| Step::Ack(worker, lost)),
        4 => (0..4usize, 0..2_000u64, any::<bool>()).prop_map(|(worker, pause, split)| Step::Nack(worker, pause, split)),
        1 => (0..4usize).prop_map(Step::Bury),
        2 => (0..4usize).prop_map(Step::Crash),
        3 => (0..4usize).prop_map(Step::Scrub),
        2 => Just(Step::Zombie),
        1 => (0..2usize).prop_map(Step::Drop),
        1 => (0..2usize, 1..4u64).prop_map(|(who, lanes)| Step::Concurrency(who, lanes)),
        4 => (0..1_500u64).prop_map(Step::Advance),
        1 => Just(Step::FlushScripts),
    ]
}

/// The events that one subscriber has received and lost.
#[derive(Default)]
struct Seen {
    received: BTreeSet<u64>,
    acknowledged: BTreeSet<u64>,
    /// Object → the highest id received.
    highest: BTreeMap<String, u64>,
    gone: u64,
    /// Ranges that were reported to it.
    gaps: Vec<String>,
}

struct Model {
    hands: Hands,
    /// Every accepted id: its object and topic.
    accepted: BTreeMap<u64, (String, usize)>,
    last: BTreeMap<String, u64>,
    last_of_topic: BTreeMap<(String, usize), u64>,
    held: BTreeMap<usize, Taken>,
    /// Workers that died, with what they held and still hold until they are scrubbed.
    dead_workers: BTreeMap<usize, Taken>,
    zombies: Vec<Taken>,
    seen: BTreeMap<String, Seen>,
    generation: u64,
}

const TOKENS: [&str; 2] = ["a", "b"];

impl Model {
    async fn new(server: &Server) -> Self {
        server.open::<FabricRole>().command("FLUSHALL").run().await.unwrap();
        let targets = vec![subscriber("a", 2, 3, 500), subscriber("b", 1, 2, 0)];
        let mut hands = Hands::new(server, targets).await;
        hands.fan_out.topics = vec![("t".into(), vec![0, 1]), ("u".into(), vec![0])];
        Self {
            hands,
            accepted: BTreeMap::new(),
            last: BTreeMap::new(),
            last_of_topic: BTreeMap::new(),
            held: BTreeMap::new(),
            dead_workers: BTreeMap::new(),
            zombies: Vec::new(),
            seen: TOKENS.into_iter().map(|token| (token.to_owned(), Seen::default())).collect(),
            generation: 1,
        }
    }

    async fn run(&mut self, step: &Step) {
        match step {
            Step::Publish(what, lost) => self.publish(what, *lost).await,
            Step::Take(worker, lost) => self.take(*worker, *lost).await,
            Step::Ack(worker, lost) => {
                if let Some(taken) = self.held.remove(worker) {
                    assert!(self.hands.ack(&taken).await, "a living worker holds its job");
                    self.acknowledged(&taken);
                    if *lost {
                        assert!(!self.hands.ack(&taken).await, "the second time there is nothing to do");
                    }
                }
            }
            Step::Nack(worker, pause, split) => {
                if let Some(taken) = self.held.remove(worker) {
                    assert!(self.hands.nack(&taken, *pause, *split).await);
                    assert!(!self.hands.nack(&taken, 0, true).await, "a repeat finds nothing to do");
                }
            }
            Step::Bury(worker) => {
                if let Some(taken) = self.held.remove(worker) {
                    assert!(self.hands.bury(&taken).await);
                    assert!(!self.hands.bury(&taken).await, "a repeat finds nothing to do");
                    self.seen.get_mut(&taken.held.token).unwrap().gone += taken.items.len() as u64;
                }
            }
            Step::Crash(worker) => {
                if let Some(taken) = self.held.remove(worker) {
                    self.dead_workers.insert(*worker, taken.clone());
                    self.zombies.push(taken);
                }
            }
            Step::Scrub(worker) => self.scrub(*worker).await,
            Step::Zombie => self.zombie().await,
            Step::Drop(who) => {
                let dropped = self.hands.store.drop_oldest(TOKENS[*who], "limit").await.unwrap();
                self.seen.get_mut(TOKENS[*who]).unwrap().gone += dropped.unwrap_or_default();
            }
            Step::Concurrency(who, lanes) => {
                self.generation += 1;
                let old = self.hands.fan_out.targets[*who].clone();
                self.hands.fan_out.targets[*who] =
                    Target { generation: self.generation, concurrency: *lanes, ..old };
            }
            Step::Advance(ms) => self.hands.time.advance(*ms),
            Step::FlushScripts => {
                self.hands.store.shard().redis().command("SCRIPT").arg("FLUSH").run().await.unwrap();
            }
        }
    }

    async fn publish(&mut self, what: &[(usize, usize)], lost: bool) {
        let events: Vec<_> =
            what.iter().map(|(object, topic)| (*topic, event(&format!("https://o/{object}")))).collect();
        let accepted = self.hands.publish(&events).await;
        if lost {
            let again = self.hands.send(&events).await.unwrap();
            let PublishReply::Accepted(again) = again else { panic!("{again:?}") };
            assert_eq!(again.len(), accepted.len());
            for (first, second) in accepted.iter().zip(&again) {
                assert_eq!(*second, crate::store::Accepted::New(vec![*first]));
            }
        }
        for ((id, prev, tprev), (object, topic)) in accepted.into_iter().zip(what) {
            let object = format!("https://o/{object}");
            assert!(self.accepted.keys().next_back().is_none_or(|last| *last < id.0), "ids rise");
            assert_eq!(prev.map(|id| id.0), self.last.insert(object.clone(), id.0));
            assert_eq!(tprev.map(|id| id.0), self.last_of_topic.insert((object.clone(), *topic), id.0));
            self.accepted.insert(id.0, (object, *topic));
        }
    }

    async fn take(&mut self, worker: usize, lost: bool) {
        if self.held.contains_key(&worker) || self.dead_workers.contains_key(&worker) {
            return;
        }
        let name = format!("w{worker}");
        let turn = self.hands.turn(&[&name]).await;
        let Some(taken) = turn.taken.first() else { return };
        if lost {
            let again = self.hands.turn(&[&name]).await;
            assert_eq!(again.taken.first(), Some(taken));
        }
        let lane = |taken: &Taken| {
            (taken.held.token.clone(), taken.held.generation.clone(), taken.held.lane.clone())
        };
        for other in self.held.values() {
            assert_ne!(lane(other), lane(taken), "a lane has one batch in flight");
        }
        let seen = self.seen.get_mut(&taken.held.token).unwrap();
        for item in &taken.items {
            let id: u64 = item.parse().unwrap();
            let (object, _) = &self.accepted[&id];
            if seen.received.insert(id) {
                let before = seen.highest.insert(object.clone(), id).unwrap_or_default();
                assert!(before < id, "first deliveries of {object} in id order: {id} after {before}");
            }
        }
        self.held.insert(worker, taken.clone());
    }

    fn acknowledged(&mut self, taken: &Taken) {
        let seen = self.seen.get_mut(&taken.held.token).unwrap();
        seen.acknowledged.extend(taken.items.iter().map(|item| item.parse::<u64>().unwrap()));
        seen.gaps.extend(taken.gaps.iter().cloned());
    }

    async fn scrub(&mut self, worker: usize) {
        if self.dead_workers.remove(&worker).is_none() {
            return;
        }
        let name = format!("w{worker}");
        let beats = self.hands.store.heartbeats().await.unwrap();
        let (_, seen) = beats.into_iter().find(|(busy, _)| *busy == name).expect("it holds a job");
        assert_eq!(self.hands.store.scrub(&name, &seen).await.unwrap(), Some(1));
        assert_eq!(self.hands.store.scrub(&name, "").await.unwrap(), Some(0), "a repeat finds nothing to do");
    }

    /// A worker that was declared dead returns with its outcome. Before it is scrubbed it is only late; after that it
    /// commits nothing, unless it holds the very same batch again: then it was sent again in its name.
    async fn zombie(&mut self) {
        let Some(taken) = self.zombies.pop() else { return };
        let worker: usize = taken.held.worker.trim_start_matches('w').parse().unwrap();
        let holds = self.held.get(&worker).or(self.dead_workers.get(&worker)).cloned();
        let holds = holds.filter(|holds| holds.held == taken.held);
        let done = self.hands.ack(&taken).await;
        assert_eq!(done, holds.is_some(), "only the holder of the batch commits");
        if let Some(holds) = holds {
            self.held.remove(&worker);
            self.dead_workers.remove(&worker);
            self.acknowledged(&holds);
        }
    }

    /// Delivers everything that is left, and checks what each subscriber received.
    async fn finish(&mut self) {
        for worker in 0..4 {
            Box::pin(self.run(&Step::Ack(worker, false))).await;
            self.scrub(worker).await;
        }
        for _ in 0..2_000 {
            self.hands.time.advance(3_000);
            Box::pin(self.run(&Step::Take(0, false))).await;
            if self.held.is_empty() {
                break;
            }
            Box::pin(self.run(&Step::Ack(0, false))).await;
        }
        let redis = self.hands.store.shard().redis().clone();
        assert_true(&redis, "everything").await;
        assert_eq!(number(&redis, "ZCARD", &["bus:batches:index"]).await, 0, "nothing waits any more");
        for (token, seen) in &self.seen {
            let topics = if token == "a" { 0..2 } else { 0..1 };
            let wanted: BTreeSet<u64> = self
                .accepted
                .iter()
                .filter(|(_, (_, topic))| topics.contains(topic))
                .map(|(id, _)| *id)
                .collect();
            let missing: Vec<u64> = wanted.difference(&seen.acknowledged).copied().collect();
            assert!(seen.acknowledged.is_subset(&wanted));
            assert_eq!(missing.len() as u64, seen.gone, "{token}: missing events were dropped");
            let mut gaps: Vec<_> = seen.gaps.iter().map(|gap| crate::Gap::from_words(gap).unwrap()).collect();
            for key in strings(&redis, "KEYS", &[&format!("bus:gaps:{token}:*")]).await {
                let untold = strings(&redis, "LRANGE", &[&key, "0", "-1"]).await;
                gaps.extend(untold.iter().map(|gap| crate::Gap::from_words(gap).unwrap()));
            }
            for id in missing {
                let named = gaps.iter().any(|gap| gap.first.0 <= id && id <= gap.last.0);
                assert!(named, "{token}: {id} is missing and no gap names it: {gaps:?}");
            }
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn case(server: &Server, steps: &[Step]) {
    runtime().block_on(async {
        let mut model = Model::new(server).await;
        let redis = server.open::<FabricRole>();
        for (place, step) in steps.iter().enumerate() {
            model.run(step).await;
            assert_true(&redis, &format!("step {place}, {step:?}")).await;
        }
        model.finish().await;
    });
}

#[test]
fn lanes_and_jobs_behave_like_their_model() {
    let server = runtime().block_on(Server::in_memory());
    // On demand longer: PROPTEST_CASES=1000.
    let config = Config { failure_persistence: None, ..Config::with_cases(cases(20)) };
    proptest!(config, |(steps in vec(step(), 1..70))| case(&server, &steps));
}

fn cases(default: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
