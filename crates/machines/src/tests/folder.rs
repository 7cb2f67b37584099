//! Definitions in a folder that is read at start.

use std::path::Path;

use serde_json::json;

use super::support::{M, World};
use crate::Error;

fn definition(states: &str) -> String {
    format!("state_machines: {{m: {{states: [{states}]}}}}\n")
}

const TO: &str = "exit_condition: metadata.go, triggers: [{metadata: go}], next";

async fn version(world: &World) -> u64 {
    world.machines.definitions.current(M).await.unwrap().number
}

#[tokio::test]
async fn a_folder_applies_only_definitions_that_were_never_applied() {
    let world = World::bare().await;
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    world.machines.applier.apply_folder(Path::new("/nowhere/at/all")).await;
    let first = definition(&format!("{{gate: one, {TO}: two}}, {{gate: two}}"));
    write("m.yaml", &first);
    write("broken.yaml", "state_machines: [");
    write("m.test.yaml", &definition("{gate: wrong}"));
    write("notes.txt", "not for us");
    world.machines.applier.apply_folder(folder.path()).await;
    assert_eq!(
        (version(&world).await, world.machines.definitions.names().await.unwrap()),
        (1, vec![M.to_owned()])
    );
    // Again, and by another pacemaker.
    world.machines.applier.apply_folder(folder.path()).await;
    world.another().applier.apply_folder(folder.path()).await;
    assert_eq!(version(&world).await, 1);
    // Another text, whose removed state is empty.
    world.create("a", json!({})).await;
    write("m.yaml", &definition(&format!("{{gate: one, {TO}: three}}, {{gate: three}}")));
    world.machines.applier.apply_folder(folder.path()).await;
    assert_eq!(version(&world).await, 2);
    assert_eq!(world.send_update("a", json!({"go": true})).await.state, "three");
    // An old file on another machine takes nothing back.
    write("m.yaml", &first);
    world.machines.applier.apply_folder(folder.path()).await;
    assert_eq!(version(&world).await, 2);
    // A label is in `three`: only an operator can decide where it goes.
    write("m.yaml", &definition(&format!("{{gate: one, {TO}: four}}, {{gate: four}}")));
    world.machines.applier.apply_folder(folder.path()).await;
    assert_eq!((version(&world).await, &*world.label("a").await.state), (2, "three"));
    // When it is gone, the next start applies it.
    world.machines.labels.delete(M, "a").await.unwrap();
    world.machines.applier.apply_folder(folder.path()).await;
    assert_eq!(version(&world).await, 3);
    assert!(matches!(world.machines.definitions.current("wrong").await, Err(Error::NoSuchMachine)));
}
