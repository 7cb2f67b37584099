//! Operations of operators on one label and on many, searches, and the deletion of a machine.

use signalbox_access::Author;
use std::collections::BTreeMap;

use serde_json::{Value, json};
use signalbox_testkit::eventually;

use super::support::{M, Receiver, World, machine};
use crate::{
    Error, Filter, Operation, TaskState,
    record::{Cause, Status},
    search::Total,
};

const GATES: &str = "
state_machines:
  m:
    index: [metadata.plan, metadata.size]
    states:
      - {gate: asked, exit_condition: metadata.a = 1 and metadata.b = 2, triggers: [{metadata: a}, {metadata: b}], next: done}
      - {gate: done}
";

impl World {
    async fn operate(&self, label: &str, operation: Operation) -> Result<(bool, String), Error> {
        let operated = self.machines.labels.by("ada").operate(M, label, &operation).await?;
        Ok((operated.changed, operated.answer.map_or_else(String::new, |answer| answer.state)))
    }

    async fn found(&self, filter: Filter) -> Vec<String> {
        let found = self.machines.search.page(M, &filter, None, 100).await.unwrap();
        found.labels.into_iter().map(|(name, _)| name).collect()
    }

    /// Runs a task to its end.
    async fn task(&self, operation: Operation, filter: Filter) -> crate::Task {
        let task =
            self.machines.tasks.start(M, operation, filter, None, ("ada", "@ada"), None).await.unwrap();
        self.work_off().await;
        self.machines.tasks.get(M, &task.id).await.unwrap()
    }
}

fn with(path: &str, value: Value) -> Filter {
    Filter { metadata: BTreeMap::from([(path.to_owned(), value)]), ..Filter::default() }
}

#[tokio::test]
async fn a_changed_condition_is_evaluated_when_it_is_applied() {
    let world = World::new(GATES).await;
    world.create("a", json!({})).await;
    world.send_update("a", json!({"a": 1})).await;
    world.create("b", json!({})).await;
    world.apply(&GATES.replace(" and metadata.b = 2", ""), 1).await;
    let record = world.label("a").await;
    assert_eq!((&*record.state, record.history.last().unwrap().cause), ("done", Cause::Evaluated));
    assert_eq!(&*world.label("b").await.state, "asked");
}

#[tokio::test]
async fn a_gate_is_evaluated_on_request() {
    let world = World::new(GATES).await;
    // The creation is no update, so nothing has evaluated the gate yet.
    world.create("a", json!({"a": 1, "b": 2})).await;
    let why = world.machines.inspector.explainer.why(M, "a").await.unwrap();
    assert!(why["waits_for"].as_str().unwrap().contains("no trigger has fired"), "{why}");
    // The counts of the machine do not include it, because an update moves it.
    assert!(why["stuck"].is_null(), "{why}");
    let counts = world.machines.inspector.overview.counts(M).await.unwrap();
    assert!(counts.stuck.is_empty(), "{:?}", counts.stuck);
    assert_eq!(why["earliest"], Value::Null);
    assert_eq!(world.operate("a", Operation::Evaluate).await.unwrap(), (true, "done".to_owned()));
    world.create("b", json!({})).await;
    assert_eq!(world.operate("b", Operation::Evaluate).await.unwrap(), (false, "asked".to_owned()));
    let why = world.machines.inspector.explainer.why(M, "b").await.unwrap();
    assert!(why["stuck"].is_null() && why["waits_for"].is_string(), "{why}");
}

#[tokio::test]
async fn the_same_definition_makes_no_version() {
    let world = World::new(GATES).await;
    let commented = format!("# Another layout.\n{GATES}");
    let applied = world
        .machines
        .applier
        .apply(&machine(&commented), 1, &Author::operator(), &BTreeMap::new())
        .await
        .unwrap();
    assert_eq!((applied.version, applied.changed), (1, false));
    assert_eq!(world.apply(&GATES.replace("= 2", "= 3"), 1).await, 2);
}

#[tokio::test]
async fn a_renamed_gate_keeps_its_clocks() {
    let timed = |name: &str| {
        format!(
            "
state_machines:
  m:
    states:
      - {{gate: {name}, exit_condition: 12s has passed since system.entered_state, triggers: [{{interval: 1s}}], next: done}}
      - {{gate: done}}
"
        )
    };
    let world = World::new(&timed("old")).await;
    world.create("a", json!({})).await;
    world.time.advance(9_000);
    let map = BTreeMap::from([("old".to_owned(), "new".to_owned())]);
    world.machines.applier.apply(&machine(&timed("new")), 1, &Author::operator(), &map).await.unwrap();
    let record = world.label("a").await;
    assert_eq!((&*record.state, record.entered_ms), ("new", world.now_ms() - 9_000));
    world.time.advance(3_000);
    world.work_off().await;
    assert_eq!(&*world.label("a").await.state, "done");
}

fn acting(url: &str) -> String {
    format!(
        "
state_machines:
  m:
    states:
      - {{action: act, webhook: \"{url}\", retry: {{first: 1h, longest: 1h}}, next: done}}
      - {{gate: done}}
"
    )
}

#[tokio::test]
async fn a_failing_action_is_hurried_canceled_or_skipped() {
    let receiver = Receiver::start(&[500; 5]).await;
    let world = World::new(&acting(&receiver.url)).await;
    for label in ["hurried", "canceled", "skipped"] {
        world.create(label, json!({})).await;
        world.until(label, |record| record.work.error.is_some()).await;
    }
    let why = world.machines.inspector.explainer.why(M, "hurried").await.unwrap();
    let reason = why["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("attempt 1 of 20 of its action failed (answered 500); the next is at"),
        "{why}"
    );
    assert_eq!(why["action"]["address"], json!(receiver.url));
    world.operate("hurried", Operation::Retry).await.unwrap();
    world.until("hurried", |record| record.work.error.is_some() && record.work.held.is_some()).await;
    assert_eq!(receiver.seen().len(), 4);
    world.operate("canceled", Operation::Cancel).await.unwrap();
    let record = world.label("canceled").await;
    assert_eq!((record.status, record.work.error.as_deref()), (Status::Errored, Some("canceled by ada")));
    assert_eq!(world.operate("skipped", Operation::Skip).await.unwrap().1, "done");
    let last = world.label("skipped").await.history.pop().unwrap();
    assert_eq!((last.cause, last.trigger.as_deref()), (Cause::Moved, Some("skipped by ada")));
    assert!(matches!(world.operate("skipped", Operation::Skip).await, Err(Error::NotActing)));
    assert!(matches!(world.operate("skipped", Operation::Retry).await, Err(Error::NotErrored)));
}

#[tokio::test]
async fn the_failure_of_an_attempt_from_before_a_cancel_does_not_count_for_the_retry() {
    let receiver = Receiver::start(&[500]).await;
    receiver.held.forget_permits(usize::MAX);
    let on_error = "retry: {attempts: 1}, on_error: [{next: failed}], next: done";
    let yaml = acting(&receiver.url)
        .replace("retry: {first: 1h, longest: 1h}, next: done", on_error)
        .replace("      - {gate: done}", "      - {gate: done}\n      - {gate: failed}");
    let world = World::new(&yaml).await;
    world.create("a", json!({})).await;
    let until_sent = |count| {
        let receiver = receiver.clone();
        async move {
            eventually("an attempt", async || match receiver.seen().len() {
                seen if seen == count => Ok(()),
                seen => Err(seen),
            })
            .await;
        }
    };
    until_sent(1).await;
    world.operate("a", Operation::Cancel).await.unwrap();
    world.time.advance(1);
    world.operate("a", Operation::Retry).await.unwrap();
    until_sent(2).await;
    // The first attempt fails, then the second one succeeds.
    receiver.held.add_permits(1);
    eventually("the first answer", async || match receiver.held.available_permits() {
        0 => Ok(()),
        left => Err(left),
    })
    .await;
    receiver.held.add_permits(1);
    let record = world.until("a", |record| record.status == Status::Ended).await;
    assert_eq!(&*record.state, "done", "{:?}", record.history);
}

#[tokio::test]
async fn a_suspended_label_neither_acts_nor_moves_until_it_is_resumed() {
    let receiver = Receiver::start(&[500]).await;
    let yaml = acting(&receiver.url).replace(
        "      - {gate: done}",
        "      - {gate: done, exit_condition: metadata.go, triggers: [{metadata: go}], next: over}\n      - {gate: over}",
    );
    let world = World::new(&yaml).await;
    world.create("a", json!({})).await;
    world.until("a", |record| record.work.error.is_some()).await;
    world.operate("a", Operation::Suspend).await.unwrap();
    assert_eq!(world.label("a").await.due_ms(), None);
    world.time.advance(3_600_000);
    world.work_off().await;
    assert_eq!(
        (receiver.seen().len(), world.found(Filter { suspended: Some(true), ..Filter::default() }).await),
        (1, vec!["a".to_owned()])
    );
    world.operate("a", Operation::Resume).await.unwrap();
    world.until("a", |record| &*record.state == "done").await;
    world.operate("a", Operation::Suspend).await.unwrap();
    assert_eq!(world.send_update("a", json!({"go": true})).await.state, "done");
    assert_eq!(world.operate("a", Operation::Resume).await.unwrap().1, "over");
    assert!(world.found(Filter { suspended: Some(true), ..Filter::default() }).await.is_empty());
}

#[tokio::test]
async fn labels_are_found_by_state_age_error_and_indexed_metadata() {
    let world = World::new(GATES).await;
    for n in 0..250 {
        let plan = if n % 10 == 0 { "pro" } else { "free" };
        world.create(&format!("l{n:03}"), json!({"plan": plan, "size": n, "deep": {"x": n % 2}})).await;
    }
    let pro = world.found(with("plan", json!("pro"))).await;
    assert_eq!((pro.len(), &*pro[1]), (25, "l010"));
    // Equal numbers are one value, and the leading `metadata.` does not matter.
    assert_eq!(world.found(with("metadata.size", json!(7.0))).await, ["l007"]);
    let page = world.machines.search.page(M, &with("plan", json!("pro")), None, 10).await.unwrap();
    assert!(page.checked <= 101, "{}", page.checked);
    assert_eq!(page.next.as_deref(), Some("l090"));
    let rest =
        world.machines.search.page(M, &with("plan", json!("pro")), page.next.as_deref(), 100).await.unwrap();
    assert_eq!((rest.labels.len(), rest.next), (15, None));
    // A value that is not indexed.
    assert_eq!(world.machines.search.count(M, &with("deep.x", json!(1))).await.unwrap().count, 125);
    // A page of all that match has no next one, and an index is counted without reading its labels.
    let whole = world.machines.search.page(M, &with("plan", json!("pro")), None, 25).await.unwrap();
    assert_eq!((whole.labels.len(), whole.next, whole.checked), (25, None, 25));
    let count = async |filter| world.machines.search.count(M, &filter).await.unwrap();
    assert_eq!(count(with("plan", json!("pro"))).await, Total { count: 25, exact: true });
    let both = Filter { suspended: Some(true), ..with("plan", json!("pro")) };
    assert_eq!(count(both).await.count, 0);
    // The index follows the metadata.
    world.send_update("l000", json!({"plan": "free"})).await;
    assert_eq!(world.found(with("plan", json!("pro"))).await.len(), 24);
    world.machines.labels.delete(M, "l010").await.unwrap();
    assert_eq!(world.found(with("plan", json!("pro"))).await.len(), 23);
    world.time.advance(60_000);
    world.create("young", json!({})).await;
    let young = Filter { younger_than_seconds: Some(60), ..Filter::default() };
    assert_eq!(world.found(young).await, ["young"]);
    let oldest = world.machines.search.by_age(M, &Filter::default(), true, None, 2).await.unwrap();
    assert_eq!(oldest.labels[0].0, "l000");
    let newest = world.machines.search.by_age(M, &Filter::default(), false, None, 1).await.unwrap();
    assert_eq!(newest.labels[0].0, "young");
    let nowhere = Filter { state: Some("nowhere".to_owned()), ..Filter::default() };
    assert!(matches!(world.machines.search.page(M, &nowhere, None, 1).await, Err(Error::NoSuchState(_))));
    assert!(matches!(
        world.machines.search.page(M, &with("a..b", json!(1)), None, 1).await,
        Err(Error::BadFilter(_))
    ));
    let checked = world.machines.inspector.checker.check(crate::CheckCursor::default()).await.unwrap();
    assert!(checked.findings.is_empty(), "{:?}", checked.findings);
}

#[tokio::test]
async fn another_index_applies_to_labels_that_exist() {
    let world = World::new(&GATES.replace("    index: [metadata.plan, metadata.size]\n", "")).await;
    world.create("a", json!({"plan": "pro"})).await;
    world.apply(GATES, 1).await;
    assert_eq!(world.label("a").await.indexed.len(), 1);
    assert_eq!(world.found(with("plan", json!("pro"))).await, ["a"]);
}

#[tokio::test]
async fn a_task_works_on_every_label_that_matches_and_reports_its_progress() {
    let world = World::new(GATES).await;
    for n in 0..250 {
        let metadata = json!({"plan": if n % 2 == 0 { "pro" } else { "free" }});
        world.create(&format!("l{n:03}"), metadata).await;
    }
    let set = Operation::Set { metadata: json!({"a": 1}), patch: false };
    let task = world.task(set, Filter::default()).await;
    assert_eq!((task.state, task.changed, task.failed, task.labels), (TaskState::Done, 250, 0, 250));
    let moved = world.task(Operation::Move { to: "done".to_owned() }, with("plan", json!("pro"))).await;
    assert_eq!((moved.state, moved.changed), (TaskState::Done, 125));
    let last = world.label("l000").await.history.pop().unwrap();
    assert_eq!((last.cause, last.trigger.as_deref()), (Cause::Moved, Some("moved by ada")));
    // Those that are there already are not moved again.
    assert_eq!(world.task(Operation::Retry, Filter::default()).await.unchanged, 250);
    let state = Some("done".to_owned());
    let deleted = world.task(Operation::Delete, Filter { state, ..Filter::default() }).await;
    assert_eq!(deleted.changed, 125);
    assert_eq!(world.machines.search.count(M, &Filter::default()).await.unwrap().count, 125);
    assert_eq!(world.machines.due.next(0).await.unwrap(), None);
}

#[tokio::test]
async fn a_task_with_a_rate_can_be_canceled_between_its_pages() {
    let world = World::new(GATES).await;
    for n in 0..30 {
        world.create(&format!("l{n:03}"), json!({})).await;
    }
    let tasks = &world.machines.tasks;
    let task =
        tasks.start(M, Operation::Suspend, Filter::default(), Some(10), ("ada", "@ada"), None).await.unwrap();
    world.work_off().await;
    let first = tasks.get(M, &task.id).await.unwrap();
    // Labels of the next page are not counted, neither as checked nor for the rate.
    assert_eq!((first.state, first.checked, first.changed), (TaskState::Running, 10, 10), "{first:?}");
    assert_eq!(world.machines.due.next(0).await.unwrap(), Some(world.now_ms() + 1_000));
    tasks.cancel(M, &task.id, "ada").await.unwrap();
    world.work_off().await;
    let canceled = tasks.get(M, &task.id).await.unwrap();
    assert_eq!((canceled.state, canceled.changed), (TaskState::Canceled, first.changed));
}

#[tokio::test]
async fn a_machine_is_deleted_with_its_labels_and_its_name_can_be_used_again() {
    let world = World::new(GATES).await;
    for n in 0..150 {
        world.create(&format!("l{n:03}"), json!({"plan": "pro"})).await;
    }
    world.send_update("l000", json!({"a": 1, "b": 2})).await;
    let task = world.machines.tasks.delete_machine(M, ("ada", "@ada"), None).await.unwrap();
    assert!(matches!(world.machines.definitions.current(M).await, Err(Error::NoSuchMachine)));
    // Another process learns it at its next change, and a definition cannot be applied in the meantime.
    let update = crate::Update { metadata: &json!({"a": 1}), patch: false, key: None };
    assert!(matches!(world.another().labels.update(M, "l001", &update).await, Err(Error::NoSuchMachine)));
    let again = world.machines.applier.apply(&machine(GATES), 0, &Author::operator(), &BTreeMap::new()).await;
    assert!(matches!(again, Err(Error::BeingDeleted)), "{again:?}");
    world.work_off().await;
    let task = world.machines.tasks.get(M, &task.id).await.unwrap();
    assert_eq!((task.state, task.changed), (TaskState::Done, 150));
    assert!(world.machines.definitions.names().await.unwrap().is_empty());
    assert_eq!(world.machines.records.count_states(M, &["asked", "done"]).await.unwrap(), [0, 0]);
    // Numbers of versions and visits continue, so nothing that others remember of the old machine fits the new one.
    let applied = world
        .machines
        .applier
        .apply(&machine(GATES), 0, &Author::operator(), &BTreeMap::new())
        .await
        .unwrap();
    assert_eq!(applied.version, 2);
    let created = world.machines.labels.create(M, "l001", &json!({}), true, None).await.unwrap();
    assert_eq!(created.visit, 2);
}

#[tokio::test]
async fn a_repeated_deletion_of_a_machine_does_not_delete_a_machine_that_was_created_again() {
    let world = World::new(GATES).await;
    world.create("a", json!({})).await;
    let tasks = &world.machines.tasks;
    let first = tasks.delete_machine(M, ("ada", "@ada"), Some("k1")).await.unwrap();
    world.work_off().await;
    // The repeat finds the task also while there is no machine.
    assert_eq!(tasks.delete_machine(M, ("ada", "@ada"), Some("k1")).await.unwrap().id, first.id);
    world.machines.applier.apply(&machine(GATES), 0, &Author::operator(), &BTreeMap::new()).await.unwrap();
    let repeat = tasks.delete_machine(M, ("ada", "@ada"), Some("k1")).await.unwrap();
    assert_eq!((repeat.id, repeat.state), (first.id, TaskState::Done));
    assert_eq!(world.machines.definitions.current(M).await.unwrap().number, 2);
    // The key belongs to the whole request.
    let other =
        tasks.start(M, Operation::Suspend, Filter::default(), None, ("ada", "@ada"), Some("k1")).await;
    assert!(matches!(other, Err(Error::Conflict)), "{other:?}");
}

#[tokio::test]
async fn a_repeated_update_that_changed_nothing_does_not_undo_a_later_one() {
    let world = World::new(GATES).await;
    world.create("a", json!({"n": 1})).await;
    let update = async |n: u8, key| {
        let update = crate::Update { metadata: &json!({"n": n}), patch: false, key };
        world.machines.labels.update(M, "a", &update).await.unwrap()
    };
    let first = update(1, Some("k1")).await;
    update(2, None).await;
    let again = update(1, Some("k1")).await;
    assert_eq!((again.repeated, again.revision), (true, first.revision));
    assert_eq!(world.label("a").await.metadata, json!({"n": 2}));
}

#[tokio::test]
async fn another_index_evaluates_no_unchanged_gate() {
    let without = GATES.replace("    index: [metadata.plan, metadata.size]\n", "");
    let world = World::new(&without).await;
    // A creation is not an update, so its gate was not evaluated.
    world.create("a", json!({"a": 1, "b": 2, "plan": "pro"})).await;
    let plan = &world.machines.inspector.planner;
    let old = world.machines.definitions.current(M).await.unwrap();
    assert_eq!(plan.preview(Some(&old), &machine(GATES)).await.unwrap().starts, 0);
    world.apply(GATES, 1).await;
    assert_eq!(&*world.label("a").await.state, "asked");
    assert_eq!(world.found(with("plan", json!("pro"))).await, ["a"]);
}

#[tokio::test]
async fn an_operation_with_an_idempotency_key_is_applied_once() {
    let receiver = Receiver::holding().await;
    let url = &receiver.url;
    let world = World::new(&format!(
        "
state_machines:
  m:
    states:
      - {{action: first, webhook: \"{url}\", next: second}}
      - {{action: second, webhook: \"{url}\", next: done}}
      - {{gate: done}}
"
    ))
    .await;
    world.create("a", json!({})).await;
    let once = |key| world.machines.labels.by("ada").once(Some(key), None);
    let skip = async || once("k1").operate(M, "a", &Operation::Skip).await.unwrap();
    let (first, repeat) = (skip().await, skip().await);
    assert!(first.changed && !repeat.changed);
    let (first, repeat) = (first.answer.unwrap(), repeat.answer.unwrap());
    assert_eq!((&*first.state, &*repeat.state, repeat.repeated), ("second", "second", true));
    assert_eq!(&*world.label("a").await.state, "second");
    // The key belongs to the whole request.
    let moved = Operation::Move { to: "done".to_owned() };
    assert!(matches!(once("k1").operate(M, "a", &moved).await, Err(Error::Conflict)));
    // An operation that changes nothing is remembered, too.
    assert!(matches!(once("k2").retry(M, "a").await, Err(Error::NotErrored)));
    once("k3").operate(M, "a", &Operation::Resume).await.unwrap();
    once("k4").operate(M, "a", &Operation::Suspend).await.unwrap();
    once("k3").operate(M, "a", &Operation::Resume).await.unwrap();
    assert!(world.label("a").await.suspended);
}

#[tokio::test]
async fn a_repeated_deletion_does_not_delete_a_label_that_was_created_again() {
    let world = World::new(GATES).await;
    let labels = &world.machines.labels;
    let delete = async |key| labels.by("ada").once(Some(key), None).delete(M, "a").await.unwrap();
    world.create("a", json!({})).await;
    assert!(delete("k1").await);
    // This one finds a deleted label.
    assert!(!delete("k2").await);
    labels.create(M, "a", &json!({}), true, None).await.unwrap();
    assert!(!delete("k1").await && !delete("k2").await);
    assert_eq!(world.label("a").await.incarnation, 2);
    assert!(delete("k3").await);
}

#[tokio::test]
async fn a_request_that_expects_another_revision_changes_nothing() {
    let world = World::new(GATES).await;
    world.create("a", json!({})).await;
    world.send_update("a", json!({"n": 1})).await;
    let at = |revision| world.machines.labels.by("ada").once(None, Some(revision));
    let moved = Operation::Move { to: "done".to_owned() };
    assert!(matches!(at(1).operate(M, "a", &moved).await, Err(Error::OtherRevision(2))));
    assert!(matches!(at(1).delete(M, "a").await, Err(Error::OtherRevision(2))));
    let update = crate::Update { metadata: &json!({"n": 2}), patch: false, key: None };
    assert!(matches!(at(1).update(M, "a", &update).await, Err(Error::OtherRevision(2))));
    assert_eq!(at(2).operate(M, "a", &moved).await.unwrap().answer.unwrap().state, "done");
    // The answer to a repeat does not depend on the revision that the first request made.
    let keyed = || world.machines.labels.by("ada").once(Some("k"), Some(3));
    assert!(keyed().operate(M, "a", &Operation::Suspend).await.unwrap().changed);
    assert!(!keyed().operate(M, "a", &Operation::Suspend).await.unwrap().changed);
    assert!(at(4).delete(M, "a").await.unwrap());
}

#[tokio::test]
async fn a_repeated_deletion_of_a_label_that_never_existed_does_not_delete_a_new_one() {
    let world = World::new(GATES).await;
    let labels = world.machines.labels.by("ada");
    let delete = async |key| labels.clone().once(Some(key), None).delete(M, "a").await.unwrap();
    assert!(!delete("k1").await && !delete("k2").await);
    // Other requests still find no label.
    let store = &world.machines.label_store;
    assert!(matches!(store.label(M, "a").await, Err(Error::NoSuchLabel)));
    assert!(matches!(store.label_or_tombstone(M, "a").await, Err(Error::NoSuchLabel)));
    let update = crate::Update { metadata: &json!({"n": 2}), patch: false, key: None };
    assert!(matches!(labels.update(M, "a", &update).await, Err(Error::NoSuchLabel)));
    assert!(matches!(labels.operate(M, "a", &Operation::Evaluate).await, Err(Error::NoSuchLabel)));
    assert!(world.found(Filter::default()).await.is_empty());
    assert!(world.events("signalbox.labels").await.is_empty());
    world.create("a", json!({})).await;
    assert_eq!(world.label("a").await.incarnation, 1);
    assert!(!delete("k1").await && !delete("k2").await);
    let again = labels.clone().once(Some("k1"), None).operate(M, "a", &Operation::Delete).await.unwrap();
    assert!(!again.changed);
    let skip = labels.clone().once(Some("k1"), None).operate(M, "a", &Operation::Skip).await;
    assert!(matches!(skip, Err(Error::Conflict | Error::NotActing)), "{skip:?}");
    assert_eq!(&*world.label("a").await.state, "asked");
    assert!(delete("k3").await);
    let checked = world.machines.inspector.checker.check(crate::CheckCursor::default()).await.unwrap();
    assert_eq!(checked.findings, []);
}

#[tokio::test]
async fn a_request_that_expects_a_revision_does_not_succeed_without_the_label() {
    let world = World::new(GATES).await;
    let at = |revision| world.machines.labels.by("ada").once(None, Some(revision));
    assert!(matches!(at(1).delete(M, "a").await, Err(Error::OtherRevision(0))));
    for operation in [Operation::Delete, Operation::Evaluate] {
        assert!(at(1).operate(M, "a", &operation).await.is_err(), "{operation:?}");
    }
    world.create("a", json!({})).await;
    let keyed = || world.machines.labels.by("ada").once(Some("k"), Some(1));
    assert!(keyed().delete(M, "a").await.unwrap());
    // A repeat gets the first answer. Another request finds no label of this revision.
    assert!(!keyed().delete(M, "a").await.unwrap());
    assert!(matches!(at(1).delete(M, "a").await, Err(Error::OtherRevision(2))));
}

#[tokio::test]
async fn the_idempotency_keys_of_two_clients_are_independent() {
    let world = World::new(GATES).await;
    let (ada, bob) = (world.machines.labels.by("ada"), world.machines.labels.by("bob"));
    let created = ada.create(M, "a", &json!({}), false, Some("k")).await.unwrap();
    assert!(matches!(bob.create(M, "a", &json!({}), false, Some("k")).await, Err(Error::Exists)));
    let update = |n: u8| json!({ "n": n });
    let send = async |labels: &crate::Labels, n: u8| {
        let metadata = update(n);
        labels.update(M, "a", &crate::Update { metadata: &metadata, patch: false, key: Some("k2") }).await
    };
    assert!(!send(&ada, 1).await.unwrap().repeated);
    assert!(!send(&bob, 2).await.unwrap().repeated, "another request of another client");
    assert!(send(&ada, 1).await.unwrap().repeated && send(&bob, 2).await.unwrap().repeated);
    assert_eq!(world.label("a").await.metadata, json!({"n": 2}));
    assert_eq!(created.revision, 1);
    let once = |labels: &crate::Labels| labels.clone().once(Some("k3"), None);
    assert!(once(&ada).operate(M, "a", &Operation::Suspend).await.unwrap().changed);
    assert!(once(&bob).operate(M, "a", &Operation::Resume).await.unwrap().changed);
    assert!(once(&bob).delete(M, "a").await.is_err(), "the key belongs to the whole request");
    assert!(once(&world.machines.labels.by("eve")).delete(M, "a").await.unwrap());
}

#[tokio::test]
async fn a_task_leaves_no_key_in_labels_that_it_does_not_change() {
    let world = World::new(GATES).await;
    world.create("same", json!({"n": 1})).await;
    world.create("other", json!({"n": 2})).await;
    let before = world.label("same").await;
    let set = Operation::Set { metadata: json!({"n": 1}), patch: false };
    let task = world.task(set, Filter::default()).await;
    assert_eq!((task.state, task.changed, task.unchanged), (TaskState::Done, 1, 1), "{task:?}");
    assert_eq!(world.label("same").await, before);
    let changed = world.label("other").await;
    assert_eq!((changed.metadata, changed.seen.len()), (json!({"n": 1}), 1));
}

/// The page of a task is repeated by a release that writes operations in another way.
#[tokio::test]
async fn a_repeated_page_of_a_task_ends_although_another_release_began_it() {
    let world = World::new(GATES).await;
    world.create("a", json!({})).await;
    let labels = world.machines.labels.by("ada");
    let first = labels.operate_once(M, "a", &Operation::Suspend, "t").await.unwrap();
    let repeat = labels.operate_once(M, "a", &Operation::Resume, "t").await.unwrap();
    assert!(first.changed && !repeat.changed);
    assert!(world.label("a").await.suspended);
}

/// The pacemaker that applied the version was paused, and another one has completed the change since.
#[tokio::test]
async fn a_pacemaker_that_was_paused_does_not_bring_a_deleted_machine_back() {
    let world = World::on_shards(2).await;
    world.apply(GATES, 0).await;
    let (paused, text) = (world.another(), GATES.replace("asked", "questioned"));
    let map = BTreeMap::from([("asked".to_owned(), "questioned".to_owned())]);
    let author = Author::operator();
    let begun = paused.definitions.begin(&machine(&text), 1, "mark", (world.now_ms(), &author), &map).await;
    begun.unwrap();
    let version = paused.versions.version(0, M, 2).await.unwrap().unwrap();
    world.machines.applier.finish_all().await.unwrap();
    world.machines.tasks.delete_machine(M, ("ada", "@ada"), None).await.unwrap();
    world.work_off().await;
    for shard in 0..2 {
        assert_eq!(paused.versions.switch(shard, M, (2, false), ("root", &version)).await.unwrap(), 0);
        assert_eq!(paused.versions.version(shard, M, 2).await.unwrap(), None);
    }
    assert!(matches!(world.another().definitions.current(M).await, Err(Error::NoSuchMachine)));
    assert!(world.machines.definitions.names().await.unwrap().is_empty());
    // A machine of this name can be applied again.
    assert_eq!(world.apply(GATES, 0).await, 3);
    world.create("a", json!({})).await;
}

/// The pacemaker that deleted the machine was paused in the middle of a page.
#[tokio::test]
async fn a_deletion_that_another_pacemaker_has_completed_leaves_a_later_machine_of_the_name() {
    let world = World::new(GATES).await;
    world.create("a", json!({})).await;
    let task = world.machines.tasks.delete_machine(M, ("ada", "@ada"), None).await.unwrap();
    let stored = world.machines.tasks.tasks.get(M, &task.id).await.unwrap().unwrap();
    world.work_off().await;
    assert_eq!(world.apply(GATES, 0).await, 2);
    world.create("b", json!({})).await;
    // It writes the progress of its page, and continues.
    let paused = world.another();
    let runner = &paused.tasks;
    let fabric = world.servers.fabric();
    fabric.command("HSET").arg(("machine:m:tasks", &task.id, &stored)).run().await.unwrap();
    let entry = format!("m {} ", task.id);
    fabric.command("ZADD").arg(("machine:running", 0, entry)).run().await.unwrap();
    assert_eq!(runner.restore().await.unwrap(), 1);
    world.work_off().await;
    assert_eq!(runner.get(M, &task.id).await.unwrap().state, TaskState::Done);
    assert_eq!(world.machines.definitions.current(M).await.unwrap().number, 2);
    assert_eq!(&*world.label("b").await.state, "asked");
}

/// The pacemaker that deletes the machine is paused after it has read its task, until another machine of the name is in service.
#[tokio::test]
async fn a_page_of_a_deletion_that_was_paused_changes_nothing_of_a_later_machine() {
    let world = World::new(GATES).await;
    world.create("a", json!({})).await;
    let task = world.machines.tasks.delete_machine(M, ("ada", "@ada"), None).await.unwrap();
    let paused = world.another();
    let (stored, held) = paused.tasks.read(M, &task.id).await.unwrap();
    world.work_off().await;
    let done = world.machines.tasks.get(M, &task.id).await.unwrap();
    world.apply(GATES, 0).await;
    world.machines.labels.create(M, "a", &json!({}), true, None).await.unwrap();
    assert!(!paused.label_store.delete_without_definition(M, "a", 1).await.unwrap());
    paused.records.remove_from_state(0, M, "asked", "a").await.unwrap();
    assert_eq!(&*world.label("a").await.state, "asked");
    assert_eq!(world.machines.records.count_states(M, &["asked"]).await.unwrap(), [1]);
    paused.tasks.work(&format!("t m {}", task.id), &stored, held).await.unwrap();
    assert_eq!(&*world.label("a").await.state, "asked");
    assert_eq!(world.machines.tasks.get(M, &task.id).await.unwrap(), done);
}

#[tokio::test]
async fn a_secret_that_is_set_while_a_machine_is_deleted_is_kept() {
    let world = World::new(GATES).await;
    let secrets = &world.machines.actions.secrets;
    let to = "https://receiver.test/";
    secrets.set(M, ("old", to), "a value", "ada").await.unwrap();
    secrets.set(M, ("replaced", to), "a value", "ada").await.unwrap();
    world.time.advance(1);
    world.machines.tasks.delete_machine(M, ("ada", "@ada"), None).await.unwrap();
    world.time.advance(1);
    secrets.set(M, ("new", to), "a value", "ada").await.unwrap();
    secrets.set(M, ("replaced", to), "another value", "ada").await.unwrap();
    world.work_off().await;
    let names: Vec<String> = secrets.list(M).await.unwrap().into_iter().map(|secret| secret.name).collect();
    assert_eq!(names, ["new", "replaced"]);
}

#[tokio::test]
async fn an_entry_is_removed_only_for_the_version_that_does_not_need_it() {
    let world = World::new(GATES).await;
    let due = &world.machines.due;
    let entry = "w m asked 18:30 UTC";
    due.ensure(0, entry, 7).await.unwrap();
    for outdated in [None, Some(2)] {
        due.drop_entry(0, entry, (M, outdated)).await.unwrap();
        assert_eq!(due.next(0).await.unwrap(), Some(7), "{outdated:?}");
    }
    due.drop_entry(0, entry, (M, Some(1))).await.unwrap();
    assert_eq!(due.next(0).await.unwrap(), None);
}

#[tokio::test]
async fn a_task_above_the_limit_is_rejected_before_versions_are_read() {
    let world = World::new(GATES).await;
    let start = async || {
        let (tasks, filter) = (&world.machines.tasks, Filter::default());
        tasks.start(M, Operation::Evaluate, filter, None, ("ada", "@ada"), None).await
    };
    for _ in 0..5 {
        start().await.unwrap();
    }
    // Reading all versions fails.
    let fabric = world.servers.fabric();
    fabric.command("SET").arg(("machine:m:versions", "no hash")).run().await.unwrap();
    assert!(matches!(start().await, Err(Error::TooManyTasks(5))));
    let deleted = world.machines.tasks.delete_machine(M, ("ada", "@ada"), None).await;
    assert!(matches!(deleted, Err(Error::TooManyTasks(5))));
}

/// Stored versions are read for the names of their states only.
#[tokio::test]
async fn a_version_is_stored_with_the_names_of_its_states() {
    let world = World::new(GATES).await;
    let (fabric, versions) = (world.servers.fabric(), "machine:m:versions");
    let stored: String = fabric.command("HGET").arg((versions, 1)).query().await.unwrap();
    let known = world.machines.definitions.all_states(M).await.unwrap();
    let mut without: Value = serde_json::from_str(&stored).unwrap();
    assert_eq!(without["states"].as_array().unwrap().len(), known.names.len());
    // An earlier release stored it.
    let without_states = without.as_object_mut().unwrap();
    without_states.remove("states");
    without_states.insert("source".to_owned(), GATES.into());
    fabric.command("HSET").arg((versions, 1, without.to_string())).run().await.unwrap();
    assert_eq!(world.machines.definitions.all_states(M).await.unwrap(), known);
}

#[tokio::test]
async fn deleting_a_machine_deletes_labels_in_states_of_a_version_that_cannot_be_read() {
    let world = World::new(GATES).await;
    world.create("known", json!({})).await;
    world.machines.labels.create("m", "lost: a", &json!({"a": 1, "b": 1}), false, None).await.unwrap();
    let fabric = world.servers.fabric();
    let (sources, text) = ("machine:m:sources", GATES.replace("asked", "questioned"));
    let map = BTreeMap::from([("asked".to_owned(), "questioned".to_owned())]);
    world.machines.applier.apply(&machine(&text), 1, &Author::operator(), &map).await.unwrap();
    let stored: String = fabric.command("HGET").arg((sources, 2)).query().await.unwrap();
    let unreadable = stored.replace("state_machines", "later_machines");
    fabric.command("HSET").arg((sources, 2, unreadable)).run().await.unwrap();
    let later = world.another();
    let task = later.tasks.delete_machine(M, ("ada", "@ada"), None).await.unwrap();
    while later.due.next(0).await.unwrap().is_some_and(|next| next <= world.now_ms()) {
        later.work_off_page(0, world.now_ms()).await;
    }
    let task = later.tasks.get(M, &task.id).await.unwrap();
    assert_eq!((task.state, task.changed), (TaskState::Done, 2), "{task:?}");
    for label in ["known", "lost: a"] {
        assert_eq!(later.label_store.label_or_tombstone(M, label).await.unwrap().status, Status::Deleted);
    }
    let left: Vec<String> = fabric.command("KEYS").arg("machine:m:in:*").query().await.unwrap();
    assert_eq!(left, [""; 0]);
}
