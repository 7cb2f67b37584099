//! Messages that become available later: delayed by their publisher, by backoff, or by a redrive at a rate.

use super::support::*;
use signalbox_api::queues::NewQueue;
use signalbox_bus::Delay;
use signalbox_queues::{DeadLetters, PullRequest, Settled, Stored};

async fn push_later(hands: &Hands, tenant: &str, label: &str, delay_ms: u64) -> u64 {
    let ids = hands.try_push(&[(tenant, label)], Some(Delay::After(delay_ms))).await;
    ids[0].expect("it is accepted")
}

async fn take_dead(hands: &Hands, wanted: DeadLetters<'_>) -> u64 {
    let definition = hands.bus.handle.queues(|queues| queues.get(Q).unwrap().definition.clone());
    hands.queues.take_dead(Q, &hands.bus.handle.stamp(), &definition, wanted).await.unwrap()
}

#[tokio::test]
async fn a_message_that_is_delayed_by_its_publisher_joins_the_end_of_its_tenants_queue() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    push_later(&hands, "1", "late", 5_000).await;
    push_later(&hands, "2", "past", 0).await;
    hands.push(&[("1", "a"), ("1", "b")]).await;
    hands.assert_true(Q, "a delayed message").await;
    assert_eq!(hands.labels(9).await, ["past", "a", "b"]);
    assert_eq!(hands.handed(Q, pull(1)).await.next_due_in_ms, Some(5_000));
    hands.push(&[("1", "c")]).await;
    hands.time.advance(4_999);
    hands.sweep().await;
    assert_eq!(hands.delayed(Q).await.len(), 1, "not yet");
    hands.time.advance(1);
    hands.sweep().await;
    hands.assert_true(Q, "a delay that is over").await;
    assert_eq!(hands.labels(9).await, ["c", "late"]);
}

/// It has the lower id, but it was never delivered. The tenants of one call share what the call reads to keep the order.
#[tokio::test]
async fn a_returned_message_comes_before_those_whose_delay_ended_in_the_meantime() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    for _ in 0..3 {
        push_later(&hands, "1", "late", 5_000).await;
    }
    hands.push(&[("1", "a"), ("1", "b"), ("1", "c")]).await;
    let pulled = hands.pull(3).await;
    hands.time.advance(5_000);
    hands.sweep().await;
    for one in [1, 2, 0] {
        hands.nack(0, &[&pulled[one].0]).await;
    }
    hands.assert_true(Q, "returned messages").await;
    assert_eq!(hands.labels(9).await, ["a", "b", "c", "late", "late", "late"]);
}

/// The log may be trimmed while the message is delayed: the body is stored with the queue.
#[tokio::test]
async fn a_delay_of_weeks_keeps_no_part_of_the_log() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.put(Q, NewQueue { retention_seconds: Some(60), ..wanted(".*") }).await;
    push_later(&hands, "1", "late", 30 * 24 * 3_600_000).await;
    let held: u64 = hands.redis.command("HLEN").arg("queue:|held").query().await.unwrap();
    assert_eq!(held, 0, "no segment of the log is held");
    let segments: Vec<String> = hands.redis.command("KEYS").arg("bus:log:*").query().await.unwrap();
    hands.redis.command("DEL").arg(segments).run().await.unwrap();
    hands.time.advance(30 * 24 * 3_600_000);
    hands.sweep().await;
    hands.assert_true(Q, "after a month").await;
    assert_eq!(hands.labels(9).await, ["late"], "it is as old as its delay is over");
}

#[tokio::test]
async fn a_delayed_message_counts_for_its_publisher_until_it_is_gone() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    push_later(&hands, "1", "late", 48 * 3_600_000).await;
    let read = async |key: &str| -> Option<String> {
        hands.redis.command("HGET").arg(&[key, "1"][..]).query().await.unwrap()
    };
    let stored = async || read("bus:environments").await.map_or(0, |bytes| bytes.parse::<u64>().unwrap());
    let both = stored().await;
    hands.time.advance(48 * 3_600_000);
    let is_one = async |bytes: u64| if stored().await == bytes { Ok(()) } else { Err(stored().await) };
    eventually("its part of the log to be removed", || is_one(both / 2)).await;
    hands.sweep().await;
    assert_eq!(stored().await, both / 2, "it moved to the log");
    assert!(read("bus:environments:clients").await.is_some_and(|client| client.ends_with(" shop")));
    let pulled = hands.pull(1).await;
    hands.ack(&[&pulled[0].0]).await;
    hands.time.advance(48 * 3_600_000);
    eventually("nothing to be stored", || is_one(0)).await;
    assert_eq!(read("bus:environments:clients").await, None);
}

#[tokio::test]
async fn delayed_messages_are_dropped_with_their_bodies() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    push_later(&hands, "1", "a", 5_000).await;
    push_later(&hands, "2", "b", 5_000).await;
    assert_eq!(hands.queues.purge(Q, Some("1")).await.unwrap(), 1);
    hands.assert_true(Q, "a purge").await;
    hands.bus.handle.delete_queue(Q).await.unwrap();
    let left: Vec<String> = hands.redis.command("KEYS").arg("queue:q*").query().await.unwrap();
    assert_eq!(left, [""; 0]);
}

#[tokio::test]
async fn backoff_doubles_from_delivery_to_delivery() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    let backoff = NewQueue { backoff_seconds: Some(2.0), max_backoff_seconds: Some(5.0), ..wanted(".*") };
    hands.put(Q, NewQueue { lease_seconds: Some(10.0), ..backoff }).await;
    hands.push(&[("1", "a")]).await;
    for expected in [2_000, 4_000, 5_000] {
        let pulled = hands.pull(1).await;
        let receipt = pulled[0].0.to_string();
        assert_eq!(hands.queues.nack(Q, None, &[&receipt]).await.unwrap(), [Settled::Delayed]);
        assert_eq!(hands.handed(Q, pull(1)).await.next_due_in_ms, Some(expected));
        hands.time.advance(expected);
        hands.sweep().await;
        hands.assert_true(Q, "backoff").await;
    }
    // A lease that expires is a failed delivery as well.
    assert_eq!(hands.pull(1).await.len(), 1);
    hands.time.advance(10_000);
    hands.sweep().await;
    assert_eq!(hands.handed(Q, pull(1)).await.next_due_in_ms, Some(5_000));
    hands.time.advance(5_000);
    hands.sweep().await;
    let pulled = hands.pull(1).await;
    assert_eq!(hands.nack(0, &[&pulled[0].0]).await, [Settled::Back], "an explicit delay overrides it");
}

#[tokio::test]
async fn a_rejected_message_is_a_dead_letter_after_its_first_delivery() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.push(&[("1", "poison"), ("1", "b")]).await;
    let pulled = hands.pull(1).await;
    let receipt = pulled[0].0.to_string();
    assert_eq!(hands.queues.reject(Q, &[&receipt]).await.unwrap(), [Settled::Dead]);
    assert_eq!(hands.queues.reject(Q, &[&receipt]).await.unwrap(), [Settled::Used]);
    hands.assert_true(Q, "a rejection").await;
    let dead = hands.queues.dead(Q, "", 9).await.unwrap().items;
    assert_eq!((dead.len(), dead[0].reason.as_deref(), dead[0].message.attempt), (1, Some("rejected"), 1));
    assert_eq!(hands.labels(9).await, ["b"]);
}

/// Pushes messages and rejects each of them.
async fn bury(hands: &Hands, messages: &[(&str, &str)]) -> Vec<u64> {
    let ids = hands.push(messages).await;
    loop {
        let pulled = hands.pull(500).await;
        if pulled.is_empty() {
            return ids;
        }
        let receipts: Vec<String> = pulled.iter().map(|(receipt, _)| receipt.to_string()).collect();
        let receipts: Vec<&str> = receipts.iter().map(String::as_str).collect();
        hands.queues.reject(Q, &receipts).await.unwrap();
    }
}

#[tokio::test]
async fn pages_of_dead_letters_leave_out_none_if_others_are_removed_in_the_meantime() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    bury(&hands, &[("1", "a"), ("1", "b"), ("1", "c"), ("1", "d"), ("1", "e"), ("1", "f")]).await;
    let ids = |letters: Vec<_>| letters.iter().map(|letter: &Stored| letter.message.id).collect::<Vec<_>>();
    let all = ids(hands.queues.dead(Q, "", 9).await.unwrap().items);
    assert_eq!(all.len(), 6);
    let page = hands.queues.dead(Q, "", 3).await.unwrap();
    take_dead(&hands, DeadLetters { ids: &all[..2], drop: true, ..DeadLetters::default() }).await;
    let rest = hands.queues.dead(Q, &page.next.unwrap(), 9).await.unwrap();
    assert_eq!(ids(rest.items), all[3..]);
    assert_eq!(rest.next, None);
}

#[tokio::test]
async fn dead_letters_of_two_tenants_that_are_taken_at_the_same_time_are_all_taken() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    let messages: Vec<(&str, &str)> = (0..3_000).map(|n| (["1", "2"][n % 2], "x")).collect();
    bury(&hands, &messages).await;
    let of = |tenant| DeadLetters { tenant: Some(tenant), drop: true, ..DeadLetters::default() };
    let (one, two) = tokio::join!(take_dead(&hands, of("1")), take_dead(&hands, of("2")));
    assert_eq!((one, two), (1_500, 1_500));
}

#[tokio::test]
async fn dead_letters_return_by_tenant_by_id_and_at_a_rate() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    let messages = [("1", "a"), ("2", "b"), ("1", "c"), ("2", "d"), ("3", "e")];
    let ids = hands.push(&messages).await;
    for (receipt, _) in hands.pull(9).await {
        hands.queues.reject(Q, &[&receipt.to_string()]).await.unwrap();
    }
    let of_two = DeadLetters { tenant: Some("2"), ..DeadLetters::default() };
    assert_eq!(take_dead(&hands, of_two).await, 2);
    assert_eq!(take_dead(&hands, of_two).await, 0, "a repeat finds nothing");
    hands.assert_true(Q, "a redrive of a tenant").await;
    assert_eq!(hands.labels(9).await, ["b", "d"]);
    let one = [ids[2]];
    assert_eq!(take_dead(&hands, DeadLetters { ids: &one, ..DeadLetters::default() }).await, 1);
    assert_eq!(hands.labels(9).await, ["c"]);
    let other = [ids[4]];
    assert_eq!(take_dead(&hands, DeadLetters { ids: &other, drop: true, ..DeadLetters::default() }).await, 1);
    assert_eq!(hands.queues.dead(Q, "", 9).await.unwrap().items.len(), 1);

    hands.push(&[("1", "f"), ("1", "g")]).await;
    for (receipt, _) in hands.pull(9).await {
        hands.queues.reject(Q, &[&receipt.to_string()]).await.unwrap();
    }
    // One every two seconds.
    assert_eq!(take_dead(&hands, DeadLetters { rate: Some(500), ..DeadLetters::default() }).await, 3);
    hands.assert_true(Q, "a redrive at a rate").await;
    for label in ["a", "f", "g"] {
        assert_eq!(hands.labels(9).await, [label]);
        hands.time.advance(2_000);
        hands.sweep().await;
    }
}

#[tokio::test]
async fn a_message_beyond_its_retention_is_not_delivered() {
    let server = Server::in_memory().await;
    let hands = Hands::with(&server, 1, 3_600_000).await;
    hands.put(Q, NewQueue { retention_seconds: Some(10), ..wanted(".*") }).await;
    let old: Vec<String> = (0..1_200).map(|n| n.to_string()).collect();
    let old: Vec<(&str, &str)> = old.iter().map(|label| ("1", label.as_str())).collect();
    hands.push(&old).await;
    // Ids of one call follow each other as if a hundred messages had come in each millisecond.
    hands.time.advance(10_100);
    hands.push(&[("1", "new"), ("2", "x")]).await;
    // No housekeeping has run. More messages are too old than one call of the script drops.
    let handed = hands.handed(Q, PullRequest { auto_ack: true, ..pull(1) }).await;
    assert_eq!(label(&handed.messages[0].1), "new");
    hands.assert_true(Q, "a pull").await;
    assert_eq!(hands.labels(9).await, ["x"]);
    assert_eq!(hands.queues.numbers(&[Q]).await.unwrap()[0].dropped, 1_200);
}

/// The body of a delayed message is stored again when the delay ends, and only the ten seconds of that moment are known.
#[tokio::test]
async fn a_delayed_message_is_available_for_the_whole_retention() {
    let server = Server::in_memory().await;
    let hands = Hands::with(&server, 1, 3_600_000).await;
    hands.put(Q, NewQueue { retention_seconds: Some(3), ..wanted(".*") }).await;
    // The delay ends just before the end of a segment.
    push_later(&hands, "1", "late", 9_900).await;
    push_later(&hands, "1", "second", 9_900).await;
    hands.time.advance(9_900);
    hands.sweep().await;
    assert_eq!(hands.queues.stores()[0].drop_expired(Q, "", 100).await.unwrap(), (0, String::new()));
    assert_eq!(hands.labels(1).await, ["late"]);
    hands.time.advance(13_101);
    assert_eq!(hands.queues.stores()[0].drop_expired(Q, "", 100).await.unwrap(), (1, String::new()));
    hands.assert_true(Q, "the retention is over").await;
}

#[tokio::test]
async fn a_queue_with_many_messages_due_does_not_delay_those_of_another() {
    let server = Server::in_memory().await;
    let hands = Hands::bare(&server, 1).await;
    hands.put("crowded", wanted("1:.*")).await;
    hands.put(Q, wanted("2:.*")).await;
    for _ in 0..300 {
        push_later(&hands, "1", "many", 5_000).await;
    }
    hands.time.advance(1);
    push_later(&hands, "2", "one", 5_000).await;
    hands.time.advance(6_000);
    let store = &hands.queues.stores()[0];
    let mut turns = Vec::new();
    for _ in 0..2 {
        let (queue, _) = store.next_due().await.unwrap().unwrap();
        store.sweep(&queue, 10_000).await.unwrap();
        turns.push(queue);
    }
    assert_eq!(turns, ["crowded", Q]);
    assert_eq!(hands.labels(9).await, ["one"]);
    let findings = hands.queues.check(&["crowded".to_owned(), Q.to_owned()]).await.unwrap();
    assert_eq!(findings.len(), 0, "{findings:?}");
    hands.sweep().await;
    assert_eq!(hands.waiting("crowded", "1").await.len(), 300);
}
