//! Settings of single tenants, limits of waiting messages, and pulls from several queues.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*, test_runner::Config};

use super::support::*;
use signalbox_api::Time;
use signalbox_api::queues::{Gap, NewQueue, Overflow, TenantSettings};
use signalbox_queues::{PullRequest, Settled, Source};

#[tokio::test]
async fn a_new_definition_keeps_pauses_and_a_paused_tenant_delays_no_other() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.tenant(Q, "1", TenantSettings { paused: true, weight: Some(2), ..TenantSettings::default() }).await;
    hands.push(&[("1", "a"), ("1", "b"), ("2", "x"), ("1", "c")]).await;
    hands.assert_true(Q, "a pause").await;
    assert_eq!(hands.labels(9).await, ["x"]);
    hands.put(Q, NewQueue { weights: None, lease_seconds: Some(5.0), ..wanted(".*") }).await;
    assert_eq!(hands.labels(9).await, [""; 0], "the service that owns the queue has registered it again");
    hands.tenant(Q, "1", TenantSettings { weight: Some(2), ..TenantSettings::default() }).await;
    hands.push(&[("2", "y"), ("2", "z")]).await;
    assert_eq!(hands.labels(9).await, ["a", "b", "y", "c", "z"]);
}

#[tokio::test]
async fn a_tenant_has_its_own_limit_of_messages_in_flight() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.put(Q, NewQueue { in_flight_limit: Some(2), ..wanted(".*") }).await;
    hands.tenant(Q, "1", TenantSettings { in_flight_limit: Some(1), ..TenantSettings::default() }).await;
    hands.tenant(Q, "2", TenantSettings { in_flight_limit: Some(0), ..TenantSettings::default() }).await;
    let messages = ["1", "1", "1", "2", "2", "2", "3", "3", "3"].map(|tenant| (tenant, "x"));
    hands.push(&messages).await;
    let pulled = hands.pull(20).await;
    hands.assert_true(Q, "a pull").await;
    let mut counts = BTreeMap::new();
    for (_, taken) in &pulled {
        *counts.entry(taken.tenant.clone()).or_insert(0) += 1;
    }
    assert_eq!(counts, BTreeMap::from([("1".to_owned(), 1), ("2".to_owned(), 3), ("3".to_owned(), 2)]));
    let first = pulled.iter().find(|(_, taken)| taken.tenant == "1").unwrap();
    assert_eq!(hands.ack(&[&first.0]).await, [Settled::Acked]);
    assert_eq!(hands.pull(20).await.len(), 1);
}

#[tokio::test]
async fn a_tenant_with_a_rate_gets_no_more_also_if_its_tenant_was_gone() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    // Two per second.
    hands.tenant(Q, "1", TenantSettings { rate_per_second: Some(2.0), ..TenantSettings::default() }).await;
    let auto = PullRequest { auto_ack: true, ..pull(9) };
    for _ in 0..2 {
        hands.push(&[("1", "x")]).await;
        assert_eq!(hands.handed(Q, auto).await.messages.len(), 1);
        hands.assert_true(Q, "within the rate").await;
    }
    hands.push(&[("1", "x"), ("1", "y"), ("2", "free")]).await;
    let handed = hands.handed(Q, auto).await.messages;
    assert_eq!(handed.iter().map(|(_, taken)| label(taken)).collect::<Vec<_>>(), ["free"]);
    hands.assert_true(Q, "beyond the rate").await;
    assert_eq!(hands.handed(Q, auto).await.next_due_in_ms, Some(500));
    let only = PullRequest { tenant: Some("1"), ..auto };
    assert_eq!(hands.handed(Q, only).await.messages.len(), 0, "by name neither");
    hands.time.advance(500);
    hands.sweep().await;
    hands.assert_true(Q, "half a second later").await;
    assert_eq!(hands.handed(Q, auto).await.messages.len(), 1);
    // Without the rate, its messages are available immediately.
    hands.tenant(Q, "1", TenantSettings::default()).await;
    hands.assert_true(Q, "no rate").await;
    assert_eq!(hands.handed(Q, auto).await.messages.len(), 1);
}

#[tokio::test]
async fn a_full_queue_rejects_new_messages_or_drops_the_oldest_with_a_gap() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    let bounded = NewQueue { max_waiting: Some(5), max_waiting_per_tenant: Some(3), ..wanted(".*") };
    hands.put(Q, bounded.clone()).await;
    let noisy = [("1", "a"), ("1", "b"), ("1", "c"), ("1", "d"), ("2", "x")];
    let ids = hands.try_push(&noisy, None).await;
    let accepted: Vec<bool> = ids.iter().map(Option::is_some).collect();
    assert_eq!(accepted, [true, true, true, false, true], "the other tenant is not affected");
    let ids = hands.try_push(&[("3", "p"), ("3", "q")], None).await;
    assert_eq!(ids.iter().filter(|id| id.is_some()).count(), 1, "the queue has five");
    hands.assert_true(Q, "rejected").await;
    // In flight they do not wait.
    assert_eq!(hands.pull(2).await.len(), 2);
    assert!(hands.try_push(&[("3", "q")], None).await[0].is_some());

    hands.queues.purge(Q, None).await.unwrap();
    hands.put(Q, NewQueue { overflow: Overflow::DropOldest, ..bounded }).await;
    let ids = hands.push(&[("1", "a"), ("1", "b"), ("1", "c"), ("1", "d"), ("1", "e")]).await;
    hands.assert_true(Q, "dropped").await;
    let gap = |messages| Gap {
        tenant: Some("1".into()),
        first: ids[0],
        last: ids[1],
        messages,
        dropped_at: Time::from_ms(hands.time.0.load(std::sync::atomic::Ordering::SeqCst)),
    };
    assert_eq!(hands.queues.gaps(Q).await.unwrap(), [gap(2)]);
    assert_eq!(hands.labels(9).await, ["c", "d", "e"]);
    hands.queues.forget_gaps(Q).await.unwrap();
    assert_eq!(hands.queues.gaps(Q).await.unwrap(), []);
}

fn many(tenant: &str, count: usize) -> Vec<(&str, &str)> {
    vec![(tenant, "x"); count]
}

async fn depths(hands: &Hands, tenants: &[&str]) -> Vec<(u64, u64)> {
    let mut depths = Vec::new();
    for tenant in tenants {
        let found = hands.queues.tenants_named(Q, &[(*tenant).to_owned()]).await.unwrap();
        depths.push(found.first().map_or((0, 0), |tenant| (tenant.waiting, tenant.delayed)));
    }
    depths
}

#[tokio::test]
async fn a_full_queue_drops_messages_of_the_tenant_that_has_most() {
    let server = Server::in_memory().await;
    let hands = Hands::with(&server, 1, 3_600_000).await;
    let bounded = NewQueue { max_waiting: Some(100), overflow: Overflow::DropOldest, ..wanted(".*") };
    hands.put(Q, bounded.clone()).await;
    hands.push(&many("noisy", 100)).await;
    hands.push(&many("quiet", 5)).await;
    hands.assert_true(Q, "full").await;
    assert_eq!(depths(&hands, &["noisy", "quiet"]).await, [(95, 0), (5, 0)]);
    let gaps = hands.queues.gaps(Q).await.unwrap();
    let gaps: Vec<_> = gaps.iter().map(|gap| (gap.tenant.as_deref(), gap.messages)).collect();
    assert_eq!(gaps, [(Some("noisy"), 5)]);
    // Two that are equal share what remains, and a third that has less loses nothing.
    hands.push(&many("also-noisy", 150)).await;
    hands.assert_true(Q, "two noisy ones").await;
    let [(noisy, _), (also, _), quiet] = depths(&hands, &["noisy", "also-noisy", "quiet"]).await[..] else {
        panic!()
    };
    assert_eq!((noisy + also, quiet), (95, (5, 0)));
    assert!(noisy.abs_diff(also) <= 1, "{noisy} and {also}");
    // A lower bound is reached within a few messages, with bounded work for each.
    hands.put(Q, NewQueue { max_waiting: Some(10), ..bounded }).await;
    hands.push(&many("quiet", 1)).await;
    hands.assert_true(Q, "a lower bound").await;
    let sum: u64 =
        depths(&hands, &["noisy", "also-noisy", "quiet"]).await.iter().map(|(waiting, _)| waiting).sum();
    assert_eq!(sum, 10);
}

#[tokio::test]
async fn delayed_messages_are_bounded_and_leave_space_for_others() {
    let server = Server::in_memory().await;
    let hands = Hands::with(&server, 1, 3_600_000).await;
    let bounded = NewQueue { overflow: Overflow::DropOldest, ..wanted(".*") };
    hands.put(Q, NewQueue { max_waiting: Some(10), ..bounded.clone() }).await;
    let delay = Some(signalbox_bus::Delay::After(60_000));
    let accepted = hands.try_push(&many("noisy", 30), delay).await;
    assert_eq!(accepted.iter().flatten().count(), 10);
    hands.push(&many("quiet", 3)).await;
    hands.assert_true(Q, "delayed messages make space").await;
    assert_eq!(depths(&hands, &["noisy", "quiet"]).await, [(0, 7), (3, 0)]);
    assert_eq!(hands.queues.gaps(Q).await.unwrap()[0].tenant.as_deref(), Some("noisy"));
    // Another tenant's delayed message replaces one, too.
    assert!(hands.try_push(&many("late", 1), delay).await[0].is_some());
    hands.assert_true(Q, "another delayed message").await;
    assert_eq!(depths(&hands, &["noisy", "quiet", "late"]).await, [(0, 6), (3, 0), (0, 1)]);

    hands.queues.purge(Q, None).await.unwrap();
    hands.put(Q, NewQueue { max_waiting_per_tenant: Some(10), ..bounded }).await;
    let accepted = hands.try_push(&many("noisy", 30), delay).await;
    assert_eq!(accepted.iter().flatten().count(), 10);
    hands.push(&many("noisy", 5)).await;
    assert_eq!(depths(&hands, &["noisy"]).await, [(0, 10)]);
    hands.assert_true(Q, "a tenant's limit").await;
}

#[tokio::test]
async fn a_full_queue_rejects_the_tenant_that_has_its_share_and_no_quiet_one() {
    let server = Server::in_memory().await;
    let hands = Hands::with(&server, 1, 3_600_000).await;
    hands.put(Q, NewQueue { max_waiting: Some(10), ..wanted(".*") }).await;
    let accepted = |ids: Vec<Option<u64>>| ids.iter().flatten().count();
    assert_eq!(accepted(hands.try_push(&many("noisy", 15), None).await), 10);
    assert_eq!(accepted(hands.try_push(&many("quiet", 9), None).await), 5, "half of ten");
    assert_eq!(accepted(hands.try_push(&many("noisy", 1), None).await), 0);
    assert_eq!(accepted(hands.try_push(&many("third", 9), None).await), 3, "a third of ten");
    for n in 0..9 {
        hands.try_push(&many(&n.to_string(), 9), None).await;
    }
    hands.assert_true(Q, "shares").await;
    assert_eq!(hands.queues.numbers(&[Q]).await.unwrap()[0].waiting, 20, "twice the bound at most");
}

#[tokio::test]
async fn a_full_queue_does_not_stop_events() {
    let server = Server::in_memory().await;
    let hands = Hands::with(&server, 1, 3_600_000).await;
    hands.put("trap", NewQueue { max_waiting: Some(1), ..wanted(".*") }).await;
    hands.put(Q, wanted(".*")).await;
    let event = || signalbox_bus_testkit::event("https://shop.example/1");
    let results = hands.bus.handle.publish("shop", "orders", vec![event(), event(), event()]).await;
    let ids: Vec<u64> = results.into_iter().map(|result| result.expect("it is accepted").0).collect();
    assert_eq!(hands.queues.numbers(&[Q]).await.unwrap()[0].waiting, 3);
    assert_eq!(hands.queues.numbers(&["trap"]).await.unwrap()[0].waiting, 1);
    let gap = &hands.queues.gaps("trap").await.unwrap()[0];
    assert_eq!((gap.first, gap.last, gap.messages), (ids[1], ids[2], 2));
    hands.assert_true("trap", "events").await;
    // Messages are rejected: their publisher asked for this queue.
    assert_eq!(hands.try_push(&many("shop", 1), None).await, [None]);
}

#[tokio::test]
async fn a_pull_may_have_its_own_lease() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.push(&[("1", "a")]).await;
    let brief = PullRequest { lease_ms: Some(1_000), ..pull(1) };
    assert_eq!(hands.handed(Q, brief).await.messages.len(), 1);
    assert_eq!(hands.handed(Q, pull(1)).await.next_due_in_ms, Some(1_000));
    hands.time.advance(1_000);
    hands.sweep().await;
    assert_eq!(hands.labels(9).await, ["a"]);
}

#[tokio::test]
async fn one_pull_takes_from_several_queues_by_weight() {
    let server = Server::in_memory().await;
    let hands = Hands::bare(&server, 1).await;
    for name in ["a", "b", "c"] {
        hands.put(name, wanted(&format!("{name}:.*"))).await;
    }
    let messages: Vec<(&str, &str)> =
        [vec![("a", "x"); 20], vec![("b", "x"); 20], vec![("c", "x"); 2]].concat();
    hands.push(&messages).await;
    let source = |queue, weight| Source { queue, revision: hands.revision(queue), weight };
    let sources = [source("a", 3), source("b", 1), source("c", 1)];
    let handed = pull_from(&hands.queues, &sources, pull(10)).await.unwrap();
    let count = |handed: &signalbox_queues::Handed, queue: &str| {
        handed.messages.iter().filter(|(receipt, _)| receipt.queue == queue).count()
    };
    assert_eq!(["a", "b", "c"].map(|queue| count(&handed, queue)), [6, 2, 2]);
    // The third queue is empty: its part goes to the others.
    let handed = pull_from(&hands.queues, &sources, pull(10)).await.unwrap();
    assert_eq!((handed.messages.len(), count(&handed, "c")), (10, 0));
    for name in ["a", "b", "c"] {
        hands.assert_true(name, "a pull of three queues").await;
    }
}

#[tokio::test]
async fn a_receipt_with_another_attempt_settles_nothing_and_a_repeated_ack_is_recognized() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.push(&[("1", "a")]).await;
    let pulled = hands.pull(1).await;
    let mut forged = pulled[0].0.clone();
    forged.attempt += 1;
    assert_eq!(hands.ack(&[&forged]).await, [Settled::Used]);
    assert_eq!(hands.ack(&[&pulled[0].0]).await, [Settled::Acked]);
    assert_eq!(hands.ack(&[&pulled[0].0]).await, [Settled::AckedBefore]);
    assert_eq!(hands.ack(&[&forged]).await, [Settled::Used]);
    assert_eq!(hands.nack(0, &[&pulled[0].0]).await, [Settled::Used], "it was not returned");
    hands.push(&[("1", "b")]).await;
    let dropped = hands.pull(1).await;
    hands.queues.drop_tenant(Q, "1").await.unwrap();
    assert_eq!(hands.ack(&[&dropped[0].0]).await, [Settled::Used], "dropped, not acknowledged");
}

/// The receipts of a time share a key, which expires ten minutes after the newest of them.
#[tokio::test]
async fn an_acknowledged_receipt_is_remembered_for_ten_minutes_however_old_the_others_are() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.push(&[("1", "a"), ("1", "b")]).await;
    let pulled = hands.pull(2).await;
    assert_eq!(hands.ack(&[&pulled[0].0]).await, [Settled::Acked]);
    let expire = hands.redis.command("PEXPIRE").arg(("queue:|acked", 60_000));
    assert!(expire.query::<bool>().await.unwrap());
    assert_eq!(hands.ack(&[&pulled[1].0]).await, [Settled::Acked]);
    let left_ms: i64 = hands.redis.command("PTTL").arg("queue:|acked").query().await.unwrap();
    assert!(left_ms > 60_000, "{left_ms} ms");
}

/// F3 with limits and rates: a tenant without a rate that has messages the whole time is served its weight between any
/// `w + 1` messages of another one.
#[test]
fn tenants_without_a_rate_keep_their_turns_next_to_tenants_with_one() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Server::in_memory());
    let config = Config { failure_persistence: None, max_shrink_iters: 50, ..Config::with_cases(6) };
    let tenants = vec((1..4u32, 5..20usize, prop::option::of(1..6u32)), 2..5);
    proptest!(config, |(tenants in tenants, pulls in vec((1..6usize, 0..700u64), 1..30))| {
        runtime.block_on(async {
            let hands = Hands::with(&server, 1, 3_600_000).await;
            hands.put(Q, wanted(".*")).await;
            for (place, (weight, _, rate)) in tenants.iter().enumerate() {
                let rate_per_second = rate.map(f64::from);
                let wanted =
                    TenantSettings { weight: Some(*weight), rate_per_second, ..TenantSettings::default() };
                hands.tenant(Q, &place.to_string(), wanted).await;
            }
            let names: Vec<String> = (0..tenants.len()).map(|n| n.to_string()).collect();
            let all: Vec<(&str, &str)> = names
                .iter()
                .zip(&tenants)
                .flat_map(|(name, (_, count, _))| std::iter::repeat_n((name.as_str(), "x"), *count))
                .collect();
            hands.push(&all).await;
            let mut served: Vec<usize> = Vec::new();
            for (most, advance) in pulls {
                let pulled = hands.pull(most).await;
                served.extend(pulled.iter().map(|(_, taken)| taken.tenant.parse::<usize>().unwrap()));
                hands.time.advance(advance);
                hands.sweep().await;
                hands.assert_true(Q, "a pull").await;
            }
            for (one, (weight, ..)) in tenants.iter().enumerate() {
                let places: Vec<usize> =
                    served.iter().enumerate().filter(|(_, who)| **who == one).map(|(place, _)| place).collect();
                for window in places.windows(*weight as usize + 1) {
                    let (first, last) = (window[0], window[window.len() - 1]);
                    for (other, (its_weight, count, rate)) in tenants.iter().enumerate() {
                        // One with a rate may leave the ring within the window.
                        if other == one || rate.is_some() {
                            continue;
                        }
                        let times = |range: &[usize]| range.iter().filter(|who| **who == other).count();
                        let due = (count - times(&served[..first])).min(*its_weight as usize);
                        let got = times(&served[first..=last]);
                        assert!(got >= due, "{other} got {got} of {due} between {first} and {last} of {served:?}");
                    }
                }
            }
        });
    });
}
