//! The servers of a running system contain only keys that the catalog of `crates/store` describes.

use std::collections::BTreeSet;

use serde_json::json;
use signalbox_store::keys::{self, Entry};
use signalbox_testkit::eventually;
use signalbox_tests::{http::Request, load, system::System, upstream::App};

#[tokio::test(flavor = "multi_thread")]
async fn every_key_of_a_running_system_is_listed_in_the_catalog() {
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
    // A queue with a message in each of its places.
    let queue = json!({"pattern": ".*", "max_attempts": 1});
    assert_eq!(system.api("PUT", "/queues/q", Some(queue)).await.status, 201);
    let message = json!({"tenant": "5", "type": "t", "name": "n"});
    system.api("POST", "/messages", Some(json!(vec![message; 4]))).await;
    let pull = json!({"max": 1});
    for place in ["dead", "flying"] {
        let pulled = system.api("POST", "/queues/q/pull", Some(pull.clone())).await.json();
        let receipt = &pulled["messages"][0]["receipt"];
        assert!(receipt.is_string(), "{place}: {pulled}");
        if place == "dead" {
            system.api("POST", "/queues/q/nack", Some(json!({"receipts": [receipt]}))).await;
        }
    }
    let pattern = json!({"pattern": ".*"});
    system.api("PUT", "/queues/q", Some(pattern)).await;
    let pulled = system.api("POST", "/queues/q/pull", Some(pull)).await.json();
    let delayed = json!({"receipts": [pulled["messages"][0]["receipt"]], "delay_seconds": 600});
    assert_eq!(system.api("POST", "/queues/q/nack", Some(delayed)).await.status, 200);
    load::send(system.edge, 2, 60, |n| {
        Request::get(["app.test", "leased.test", "x.wild.test", "nobody.test"][n as usize % 4], "/")
    })
    .await;
    eventually("the requests to be counted", || async {
        let count = system.try_cli::<Option<u64>>(System::STATS, "HGET stat:null requests").await;
        if count == Ok(Some(15)) { Ok(()) } else { Err(count) }
    })
    .await;

    let fabric = [
        keys::fabric::CATALOG,
        keys::bus::CATALOG,
        keys::queues::CATALOG,
        keys::objects::CATALOG,
        keys::machines::CATALOG,
    ]
    .concat();
    let mut unknown = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for (part, catalog) in [
        (System::PRIMARY, keys::routes::CATALOG),
        (System::REPLICA, keys::routes::CATALOG),
        (System::STATS, keys::stats::CATALOG),
        (System::FABRIC, &fabric),
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
        "instances:{hostname}",
        "logkey:{hostname}",
        "instance_ids:{hostname}",
        "serial",
        "epoch",
        "leases",
        "policy:{hostname}",
        "instance:{id}",
        "stat:{id}",
        "history:{id}:{hour}:{metric}",
        "rollup:{id}:{hour}:{metric}",
        "position:{node}",
        "position:{node}:file",
        "router:{node}",
        "routers",
        "workspace:{id}",
        "application:{id}",
        "version:{id}",
        "node:{id}",
        "tokens",
        "routes:instances",
        "pacemakers",
        "lease:{name}",
        "queue:{queue}:{tenant}",
        "queue:{queue}|ring",
        "queue:{queue}|facet:{tenant}",
        "queue:{queue}|facets",
        "queue:{queue}|leases",
        "queue:{queue}|inflight",
        "queue:{queue}|delayed",
        "queue:{queue}|dead",
        "queue:{queue}|count",
        "queue:{queue}|settings",
        "queue:|held",
        "queue:|due",
    ] {
        assert!(seen.contains(pattern), "the walk saw no {pattern}; seen: {seen:?}");
    }
    system.stop().await;
}
