//! No key without a row: the servers of a running system hold only what the catalog of `crates/store` describes.

use std::collections::BTreeSet;

use serde_json::json;
use signalbox_store::keys::{self, Entry};
use signalbox_tests::{http::Request, load, poll, system::System, upstream::App};

#[tokio::test(flavor = "multi_thread")]
async fn every_key_of_a_running_system_stands_in_the_catalog() {
    let system = System::start("keys").await;
    let apps = [App::start("plain").await, App::start("leased").await, App::start("gone").await];
    let body = |app: &App, lease: Option<u64>, hosts: &[&str]| {
        json!({
            "address": app.address.to_string(), "hostnames": hosts, "version_type_id": "17", "version_id": "3",
            "application_id": "2", "workspace_id": "1", "node_id": "5", "lease_seconds": lease,
        })
    };
    // Everything that leaves a key: leases, wildcards, two version types behind one name, a tombstone, a policy, a
    // token, unrouted requests, and statistics of all.
    let specs = [
        ("plain", None, &["app.test"][..]),
        ("leased", Some(600), &["leased.test", "*.wild.test"]),
        ("gone", None, &["gone.test"]),
    ];
    for ((id, lease, hosts), app) in specs.into_iter().zip(&apps) {
        let mut body = body(app, lease, hosts);
        if lease.is_none() {
            body.as_object_mut().unwrap().remove("lease_seconds");
        }
        let answer = system.api("PUT", &format!("/instances/{id}?wait=20s"), Some(body)).await;
        assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
    }
    let other = App::start("other").await;
    system.register("other", &other, "app.test", "18").await;
    system.api("DELETE", "/instances/gone?wait=20s", None).await;
    system.token("walker", &["read"]).await;
    load::send(system.edge, 2, 60, |n| {
        Request::get(["app.test", "leased.test", "x.wild.test", "nobody.test"][n as usize % 4], "/")
    })
    .await;
    poll::until("the requests to be counted", || async {
        let count = system.try_cli::<Option<u64>>(System::STATS, "HGET stat:null requests").await;
        if count == Ok(Some(15)) { Ok(()) } else { Err(count) }
    })
    .await;

    let mut unknown = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for (part, catalog) in [
        (System::MASTER, keys::routes::CATALOG),
        (System::REPLICA, keys::routes::CATALOG),
        (System::STATS, keys::stats::CATALOG),
        (System::FABRIC, keys::fabric::CATALOG),
    ] {
        for name in system.cli::<Vec<String>>(part.clone(), "KEYS *").await {
            let kind: String = system.cli(part.clone(), &format!("TYPE {name}")).await;
            let rows: Vec<&Entry> =
                catalog.iter().filter(|row| row.describes(&name) && row.kind == kind).collect();
            if rows.is_empty() {
                unknown.insert(format!("{part}: {name} ({kind})"));
            }
            seen.extend(rows.iter().map(|row| row.pattern));
        }
    }
    assert!(unknown.is_empty(), "keys that no row of the catalog describes: {unknown:#?}");
    // A walk over servers that hold nothing would find nothing wrong.
    for pattern in [
        "instances:<hostname>",
        "logkey:<hostname>",
        "instance_ids:<hostname>",
        "serial",
        "epoch",
        "leases",
        "policy:<hostname>",
        "instance:<id>",
        "stat:<id>",
        "history:<id>:<hour>:<metric>",
        "rollup:<id>:<hour>:<metric>",
        "position:<node>",
        "position:<node>:file",
        "router:<node>",
        "routers",
        "workspace:<id>",
        "application:<id>",
        "version:<id>",
        "node:<id>",
        "tokens",
        "routes:instances",
        "duty:<name>",
    ] {
        assert!(seen.contains(pattern), "the walk saw no {pattern}; seen: {seen:?}");
    }
    system.stop().await;
}
