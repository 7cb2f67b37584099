//! The dashboard in a real browser. `tests/browser/` has the steps and the expectations for each page.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde_json::json;
use signalbox_testkit::{eventually, eventually_within};
use signalbox_tests::{events::Stream, http::Request, system::System, tls::Authority};
use tokio::{process::Command, time};

use crate::{
    bus_api::Bus,
    command::{ORDERS, type_in},
};

/// Shorter than the runner's limit for one test, so that a test that hangs fails with a message.
const PATIENCE: Duration = Duration::from_secs(400);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Where the browser's packages are installed and its screenshots are stored.
fn folder() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => root().join(target).join("browser"),
        None => root().join("target/browser"),
    }
}

async fn run(what: &str, command: &mut Command) {
    let output = command.current_dir(root()).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = time::timeout(PATIENCE, output).await;
    let output = output.unwrap_or_else(|_| panic!("{what} timed out")).expect("the program starts");
    let log =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    println!("{log}");
    assert!(
        output.status.success(),
        "{what}: {}; screenshots are in {}\n{log}",
        output.status,
        folder().display()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_works_in_a_browser() {
    browse("dashboard", "pages").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_can_be_read_and_used_by_everyone() {
    browse("dashboard_everywhere", "everywhere").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_agree_with_the_api_and_work_by_keyboard() {
    browse("dashboard_charts", "charts").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_list_works_in_a_large_installation() {
    browse("dashboard_scale", "scale").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes five minutes; make soak"]
async fn soak_every_list_works_in_a_very_large_installation() {
    browse("dashboard_very_large", "very-large").await;
}

/// Without these messages a browser shows that an unchanged page is not up to date.
#[tokio::test(flavor = "multi_thread")]
async fn an_unchanged_page_is_confirmed() {
    let system = System::start("dashboard-beat").await;
    let mut stream =
        Stream::open(system.pacemaker, &system.token, "/dashboard/stream?page=queues", None).await;
    let mut confirmed = 0;
    while confirmed < 2 {
        let message = stream.next().await.expect("an open stream");
        confirmed += u8::from(message.event == "beat" && !message.data.is_empty());
    }
    drop(stream);
    system.stop().await;
}

/// Runs a suite of `tests/browser/run.mjs` against a system of its own.
async fn browse(name: &str, suite: &str) {
    // Installs missing packages only. A failed installation fails the test instead of skipping it.
    run("the installation of the browser", &mut Command::new(root().join(".ci/browser"))).await;
    let bus = Bus::with(name, &[("max_attempts", 1)]).await;
    let end =
        Duration::from_secs(bus.system.cli::<(u64, u64)>(System::PRIMARY, "TIME").await.0 + 60 * 86_400);
    let certificate = Authority::new("test authority").issue_until("shop.test", "soon", end);
    let body = json!({"chain": certificate.chain, "key": certificate.key});
    let put = bus.system.api("PUT", "/certificates/shop.test", Some(body)).await;
    assert!(put.status < 300, "{} {}", put.status, put.text());
    let shots = folder().join("shots");
    std::fs::create_dir_all(&shots).unwrap();
    let script = root().join("tests/browser/run.mjs");
    let mut node = Command::new("node");
    node.arg(script)
        .arg(suite)
        .env("SIGNALBOX_ADMIN", format!("http://{}", bus.system.admin))
        .env("SIGNALBOX_EDGE", format!("http://{}", bus.system.edge))
        .env("SIGNALBOX_TOKEN", &bus.system.token)
        .env("SIGNALBOX_BROWSER_MODULES", folder())
        .env("SIGNALBOX_SHOTS", shots);
    run("the browser", &mut node).await;
    bus.system.stop().await;
}

/// Waits until the page of all problems contains `wanted`.
async fn problems_contain(system: &System, wanted: &str) {
    // Findings that change slowly are evaluated every ten seconds.
    eventually_within(2 * signalbox_testkit::PATIENCE, &format!("{wanted:?} in the problems"), || async {
        let text = system.api("GET", "/dashboard/problems", None).await.text();
        if text.contains(wanted) { Ok(()) } else { Err(text) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_overview_names_servers_that_lose_data_and_certificates_that_expire() {
    let system = System::start("findings").await;
    let (seconds, _): (u64, u64) = system.cli(System::PRIMARY, "TIME").await;
    let end = Duration::from_secs(seconds + 5 * 86_400 + 43_200);
    let soon = Authority::new("test authority").issue_until("shop.test", "soon", end);
    let body = json!({"chain": soon.chain, "key": soon.key});
    let put = system.api("PUT", "/certificates/shop.test", Some(body)).await;
    assert!(matches!(put.status, 200 | 201), "{} {}", put.status, put.text());
    let _: String = system.cli(System::STATS, "CONFIG SET maxmemory-policy allkeys-lru").await;
    let _: String = system.cli(System::FABRIC, "CONFIG SET appendonly no").await;
    // This is the first request, so no reading from before the changes is cached.
    problems_contain(&system, "The certificate of shop.test expires in 5 d.").await;
    // The API rounds in the same way.
    let certificate = system.api("GET", "/certificates/shop.test", None).await.json();
    assert_eq!(certificate["days_left"], 5, "{certificate}");
    problems_contain(
        &system,
        "The stats Redis evicts counters when memory runs out (maxmemory-policy is allkeys-lru).",
    )
    .await;
    problems_contain(&system, "The fabric Redis writes no append-only file").await;
    system.stop().await;
}

/// One of everything that a page is about, and the addresses of all pages.
async fn every_page(system: &System) -> Vec<&'static str> {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("orders.yaml");
    std::fs::write(&machine, ORDERS).unwrap();
    let instance = json!({"address": "127.0.0.1:9", "hostnames": ["a.test"], "version_type_id": "7"});
    let event = json!({"type": "create", "url": "https://a.test/1"});
    for (method, path, body) in [
        ("PUT", "/instances/i-1", instance),
        ("PUT", "/queues/mail", json!({"pattern": ".*:mail:.*"})),
        ("POST", "/topics/news", event),
        (
            "POST",
            "/objects/work:1/events",
            json!({"data": {}, "events": [{"topic": "works", "type": "create"}]}),
        ),
    ] {
        let answer = system.api(method, path, Some(body)).await;
        assert!(answer.status < 300, "{method} {path}: {} {}", answer.status, answer.text());
    }
    type_in(system, &["machines", "apply", "orders", machine.to_str().unwrap()]).await.done();
    type_in(system, &["labels", "set", "orders", "7", "paid=false", "--create"]).await.done();
    vec![
        "/",
        "/dashboard/problems",
        "/dashboard/host",
        "/dashboard/host?name=a.test",
        "/dashboard/policy?name=a.test",
        "/dashboard/instances",
        "/dashboard/instances?name=i-1",
        "/dashboard/routers",
        "/dashboard/certificates",
        "/dashboard/events",
        "/dashboard/topics",
        "/dashboard/subscribers",
        "/dashboard/queues",
        "/dashboard/queues?name=mail",
        "/dashboard/objects",
        "/dashboard/objects?name=work:1",
        "/dashboard/machines",
        "/dashboard/machines?name=orders",
        "/dashboard/label?name=orders&label=7",
        "/dashboard/plan?name=orders",
        "/dashboard/tokens",
        "/dashboard/audit",
    ]
}

/// A Redis server that hangs accepts connections and never answers. Without its own limits, a page would wait as long as the
/// limits of the Redis clients, and would not name the server.
#[tokio::test(flavor = "multi_thread")]
async fn every_page_is_answered_while_a_redis_server_hangs() {
    let system = System::start("dashboard-hang").await;
    let pages = every_page(&system).await;
    let get = async |page: &str| {
        let request = Request::new("GET", "localhost", page).token(&system.token);
        request.send(system.pacemaker).await.unwrap_or_else(|error| panic!("{page}: {error}"))
    };
    let routes = |page: &str| ["/host", "/instances", "/routers"].iter().any(|name| page.contains(name));
    for (part, name) in [
        (System::REPLICA, ""),
        (System::STATS, "the stats Redis does not respond"),
        (System::PRIMARY, "he routes Redis does not respond"),
        (System::FABRIC, "he fabric Redis does not respond"),
    ] {
        eventually("every page", || async {
            for page in &pages {
                let answer = get(page).await;
                if answer.status != 200 {
                    return Err(format!("{page}: {} {}", answer.status, answer.text()));
                }
            }
            Ok(())
        })
        .await;
        system.pause(part.clone());
        let mut missing = Vec::new();
        for page in &pages {
            let answer = get(page).await;
            let (status, text) = (answer.status, answer.text());
            let what = format!("{page} while {part} hangs: {status} {text}");
            assert!(matches!(status, 200 | 503) && text.contains("<h1"), "{what}");
            // Without its data, a page names the server.
            assert!(status == 200 || text.contains(name), "{what}");
            missing.extend((status == 503).then_some(*page));
        }
        let expected: &dyn Fn(&str) -> bool = match &part {
            part if *part == System::REPLICA => &|_| false,
            part if *part == System::STATS => &|page| page == "/dashboard/routers",
            part if *part == System::PRIMARY => &routes,
            _ => &|page| {
                !["/", "/dashboard/problems", "/dashboard/routers", "/dashboard/events"].contains(&page)
            },
        };
        assert!(missing.iter().all(|page| expected(page)), "missing while {part} hangs: {missing:?}");
        assert_eq!(missing.is_empty(), part == System::REPLICA, "missing while {part} hangs: {missing:?}");
        if part == System::STATS {
            for page in ["/", "/dashboard/host?name=a.test", "/dashboard/instances?name=i-1"] {
                let text = get(page).await.text();
                assert!(text.contains("No statistics: the stats Redis does not respond"), "{page}: {text}");
            }
        }
        // The overview is always shown, with what is known.
        eventually("the overview", || async {
            let text = get("/").await.text();
            if name.is_empty() || text.contains("not respond") || text.contains("not reached") {
                Ok(())
            } else {
                Err(text)
            }
        })
        .await;
        system.resume(part);
    }
    system.stop().await;
}

/// The fix of this alarm is dangerous for a fabric that is only not reached yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_fabric_that_was_not_reached_yet_raises_no_alarm() {
    let system = System::start("dashboard-first-look").await;
    system.kill(System::PACEMAKER).await;
    system.pause(System::FABRIC);
    system.start_part_only(System::PACEMAKER).await;
    let text = eventually_within(2 * signalbox_testkit::PATIENCE, "a page of problems", || async {
        let request = Request::new("GET", "localhost", "/dashboard/problems").token(&system.token);
        let answer = request.send(system.pacemaker).await.map_err(|error| error.to_string())?;
        if answer.status == 200 { Ok(answer.text()) } else { Err(answer.text()) }
    })
    .await;
    assert!(!text.contains("/bus/initialize"), "{text}");
    assert!(text.contains("has not reached the fabric yet"), "{text}");
    system.resume(System::FABRIC);
    eventually_within(2 * signalbox_testkit::PATIENCE, "the bus to be checked", || async {
        let text = system.api("GET", "/dashboard/problems", None).await.text();
        if text.contains("has not reached the fabric yet") { Err(text) } else { Ok(()) }
    })
    .await;
    system.stop().await;
}
