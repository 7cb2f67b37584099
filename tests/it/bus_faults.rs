//! Faults around the event bus: receivers that fail in every way, and a fabric that is down, slow, full or replaced.
//!
//! In every case, publishers get 503 with `Retry-After`, an event is in the batches of all its subscribers or of none, and
//! deliveries continue automatically when the fault ends.

use std::{collections::BTreeSet, io::Write as _, net::SocketAddr, time::Duration};

use serde_json::{Value, json};
use signalbox_stack::{PartHandle, Ports};
use signalbox_testkit::{
    eventually, eventually_within,
    wire::{Fault, Wire},
};
use signalbox_tests::{
    fleet::Fleet,
    http::{Request, Response, credential},
    receiver::{Answer, Receiver},
    system::System,
};

/// Short intervals for failure detection, heartbeats and timeouts.
const SETTINGS: [(&str, i64); 6] = [
    ("workers", 4),
    ("slow_ms", 50),
    ("delivery_ms", 2_000),
    ("beat_ms", 100),
    ("dead_after_ms", 1_000),
    ("housekeeping_ms", 200),
];

/// The allowed growth of a pacemaker's memory under these faults. Each fault offers far more data
/// than this.
const GROWTH_KB: u64 = 96 * 1024;

/// A process's resident memory, now and at its peak.
fn resident_kb(part: &PartHandle) -> (u64, u64) {
    let pid = part.pid().expect("a running process");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the status of a process");
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).expect("a field of the status");
        line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number of kB")
    };
    (field("VmRSS:"), field("VmHWM:"))
}

async fn subscribe(fleet: &Fleet, client: &str, callback: &str, lanes: usize) -> String {
    let client = fleet.client(client).await;
    let body = json!({"topics": ["orders"], "callback": callback, "uuid": client, "timeout": 0,
        "concurrency": lanes, "max": 10});
    fleet.subscribe(&client, &body).await;
    client
}

/// Publishes `count` events with `bytes` bytes of data each, numbered from `first`.
async fn publish(fleet: &Fleet, first: usize, count: usize, bytes: usize) -> Response {
    let events: Vec<Value> = (first..first + count)
        .map(|n| {
            let url = format!("https://shop.example/{}", n % 17);
            json!({"type": "update", "url": url, "data": {"n": n, "padding": "x".repeat(bytes)}})
        })
        .collect();
    fleet.call(0, "shop", "POST", "/topics/orders/events", Some(&Value::Array(events))).await
}

/// The numbers that were accepted out of an answer to [`publish`].
fn accepted(first: usize, answer: &Response) -> BTreeSet<u64> {
    if answer.status == 503 {
        expect_503(answer);
        return BTreeSet::new();
    }
    assert_eq!(answer.status, 200, "{}", answer.text());
    let results = answer.json();
    let results = results.as_array().unwrap().iter().enumerate();
    results
        .filter(|(_, result)| match result["status"].as_u64() {
            Some(200) => true,
            Some(503) => false,
            _ => panic!("{result}"),
        })
        .map(|(place, _)| (first + place) as u64)
        .collect()
}

#[track_caller]
fn expect_503(answer: &Response) -> String {
    assert_eq!(answer.status, 503, "{answer:?}");
    let wait = answer.header("Retry-After").unwrap_or_else(|| panic!("no Retry-After: {answer:?}"));
    assert!(wait.parse::<u32>().is_ok_and(|seconds| seconds > 0), "Retry-After: {wait}");
    answer.json()["code"].as_str().unwrap().to_owned()
}

/// The numbers that a receiver got.
fn numbers(receiver: &Receiver) -> BTreeSet<u64> {
    receiver.events().iter().map(|event| event["data"]["n"].as_u64().unwrap()).collect()
}

/// Waits until every receiver got all of `wanted`. On a timeout the message lists what each
/// receiver lacks.
async fn until_all(receivers: &[&Receiver], wanted: &BTreeSet<u64>) {
    eventually_within(
        Duration::from_secs(60),
        "everything accepted to be delivered to everybody",
        || async {
            let lacking: Vec<usize> =
                receivers.iter().map(|receiver| wanted.difference(&numbers(receiver)).count()).collect();
            if lacking.iter().all(|count| *count == 0) { Ok(()) } else { Err(lacking) }
        },
    )
    .await;
}

/// Waits until no lane has anything left.
async fn until_idle(fleet: &Fleet) {
    eventually_within(Duration::from_secs(60), "nothing to be left to deliver", || async {
        let jobs: u64 = fleet.system.try_cli(System::FABRIC, "SCARD bus:jobs:index:main").await?;
        let batches: u64 = fleet.system.try_cli(System::FABRIC, "ZCARD bus:batches:index").await?;
        if (jobs, batches) == (0, 0) { Ok(()) } else { Err(format!("{jobs} jobs, {batches} batches")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_receivers_cost_good_ones_nothing_and_the_pacemaker_no_memory() {
    let mut settings = SETTINGS.to_vec();
    settings.push(("cache_bytes", 4 << 20));
    let fleet = Fleet::start("bad-receivers", 1, &settings, |builder| builder).await;
    fleet.client("shop").await;
    let good = [Receiver::start().await, Receiver::start().await];
    for (place, receiver) in good.iter().enumerate() {
        subscribe(&fleet, &format!("good-{place}"), &receiver.url(), 4).await;
    }
    let mut wanted = accepted(0, &publish(&fleet, 0, 200, 2_000).await);
    until_all(&[&good[0], &good[1]], &wanted).await;
    let (before, _) = resident_kb(&fleet.pacemaker(0));

    let elsewhere = Receiver::start().await;
    let redirect = format!("307 Temporary Redirect\r\nLocation: {}", elsewhere.url());
    let slowly =
        Answer::Trickle(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec(), Duration::from_millis(30));
    let half = b"HTTP/1.1 200 OK\r\nContent-Le".to_vec();
    let answers = [
        ("hangs", Answer::Hang),
        ("endless", Answer::Endless),
        ("endless-chunks", Answer::EndlessChunks),
        ("endless-head", Answer::EndlessHead),
        ("closes", Answer::Close),
        ("closes-half-way", Answer::Broken(half)),
        ("redirects", Answer::status(&redirect)),
        ("slowly", slowly),
    ];
    let mut bad = Vec::new();
    for (name, answer) in answers {
        let receiver = Receiver::answering(move |_| answer.clone()).await;
        subscribe(&fleet, name, &receiver.url(), 8).await;
        bad.push(receiver);
    }
    // A name that leads to an address that is not allowed.
    subscribe(
        &fleet,
        "private-name",
        &format!("http://localhost:{}/events", fleet.system.stack.ports().fabric),
        8,
    )
    .await;
    subscribe(&fleet, "nameless", "http://nobody.invalid/events", 8).await;

    for round in 1..=30 {
        let first = round * 200;
        wanted.extend(accepted(first, &publish(&fleet, first, 200, 2_000).await));
    }
    assert_eq!(wanted.len(), 31 * 200, "every event was accepted");
    until_all(&[&good[0], &good[1]], &wanted).await;
    for receiver in &bad {
        eventually("every bad receiver to have been tried", || async {
            if receiver.deliveries().is_empty() { Err("not yet") } else { Ok(()) }
        })
        .await;
    }
    assert_eq!(elsewhere.deliveries().len(), 0, "a redirect was followed");
    let (_, most) = resident_kb(&fleet.pacemaker(0));
    let taken: u64 = bad.iter().map(Receiver::sent_bytes).sum();
    println!("resident: {before} kB, at most {most} kB; {taken} bytes of endless answers left the receivers");
    assert!(most < before + GROWTH_KB, "the pacemaker grew from {before} kB to {most} kB");
    fleet.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_fabric_causes_503_with_retry_after_and_everything_continues_afterwards() {
    let fleet = Fleet::start("fabric-away", 1, &SETTINGS, |builder| builder).await;
    fleet.client("shop").await;
    let receivers = [Receiver::start().await, Receiver::start().await];
    for (place, receiver) in receivers.iter().enumerate() {
        subscribe(&fleet, &format!("sub-{place}"), &receiver.url(), 1 + 3 * place).await;
    }
    // Deliveries that are under way at that moment are not lost either.
    receivers[0].decide(|_| Answer::After(Duration::from_millis(300), Box::new(Answer::status("200 OK"))));
    let mut wanted = accepted(0, &publish(&fleet, 0, 100, 10).await);
    assert_eq!(wanted.len(), 100);
    fleet.fabric().kill().await.unwrap();
    for round in 0..3 {
        let answer = publish(&fleet, 1_000 + round, 1, 10).await;
        assert_eq!(expect_503(&answer), "fabric_unavailable");
    }
    let event = json!({"type": "update", "url": "https://shop.example/1", "data": {"n": 2_000}});
    let single = fleet.call(0, "shop", "POST", "/topics/orders", Some(&event)).await;
    assert_eq!(expect_503(&single), "fabric_unavailable");
    // Every request gets this answer, and the pacemaker keeps running.
    let subscribed = json!({"topics": ["orders"], "callback": receivers[0].url()});
    expect_503(&fleet.call(0, "sub-0", "POST", "/subscription", Some(&subscribed)).await);
    expect_503(&fleet.call(0, "sub-0", "GET", "/subscriptions", None).await);
    expect_503(&fleet.call(0, "sub-0", "GET", "/subscriber/dead", None).await);
    fleet.fabric().start().await.unwrap();
    wanted.extend(accepted(3_000, &published_again(&fleet, 3_000).await));
    until_all(&[&receivers[0], &receivers[1]], &wanted).await;
    until_idle(&fleet).await;
    assert_eq!(numbers(&receivers[0]), wanted, "a rejected request was not partly accepted");
    assert_eq!(numbers(&receivers[1]), wanted);
    fleet.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fabric_that_rejects_writes_causes_503_and_one_log_line_and_everything_continues_afterwards() {
    let fleet = Fleet::start("fabric-read-only", 1, &SETTINGS, |builder| builder).await;
    fleet.client("shop").await;
    let receiver = Receiver::start().await;
    subscribe(&fleet, "sub", &receiver.url(), 2).await;
    let mut wanted = accepted(0, &publish(&fleet, 0, 20, 10).await);
    assert_eq!(wanted.len(), 20);
    // Redis rejects every write with NOREPLICAS.
    fleet.system.cli::<()>(System::FABRIC, "CONFIG SET min-replicas-to-write 1").await;
    for round in 0..5 {
        let refused = publish(&fleet, 1_000 + round, 1, 10).await;
        assert_eq!(expect_503(&refused), "fabric_read_only");
    }
    fleet.system.cli::<()>(System::FABRIC, "CONFIG SET min-replicas-to-write 0").await;
    wanted.extend(accepted(2_000, &published_again(&fleet, 2_000).await));
    until_all(&[&receiver], &wanted).await;
    until_idle(&fleet).await;
    assert_eq!(numbers(&receiver), wanted, "a rejected event was not accepted");
    let log = fleet.system.log_text(&System::PACEMAKER);
    let lines = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    assert_eq!(lines("the fabric rejects writes"), 1, "{log}");
    assert_eq!(lines("the fabric accepts writes again"), 1, "{log}");
    fleet.system.stop().await;
}

/// Publishes until the bus takes it.
async fn published_again(fleet: &Fleet, first: usize) -> Response {
    eventually("publishing to succeed again", || async {
        let answer = publish(fleet, first, 1, 10).await;
        match answer.status {
            200 => Ok(answer),
            503 => Err(expect_503(&answer)),
            // The shortage of memory is over, and housekeeping has not noticed it yet.
            429 if answer.json()["code"] == "tenant_limit_reached" => Err(answer.text()),
            _ => panic!("{answer:?}"),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_fabric_accepts_nothing_until_an_operator_confirms_it() {
    let fleet = Fleet::start("fabric-replaced", 2, &SETTINGS, |builder| builder).await;
    fleet.client("shop").await;
    let receiver = Receiver::start().await;
    subscribe(&fleet, "sub", &receiver.url(), 1).await;
    let wanted = accepted(0, &publish(&fleet, 0, 20, 10).await);
    until_all(&[&receiver], &wanted).await;
    fleet.system.restart_empty(System::FABRIC).await;
    let event = json!({"type": "update", "url": "https://shop.example/1", "data": {"n": 100}});
    let refused = |number: usize| {
        let (fleet, event) = (&fleet, &event);
        eventually("the refusal", move || async move {
            let answer = fleet.call(number, "shop", "POST", "/topics/orders", Some(event)).await;
            let code = expect_503(&answer);
            if code == "fabric_uninitialized" { Ok(()) } else { Err(code) }
        })
    };
    // Those that knew the old one, and one that starts now.
    refused(0).await;
    refused(1).await;
    fleet.pacemaker(1).kill().await.unwrap();
    fleet.pacemaker(1).start().await.unwrap();
    refused(1).await;
    let left: Vec<String> = fleet.system.cli(System::FABRIC, "KEYS bus:*").await;
    assert!(
        !left.iter().any(|key| key.starts_with("bus:log") || key.starts_with("bus:registry")),
        "{left:?}"
    );

    let initialized = fleet.call(0, &fleet.system.token, "POST", "/bus/initialize", None).await;
    assert_eq!(initialized.status, 204, "{}", initialized.text());
    for client in ["shop", "sub"] {
        let body = json!({"name": client, "token": credential(client), "scopes": ["publish", "subscribe"]});
        let made = fleet.call(0, &fleet.system.token, "POST", "/api_tokens", Some(&body)).await;
        assert_eq!(made.status, 201, "{}", made.text());
    }
    let body = json!({"topics": ["orders"], "callback": receiver.url(), "uuid": "sub", "timeout": 0});
    fleet.subscribe("sub", &body).await;
    for number in 0..2 {
        eventually("publishing to succeed again", || async {
            let answer = fleet.call(number, "shop", "POST", "/topics/orders", Some(&event)).await;
            if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
        })
        .await;
    }
    until_all(&[&receiver], &BTreeSet::from([100])).await;
    fleet.system.stop().await;
}

/// Every event that was accepted is delivered or named by a gap, every one that was refused is neither.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_fabric_rejects_whole_events_and_continues_when_it_has_memory() {
    let fleet = Fleet::start("fabric-full", 1, &SETTINGS, |builder| builder).await;
    fleet.client("shop").await;
    let down = || Answer::status("503 Service Unavailable\r\nRetry-After: 1");
    let receivers = [Receiver::answering(move |_| down()).await, Receiver::answering(move |_| down()).await];
    for (place, receiver) in receivers.iter().enumerate() {
        subscribe(&fleet, &format!("sub-{place}"), &receiver.url(), 1).await;
    }
    let mut wanted = accepted(0, &publish(&fleet, 0, 50, 5_000).await);
    assert_eq!(wanted.len(), 50);
    let limit = used_memory(&fleet).await + (1 << 20);
    fleet.system.cli::<()>(System::FABRIC, &format!("CONFIG SET maxmemory {limit}")).await;
    let mut refused = None;
    for first in (1_000..).step_by(20).take(1_000) {
        let answer = publish(&fleet, first, 20, 20_000).await;
        let taken = accepted(first, &answer);
        let all = taken.len() == 20;
        wanted.extend(taken);
        if !all {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("a fabric that is full before 400 MB");
    if refused.status == 503 {
        assert_eq!(expect_503(&refused), "fabric_full");
    }
    let limit = used_memory(&fleet).await - (64 << 10);
    fleet.system.cli::<()>(System::FABRIC, &format!("CONFIG SET maxmemory {limit}")).await;
    // Waiting events are still delivered while Redis is full; their delivery frees the memory.
    receivers.iter().for_each(|receiver| receiver.decide(|_| Answer::status("200 OK")));
    until_idle(&fleet).await;
    fleet.system.cli::<()>(System::FABRIC, "CONFIG SET maxmemory 0").await;
    wanted.extend(accepted(100_000, &published_again(&fleet, 100_000).await));
    until_idle(&fleet).await;
    // The last event reports every event that was dropped to free memory: each subscriber has one
    // lane.
    wanted.extend(accepted(100_001, &published_again(&fleet, 100_001).await));
    until_idle(&fleet).await;
    for receiver in &receivers {
        let got = numbers(receiver);
        let gone: u64 = gaps(receiver).iter().map(|gap| gap["count"].as_u64().unwrap()).sum();
        println!("{} accepted, {} delivered, {gone} in gaps", wanted.len(), got.len());
        assert!(got.is_subset(&wanted), "delivered although refused: {:?}", got.difference(&wanted));
        // A dropped event may have been attempted before, so an event can be both received and
        // reported.
        assert!(wanted.len() <= got.len() + gone as usize, "{:?}", wanted.difference(&got));
    }
    fleet.system.stop().await;
}

async fn used_memory(fleet: &Fleet) -> u64 {
    let memory: String = fleet.system.cli(System::FABRIC, "INFO memory").await;
    let used = memory.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|used| used.trim().parse().ok()).expect("the memory that Redis uses")
}

/// The gaps that were reported to a receiver, without duplicates.
fn gaps(receiver: &Receiver) -> Vec<Value> {
    let mut gaps: Vec<Value> = Vec::new();
    for gap in receiver.events().iter().filter_map(|event| event["gap"].as_array()).flatten() {
        if !gaps.contains(gap) {
            gaps.push(gap.clone());
        }
    }
    gaps
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_or_silent_fabric_delays_and_doubles_nothing() {
    let ports = Ports::free().unwrap();
    let wire = Wire::to(SocketAddr::from(([127, 0, 0, 1], ports.fabric))).await;
    let fabric = toml::Table::from_iter([(
        "fabric".to_owned(),
        format!("redis://pacemaker@{}/", wire.address).into(),
    )]);
    let fleet =
        Fleet::start("fabric-slow", 1, &SETTINGS, |builder| builder.ports(ports).pacemaker("redis", fabric))
            .await;
    fleet.client("shop").await;
    let receivers = [Receiver::start().await, Receiver::start().await];
    for (place, receiver) in receivers.iter().enumerate() {
        subscribe(&fleet, &format!("sub-{place}"), &receiver.url(), 1 + 3 * place).await;
    }
    let mut wanted = BTreeSet::new();
    wire.set(Fault::Delay(Duration::from_millis(100)));
    wanted.extend(accepted(0, &publish(&fleet, 0, 50, 10).await));
    assert_eq!(wanted.len(), 50, "slow is not away");
    wire.set(Fault::None);
    // The server blocks for all clients.
    fleet.system.cli::<()>(System::FABRIC, "CLIENT PAUSE 2000 ALL").await;
    wanted.extend(accepted(100, &publish(&fleet, 100, 50, 10).await));
    assert_eq!(wanted.len(), 100, "nor is this");
    // Redis executes the call, but its reply is lost: each call is repeated and must be recognized
    // as a repeat.
    wire.set(Fault::LoseReplies);
    let lost = tokio::spawn({
        let to = fleet.address(0);
        let event = json!({"type": "update", "url": "https://shop.example/lost", "data": {"n": 200}});
        let request = Request::new("POST", "localhost", "/topics/orders").token("shop").json(&event);
        async move { request.send(to).await }
    });
    eventually("the event to be accepted", || async {
        let there: Option<String> =
            fleet.system.try_cli(System::FABRIC, "HGET bus:objects https://shop.example/lost").await?;
        there.map(drop).ok_or_else(|| "not yet".to_owned())
    })
    .await;
    wire.set(Fault::None);
    let answer = lost.await.unwrap().unwrap();
    assert_eq!(answer.status, 200, "the repeat found what the first did: {}", answer.text());
    wanted.insert(200);
    until_all(&[&receivers[0], &receivers[1]], &wanted).await;
    // Redis does not reply for longer than a publisher can wait.
    wire.set(Fault::Silence);
    let refused = publish(&fleet, 300, 1, 10).await;
    assert_eq!(expect_503(&refused), "fabric_unavailable");
    wire.set(Fault::None);
    wanted.extend(accepted(400, &published_again(&fleet, 400).await));
    until_all(&[&receivers[0], &receivers[1]], &wanted).await;
    until_idle(&fleet).await;
    let ids = |receiver: &Receiver| -> BTreeSet<(u64, u64)> {
        let events = receiver.events();
        events
            .iter()
            .map(|event| (event["data"]["n"].as_u64().unwrap(), event["id"].as_u64().unwrap()))
            .collect()
    };
    let got = ids(&receivers[0]);
    assert_eq!(got, ids(&receivers[1]), "each event reached both or none");
    // The one of unknown outcome may be there, once.
    assert_eq!(got.iter().filter(|(n, _)| *n != 300).count(), wanted.len(), "nothing twice");
    assert!(got.iter().filter(|(n, _)| *n == 300).count() <= 1);
    fleet.system.stop().await;
}

/// Redis 7.0 leaves half a transaction in its file when the file ends in the middle of a command, and carries it out on
/// the start after the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_script_interrupted_by_a_kill_of_redis_is_never_half_executed() {
    let fleet = Fleet::start("half-a-transaction", 1, &SETTINGS, |builder| builder).await;
    fleet.client("shop").await;
    let receiver = Receiver::start().await;
    subscribe(&fleet, "sub", &receiver.url(), 1).await;
    let mut wanted = accepted(0, &publish(&fleet, 0, 10, 10).await);
    until_all(&[&receiver], &wanted).await;
    fleet.fabric().kill().await.unwrap();
    let folder = fleet.system.stack.layout().redis(&System::FABRIC).join("appendonlydir");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let file = files.max_by_key(|path| path.to_string_lossy().ends_with(".incr.aof")).unwrap();
    let half = "*1\r\n$5\r\nMULTI\r\n*4\r\n$4\r\nZADD\r\n$17\r\nbus:batches:index\r\n$1\r\n1\r\n$7\r\nphantom\r\n*3\r\n$3\r\nSET";
    let mut file = std::fs::File::options().append(true).open(file).unwrap();
    file.write_all(half.as_bytes()).unwrap();
    for first in [10, 20] {
        fleet.fabric().start().await.unwrap();
        wanted.extend(accepted(first, &published_again(&fleet, first).await));
        until_all(&[&receiver], &wanted).await;
        // A phantom entry would remain here without expiry.
        until_idle(&fleet).await;
        fleet.fabric().kill().await.unwrap();
    }
    fleet.fabric().start().await.unwrap();
    fleet.system.stop().await;
}
