//! The predictions of `why`, `simulate` and `plan` come true, for random machines and updates on a real Redis, with a clock
//! that the test advances.
//!
//! * `simulate` predicts a path: after the same updates and time, the label has taken it, at the predicted times.
//! * `why` predicts until when nothing happens, and which metadata opens the gate.
//! * `plan` predicts how many labels are moved and started, and would move.
//!
//! `SIGNALBOX_SEEDS` sets the number of seeds, `SIGNALBOX_SEED` the first one.

mod shapes;

use signalbox_access::Author;
use signalbox_api::Time;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    routing::{get, post},
};
use jiff::Timestamp;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Map, Value, json};
use signalbox_machine::Machine;

use self::shapes::Shape;
use super::{
    faults::{forget_all, from_environment, moves, quiet, stands},
    support::{M, World},
};
use crate::{
    Assumptions, Operation,
    evaluator::instant,
    record::{Cause, Record, Status},
};
use signalbox_bus::EventId;

const SEEDS: u64 = 40;
const LABELS: [&str; 3] = ["a", "b", "c"];
const ROUNDS: usize = 3;
/// How much time is predicted, seconds.
const SPANS: [i64; 6] = [0, 5, 45, 600, 3 * 3_600, 30 * 3_600];
/// Maximum number of predicted steps: of a loop a few seconds are enough.
const MAX_STEPS: usize = 120;

/// The answers of webhooks and feeds, also used as assumptions.
#[derive(Debug, Clone, Default)]
struct Answers {
    /// State → status; 200 for states that are missing.
    webhooks: BTreeMap<String, u16>,
    /// Feed → answer; `None` if it fails.
    feeds: BTreeMap<String, Option<Value>>,
}

impl Answers {
    fn random(random: &mut StdRng, shape: &Shape) -> Self {
        let statuses = [200, 200, 200, 204, 410, 500];
        let answered = |state: &shapes::State| (state.name.clone(), statuses[random.random_range(0..6)]);
        let webhooks = shape.states.iter().filter(|state| state.is_webhook()).map(answered).collect();
        Self { webhooks, feeds: feeds(random) }
    }

    fn any_feed_fails(&self) -> bool {
        self.feeds.values().any(Option::is_none)
    }
}

fn feeds(random: &mut StdRng) -> BTreeMap<String, Option<Value>> {
    let open = random.random_bool(0.6);
    let said = [("held", json!({"open": open})), ("stood_in_for", json!({"n": 2}))];
    said.into_iter().map(|(name, said)| (name.to_owned(), random.random_bool(0.7).then_some(said))).collect()
}

#[derive(Clone, Default)]
struct Outside(Arc<Mutex<Answers>>);

impl Outside {
    async fn open(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router =
            Router::new().route("/act/{state}/{of}", post(act)).route("/feed/{name}/{label}", get(feed));
        let router = router.with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }
}

async fn act(State(outside): State<Outside>, Path((state, _)): Path<(String, String)>) -> StatusCode {
    let status = outside.0.lock().unwrap().webhooks.get(&state).copied().unwrap_or(200);
    StatusCode::from_u16(status).unwrap()
}

async fn feed(
    State(outside): State<Outside>,
    Path((name, _)): Path<(String, String)>,
) -> Result<Json<Value>, StatusCode> {
    let said = outside.0.lock().unwrap().feeds[&name].clone();
    said.map(Json).ok_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// A world with one machine, and the webhooks and feeds outside.
struct Scene<'a> {
    world: &'a World,
    outside: &'a Outside,
    url: &'a str,
    random: StdRng,
    /// For the message when something else happens.
    said: String,
}

impl Scene<'_> {
    fn now(&self) -> Timestamp {
        instant(self.world.now_ms())
    }

    async fn idle(&self) {
        quiet([&self.world.machines]).await;
    }

    /// Advances the clock, and works on everything that becomes due.
    async fn pass(&self, until: Timestamp) {
        let until_ms = u64::try_from(until.as_millisecond()).unwrap();
        let due = &self.world.machines.due;
        for _ in 0..20_000 {
            self.idle().await;
            match due.next(0).await.unwrap() {
                Some(next_ms) if next_ms <= until_ms => {
                    let now_ms = self.world.now_ms().max(next_ms);
                    self.world.time.0.store(now_ms, Ordering::SeqCst);
                    self.world.machines.service.due_times.work_off_page(0, now_ms).await.unwrap();
                }
                _ => {
                    self.world.time.0.store(until_ms.max(self.world.now_ms()), Ordering::SeqCst);
                    return;
                }
            }
        }
        panic!("there is always something due: {}", self.said);
    }

    fn answers(&self) -> Answers {
        self.outside.0.lock().unwrap().clone()
    }

    async fn simulate(&self, label: &str, facts: Option<&Value>, until: Timestamp) -> Value {
        let Answers { webhooks, feeds } = self.answers();
        let asking = Assumptions {
            until: Some(until),
            metadata: facts.cloned(),
            feeds,
            webhooks: webhooks.into_iter().map(|(state, status)| (state, status.into())).collect(),
            ..Assumptions::default()
        };
        self.world.machines.inspector.explainer.simulate(M, label, asking).await.unwrap()
    }

    async fn log(&self) -> EventId {
        self.world.bus.handle.last_id(0).await.unwrap().unwrap_or(EventId(0))
    }

    /// Suspends some labels. Returns which.
    async fn suspend_some(&mut self) -> Vec<&'static str> {
        let some: Vec<_> = LABELS.into_iter().filter(|_| self.random.random_bool(0.15)).collect();
        for label in &some {
            self.world.machines.labels.operate(M, label, &Operation::Suspend).await.unwrap();
        }
        some
    }

    /// Advances time and updates all labels; each label has to follow its prediction. Some are suspended until the end.
    async fn round(&mut self) {
        let suspended = self.suspend_some().await;
        // Inspections reuse answers of the last seconds, so each round uses a separate process.
        let onlooker = self.world.another();
        let now = Answers { feeds: feeds(&mut self.random), ..self.answers() };
        // One that fails is asked again and again.
        let most = if now.any_feed_fails() { 4 } else { SPANS.len() };
        *self.outside.0.lock().unwrap() = now;

        let updates: Vec<Option<Value>> = LABELS
            .iter()
            .map(|_| self.random.random_bool(0.6).then(|| shapes::facts(&mut self.random)))
            .collect();
        let span = SPANS[self.random.random_range(0..most)];
        let mut until = self.now() + Duration::from_secs(u64::try_from(span).unwrap());
        let (mut whys, mut predicted) = (Vec::new(), Vec::new());
        for (label, facts) in LABELS.iter().zip(&updates) {
            whys.push(onlooker.inspector.explainer.why(M, label).await.unwrap());
            let said = self.simulate(label, facts.as_ref(), until).await;
            if let Some(step) = said["steps"].as_array().unwrap().get(MAX_STEPS) {
                let at: Timestamp = step["at"].as_str().unwrap().parse().unwrap();
                until = until.min(at);
            }
        }
        for (label, facts) in LABELS.iter().zip(&updates) {
            predicted.push(self.simulate(label, facts.as_ref(), until).await);
        }

        let (since, log) = (self.now(), self.log().await);
        for (label, facts) in LABELS.iter().zip(&updates) {
            if let Some(facts) = facts {
                self.world.send_update(label, facts.clone()).await;
            }
        }
        self.pass(until).await;
        let happened = moves(self.world, log).await;
        for (place, label) in LABELS.iter().enumerate() {
            let record = stands(self.world, label).await;
            let happened = happened.get(*label).map(Vec::as_slice).unwrap_or_default();
            let about = format!(
                "{label} at {since} until {until}, updated by {:?}\nsaid {}\nwhy {}\nis {record:?}\n{}",
                updates[place], predicted[place], whys[place], self.said
            );
            came_true(&predicted[place], happened, &record, until, &about);
            if updates[place].is_none() {
                waited(&whys[place], &record, since, &about);
            }
        }
        for label in suspended {
            self.world.machines.labels.operate(M, label, &Operation::Resume).await.unwrap();
        }
        self.idle().await;
    }

    /// Updates a label with the metadata that its gate waits for, according to `why`.
    async fn open_by_facts(&mut self, label: &str) -> bool {
        let why = self.world.another().inspector.explainer.why(M, label).await.unwrap();
        let before = stands(self.world, label).await;
        // A gate that is true and waits for a failed feed, which chooses its next state, needs no update.
        let opens = before.status == Status::Waiting && before.work.feed_failures == 0;
        let Some(fewest) = why["fewest"].as_array().filter(|_| opens) else {
            return false;
        };
        let mut facts = Map::new();
        for wish in fewest {
            let (text, should_be) = (wish["text"].as_str().unwrap(), wish["should_be"] == true);
            if shapes::fulfil(text, should_be, &mut facts).is_none() {
                return false;
            }
        }
        for left_out in facts.keys() {
            let mut fewer = facts.clone();
            fewer.remove(left_out);
            fewer.insert("look".to_owned(), json!(1));
            let said = self.simulate(label, Some(&Value::Object(fewer)), self.now()).await;
            assert_eq!(said["steps"], json!([]), "{label} does not need {left_out}: {why}\n{}", self.said);
        }
        facts.insert("look".to_owned(), json!(1));
        let facts = Value::Object(facts);
        self.world.send_update(label, facts.clone()).await;
        self.idle().await;
        let after = stands(self.world, label).await;
        assert!(
            after.visit > before.visit,
            "{label} was updated with {facts}: {why}\nis {after:?}\n{}",
            self.said
        );
        true
    }

    /// Applies another definition, and compares the effects with its plan.
    async fn change(&mut self, shape: &Shape) {
        self.suspend_some().await;
        let before: BTreeMap<&str, Record> = self.records().await;
        let Some((changed, machine)) = (0..20).find_map(|_| {
            let changed = shape.changed(&mut self.random);
            let machine = load(&changed.yaml(self.url))?;
            Some((changed, machine))
        }) else {
            return;
        };
        let old = self.world.machines.definitions.current(M).await.unwrap();
        let plan = self.world.machines.inspector.planner.preview(Some(&old), &machine).await.unwrap();
        let about = format!("{plan:?}\nbefore {before:?}\n{}\nthen\n{}", self.said, changed.yaml(self.url));
        let target = machine.states()[self.random.random_range(0..machine.states().len())].name();
        let map = plan.states.removed.iter().map(|state| (state.clone(), target.to_owned())).collect();
        let log = self.log().await;
        self.world.machines.applier.apply(&machine, old.number, &Author::operator(), &map).await.unwrap();
        self.idle().await;
        let moved = moves(self.world, log).await;
        let (mut gone, mut started, mut opened) = (BTreeMap::new(), 0, BTreeSet::new());
        for (label, record) in self.records().await {
            let was = &before[label];
            let first = moved.get(label).and_then(|moves| moves.first());
            if let Some(count) = plan.labels.get(&*was.state) {
                let expected = (json!("migrated"), json!(was.state), json!(target));
                let first = first.unwrap_or_else(|| panic!("{label} was not moved: {about}"));
                assert_eq!(
                    (&first["cause"], &first["from"], &first["to"]),
                    (&expected.0, &expected.1, &expected.2),
                    "{label}: {about}"
                );
                assert!(*count > 0);
                *gone.entry(was.state.to_string()).or_insert(0) += 1;
                continue;
            }
            assert!(first.is_none_or(|first| first["cause"] != "migrated"), "{label}: {about}");
            let is_gate = machine.state(&was.state).unwrap().gate().is_some();
            let busy = |record: &Record| {
                matches!(record.status, Status::Acting | Status::Errored | Status::Choosing)
            };
            started += u64::from(record.visit > was.visit || (busy(&record) && !busy(was)));
            if is_gate && record.visit > was.visit {
                opened.insert(label);
            }
        }
        let of_plan: BTreeMap<_, _> = plan
            .labels
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(state, count)| (state.clone(), *count))
            .collect();
        assert_eq!(gone, of_plan, "moved by the map: {about}");
        if plan.needs_feed == 0 {
            assert_eq!(plan.starts, started, "started: {about}");
        }
        assert!(
            (plan.starts..=plan.starts + plan.needs_feed).contains(&started),
            "{started} started: {about}"
        );

        for (label, record) in self.records().await {
            let was = &before[label];
            let there = machine.state(&was.state).is_some_and(|state| state.gate().is_some());
            if there && record.visit == was.visit {
                self.world.send_update(label, json!({"look": 1})).await;
                self.idle().await;
                if stands(self.world, label).await.visit > was.visit {
                    opened.insert(label);
                }
            }
        }
        let opened = opened.len() as u64;
        assert!(
            (plan.would_move..=plan.would_move + plan.needs_feed).contains(&opened),
            "{opened} opened: {about}"
        );
    }

    async fn records(&self) -> BTreeMap<&'static str, Record> {
        let mut records = BTreeMap::new();
        for label in LABELS {
            records.insert(label, stands(self.world, label).await);
        }
        records
    }
}

/// The label went where the simulation has it, by its way.
fn came_true(said: &Value, happened: &[Value], record: &Record, until: Timestamp, about: &str) {
    let steps = said["steps"].as_array().unwrap();
    let way = |one: &Value| [one["from"].clone(), one["to"].clone()];
    let expected: Vec<&Value> = steps.iter().filter(|step| step["to"].is_string()).collect();
    let ways = |steps: &mut dyn Iterator<Item = &Value>| steps.map(way).collect::<Vec<_>>();
    assert_eq!(ways(&mut happened.iter()), ways(&mut expected.iter().copied()), "the way of {about}");
    // The label itself stores the time and trigger of the newest twenty moves.
    let rows = record.history.iter().rev().zip(expected.iter().rev());
    for (row, step) in rows {
        assert_eq!(json!(Time::from_ms(row.at_ms)), step["at"], "visit {} of {about}", row.visit);
        // Two triggers that are due at the same time may fire in either order.
        let by_clock = |cause: &str| matches!(cause, "time" | "interval" | "feed");
        let (cause, predicted) = (json!(row.cause), step["cause"].as_str().unwrap());
        if !by_clock(predicted) || !matches!(row.cause, Cause::Time | Cause::Interval | Cause::Feed) {
            assert_eq!(
                (cause, json!(row.trigger)),
                (step["cause"].clone(), step["trigger"].clone()),
                "visit {} of {about}",
                row.visit
            );
        }
    }
    assert_eq!(said["state"], json!(record.state), "{about}");
    // The prediction uses the longest pause between attempts; the real pause is random.
    let soon = until - Duration::from_secs(4);
    let tried = steps.last().filter(|step| step["attempt"].is_string());
    let tries = tried.is_some_and(|step| step["at"].as_str().unwrap().parse::<Timestamp>().unwrap() >= soon);
    if !(tries && matches!(record.status, Status::Acting | Status::Errored)) {
        assert_eq!(said["status"], json!(record.status), "{about}");
    }
    assert_eq!(said["since"], json!(Time::from_ms(record.entered_ms)), "{about}");
}

/// Without an update, nothing happened before the time that `why` predicted.
fn waited(why: &Value, record: &Record, since: Timestamp, about: &str) {
    if why["condition"].is_null() {
        return;
    }
    let first = record.history.iter().map(|row| instant(row.at_ms)).find(|at| *at > since);
    let Some(first) = first.filter(|_| record.history.len() < 20) else { return };
    let at =
        |text: &Value| text.as_str().map(|text| text.trim_start_matches("not before ").parse::<Timestamp>());
    let next =
        at(&why["next"]["at"]).unwrap_or_else(|| panic!("no evaluation was due, and yet it moved: {about}"));
    assert!(first >= next.unwrap(), "it moved before it was evaluated: {about}");
    match at(&why["earliest"]) {
        None => panic!("time alone opens nothing, and yet it moved: {about}"),
        // It is true now, and waits for a look.
        Some(Err(_)) => assert_eq!(why["result"], json!(true), "{about}"),
        Some(Ok(earliest)) => assert!(first >= earliest, "it moved before it could: {about}"),
    }
    assert_eq!(why["stuck"], Value::Null, "{about}");
}

fn load(yaml: &str) -> Option<Arc<Machine>> {
    signalbox_machine::load("test", yaml).ok().map(|file| Arc::clone(&file.machines[0]))
}

/// The numbers of a run.
#[derive(Debug, Default)]
struct Sum {
    ran: u64,
    opened: u64,
}

/// One seed; nothing when its machine is refused.
async fn run(world: &World, (outside, url): (&Outside, &str), seed: u64, sum: &mut Sum) {
    let mut random = StdRng::seed_from_u64(seed);
    let shape = Shape::random(&mut random);
    let yaml = shape.yaml(url);
    let Some(machine) = load(&yaml) else { return };
    *outside.0.lock().unwrap() = Answers::random(&mut random, &shape);
    forget_all(world).await;
    // A clock that is never at a whole minute, so that intervals and times of day seldom meet.
    world.time.advance(1_357);
    world.machines.applier.apply(&machine, 0, &Author::operator(), &BTreeMap::new()).await.unwrap();
    let said = format!("SIGNALBOX_SEED={seed}\n{yaml}");
    let mut scene = Scene { world, outside, url, random, said };
    for label in LABELS {
        let facts = shapes::facts(&mut scene.random);
        world.create(label, facts).await;
        scene.idle().await;
    }
    for _ in 0..ROUNDS {
        scene.round().await;
    }
    for label in LABELS {
        sum.opened += u64::from(scene.open_by_facts(label).await);
    }
    scene.change(&shape).await;
    sum.ran += 1;
}

#[tokio::test]
async fn predictions_come_true() {
    let (first, seeds) = (from_environment("SIGNALBOX_SEED", 1), from_environment("SIGNALBOX_SEEDS", SEEDS));
    let outside = Outside::default();
    let url = outside.open().await;
    let (mut sum, started) = (Sum::default(), tokio::time::Instant::now());
    let mut world = World::bare().await;
    for seed in first.. {
        if sum.ran >= seeds {
            break;
        }
        // A process that does not remember the previous machine.
        world.machines = world.another();
        let run = tokio::time::timeout(
            Duration::from_secs(60),
            Box::pin(run(&world, (&outside, &url), seed, &mut sum)),
        );
        run.await.unwrap_or_else(|_| panic!("seed {seed} does not end"));
    }
    println!("{sum:?} in {:?}", started.elapsed());
}
