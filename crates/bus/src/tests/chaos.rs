//! Three pacemakers, killed at random with Redis among them, and nothing accepted is lost, doubled or misordered.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{support::*, truth::assert_true};
use crate::{Handle, NewEvent, Options, Wanted};
use signalbox_egress::Outcome;
use signalbox_store::FabricRole;
use signalbox_testkit::{Server, eventually};

const OBJECTS: usize = 5;
const TOKENS: [&str; 3] = ["a", "b", "c"];

type Handles = Arc<Mutex<Vec<Handle>>>;

/// Publishes to its own objects, one event after the other, each until it is accepted: the key makes it one event.
async fn publisher(number: usize, events: usize, handles: Handles) -> BTreeMap<String, Vec<u64>> {
    let mut accepted: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for n in 0..events {
        let url = format!("https://o/{number}/{}", n % OBJECTS);
        let new = NewEvent { idempotency_key: Some(format!("{number}-{n}")), ..event(&url) };
        for attempt in 0.. {
            let handle = {
                let handles = handles.lock().unwrap();
                handles[(n + attempt) % handles.len()].clone()
            };
            if let Ok(id) = handle.publish("shop", "orders", vec![new.clone()]).await[0] {
                accepted.entry(url).or_default().push(id.0);
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    accepted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_pacemakers_and_redis_loses_doubles_and_misorders_nothing() {
    // On demand longer, or the same again: BUS_KILLS=100 BUS_SEED=7.
    let number =
        |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (kills, seed) = (number("BUS_KILLS", 8), number("BUS_SEED", 1));
    let mut chance = StdRng::seed_from_u64(seed);
    let mut server = Server::durable().await;
    let recorder = Recorder::default();
    let count = Arc::new(std::sync::atomic::AtomicU64::new(0));
    recorder.answers(move |_, _| {
        let n = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let delay = Duration::from_millis(n * 7 % 5);
        let failed = Outcome::Failed { why: "500".into(), retry_after: None };
        (delay, if n % 50 == 49 { failed } else { Outcome::Delivered })
    });
    let options = || Options { dead_after_ms: 400, ..quick() };
    let mut pacemakers: Vec<Mortal> =
        (0..3).map(|_| Mortal::start(&server, options(), recorder.clone())).collect();
    let first = pacemakers[0].handle.clone();
    eventually("the bus to be ready", || async { if first.is_ready() { Ok(()) } else { Err("not yet") } })
        .await;
    for token in TOKENS {
        first.subscribe(token, Wanted { max_events: Some(7), ..wanted(&["orders"]) }).await.unwrap();
    }
    let handles: Handles =
        Arc::new(Mutex::new(pacemakers.iter().map(|pacemaker| pacemaker.handle.clone()).collect()));
    let events = 30 * kills as usize;
    let publishers: Vec<_> =
        (0..4).map(|n| tokio::spawn(publisher(n, events, Arc::clone(&handles)))).collect();

    for kill in 0..kills {
        tokio::time::sleep(Duration::from_millis(chance.random_range(20..300))).await;
        if kill % 4 == 3 {
            server.restart().await;
        } else {
            let victim = chance.random_range(0..pacemakers.len());
            let new = Mortal::start(&server, options(), recorder.clone());
            handles.lock().unwrap()[victim] = new.handle.clone();
            std::mem::replace(&mut pacemakers[victim], new).kill();
        }
    }
    let mut accepted: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for publisher in publishers {
        accepted.extend(publisher.await.unwrap());
    }
    let all: BTreeSet<u64> = accepted.values().flatten().copied().collect();
    assert_eq!(all.len(), 4 * events, "no id twice");
    let redis = server.open::<FabricRole>();
    for _ in 0..3 {
        // Each wait has its own patience; pauses after failures are a second long.
        let settled = || async { number_of(&redis).await == 0 };
        for _ in 0..2000 {
            if settled().await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    assert_eq!(number_of(&redis).await, 0, "everything is settled");

    let attempts = recorder.attempts();
    for token in TOKENS {
        assert_eq!(
            recorder.ids(token).into_iter().collect::<BTreeSet<_>>(),
            all,
            "{token} got everything, and no more"
        );
        let mut received = BTreeSet::new();
        let mut firsts: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for event in attempts.iter().filter(|one| one.token == token).flat_map(|one| &one.batch.events) {
            if received.insert(event.id) {
                firsts.entry(event.url.clone()).or_default().push(event.id.0);
                let before = accepted[&event.url].iter().rev().find(|id| **id < event.id.0);
                assert_eq!(event.prev.map(|prev| prev.0), before.copied(), "prev names the event before");
                assert_eq!(event.prev, event.tprev);
            }
        }
        assert_eq!(firsts, accepted, "{token}: first deliveries in id order");
    }
    assert_true(&redis, "all the killing").await;
}

async fn number_of(redis: &signalbox_store::Fabric) -> i64 {
    number(redis, "ZCARD", &["bus:batches:index"]).await
        + number(redis, "SCARD", &["bus:jobs:index:main"]).await
}
