//! Receivers that hang, fail, recover, or are gone, and what an operator does about them.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{delivered, failed, running, support::*, truth::*};
use crate::{
    Alteration, ApiToken, Error, EventId, NewEvent, OnFailure, Options, Registry, Wanted, WantedBackend,
};
use signalbox_api::events::DeliveryResult;
use signalbox_egress::{Outcome, Secret};
use signalbox_store::FabricRole;
use signalbox_testkit::{Server, equal, eventually};

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

/// What a process has stored that dies before it wakes the lanes: paused, resumed, a new key, another receiver, other lanes.
#[tokio::test]
async fn a_changed_subscription_is_tried_again_soon_even_if_the_process_that_changed_it_dies() {
    type Change = fn(&mut Registry, u64) -> Result<(), Error>;
    let resumed: Change =
        |registry, _| registry.alter("s", Alteration { paused: Some(false), ..Alteration::default() });
    let new_key: Change =
        |registry, _| registry.set_secrets("s", &[Secret { secret: "whsec_new".into(), until_ms: None }]);
    let replaced: Change = |registry, _| {
        let callback = Some("https://other.example/".into());
        registry.alter("s", Alteration { callback, ..Alteration::default() })
    };
    let other_lanes: Change = |registry, version| {
        let lanes = Wanted { concurrency: Some(2), ..wanted(&["orders"]) };
        registry.subscribe("s", lanes, version, &Options::default())
    };
    let server = Server::cluster().await;
    let redis = server.open::<FabricRole>();
    let recorder = Recorder::default();
    let pacemaker = Pacemaker::start_on(&redis, 2, quick(), None, recorder.clone()).ready().await;
    let bus = &pacemaker.handle;
    bus.subscribe("s", Wanted { concurrency: Some(1), ..wanted(&["orders"]) }).await.unwrap();
    let scheduled = async || {
        let mut all = 0;
        for shard in 0..2 {
            all += number(&redis, "ZCARD", &[&format!("{{s{shard}}}bus:jobs:scheduled:main")]).await;
        }
        all
    };
    for (round, change) in [resumed, new_key, replaced, other_lanes].into_iter().enumerate() {
        recorder.answers(|_, _| gone_for_long());
        let paused = Some(round == 0);
        bus.alter("s", Alteration { paused, ..Alteration::default() }).await.unwrap();
        let events = (0..20).map(|n| event(&format!("https://a/{n}"))).collect();
        assert!(bus.publish("shop", "orders", events).await.iter().all(Result::is_ok));
        eventually("every lane to pause", || async { equal(scheduled().await, 2) }).await;
        let attempts = recorder.attempts().len();
        eventually("the pauses to be long", || async {
            equal((scheduled().await, recorder.attempts().len()), (2, attempts))
        })
        .await;
        recorder.answers(|_, _| delivered());
        bus.core.change(change).await.unwrap();
        eventually("the deliveries", || async { equal(recorder.ids("s").len(), 20 * (round + 1)) }).await;
        eventually("no work to be left", || async { equal(scheduled().await, 0) }).await;
    }
    for shard in 0..2 {
        let changed = format!("{{s{shard}}}bus:changed");
        eventually("no note to be left", || async { equal(number(&redis, "EXISTS", &[&changed]).await, 0) })
            .await;
    }
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
async fn pages_of_dead_letters_leave_out_none_if_others_are_removed_in_the_meantime() {
    let server = Server::in_memory().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    recorder.answers(|_, _| failed());
    bus.subscribe("s", Wanted { max_events: Some(1), ..wanted(&["orders"]) }).await.unwrap();
    bus.alter("s", Alteration { max_attempts: Some(Some(1)), ..Alteration::default() }).await.unwrap();
    for _ in 0..6 {
        bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    }
    eventually("the dead letters", || async {
        equal(bus.dead_letters("s", None, 10).await.unwrap().items.len(), 6)
    })
    .await;
    let ids = |page: &crate::Page<crate::DeadLetter>| {
        page.items.iter().map(|letter| letter.event.id).collect::<Vec<_>>()
    };
    let all = ids(&bus.dead_letters("s", None, 10).await.unwrap());
    let page = bus.dead_letters("s", None, 3).await.unwrap();
    // The oldest ones beyond a limit are removed.
    let redis = server.open::<FabricRole>();
    redis.command("LTRIM").arg(&["bus:dead:s", "2", "-1"][..]).run().await.unwrap();
    let rest = bus.dead_letters("s", page.cursor.as_deref(), 10).await.unwrap();
    assert_eq!((ids(&rest), rest.cursor), (all[3..].to_vec(), None));
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
    let health = bus.subscriptions().await.unwrap().iter().map(|one| one.numbers.health).min();
    assert_eq!(health, Some(100));
    failing.store(1, Ordering::SeqCst);
    publish(6).await;
    eventually("another announcement", || async { equal(recorder.ids("watcher").len(), 2) }).await;
    let taken = recorder.taken();
    let mut event = taken.iter().filter(|one| one.token == "watcher").flat_map(|one| &one.batch.events);
    let event = event.next().unwrap();
    assert_eq!((&*event.object, &*event.url), ("signalbox:subscriber:sally", "/subscriptions"));
    let data = event.data.as_ref().unwrap().get();
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
    let gaps: Vec<_> = recorder.taken().iter().flat_map(|one| one.batch.gaps.clone()).collect();
    assert_eq!(gaps.len(), 1);
    assert_eq!(
        (gaps[0].first.0, gaps[0].last.0, gaps[0].count, &*gaps[0].reason),
        (ids[5], ids[5], 1, "dead")
    );
    let page = bus.dead_letters("s", None, 10).await.unwrap();
    assert_eq!(page.items.len(), 1);
    assert_eq!((page.items[0].event.id.0, &*page.items[0].reason, page.cursor), (ids[5], "500", None));
    assert_eq!(bus.subscriptions().await.unwrap()[0].numbers.dead, 1);

    recorder.answers(|_, _| delivered());
    assert_eq!(bus.redrive("s").await.unwrap(), 1);
    eventually("the redriven one", || async { equal(recorder.ids("s").len(), 8) }).await;
    let last = recorder.taken().pop().unwrap().batch;
    assert_eq!((last.events[0].id.0, &*last.events[0].url), (ids[5], "https://a/5"), "the same id");
    assert_eq!(last.redriven, [true]);
    assert!(recorder.taken()[0].batch.redriven.iter().all(|redriven| !redriven));
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

fn gone_for_long() -> (Duration, Outcome) {
    (Duration::ZERO, Outcome::Failed { why: "503".into(), retry_after: Some(Duration::from_secs(3600)) })
}

/// The calls of scripts so far.
async fn script_calls(redis: &signalbox_store::Fabric) -> u64 {
    let text: String = redis.command("INFO").arg("commandstats").query().await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap_or("0,");
    line.split(',').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn lanes_of_a_receiver_that_hangs_wait_without_polling() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let recorder = Recorder::default();
    let pacemaker = Pacemaker::start(&redis, Options::default(), recorder.clone()).ready().await;
    let bus = &pacemaker.handle;
    recorder.answers(|_, batch| match batch.events.iter().any(|event| event.url.ends_with("/first")) {
        true => gone_for_long(),
        false => (Duration::from_millis(1500), Outcome::Failed { why: "timeout".into(), retry_after: None }),
    });
    let wide = Wanted { concurrency: Some(64), ..wanted(&["orders"]) };
    bus.subscribe("s", wide).await.unwrap();
    bus.publish("shop", "orders", vec![event("https://a/first")]).await[0].unwrap();
    eventually("its failure", || async { equal(bus.subscriptions().await.unwrap()[0].numbers.failed, 1) })
        .await;
    let events = (0..300).map(|n| event(&format!("https://a/{n}"))).collect();
    bus.publish("shop", "orders", events).await;
    eventually("the lanes to wait", || async {
        at_least(number(&redis, "LLEN", &["bus:jobs:behind:s"]).await, 50)
    })
    .await;
    let attempts = recorder.attempts().len();
    let (calls, start) = (script_calls(&redis).await, tokio::time::Instant::now());
    eventually("two more attempts", || async { at_least(recorder.attempts().len(), attempts + 2) }).await;
    // Each attempt is taken, fails, and makes the next job ready. The rest is maintenance, a few calls each second.
    let calls = script_calls(&redis).await - calls;
    let seconds = start.elapsed().as_secs() + 1;
    assert!(calls < 30 + 10 * seconds, "{calls} calls of scripts in {seconds} s");
    assert_true(&redis, "the wait").await;
}

#[tokio::test]
async fn lanes_that_wait_for_a_failing_delivery_are_delivered_immediately_after_a_success() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    recorder.answers(|_, _| gone_for_long());
    bus.subscribe("s", Wanted { concurrency: Some(64), ..wanted(&["orders"]) }).await.unwrap();
    bus.publish("shop", "orders", vec![event("https://a/first")]).await[0].unwrap();
    eventually("its failure", || async { equal(bus.subscriptions().await.unwrap()[0].numbers.failed, 1) })
        .await;
    recorder.answers(|_, _| (Duration::from_millis(500), Outcome::Delivered));
    let events = (0..300).map(|n| event(&format!("https://a/{n}"))).collect();
    bus.publish("shop", "orders", events).await;
    eventually("everything but the first", || async { at_least(recorder.ids("s").len(), 295) }).await;
    assert_true(&redis, "the deliveries").await;
}

#[tokio::test]
async fn a_receiver_that_was_replaced_while_the_former_one_hung_gets_everything_immediately() {
    let server = Server::in_memory().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    for outcome in [Outcome::Gone, gone_for_long().1] {
        let token = if outcome == Outcome::Gone { "gone" } else { "failing" };
        let old = outcome.clone();
        recorder.answers(move |subscription, _| match &*subscription.callback {
            "https://receiver.example/" => (Duration::from_millis(700), old.clone()),
            _ => delivered(),
        });
        bus.subscribe(token, wanted(&["orders"])).await.unwrap();
        let before = recorder.attempts().len();
        bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
        eventually("the attempt", || async { at_least(recorder.attempts().len(), before + 1) }).await;
        let new = Alteration { callback: Some("https://new.example/".into()), ..Alteration::default() };
        bus.alter(token, new).await.unwrap();
        eventually("the delivery to the new one", || async { equal(recorder.ids(token).len(), 1) }).await;
        bus.unsubscribe(token).await.unwrap();
    }
}

#[tokio::test]
async fn jobs_that_wait_for_a_slow_delivery_are_overdue_and_are_taken_when_one_ends() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let recorder = Recorder::default();
    let options = Options { workers: 1, slow_deliveries: 1, ..quick() };
    let pacemaker = Pacemaker::start(&redis, options, recorder.clone()).ready().await;
    let bus = &pacemaker.handle;
    let ends = Arc::new(AtomicUsize::new(0));
    let ended = Arc::clone(&ends);
    recorder.answers(move |_, _| match ended.load(Ordering::SeqCst) {
        0 => (Duration::from_secs(2), Outcome::Delivered),
        _ => delivered(),
    });
    for n in 0..14 {
        bus.subscribe(&format!("s{n}"), wanted(&["orders"])).await.unwrap();
    }
    bus.publish("shop", "orders", vec![event("https://a/1")]).await[0].unwrap();
    eventually("the others to wait", || async { equal(bus.overdue_jobs().await.unwrap(), 13) }).await;
    eventually("their places in line", || async { equal(bus.numbers().await.unwrap().jobs.waiting, 13) })
        .await;
    ends.store(1, Ordering::SeqCst);
    eventually("all deliveries", || async { equal(recorder.taken().len(), 14) }).await;
    let mut waiting = 0;
    for n in 0..14 {
        let log = bus.deliveries(&format!("s{n}"), 10).await.unwrap();
        waiting += log.iter().filter(|one| one.result == DeliveryResult::Waiting).count();
    }
    assert!(waiting >= 13, "{waiting} waited");
    assert_true(&redis, "the wait").await;
}

#[tokio::test]
async fn a_late_410_does_not_disable_what_was_subscribed_again_in_the_meantime() {
    let server = Server::in_memory().await;
    let recorder = Recorder::default();
    let pacemaker = running(&server, &recorder).await;
    let bus = &pacemaker.handle;
    bus.subscribe("s", wanted(&["orders"])).await.unwrap();
    recorder.answers(|_, _| (Duration::from_secs(1), Outcome::Gone));
    bus.publish("shop", "orders", vec![event("https://a/1")]).await.remove(0).unwrap();
    eventually("the attempt", || async { equal(recorder.attempts().len(), 1) }).await;
    recorder.answers(|_, _| delivered());
    bus.subscribe("s", wanted(&["orders"])).await.unwrap();
    eventually("the next attempt", || async { equal(recorder.ids("s").len(), 1) }).await;
    assert_eq!(bus.subscriptions().await.unwrap()[0].subscription.disabled, None);
}

#[tokio::test]
async fn a_late_410_does_not_stop_a_backend_that_was_defined_again_in_the_meantime() {
    let server = Server::in_memory().await;
    let pacemaker = running(&server, &Recorder::default()).await;
    let bus = &pacemaker.handle;
    let wanted = WantedBackend {
        prefix: "work:".into(),
        callback: "https://a.example/".into(),
        uuid: "u".into(),
        secret: None,
        on_failure: OnFailure::Block,
        max_attempts: 3,
        workers: 4,
    };
    bus.put_backend("search", wanted.clone(), "whsec_").await.unwrap();
    let attempted = bus.registry().backends["search"].changed_in;
    bus.put_backend("search", wanted, "whsec_").await.unwrap();
    assert!(!bus.disable_backend("search", attempted).await.unwrap());
    let now = bus.registry().backends["search"].clone();
    assert_eq!(now.disabled, None);
    assert!(bus.disable_backend("search", now.changed_in).await.unwrap());
    assert!(bus.registry().backends["search"].disabled.is_some());
}
