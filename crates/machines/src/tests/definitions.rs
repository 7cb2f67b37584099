//! Definitions and plans count for the client that stores them.

use std::collections::BTreeMap;

use signalbox_access::Author;

use super::support::{M, World, machine};
use crate::Error;

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
        stored += world.machines.versions.version(0, M, version as u64).await.unwrap().unwrap().len() as u64;
        assert_eq!(counted(&world).await, stored);
    }
    // The same definition again is no version.
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
    assert!(
        !world.servers.fabric().command("EXISTS").arg("machine:m:definitions").query::<bool>().await.unwrap()
    );
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
