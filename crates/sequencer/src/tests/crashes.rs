//! Every short history of the real scripts, with a lost reply or a total crash after any of its steps.
//!
//! A history begins from one of several situations and continues with any two steps (`CRASH_DEPTH` for more). After
//! each step every predicate of the check must hold. Then all workers are dead: their leases expire, one worker
//! finishes the rest, and the final state must be consistent: every accepted event was sent, is a dead letter, or was
//! discarded; per object first sendings are in ID order, except marked ones; no worker that lost its lease commits
//! anything.

use std::collections::{BTreeMap, BTreeSet};

use super::support::*;
use crate::{
    removal,
    store::{Committed, Failed, Held, Sending},
};
use signalbox_bus::{OnFailure, Queued};

/// The fault injected after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The step was executed and its reply was lost, so it is repeated.
    ReplyLost,
    /// The step was executed, and the caller crashed.
    Crash,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// Another event of the object.
    Accept(&'static str),
    Take,
    /// The event was sent, and the worker continues with the next.
    Commit,
    /// The event was sent, and the visit ends.
    CommitLast,
    Retry,
    Park,
    Skip,
    /// The lease expires, and another worker sweeps.
    Sweep,
    Redrive,
    /// One step of the removal with this treatment; then the backend is defined again.
    Remove(Queued),
}

const FAULTS: [Fault; 3] = [Fault::None, Fault::ReplyLost, Fault::Crash];

/// Every step in combination with every possible fault.
fn steps() -> Vec<(Act, Fault)> {
    let mut steps = vec![
        (Act::Accept("work:1"), Fault::None),
        (Act::Accept("work:2"), Fault::None),
        (Act::Sweep, Fault::None),
    ];
    for act in [Act::Take, Act::Commit, Act::CommitLast, Act::Retry, Act::Park, Act::Skip] {
        steps.extend(FAULTS.map(|fault| (act, fault)));
    }
    steps.extend([Fault::None, Fault::ReplyLost].map(|fault| (Act::Redrive, fault)));
    steps
        .extend([(Act::Remove(Queued::Dead), Fault::ReplyLost), (Act::Remove(Queued::Discard), Fault::None)]);
    steps
}

/// The steps before each history. Two events of one object and one of another are queued first.
fn situations() -> Vec<Vec<Act>> {
    vec![
        vec![],
        vec![Act::Take],
        vec![Act::Take, Act::Commit],
        vec![Act::Take, Act::Skip],
        vec![Act::Take, Act::Skip, Act::Redrive, Act::Take],
    ]
}

struct History<'a> {
    world: &'a World,
    worker: u32,
    /// The lease and the event of the worker that is alive.
    held: Option<(Held, Sending)>,
    /// Expired leases, with the event that was in flight.
    lost: Vec<(Held, u64)>,
    accepted: BTreeSet<u64>,
    /// By object: the sent events in order, with their mark.
    sent: BTreeMap<String, Vec<(u64, bool)>>,
    committed: BTreeSet<u64>,
    discarding: bool,
}

impl<'a> History<'a> {
    async fn begin(world: &'a World) -> Self {
        let keys = strings(&world.redis, "KEYS", &["object:*"]).await;
        for key in &keys {
            number(&world.redis, "DEL", &[key]).await;
        }
        let mut history = Self {
            world,
            worker: 0,
            held: None,
            lost: Vec::new(),
            accepted: BTreeSet::new(),
            sent: BTreeMap::new(),
            committed: BTreeSet::new(),
            discarding: false,
        };
        history.accepted.extend(world.publish("work:1", 2).await);
        history.accepted.extend(world.publish("work:2", 1).await);
        history
    }

    fn name(&self) -> String {
        format!("w{}", self.worker)
    }

    /// The worker sends its event.
    fn sends(&mut self, held: Held, sending: Sending) {
        let sent = self.sent.entry(held.object.clone()).or_default();
        sent.push((sending.id(), sending.is_redriven()));
        self.held = Some((held, sending));
    }

    /// The worker loses its lease without noticing.
    fn dies(&mut self) {
        if let Some((held, sending)) = self.held.take() {
            self.lost.push((held, sending.id()));
        }
        self.worker += 1;
    }

    async fn act(&mut self, act: Act, fault: Fault) {
        match act {
            Act::Accept(object) => self.accepted.extend(self.world.publish(object, 1).await),
            Act::Take => self.take(fault).await,
            Act::Commit => self.commit(true, fault).await,
            Act::CommitLast => self.commit(false, fault).await,
            Act::Retry => self.fail(&Failed::Retry { pause_ms: 1_000 }, fault).await,
            Act::Park => self.fail(&Failed::Park, fault).await,
            Act::Skip => self.fail(&Failed::Skip, fault).await,
            Act::Sweep => {
                self.world.advance(LEASE_MS);
                self.dies();
                self.take(Fault::Crash).await;
            }
            Act::Redrive => {
                for _ in 0..=usize::from(fault == Fault::ReplyLost) {
                    self.world.handle().redrive("search").await.unwrap();
                }
            }
            Act::Remove(queued) => {
                self.discarding |= queued == Queued::Discard;
                self.world.bus.handle.drain_backend("search", queued).await.unwrap();
                for _ in 0..=usize::from(fault == Fault::ReplyLost) {
                    let mut cursor = "0".to_owned();
                    removal::step(
                        &self.world.bus.handle,
                        &self.world.stores[0],
                        "search",
                        &mut cursor,
                        10_000,
                    )
                    .await
                    .unwrap();
                    self.world.expect_consistent("a step of a removal").await;
                }
                // The worker that is sending has lost its lease, and detects this when it commits.
                self.dies();
                self.world.backend("search", "work:", OnFailure::Skip).await;
            }
        }
    }

    async fn take(&mut self, fault: Fault) {
        let mut taken = self.world.take("search", &self.name()).await;
        if fault == Fault::ReplyLost {
            let again = self.world.take("search", &self.name()).await;
            assert_eq!(again, taken, "a repeat gets the same");
            taken = again;
        }
        let Some(taken) = taken else { return };
        if self.held.as_ref().is_some_and(|(held, _)| *held == taken.held) {
            return;
        }
        if fault == Fault::Crash {
            self.lost.push((taken.held, taken.sending.id()));
            self.worker += 1;
        } else {
            self.sends(taken.held, taken.sending);
        }
    }

    async fn commit(&mut self, more: bool, fault: Fault) {
        let Some((held, sending)) = self.held.take() else { return };
        let (id, reported) = (sending.id(), sending.gaps.len());
        let mut reply = self.world.commit(&held, id, reported, more).await;
        assert_ne!(reply, Committed::Lost, "its lease is valid");
        self.committed.insert(id);
        if fault == Fault::ReplyLost {
            let again = self.world.commit(&held, id, reported, more).await;
            match reply {
                Committed::Next(_) => assert_eq!(again, reply),
                _ => assert_eq!(again, Committed::Lost),
            }
            reply = again;
        }
        match reply {
            Committed::Next(next) if fault == Fault::Crash => {
                self.lost.push((held, next.id()));
                self.worker += 1;
            }
            Committed::Next(next) => self.sends(held, next),
            _ => self.lost.push((held, id)),
        }
    }

    async fn fail(&mut self, failed: &Failed, fault: Fault) {
        let Some((held, sending)) = self.held.take() else { return };
        assert!(self.world.fail(&held, sending.id(), failed).await, "its lease is valid");
        if fault == Fault::ReplyLost {
            assert!(!self.world.fail(&held, sending.id(), failed).await, "a repeat finds nothing");
        }
        self.lost.push((held, sending.id()));
        if fault == Fault::Crash {
            self.worker += 1;
        }
    }

    /// All workers have crashed. A new worker finishes the work.
    async fn end(mut self) {
        self.dies();
        for object in ["work:1", "work:2"] {
            self.world.unpark(object).await;
        }
        for _ in 0..2 {
            self.world.advance(LEASE_MS);
            self.take(Fault::None).await;
            while self.held.is_some() {
                self.commit(true, Fault::None).await;
                if self.held.is_none() {
                    self.take(Fault::None).await;
                }
            }
        }
        self.world.expect_consistent("at the end").await;
        assert_eq!(number(&self.world.redis, "EXISTS", &["object:queued", "object:leases"]).await, 0, "O7");
        for (held, id) in &self.lost {
            assert_eq!(self.world.commit(held, *id, 0, true).await, Committed::Lost, "O10");
        }
        let dead = self.world.handle().dead("search", 100).await.unwrap();
        let id = |event: &str| event[6..].split(',').next().unwrap().parse::<u64>().unwrap();
        let dead: Vec<u64> = dead.iter().map(|one| id(one.event.get())).collect();
        let dropped: BTreeSet<u64> = dead.iter().copied().collect();
        assert_eq!(dropped.len(), dead.len(), "O9: a dead letter is one once");
        assert!(dropped.is_disjoint(&self.committed), "O9: a committed event is not a dead letter");
        let known: BTreeSet<u64> = dropped.union(&self.committed).copied().collect();
        assert!(known.is_subset(&self.accepted));
        assert!(
            known == self.accepted || self.discarding,
            "O9: {:?} are nowhere",
            self.accepted.difference(&known)
        );
        for (object, sent) in &self.sent {
            let mut first = BTreeSet::new();
            let order: Vec<u64> = sent
                .iter()
                .filter(|(id, redriven)| !redriven && first.insert(*id))
                .map(|(id, _)| *id)
                .collect();
            assert!(order.is_sorted(), "O1: {object} {sent:?}");
        }
    }
}

#[tokio::test]
async fn every_short_history_with_every_crash_and_lost_reply_ends_well() {
    let depth = std::env::var("CRASH_DEPTH").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let world = World::start().await;
    world.backend("search", "work:", OnFailure::Skip).await;
    let steps = steps();
    let mut count = 0;
    for situation in situations() {
        for number in 0..steps.len().pow(depth) {
            let history: Vec<(Act, Fault)> =
                (0..depth).map(|place| steps[number / steps.len().pow(place) % steps.len()]).collect();
            let reported = format!("{situation:?}, then {history:?}");
            let mut all = History::begin(&world).await;
            for act in &situation {
                all.act(*act, Fault::None).await;
            }
            for (act, fault) in &history {
                all.act(*act, *fault).await;
                world.expect_consistent(&reported).await;
            }
            all.end().await;
            count += 1;
        }
    }
    println!("{count} histories");
}
