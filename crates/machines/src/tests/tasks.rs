//! What is stored of tasks, and what is read: nothing of other machines, and no more of a task than it needs.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::join_all;
use serde_json::{Value, json};
use signalbox_testkit::eventually;
use tokio_util::sync::CancellationToken;

use super::support::{M, World};
use crate::{Error, Filter, HasEnded, Operation, Task, TaskState};

const GATES: &str = "
state_machines:
  m:
    states:
      - {gate: asked, exit_condition: metadata.a, triggers: [{metadata: a}], next: done}
      - {gate: done}
";
const CLIENT: (&str, &str) = ("ada", "@ada");
const INDEX: &str = "machine:running";

impl World {
    async fn start(&self, operation: Operation, filter: Filter) -> Result<Task, Error> {
        self.machines.tasks.start(M, operation, filter, None, CLIENT, None).await
    }

    async fn stored_task(&self, task: &Task) -> Value {
        let (fabric, key) = (self.servers.fabric(), format!("machine:{}:tasks", task.machine));
        let stored: String = fabric.command("HGET").arg((key, &task.id)).query().await.unwrap();
        serde_json::from_str(&stored).unwrap()
    }

    async fn index(&self) -> Vec<String> {
        self.servers.fabric().command("ZRANGE").arg((INDEX, 0, -1)).query().await.unwrap()
    }

    async fn exists(&self, key: &str) -> bool {
        self.servers.fabric().command("EXISTS").arg(key).query::<u64>().await.unwrap() == 1
    }

    /// Stores all tasks as earlier versions did, each with the names of all states.
    async fn store_as_before(&self) {
        let fabric = self.servers.fabric();
        for key in fabric.command("KEYS").arg("machine:*:tasks").query::<Vec<String>>().await.unwrap() {
            let tasks: BTreeMap<String, String> = fabric.command("HGETALL").arg(&key).query().await.unwrap();
            for (id, stored) in tasks {
                let mut task: Value = serde_json::from_str(&stored).unwrap();
                task["states"] = json!(["asked", "done"]);
                let field = format!("{} {id}", task["machine"].as_str().unwrap());
                fabric.command("HSET").arg(("machine:tasks", field, task.to_string())).run().await.unwrap();
            }
            fabric.command("DEL").arg(key).run().await.unwrap();
        }
        fabric.command("DEL").arg(INDEX).run().await.unwrap();
    }

    /// Bytes that the fabric has sent.
    async fn sent(&self) -> u64 {
        let text: String = self.servers.fabric().command("INFO").arg("stats").query().await.unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
        line.and_then(|count| count.trim().parse().ok()).unwrap()
    }
}

/// A filter with a text of this length.
fn long(bytes: usize) -> Filter {
    Filter { error: Some("x".repeat(bytes)), ..Filter::default() }
}

#[tokio::test]
async fn only_a_deletion_that_runs_is_stored_with_the_names_of_states() {
    let world = World::new(GATES).await;
    world.create("a", json!({})).await;
    let each = world.start(Operation::Suspend, Filter::default()).await.unwrap();
    assert!(world.stored_task(&each).await["states"].is_null());
    let deletion = world.machines.tasks.delete_machine(M, CLIENT, None).await.unwrap();
    assert_eq!(world.stored_task(&deletion).await["states"].as_array().unwrap().len(), 2);
    world.work_off().await;
    let ended = world.stored_task(&deletion).await;
    assert_eq!(
        (&ended["state"], &ended["changed"], &ended["states"]),
        (&json!("done"), &json!(1), &Value::Null)
    );
}

#[tokio::test]
async fn a_task_with_a_large_filter_or_operation_is_rejected_before_it_is_stored() {
    let world = World::new(GATES).await;
    let set = |bytes| Operation::Set { metadata: json!({"x": "x".repeat(bytes)}), patch: false };
    for (operation, filter) in
        [(Operation::Suspend, long(5_000)), (set(5_000), Filter::default()), (set(2_100), long(2_100))]
    {
        let error = world.start(operation, filter).await.unwrap_err();
        assert!(matches!(&error, Error::BadFilter(why) if why.ends_with("the limit is 4096")), "{error}");
    }
    assert!(!world.exists("machine:m:tasks").await);
    // `"suspend"` and `{"error":""}` have 21 bytes.
    assert!(matches!(world.start(Operation::Suspend, long(4_096 - 20)).await, Err(Error::BadFilter(_))));
    world.start(Operation::Suspend, long(4_096 - 21)).await.unwrap();
}

#[tokio::test]
async fn requests_about_a_machine_do_not_read_tasks_of_other_machines() {
    let world = World::new(GATES).await;
    world.apply(&GATES.replace("  m:", "  other:"), 0).await;
    let tasks = &world.machines.tasks;
    for n in 0..5 {
        let filter = Filter { younger_than_seconds: Some(n), ..long(3_900) };
        tasks.start("other", Operation::Suspend, filter, None, CLIENT, None).await.unwrap();
    }
    let before = world.sent().await;
    for _ in 0..10 {
        assert!(tasks.list(M).await.unwrap().is_empty());
        assert!(!tasks.tasks.is_deleting(M).await.unwrap());
        assert_eq!(tasks.restore().await.unwrap(), 0);
        let none: HasEnded = Box::new(|_| false);
        tasks.end_lost(async { Ok::<_, Error>(none) }).await.unwrap();
    }
    let sent = world.sent().await - before;
    assert!(sent < 19_500, "{sent} bytes, which is more than the filters of the tasks have");
    assert_eq!(tasks.list("other").await.unwrap().len(), 5);
}

#[tokio::test]
async fn the_index_has_the_tasks_that_run() {
    let world = World::new(GATES).await;
    let fabric = world.servers.fabric();
    world.create("a", json!({})).await;
    let task = world.start(Operation::Suspend, Filter::default()).await.unwrap();
    assert_eq!(world.index().await, [format!("m {} @ada", task.id)]);
    let expires = async || fabric.command("PTTL").arg("machine:m:tasks").query::<i64>().await.unwrap() != -1;
    assert!(!expires().await);
    world.work_off().await;
    assert!(world.index().await.is_empty() && expires().await);
    let again = world.start(Operation::Resume, Filter::default()).await.unwrap();
    assert!(!expires().await);
    // The process that started it has died.
    fabric.command("DEL").arg(("machine:m:due", "machine:next")).run().await.unwrap();
    assert_eq!(world.another().tasks.restore().await.unwrap(), 1);
    world.work_off().await;
    assert_eq!(world.machines.tasks.get(M, &again.id).await.unwrap().state, TaskState::Done);
    assert!(world.index().await.is_empty());
}

#[tokio::test]
async fn an_entry_of_the_index_without_a_task_that_runs_is_removed_when_it_is_seen() {
    let world = World::new(GATES).await;
    let (fabric, tasks) = (world.servers.fabric(), &world.machines.tasks);
    let ended = world.start(Operation::Suspend, Filter::default()).await.unwrap();
    world.work_off().await;
    let add = async || {
        for entry in ["m missing @ada", "gone missing ", &format!("m {} @ada", ended.id)] {
            fabric.command("ZADD").arg((INDEX, 0, entry)).run().await.unwrap();
        }
    };
    add().await;
    assert_eq!(tasks.restore().await.unwrap(), 3);
    world.work_off().await;
    assert!(world.index().await.is_empty());
    assert_eq!(world.machines.due.next(0).await.unwrap(), None);
    add().await;
    let ada: HasEnded = Box::new(|client| client == "@ada");
    tasks.end_lost(async { Ok::<_, Error>(ada) }).await.unwrap();
    assert_eq!(world.index().await, ["gone missing "]);
    assert!(!world.exists("machine:cancels").await);
    assert!(!tasks.tasks.is_deleting("gone").await.unwrap());
    assert!(world.index().await.is_empty());
    assert_eq!(tasks.get(M, &ended.id).await.unwrap().state, TaskState::Done);
}

#[tokio::test]
async fn the_task_of_an_ended_token_is_canceled() {
    let world = World::new(GATES).await;
    let tasks = &world.machines.tasks;
    let one = world.start(Operation::Suspend, Filter::default()).await.unwrap();
    let other = tasks
        .start(M, Operation::Resume, Filter::default(), None, ("bob", "a client b"), None)
        .await
        .unwrap();
    let bob: HasEnded = Box::new(|client| client == "a client b");
    let runner = Arc::clone(tasks);
    let ending = async move { runner.end_lost(async { Ok::<_, Error>(bob) }).await };
    tokio::spawn(ending).await.unwrap().unwrap();
    world.work_off().await;
    let states = [tasks.get(M, &one.id).await.unwrap().state, tasks.get(M, &other.id).await.unwrap().state];
    assert_eq!(states, [TaskState::Done, TaskState::Canceled]);
}

#[tokio::test]
async fn tasks_that_are_started_at_the_same_time_do_not_exceed_the_limit() {
    let world = World::new(GATES).await;
    let other = world.another();
    let start = |n: usize| {
        let tasks = if n.is_multiple_of(2) { &world.machines.tasks } else { &other.tasks };
        tasks.start(M, Operation::Suspend, Filter::default(), None, CLIENT, None)
    };
    let started = join_all((0..12).map(start)).await;
    let full = started.iter().filter(|started| matches!(started, Err(Error::TooManyTasks(5)))).count();
    assert_eq!(full, 7, "{started:?}");
    assert_eq!(world.machines.tasks.list(M).await.unwrap().len(), 5);
    assert_eq!(world.index().await.len(), 5);
}

#[tokio::test]
async fn of_starts_with_one_key_at_the_same_time_the_first_counts() {
    let world = World::new(GATES).await;
    let start = |n: usize| {
        let operation = if n.is_multiple_of(2) { Operation::Suspend } else { Operation::Resume };
        world.machines.tasks.start(M, operation, Filter::default(), None, CLIENT, Some("k"))
    };
    let (started, rejected): (Vec<_>, Vec<_>) =
        join_all((0..8).map(start)).await.into_iter().partition(Result::is_ok);
    assert!(rejected.iter().all(|rejected| matches!(rejected, Err(Error::Conflict))), "{rejected:?}");
    assert_eq!((started.len(), rejected.len()), (4, 4));
    let first = &world.machines.tasks.list(M).await.unwrap()[0];
    assert!(started.into_iter().all(|started| started.unwrap() == *first));
    assert_eq!(world.index().await.len(), 1);
}

#[tokio::test]
async fn two_pacemakers_move_the_tasks_of_an_earlier_version_at_the_same_time() {
    let world = World::new(GATES).await;
    world.apply(&GATES.replace("  m:", "  other:"), 0).await;
    world.create("a", json!({})).await;
    let tasks = &world.machines.tasks;
    let start = async |machine: &str| {
        tasks.start(machine, Operation::Suspend, Filter::default(), None, CLIENT, None).await.unwrap()
    };
    for machine in [M, "other"].repeat(12) {
        start(machine).await;
        world.work_off().await;
    }
    let runs = [start(M).await, start("other").await];
    let deletion = tasks.delete_machine("other", CLIENT, Some("k")).await.unwrap();
    let mut index = world.index().await;
    let lists = [tasks.list(M).await.unwrap(), tasks.list("other").await.unwrap()];
    world.store_as_before().await;
    // One of them was moved before, and has progressed since.
    let fabric = world.servers.fabric();
    let field = format!("m {}", runs[0].id);
    let old: String = fabric.command("HGET").arg(("machine:tasks", field)).query().await.unwrap();
    let mut progressed: Value = serde_json::from_str(&old).unwrap();
    progressed["checked"] = json!(7);
    let moved = ("machine:m:tasks", &runs[0].id, progressed.to_string());
    fabric.command("HSET").arg(moved).run().await.unwrap();
    fabric.command("ZADD").arg((INDEX, 0, format!("m {} @ada", runs[0].id))).run().await.unwrap();
    let (one, two) = (world.another(), world.another());
    let (first, second) = tokio::join!(one.tasks.tasks.adopt(), two.tasks.tasks.adopt());
    first.unwrap();
    second.unwrap();
    assert!(!world.exists("machine:tasks").await);
    index.sort_unstable();
    assert_eq!(world.index().await, index);
    let by_id = |mut list: Vec<Task>| {
        list.sort_by(|a, b| a.id.cmp(&b.id));
        list.iter().map(|task| (task.id.clone(), task.state, task.job.clone())).collect::<Vec<_>>()
    };
    for (machine, list) in [M, "other"].into_iter().zip(lists) {
        assert_eq!(by_id(tasks.list(machine).await.unwrap()), by_id(list), "{machine}");
    }
    assert_eq!(tasks.get(M, &runs[0].id).await.unwrap().checked, 7);
    assert!(world.stored_task(&runs[1]).await["states"].is_null());
    assert_eq!(world.stored_task(&deletion).await["states"], json!(["asked", "done"]));
    // They continue.
    fabric.command("DEL").arg(("machine:m:due", "machine:other:due", "machine:next")).run().await.unwrap();
    assert_eq!(one.tasks.restore().await.unwrap(), 3);
    world.work_off().await;
    for (machine, id) in [(M, &runs[0].id), ("other", &deletion.id)] {
        assert_eq!(tasks.get(machine, id).await.unwrap().state, TaskState::Done);
    }
    assert!(world.index().await.is_empty());
}

#[tokio::test]
async fn a_repeat_finds_the_deletion_that_an_earlier_version_has_stored() {
    let world = World::new(GATES).await;
    let first = world.machines.tasks.delete_machine(M, CLIENT, Some("k")).await.unwrap();
    world.work_off().await;
    world.store_as_before().await;
    world.apply(GATES, 0).await;
    // This pacemaker has just started.
    let later = world.another();
    let repeat = later.tasks.delete_machine(M, CLIENT, Some("k")).await.unwrap();
    assert_eq!((repeat.id, repeat.state), (first.id, TaskState::Done));
    assert_eq!(later.definitions.current(M).await.unwrap().number, 2);
}

#[tokio::test]
async fn a_machine_whose_deletion_an_earlier_version_began_is_not_applied() {
    let world = World::new(GATES).await;
    world.machines.tasks.delete_machine(M, CLIENT, None).await.unwrap();
    world.store_as_before().await;
    let author = signalbox_access::Author::operator();
    let applier = &world.another().applier;
    let applied = applier.apply(&super::support::machine(GATES), 0, &author, &BTreeMap::new()).await;
    assert!(matches!(applied, Err(Error::BeingDeleted)), "{applied:?}");
}

#[tokio::test]
async fn a_task_of_an_earlier_version_is_moved_although_another_machine_has_a_damaged_key() {
    let world = World::new(GATES).await;
    let task = world.start(Operation::Suspend, Filter::default()).await.unwrap();
    let stored = world.stored_task(&task).await.to_string();
    world.store_as_before().await;
    let fabric = world.servers.fabric();
    fabric.command("SET").arg(("machine:damaged:tasks", "no hash")).run().await.unwrap();
    fabric.command("HSET").arg(("machine:tasks", "damaged 1", &stored)).run().await.unwrap();
    fabric.command("HSET").arg(("machine:tasks", "m 2", "not JSON")).run().await.unwrap();
    let later = world.another();
    assert_eq!(later.tasks.list(M).await.unwrap().len(), 1);
    let left: Vec<String> = fabric.command("HKEYS").arg("machine:tasks").query().await.unwrap();
    assert_eq!(left, ["damaged 1"]);
    assert_eq!(world.index().await, [format!("m {} @ada", task.id)]);
}

#[tokio::test]
async fn a_pacemaker_moves_tasks_that_one_of_an_earlier_version_stores_next_to_it() {
    let world = World::new(GATES).await;
    world.start(Operation::Suspend, Filter::default()).await.unwrap();
    let later = world.another();
    assert_eq!(later.tasks.list(M).await.unwrap().len(), 1);
    world.store_as_before().await;
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(later.service.clone().run(Vec::new(), shutdown.clone()));
    eventually("the task to be moved", async || match world.index().await.len() {
        1 => Ok(()),
        found => Err(found),
    })
    .await;
    assert!(!world.exists("machine:tasks").await);
    shutdown.cancel();
    running.await.unwrap();
}
