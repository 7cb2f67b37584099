//! Backup, restore and upgrade, step by step as in docs/services.md, on a system that serves requests throughout.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use signalbox_stack::Part;
use signalbox_testkit::{equal, eventually};
use signalbox_tests::{
    fleet::Fleet,
    http::Request,
    load::Load,
    receiver::{self, Receiver},
    system::System,
    upstream::App,
};
use tokio::process::Command;

/// A field of `INFO persistence`.
async fn persistence(system: &System, part: &Part, field: &str) -> Result<String, String> {
    let info: String = system.try_cli(part.clone(), "INFO persistence").await?;
    let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.map(str::to_owned).ok_or_else(|| format!("no {field} in {info}"))
}

async fn until_persistence(system: &System, part: &Part, wanted: &[(&str, &str)]) {
    eventually(&format!("{wanted:?} of {part}"), || async {
        for (field, value) in wanted {
            let now = persistence(system, part, field).await?;
            if now != *value {
                return Err(format!("{field}:{now}"));
            }
        }
        Ok(())
    })
    .await;
}

/// Copies a snapshot of a running server to another folder.
pub(crate) async fn back_up(system: &System, part: &Part, to: &Path) -> PathBuf {
    let _started: String = system.cli(part.clone(), "BGSAVE").await;
    until_persistence(system, part, &[("rdb_bgsave_in_progress", "0"), ("rdb_last_bgsave_status", "ok")])
        .await;
    let copy = to.join(format!("{part}.rdb"));
    fs::copy(system.stack.layout().redis(part).join("dump.rdb"), &copy).unwrap();
    copy
}

/// Simulates a server that lost its disk.
pub(crate) async fn lose(system: &System, part: &Part) {
    system.kill(part.clone()).await;
    let folder = system.stack.layout().redis(part);
    // A replica may have neither, and a server that has saved nothing yet has no snapshot.
    let _absent = fs::remove_dir_all(folder.join("appendonlydir"));
    let _absent = fs::remove_file(folder.join("dump.rdb"));
}

/// Starts a server from a snapshot, lets it write the data to a new append-only file, and restarts it as usual.
pub(crate) async fn restore(system: &System, part: &Part, copy: &Path) {
    let folder = system.stack.layout().redis(part);
    fs::copy(copy, folder.join("dump.rdb")).unwrap();
    let mut server = Command::new("redis-server")
        .arg(folder.join("redis.conf"))
        .args(["--appendonly", "no"])
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    until_persistence(system, part, &[("loading", "0")]).await;
    let _ok: String = system.cli(part.clone(), "CONFIG SET appendonly yes").await;
    let written = [
        ("aof_enabled", "1"),
        ("aof_rewrite_in_progress", "0"),
        ("aof_rewrite_scheduled", "0"),
        ("aof_last_bgrewrite_status", "ok"),
    ];
    until_persistence(system, part, &written).await;
    kill(Pid::from_raw(server.id().unwrap().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert!(server.wait().await.unwrap().success());
    system.start_part(part.clone()).await;
}

const MACHINE: &str = "
state_machines:
  orders:
    states:
      - gate: queued
        exit_condition: metadata.paid
        triggers: [{metadata: paid}]
        next: shipped
      - gate: shipped
";

async fn counted(system: &System) -> Result<u64, Value> {
    let stats = system.api("GET", "/stats/version_type/7", None).await.json();
    stats["requests"].as_u64().ok_or(stats)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_taken_under_traffic_restores_everything() {
    let system = System::with("backup", |builder| builder.pacemaker("bus", receiver::allowed())).await;
    let (app, receiver) = (App::start("app").await, Receiver::start().await);
    system.register("i-1", &app, "app.test", "7").await;
    system.apply("orders", MACHINE).await;
    let label = "/state-machines/orders/labels/88625";
    let made = system.api("POST", label, Some(json!({"metadata": {"paid": false}}))).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let subscription = json!({"topics": ["orders"], "callback": receiver.url(), "uuid": "u", "timeout": 0});
    let made = system.api("POST", "/subscription", Some(subscription)).await;
    assert_eq!(made.status, 204, "{}", made.text());
    let deploy = system.token("deploy", &["routes", "read"]).await;

    let load = Load::start(system.edge, 2, |_| Request::get("app.test", "/"));
    eventually("some requests to be counted", || async {
        counted(&system).await.and_then(|count| if count > 50 { Ok(()) } else { Err(json!(count)) })
    })
    .await;
    let copies = tempfile::tempdir().unwrap();
    let mut taken = Vec::new();
    for part in [System::FABRIC, System::STATS] {
        let copy = back_up(&system, &part, copies.path()).await;
        taken.push((part, copy));
    }
    // After the backup: an instance, which is still in the route table, and requests, which are still in the log.
    let late = App::start("late").await;
    system.register("i-2", &late, "late.test", "8").await;
    let account = load.stop().await;
    assert_eq!(account.failed(), 0, "{:?}", account.codes);
    let asked: u64 = account.codes.values().sum();

    system.kill(System::PACEMAKER).await;
    for (part, _) in &taken {
        lose(&system, part).await;
    }
    assert_eq!(system.get("app.test", "/").await.text(), "app", "routers need neither");
    for (part, copy) in &taken {
        restore(&system, part, copy).await;
    }
    system.start_part(System::PACEMAKER).await;

    for (id, host, app) in [("i-1", "app.test", "app"), ("i-2", "late.test", "late")] {
        let target = format!("/instances/{id}");
        eventually("the instance to be known", || async {
            let answer = system.api("GET", &target, None).await;
            if answer.status == 200 { Ok(()) } else { Err(answer) }
        })
        .await;
        assert_eq!(system.get(host, "/").await.text(), app);
    }
    let state = system.api("GET", label, None).await.json();
    assert_eq!(state["state"], "queued", "{state}");
    let known = Request::get(&system.admin.to_string(), "/instances").token(&deploy);
    assert_eq!(known.send(system.admin).await.unwrap().status, 200, "a token that was made before the copy");
    let order = json!({"type": "update", "url": "https://shop.example/1"});
    eventually("the bus to accept events", || async {
        let answer = system.api("POST", "/topics/orders", Some(order.clone())).await;
        if answer.status == 200 { Ok(()) } else { Err(answer) }
    })
    .await;
    receiver.until_events(1).await;
    // Counters and log position were restored together, so requests after the backup are counted again from the log.
    eventually("every request to be counted once", async || {
        equal(counted(&system).await.unwrap_or_default(), asked + 2)
    })
    .await;
    eventually("all data to be consistent", || async {
        let found = system.api("GET", "/check", None).await;
        if found.status == 200 && found.json()["findings"] == json!([]) { Ok(()) } else { Err(found) }
    })
    .await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pacemakers_are_replaced_one_after_another_while_events_flow_and_none_is_lost() {
    let fleet = Arc::new(Fleet::start("upgrade", 2, &[], |builder| builder).await);
    let (shop, billing) = (fleet.client("shop").await, fleet.client("billing").await);
    let receiver = Receiver::start().await;
    let subscription = json!({"topics": ["orders"], "callback": receiver.url(), "uuid": "u", "timeout": 0});
    fleet.subscribe(&billing, &subscription).await;
    let done = Arc::new(AtomicBool::new(false));
    let publisher = tokio::spawn(publish(Arc::clone(&fleet), shop, Arc::clone(&done)));
    for number in 0..fleet.len() {
        let before = receiver.events().len();
        // A service manager stops the process and starts another version in its place.
        fleet.pacemaker(number).restart().await.expect("a pacemaker that ends and starts");
        eventually("events to flow on", || async {
            let now = receiver.events().len();
            if now > before + 50 { Ok(()) } else { Err(now) }
        })
        .await;
    }
    done.store(true, Ordering::SeqCst);
    let accepted = publisher.await.unwrap();
    eventually("every accepted event to arrive", || async {
        let arrived: BTreeSet<u64> =
            receiver.events().iter().filter_map(|event| event["id"].as_u64()).collect();
        let missing: Vec<_> = accepted.difference(&arrived).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("missing: {missing:?}")) }
    })
    .await;
    // Each object in order, whichever pacemaker delivered. An interrupted batch is delivered again as a whole.
    let mut first = BTreeSet::new();
    let firsts: Vec<Value> =
        receiver.events().into_iter().filter(|event| first.insert(event["id"].as_u64())).collect();
    for object in 0..OBJECTS {
        let url = format!("https://shop.example/{object}");
        let ids: Vec<_> =
            firsts.iter().filter(|event| event["url"] == url).map(|event| event["id"].as_u64()).collect();
        assert!(ids.is_sorted(), "{url}: {ids:?}");
    }
    let fleet = Arc::into_inner(fleet).expect("all publishers have finished");
    fleet.system.stop().await;
}

const OBJECTS: u64 = 5;

/// Publishes until it is stopped, each event to any pacemaker that accepts it. Returns the ids of all accepted events.
async fn publish(fleet: Arc<Fleet>, token: String, done: Arc<AtomicBool>) -> BTreeSet<u64> {
    let mut accepted = BTreeSet::new();
    for number in 0_u64.. {
        if done.load(Ordering::SeqCst) {
            break;
        }
        let event = json!({"type": "update", "url": format!("https://shop.example/{}", number % OBJECTS)});
        let key = format!("order-{number}");
        let id = eventually("a pacemaker to accept an event", || async {
            let mut said = Vec::new();
            for pacemaker in 0..fleet.len() {
                let to = fleet.address(pacemaker);
                let request = Request::new("POST", &to.to_string(), "/topics/orders").token(&token);
                let request = request.header("Idempotency-Key", &key).json(&event);
                match request.send(to).await {
                    Ok(answer) if answer.status == 200 => {
                        return Ok(answer.header("X-Signalbox-Event-Id").unwrap().parse().unwrap());
                    }
                    other => said.push(other.map_err(|error| error.to_string())),
                }
            }
            Err(said)
        })
        .await;
        accepted.insert(id);
    }
    accepted
}
