//! Order without loss: many events of many objects through three pacemakers that are killed at random, as is Redis, to
//! subscribers that fail at random. Between the kills, all processes are also stopped and resumed, subscribers change their
//! number of lanes, and Redis flushes its scripts and rewrites its append-only file.
//!
//! All random choices follow from the seed, which is printed: `SIGNALBOX_SEED` repeats them. Their timing is not repeated, so a
//! flaw may need several runs with its seed.

mod publishing;

use std::{
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};
use serde_json::{Value, json};
use signalbox_stack::{Fsync, PartHandle};
use signalbox_testkit::eventually_within;
use signalbox_tests::{
    fleet::Fleet,
    http::Request,
    ledger::Ledger,
    receiver::{Answer, Receiver},
    system::System,
    victim::Victim,
};
use tokio::{
    task::JoinSet,
    time::{self, Instant},
};

use self::publishing::{Plan, Publishing};

const OBJECTS: usize = 1_000;
const PACEMAKERS: usize = 3;
const PUBLISHERS: u64 = 6;
const TOPICS: [&str; 2] = ["orders", "refunds"];
/// Events and kills within the suite. `make soak` has more events, and makes `SOAK_KILLS`, for at most `SOAK_SECONDS`.
const EVENTS: usize = 30_000;
const KILLS: usize = 12;
const SOAK_EVENTS: usize = 100_000;
const SOAK_KILLS: u64 = 1_000;
const SOAK_SECONDS: u64 = 1_200;
/// One of this many kills hits Redis.
const REDIS_EVERY: usize = 4;
/// The time limit for delivering all accepted events after the last kill.
const SETTLE: Duration = Duration::from_secs(600);

/// A subscriber: its topics, concurrency, most events of a batch, and the time in ms that one may fill.
type Wish = (&'static [&'static str], usize, usize, u64);

const SUBSCRIBERS: [Wish; 8] = [
    (&TOPICS, 1, 1_000, 0),
    (&["refunds"], 8, 150, 50),
    (&TOPICS, 32, 50, 20),
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

/// The largest values that the configuration allows, of everything that decides how much one call of a script does.
const MAXIMA: [(&str, i64); 11] = [
    ("workers", 10_000),
    ("slow_deliveries", 100_000),
    ("slow_ms", 100),
    ("beat_ms", 100),
    ("dead_after_ms", 500),
    ("housekeeping_ms", 100),
    ("request_events", 10_000),
    ("batch_bytes", 8_388_608),
    ("call_events", 500),
    ("call_appends", 1_000),
    ("call_bytes", 33_554_432),
];

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

/// How much is published, how often is killed, for how long at most, and under which settings of the bus.
struct Measure {
    events: usize,
    kills: usize,
    within: Option<Duration>,
    settings: &'static [(&'static str, i64)],
    /// Most events of one request.
    request: usize,
}

impl Measure {
    fn soak() -> Self {
        let seconds = from_environment("SOAK_SECONDS").unwrap_or(SOAK_SECONDS);
        Self {
            events: SOAK_EVENTS,
            kills: from_environment("SOAK_KILLS").unwrap_or(SOAK_KILLS) as usize,
            within: Some(Duration::from_secs(seconds)),
            ..Self::short()
        }
    }

    fn short() -> Self {
        Self { events: EVENTS, kills: KILLS, within: None, settings: &SETTINGS, request: 400 }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn order_holds_and_nothing_is_lost_whichever_part_is_killed() {
    run_with_faults("order", Fsync::Always, 1, Measure::short()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs for a configured duration; make soak"]
async fn soak_order_holds_when_redis_writes_through() {
    run_with_faults("soak-always", Fsync::Always, 1, Measure::soak()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs for a configured duration; make soak"]
async fn soak_order_holds_when_redis_writes_every_second() {
    run_with_faults("soak-everysec", Fsync::Everysec, 1, Measure::soak()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs for a configured duration; make soak"]
async fn soak_order_holds_on_four_shards() {
    run_with_faults("soak-shards", Fsync::Always, 4, Measure::soak()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs for a configured duration; make soak"]
async fn soak_order_holds_at_the_largest_settings() {
    let measure = Measure { settings: &MAXIMA, request: 10_000, ..Measure::soak() };
    run_with_faults("soak-maxima", Fsync::Always, 4, measure).await;
}

/// A subscriber's answer to a delivery it has recorded: success in most cases.
fn mood(random: &mut StdRng, misery: f64) -> Answer {
    let taken = Answer::status("200 OK");
    let answer = if random.random_bool(1.0 - misery) {
        taken
    } else {
        match random.random_range(0..6) {
            0 => Answer::status("500 Internal Server Error"),
            1 => Answer::status("503 Service Unavailable\r\nRetry-After: 1"),
            2 => Answer::Close,
            // Half of an answer: the pacemaker cannot know which status it would have had.
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
async fn subscribe(
    fleet: &Fleet,
    ledger: &Arc<Ledger>,
    published: usize,
    random: &mut StdRng,
) -> Vec<(Receiver, Value)> {
    let mut subscribed = Vec::new();
    for (place, (topics, concurrency, max, timeout)) in SUBSCRIBERS.into_iter().enumerate() {
        let events = if topics.contains(&"orders") { published } else { published / 7 };
        // A failure costs a lane a pause of a second. So that no lane pauses for minutes, the more batches it has, the
        // less often it fails.
        let batches = events as f64 / (concurrency * max.min(500)) as f64;
        let misery = (8.0 / batches).min(0.08);
        let moods = Mutex::new(StdRng::seed_from_u64(random.random()));
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
        subscribed.push((receiver, body));
    }
    subscribed
}

/// Kills at random while events are published; how often it killed pacemakers and Redis.
async fn kill(
    publishing: &Publishing,
    subscriptions: &[Value],
    measure: &Measure,
    random: &mut StdRng,
) -> (usize, usize) {
    let fleet = &publishing.fleet;
    let mut victims: Vec<Victim> =
        (0..fleet.len()).map(|number| Victim::new(fleet.pacemaker(number))).collect();
    victims.push(Victim::new(fleet.fabric()));
    let (started, mut killed, mut turns) = (Instant::now(), (0, 0), Vec::new());
    let mut mischief = JoinSet::new();
    let share = measure.events / (measure.kills + 1);
    for round in 0..measure.kills {
        if measure.within.is_some_and(|within| started.elapsed() > within) {
            break;
        }
        // Publishing continues until the next kill, which falls on a random event before that.
        publishing.allowed.store((round + 1) * share, Ordering::SeqCst);
        let moment = round * share + random.random_range(0..share);
        eventually_within(SETTLE, "publishing to succeed again", || async {
            let (accepted, _) = publishing.ledger.progress();
            if accepted >= moment { Ok(()) } else { Err(format!("{accepted} of {moment} accepted")) }
        })
        .await;
        let one = Disturbance::any(random, &victims, subscriptions);
        mischief.spawn(one.inject(Arc::clone(fleet)));
        time::sleep(Duration::from_millis(random.random_range(0..300))).await;
        if turns.is_empty() {
            turns = (0..REDIS_EVERY).collect();
            turns.shuffle(random);
        }
        let redis = turns.pop() == Some(0);
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
        victim.recover().await;
    }
    mischief.join_all().await;
    publishing.allowed.store(measure.events, Ordering::SeqCst);
    killed
}

/// A disturbance between two kills.
enum Disturbance {
    /// A process is stopped for a while and then resumed: its workers may be declared dead.
    Freeze(PartHandle, Duration),
    /// A subscriber wants another number of lanes, so its objects move from lane to lane.
    Lanes(Value),
    /// Redis forgets its scripts.
    Flush,
    /// Redis rewrites its append-only file.
    Rewrite,
}

impl Disturbance {
    fn any(random: &mut StdRng, victims: &[Victim], subscriptions: &[Value]) -> Self {
        match random.random_range(0..6) {
            0 | 1 => {
                let part = victims[random.random_range(0..victims.len())].part.clone();
                Self::Freeze(part, Duration::from_millis(random.random_range(50..1_500)))
            }
            2 | 3 => {
                let mut subscription = subscriptions[random.random_range(0..subscriptions.len())].clone();
                // Never fewer than at first: a lane must not wait too often for a second.
                let least = subscription["concurrency"].as_u64().expect("a number of lanes");
                subscription["concurrency"] = random.random_range(least..=64).into();
                Self::Lanes(subscription)
            }
            4 => Self::Flush,
            _ => Self::Rewrite,
        }
    }

    /// If Redis is down or dies at this moment, the disturbance does not happen.
    async fn inject(self, fleet: Arc<Fleet>) {
        match self {
            Self::Freeze(part, pause) => {
                part.pause();
                time::sleep(pause).await;
                part.resume();
            }
            Self::Lanes(subscription) => {
                let client = subscription["uuid"].as_str().expect("the name of a client").to_owned();
                let mut at = 0;
                eventually_within(SETTLE, "a subscription to be changed", || {
                    at = (at + 1) % PACEMAKERS;
                    let to = fleet.address(at);
                    let request =
                        Request::new("POST", "localhost", "/subscription").token(&client).json(&subscription);
                    async move {
                        match request.send(to).await {
                            Ok(answer) if answer.status == 204 => Ok(()),
                            // Too many earlier changes wait for their events: this one does not happen.
                            Ok(answer) if answer.text().contains("limit_reached") => Ok(()),
                            other => Err(format!("{other:?}")),
                        }
                    }
                })
                .await;
            }
            Self::Flush => drop(fleet.system.try_cli::<()>(System::FABRIC, "SCRIPT FLUSH").await),
            Self::Rewrite => drop(fleet.system.try_cli::<String>(System::FABRIC, "BGREWRITEAOF").await),
        }
    }
}

async fn run_with_faults(name: &str, fsync: Fsync, shards: i64, measure: Measure) {
    let seed = from_environment("SIGNALBOX_SEED").unwrap_or_else(|| rand::rng().random());
    println!("{name}: SIGNALBOX_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let started = Instant::now();
    let plan = Plan::new(&mut random, measure.events, measure.request);
    let topics: Vec<&[&str]> = SUBSCRIBERS.iter().map(|wish| wish.0).collect();
    let ledger = Arc::new(Ledger::new(plan.published.clone(), &topics));
    let mut redis = toml::Table::new();
    redis.insert("fabric_shards".to_owned(), shards.into());
    let fleet = Fleet::start(name, PACEMAKERS, measure.settings, |builder| {
        builder.with(|options| options.redis.fabric_fsync = fsync).pacemaker("redis", redis)
    })
    .await;
    let fleet = Arc::new(fleet);
    fleet.client("shop").await;
    let (_receivers, subscriptions): (Vec<_>, Vec<_>) =
        subscribe(&fleet, &ledger, measure.events, &mut random).await.into_iter().unzip();

    let publishing = Arc::new(Publishing::new(&fleet, plan, &ledger));
    let mut publishers = JoinSet::new();
    for _ in 0..PUBLISHERS {
        publishers.spawn(Arc::clone(&publishing).run(random.random()));
    }
    let (pacemakers, redis) = kill(&publishing, &subscriptions, &measure, &mut random).await;
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
    assert_eq!(sums.accepted, measure.events);
    for place in 0..SUBSCRIBERS.len() {
        let client = format!("subscriber-{place}");
        let dead = fleet.call(0, &client, "GET", "/subscriber/dead", None).await;
        assert_eq!(dead.json()["dead"], json!([]), "SIGNALBOX_SEED={seed}: {client}");
    }
    drop(publishing);
    let fleet = Arc::try_unwrap(fleet).unwrap_or_else(|_| panic!("everybody is gone"));
    fleet.system.stop().await;
}

/// Waits until nothing is left to deliver. An event missing after that is lost.
async fn settle(fleet: &Fleet, ledger: &Ledger) {
    eventually_within(SETTLE, "nothing to be left to deliver", || async {
        let numbers = fleet.call(0, &fleet.system.token, "GET", "/bus/metrics", None).await.json();
        let jobs = ["instant", "scheduled", "pending"].map(|state| numbers["jobs"][state].as_u64());
        let subscribers = numbers["subscribers"].as_object().into_iter().flatten();
        let batches: u64 = subscribers.filter_map(|(_, one)| one["batches"].as_u64()).sum();
        // An error has no such numbers.
        let idle = jobs == [Some(0); 3] && batches == 0;
        if idle { Ok(()) } else { Err(format!("{jobs:?}, {batches} batches, {:?}", ledger.progress())) }
    })
    .await;
}
