//! A fabric of several shards, on a server that refuses whatever reaches across two.

use std::collections::{BTreeMap, BTreeSet};

use super::support::*;
use crate::{Error, Options, Wanted, event::shard_of};
use signalbox_store::FabricRole;
use signalbox_testkit::{Server, equal, eventually};

#[tokio::test]
async fn three_shards_deliver_everything_in_order_and_forget_a_subscription_everywhere() {
    let server = Server::cluster().await;
    let redis = server.open::<FabricRole>();
    let recorder = Recorder::default();
    let pacemaker = Pacemaker::start_on(&redis, 3, quick(), None, recorder.clone()).ready().await;
    let bus = &pacemaker.handle;
    let all = Wanted { max_events: Some(5), ..wanted(&["orders"]) };
    bus.subscribe("a", all.clone()).await.unwrap();
    bus.subscribe("b", all).await.unwrap();
    let url = |n: usize| format!("https://a/{}", n % 40);
    let mut by_object: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for part in 0..10 {
        let events = (0..40).map(|n| event(&url(part * 40 + n))).collect();
        for (n, id) in bus.publish("shop", "orders", events).await.into_iter().enumerate() {
            let id = id.unwrap().0;
            assert_eq!((id % 64) as usize, shard_of(&url(n), 3), "the low bits name the shard");
            by_object.entry(url(n)).or_default().push(id);
        }
    }
    let ids: BTreeSet<u64> = by_object.values().flatten().copied().collect();
    assert_eq!(ids.len(), 400, "no id twice");
    for token in ["a", "b"] {
        eventually("all deliveries", || async { at_least(recorder.ids(token).len(), 400) }).await;
        let got = recorder.ids(token);
        for of_object in by_object.values() {
            let mine: Vec<u64> = got.iter().copied().filter(|id| of_object.contains(id)).collect();
            assert_eq!(mine, *of_object);
        }
    }
    let topics = bus.topics().await.unwrap();
    assert_eq!((topics.len(), topics[0].events), (1, 400), "the sum over the shards");
    assert_eq!(bus.subscriptions().await.unwrap()[0].numbers.sent, 400);
    bus.unsubscribe("a").await.unwrap();
    for shard in 0..3 {
        let purge = format!("{{s{shard}}}bus:purge");
        eventually("the lanes to be cleared away", || async {
            equal(number(&redis, "HLEN", &[&purge]).await, 0)
        })
        .await;
    }
    for pattern in ["*bus:*:a", "*bus:*:a:*"] {
        assert_eq!(strings(&redis, "KEYS", &[pattern]).await, [""; 0]);
    }
    let (_, other) = crate::Bus::open(&redis, 2, Options::default(), None, Recorder::default());
    let refused = other.run(tokio_util::sync::CancellationToken::new()).await;
    assert!(matches!(refused, Err(Error::OtherShards { stored: 3, configured: 2 })), "{refused:?}");
}

/// Commands that all shards of a server have executed.
async fn commands(redis: &signalbox_store::Fabric) -> u64 {
    let stats: String = redis.command("INFO").arg("stats").query().await.unwrap();
    let count = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).unwrap();
    count.trim().parse().unwrap()
}

#[tokio::test]
async fn a_change_of_the_registry_costs_as_much_after_many_clients_have_left() {
    const SHARDS: u64 = 8;
    const CLIENTS: usize = 100;
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let quiet = Options { deliver: false, housekeeping_ms: 3_600_000, ..quick() };
    let pacemaker =
        Pacemaker::start_on(&redis, SHARDS as usize, quiet, None, Recorder::default()).ready().await;
    let bus = &pacemaker.handle;
    for client in 0..CLIENTS {
        bus.subscribe(&format!("c{client}"), wanted(&["orders"])).await.unwrap();
    }
    for client in 0..CLIENTS {
        bus.unsubscribe(&format!("c{client}")).await.unwrap();
    }
    for shard in 0..SHARDS {
        let purge = format!("{{s{shard}}}bus:purge");
        eventually("the lanes to be cleared away", || async {
            equal(number(&redis, "HLEN", &[&purge]).await, 0)
        })
        .await;
    }
    let before = commands(&redis).await;
    bus.subscribe("last", wanted(&["orders"])).await.unwrap();
    let cost = commands(&redis).await - before;
    assert!(cost < 40 * SHARDS, "{cost} commands in {SHARDS} shards");
    for shard in 0..SHARDS {
        let stamp = format!("{{s{shard}}}bus:registry");
        assert_eq!(
            strings(&redis, "HVALS", &[&stamp]).await[1],
            strings(&redis, "HVALS", &["{s0}bus:registry"]).await[1]
        );
    }
}

/// Without the registry that the change began with, a shard is brought to the present from what it has itself.
#[tokio::test]
async fn a_shard_that_missed_changes_gets_all_of_them() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let quiet = Options { deliver: false, housekeeping_ms: 3_600_000, ..quick() };
    let pacemaker = Pacemaker::start_on(&redis, 2, quiet, None, Recorder::default()).ready().await;
    let bus = &pacemaker.handle;
    bus.subscribe("a", wanted(&["orders"])).await.unwrap();
    bus.subscribe("b", wanted(&["orders"])).await.unwrap();
    let old: Vec<String> =
        redis.command("HMGET").arg(&["{s1}bus:registry", "stamp", "snapshot"][..]).query().await.unwrap();
    bus.unsubscribe("a").await.unwrap();
    eventually("the lanes to be cleared away", || async {
        equal(number(&redis, "HLEN", &["{s1}bus:purge"]).await, 0)
    })
    .await;
    // As if the second shard had not been reachable.
    redis
        .command("HSET")
        .arg(&["{s1}bus:registry", "stamp", &old[0], "snapshot", &old[1]][..])
        .run()
        .await
        .unwrap();
    redis.command("HSET").arg(&["{s1}bus:subscriber:a", "sent", "1"][..]).run().await.unwrap();
    redis.command("HSET").arg(&["{s1}bus:subscriber:b", "sent", "1"][..]).run().await.unwrap();
    bus.subscribe("b", wanted(&["orders", "users"])).await.unwrap();
    assert_eq!(number(&redis, "EXISTS", &["{s1}bus:subscriber:a"]).await, 0, "its subscription has ended");
    assert_eq!(number(&redis, "EXISTS", &["{s1}bus:subscriber:b"]).await, 1);
}
