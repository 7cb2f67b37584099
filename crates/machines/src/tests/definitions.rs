//! Definitions and plans: how they are stored and read, and that they count for the client that stores them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use signalbox_access::Author;

use super::support::{M, World, machine};
use crate::{Error, definitions::parse_stored};

const OWNERS: &str = "bus:environments";
const CLIENT: &str = "client:root";

/// A definition of about this many bytes.
fn definition(version: usize, bytes: usize) -> String {
    let text = "x".repeat(bytes);
    format!(
        "# {text}\nstate_machines:\n  m:\n    states:\n      - {{gate: start{version}, exit_condition: metadata.go, triggers: [{{metadata: go}}], \
         next: done}}\n      - {{gate: done}}\n"
    )
}

async fn counted(world: &World) -> u64 {
    let count = world.servers.fabric().command("HGET").arg(OWNERS).arg(CLIENT).query::<Option<u64>>().await;
    count.unwrap().unwrap_or(0)
}

#[tokio::test]
async fn versions_count_for_the_client_that_applied_them_until_their_machine_is_deleted() {
    let world = World::new(&definition(1, 1_000)).await;
    let mut stored = 0;
    for version in 1..=4 {
        if version > 1 {
            world.apply(&definition(version, 1_000), version as u64 - 1).await;
        }
        let parts = world.machines.versions.version(0, M, version as u64).await.unwrap().unwrap();
        assert!(parts.source.len() > 1_000 && !parts.record.contains("xxx"), "{}", parts.record);
        stored += (parts.record.len() + parts.source.len()) as u64;
        assert_eq!(counted(&world).await, stored);
    }
    // Applying the same definition again makes no new version.
    world
        .machines
        .applier
        .apply(&machine(&definition(4, 1_000)), 4, &Author::operator(), &BTreeMap::new())
        .await
        .unwrap();
    assert_eq!(counted(&world).await, stored);
    world.machines.tasks.delete_machine(M, ("ada", "@ada"), None).await.unwrap();
    world.work_off().await;
    assert_eq!(counted(&world).await, 0);
    let keys = ["machine:m:definitions", "machine:m:versions", "machine:m:sources"];
    let left: u64 = world.servers.fabric().command("EXISTS").arg(&keys[..]).query().await.unwrap();
    assert_eq!(left, 0);
}

/// The record of a version in the first shard as an earlier release stored it: with its text.
async fn record_with_text(world: &World, version: u64, text: &str) -> Value {
    let stored = world.machines.versions.version(0, M, version).await.unwrap().unwrap();
    let mut record: Value = serde_json::from_str(&stored.record).unwrap();
    record.as_object_mut().unwrap().insert("source".to_owned(), text.into());
    record
}

#[tokio::test]
async fn versions_that_an_earlier_release_stored_are_read_and_applied() {
    let world = World::on_shards(2).await;
    world.apply(&definition(1, 100), 0).await;
    // The earlier release began a change, and stored the version in the first shard.
    let (next, author) = (definition(2, 100), Author::operator());
    let begun = (world.now_ms(), &author);
    let map = BTreeMap::from([("start1".to_owned(), "start2".to_owned())]);
    world.machines.definitions.begin(&machine(&next), 1, "mark", begun, &map).await.unwrap();
    let fabric = world.servers.fabric();
    for (version, text) in [(1, definition(1, 100)), (2, next.clone())] {
        let record = record_with_text(&world, version, &text).await.to_string();
        fabric.command("HSET").arg(("{s0}machine:m:versions", version, record)).run().await.unwrap();
    }
    fabric.command("DEL").arg("{s0}machine:m:sources").run().await.unwrap();
    let later = world.another();
    later.applier.finish_all().await.unwrap();
    let definitions = world.another().definitions.clone();
    for shard in 0..2 {
        let version = definitions.of(M, shard).await.unwrap();
        assert_eq!((version.number, &**version.machine.source()), (2, &*next), "shard {shard}");
    }
    assert_eq!(definitions.stored_version(M, 1).await.unwrap().source, definition(1, 100));
    assert_eq!(definitions.all_states(M).await.unwrap().names, ["done", "start1", "start2"]);
    assert_eq!(definitions.versions(M).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_version_without_a_text_was_removed() {
    let world = World::new(&definition(1, 100)).await;
    world.servers.fabric().command("DEL").arg("machine:m:sources").run().await.unwrap();
    let definitions = &world.another().definitions;
    assert!(matches!(definitions.stored_version(M, 1).await, Err(Error::NoSuchVersion)));
    assert!(definitions.read(M, 1).await.unwrap().is_none());
}

/// One reply with all texts would fill the memory of Redis and delay the replies to others.
#[tokio::test]
async fn many_versions_are_listed_in_parts_and_without_their_texts() {
    let world = World::new(&definition(1, 100)).await;
    let fabric = world.servers.fabric();
    let mut record = record_with_text(&world, 1, &definition(1, 1_000_000)).await;
    for version in 2..=13 {
        if version == 13 {
            // As an even earlier release stored it: only its text has its states.
            record.as_object_mut().unwrap().remove("states").unwrap();
        }
        let record = ("machine:m:versions", version, record.to_string());
        fabric.command("HSET").arg(record).run().await.unwrap();
    }
    let limit = ("client-output-buffer-limit", "normal 4194304 0 0");
    fabric.command("CONFIG").arg("SET").arg(limit).run().await.unwrap();
    fabric.command("HGETALL").arg("machine:m:versions").run().await.unwrap_err();
    let definitions = &world.machines.definitions;
    let listed = definitions.versions(M).await.unwrap();
    let numbers: Vec<u64> = listed.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=13).collect::<Vec<u64>>());
    assert!(listed.iter().all(|(_, version)| version.source.is_empty() && !version.hash.is_empty()));
    let states = definitions.all_states(M).await.unwrap();
    assert_eq!((states.names, states.complete), (vec!["done".to_owned(), "start1".to_owned()], true));
    // A text that is stored apart is not read for a list.
    assert!(
        !fabric
            .command("HGET")
            .arg(("machine:m:versions", 1))
            .query::<String>()
            .await
            .unwrap()
            .contains("gate")
    );
}

#[tokio::test]
async fn a_stored_definition_with_more_states_than_a_new_one_may_have_is_in_service() {
    let gates = |count: usize| {
        let gate = |n: usize| {
            format!(
                "      - {{gate: s{n}, exit_condition: metadata.a, triggers: [{{metadata: a}}], next: s{}}}\n",
                (n + 1) % count
            )
        };
        format!("state_machines:\n  m:\n    states:\n{}", (0..count).map(gate).collect::<String>())
    };
    let world = World::new(&gates(10)).await;
    let fabric = world.servers.fabric();
    fabric.command("HSET").arg(("machine:m:sources", 1, gates(2_000))).run().await.unwrap();
    let later = world.another();
    later.labels.create(M, "a", &json!({}), false, None).await.unwrap();
    let counts = later.inspector.overview.counts(M).await.unwrap();
    assert_eq!((counts.labels.len(), counts.labels["s0"]), (2_000, 1));
    // In their order, each once.
    let named: Vec<String> = (0..2_000).map(|n| format!("s{n}")).collect();
    assert_eq!(later.definitions.states(M).await.unwrap(), named);
    assert_eq!(later.definitions.family(M, 0).await.unwrap().states(), named);
    // A new definition may not have as many, but what was stored is read.
    assert!(signalbox_machine::load("m", &gates(2_000)).is_err());
    parse_stored(M, gates(2_000)).await.unwrap();
}

/// States of a version that labels stay on come after those of the active one, each once.
#[tokio::test]
async fn states_of_versions_that_labels_stay_on_are_listed_once_after_those_of_the_active_one() {
    let yaml = |states: &[&str]| {
        let all: Vec<String> = states
            .iter()
            .zip(states.iter().skip(1))
            .map(|(state, next)| {
                format!(
                    "{{gate: {state}, on_apply: keep, exit_condition: metadata.go, triggers: [{{metadata: go}}], next: {next}}}"
                )
            })
            .collect();
        let last = states.last().unwrap();
        format!("state_machines: {{m: {{states: [{}, {{gate: {last}}}]}}}}", all.join(", "))
    };
    let world = World::new(&yaml(&["old", "both", "end"])).await;
    world.create("a", json!({})).await;
    world.apply(&yaml(&["both", "new", "end"]), 1).await;
    let definitions = &world.another().definitions;
    assert_eq!(definitions.family(M, 0).await.unwrap().states(), ["both", "new", "end", "old"]);
    assert_eq!(definitions.states(M).await.unwrap(), ["both", "new", "end", "old"]);
}

#[tokio::test]
async fn a_client_that_uses_most_of_a_short_memory_applies_no_definition() {
    let world = World::new(&definition(1, 100)).await;
    let note = async |owners: &str, until_ms: u64| {
        let text = format!("{until_ms} {owners}");
        world
            .servers
            .fabric()
            .command("HSET")
            .arg("bus:objects:state")
            .arg("full")
            .arg(text)
            .run()
            .await
            .unwrap();
    };
    let apply = async |version: usize| {
        let machine = machine(&definition(version, 100));
        world
            .machines
            .applier
            .apply(&machine, version as u64 - 1, &Author::operator(), &BTreeMap::new())
            .await
    };
    let now: (u64, u64) = world.servers.fabric().command("TIME").query().await.unwrap();
    let later = (now.0 + 60) * 1000;
    note("9:client:me11:client:root", later).await;
    assert!(matches!(apply(2).await, Err(Error::TooManyDefinitions)));
    // Others, whose names contain this one, or no longer.
    for (owners, until_ms) in [("14:client:root-222:publisher:1:client:root", later), ("11:client:root", 1)] {
        note(owners, until_ms).await;
        let next = world.machines.definitions.active_number(M).await.unwrap() as usize + 1;
        apply(next).await.unwrap();
    }
}

#[tokio::test]
async fn a_client_has_a_limited_number_of_plans() {
    let world = World::new(&definition(1, 100)).await;
    let definitions = &world.machines.definitions;
    let names: Vec<String> = (0..20).map(|n| format!("{n:016x}")).collect();
    definitions.keep_plan((M, "other"), "@bob", (1, "text")).await.unwrap();
    for name in &names {
        definitions.keep_plan((M, name), "@ada", (1, "text")).await.unwrap();
    }
    for (n, name) in names.iter().enumerate() {
        assert_eq!(definitions.kept_plan(M, name).await.is_ok(), n >= 4, "plan {n}");
    }
    definitions.kept_plan(M, "other").await.unwrap();
}
