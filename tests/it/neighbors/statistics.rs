//! Neighbors that share the stats Redis.

use serde_json::Value;
use signalbox_testkit::eventually;
use signalbox_tests::{http::Request, load, system::System, upstream::App};

/// Waits until all requests so far are counted. Returns how many keys the stats Redis has.
async fn keys_after(system: &System, requests: u64) -> usize {
    eventually("the requests to be counted", async || {
        let counted: Value = system.edge_api("/stats/uncaught").await.json();
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
    let requests = |from: u64| move |n: u64| {
        let n = from + n;
        let host = if n % 2 == 0 { format!("invented-{n}.test") } else { "app.test".to_owned() };
        Request::get(&host, &format!("/{n}?x={n}")).header("User-Agent", &format!("agent-{n}"))
    };
    load::send(system.edge, 8, 40, requests(0)).await;
    let before = keys_after(&system, 20).await;
    load::send(system.edge, 8, 600, requests(1_000)).await;
    let after = keys_after(&system, 320).await;
    // Another hour, minute or latency adds some.
    assert!(after < before + 60, "{after} keys, {before} before");
    system.stop().await;
}
