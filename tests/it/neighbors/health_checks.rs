//! Neighbors that share health checks.

use std::time::Duration;

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{http::Request, system::System, upstream::App};
use tokio::{net::TcpListener, task::JoinHandle, time::Instant};

/// Accepts connections at all addresses of loopback and never answers.
async fn hanging() -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.push(stream);
        }
    });
    (port, task)
}

/// Registers instances that hang, at one host each.
async fn register_hanging(system: &System, token: &str, count: u8, port: u16, health: &Value) {
    let items: Vec<Value> = (1..=count)
        .map(|n| {
            json!({"id": format!("hanging-{n}"), "address": format!("127.9.0.{n}:{port}"),
                "hostnames": [format!("h{n}.noisy.test")], "version_type_id": "1", "health": health})
        })
        .collect();
    let put = Request::new("PUT", "localhost", "/instances").token(token).json(&Value::Array(items));
    let response = put.send(system.pacemaker).await.unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
    let statuses: Vec<_> =
        response.json()["results"].as_array().unwrap().iter().map(|one| one["status"].clone()).collect();
    assert!(statuses.iter().all(|status| *status == 201), "{statuses:?}");
}

async fn register_victim(system: &System, app: &App) {
    let health = json!({"path": "/", "interval_seconds": 1, "timeout_ms": 500, "unhealthy_after": 2, "healthy_after": 1});
    let body = json!({"address": app.address.to_string(), "hostnames": ["quiet.test"], "version_type_id": "2",
        "health": health});
    let put = system.api("PUT", "/instances/victim", Some(body)).await;
    assert_eq!(put.status, 201, "{}", put.text());
}

/// How long it takes until the victim is found dead, and then until it is found alive.
async fn detection(system: &System, app: &mut App) -> [Duration; 2] {
    let until = async |healthy: bool| {
        let start = Instant::now();
        eventually("the health of the victim to be known", async || {
            let instance = system.api("GET", "/instances/victim", None).await.json();
            if instance["healthy"] == healthy { Ok(()) } else { Err(instance) }
        })
        .await;
        start.elapsed()
    };
    app.kill().await;
    let dead = until(false).await;
    app.start_again().await;
    [dead, until(true).await]
}

/// Two checks, a second and a tenth apart, and the first at most as much later; and a loaded machine.
fn assert_fast(found: [Duration; 2]) {
    assert!(found.iter().all(|time| *time < Duration::from_secs(5)), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_with_hanging_instances_does_not_delay_the_health_checks_of_others() {
    let system = System::start("neighbor-health-token").await;
    let mut app = App::start("app").await;
    register_victim(&system, &app).await;
    let grant = json!({"name": "noisy", "scopes": ["routes"], "hosts": ["*.noisy.test"]});
    let token = system.api("POST", "/tokens", Some(grant)).await.json()["token"].as_str().unwrap().to_owned();
    let (port, task) = hanging().await;
    register_hanging(
        &system,
        &token,
        200,
        port,
        &json!({"path": "/", "interval_seconds": 1, "timeout_ms": 60_000}),
    )
    .await;
    assert_fast(detection(&system, &mut app).await);
    task.abort();
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rack_of_dead_instances_does_not_delay_other_health_checks_of_the_same_token() {
    let system = System::start("neighbor-health-rack").await;
    let mut app = App::start("app").await;
    register_victim(&system, &app).await;
    let (port, task) = hanging().await;
    let token = system.token.clone();
    register_hanging(&system, &token, 225, port, &json!({"path": "/"})).await;
    assert_fast(detection(&system, &mut app).await);
    task.abort();
    system.stop().await;
}
