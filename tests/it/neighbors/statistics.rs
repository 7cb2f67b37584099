//! Neighbors that share the stats Redis.

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{http::Request, load, system::System, upstream::App};

/// Waits until all requests so far are counted. Returns how many keys the stats Redis has.
async fn keys_after(system: &System, requests: u64) -> usize {
    eventually("the requests to be counted", async || {
        let counted: Value = system.api("GET", "/stats/uncaught", None).await.json();
        if counted["requests"].as_u64() >= Some(requests) { Ok(()) } else { Err(counted) }
    })
    .await;
    system.cli(System::STATS, "DBSIZE").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_invents_hosts_paths_and_agents_creates_no_keys_for_them() {
    let system = System::start("neighbor-statistics").await;
    let app = App::start("app").await;
    system.register("one", &app, "app.test", "17").await;
    let requests = |from: u64| {
        move |n: u64| {
            let n = from + n;
            let host = if n.is_multiple_of(2) { format!("invented-{n}.test") } else { "app.test".to_owned() };
            Request::get(&host, &format!("/{n}?x={n}")).header("User-Agent", &format!("agent-{n}"))
        }
    };
    load::send(system.edge, 8, 40, requests(0)).await;
    let before = keys_after(&system, 20).await;
    load::send(system.edge, 8, 600, requests(1_000)).await;
    let after = keys_after(&system, 320).await;
    // Another hour, minute or latency adds some.
    assert!(after < before + 60, "{after} keys, {before} before");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_invents_hosts_and_versions_reaches_its_limit_and_others_register_theirs() {
    let limits = toml::Table::from_iter([("token_new_names_per_day".to_owned(), 20.into())]);
    let system =
        System::with("neighbor-names", |builder| builder.without_sidecar().pacemaker("limits", limits)).await;
    let (noisy, quiet) = (system.token("noisy", &["routes"]).await, system.token("quiet", &["routes"]).await);
    let put = async |token: &str, id: &str, name: &str, version: &str| {
        let body = json!({"address": "127.0.0.1:9", "hostnames": [name], "version_type_id": version});
        let request = Request::new("PUT", "localhost", &format!("/instances/{id}")).token(token).json(&body);
        request.send(system.pacemaker).await.unwrap()
    };
    for n in 0..10 {
        let registered = put(&noisy, "noisy", &format!("{n}.noisy.test"), &n.to_string()).await;
        assert!(registered.status < 300, "{}", registered.text());
    }
    let refused = put(&noisy, "noisy", "more.noisy.test", "1").await;
    assert_eq!((refused.status, &refused.json()["code"]), (429, &json!("token_limit_reached")));
    assert_eq!(refused.json()["limit"], 20, "{}", refused.text());
    assert!(refused.header("Retry-After").is_some());
    assert_eq!(put(&noisy, "noisy", "9.noisy.test", "9").await.status, 200, "it is registered");
    for (token, name) in [(&quiet, "quiet.test"), (&system.token, "root.test")] {
        let registered = put(token, "other", name, name).await;
        assert!(registered.status < 300, "{}", registered.text());
    }
    system.stop().await;
}
