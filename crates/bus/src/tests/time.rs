//! No call of a script blocks Redis for long, however much waits. Usually the commands of a call are counted. The test that
//! `make soak` runs fills a server to the sizes of `docs/performance.md`, and prints the longest time of each operation.

use signalbox_store::Fabric;
use signalbox_testkit::{
    Server,
    work::{Operations, calls, commands},
};

use super::{hands::*, support::*, truth::assert_true};
use crate::store::{Taken, Target};

/// More events in a batch than one call buries.
const EVENTS: usize = 4_000;

/// The mean number of commands in a call of a script, for the calls that `work` makes.
async fn commands_per_call(redis: &Fabric, work: impl Future<Output = ()>) -> u64 {
    let (before, scripts) = (commands(redis).await, calls(redis, "evalsha").await);
    work.await;
    (commands(redis).await - before) / (calls(redis, "evalsha").await - scripts).max(1)
}

/// One lane whose next batch has [`EVENTS`] events, taken by `w`.
async fn one_large_batch(server: &Server) -> (Hands, Taken) {
    let mut hands = Hands::new(server, vec![subscriber("s", 1, 10_000, 500)]).await;
    for _ in 0..EVENTS / 400 {
        hands.publish_urls(&["a"; 400]).await;
    }
    hands.time.advance(500);
    let taken = hands.take("w").await;
    assert_eq!(taken.items.len(), EVENTS);
    (hands, taken)
}

#[tokio::test]
async fn a_large_batch_is_buried_part_by_part() {
    let server = Server::in_memory().await;
    let (hands, taken) = one_large_batch(&server).await;
    let redis = hands.store.shard().redis();
    let cost = commands_per_call(redis, async {
        let keep = (100_000, 1 << 30);
        assert!(hands.store.bury(&taken.held, 500, "500", true, keep).await.unwrap());
    })
    .await;
    assert!(cost < 1_500, "{cost} commands in a call");
    assert_eq!(number(redis, "LLEN", &["bus:dead:s"]).await, EVENTS as i64);
    assert_eq!(hands.store.audit("s", 100, &[]).await.unwrap(), []);
    assert_true(redis, "the burial").await;
}

#[tokio::test]
async fn a_list_of_dead_letters_shrinks_to_a_lower_limit_in_short_calls() {
    let server = Server::in_memory().await;
    let (mut hands, taken) = one_large_batch(&server).await;
    let redis = hands.store.shard().redis().clone();
    assert!(hands.store.bury(&taken.held, 500, "500", true, (100_000, 1 << 30)).await.unwrap());
    let mut left = EVENTS as i64;
    while left > 10 {
        hands.publish_urls(&["a"]).await;
        hands.time.advance(500);
        let taken = hands.take("w").await;
        let cost = commands_per_call(&redis, async {
            assert!(hands.store.bury(&taken.held, 500, "500", true, (10, 1 << 30)).await.unwrap());
        })
        .await;
        assert!(cost < 200, "{cost} commands in a call");
        let now = number(&redis, "LLEN", &["bus:dead:s"]).await;
        assert!(now < left, "{now} after {left}");
        left = now;
    }
    let bytes: i64 = number(&redis, "HGET", &["bus:dead.bytes", "s"]).await;
    let letters: Vec<Vec<u8>> = hands.store.dead_part("s", 0, 100).await.unwrap();
    assert_eq!(bytes, letters.iter().map(|letter| letter.len() as i64).sum::<i64>());
}

#[tokio::test]
async fn a_call_takes_a_limited_number_of_events_and_the_next_ones_take_the_others() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 16, 1_000, 500)]).await;
    let objects: Vec<String> = (0..400).map(|n| format!("o{n}")).collect();
    let objects: Vec<&str> = objects.iter().map(String::as_str).collect();
    for _ in 0..30 {
        hands.publish_urls(&objects).await;
    }
    hands.time.advance(500);
    let workers: Vec<String> = (0..64).map(|n| format!("w{n}")).collect();
    let (mut taken, mut free) = (0, &workers[..]);
    loop {
        let turn = hands.store.acquire(free, 1_000, 256).await.unwrap();
        if turn.taken.is_empty() {
            break;
        }
        let events: usize = turn.taken.iter().map(|one| one.items.len()).sum();
        assert!(events <= 3_000, "{events} events in one call");
        let jobs = turn.taken.len();
        assert!(turn.left > 0 || taken + jobs == 16, "the caller learns that there are more");
        taken += jobs;
        free = &free[jobs..];
    }
    assert_eq!(taken, 16, "each lane is taken");
}

#[tokio::test]
async fn the_gaps_of_many_lanes_move_to_many_lanes_in_a_short_call() {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 64, 100, 0)]).await;
    hands.publish_urls(&["a"]).await;
    let redis = hands.store.shard().redis().clone();
    for lane in 0..64 {
        let gaps: Vec<String> = (0..64).map(|n| format!("{} {} 1 dead", 100 + n, 100 + n)).collect();
        redis.command("RPUSH").arg(format!("bus:gaps:s:1.{lane}")).arg(gaps).run().await.unwrap();
    }
    hands.fan_out.targets[0] = Target { generation: 2, ..hands.fan_out.targets[0].clone() };
    hands.publish_urls(&["b"]).await;
    let taken = hands.take("w").await;
    assert_eq!(taken.held.generation, "1");
    let events: u64 = 64 * 64 - taken.gaps.len() as u64;
    let cost = commands_per_call(&redis, async { assert!(hands.ack(&taken).await) }).await;
    assert!(cost < 600, "{cost} commands in a call");
    let next = hands.take("w").await;
    assert_eq!(next.held.generation, "2");
    assert!(next.gaps.len() <= 64);
    let count = |gap: &String| gap.split(' ').nth(2).unwrap().parse::<u64>().unwrap();
    assert_eq!(next.gaps.iter().map(count).sum::<u64>(), events, "each event is in a gap");
}

#[tokio::test]
async fn lanes_are_removed_without_a_search_among_the_jobs_of_other_subscribers() {
    let server = Server::in_memory().await;
    let targets = vec![subscriber("s", 16, 1, 0), subscriber("other", 16, 1, 0)];
    let mut hands = Hands::new(&server, targets).await;
    let objects: Vec<String> = (0..100).map(|n| format!("o{n}")).collect();
    hands.publish_urls(&objects.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let redis = hands.store.shard().redis().clone();
    hands.end("s", "1").await;
    let before = calls(&redis, "lrem").await;
    while hands.store.purge("s", 100).await.unwrap() {}
    assert_eq!(calls(&redis, "lrem").await, before);
    let mut events = 0;
    loop {
        let turn = hands.turn(&["v", "w"]).await;
        if turn.taken.is_empty() {
            break;
        }
        for taken in turn.taken {
            assert_eq!(taken.held.token, "other");
            events += taken.items.len();
            assert!(hands.ack(&taken).await);
        }
    }
    assert_eq!(events, 100);
    assert_eq!(number(&redis, "LLEN", &["bus:jobs:instant:main"]).await, 0);
    assert_true(&redis, "the purge").await;
}

/// Events of the batches that wait in the longest test, which is the most that a batch has.
const FULL: u64 = 4_000;

/// Writes a full batch with its events' bodies into a lane, as many publishes would.
/// ARGV: lane, number of the batch, the first id, unix ms, events.
const BATCH: &str = r"
local call, lane, n, id, now, full = redis.call, ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local bid, segment = string.format('batch%015d', n), string.format('%d', math.floor(id / 64000000))
local job = cmsgpack.pack({ 'lane', { 's', 1, tonumber(lane) } })
call('RPUSH', 'bus:batch:' .. bid, 's', now, '0')
for at = 0, full - 1 do
  local text = string.format('%.0f', id + at)
  call('RPUSH', 'bus:batch:' .. bid, text)
  call('HSET', 'bus:log:' .. segment, text, text .. string.rep('x', 100))
end
call('HSET', 'bus:generations:s', '1:lanes', 64)
call('HINCRBY', 'bus:generations:s', '1', 1)
call('HINCRBY', 'bus:log:' .. segment .. ':held', 's', full)
call('HINCRBY', 'bus:log', segment, 120 * full)
call('ZADD', 'bus:batches:index', now, bid)
call('HINCRBY', 'bus:batches:gauges:event', 's', full)
call('HINCRBY', 'bus:batches:gauges:batch', 's', 1)
call('RPUSH', 'bus:batches:ready:s:1.' .. lane, bid)
if call('SADD', 'bus:jobs:index:main', job) == 1 then call('RPUSH', 'bus:jobs:instant:main', job) end
return 1";

/// The operations on a subscriber for which so many full batches wait.
async fn work_on_large_lanes(batches: u64, most: Option<u64>) {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, vec![subscriber("s", 64, FULL, 0)]).await;
    hands.options.batch_bytes = 1 << 30;
    let redis = hands.store.shard().redis().clone();
    let observed = observing(&redis, most);
    let objects: Vec<String> = (0..hands.options.call_events).map(|n| format!("o{n}")).collect();
    let objects: Vec<&str> = objects.iter().map(String::as_str).collect();
    let size = &*format!("{} waiting events, batches of {FULL}", batches * FULL);
    let first = (START_MS - crate::event::ID_EPOCH_MS) * 6_400;
    for batch in 0..batches {
        let id = first - (batches - batch) * FULL;
        number(
            &redis,
            "EVAL",
            &[
                BATCH,
                "0",
                &(batch % 64).to_string(),
                &batch.to_string(),
                &id.to_string(),
                &START_MS.to_string(),
                &FULL.to_string(),
            ],
        )
        .await;
    }
    observed.run("publish 200 events", size, hands.publish_urls(&objects)).await;
    let workers: Vec<String> = (0..64).map(|n| format!("w{n}")).collect();
    let turn =
        observed.run("acquire, 64 workers", size, hands.store.acquire(&workers, 1_000, 256)).await.unwrap();
    let mut taken = turn.taken;
    while taken.len() < 6 {
        taken.extend(hands.store.acquire(&workers[taken.len()..], 1_000, 256).await.unwrap().taken);
    }
    assert!(observed.run("ack a batch", size, hands.ack(&taken[0])).await);
    assert!(observed.run("nack a batch", size, hands.nack(&taken[1], 60_000, false)).await);
    assert!(observed.run("halve a batch", size, hands.nack(&taken[2], 60_000, true)).await);
    assert!(observed.run("bury a batch", size, hands.bury(&taken[3])).await);
    let cursor = Default::default();
    observed
        .run("skip an absent event", size, async {
            let mut cursor: [String; 5] = cursor;
            while let crate::store::Skipped::More(next) =
                hands.store.skip("s", crate::EventId(7), Some(3), (1_000, 1 << 20), &cursor).await.unwrap()
            {
                cursor = next;
            }
        })
        .await;
    observed.run("end the pauses", size, hands.store.kick("s", 0)).await.unwrap();
    observed.run("drop the oldest batch", size, hands.store.drop_oldest("s", "limit")).await.unwrap();
    observed.run("size of the events", size, hands.store.event_size("s")).await.unwrap();
    observed
        .run("measure the events", size, async {
            let mut left = usize::MAX;
            crate::housekeeping::waiting_bytes(&hands.store, "s", &mut left).await.unwrap();
        })
        .await;
    assert_eq!(observed.run("check", size, hands.store.audit("s", 2_000, &[])).await.unwrap(), []);
    observed
        .run("move the events to the part that is kept", size, async {
            let segments: Vec<u64> = hands.store.segments().await.unwrap().into_keys().collect();
            let mut next = Some(crate::store::Cursor::default());
            while let Some(cursor) = next {
                next = hands.store.keep_part("s", &segments, &cursor).await.unwrap().1;
            }
        })
        .await;
    observed
        .run("forget segments of the log", size, async {
            let segments: Vec<u64> = hands.store.segments().await.unwrap().into_keys().collect();
            hands.store.trim(&segments).await.unwrap();
        })
        .await;
    let waits = number(&redis, "HGET", &["bus:batches:gauges:event", "s"]).await;
    hands.end("s", "1").await;
    assert!(waits > (FULL * (batches - 6)).cast_signed(), "{waits}");
    observed
        .run("end a subscription", size, async {
            while hands.store.purge("s", crate::housekeeping::PURGE_PART).await.unwrap() {}
        })
        .await;
}

/// The operations on so many subscribers.
async fn work_on_many_subscribers(subscribers: usize, most: Option<u64>) {
    let server = Server::in_memory().await;
    let mut hands = Hands::new(&server, Vec::new()).await;
    let redis = hands.store.shard().redis().clone();
    let observed = observing(&redis, most);
    let size = &*format!("{subscribers} subscribers with waiting events");
    for part in 0..subscribers / 100 {
        hands.fan_out.targets = (0..100).map(|n| subscriber(&format!("s{part}:{n}"), 4, 100, 0)).collect();
        hands.fan_out.topics = vec![("t".into(), (0..100).collect())];
        hands.publish_urls(&["a", "b", "c", "d"]).await;
    }
    observed.run("publish to 100 of them", size, hands.publish_urls(&["a"])).await;
    if most.is_none() {
        hands.fan_out.targets =
            (0..1_000).map(|n| subscriber(&format!("s{}:{}", n % 100, n / 100), 4, 100, 0)).collect();
        hands.fan_out.topics = vec![("t".into(), (0..1_000).collect())];
        observed.run("publish to 1,000 of them (see below)", size, hands.publish_urls(&["a"])).await;
    }
    let workers: Vec<String> = (0..64).map(|n| format!("w{n}")).collect();
    let turn =
        observed.run("acquire, 64 workers", size, hands.store.acquire(&workers, 1_000, 256)).await.unwrap();
    observed.run("ack", size, hands.ack(&turn.taken[0])).await;
    observed.run("check one", size, hands.store.audit("s5:5", 2_000, &[])).await.unwrap();
    observed.run("drop the oldest batch", size, hands.store.drop_oldest("s5:5", "limit")).await.unwrap();
    observed.run("numbers of all", size, hands.store.numbers()).await.unwrap();
    hands.end("s6:6", "1").await;
    observed
        .run("end a subscription", size, hands.store.purge("s6:6", crate::housekeeping::PURGE_PART))
        .await
        .unwrap();

    // A subscription has no more: the next change of `concurrency` is rejected.
    let size = "4 generations of 64 lanes, 100 events in each lane";
    let objects: Vec<String> = (0..6_400).map(|n| format!("o{n}")).collect();
    hands.fan_out.topics = vec![("t".into(), vec![0])];
    for generation in 1..=4 {
        hands.fan_out.targets = vec![Target { generation, ..subscriber("g", 64, 10, 60_000) }];
        for part in objects.chunks(hands.options.call_events) {
            let part: Vec<&str> = part.iter().map(String::as_str).collect();
            if generation == 4 {
                observed
                    .run("publish 200 events, which begins a generation", size, hands.publish_urls(&part))
                    .await;
                break;
            }
            hands.publish_urls(&part).await;
        }
    }
    observed.run("acquire, 64 workers", size, hands.store.acquire(&workers, 1_000, 256)).await.unwrap();
    observed.run("end the pauses", size, hands.store.kick("g", 0)).await.unwrap();
    observed.run("check", size, hands.store.audit("g", 2_000, &[])).await.unwrap();
    observed.run("drop the oldest batch", size, hands.store.drop_oldest("g", "limit")).await.unwrap();
}

fn observing(redis: &Fabric, most: Option<u64>) -> Operations<'_, signalbox_store::FabricRole> {
    most.map_or_else(|| Operations::timed(redis), |most| Operations::counted(redis, most))
}

/// Commands of the longest call. A command of a script takes about a microsecond, or three with its share of the script.
const MAX_COMMANDS: Option<u64> = Some(2_500);

#[tokio::test]
async fn no_call_on_large_lanes_is_long() {
    work_on_large_lanes(70, MAX_COMMANDS).await;
}

#[tokio::test]
async fn no_call_on_many_subscribers_is_long() {
    work_on_many_subscribers(1_000, MAX_COMMANDS).await;
}

#[tokio::test]
#[ignore = "fills a server to the sizes of docs/performance.md and prints times; make soak"]
async fn soak_of_large_lanes() {
    work_on_large_lanes(250, None).await;
}

#[tokio::test]
#[ignore = "fills a server to the sizes of docs/performance.md and prints times; make soak"]
async fn soak_of_many_subscribers() {
    work_on_many_subscribers(10_000, None).await;
}
