//! The real scripts against the reference: the same calls to both, then everything that is there is compared.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{
    collection::{btree_map, vec},
    prelude::*,
    test_runner::Config,
};
use signalbox_protocol_model::queues::{
    Message, Place as Of, Receipt as Known, Reference, Settings, Tenant, Verdict,
};

use super::support::*;
use signalbox_api::queues::{MessageState, NewQueue, Overflow, TenantSettings};
use signalbox_bus::Delay;
use signalbox_queues::{Act, PullRequest, Settled};

#[derive(Debug, Clone)]
enum Step {
    /// Messages of tenants, in one call.
    Push(Vec<Tenant>),
    /// A message of a tenant that is delayed by this many milliseconds.
    PushLater(Tenant, u64),
    Pull(usize, bool),
    /// Acknowledges some of the receipts that were ever given, again if their reply was lost.
    Ack(Vec<usize>, bool),
    /// With a delay, or with the backoff of the queue.
    Nack(Vec<usize>, Option<u64>),
    Reject(Vec<usize>),
    Extend(Vec<usize>, u64),
    Sweep,
    Advance(u64),
    Configure(Configured),
    /// Settings of one tenant: its own limit, and messages per 1,000 seconds.
    Tenant(Tenant, Option<u32>, Option<u32>),
    Drop(Tenant),
    Purge(Tenant),
    /// Drops one of the messages that were ever accepted, counted from the newest.
    DropOne(usize),
    /// Ends the delay of one of them.
    AdvanceOne(usize),
    ForgetDead,
    FlushScripts,
}

/// A definition, without the settings of single tenants.
#[derive(Debug, Clone, Default)]
struct Configured {
    weights: BTreeMap<Tenant, u32>,
    limit: Option<u32>,
    attempts: u32,
    /// Of the first and of any later delivery, in milliseconds.
    backoff: (u32, u32),
    max_waiting: Option<u32>,
    drops: bool,
}

const TENANTS: u32 = 4;

fn configured() -> impl Strategy<Value = Configured> {
    let weights = btree_map(1..=TENANTS, 0..4u32, 0..4);
    let limits = (prop::option::of(1..4u32), 0..4u32);
    let backoff = prop_oneof![Just((0, 0)), (1..3_000u32, 1..9_000u32)];
    let bounds = (prop::option::weighted(0.3, 1..5u32), any::<bool>());
    (weights, limits, backoff, bounds).prop_map(
        |(weights, (limit, attempts), backoff, (max_waiting, drops))| Configured {
            weights,
            limit,
            attempts,
            backoff,
            max_waiting,
            drops,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let tenant = || 1..=TENANTS;
    let receipts = || vec(0..30usize, 1..5);
    prop_oneof![
        8 => vec(tenant(), 1..8).prop_map(Step::Push),
        10 => (1..7usize, prop::bool::weighted(0.15)).prop_map(|(most, auto)| Step::Pull(most, auto)),
        6 => (receipts(), prop::bool::weighted(0.2)).prop_map(|(which, lost)| Step::Ack(which, lost)),
        3 => (tenant(), 1..3_000u64).prop_map(|(tenant, delay)| Step::PushLater(tenant, delay)),
        5 => (receipts(), prop_oneof![Just(None), Just(Some(0)), (1..2_000u64).prop_map(Some)])
            .prop_map(|(which, delay)| Step::Nack(which, delay)),
        1 => receipts().prop_map(Step::Reject),
        3 => (tenant(), prop::option::of(0..3u32), prop::option::of(300..3_000u32))
            .prop_map(|(tenant, limit, rate)| Step::Tenant(tenant, limit, rate)),
        2 => (receipts(), 1_000..9_000u64).prop_map(|(which, ms)| Step::Extend(which, ms)),
        4 => Just(Step::Sweep),
        4 => (1..3_000u64).prop_map(Step::Advance),
        3 => configured().prop_map(Step::Configure),
        1 => tenant().prop_map(Step::Drop),
        1 => tenant().prop_map(Step::Purge),
        2 => (0..20usize).prop_map(Step::DropOne),
        2 => (0..20usize).prop_map(Step::AdvanceOne),
        1 => Just(Step::ForgetDead),
        1 => Just(Step::FlushScripts),
    ]
}

const LEASE_MS: u64 = 4_000;

struct Both {
    hands: Hands,
    reference: Reference,
    configured: Configured,
    /// Own limits and rates of tenants.
    tenants: BTreeMap<Tenant, (Option<u32>, Option<u32>)>,
    /// Every receipt ever given: ours as text, and the reference's.
    receipts: Vec<(String, Known)>,
    /// Every message that was ever accepted.
    accepted: Vec<(Message, Tenant)>,
}

impl Both {
    async fn new(server: &Server) -> Self {
        let hands = Hands::with(server, 1, 3_600_000).await;
        let configured = Configured::default();
        let tenants = BTreeMap::new();
        let reference = Reference::new(settings(&configured, &tenants));
        let (receipts, accepted) = (Vec::new(), Vec::new());
        let both = Self { hands, reference, configured, tenants, receipts, accepted };
        both.put().await;
        both
    }

    async fn put(&self) {
        let Configured { weights, limit, attempts, backoff, max_waiting, drops } = &self.configured;
        let seconds = |ms: u32| Some(f64::from(ms) / 1000.0);
        let wanted = NewQueue {
            weights: Some(weights.iter().map(|(tenant, weight)| (tenant.to_string(), *weight)).collect()),
            in_flight_limit: limit.map(u64::from),
            max_attempts: Some(*attempts),
            lease_seconds: Some(LEASE_MS as f64 / 1000.0),
            backoff_seconds: seconds(backoff.0),
            max_backoff_seconds: seconds(backoff.1),
            max_waiting_per_tenant: max_waiting.map(u64::from),
            overflow: if *drops { Overflow::DropOldest } else { Overflow::Reject },
            ..wanted(".*")
        };
        self.hands.put(Q, wanted).await;
    }

    fn settings(&self) -> Settings {
        settings(&self.configured, &self.tenants)
    }

    fn now(&self) -> i64 {
        self.hands.time.0.load(std::sync::atomic::Ordering::SeqCst) as i64
    }

    async fn run(&mut self, step: &Step) {
        let now = self.now();
        match step {
            Step::Push(tenants) => {
                let names: Vec<String> = tenants.iter().map(ToString::to_string).collect();
                let messages: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
                let ids = self.hands.try_push(&messages, None).await;
                let mut pairs: Vec<(Message, Tenant)> = Vec::new();
                let mut taken: BTreeMap<Tenant, Vec<bool>> = BTreeMap::new();
                for (id, tenant) in ids.into_iter().zip(tenants) {
                    pairs.extend(id.map(|id| (id, *tenant)));
                    taken.entry(*tenant).or_default().push(id.is_some());
                }
                pairs.sort_unstable();
                for (id, tenant) in pairs {
                    assert!(self.reference.takes(tenant), "{tenant} was full");
                    self.reference.push(tenant, id);
                    self.accepted.push((id, tenant));
                }
                for (tenant, taken) in taken {
                    let full = taken.contains(&false);
                    assert!(!full || !self.reference.takes(tenant), "{tenant} had space: {taken:?}");
                    self.reference.keep_bounds(tenant);
                }
            }
            Step::PushLater(tenant, delay) => {
                let id =
                    self.hands.try_push(&[(&tenant.to_string(), "x")], Some(Delay::After(*delay))).await[0];
                assert_eq!(id.is_some(), self.reference.takes_later(*tenant), "{tenant}");
                if let Some(id) = id {
                    self.reference.push_later(*tenant, id, now + *delay as i64);
                    self.accepted.push((id, *tenant));
                    self.reference.keep_bounds(*tenant);
                }
            }
            Step::Pull(most, auto) => {
                let request = PullRequest { auto_ack: *auto, ..pull(*most) };
                let got = self.hands.handed(Q, request).await;
                let expected = self.reference.pull(*most, *auto, now);
                let seen: Vec<(u64, u32, String)> = got
                    .messages
                    .iter()
                    .map(|(_, taken)| (taken.id, taken.attempt, taken.tenant.clone()))
                    .collect();
                let wanted: Vec<(u64, u32, String)> =
                    expected.iter().map(|one| (one.message, one.attempts, one.tenant.to_string())).collect();
                assert_eq!(seen, wanted, "what a pull gives");
                if got.messages.is_empty() {
                    let due = self.reference.next_due_ms().map(|due| (due - now).max(0) as u64);
                    assert_eq!(got.next_due_in_ms, due, "when to pull again");
                }
                let pairs = got.messages.into_iter().zip(expected);
                self.receipts.extend(pairs.map(|((receipt, _), one)| (receipt.to_string(), one.receipt)));
            }
            Step::Ack(which, lost) => {
                for _ in 0..=usize::from(*lost) {
                    let (texts, known) = self.some(which);
                    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                    let got = self.hands.queues.ack(Q, &texts).await.unwrap();
                    let expected = self.reference.ack(&known);
                    same(&got, &expected);
                }
            }
            Step::Nack(which, delay) => {
                let (texts, known) = self.some(which);
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                let got = self.hands.queues.nack(Q, *delay, &texts).await.unwrap();
                same(&got, &self.reference.nack(&known, delay.map(|delay| delay as i64), now));
            }
            Step::Reject(which) => {
                let (texts, known) = self.some(which);
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                let got = self.hands.queues.reject(Q, &texts).await.unwrap();
                same(&got, &self.reference.reject(&known));
            }
            Step::Extend(which, ms) => {
                let (texts, known) = self.some(which);
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                let got = self.hands.queues.extend(Q, *ms, &texts).await.unwrap();
                // A receipt that occurs twice in one call is settled once.
                let once: BTreeSet<_> = known.iter().copied().collect();
                let verdicts = self.reference.extend(&known, *ms as i64, now);
                if once.len() == known.len() {
                    same(&got, &verdicts);
                }
            }
            Step::Sweep => {
                self.hands.sweep().await;
                self.reference.sweep(now);
            }
            Step::Advance(ms) => self.hands.time.advance(*ms),
            Step::Configure(configured) => {
                self.configured = configured.clone();
                self.put().await;
                self.reference.configure(self.settings());
            }
            Step::Tenant(tenant, limit, rate) => {
                let weight = self.configured.weights.get(tenant).copied();
                self.tenants.insert(*tenant, (*limit, *rate));
                let wanted = TenantSettings {
                    weight,
                    in_flight_limit: limit.map(u64::from),
                    rate_per_second: rate.map(|rate| f64::from(rate) / 1000.0),
                    ..TenantSettings::default()
                };
                self.hands.tenant(Q, &tenant.to_string(), wanted).await;
                self.reference.configure(self.settings());
            }
            Step::Drop(tenant) => {
                let dropped = self.hands.queues.drop_tenant(Q, &tenant.to_string()).await.unwrap();
                assert_eq!(dropped as usize, self.reference.drop_tenant(*tenant));
            }
            Step::Purge(tenant) => {
                let dropped = self.hands.queues.purge(Q, Some(&tenant.to_string())).await.unwrap();
                assert_eq!(dropped as usize, self.reference.purge(*tenant));
            }
            Step::DropOne(which) => self.change(*which, Act::Drop).await,
            Step::AdvanceOne(which) => self.change(*which, Act::Advance).await,
            Step::ForgetDead => {
                let dropped = self.hands.drop_dead().await;
                assert_eq!(dropped as usize, self.reference.forget_dead());
            }
            Step::FlushScripts => self.hands.redis.command("SCRIPT").arg("FLUSH").run().await.unwrap(),
        }
    }

    async fn change(&mut self, which: usize, change: Act) {
        let Some((id, tenant)) = self.accepted.iter().rev().nth(which).copied() else { return };
        let (now, name) = (self.now(), tenant.to_string());
        let expected = match self.reference.place_of(id) {
            Some(Of::Waiting) => Some(MessageState::Waiting),
            Some(Of::Delayed(_)) => Some(MessageState::Delayed),
            Some(Of::InFlight(_)) => Some(MessageState::InFlight),
            Some(Of::Dead) => Some(MessageState::Dead),
            _ => None,
        };
        let got = self.hands.queues.message(Q, id, Some(&name), change).await.unwrap();
        assert_eq!(got.map(|stored| stored.place), expected, "where {id} was");
        match change {
            Act::Show => false,
            Act::Drop => self.reference.drop_message(id),
            Act::Advance => self.reference.advance(id, now),
        };
    }

    fn some(&self, which: &[usize]) -> (Vec<String>, Vec<Known>) {
        let newest = self.receipts.iter().rev();
        let chosen: Vec<&(String, Known)> = newest.collect();
        let chosen = which.iter().filter_map(|place| chosen.get(*place));
        let mut some: (Vec<String>, Vec<Known>) = chosen.map(|(text, known)| (text.clone(), *known)).unzip();
        if some.0.is_empty() {
            // Nothing was ever given: a receipt of nowhere.
            some = (vec!["q~0~64~1~1~none".into()], vec![Known { message: 64, delivery: 1 }]);
        }
        some
    }

    /// Everything that both have.
    async fn compare(&mut self, when: &str) {
        self.hands.assert_true(Q, when).await;
        self.reference.check().unwrap_or_else(|violation| panic!("{when}: {violation}"));
        let ring: Vec<Tenant> = self.hands.ring(Q).await.iter().map(|name| name.parse().unwrap()).collect();
        self.reference.agree(&ring).unwrap_or_else(|difference| panic!("{when}: {difference}"));
        if let Some(head) = ring.first() {
            let used = self.hands.field(&format!("queue:q|facet:{head}"), "used").await;
            assert_eq!(used, Some(i64::from(self.reference.used())), "{when}: the turn of {head}");
        }
        let (flying, delayed) = (self.hands.in_flight(Q).await, self.hands.delayed(Q).await);
        for tenant in 1..=TENANTS {
            let name = tenant.to_string();
            let view = self.reference.tenant(tenant);
            let of = |map: &BTreeMap<u64, String>| -> Vec<u64> {
                map.iter().filter(|(_, env)| **env == name).map(|(id, _)| *id).collect()
            };
            assert_eq!(self.hands.waiting(Q, &name).await, view.waiting, "{when}: {name} waits");
            assert_eq!((of(&flying), of(&delayed)), (view.in_flight, view.delayed), "{when}: {name}");
        }
        let dead = self.hands.queues.dead(Q, "", 1_000).await.unwrap();
        let dead: Vec<u64> = dead.items.iter().map(|letter| letter.message.id).collect();
        assert_eq!(dead, self.reference.dead(), "{when}: dead letters");
    }
}

fn settings(configured: &Configured, tenants: &BTreeMap<Tenant, (Option<u32>, Option<u32>)>) -> Settings {
    let Configured { weights, limit, attempts, backoff: (first, most), max_waiting, drops } = configured;
    let limits = tenants.iter().filter_map(|(tenant, (limit, _))| Some((*tenant, (*limit)?)));
    let rates = tenants.iter().filter_map(|(tenant, (_, rate))| Some((*tenant, i64::from((*rate)?))));
    Settings {
        lease_ms: LEASE_MS as i64,
        weights: weights.clone(),
        default_weight: 1,
        in_flight_limit: *limit,
        max_attempts: (*attempts > 0).then_some(*attempts),
        limits: limits.collect(),
        rates: rates.collect(),
        backoff_ms: (i64::from(*first), i64::from(*most.max(first))),
        max_waiting: max_waiting.map(|most| most as usize),
        drops: *drops,
    }
}

fn same(got: &[Settled], expected: &[Verdict]) {
    let done =
        |settled: &Settled| !matches!(settled, Settled::Used | Settled::Expired | Settled::AckedBefore);
    let got_done: Vec<bool> = got.iter().map(done).collect();
    let expected: Vec<bool> = expected.iter().map(|verdict| *verdict == Verdict::Done).collect();
    assert_eq!(got_done, expected, "{got:?}");
}

fn cases(default: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn the_scripts_do_what_the_reference_does() {
    let server = block_on(Server::in_memory());
    // On demand longer: PROPTEST_CASES=1000.
    let config = Config { failure_persistence: None, max_shrink_iters: 200, ..Config::with_cases(cases(12)) };
    proptest!(config, |(steps in vec(step(), 1..60))| {
        block_on(async {
            let mut both = Both::new(&server).await;
            for (place, step) in steps.iter().enumerate() {
                both.run(step).await;
                both.compare(&format!("step {place}, {step:?}")).await;
            }
        });
    });
}

#[test]
fn messages_that_return_in_several_calls_are_in_order_of_acceptance() {
    let server = block_on(Server::in_memory());
    let advance = || Step::Advance(LEASE_MS);
    let steps = [
        Step::Push(vec![3]),
        Step::Pull(1, false),
        advance(),
        Step::Push(vec![3]),
        Step::Pull(1, false),
        Step::Sweep,
        advance(),
        Step::Sweep,
    ];
    block_on(async {
        let mut both = Both::new(&server).await;
        for (place, step) in steps.iter().enumerate() {
            both.run(step).await;
            both.compare(&format!("step {place}, {step:?}")).await;
        }
    });
}

/// F3: in any window of w + 1 messages of one tenant of weight w, each other tenant that is eligible throughout gets as
/// many as its weight, or all it has.
#[test]
fn no_tenant_waits_for_more_than_every_others_weight() {
    let server = block_on(Server::in_memory());
    let config = Config { failure_persistence: None, max_shrink_iters: 100, ..Config::with_cases(cases(8)) };
    let tenants = vec((1..5u32, 0..25usize), 2..6);
    proptest!(config, |(tenants in tenants, pulls in vec(1..9usize, 1..40))| {
        block_on(async {
            let hands = Hands::with(&server, 1, 3_600_000).await;
            let names: Vec<String> = (0..tenants.len()).map(|n| n.to_string()).collect();
            let given: Vec<(&str, u32)> =
                names.iter().zip(&tenants).map(|(name, (weight, _))| (name.as_str(), *weight)).collect();
            hands.put(Q, weights(&given)).await;
            let mut messages = Vec::new();
            for (name, (_, count)) in names.iter().zip(&tenants) {
                messages.extend(std::iter::repeat_n((name.as_str(), "x"), *count));
            }
            if !messages.is_empty() {
                hands.push(&messages).await;
            }
            let mut served: Vec<usize> = Vec::new();
            for most in pulls {
                let pulled = hands.pull(most).await;
                served.extend(pulled.iter().map(|(_, taken)| taken.tenant.parse::<usize>().unwrap()));
            }
            fair(&tenants, &served);
        });
    });
}

fn fair(tenants: &[(u32, usize)], served: &[usize]) {
    for (one, (weight, _)) in tenants.iter().enumerate() {
        let places: Vec<usize> =
            served.iter().enumerate().filter(|(_, who)| **who == one).map(|(place, _)| place).collect();
        for window in places.windows(*weight as usize + 1) {
            let (first, last) = (window[0], window[window.len() - 1]);
            for (other, (its_weight, count)) in tenants.iter().enumerate().filter(|(other, _)| *other != one)
            {
                let times = |range: &[usize]| range.iter().filter(|who| **who == other).count();
                let had = count - times(&served[..first]);
                let got = times(&served[first..=last]);
                let due = had.min(*its_weight as usize);
                assert!(got >= due, "{other} got {got} of {due} between {first} and {last} of {served:?}");
            }
        }
    }
}
