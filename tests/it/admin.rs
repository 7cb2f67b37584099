//! The interfaces for operators: dashboard, metrics and edge state, all behind one address.

use std::collections::BTreeSet;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use signalbox_client::Client;

use crate::bus_api::Bus;
use signalbox_testkit::{equal, eventually};
use signalbox_tests::{
    http::{Connection, Request, Response},
    load, openmetrics,
    receiver::Receiver,
    system::System,
    tls::Authority,
    upstream::App,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_overview_lists_hosts_instances_and_their_last_minute() {
    let system = System::start("page").await;
    let app = App::start("app").await;
    system.register("i-1", &app, "app.test", "17").await;
    load::send(system.edge, 2, 40, |_| Request::get("app.test", "/")).await;
    let header = format!("Basic {}", STANDARD.encode(format!("{}:", system.token)));
    let address = app.address.to_string();
    // Forty requests in a minute are 0.7 a second.
    for (path, shown) in [("/", ["app.test", "0.7"]), ("/dashboard/host?name=app.test", ["i-1", &address])] {
        let page = Request::get(&system.admin.to_string(), path).header("Authorization", &header);
        eventually("the page to show the requests", || async {
            let answer = page.send(system.admin).await.unwrap();
            let text = answer.text();
            let kind = answer.header("Content-Type").unwrap_or_default().to_owned();
            let all = shown.iter().all(|part| text.contains(part));
            if answer.status == 200 && kind.starts_with("text/html") && all {
                Ok(())
            } else {
                Err(format!("{path}: {} {kind} {text}", answer.status))
            }
        })
        .await;
    }
    let closed = Request::get(&system.admin.to_string(), "/").send(system.admin).await.unwrap();
    assert_eq!(closed.status, 401, "a program is asked for a token");
    assert!(closed.header("WWW-Authenticate").is_some_and(|value| value.starts_with("Basic")));
    system.stop().await;
}

fn page(answer: &Response) -> openmetrics::Series {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("Content-Type"), Some(openmetrics::CONTENT_TYPE));
    openmetrics::read(&answer.text()).unwrap_or_else(|error| panic!("{error}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_of_all_parts_are_one_openmetrics_page() {
    let system = System::start("metrics").await;
    let app = App::start("app").await;
    system.register("i-1", &app, "app.test", "17").await;
    load::send(system.edge, 2, 40, |_| Request::get("app.test", "/")).await;
    eventually("the lines to be a metric", || async {
        let series = page(&system.edge_api("/metrics").await);
        let ours = series.keys().all(|name| name.starts_with("signalbox_") || name.starts_with("process_"));
        assert!(ours, "{:?}", series.keys());
        let parts = ["signalbox_pacemaker", "signalbox_routes", "signalbox_sidecar", "signalbox_edge"];
        let seen: Vec<_> =
            parts.into_iter().filter(|part| series.keys().any(|name| name.starts_with(part))).collect();
        // Forty requests and the operator's PUT.
        let lines = series
            .iter()
            .find(|(name, _)| name.contains("lines") && !name.contains("bad") && !name.contains("lost"));
        match lines {
            Some((_, count)) if *count >= 41.0 => Ok(()),
            _ => Err(format!("{lines:?}; parts seen: {seen:?}; {:#?}", series.keys())),
        }
    })
    .await;
    for daemon in [system.pacemaker, system.sidecar] {
        let own = Request::get(&daemon.to_string(), "/metrics").send(daemon).await.unwrap();
        assert!(!page(&own).is_empty());
    }
    // A part that is away takes only its own metrics along.
    system.kill(System::PACEMAKER).await;
    let without = page(&system.edge_api("/metrics").await);
    assert_eq!(without["signalbox_edge_part_up{part=\"pacemaker\"}"], 0.0);
    assert!(without.keys().any(|name| name.starts_with("signalbox_sidecar")));
    system.kill(System::SIDECAR).await;
    let alone = page(&system.edge_api("/metrics").await);
    assert!(alone.contains_key("signalbox_edge_connections{state=\"writing\"}"), "{alone:?}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_edge_reports_its_own_state() {
    let system = System::edge_only("edge-state").await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;
    for _ in 0..10 {
        system.get("app.test", "/").await;
        system.get("nobody.test", "/").await;
    }
    eventually("the status to show what is cached", || async {
        let status = system.edge_api("/edge/status").await.json();
        let cached = status["hosts"].as_u64() >= Some(1) && status["negative"].as_u64() >= Some(1);
        let well = status["connected"] == true && status["stale"] == false && status["alarm"].is_null();
        let workers = status["workers"].as_array().is_some_and(|workers| workers.len() == 2);
        if cached && well && workers { Ok(()) } else { Err(status) }
    })
    .await;
    let snapshot = system.edge_api("/edge/snapshot").await;
    assert_eq!(snapshot.status, 200);
    assert!(snapshot.text().contains("app.test"), "{}", snapshot.text());
    assert!(!snapshot.text().contains("nobody.test"), "unknown host names are not stored");
    let tag = snapshot.header("ETag").unwrap().to_owned();
    assert!(snapshot.header("X-Signalbox-Generation").is_some());
    let same = Request::get(&system.admin.to_string(), "/edge/snapshot").header("If-None-Match", &tag);
    assert_eq!(same.send(system.admin).await.unwrap().status, 304);
    system.route("other.test", &app).await;
    system.until_answered_by("other.test", &app).await;
    eventually("the snapshot to be another", || async {
        let answer = same.send(system.admin).await.unwrap();
        if answer.status == 200 && answer.text().contains("other.test") { Ok(()) } else { Err(answer.status) }
    })
    .await;
    let connections = system.edge_api("/edge/connections").await;
    assert!(connections.text().starts_with("Active connections:"), "{}", connections.text());
    for target in ["/edge/nonsense", "/edge/"] {
        assert_eq!(system.edge_api(target).await.status, 404, "{target}");
    }
    // Of all this nothing is logged: looking is not traffic.
    let lines = system.log_lines_when(21).await;
    assert!(lines.iter().all(|line| !line["uri"].as_str().unwrap().starts_with("/edge")), "{lines:?}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_operators_are_counted_separately() {
    let system = System::start("pacemaker-key").await;
    for _ in 0..7 {
        assert_eq!(system.api("GET", "/instances", None).await.status, 200);
    }
    eventually("seven requests under `pacemaker`", || async {
        let count: Option<u64> = system.try_cli(System::STATS, "HGET stat:pacemaker requests").await?;
        if count == Some(7) { Ok(()) } else { Err(format!("{count:?}")) }
    })
    .await;
    let shown = system.api("GET", "/stats/pacemaker", None).await;
    assert_eq!(shown.status, 200, "{}", shown.text());
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_flight_are_shown_while_an_instance_drains() {
    let system = System::start("in-flight").await;
    let (counted, plain) = (App::start("counted").await, App::start("plain").await);
    system.register("i-1", &counted, "app.test", "17").await;
    system.register("i-2", &plain, "plain.test", "17").await;
    let policy = json!({"balance": {"algorithm": "p2c"}});
    let ruled = system.api("PUT", "/hosts/app.test?wait=20s", Some(policy)).await;
    assert_eq!(ruled.status, 200, "{}", ruled.text());
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut connection = Connection::open(system.edge).await.unwrap();
        connection.write(&Request::get("app.test", "/hold").to_bytes()).await.unwrap();
        held.push(connection);
    }
    eventually("requests at the instance", async || equal(counted.running(), 3)).await;
    let shown = async || system.api("GET", "/instances/i-1", None).await.json()["in_flight"].as_u64();
    eventually("in_flight", async || equal(shown().await, Some(3))).await;
    let listed = system.api("GET", "/instances", None).await.json();
    assert_eq!(listed["instances"][0]["in_flight"], 3, "{listed}");
    assert!(
        listed["instances"][1].get("in_flight").is_none(),
        "requests in flight are not counted for a plain host: {listed}"
    );
    let page = system.api("GET", "/dashboard/host?name=app.test", None).await.text();
    assert!(page.contains(r#"<td class="number">3</td>"#), "{page}");

    let drain = json!({"deadline_seconds": 600});
    let drained = system.api("POST", "/instances/i-1/drain?wait=20s", Some(drain)).await;
    assert_eq!(drained.status, 200, "{}", drained.text());
    held.pop();
    eventually("in_flight of what drains", async || equal(shown().await, Some(2))).await;
    counted.release();
    eventually("in_flight of what has drained", async || equal(shown().await, Some(0))).await;
    drop(held);
    system.stop().await;
}

/// Names of metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
    words.filter(|word| word.starts_with("signalbox_")).map(str::to_owned).collect()
}

/// A machine that increments every machine metric. Nothing listens at the address it calls.
const MACHINE: &str = r#"
state_machines:
  m:
    feeds: [{name: nobody, url: "http://127.0.0.1:1/"}]
    inputs: [{topic: orders, label: url, create: true}]
    states:
      - gate: waits
        exit_condition: metadata.go or feeds.nobody.answer
        triggers: [{event: entry}, {interval: 1h}]
        next: calls
      - action: calls
        webhook: http://127.0.0.1:1/
"#;

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_and_the_alerts_of_the_documentation_name_metrics_that_exist() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/grafana");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let (dashboard, alerts) = (read("signalbox.json"), read("alerts.yaml"));
    serde_json::from_str::<serde_json::Value>(&dashboard).expect("the dashboard is JSON");
    let named = &metrics_in(&dashboard) | &metrics_in(&alerts);
    assert!(named.len() > 30, "too few metric names found: {named:?}");
    let bus = Bus::start("grafana").await;
    let system = &bus.system;
    // A family without a member is not on the page: something of everything has to happen.
    let (app, receiver) = (App::start("app").await, Receiver::start().await);
    system.register("i-1", &app, "app.test", "17").await;
    let issued = Authority::new("test authority").issue("app.test", "app");
    let certificate = json!({"chain": issued.chain, "key": issued.key});
    let put = system.api("PUT", "/certificates/app.test", Some(certificate)).await;
    assert_eq!(put.status, 201, "{}", put.text());
    bus.subscribe(&bus.client("reader").await, &["orders"], &receiver.url()).await;
    bus.publish(&system.token, "orders", 1).await;
    receiver.until_events(1).await;
    let (url, plain) = (format!("http://{}", system.admin), &system.token);
    let client = Client::builder(url).token(plain).build().unwrap();
    let path = "/state-machines/m";
    let yaml = MACHINE.as_bytes().to_vec();
    let plan: Value =
        client.send_bytes("POST", &format!("{path}/plan"), "application/yaml", yaml).await.unwrap();
    let body = json!({"plan": plan["plan"]});
    client.send::<Value>("POST", &format!("{path}/apply"), &body).await.unwrap();
    // The first label queries the feed, the second reaches the action. The third is created by the
    // event, which is published repeatedly until the machine receives it.
    for (label, metadata) in [("asks", json!({})), ("acts", json!({"go": true}))] {
        let target = format!("/state-machines/m/labels/{label}");
        let made = system.api("POST", &target, Some(json!({"metadata": metadata}))).await;
        assert_eq!(made.status, 201, "{}", made.text());
    }
    eventually("every metric of the documentation to be on the page", || async {
        bus.publish(&system.token, "orders", 1).await;
        let page = system.edge_api("/metrics").await.text();
        // A family is described before it has its first sample.
        let families: BTreeSet<&str> =
            page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let exists = |name: &str| {
            let ends = ["", "_total", "_bucket", "_sum", "_count"];
            ends.iter().any(|end| name.strip_suffix(end).is_some_and(|name| families.contains(name)))
        };
        let missing: Vec<&String> = named.iter().filter(|name| !exists(name)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) }
    })
    .await;
    // The reference names every family. Counters of the fabric are described there by their prefix.
    let reference = std::fs::read_to_string(folder.join("../metrics.md")).unwrap();
    let listed: BTreeSet<&str> = reference
        .split('`')
        .skip(1)
        .step_by(2)
        .map(|name| name.split('{').next().unwrap_or_default())
        .collect();
    let page = system.edge_api("/metrics").await.text();
    let described: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '))
        .filter(|(name, help)| {
            let of_the_fabric = help.starts_with("The fabric's telemetry counter");
            !of_the_fabric && !name.starts_with("signalbox_sequencer_events_") && !listed.contains(name)
        })
        .collect();
    assert!(described.is_empty(), "docs/metrics.md does not list {described:?}");
    bus.system.stop().await;
}
