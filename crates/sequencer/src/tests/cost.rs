//! The cost of an event through a backend, in Redis commands, including those that scripts call. Prints the figures of
//! `docs/sequencer.md`, and fails when they are no longer true.

use std::sync::Arc;

use super::support::*;
use crate::{Options, store::Commit};
use signalbox_bus::{NewGroup, OnFailure, WantedBackend};

/// The number of commands that the server has executed since it started.
async fn commands(world: &World) -> f64 {
    let text: String = world.redis.command("INFO").arg("commandstats").query().await.unwrap();
    text.lines().filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<f64>().ok()).sum()
}

async fn world() -> World {
    let world = World::start().await;
    let wanted = WantedBackend { workers: 16, ..wanted("work:", OnFailure::Block) };
    world.bus.handle.put_backend("search", wanted, "whsec_").await.unwrap();
    world
}

async fn publish_at_once(world: &World, events: usize, objects: usize, key: Option<&str>) {
    let publishes = (0..events).map(|n| {
        let object = format!("work:{}", n % objects);
        let idempotency_key = key.map(|key| format!("{key}-{n}"));
        let group = NewGroup { idempotency_key, ..group(&object, 1) };
        world.bus.handle.publish_group("shop", group)
    });
    let accepted = futures_util::future::join_all(publishes).await;
    assert!(accepted.iter().all(Result::is_ok));
}

/// Sixteen workers take and commit together, one event per object. This is the work of a busy shard and the
/// most expensive case, because no event shares a visit with another.
#[tokio::test]
async fn an_event_costs_few_commands_when_many_are_under_way() {
    const EVENTS: usize = 320;
    let world = world().await;
    let start = commands(&world).await;
    publish_at_once(&world, EVENTS, EVENTS, None).await;
    let accepted = commands(&world).await;
    let workers: Vec<String> = (0..16).map(|n| format!("w{n}")).collect();
    let free = [("search".to_owned(), workers)];
    let mut sent = 0;
    loop {
        let turn = world.stores[0].take(&free, LEASE_MS, 100).await.unwrap();
        let commits: Vec<Commit> = turn
            .taken
            .into_iter()
            .map(|taken| Commit { id: taken.sending.id(), held: taken.held, reported: 0, more: true })
            .collect();
        if commits.is_empty() {
            break;
        }
        sent += world.stores[0].commit(&commits, LEASE_MS).await.unwrap().len();
    }
    assert_eq!(sent, EVENTS);
    let accepting = (accepted - start) / EVENTS as f64;
    let sending = (commands(&world).await - accepted) / EVENTS as f64;
    println!("{accepting:.1} commands to accept an event, {sending:.1} to send it");
    assert!(accepting < 4.0, "{accepting}");
    assert!(sending < 6.5, "{sending}");
    world.expect_consistent("at the end").await;
}

/// The additional cost of idempotency keys: one lookup per key, and little else.
#[tokio::test]
async fn an_event_under_a_key_costs_one_command_more() {
    const EVENTS: usize = 320;
    let world = world().await;
    let start = commands(&world).await;
    publish_at_once(&world, EVENTS, EVENTS, Some("k")).await;
    let first = (commands(&world).await - start) / EVENTS as f64;
    let middle = commands(&world).await;
    publish_at_once(&world, EVENTS, EVENTS, Some("k")).await;
    let again = (commands(&world).await - middle) / EVENTS as f64;
    println!("{first:.1} commands to accept an event under a key, {again:.1} for a repeat");
    assert!(first < 5.0, "{first}");
    assert!(again < first, "{again}");
}

/// An object with many events: the events of a visit share its lease.
#[tokio::test]
async fn events_of_one_object_share_the_cost_of_a_visit() {
    let world = world().await;
    publish_at_once(&world, 160, 1, None).await;
    let start = commands(&world).await;
    let receiver = Receiver::new();
    let running = Running::start(&world, Options { lease_ms: 60_000, ..Options::default() }, &receiver);
    eventually("all to be sent", || async {
        equal(number(&world.redis, "EXISTS", &["object:queued"]).await, 0)
    })
    .await;
    println!("{} calls of the hot object", receiver.log().len());
    let asked = commands(&world).await - start;
    println!(
        "{:.1} commands to send one of 160 events of one object, with the questions of this test",
        asked / 160.0
    );
    assert_eq!(receiver.log().len(), 160);
    running.stop().await;
}

/// How often scripts of the sequencer were called since the last time this was asked. Their first key is the same, and no
/// script of the bus has it.
async fn calls(world: &World) -> usize {
    type Executed = (u64, u64, u64, Vec<Vec<u8>>, String, String);
    let executed: Vec<Executed> = world.redis.command("SLOWLOG").arg("GET").arg(-1).query().await.unwrap();
    world.redis.command("SLOWLOG").arg("RESET").run().await.unwrap();
    executed.iter().filter(|(.., call, _, _)| call.get(3).is_some_and(|key| key == b"object:queued")).count()
}

/// The same, after Redis has executed other commands.
async fn calls_during(world: &World, others: usize) -> usize {
    calls(world).await;
    for _ in 0..others {
        world.redis.command("PING").run().await.unwrap();
    }
    calls(world).await
}

/// An idle sequencer asks Redis nothing.
#[tokio::test]
async fn an_idle_sequencer_asks_nothing() {
    let world = world().await;
    for (setting, value) in [("slowlog-log-slower-than", 0), ("slowlog-max-len", 1_000_000)] {
        world.redis.command("CONFIG").arg("SET").arg(setting).arg(value).run().await.unwrap();
    }
    let receiver = Receiver::new();
    let running = Running::start(&world, Options::default(), &receiver);
    world.publish("work:1", 1).await;
    eventually("it to be sent", || async {
        equal(number(&world.redis, "EXISTS", &["object:queued"]).await, 0)
    })
    .await;
    assert!(calls(&world).await > 0, "calls are counted");
    // The last visit's queries may not have ended yet.
    eventually("the last queries to be over", || async { equal(calls_during(&world, 1_000).await, 0) }).await;
    assert_eq!(calls_during(&world, 10_000).await, 0);
    let _keeps = Arc::clone(&world.clock);
    running.stop().await;
}
