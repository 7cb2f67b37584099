//! Another definition, and pacemakers that die on the way to it.

use signalbox_access::Author;
use std::collections::BTreeMap;

use serde_json::json;

use super::support::{M, World, machine};
use crate::{
    Error,
    record::{Cause, Status},
};

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
async fn labels_of_removed_states_are_moved_by_the_map() {
    let world = World::new(OLD).await;
    let new = machine(NEW);
    for label in ["a", "b"] {
        world.create(label, json!({})).await;
    }
    world.send_update("a", json!({"go": true})).await;
    let none = BTreeMap::new();
    let unmapped = world.machines.applier.apply(&new, 1, &Author::operator(), &none).await;
    assert!(matches!(unmapped, Err(Error::Unmapped(states)) if states == ["second"]));
    let nowhere = BTreeMap::from([("second".to_owned(), "nowhere".to_owned())]);
    assert!(matches!(
        world.machines.applier.apply(&new, 1, &Author::operator(), &nowhere).await,
        Err(Error::BadMap(_))
    ));
    assert!(matches!(
        world.machines.applier.apply(&new, 0, &Author::operator(), &map()).await,
        Err(Error::DefinitionChanged)
    ));
    assert_eq!(world.machines.applier.apply(&new, 1, &Author::operator(), &map()).await.unwrap().version, 2);
    let record = world.label("a").await;
    assert_eq!((&*record.state, record.history.last().unwrap().cause), ("third", Cause::Migrated));
    assert_eq!(record.history.last().unwrap().version, 2);
    assert_eq!(&*world.label("b").await.state, "first");
    assert_eq!(world.send_update("a", json!({"end": 1})).await.state, "done");
    // A pacemaker that knows only the old version learns the new one by its first commit.
    // The request may be repeated, and a request for another definition is too late.
    let again = world.machines.applier.apply(&new, 1, &Author::operator(), &map()).await.unwrap();
    assert_eq!((again.version, again.changed), (2, false));
    assert!(matches!(
        world.machines.applier.apply(&machine(OLD), 1, &Author::operator(), &map()).await,
        Err(Error::BadMap(_) | Error::DefinitionChanged)
    ));
}

#[tokio::test]
async fn a_pacemaker_with_an_old_definition_learns_the_new_one() {
    let world = World::new(OLD).await;
    let other = world.another();
    world.create("a", json!({})).await;
    super::support::send_update(&other, "a", &json!({"x": 1})).await;
    world.machines.applier.apply(&machine(NEW), 1, &Author::operator(), &BTreeMap::new()).await.unwrap();
    assert_eq!(super::support::send_update(&other, "a", &json!({"go": 1})).await.state, "third");
}

/// The apply is stopped after each step in turn; another pacemaker finishes it.
#[tokio::test]
async fn an_interrupted_apply_is_finished_by_another_pacemaker() {
    for killed_after in 0..4 {
        let world = World::new(OLD).await;
        for n in 0..30 {
            let label = format!("m{n}");
            world.create(&label, json!({})).await;
            world.send_update(&label, json!({"go": true})).await;
        }
        let (dying, new) = (world.another(), machine(NEW));
        let under_way = dying
            .definitions
            .begin(&new, 1, "mark", (world.now_ms(), &Author::operator()), &map())
            .await
            .unwrap();
        let text = dying.versions.version(0, M, 2).await.unwrap().unwrap();
        if killed_after > 0 {
            assert_eq!(dying.versions.switch(0, M, (2, false), ("root", &text)).await.unwrap(), 2);
        }
        if killed_after > 1 {
            for n in 0..killed_after * 5 {
                dying.definitions.forget(M, 0);
                dying.bring_one_over(&format!("m{n}")).await;
            }
        }
        // No other apply can begin in the meantime, and updates are accepted in either state.
        let other = machine(&NEW.replace("done", "over"));
        assert!(matches!(
            world.machines.applier.apply(&other, 1, &Author::operator(), &map()).await,
            Err(Error::ApplyUnderWay | Error::DefinitionChanged | Error::BadMap(_))
        ));
        world.send_update("m29", json!({"x": 1})).await;
        let finisher = world.another();
        finisher.applier.finish_all().await.unwrap();
        for n in 0..30 {
            let record = world.label(&format!("m{n}")).await;
            assert_eq!((&*record.state, record.visit), ("third", 3), "m{n}, killed after {killed_after}");
        }
        assert!(finisher.versions.applying().await.unwrap().is_empty());
        // A late repetition of a step does no harm.
        assert_eq!(dying.versions.switch(0, M, (1, false), ("root", &text)).await.unwrap(), 2);
        dying.versions.end_apply(&under_way).await.unwrap();
    }
}

const DAILY: &str = "
state_machines:
  m:
    timezone: Europe/London
    feeds: [{name: crm, url: 'http://127.0.0.1:1/', ttl: 1m}]
    states:
      - {gate: first, exit_condition: metadata.go, triggers: [{time: 18:30}], next: done}
      - {gate: other, exit_condition: metadata.go or feeds.crm.go, triggers: [{metadata: go}, {interval: 1h}], next: first}
      - {gate: done}
";

/// Parts of a definition outside of its states can change what the states mean.
#[tokio::test]
async fn labels_follow_a_changed_zone_of_an_unchanged_state() {
    let yaml = DAILY.replace(
        "{gate: done}",
        "{gate: done, exit_condition: metadata.back, triggers: [{metadata: back}], next: other}",
    );
    let world = World::new(&yaml).await;
    world.create("a", json!({"tz": "Asia/Tokyo"})).await;
    assert!(world.label("a").await.zones.is_empty());
    let own = machine(&yaml.replace("Europe/London", "{metadata: tz, default: Europe/London}"));
    let now = world.machines.definitions.current(M).await.unwrap();
    let preview = world.machines.inspector.planner.preview(Some(&now), &own).await.unwrap();
    assert_eq!(
        (preview.states.changed, preview.changed),
        (vec!["first".to_owned()], vec!["timezone".to_owned()])
    );
    let cached = machine(&yaml.replace("ttl: 1m", "ttl: 2m"));
    let preview = world.machines.inspector.planner.preview(Some(&now), &cached).await.unwrap();
    assert_eq!(
        (preview.states.changed, preview.changed),
        (vec!["other".to_owned()], vec!["feeds.crm".to_owned()])
    );
    assert_eq!(
        world.machines.applier.apply(&own, 1, &Author::operator(), &BTreeMap::new()).await.unwrap().version,
        2
    );
    assert_eq!(world.label("a").await.zones.join(" "), "Asia/Tokyo");
    let found = world.machines.inspector.checker.check(crate::CheckCursor::default()).await.unwrap().findings;
    assert_eq!(found, [], "its sweep exists");
    // 18:30 in Tokyo comes before 18:30 in London.
    world.send_update("a", json!({"go": true})).await;
    let next = world.machines.due.next(0).await.unwrap().unwrap();
    world.time.advance(next - world.now_ms());
    world.work_off().await;
    assert_eq!(&*world.label("a").await.state, "done");
}

impl super::support::Machines {
    /// One step of an apply.
    async fn bring_one_over(&self, label: &str) {
        let to = self.definitions.current(M).await.unwrap().machine.state("third").unwrap().index();
        let happened = crate::evaluator::Happened::Migrated(to);
        self.applier.adapt(M.to_owned(), label.to_owned(), "second", happened).await.unwrap();
    }
}

#[tokio::test]
async fn a_done_action_is_not_repeated_when_it_gets_a_next_state() {
    let receiver = super::support::Receiver::start(&[]).await;
    let old = format!(
        "
state_machines:
  m:
    states:
      - {{action: send, webhook: '{}'}}
",
        receiver.url
    );
    let world = World::new(&old).await;
    world.create("a", json!({})).await;
    world.until("a", |record| record.status == Status::Ended).await;
    let new = old.replace("webhook", "next: sent, webhook") + "      - {gate: sent}\n";
    world.apply(&new, 1).await;
    let record = world.until("a", |record| &*record.state == "sent").await;
    assert_eq!((record.visit, record.status), (2, Status::Ended));
    assert_eq!(receiver.seen().len(), 1);
}
