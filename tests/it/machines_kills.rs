//! Labels end in the right state, whichever part is killed: three pacemakers are killed at random, as is Redis. Actions and
//! feeds hang, fail, and answer nonsense or too much. Facts arrive by HTTP and through the bus.
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
    plan::{MACHINE, Plan},
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
        labels: 300,
        at_once: 300,
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
    let definition = plan::definition(&outside.address.to_string());
    let request = Request::new("POST", &to.to_string(), &target).token(&fleet.system.token);
    let request = request.header("Content-Type", "application/yaml").body(definition.as_bytes());
    let planned = request.send(to).await.unwrap();
    assert_eq!(planned.status, 200, "{}", planned.text());
    let body = json!({"plan": planned.json()["plan"]});
    let target = format!("/state-machines/{MACHINE}/apply");
    let applied = fleet.call(0, &fleet.system.token, "POST", &target, Some(&body)).await;
    assert_eq!(applied.status, 200, "{}", applied.text());
    eventually("events to be taken as facts", || async {
        let taken: Option<u64> = fleet.system.try_cli(System::FABRIC, "HGET machine:inputs 0").await?;
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
    let ((), killed) = tokio::join!(tell_all, kill(&fleet, &ledger, &measure, &mut random));
    println!(
        "{name}: {:?}: everything is published; {killed:?} pacemakers and Redis killed",
        started.elapsed()
    );

    settle(&fleet, &ledger, &plans, measure.patience).await;
    let mut flaws = ledger.audit();
    flaws.extend(outside.audit());
    flaws.extend(look_at_all(&fleet, &plans).await);
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
async fn look_at_all(fleet: &Arc<Fleet>, plans: &[Plan]) -> Vec<String> {
    let mut looks = JoinSet::new();
    for some in plans.chunks(plans.len().div_ceil(LOOKING)) {
        let (fleet, some) = (Arc::clone(fleet), some.to_vec());
        looks.spawn(async move {
            let mut flaws = Vec::new();
            for plan in &some {
                flaws.extend(look(&fleet, plan).await);
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
        let due: Vec<String> = fleet.system.try_cli(System::FABRIC, "ZRANGE machine:due 0 5").await?;
        if due.is_empty() { Ok(()) } else { Err(format!("{due:?}")) }
    })
    .await;
}

/// The problem of a label now, if it has one.
async fn look(fleet: &Fleet, plan: &Plan) -> Option<String> {
    let target = format!("/state-machines/{MACHINE}/labels/{}", plan.name);
    let token = &fleet.system.token;
    let path = plan.path();
    let (state, _) = path[path.len() - 1];
    eventually(&format!("{} to be as it should", plan.name), || async {
        let found = fleet.call(1, token, "GET", &target, None).await.json();
        let expected = (json!(state), json!(plan.status()), plan.metadata(), json!(path.len()));
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
        path.iter().enumerate().map(|(place, (state, _))| (Some(place as u64 + 1), Some(*state))).collect();
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
    for (state, count) in machine["labels"].as_object().unwrap_or_else(|| panic!("{machine}")) {
        let expected = match &**state {
            "call" => gone,
            "done" => plans.len() - gone,
            _ => 0,
        };
        assert_eq!(count, &json!(expected), "{machine}");
    }
    let errored: usize =
        fleet.system.cli(System::FABRIC, &format!("ZCARD machine:{MACHINE}:is:errored")).await;
    assert_eq!(errored, gone);
}
