//! What many labels do together while pacemakers are killed: attempts under the limits of an address, and a task over all
//! labels.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};
use signalbox_testkit::eventually_within;
use signalbox_tests::{
    fleet::Fleet,
    http::Request,
    receiver::{Answer, Delivery, Receiver},
    victim::Victim,
};
use tokio::time::Instant;

const PACEMAKERS: usize = 3;
/// Work of a pacemaker that died is soon taken over.
const SETTINGS: [(&str, i64); 3] = [("beat_ms", 200), ("dead_after_ms", 1_000), ("housekeeping_ms", 200)];
const MACHINE: &str = "limited";
const LABELS: usize = 60;
/// Attempts in progress.
const CONCURRENT: usize = 3;
/// Attempts that begin in a second.
const RATE: usize = 10;
/// How long an attempt takes.
const WORK: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(120);

async fn fleet(name: &str) -> Fleet {
    Fleet::start(name, PACEMAKERS, &SETTINGS, |builder| builder).await
}

async fn apply(fleet: &Fleet, yaml: &str) {
    let to = fleet.address(0);
    let target = format!("/state-machines/{MACHINE}");
    let request = Request::new("POST", &to.to_string(), &format!("{target}/plan")).token(&fleet.system.token);
    let request = request.header("Content-Type", "application/yaml").body(yaml.as_bytes());
    let planned = request.send(to).await.unwrap();
    assert_eq!(planned.status, 200, "{}", planned.text());
    let body = json!({"plan": planned.json()["plan"]});
    let applied = fleet.call(0, &fleet.system.token, "POST", &format!("{target}/apply"), Some(&body)).await;
    assert_eq!(applied.status, 200, "{}", applied.text());
}

fn name(number: usize) -> String {
    format!("label-{number:03}")
}

/// Creates all labels.
async fn create(fleet: &Fleet) {
    let labels: Vec<Value> =
        (0..LABELS).map(|number| json!({"name": name(number), "metadata": {}})).collect();
    let target = format!("/state-machines/{MACHINE}/labels");
    let token = &fleet.system.token;
    let created = fleet.call(0, token, "POST", &target, Some(&json!({"labels": labels}))).await.json();
    let results = created["results"].as_array().unwrap_or_else(|| panic!("{created}"));
    assert!(results.iter().all(|one| one["result"] == 201), "{created}");
}

/// The answer of a pacemaker that runs.
async fn ask(fleet: &Fleet, target: &str) -> Result<Value, String> {
    for number in 0..fleet.len() {
        let to = fleet.address(number);
        let target = format!("/state-machines/{MACHINE}{target}");
        let request = Request::new("GET", &to.to_string(), &target).token(&fleet.system.token);
        if let Ok(answer) = request.send(to).await
            && answer.status == 200
        {
            return Ok(answer.json());
        }
    }
    Err("no pacemaker answers".to_owned())
}

/// The attempts that came.
#[derive(Default)]
struct Attempts {
    /// By token, how often it came.
    tokens: BTreeMap<String, u32>,
    /// When the attempts that are in progress end: a caller that was killed does not end its attempt.
    under_way: VecDeque<Instant>,
    /// The maximum number in progress.
    most: usize,
    /// How many came.
    came: usize,
}

impl Attempts {
    fn take(&mut self, delivery: &Delivery) {
        let now = Instant::now();
        while self.under_way.front().is_some_and(|ends| *ends <= now) {
            self.under_way.pop_front();
        }
        self.under_way.push_back(now + WORK);
        self.most = self.most.max(self.under_way.len());
        self.came += 1;
        let token = delivery.header("X-Idempotency-Token").unwrap_or_default().to_owned();
        *self.tokens.entry(token).or_default() += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_of_an_address_apply_over_all_pacemakers_although_they_are_killed() {
    let fleet = fleet("machines-limits").await;
    let attempts = Arc::new(Mutex::new(Attempts::default()));
    let taken = Arc::clone(&attempts);
    let receiver = Receiver::passing(move |delivery| {
        taken.lock().unwrap_or_else(PoisonError::into_inner).take(delivery);
        Answer::After(WORK, Box::new(Answer::status("200 OK")))
    })
    .await;
    let target = format!("http://{}", receiver.address);
    apply(
        &fleet,
        &format!(
            "
state_machines:
  {MACHINE}:
    limits: {{\"{target}\": {{rate: {RATE}, concurrent: {CONCURRENT}}}}}
    states:
      - {{action: call, webhook: \"{target}/<label>\", timeout: 1s, retry: {{attempts: 100, first: 1s, factor: 1, longest: 1s}}, next: done}}
      - {{gate: done}}
"
        ),
    )
    .await;
    create(&fleet).await;
    let why = ask(&fleet, &format!("/labels/{}/why", name(LABELS - 1))).await.unwrap();
    assert_eq!(why["action"]["waits_for_limit"]["target"], json!(target), "{why}");
    for number in 0..PACEMAKERS {
        let before = attempts.lock().unwrap().came;
        eventually_within(PATIENCE, "attempts to begin", || async {
            let came = attempts.lock().unwrap().came;
            if came > before + 2 || came >= LABELS { Ok(()) } else { Err(format!("{came} came")) }
        })
        .await;
        let mut victim = Victim::new(fleet.pacemaker(number));
        victim.die(Duration::from_millis(100)).await;
        victim.recover().await;
    }
    eventually_within(PATIENCE, "all labels to be done", || async {
        let machine = ask(&fleet, "").await?;
        if machine["labels"]["done"] == LABELS { Ok(()) } else { Err(machine["labels"].to_string()) }
    })
    .await;
    fleet.system.stop().await;
    let seen = attempts.lock().unwrap();
    assert_eq!(seen.tokens.len(), LABELS, "one token for each label: {:?}", seen.tokens);
    assert!(seen.most <= CONCURRENT, "{} attempts at a time", seen.most);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_continues_after_a_kill_and_changes_each_label_once() {
    let fleet = fleet("machines-task").await;
    apply(&fleet, &format!("state_machines:\n  {MACHINE}:\n    states: [{{gate: there}}]\n")).await;
    create(&fleet).await;
    let body = json!({"operation": "set", "metadata": {"bulk": true}, "filter": {}, "rate": LABELS / 12});
    let tasks = format!("/state-machines/{MACHINE}/tasks");
    let started = fleet.call(0, &fleet.system.token, "POST", &tasks, Some(&body)).await;
    assert_eq!(started.status, 202, "{}", started.text());
    let id = started.json()["id"].as_str().unwrap().to_owned();
    let progress = Mutex::new(0);
    let checked = async || {
        let task = ask(&fleet, &format!("/tasks/{id}")).await?;
        let checked = task["checked"].as_u64().ok_or_else(|| task.to_string())?;
        let mut last = progress.lock().unwrap();
        assert!(*last <= checked, "{checked} after {last}");
        *last = checked;
        Ok::<_, String>((checked, task))
    };
    let mut kills = 0;
    for number in 0..PACEMAKERS {
        let before = *progress.lock().unwrap();
        eventually_within(PATIENCE, "the task to progress", async || {
            let (now, _) = checked().await?;
            if now > before || now == LABELS as u64 { Ok(()) } else { Err(format!("{now} labels")) }
        })
        .await;
        if *progress.lock().unwrap() == LABELS as u64 {
            break;
        }
        kills += 1;
        let mut victim = Victim::new(fleet.pacemaker(number));
        victim.die(Duration::ZERO).await;
        victim.recover().await;
    }
    assert!(kills > 0, "the task had ended before the first kill");
    let task = eventually_within(PATIENCE, "the task to end", async || {
        let (_, task) = checked().await?;
        if task["state"] == "done" { Ok(task) } else { Err(task.to_string()) }
    })
    .await;
    let counts = ["checked", "failed"].map(|member| task[member].as_u64());
    assert_eq!(counts, [Some(LABELS as u64), Some(0)], "{task}");
    for number in 0..LABELS {
        let activity = ask(&fleet, &format!("/labels/{}/activity", name(number))).await.unwrap();
        let lines = activity["activity"].as_array().unwrap_or_else(|| panic!("{activity}"));
        assert_eq!(lines.iter().filter(|line| line["kind"] == "metadata").count(), 1, "{activity}");
    }
    fleet.system.stop().await;
}
