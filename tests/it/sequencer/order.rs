//! Many producers, three pacemakers, and a network that loses and repeats requests: accepted events reach the backend in
//! order.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::{Value, json};
use signalbox_stack::{Fsync, PartHandle, Ports};
use signalbox_testkit::{
    eventually, eventually_within,
    wire::{Fault, Wire},
};
use signalbox_tests::{
    http::Request,
    receiver::{Answer, Receiver},
    relay::{Odds, Relay},
    system::System,
};
use tokio::time::Instant;

use super::{body, event};

/// Rounds of the random test within the suite. `make soak` runs for `SOAK_SECONDS`;
/// `SIGNALBOX_SEED` repeats a sequence.
const ROUNDS: u64 = 6;
const SOAK_SECONDS: u64 = 600;
const PRODUCERS: u64 = 16;
/// Objects in addition to the hot one, which has half of the events: within the suite, and in the
/// soak.
const OBJECTS: u64 = 1_000;
const SOAK_OBJECTS: u64 = 10_000;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

#[tokio::test(flavor = "multi_thread")]
async fn accepted_events_are_sent_in_order_whenever_parts_die() {
    let mut rounds = 0..ROUNDS;
    run_with_faults("order", OBJECTS, move || rounds.next().is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs for a configured duration; make soak"]
async fn soak_accepted_events_are_sent_in_order_whenever_parts_die() {
    let end = Instant::now() + Duration::from_secs(from_environment("SOAK_SECONDS").unwrap_or(SOAK_SECONDS));
    run_with_faults("order-soak", SOAK_OBJECTS, move || Instant::now() < end).await;
}

/// The answers that producers received.
#[derive(Default)]
struct Answers {
    /// Object → the ids that they got for it.
    accepted: Mutex<BTreeMap<String, BTreeSet<u64>>>,
    /// How many requests were rejected or not answered.
    refused: AtomicU64,
}

#[derive(Debug, Clone, Copy)]
enum Disturbance {
    PacemakerKilled,
    FabricKilled,
    RepliesLost,
    RepliesLate,
}

const DISTURBANCES: [Disturbance; 6] = [
    Disturbance::PacemakerKilled,
    Disturbance::PacemakerKilled,
    Disturbance::PacemakerKilled,
    Disturbance::FabricKilled,
    Disturbance::RepliesLost,
    Disturbance::RepliesLate,
];

async fn run_with_faults(name: &str, objects: u64, mut go_on: impl FnMut() -> bool) {
    let seed = from_environment("SIGNALBOX_SEED").unwrap_or_else(|| rand::rng().random());
    println!("SIGNALBOX_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let ports = Ports::free().unwrap();
    let wire = Wire::to(SocketAddr::from(([127, 0, 0, 1], ports.fabric))).await;
    let table = |text: &str| text.parse::<toml::Table>().unwrap();
    let system = System::with(name, |builder| {
        builder
            .ports(ports)
            .with(|options| options.redis.fabric_fsync = Fsync::Always)
            .pacemaker("bus", table("allow_http = true\nallow_networks = ['127.0.0.0/8']"))
            .pacemaker("redis", table(&format!("fabric = 'redis://pacemaker@{}/'", wire.address)))
            .pacemaker("sequencer", table("lease_ms = 1500\nfirst_pause_ms = 20\nlongest_pause_ms = 200"))
    })
    .await;
    let others = [system.stack.add_pacemaker().await.unwrap(), system.stack.add_pacemaker().await.unwrap()];
    let parts = [system.stack.part(&System::PACEMAKER), others[0].clone(), others[1].clone()];
    system.allow("upstream: \"http://");

    // A backend that sometimes fails and sometimes does not answer; every HTTP connection passes
    // through a network that loses, repeats and delays messages.
    let count = Arc::new(AtomicU64::new(0));
    let receiver = Receiver::answering(move |_| match count.fetch_add(1, Ordering::Relaxed) % 97 {
        13 => Answer::status("500 Internal Server Error"),
        57 => Answer::Close,
        _ => Answer::status("204 No Content"),
    })
    .await;
    let network =
        Odds { lost: 1, unanswered: 2, doubled: 2, echoed: 2, late: 5, longest: Duration::from_millis(100) };
    let before_backend = Relay::to(receiver.address, network, seed).await;
    let callback = format!("http://{}/events", before_backend.address);
    let backend = json!({"prefix": "work:", "callback": callback, "workers": 8});
    let made = system.api("PUT", "/backends/search", Some(backend)).await;
    assert_eq!(made.status, 201, "{}", made.text());

    let answers = Arc::new(Answers::default());
    let stop = Arc::new(AtomicBool::new(false));
    let mut relays = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let to = part.address().trim_start_matches("http://").parse().unwrap();
        relays.push(Relay::to(to, network, seed.wrapping_add(1 + number as u64)).await);
    }
    let at: Vec<SocketAddr> = relays.iter().map(|relay| relay.address).collect();
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|number| {
            let producer = Producer {
                number,
                random: StdRng::seed_from_u64(seed ^ number),
                at: at.clone(),
                token: system.token.clone(),
                objects,
            };
            tokio::spawn(producer.run(Arc::clone(&answers), Arc::clone(&stop)))
        })
        .collect();
    let mut disturbances = Vec::new();
    while go_on() {
        if disturbances.is_empty() {
            disturbances = DISTURBANCES.to_vec();
            disturbances.shuffle(&mut random);
        }
        let disturbance = disturbances.pop().unwrap();
        let victim = random.random_range(0..parts.len());
        println!("{disturbance:?} {victim}");
        inject(&system, &wire, &parts[victim], disturbance, &answers).await;
    }
    stop.store(true, Ordering::Relaxed);
    for producer in producers {
        producer.await.unwrap();
    }
    let answers = answers.accepted.lock().unwrap().clone();
    compare_with(&receiver, &answers).await;
    let met: u64 = relays.iter().map(Relay::met).sum();
    println!("{met} requests of producers and {} to the backend met a fault", before_backend.met());
    assert!(met > 0 && before_backend.met() > 0);
    eventually("nothing to be queued, and nothing to be broken", || async {
        let shown = system.api("GET", "/backends/search", None).await.json();
        let check = system.api("GET", "/check", None).await.json();
        if shown["events"] == 0 && check["consistent"] == true { Ok(()) } else { Err((shown, check)) }
    })
    .await;
    system.stop().await;
}

/// How many events were accepted.
fn accepted(answers: &Answers) -> usize {
    answers.accepted.lock().unwrap().values().map(BTreeSet::len).sum()
}

/// Waits until `more` further events were accepted.
async fn until_more(answers: &Answers, more: usize) {
    let wanted = accepted(answers) + more;
    eventually(&format!("{wanted} events to be accepted"), || async {
        let now = accepted(answers);
        if now >= wanted { Ok(()) } else { Err(now) }
    })
    .await;
}

async fn inject(
    system: &System,
    wire: &Wire,
    victim: &PartHandle,
    disturbance: Disturbance,
    answers: &Answers,
) {
    match disturbance {
        Disturbance::PacemakerKilled => {
            victim.kill().await.unwrap();
            until_more(answers, 200).await;
            victim.start().await.unwrap();
        }
        Disturbance::FabricKilled => {
            system.kill(System::FABRIC).await;
            system.start_part(System::FABRIC).await;
        }
        Disturbance::RepliesLost => {
            // Calls may or may not be executed, and no answer arrives.
            wire.set(Fault::LoseReplies);
            let before = answers.refused.load(Ordering::Relaxed);
            eventually("producers to be refused", || async {
                let now = answers.refused.load(Ordering::Relaxed);
                if now >= before + 3 { Ok(()) } else { Err(now - before) }
            })
            .await;
            wire.set(Fault::None);
        }
        Disturbance::RepliesLate => {
            wire.set(Fault::Delay(Duration::from_millis(20)));
            until_more(answers, 50).await;
            wire.set(Fault::None);
        }
    }
    until_more(answers, 200).await;
}

/// One of many that publish events of the same objects.
struct Producer {
    number: u64,
    random: StdRng,
    at: Vec<SocketAddr>,
    token: String,
    objects: u64,
}

impl Producer {
    async fn run(mut self, answers: Arc<Answers>, stop: Arc<AtomicBool>) {
        let mut turn = 0;
        while !stop.load(Ordering::Relaxed) {
            turn += 1;
            let hot = self.random.random_bool(0.5);
            let object = if hot {
                "work:hot".to_owned()
            } else {
                format!("work:{}", self.random.random_range(0..self.objects))
            };
            let events = vec![event("works"); self.random.random_range(1..=3)];
            let group =
                json!({"data": turn, "events": events, "idempotency_key": format!("{}-{turn}", self.number)});
            let ids = self.until_accepted(&object, &group, &answers).await;
            let mut accepted = answers.accepted.lock().unwrap();
            let known = accepted.entry(object).or_default();
            for id in ids {
                assert!(known.insert(id), "{id} was given out twice");
            }
        }
    }

    /// Repeats the request, at any pacemaker, until it is accepted.
    async fn until_accepted(&mut self, object: &str, group: &Value, answers: &Answers) -> Vec<u64> {
        loop {
            let to = self.at[self.random.random_range(0..self.at.len())];
            let target = format!("/objects/{object}/events");
            let request = Request::new("POST", "localhost", &target).token(&self.token).json(group);
            match tokio::time::timeout(Duration::from_secs(5), request.send(to)).await {
                Ok(Ok(answer)) if answer.status == 202 => {
                    return serde_json::from_value(answer.json()["ids"].clone()).unwrap();
                }
                Ok(Ok(answer)) => {
                    assert!(matches!(answer.status, 429 | 500..), "{} {}", answer.status, answer.text());
                }
                Ok(Err(_)) | Err(_) => {}
            }
            answers.refused.fetch_add(1, Ordering::Relaxed);
            // A producer that retries without a pause would only add load.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Checks the backend's own log: every accepted event was delivered, nothing else was, first
/// receipts of each object are increasing, numbers never change, and each `prev` is the preceding
/// event.
async fn compare_with(receiver: &Receiver, answers: &BTreeMap<String, BTreeSet<u64>>) {
    let wanted: usize = answers.values().map(BTreeSet::len).sum();
    let came = || {
        let mut first: BTreeMap<String, Vec<(u64, Option<u64>)>> = BTreeMap::new();
        let mut known = BTreeMap::new();
        for delivery in receiver.deliveries() {
            let event = body(&delivery);
            let (id, prev) = (event["id"].as_u64().unwrap(), event["prev"].as_u64());
            match known.insert(id, prev) {
                None => {
                    first.entry(event["object"].as_str().unwrap().to_owned()).or_default().push((id, prev))
                }
                Some(before) => assert_eq!(before, prev, "the numbers of {id} changed"),
            }
        }
        first
    };
    let first = eventually_within(Duration::from_secs(120), &format!("{wanted} events to come"), || async {
        let first = came();
        let count: usize = first.values().map(Vec::len).sum();
        if count >= wanted { Ok(first) } else { Err(count) }
    })
    .await;
    println!("{wanted} events of {} objects", answers.len());
    for (object, ids) in answers {
        let sent = &first[object];
        let order: Vec<u64> = sent.iter().map(|(id, _)| *id).collect();
        assert_eq!(
            order,
            ids.iter().copied().collect::<Vec<_>>(),
            "{object}: each once, in order, and no other"
        );
        for pair in sent.windows(2) {
            assert_eq!(pair[1].1, Some(pair[0].0), "{object}: prev is the event before");
        }
    }
    assert_eq!(first.len(), answers.len());
}
