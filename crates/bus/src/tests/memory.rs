//! Memory of the fabric: who pays when it is short, and what keeps the log.

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;
use signalbox_api::queues::NewQueue;
use signalbox_queues::Definition;
use signalbox_store::{Fabric, FabricRole, Shard};
use signalbox_testkit::{Server, eventually};
use tokio_util::sync::CancellationToken;

use super::hands::{Hands, subscriber};
use super::support::{Pacemaker, Recorder, START_MS, Time, event, number, strings, wanted, without_bytes};
use super::truth::assert_true;
use crate::{
    Alteration, Bus, Change, Delay, Error, EventId, Limit, NewEvent, NewGroup, NewMessage, OnFailure,
    Options, Refusal, Wanted, WantedBackend,
    event::lane_hash,
    housekeeping, idle, replay,
    store::{Again, Appended, Cursor, Nack, ReplayState, SEGMENT_IDS, Skipped, Store, read_item},
    view::target,
};

/// A bus that delivers nothing, whose housekeeping is called by the test.
struct World {
    redis: Fabric,
    time: Time,
    bus: Pacemaker,
}

async fn world(server: &Server, options: Options) -> World {
    let (redis, time) = (server.open::<FabricRole>(), Time::default());
    let options = Options { deliver: false, housekeeping_ms: 3_600_000, ..options };
    let shards = Shard::all(&redis, 1);
    let (handle, bus) = Bus::assemble(shards, time.clock(), options, None, Recorder::default());
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(bus.run(shutdown.clone()));
    let bus = Pacemaker { handle, shutdown, task }.ready().await;
    World { redis, time, bus }
}

impl World {
    fn store(&self) -> &Arc<Store> {
        &self.bus.handle.core.stores[0]
    }

    async fn trim(&self) {
        housekeeping::trim(&self.bus.handle.core, self.store()).await.unwrap();
    }

    async fn relieve(&self) {
        housekeeping::relieve(&self.bus.handle.core, self.store()).await.unwrap();
    }

    /// The same until no owner is rejected: a check frees for a limited time.
    async fn relieve_all(&self) {
        for _ in 0..100 {
            self.relieve().await;
            if !self.store().is_full().await.unwrap() {
                return;
            }
        }
        panic!("memory is still short");
    }

    /// Publishes events of this size to a topic, under a tenant.
    async fn publish(
        &self,
        tenant: &str,
        topic: &str,
        count: usize,
        bytes: usize,
    ) -> Vec<Result<EventId, Refusal>> {
        let data = RawValue::from_string(format!("\"{}\"", "x".repeat(bytes))).unwrap();
        let one = NewEvent { data: Some(data), tenant: Some(tenant.into()), ..event("https://a/1") };
        let mut all = Vec::new();
        for _ in 0..count.div_ceil(100) {
            let part = vec![one.clone(); 100.min(count - all.len())];
            all.extend(self.bus.handle.publish("shop", topic, part).await);
        }
        all
    }

    async fn accepted(&self, tenant: &str, topic: &str, count: usize, bytes: usize) {
        let all = self.publish(tenant, topic, count, bytes).await;
        assert!(all.iter().all(Result::is_ok), "{:?}", all.iter().find(|one| one.is_err()));
    }

    async fn waiting(&self, token: &str) -> u64 {
        self.store().waiting(token).await.unwrap()
    }

    async fn log(&self) -> u64 {
        self.store().segments().await.unwrap().values().sum()
    }

    async fn used(&self) -> u64 {
        self.store().memory().await.unwrap().0
    }

    /// Sets the memory limit so that this percentage of it is used now.
    async fn limit(&self, percent: u64) {
        let limit = (self.used().await * 100 / percent).to_string();
        self.redis.command("CONFIG").arg(&["SET", "maxmemory", &limit][..]).run().await.unwrap();
    }

    async fn unlimited(&self) {
        self.redis.command("CONFIG").arg(&["SET", "maxmemory", "0"][..]).run().await.unwrap();
    }

    async fn paused(&self, token: &str) {
        let pause = Alteration { paused: Some(true), ..Alteration::default() };
        self.bus.handle.alter(token, pause).await.unwrap();
    }
}

#[tokio::test]
async fn a_waiting_event_keeps_only_its_own_part_of_the_log() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 10, 0)]).await;
    hands.fan_out.topics.push(("other".into(), Vec::new()));
    let first = hands.publish_urls(&["a"]).await[0] / SEGMENT_IDS;
    hands.time.advance(60_000);
    hands.publish(&[(1, event("b"))]).await;
    hands.time.advance(60_000);
    hands.publish(&[(1, event("c"))]).await;
    assert_eq!(hands.store.trim(&[first, first + 6, first + 12]).await.unwrap(), (3, 1));
    let left: Vec<u64> = hands.store.segments().await.unwrap().into_keys().collect();
    assert_eq!(left, [first, first + 12], "the waiting event's, and the present one");
    let taken = hands.take("w").await;
    assert!(hands.ack(&taken).await);
    assert_eq!(hands.store.trim(&[first]).await.unwrap(), (1, 1));
    let held = strings(hands.store.shard().redis(), "KEYS", &["bus:log:*:held"]).await;
    assert!(held.is_empty(), "{held:?}");
}

#[tokio::test]
async fn every_end_of_a_batch_releases_its_part_of_the_log() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 4, 0)]).await;
    let redis = hands.store.shard().redis().clone();
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.extend(hands.publish_urls(&["a", "a", "a"][..1 + n % 3]).await);
        hands.time.advance(7_000);
    }
    let held = |redis: Fabric| async move {
        let mut sum = 0;
        for key in strings(&redis, "KEYS", &["bus:log:*:held"]).await {
            sum += number(&redis, "HGET", &[&key, "s"]).await;
        }
        sum
    };
    assert_eq!(held(redis.clone()).await, ids.len() as i64);
    let first = hands.take("w").await;
    assert!(hands.nack(&first, 0, true).await, "it is split");
    assert_eq!(held(redis.clone()).await, ids.len() as i64);
    hands.time.advance(1);
    let half = hands.take("w").await;
    assert!(hands.bury(&half).await);
    assert_eq!(held(redis.clone()).await, (ids.len() - half.items.len()) as i64);
    let waits = lane_hash("a");
    let last = EventId(*ids.last().unwrap());
    let skipped =
        hands.store.skip("s", last, Some(waits), (100, 1 << 20), &Default::default()).await.unwrap();
    assert_eq!(skipped, Skipped::Done);
    assert!(hands.store.drop_oldest("s", "autodropped").await.unwrap() > Some(0));
    let waiting = number(&redis, "HGET", &["bus:batches:gauges:event", "s"]).await;
    assert_eq!(held(redis.clone()).await, waiting);
}

#[tokio::test]
async fn a_subscriber_that_has_caught_up_loses_nothing_to_a_limit_that_it_exceeded_before() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1, 0)]).await;
    hands.publish_urls(&["a"; 5]).await;
    assert_eq!(hands.store.drop_above("s", "limit", 4).await.unwrap(), Some(1));
    assert_eq!(hands.store.drop_above("s", "limit", 4).await.unwrap(), None);
    assert_eq!(hands.store.waiting("s").await.unwrap(), 4);
}

#[tokio::test]
async fn a_batch_without_events_does_not_end_the_removal_of_what_is_too_much() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1, 0)]).await;
    let ids = hands.publish_urls(&["a"; 5]).await;
    let hash = lane_hash("a");
    let skipped =
        hands.store.skip("s", EventId(ids[0]), Some(hash), (100, 1 << 20), &Default::default()).await;
    assert_eq!(skipped.unwrap(), Skipped::Done);
    let mut dropped = Vec::new();
    while let Some(events) = hands.store.drop_above("s", "limit", 2).await.unwrap() {
        dropped.push(events);
    }
    assert_eq!(dropped, [0, 1, 1]);
    assert_eq!(hands.store.waiting("s").await.unwrap(), 2);
}

#[tokio::test]
async fn a_batch_in_flight_that_keeps_a_part_of_the_log_costs_no_later_events() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1, 0)]).await;
    let segment = hands.publish_urls(&["a"]).await[0] / SEGMENT_IDS;
    let taken = hands.take("w").await;
    hands.time.advance(60_000);
    hands.publish_urls(&["a", "a"]).await;
    let bytes = hands.store.segments().await.unwrap()[&segment];
    assert_eq!(hands.store.drop_from("s", "autodropped", segment).await.unwrap(), None);
    assert!(hands.nack(&taken, 60_000, false).await);
    let dropped = hands.store.drop_from("s", "autodropped", segment).await.unwrap().expect("a batch");
    assert_eq!((dropped.events, dropped.bytes), (1, bytes));
    assert_eq!(
        hands.store.drop_from("s", "autodropped", segment).await.unwrap(),
        None,
        "nothing needs it now"
    );
    assert_eq!(hands.store.waiting("s").await.unwrap(), 2);
}

#[tokio::test]
async fn damaged_data_of_one_subscriber_does_not_stop_the_maintenance_of_the_others() {
    let server = Server::in_memory().await;
    let options = Options { log_seconds: 1, dead_after_ms: 0, ..Options::default() };
    let world = world(&server, options).await;
    world.bus.handle.subscribe("s", wanted(&["orders"])).await.unwrap();
    world.accepted("a", "noise", 10, 10).await;
    world.accepted("a", "orders", 1, 10).await;
    world.time.advance(60_000);
    assert_eq!(world.store().acquire(&["dead".to_owned()], 10, 10).await.unwrap().taken.len(), 1);
    for key in ["bus:generations:broken", "bus:subscriber:broken"] {
        world.redis.command("SET").arg((key, "of another type")).run().await.unwrap();
    }
    for token in ["broken", "other"] {
        world.redis.command("HSET").arg(("bus:purge", token, 1)).run().await.unwrap();
    }
    let (mut watch, mut keeping) = Default::default();
    for _ in 0..2 {
        housekeeping::round(&world.bus.handle.core, world.store(), &mut watch, &mut keeping).await;
    }
    assert_eq!(world.store().purges().await.unwrap(), ["broken"]);
    assert_eq!(world.store().heartbeats().await.unwrap(), [], "the worker is dead");
    world.bus.stop().await;
}

#[tokio::test]
async fn a_replay_that_fails_on_damaged_data_stops_no_other() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    let handle = &world.bus.handle;
    let tokens = ["unreadable", "of-another-type", "whole"];
    for (token, topic) in tokens.into_iter().zip(["a", "b", "c"]) {
        handle.subscribe(token, wanted(&[topic])).await.unwrap();
        world.accepted("e", topic, 1, 10).await;
        world.time.advance(20_000);
    }
    let now = START_MS + 60_000;
    // The last one has the part of the log that the others do not reach.
    for (token, from) in tokens.into_iter().zip([START_MS, START_MS, START_MS + 40_000]) {
        handle.replay(token, from, now, 1_000).await.unwrap();
        world.time.advance(1);
    }
    world.redis.command("DEL").arg("bus:replay:of-another-type").run().await.unwrap();
    world.redis.command("SET").arg(("bus:replay:of-another-type", "text")).run().await.unwrap();
    let first = *world.store().segments().await.unwrap().keys().next().unwrap();
    let order = format!("bus:log:{first}:order");
    world.redis.command("DEL").arg(&order).run().await.unwrap();
    world.redis.command("SET").arg((&order, "text")).run().await.unwrap();
    for _ in 0..6 {
        replay::step(&handle.core, world.store()).await.unwrap();
        world.time.advance(1_000);
    }
    assert_eq!(world.waiting("whole").await, 2, "its event was sent again");
    assert_eq!(world.store().replay("whole").await.unwrap(), None, "it ended");
    let (next, due_ms) = world.store().next_replay().await.unwrap().unwrap();
    assert!(tokens[..2].contains(&&*next) && due_ms > now, "{next} is tried again at {due_ms}");
    world.bus.stop().await;
}

#[tokio::test]
async fn damaged_data_of_one_owner_hides_no_numbers_and_keeps_no_others_segments() {
    let server = Server::in_memory().await;
    let world = world(&server, Options { log_seconds: 1, ..Options::default() }).await;
    let handle = &world.bus.handle;
    for token in ["broken", "whole"] {
        handle.subscribe(token, wanted(&["orders"])).await.unwrap();
    }
    world.accepted("a", "orders", 3, 10).await;
    for key in ["bus:generations:broken", "bus:subscriber:broken"] {
        world.redis.command("DEL").arg(key).run().await.unwrap();
        world.redis.command("SET").arg((key, "of another type")).run().await.unwrap();
    }
    let listed = handle.subscriptions().await.unwrap();
    assert_eq!(listed.iter().map(|one| one.numbers.events).collect::<Vec<_>>(), [3, 3]);
    for _ in 0..2 {
        world.time.advance(20_000);
        world.accepted("a", "noise", 1, 10).await;
    }
    world.time.advance(20_000);
    let segments = world.store().segments().await.unwrap();
    assert_eq!(segments.len(), 3);
    let unneeded = *segments.keys().nth(1).unwrap();
    let key = format!("bus:log:{unneeded}:environments");
    world.redis.command("DEL").arg(&key).run().await.unwrap();
    world.redis.command("SET").arg((&key, "of another type")).run().await.unwrap();
    world.trim().await;
    let left: Vec<u64> = world.store().segments().await.unwrap().into_keys().collect();
    assert!(left.contains(&unneeded) && left.len() == 2, "the last one was removed: {left:?}");
    world.bus.stop().await;
}

#[tokio::test]
async fn an_event_whose_lane_became_shorter_during_the_search_is_searched_again() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1_000, 0)]).await;
    let mut last = 0;
    for _ in 0..25 {
        last = *hands.publish_urls(&["a"; 200]).await.last().unwrap();
    }
    let skip = async |hands: &Hands, cursor: &[String; 5]| {
        hands.store.skip("s", EventId(last), Some(lane_hash("a")), (100, 1 << 20), cursor).await.unwrap()
    };
    let mut cursor = Default::default();
    for _ in 0..2 {
        let Skipped::More(next) = skip(&hands, &cursor).await else { panic!("5,000 events are three parts") };
        cursor = next;
    }
    for _ in 0..3 {
        let taken = hands.take("w").await;
        assert!(hands.ack(&taken).await);
    }
    assert_eq!(skip(&hands, &cursor).await, Skipped::Moved);
}

#[tokio::test]
async fn a_quiet_subscriber_that_receives_nothing_loses_no_event_because_others_publish_much() {
    let server = Server::in_memory().await;
    let world = world(&server, Options { log_bytes: 200_000, ..Options::default() }).await;
    let two = Wanted { max_events: Some(2), concurrency: Some(2), ..wanted(&["rare"]) };
    world.bus.handle.subscribe("quiet", two).await.unwrap();
    world.bus.handle.subscribe("alive", wanted(&["orders"])).await.unwrap();
    world.paused("quiet").await;
    for round in 1..=2 {
        for _ in 0..3 {
            world.accepted("a", "rare", 3, 10).await;
            world.accepted("b", "noise", 400, 1000).await;
            world.time.advance(20_000);
        }
        world.accepted("a", "orders", 10, 10).await;
        world.time.advance(20_000);
        assert!(world.log().await > 1_000_000);
        world.trim().await;
        assert!(world.log().await <= 200_000, "{}", world.log().await);
        assert_eq!((world.waiting("quiet").await, world.waiting("alive").await), (9 * round, 10 * round));
        assert_true(&world.redis, "the copies").await;
    }
    assert_eq!(strings(&world.redis, "KEYS", &["bus:gaps:*"]).await, [""; 0]);
    let turn = world.store().acquire(&["w".to_owned()], 1_000, 256).await.unwrap();
    assert!(!turn.taken.is_empty() && turn.taken[0].held.token == "quiet");
    assert!(turn.taken[0].items.iter().all(|item| !item.contains('@')), "it was not redriven");
    world.bus.stop().await;
}

#[tokio::test]
async fn a_full_log_drops_the_oldest_events_of_the_largest_subscriber_that_receives_nothing() {
    let server = Server::in_memory().await;
    let world = world(&server, Options { log_bytes: 200_000, ..Options::default() }).await;
    let ten = |topic: &str| Wanted { max_events: Some(10), concurrency: Some(1), ..wanted(&[topic]) };
    world.bus.handle.subscribe("large", ten("noise")).await.unwrap();
    world.bus.handle.subscribe("quiet", ten("rare")).await.unwrap();
    world.paused("large").await;
    world.paused("quiet").await;
    // A segment that only the quiet one needs, and others that the large one fills.
    world.accepted("a", "rare", 3, 10).await;
    for _ in 0..5 {
        world.time.advance(20_000);
        world.accepted("a", "rare", 1, 10).await;
        world.accepted("b", "noise", 100, 1000).await;
    }
    world.time.advance(20_000);
    world.trim().await;
    assert!(world.log().await <= 200_000, "{}", world.log().await);
    let left = world.waiting("large").await;
    assert!((100..300).contains(&left), "not more than needed: {left}");
    assert_eq!(world.waiting("quiet").await, 8);
    let gaps = strings(&world.redis, "KEYS", &["bus:gaps:*"]).await;
    assert_eq!(gaps.len(), 1, "the subscriber is informed: {gaps:?}");
    assert!(gaps[0].starts_with("bus:gaps:large:"), "{gaps:?}");
    assert_true(&world.redis, "the drops").await;
    world.bus.stop().await;
}

#[tokio::test]
async fn a_large_event_at_the_head_of_small_ones_costs_a_quiet_subscriber_nothing() {
    let server = Server::in_memory().await;
    let world = world(&server, Options { log_bytes: 200_000, ..Options::default() }).await;
    let single = Wanted { max_events: Some(1), concurrency: Some(1), ..wanted(&["rare"]) };
    world.bus.handle.subscribe("quiet", single).await.unwrap();
    world.paused("quiet").await;
    world.accepted("a", "rare", 1, 60_000).await;
    for _ in 0..5 {
        world.accepted("a", "rare", 20, 10).await;
        world.accepted("b", "noise", 400, 1000).await;
        world.time.advance(20_000);
    }
    world.trim().await;
    assert!(world.log().await <= 200_000, "{}", world.log().await);
    assert_eq!(world.waiting("quiet").await, 101);
    assert_eq!(strings(&world.redis, "KEYS", &["bus:gaps:*"]).await, [""; 0]);
    assert_true(&world.redis, "the copies").await;
    world.bus.stop().await;
}

#[tokio::test]
async fn a_small_event_at_the_head_of_large_ones_keeps_no_more_than_its_share_of_the_log() {
    let server = Server::in_memory().await;
    let world = world(&server, Options { log_bytes: 200_000, ..Options::default() }).await;
    let single = |topic: &str| Wanted { max_events: Some(1), concurrency: Some(1), ..wanted(&[topic]) };
    for (token, topic) in [("large", "orders"), ("quiet", "rare")] {
        world.bus.handle.subscribe(token, single(topic)).await.unwrap();
        world.paused(token).await;
    }
    world.accepted("a", "orders", 1, 10).await;
    for _ in 0..5 {
        world.accepted("a", "orders", 10, 10_000).await;
        world.accepted("b", "rare", 1, 10).await;
        world.time.advance(20_000);
    }
    world.trim().await;
    assert!(world.log().await <= 200_000, "{}", world.log().await);
    let (large, quiet) = (world.waiting("large").await, world.waiting("quiet").await);
    assert!((10..25).contains(&large), "not more than needed: {large}");
    assert_eq!(quiet, 5);
    let gaps = strings(&world.redis, "KEYS", &["bus:gaps:*"]).await;
    assert!(gaps.len() == 1 && gaps[0].starts_with("bus:gaps:large:"), "{gaps:?}");
    // The rest is moved, and then nothing any more, although the log is full again.
    let goal = idle::Goal { bytes: 100_000, kept: 200_000, time: Duration::from_secs(60), why: "log" };
    world.time.advance(20_000);
    idle::free(&world.bus.handle.core, world.store(), goal).await.unwrap();
    let before = world.store().segments().await.unwrap();
    assert_eq!(before.len(), 1);
    for _ in 0..3 {
        world.time.advance(20_000);
        idle::free(&world.bus.handle.core, world.store(), goal).await.unwrap();
    }
    assert_eq!(world.store().segments().await.unwrap(), before);
    assert_eq!(world.waiting("large").await, large);
    assert_true(&world.redis, "the drops").await;
    world.bus.stop().await;
}

#[tokio::test]
async fn an_event_that_waits_for_several_subscribers_counts_once() {
    let server = Server::in_memory().await;
    let world = world(&server, Options { log_bytes: 400_000, ..Options::default() }).await;
    let single = Wanted { max_events: Some(100), concurrency: Some(1), ..wanted(&["orders"]) };
    for token in ["one", "two", "three", "four", "five"] {
        world.bus.handle.subscribe(token, single.clone()).await.unwrap();
        world.paused(token).await;
    }
    // They need 100 kB, five times as much together, and most of the segment is of others.
    world.accepted("a", "orders", 100, 1000).await;
    world.accepted("b", "noise", 500, 1000).await;
    world.time.advance(20_000);
    world.trim().await;
    assert!(world.log().await <= 400_000, "{}", world.log().await);
    for token in ["one", "two", "three", "four", "five"] {
        assert_eq!(world.waiting(token).await, 100, "{token}");
    }
    assert_eq!(strings(&world.redis, "KEYS", &["bus:gaps:*"]).await, [""; 0]);
    // If nothing but their events is there, those with the most pay, and only as long as that frees something.
    world.accepted("a", "orders", 400, 1000).await;
    world.time.advance(20_000);
    world.trim().await;
    assert!(world.log().await <= 400_000, "{}", world.log().await);
    assert_true(&world.redis, "the drops").await;
    world.bus.stop().await;
}

#[tokio::test]
async fn what_waits_for_many_subscribers_is_moved_in_several_rounds() {
    let server = Server::in_memory().await;
    let world = world(&server, Options { log_bytes: 3_000_000, ..Options::default() }).await;
    let single = |topic: &str| Wanted { max_events: Some(1), concurrency: Some(1), ..wanted(&[topic]) };
    // Each of them takes a call at least, and a round has thirty.
    let many: Vec<String> = (0..40).map(|n| format!("s{n:02}")).collect();
    for token in &many {
        world.bus.handle.subscribe(token, single("rare")).await.unwrap();
        world.paused(token).await;
    }
    world.bus.handle.subscribe("quiet", single("often")).await.unwrap();
    world.paused("quiet").await;
    world.accepted("a", "rare", 5, 10).await;
    for _ in 0..5 {
        world.accepted("a", "often", 1_000, 10).await;
    }
    world.accepted("b", "noise", 5_000, 1000).await;
    world.time.advance(20_000);
    for _ in 0..3 {
        world.trim().await;
    }
    assert!(world.log().await <= 3_000_000, "{}", world.log().await);
    for token in &many {
        assert_eq!(world.waiting(token).await, 5);
    }
    assert_eq!(world.waiting("quiet").await, 5_000);
    assert_eq!(strings(&world.redis, "KEYS", &["bus:gaps:*"]).await, [""; 0]);
    assert_true(&world.redis, "the moves").await;
    world.bus.stop().await;
}

/// Another one uses up the memory, and needs all of its parts of the log: to move these would need as much memory again.
#[tokio::test]
async fn at_the_limit_of_the_memory_a_quiet_subscriber_loses_nothing() {
    for percent in [94, 101] {
        let server = Server::in_memory().await;
        let world = world(&server, Options::default()).await;
        for (token, topic) in [("quiet", "rare"), ("evil", "bulk")] {
            world.bus.handle.subscribe(token, wanted(&[topic])).await.unwrap();
            world.paused(token).await;
        }
        // Noise that only the quiet one pins, and then segments of the other one.
        world.accepted("a", "rare", 20, 1_000).await;
        world.accepted("b", "noise", 2_000, 1_000).await;
        for _ in 0..10 {
            world.time.advance(20_000);
            world.accepted("c", "bulk", 200, 4_000).await;
            world.accepted("a", "rare", 1, 1_000).await;
        }
        world.time.advance(20_000);
        world.limit(percent).await;
        for _ in 0..3 {
            world.relieve().await;
        }
        assert_eq!(world.waiting("quiet").await, 30, "{percent}");
        assert!(world.waiting("evil").await >= 1_000, "{percent}: {}", world.waiting("evil").await);
        world.unlimited().await;
        assert_true(&world.redis, "the check of the memory").await;
        world.bus.stop().await;
    }
}

/// Several wait for the same events, and together they seem to need all of what others have published. One has a large event at the
/// head of small ones.
#[tokio::test]
async fn while_memory_is_short_parts_that_few_events_keep_are_freed() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    let many: Vec<String> = (0..25).map(|n| format!("s{n}")).collect();
    let single = |topic: &str| Wanted { max_events: Some(1), concurrency: Some(1), ..wanted(&[topic]) };
    for token in &many {
        world.bus.handle.subscribe(token, wanted(&["rare"])).await.unwrap();
        world.paused(token).await;
    }
    world.bus.handle.subscribe("head", single("odd")).await.unwrap();
    world.paused("head").await;
    world.accepted("a", "odd", 1, 60_000).await;
    for _ in 0..5 {
        world.accepted("a", "rare", 100, 1_000).await;
        world.accepted("a", "odd", 40, 10).await;
        world.accepted("b", "noise", 900, 1_000).await;
        world.time.advance(20_000);
    }
    world.limit(91).await;
    world.relieve_all().await;
    assert!(world.store().kept().await.unwrap() > 0, "something was moved");
    for token in &many {
        assert_eq!(world.waiting(token).await, 500, "{token}");
    }
    assert_eq!(world.waiting("head").await, 201);
    world.unlimited().await;
    assert_true(&world.redis, "the check of the memory").await;
    world.bus.stop().await;
}

/// Together they need everything, so nothing can be freed, and nothing is stored twice.
#[tokio::test]
async fn while_memory_is_short_subscribers_that_need_all_of_the_log_lose_nothing() {
    for (count, bytes) in [(2, 2_000), (20, 2_000), (6, 200)] {
        let server = Server::in_memory().await;
        let world = world(&server, Options::default()).await;
        let topics: Vec<String> = ('a'..='z').take(count).map(String::from).collect();
        for topic in &topics {
            world.bus.handle.subscribe(topic, wanted(&[topic])).await.unwrap();
            world.paused(topic).await;
        }
        let each = 600_000 / bytes / count;
        for _ in 0..5 {
            for topic in &topics {
                world.accepted(topic, topic, each, bytes).await;
            }
            world.time.advance(20_000);
        }
        // From now on they subscribe to the same topics, but each waits for other events.
        let all: Vec<&str> = topics.iter().map(String::as_str).collect();
        for topic in &topics {
            world.bus.handle.subscribe(topic, wanted(&all)).await.unwrap();
            world.paused(topic).await;
        }
        world.limit(92).await;
        let limit = world.used().await * 100 / 92;
        for _ in 0..10 {
            world.relieve().await;
        }
        // Half of what is left when memory is short.
        assert!(world.used().await <= limit / 100 * 95, "{} of {limit}", world.used().await);
        for topic in &topics {
            assert_eq!(world.waiting(topic).await, 5 * each as u64, "{topic}");
        }
        world.unlimited().await;
        assert_true(&world.redis, "the check of the memory").await;
        world.bus.stop().await;
    }
}

/// It has large events in one part of the log, and few small ones in parts that others fill.
#[tokio::test]
async fn while_memory_is_short_a_subscriber_with_large_events_elsewhere_pins_nothing() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    let single = Wanted { max_events: Some(1), concurrency: Some(1), ..wanted(&["odd"]) };
    world.bus.handle.subscribe("evil", single).await.unwrap();
    world.paused("evil").await;
    world.accepted("a", "odd", 50, 60_000).await;
    for _ in 0..5 {
        world.time.advance(20_000);
        world.accepted("a", "odd", 10, 10).await;
        // Few of them: most events of the part are the small ones.
        world.accepted("b", "noise", 8, 100_000).await;
    }
    world.time.advance(20_000);
    world.limit(91).await;
    world.relieve_all().await;
    assert!(world.store().kept().await.unwrap() > 0, "something is freed");
    assert_eq!(world.waiting("evil").await, 100);
    world.unlimited().await;
    assert_true(&world.redis, "the check of the memory").await;
    world.bus.stop().await;
}

/// What is kept of a full log is stored once at any time.
#[tokio::test]
async fn to_keep_what_waits_needs_little_memory() {
    let server = Server::in_memory().await;
    let world = world(&server, Options { log_bytes: 4_000_000, ..Options::default() }).await;
    for topic in ["one", "two"] {
        world.bus.handle.subscribe(topic, wanted(&[topic])).await.unwrap();
        world.paused(topic).await;
    }
    for topic in ["one", "two", "noise"] {
        world.accepted(topic, topic, 800, 2_000).await;
    }
    world.time.advance(20_000);
    let before = world.used().await;
    world.redis.command("CONFIG").arg("RESETSTAT").run().await.unwrap();
    world.trim().await;
    let info: String = world.redis.command("INFO").arg("memory").query().await.unwrap();
    let peak = info.lines().find_map(|line| line.strip_prefix("used_memory_peak:")).unwrap();
    let peak: u64 = peak.trim().parse().unwrap();
    assert!(world.store().kept().await.unwrap() > 3_000_000, "{}", world.store().kept().await.unwrap());
    assert!(peak < before + 1_000_000, "{peak}, and before {before}");
    assert_eq!((world.waiting("one").await, world.waiting("two").await), (800, 800));
    assert_true(&world.redis, "the moves").await;
    world.bus.stop().await;
}

/// The bytes of events that are counted, and those that are there.
async fn counted_and_there(world: &World) -> (u64, u64) {
    let segments: Vec<String> = strings(&world.redis, "HKEYS", &["bus:log"]).await;
    let mut there = 0;
    for segment in segments {
        let bodies: Vec<String> = strings(&world.redis, "HVALS", &[&format!("bus:log:{segment}")]).await;
        there += bodies.iter().map(|body| body.len() as u64).sum::<u64>();
    }
    (world.log().await, there)
}

#[tokio::test]
async fn events_that_leave_a_part_of_the_log_are_counted_once_at_any_time() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    world.bus.handle.subscribe("half", wanted(&["half"])).await.unwrap();
    world.paused("half").await;
    for _ in 0..15 {
        world.accepted("a", "half", 20, 500).await;
        world.accepted("b", "noise", 80, 500).await;
    }
    world.time.advance(20_000);
    let store = world.store();
    let segments: Vec<u64> = store.segments().await.unwrap().into_keys().collect();
    let mut cursor = Some(Cursor::default());
    while let Some(from) = cursor {
        cursor = store.keep_part("half", &segments, &from).await.unwrap().1;
    }
    let (before, there) = counted_and_there(&world).await;
    assert_eq!(before, there);
    let mut calls = 0;
    while store.trim(&segments).await.unwrap().1 == 0 {
        calls += 1;
        let (counted, there) = counted_and_there(&world).await;
        assert!(counted == there && there < before, "{counted} and {there} of {before} after {calls} calls");
        let of_a: u64 = world.redis.command("HGET").arg(("bus:environments", "a")).query().await.unwrap();
        assert!(of_a * 4 <= before, "{of_a} of {before}: its events are counted once");
    }
    assert!(calls > 0, "the segment has more events than one call removes");
    assert_eq!(world.waiting("half").await, 300);
    assert_true(&world.redis, "the moves").await;
    world.bus.stop().await;
}

/// A part of the log has one body of an event, however often it is sent again, and to however many subscribers.
#[tokio::test]
async fn an_event_that_is_sent_again_is_counted_once_in_each_part_of_the_log() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    for token in ["one", "other"] {
        world.bus.handle.subscribe(token, wanted(&["orders"])).await.unwrap();
        world.paused(token).await;
    }
    let id = world.publish("a", "orders", 1, 50_000).await.remove(0).unwrap();
    let of_a = async || number(&world.redis, "HGET", &["bus:environments", "a"]).await;
    let once = of_a().await;
    for part in 0..3_i64 {
        for token in ["one", "other", "one"] {
            world.bus.handle.resend(token, id).await.unwrap();
            let (counted, there) = counted_and_there(&world).await;
            assert_eq!((counted, of_a().await), (there, once * (part + 1)), "part {part}, {token}");
        }
        world.time.advance(20_000);
    }
    assert_eq!((world.waiting("one").await, world.waiting("other").await), (7, 4));
    world.bus.stop().await;
}

/// What is kept is freed with each of its events, however many subscribers wait for it, and whichever way they lose it.
#[tokio::test]
async fn what_is_kept_is_freed_when_no_subscriber_waits_for_it() {
    let server = Server::in_memory().await;
    let world = world(&server, Options { log_bytes: 100_000, ..Options::default() }).await;
    let ten = Wanted { max_events: Some(10), concurrency: Some(1), ..wanted(&["rare"]) };
    for token in ["delivered", "removed", "skipped"] {
        world.bus.handle.subscribe(token, ten.clone()).await.unwrap();
        world.paused(token).await;
    }
    world.accepted("a", "rare", 40, 100).await;
    world.accepted("b", "noise", 200, 1000).await;
    world.time.advance(20_000);
    world.trim().await;
    let kept = world.store().kept().await.unwrap();
    let each = world.store().kept_for().await.unwrap();
    assert!(kept > 4_000 && each.values().all(|bytes| *bytes == kept) && each.len() == 3, "{kept} {each:?}");
    assert_true(&world.redis, "the moves").await;
    world.bus.handle.unsubscribe("removed").await.unwrap();
    housekeeping::purge(world.store()).await.unwrap();
    assert_eq!(world.store().kept().await.unwrap(), kept, "others wait for all of it");
    while world.store().drop_oldest("skipped", "limit").await.unwrap().is_some() {}
    assert_eq!(world.store().kept().await.unwrap(), kept, "another one waits for all of it");
    while world.store().drop_oldest("delivered", "limit").await.unwrap().is_some() {}
    assert_eq!(world.store().kept().await.unwrap(), 0);
    world.trim().await;
    let left = strings(&world.redis, "KEYS", &["bus:log:0*"]).await;
    assert_eq!(left, [""; 0]);
    world.bus.stop().await;
}

/// One subscriber waits for the event where it was published, and another one for the body that a redrive stored again.
#[tokio::test]
async fn an_event_with_two_bodies_is_kept_once_until_both_subscribers_have_lost_it() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    let bus = &world.bus.handle;
    for token in ["first", "redriven"] {
        let one = Wanted { max_events: Some(1), concurrency: Some(1), ..wanted(&["orders"]) };
        bus.subscribe(token, one).await.unwrap();
    }
    world.accepted("a", "orders", 1, 1_000).await;
    let turn = world.store().acquire(&["w".to_owned(), "x".to_owned()], 1_000, 256).await.unwrap();
    for taken in &turn.taken {
        if taken.held.token == "redriven" {
            assert!(world.store().bury(&taken.held, 0, "500", true, (1_000, 1 << 26)).await.unwrap());
        } else {
            let nack = Nack { pause_ms: 0, attempted: false, split: false };
            world.store().nack(&taken.held, &nack, "seed").await.unwrap();
        }
    }
    world.time.advance(60_000);
    assert_eq!(bus.redrive("redriven").await.unwrap(), 1);
    world.paused("first").await;
    world.paused("redriven").await;
    world.time.advance(20_000);
    let goal = idle::Goal { bytes: u64::MAX, kept: u64::MAX, time: Duration::from_secs(60), why: "log" };
    idle::free(&bus.core, world.store(), goal).await.unwrap();
    let segments = world.store().segments().await.unwrap();
    assert_eq!(segments.keys().collect::<Vec<_>>(), [&0]);
    let (kept, each) = (world.store().kept().await.unwrap(), world.store().kept_for().await.unwrap());
    assert!(kept > 1_000 && each.len() == 2 && each.values().all(|bytes| *bytes == kept), "{kept} {each:?}");
    assert_true(&world.redis, "the moves").await;
    assert_eq!(world.store().drop_oldest("first", "limit").await.unwrap(), Some(1));
    assert_eq!(world.store().kept().await.unwrap(), kept);
    assert_true(&world.redis, "the first drop").await;
    assert_eq!(world.store().drop_oldest("redriven", "limit").await.unwrap(), Some(1));
    assert_eq!(world.store().kept().await.unwrap(), 0);
    assert_eq!(without_bytes(&world.redis, "").await, [""; 0]);
    world.bus.stop().await;
}

#[tokio::test]
async fn what_waits_for_a_subscriber_is_measured_in_parts() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 4, 100, 0)]).await;
    for _ in 0..15 {
        hands.publish_urls(&["a", "b", "longer", "d"].repeat(50)).await;
        hands.time.advance(4_000);
    }
    let segments = hands.store.segments().await.unwrap();
    let _in_flight = hands.take("w").await;
    let size =
        async |mut calls: usize| housekeeping::waiting_bytes(&hands.store, "s", &mut calls).await.unwrap();
    assert_eq!(size(2).await, Some(segments.values().sum()), "3,000 events in calls of 2,000");
    assert_eq!(size(1).await, None);
    assert_eq!(hands.store.segments().await.unwrap(), segments, "nothing is moved");
}

#[tokio::test]
async fn the_largest_owner_is_rejected_until_another_pacemaker_can_check_the_memory() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    world.bus.handle.subscribe("noisy", wanted(&["large"])).await.unwrap();
    world.accepted("loud", "large", 5_000, 4_000).await;
    world.limit(92).await;
    world.relieve().await;
    // The pacemaker dies, and its lease ends.
    world.time.advance(Options::default().dead_after_ms + 1_000);
    assert_eq!(world.publish("loud", "large", 1, 100).await, [Err(Refusal::MemoryShort)]);
    world.accepted("quiet", "small", 1, 100).await;
    world.unlimited().await;
    world.relieve().await;
    world.accepted("loud", "large", 1, 100).await;
    world.bus.stop().await;
}

/// The log has only the copy of a redriven event, in another segment than that of its ID.
#[tokio::test]
async fn a_redriven_event_whose_part_of_the_log_is_gone_can_be_skipped() {
    let server = Server::in_memory().await;
    let world = world(&server, Options { log_seconds: 1, ..Options::default() }).await;
    let bus = &world.bus.handle;
    bus.subscribe("s", Wanted { max_events: Some(1), concurrency: Some(8), ..wanted(&["orders"]) })
        .await
        .unwrap();
    world.accepted("a", "orders", 1, 10).await;
    let turn = world.store().acquire(&["w".to_owned()], 1_000, 256).await.unwrap();
    let id = EventId(turn.taken[0].items[0].parse().unwrap());
    assert!(world.store().bury(&turn.taken[0].held, 0, "500", true, (1_000, 1 << 26)).await.unwrap());
    world.time.advance(60_000);
    assert_eq!(bus.redrive("s").await.unwrap(), 1);
    world.trim().await;
    assert!(bus.event(id).await.unwrap().is_none());
    bus.skip("s", id).await.unwrap();
    assert_eq!(world.waiting("s").await, 0);
    assert!(matches!(bus.skip("s", id).await, Err(Error::NoSuchEvent)));
    world.bus.stop().await;
}

#[tokio::test]
async fn a_replay_starts_only_in_the_registry_that_has_its_subscription() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    let bus = &world.bus.handle;
    bus.subscribe("s", wanted(&["orders"])).await.unwrap();
    let state = ReplayState { cursor: "0:0:w".into(), from_ms: 0, to_ms: START_MS, rate: 1 };
    let stamp = bus.stamp();
    assert!(world.store().start_replay(&stamp, "s", &state, START_MS).await.unwrap());
    bus.unsubscribe("s").await.unwrap();
    assert!(!world.store().start_replay(&stamp, "s", &state, START_MS).await.unwrap(), "it ended since then");
    assert!(matches!(bus.replay("s", 0, START_MS, 1).await, Err(Error::NoSuchSubscription)));
    world.bus.stop().await;
}

#[tokio::test]
async fn a_shortage_of_memory_refuses_the_largest_tenant_and_drops_nothing_of_others() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    world.bus.handle.subscribe("slow", wanted(&["small"])).await.unwrap();
    world.bus.handle.subscribe("noisy", wanted(&["large"])).await.unwrap();
    world.accepted("quiet", "small", 500, 100).await;
    world.accepted("loud", "large", 5_000, 4_000).await;
    world.limit(92).await;
    world.relieve().await;
    let refused = world.publish("loud", "large", 1, 100).await;
    assert_eq!(refused, [Err(Refusal::MemoryShort)]);
    world.accepted("quiet", "small", 1, 100).await;
    assert_eq!(
        (world.waiting("slow").await, world.waiting("noisy").await),
        (501, 5_000),
        "nothing is dropped"
    );
    world.unlimited().await;
    world.relieve().await;
    world.accepted("loud", "large", 1, 100).await;
    world.bus.stop().await;
}

#[tokio::test]
async fn the_oldest_batches_of_the_largest_subscriber_are_dropped_only_while_that_frees_memory() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    let ten = Wanted { max_events: Some(10), ..wanted(&["large"]) };
    world.bus.handle.subscribe("noisy", ten).await.unwrap();
    world.bus.handle.subscribe("slow", wanted(&["small"])).await.unwrap();
    world.accepted("quiet", "small", 500, 100).await;
    for _ in 0..10 {
        world.accepted("loud", "large", 500, 4_000).await;
        world.time.advance(10_000);
    }
    world.limit(99).await;
    world.relieve().await;
    let left = world.waiting("noisy").await;
    assert!(left < 5_000, "{left}");
    assert!(left > 0, "not more than needed");
    assert_eq!(world.waiting("slow").await, 500);
    world.unlimited().await;
    world.bus.stop().await;
}

#[tokio::test]
async fn a_subscriber_whose_oldest_event_is_large_does_not_pay_for_a_larger_one() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    let few =
        |most: u64, topic: &str| Wanted { max_events: Some(most), concurrency: Some(1), ..wanted(&[topic]) };
    world.bus.handle.subscribe("noisy", few(10, "large")).await.unwrap();
    world.bus.handle.subscribe("slow", few(1, "small")).await.unwrap();
    world.accepted("quiet", "small", 1, 60_000).await;
    world.accepted("quiet", "small", 1_000, 100).await;
    for _ in 0..10 {
        world.accepted("loud", "large", 500, 4_000).await;
        world.time.advance(10_000);
    }
    world.limit(99).await;
    world.relieve().await;
    let left = world.waiting("noisy").await;
    assert!(left < 5_000, "{left}");
    assert_eq!(world.waiting("slow").await, 1_001);
    world.unlimited().await;
    world.bus.stop().await;
}

/// Bytes of the record of a label with such a tail.
fn record_bytes(tail: usize) -> usize {
    21 + 8 + tail
}

/// A change of a label of machine `m`, from one revision to the next, with a record of about this size.
fn label_change(revision: u8, bytes: usize) -> Change {
    let header = |revision: u8| [&[1; 20][..], &[revision]].concat();
    Change {
        machine: "m".into(),
        expected: if revision == 1 { Vec::new() } else { header(revision - 1) },
        head: header(revision),
        tail: vec![b'x'; bytes],
        ..Change::default()
    }
}

#[tokio::test]
async fn labels_are_counted_for_their_machine_until_they_are_deleted() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    let change = async |label: &str, change: Change| {
        let object = format!("machine:m:{label}");
        world.bus.handle.change(object, "labels", Vec::new(), change).await.unwrap();
    };
    let stored = async || {
        let command = world.redis.command("HGET").arg(&["bus:environments", "machine:m"][..]);
        command.query::<Option<u64>>().await.unwrap()
    };
    change("a", label_change(1, 1_000)).await;
    let one = stored().await.unwrap();
    assert!((1_000..2_000).contains(&one), "{one}");
    change("b", label_change(1, 1_000)).await;
    assert_eq!(stored().await, Some(2 * one));
    let replaces = |bytes: usize, change: Change| Change { replaced: record_bytes(bytes), ..change };
    change("a", replaces(1_000, label_change(2, 1_500))).await;
    assert_eq!(stored().await, Some(2 * one + 500));
    let deleted = |change: Change| Change { ttl_ms: Some(60_000), ..change };
    change("a", replaces(1_500, deleted(label_change(3, 10)))).await;
    assert_eq!(stored().await, Some(one));
    // What remains of a deleted label expires, so it is not counted.
    change("a", label_change(4, 1_000)).await;
    assert_eq!(stored().await, Some(2 * one));
    change("a", replaces(1_000, deleted(label_change(5, 10)))).await;
    change("b", replaces(1_000, deleted(label_change(2, 10)))).await;
    assert_eq!(stored().await, None);
    world.bus.stop().await;
}

#[tokio::test]
async fn the_state_of_an_object_is_counted_for_the_tenant_that_set_it_last() {
    let server = Server::in_memory().await;
    let world = world(&server, Options { log_seconds: 1, ..Options::default() }).await;
    let set = async |tenant: &str, state: String| {
        let event = NewEvent { tenant: Some(tenant.into()), ..event("https://a/1") };
        let state = Some(RawValue::from_string(state).unwrap());
        let events = vec![("orders".to_owned(), event)];
        let group = NewGroup { object: "o".to_owned(), state, events, idempotency_key: None };
        world.bus.handle.publish_group("shop", group).await.unwrap();
        world.time.advance(60_000);
        world.accepted("later", "other", 1, 10).await;
        world.trim().await;
    };
    let stored = async |tenant: &str| {
        let command = world.redis.command("HGET").arg(&["bus:environments", tenant][..]);
        command.query::<Option<u64>>().await.unwrap()
    };
    set("a", format!("\"{}\"", "x".repeat(998))).await;
    assert_eq!(stored("a").await, Some(1_000));
    set("b", format!("\"{}\"", "x".repeat(498))).await;
    assert_eq!((stored("a").await, stored("b").await), (None, Some(500)));
    set("a", "null".to_owned()).await;
    assert_eq!((stored("a").await, stored("b").await), (None, None));
    assert_eq!(number(&world.redis, "EXISTS", &["bus:states"]).await, 0);
    world.bus.stop().await;
}

/// What a client stores in many tenants without events in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copies {
    States,
    Delayed,
    ForBackends,
}

/// Stores about 20,000 bytes in a tenant of its own.
async fn spread(world: &World, copies: Copies, number: usize) -> Result<(), Refusal> {
    let (tenant, handle) = (format!("e{number}"), &world.bus.handle);
    let large = || RawValue::from_string(format!("\"{}\"", "x".repeat(20_000))).unwrap();
    if copies == Copies::Delayed {
        let message = NewMessage {
            tenant,
            kind: "job".into(),
            name: "late".into(),
            payload: Some(large()),
            delay: Some(Delay::After(3_600_000)),
            idempotency_key: None,
        };
        return handle.publish_messages("spreader", vec![message]).await.remove(0).map(drop);
    }
    let data = (copies == Copies::ForBackends).then(large);
    let event = NewEvent { data, tenant: Some(tenant), ..event("https://a/1") };
    let group = NewGroup {
        object: format!("work:{number}"),
        state: (copies == Copies::States).then(large),
        events: vec![("spread".to_owned(), event)],
        idempotency_key: None,
    };
    handle.publish_group("spreader", group).await.map(drop)
}

#[tokio::test]
async fn a_client_with_many_tenants_pays_for_all_that_it_stores_before_a_tenant_with_one() {
    for copies in [Copies::States, Copies::Delayed, Copies::ForBackends] {
        let server = Server::in_memory().await;
        let world = world(&server, Options { log_seconds: 1, ..Options::default() }).await;
        let handle = &world.bus.handle;
        let queue = NewQueue { pattern: ".*:job:.*".into(), ..NewQueue::default() };
        let define = |known: Option<&Definition>| {
            Definition::new("late", queue.clone(), known).map_err(Error::InvalidQueue)
        };
        handle.put_queue("late", None, 10, define).await.unwrap();
        if copies == Copies::ForBackends {
            let backend = WantedBackend {
                prefix: "work:".into(),
                callback: "https://backend.example/".into(),
                uuid: "signalbox".into(),
                secret: None,
                on_failure: OnFailure::Block,
                max_attempts: 3,
                workers: 4,
            };
            handle.put_backend("silent", backend, "whsec_").await.unwrap();
        }
        for number in 0..500 {
            spread(&world, copies, number).await.unwrap();
        }
        world.time.advance(60_000);
        handle.subscribe("slow", wanted(&["small"])).await.unwrap();
        world.accepted("quiet", "small", 500, 4_000).await;
        world.trim().await;
        // How much the server uses besides the data changes from moment to moment.
        eventually(&format!("{copies:?} to be rejected"), || async {
            world.limit(92).await;
            world.relieve().await;
            match spread(&world, copies, 500).await {
                Err(Refusal::MemoryShort) => Ok(()),
                other => Err(other),
            }
        })
        .await;
        world.accepted("quiet", "small", 1, 100).await;
        world.unlimited().await;
        world.bus.stop().await;
    }
}

#[tokio::test]
async fn a_gateway_is_rejected_for_its_loud_tenants_and_not_for_its_quiet_ones() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    let handle = &world.bus.handle;
    handle.subscribe("slow", wanted(&["orders", "other"])).await.unwrap();
    for number in 0..40 {
        world.accepted(&format!("quiet{number}"), "orders", 50, 10_000).await;
    }
    world.accepted("loud", "orders", 1_470, 10_000).await;
    world.limit(91).await;
    world.relieve().await;
    world.accepted("quiet7", "orders", 1, 100).await;
    assert_eq!(world.publish("loud", "orders", 1, 100).await, [Err(Refusal::MemoryShort)]);
    assert_eq!(world.publish("new", "orders", 1, 100).await, [Err(Refusal::MemoryShort)]);
    let by_another = async |tenant: &str| {
        let event = NewEvent { tenant: Some(tenant.into()), ..event("https://a/1") };
        handle.publish("another", "other", vec![event]).await.remove(0).map(drop)
    };
    assert_eq!(by_another("loud").await, Err(Refusal::MemoryShort), "the tenant uses most");
    assert_eq!(by_another("its-own").await, Ok(()));
    world.unlimited().await;
    world.relieve().await;
    world.accepted("loud", "orders", 1, 100).await;
    world.bus.stop().await;
}

#[tokio::test]
async fn an_tenant_counts_for_the_client_that_publishes_most_of_it_until_it_is_empty() {
    let server = Server::in_memory().await;
    let world = world(&server, Options { log_seconds: 1, ..Options::default() }).await;
    let publish = async |client: &str, count: usize| {
        let data = RawValue::from_string(format!("\"{}\"", "x".repeat(1_000))).unwrap();
        let one = NewEvent { data: Some(data), tenant: Some("a".into()), ..event("https://a/1") };
        let sent = world.bus.handle.publish(client, client, vec![one; count]).await;
        assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    };
    let client = async || world.store().tenant_clients().await.unwrap().remove("a").unwrap_or_default();
    publish("first", 1).await;
    assert_eq!(client().await, "first");
    publish("second", 3).await;
    assert_eq!(client().await, "second");
    publish("third", 1).await;
    assert_eq!(client().await, "second");
    publish("second", 100).await;
    world.time.advance(60_000);
    publish("first", 2).await;
    assert_eq!(client().await, "second");
    world.trim().await;
    publish("first", 1).await;
    assert_eq!(client().await, "second", "it was that of all that is stored");
    publish("first", 3).await;
    assert_eq!(client().await, "first", "what is gone no longer counts");
    world.time.advance(60_000);
    world.accepted("b", "orders", 1, 10).await;
    world.trim().await;
    assert_eq!(client().await, "");
    assert_eq!(without_bytes(&world.redis, "").await, [""; 0]);
    world.bus.stop().await;
}

#[tokio::test]
async fn an_tenant_above_its_limit_can_remove_its_states() {
    let server = Server::in_memory().await;
    let world = world(&server, Options { tenant_bytes: 2_000, ..Options::default() }).await;
    let set = async |object: &str, state: String| {
        let event = NewEvent { tenant: Some("a".into()), ..event("https://a/1") };
        let (state, events) = (RawValue::from_string(state).unwrap(), vec![("orders".to_owned(), event)]);
        let (object, state) = (object.to_owned(), Some(state));
        let group = NewGroup { object, state, events, idempotency_key: None };
        world.bus.handle.publish_group("shop", group).await.map(drop)
    };
    let large = || format!("\"{}\"", "x".repeat(1_500));
    set("o", large()).await.unwrap();
    assert!(matches!(set("p", large()).await, Err(Refusal::TenantFull { .. })), "a second one is too much");
    set("o", "null".to_owned()).await.unwrap();
    world.bus.stop().await;
}

#[tokio::test]
async fn a_machine_whose_labels_fill_the_memory_gets_no_more_and_tenants_are_not_disturbed() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    let change = async |label: &str, change: Change| {
        world.bus.handle.change(format!("machine:m:{label}"), "labels", Vec::new(), change).await
    };
    world.bus.handle.subscribe("slow", wanted(&["small"])).await.unwrap();
    world.accepted("quiet", "small", 500, 100).await;
    for label in 0..200 {
        change(&label.to_string(), label_change(1, 100_000)).await.unwrap();
    }
    world.time.advance(60_000);
    world.limit(95).await;
    world.relieve().await;
    assert_eq!(change("new", label_change(1, 10)).await, Err(Refusal::MemoryShort));
    assert_eq!(
        change("1", Change { replaced: record_bytes(100_000), ..label_change(2, 150_000) }).await,
        Err(Refusal::MemoryShort)
    );
    let replaces = |change: Change| Change { replaced: record_bytes(100_000), ..change };
    assert_eq!(change("2", replaces(label_change(2, 100_010))).await, Ok(EventId(0)), "labels move");
    assert_eq!(change("3", replaces(label_change(2, 10))).await, Ok(EventId(0)));
    world.accepted("quiet", "small", 1, 100).await;
    assert_eq!(world.waiting("slow").await, 501);
    world.unlimited().await;
    world.relieve().await;
    assert_eq!(change("new", label_change(1, 10)).await, Ok(EventId(0)));
    world.bus.stop().await;
}

#[tokio::test]
async fn a_client_whose_idempotency_keys_fill_the_memory_waits_until_they_expire_and_publishes_nothing_twice()
{
    let server = Server::in_memory().await;
    let world = world(&server, Options { log_seconds: 1, ..Options::default() }).await;
    let keyed = |tenant: &str, key: String| NewEvent {
        tenant: Some(tenant.into()),
        idempotency_key: Some(key),
        ..event("https://a/1")
    };
    let publish = async |client: &str, one: NewEvent| {
        world.bus.handle.publish(client, "orders", vec![one]).await.remove(0)
    };
    world.accepted("quiet", "small", 100, 100).await;
    let mut first = None;
    for part in 0..20 {
        let events = (0..1_000).map(|n| keyed("loud", format!("{part}-{n}"))).collect();
        let published = world.bus.handle.publish("loud", "orders", events).await;
        first.get_or_insert(*published[0].as_ref().unwrap());
        assert!(published.iter().all(Result::is_ok));
    }
    world.time.advance(60_000);
    world.accepted("quiet", "small", 1, 100).await;
    world.trim().await;
    eventually("the log to be freed", async || {
        let info: String = world.redis.command("INFO").arg("memory").query().await.unwrap();
        if info.contains("lazyfree_pending_objects:0\r") { Ok(()) } else { Err(info) }
    })
    .await;
    world.limit(95).await;
    world.relieve().await;
    let refused = publish("loud", keyed("loud", "new".into())).await;
    assert_eq!(refused, Err(Refusal::KeysUsedUp { retry_ms: 10_000 }));
    assert_eq!(publish("loud", keyed("loud", "0-0".into())).await, Ok(first.unwrap()), "a repeat");
    assert!(
        publish("loud", NewEvent { idempotency_key: None, ..keyed("loud", String::new()) }).await.is_ok()
    );
    let other = world.bus.handle.publish("shop", "small", vec![keyed("quiet", "new".into())]).await;
    assert!(other[0].is_ok(), "{other:?}");
    world.unlimited().await;
    world.time.advance(541_000);
    world.relieve().await;
    assert!(publish("loud", keyed("loud", "new".into())).await.is_ok());
    world.bus.stop().await;
}

#[tokio::test]
async fn nothing_is_dropped_if_something_else_fills_the_memory() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    world.bus.handle.subscribe("slow", wanted(&["small"])).await.unwrap();
    world.accepted("quiet", "small", 500, 100).await;
    world.redis.command("SET").arg(("bus:something:else", "x".repeat(20 << 20))).run().await.unwrap();
    world.time.advance(60_000);
    world.limit(97).await;
    world.relieve().await;
    assert_eq!(world.waiting("slow").await, 500);
    world.accepted("quiet", "small", 1, 100).await;
    world.unlimited().await;
    world.bus.stop().await;
}

#[tokio::test]
async fn a_replay_is_counted_waits_for_its_subscriber_and_moves_at_most_a_mebibyte_in_a_step() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    let handle = &world.bus.handle;
    handle.subscribe("s", wanted(&["orders"])).await.unwrap();
    world.paused("s").await;
    world.accepted("a", "orders", 100, 60_000).await;
    let stored = || async { number(&world.redis, "HGET", &["bus:environments", "a"]).await };
    let before = stored().await;
    // Into another part of the log.
    world.time.advance(20_000);
    handle.replay("s", 0, START_MS + 1, 100_000).await.unwrap();
    replay::step(&handle.core, world.store()).await.unwrap();
    let moved = world.waiting("s").await - 100;
    assert!((10..=20).contains(&moved), "{moved}");
    assert!(stored().await - before > 60_000 * moved as i64);
    world.accepted("a", "orders", 2_000, 10).await;
    world.time.advance(60_000);
    replay::step(&handle.core, world.store()).await.unwrap();
    assert_eq!(world.waiting("s").await, 2_100 + moved, "it waits until the subscriber has caught up");
    world.bus.stop().await;
}

#[tokio::test]
async fn a_replay_moves_past_a_part_without_events_of_its_topics() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    let handle = &world.bus.handle;
    handle.subscribe("s", wanted(&["orders"])).await.unwrap();
    world.accepted("a", "noise", 1_100, 10).await;
    world.time.advance(1_000);
    handle.replay("s", 0, START_MS + 1, 100_000).await.unwrap();
    for _ in 0..3 {
        replay::step(&handle.core, world.store()).await.unwrap();
    }
    assert_eq!(world.store().replay("s").await.unwrap(), None, "it ended");
    world.bus.stop().await;
}

#[tokio::test]
async fn a_step_of_a_replaced_replay_does_not_end_the_new_one() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    let handle = &world.bus.handle;
    handle.subscribe("s", wanted(&["orders"])).await.unwrap();
    world.accepted("a", "orders", 1, 10).await;
    handle.replay("s", START_MS, START_MS + 1, 10).await.unwrap();
    let old = world.store().replay("s").await.unwrap().unwrap().cursor;
    handle.replay("s", START_MS, START_MS + 1, 10).await.unwrap();
    let view = handle.core.view();
    let target = target(view.subscription("s").unwrap());
    let late = Again::Replay { from: &old, to: "done" };
    let seed = handle.core.rng.seed();
    let appended = world.store().append(late, &view.stamp, &target, 1 << 20, &seed, &[]).await.unwrap();
    assert_eq!(appended, Appended::Moved);
    assert!(world.store().replay("s").await.unwrap().is_some());
    for known in [None, Some(&*old)] {
        assert!(
            !world.store().schedule_replay("s", known, None).await.unwrap(),
            "it is another replay's time"
        );
    }
    assert!(world.store().next_replay().await.unwrap().is_some());
    world.bus.stop().await;
}

#[tokio::test]
async fn the_next_change_of_concurrency_waits_while_the_lanes_of_several_earlier_ones_have_events() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    let handle = &world.bus.handle;
    let mut refused = 0;
    for concurrency in 1..=12 {
        let wanted = Wanted { concurrency: Some(concurrency), ..wanted(&["orders"]) };
        match handle.subscribe("s", wanted).await {
            Ok(()) => world.accepted("a", "orders", 1, 10).await,
            Err(Error::TooMany(Limit::Generations(4))) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(refused, 8);
    assert_eq!(world.store().generations("s").await.unwrap(), 4);
    world.bus.stop().await;
}

#[tokio::test]
async fn an_event_behind_many_others_is_found_in_parts() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1_000, 0)]).await;
    let mut last = 0;
    for _ in 0..30 {
        last = *hands.publish_urls(&["a"; 200]).await.last().unwrap();
    }
    let (mut found, mut calls) = (Skipped::More(Default::default()), 0);
    while let Skipped::More(cursor) = found {
        calls += 1;
        found = hands
            .store
            .skip("s", EventId(last), Some(lane_hash("a")), (100, 1 << 20), &cursor)
            .await
            .unwrap();
    }
    assert_eq!((found, calls), (Skipped::Done, 4), "2,000 events in one call");
    let absent = Skipped::More(Default::default());
    let Skipped::More(start) = absent else { unreachable!("it is the start") };
    let Skipped::More(cursor) =
        hands.store.skip("s", EventId(1), Some(lane_hash("a")), (100, 1 << 20), &start).await.unwrap()
    else {
        panic!("6,000 events are more than one part");
    };
    for _ in 0..3 {
        let taken = hands.take("w").await;
        assert!(hands.ack(&taken).await);
    }
    let moved =
        hands.store.skip("s", EventId(1), Some(lane_hash("a")), (100, 1 << 20), &cursor).await.unwrap();
    assert_eq!(moved, Skipped::Moved);
}

#[tokio::test]
async fn an_object_keeps_no_state_after_null_and_a_message_without_queue_leaves_nothing() {
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    let state = |text: &str| Some(RawValue::from_string(text.to_owned()).unwrap());
    let redis = &world.redis;
    for (text, kept) in [("{\"a\":1}", 1), ("null", 0)] {
        let group = NewGroup {
            object: "o".into(),
            state: state(text),
            events: vec![("orders".to_owned(), event("https://a/1"))],
            idempotency_key: None,
        };
        world.bus.handle.publish_group("shop", group).await.unwrap();
        assert_eq!(number(redis, "EXISTS", &["object:o:data"]).await, kept, "{text}");
    }
    let objects = number(redis, "HLEN", &["bus:objects"]).await;
    let message = NewMessage {
        tenant: "a".into(),
        kind: "job".into(),
        name: "unknown".into(),
        payload: None,
        delay: None,
        idempotency_key: None,
    };
    assert!(world.bus.handle.publish_messages("shop", vec![message]).await[0].is_ok());
    assert_eq!(number(redis, "HLEN", &["bus:objects"]).await, objects);
    world.bus.stop().await;
}

#[tokio::test]
async fn large_events_are_read_in_small_parts_and_pages_of_them_are_short() {
    const COUNT: usize = 100;
    let server = Server::in_memory().await;
    let world = world(&server, Options::default()).await;
    let single = Wanted { max_events: Some(1), concurrency: Some(1), ..wanted(&["large"]) };
    world.bus.handle.subscribe("s", single).await.unwrap();
    world.accepted("a", "large", COUNT, 60_000).await;

    let (mut window, mut read) = (world.bus.handle.window(0, EventId(0)), Vec::new());
    loop {
        let part = window.next(500).await.unwrap();
        if part.is_empty() {
            break;
        }
        let bytes: usize = part.iter().map(|event| event.entry.len()).sum();
        assert!(bytes <= 1 << 20, "{} events of {bytes} bytes in one part", part.len());
        read.extend(part.into_iter().map(|event| event.id));
    }
    assert_eq!(read.len(), COUNT);

    for _ in 0..COUNT {
        let turn = world.store().acquire(&["w".to_owned()], 1_000, 256).await.unwrap();
        let held = &turn.taken[0].held;
        assert!(world.store().bury(held, 0, "500", true, (1_000, 1 << 26)).await.unwrap());
    }
    let (mut pages, mut found, mut cursor) = (0, Vec::new(), None::<String>);
    loop {
        let page = world.bus.handle.dead_letters("s", cursor.as_deref(), 1_000).await.unwrap();
        pages += 1;
        found.extend(page.items.iter().map(|letter| letter.event.id));
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!((pages, found), (2, read.clone()), "6 MB are two pages");
    let part = world.store().dead_part("s", 0, 100).await.unwrap();
    assert!(part.len() < 20, "{} large letters in one reply", part.len());
    assert_eq!(world.bus.handle.redrive("s").await.unwrap(), COUNT as u64);
    assert_eq!(world.waiting("s").await, COUNT as u64);
    world.bus.stop().await;
}

#[tokio::test]
async fn the_batch_in_flight_is_not_marked_and_marked_events_are_read_before_and_after_they_are_moved() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 2, 0)]).await;
    let first = hands.publish_urls(&["a", "b", "c", "d", "e"]).await[0] / SEGMENT_IDS;
    let taken = hands.take("w").await;
    hands.time.advance(20_000);
    let (marked, next) = hands.store.keep_part("s", &[first], &Default::default()).await.unwrap();
    assert!(marked > 0 && next.is_none(), "{marked} {next:?}");
    let repeated = hands.store.keep_part("s", &[first], &Default::default()).await.unwrap();
    assert_eq!(repeated, (0, None), "nothing is left to mark");
    let kept = async |hands: &Hands| hands.store.kept().await.unwrap();
    assert_eq!((kept(&hands).await, hands.store.kept_for().await.unwrap()["s"]), (0, marked));
    assert_true(hands.store.shard().redis(), "the marks").await;
    assert_eq!(hands.store.trim(&[first]).await.unwrap(), (1, 0), "its worker may be reading");
    assert!(hands.ack(&taken).await);
    let taken = hands.take("w").await;
    let ids: Vec<EventId> = taken.items.iter().map(|item| read_item(item).unwrap().0).collect();
    let bodies = async |hands: &Hands| {
        let bodies = hands.store.bodies(0, &ids).await.unwrap();
        bodies.into_iter().map(|(_, body)| body.expect("a body")).collect::<Vec<_>>()
    };
    let before = bodies(&hands).await;
    assert_eq!(hands.store.trim(&[first]).await.unwrap(), (1, 1), "marked events do not keep it");
    assert_eq!((kept(&hands).await, bodies(&hands).await), (marked, before));
    assert_true(hands.store.shard().redis(), "the moves").await;
    assert!(
        taken.items.len() == 2 && taken.items.iter().all(|item| item.starts_with('-')),
        "{:?}",
        taken.items
    );
    assert!(hands.ack(&taken).await);
    let taken = hands.take("w").await;
    assert_eq!(taken.items.len(), 1);
    assert!(hands.ack(&taken).await);
    assert_eq!((hands.store.kept().await.unwrap(), hands.store.kept_for().await.unwrap().len()), (0, 0));
    assert_eq!(hands.store.trim(&[0]).await.unwrap(), (1, 1), "nothing is left");
    assert_true(hands.store.shard().redis(), "the end").await;
}
