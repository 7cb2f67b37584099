//! Every complete log line is counted exactly once, whenever parts die.
//!
//! The counters are compared with the client, which knows how many requests it sent, the status of each, and the bytes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use nix::sys::signal::Signal;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::Value;
use signalbox_stack::Ports;
use signalbox_testkit::{
    eventually,
    wire::{Fault, Wire},
};
use signalbox_tests::{
    http::Request,
    load::{self, Account, Load},
    system::System,
    upstream::App,
};
use tokio::time::Instant;

/// Rounds of the random test within the suite. `make soak` runs for `SOAK_SECONDS`; `SIGNALBOX_SEED` repeats a
/// sequence.
const ROUNDS: u64 = 22;
const SOAK_SECONDS: u64 = 600;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

/// The counters of one version type as the client's account requires them.
fn expected(account: &Account) -> BTreeMap<String, u64> {
    let mut counters =
        BTreeMap::from([("requests".to_owned(), account.answered()), ("bytes".into(), account.bytes)]);
    for (code, count) in &account.codes {
        *counters.entry(code.to_string()).or_default() += count;
        *counters.entry(format!("{}xx", code / 100)).or_default() += count;
    }
    counters
}

/// The content of `stat:<id>` without the times, and what the edge answered itself, which cannot be predicted.
async fn counted(system: &System, id: &str) -> Result<BTreeMap<String, u64>, String> {
    let mut counters: BTreeMap<String, u64> =
        system.try_cli(System::STATS, &format!("HGETALL stat:{id}")).await?;
    counters.retain(|name, count| {
        !matches!(&**name, "time" | "timecount" | "nginxtime" | "edge_5xx") && *count > 0
    });
    Ok(counters)
}

async fn expect_counted(system: &System, id: &str, account: &Account) {
    assert_eq!(account.broken, Vec::<String>::new(), "the client lost count itself");
    let wanted = expected(account);
    eventually(&format!("stat:{id} to be {wanted:?}"), || async {
        let counters = counted(system, id).await?;
        if counters == wanted { Ok(()) } else { Err(format!("{counters:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_known_host_count_for_its_version_type_even_without_an_instance() {
    let system = System::start("counted-503").await;
    let app = App::start("app").await;
    system.register("gone", &app, "gone.test", "gone7").await;
    let removed = system.api("DELETE", "/instances/gone?wait=20s", None).await;
    assert_eq!(removed.status, 204, "{}", removed.text());
    for (host, status) in [("gone.test", 503), ("unknown.test", 404)] {
        assert_eq!(system.get(host, "/").await.status, status, "{host}");
    }
    for (id, code) in [("gone7", "503"), ("null", "404")] {
        eventually(&format!("a {code} under {id}"), || async {
            let counters = counted(&system, id).await?;
            let is_counted = counters.get("requests") == Some(&1) && counters.get(code) == Some(&1);
            if is_counted { Ok(()) } else { Err(format!("{counters:?}")) }
        })
        .await;
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_bytes_and_codes_are_those_of_the_client() {
    let system = System::without_pacemaker("counted").await;
    let app = App::start("app").await;
    system.route_counted("app.test", &app, "17").await;
    let paths = [
        "/",
        "/bytes/100",
        "/bytes/100000",
        "/status/201",
        "/status/204",
        "/status/302",
        "/status/404",
        "/status/500",
    ];
    let account =
        load::send(system.edge, 4, 400, move |n| Request::get("app.test", paths[n as usize % paths.len()]))
            .await;
    assert_eq!(account.answered(), 400);
    expect_counted(&system, "17", &account).await;
    let unrouted = load::send(system.edge, 2, 30, |_| Request::get("nobody.test", "/")).await;
    expect_counted(&system, "null", &unrouted).await;

    // The same numbers by way of the API.
    let totals = system.api("GET", "/stats/version_type/17", None).await;
    assert_eq!(totals.status, 200, "{}", totals.text());
    let totals = totals.json();
    assert_eq!(find_number(&totals, "requests"), Some(400), "{totals}");
    assert_eq!(find_number(&totals, "bytes"), Some(account.bytes), "{totals}");
    assert_eq!(find_number(&totals, "404"), Some(50), "{totals}");
    // An application answered each, so each has a time.
    let timecount: u64 = system.cli(System::STATS, "HGET stat:17 timecount").await;
    assert_eq!(timecount, 400);
    let unrouted_time: Option<u64> = system.cli(System::STATS, "HGET stat:null timecount").await;
    assert_eq!(unrouted_time.unwrap_or(0), 0, "an answer of the edge's own has no upstream time");
    let latency = system.api("GET", "/stats/version_type/17/latency", None).await.json();
    let in_buckets: u64 =
        latency["buckets"].as_array().unwrap().iter().filter_map(|bucket| bucket["count"].as_u64()).sum();
    assert_eq!((&latency["count"], in_buckets), (&400.into(), 400), "{latency}");
    let keys: Vec<String> =
        system.cli(System::STATS, &format!("KEYS instance_latency:{}:*", app.address)).await;
    let mut answers = 0;
    for key in &keys {
        answers += system.cli::<Vec<u64>>(System::STATS, &format!("HVALS {key}")).await.iter().sum::<u64>();
    }
    assert_eq!(answers, 400, "{keys:?}");

    // Over all seconds of the hour, the history adds up to the total.
    let keys: Vec<String> = system.cli(System::STATS, "KEYS history:17:*:requests").await;
    let mut sum = 0;
    for key in &keys {
        let hour: i64 = key.split(':').nth(2).unwrap().parse().unwrap();
        assert_eq!(hour % 3600, 0, "{key}");
        let seconds: BTreeMap<i64, u64> = system.cli(System::STATS, &format!("HGETALL {key}")).await;
        assert!(seconds.keys().all(|second| (hour..hour + 3600).contains(second)), "{key}: {seconds:?}");
        let lifetime: i64 = system.cli(System::STATS, &format!("TTL {key}")).await;
        assert!(lifetime > 0, "{key} has no expiry");
        sum += seconds.values().sum::<u64>();
    }
    assert_eq!(sum, 400, "{keys:?}");
    system.stop().await;
}

/// Finds the first number under this name, however deep the answer puts it.
fn find_number(value: &Value, name: &str) -> Option<u64> {
    match value {
        Value::Object(members) => members
            .get(name)
            .and_then(Value::as_u64)
            .or_else(|| members.values().find_map(|member| find_number(member, name))),
        _ => None,
    }
}

/// Disturbances between two requests.
#[derive(Debug, Clone, Copy)]
enum Disturbance {
    SidecarKilled,
    SidecarAway,
    StatsKilled,
    StatsAway,
    ScriptsFlushed,
    RepliesLost,
    ConnectionCut,
    CommitLate,
    LogReopened,
    LogRotated,
    LogRotatedTwiceWhileTheSidecarIsAway,
}

const DISTURBANCES: [Disturbance; 11] = [
    Disturbance::SidecarKilled,
    Disturbance::SidecarAway,
    Disturbance::StatsKilled,
    Disturbance::StatsAway,
    Disturbance::ScriptsFlushed,
    Disturbance::RepliesLost,
    Disturbance::ConnectionCut,
    Disturbance::CommitLate,
    Disturbance::LogReopened,
    Disturbance::LogRotated,
    Disturbance::LogRotatedTwiceWhileTheSidecarIsAway,
];

async fn inject(system: &System, wire: &Wire, load: &Load, disturbance: Disturbance, pause: u64) {
    match disturbance {
        // The sidecar's commits are applied or not, and their replies are lost. Finally the connection breaks.
        Disturbance::RepliesLost => {
            wire.set(Fault::LoseReplies);
            load.pass(5 * pause).await;
            wire.set(Fault::Cut);
            load.pass(1).await;
            wire.set(Fault::None);
        }
        // A commit that sits in a socket for a while, and then arrives.
        Disturbance::CommitLate => {
            wire.set(Fault::Silence);
            load.pass(5 * pause).await;
            wire.set(Fault::None);
        }
        Disturbance::ConnectionCut => {
            wire.set(Fault::Cut);
            load.pass(pause).await;
            wire.set(Fault::None);
        }
        Disturbance::SidecarKilled => {
            system.kill(System::SIDECAR).await;
            system.start_part_only(System::SIDECAR).await;
        }
        Disturbance::SidecarAway => {
            system.kill(System::SIDECAR).await;
            load.pass(pause).await;
            system.start_part_only(System::SIDECAR).await;
        }
        Disturbance::StatsKilled => {
            system.kill(System::STATS).await;
            system.start_part(System::STATS).await;
        }
        Disturbance::StatsAway => {
            system.kill(System::STATS).await;
            load.pass(pause).await;
            system.start_part(System::STATS).await;
        }
        Disturbance::ScriptsFlushed => {
            // Redis may be on its way back; then there is nothing to flush.
            let _ = system.try_cli::<()>(System::STATS, "SCRIPT FLUSH").await;
        }
        // The same file again: the log has not moved.
        Disturbance::LogReopened => system.signal(System::NGINX, Signal::SIGUSR1),
        Disturbance::LogRotated => rotate(system, load).await,
        Disturbance::LogRotatedTwiceWhileTheSidecarIsAway => {
            system.kill(System::SIDECAR).await;
            rotate(system, load).await;
            load.pass(pause).await;
            rotate(system, load).await;
            system.start_part_only(System::SIDECAR).await;
        }
    }
}

/// Renames the log, as logrotate would, and has nginx open a new one.
async fn rotate(system: &System, load: &Load) {
    let log = system.access_log();
    let taken = (1..).map(|n| system.rotated_log(n)).find(|path| !path.exists()).unwrap();
    std::fs::rename(&log, taken).unwrap();
    system.signal(System::NGINX, Signal::SIGUSR1);
    eventually("nginx to open a new log", || async {
        load.pass(1).await;
        if log.exists() { Ok(()) } else { Err("no file") }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_are_exact_whenever_parts_die() {
    let mut rounds = 0..ROUNDS;
    run_with_faults(move || rounds.next().is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs for a configured duration; make soak"]
async fn soak_counters_are_exact_whenever_parts_die() {
    let end = Instant::now() + Duration::from_secs(from_environment("SOAK_SECONDS").unwrap_or(SOAK_SECONDS));
    run_with_faults(move || Instant::now() < end).await;
}

/// Disturbs the system between requests while `go_on` returns true, and compares the counters with the client's.
async fn run_with_faults(mut go_on: impl FnMut() -> bool) {
    let seed = from_environment("SIGNALBOX_SEED").unwrap_or_else(|| rand::rng().random());
    println!("SIGNALBOX_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);

    let ports = Ports::free().unwrap();
    let wire = Wire::to(SocketAddr::from(([127, 0, 0, 1], ports.stats))).await;
    let stats =
        toml::Table::from_iter([("stats".to_owned(), format!("redis://sidecar@{}/", wire.address).into())]);
    let system =
        System::with("exact", |builder| builder.without_pacemaker().ports(ports).sidecar("redis", stats))
            .await;
    let app = App::start("app").await;
    for (host, id) in [("one.test", "1"), ("two.test", "2")] {
        system.route_counted(host, &app, id).await;
    }
    let sizes: [u64; 4] = std::array::from_fn(|_| random.random_range(0..50_000));
    let paths = sizes
        .map(|size| format!("/bytes/{size}"))
        .into_iter()
        .chain(["/status/404".into(), "/status/503".into()]);
    let paths: Vec<String> = paths.collect();
    let (one, two) = (paths.clone(), paths);
    let loads = [
        Load::start(system.edge, 2, move |n| Request::new("POST", "one.test", &one[n as usize % one.len()])),
        Load::start(system.edge, 2, move |n| Request::get("two.test", &two[n as usize % two.len()])),
    ];
    let mut disturbances = Vec::new();
    let mut round = 0;
    while go_on() {
        round += 1;
        // Every disturbance once per cycle, in random order.
        if disturbances.is_empty() {
            disturbances = DISTURBANCES.to_vec();
            disturbances.shuffle(&mut random);
        }
        let disturbance = disturbances.pop().unwrap();
        let pause = random.random_range(1..200);
        println!("{round}: {disturbance:?}, then {pause} requests");
        inject(&system, &wire, &loads[0], disturbance, pause).await;
        loads[0].pass(pause).await;
    }
    let [one, two] = loads;
    let (one, two) = (one.stop().await, two.stop().await);
    // Independent of the counters: each request has its line, and no line is broken.
    let lines = system.log_lines_when((one.answered() + two.answered()) as usize).await;
    for (id, account) in [("1", &one), ("2", &two)] {
        let own: Vec<_> = lines.iter().filter(|line| line["key"] == id).collect();
        assert_eq!(own.len() as u64, account.answered(), "lines of {id}");
        assert_eq!(
            own.iter().map(|line| line["bytes"].as_u64().unwrap()).sum::<u64>(),
            account.bytes,
            "bytes of {id}"
        );
        expect_counted(&system, id, account).await;
    }
    // It was exact before everybody had a chance to correct it, and it stays so.
    system.restart(System::SIDECAR).await;
    let more = load::send(system.edge, 1, 10, |_| Request::get("one.test", "/")).await;
    let mut total = one;
    total.add(more);
    expect_counted(&system, "1", &total).await;
    expect_counted(&system, "2", &two).await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_loses_lines_and_the_loss_is_counted() {
    let system = System::with("lost-lines", |builder| builder.without_pacemaker().workers(1)).await;
    let app = App::start("app").await;
    system.route_counted("app.test", &app, "17").await;
    let first = load::send(system.edge, 2, 100, |_| Request::get("app.test", "/")).await;
    expect_counted(&system, "17", &first).await;

    // The sidecar needs a poll or two of the quiet edge to detect what is lost later. It reports after each poll.
    until_reported(&system, 4).await;

    // Killed within the log's flush time, a worker holds lines that only it knows.
    let mut sent = 100;
    let lost = loop {
        let account = load::send(system.edge, 1, 20, |_| Request::get("app.test", "/")).await;
        assert_eq!(account.codes.get(&200), Some(&20), "{:?}", account.broken);
        for worker in system.workers() {
            system.signal_pid(worker, Signal::SIGKILL);
        }
        sent += 20;
        system.until_answered_by("app.test", &app).await;
        sent += 1;
        let lines = system.log_lines_after_a_last_request().await;
        let of_app = lines.iter().filter(|line| line["host"] == "app.test").count() as u64;
        // The buffer may have been flushed just before. Then nothing was lost, and it takes another try.
        if of_app < sent {
            break sent - of_app;
        }
    };
    // Asked at the sidecar itself: a look through the edge would be a request as well.
    let counted = eventually("the lost lines to be counted", || async {
        let count = sidecar_metric(&system, "signalbox_sidecar_lost_lines_total").await;
        if count >= lost as f64 { Ok(count) } else { Err(format!("{count} of {lost}")) }
    })
    .await;
    assert_eq!(counted, lost as f64, "counted as lost, and missing in the log");
    // Requests before and after the loss are counted.
    let requests: u64 = system.cli(System::STATS, "HGET stat:17 requests").await;
    assert_eq!(requests, sent - lost);
    system.allow("exited on signal 9");
    system.stop().await;
}

/// Waits for `count` reports of the sidecar, which it writes once per second.
async fn until_reported(system: &System, count: usize) {
    let command = format!("HGET router:{} at_ms", system.node());
    let reports = std::sync::Mutex::new(BTreeSet::new());
    eventually("the sidecar to report a few times", || async {
        let report = system.try_cli::<Option<String>>(System::STATS, &command).await?;
        let mut reports = reports.lock().unwrap();
        reports.insert(report);
        // The first is of before.
        if reports.len() > count { Ok(()) } else { Err(format!("{} of {count}", reports.len())) }
    })
    .await;
}

async fn sidecar_metric(system: &System, name: &str) -> f64 {
    let text = Request::get("localhost", "/metrics").send(system.sidecar).await.unwrap().text();
    let line =
        text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn polling_the_edge_loses_no_lines() {
    let system = System::without_pacemaker("looking").await;
    let app = App::start("app").await;
    system.route_counted("app.test", &app, "17").await;
    until_reported(&system, 3).await;
    let mut account = Account::default();
    for _ in 0..3 {
        account.add(load::send(system.edge, 2, 50, |_| Request::get("app.test", "/")).await);
        for target in
            ["/edge/status", "/edge/ack", "/edge/snapshot", "/edge/connections", "/metrics", "/edge/nonsense"]
        {
            for _ in 0..10 {
                system.edge_api(target).await;
            }
        }
        for _ in 0..10 {
            system.api("GET", "/stats/version_type/17", None).await;
        }
        expect_counted(&system, "17", &account).await;
    }
    // A loss shows about two seconds after it happened; that many reports on, there is none.
    until_reported(&system, 4).await;
    assert_eq!(sidecar_metric(&system, "signalbox_sidecar_lost_lines_total").await, 0.0);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_line_stops_nothing() {
    let system = System::without_pacemaker("bad-lines").await;
    let app = App::start("app").await;
    system.route_counted("app.test", &app, "17").await;
    let mut account = load::send(system.edge, 1, 10, |_| Request::get("app.test", "/")).await;
    expect_counted(&system, "17", &account).await;
    // Another program writes to the log: garbage, half of a JSON document, wrong types, a number too large, an empty
    // line, and a byte that is not UTF-8.
    let garbage: [&[u8]; 7] = [
        b"garbage\n",
        b"{\"key\":\"17\",\"bytes\":\n",
        b"{\"key\":17,\"bytes\":\"many\",\"code\":200}\n",
        b"{\"key\":\"17\",\"bytes\":99999999999999999999999,\"code\":200}\n",
        b"\n",
        b"\xff\xfe\n",
        b"[]\n",
    ];
    for line in garbage {
        system.append_to_access_log(line);
        account.add(load::send(system.edge, 1, 5, |_| Request::get("app.test", "/")).await);
    }
    expect_counted(&system, "17", &account).await;
    // The metric follows the commit of the counters.
    eventually("bad lines to be counted", async || {
        let bad = sidecar_metric(&system, "signalbox_sidecar_bad_lines_total").await;
        if bad >= 6.0 { Ok(()) } else { Err(bad) }
    })
    .await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_in_the_log_cannot_break_a_line() {
    let system = System::without_pacemaker("hostile").await;
    let app = App::start("app").await;
    system.route_counted("*.app.test", &app, "17").await;
    let paths = ["/\"}", "/%22%7D%0A%7B%22key%22:%221%22%7D", "/\\", "/%01%ff", "/\u{1f600}", "/%C3%28"];
    let mut account = Account::default();
    for path in paths {
        let request = Request::get("a.app.test", path)
            .header("User-Agent", "\"\\\u{7f}")
            .header("Referer", "\",\"key\":\"1");
        account.enter(&request, request.send(system.edge).await);
    }
    expect_counted(&system, "17", &account).await;
    let forged: Option<u64> = system.cli(System::STATS, "HGET stat:1 requests").await;
    assert_eq!(forged, None);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sidecar_rotates_a_log_that_grew() {
    let system =
        System::with("self-rotation", |builder| builder.without_pacemaker().sidecar("rotate_bytes", 65_536))
            .await;
    let app = App::start("app").await;
    system.route_counted("app.test", &app, "17").await;
    let mut account = Account::default();
    for _ in 0..4 {
        account.add(load::send(system.edge, 4, 400, |_| Request::get("app.test", "/")).await);
        expect_counted(&system, "17", &account).await;
    }
    eventually("a rotated log next to the new one", || async {
        let files = system.log_files();
        if files.len() > 1 { Ok(()) } else { Err(files) }
    })
    .await;
    expect_counted(&system, "17", &account).await;
    system.stop().await;
}
