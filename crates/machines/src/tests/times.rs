//! Intervals and times of day.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use serde_json::json;

use signalbox_testkit::eventually;
use tokio::time::timeout;

use super::support::{M, World, send_update};
use crate::{fair::Payer, feeds::FeedAnswers, label_store::Edit};

const DAILY: &str = "
state_machines:
  m:
    timezone: {metadata: zone, default: UTC}
    states:
      - {gate: waiting, exit_condition: metadata.go, triggers: [{time: 18h30m}, {metadata: nothing}], next: done}
      - {gate: done}
";

const DAY_MS: u64 = 86_400_000;

#[tokio::test]
async fn a_sweep_evaluates_every_label_once_page_by_page() {
    let world = World::new(DAILY).await;
    let creations = (0..250).map(|n| world.create_owned(format!("l{n:03}"), json!({"go": n % 10 == 0})));
    stream::iter(creations).buffer_unordered(32).collect::<Vec<_>>().await;
    let due = world.machines.due.next(0).await.unwrap().unwrap();
    assert!(due > world.now_ms() && due <= world.now_ms() + DAY_MS);
    world.work_off().await;
    assert_eq!(world.counts().await, [250, 0], "nothing before its time");
    world.time.0.store(due, std::sync::atomic::Ordering::SeqCst);
    world.work_off().await;
    assert_eq!(world.counts().await, [225, 25]);
    assert_eq!(world.machines.due.next(0).await.unwrap(), Some(due + DAY_MS));
}

#[tokio::test]
async fn an_interrupted_sweep_continues_from_its_progress() {
    let world = World::new(DAILY).await;
    for label in ["a", "b", "c"] {
        world.create(label, json!({"go": true})).await;
    }
    let due = world.machines.due.next(0).await.unwrap().unwrap();
    let member = world.machines.due.due(0, due, 1).await.unwrap().remove(0).0;
    // Another pacemaker had evaluated the labels up to `b` when it died: its stored progress is used.
    world.machines.due.set_progress(0, &member, due, "b").await.unwrap();
    world.time.0.store(due, std::sync::atomic::Ordering::SeqCst);
    world.work_off().await;
    assert_eq!(world.counts().await, [2, 1]);
    assert_eq!(&*world.label("c").await.state, "done");
}

#[tokio::test]
async fn a_label_with_its_own_zone_is_evaluated_at_its_own_time() {
    let world = World::new(DAILY).await;
    world.create("here", json!({"go": true})).await;
    world.create("tokyo", json!({"go": true, "zone": "Asia/Tokyo"})).await;
    let mut moved = Vec::new();
    for _ in 0..2 {
        let due = world.machines.due.next(0).await.unwrap().unwrap();
        world.time.0.store(due, std::sync::atomic::Ordering::SeqCst);
        world.work_off().await;
        for label in ["here", "tokyo"] {
            if &*world.label(label).await.state == "done" && !moved.contains(&label) {
                moved.push(label);
            }
        }
        assert!(!moved.is_empty());
    }
    assert_eq!(moved.len(), 2, "each in its own sweep: {moved:?}");
}

/// One gate, one time of day, in two zones that a label may name.
const TWO_ZONES: &str = "
state_machines:
  m:
    states:
      - gate: waiting
        exit_condition: metadata.go
        triggers: [{time: 18:30, timezone: metadata.home}, {time: 18:30, timezone: metadata.work}]
        next: done
      - {gate: done}
";

impl World {
    /// Advances to the next time that something is due.
    async fn next_time(&self) -> u64 {
        let due = self.machines.due.next(0).await.unwrap().unwrap();
        self.time.0.store(due, std::sync::atomic::Ordering::SeqCst);
        self.work_off().await;
        due
    }
}

#[tokio::test]
async fn a_label_with_two_zones_is_evaluated_at_both_times() {
    let world = World::new(TWO_ZONES).await;
    // It is winter, 08:00Z: 18:30 is 09:30Z in Tokyo, 18:30Z in UTC, and 23:30Z in New York.
    for (label, metadata) in [
        ("both", json!({"go": true, "home": "America/New_York", "work": "Asia/Tokyo"})),
        ("west", json!({"go": true, "home": "America/New_York", "work": "America/New_York"})),
        // Of the zone that it does not name it is the default one.
        ("home", json!({"go": true, "home": "America/New_York"})),
        ("work", json!({"go": true, "work": "Asia/Tokyo"})),
    ] {
        world.create(label, metadata).await;
    }
    assert_eq!(world.label("both").await.zones.join(" "), "America/New_York Asia/Tokyo");
    let mut evenings = Vec::new();
    while evenings.len() < 4 {
        let due = world.next_time().await;
        for label in ["both", "home", "west", "work"] {
            if &*world.label(label).await.state == "done"
                && !evenings.iter().any(|(known, _)| *known == label)
            {
                evenings.push((label, due / 60_000 % (24 * 60)));
            }
        }
    }
    let (tokyo, utc, new_york) = (9 * 60 + 30, 18 * 60 + 30, 23 * 60 + 30);
    assert_eq!(evenings, [("both", tokyo), ("work", tokyo), ("home", utc), ("west", new_york)]);
}

#[tokio::test]
async fn of_several_missed_sweeps_only_the_last_is_made_up_for() {
    let yaml = DAILY.replace("{time: 18h30m}", "{time: 18h30m, grace: 1h}");
    let world = World::new(&yaml).await;
    world.create("early", json!({"go": true})).await;
    let due = world.machines.due.next(0).await.unwrap().unwrap();
    // No pacemaker works for two days, but labels are created; then one starts half an hour after the third sweep was due.
    world.time.0.store(due + DAY_MS, std::sync::atomic::Ordering::SeqCst);
    world.create("late", json!({"go": true})).await;
    world.time.0.store(due + 2 * DAY_MS + 1_800_000, std::sync::atomic::Ordering::SeqCst);
    world.create("later", json!({"go": true})).await;
    world.work_off().await;
    assert_eq!(world.counts().await, [1, 2]);
    assert_eq!(&*world.label("later").await.state, "waiting", "it entered after that time");
    assert_eq!(world.machines.due.next(0).await.unwrap(), Some(due + 3 * DAY_MS));
    // Two hours after one it is too late.
    world.time.0.store(due + 3 * DAY_MS + 7_200_000, std::sync::atomic::Ordering::SeqCst);
    world.work_off().await;
    assert_eq!(world.counts().await, [1, 2]);
    assert_eq!(world.machines.due.next(0).await.unwrap(), Some(due + 4 * DAY_MS));
}

#[tokio::test]
async fn a_pacemaker_with_an_old_definition_runs_the_sweep_of_the_new_one() {
    let old = DAILY.replace("18h30m", "19h30m");
    let world = World::new(&old).await;
    world.create("a", json!({"go": true})).await;
    let other = world.another();
    send_update(&other, "a", &json!({"x": 1})).await;
    // The other pacemaker, which does the work, does not know of it.
    world.apply(DAILY, 1).await;
    let due = world.machines.due.next(0).await.unwrap().unwrap();
    world.time.0.store(due, std::sync::atomic::Ordering::SeqCst);
    other.work_off_page(0, due).await;
    assert_eq!(&*world.label("a").await.state, "done");
    let next = world.machines.due.due(0, due + DAY_MS, 10).await.unwrap();
    assert!(next.iter().any(|(_, at_ms)| *at_ms == due + DAY_MS), "{next:?}");
}

#[tokio::test]
async fn an_update_that_changes_nothing_is_evaluated_by_the_active_definition() {
    let yaml = "
state_machines:
  m:
    states:
      - {gate: waiting, exit_condition: metadata.n > 1, triggers: [{metadata: n}], next: done}
      - {gate: done}
";
    let world = World::new(yaml).await;
    world.create("a", json!({"n": 1})).await;
    let other = world.another();
    assert_eq!(send_update(&other, "a", &json!({"n": 1})).await.state, "waiting");
    world.apply(&yaml.replace("n > 1", "n > 0"), 1).await;
    assert_eq!(send_update(&other, "a", &json!({"n": 1})).await.state, "done");
}

#[tokio::test]
async fn a_due_entry_is_not_corrected_from_an_outdated_record() {
    let world = World::new(INTERVAL).await;
    world.create("a", json!({})).await;
    let seen = world.label("a").await;
    let due = world.machines.due.next(0).await.unwrap().unwrap();
    world.send_update("a", json!({"x": 1})).await;
    let due_set = &world.machines.due;
    for at_ms in [None, Some(due + 1)] {
        due_set.correct((M, "a"), &seen.header(), at_ms).await.unwrap();
        assert_eq!(due_set.next(0).await.unwrap(), Some(due));
    }
    // An entry that differs from its record is corrected.
    due_set.set(0, "l m a", Some(1)).await.unwrap();
    world.work_off().await;
    assert_eq!(due_set.next(0).await.unwrap(), Some(due));
    due_set.set(0, "l m nobody", Some(1)).await.unwrap();
    world.work_off().await;
    assert_eq!(due_set.due(0, due, 10).await.unwrap(), [("l m a".to_owned(), due)]);
}

const INTERVAL: &str = "
state_machines:
  m:
    states:
      - {gate: waiting, exit_condition: 10m has passed since system.entered_state, triggers: [{interval: 1m}], next: done}
      - {gate: done}
";

#[tokio::test]
async fn an_interval_is_due_when_its_condition_can_first_be_true() {
    let world = World::new(INTERVAL).await;
    world.create("a", json!({})).await;
    let entered = world.now_ms();
    let due = world.machines.due.next(0).await.unwrap().unwrap();
    assert_eq!(due, entered + 600_000, "nine evaluations that cannot succeed are skipped");
    world.time.0.store(due, std::sync::atomic::Ordering::SeqCst);
    world.work_off().await;
    assert_eq!(&*world.label("a").await.state, "done");
    assert_eq!(world.machines.due.next(0).await.unwrap(), None);
}

impl World {
    async fn create_owned(&self, label: String, metadata: serde_json::Value) {
        self.create(&label, metadata).await;
    }

    async fn counts(&self) -> Vec<u64> {
        self.machines.records.count_states(M, &["waiting", "done"]).await.unwrap()
    }
}

#[tokio::test]
async fn an_update_after_a_time_in_metadata_and_before_its_evaluation_does_not_cancel_it() {
    let world = World::new(
        "
state_machines:
  m:
    states:
      - {gate: waits, exit_condition: metadata.due is defined, triggers: [{at: metadata.due}], next: done}
      - {gate: done}
",
    )
    .await;
    let due = crate::evaluator::instant(world.now_ms() + 1_000).to_string();
    world.create("a", serde_json::json!({ "due": due })).await;
    world.time.advance(1_500);
    world.send_update("a", serde_json::json!({"noise": 1})).await;
    world.work_off().await;
    assert_eq!(&*world.label("a").await.state, "done");
}

/// Labels that a sweep evaluates, and one that has a deadline.
const BUSY: &str = "
state_machines:
  m:
    states:
      - gate: waiting
        exit_condition: metadata.go
        triggers: [{cron: \"*/5 * * * *\"}, {metadata: nothing}]
        deadline: {after: 30d, next: timed}
        next: done
      - {gate: timed, deadline: {after: 1s, next: done}}
      - {gate: done}
";

impl World {
    /// A world in which a sweep is due, and a deadline later. The sweep has no place.
    async fn with_sweep_under_way() -> (Self, Vec<crate::fair::Claim>, u64) {
        let world = Self::new(BUSY).await;
        world.create("swept", json!({"go": true})).await;
        let due = world.machines.due.next(0).await.unwrap().unwrap();
        let places = &world.machines.service.due_times.sweeps.places;
        let held = vec![places.take(&Payer::alone(M)).await, places.take(&Payer::alone(M)).await];
        world.time.0.store(due, std::sync::atomic::Ordering::SeqCst);
        world.machines.service.due_times.work_off_page(0, due).await.unwrap();
        (world, held, due)
    }
}

#[tokio::test]
async fn a_sweep_that_is_under_way_delays_no_other_entry() {
    let (world, held, due) = World::with_sweep_under_way().await;
    world.create("timed", json!({})).await;
    let to = crate::Operation::Move { to: "timed".to_owned() };
    world.machines.labels.operate(M, "timed", &to).await.unwrap();
    world.time.advance(1_000);
    world.machines.service.due_times.work_off_page(0, world.now_ms()).await.unwrap();
    // On a busy machine, evaluations take long enough to be made next to the page.
    world.until("timed", |record| &*record.state == "done").await;
    assert_eq!(&*world.label("swept").await.state, "waiting");
    drop(held);
    world.until("swept", |record| &*record.state == "done").await;
    eventually("the next sweep", async || {
        let next = world.machines.due.next(0).await.unwrap();
        if next == Some(due + 300_000) { Ok(()) } else { Err(format!("{next:?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_sweep_of_a_pacemaker_that_died_is_continued_for_the_same_instant() {
    let (world, _held, due) = World::with_sweep_under_way().await;
    world.machines.stopped.cancel();
    world.time.advance(1_000);
    world.create("later", json!({"go": true})).await;
    let other = world.another();
    other.work_off_page(0, world.now_ms()).await;
    assert_eq!(&*world.label("swept").await.state, "waiting", "the other pacemaker could be alive");
    world.time.advance(9_000);
    other.work_off_page(0, world.now_ms()).await;
    assert_eq!(&*world.label("swept").await.state, "done");
    assert_eq!(&*world.label("later").await.state, "waiting", "it entered after that time");
    assert_eq!(world.machines.due.next(0).await.unwrap(), Some(due + 300_000));
}

#[tokio::test]
async fn a_machine_has_a_limited_number_of_entries_in_progress() {
    let world = World::new(BUSY).await;
    let (machines, now_ms) = (&world.machines, world.now_ms());
    let places = &machines.service.due_times.task_places;
    let held = [places.take(&Payer::alone(M)).await, places.take(&Payer::alone(M)).await];
    let due = async |after_ms| machines.due.due(0, now_ms + after_ms, 100).await.unwrap().len();
    for n in 0..60 {
        machines.due.set(0, &format!("t m task{n}"), Some(now_ms)).await.unwrap();
    }
    machines.service.due_times.work_off_page(0, now_ms).await.unwrap();
    assert_eq!((due(0).await, due(1_000).await, due(10_000).await), (0, 10, 60));
    drop(held);
    // None of them is a task, so all entries are removed: first those in progress, then those that were postponed.
    let background = &machines.service.due_times.background;
    eventually("the entries in progress to end", async || {
        if background.is_idle() { Ok(()) } else { Err("in progress") }
    })
    .await;
    assert_eq!(due(10_000).await, 10);
    world.time.advance(1_000);
    world.work_off().await;
    assert_eq!(due(10_000).await, 0);
}

#[tokio::test]
async fn an_entry_that_cannot_be_worked_on_delays_no_other() {
    let world = World::new(INTERVAL).await;
    world.create("a", json!({})).await;
    world.time.advance(600_000);
    // The command that reads the record fails.
    world.servers.fabric().command("RPUSH").arg("object:machine:m:broken:data").arg("x").run().await.unwrap();
    world.machines.due.set(0, "l m broken", Some(world.now_ms())).await.unwrap();
    world.machines.service.due_times.work_off_page(0, world.now_ms()).await.unwrap();
    assert_eq!(&*world.label("a").await.state, "done");
    assert_eq!(world.machines.due.next(0).await.unwrap(), Some(world.now_ms() + 1_000));
}

/// A condition that compares as many values as an evaluation may, and is then false.
fn expensive(machine: &str) -> String {
    let searches = vec!["metadata.x is in metadata.list"; 480].join(" or ");
    format!(
        "
state_machines:
  {machine}:
    states:
      - {{gate: waiting, exit_condition: {searches} or metadata.go, triggers: [{{time: 18h30m}}, {{metadata: x}}], next: done}}
      - {{gate: done}}
"
    )
}

fn long_list(go: bool) -> serde_json::Value {
    json!({"x": 1, "list": vec![0; 2_000], "go": go})
}

#[tokio::test]
async fn evaluations_that_take_long_have_places_and_others_do_not_wait_for_one() {
    let world = World::new(&expensive(M)).await;
    world.apply(&INTERVAL.replace("  m:", "  other:"), 0).await;
    let store = Arc::clone(&world.machines.label_store);
    world.create("a", long_list(false)).await;
    world.send_update("a", json!({"x": 2})).await;
    let version = world.machines.definitions.current(M).await.unwrap();
    assert!(version.effort.is_high());
    let cores = std::thread::available_parallelism().unwrap().get();
    let mut held = Vec::new();
    for _ in 0..cores {
        held.push(store.computing.take(&Payer::of(&version)).await);
    }
    let answers = FeedAnswers::default();
    let mut change = pin!(store.change((M, "a"), &answers, |before, _, _| {
        Ok(before.map_or(Edit::Leave, |before| Edit::write(before.clone(), None)))
    }));
    assert!(timeout(Duration::from_millis(20), &mut change).await.is_err(), "it has no place");
    world.machines.labels.create("other", "b", &json!({}), false, None).await.unwrap();
    drop(held);
    change.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_whose_evaluations_take_long_evaluates_every_label() {
    let world = World::new(&expensive(M)).await;
    for n in 0..30 {
        world.create(&format!("l{n:02}"), long_list(n % 10 == 0)).await;
    }
    world.create("easy", json!({"x": 1, "list": [1], "go": true})).await;
    let due = world.machines.due.next(0).await.unwrap().unwrap();
    world.time.0.store(due, std::sync::atomic::Ordering::SeqCst);
    world.work_off().await;
    assert_eq!(world.counts().await, [27, 4]);
    assert_eq!(world.machines.due.next(0).await.unwrap(), Some(due + DAY_MS));
}
