//! The check finds labels and indexes that the test breaks, and stuck labels are counted.

use serde_json::json;

use super::support::{M, Receiver, World};
use crate::{
    CheckCursor,
    record::{Record, Status},
};
use signalbox_bus::Finding;

fn machine(hook: &str) -> String {
    format!(
        "
state_machines:
  m:
    states:
      - {{gate: first, exit_condition: '1h has passed since system.entered_state', triggers: [{{interval: 1h}}, {{metadata: go}}], next: act}}
      - {{action: act, webhook: \"{hook}\", next: daily}}
      - {{gate: daily, exit_condition: metadata.end, triggers: [{{time: 18:30, timezone: metadata.tz}}], next: done}}
      - {{gate: done}}
"
    )
}

/// Everything that is found, a page of a few labels at a time.
async fn found(world: &World) -> Vec<Finding> {
    let (mut findings, mut cursor, mut pages) = (Vec::new(), Some(CheckCursor::default()), 0);
    while let Some(at) = cursor {
        let page = world.machines.inspector.checker.check_pages(at, 3).await.unwrap();
        findings.extend(page.findings);
        // As it goes from answer to answer.
        cursor = page.next.map(|next| next.to_string().parse().unwrap());
        pages += 1;
    }
    assert!(pages > 1, "one page only");
    findings
}

async fn redis(world: &World, line: &[&str]) {
    let fabric = world.servers.fabric();
    let (name, rest) = line.split_first().unwrap();
    let name = ["ZREM", "ZADD", "SET", "DEL"].into_iter().find(|known| known == name).unwrap();
    fabric.command(name).arg(rest).run().await.unwrap();
}

async fn store(world: &World, label: &str, record: &Record) {
    let bytes = [record.header(), 0_u64.to_be_bytes().to_vec(), record.tail(0)].concat();
    let key = format!("object:machine:m:{label}:data");
    world.servers.fabric().command("SET").arg(key).arg(bytes).run().await.unwrap();
}

/// Labels `first0`…, one at its action that failed for good, and one each at the gate with a time of day, with a zone of
/// its own and without.
async fn world() -> World {
    let receiver = Receiver::start(&[410]).await;
    let world = World::new(&machine(&receiver.url)).await;
    world.create("bad", json!({})).await;
    world.time.advance(3_600_000);
    world.work_off().await;
    world.until("bad", |record| record.status == Status::Errored).await;
    for (label, facts) in [("tokyo", json!({"tz": "Asia/Tokyo"})), ("plain: x", json!({}))] {
        world.create(label, facts).await;
        world.time.advance(3_600_000);
        world.work_off().await;
        world.until(label, |record| &*record.state == "daily").await;
    }
    for n in 0..6 {
        world.create(&format!("first{n}"), json!({})).await;
    }
    world.create("gone", json!({})).await;
    world.machines.labels.delete(M, "gone").await.unwrap();
    world
}

/// The command that breaks it, the command that fixes it, and the predicate, name and part of the text of the finding.
type Break<'a> = (&'a [&'a str], &'a [&'a str], &'a str, &'a str, &'a str);

#[tokio::test]
async fn each_broken_index_entry_is_found_and_named() {
    let world = world().await;
    assert_eq!(found(&world).await, [], "a consistent system");
    let far = (world.now_ms() + 86_400_000).to_string();
    let due = (world.now_ms() + 3_600_000).to_string();
    let sweep = "o m daily 18:30:00 Asia/Tokyo";
    let breaks: [Break<'_>; 10] = [
        (
            &["ZREM", "machine:m:in:first", "first1"],
            &["ZADD", "machine:m:in:first", "0", "first1"],
            "M1",
            "m:first1",
            "it is not in the index",
        ),
        (
            &["ZADD", "machine:m:in:done", "0", "first1"],
            &["ZREM", "machine:m:in:done", "first1"],
            "M1",
            "m:first1",
            "the index of the state done names it, but it is in first and waiting",
        ),
        (
            &["ZADD", "machine:m:in:first", "0", "ghost"],
            &["ZREM", "machine:m:in:first", "ghost"],
            "M1",
            "m:ghost",
            "the label does not exist",
        ),
        (
            &["ZADD", "machine:m:in:first", "0", "gone"],
            &["ZREM", "machine:m:in:first", "gone"],
            "M1",
            "m:gone",
            "deleted",
        ),
        (
            &["ZREM", "machine:m:is:errored", "bad"],
            &["ZADD", "machine:m:is:errored", "0", "bad"],
            "M2",
            "m:bad",
            "it is not in the index machine:m:is:errored",
        ),
        (
            &["ZADD", "machine:m:is:errored", "0", "first2"],
            &["ZREM", "machine:m:is:errored", "first2"],
            "M2",
            "m:first2",
            "the index of labels that are errored names it",
        ),
        (
            &["ZREM", "machine:m:due", "l m first3"],
            &["ZADD", "machine:m:due", &due, "l m first3"],
            "M3",
            "m:first3",
            "is not in the due set",
        ),
        (
            &["ZADD", "machine:m:due", &far, "l m first3"],
            &["ZADD", "machine:m:due", &due, "l m first3"],
            "M3",
            "m:first3",
            "later than in its record",
        ),
        (
            &["ZREM", "machine:m:due", sweep],
            &["ZADD", "machine:m:due", &far, sweep],
            "M4",
            "m:tokyo",
            "no such sweep",
        ),
        (
            &["ZREM", "machine:m:zone:daily:Asia/Tokyo", "tokyo"],
            &["ZADD", "machine:m:zone:daily:Asia/Tokyo", "0", "tokyo"],
            "M4",
            "m:tokyo",
            "it is not in the index",
        ),
    ];
    for (broken, fixed, predicate, name, what) in breaks {
        redis(&world, broken).await;
        let findings = found(&world).await;
        let [finding] = &*findings else { panic!("{broken:?}: {findings:?}") };
        assert_eq!((&*finding.predicate, &*finding.name, finding.shard), (predicate, name, 0), "{finding:?}");
        assert!(finding.what.contains(what), "{finding:?}");
        redis(&world, fixed).await;
    }
    assert_eq!(found(&world).await, [], "fixed");
}

#[tokio::test]
async fn a_machine_that_is_worked_on_too_late_is_found_and_corrected_by_the_next_change() {
    let world = world().await;
    let far = (world.now_ms() + 86_400_000).to_string();
    let breaks: [(&[&str], &str); 2] = [
        (&["ZADD", "machine:next", &far, "m"], "later than it is due"),
        (&["ZREM", "machine:next", "m"], "nothing of its machine is"),
    ];
    for (broken, what) in breaks {
        redis(&world, broken).await;
        let findings = found(&world).await;
        assert!(!findings.is_empty());
        for finding in findings {
            assert!(finding.predicate == "M3" && finding.what.contains(what), "{finding:?}");
        }
    }
    world.create("another", json!({})).await;
    assert_eq!(found(&world).await, []);
}

#[tokio::test]
async fn an_inconsistent_history_is_found() {
    let world = world().await;
    let sound = world.label("plain: x").await;
    let mut gap = sound.clone();
    gap.history.remove(1);
    store(&world, "plain: x", &gap).await;
    let findings = found(&world).await;
    assert!(
        matches!(&*findings, [one] if one.predicate == "M5" && one.name == "m:plain: x" && one.what.contains("follows visit 1")),
        "{findings:?}"
    );
    redis(&world, &["SET", "object:machine:m:plain: x:data", "nonsense"]).await;
    let findings = found(&world).await;
    assert!(
        findings.iter().all(|one| one.predicate == "M1" && one.what.contains("cannot be read")),
        "{findings:?}"
    );
    assert!(!findings.is_empty());
    store(&world, "plain: x", &sound).await;
    assert_eq!(found(&world).await, [], "fixed");
}

const STUCK: &str = "
state_machines:
  m:
    states:
      - {gate: first, exit_condition: metadata.go, triggers: [{metadata: go}], next: {type: context, path: metadata.go, destinations: [{value: 1, state: once}, {value: 2, state: tick}], default: act}}
      - {gate: once, exit_condition: 'system.label = \"lucky\"', triggers: [{event: entry}], next: done}
      - {gate: tick, exit_condition: true, triggers: [{event: entry}], next: tock}
      - {gate: tock, exit_condition: true, triggers: [{event: entry}], next: tick}
      - {action: act, webhook: \"HOOK\", next: done}
      - {gate: done}
";

#[tokio::test]
async fn labels_that_nothing_evaluates_again_are_counted_as_stuck() {
    let receiver = Receiver::start(&[410]).await;
    let world = World::new(&STUCK.replace("HOOK", &receiver.url)).await;
    let stuck = async |reason: &str| {
        world.metric(&format!("signalbox_machines_stuck_labels{{machine=\"m\",reason=\"{reason}\"}}")).await
    };
    for label in ["a", "b", "c", "d", "lucky", "round"] {
        world.create(label, json!({})).await;
    }
    assert_eq!((stuck("no_trigger").await, stuck("errored").await), (0, 0));
    for label in ["a", "b", "lucky"] {
        world.send_update(label, json!({"go": 1})).await;
    }
    // A label in a loop pauses for a second, and continues.
    world.send_update("round", json!({"go": 2})).await;
    assert_eq!(world.label("round").await.status, Status::Looping);
    world.send_update("c", json!({"go": 3})).await;
    world.until("c", |record| record.status == Status::Errored).await;
    assert_eq!(&*world.label("lucky").await.state, "done");
    assert_eq!((stuck("no_trigger").await, stuck("errored").await), (2, 1));
    let why = world.machines.inspector.explainer.why(M, "a").await.unwrap();
    assert!(why["stuck"].as_str().unwrap().contains("evaluated only on entry"), "{why}");
    let why = world.machines.inspector.explainer.why(M, "d").await.unwrap();
    assert!(why["stuck"].is_null() && why["waits_for"].is_string(), "{why}");
    let counts = world.machines.inspector.overview.counts(M).await.unwrap();
    assert_eq!(counts.stuck.into_iter().collect::<Vec<_>>(), [("once".to_owned(), 2)]);
    assert_eq!(world.machines.inspector.checker.check(CheckCursor::default()).await.unwrap().findings, []);
}
