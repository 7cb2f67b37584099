//! What operators see: the page, the metrics, and the edge's own state, behind one address.

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use signalbox_tests::{http::Request, load, poll, system::System, upstream::App};

#[tokio::test(flavor = "multi_thread")]
async fn the_page_lists_hosts_instances_and_their_last_minute() {
    let system = System::start("page").await;
    let app = App::start("app").await;
    system.register("i-1", &app, "app.test", "17").await;
    load::send(system.edge, 2, 40, |_| Request::get("app.test", "/")).await;
    let header = format!("Basic {}", STANDARD.encode(format!("{}:", system.token)));
    let page = Request::get(&system.admin.to_string(), "/").header("Authorization", &header);
    poll::until("the page to show the requests", || async {
        let answer = page.send(system.admin).await.unwrap();
        let text = answer.text();
        let kind = answer.header("Content-Type").unwrap_or_default().to_owned();
        let all = ["app.test", "i-1", &app.address.to_string(), "40"].iter().all(|part| text.contains(part));
        if answer.status == 200 && kind.starts_with("text/html") && all {
            Ok(())
        } else {
            Err(format!("{} {kind} {text}", answer.status))
        }
    })
    .await;
    let closed = Request::get(&system.admin.to_string(), "/").send(system.admin).await.unwrap();
    assert_eq!(closed.status, 401, "a browser asks for the token when it is told so");
    assert!(closed.header("WWW-Authenticate").is_some_and(|value| value.starts_with("Basic")));
    system.stop().await;
}

/// Checks the text format: a family is described once and before its samples, names and labels are well-formed, and
/// no series stands twice.
fn check_metrics(text: &str) -> BTreeMap<String, f64> {
    let (mut described, mut series) = (BTreeSet::new(), BTreeMap::new());
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(
                ["counter", "gauge", "histogram", "summary", "unknown", "info"].contains(&kind),
                "{line}"
            );
            assert!(described.insert(name.to_owned()), "{name} is described twice");
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        let family = name.split('{').next().unwrap();
        assert!(
            family.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':'),
            "a name: {line}"
        );
        assert!(
            name.matches('"').count() % 2 == 0 && name.contains('{') == name.ends_with('}'),
            "labels: {line}"
        );
        let base = ["_total", "_bucket", "_sum", "_count", "_created"]
            .iter()
            .find_map(|suffix| family.strip_suffix(suffix).filter(|base| described.contains(*base)))
            .unwrap_or(family);
        assert!(described.contains(base), "{family} has no type");
        assert!(series.insert(name.to_owned(), value).is_none(), "{name} stands twice");
    }
    series
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_of_all_parts_are_one_valid_text() {
    let system = System::start("metrics").await;
    let app = App::start("app").await;
    system.register("i-1", &app, "app.test", "17").await;
    load::send(system.edge, 2, 40, |_| Request::get("app.test", "/")).await;
    poll::until("the lines to be a metric", || async {
        let answer = system.edge_api("/metrics").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.header("Content-Type").is_some_and(
            |kind| kind.starts_with("text/plain") || kind.starts_with("application/openmetrics-text")
        ));
        let series = check_metrics(&answer.text());
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
    // A part that is away takes only its own metrics along.
    system.kill(System::PACEMAKER).await;
    let without = check_metrics(&system.edge_api("/metrics").await.text());
    assert!(!without.is_empty());
    system.kill(System::SIDECAR).await;
    check_metrics(&system.edge_api("/metrics").await.text());
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_edge_tells_its_own_state() {
    let system = System::edge_only("edge-state").await;
    let app = App::start("app").await;
    system.route("app.test", &app).await;
    system.settle().await;
    for _ in 0..10 {
        system.get("app.test", "/").await;
        system.get("nobody.test", "/").await;
    }
    poll::until("the status to show what is cached", || async {
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
    assert!(!snapshot.text().contains("nobody.test"), "what does not exist is not kept");
    let tag = snapshot.header("ETag").unwrap().to_owned();
    assert!(snapshot.header("X-Signalbox-Generation").is_some());
    let same = Request::get(&system.admin.to_string(), "/edge/snapshot").header("If-None-Match", &tag);
    assert_eq!(same.send(system.admin).await.unwrap().status, 304);
    system.route("other.test", &app).await;
    system.until_answered_by("other.test", &app).await;
    poll::until("the snapshot to be another", || async {
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
async fn operators_requests_are_counted_apart() {
    let system = System::start("pacemaker-key").await;
    for _ in 0..7 {
        assert_eq!(system.api("GET", "/instances", None).await.status, 200);
    }
    poll::until("seven requests under `pacemaker`", || async {
        let count: Option<u64> = system.try_cli(System::STATS, "HGET stat:pacemaker requests").await?;
        if count == Some(7) { Ok(()) } else { Err(format!("{count:?}")) }
    })
    .await;
    let shown = system.api("GET", "/stats/pacemaker", None).await;
    assert_eq!(shown.status, 200, "{}", shown.text());
    system.stop().await;
}
