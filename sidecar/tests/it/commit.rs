//! The two scripts on a real Redis.

use std::{fs, time::Duration};

use signalbox_sidecar::{
    commit::{Claim, Commit, Outcome, RedisStore, Store, Tally, Window},
    fold::{Fold, Increments, Limits},
    follow::Follower,
    place::{FileId, Fingerprint, Place},
};
use signalbox_store::{Kind, Stats};
use signalbox_testkit::Server;
use tokio::runtime::Runtime;

use crate::sample::{line, line_at};

struct Bench {
    redis: Server,
    runtime: Runtime,
    stats: Stats,
}

impl Bench {
    fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let (redis, stats) = runtime.block_on(async {
            let redis = Server::durable().await;
            let stats = redis.open();
            (redis, stats)
        });
        Self { redis, runtime, stats }
    }

    fn store(&self, owner: &str) -> RedisStore {
        RedisStore::new(self.stats.clone(), self.runtime.handle().clone(), "n1", owner)
    }

    fn hash(&self, key: &str) -> Vec<String> {
        let mut fields: Vec<_> = self
            .redis
            .cli(&["HGETALL", key])
            .lines()
            .collect::<Vec<_>>()
            .chunks(2)
            .map(|pair| pair.join("="))
            .collect();
        fields.sort();
        fields
    }
}

fn owned(claim: Claim) -> (Place, Tally) {
    match claim {
        Claim::Owned { place, tally, window: None } => (place, tally),
        Claim::Owned { window, .. } => panic!("a window under way: {window:?}"),
        Claim::Fenced { owner } => panic!("fenced by {owner}"),
    }
}

fn fold(lines: &[String]) -> Fold {
    let mut fold = Fold::default();
    lines.iter().for_each(|line| fold.line(line.as_bytes()));
    fold
}

fn at(position: u64) -> Place {
    Place {
        generation: 1,
        file: Some(FileId { device: 7, inode: 8 }),
        fingerprint: Fingerprint::of(b"first\n"),
        position,
        ..Place::default()
    }
}

fn commit(store: &mut RedisStore, from: &Place, to: &Place, fold: &Fold) -> Outcome {
    let increments = fold.increments();
    store.commit(&whole(from, to, fold, &increments)).unwrap()
}

fn whole<'a>(from: &'a Place, to: &'a Place, fold: &'a Fold, increments: &'a Increments) -> Commit<'a> {
    let part = increments.whole();
    Commit { from, to, under_way: None, then: None, part, fold, gaps: 0, gap_bytes: 0 }
}

const DONE: Outcome = Outcome::Committed { refused: 0 };

#[test]
fn counters_and_position_move_together_and_only_once() {
    let bench = Bench::new();
    let mut store = bench.store("a");
    let (start, _) = owned(store.claim(false).unwrap());
    assert_eq!(start, Place::default());
    let lines = fold(&[line("17"), line("17"), line("null"), "garbage".into()]);
    assert_eq!(commit(&mut store, &start, &at(900), &lines), DONE);
    assert_eq!(
        commit(&mut store, &start, &at(900), &lines),
        Outcome::Elsewhere,
        "the reply was lost, and it repeats"
    );
    assert_eq!(
        bench.hash("stat:17"),
        ["200=2", "2xx=2", "bytes=1024", "nginxtime=10", "requests=2", "time=8", "timecount=2"]
    );
    assert_eq!(bench.hash("stat:null").len(), 7);
    assert_eq!(bench.hash("history:17:4102444800:requests"), ["4102446131=2"]);
    assert_eq!(bench.hash("rollup:17:4102444800:bytes"), ["4102446120=1024"]);
    assert_eq!(bench.redis.cli(&["GET", "position:n1"]), "900");
    assert_eq!(bench.redis.cli(&["HGET", "position:n1:file", "bad_sample"]), "garbage");
    let (place, tally) = owned(store.claim(true).unwrap());
    assert_eq!(place, at(900));
    assert_eq!(tally, Tally { lines: 3, bad_lines: 1, gaps: 0, gap_bytes: 0 });
}

#[test]
fn history_expires_by_its_hour() {
    let bench = Bench::new();
    let mut store = bench.store("a");
    let (start, _) = owned(store.claim(false).unwrap());
    // Redis immediately deletes expired keys, so the time must be close to now.
    let now: u64 = bench.redis.cli(&["TIME"]).lines().next().unwrap().parse().unwrap();
    let hour = now - now % 3600;
    assert_eq!(commit(&mut store, &start, &at(9), &fold(&[line_at("17", now * 1000)])), DONE);
    let expires = |key: &str| bench.redis.cli(&["EXPIRETIME", key]).parse::<u64>().unwrap();
    assert_eq!(expires(&format!("history:17:{hour}:requests")), hour + 3 * 3600);
    assert_eq!(expires(&format!("rollup:17:{hour}:requests")), hour + 3600 + 14 * 86_400);
    assert_eq!(expires(&format!("latency:17:{hour}:6")), hour + 3600 + 14 * 86_400);
    assert_eq!(expires(&format!("instance_latency:127.0.0.1:9001:{hour}:6")), hour + 3600 + 2 * 86_400);
    assert_eq!(bench.redis.cli(&["TTL", "stat:17"]), "-1");
    let minute = now - now % 60;
    assert_eq!(expires(&format!("ranking:{minute}:requests")), minute + 60 + 600);
}

#[test]
fn a_ranking_adds_up_and_keeps_the_highest_numbers() {
    let bench = Bench::new();
    let mut store = bench.store("a");
    let (start, _) = owned(store.claim(false).unwrap());
    let now: u64 = bench.redis.cli(&["TIME"]).lines().next().unwrap().parse().unwrap();
    let ranking = format!("ranking:{}:requests", now - now % 60);
    let fill = "for n = 2, 12000 do redis.call('ZADD', KEYS[1], n / 10, 'v' .. n) end";
    bench.redis.cli(&["EVAL", fill, "1", &ranking]);
    let one = line_at("zz", now * 1000);
    assert_eq!(commit(&mut store, &start, &at(9), &fold(&[one.clone(), one.clone()])), DONE);
    assert_eq!(bench.redis.cli(&["ZSCORE", &ranking, "zz"]), "2");
    assert_eq!(bench.redis.cli(&["ZCARD", &ranking]), "12000", "it may grow a little before it is cut");
    let many: Vec<String> = (0..1000).map(|_| line_at("zz", now * 1000)).collect();
    let lines = fold(&[many, vec![line_at("new", now * 1000)]].concat());
    assert_eq!(commit(&mut store, &at(9), &at(20), &lines), DONE);
    assert_eq!(bench.redis.cli(&["ZCARD", &ranking]), "10000");
    assert_eq!(bench.redis.cli(&["ZSCORE", &ranking, "zz"]), "1002");
    assert_eq!(bench.redis.cli(&["ZSCORE", &ranking, "v2000"]), "");
    assert_eq!(bench.redis.cli(&["ZRANGE", &ranking, "0", "0", "REV"]), "v12000");
}

#[test]
fn a_commit_from_another_place_changes_nothing() {
    let bench = Bench::new();
    let mut store = bench.store("a");
    let (start, _) = owned(store.claim(false).unwrap());
    let lines = fold(&[line("17")]);
    let wrong = [Place { position: 1, ..start.clone() }, Place { generation: 3, ..start.clone() }];
    for from in &wrong {
        assert_eq!(commit(&mut store, from, &at(900), &lines), Outcome::Elsewhere);
    }
    assert_eq!(bench.redis.cli(&["EXISTS", "stat:17", "position:n1"]), "0");
}

#[test]
fn the_newest_process_takes_over_and_the_other_is_fenced() {
    let bench = Bench::new();
    let (mut old, mut new) = (bench.store("old"), bench.store("new"));
    let (start, _) = owned(old.claim(false).unwrap());
    assert_eq!(commit(&mut old, &start, &at(10), &fold(&[line("17")])), DONE);
    let (place, _) = owned(new.claim(false).unwrap());
    assert_eq!(place, at(10), "it continues where the old one stopped");
    assert_eq!(commit(&mut old, &at(10), &at(20), &fold(&[line("17")])), Outcome::Elsewhere);
    assert_eq!(old.claim(true).unwrap(), Claim::Fenced { owner: "new".into() });
    assert_eq!(commit(&mut new, &at(10), &at(20), &fold(&[line("17")])), DONE);
    assert_eq!(bench.redis.cli(&["HGET", "stat:17", "requests"]), "2");
}

#[test]
fn an_idle_commit_writes_nothing() {
    let bench = Bench::new();
    let mut store = bench.store("a");
    let (start, _) = owned(store.claim(false).unwrap());
    commit(&mut store, &start, &at(10), &fold(&[line("17")]));
    let before = bench.redis.snapshot();
    assert_eq!(commit(&mut store, &at(10), &at(10), &Fold::default()), DONE);
    assert_eq!(bench.redis.snapshot(), before);
}

/// Three parts of a window. The middle one fails in every way that a network can fail.
#[test]
fn a_part_that_is_repeated_or_late_changes_nothing() {
    let bench = Bench::new();
    let mut store = bench.store("a");
    let (start, _) = owned(store.claim(false).unwrap());
    let lines = fold(&[line("17"), line("18"), line("19"), "garbage".into()]);
    let increments = lines.increments();
    let size = increments.len().div_ceil(3);
    let end = at(900);
    let window = |done| Window { done, ..Window::new(900, 3, increments.digest()) };
    let part = |done: u32| Commit {
        under_way: (done > 0).then(|| window(done)),
        then: window(done).next(),
        part: increments.part(done, size),
        ..whole(&start, &end, &lines, &increments)
    };
    let state = || {
        let keys = bench.redis.cli(&["KEYS", "*"]);
        let mut keys: Vec<_> = keys.lines().filter(|key| !key.starts_with("position:n1")).collect();
        keys.sort_unstable();
        let position = bench.redis.cli(&["GET", "position:n1"]);
        let counters: Vec<_> = keys.iter().map(|key| (key.to_string(), bench.hash(key))).collect();
        (position, bench.hash("position:n1:file"), counters)
    };
    for done in 0..3 {
        assert_eq!(store.commit(&part(done)).unwrap(), DONE);
        let after = state();
        for other in (0..3).filter(|other| *other != done + 1) {
            assert_eq!(store.commit(&part(other)).unwrap(), Outcome::Elsewhere, "{other} after {done}");
        }
        // Neither does a window of other lines, one that was folded differently, or one script for all of it.
        for other in [Window { format: 99, ..window(done + 1) }, Window { digest: 1, ..window(done + 1) }] {
            let commit = Commit { under_way: Some(other), ..part(done) };
            assert_eq!(store.commit(&commit).unwrap(), Outcome::Elsewhere);
        }
        if done < 2 {
            assert_eq!(commit(&mut store, &start, &end, &lines), Outcome::Elsewhere);
            assert_eq!(after.0, "", "the position waits for the last part");
            let Claim::Owned { place, tally, window: stored } = store.claim(true).unwrap() else { panic!() };
            assert_eq!((place, tally, stored), (start.clone(), Tally::default(), Some(window(done + 1))));
        }
        assert_eq!(state(), after);
    }
    let (place, tally) = owned(store.claim(true).unwrap());
    assert_eq!((place, tally), (at(900), Tally { lines: 3, bad_lines: 1, gaps: 0, gap_bytes: 0 }));
    let in_parts = state();
    let other = Bench::new();
    let mut store = other.store("a");
    store.claim(false).unwrap();
    commit(&mut store, &start, &end, &lines);
    for (key, fields) in in_parts.2 {
        assert_eq!(other.hash(&key), fields, "{key} in one script");
    }
}

#[test]
fn a_full_memory_rejects_a_whole_part() {
    let bench = Bench::new();
    let mut store = bench.store("a");
    let (start, _) = owned(store.claim(false).unwrap());
    let lines = fold(&[line("17")]);
    let increments = lines.increments();
    let window = Window::new(9, 2, increments.digest());
    let end = at(9);
    let first = Commit {
        then: window.next(),
        part: increments.part(0, 12),
        ..whole(&start, &end, &lines, &increments)
    };
    bench.redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(store.commit(&first).unwrap_err().kind(), Kind::Refused);
    assert_eq!(bench.redis.cli(&["EXISTS", "stat:17"]), "0");
    assert_eq!(bench.redis.cli(&["HEXISTS", "position:n1:file", "window"]), "0");
    bench.redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(store.commit(&first).unwrap(), DONE);
}

#[test]
fn every_hash_of_an_hour_expires_however_it_was_cut() {
    let bench = Bench::new();
    let mut store = bench.store("a");
    let now: u64 = bench.redis.cli(&["TIME"]).lines().next().unwrap().parse().unwrap();
    store.claim(false).unwrap();
    let log = tempfile::tempdir().unwrap();
    let path = log.path().join("access.log");
    // A hash of another program without an expiry gets one with its next field.
    let hour = now - now % 3600;
    bench.redis.cli(&["HSET", &format!("history:3:{hour}:requests"), "1", "1"]);
    let text: String = (0..60).map(|n| line_at(n % 7, (hour + n) * 1000) + "\n").collect();
    fs::write(&path, text).unwrap();
    let limits = Limits { part: 5, ..Limits::default() };
    let mut follower = Follower::with_limits(path, bench.store("b"), limits);
    let mut steps = 0;
    while follower.step(Duration::from_secs(9)).unwrap().more || steps < 3 {
        steps += 1;
    }
    assert!(steps > 50, "{steps} parts");
    let keys = bench.redis.cli(&["KEYS", "[hr]*:*:*:*"]);
    assert!(keys.lines().count() > 50);
    for key in keys.lines() {
        assert_ne!(bench.redis.cli(&["TTL", key]), "-1", "{key}");
    }
}

#[test]
fn a_key_of_the_wrong_type_loses_only_its_own_counters() {
    let bench = Bench::new();
    bench.redis.cli(&["SET", "stat:17", "mine"]);
    bench.redis.cli(&["HSET", "stat:18", "requests", "many"]);
    let mut store = bench.store("a");
    let (start, _) = owned(store.claim(false).unwrap());
    bench.redis.cli(&["SET", "ranking:4102446120:requests", "mine"]);
    let lines = fold(&[line("17"), line("18"), line("19")]);
    assert_eq!(commit(&mut store, &start, &at(900), &lines), Outcome::Committed { refused: 11 });
    assert_eq!(bench.redis.cli(&["HGET", "stat:18", "bytes"]), "512");
    assert_eq!(bench.redis.cli(&["HGET", "stat:19", "requests"]), "1");
    assert_eq!(bench.redis.cli(&["GET", "position:n1"]), "900");
}

#[test]
fn a_full_memory_rejects_the_whole_commit() {
    let bench = Bench::new();
    let mut store = bench.store("a");
    let (start, _) = owned(store.claim(false).unwrap());
    let lines = fold(&[line("17")]);
    bench.redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = store.commit(&whole(&start, &at(9), &lines, &lines.increments())).unwrap_err();
    assert_eq!(error.kind(), Kind::Refused);
    assert_eq!(bench.redis.cli(&["EXISTS", "stat:17", "position:n1"]), "0");
    bench.redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(commit(&mut store, &start, &at(9), &lines), DONE);
}

#[test]
fn lines_that_redis_lost_are_counted_again_even_from_rotated_files() {
    let mut bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let write = |keys: std::ops::Range<u32>| {
        let text: String = keys.map(|key| line(key) + "\n").collect();
        let before = fs::read_to_string(&log).unwrap_or_default();
        fs::write(&log, before + &text).unwrap();
    };
    let mut now = Duration::ZERO;
    // Every window has many parts, so that the loss ends in the middle of one.
    let limits = Limits { part: 9, ..Limits::default() };
    let mut follower = Follower::with_limits(log.clone(), bench.store("a"), limits);
    let mut rest = |follower: &mut Follower<RedisStore>| {
        let mut resting = 0;
        for _ in 0..2_000 {
            if resting == 3 {
                return;
            }
            now += Duration::from_secs(2);
            // The first command after a restart of Redis finds a dead connection.
            match follower.step(now) {
                Ok(step) if !step.more && !step.committed => resting += 1,
                _ => resting = 0,
            }
        }
        panic!("the follower never rests");
    };
    write(0..30);
    rest(&mut follower);
    write(30..50);
    for _ in 0..4 {
        assert!(follower.step(Duration::from_secs(10_000)).unwrap().more);
    }
    assert_ne!(bench.redis.cli(&["HGET", "position:n1:file", "window"]), "", "in mid-window");
    let saved = bench.redis.snapshot();
    rest(&mut follower);
    fs::rename(&log, folder.path().join("access.log.1")).unwrap();
    write(50..60);
    rest(&mut follower);
    assert_eq!(follower.tally().lines, 60);
    bench.runtime.block_on(bench.redis.lose_writes_since(&saved));
    assert_eq!(
        bench.redis.cli(&["EXISTS", "stat:29", "stat:30", "stat:49", "stat:55"]),
        "2",
        "the loss is real"
    );
    rest(&mut follower);
    for key in 0..60 {
        assert_eq!(bench.redis.cli(&["HGET", &format!("stat:{key}"), "requests"]), "1", "line {key}");
    }
    assert_eq!(follower.tally(), Tally { lines: 60, ..Tally::default() });
}
