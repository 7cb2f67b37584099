//! What a process answers after another one, or another of its tasks, has changed the registry.

use std::{
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use super::support::*;
use crate::{Bus, Error, Handle, Options, Refusal};
use signalbox_store::{Fabric, FabricRole};
use signalbox_testkit::Server;

/// A bus whose tasks do not run: each of its commands belongs to a call of the test.
async fn resting(server: &Server, shards: usize) -> (Handle, Fabric) {
    let redis = server.open::<FabricRole>();
    let (handle, _bus) = Bus::open(&redis, shards, Options::default(), None, Recorder::default());
    handle.core.start().await.unwrap();
    (handle, redis)
}

/// Polls a future `times` times. Before it is polled again, everything has been executed that it had sent through `redis`.
async fn step<F: Future>(mut future: Pin<&mut F>, redis: &Fabric, times: usize) -> Poll<F::Output> {
    for _ in 0..times {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Poll::Ready(output);
        }
        redis.command("PING").run().await.unwrap();
    }
    Poll::Pending
}

async fn reads(redis: &Fabric) -> usize {
    let stats: String = redis.command("INFO").arg("commandstats").query().await.unwrap();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_hmget:calls="));
    calls.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or_default()
}

#[tokio::test]
async fn a_read_that_began_before_a_change_does_not_answer_a_call_after_it() {
    let server = Server::in_memory().await;
    let (changing, _) = resting(&server, 1).await;
    let (reading, redis) = resting(&server, 1).await;
    changing.subscribe("s", wanted(&["orders"])).await.unwrap();
    let mut early = pin!(reading.fresh_registry());
    // It has asked for the stamp, and then for the registry.
    assert!(step(early.as_mut(), &redis, 2).await.is_pending());
    changing.subscribe("t", wanted(&["orders"])).await.unwrap();
    // It begins while the first read is under way.
    let mut late = pin!(reading.fresh_registry());
    assert!(step(late.as_mut(), &redis, 1).await.is_pending());
    let early = early.await.unwrap();
    assert!(early.subscriptions.contains_key("s") && !early.subscriptions.contains_key("t"), "{early:?}");
    assert!(late.await.unwrap().subscriptions.contains_key("t"));
}

#[tokio::test]
async fn a_change_does_not_replace_values_that_were_read_later() {
    let server = Server::in_memory().await;
    let (here, redis) = resting(&server, 1).await;
    let (there, _) = resting(&server, 1).await;
    let before = here.stamp();
    let mut change = pin!(here.subscribe("s", wanted(&["orders"])));
    while strings(&redis, "HMGET", &["bus:registry", "stamp"]).await == [before.clone()] {
        assert!(step(change.as_mut(), &redis, 1).await.is_pending(), "its reply has not been read");
    }
    there.subscribe("t", wanted(&["orders"])).await.unwrap();
    let mut read = pin!(here.fresh_registry());
    let read_first = step(read.as_mut(), &redis, 5).await;
    change.await.unwrap();
    let read = if let Poll::Ready(read) = read_first { read } else { read.await };
    assert_eq!(read.unwrap().subscriptions.len(), 2);
    assert_eq!(here.registry().subscriptions.len(), 2);
}

/// Another process ended the subscription and made it again, and did not get as far as the second shard.
#[tokio::test]
async fn a_replay_is_not_removed_by_a_shard_that_learns_later_of_the_subscription_before() {
    let server = Server::in_memory().await;
    let (here, redis) = resting(&server, 2).await;
    here.subscribe("s", wanted(&["orders"])).await.unwrap();
    let second = "{s1}bus:registry";
    let old = strings(&redis, "HMGET", &[second, "stamp", "snapshot"]).await;
    let (there, _) = resting(&server, 2).await;
    there.unsubscribe("s").await.unwrap();
    there.subscribe("s", wanted(&["orders"])).await.unwrap();
    number(&redis, "HSET", &[second, "stamp", &old[0], "snapshot", &old[1]]).await;
    here.replay("s", 0, u64::MAX / 10_000, 10).await.unwrap();
    let view = there.core.refresh().await.unwrap();
    there.core.spread(&view).await.unwrap();
    for shard in 0..2 {
        let (replay, due) = (format!("{{s{shard}}}bus:replay:s"), format!("{{s{shard}}}bus:replays"));
        assert_eq!(number(&redis, "EXISTS", &[&replay]).await, 1, "shard {shard}");
        assert_eq!(strings(&redis, "ZRANGE", &[&due, "0", "-1"]).await, ["s"], "shard {shard}");
    }
}

#[tokio::test]
async fn a_subscription_and_a_topic_that_were_changed_elsewhere_are_known_immediately() {
    let server = Server::in_memory().await;
    let (here, _) = resting(&server, 1).await;
    let (there, redis) = resting(&server, 1).await;
    here.core.change(|registry, _| registry.claim("orders", "shop", &Options::default())).await.unwrap();
    there.fresh_registry().await.unwrap();
    here.subscribe("s", wanted(&["orders"])).await.unwrap();
    assert_eq!(there.retry_now("s").await.unwrap(), 0);
    assert!(matches!(there.retry_now("t").await, Err(Error::NoSuchSubscription)));
    assert_eq!(there.publish("web", "orders", vec![event("https://a/1")]).await, [Err(Refusal::Claimed)]);
    here.hand_over("orders", "web", None).await.unwrap();
    let before = reads(&redis).await;
    assert_eq!(there.publish("shop", "orders", Vec::new()).await, []);
    assert_eq!(reads(&redis).await, before, "an empty publish reads nothing");
    let running = Pacemaker::start(&redis, quick(), Recorder::default()).ready().await;
    here.hand_over("orders", "shop", None).await.unwrap();
    assert!(running.handle.publish("shop", "orders", vec![event("https://a/1")]).await[0].is_ok());
}

#[tokio::test]
async fn a_shard_that_is_ahead_of_a_first_one_which_lost_writes_is_brought_back_to_it() {
    let server = Server::cluster().await;
    let (handle, redis) = resting(&server, 2).await;
    let home = "{s0}bus:registry";
    let field = async |name: &str| strings(&redis, "HMGET", &[home, name]).await.remove(0);
    let (stamp, snapshot) = (field("stamp").await, field("snapshot").await);
    handle.subscribe("s", wanted(&["orders"])).await.unwrap();
    handle.subscribe("t", wanted(&["orders"])).await.unwrap();
    number(&redis, "HSET", &[home, "stamp", &stamp, "snapshot", &snapshot]).await;
    handle.refresh_registry().await.unwrap();
    assert_eq!(handle.stamp(), stamp);
    assert_eq!(strings(&redis, "HMGET", &["{s1}bus:registry", "stamp"]).await, [stamp]);
}
