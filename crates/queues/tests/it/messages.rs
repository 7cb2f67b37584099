//! Single messages: lists of those that cannot be pulled now, and what operators do with one.

use super::support::*;
use signalbox_api::queues::{MessageState, NewQueue};
use signalbox_bus::Delay;
use signalbox_queues::{Act, Settled, Stored};

const PLACES: [MessageState; 2] = [MessageState::Delayed, MessageState::InFlight];

/// All messages of a list, page by page.
async fn listed(hands: &Hands, place: MessageState, tenant: Option<&str>, limit: usize) -> Vec<String> {
    let (mut labels, mut after) = (Vec::new(), String::new());
    loop {
        let page = hands.queues.list(Q, place, tenant, &after, limit).await.unwrap();
        assert!(page.items.len() <= limit, "{} of {limit}", page.items.len());
        labels.extend(page.items.iter().map(|stored| label(&stored.message)));
        match page.next {
            Some(next) => after = next,
            None => return labels,
        }
    }
}

async fn change(hands: &Hands, id: u64, tenant: &str, change: Act) -> Option<Stored> {
    hands.queues.message(Q, id, Some(tenant), change).await.unwrap()
}

#[tokio::test]
async fn messages_that_are_delayed_or_in_flight_are_listed_by_the_end_of_their_time() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    for (tenant, name, delay) in [("1", "c", 3_000), ("2", "a", 1_000), ("1", "b", 2_000)] {
        hands.try_push(&[(tenant, name)], Some(Delay::After(delay))).await;
    }
    for name in ["x", "y", "z"] {
        hands.push(&[("1", name)]).await;
        hands.pull(1).await;
        hands.time.advance(10);
    }
    for limit in [1, 2, 100] {
        assert_eq!(listed(&hands, MessageState::Delayed, None, limit).await, ["a", "b", "c"]);
        assert_eq!(listed(&hands, MessageState::Delayed, Some("1"), limit).await, ["b", "c"]);
        assert_eq!(listed(&hands, MessageState::InFlight, None, limit).await, ["x", "y", "z"]);
        assert_eq!(listed(&hands, MessageState::InFlight, Some("2"), limit).await, [""; 0]);
    }
    let one = hands.queues.list(Q, MessageState::InFlight, None, "", 1).await.unwrap().items.remove(0);
    assert_eq!((one.message.attempt, &*one.message.tenant), (1, "1"));
    assert!(one.at_ms > Some(hands.queues.now_ms().await.unwrap()), "{:?}", one.at_ms);
}

/// Messages of one pull have the same moment, so a page may begin among them.
#[tokio::test]
async fn a_list_of_many_messages_of_one_moment_has_each_once() {
    let server = Server::in_memory().await;
    let hands = Hands::bare(&server, 2).await;
    hands.put(Q, wanted(".*")).await;
    let names: Vec<String> = (0..500).map(|n| format!("{n:03}")).collect();
    let messages: Vec<(&str, &str)> = names.iter().map(|name| ("1", name.as_str())).collect();
    hands.push(&messages).await;
    hands.try_push(&messages, Some(Delay::After(5_000))).await;
    while !hands.pull(200).await.is_empty() {}
    for place in PLACES {
        let mut found = listed(&hands, place, None, 70).await;
        found.sort();
        assert_eq!(found, names, "{place:?}");
    }
}

#[tokio::test]
async fn a_message_is_found_and_dropped_wherever_it_is() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    let ids = hands.push(&[("1", "flies"), ("1", "waits"), ("1", "stays")]).await;
    let pulled = hands.pull(1).await;
    let later = hands.try_push(&[("2", "later")], Some(Delay::After(5_000))).await[0].unwrap();
    for (id, tenant, place, name) in [
        (ids[0], "1", MessageState::InFlight, "flies"),
        (ids[1], "1", MessageState::Waiting, "waits"),
        (later, "2", MessageState::Delayed, "later"),
    ] {
        let shown = hands.queues.message(Q, id, Some(tenant), Act::Show).await.unwrap().unwrap();
        assert_eq!((shown.place, &*label(&shown.message)), (place, name));
        assert_eq!(shown.at_ms.is_some(), place != MessageState::Waiting, "{name}");
        assert!(
            hands.queues.message(Q, id, Some("3"), Act::Show).await.unwrap().is_none(),
            "{name} of another tenant"
        );
        assert!(change(&hands, id, "3", Act::Drop).await.is_none(), "{name} of another tenant");
        assert_eq!(change(&hands, id, tenant, Act::Drop).await.unwrap().place, place);
        hands.assert_true(Q, name).await;
        assert!(change(&hands, id, tenant, Act::Drop).await.is_none(), "{name} again");
    }
    assert_eq!(hands.ack(&[&pulled[0].0]).await, [Settled::Used]);
    assert_eq!(hands.labels(9).await, ["stays"]);
    assert_eq!(hands.queues.numbers(&[Q]).await.unwrap()[0].dropped, 3);
}

#[tokio::test]
async fn a_message_is_found_among_many_that_wait() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    let names: Vec<String> = (0..5_000).map(|n| n.to_string()).collect();
    let messages: Vec<(&str, &str)> = names.iter().map(|name| ("1", name.as_str())).collect();
    let ids = hands.push(&messages).await;
    for place in [4_999, 2_500, 1, 0] {
        let stored = change(&hands, ids[place], "1", Act::Drop).await.unwrap();
        assert_eq!(label(&stored.message), names[place]);
    }
    hands.assert_true(Q, "single drops").await;
    assert_eq!(hands.waiting(Q, "1").await.len(), 4_996);
}

#[tokio::test]
async fn the_delay_of_a_message_is_ended() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.put(Q, NewQueue { backoff_seconds: Some(60.0), ..wanted(".*") }).await;
    let week = 7 * 24 * 3_600_000;
    let late = hands.try_push(&[("1", "late")], Some(Delay::After(week))).await[0].unwrap();
    let failed = hands.push(&[("1", "failed")]).await[0];
    let receipt = hands.pull(1).await[0].0.to_string();
    hands.queues.nack(Q, None, &[&receipt]).await.unwrap();
    for id in [late, failed] {
        assert_eq!(change(&hands, id, "1", Act::Advance).await.unwrap().place, MessageState::Delayed);
    }
    hands.assert_true(Q, "two delays that are over").await;
    hands.sweep().await;
    hands.assert_true(Q, "a sweep").await;
    // One that was delivered before returns to the head.
    assert_eq!(hands.labels(9).await, ["failed", "late"]);
    assert_eq!(change(&hands, late, "1", Act::Advance).await.unwrap().place, MessageState::InFlight);
}

#[tokio::test]
async fn a_dead_letter_is_found_and_keeps_its_reason() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    let ids = hands.push(&[("1", "a"), ("2", "b")]).await;
    for (receipt, _) in hands.pull(9).await {
        hands.queues.reject(Q, &[&receipt.to_string()]).await.unwrap();
    }
    let found = hands.queues.message(Q, ids[1], None, Act::Show).await.unwrap().unwrap();
    assert_eq!((found.place, found.reason.as_deref()), (MessageState::Dead, Some("rejected")));
    assert_eq!((&*label(&found.message), &*found.message.tenant), ("b", "2"));
    // Dead letters are dropped and redriven by their own calls.
    assert_eq!(change(&hands, ids[1], "2", Act::Drop).await.unwrap().place, MessageState::Dead);
    assert_eq!(hands.queues.dead(Q, "", 9).await.unwrap().items.len(), 2);
}
