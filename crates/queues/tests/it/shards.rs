//! A queue in four shards, on a server that refuses whatever reaches across two.

use std::collections::BTreeSet;

use super::support::*;
use signalbox_api::queues::NewQueue;
use signalbox_queues::{DeadLetters, PullRequest, Settled};

#[tokio::test]
async fn a_queue_in_four_shards_gives_everything_once_and_forgets_everything() {
    let server = Server::cluster().await;
    let hands = Hands::bare(&server, 4).await;
    hands.put(Q, NewQueue { max_attempts: Some(2), ..wanted(".*") }).await;
    let names: Vec<String> = (0..40).map(|n| format!("t{n}")).collect();
    let messages: Vec<(&str, &str)> =
        names.iter().chain(&names).chain(&names).map(|name| (name.as_str(), name.as_str())).collect();
    let ids: BTreeSet<u64> = hands.push(&messages).await.into_iter().collect();
    assert_eq!(ids.iter().map(|id| id % 64).collect::<BTreeSet<_>>(), BTreeSet::from([0, 1, 2, 3]));
    hands.assert_true(Q, "a push").await;

    let mut shards = BTreeSet::new();
    let mut seen = BTreeSet::new();
    // Pulls rotate through the shards; one that gets too few messages continues with the next.
    for _ in 0..8 {
        let pulled = hands.pull(1).await;
        shards.insert(pulled[0].0.shard);
        seen.insert(pulled[0].1.id);
        hands.ack(&[&pulled[0].0]).await;
    }
    assert_eq!(shards.len(), 4);
    let pulled = hands.pull(1_000).await;
    assert_eq!(pulled.len(), 112);
    hands.assert_true(Q, "all in flight").await;
    seen.extend(pulled.iter().map(|(_, taken)| taken.id));
    assert_eq!(seen, ids, "each once");
    assert!(hands.pull(10).await.is_empty());

    let receipts: Vec<_> = pulled.iter().map(|(receipt, _)| receipt).collect();
    assert_eq!(hands.ack(&receipts[..50]).await, vec![Settled::Acked; 50]);
    assert_eq!(hands.nack(1_000, &receipts[50..70]).await, vec![Settled::Delayed; 20]);
    hands.time.advance(40_000);
    hands.sweep().await;
    hands.assert_true(Q, "everything back").await;
    let numbers = hands.queues.numbers(&[Q]).await.unwrap()[0];
    assert_eq!((numbers.waiting, numbers.in_flight, numbers.delayed, numbers.acked), (62, 0, 0, 58));

    // A page of tenants is the same whichever shards they are in.
    let (mut names, mut after, mut waiting) = (Vec::new(), String::new(), 0);
    loop {
        let page = hands.queues.tenants(Q, &after, 7).await.unwrap();
        waiting += page.items.iter().map(|tenant| tenant.waiting).sum::<u64>();
        names.extend(page.items.into_iter().map(|tenant| tenant.tenant));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert!(names.is_sorted() && names.iter().collect::<BTreeSet<_>>().len() == names.len(), "{names:?}");
    assert_eq!(waiting, 62);

    // The second time each is a dead letter, in its shard.
    assert_eq!(hands.pull(1_000).await.len(), 62);
    hands.time.advance(40_000);
    hands.sweep().await;
    let mut dead = BTreeSet::new();
    let mut after = String::new();
    loop {
        let page = hands.queues.dead(Q, &after, 9).await.unwrap();
        dead.extend(page.items.iter().map(|letter| letter.message.id));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(dead.len(), 62);
    let definition = hands.bus.handle.queues(|queues| queues.get(Q).unwrap().definition.clone());
    assert_eq!(
        hands
            .queues
            .take_dead(Q, &hands.bus.handle.stamp(), &definition, DeadLetters::default())
            .await
            .unwrap(),
        62
    );
    hands.assert_true(Q, "a redrive").await;
    let handed = hands.handed(Q, PullRequest { auto_ack: true, ..pull(1_000) }).await;
    assert_eq!(handed.messages.len(), 62);
    hands.assert_true(Q, "the end").await;

    hands.push(&messages).await;
    hands.bus.handle.delete_queue(Q).await.unwrap();
    let left: Vec<String> = hands.redis.command("KEYS").arg("*queue:*").query().await.unwrap();
    let of_queue = |key: &&String| !key.ends_with("queue:|acked");
    assert_eq!(left.iter().filter(of_queue).count(), 0, "{left:?}");
}
