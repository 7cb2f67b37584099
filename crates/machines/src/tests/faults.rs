//! Many seeds: random machines on the real machines and a real Redis, with a clock that jumps, while pacemakers die at any of
//! their calls, and commits are lost before or after they are made. Between two rests labels are updated, one by one and by
//! tasks, suspended and resumed, and the definition is replaced by one with other names of states and back, while labels in
//! some states stay on their version. The address of the actions may have limits. Every label has to follow the naive
//! reference machine, each visit of an action with one token, no limit may be exceeded, and nothing may be left due.
//!
//! `SIGNALBOX_SEEDS` sets the number of seeds, `SIGNALBOX_SEED` the first one.

use signalbox_access::Author;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    routing::{get, post},
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use signalbox_machine::render::token;

use super::{
    support::{M, Machines, World, machine},
    tables::{self, Facts, Naive, Names, Round, Table},
};
use crate::{
    Error, Filter, Operation, TaskState, Update,
    evaluator::instant,
    record::{Record, Status},
    store::Index,
};
use signalbox_bus::{Event, EventId};
use signalbox_bus_testkit::Time;

const SEEDS: u64 = 50;
const LABELS: usize = 3;
/// In this time, every time of day has passed in every zone.
const DAY_MS: u64 = 26 * 3_600_000;
/// Maximum number of due times until all labels rest.
const MAX_ROUNDS: usize = 2_000;

pub(super) fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// Actions and feeds, which fail as a seed wants it.
#[derive(Clone)]
pub(super) struct Outside {
    /// How likely it fails.
    chance: Arc<Mutex<f64>>,
    random: Arc<Mutex<StdRng>>,
    /// Label → tokens, with the number of requests of each.
    came: Arc<Mutex<BTreeMap<String, BTreeMap<String, u32>>>>,
    /// When attempts began, by the clock of the test.
    began: Arc<Mutex<Vec<u64>>>,
    /// Attempts in progress, and their maximum.
    under_way: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    time: Time,
    /// Labels that the feed sends the other way.
    pub(super) ways: Arc<Mutex<BTreeSet<String>>>,
    pub(super) url: String,
}

impl Outside {
    pub(super) async fn open(time: &Time) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let random = Arc::new(Mutex::new(StdRng::seed_from_u64(0)));
        let outside = Self {
            chance: Arc::default(),
            random,
            came: Arc::default(),
            began: Arc::default(),
            under_way: Arc::default(),
            most: Arc::default(),
            time: time.clone(),
            ways: Arc::default(),
            url,
        };
        let router = Router::new()
            .route("/act/{label}", post(act))
            .route("/give/{value}/{label}", post(give))
            .route("/refuse/{label}", post(refuse))
            .route("/never/{label}", post(never))
            .route("/feed/{label}", get(feed));
        let router = router.with_state(outside.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        outside
    }

    pub(super) fn begin(&self, seed: u64, chance: f64) {
        *self.chance.lock().unwrap() = chance;
        *self.random.lock().unwrap() = StdRng::seed_from_u64(seed);
        self.came.lock().unwrap().clear();
        self.began.lock().unwrap().clear();
        self.most.store(0, Ordering::SeqCst);
        self.ways.lock().unwrap().clear();
    }

    fn fails(&self) -> Option<StatusCode> {
        let chance = *self.chance.lock().unwrap();
        let mut random = self.random.lock().unwrap();
        let bad = [500, 503, 410, 404, 302][random.random_range(0..5)];
        random.random_bool(chance).then(|| StatusCode::from_u16(bad).unwrap())
    }
}

/// An attempt that is in progress until this is dropped.
struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Outside {
    /// Notes an attempt; its failure, if it fails.
    async fn attempt(&self, label: String, headers: &HeaderMap) -> Option<StatusCode> {
        let token = headers["x-idempotency-token"].to_str().unwrap().to_owned();
        *self.came.lock().unwrap().entry(label).or_default().entry(token).or_default() += 1;
        self.began.lock().unwrap().push(self.time.0.load(Ordering::SeqCst));
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        let _under_way = UnderWay(Arc::clone(&self.under_way));
        self.most.fetch_max(now, Ordering::SeqCst);
        // Others may come.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        self.fails()
    }

    /// Fails if more attempts were in progress than a limit allows, or began in a period.
    fn expect_limits(&self, (concurrent, rate): (usize, usize)) {
        let most = self.most.load(Ordering::SeqCst);
        assert!(most <= concurrent, "{most} attempts at a time");
        let began = self.began.lock().unwrap();
        let exceeds = |times: &&[u64]| times[rate] - times[0] < tables::PERIOD_MS;
        assert_eq!(began.windows(rate + 1).find(exceeds), None, "more than {rate} attempts in a period");
    }
}

async fn act(State(outside): State<Outside>, Path(label): Path<String>, headers: HeaderMap) -> StatusCode {
    outside.attempt(label, &headers).await.unwrap_or(StatusCode::OK)
}

/// Some answers do not have the value that the definition needs.
async fn give(
    State(outside): State<Outside>,
    Path((value, label)): Path<(u8, String)>,
    headers: HeaderMap,
) -> (StatusCode, String) {
    match outside.attempt(label, &headers).await {
        Some(StatusCode::NOT_FOUND) => (StatusCode::OK, "no JSON".to_owned()),
        Some(StatusCode::FOUND) => (StatusCode::OK, "{}".to_owned()),
        Some(status) => (status, String::new()),
        None => (StatusCode::OK, json!({ "value": value }).to_string()),
    }
}

async fn refuse(State(outside): State<Outside>, Path(label): Path<String>, headers: HeaderMap) -> StatusCode {
    outside.attempt(label, &headers).await.unwrap_or(StatusCode::UNPROCESSABLE_ENTITY)
}

async fn never(State(outside): State<Outside>, Path(label): Path<String>, headers: HeaderMap) -> StatusCode {
    outside.attempt(label, &headers).await;
    StatusCode::SERVICE_UNAVAILABLE
}

async fn feed(State(outside): State<Outside>, Path(label): Path<String>) -> Result<Json<Value>, StatusCode> {
    let way = u8::from(outside.ways.lock().unwrap().contains(&label));
    outside.fails().map_or_else(|| Ok(Json(json!({"open": true, "way": way}))), Err)
}

/// Two pacemakers, one of which is dead now and then.
struct Mortals<'a> {
    world: &'a World,
    random: StdRng,
    alive: [Machines; 2],
    dead: Vec<Machines>,
}

impl<'a> Mortals<'a> {
    fn new(world: &'a World, seed: u64) -> Self {
        let alive = [world.another(), world.another()];
        Self { world, random: StdRng::seed_from_u64(seed), alive, dead: Vec::new() }
    }

    /// The pacemaker for the next request, with a fault that it may have.
    fn one(&mut self) -> Machines {
        let place = self.random.random_range(0..2);
        if self.alive[place].stopped.is_cancelled() {
            let next = self.world.another();
            self.dead.push(std::mem::replace(&mut self.alive[place], next));
        }
        let machines = self.alive[place].clone();
        match self.random.random_range(0..4) {
            0 => machines.faults.dies_after(self.random.random_range(1..12)),
            1 => machines.faults.fails_after(self.random.random_range(1..5)),
            _ => {}
        }
        machines
    }

    /// Repeats a request until a pacemaker has answered it.
    async fn insist<T>(&mut self, what: &str, ask: impl AsyncFn(&Machines) -> Result<T, Error>) -> T {
        for _ in 0..200 {
            let machines = self.one();
            match machines.stopped.run_until_cancelled(Box::pin(ask(&machines))).await {
                None | Some(Err(Error::Refused(_) | Error::Away | Error::Contended)) => {}
                Some(answer) => return answer.unwrap_or_else(|error| panic!("{what}: {error}")),
            }
        }
        panic!("no pacemaker answers {what}");
    }

    /// How many have died.
    fn deaths(&self) -> u64 {
        let gone = self.alive.iter().filter(|one| one.stopped.is_cancelled()).count();
        (self.dead.len() + gone) as u64
    }

    /// Applies an operation to all labels, by a task that ends.
    async fn task(&mut self, key: &str, operation: &Operation) {
        let start = async |machines: &Machines| {
            let (operation, all) = (operation.clone(), Filter::default());
            machines.tasks.start(M, operation, all, None, ("test", "@test"), Some(key)).await
        };
        let task = self.insist("task", start).await;
        self.settle().await;
        let task = self.world.machines.tasks.get(M, &task.id).await.unwrap();
        assert_eq!((task.state, task.failed), (TaskState::Done, 0), "{task:?}");
        assert_eq!(task.changed + task.unchanged, LABELS as u64, "{task:?}");
    }

    /// Applies a definition. An apply with an unknown outcome may be under way; then another pacemaker finishes it.
    async fn apply(&mut self, yaml: &str, base: u64, map: &BTreeMap<String, String>) {
        let definition = machine(yaml);
        let apply = async |machines: &Machines| match machines
            .applier
            .apply(&definition, base, &Author::operator(), map)
            .await
        {
            Ok(_) => Ok(()),
            Err(Error::ApplyUnderWay | Error::DefinitionChanged) => machines.applier.finish_all().await,
            Err(error) => Err(error),
        };
        self.insist("apply", apply).await;
    }

    /// Waits until nothing runs in the background.
    async fn idle(&self) {
        quiet(self.alive.iter().chain(&self.dead)).await;
    }

    async fn update(&mut self, label: &str, key: &str, facts: &Facts) {
        let metadata = tables::as_metadata(facts);
        let update = Update { metadata: &metadata, patch: false, key: Some(key) };
        let update = async |machines: &Machines| machines.labels.update(M, label, &update).await.map(drop);
        self.insist("update", update).await;
    }

    fn now_ms(&self) -> u64 {
        self.world.now_ms()
    }

    /// Lets time pass until nothing happens any more.
    async fn settle(&mut self) {
        let due_set = &self.world.machines.due;
        let (mut quiet_since, mut last) = (self.now_ms(), None);
        for _ in 0..MAX_ROUNDS {
            self.idle().await;
            let due = due_set.due(0, u64::MAX >> 12, 1_000).await.unwrap();
            let Some((_, first)) = due.first() else { return };
            assert_eq!(
                due_set.next(0).await.unwrap(),
                Some(*first),
                "the machine is as due as its first entry"
            );
            let published = self.world.bus.handle.last_id(0).await.unwrap();
            if published != last || due.iter().any(|(member, _)| member.starts_with('l')) {
                (quiet_since, last) = (self.now_ms(), published);
            } else if *first > quiet_since + DAY_MS {
                return;
            }
            let now_ms = self.now_ms().max(*first);
            self.world.time.0.store(now_ms, Ordering::SeqCst);
            let machines = self.one();
            // Work that fails here is found again by the next pacemaker.
            let page = Box::pin(machines.service.due_times.work_off_page(0, now_ms));
            let _found_again = machines.stopped.run_until_cancelled(page).await;
        }
        let due = due_set.due(0, u64::MAX >> 12, 1_000).await.unwrap();
        panic!("there is always something due: {due:?} at {}", self.now_ms());
    }
}

/// Waits until none of them does anything in the background.
pub(super) async fn quiet<'a>(engines: impl IntoIterator<Item = &'a Machines>) {
    for machines in engines {
        while !machines.service.runner.is_idle() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// A label and its reference.
struct Tracked<'a> {
    name: String,
    zone: Option<&'static str>,
    naive: Naive<'a>,
}

impl Tracked<'_> {
    /// Its metadata, apart from the time and the failure that it may hold.
    fn metadata(&self) -> Value {
        self.with_zone(self.naive.metadata())
    }

    fn with_zone(&self, mut metadata: Value) -> Value {
        if let Some(zone) = self.zone {
            metadata["zone"] = json!(zone);
        }
        metadata
    }
}

fn some_label<'a>(table: &'a Table, number: usize, random: &mut StdRng) -> Tracked<'a> {
    let name = format!("l{number}");
    let zone = random.random_bool(0.5).then(|| tables::ZONES[random.random_range(0..3)]);
    let (way, due) = (random.random_bool(0.5), random.random_bool(0.7));
    Tracked { name, zone, naive: Naive::new(table, &tables::facts(random, 4), way, due) }
}

/// One seed: nothing, when a label only goes round. Returns how many pacemakers died.
async fn run(world: &World, outside: &Outside, seed: u64) -> Option<u64> {
    let mut random = StdRng::seed_from_u64(seed);
    let table = Table::random(&mut random);
    let mut labels: Vec<Tracked<'_>> =
        (0..LABELS).map(|number| some_label(&table, number, &mut random)).collect();
    let rounds = tables::rounds(&mut random, table.states.len(), LABELS);
    let lost = |(number, label): (usize, &Tracked<'_>)| label.naive.clone().gets_lost(number, &rounds);
    if labels.iter().enumerate().any(lost) {
        return None;
    }
    let (mut names, mut version) = (Names::default(), 1);
    let yaml = table.definition(&outside.url, &names);
    println!("SIGNALBOX_SEED={seed}\n{yaml}{rounds:?}");
    outside.begin(seed, 0.3);
    forget_all(world).await;
    let log = world.bus.handle.last_id(0).await.unwrap().unwrap_or(EventId(0));
    let mut mortals = Mortals::new(world, seed);
    mortals.apply(&yaml, 0, &BTreeMap::new()).await;

    for label in &labels {
        let mut metadata = label.with_zone(tables::as_metadata(&label.naive.first));
        if label.naive.due {
            metadata["due"] = json!(instant(mortals.now_ms() + 5_000).to_string());
        }
        if label.naive.way {
            outside.ways.lock().unwrap().insert(label.name.clone());
        }
        let create = async |machines: &Machines| {
            machines.labels.create(M, &label.name, &metadata, false, Some("create")).await.map(drop)
        };
        mortals.insist("create", create).await;
    }
    rest(&mut mortals, &labels).await;
    for (number, round) in rounds.iter().enumerate() {
        for (place, label) in labels.iter_mut().enumerate() {
            label.naive.round(place, round);
        }
        let key = format!("k{number}");
        match round {
            Round::Updates(updates) => {
                for (label, update) in labels.iter().zip(updates) {
                    let Some(update) = update else { continue };
                    mortals.update(&label.name, &key, update).await;
                }
            }
            Round::Interrupted(updates) => {
                for (label, update) in labels.iter().zip(updates) {
                    let Some(update) = update else { continue };
                    mortals.update(&label.name, &key, update).await;
                }
                mortals.task(&format!("{key}-suspend"), &Operation::Suspend).await;
                mortals.task(&format!("{key}-resume"), &Operation::Resume).await;
            }
            Round::Task(update) => mortals.task(&key, &set(update)).await,
            Round::Suspended(update) => {
                mortals.task(&format!("{key}-suspend"), &Operation::Suspend).await;
                mortals.task(&key, &set(update)).await;
                mortals.task(&format!("{key}-resume"), &Operation::Resume).await;
            }
            Round::Version(next) => {
                let yaml = table.definition(&outside.url, next);
                if *next != names {
                    mortals.apply(&yaml, version, &names.map(next, &table.kept)).await;
                    version += 1;
                }
                names = next.clone();
            }
        }
        rest(&mut mortals, &labels).await;
    }
    let published = moves(world, log).await;
    for label in &labels {
        expect(world, label, &published[&label.name], outside).await;
    }
    if let Some(limit) = table.limit {
        outside.expect_limits(limit);
    }
    Some(mortals.deaths())
}

fn set(facts: &Facts) -> Operation {
    Operation::Set { metadata: tables::as_metadata(facts), patch: false }
}

/// Waits until all labels rest, and retries errored actions.
async fn rest(mortals: &mut Mortals<'_>, labels: &[Tracked<'_>]) {
    for _ in 0..50 {
        mortals.settle().await;
        let mut errored = false;
        for label in labels {
            if stands(mortals.world, &label.name).await.status == Status::Errored {
                errored = true;
                let retry = async |machines: &Machines| match machines.labels.retry(M, &label.name).await {
                    Ok(_) | Err(Error::NotErrored) => Ok(()),
                    Err(error) => Err(error),
                };
                mortals.insist("retry", retry).await;
            }
        }
        if !errored {
            return;
        }
    }
    panic!("an action fails without end");
}

pub(super) async fn stands(world: &World, label: &str) -> Record {
    world.machines.label_store.read(M, label).await.unwrap().unwrap()
}

/// Removes the data of the previous seed.
pub(super) async fn forget_all(world: &World) {
    let redis = world.servers.fabric();
    for pattern in ["machine:*", "object:machine:*"] {
        let keys: Vec<String> = redis.command("KEYS").arg(pattern).query().await.unwrap();
        if !keys.is_empty() {
            redis.command("DEL").arg(keys).run().await.unwrap();
        }
    }
}

/// By label, the moves that were published, in the order of their ids.
pub(super) async fn moves(world: &World, after: EventId) -> BTreeMap<String, Vec<Value>> {
    let mut window = world.bus.handle.window(0, after);
    let mut moves: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    loop {
        let logged = window.next(500).await.unwrap();
        if logged.is_empty() {
            return moves;
        }
        for logged in logged {
            let event = Event::from_log(&logged.entry).unwrap();
            if event.topic != "signalbox.labels" {
                continue;
            }
            let data: Value = serde_json::from_str(event.data.unwrap().get()).unwrap();
            moves.entry(data["label"].as_str().unwrap().to_owned()).or_default().push(data);
        }
    }
}

async fn expect(world: &World, label: &Tracked<'_>, published: &[Value], outside: &Outside) {
    let record = stands(world, &label.name).await;
    let (name, path) = (&label.name, &label.naive.path);
    let expected: Vec<Value> = path
        .iter()
        .enumerate()
        .map(|(place, (_, state))| {
            let from = place.checked_sub(1).map(|before| &path[before].1);
            json!([place + 1, from, state])
        })
        .collect();
    let found: Vec<Value> =
        published.iter().map(|one| json!([one["visit"], one["from"], one["to"]])).collect();
    assert_eq!(found, expected, "the moves of {name}");
    let mut metadata = record.metadata.clone();
    let held = metadata.as_object_mut().unwrap();
    assert_eq!(held.remove("due").is_some(), label.naive.due, "{name}: {record:?}");
    let failure = held.remove("failure").map(|failure| failure["status"].clone());
    assert_eq!(failure, label.naive.failed.then(|| json!(422)), "{name}: {record:?}");
    assert_eq!(metadata, label.metadata(), "the facts of {name}");
    assert_eq!((record.visit, record.due_ms()), (path.len() as u64, None), "{name} rests: {record:?}");
    expect_history(&record, path);
    let acts = label.naive.acts();
    let of = (record.origin, 1);
    let tokens: BTreeMap<String, bool> =
        acts.map(|(visit, state, certain)| (token(M, name, of, visit, state), certain)).collect();
    let came: BTreeSet<String> =
        outside.came.lock().unwrap().get(name).into_iter().flat_map(BTreeMap::keys).cloned().collect();
    let certain = tokens.iter().filter(|(token, certain)| **certain || came.contains(*token));
    assert_eq!(came, certain.map(|(token, _)| token.clone()).collect(), "the tokens of {name}");
    // The indexes agree.
    let (_, state) = &path[path.len() - 1];
    let there = world.machines.records.names(0, M, Index::State(state), None, 10).await.unwrap();
    assert!(there.contains(name), "{name} is not among those in {state}");
    for status in Status::ALL.iter().copied().filter(|status| status.has_index()) {
        let busy =
            world.machines.records.names(0, M, Index::Status(status.as_str()), None, 10).await.unwrap();
        assert!(!busy.contains(name), "{name} is {}", status.as_str());
    }
}

fn expect_history(record: &Record, path: &[(usize, String)]) {
    let rows: Vec<(u64, String)> = record
        .history
        .iter()
        .map(|row| (row.visit, row.to.as_deref().unwrap_or_default().to_owned()))
        .collect();
    let all: Vec<(u64, String)> =
        path.iter().enumerate().map(|(place, (_, state))| (place as u64 + 1, state.clone())).collect();
    assert_eq!(rows, all[all.len() - rows.len()..], "history");
    assert_eq!(rows.len(), all.len().min(20));
    assert!(record.history.windows(2).all(|pair| pair[0].event < pair[1].event), "{record:?}");
}

#[tokio::test]
async fn labels_follow_the_reference_machine_whenever_a_pacemaker_dies() {
    let (first, seeds) = (from_environment("SIGNALBOX_SEED", 1), from_environment("SIGNALBOX_SEEDS", SEEDS));
    let world = World::bare().await;
    let outside = Outside::open(&world.time).await;
    let (mut ran, mut deaths, started) = (0, 0, tokio::time::Instant::now());
    for seed in first.. {
        if ran == seeds {
            break;
        }
        let run = tokio::time::timeout(Duration::from_secs(120), Box::pin(run(&world, &outside, seed)));
        if let Some(died) = run.await.unwrap_or_else(|_| panic!("seed {seed} does not end")) {
            (ran, deaths) = (ran + 1, deaths + died);
        }
    }
    println!("{ran} seeds, {deaths} deaths in {:?}", started.elapsed());
}
