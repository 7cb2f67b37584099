//! Wake-ups against a model: random operations on several lanes with different timeouts, each of which may arrive while
//! deliveries are under way. After every step, nothing that could be done waits: what sleeping pacemakers were notified of
//! is compared with what is due in Redis. Time moves only when the test advances it.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
};

use proptest::{collection::vec, prelude::*, test_runner::Config};

use super::{hands::*, support::*, truth::job as job_of};
use crate::{
    event::lane_hash,
    store::{Ack, Holder, Nack, Nacked, Skipped, Taken, Target},
};
use signalbox_store::FabricRole;
use signalbox_testkit::Server;

const TOKENS: [&str; 3] = ["patient", "hasty", "instant"];
const TIMEOUTS: [u64; 4] = [60_000, 200, 0, 5_000];
const OBJECTS: usize = 6;
/// The most that a lane waits for a notification which is on its way.
const GRACE_MS: u64 = 100;

#[derive(Debug, Clone)]
enum Step {
    Publish(Vec<usize>),
    /// A worker takes a job. Its pacemaker has this many places for slow deliveries.
    Take(usize, usize),
    Ack(usize),
    /// The attempt fails: the pause, whether it was attempted, and whether to halve the batch.
    Nack(usize, u64, bool, bool),
    /// A worker's job gets no place: it waits for the delivery of another worker, or for any.
    Refuse(usize, usize),
    Bury(usize),
    /// The worker died.
    Scrub(usize),
    /// The receiver is replaced, unpaused, enabled again, or retried.
    Kick(usize),
    /// The client subscribes with another timeout.
    Timeout(usize, usize),
    Concurrency(usize, u64),
    /// The client ends its subscription, and subscribes again.
    End(usize),
    /// A part of the removal of lanes that ended, in batches.
    Purge(usize, usize),
    Drop(usize),
    Skip(usize, usize),
    Advance(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let worker = 0..6usize;
    let who = 0..TOKENS.len();
    prop_oneof![
        8 => vec(0..OBJECTS, 1..6).prop_map(Step::Publish),
        12 => (worker.clone(), 0..2usize).prop_map(|(worker, places)| Step::Take(worker, places)),
        5 => worker.clone().prop_map(Step::Ack),
        5 => (worker.clone(), 1..3_600_000u64, any::<bool>(), any::<bool>())
            .prop_map(|(worker, pause, attempted, split)| Step::Nack(worker, pause, attempted, split)),
        5 => (worker.clone(), worker.clone()).prop_map(|(worker, before)| Step::Refuse(worker, before)),
        1 => worker.clone().prop_map(Step::Bury),
        1 => worker.prop_map(Step::Scrub),
        3 => who.clone().prop_map(Step::Kick),
        2 => (who.clone(), 0..TIMEOUTS.len()).prop_map(|(who, timeout)| Step::Timeout(who, timeout)),
        2 => (who.clone(), 1..4u64).prop_map(|(who, lanes)| Step::Concurrency(who, lanes)),
        1 => who.clone().prop_map(Step::End),
        2 => (who.clone(), 1..4usize).prop_map(|(who, part)| Step::Purge(who, part)),
        1 => who.clone().prop_map(Step::Drop),
        1 => (who, 0..20usize).prop_map(|(who, back)| Step::Skip(who, back)),
        3 => (0..3_000u64).prop_map(Step::Advance),
    ]
}

/// A subscription to the workers' channel that returns every notification which was published so far.
struct Ear(BufReader<UnixStream>);

impl Ear {
    fn open(server: &Server) -> Self {
        let mut ear = Self(BufReader::new(UnixStream::connect(server.socket()).unwrap()));
        ear.0.get_mut().write_all(b"SUBSCRIBE bus:wake\r\n").unwrap();
        ear.frame();
        ear
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// One array of the server, each element as text.
    fn frame(&mut self) -> Vec<String> {
        let head = self.line();
        let count: usize = head.strip_prefix('*').unwrap_or_else(|| panic!("{head}")).parse().unwrap();
        let mut frame = Vec::with_capacity(count);
        for _ in 0..count {
            let head = self.line();
            let Some(size) = head.strip_prefix('$') else {
                frame.push(head);
                continue;
            };
            let mut text = vec![0; size.parse::<usize>().unwrap() + 2];
            self.0.read_exact(&mut text).unwrap();
            text.truncate(text.len() - 2);
            frame.push(String::from_utf8(text).unwrap());
        }
        frame
    }

    fn published(&mut self) -> Vec<String> {
        self.0.get_mut().write_all(b"PING\r\n").unwrap();
        let mut all = Vec::new();
        loop {
            let mut frame = self.frame();
            match &*frame[0] {
                "message" => all.extend(frame.pop()),
                _ => return all,
            }
        }
    }
}

/// What a pacemaker with idle workers knows, by the rules of `worker.rs`.
#[derive(Debug, Default)]
struct Sleeper {
    more: bool,
    due: Option<u64>,
    slow_waits: bool,
}

impl Sleeper {
    fn is_awake(&self, now: u64) -> bool {
        self.more || self.due.is_some_and(|due| due <= now)
    }
}

struct Model {
    hands: Hands,
    ear: Ear,
    sleepers: [Sleeper; 2],
    /// By worker what it holds, and the timeout of the subscriber when it took it.
    held: BTreeMap<usize, (Taken, u64)>,
    /// By token how often its pauses were ended.
    kicks: BTreeMap<String, u64>,
    /// By job until when its lane may pause.
    pauses: BTreeMap<Vec<u8>, u64>,
    generation: u64,
    ids: Vec<(u64, usize)>,
}

impl Model {
    async fn new(server: &Server) -> Self {
        server.open::<FabricRole>().command("FLUSHALL").run().await.unwrap();
        let target = |n: usize| subscriber(TOKENS[n], 2, 3, TIMEOUTS[n]);
        let hands = Hands::new(server, (0..TOKENS.len()).map(target).collect()).await;
        let awake = || Sleeper { more: true, ..Sleeper::default() };
        Self {
            hands,
            ear: Ear::open(server),
            sleepers: [awake(), awake()],
            held: BTreeMap::new(),
            kicks: BTreeMap::new(),
            pauses: BTreeMap::new(),
            generation: 1,
            ids: Vec::new(),
        }
    }

    fn now(&self) -> u64 {
        self.hands.time.0.load(std::sync::atomic::Ordering::SeqCst)
    }

    fn timeout(&self, token: &str) -> u64 {
        let targets = &self.hands.fan_out.targets;
        targets.iter().find(|target| target.token == token).unwrap().timeout_ms
    }

    fn hear(&mut self) {
        for payload in self.ear.published() {
            for sleeper in &mut self.sleepers {
                match payload.parse::<u64>() {
                    Err(_) => sleeper.more = true,
                    Ok(due) => sleeper.due = Some(sleeper.due.map_or(due, |known| known.min(due))),
                }
            }
        }
    }

    fn kicked(&mut self, token: &str) {
        *self.kicks.entry(token.to_owned()).or_default() += 1;
        let lanes = |job: &Vec<u8>| String::from_utf8_lossy(job).contains(token);
        self.pauses.retain(|job, _| !lanes(job));
    }

    async fn run(&mut self, step: &Step) {
        match step {
            Step::Publish(objects) => {
                let urls: Vec<String> = objects.iter().map(|n| format!("https://o/{n}")).collect();
                let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
                let ids = self.hands.publish_urls(&urls).await;
                self.ids.extend(ids.into_iter().zip(objects.iter().copied()));
            }
            Step::Take(worker, places) => self.take(*worker, *places).await,
            Step::Ack(worker) => {
                if let Some((taken, timeout_ms)) = self.held.remove(worker) {
                    let (held, gaps) = (taken.held, taken.gaps);
                    let ack = Ack { held, timeout_ms, events: taken.items.len(), gaps };
                    self.hands.store.ack(&[ack]).await.unwrap();
                }
            }
            Step::Nack(worker, pause_ms, attempted, split) => {
                let Some((taken, _)) = self.held.remove(worker) else { return };
                let nack = Nack { pause_ms: *pause_ms, attempted: *attempted, split: *split };
                let seed = self.hands.seed();
                let nacked = self.hands.store.nack(&taken.held, &nack, &seed).await.unwrap();
                let token = &taken.held.token;
                let kicks = self.kicks.get(token).copied().unwrap_or_default().to_string();
                if nacked != Nacked::NotHeld && kicks == taken.kicks {
                    self.pauses.insert(taken.held.job, self.now() + pause_ms);
                }
            }
            Step::Refuse(worker, before) => {
                let Some((taken, _)) = self.held.remove(worker) else { return };
                let other = self.held.get(before).filter(|(other, _)| other.held.token == taken.held.token);
                let before = other.map(|(other, _)| Holder {
                    worker: other.held.worker.clone(),
                    job: other.held.job.clone(),
                });
                self.hands.store.refuse(&taken.held, before.as_ref(), 50).await.unwrap();
            }
            Step::Bury(worker) => {
                if let Some((taken, timeout_ms)) = self.held.remove(worker) {
                    let keep = (1000, 1 << 20);
                    self.hands.store.bury(&taken.held, timeout_ms, "500", true, keep).await.unwrap();
                }
            }
            Step::Scrub(worker) => {
                if self.held.remove(worker).is_some() {
                    let name = format!("w{worker}");
                    let beats = self.hands.store.heartbeats().await.unwrap();
                    if let Some((_, seen)) = beats.into_iter().find(|(busy, _)| *busy == name) {
                        self.hands.store.scrub(&name, &seen).await.unwrap();
                    }
                }
            }
            Step::Kick(who) => self.kick(*who).await,
            Step::Timeout(who, timeout) => {
                self.hands.fan_out.targets[*who].timeout_ms = TIMEOUTS[*timeout];
                self.kick(*who).await;
            }
            Step::Concurrency(who, lanes) => {
                self.generation += 1;
                let old = self.hands.fan_out.targets[*who].clone();
                let new = Target { generation: self.generation, concurrency: *lanes, ..old };
                self.hands.fan_out.targets[*who] = new;
            }
            Step::End(who) => {
                let ended = self.hands.fan_out.targets[*who].generation.to_string();
                self.hands.end(TOKENS[*who], &ended).await;
                self.generation += 1;
                self.hands.fan_out.targets[*who].generation = self.generation;
            }
            Step::Purge(who, part) => drop(self.hands.store.purge(TOKENS[*who], *part).await.unwrap()),
            Step::Drop(who) => drop(self.hands.store.drop_oldest(TOKENS[*who], "limit").await.unwrap()),
            Step::Skip(who, back) => {
                let Some((id, object)) = self.ids.iter().rev().nth(*back).copied() else { return };
                let hash = lane_hash(&format!("https://o/{object}"));
                let (token, id) = (TOKENS[*who], crate::EventId(id));
                let start = Default::default();
                let found =
                    self.hands.store.skip(token, id, Some(hash), (1000, 1 << 20), &start).await.unwrap();
                if found == Skipped::Done {
                    *self.kicks.entry(token.to_owned()).or_default() += 1;
                }
            }
            Step::Advance(ms) => self.hands.time.advance(*ms),
        }
    }

    async fn kick(&mut self, who: usize) {
        let token = TOKENS[who];
        self.hands.store.kick(token, self.timeout(token)).await.unwrap();
        self.kicked(token);
    }

    async fn take(&mut self, worker: usize, places: usize) {
        if self.held.contains_key(&worker) {
            return;
        }
        self.hear();
        let turn = self.hands.store.acquire(&[format!("w{worker}")], 1000, places).await.unwrap();
        self.sleepers[worker % 2] = Sleeper {
            more: turn.left > 0 || turn.taken.len() == 1,
            due: turn.next_due_ms,
            slow_waits: turn.slow > 0,
        };
        for taken in turn.taken {
            let timeout = self.timeout(&taken.held.token);
            self.held.insert(worker, (taken, timeout));
        }
    }

    /// Everything that waits longer than it has to.
    async fn late(&mut self) -> Vec<String> {
        self.hear();
        let (now, mut late) = (self.now(), Vec::new());
        let redis = self.hands.store.shard().redis().clone();
        let instant = number(&redis, "LLEN", &["bus:jobs:instant:main"]).await;
        let slow = number(&redis, "LLEN", &["bus:jobs:slow:main"]).await;
        let scheduled: Vec<(Vec<u8>, u64)> = redis
            .command("ZRANGE")
            .arg(&["bus:jobs:scheduled:main", "0", "-1", "WITHSCORES"][..])
            .query()
            .await
            .unwrap();
        for sleeper in self.sleepers.iter().filter(|sleeper| !sleeper.is_awake(now)) {
            if instant > 0 {
                late.push(format!("{instant} jobs are ready, and {sleeper:?}"));
            }
            if let Some((_, due)) = scheduled.first()
                && sleeper.due.is_none_or(|known| known > *due)
            {
                late.push(format!("a job is due at {due}, and {sleeper:?}"));
            }
            if slow > 0 && !sleeper.slow_waits {
                late.push(format!("{slow} jobs wait for a place, and {sleeper:?}"));
            }
        }
        for token in TOKENS {
            self.check_lanes(&redis, token, &scheduled, &mut late).await;
        }
        late
    }

    async fn check_lanes(
        &self,
        redis: &signalbox_store::Fabric,
        token: &str,
        scheduled: &[(Vec<u8>, u64)],
        late: &mut Vec<String>,
    ) {
        let now = self.now();
        let of_token = |job: &[u8]| String::from_utf8_lossy(job).contains(token);
        let flat = strings(redis, "HGETALL", &[&format!("bus:batches:current:{token}")]).await;
        let current = || flat.chunks(2).filter(|pair| !pair[0].ends_with(":bytes"));
        for pair in current() {
            let ready = format!("bus:batches:ready:{token}:{}", pair[0]);
            if number(redis, "EXISTS", &[&ready]).await == 1 {
                continue;
            }
            let created = strings(redis, "LRANGE", &[&format!("bus:batch:{}", pair[1]), "1", "1"]).await;
            let limit = created[0].parse::<u64>().unwrap() + self.timeout(token);
            let job = job_of(token, &pair[0]);
            // A timeout that was extended leaves the lane as it is. A pause of a batch that was dropped may continue.
            let limit = limit.max(now).max(self.pauses.get(&job).copied().unwrap_or_default());
            if let Some((_, due)) = scheduled.iter().find(|(one, _)| *one == job)
                && *due > limit + GRACE_MS
            {
                late.push(format!("lane {} of {token} waits until {due} instead of {limit}", pair[0]));
            }
        }
        for (job, due) in scheduled.iter().filter(|(job, _)| of_token(job)) {
            let text = String::from_utf8_lossy(job).into_owned();
            let fills = current().any(|pair| job_of(token, &pair[0]) == *job);
            let limit = self.pauses.get(job).copied().unwrap_or_default().max(now) + GRACE_MS;
            if !fills && *due > limit {
                late.push(format!("{text} pauses until {due}, and not until {limit}"));
            }
        }
        let held = self.held.values().any(|(taken, _)| taken.held.token == token);
        let list = async |key: &str| -> Vec<Vec<u8>> {
            redis.command("LRANGE").arg(&[key, "0", "-1"][..]).query().await.unwrap()
        };
        if !list(&format!("bus:jobs:behind:{token}")).await.is_empty() {
            let mut next = list("bus:jobs:instant:main").await;
            next.extend(list("bus:jobs:slow:main").await);
            next.extend(
                scheduled.iter().filter(|(_, due)| *due <= now + GRACE_MS).map(|(job, _)| job.clone()),
            );
            if !held && !next.iter().any(|job| of_token(job)) {
                late.push(format!("jobs of {token} wait for a delivery, and none is under way"));
            }
        }
        if number(redis, "EXISTS", &[&format!("bus:jobs:waiting:{token}")]).await == 1 {
            let flat = strings(redis, "HGETALL", &[&format!("bus:generations:{token}")]).await;
            let counts = flat.chunks(2).filter(|pair| !pair[0].ends_with(":lanes"));
            let newest = counts.clone().map(|pair| pair[0].parse::<u64>().unwrap()).max();
            let mut older = counts.filter(|pair| pair[0].parse().ok() < newest);
            if !older.any(|pair| pair[1] != "0") {
                late.push(format!("jobs of {token} wait for older lanes, which are empty"));
            }
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn case(server: &Server, steps: &[Step]) {
    runtime().block_on(async {
        let mut model = Model::new(server).await;
        for (place, step) in steps.iter().enumerate() {
            model.run(step).await;
            let late = model.late().await;
            assert!(late.is_empty(), "after step {place}, {step:?}:\n{}", late.join("\n"));
        }
        // While a removal is under way, its lanes are incomplete.
        for token in TOKENS {
            while model.hands.store.purge(token, 100).await.unwrap() {}
        }
        // A worker whose lane was removed releases its job when it asks for the next one.
        for worker in 0..6 {
            for step in [Step::Ack(worker), Step::Take(worker, 0), Step::Ack(worker)] {
                model.run(&step).await;
            }
        }
        let late = model.late().await;
        assert!(late.is_empty(), "in the end:\n{}", late.join("\n"));
        for token in TOKENS {
            let needed = model.hands.store.needed(1000).await.unwrap();
            let segments = needed.get(token).map_or(&[][..], Vec::as_slice);
            assert_eq!(model.hands.store.audit(token, 1000, segments).await.unwrap(), [], "{token}");
        }
    });
}

#[test]
fn nothing_that_could_be_done_waits() {
    let server = runtime().block_on(Server::in_memory());
    // On demand longer: PROPTEST_CASES=1000.
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    let config = Config { failure_persistence: None, ..Config::with_cases(cases) };
    proptest!(config, |(steps in vec(step(), 1..60))| case(&server, &steps));
}

/// One call schedules a patient lane and then a hasty one: the pacemakers sleep until the hasty one is due.
#[tokio::test]
async fn a_subscriber_does_not_wait_because_another_one_of_its_topic_is_patient() {
    let server = Server::in_memory().await;
    let mut model = Model::new(&server).await;
    model.run(&Step::Take(0, 0)).await;
    model.run(&Step::Take(1, 0)).await;
    model.hands.fan_out.topics = vec![("t".into(), vec![0, 1])];
    model.run(&Step::Publish(vec![0])).await;
    assert_eq!(model.late().await, [""; 0]);
    assert_eq!(model.sleepers[0].due, Some(model.now() + TIMEOUTS[1]));
}

#[tokio::test]
async fn a_removal_wakes_the_lanes_that_waited_for_it_wherever_its_parts_end() {
    let server = Server::in_memory().await;
    let mut model = Model::new(&server).await;
    model.hands.fan_out.topics = vec![("t".into(), vec![2])];
    for step in [Step::Publish(vec![0]), Step::End(2), Step::Publish(vec![1])] {
        model.run(&step).await;
    }
    // The lane of the former subscription is in flight, and the new one waits for it.
    model.run(&Step::Take(0, 0)).await;
    for worker in [1, 3, 1] {
        model.run(&Step::Take(worker, 0)).await;
    }
    model.run(&Step::Take(2, 0)).await;
    // Exactly the last batch of the former subscription is the last of the part.
    model.run(&Step::Purge(2, 1)).await;
    assert_eq!(model.late().await, [""; 0]);
    assert!(model.sleepers.iter().all(|sleeper| sleeper.is_awake(model.now())), "{:?}", model.sleepers);
}

/// A batch without events is removed with its subscription, and not subtracted from those of the next one.
#[test]
fn a_batch_that_became_empty_before_its_subscription_ended_is_counted_once() {
    let server = runtime().block_on(Server::in_memory());
    let steps = [Step::Publish(vec![0]), Step::Skip(1, 0), Step::End(1), Step::Publish(vec![0])];
    case(&server, &steps);
}
