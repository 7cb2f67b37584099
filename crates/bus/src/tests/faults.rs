//! The known faults of Routemaster below its HTTP interface, each with a test of its name; and the behavior of a running
//! bus when other components fail.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{delivered, failed, running, support::*, truth::*};
use crate::{Error, NewEvent, Options, Refusal, Wanted};
use signalbox_egress::Outcome;
use signalbox_store::FabricRole;
use signalbox_testkit::{Server, equal, eventually};

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
