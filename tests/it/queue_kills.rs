//! Queues without loss: messages of many tenants, some of them delayed, through three pacemakers on a fabric of four shards.
//! Pacemakers and Redis are killed at random. Limits, rates, backoff and a bound on waiting messages are in effect, and
//! consumers acknowledge, return and abandon messages.
//!
//! `SIGNALBOX_SEED` repeats the random choices, though not their timing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use signalbox_stack::Fsync;
use signalbox_testkit::eventually_within;
use signalbox_tests::http::moment;
use signalbox_tests::{fleet::Fleet, http::Request, victim::Victim};
use tokio::{
    task::JoinSet,
    time::{self, Instant},
};

const PACEMAKERS: usize = 3;
const SHARDS: i64 = 4;
const TENANTS: usize = 8;
const MESSAGES: usize = 6_000;
/// Messages of one request.
const ARRAY: usize = 20;
const PUBLISHERS: u64 = 3;
const CONSUMERS: u64 = 6;
/// Kills within the suite. `make soak` makes `SOAK_KILLS`, for at most `SOAK_SECONDS`.
const KILLS: usize = 12;
const SOAK_KILLS: u64 = 200;
const SOAK_SECONDS: u64 = 1_200;
/// One of this many kills hits Redis.
const REDIS_EVERY: usize = 4;
const LEASE_MS: u64 = 1_500;
const SETTLE: Duration = Duration::from_secs(300);
/// Ids may be ahead of the clock when many are given out in one millisecond.
const ID_AHEAD_MS: u64 = 100;

const SETTINGS: [(&str, i64); 3] = [("beat_ms", 100), ("dead_after_ms", 500), ("housekeeping_ms", 100)];

fn tenant(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// A message that was accepted.
#[derive(Debug, Clone, Copy)]
struct Accepted {
    id: u64,
    delay_ms: u64,
}

#[derive(Debug, Default)]
struct Ledger {
    accepted: BTreeMap<usize, Accepted>,
    received: BTreeSet<usize>,
    /// When an acknowledgement was known to have succeeded.
    acked: BTreeMap<usize, Instant>,
    flaws: Vec<String>,
}

struct World {
    fleet: Fleet,
    ledger: Mutex<Ledger>,
    /// The next message, and up to which messages may be published.
    next: AtomicUsize,
    allowed: AtomicUsize,
    over: AtomicBool,
    returned: AtomicU64,
    abandoned: AtomicU64,
}

impl World {
    fn with<T>(&self, act: impl FnOnce(&mut Ledger) -> T) -> T {
        act(&mut self.ledger.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn flaw(&self, what: String) {
        self.with(|ledger| ledger.flaws.push(what));
    }

    /// A call of any pacemaker; nothing if its outcome is unknown.
    async fn ask(&self, at: usize, target: &str, key: Option<&str>, body: &Value) -> Option<(u16, Value)> {
        let to = self.fleet.address(at % PACEMAKERS);
        let request = Request::new("POST", "localhost", target).token(&self.fleet.system.token).json(body);
        let request = match key {
            Some(key) => request.header("Idempotency-Key", key),
            None => request,
        };
        let answer = request.send(to).await.ok()?;
        Some((answer.status, answer.json()))
    }

    /// Publishes the messages from `first` on until all are accepted.
    async fn publish(&self, first: usize, random: &mut StdRng) {
        let numbers = first..(first + ARRAY).min(MESSAGES);
        let mut delays = Vec::new();
        let messages: Vec<Value> = numbers
            .clone()
            .map(|n| {
                let delay_ms: u64 = if random.random_bool(0.3) { random.random_range(1..1_500) } else { 0 };
                delays.push(delay_ms);
                let delay_seconds = delay_ms as f64 / 1000.0;
                json!({"tenant": format!("t{}", n % TENANTS), "type": "job", "name": format!("n{}", n % 37),
                    "payload": n, "delay_seconds": delay_seconds})
            })
            .collect();
        let (key, body) = (format!("request-{first}"), json!(messages));
        let mut at = random.random_range(0..PACEMAKERS);
        loop {
            if let Some((200, results)) = self.ask(at, "/messages", Some(&key), &body).await {
                let results = results.as_array().cloned().unwrap_or_default();
                let mut all = results.len() == numbers.len();
                for ((n, delay_ms), result) in numbers.clone().zip(&delays).zip(&results) {
                    match (result["status"].as_u64(), result["id"].as_u64()) {
                        (Some(200), Some(id)) => self.accept(n, Accepted { id, delay_ms: *delay_ms }),
                        // The bound of waiting messages, and the fabric while it is down.
                        (Some(429 | 503), None) => all = false,
                        _ => self.flaw(format!("message {n}: {result}")),
                    }
                }
                if all {
                    return;
                }
            }
            at += 1;
            time::sleep(Duration::from_millis(random.random_range(1..50))).await;
        }
    }

    fn accept(&self, n: usize, accepted: Accepted) {
        self.with(|ledger| {
            let known = ledger.accepted.insert(n, accepted);
            if known.is_some_and(|known| known.id != accepted.id) {
                ledger.flaws.push(format!("message {n} was accepted twice: {known:?}, {accepted:?}"));
            }
        });
    }

    /// Pulls and settles messages until the end.
    async fn consume(self: Arc<Self>, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        while !self.over.load(Ordering::SeqCst) {
            let at = random.random_range(0..PACEMAKERS);
            let wanted = json!({"max": random.random_range(1..30), "wait_seconds": 0.3});
            let asked = Instant::now();
            match self.ask(at, "/queues/work/pull", None, &wanted).await {
                Some((200, pulled)) => self.handle(&pulled, asked, &mut random).await,
                _ => time::sleep(Duration::from_millis(random.random_range(1..50))).await,
            }
        }
    }

    async fn handle(&self, pulled: &Value, asked: Instant, random: &mut StdRng) {
        let (mut done, mut back) = (Vec::new(), Vec::new());
        for message in pulled["messages"].as_array().into_iter().flatten() {
            let n = message["payload"].as_u64().unwrap_or(u64::MAX) as usize;
            self.received(n, message, asked);
            let receipt = message["receipt"].as_str().unwrap_or_default().to_owned();
            match random.random_range(0..20) {
                0 => {
                    self.abandoned.fetch_add(1, Ordering::Relaxed);
                }
                1 | 2 => back.push(receipt),
                _ => done.push((n, receipt)),
            }
        }
        if !back.is_empty() {
            self.returned.fetch_add(back.len() as u64, Ordering::Relaxed);
            let body = json!({"receipts": back});
            let _unknown =
                self.ask(random.random_range(0..PACEMAKERS), "/queues/work/nack", None, &body).await;
        }
        if !done.is_empty() {
            self.ack(&done, random.random_range(0..PACEMAKERS)).await;
        }
    }

    fn received(&self, n: usize, message: &Value, asked: Instant) {
        let pulled_ms = moment(&message["lease_until"]).saturating_sub(LEASE_MS);
        let id = message["id"].as_u64().unwrap_or_default();
        self.with(|ledger| {
            ledger.received.insert(n);
            if ledger.acked.get(&n).is_some_and(|at| *at < asked) {
                ledger.flaws.push(format!("message {n} was delivered after it was acknowledged"));
            }
            // Its answer may still be on its way to the publisher.
            let Some(accepted) = ledger.accepted.get(&n) else { return };
            if accepted.id != id {
                ledger.flaws.push(format!("message {n} has id {id}, accepted was {accepted:?}"));
            }
            let accepted_ms = 1_704_067_200_000 + id / 6_400;
            if pulled_ms + ID_AHEAD_MS < accepted_ms + accepted.delay_ms {
                ledger.flaws.push(format!(
                    "message {n} was delivered at {pulled_ms}, before its delay: {accepted:?}"
                ));
            }
        });
    }

    /// Acknowledges until the outcome is known.
    async fn ack(&self, done: &[(usize, String)], mut at: usize) {
        let receipts: Vec<&String> = done.iter().map(|(_, receipt)| receipt).collect();
        let body = json!({"receipts": receipts});
        while !self.over.load(Ordering::SeqCst) {
            // If no receipt had an effect, the whole answer is an error with the results.
            if let Some((_, answer)) = self.ask(at, "/queues/work/ack", None, &body).await
                && let Some(results) = answer["results"].as_array()
            {
                let now = Instant::now();
                for ((n, _), result) in done.iter().zip(results) {
                    match (result["result"].as_str(), result["code"].as_str()) {
                        (Some("acked" | "already_acked"), _) => {
                            self.with(|ledger| *ledger.acked.entry(*n).or_insert(now));
                        }
                        // The lease expired: another consumer has it, or had it.
                        (None, Some("receipt_expired" | "receipt_used")) => {}
                        _ => self.flaw(format!("an acknowledgement of message {n}: {result}")),
                    }
                }
                return;
            }
            at += 1;
            time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn kill(&self, kills: usize, within: Duration, random: &mut StdRng) -> (usize, usize) {
        let mut victims: Vec<Victim> =
            (0..PACEMAKERS).map(|number| Victim::new(self.fleet.pacemaker(number))).collect();
        victims.push(Victim::new(self.fleet.fabric()));
        let (started, mut killed) = (Instant::now(), (0, 0));
        let share = MESSAGES / (kills + 1);
        for round in 0..kills {
            if started.elapsed() > within {
                break;
            }
            self.allowed.store((round + 1) * share, Ordering::SeqCst);
            let moment = round * share + random.random_range(0..share.max(1));
            eventually_within(SETTLE, "messages to be accepted again", || async {
                let accepted = self.with(|ledger| ledger.accepted.len());
                if accepted >= moment { Ok(()) } else { Err(format!("{accepted} of {moment}")) }
            })
            .await;
            let redis = random.random_range(0..REDIS_EVERY) == 0;
            let victim = if redis { PACEMAKERS } else { random.random_range(0..PACEMAKERS) };
            victims[victim].die(Duration::from_millis(random.random_range(0..400))).await;
            *if redis { &mut killed.1 } else { &mut killed.0 } += 1;
        }
        for victim in &mut victims {
            victim.recover().await;
        }
        self.allowed.store(MESSAGES, Ordering::SeqCst);
        killed
    }

    async fn define(&self) {
        let queue = json!({"pattern": ".*:job:.*", "lease_seconds": LEASE_MS as f64 / 1000.0, "max_attempts": 0,
            "in_flight_limit": 50, "backoff_seconds": 0.05, "max_backoff_seconds": 0.4,
            "max_waiting_per_tenant": 100, "weights": {"t2": 3}});
        let root = &self.fleet.system.token;
        let made = self.fleet.call(0, root, "PUT", "/queues/work", Some(&queue)).await;
        assert_eq!(made.status, 201, "{}", made.text());
        for (tenant, settings) in
            [("t0", json!({"rate_per_second": 150})), ("t1", json!({"in_flight_limit": 3}))]
        {
            let target = format!("/queues/work/tenants/{tenant}");
            let set = self.fleet.call(0, root, "PUT", &target, Some(&settings)).await;
            assert_eq!(set.status, 200, "{}", set.text());
        }
    }
}

async fn run_with_faults(name: &str, kills: usize, within: Duration) {
    let seed = tenant("SIGNALBOX_SEED", rand::random());
    println!("{name}: SIGNALBOX_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut redis = toml::Table::new();
    redis.insert("fabric_shards".to_owned(), SHARDS.into());
    let fleet = Fleet::start(name, PACEMAKERS, &SETTINGS, |builder| {
        builder.with(|options| options.redis.fabric_fsync = Fsync::Always).pacemaker("redis", redis)
    })
    .await;
    let world = Arc::new(World {
        fleet,
        ledger: Mutex::default(),
        next: AtomicUsize::new(0),
        allowed: AtomicUsize::new(0),
        over: AtomicBool::new(false),
        returned: AtomicU64::new(0),
        abandoned: AtomicU64::new(0),
    });
    world.define().await;
    let (mut publishers, mut consumers) = (JoinSet::new(), JoinSet::new());
    for _ in 0..PUBLISHERS {
        let (world, mut random) = (Arc::clone(&world), StdRng::seed_from_u64(random.random()));
        publishers.spawn(async move {
            loop {
                let first = world.next.fetch_add(ARRAY, Ordering::SeqCst);
                if first >= MESSAGES {
                    return;
                }
                while world.allowed.load(Ordering::SeqCst) < first {
                    time::sleep(Duration::from_millis(2)).await;
                }
                world.publish(first, &mut random).await;
            }
        });
    }
    for _ in 0..CONSUMERS {
        consumers.spawn(Arc::clone(&world).consume(random.random()));
    }
    let (pacemakers, redis) = world.kill(kills, within, &mut random).await;
    publishers.join_all().await;
    eventually_within(SETTLE, "every message to be acknowledged", || async {
        let (accepted, acked) = world.with(|ledger| (ledger.accepted.len(), ledger.acked.len()));
        if accepted == MESSAGES && acked == MESSAGES { Ok(()) } else { Err(format!("{acked} of {accepted}")) }
    })
    .await;
    world.over.store(true, Ordering::SeqCst);
    consumers.join_all().await;
    let (returned, abandoned) = (&world.returned, &world.abandoned);
    println!(
        "{name}: {pacemakers} pacemakers and {redis} Redis killed, {returned:?} returned, {abandoned:?} abandoned"
    );
    world.with(|ledger| {
        assert!(ledger.flaws.is_empty(), "SIGNALBOX_SEED={seed} {name}: {:#?}", ledger.flaws);
        assert_eq!(ledger.received.len(), MESSAGES, "no message that was not published");
    });
    let root = &world.fleet.system.token;
    eventually_within(SETTLE, "the queue to be empty and consistent", || async {
        let queue = world.fleet.call(0, root, "GET", "/queues/work", None).await.json();
        let check = world.fleet.call(0, root, "GET", "/check", None).await.json();
        let empty = json!({"waiting": 0, "in_flight": 0, "delayed": 0, "dead": 0});
        if queue["messages"] == empty && check["findings"] == json!([]) {
            Ok(())
        } else {
            Err(format!("{queue} {check}"))
        }
    })
    .await;
    let world = Arc::into_inner(world).expect("the only reference");
    world.fleet.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_lost_or_delivered_after_its_acknowledgement_whichever_part_is_killed() {
    run_with_faults("queue-kills", KILLS, SETTLE).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs for a configured duration; make soak"]
async fn soak_no_message_is_lost_whichever_part_is_killed() {
    let kills = tenant("SOAK_KILLS", SOAK_KILLS) as usize;
    run_with_faults("queue-soak", kills, Duration::from_secs(tenant("SOAK_SECONDS", SOAK_SECONDS))).await;
}
