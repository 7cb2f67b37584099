//! Another definition, and pacemakers that die on the way to it.

use std::collections::BTreeMap;

use serde_json::json;

use super::support::{M, World, machine};
use crate::machines::{Error, record::Cause};

const OLD: &str = "
state_machines:
  m:
    states:
      - {gate: first, exit_condition: metadata.go, triggers: [{metadata: go}], next: second}
      - {gate: second, exit_condition: metadata.end, triggers: [{metadata: end}], next: done}
      - {gate: done}
";
const NEW: &str = "
state_machines:
  m:
    states:
      - {gate: first, exit_condition: metadata.go, triggers: [{metadata: go}], next: third}
      - {gate: third, exit_condition: metadata.end, triggers: [{metadata: end}], next: done}
      - {gate: done}
";

fn map() -> BTreeMap<String, String> {
    BTreeMap::from([("second".to_owned(), "third".to_owned())])
}

#[tokio::test]
async fn labels_of_states_that_go_are_moved_by_the_map() {
    let world = World::new(OLD).await;
    let new = machine(NEW);
    for label in ["a", "b"] {
        world.create(label, json!({})).await;
    }
    world.tell("a", json!({"go": true})).await;
    let none = BTreeMap::new();
    let unmapped = world.engine.apply(&new, 1, "test", &none).await;
    assert!(matches!(unmapped, Err(Error::Unmapped(states)) if states == ["second"]));
    let nowhere = BTreeMap::from([("second".to_owned(), "nowhere".to_owned())]);
    assert!(matches!(world.engine.apply(&new, 1, "test", &nowhere).await, Err(Error::BadMap(_))));
    assert!(matches!(world.engine.apply(&new, 0, "test", &map()).await, Err(Error::DefinitionChanged)));
    assert_eq!(world.engine.apply(&new, 1, "test", &map()).await.unwrap(), 2);
    let record = world.label("a").await;
    assert_eq!((&*record.state, record.history.last().unwrap().cause), ("third", Cause::Migrated));
    assert_eq!(record.history.last().unwrap().version, 2);
    assert_eq!(&*world.label("b").await.state, "first");
    assert_eq!(world.tell("a", json!({"end": 1})).await.state, "done");
    // A pacemaker that knows the old version only is told by its first commit.
    assert!(matches!(
        world.engine.apply(&new, 1, "test", &map()).await,
        Err(Error::BadMap(_) | Error::DefinitionChanged)
    ));
}

#[tokio::test]
async fn a_pacemaker_that_knows_the_old_definition_learns_of_the_new_one() {
    let world = World::new(OLD).await;
    let other = world.another();
    world.create("a", json!({})).await;
    super::support::tell(&other, "a", &json!({"x": 1})).await;
    world.engine.apply(&machine(NEW), 1, "test", &BTreeMap::new()).await.unwrap();
    assert_eq!(super::support::tell(&other, "a", &json!({"go": 1})).await.state, "third");
}

/// Killed after each step in turn; whoever comes then finishes it.
#[tokio::test]
async fn an_apply_that_was_killed_halfway_is_finished() {
    for killed_after in 0..4 {
        let world = World::new(OLD).await;
        for n in 0..30 {
            let label = format!("m{n}");
            world.create(&label, json!({})).await;
            world.tell(&label, json!({"go": true})).await;
        }
        let (dying, new) = (world.another(), machine(NEW));
        let under_way =
            dying.0.definitions.begin(&new, 1, "mark", (world.now_ms(), "test"), &map()).await.unwrap();
        let text = dying.0.store.version(0, M, 2).await.unwrap().unwrap();
        if killed_after > 0 {
            assert_eq!(dying.0.store.switch(0, M, 2, &text).await.unwrap(), 2);
        }
        if killed_after > 1 {
            for n in 0..killed_after * 5 {
                dying.0.definitions.forget(M, 0);
                dying.bring_one_over(&format!("m{n}")).await;
            }
        }
        // Another cannot begin meanwhile, and facts are taken in either state.
        assert!(matches!(
            world.engine.apply(&new, 1, "x", &map()).await,
            Err(Error::ApplyUnderWay | Error::DefinitionChanged | Error::BadMap(_))
        ));
        world.tell("m29", json!({"x": 1})).await;
        let finisher = world.another();
        finisher.finish_all().await.unwrap();
        for n in 0..30 {
            let record = world.label(&format!("m{n}")).await;
            assert_eq!((&*record.state, record.visit), ("third", 3), "m{n}, killed after {killed_after}");
        }
        assert!(finisher.0.store.applying().await.unwrap().is_empty());
        // One who was slow does no harm.
        assert_eq!(dying.0.store.switch(0, M, 1, &text).await.unwrap(), 2);
        dying.0.store.end_apply(&under_way).await.unwrap();
    }
}

impl crate::machines::Engine {
    /// One step of an apply.
    async fn bring_one_over(&self, label: &str) {
        let to = self.current(M).await.unwrap().machine.state("third").unwrap().index();
        let happened = crate::machines::judge::Happened::Migrated(to);
        self.bring_in_line(M.to_owned(), label.to_owned(), "second", happened).await.unwrap();
    }
}
