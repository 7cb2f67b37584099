//! Defects of the original's published scripts, each as a test, and other defects that must not occur.

use super::support::*;
use signalbox_api::queues::NewQueue;
use signalbox_bus::{Error as BusError, Kind, NewEvent, Wanted as Subscription};
use signalbox_queues::{
    Cleared, Configured, DeadLetters, Definition, Error, Flaw, PullRequest, Settled, Stored,
};

/// The original called a function that was nowhere, so no message ever reached a queue.
#[tokio::test]
async fn a_message_reaches_every_queue_that_takes_it_and_no_other() {
    let server = Server::in_memory().await;
    let hands = Hands::bare(&server, 1).await;
    for (name, pattern) in [("all", ".*"), ("mail", ".*:email_event:.*"), ("five", "5:.*")] {
        hands.put(name, wanted(pattern)).await;
    }
    let message = |tenant: &str, kind: &str| signalbox_bus::NewMessage {
        tenant: tenant.into(),
        kind: kind.into(),
        name: "opened".into(),
        payload: None,
        idempotency_key: None,
        delay: None,
    };
    let messages = vec![message("5", "email_event"), message("55", "page")];
    let ids: Vec<u64> = hands
        .bus
        .handle
        .publish_messages("shop", messages)
        .await
        .into_iter()
        .map(|id| id.unwrap().0)
        .collect();
    assert_eq!(hands.waiting("all", "5").await, [ids[0]]);
    assert_eq!(hands.waiting("all", "55").await, [ids[1]]);
    assert_eq!(hands.waiting("mail", "5").await, [ids[0]]);
    assert_eq!(hands.waiting("five", "5").await, [ids[0]]);
    assert_eq!(hands.waiting("five", "55").await, [0; 0], "tenant 55 is not tenant 5");
    assert_eq!(hands.waiting("mail", "55").await, [0; 0]);
}

/// `not redis.call('sismember', …)` is never true, so no tenant ever came into the original's ring.
#[tokio::test]
async fn every_tenant_is_served() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    let names: Vec<String> = (0..20).map(|n| format!("tenant {n:02}")).collect();
    let messages: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), name.as_str())).collect();
    hands.push(&messages).await;
    assert_eq!(hands.labels(99).await, names);
}

#[tokio::test]
async fn pulling_from_an_empty_queue_is_an_empty_answer() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    assert!(hands.pull(10).await.is_empty());
    hands.push(&[("1", "a")]).await;
    assert_eq!(hands.pull(10).await.len(), 1);
    assert!(hands.pull(10).await.is_empty());
}

/// Around the text, anchors could be broken out of; unanchored, `5:page:x` matched tenant 55.
#[tokio::test]
async fn a_pattern_matches_the_whole_name_whatever_it_holds() {
    let server = Server::in_memory().await;
    let hands = Hands::bare(&server, 1).await;
    hands.put("one", wanted("5:type:name")).await;
    hands.put("either", wanted("5:type:name|6:type:name")).await;
    hands.push(&[("55", "x"), ("6", "y"), ("66", "z")]).await;
    assert_eq!(hands.waiting("one", "55").await, [0; 0]);
    assert_eq!(hands.waiting("either", "6").await.len(), 1);
    assert_eq!(hands.waiting("either", "66").await, [0; 0]);
    assert!(matches!(Definition::new("q", wanted("a|b)|(?:c"), None), Err(Flaw::Pattern(_))));
}

/// One bad pattern made every tenant's publish fail half-way; a nested star stopped Redis for minutes.
#[tokio::test]
async fn a_bad_pattern_is_refused_and_a_slow_one_is_not_slow() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    for bad in ["(", "a{1000}{1000}", "[", &"x".repeat(10 << 10)] {
        let error = Definition::new("bad", wanted(bad), None).unwrap_err();
        assert!(matches!(error, Flaw::Pattern(_)), "{bad}");
    }
    hands.put("slow", wanted("((.*)*)*x")).await;
    let long = "a".repeat(1_000);
    assert_eq!(hands.push(&[(&*long, "m")]).await.len(), 1);
    assert_eq!(hands.waiting("slow", &long).await, [0; 0]);
    assert_eq!(hands.waiting(Q, &long).await.len(), 1);
}

/// They are returned in several calls of a script.
#[tokio::test]
async fn many_messages_of_a_tenant_return_in_their_order() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    let labels: Vec<String> = (0..250).map(|n| n.to_string()).collect();
    let messages: Vec<(&str, &str)> = labels.iter().map(|label| ("1", &**label)).collect();
    hands.push(&messages).await;
    let pull_all = async || {
        let mut pulled = Vec::new();
        while pulled.len() < labels.len() {
            pulled.extend(hands.pull(labels.len()).await);
        }
        let order: Vec<String> = pulled.iter().map(|(_, taken)| label(taken)).collect();
        assert_eq!(order, labels);
        pulled
    };
    let pulled = pull_all().await;
    hands.nack(0, &pulled.iter().map(|(receipt, _)| receipt).collect::<Vec<_>>()).await;
    let pulled = pull_all().await;
    hands.time.advance(30_000);
    hands.sweep().await;
    hands.assert_true(Q, "leases that ended").await;
    drop(pulled);
    let pulled = pull_all().await;
    hands.nack(1_000, &pulled.iter().map(|(receipt, _)| receipt).collect::<Vec<_>>()).await;
    hands.time.advance(1_000);
    hands.sweep().await;
    pull_all().await;
}

/// More than one part of a call.
#[tokio::test]
async fn dead_letters_of_one_call_are_in_the_order_of_their_messages() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.put(Q, NewQueue { max_attempts: Some(1), ..wanted(".*") }).await;
    let labels: Vec<String> = (0..250).map(|n| n.to_string()).collect();
    let messages: Vec<(&str, &str)> = labels.iter().map(|label| ("1", &**label)).collect();
    for is_rejected in [true, false] {
        hands.push(&messages).await;
        let mut pulled = Vec::new();
        while pulled.len() < labels.len() {
            pulled.extend(hands.pull(labels.len()).await);
        }
        let receipts: Vec<String> = pulled.iter().map(|(receipt, _)| receipt.to_string()).collect();
        let receipts: Vec<&str> = receipts.iter().map(String::as_str).collect();
        let settled = if is_rejected {
            hands.queues.reject(Q, &receipts).await
        } else {
            hands.queues.nack(Q, Some(0), &receipts).await
        };
        assert_eq!(settled.unwrap(), vec![Settled::Dead; labels.len()]);
        let dead = hands.queues.dead(Q, "", labels.len()).await.unwrap().items;
        let order: Vec<u64> = dead.iter().map(|one| one.message.id).collect();
        let ids: Vec<u64> = pulled.iter().map(|(receipt, _)| receipt.id).collect();
        assert_eq!(order, ids, "rejected: {is_rejected}");
        assert_eq!(hands.drop_dead().await, labels.len() as u64);
    }
}

/// A crash after the pull lost the message.
#[tokio::test]
async fn a_message_whose_consumer_died_is_redelivered_after_its_lease() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.push(&[("1", "a"), ("1", "b")]).await;
    let dead = hands.pull(1).await;
    hands.time.advance(29_999);
    hands.sweep().await;
    assert_eq!(hands.labels(9).await, ["b"], "held as long as its lease");
    hands.time.advance(1);
    hands.sweep().await;
    hands.assert_true(Q, "a lease that ended").await;
    let again = hands.pull(9).await;
    assert_eq!((label(&again[0].1), again[0].1.attempt), ("a".to_owned(), 2));
    // The dead come late, and commit nothing.
    assert_eq!(hands.ack(&[&dead[0].0]).await, [Settled::Expired]);
    assert_eq!(hands.ack(&[&again[0].0]).await, [Settled::Acked]);
    hands.assert_true(Q, "the end").await;
}

#[tokio::test]
async fn tenants_called_like_our_own_keys_are_tenants() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    let names = ["tenants", "ring", "count", "leases", "held", "due", "q", "tenant", "*", " ", "é"];
    let messages: Vec<(&str, &str)> = names.iter().map(|name| (*name, *name)).collect();
    hands.push(&messages).await;
    hands.assert_true(Q, "names").await;
    assert_eq!(hands.labels(99).await, names);
    assert_eq!(hands.queues.drop_tenant(Q, "tenants").await.unwrap(), 1);
    hands.assert_true(Q, "a tenant dropped").await;
}

#[tokio::test]
async fn receipts_settle_once_and_in_their_own_queue_only() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.put("other", wanted(".*")).await;
    hands.push(&[("1", "a"), ("1", "b")]).await;
    let mine = hands.pull(2).await;
    let other = hands.handed("other", pull(1)).await.messages;
    assert_eq!(mine[0].1.id, other[0].1.id, "the same message in two queues");
    let forged = signalbox_queues::Receipt { nonce: "AAAAAAAAAAAAAAAA".into(), ..mine[0].0.clone() };
    let elsewhere = signalbox_queues::Receipt { shard: 7, ..mine[0].0.clone() };
    let texts: Vec<String> =
        [&mine[0].0, &mine[0].0, &other[0].0, &forged, &elsewhere].iter().map(ToString::to_string).collect();
    let mut texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    texts.push("nonsense");
    let settled = hands.queues.ack(Q, &texts).await.unwrap();
    use Settled::{Acked, Malformed, OtherQueue, Used};
    assert_eq!(settled, [Acked, Used, OtherQueue, Used, Malformed, Malformed]);
    assert_eq!(hands.nack(0, &[&mine[0].0]).await, [Used]);
    hands.assert_true(Q, "receipts").await;
    hands.assert_true("other", "receipts").await;
    assert_eq!(hands.in_flight("other").await.len(), 1, "nothing was lost elsewhere");
}

#[tokio::test]
async fn a_longer_lease_is_kept_and_a_shorter_one_ends_sooner() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.push(&[("1", "a"), ("2", "b")]).await;
    let pulled = hands.pull(2).await;
    let (a, b) = (pulled[0].0.to_string(), pulled[1].0.to_string());
    let now = pulled[0].0.until_ms - 30_000;
    assert_eq!(hands.queues.extend(Q, 60_000, &[&a]).await.unwrap(), [Settled::Extended(now + 60_000)]);
    assert_eq!(
        hands.queues.extend(Q, 1_000, &[&b, "x"]).await.unwrap(),
        [Settled::Extended(now + 1_000), Settled::Malformed]
    );
    hands.assert_true(Q, "extended").await;
    hands.time.advance(1_000);
    hands.sweep().await;
    assert_eq!(hands.labels(9).await, ["b"]);
    hands.time.advance(58_999);
    hands.sweep().await;
    assert_eq!(hands.ack(&[&pulled[0].0]).await, [Settled::Acked]);
}

#[tokio::test]
async fn a_message_that_is_handed_out_too_often_is_a_dead_letter_with_its_body() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.put(Q, NewQueue { max_attempts: Some(2), ..wanted(".*") }).await;
    hands.push(&[("1", "a"), ("1", "b"), ("2", "c")]).await;
    for _ in 0..2 {
        let pulled = hands.pull(9).await;
        assert_eq!(pulled.len(), 3);
        let back: Vec<_> =
            pulled.iter().filter(|(_, taken)| label(taken) == "a").map(|(one, _)| one).collect();
        hands.nack(0, &back).await;
        hands.time.advance(30_000);
        hands.sweep().await;
        hands.assert_true(Q, "an attempt").await;
    }
    assert!(hands.pull(9).await.is_empty());
    let dead = hands.queues.dead(Q, "", 10).await.unwrap();
    let reason =
        |one: &Stored| (one.message.tenant.clone(), one.reason.clone().unwrap(), one.message.attempt);
    let reasons: Vec<_> = dead.items.iter().map(reason).collect();
    let expected = [("1", "nacked", 2), ("1", "expired", 2), ("2", "expired", 2)];
    assert_eq!(
        reasons,
        expected.map(|(name, reason, attempt)| (name.to_owned(), reason.to_owned(), attempt))
    );
    let page = hands.queues.dead(Q, "", 2).await.unwrap();
    assert_eq!(page.items.len(), 2);
    assert_eq!(hands.queues.dead(Q, &page.next.unwrap(), 2).await.unwrap().items, dead.items[2..]);
    let log: u64 = hands.redis.command("HLEN").arg("queue:|held").query().await.unwrap();
    assert_eq!(log, 0, "dead letters need no log");

    // Put back, they are like new, also when their part of the log is gone.
    let segments: Vec<String> = hands.redis.command("KEYS").arg("bus:log:*").query().await.unwrap();
    hands.redis.command("DEL").arg(segments).run().await.unwrap();
    hands.time.advance(3_600_000);
    let definition = hands.bus.handle.queues(|queues| queues.get(Q).unwrap().definition.clone());
    let stale = hands.queues.take_dead(Q, "0.old", &definition, DeadLetters::default()).await;
    assert!(matches!(stale, Err(Error::Stale)), "{stale:?}");
    let stamp = hands.bus.handle.stamp();
    assert_eq!(hands.queues.take_dead(Q, &stamp, &definition, DeadLetters::default()).await.unwrap(), 3);
    hands.assert_true(Q, "a redrive").await;
    let again = hands.pull(9).await;
    let labels: Vec<(String, u32)> = again.iter().map(|(_, taken)| (label(taken), taken.attempt)).collect();
    assert_eq!(labels, [("a".into(), 1), ("c".into(), 1), ("b".into(), 1)]);
    let receipts: Vec<_> = again.iter().map(|(receipt, _)| receipt).collect();
    hands.ack(&receipts).await;
    hands.assert_true(Q, "the end").await;
}

#[tokio::test]
async fn auto_ack_forgets_immediately() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.put(Q, NewQueue { in_flight_limit: Some(1), ..wanted(".*") }).await;
    hands.push(&[("1", "a"), ("1", "b"), ("1", "c")]).await;
    let handed = hands.handed(Q, PullRequest { auto_ack: true, ..pull(2) }).await;
    assert_eq!(handed.messages.len(), 2, "nothing is in flight, so no limit is met");
    assert_eq!(hands.ack(&[&handed.messages[0].0]).await, [Settled::Used]);
    hands.assert_true(Q, "auto-ack").await;
    hands.handed(Q, PullRequest { auto_ack: true, ..pull(2) }).await;
    hands.assert_true(Q, "auto-ack").await;
    let tenants: Vec<String> = hands.redis.command("KEYS").arg("queue:q*").query().await.unwrap();
    assert_eq!(tenants.len(), 2, "settings and counts: {tenants:?}");
}

#[tokio::test]
async fn purged_and_dropped_messages_are_gone_and_those_in_flight_only_with_their_tenant() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.push(&[("1", "a"), ("1", "b"), ("1", "c"), ("2", "x"), ("2", "y"), ("3", "z")]).await;
    let pulled = hands.pull(3).await;
    hands.nack(1_000, &[&pulled[2].0]).await;
    assert_eq!(hands.queues.purge(Q, Some("1")).await.unwrap(), 2);
    hands.assert_true(Q, "a purge").await;
    assert_eq!(hands.queues.drop_tenant(Q, "1").await.unwrap(), 1);
    hands.assert_true(Q, "a drop").await;
    assert_eq!(hands.ack(&[&pulled[0].0, &pulled[1].0]).await, [Settled::Used, Settled::Acked]);
    assert_eq!(hands.queues.purge(Q, None).await.unwrap(), 2, "one waits, one is delayed");
    hands.assert_true(Q, "all").await;
    let numbers = hands.queues.numbers(&[Q]).await.unwrap()[0];
    assert_eq!((numbers.waiting, numbers.in_flight, numbers.delayed, numbers.dropped), (0, 0, 0, 5));
    assert_eq!(numbers.tenants, 0);
}

#[tokio::test]
async fn messages_that_are_too_old_are_dropped_from_the_head_in_parts() {
    let server = Server::in_memory().await;
    let hands = Hands::with(&server, 1, 3_600_000).await;
    hands.put(Q, wanted(".*")).await;
    hands.push(&[("1", "a"), ("1", "b"), ("2", "c")]).await;
    hands.time.advance(5_000);
    hands.push(&[("1", "d"), ("3", "e")]).await;
    hands.put(Q, NewQueue { retention_seconds: Some(4), ..wanted(".*") }).await;
    let store = &hands.queues.stores()[0];
    let (mut dropped, mut cursor, mut parts) = (0, String::new(), 0);
    loop {
        let (part, next) = store.drop_expired(Q, &cursor, 1).await.unwrap();
        hands.assert_true(Q, "a part").await;
        dropped += part;
        parts += 1;
        assert!(parts < 20, "it ends");
        if next.is_empty() {
            break;
        }
        cursor = next;
    }
    assert_eq!(dropped, 3);
    assert_eq!(hands.labels(9).await, ["d", "e"]);
}

#[tokio::test]
async fn a_deleted_queue_leaves_nothing_and_its_name_can_be_used_again() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.put("other", wanted("9:.*")).await;
    let messages: Vec<(String, String)> = (0..300).map(|n| (format!("{}", n % 70), n.to_string())).collect();
    let messages: Vec<(&str, &str)> =
        messages.iter().map(|(env, label)| (env.as_str(), label.as_str())).collect();
    hands.push(&messages).await;
    let pulled = hands.pull(50).await;
    hands.nack(1_000, &[&pulled[0].0, &pulled[1].0]).await;
    let revision = hands.revision(Q);
    hands.bus.handle.delete_queue(Q).await.unwrap();
    let left: Vec<String> = hands.redis.command("KEYS").arg("queue:q[:|]*").query().await.unwrap();
    assert_eq!(left, [""; 0]);
    hands.assert_true("other", "others stay").await;
    assert!(matches!(hands.bus.handle.delete_queue(Q).await, Err(BusError::NoSuchQueue)));
    // A pacemaker that does not know of it yet.
    let gone = pull_from(&hands.queues, &[source(Q, revision)], pull(1)).await;
    assert!(matches!(gone, Err(Error::NoSuchQueue)), "{gone:?}");
    assert_eq!(hands.ack(&[&pulled[3].0]).await, [Settled::Used]);
    hands.put(Q, wanted(".*")).await;
    hands.push(&[("1", "new")]).await;
    assert_eq!(hands.labels(9).await, ["new"]);
}

#[tokio::test]
async fn a_shard_without_the_definition_reports_it() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    let behind = pull_from(&hands.queues, &[source(Q, hands.revision(Q) + 1)], pull(1)).await;
    assert!(matches!(behind, Err(Error::Behind)), "{behind:?}");
    // Settings older than the stored ones change nothing.
    let definition = Definition::new(Q, NewQueue { in_flight_limit: Some(1), ..wanted(".*") }, None).unwrap();
    let store = &hands.queues.stores()[0];
    let stamp = hands.bus.handle.stamp();
    assert_eq!(store.configure(Q, &stamp, &definition, &[]).await.unwrap(), Configured::Stale);
    assert_eq!(hands.field("queue:q|settings", "in_flight_limit").await, Some(0));
    // Housekeeping completes an interrupted change: here weights that never arrived.
    hands.push(&[("1", "a")]).await;
    hands.put(Q, weights(&[("1", 0)])).await;
    let redis = &hands.redis;
    redis.command("HSET").arg(("queue:q|facet:1", "weight", "1")).run().await.unwrap();
    redis.command("ZADD").arg(("queue:q|ring", "1", "1")).run().await.unwrap();
    redis.command("HDEL").arg(("queue:q|settings", "settled")).run().await.unwrap();
    eventually("the weight to arrive", || async {
        if hands.ring(Q).await.is_empty() { Ok(()) } else { Err("not yet") }
    })
    .await;
    hands.assert_true(Q, "an interrupted change").await;
    // Nor do those of a queue that may have been deleted since.
    let stamp = hands.bus.handle.stamp();
    hands.put("other", wanted(".*")).await;
    let newest = Definition { revision: 99, ..definition };
    assert_eq!(store.configure(Q, &stamp, &newest, &[]).await.unwrap(), Configured::Stale);
    assert_eq!(hands.field("queue:q|settings", "in_flight_limit").await, Some(0));
}

/// A pacemaker was killed between two parts of a change that the next change reverts.
#[tokio::test]
async fn a_change_after_one_that_was_interrupted_leaves_no_tenant_with_its_settings() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.push(&[("1", "a")]).await;
    hands.put(Q, weights(&[("1", 3)])).await;
    let interrupted = hands.revision(Q) + 1;
    hands.redis.command("HSET").arg(("queue:q|settings", "revision", interrupted)).run().await.unwrap();
    hands.redis.command("HSET").arg(("queue:q|facet:1", "weight", "0")).run().await.unwrap();
    hands.redis.command("DEL").arg("queue:q|ring").run().await.unwrap();
    hands.put("other", wanted("nothing")).await;
    hands.put(Q, weights(&[("1", 3), ("2", 5)])).await;
    assert_eq!(hands.field("queue:q|facet:1", "weight").await, Some(3));
    assert_eq!(hands.labels(9).await, ["a"]);
}

/// A pacemaker was paused between reading that the queue is deleted and removing its messages.
#[tokio::test]
async fn a_late_removal_does_not_touch_a_queue_that_was_created_again() {
    let server = Server::in_memory().await;
    let hands = Hands::with(&server, 1, 3_600_000).await;
    hands.put(Q, wanted(".*")).await;
    let stamp = hands.bus.handle.stamp();
    hands.bus.handle.delete_queue(Q).await.unwrap();
    hands.put(Q, wanted(".*")).await;
    hands.push(&[("1", "a"), ("1", "b")]).await;
    assert_eq!(hands.queues.stores()[0].clear(Q, &stamp).await.unwrap(), Cleared::Stale);
    hands.assert_true(Q, "a late removal").await;
    assert_eq!(hands.labels(9).await, ["a", "b"]);
}

/// The fabric had committed the queue, but the shard did not have its settings yet.
#[tokio::test]
async fn a_sweep_before_the_settings_arrive_does_not_delay_a_message() {
    let server = Server::in_memory().await;
    let hands = Hands::with(&server, 1, 3_600_000).await;
    hands.put(Q, wanted(".*")).await;
    hands.try_push(&[("1", "late")], Some(signalbox_bus::Delay::After(1_000))).await;
    hands.redis.command("DEL").arg("queue:q|settings").run().await.unwrap();
    hands.time.advance(1_000);
    hands.sweep().await;
    assert!(hands.bus.handle.configure_queue(Q).await.unwrap());
    hands.assert_true(Q, "the settings have arrived").await;
    hands.sweep().await;
    assert_eq!(hands.labels(9).await, ["late"]);
}

#[tokio::test]
async fn a_damaged_queue_stops_neither_the_sweeps_nor_the_retention_of_others() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.put(Q, NewQueue { retention_seconds: Some(60), ..wanted("1:.*") }).await;
    hands.put("damaged", wanted("2:.*")).await;
    for (command, arguments) in
        [("DEL", vec!["queue:damaged|settings"]), ("SET", vec!["queue:damaged|settings", "x"])]
    {
        hands.redis.command(command).arg(arguments).run().await.unwrap();
    }
    hands.redis.command("ZADD").arg(("queue:|due", 1, "damaged")).run().await.unwrap();
    hands.push(&[("1", "old")]).await;
    hands.time.advance(61_000);
    eventually("the retention of the other queue", || async {
        equal(hands.queues.numbers(&[Q]).await.unwrap()[0].dropped, 1)
    })
    .await;
    hands.try_push(&[("1", "late")], Some(signalbox_bus::Delay::After(1_000))).await;
    hands.time.advance(1_000);
    let shutdown = tokio_util::sync::CancellationToken::new();
    let sweeper = tokio::spawn(hands.queues.clone().run(shutdown.clone()));
    eventually("a sweep of the other queue", || async {
        equal(hands.queues.numbers(&[Q]).await.unwrap()[0].waiting, 1)
    })
    .await;
    shutdown.cancel();
    sweeper.await.unwrap();
}

#[tokio::test]
async fn positions_that_no_page_returned_are_rejected() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    for after in ["zzz", "99:0", "0:abc", "0:18446744073709551615", "0:9223372036854775807", ":", "-1:0"] {
        let dead = hands.queues.dead(Q, after, 9).await;
        assert!(matches!(dead, Err(Error::InvalidCursor)), "{after}: {dead:?}");
    }
    for after in ["zzz", "99:1:x", "0:abc:x", "0:1", "0::x", "0:1:", "0:99999999999999999999:x", "0:-1:x"] {
        for place in
            [signalbox_api::queues::MessageState::InFlight, signalbox_api::queues::MessageState::Delayed]
        {
            let listed = hands.queues.list(Q, place, None, after, 9).await;
            assert!(matches!(listed, Err(Error::InvalidCursor)), "{after}: {listed:?}");
        }
    }
}

/// Events of the bus are messages, in the same step as their batches.
#[tokio::test]
async fn an_event_is_in_batches_and_queues_at_the_same_time() {
    let server = Server::in_memory().await;
    let hands = Hands::bare(&server, 1).await;
    hands.put(Q, wanted("shop:update:orders")).await;
    let subscription = Subscription {
        topics: ["orders".to_owned()].into(),
        callback: "https://receiver.example/".into(),
        ..Subscription::default()
    };
    hands.bus.handle.subscribe("billing", subscription).await.unwrap();
    let event = |kind| NewEvent {
        kind,
        url: "https://shop.example/1".into(),
        timestamp_ms: None,
        data: None,
        tenant: None,
        object: None,
        idempotency_key: None,
    };
    let events = vec![event(Kind::Update), event(Kind::Delete)];
    let ids: Vec<u64> = hands
        .bus
        .handle
        .publish("shop", "orders", events)
        .await
        .into_iter()
        .map(|id| id.unwrap().0)
        .collect();
    assert_eq!(hands.waiting(Q, "shop").await, ids[..1]);
    let queued: i64 = hands.field("bus:batches:gauges:event", "billing").await.unwrap();
    assert_eq!(queued, 2);
}

/// Messages are for queues, whatever objects are called that go to a backend.
#[tokio::test]
async fn a_message_goes_to_no_backend() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    let backend = signalbox_bus::WantedBackend {
        prefix: "5:".into(),
        callback: "https://backend.example/".into(),
        uuid: String::new(),
        secret: None,
        on_failure: signalbox_bus::OnFailure::default(),
        max_attempts: 5,
        workers: 1,
    };
    hands.bus.handle.put_backend("b", backend, "whsec_c2VjcmV0c2VjcmV0c2VjcmV0").await.unwrap();
    hands.push(&[("5", "a"), ("5", "b")]).await;
    assert_eq!(hands.labels(9).await, ["a", "b"]);
}

/// A key of another program in the way: the publish is refused as a whole.
#[tokio::test]
async fn an_unexpected_key_type_leaves_no_partial_change() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.redis.command("SET").arg(("queue:q:2", "mine")).run().await.unwrap();
    let message = |tenant: &str| signalbox_bus::NewMessage {
        tenant: tenant.into(),
        kind: "t".into(),
        name: "n".into(),
        payload: None,
        idempotency_key: None,
        delay: None,
    };
    let results = hands.bus.handle.publish_messages("shop", vec![message("1"), message("2")]).await;
    assert!(results.iter().all(Result::is_err), "{results:?}");
    hands.redis.command("DEL").arg("queue:q:2").run().await.unwrap();
    hands.assert_true(Q, "a refused publish").await;
    assert_eq!(hands.waiting(Q, "1").await, [0; 0]);
}

#[tokio::test]
async fn a_full_server_still_lets_consumers_drain_it() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.push(&[("1", "a"), ("1", "b"), ("2", "c"), ("2", "d")]).await;
    let first = hands.pull(1).await;
    let full = |limit: &'static str| {
        let redis = hands.redis.clone();
        async move { redis.command("CONFIG").arg(("SET", "maxmemory", limit)).run().await.unwrap() }
    };
    full("1").await;
    let pulled = hands.pull(9).await;
    assert_eq!(pulled.len(), 3);
    assert_eq!(hands.ack(&[&first[0].0, &pulled[0].0]).await, [Settled::Acked; 2]);
    assert_eq!(hands.nack(100, &[&pulled[1].0]).await, [Settled::Delayed]);
    hands.time.advance(60_000);
    hands.sweep().await;
    assert_eq!(hands.queues.purge(Q, None).await.unwrap(), 2);
    full("0").await;
    hands.assert_true(Q, "drained").await;
}

#[tokio::test]
async fn the_log_keeps_what_a_queue_needs() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.put(Q, NewQueue { retention_seconds: Some(30 * 24 * 3600), ..wanted(".*") }).await;
    hands.push(&[("1", "a")]).await;
    hands.time.advance(20_000);
    hands.push(&[("2", "b")]).await;
    let pulled = hands.pull(2).await;
    hands.ack(&[&pulled[1].0]).await;
    // A week later the bus forgets what only replay could want.
    hands.time.advance(7 * 24 * 3_600_000);
    eventually("the log to be trimmed", || async {
        let segments: u64 = hands.redis.command("HLEN").arg("bus:log").query().await.unwrap();
        equal(segments, 1)
    })
    .await;
    hands.sweep().await;
    assert_eq!(hands.labels(9).await, ["a"]);
}

/// Damage done on purpose is found and named, and nothing else.
#[tokio::test]
async fn a_check_names_each_violation() {
    let server = Server::in_memory().await;
    let hands = Hands::with(&server, 1, 3_600_000).await;
    hands.put(Q, wanted(".*")).await;
    let names = [Q.to_owned()];
    let check = async || -> Vec<(String, String)> {
        let found = hands.queues.check(&names).await.unwrap();
        found.into_iter().map(|one| (one.predicate, one.name)).collect()
    };
    hands.push(&[("1", "a"), ("1", "b"), ("2", "c"), ("3", "d")]).await;
    let pulled = hands.pull(3).await;
    hands.nack(1_000, &[&pulled[1].0]).await;
    assert_eq!(check().await, []);
    let of = |predicate: &str, name: &str| (predicate.to_owned(), name.to_owned());
    let sadly = async |command: &'static str, arguments: &[&str]| {
        hands.redis.command(command).arg(arguments).run().await.unwrap();
    };
    sadly("ZREM", &["queue:q|ring", "1"]).await;
    assert_eq!(check().await, [of("F2", "q:1"),]);
    sadly("ZADD", &["queue:q|ring", "1", "1", "9", "ghost"]).await;
    assert_eq!(check().await, [of("F2", "q")]);
    sadly("ZREM", &["queue:q|ring", "ghost"]).await;
    sadly("HINCRBY", &["queue:q|count", "waiting", "1"]).await;
    assert_eq!(check().await, [of("F5", "q")]);
    sadly("HINCRBY", &["queue:q|count", "waiting", "-1"]).await;
    sadly("HSET", &["queue:q|facet:1", "flying", "7"]).await;
    assert_eq!(check().await, [of("F5", "q:1")]);
    sadly("HSET", &["queue:q|facet:1", "flying", "1"]).await;
    sadly("ZADD", &["queue:q|facets", "0", "nobody"]).await;
    assert_eq!(check().await, [of("F1", "q:nobody")]);
    sadly("ZREM", &["queue:q|facets", "nobody"]).await;
    sadly("DEL", &["queue:|due"]).await;
    assert_eq!(check().await, [of("F7", "q")]);
}

#[tokio::test]
async fn a_page_of_large_dead_letters_is_short_and_none_is_left_out() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.put(Q, NewQueue { max_attempts: Some(1), ..wanted(".*") }).await;
    let label = "x".repeat(60_000);
    let ids = hands.push(&[("1", &*label); 100]).await;
    loop {
        let pulled = hands.pull(100).await;
        if pulled.is_empty() {
            break;
        }
        hands.nack(0, &pulled.iter().map(|(receipt, _)| receipt).collect::<Vec<_>>()).await;
    }
    let first = hands.queues.dead(Q, "", 1_000).await.unwrap();
    assert!(first.items.len() < 90, "{} letters of 60 kB in one page", first.items.len());
    let rest = hands.queues.dead(Q, &first.next.unwrap(), 1_000).await.unwrap();
    let found: Vec<u64> = first.items.iter().chain(&rest.items).map(|one| one.message.id).collect();
    assert_eq!((found, rest.next), (ids, None));
    assert_eq!(hands.drop_dead().await, 100);
}
