//! Any path at a host with rules for paths: the edge (Lua, in nginx) and the explanation of the pacemaker (Rust) agree on the rule,
//! and the application that receives the request cannot read another path than the one that was checked.

use serde_json::json;
use signalbox_testkit::Fuzz;
use signalbox_tests::{http::Connection, system::System};

use crate::attacks::edge_paths::{Echo, lenient};

const PATHS: [&str; 16] = [
    "/",
    "/api",
    "/api/x?y=/../z",
    "/api/old/x",
    "/exact",
    "/exact/",
    "/closed/a",
    "/x/../api/%2e%2e/closed",
    "/api;v=1/old;w/x",
    "//api///old/",
    "/%61pi%2fold",
    "/api/./old/..",
    "/api%5cold",
    "/b%C3%BCcher/api",
    "/.;/closed",
    "/api/%252e%252e/closed",
];

const WORDS: [&str; 22] = [
    "/", "//", ".", "..", "/../", "/./", ";", ";x=1", "%2f", "%2F", "%2e", "%2E%2e", "%5c", "\\", "%00",
    "%3f", "%23", "%3b", "/api", "/closed", "/exact", "%25",
];

/// What the rules below lead a path to, for an application that reads it leniently.
fn inside(path: &str) -> &'static str {
    let below =
        |prefix: &str| path == prefix || path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    if below("/closed") {
        "closed"
    } else if below("/api/old") {
        "old"
    } else if below("/api") {
        "api"
    } else {
        "shop"
    }
}

/// A path as the value of an argument.
fn argument(path: &str) -> String {
    path.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn fuzz_edge_paths() {
    let system = System::start("fuzz-paths").await;
    let mut apps = Vec::new();
    for (name, host) in [("shop", "shop.test"), ("api", "api.internal"), ("old", "old.internal")] {
        let app = Echo::start(name).await;
        let instance = json!({"address": app.address, "hostnames": [host], "version_type_id": "7"});
        let target = format!("/instances/{name}?wait=20s");
        assert_eq!(system.api("PUT", &target, Some(instance)).await.status, 201);
        apps.push(app);
    }
    let rules = json!({"paths": [
        {"path": "/api", "service": "api.internal"},
        {"path": "/api/old", "service": "old.internal"},
        {"path": "/exact", "match": "exact", "service": "old.internal"},
        {"path": "/closed", "access": {"allow": ["203.0.113.0/24"]}},
    ]});
    let set = system.api("PUT", "/hosts/shop.test?wait=20s", Some(rules)).await;
    assert_eq!(set.status, 200, "{}", set.text());
    let mut fuzz = Fuzz::new("paths at the edge", PATHS, &WORDS);
    while let Some(path) = fuzz.text() {
        // Other bytes end the request line, or are rejected before the path is read.
        if !path.starts_with('/') || path.bytes().any(|byte| byte <= b' ' || byte == 0x7f || byte == b'#') {
            continue;
        }
        let request = format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\n\r\n");
        let mut connection = Connection::open(system.edge).await.unwrap();
        let answer = connection.send_raw(request.as_bytes()).await.unwrap();
        let target = format!("/routes/explain?host=shop.test&path={}", argument(&path));
        let explained = system.api("GET", &target, None).await;
        if explained.status == 422 {
            assert_eq!(answer.status, 400, "{path}: only the pacemaker rejects it: {}", explained.text());
            continue;
        }
        let rule = explained.json()["path"].clone();
        let expected = match (rule["rule"].as_str(), rule["service"].as_str()) {
            (Some("/closed"), _) => "closed",
            (_, Some("api.internal")) => "api",
            (_, Some("old.internal")) => "old",
            _ => "shop",
        };
        let text = answer.text();
        let (app, received) = match answer.status {
            200 => text.split_once(' ').unwrap(),
            403 => ("closed", &*path),
            status => panic!("{path}: {status}, and the pacemaker explains {rule}: {text}"),
        };
        assert_eq!(app, expected, "{path}: {rule}");
        let read = lenient(received);
        assert!(
            inside(&read) == app || read == "/exact",
            "{path}: {app} received {received} and reads {read}"
        );
        fuzz.accepted();
    }
    system.stop().await;
}
