//! Order, and no loss: many events for many objects by way of three pacemakers that are killed at random, and Redis
//! with them, to subscribers that fail at random.
//!
//! Everything that is chosen follows from the seed, which is printed: `SIGNALBOX_SEED` makes the same choices again.
//! What the machine does in between is its own, so a flaw that was seen once may need the seed several times.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};
use serde_json::json;
use signalbox_stack::{Fsync, PartHandle};
use signalbox_tests::{
    fleet::Fleet,
    http::{Connection, Request, Response},
    ledger::{Ledger, Published},
    poll,
    receiver::{Answer, Receiver},
    system::System,
};
use tokio::{
    task::JoinSet,
    time::{self, Instant},
};

const EVENTS: usize = 100_000;
const OBJECTS: usize = 1_000;
const PACEMAKERS: usize = 3;
const PUBLISHERS: u64 = 6;
const TOPICS: [&str; 2] = ["orders", "refunds"];
/// Kills within the suite. `make soak` makes `SOAK_KILLS`, for at most `SOAK_SECONDS`.
const KILLS: usize = 12;
const SOAK_KILLS: u64 = 1_000;
const SOAK_SECONDS: u64 = 1_200;
/// One kill of so many is Redis'.
const REDIS_EVERY: usize = 4;
/// How long what was accepted may take to be delivered when nobody is killed any more.
const SETTLE: Duration = Duration::from_secs(180);

/// A subscriber: its topics, concurrency, most events of a batch, and the time in ms that one may fill.
type Wish = (&'static [&'static str], usize, usize, u64);

const SUBSCRIBERS: [Wish; 8] = [
    (&TOPICS, 1, 1_000, 0),
    (&TOPICS, 8, 150, 50),
    (&TOPICS, 64, 30, 20),
    (&["orders"], 4, 100, 500),
    (&["refunds"], 2, 500, 1_000),
    (&["refunds"], 3, 10_000, 200),
    (&["refunds"], 5, 7, 0),
    (&["refunds"], 16, 64, 5),
];

/// Small enough that everything happens that else takes long: workers die, the log is cut off behind the oldest batch,
/// bodies are read from Redis because no pacemaker remembers them, and batches are cut for their bytes.
const SETTINGS: [(&str, i64); 10] = [
    ("workers", 12),
    ("slow_ms", 100),
    ("delivery_ms", 5_000),
    ("beat_ms", 100),
    ("dead_after_ms", 500),
    ("housekeeping_ms", 100),
    ("cache_bytes", 1 << 20),
    ("log_seconds", 1),
    ("log_bytes", 1 << 16),
    ("batch_bytes", 150_000),
];

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

/// How often is killed, and for how long at most.
struct Measure {
    kills: usize,
    within: Option<Duration>,
}

impl Measure {
    fn soak() -> Self {
        let seconds = from_environment("SOAK_SECONDS").unwrap_or(SOAK_SECONDS);
        Self {
            kills: from_environment("SOAK_KILLS").unwrap_or(SOAK_KILLS) as usize,
            within: Some(Duration::from_secs(seconds)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn order_holds_and_nothing_is_lost_whoever_is_killed() {
    tempt_fate("order", Fsync::Always, Measure { kills: KILLS, within: None }).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes as long as it is told to; make soak"]
async fn soak_order_holds_when_redis_writes_through() {
    tempt_fate("soak-always", Fsync::Always, Measure::soak()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes as long as it is told to; make soak"]
async fn soak_order_holds_when_redis_writes_every_second() {
    tempt_fate("soak-everysec", Fsync::Everysec, Measure::soak()).await;
}

/// One request of a publisher.
struct Array {
    key: String,
    topic: &'static str,
    numbers: Range<usize>,
    body: String,
}

/// Everything that is published, the same for the same seed.
struct Plan {
    published: Vec<Published>,
    arrays: Vec<Array>,
}

impl Plan {
    fn new(random: &mut StdRng) -> Self {
        let mut plan = Self { published: Vec::with_capacity(EVENTS), arrays: Vec::new() };
        while plan.published.len() < EVENTS {
            // Most events come in arrays, many requests are single ones.
            let count = if random.random_bool(0.3) { 1 } else { random.random_range(50..400) };
            let count = count.min(EVENTS - plan.published.len());
            let topic = TOPICS[usize::from(random.random_bool(0.15))];
            let first = plan.published.len();
            let events: Vec<String> = (first..first + count).map(|n| plan.event(n, topic, random)).collect();
            let body = if count == 1 { events[0].clone() } else { format!("[{}]", events.join(",")) };
            plan.arrays.push(Array {
                key: format!("request-{}", plan.arrays.len()),
                topic,
                numbers: first..first + count,
                body,
            });
        }
        plan
    }

    fn event(&mut self, number: usize, topic: &str, random: &mut StdRng) -> String {
        // Some objects are far busier than others.
        let object = (random.random_range(0.0..1.0_f64).powi(2) * OBJECTS as f64) as usize;
        let url = format!("https://shop.example/{object}");
        let padding = "x".repeat(random.random_range(0..60));
        let event = format!(
            r#"{{"type":"update","url":"{url}","timestamp":{number},"data":{{"n":{number},"p":"{padding}"}}}}"#
        );
        self.published.push(Published { topic: topic.to_owned(), url });
        event
    }
}

/// What all publishers share.
struct Publishing {
    fleet: Arc<Fleet>,
    plan: Plan,
    ledger: Arc<Ledger>,
    next: AtomicUsize,
    /// Events up to this number may be published: publishing lasts as long as the killing.
    allowed: AtomicUsize,
    again: AtomicU64,
    refused: AtomicU64,
    broken: AtomicU64,
}

impl Publishing {
    /// Publishes one request after the other, each until all of its events are accepted.
    async fn run(self: Arc<Self>, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut connections: [Option<Connection>; PACEMAKERS] = Default::default();
        loop {
            let Some(array) = self.plan.arrays.get(self.next.fetch_add(1, Ordering::SeqCst)) else { return };
            while self.allowed.load(Ordering::SeqCst) < array.numbers.start {
                time::sleep(Duration::from_millis(2)).await;
            }
            let mut at = random.random_range(0..PACEMAKERS);
            while !self.attempt(&mut connections[at], at, array).await {
                // An outcome that is unknown, or a refusal: the same again, by way of another.
                self.again.fetch_add(1, Ordering::Relaxed);
                at = (at + 1) % PACEMAKERS;
                time::sleep(Duration::from_millis(random.random_range(1..30))).await;
            }
            if random.random_bool(0.05) {
                // A repeat of what was accepted is the same events.
                at = (at + 1) % PACEMAKERS;
                self.attempt(&mut connections[at], at, array).await;
            }
        }
    }

    /// True when every event of the request is accepted.
    async fn attempt(&self, connection: &mut Option<Connection>, at: usize, array: &Array) -> bool {
        match self.send(connection, at, array).await {
            Ok(answer) => self.accepted(array, &answer),
            Err(_) => {
                *connection = None;
                self.broken.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    async fn send(
        &self,
        connection: &mut Option<Connection>,
        at: usize,
        array: &Array,
    ) -> std::io::Result<Response> {
        let to = self.fleet.address(at);
        let mut open = match connection.take() {
            Some(open) => open,
            None => Connection::open(to).await?,
        };
        let many = if array.numbers.len() > 1 { "/events" } else { "" };
        let request = Request::new("POST", &to.to_string(), &format!("/topics/{}{many}", array.topic))
            .token("shop")
            .header("Content-Type", "application/json")
            .header("Idempotency-Key", &array.key)
            .body(array.body.as_bytes());
        let answer = open.send(&request).await?;
        *connection = answer.keeps_alive().then_some(open);
        Ok(answer)
    }

    fn accepted(&self, array: &Array, answer: &Response) -> bool {
        match answer.status {
            200 if array.numbers.len() == 1 => {
                let id = answer.header("X-Signalbox-Event-Id").and_then(|id| id.parse().ok());
                id.inspect(|id| self.ledger.accept(array.numbers.start, *id)).is_some()
            }
            200 => {
                let results = answer.json();
                let results = results.as_array().expect("a result for each event");
                assert_eq!(results.len(), array.numbers.len(), "a result for each event");
                let mut all = true;
                for (number, result) in array.numbers.clone().zip(results) {
                    match (result["status"].as_u64(), result["id"].as_u64()) {
                        (Some(200), Some(id)) => self.ledger.accept(number, id),
                        (Some(503), None) => {
                            self.refused.fetch_add(1, Ordering::Relaxed);
                            all = false;
                        }
                        _ => self.ledger.flaw(format!("event {number}: {result}")),
                    }
                }
                all
            }
            503 => {
                if answer.header("Retry-After").is_none() {
                    self.ledger.flaw(format!("503 without Retry-After: {answer:?}"));
                }
                self.refused.fetch_add(array.numbers.len() as u64, Ordering::Relaxed);
                false
            }
            _ => {
                self.ledger.flaw(format!("{} was answered {answer:?}", array.key));
                false
            }
        }
    }
}

/// What a subscriber does with a delivery that it has entered: mostly it takes it.
fn mood(random: &mut StdRng, misery: f64) -> Answer {
    let taken = Answer::status("200 OK");
    let answer = if random.random_bool(1.0 - misery) {
        taken
    } else {
        match random.random_range(0..6) {
            0 => Answer::status("500 Internal Server Error"),
            1 => Answer::status("503 Service Unavailable\r\nRetry-After: 1"),
            2 => Answer::Close,
            // Half of an answer: what it would have been, nobody knows.
            3 => Answer::Broken(b"HTTP/1.1 200 O".to_vec()),
            4 => Answer::Trickle(
                b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec(),
                Duration::from_millis(8),
            ),
            _ => Answer::Bytes(
                b"HTTP/1.1 500 Oops\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno!".to_vec(),
            ),
        }
    };
    if random.random_bool(0.1) {
        return Answer::After(Duration::from_millis(random.random_range(1..60)), Box::new(answer));
    }
    answer
}

/// Starts the subscribers and subscribes them.
async fn subscribe(fleet: &Fleet, ledger: &Arc<Ledger>, random: &mut StdRng) -> Vec<Receiver> {
    let mut receivers = Vec::new();
    for (place, (topics, concurrency, max, timeout)) in SUBSCRIBERS.into_iter().enumerate() {
        let events = if topics.contains(&"orders") { EVENTS } else { EVENTS / 7 };
        // A failure costs a lane a pause of a second. So that no lane pauses for minutes, the more batches it has, the
        // less often it fails.
        let batches = events as f64 / (concurrency * max.min(500)) as f64;
        let misery = (8.0 / batches).min(0.08);
        let moods = std::sync::Mutex::new(StdRng::seed_from_u64(random.random()));
        let ledger = Arc::clone(ledger);
        let receiver = Receiver::passing(move |delivery| {
            ledger.receive(place, &delivery.body);
            mood(&mut moods.lock().unwrap(), misery)
        })
        .await;
        let client = fleet.client(&format!("subscriber-{place}")).await;
        let body = json!({"topics": topics, "callback": receiver.url(), "uuid": client,
            "concurrency": concurrency, "max": max, "timeout": timeout});
        fleet.subscribe(&client, &body).await;
        receivers.push(receiver);
    }
    receivers
}

/// Something that dies and is started again.
struct Victim {
    part: PartHandle,
    back: Option<tokio::task::JoinHandle<()>>,
}

impl Victim {
    /// Kills it, and has it started again after `pause`, whatever it needs is there or not.
    async fn die(&mut self, pause: Duration) {
        self.rise().await;
        self.part.kill().await.expect("a running system");
        let part = self.part.clone();
        self.back = Some(tokio::spawn(async move {
            time::sleep(pause).await;
            part.start_only().await.expect("a part that starts again");
        }));
    }

    /// Waits until it was started again.
    async fn rise(&mut self) {
        if let Some(back) = self.back.take() {
            back.await.expect("a part that starts again");
        }
    }
}

/// Kills at random while events are published; how often it killed pacemakers and Redis.
async fn kill(publishing: &Publishing, measure: &Measure, random: &mut StdRng) -> (usize, usize) {
    let fleet = &publishing.fleet;
    let mut victims: Vec<Victim> =
        (0..fleet.len()).map(|number| Victim { part: fleet.pacemaker(number), back: None }).collect();
    victims.push(Victim { part: fleet.fabric(), back: None });
    let (started, mut killed, mut fates) = (Instant::now(), (0, 0), Vec::new());
    let share = EVENTS / (measure.kills + 1);
    for round in 0..measure.kills {
        if measure.within.is_some_and(|within| started.elapsed() > within) {
            break;
        }
        // Publishing goes on up to the next kill, and the kill comes somewhere on the way there.
        publishing.allowed.store((round + 1) * share, Ordering::SeqCst);
        let moment = round * share + random.random_range(0..share);
        poll::within(SETTLE, "publishing to go on", || async {
            let (accepted, _) = publishing.ledger.progress();
            if accepted >= moment { Ok(()) } else { Err(format!("{accepted} of {moment} accepted")) }
        })
        .await;
        time::sleep(Duration::from_millis(random.random_range(0..300))).await;
        if fates.is_empty() {
            fates = (0..REDIS_EVERY).collect();
            fates.shuffle(random);
        }
        let redis = fates.pop() == Some(0);
        let victim = if redis { PACEMAKERS } else { random.random_range(0..PACEMAKERS) };
        victims[victim].die(Duration::from_millis(random.random_range(0..400))).await;
        *if redis { &mut killed.1 } else { &mut killed.0 } += 1;
        if (round + 1) % 50 == 0 {
            let (accepted, delivered) = publishing.ledger.progress();
            let seconds = started.elapsed().as_secs();
            println!("{} kills in {seconds} s; {accepted} accepted, {delivered} delivered", round + 1);
        }
    }
    for victim in &mut victims {
        victim.rise().await;
        victim.part.wait_ready().await.expect("a part that comes back");
    }
    publishing.allowed.store(EVENTS, Ordering::SeqCst);
    killed
}

async fn tempt_fate(name: &str, fsync: Fsync, measure: Measure) {
    let seed = from_environment("SIGNALBOX_SEED").unwrap_or_else(|| rand::rng().random());
    println!("{name}: SIGNALBOX_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let started = Instant::now();
    let plan = Plan::new(&mut random);
    let topics: Vec<&[&str]> = SUBSCRIBERS.iter().map(|wish| wish.0).collect();
    let ledger = Arc::new(Ledger::new(plan.published.clone(), &topics));
    let fleet = Fleet::start(name, PACEMAKERS, &SETTINGS, |builder| {
        builder.with(|options| options.redis.fabric_fsync = fsync)
    })
    .await;
    let fleet = Arc::new(fleet);
    fleet.client("shop").await;
    let _receivers = subscribe(&fleet, &ledger, &mut random).await;

    let publishing = Arc::new(Publishing {
        fleet: Arc::clone(&fleet),
        plan,
        ledger: Arc::clone(&ledger),
        next: AtomicUsize::new(0),
        allowed: AtomicUsize::new(0),
        again: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        broken: AtomicU64::new(0),
    });
    let mut publishers = JoinSet::new();
    for _ in 0..PUBLISHERS {
        publishers.spawn(Arc::clone(&publishing).run(random.random()));
    }
    let (pacemakers, redis) = kill(&publishing, &measure, &mut random).await;
    println!("{name}: {:?}: {pacemakers} pacemakers and {redis} Redis killed", started.elapsed());
    publishers.join_all().await;
    println!("{name}: {:?}: all is published", started.elapsed());

    settle(&fleet, &ledger).await;
    let sums = ledger.sums();
    let [again, refused, broken] = [&publishing.again, &publishing.refused, &publishing.broken]
        .map(|count| count.load(Ordering::Relaxed));
    println!(
        "{name}: {:?}: {sums:?}; {again} requests repeated, {broken} broken, {refused} events refused",
        started.elapsed()
    );
    let flaws = ledger.audit();
    assert!(flaws.is_empty(), "SIGNALBOX_SEED={seed} {name}: {flaws:#?}");
    assert_eq!(sums.accepted, EVENTS);
    for place in 0..SUBSCRIBERS.len() {
        let client = format!("subscriber-{place}");
        let dead = fleet.call(0, &client, "GET", "/subscriber/dead", None).await;
        assert_eq!(dead.json()["dead"], json!([]), "SIGNALBOX_SEED={seed}: {client}");
    }
    drop(publishing);
    let fleet = Arc::try_unwrap(fleet).unwrap_or_else(|_| panic!("everybody is gone"));
    fleet.system.stop().await;
}

/// Waits until there is nothing left to deliver. What is missing then is lost.
async fn settle(fleet: &Fleet, ledger: &Ledger) {
    poll::within(SETTLE, "nothing to be left to deliver", || async {
        let jobs: u64 = fleet.system.try_cli(System::FABRIC, "SCARD bus:jobs:index:main").await?;
        let batches: u64 = fleet.system.try_cli(System::FABRIC, "ZCARD bus:batches:index").await?;
        let left = (jobs, batches);
        if left == (0, 0) { Ok(()) } else { Err(format!("{left:?}, {:?}", ledger.progress())) }
    })
    .await;
}
