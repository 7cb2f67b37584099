//! Every edge of the two diagrams, batch and job, walked on a real Redis.

use super::{hands::*, support::*, truth::*};
use crate::{
    event::lane_hash,
    store::{Holder, Target},
};
use signalbox_testkit::Server;

async fn count(hands: &Hands, command: &'static str, key: &str) -> i64 {
    number(hands.store.shard().redis(), command, &[key]).await
}

async fn states(hands: &Hands) -> [i64; 3] {
    [
        count(hands, "ZCARD", "bus:jobs:scheduled:main").await,
        count(hands, "LLEN", "bus:jobs:instant:main").await,
        count(hands, "SCARD", "bus:jobs:pending:index:main").await,
    ]
}

#[tokio::test]
async fn current_is_promoted_when_it_is_full_and_deleted_when_it_is_delivered() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 2, 500)]).await;
    let first = hands.publish_urls(&["a"]).await;
    assert_eq!(count(&hands, "HLEN", "bus:batches:current:s").await, 2, "lane and its bytes");
    assert_eq!(states(&hands).await, [1, 0, 0], "it waits to fill");
    assert_true(hands.store.shard().redis(), "a first event").await;
    let second = hands.publish_urls(&["b"]).await;
    assert_eq!(count(&hands, "EXISTS", "bus:batches:current:s").await, 0);
    assert_eq!(count(&hands, "LLEN", "bus:batches:ready:s:1.0").await, 1);
    assert_eq!(states(&hands).await, [0, 1, 0], "full: immediately");
    assert_true(hands.store.shard().redis(), "a full batch").await;
    let taken = hands.take("w").await;
    assert_eq!(taken.items, [first[0].to_string(), second[0].to_string()]);
    assert_eq!((taken.created_ms, taken.attempts, taken.health), (START_MS, 0, 100));
    assert_eq!(states(&hands).await, [0, 0, 1]);
    assert!(hands.ack(&taken).await);
    assert_eq!(states(&hands).await, [0, 0, 0]);
    assert_eq!(count(&hands, "EXISTS", &format!("bus:batch:{}", taken.held.batch)).await, 0);
    assert_eq!(count(&hands, "ZCARD", "bus:batches:index").await, 0);
    assert_true(hands.store.shard().redis(), "the acknowledgement").await;
}

#[tokio::test]
async fn current_is_delivered_when_it_is_stale() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 100, 500)]).await;
    hands.publish_urls(&["a"]).await;
    hands.time.advance(499);
    let turn = hands.turn(&["w"]).await;
    assert_eq!((turn.taken.len(), turn.next_due_ms), (0, Some(START_MS + 500)));
    hands.time.advance(1);
    let taken = hands.take("w").await;
    assert_eq!(taken.items.len(), 1);
    assert_true(hands.store.shard().redis(), "taking a stale batch").await;
    assert!(hands.ack(&taken).await);
    assert_true(hands.store.shard().redis(), "its acknowledgement").await;
}

#[tokio::test]
async fn a_failed_job_waits_for_its_time_and_a_publish_does_not_shorten_that() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 2, 0)]).await;
    hands.publish_urls(&["a", "b"]).await;
    let taken = hands.take("w").await;
    assert!(hands.nack(&taken, 10_000, false).await);
    assert_eq!(states(&hands).await, [1, 0, 0]);
    hands.publish_urls(&["c"]).await;
    assert_eq!(states(&hands).await, [1, 0, 0], "a batch that fills");
    hands.publish_urls(&["d", "e"]).await;
    assert_eq!(states(&hands).await, [1, 0, 0], "two full batches, and still it pauses");
    hands.time.advance(9_999);
    assert_eq!(hands.turn(&["w"]).await.taken.len(), 0);
    assert_true(hands.store.shard().redis(), "the pause").await;
    hands.time.advance(1);
    let again = hands.take("w").await;
    assert_eq!(
        (again.held.batch.clone(), again.attempts),
        (taken.held.batch, 1),
        "the same batch, one attempt on"
    );
    assert_eq!(again.health, 98);
}

#[tokio::test]
async fn a_scrubbed_job_is_instant_again_and_its_old_worker_commits_nothing() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1, 0)]).await;
    hands.publish_urls(&["a"]).await;
    let taken = hands.take("w").await;
    let beats = hands.store.heartbeats().await.unwrap();
    assert_eq!(beats, [("w".to_owned(), START_MS.to_string())]);
    assert_eq!(hands.store.scrub("w", &beats[0].1).await.unwrap(), Some(1));
    assert_eq!(states(&hands).await, [0, 1, 0]);
    assert_true(hands.store.shard().redis(), "the scrub").await;
    let other = hands.take("v").await;
    assert_eq!((other.held.batch.clone(), other.attempts), (taken.held.batch.clone(), 1));
    assert!(!hands.ack(&taken).await, "it was taken away");
    assert!(!hands.nack(&taken, 0, false).await);
    assert!(!hands.bury(&taken).await);
    assert_true(hands.store.shard().redis(), "what the old worker tried").await;
    assert!(hands.ack(&other).await);
}

/// Routemaster scrubbed every slow worker, and the job ran twice.
#[tokio::test]
async fn a_slow_but_living_worker_is_not_scrubbed() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1, 0)]).await;
    hands.publish_urls(&["a"]).await;
    let taken = hands.take("w").await;
    let seen = hands.store.heartbeats().await.unwrap()[0].1.clone();
    hands.time.advance(3_600_000);
    assert_eq!(hands.store.beat(&["w".into(), "nobody".into()]).await.unwrap(), 1);
    assert_eq!(hands.store.scrub("w", &seen).await.unwrap(), None, "its heart has beaten since");
    assert!(hands.ack(&taken).await);
    assert_eq!(count(&hands, "HLEN", "bus:workers").await, 0, "who holds nothing is not noted");
}

/// In Routemaster, enqueueing a pending job had no effect, and work that arrived in the meantime was not noticed.
#[tokio::test]
async fn work_that_arrives_while_the_job_is_pending_is_found_when_it_is_acknowledged() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 2, 500)]).await;
    hands.publish_urls(&["a", "b"]).await;
    let taken = hands.take("w").await;
    hands.publish_urls(&["c"]).await;
    assert_eq!(states(&hands).await, [0, 0, 1], "one job, and it is pending");
    assert!(hands.ack(&taken).await);
    assert_eq!(states(&hands).await, [1, 0, 0], "a batch fills: scheduled");
    assert_true(hands.store.shard().redis(), "a batch that fills").await;
    hands.publish_urls(&["d", "e"]).await;
    let taken = hands.take("w").await;
    hands.publish_urls(&["f"]).await;
    assert!(hands.ack(&taken).await);
    assert_eq!(states(&hands).await, [0, 1, 0], "a full batch waits: instant");
    assert_true(hands.store.shard().redis(), "a full batch").await;
}

#[tokio::test]
async fn a_batch_that_filled_up_for_its_time_while_pending_is_instant() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 100, 500)]).await;
    hands.publish_urls(&["a"]).await;
    hands.time.advance(500);
    let taken = hands.take("w").await;
    hands.publish_urls(&["b"]).await;
    hands.time.advance(500);
    assert!(hands.ack(&taken).await);
    assert_eq!(states(&hands).await, [0, 1, 0]);
}

#[tokio::test]
async fn a_lane_never_has_two_batches_in_flight() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1, 0)]).await;
    hands.publish_urls(&["a", "b", "c", "d"]).await;
    let turn = hands.turn(&["w", "x", "y", "z"]).await;
    assert_eq!(turn.taken.len(), 1);
    assert_eq!(hands.turn(&["x", "y", "z"]).await.taken.len(), 0);
}

#[tokio::test]
async fn a_repeated_acquisition_returns_what_the_worker_holds() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 4, 1, 0)]).await;
    hands.publish_urls(&["a", "b", "c", "d", "e", "f", "g"]).await;
    let first = hands.take("w").await;
    assert_eq!(hands.take("w").await, first);
    assert_true(hands.store.shard().redis(), "a repeated acquisition").await;
}

/// The reply of an acknowledgement is lost, and the worker already holds the lane's next batch when it repeats it.
#[tokio::test]
async fn a_repeated_acknowledgement_does_not_take_the_next_batch() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1, 0)]).await;
    hands.publish_urls(&["a", "b"]).await;
    let first = hands.take("w").await;
    assert!(hands.ack(&first).await);
    let second = hands.take("w").await;
    assert_eq!(second.held.job, first.held.job);
    assert!(!hands.ack(&first).await);
    assert_eq!(hands.take("w").await, second);
    assert_true(hands.store.shard().redis(), "a repeated acknowledgement").await;
}

#[tokio::test]
async fn a_failing_batch_is_halved_in_place() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 5, 0)]).await;
    let ids: Vec<String> =
        hands.publish_urls(&["a", "b", "c", "d", "e", "f", "g"]).await.iter().map(u64::to_string).collect();
    let taken = hands.take("w").await;
    assert_eq!(taken.items, ids[..5]);
    assert!(hands.nack(&taken, 0, true).await);
    assert_true(hands.store.shard().redis(), "the split").await;
    let mut parts = Vec::new();
    for _ in 0..3 {
        let part = hands.take("w").await;
        parts.push((part.items.clone(), part.attempts));
        assert!(hands.ack(&part).await);
    }
    assert_eq!(parts, [(ids[..3].to_vec(), 1), (ids[3..5].to_vec(), 0), (ids[5..].to_vec(), 0)]);
    assert_true(hands.store.shard().redis(), "all of it").await;
}

#[tokio::test]
async fn an_exhausted_batch_leaves_dead_letters_and_a_gap_that_is_reported_once() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 2, 0)]).await;
    let ids = hands.publish_urls(&["a", "b", "c"]).await;
    let taken = hands.take("w").await;
    assert!(hands.bury(&taken).await);
    assert_true(hands.store.shard().redis(), "the burial").await;
    let letters = hands.store.dead_part("s", 0, 10).await.unwrap();
    let dead: Vec<_> = letters.iter().map(|letter| crate::DeadLetter::read(letter).unwrap().0).collect();
    assert_eq!(dead.len(), 2);
    assert_eq!((dead[0].attempts, &*dead[0].reason, dead[0].died_ms), (1, "500", START_MS));
    assert_eq!(dead[1].event.id.0, ids[1]);
    let next = hands.take("w").await;
    assert_eq!(next.items, [ids[2].to_string()]);
    assert_eq!(next.gaps, [format!("{} {} 2 dead", ids[0], ids[1])]);
    assert!(hands.nack(&next, 0, false).await);
    let again = hands.take("w").await;
    assert_eq!(again.gaps, next.gaps, "not delivered, so not reported");
    assert!(hands.ack(&again).await);
    hands.publish_urls(&["a"]).await;
    assert_eq!(hands.take("w").await.gaps, [""; 0]);
}

#[tokio::test]
async fn a_new_generation_waits_until_the_old_one_is_empty() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 100, 60_000)]).await;
    hands.publish_urls(&["a"]).await;
    hands.fan_out.targets[0] = Target { generation: 2, concurrency: 4, ..hands.fan_out.targets[0].clone() };
    hands.fan_out.targets[0].max_events = 1;
    hands.publish_urls(&["a", "b", "c", "d", "e"]).await;
    assert_true(hands.store.shard().redis(), "the change").await;
    let turn = hands.turn(&["v", "w", "x", "y", "z"]).await;
    assert_eq!(turn.taken.len(), 1, "the old batch, promoted; all else waits: {turn:?}");
    assert_eq!(turn.taken[0].held.generation, "1");
    assert_true(hands.store.shard().redis(), "waiting").await;
    assert!(hands.bury(&turn.taken[0]).await);
    assert_true(hands.store.shard().redis(), "the end of the generation").await;
    let turn = hands.turn(&["v", "w", "x", "y", "z"]).await;
    assert!(turn.taken.len() > 1, "{turn:?}");
    assert!(turn.taken.iter().all(|taken| taken.held.generation == "2"));
    assert!(
        turn.taken.iter().all(|taken| taken.gaps.len() == 1),
        "every new lane reports the gaps of the old one"
    );
}

#[tokio::test]
async fn an_unreadable_job_stops_no_worker() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 1, 0)]).await;
    let redis = hands.store.shard().redis().clone();
    for bad in ["rubbish", "\u{1}", "\u{2}x"] {
        number(&redis, "RPUSH", &["bus:jobs:instant:main", bad]).await;
        number(&redis, "SADD", &["bus:jobs:index:main", bad]).await;
    }
    hands.publish_urls(&["a"]).await;
    let taken = hands.take("w").await;
    assert!(hands.ack(&taken).await);
    assert_true(&redis, "bad jobs").await;
}

#[tokio::test]
async fn a_lane_that_cannot_be_read_does_not_stop_those_behind_it() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 3, 1, 0)]).await;
    let redis = hands.store.shard().redis().clone();
    // Objects of three lanes.
    let of_lane = |lane| (0..).map(|n: u32| n.to_string()).find(|url| lane_hash(url) % 3 == lane).unwrap();
    for lane in 0..3 {
        hands.publish_urls(&[&of_lane(lane)]).await;
    }
    let first = hands.take("w").await;
    let holder = Holder { worker: "w".to_owned(), job: first.held.job.clone() };
    let mut behind = Vec::new();
    for worker in ["x", "y"] {
        let taken = hands.take(worker).await;
        assert!(hands.store.refuse(&taken.held, Some(&holder), 50).await.unwrap());
        behind.push(taken.held);
    }
    let damaged = format!("bus:gaps:s:{}.{}", behind[0].generation, behind[0].lane);
    number(&redis, "APPEND", &[&damaged, "x"]).await;
    assert!(hands.nack(&first, 3_600_000, false).await);
    let taken = hands.take("x").await;
    assert_eq!(taken.held.lane, behind[1].lane);
}

#[tokio::test]
async fn ten_thousand_due_jobs_are_promoted_in_ten_calls() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, Vec::new()).await;
    for part in 0..100 {
        hands.fan_out.targets = (0..100).map(|n| subscriber(&format!("s{part}:{n}"), 1, 100, 1000)).collect();
        hands.fan_out.topics = vec![("t".into(), (0..100).collect())];
        hands.publish_urls(&["a"]).await;
    }
    assert_eq!(states(&hands).await, [10_000, 0, 0]);
    hands.time.advance(1000);
    for _ in 0..10 {
        let turn = hands.turn(&["w"]).await;
        assert!(hands.ack(&turn.taken[0]).await);
    }
    assert_eq!(states(&hands).await, [0, 9_990, 0]);
}

#[tokio::test]
async fn a_batch_is_capped_in_bytes() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 1, 100, 500)]).await;
    hands.options.batch_bytes = 950;
    let big = "x".repeat(400);
    hands.publish_urls(&["a", "b", "c", "d", "e", "f", "g", "h", "i", &big, &big]).await;
    hands.time.advance(500);
    let mut sizes = Vec::new();
    loop {
        let turn = hands.turn(&["w"]).await;
        let Some(taken) = turn.taken.first() else { break };
        sizes.push(taken.items.len());
        assert!(hands.ack(taken).await);
    }
    assert_eq!(sizes.iter().sum::<usize>(), 11);
    assert!(sizes.iter().all(|size| *size <= 8), "{sizes:?}");
    assert_eq!(sizes[sizes.len() - 2..], [1, 1], "one event always fits: {sizes:?}");
    assert_true(hands.store.shard().redis(), "all of it").await;
}

#[tokio::test]
async fn a_subscription_that_ends_is_cleared_away_part_by_part_and_its_worker_commits_nothing() {
    let server = Server::in_memory().await;
    let mut hands =
        Hands::new(&server, vec![subscriber("s", 4, 1, 60_000), subscriber("other", 1, 100, 0)]).await;
    for n in 0..40 {
        hands.publish_urls(&[&format!("a{n}")]).await;
    }
    hands.fan_out.targets[0].max_events = 100;
    hands.publish_urls(&["x", "y", "z"]).await;
    let turn = hands.turn(&["v", "w"]).await;
    let held = turn.taken.iter().find(|taken| taken.held.token == "s").expect("a job of it").clone();
    let redis = hands.store.shard().redis().clone();
    hands.end("s", "1").await;
    // One pacemaker removes a part and dies; another continues.
    assert!(hands.store.purge("s", 77).await.unwrap());
    let left = number(&redis, "HGET", &["bus:generations:s", "1"]).await;
    assert!((30..40).contains(&left), "{left}");
    // The client subscribes again in the meantime: the new lanes are not removed.
    hands.fan_out.targets[0].generation = 2;
    let ids = hands.publish_urls(&["x"]).await;
    while hands.store.purge("s", 7).await.unwrap() {}
    assert!(!hands.ack(&held).await, "its batch is gone");
    assert_eq!(number(&redis, "HLEN", &["bus:purge"]).await, 0);
    // The worker asks again, and what it held leads nowhere.
    hands.time.advance(60_000);
    let mut got = Vec::new();
    for _ in 0..4 {
        for taken in hands.turn(&["v", "w"]).await.taken {
            assert!(hands.ack(&taken).await);
            got.extend((taken.held.token == "s").then_some(taken.items));
        }
    }
    assert_eq!(got, [[ids[0].to_string()]]);
    assert_true(&redis, "the purge").await;
    assert_eq!(number(&redis, "HLEN", &["bus:batches:gauges:event"]).await, 0);
}
