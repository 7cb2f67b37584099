//! The exact order of pulls.

use super::support::*;
use signalbox_api::queues::NewQueue;
use signalbox_queues::{PullRequest, Settled};

#[tokio::test]
async fn round_robin_pulls_a_c_b() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.push(&[("1", "a"), ("1", "b"), ("2", "c")]).await;
    assert_eq!(hands.labels(9).await, ["a", "c", "b"]);
    assert!(hands.pull(1).await.is_empty(), "an empty queue is not an error");
}

#[tokio::test]
async fn one_call_hands_out_what_many_calls_do() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.put(Q, weights(&[("2", 2)])).await;
    let messages = [("1", "a"), ("1", "b"), ("1", "c"), ("2", "d"), ("2", "e"), ("2", "f"), ("3", "g")];
    hands.push(&messages).await;
    let at_once: Vec<String> = hands.pull(10).await.iter().map(|(_, taken)| label(taken)).collect();
    hands.assert_true(Q, "one call").await;
    let hands = Hands::new(&server).await;
    hands.put(Q, weights(&[("2", 2)])).await;
    hands.push(&messages).await;
    assert_eq!(hands.labels(10).await, at_once);
    assert_eq!(at_once, ["a", "d", "e", "g", "b", "f", "c"]);
}

#[tokio::test]
async fn a_weight_is_a_turn_of_that_many_messages_and_0_pauses() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.put(Q, weights(&[("1", 3), ("3", 0)])).await;
    let noisy: Vec<String> = (0..5).map(|n| format!("1.{n}")).collect();
    let mut messages: Vec<(&str, &str)> = noisy.iter().map(|label| ("1", label.as_str())).collect();
    messages.extend([("2", "2.0"), ("2", "2.1"), ("2", "2.2"), ("3", "3.0")]);
    hands.push(&messages).await;
    assert_eq!(hands.labels(4).await, ["1.0", "1.1", "1.2", "2.0"]);
    // Paused in the middle of everything, and taken up again at the tail.
    hands.put(Q, weights(&[("1", 0)])).await;
    hands.assert_true(Q, "a pause").await;
    assert_eq!(hands.ring(Q).await, ["2", "3"]);
    assert_eq!(hands.labels(9).await, ["2.1", "3.0", "2.2"]);
    hands.put(Q, wanted(".*")).await;
    assert_eq!(hands.labels(9).await, ["1.3", "1.4"]);
}

#[tokio::test]
async fn a_tenant_at_its_limit_waits_for_an_acknowledgement() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.put(Q, NewQueue { in_flight_limit: Some(2), ..weights(&[("1", 5)]) }).await;
    hands.push(&[("1", "a"), ("1", "b"), ("1", "c"), ("2", "x"), ("2", "y"), ("2", "z")]).await;
    let pulled = hands.pull(10).await;
    let labels: Vec<String> = pulled.iter().map(|(_, taken)| label(taken)).collect();
    assert_eq!(labels, ["a", "b", "x", "y"]);
    assert!(hands.pull(10).await.is_empty());
    assert_eq!(hands.ack(&[&pulled[3].0, &pulled[0].0]).await, [Settled::Acked; 2]);
    hands.assert_true(Q, "below its limit again").await;
    assert_eq!(hands.labels(9).await, ["z", "c"]);
    // A higher limit makes a waiting tenant eligible immediately.
    hands.push(&[("1", "d")]).await;
    assert!(hands.pull(1).await.is_empty());
    hands.put(Q, NewQueue { in_flight_limit: Some(3), ..wanted(".*") }).await;
    hands.assert_true(Q, "a higher limit").await;
    assert_eq!(hands.labels(9).await, ["d"]);
}

#[tokio::test]
async fn returned_messages_are_at_the_head_in_order() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.push(&[("1", "a"), ("1", "b"), ("1", "c"), ("1", "d")]).await;
    let pulled = hands.pull(3).await;
    assert_eq!(hands.nack(0, &[&pulled[1].0, &pulled[0].0]).await, [Settled::Back; 2]);
    assert_eq!(hands.labels(2).await, ["a", "b"]);
    assert_eq!(hands.nack(50, &[&pulled[2].0]).await, [Settled::Delayed]);
    assert_eq!(hands.labels(9).await, ["d"]);
    hands.time.advance(50);
    hands.sweep().await;
    let again = hands.pull(9).await;
    assert_eq!((label(&again[0].1), again[0].1.attempt), ("c".to_owned(), 2));
    hands.assert_true(Q, "a delay").await;
}

#[tokio::test]
async fn an_empty_pull_reports_when_the_next_is_due() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    assert_eq!(hands.handed(Q, pull(1)).await.next_due_in_ms, None);
    hands.push(&[("1", "a"), ("1", "b")]).await;
    let pulled = hands.pull(2).await;
    hands.time.advance(10_000);
    assert_eq!(hands.handed(Q, pull(1)).await.next_due_in_ms, Some(20_000), "the end of a lease");
    hands.nack(500, &[&pulled[0].0]).await;
    assert_eq!(hands.handed(Q, pull(1)).await.next_due_in_ms, Some(500), "the end of a delay");
}

/// A pull that names a tenant ignores the turns and uses none: `{1:[a,b,c],2:[d,e],3:[f]}`.
#[tokio::test]
async fn a_pull_of_one_tenant_leaves_the_others_their_turns() {
    let server = Server::in_memory().await;
    let hands = Hands::new(&server).await;
    hands.push(&[("1", "a"), ("1", "b"), ("1", "c"), ("2", "d"), ("2", "e"), ("3", "f")]).await;
    let only = async |tenant: &'static str, most: usize| {
        let request = PullRequest { tenant: Some(tenant), ..pull(most) };
        let handed = hands.handed(Q, request).await.messages;
        hands.assert_true(Q, "a pull of one tenant").await;
        handed.iter().map(|(_, taken)| label(taken)).collect::<Vec<_>>()
    };
    assert_eq!(only("2", 1).await, ["d"]);
    assert_eq!(hands.labels(1).await, ["a"], "it is still the turn of 1");
    assert_eq!(only("2", 10).await, ["e"], "no more than there is");
    assert_eq!(only("2", 10).await, [""; 0]);
    assert_eq!(only("unknown", 10).await, [""; 0]);
    assert_eq!(hands.labels(10).await, ["f", "b", "c"]);
}

#[tokio::test]
async fn a_pull_of_one_tenant_keeps_pause_and_cap() {
    let server = Server::in_memory().await;
    let hands = Hands::bare(&server, 1).await;
    let limited = NewQueue { in_flight_limit: Some(2), ..weights(&[("paused", 0)]) };
    hands.put(Q, limited).await;
    hands.push(&[("1", "a"), ("1", "b"), ("1", "c"), ("paused", "p")]).await;
    let request = |tenant: &'static str| PullRequest { tenant: Some(tenant), ..pull(10) };
    assert_eq!(hands.handed(Q, request("paused")).await.messages.len(), 0);
    let held = hands.handed(Q, request("1")).await.messages;
    assert_eq!(held.iter().map(|(_, taken)| label(taken)).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(hands.handed(Q, request("1")).await.messages.len(), 0, "two are in flight");
    hands.ack(&[&held[0].0]).await;
    hands.assert_true(Q, "an acknowledgement").await;
    assert_eq!(hands.handed(Q, request("1")).await.messages.len(), 1);
}
