//! What happened to a label is stored in its log, in the step in which it happened.

use serde_json::{Value, json};

use super::support::{M, Receiver, World};
use crate::{Entry, Filter, Line, Operation};

fn acting(url: &str) -> String {
    format!(
        "
state_machines:
  m:
    states:
      - {{gate: asked, exit_condition: metadata.go, triggers: [{{metadata: go}}], next: act}}
      - {{action: act, webhook: \"{url}\", retry: {{attempts: 2, first: 1s, longest: 1s}}, result: {{metadata.order: response.id}}, next: done}}
      - {{gate: done}}
"
    )
}

impl World {
    async fn lines(&self, label: &str) -> Vec<Line> {
        let page = self.machines.label_store.activity(M, label, None, 1_000).await.unwrap().unwrap();
        page.lines.into_iter().rev().collect()
    }

    /// The lines in words, the oldest first.
    async fn entries(&self, label: &str) -> Vec<Value> {
        let lines = self.lines(label).await;
        let entries = |line: Line| match line.entry {
            Entry::Move { to, cause, .. } => json!([cause, to]),
            Entry::Attempt { number, outcome, status, answer, error, .. } => {
                json!([number, outcome, status, answer, error])
            }
            Entry::Operation { operation, by } => json!([operation, by]),
            Entry::Metadata { by, change, .. } => json!([by, change]),
        };
        lines.into_iter().map(entries).collect()
    }
}

#[tokio::test]
async fn attempts_operations_and_updates_of_a_label_are_in_its_log() {
    let receiver = Receiver::start(&[503, 500]).await;
    let url = receiver.answers(json!({"id": 7}));
    let world = World::new(&acting(&url)).await;
    world.create("a", json!({"first": true})).await;
    let labels = world.machines.labels.by("ada");
    let update = crate::Update { metadata: &json!({"go": true}), patch: false, key: None };
    labels.update(M, "a", &update).await.unwrap();
    world.until("a", |record| record.work.error.is_some()).await;
    world.time.advance(1_000);
    world.work_off().await;
    world.until("a", |record| record.status == crate::Status::Errored).await;
    world.time.advance(1_000);
    labels.operate(M, "a", &Operation::Retry).await.unwrap();
    world.until("a", |record| &*record.state == "done").await;
    let body = "{\"id\":7}";
    assert_eq!(
        world.entries("a").await,
        [
            json!(["created", "asked"]),
            json!(["ada", {"go": true}]),
            json!(["metadata", "act"]),
            json!([1, "failed", 503, body, "answered 503"]),
            json!([2, "failed", 500, body, "answered 500"]),
            json!(["retry", "ada"]),
            json!([1, "done", 200, body, null]),
            json!(["act", {"order": 7}]),
            json!(["action", "done"]),
        ]
    );
}

#[tokio::test]
async fn an_attempt_whose_outcome_was_lost_is_in_the_log() {
    let receiver = Receiver::start(&[]).await;
    let url = receiver.answers(json!({"id": 7}));
    let world = World::new(&acting(&url)).await;
    world.create("a", json!({})).await;
    let dying = world.another();
    dying.stopped.cancel();
    super::support::send_update(&dying, "a", &json!({"go": true})).await;
    world.time.advance(20_000);
    world.work_off().await;
    world.until("a", |record| &*record.state == "done").await;
    let entries = world.entries("a").await;
    assert!(entries.iter().any(|line| line[0] == 1 && line[1] == "unknown"), "{entries:?}");
    assert!(entries.iter().any(|line| line[0] == 2 && line[1] == "done"), "{entries:?}");
}

#[tokio::test]
async fn transitions_that_no_longer_fit_in_a_record_are_in_the_log_which_is_limited_and_paged() {
    let world = World::new(
        "
state_machines:
  m:
    states:
      - {gate: a, exit_condition: metadata.to = 1, triggers: [{metadata: to}], next: b}
      - {gate: b, exit_condition: metadata.to = 0, triggers: [{metadata: to}], next: a}
",
    )
    .await;
    world.create("l", json!({})).await;
    for n in 1..=150 {
        world.time.advance(10);
        world.send_update("l", json!({"to": n % 2})).await;
    }
    let lines = world.lines("l").await;
    let visits: Vec<u64> =
        lines.iter().filter(|line| matches!(line.entry, Entry::Move { .. })).map(|line| line.visit).collect();
    assert_eq!(visits.last(), Some(&151));
    assert!(visits.windows(2).all(|two| two[1] == two[0] + 1), "{visits:?}");
    // The log has 200 lines, of moves and updates; the record has the last twenty moves.
    assert_eq!((lines.len(), visits.len()), (220, visits.len()));
    assert!(visits.len() > 100, "{visits:?}");
    let (mut paged, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let page = world.machines.label_store.activity(M, "l", cursor.as_deref(), 37).await.unwrap().unwrap();
        paged.extend(page.lines);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    paged.reverse();
    assert_eq!(paged, lines);
    // After the time, only what the record has is shown.
    world.time.advance(8 * 24 * 3_600_000);
    assert_eq!(world.lines("l").await.len(), 20);
}

#[tokio::test]
async fn a_label_that_only_waits_has_no_log_and_a_task_names_the_client() {
    let world = World::new(&acting("http://127.0.0.1:9/")).await;
    world.create("a", json!({"x": 1})).await;
    let redis = world.servers.fabric();
    let logs: Vec<String> = redis.command("KEYS").arg("object:*:log").query().await.unwrap();
    assert_eq!(logs, Vec::<String>::new());
    let tasks = &world.machines.tasks;
    let set = || Operation::Set { metadata: json!({"x": 2}), patch: false };
    let first = tasks.start(M, set(), Filter::default(), None, ("eve", "@eve"), Some("key")).await.unwrap();
    let again = tasks.start(M, set(), Filter::default(), None, ("eve", "@eve"), Some("key")).await.unwrap();
    assert_eq!(first.id, again.id);
    let other =
        tasks.start(M, Operation::Suspend, Filter::default(), None, ("eve", "@eve"), Some("key")).await;
    assert!(matches!(other, Err(crate::Error::Conflict)), "{other:?}");
    world.work_off().await;
    assert_eq!(world.entries("a").await, [json!(["created", "asked"]), json!(["eve", {"x": 2}])]);
    let ttl_ms: i64 = redis.command("PTTL").arg("object:machine:m:a:log").query().await.unwrap();
    assert!((1..=168 * 3_600_000).contains(&ttl_ms), "{ttl_ms}");
}
