//! The known faults of Routemaster below its HTTP interface, each with a test of its name; and the behavior of a running
//! bus when other components fail.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{support::*, truth::*};
use crate::{Alteration, ApiToken, Error, EventId, NewEvent, Options, Refusal, Wanted};
use signalbox_api::events::DeliveryResult;
use signalbox_egress::Outcome;
use signalbox_store::FabricRole;
use signalbox_testkit::{Server, equal, eventually};

async fn running(server: &Server, recorder: &Recorder) -> Pacemaker {
    let redis = server.open::<FabricRole>();
    Pacemaker::start(&redis, quick(), recorder.clone()).ready().await
}

fn delivered() -> (Duration, Outcome) {
    (Duration::ZERO, Outcome::Delivered)
}

fn failed() -> (Duration, Outcome) {
    (Duration::ZERO, Outcome::Failed { why: "500".into(), retry_after: None })
}

#[tokio::test]
async fn deleting_a_topic_breaks_neither_the_list_of_subscriptions_nor_unsubscribing() {
    let server = Server::in_memory().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    bus.subscribe("s", wanted(&["orders", "users"])).await.unwrap();
    bus.subscribe("watcher", wanted(&["signalbox.subscriber.topic_deleted"])).await.unwrap();
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    bus.delete_topic("orders", Some("shop")).await.unwrap();
    eventually("the report", || async { equal(recorder.ids("watcher").len(), 1) }).await;
    bus.unsubscribe("watcher").await.unwrap();
    let listed = bus.subscriptions().await.unwrap();
    assert_eq!(listed[0].subscription.topics, BTreeSet::from(["users".to_owned()]));
    let redis = server.open::<FabricRole>();
    for key in ["bus:topic:orders", "bus:subscribers:orders"] {
        assert_eq!(number(&redis, "EXISTS", &[key]).await, 0, "{key}");
    }
    assert_eq!(strings(&redis, "SMEMBERS", &["bus:topics:s"]).await, ["users"]);
    bus.unsubscribe("s").await.unwrap();
    assert!(matches!(bus.unsubscribe("s").await, Err(Error::NoSuchSubscription)));
    assert!(bus.subscriptions().await.unwrap().is_empty());
    eventually("the lanes to be cleared away", || async {
        equal(number(&redis, "HLEN", &["bus:purge"]).await, 0)
    })
    .await;
    for pattern in ["bus:*:s", "bus:*:s:*"] {
        assert_eq!(strings(&redis, "KEYS", &[pattern]).await, [""; 0]);
    }
    assert_true(&redis, "the end of the subscription").await;
}

/// As after a failover to a replica that was behind.
#[tokio::test]
async fn accepted_events_that_the_fabric_lost_are_counted_and_publishing_continues() {
    let server = Server::in_memory().await;
    let pacemaker = running(&server, &Recorder::default()).await;
    let bus = &pacemaker.handle;
    let redis = server.open::<FabricRole>();
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    let call = strings(&redis, "KEYS", &["bus:call:*"]).await.remove(0);
    let old: String = redis.command("GET").arg(&call).query().await.unwrap();
    bus.publish("shop", "orders", vec![event("https://a/1"), event("https://a/2")]).await[0].unwrap();
    bus.publish("shop", "orders", vec![event("https://a/3")]).await[0].unwrap();
    redis.command("SET").arg((&call, &old)).run().await.unwrap();
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    assert_eq!(number(&redis, "HGET", &["bus:counters", "events.lost"]).await, 3);
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    assert_eq!(number(&redis, "HGET", &["bus:counters", "events.lost"]).await, 3, "reported once");
}

#[tokio::test]
async fn a_new_fabric_that_answers_before_it_accepts_writes_is_initialized_later() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let replicas = |count: u8| redis.command("CONFIG").arg(("SET", "min-replicas-to-write", count)).run();
    replicas(1).await.unwrap();
    let pacemaker = Pacemaker::start(&redis, quick(), Recorder::default());
    eventually("the pacemaker to have looked", || async {
        let answer = pacemaker.handle.publish("shop", "orders", vec![event("https://a/1")]).await;
        if answer == [Err(Refusal::Uninitialized)] { Ok(()) } else { Err(answer) }
    })
    .await;
    replicas(0).await.unwrap();
    let pacemaker = pacemaker.ready().await;
    pacemaker.handle.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
}

#[tokio::test]
async fn only_its_publisher_or_root_deletes_a_topic() {
    let server = Server::in_memory().await;
    let pacemaker = running(&server, &Recorder::default()).await;
    let bus = &pacemaker.handle;
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    assert!(matches!(bus.delete_topic("orders", Some("other")).await, Err(Error::Forbidden)));
    assert!(matches!(bus.delete_topic("nothing", None).await, Err(Error::NoSuchTopic)));
    bus.delete_topic("orders", None).await.unwrap();
    // And its name is free again.
    bus.publish("other", "orders", vec![event("https://a/1")]).await[0].unwrap();
    assert_eq!(bus.publish("shop", "orders", vec![event("https://a/1")]).await, [Err(Refusal::Claimed)]);
}

#[tokio::test]
async fn a_refused_topic_name_leaves_nothing_behind() {
    let server = Server::in_memory().await;
    let pacemaker = running(&server, &Recorder::default()).await;
    let bus = &pacemaker.handle;
    for name in ["", "Orders", "a b", "a\n", "signalbox.x", "ä", &"x".repeat(65), "a.b", "a1"] {
        assert_eq!(
            bus.publish("shop", name, vec![event("https://a/1")]).await,
            [Err(Refusal::BadTopic)],
            "{name:?}"
        );
    }
    for name in ["Orders", "signalbox.", "signalbox..x", "other.x"] {
        assert!(matches!(bus.subscribe("s", wanted(&[name])).await, Err(Error::BadTopic(_))), "{name:?}");
    }
    assert!(bus.topics().await.unwrap().is_empty());
    assert!(bus.subscriptions().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_far_future_timestamp_withholds_nothing() {
    let server = Server::in_memory().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    pacemaker.handle.subscribe("s", wanted(&["orders"])).await.unwrap();
    let late = NewEvent { timestamp_ms: Some(9_999_999_999_999), ..event("https://a/1") };
    pacemaker.handle.publish("shop", "orders", vec![late]).await[0].unwrap();
    eventually("the delivery", || async { equal(recorder.ids("s").len(), 1) }).await;
    assert_eq!(recorder.taken()[0].batch.events[0].timestamp_ms, 9_999_999_999_999);
}

/// Routemaster delivered sixteen of these events out of order.
#[tokio::test]
async fn six_hundred_events_on_one_url_arrive_in_order() {
    let server = Server::in_memory().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    let count = AtomicUsize::new(0);
    // Some attempts fail, and each takes another time.
    recorder.answers(move |_, batch| match count.fetch_add(1, Ordering::SeqCst) {
        n if n % 20 == 2 && batch.attempts == 0 => failed(),
        n => (Duration::from_millis((n % 5) as u64), Outcome::Delivered),
    });
    bus.subscribe("s", Wanted { max_events: Some(7), ..wanted(&["orders"]) }).await.unwrap();
    let mut published = Vec::new();
    for _ in 0..60 {
        let ten = bus.publish("shop", "orders", (0..10).map(|_| event("https://a/1")).collect()).await;
        published.extend(ten.into_iter().map(|id| id.unwrap().0));
    }
    eventually("all deliveries", || async { at_least(recorder.ids("s").len(), 600) }).await;
    assert_eq!(recorder.ids("s"), published);
    assert_true(&server.open::<FabricRole>(), "six hundred events").await;
}

/// One exception in a job stopped the process.
#[tokio::test]
async fn a_delivery_that_panics_is_a_failed_delivery() {
    let server = Server::in_memory().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    recorder.answers(|subscription, batch| {
        assert!(subscription.token != "bad" || batch.attempts > 0, "a defect");
        delivered()
    });
    bus.subscribe("bad", wanted(&["orders"])).await.unwrap();
    bus.subscribe("good", wanted(&["orders"])).await.unwrap();
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    eventually("the good one", || async { equal(recorder.ids("good").len(), 1) }).await;
    eventually("the second attempt", || async { equal(recorder.ids("bad").len(), 1) }).await;
}

#[tokio::test]
async fn workers_recover_from_a_restart_of_redis() {
    let mut server = Server::durable().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    bus.subscribe("s", wanted(&["orders"])).await.unwrap();
    let first = bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap().0;
    eventually("the first delivery", || async { equal(recorder.ids("s").len(), 1) }).await;
    // The server stops during a delivery.
    recorder.answers(|_, _| (Duration::from_millis(300), Outcome::Delivered));
    let second = bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap().0;
    eventually("the second attempt", || async { equal(recorder.attempts().len(), 2) }).await;
    server.kill();
    let refused = bus.publish("shop", "orders", vec![event("https://a/1")]).await;
    assert_eq!(refused, [Err(Refusal::Unavailable)]);
    server.start();
    server.answers().await;
    recorder.answers(|_, _| delivered());
    eventually("publishing again", || async {
        if bus.publish("shop", "orders", vec![event("https://a/2")]).await[0].is_ok() {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    eventually("deliveries again", || async { at_least(recorder.ids("s").len(), 3) }).await;
    assert_eq!(recorder.ids("s")[..2], [first, second]);
    let redis = server.open::<FabricRole>();
    eventually("the job to be settled", || async {
        equal(number(&redis, "SCARD", &["bus:jobs:index:main"]).await, 0)
    })
    .await;
    assert_true(&redis, "the restart").await;
}

#[tokio::test]
async fn a_fabric_replaced_by_an_empty_one_is_refused_until_it_is_initialized() {
    let mut server = Server::in_memory().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    bus.subscribe("s", wanted(&["orders"])).await.unwrap();
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    let fabric = bus.fabric();
    server.kill();
    server.wipe();
    server.start();
    server.answers().await;
    let redis = server.open::<FabricRole>();
    eventually("the refusal", || async {
        equal(
            bus.publish("shop", "orders", vec![event("https://a/1")]).await,
            vec![Err(Refusal::Uninitialized)],
        )
    })
    .await;
    assert!(matches!(bus.subscribe("s", wanted(&["orders"])).await, Err(Error::Uninitialized)));
    assert!(!bus.is_ready());
    // Nor does one that starts now and remembers the old one.
    let other = Pacemaker::start_knowing(&redis, quick(), Some(fabric), recorder.clone());
    eventually("its refusal", || async {
        equal(
            other.handle.publish("shop", "orders", vec![event("https://a/1")]).await,
            vec![Err(Refusal::Uninitialized)],
        )
    })
    .await;
    assert_eq!(number(&redis, "EXISTS", &["bus:registry"]).await, 0, "nothing was written");
    bus.initialize().await.unwrap();
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    assert!(bus.subscriptions().await.unwrap().is_empty());
}

/// A worker killed while scrubbing stopped all scrubbing for good, and a slow one was scrubbed.
#[tokio::test]
async fn jobs_of_a_dead_pacemaker_are_delivered_by_another_and_those_of_a_slow_one_are_not() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let (dead, living) = (Recorder::default(), Recorder::default());
    dead.answers(|_, _| (Duration::from_secs(3600), Outcome::Delivered));
    let first = Mortal::start(&server, quick(), dead.clone());
    eventually("the bus to be ready", || async {
        if first.handle.is_ready() { Ok(()) } else { Err("not yet") }
    })
    .await;
    first.handle.subscribe("s", wanted(&["orders"])).await.unwrap();
    first.handle.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    eventually("the attempt", || async { equal(dead.attempts().len(), 1) }).await;
    let second = Pacemaker::start(&redis, quick(), living.clone()).ready().await;
    let redis_now = server.open::<FabricRole>();
    let beats = || async { strings(&redis_now, "HVALS", &["bus:workers"]).await };
    // It is slower than a dead worker is long still, but its heart beats.
    let before = beats().await;
    eventually("some heartbeats", || async { if beats().await != before { Ok(()) } else { Err("not yet") } })
        .await;
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert_eq!(living.attempts().len(), 0, "a slow one keeps its job");
    // Killed: its tasks are gone, heartbeats too.
    first.kill();
    eventually("the delivery by the other", || async { equal(living.ids("s").len(), 1) }).await;
    assert_eq!(living.taken()[0].batch.attempts, 1, "the attempt that was under way counts");
    second.stop().await;
    assert_true(&redis, "the death").await;
}

#[tokio::test]
async fn receivers_that_hang_cost_no_other_its_deliveries() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let recorder = Recorder::default();
    let options = Options { workers: 2, slow_ms: 20, ..quick() };
    let pacemaker = Pacemaker::start(&redis, options, recorder.clone()).ready().await;
    let bus = &pacemaker.handle;
    recorder.answers(|subscription, _| match &*subscription.token {
        "good" => delivered(),
        _ => (Duration::from_secs(3600), Outcome::Delivered),
    });
    for n in 0..6 {
        bus.subscribe(&format!("bad{n}"), wanted(&["orders"])).await.unwrap();
    }
    bus.subscribe("good", wanted(&["orders"])).await.unwrap();
    for n in 0..20 {
        bus.publish("shop", "orders", vec![event(&format!("https://a/{n}"))]).await[0].unwrap();
    }
    eventually("the good one's deliveries", || async { equal(recorder.ids("good").len(), 20) }).await;
}

/// As many lanes as there are shares hang, before any of them is known to be slow.
#[tokio::test]
async fn receivers_that_hang_use_no_worker_before_their_first_success() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let recorder = Recorder::default();
    let options = Options { workers: 2, slow_ms: 3_600_000, slow_deliveries: 64, ..quick() };
    let pacemaker = Pacemaker::start(&redis, options, recorder.clone()).ready().await;
    let bus = &pacemaker.handle;
    recorder.answers(|subscription, _| match &*subscription.token {
        "good" => delivered(),
        _ => (Duration::from_secs(3600), Outcome::Delivered),
    });
    bus.subscribe("good", wanted(&["orders", "own"])).await.unwrap();
    bus.publish("shop", "own", vec![event("https://a/0")]).await[0].unwrap();
    eventually("the first success", || async { equal(recorder.ids("good").len(), 1) }).await;
    for n in 0..30 {
        bus.subscribe(&format!("bad{n}"), wanted(&["orders"])).await.unwrap();
    }
    for n in 0..20 {
        bus.publish("shop", "orders", vec![event(&format!("https://a/{n}"))]).await[0].unwrap();
    }
    eventually("the good one's deliveries", || async { equal(recorder.ids("good").len(), 21) }).await;
    let bad = recorder.attempts().iter().filter(|one| one.token != "good").count();
    assert!(bad <= 64, "{bad} deliveries hang");
}

#[tokio::test]
async fn a_pacemaker_that_returns_delivers_what_its_earlier_process_had_in_flight() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let (dead, living) = (Recorder::default(), Recorder::default());
    dead.answers(|_, _| (Duration::from_secs(3600), Outcome::Delivered));
    // A process of another machine would have to be silent for an hour.
    let options = Options { dead_after_ms: 3_600_000, ..quick() };
    let first = Mortal::start_on_node(&server, "m1", options.clone(), dead.clone());
    eventually("the bus to be ready", || async { first.handle.is_ready().then_some(()).ok_or("not yet") })
        .await;
    first.handle.subscribe("s", wanted(&["orders"])).await.unwrap();
    first.handle.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    eventually("the attempt", || async { equal(dead.attempts().len(), 1) }).await;
    first.kill();
    let second = Pacemaker::start_on_node(&redis, "m1", options, living.clone()).ready().await;
    eventually("the delivery after the return", || async { equal(living.ids("s").len(), 1) }).await;
    assert_eq!(living.taken()[0].batch.attempts, 1, "the attempt that was under way counts");
    second.stop().await;
}

#[tokio::test]
async fn a_subscriber_that_recovered_is_retried_now_and_when_it_subscribes_again() {
    let server = Server::in_memory().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    let away = || {
        recorder.answers(|_, _| {
            let retry_after = Some(Duration::from_secs(3600));
            (Duration::ZERO, Outcome::Failed { why: "503".into(), retry_after })
        });
    };
    away();
    bus.subscribe("s", wanted(&["orders"])).await.unwrap();
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    let paused = async || {
        let redis = server.open::<FabricRole>();
        eventually("a pause", || async {
            equal(number(&redis, "ZCARD", &["bus:jobs:scheduled:main"]).await, 1)
        })
        .await;
    };
    paused().await;
    recorder.answers(|_, _| delivered());
    assert_eq!(bus.retry_now("s").await.unwrap(), 1);
    eventually("the delivery", || async { equal(recorder.ids("s").len(), 1) }).await;
    assert_eq!(bus.retry_now("s").await.unwrap(), 0);
    assert!(matches!(bus.retry_now("nobody").await, Err(Error::NoSuchSubscription)));
    away();
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    paused().await;
    recorder.answers(|_, _| delivered());
    bus.subscribe("s", wanted(&["orders"])).await.unwrap();
    eventually("the next delivery", || async { equal(recorder.ids("s").len(), 2) }).await;
}

/// An event that its receiver always rejects is skipped by hand. Those after it in its lane are delivered.
#[tokio::test]
async fn a_skipped_event_is_a_dead_letter_and_can_be_sent_again() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    recorder.answers(|_, batch| match batch.events.iter().any(|event| event.url == "https://a/1") {
        true => {
            let retry_after = Some(Duration::from_secs(3600));
            (Duration::ZERO, Outcome::Failed { why: "400".into(), retry_after })
        }
        false => delivered(),
    });
    let one_by_one = Wanted { concurrency: Some(1), max_events: Some(1), ..wanted(&["orders"]) };
    bus.subscribe("s", one_by_one).await.unwrap();
    bus.subscribe("other", wanted(&["users"])).await.unwrap();
    let mut ids = Vec::new();
    for n in 0..4 {
        ids.push(bus.publish("shop", "orders", vec![event(&format!("https://a/{n}"))]).await[0].unwrap());
    }
    eventually("a pause", || async { equal(number(&redis, "ZCARD", &["bus:jobs:scheduled:main"]).await, 1) })
        .await;
    assert!(matches!(bus.skip("other", ids[1]).await, Err(Error::NoSuchEvent)), "it does not wait there");
    assert!(matches!(bus.skip("s", EventId(64)).await, Err(Error::NoSuchEvent)));
    bus.skip("s", ids[1]).await.unwrap();
    eventually("the others", || async { equal(recorder.ids("s").len(), 3) }).await;
    assert!(matches!(bus.skip("s", ids[1]).await, Err(Error::NoSuchEvent)), "it is skipped already");
    let gaps: Vec<_> = recorder.taken().iter().flat_map(|one| one.batch.gaps.clone()).collect();
    assert_eq!((gaps[0].first, gaps[0].last, &*gaps[0].reason), (ids[1], ids[1], "skipped"));
    let letters = bus.dead_letters("s", None, 10).await.unwrap().items;
    assert_eq!((letters[0].event.id, &*letters[0].reason), (ids[1], "skipped"));
    assert_true(&redis, "the skip").await;

    recorder.answers(|_, _| delivered());
    assert!(matches!(bus.resend("other", ids[1]).await, Err(Error::NoSuchEvent)), "it is not of its topics");
    bus.resend("s", ids[1]).await.unwrap();
    eventually("the dead letter", || async { equal(recorder.ids("s").len(), 4) }).await;
    assert!(bus.dead_letters("s", None, 10).await.unwrap().items.is_empty());
    bus.resend("s", ids[0]).await.unwrap();
    eventually("one of the log", || async { equal(recorder.ids("s").last().copied(), Some(ids[0].0)) }).await;
    assert_true(&redis, "the events sent again").await;
}

#[tokio::test]
async fn a_subscription_has_limits_of_its_own_and_a_log_of_its_attempts() {
    let server = Server::in_memory().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    recorder.answers(|_, _| failed());
    bus.subscribe("s", wanted(&["orders"])).await.unwrap();
    let change =
        Alteration { max_attempts: Some(Some(2)), retry_seconds: Some(vec![1]), ..Alteration::default() };
    bus.alter("s", change).await.unwrap();
    bus.subscribe("s", wanted(&["orders"])).await.unwrap();
    let id = bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    eventually("the dead letter", || async {
        equal(bus.dead_letters("s", None, 10).await.unwrap().items.len(), 1)
    })
    .await;
    assert_eq!(recorder.attempts().len(), 2, "the limits stay when the client subscribes again");
    let log = bus.deliveries("s", 10).await.unwrap();
    let seen: Vec<_> =
        log.iter().map(|one| (one.attempt, one.result, one.first, one.next.is_some())).collect();
    assert_eq!(seen, [(2, DeliveryResult::Dead, id.0, false), (1, DeliveryResult::Retried, id.0, true)]);
    assert_eq!(log[0].why.as_deref(), Some("500"));
    assert_eq!(bus.deliveries("s", 1).await.unwrap(), log[..1]);
    assert!(matches!(bus.deliveries("nobody", 1).await, Err(Error::NoSuchSubscription)));
}

#[tokio::test]
async fn a_paused_subscription_collects_its_events_and_a_disabled_one_does_not() {
    let server = Server::in_memory().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    bus.subscribe("s", wanted(&["orders"])).await.unwrap();
    let alter = async |paused, disabled| {
        bus.alter("s", Alteration { paused, disabled, ..Alteration::default() }).await.unwrap();
    };
    alter(Some(true), None).await;
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    let redis = server.open::<FabricRole>();
    eventually("a pause", || async { equal(number(&redis, "ZCARD", &["bus:jobs:scheduled:main"]).await, 1) })
        .await;
    assert!(recorder.attempts().is_empty());
    alter(Some(false), None).await;
    eventually("what waited", || async { equal(recorder.ids("s").len(), 1) }).await;
    alter(None, Some(true)).await;
    bus.subscribe("s", wanted(&["orders"])).await.unwrap();
    bus.publish("shop", "orders", vec![event("https://a/2")]).await[0].unwrap();
    alter(None, Some(false)).await;
    let last = bus.publish("shop", "orders", vec![event("https://a/3")]).await[0].unwrap();
    eventually("what is new", || async { equal(recorder.ids("s").last().copied(), Some(last.0)) }).await;
    assert_eq!(recorder.ids("s").len(), 2, "nothing was collected while it was disabled");
}

/// The client of Routemaster waits five seconds.
#[tokio::test]
async fn publishing_fails_soon_while_the_fabric_does_not_answer() {
    let server = Server::in_memory().await;
    let pacemaker = running(&server, &Recorder::default()).await;
    let bus = &pacemaker.handle;
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    server.cli(&["CLIENT", "PAUSE", "60000", "ALL"]);
    let publish = bus.publish("shop", "orders", vec![event("https://a/2")]);
    let refused = tokio::time::timeout(Duration::from_secs(4), publish).await.expect("an answer");
    assert_eq!(refused, [Err(Refusal::Unavailable)]);
    let pulse = tokio::time::timeout(Duration::from_secs(4), bus.pulse()).await.expect("an answer");
    assert!(pulse.is_err());
}

#[tokio::test]
async fn a_subscriber_that_is_gone_is_disabled_and_gets_waiting_events_when_it_returns() {
    let server = Server::in_memory().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    recorder.answers(|_, _| (Duration::ZERO, Outcome::Gone));
    bus.subscribe("watcher", wanted(&["signalbox.subscriber.disabled"])).await.unwrap();
    bus.unsubscribe("watcher").await.unwrap();
    bus.subscribe("s", wanted(&["orders"])).await.unwrap();
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    eventually("the end", || async {
        if bus.registry().subscriptions.get("s").is_some_and(|one| one.disabled.is_some()) {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    eventually("its announcement", || async {
        if bus
            .topics()
            .await
            .unwrap()
            .iter()
            .any(|topic| topic.name == "signalbox.subscriber.disabled" && topic.events == 1)
        {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    bus.publish("shop", "orders", vec![event("https://a/2")]).await[0].unwrap();
    recorder.answers(|_, _| delivered());
    assert_eq!(recorder.attempts().len(), 1, "nothing is tried any more");
    bus.subscribe("s", wanted(&["orders"])).await.unwrap();
    eventually("what waited", || async { equal(recorder.ids("s").len(), 1) }).await;
    bus.publish("shop", "orders", vec![event("https://a/3")]).await[0].unwrap();
    eventually("what is new", || async { equal(recorder.ids("s").len(), 2) }).await;
    assert_true(&server.open::<FabricRole>(), "the comeback").await;
}

#[tokio::test]
async fn pacing_is_reported_when_it_begins_and_not_at_every_failure() {
    let server = Server::in_memory().await;
    let (recorder, failing) = (Recorder::default(), Arc::new(AtomicUsize::new(2)));
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    let left = Arc::clone(&failing);
    recorder.answers(move |subscription, _| {
        let fails = subscription.token == "s"
            && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if fails { failed() } else { delivered() }
    });
    let client = ApiToken { name: "sally".into(), ..ApiToken::default() };
    bus.create_api_token("s", client).await.unwrap();
    bus.subscribe("s", wanted(&["orders"])).await.unwrap();
    bus.subscribe("watcher", wanted(&["signalbox.subscriber.paced"])).await.unwrap();
    let publish = async |n: usize| {
        bus.publish("shop", "orders", vec![event(&format!("https://a/{n}"))]).await[0].unwrap();
    };
    publish(0).await;
    eventually("the first delivery after two failures", || async { equal(recorder.ids("s").len(), 1) }).await;
    // Four points down, and one up for each delivery. Before full health is restored, a failure is not reported.
    failing.store(1, Ordering::SeqCst);
    for n in 1..=5 {
        publish(n).await;
        eventually("the next delivery", || async { equal(recorder.ids("s").len(), n + 1) }).await;
    }
    eventually("the announcement", || async { equal(recorder.ids("watcher").len(), 1) }).await;
    let health = bus.subscriptions().await.unwrap().iter().map(|one| one.gauges.health).min();
    assert_eq!(health, Some(100));
    failing.store(1, Ordering::SeqCst);
    publish(6).await;
    eventually("another announcement", || async { equal(recorder.ids("watcher").len(), 2) }).await;
    let taken = recorder.taken();
    let mut told = taken.iter().filter(|one| one.token == "watcher").flat_map(|one| &one.batch.events);
    let told = told.next().unwrap();
    assert_eq!((&*told.object, &*told.url), ("signalbox:subscriber:sally", "/subscriptions"));
    let data = told.data.as_ref().unwrap().get();
    assert!(data.contains(r#""subscriber":"sally""#) && data.contains("pause_ms"), "{data}");
}

#[tokio::test]
async fn a_poison_event_dies_alone_and_can_be_redriven_or_dropped() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let recorder = Recorder::default();
    // Exhausted immediately: the first failure splits.
    let options = Options { max_attempts: 1, ..quick() };
    let pacemaker = Pacemaker::start(&redis, options, recorder.clone()).ready().await;
    let bus = &pacemaker.handle;
    recorder.answers(|_, batch| match batch.events.iter().any(|event| event.url == "https://a/5") {
        true => failed(),
        false => delivered(),
    });
    let all = Wanted { concurrency: Some(1), timeout_ms: Some(100), ..wanted(&["orders"]) };
    bus.subscribe("s", all).await.unwrap();
    let urls: Vec<_> = (0..8).map(|n| event(&format!("https://a/{n}"))).collect();
    let ids: Vec<u64> =
        bus.publish("shop", "orders", urls).await.into_iter().map(|id| id.unwrap().0).collect();
    eventually("the others", || async { equal(recorder.ids("s").len(), 7) }).await;
    let others: Vec<u64> = ids.iter().copied().filter(|id| *id != ids[5]).collect();
    assert_eq!(recorder.ids("s"), others);
    let told: Vec<_> = recorder.taken().iter().flat_map(|one| one.batch.gaps.clone()).collect();
    assert_eq!(told.len(), 1);
    assert_eq!(
        (told[0].first.0, told[0].last.0, told[0].count, &*told[0].reason),
        (ids[5], ids[5], 1, "dead")
    );
    let page = bus.dead_letters("s", None, 10).await.unwrap();
    assert_eq!(page.items.len(), 1);
    assert_eq!((page.items[0].event.id.0, &*page.items[0].reason, page.cursor), (ids[5], "500", None));
    assert_eq!(bus.subscriptions().await.unwrap()[0].gauges.dead, 1);

    recorder.answers(|_, _| delivered());
    assert_eq!(bus.redrive("s").await.unwrap(), 1);
    eventually("the redriven one", || async { equal(recorder.ids("s").len(), 8) }).await;
    let last = recorder.taken().pop().unwrap().batch;
    assert_eq!((last.events[0].id.0, &*last.events[0].url), (ids[5], "https://a/5"), "the same id");
    assert_eq!(bus.redrive("s").await.unwrap(), 0);
    assert_eq!(strings(&redis, "HVALS", &["bus:dead.bytes"]).await, ["0"]);
    assert_eq!(bus.drop_dead("s").await.unwrap(), 0);
    assert!(matches!(bus.redrive("nobody").await, Err(Error::NoSuchSubscription)));
    assert_true(&redis, "the redrive").await;
}

#[tokio::test]
async fn a_replay_sends_a_range_again_to_one_subscriber_only() {
    let server = Server::in_memory().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    bus.subscribe("a", wanted(&["orders"])).await.unwrap();
    bus.subscribe("b", wanted(&["orders"])).await.unwrap();
    let mut ids = Vec::new();
    for n in 0..30 {
        ids.push(bus.publish("shop", "orders", vec![event(&format!("https://a/{n}"))]).await[0].unwrap());
        bus.publish("shop", "users", vec![event("https://u/1")]).await[0].unwrap();
    }
    eventually("the first deliveries", || async {
        equal((recorder.ids("a").len(), recorder.ids("b").len()), (30, 30))
    })
    .await;
    assert!(matches!(bus.replay("a", 5, 5, 10).await, Err(Error::OutOfRange { .. })));
    assert!(matches!(bus.replay("a", 0, 5, 0).await, Err(Error::OutOfRange { .. })));
    bus.replay("a", 0, u64::MAX / 10_000, 100_000).await.unwrap();
    eventually("the replay", || async { at_least(recorder.ids("a").len(), 60) }).await;
    let again: BTreeSet<u64> = recorder.ids("a")[30..].iter().copied().collect();
    assert_eq!(again, ids.iter().map(|id| id.0).collect());
    assert_eq!((recorder.ids("a").len(), recorder.ids("b").len()), (60, 30));
    let redis = server.open::<FabricRole>();
    eventually("its end", || async { equal(number(&redis, "ZCARD", &["bus:replays"]).await, 0) }).await;
    assert_eq!(number(&redis, "EXISTS", &["bus:replay:a"]).await, 0);
    eventually("the lanes to be empty", || async {
        equal(number(&redis, "SCARD", &["bus:jobs:index:main"]).await, 0)
    })
    .await;
    assert_true(&redis, "the replay").await;
}

#[tokio::test]
async fn autodrop_removes_the_noisiest_subscribers_oldest_batches_and_reports_the_gap() {
    let server = Server::in_memory().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    recorder.answers(|_, _| {
        (Duration::ZERO, Outcome::Failed { why: "down".into(), retry_after: Some(Duration::from_secs(3600)) })
    });
    let slow = Wanted { max_events: Some(10), concurrency: Some(1), ..wanted(&["orders"]) };
    bus.subscribe("noisy", slow.clone()).await.unwrap();
    bus.subscribe("quiet", Wanted { topics: wanted(&["users"]).topics, ..slow }).await.unwrap();
    let data = serde_json::value::RawValue::from_string(format!("\"{}\"", "x".repeat(10_000))).unwrap();
    let big = |url: String| NewEvent { data: Some(data.clone()), ..event(&url) };
    bus.publish("shop", "users", vec![big("https://u/1".into())]).await[0].unwrap();
    for part in 0..20 {
        let events = (0..50).map(|n| big(format!("https://a/{part}/{n}"))).collect();
        assert!(bus.publish("shop", "orders", events).await.iter().all(Result::is_ok));
    }
    eventually("both failures", || async { at_least(recorder.attempts().len(), 2) }).await;
    let redis = server.open::<FabricRole>();
    redis.command("CONFIG").arg(&["SET", "maxmemory", "12mb"][..]).run().await.unwrap();
    eventually("memory to be freed", || async {
        // Segments are removed once they are no longer the present one and none of their events waits.
        if number(&redis, "HGET", &["bus:batches:gauges:event", "noisy"]).await < 1000 {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await;
    redis.command("CONFIG").arg(&["SET", "maxmemory", "0"][..]).run().await.unwrap();
    assert_eq!(number(&redis, "HGET", &["bus:batches:gauges:event", "quiet"]).await, 1, "not the noisiest");
    let gaps = strings(&redis, "LRANGE", &["bus:gaps:noisy:2.0", "0", "-1"]).await;
    assert!(!gaps.is_empty() || !strings(&redis, "KEYS", &["bus:gaps:noisy:*"]).await.is_empty());
    pacemaker.stop().await;
    assert_true(&redis, "the drop").await;
}

#[tokio::test]
async fn a_token_that_is_deleted_takes_its_subscription_with_it() {
    let server = Server::in_memory().await;
    let pacemaker = running(&server, &Recorder::default()).await;
    let bus = &pacemaker.handle;
    let scopes = BTreeSet::from(["publish".to_owned()]);
    let client = ApiToken::new("shop".into(), scopes, "shop--1".into(), None, None);
    bus.create_api_token("shop--1", client.clone()).await.unwrap();
    bus.create_api_token("shop--1", client.clone()).await.unwrap();
    let other = ApiToken { name: "other".into(), ..client.clone() };
    assert!(matches!(bus.create_api_token("shop--1", other).await, Err(Error::TokenExists)));
    assert_eq!(bus.api_tokens().await.unwrap(), BTreeMap::from([("shop--1".to_owned(), client)]));
    bus.subscribe("shop--1", wanted(&["orders"])).await.unwrap();
    // Another token is one of the same client, and the one before ends.
    bus.rotate_api_token("shop--1", "shop--2", None, 200, 100).await.unwrap();
    let of = |digest: &str, now_ms| bus.client_of(digest, now_ms).map(|(client, _)| client);
    let shop = Some("shop--1".to_owned());
    assert_eq!((of("shop--1", 199), of("shop--1", 200)), (shop.clone(), None));
    assert_eq!((of("shop--2", 200), of("shop--3", 200)), (shop, None));
    assert_eq!(number(&server.open::<FabricRole>(), "HLEN", &["bus:api_tokens"]).await, 2);
    let thief = ApiToken {
        name: "thief".into(),
        secrets: BTreeMap::from([("shop--2".to_owned(), None)]),
        ..ApiToken::default()
    };
    assert!(matches!(bus.create_api_token("shop--2", thief).await, Err(Error::TokenExists)));
    bus.delete_api_token("shop--1").await.unwrap();
    assert!(bus.subscriptions().await.unwrap().is_empty());
    assert!(matches!(bus.delete_api_token("shop--1").await, Err(Error::NoSuchToken)));
    assert_eq!(number(&server.open::<FabricRole>(), "HLEN", &["bus:api_tokens"]).await, 0);
}

#[tokio::test]
async fn pacemakers_side_by_side_see_each_others_subscriptions_immediately() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let recorder = Recorder::default();
    let one = Pacemaker::start(&redis, quick(), recorder.clone()).ready().await;
    let two = Pacemaker::start(&redis, quick(), recorder.clone()).ready().await;
    // A confirmed subscription misses no event, whichever pacemaker accepts it next.
    for n in 0..20 {
        let token = format!("s{n}");
        one.handle.subscribe(&token, wanted(&["orders"])).await.unwrap();
        two.handle.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
        eventually("the delivery", || async { equal(recorder.ids(&token).len(), 1) }).await;
        one.handle.unsubscribe(&token).await.unwrap();
    }
}

#[tokio::test]
async fn fifty_clients_share_calls_and_every_answer_is_their_own() {
    let server = Server::in_memory().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = pacemaker.handle.clone();
    bus.subscribe("s", wanted(&["orders"])).await.unwrap();
    bus.publish("shop", "orders", vec![event("https://a/first")]).await[0].unwrap();
    let redis = server.open::<FabricRole>();
    redis.command("CONFIG").arg("RESETSTAT").run().await.unwrap();
    let clients = (0..50).map(|client| {
        let bus = bus.clone();
        tokio::spawn(async move {
            let mut ids = Vec::new();
            for n in 0..40 {
                let url = format!("https://a/{client}/{n}");
                ids.push((url.clone(), bus.publish("shop", "orders", vec![event(&url)]).await[0].unwrap().0));
            }
            ids
        })
    });
    let mut answers = BTreeMap::new();
    for client in clients.collect::<Vec<_>>() {
        let ids = client.await.unwrap();
        assert!(ids.windows(2).all(|pair| pair[0].1 < pair[1].1));
        answers.extend(ids.into_iter().map(|(url, id)| (id, url)));
    }
    assert_eq!(answers.len(), 2000, "no id twice");
    eventually("all deliveries", || async { at_least(recorder.ids("s").len(), 2001) }).await;
    for one in recorder.taken() {
        for event in &one.batch.events {
            assert!(answers.get(&event.id.0).is_none_or(|url| *url == event.url), "{event:?}");
        }
    }
    assert_true(&redis, "fifty clients").await;
}

#[tokio::test]
async fn an_idle_bus_asks_redis_next_to_nothing() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let pacemaker = Pacemaker::start(&redis, Options::default(), Recorder::default()).ready().await;
    pacemaker.handle.subscribe("s", wanted(&["orders"])).await.unwrap();
    pacemaker.handle.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    eventually("nothing to do", || async {
        equal(number(&redis, "SCARD", &["bus:jobs:index:main"]).await, 0)
    })
    .await;
    let commands = || async {
        let text: String = redis.command("INFO").arg("stats").query().await.unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    let before = commands().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let spent = commands().await - before;
    assert!(spent < 60, "{spent} commands in three seconds of nothing");
}

#[tokio::test]
async fn a_shutdown_puts_deliveries_back_for_others() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let (first, second) = (Recorder::default(), Recorder::default());
    first.answers(|_, _| (Duration::from_secs(3600), Outcome::Delivered));
    let one = Pacemaker::start(&redis, quick(), first.clone()).ready().await;
    one.handle.subscribe("s", wanted(&["orders"])).await.unwrap();
    one.handle.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    eventually("the attempt", || async { equal(first.attempts().len(), 1) }).await;
    let handle = one.handle.clone();
    one.stop().await;
    assert_eq!(
        handle.publish("shop", "orders", vec![event("https://a/1")]).await,
        [Err(Refusal::Unavailable)]
    );
    assert_eq!(number(&redis, "SCARD", &["bus:jobs:pending:index:main"]).await, 0);
    let two = Pacemaker::start(&redis, quick(), second.clone()).ready().await;
    eventually("the other's delivery", || async { equal(second.ids("s").len(), 1) }).await;
    assert_eq!(second.taken()[0].batch.attempts, 0, "an abandoned attempt does not count");
    two.stop().await;
    assert_true(&redis, "the handover").await;
}

/// For the compiler: a handle goes anywhere.
#[test]
fn a_handle_can_be_shared() {
    fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<crate::Handle>();
    shared::<Arc<crate::Registry>>();
}
