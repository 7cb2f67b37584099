//! Labels end in the right state, whichever part is killed: three pacemakers are killed at random, as is Redis. Actions and
//! feeds hang, fail, and answer nonsense or too much. Facts arrive by HTTP and through the bus. In the meantime, versions of the
//! definition replace one another and are rolled back, and at the end a task changes all labels while pacemakers die.
//!
//! The expected path of each label is computed in advance (`plan.rs`), as a single thread that receives one fact after the
//! other would produce it. The published events are recorded in a ledger as they arrive.
//!
//! All random choices follow from the seed, which is printed: `SIGNALBOX_SEED` repeats them.

mod ledger;
mod outside;
mod plan;
mod updates;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use signalbox_stack::Fsync;
use signalbox_testkit::{eventually, eventually_within};
use signalbox_tests::{
    fleet::Fleet,
    http::Request,
    receiver::{Answer, Receiver},
    system::System,
    victim::Victim,
};
use tokio::{
    task::JoinSet,
    time::{self, Instant},
};

use self::{
    ledger::Ledger,
    outside::Outside,
    plan::{MACHINE, Plan, TURNS},
    updates::Updates,
};

const PACEMAKERS: usize = 3;
/// Work of a pacemaker that died is soon taken over.
const SETTINGS: [(&str, i64); 3] = [("beat_ms", 200), ("dead_after_ms", 1_000), ("housekeeping_ms", 200)];
/// One of this many kills hits Redis.
const REDIS_EVERY: usize = 4;

/// Labels that are checked concurrently at the end.
const LOOKING: usize = 8;

/// How much of everything there is.
struct Measure {
    labels: usize,
    /// How many labels are on their way at a time.
    at_once: usize,
    /// Kills at most, and for how long at most.
    kills: usize,
    within: Duration,
    /// The longest pause between two.
    pause: Duration,
    /// How long one step of a label may take.
    patience: Duration,
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_end_in_the_states_of_the_reference_whichever_part_is_killed() {
    let measure = Measure {
        labels: 150,
        at_once: 150,
        kills: 8,
        within: Duration::from_secs(20),
        pause: Duration::from_millis(1_500),
        patience: Duration::from_secs(240),
    };
    run_with_faults("machines", measure).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs for a configured duration; make soak"]
async fn soak_labels_end_in_the_states_of_the_reference() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("SOAK_SECONDS").unwrap_or(300);
    let measure = Measure {
        labels: number("SOAK_LABELS").and_then(|labels| labels.try_into().ok()).unwrap_or(10_000),
        at_once: 1_500,
        kills: usize::MAX,
        within: Duration::from_secs(seconds),
        pause: Duration::from_secs(4),
        patience: Duration::from_secs(1_200),
    };
    run_with_faults("machines-soak", measure).await;
}

async fn apply(fleet: &Fleet, outside: &Receiver) {
    let to = fleet.address(0);
    let target = format!("/state-machines/{MACHINE}/plan");
    let definition = plan::definition(&outside.address.to_string(), TURNS[0]);
    let request = Request::new("POST", &to.to_string(), &target).token(&fleet.system.token);
    let request = request.header("Content-Type", "application/yaml").body(definition.as_bytes());
    let planned = request.send(to).await.unwrap();
    assert_eq!(planned.status, 200, "{}", planned.text());
    let body = json!({"plan": planned.json()["plan"]});
    let target = format!("/state-machines/{MACHINE}/apply");
    let applied = fleet.call(0, &fleet.system.token, "POST", &target, Some(&body)).await;
    assert_eq!(applied.status, 200, "{}", applied.text());
    eventually("events to be taken as facts", || async {
        let position = format!("HGET machine:inputs {MACHINE}");
        let taken: Option<String> = fleet.system.try_cli(System::FABRIC, &position).await?;
        taken.ok_or_else(|| "not yet".to_owned())
    })
    .await;
}

/// Enters what is published of labels, and what their actions publish.
async fn listen(fleet: &Fleet, ledger: &Arc<Ledger>) -> Receiver {
    let entered = Arc::clone(ledger);
    let receiver = Receiver::passing(move |delivery| {
        entered.receive(&delivery.events());
        Answer::status("200 OK")
    })
    .await;
    let client = fleet.client("listener").await;
    let topics = ["signalbox.labels", "reported"];
    let wanted =
        json!({"topics": topics, "callback": receiver.url(), "concurrency": 8, "max": 500, "timeout": 0});
    fleet.subscribe(&client, &wanted).await;
    receiver
}

/// Replaces the definition by the version with the other name of a gate, and that by the first one, until all labels are
/// there. Requests fail now and then, and are repeated. Returns how often another version was applied.
async fn change_versions(fleet: &Fleet, ledger: &Ledger, outside: &Receiver, seed: u64) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut turn, mut applied) = (0, 0);
    while ledger.progress().0 < ledger.len() {
        time::sleep(Duration::from_millis(random.random_range(300..2_500))).await;
        let next = 1 - turn;
        let definition = plan::definition(&outside.address.to_string(), TURNS[next]);
        if apply_once(fleet, random.random_range(0..fleet.len()), &definition, (TURNS[turn], TURNS[next]))
            .await
        {
            (turn, applied) = (next, applied + 1);
        }
    }
    applied
}

/// Whether a pacemaker has applied a definition. If it is not known, it is asked for again.
async fn apply_once(fleet: &Fleet, at: usize, definition: &str, (from, to): (&str, &str)) -> bool {
    let send = async |target: &str, kind: &str, body: &[u8]| {
        let address = fleet.address(at);
        let target = format!("/state-machines/{MACHINE}{target}");
        let request = Request::new("POST", &address.to_string(), &target).token(&fleet.system.token);
        request.header("Content-Type", kind).body(body).send(address).await.ok()
    };
    let Some(planned) = send("/plan", "application/yaml", definition.as_bytes()).await else { return false };
    if planned.status != 200 {
        return false;
    }
    let planned = planned.json();
    // An apply without an answer was made after all.
    if planned["states"]["removed"] == json!([]) {
        return true;
    }
    let body = json!({"plan": planned["plan"], "map": {from: to}}).to_string();
    send("/apply", "application/json", body.as_bytes()).await.is_some_and(|applied| applied.status == 200)
}

/// A task changes all labels, while pacemakers die.
async fn change_all_by_a_task(fleet: &Fleet, plans: &[Plan], random: &mut StdRng) {
    let target = format!("/state-machines/{MACHINE}/tasks");
    let body =
        json!({"operation": "set", "metadata": {"bulk": true}, "filter": {}, "rate": plans.len() / 4 + 1});
    let token = &fleet.system.token;
    let started = Request::new("POST", &fleet.address(0).to_string(), &target).token(token).json(&body);
    let started = started.header("Idempotency-Key", "bulk").send(fleet.address(0)).await.unwrap();
    assert_eq!(started.status, 202, "{}", started.text());
    for _ in 0..3 {
        let victim = random.random_range(0..PACEMAKERS);
        let mut victim = Victim::new(fleet.pacemaker(victim));
        victim.die(Duration::from_millis(random.random_range(0..200))).await;
        time::sleep(Duration::from_millis(random.random_range(0..600))).await;
        victim.recover().await;
    }
    let id = started.json()["id"].as_str().unwrap_or_default().to_owned();
    let task = eventually_within(Duration::from_secs(120), "the task to end", || async {
        let task = fleet.call(0, token, "GET", &format!("{target}/{id}"), None).await.json();
        if task["state"] == "done" { Ok(task) } else { Err(task.to_string()) }
    })
    .await;
    // Records of deleted labels are checked as well.
    let worked_on = task["changed"].as_u64().zip(task["unchanged"].as_u64()).map(|(one, other)| one + other);
    assert_eq!((&task["failed"], worked_on), (&json!(0), Some(plans.len() as u64)), "{task}");
}

/// Kills, stops and confuses at random until all labels are there; how often pacemakers and Redis were killed.
async fn kill(fleet: &Fleet, ledger: &Ledger, measure: &Measure, random: &mut StdRng) -> [usize; 2] {
    let mut victims: Vec<Victim> =
        (0..PACEMAKERS).map(|number| Victim::new(fleet.pacemaker(number))).collect();
    victims.push(Victim::new(fleet.fabric()));
    let (started, mut killed) = (Instant::now(), [0, 0]);
    while started.elapsed() < measure.within
        && killed[0] + killed[1] < measure.kills
        && ledger.progress().0 < measure.labels
    {
        time::sleep(measure.pause.mul_f64(random.random_range(0.1..1.0))).await;
        let one = &victims[random.random_range(0..victims.len())].part;
        match random.random_range(0..4) {
            // The process continues as if nothing had happened, after others have taken over its
            // work.
            0 | 1 => {
                one.pause();
                time::sleep(Duration::from_millis(random.random_range(50..1_500))).await;
                one.resume();
            }
            2 => drop(fleet.system.try_cli::<()>(System::FABRIC, "SCRIPT FLUSH").await),
            _ => {}
        }
        let redis = (killed[0] + killed[1]) % REDIS_EVERY == 1;
        let victim = if redis { PACEMAKERS } else { random.random_range(0..PACEMAKERS) };
        victims[victim].die(Duration::from_millis(random.random_range(0..400))).await;
        killed[usize::from(redis)] += 1;
        if (killed[0] + killed[1]) % 20 == 0 {
            println!("{killed:?} kills in {:?}; {:?}", started.elapsed(), ledger.progress());
        }
    }
    for victim in &mut victims {
        victim.recover().await;
    }
    killed
}

async fn run_with_faults(name: &str, measure: Measure) {
    let seed = match std::env::var("SIGNALBOX_SEED") {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("SIGNALBOX_SEED={text} is not a number")),
        Err(_) => rand::rng().random(),
    };
    println!("{name}: SIGNALBOX_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let plans: Vec<Plan> = (0..measure.labels).map(|number| Plan::new(number, &mut random)).collect();
    let (ledger, outside) = (Arc::new(Ledger::new(&plans)), Outside::new(&plans, random.random()));
    let fleet = Fleet::start(name, PACEMAKERS, &SETTINGS, |builder| {
        builder.with(|options| options.redis.fabric_fsync = Fsync::Always)
    })
    .await;
    let fleet = Arc::new(fleet);
    fleet.client("shop").await;
    let _listener = listen(&fleet, &ledger).await;
    let door = outside.open().await;
    apply(&fleet, &door).await;

    let started = Instant::now();
    let (patience, again) = (measure.patience, AtomicU64::new(0));
    let updates =
        Arc::new(Updates { fleet: Arc::clone(&fleet), ledger: Arc::clone(&ledger), patience, again });
    let mut updaters = JoinSet::new();
    let mut waiting = plans.clone();
    waiting.reverse();
    let seeds: u64 = random.random();
    let tell_all = async {
        while !waiting.is_empty() || !updaters.is_empty() {
            while updaters.len() < measure.at_once
                && let Some(plan) = waiting.pop()
            {
                let seed = seeds.wrapping_add(waiting.len() as u64);
                updaters.spawn(Arc::clone(&updates).run(plan, seed));
            }
            updaters.join_next().await.expect("a teller").unwrap_or_else(|error| panic!("{error}"));
        }
    };
    let versions = change_versions(&fleet, &ledger, &door, seeds);
    let ((), killed, versions) =
        tokio::join!(tell_all, kill(&fleet, &ledger, &measure, &mut random), versions);
    println!(
        "{name}: {:?}: everything is published; {killed:?} pacemakers and Redis killed, {versions} versions, {} moves by them",
        started.elapsed(),
        ledger.migrated()
    );

    settle(&fleet, &ledger, &plans, measure.patience).await;
    change_all_by_a_task(&fleet, &plans, &mut random).await;
    let mut flaws = ledger.audit();
    flaws.extend(outside.audit(&ledger.tokens()));
    flaws.extend(look_at_all(&fleet, &ledger, &plans).await);
    let again = updates.again.load(std::sync::atomic::Ordering::Relaxed);
    let (labels, moves) = ledger.progress();
    println!(
        "{name}: {:?}: {labels} labels, {moves} moves, {} attempts, {again} requests repeated, {} flaws",
        started.elapsed(),
        outside.attempts(),
        flaws.len()
    );
    assert!(flaws.is_empty(), "SIGNALBOX_SEED={seed} {name}: {flaws:#?}");
    expect_counts(&fleet, &plans).await;
    drop(updates);
    let fleet = Arc::try_unwrap(fleet).unwrap_or_else(|_| panic!("everybody is gone"));
    fleet.system.stop().await;
}

/// Everything that is wrong with the labels now.
async fn look_at_all(fleet: &Arc<Fleet>, ledger: &Arc<Ledger>, plans: &[Plan]) -> Vec<String> {
    let mut looks = JoinSet::new();
    for some in plans.chunks(plans.len().div_ceil(LOOKING)) {
        let (fleet, ledger, some) = (Arc::clone(fleet), Arc::clone(ledger), some.to_vec());
        looks.spawn(async move {
            let mut flaws = Vec::new();
            for plan in &some {
                flaws.extend(look(&fleet, &ledger, plan).await);
            }
            flaws
        });
    }
    looks.join_all().await.concat()
}

/// Waits until nothing is left to be done: no label is due, every event is delivered and taken.
async fn settle(fleet: &Fleet, ledger: &Ledger, plans: &[Plan], patience: Duration) {
    eventually_within(patience, "all labels to be where they go", || async {
        if ledger.progress().0 == plans.len() { Ok(()) } else { Err(ledger.behind()) }
    })
    .await;
    eventually_within(patience, "nothing to be due", || async {
        let due: Vec<String> = fleet.system.try_cli(System::FABRIC, "ZRANGE machine:next 0 5").await?;
        if due.is_empty() { Ok(()) } else { Err(format!("{due:?}")) }
    })
    .await;
}

/// The problem of a label now, if it has one.
async fn look(fleet: &Fleet, ledger: &Ledger, plan: &Plan) -> Option<String> {
    let target = format!("/state-machines/{MACHINE}/labels/{}", plan.name);
    let token = &fleet.system.token;
    let path = ledger.path(&plan.name);
    let state = &path[path.len() - 1];
    let called = path.iter().rposition(|state| state == "call");
    // The last call of a label that was turned away has no receipt, but the one before may have.
    let called = if plan.gone {
        path.iter().take(called.unwrap_or(0)).rposition(|state| state == "call")
    } else {
        called
    };
    let receipt = called.map(|place| plan::token(&plan.name, place as u64 + 1, "call"));
    let mut metadata = plan.metadata();
    metadata["bulk"] = json!(true);
    if let Some(receipt) = receipt {
        metadata["receipt"] = json!(receipt);
    }
    eventually(&format!("{} to be as it should", plan.name), || async {
        let mut found = fleet.call(1, token, "GET", &target, None).await.json();
        if let Some(metadata) = found["metadata"].as_object_mut() {
            metadata.remove("due");
            let failure = metadata.get_mut("failure").and_then(Value::as_object_mut);
            failure.map(|failure| failure.remove("attempts"));
        }
        let expected = (json!(state), json!(plan.status()), metadata.clone(), json!(path.len()));
        let stands = (&found["state"], &found["status"], &found["metadata"], &found["visit"]);
        if stands == (&expected.0, &expected.1, &expected.2, &expected.3) {
            Ok(())
        } else {
            Err(format!("{found} instead of {expected:?}"))
        }
    })
    .await;
    let history = fleet.call(2, token, "GET", &format!("{target}/history"), None).await.json();
    let rows: Vec<Value> = history["history"].as_array().cloned().unwrap_or_default();
    let reported: Vec<(Option<u64>, Option<&str>)> =
        rows.iter().map(|row| (row["visit"].as_u64(), row["to"].as_str())).collect();
    let all: Vec<(Option<u64>, Option<&str>)> =
        path.iter().enumerate().map(|(place, state)| (Some(place as u64 + 1), Some(&**state))).collect();
    let newest = &all[all.len().saturating_sub(20)..];
    let why = fleet.call(0, token, "GET", &format!("{target}/why"), None).await.json();
    let (said, expected) = if plan.gone {
        (&why["stuck"], "unless its action is retried")
    } else {
        (&why["reason"], "it has ended")
    };
    let said = said.as_str().unwrap_or_default();
    if reported != newest {
        Some(format!("{}: its history is {reported:?}, not {newest:?}", plan.name))
    } else if !said.contains(expected) {
        Some(format!("{}: why answers {why}", plan.name))
    } else {
        None
    }
}

/// The indexes agree with the labels.
async fn expect_counts(fleet: &Fleet, plans: &[Plan]) {
    let target = format!("/state-machines/{MACHINE}");
    let machine = fleet.call(0, &fleet.system.token, "GET", &target, None).await.json();
    let gone = plans.iter().filter(|plan| plan.gone).count();
    let refused = plans.iter().filter(|plan| plan.is_refused()).count();
    for (state, count) in machine["labels"].as_object().unwrap_or_else(|| panic!("{machine}")) {
        let expected = match &**state {
            "call" => gone,
            "done" => plans.len() - gone - refused,
            "rejected" => refused,
            _ => 0,
        };
        assert_eq!(count, &json!(expected), "{machine}");
    }
    let errored: usize =
        fleet.system.cli(System::FABRIC, &format!("ZCARD machine:{MACHINE}:is:errored")).await;
    assert_eq!(errored, gone);
}
