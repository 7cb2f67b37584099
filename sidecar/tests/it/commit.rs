//! The two scripts on a real Redis.

use std::{fs, time::Duration};

use signalbox_sidecar::{
    commit::{Claim, Commit, Outcome, RedisStore, Store, Tally},
    fold::Fold,
    follow::Follower,
    place::{FileId, Fingerprint, Place},
};
use signalbox_store::{Kind, Options, Redis, Stats};
use tokio::runtime::Runtime;

use crate::{
    redis::RedisServer,
    sample::{line, line_at},
};

struct Bench {
    redis: RedisServer,
    runtime: Runtime,
    stats: Stats,
}

impl Bench {
    fn new() -> Self {
        let redis = RedisServer::start();
        let runtime = Runtime::new().unwrap();
        let stats = {
            let _inside = runtime.enter();
            Redis::open(&redis.url(), Options::default()).unwrap()
        };
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
        Claim::Owned { place, tally } => (place, tally),
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
    store.commit(&Commit { from, to, fold, gaps: 0, gap_bytes: 0 }).unwrap()
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
    assert_eq!(bench.hash("history:17:1795266000:requests"), ["1795267331=2"]);
    assert_eq!(bench.hash("rollup:17:1795266000:bytes"), ["1795267320=1024"]);
    assert_eq!(bench.redis.cli(&["GET", "position:n1"]), "900");
    assert_eq!(bench.redis.cli(&["HGET", "position:n1:file", "bad_sample"]), "garbage");
    let (place, tally) = owned(store.claim(true).unwrap());
    assert_eq!(place, at(900));
    assert_eq!(tally, Tally { lines: 3, bad_lines: 1, gaps: 0, gap_bytes: 0 });
}

#[test]
fn history_goes_by_its_hour() {
    let bench = Bench::new();
    let mut store = bench.store("a");
    let (start, _) = owned(store.claim(false).unwrap());
    // Redis deletes at once what has expired already, so this must be about now.
    let now: u64 = bench.redis.cli(&["TIME"]).lines().next().unwrap().parse().unwrap();
    let hour = now - now % 3600;
    assert_eq!(commit(&mut store, &start, &at(9), &fold(&[line_at("17", now * 1000)])), DONE);
    let expires = |key: &str| bench.redis.cli(&["EXPIRETIME", key]).parse::<u64>().unwrap();
    assert_eq!(expires(&format!("history:17:{hour}:requests")), hour + 3 * 3600);
    assert_eq!(expires(&format!("rollup:17:{hour}:requests")), hour + 3600 + 14 * 86_400);
    assert_eq!(bench.redis.cli(&["TTL", "stat:17"]), "-1");
}

#[test]
fn a_commit_from_anywhere_else_changes_nothing() {
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
fn the_newest_starter_takes_over_and_the_other_is_fenced() {
    let bench = Bench::new();
    let (mut old, mut new) = (bench.store("old"), bench.store("new"));
    let (start, _) = owned(old.claim(false).unwrap());
    assert_eq!(commit(&mut old, &start, &at(10), &fold(&[line("17")])), DONE);
    let (place, _) = owned(new.claim(false).unwrap());
    assert_eq!(place, at(10), "it goes on where the old one stopped");
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
    let before = bench.redis.saved();
    assert_eq!(commit(&mut store, &at(10), &at(10), &Fold::default()), DONE);
    assert_eq!(bench.redis.saved(), before);
}

#[test]
fn a_foreign_key_in_the_way_costs_its_own_counters_only() {
    let bench = Bench::new();
    bench.redis.cli(&["SET", "stat:17", "mine"]);
    bench.redis.cli(&["HSET", "stat:18", "requests", "many"]);
    let mut store = bench.store("a");
    let (start, _) = owned(store.claim(false).unwrap());
    let lines = fold(&[line("17"), line("18"), line("19")]);
    assert_eq!(commit(&mut store, &start, &at(900), &lines), Outcome::Committed { refused: 8 });
    assert_eq!(bench.redis.cli(&["HGET", "stat:18", "bytes"]), "512");
    assert_eq!(bench.redis.cli(&["HGET", "stat:19", "requests"]), "1");
    assert_eq!(bench.redis.cli(&["GET", "position:n1"]), "900");
}

#[test]
fn a_full_memory_refuses_the_whole_commit() {
    let bench = Bench::new();
    let mut store = bench.store("a");
    let (start, _) = owned(store.claim(false).unwrap());
    let lines = fold(&[line("17")]);
    bench.redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let error =
        store.commit(&Commit { from: &start, to: &at(9), fold: &lines, gaps: 0, gap_bytes: 0 }).unwrap_err();
    assert_eq!(error.kind(), Kind::Refused);
    assert_eq!(bench.redis.cli(&["EXISTS", "stat:17", "position:n1"]), "0");
    bench.redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(commit(&mut store, &start, &at(9), &lines), DONE);
}

#[test]
fn a_redis_that_lost_its_last_second_is_told_again_even_from_rotated_files() {
    let mut bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let write = |keys: std::ops::Range<u32>| {
        let text: String = keys.map(|key| line(key) + "\n").collect();
        let before = fs::read_to_string(&log).unwrap_or_default();
        fs::write(&log, before + &text).unwrap();
    };
    let mut now = Duration::ZERO;
    let mut follower = Follower::new(log.clone(), bench.store("a"));
    let mut rest = |follower: &mut Follower<RedisStore>| {
        let mut resting = 0;
        for _ in 0..500 {
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
    let saved = bench.redis.saved();
    write(30..50);
    rest(&mut follower);
    fs::rename(&log, folder.path().join("access.log.1")).unwrap();
    write(50..60);
    rest(&mut follower);
    assert_eq!(follower.tally().lines, 60);
    bench.redis.lose_since(&saved);
    assert_eq!(bench.redis.cli(&["EXISTS", "stat:29", "stat:30", "stat:55"]), "1", "the loss is real");
    rest(&mut follower);
    for key in 0..60 {
        assert_eq!(bench.redis.cli(&["HGET", &format!("stat:{key}"), "requests"]), "1", "line {key}");
    }
    assert_eq!(follower.tally(), Tally { lines: 60, ..Tally::default() });
}
