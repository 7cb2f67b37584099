//! Limits of addresses: attempts in progress, attempts in a period, and labels that wait.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    routing::post,
};
use serde_json::json;
use tokio::sync::Semaphore;

use super::{
    faults::quiet,
    support::{M, Machines, World, send_update},
};
use crate::{
    Operation,
    record::{Record, Status},
};
use signalbox_testkit::eventually;

/// A server that notes which labels call it, and how many at a time.
#[derive(Clone)]
struct Target {
    /// Labels, in the order of their calls.
    came: Arc<Mutex<Vec<String>>>,
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    /// Answers wait for a permit.
    gate: Arc<Semaphore>,
    url: String,
}

impl Target {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let gate = Arc::new(Semaphore::new(0));
        let target = Self { came: Arc::default(), now: Arc::default(), most: Arc::default(), gate, url };
        let router = Router::new().route("/{label}", post(take)).with_state(target.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        target
    }

    fn came(&self) -> Vec<String> {
        self.came.lock().unwrap().clone()
    }

    /// Waits until this many calls came.
    async fn until_came(&self, count: usize) {
        eventually("the calls", async || {
            let came = self.came();
            if came.len() == count { Ok(()) } else { Err(format!("{came:?}")) }
        })
        .await;
    }

    fn yaml(&self, limit: &str) -> String {
        format!(
            "
state_machines:
  m:
    limits: {{\"{url}\": {limit}}}
    states:
      - {{gate: asked, exit_condition: metadata.go, triggers: [{{metadata: go}}], next: act}}
      - {{action: act, webhook: \"{url}/<label>\", retry: {{attempts: 3, first: 1s, factor: 1, longest: 1s}}, next: done}}
      - {{gate: done}}
",
            url = self.url
        )
    }
}

async fn take(State(target): State<Target>, Path(label): Path<String>) -> StatusCode {
    target.came.lock().unwrap().push(label.clone());
    let now = target.now.fetch_add(1, Ordering::SeqCst) + 1;
    target.most.fetch_max(now, Ordering::SeqCst);
    target.gate.acquire().await.unwrap().forget();
    target.now.fetch_sub(1, Ordering::SeqCst);
    if label == "bad" { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
}

fn name(number: usize) -> String {
    format!("l{number:02}")
}

impl World {
    async fn go(&self, machines: &Machines, label: &str) {
        self.create(label, json!({})).await;
        send_update(machines, label, &json!({"go": true})).await;
    }

    async fn advance(&self, ms: u64) {
        self.time.0.fetch_add(ms, Ordering::SeqCst);
        self.work_off().await;
    }
}

fn waits(record: &Record) -> bool {
    record.status == Status::Acting && record.work.limit().is_some()
}

#[tokio::test]
async fn attempts_in_progress_never_exceed_the_limit_on_several_pacemakers_and_shards() {
    let target = Target::start().await;
    let world = World::on_shards(3).await;
    world.apply(&target.yaml("{concurrent: 3}"), 0).await;
    let pacemakers = [world.another(), world.another()];
    let labels: Vec<String> = (0..30).map(name).collect();
    for (number, label) in labels.iter().enumerate() {
        world.go(&pacemakers[number % 2], label).await;
    }
    target.until_came(3).await;
    for done in 1..=labels.len() {
        // Each answer lets one more label begin.
        target.gate.add_permits(1);
        target.until_came(labels.len().min(done + 3)).await;
    }
    for label in &labels {
        let record = world.until(label, |record| record.status == Status::Ended).await;
        assert_eq!(&*record.state, "done");
    }
    let came = target.came();
    assert_eq!(came.iter().collect::<BTreeSet<_>>().len(), came.len(), "each label calls once: {came:?}");
    assert_eq!(target.most.load(Ordering::SeqCst), 3);
    quiet(&pacemakers).await;
    quiet([&world.machines]).await;
    world.advance(20_000).await;
    quiet([&world.machines]).await;
    assert_eq!(world.machines.due.next(0).await.unwrap(), None, "nothing waits");
}

#[tokio::test]
async fn the_label_that_waits_for_longest_is_the_next() {
    let target = Target::start().await;
    let world = World::new(&target.yaml("{concurrent: 1}")).await;
    let labels: Vec<String> = (0..8).rev().map(name).collect();
    for label in &labels {
        world.time.0.fetch_add(1, Ordering::SeqCst);
        world.go(&world.machines, label).await;
    }
    world.until(&labels[7], waits).await;
    let why = world.machines.inspector.explainer.why(M, &labels[3]).await.unwrap();
    let reason = why["reason"].as_str().unwrap();
    assert!(
        reason.starts_with(&format!("attempt 1 of its action waits for the limit of {}", target.url)),
        "{why}"
    );
    let limit = &why["action"]["waits_for_limit"];
    assert_eq!((&limit["ahead"], &limit["in_progress"]), (&json!(2), &json!(1)), "{why}");
    target.gate.add_permits(labels.len());
    target.until_came(labels.len()).await;
    assert_eq!(target.came(), labels);
}

#[tokio::test]
async fn no_period_has_more_attempts_than_the_rate() {
    let target = Target::start().await;
    target.gate.add_permits(1_000);
    let world = World::new(&target.yaml("{rate: 4, per: 10s}")).await;
    for number in 0..10 {
        world.go(&world.machines, &name(number)).await;
    }
    let settled = async |count: usize| {
        target.until_came(count).await;
        quiet([&world.machines]).await;
        assert_eq!(target.came().len(), count);
    };
    settled(4).await;
    world.advance(9_999).await;
    settled(4).await;
    world.advance(1).await;
    settled(8).await;
    world.advance(9_000).await;
    settled(8).await;
    world.advance(1_000).await;
    settled(10).await;
    // In the order in which they began to wait. Calls that are made together may arrive in any order.
    let mut came = target.came();
    for together in [0..4, 4..8, 8..10] {
        came[together].sort();
    }
    assert_eq!(came, (0..10).map(name).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_permit_of_a_pacemaker_that_died_expires() {
    let target = Target::start().await;
    let world = World::new(&target.yaml("{concurrent: 1}")).await;
    let dying = world.another();
    world.go(&dying, "a").await;
    target.until_came(1).await;
    dying.stopped.cancel();
    world.go(&world.machines, "b").await;
    quiet([&world.machines, &dying]).await;
    assert!(waits(&world.label("b").await));
    target.gate.add_permits(10);
    // The attempt has 10 s, and 5 s more.
    world.advance(14_999).await;
    quiet([&world.machines]).await;
    assert_eq!(target.came(), ["a"]);
    world.advance(1).await;
    // The one that waited is first; the other is attempted again with the same token, and counts as a new attempt.
    target.until_came(3).await;
    for label in ["a", "b"] {
        world.until(label, |record| record.status == Status::Ended).await;
    }
}

#[tokio::test]
async fn a_label_that_waits_can_be_suspended_canceled_moved_and_deleted_without_blocking_others() {
    let target = Target::start().await;
    let world = World::new(&target.yaml("{concurrent: 1}")).await;
    for label in ["first", "suspended", "canceled", "moved", "deleted", "last"] {
        world.time.0.fetch_add(1, Ordering::SeqCst);
        world.go(&world.machines, label).await;
    }
    target.until_came(1).await;
    let labels = &world.machines.labels;
    labels.operate(M, "suspended", &Operation::Suspend).await.unwrap();
    labels.operate(M, "canceled", &Operation::Cancel).await.unwrap();
    labels.operate(M, "moved", &Operation::Move { to: "done".to_owned() }).await.unwrap();
    labels.delete(M, "deleted").await.unwrap();
    target.gate.add_permits(10);
    target.until_came(2).await;
    world.until("last", |record| record.status == Status::Ended).await;
    assert_eq!(target.came(), ["first", "last"]);
    labels.operate(M, "suspended", &Operation::Resume).await.unwrap();
    world.until("suspended", |record| record.status == Status::Ended).await;
    assert_eq!(world.label("canceled").await.status, Status::Errored);
    assert_eq!(target.came().len(), 3);
}

#[tokio::test]
async fn a_new_version_without_the_limit_admits_all_labels_that_wait() {
    let target = Target::start().await;
    let world = World::new(&target.yaml("{rate: 1, per: 1h}")).await;
    target.gate.add_permits(10);
    for label in ["a", "b", "c"] {
        world.go(&world.machines, label).await;
    }
    world.until("c", waits).await;
    let limited = target.yaml("{rate: 1, per: 1h}");
    let free: String =
        limited.lines().filter(|line| !line.contains("limits:")).map(|line| format!("{line}\n")).collect();
    world.apply(&free, 1).await;
    target.until_came(3).await;
}

#[tokio::test]
async fn the_overview_and_the_metrics_have_the_labels_that_wait_for_each_limit() {
    let target = Target::start().await;
    let world = World::new(&target.yaml("{concurrent: 1}")).await;
    let overview = &world.machines.inspector.overview;
    let used = async || {
        let limits = overview.counts(M).await.unwrap().limits;
        assert_eq!(limits.len(), 1);
        assert_eq!(limits[0].target, target.url);
        (limits[0].waiting, limits[0].in_progress)
    };
    assert_eq!(used().await, (0, 0));
    for label in ["a", "b", "c"] {
        world.go(&world.machines, label).await;
    }
    target.until_came(1).await;
    world.until("c", waits).await;
    assert_eq!(used().await, (2, 1));
    let line = format!("signalbox_machines_limited_labels{{machine=\"m\",target=\"{}\"}} 2\n", target.url);
    let metrics = overview.metrics_text().await.unwrap();
    assert!(metrics.contains(&line), "{metrics}");
    target.gate.add_permits(10);
    world.until("c", |record| record.status == Status::Ended).await;
    assert_eq!(used().await.0, 0);
}

#[tokio::test]
async fn a_failed_attempt_waits_behind_the_others() {
    let target = Target::start().await;
    let world = World::new(&target.yaml("{concurrent: 1}")).await;
    for label in ["bad", "a", "b"] {
        world.time.0.fetch_add(1, Ordering::SeqCst);
        world.go(&world.machines, label).await;
    }
    target.until_came(1).await;
    target.gate.add_permits(1);
    target.until_came(2).await;
    world.until("bad", |record| record.work.error.is_some() && record.work.limit().is_none()).await;
    // Its pause is over while another attempt is in progress.
    world.advance(1_000).await;
    world.until("bad", waits).await;
    target.gate.add_permits(10);
    target.until_came(4).await;
    assert_eq!(target.came(), ["bad", "a", "b", "bad"]);
    world.until("bad", |record| record.work.attempts == 2 && record.work.limit().is_none()).await;
}
