//! States with `on_apply: keep`: labels stay on their version until they leave.

use signalbox_access::Author;
use std::{collections::BTreeMap, time::Duration};

use serde_json::json;

use super::support::{M, World, machine};
use crate::{
    Assumptions, CheckCursor, Error, Filter, Operation,
    population::Population,
    record::{Cause, Record, Status},
};

const OLD: &str = "
state_machines:
  m:
    index: [metadata.plan]
    states:
      - {gate: first, exit_condition: metadata.go, triggers: [{metadata: go}], next: pay}
      - {gate: pay, exit_condition: metadata.paid, triggers: [{metadata: paid}], on_apply: keep, next: ship}
      - {gate: ship, exit_condition: metadata.sent, triggers: [{metadata: sent}], on_apply: keep, next: old_end}
      - {gate: old_end, exit_condition: metadata.over, triggers: [{metadata: over}], next: done}
      - {gate: done}
";
/// `pay` and `old_end` are removed, `ship` has another condition, and another value is indexed.
const NEW: &str = "
state_machines:
  m:
    index: [metadata.zone]
    states:
      - {gate: first, exit_condition: metadata.go, triggers: [{metadata: go}], next: ship}
      - {gate: ship, exit_condition: metadata.picked, triggers: [{metadata: picked}], on_apply: keep, next: done}
      - {gate: done}
";

fn path(record: &Record) -> Vec<(&str, u64)> {
    record.history.iter().map(|row| (row.to.as_deref().unwrap(), row.version)).collect()
}

impl World {
    async fn is_consistent(&self) {
        let page = self.machines.inspector.checker.check(CheckCursor::default()).await.unwrap();
        assert!(page.findings.is_empty() && page.next.is_none(), "{:?}", page.findings);
    }
}

#[tokio::test]
async fn labels_stay_on_their_version_until_they_leave_the_states_that_keep_it() {
    let world = World::new(OLD).await;
    for label in ["a", "b", "c"] {
        world.create(label, json!({"zone": "x"})).await;
    }
    world.send_update("a", json!({"go": true})).await;
    world.send_update("b", json!({"go": true})).await;
    assert_eq!(world.label("a").await.kept, Some(1));
    // No map is needed for `pay`, and none is accepted.
    let mapped = BTreeMap::from([("pay".to_owned(), "ship".to_owned())]);
    let refused =
        world.machines.applier.apply(&machine(NEW), 1, &Author::operator(), &mapped).await.unwrap_err();
    assert!(refused.to_string().contains("stay on their version"), "{refused}");
    let none = BTreeMap::new();
    let applied = world.machines.applier.apply(&machine(NEW), 1, &Author::operator(), &none).await.unwrap();
    assert_eq!((applied.version, applied.kept), (2, BTreeMap::from([(1, 2)])));

    // The state is listed and searched although the active version does not have it, and the new index covers its labels.
    let counts = world.machines.inspector.overview.counts(M).await.unwrap();
    assert_eq!((counts.labels["pay"], counts.labels["first"], counts.kept[&1]), (2, 1, 2));
    let in_pay = Filter { state: Some("pay".to_owned()), ..Filter::default() };
    assert_eq!(world.machines.search.page(M, &in_pay, None, 10).await.unwrap().labels.len(), 2);
    let of_zone = Filter { metadata: BTreeMap::from([("zone".to_owned(), json!("x"))]), ..Filter::default() };
    assert_eq!(world.machines.search.page(M, &of_zone, None, 10).await.unwrap().labels.len(), 3);
    world.is_consistent().await;

    // Another pacemaker, which never saw the first version, evaluates the label under it.
    let other = world.another();
    let update = |label: &'static str, metadata| {
        let other = &other;
        async move { super::support::send_update(other, label, &metadata).await }
    };
    assert_eq!(update("a", json!({"paid": true})).await.state, "ship");
    assert_eq!(world.label("a").await.kept, Some(1));
    // Its old condition applies, not the one of the active version.
    assert_eq!(update("a", json!({"picked": true})).await.state, "ship");
    assert_eq!(update("a", json!({"sent": true})).await.state, "old_end");
    // The active version does not have this state either.
    assert_eq!(world.label("a").await.kept, Some(1));
    assert_eq!(update("a", json!({"over": true})).await.state, "done");
    let record = world.label("a").await;
    assert_eq!((record.kept, record.status), (None, Status::Ended));
    assert_eq!(path(&record), [("first", 1), ("pay", 1), ("ship", 1), ("old_end", 1), ("done", 2)]);

    // A label that was in no such state is on the new version.
    assert_eq!(update("c", json!({"go": true})).await.state, "ship");
    assert_eq!(world.label("c").await.kept, Some(2));
    assert_eq!(update("c", json!({"picked": true})).await.state, "done");
    assert_eq!(path(&world.label("c").await), [("first", 1), ("ship", 2), ("done", 2)]);

    // An operator moves a label to a state of the active version.
    world.machines.labels.operate(M, "b", &Operation::Move { to: "ship".to_owned() }).await.unwrap();
    let record = world.label("b").await;
    assert_eq!((record.kept, record.history.last().unwrap().cause), (Some(2), Cause::Moved));
    let again = world.machines.applier.apply(&machine(NEW), 1, &Author::operator(), &none).await.unwrap();
    assert_eq!((again.changed, again.kept.len()), (false, 0));
    world.is_consistent().await;
}

#[tokio::test]
async fn a_simulation_leaves_the_version_that_a_label_stays_on_as_the_label_does() {
    // Both versions have `done`, and only the active one continues from there.
    let new = NEW.replace("{gate: done}", "{gate: done, exit_condition: metadata.more, triggers: [{event: entry}, {metadata: more}], next: end}\n      - {gate: end}");
    let world = World::new(OLD).await;
    world.create("a", json!({"more": true})).await;
    world.send_update("a", json!({"go": true})).await;
    world.apply(&new, 1).await;
    for (metadata, expected) in
        [(json!({"paid": true}), "ship"), (json!({"sent": true}), "old_end"), (json!({"over": true}), "end")]
    {
        let asking = Assumptions {
            span: Duration::from_secs(3_600),
            metadata: Some(metadata.clone()),
            ..Assumptions::default()
        };
        let said = world.machines.inspector.explainer.simulate(M, "a", asking).await.unwrap();
        assert_eq!(world.send_update("a", metadata).await.state, expected);
        assert_eq!(said["state"], json!(expected), "{said}");
        assert_eq!(said["end"], json!(if expected == "end" { "ended" } else { "stuck" }), "{said}");
    }
}

#[tokio::test]
async fn a_simulation_of_a_suspended_label_ends_as_suspended() {
    let world = World::new(OLD).await;
    world.create("a", json!({})).await;
    world.machines.labels.operate(M, "a", &Operation::Suspend).await.unwrap();
    let asking = Assumptions { metadata: Some(json!({"go": true})), ..Assumptions::default() };
    let said = world.machines.inspector.explainer.simulate(M, "a", asking).await.unwrap();
    assert_eq!(
        (&said["end"], &said["state"], &said["steps"]),
        (&json!("suspended"), &json!("first"), &json!([]))
    );
    assert_eq!(world.send_update("a", json!({"go": true})).await.state, "first");
}

#[tokio::test]
async fn the_limit_of_labels_includes_those_in_states_of_other_versions() {
    let world = World::new(OLD).await;
    let other = world.another();
    // The other pacemaker knows the first version only.
    assert_eq!(other.definitions.of(M, 0).await.unwrap().number, 1);
    for label in ["kept", "moved"] {
        world.create(label, json!({})).await;
    }
    world.send_update("kept", json!({"go": true})).await;
    let renamed = NEW.replace("first", "begin");
    let mapped = BTreeMap::from([("first".to_owned(), "begin".to_owned())]);
    world.machines.applier.apply(&machine(&renamed), 1, &Author::operator(), &mapped).await.unwrap();
    let population = |limit| Population::new(other.records.clone(), other.definitions.clone(), limit);
    let admitted = population(2).admit(M, world.now_ms()).await;
    assert!(matches!(admitted, Err(Error::TooManyLabels(2))), "{admitted:?}");
    population(3).admit(M, world.now_ms()).await.unwrap();
    world.machines.tasks.delete_machine(M, ("ada", "@ada"), None).await.unwrap();
    let admitted = population(2).admit(M, world.now_ms()).await;
    assert!(matches!(admitted, Err(Error::NoSuchMachine)), "{admitted:?}");
}

#[tokio::test]
async fn a_state_that_begins_to_keep_its_labels_keeps_those_that_are_there() {
    let world = World::new(&OLD.replace("on_apply: keep, ", "")).await;
    world.create("a", json!({})).await;
    world.send_update("a", json!({"go": true})).await;
    assert_eq!(world.label("a").await.kept, None);
    world.apply(OLD, 1).await;
    assert_eq!(world.label("a").await.kept, Some(2));
    let third = OLD.replace(
        "metadata.paid, triggers: [{metadata: paid}]",
        "metadata.free, triggers: [{metadata: free}]",
    );
    world.apply(&third, 2).await;
    assert_eq!(world.send_update("a", json!({"free": true})).await.state, "pay");
    assert_eq!(world.send_update("a", json!({"paid": true})).await.state, "ship");
    assert_eq!(path(&world.label("a").await), [("first", 1), ("pay", 1), ("ship", 2)]);
}

#[tokio::test]
async fn a_time_of_day_of_an_earlier_version_still_comes_for_its_labels() {
    let daily = |time: &str| {
        format!(
            "
state_machines:
  m:
    states:
      - {{gate: wait, exit_condition: metadata.go, triggers: [{{time: \"{time}\"}}], on_apply: keep, next: done}}
      - {{gate: done}}
"
        )
    };
    let world = World::new(&daily("12:00")).await;
    world.create("old", json!({"go": true})).await;
    world.apply(&daily("18:00"), 1).await;
    world.create("new", json!({"go": true})).await;
    // The fabric loses the sweeps, and they are restored for both versions.
    world.machines.service.reconciler.restore().await.unwrap();
    world.is_consistent().await;
    let hour_ms = 3_600_000;
    let day_ms = 24 * hour_ms;
    let to_noon = (day_ms + 12 * hour_ms - world.now_ms() % day_ms) % day_ms;
    world.time.advance(to_noon);
    world.work_off().await;
    assert_eq!(&*world.label("old").await.state, "done");
    assert_eq!(&*world.label("new").await.state, "wait");
    world.time.advance(6 * hour_ms);
    world.work_off().await;
    assert_eq!(&*world.label("new").await.state, "done");
    assert_eq!(path(&world.label("old").await), [("wait", 1), ("done", 2)]);
}

/// The apply is stopped after each step in turn, while both pacemakers move labels.
#[tokio::test]
async fn a_pacemaker_that_dies_while_it_applies_moves_no_label_to_another_version() {
    for killed_after in 0..6 {
        let world = World::new(OLD).await;
        for label in ["a", "b", "c"] {
            world.create(label, json!({})).await;
            world.send_update(label, json!({"go": true})).await;
        }
        let dying = world.another();
        dying.faults.dies_after(killed_after);
        let applied = dying.applier.apply(&machine(NEW), 1, &Author::operator(), &BTreeMap::new()).await;
        assert_eq!(
            super::support::send_update(&world.machines, "a", &json!({"paid": true})).await.state,
            "ship"
        );
        world.machines.applier.finish_all().await.unwrap();
        if applied.is_err() && world.machines.definitions.current(M).await.unwrap().number == 1 {
            world.apply(NEW, 1).await;
        }
        for label in ["a", "b", "c"] {
            world.send_update(label, json!({"paid": true, "picked": true})).await;
            world.send_update(label, json!({"sent": true})).await;
            world.send_update(label, json!({"over": true})).await;
            let record = world.label(label).await;
            let expected = [("first", 1), ("pay", 1), ("ship", 1), ("old_end", 1), ("done", 2)];
            assert_eq!(path(&record), expected, "{label}, killed after {killed_after}");
        }
        world.is_consistent().await;
    }
}
