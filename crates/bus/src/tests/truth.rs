//! Properties of the data that hold at any moment. Reads everything; for tests.

use std::collections::{BTreeMap, BTreeSet};

use signalbox_store::Fabric;

use super::support::{number, strings};

/// Every violation found.
pub(super) async fn violations(redis: &Fabric) -> Vec<String> {
    let mut wrong = Vec::new();
    let keys = strings(redis, "KEYS", &["bus:*"]).await;
    let named = |prefix: &str| -> Vec<String> {
        keys.iter().filter_map(|key| key.strip_prefix(prefix).map(str::to_owned)).collect()
    };

    // Batches by lane, from the lists that hold them.
    let mut lanes: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for rest in named("bus:batches:ready:") {
        let (token, lane) = rest.rsplit_once(':').unwrap();
        let ready = strings(redis, "LRANGE", &[&format!("bus:batches:ready:{rest}"), "0", "-1"]).await;
        lanes.entry((token.into(), lane.into())).or_default().extend(ready);
    }
    for token in named("bus:batches:current:") {
        let flat = strings(redis, "HGETALL", &[&format!("bus:batches:current:{token}")]).await;
        for pair in flat.chunks(2).filter(|pair| !pair[0].ends_with(":bytes")) {
            lanes.entry((token.clone(), pair[0].clone())).or_default().push(pair[1].clone());
        }
    }

    let ended: BTreeMap<String, u64> = strings(redis, "HGETALL", &["bus:purge"])
        .await
        .chunks(2)
        .map(|pair| (pair[0].clone(), pair[1].parse().unwrap()))
        .collect();

    // Each batch is in one lane and in the index, and the gauges are the sum over those of subscriptions that have not ended.
    let mut listed = BTreeSet::new();
    let (mut events, mut batches) = (BTreeMap::<String, i64>::new(), BTreeMap::<String, i64>::new());
    let mut generations = BTreeMap::<(String, String), i64>::new();
    for ((token, lane), bids) in &lanes {
        for bid in bids {
            if !listed.insert(bid.clone()) {
                wrong.push(format!("batch {bid} is in two places"));
            }
            let contents = strings(redis, "LRANGE", &[&format!("bus:batch:{bid}"), "0", "-1"]).await;
            if contents.len() < 4 || contents[0] != *token {
                wrong.push(format!("batch {bid} of {token} {lane} holds {contents:?}"));
                continue;
            }
            let generation = lane.split('.').next().unwrap().to_owned();
            if ended.get(token).is_none_or(|ended| generation.parse::<u64>().unwrap() > *ended) {
                *events.entry(token.clone()).or_default() += contents.len() as i64 - 3;
                *batches.entry(token.clone()).or_default() += 1;
            }
            *generations.entry((token.clone(), generation)).or_default() += 1;
            for item in &contents[3..] {
                let item = &item.strip_prefix('-').map_or_else(|| item.clone(), |id| format!("{id}:0"));
                let (id, segment) = match item.split_once(['@', ':']) {
                    Some((id, segment)) => (id.to_owned(), segment.to_owned()),
                    None => (item.clone(), (item.parse::<u64>().unwrap() / 64_000_000).to_string()),
                };
                let mark: Option<String> =
                    redis.command("HGET").arg(("bus:log:0:uses", &id)).query().await.unwrap();
                // A marked event is in segment 0, or still where its mark says.
                let home = mark.as_deref().and_then(|mark| mark.split(' ').nth(2)).unwrap_or("0");
                let is_there = async |segment: &str| {
                    number(redis, "HEXISTS", &[&format!("bus:log:{segment}"), &id]).await == 1
                };
                if !(is_there(&segment).await || segment == "0" && is_there(home).await) {
                    wrong.push(format!("batch {bid} needs {item}, which the log has not"));
                }
            }
        }
    }
    let existing: BTreeSet<String> = named("bus:batch:").into_iter().collect();
    if existing != listed {
        wrong.push(format!("batches {existing:?}, in lanes {listed:?}"));
    }
    let index: BTreeSet<String> =
        strings(redis, "ZRANGE", &["bus:batches:index", "0", "-1"]).await.into_iter().collect();
    if index != listed {
        wrong.push(format!("index {index:?}, in lanes {listed:?}"));
    }
    for (key, truth) in [("bus:batches:gauges:event", events), ("bus:batches:gauges:batch", batches)] {
        let flat = strings(redis, "HGETALL", &[key]).await;
        let gauge: BTreeMap<String, i64> =
            flat.chunks(2).map(|pair| (pair[0].clone(), pair[1].parse().unwrap())).collect();
        if gauge != truth {
            wrong.push(format!("{key} has {gauge:?} instead of {truth:?}"));
        }
    }
    for token in named("bus:generations:") {
        let flat = strings(redis, "HGETALL", &[&format!("bus:generations:{token}")]).await;
        for pair in flat.chunks(2).filter(|pair| !pair[0].ends_with(":lanes")) {
            let truth = generations.remove(&(token.clone(), pair[0].clone())).unwrap_or_default();
            if pair[1] != truth.to_string() {
                wrong.push(format!("generation {} of {token} has {} instead of {truth}", pair[0], pair[1]));
            }
        }
    }
    if !generations.is_empty() {
        wrong.push(format!("generations without a count: {generations:?}"));
    }

    // Each job is in exactly one state. It exists while its lane has a batch, and longer if it can be taken.
    let mut states: BTreeMap<Vec<u8>, Vec<String>> = BTreeMap::new();
    let mut lists = vec![
        ("ZRANGE", "bus:jobs:scheduled:main".to_owned()),
        ("LRANGE", "bus:jobs:instant:main".to_owned()),
        ("LRANGE", "bus:jobs:slow:main".to_owned()),
    ];
    lists.extend(
        named("bus:jobs:waiting:").into_iter().map(|token| ("SMEMBERS", format!("bus:jobs:waiting:{token}"))),
    );
    lists.extend(
        named("bus:jobs:behind:").into_iter().map(|token| ("LRANGE", format!("bus:jobs:behind:{token}"))),
    );
    lists.extend(
        named("bus:jobs:pending:main:")
            .into_iter()
            .map(|worker| ("LRANGE", format!("bus:jobs:pending:main:{worker}"))),
    );
    for (command, key) in lists {
        let arguments: &[&str] = if command == "SMEMBERS" { &[&key] } else { &[&key, "0", "-1"] };
        let mut jobs: Vec<Vec<u8>> = redis.command(command).arg(arguments).query().await.unwrap();
        if key.starts_with("bus:jobs:pending:main:") {
            // The second entry is a count.
            if jobs.len() != 2 {
                wrong.push(format!("{key} holds {} entries", jobs.len()));
            }
            jobs.truncate(1);
        }
        for job in jobs {
            states.entry(job).or_default().push(key.clone());
        }
    }
    let jobs: BTreeSet<Vec<u8>> = redis
        .command("SMEMBERS")
        .arg("bus:jobs:index:main")
        .query::<Vec<Vec<u8>>>()
        .await
        .unwrap()
        .into_iter()
        .collect();
    let expected: BTreeSet<Vec<u8>> = lanes.keys().map(|(token, lane)| job(token, lane)).collect();
    let can_be_taken = |job: &Vec<u8>| {
        let lists = ["bus:jobs:instant:main", "bus:jobs:slow:main"];
        states.get(job).is_some_and(|places| places.iter().all(|place| lists.contains(&&**place)))
    };
    if !jobs.is_superset(&expected) || !jobs.difference(&expected).all(can_be_taken) {
        wrong.push(format!("jobs {:?}, lanes with batches {:?}", show(&jobs), lanes.keys()));
    }
    for (job, places) in &states {
        if places.len() != 1 {
            wrong.push(format!("job {} is in {places:?}", String::from_utf8_lossy(job)));
        }
        if !jobs.contains(job) {
            wrong.push(format!("job {} in {places:?} is not in the index", String::from_utf8_lossy(job)));
        }
    }
    for job in jobs.iter().filter(|job| !states.contains_key(*job)) {
        wrong.push(format!("job {} is in no state: its lane is never served", String::from_utf8_lossy(job)));
    }
    wrong
}

fn show(jobs: &BTreeSet<Vec<u8>>) -> Vec<String> {
    jobs.iter().map(|job| String::from_utf8_lossy(job).into_owned()).collect()
}

/// A lane's job, byte for byte, written without the script's help.
pub(super) fn job(token: &str, lane: &str) -> Vec<u8> {
    let (generation, number) = lane.split_once('.').unwrap();
    let mut bytes = vec![0x92, 0xa4];
    bytes.extend(b"lane");
    bytes.push(0x93);
    assert!(token.len() < 32);
    bytes.push(0xa0 | token.len() as u8);
    bytes.extend(token.as_bytes());
    for number in [generation, number] {
        let number: u32 = number.parse().unwrap();
        match number {
            0..=127 => bytes.push(number as u8),
            128..=255 => bytes.extend([0xcc, number as u8]),
            256..=65_535 => {
                bytes.push(0xcd);
                bytes.extend((number as u16).to_be_bytes());
            }
            _ => {
                bytes.push(0xce);
                bytes.extend(number.to_be_bytes());
            }
        }
    }
    bytes
}

/// Fails with everything that is wrong.
pub(super) async fn assert_true(redis: &Fabric, after: &str) {
    let wrong = violations(redis).await;
    assert!(wrong.is_empty(), "after {after}:\n{}", wrong.join("\n"));
}
