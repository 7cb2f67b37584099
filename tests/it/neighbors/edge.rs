//! Neighbors that share places, limits and memory of the edge.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use signalbox_stack::{Builder, Reservation};
use signalbox_testkit::{equal, eventually};
use signalbox_tests::{
    acme::AcmeServer,
    http::{Connection, Request},
    load,
    receiver::{Answer, Receiver},
    system::System,
    upstream::{App, Mode},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    process::Command,
    time::{Instant, timeout},
};

use crate::acme;

const HOST: &str = "app.test";

async fn edge(name: &str, policy: Option<Value>, change: impl FnOnce(Builder) -> Builder) -> (System, App) {
    let system = System::with(name, |builder| change(builder.without_pacemaker().without_sidecar())).await;
    let app = App::start("app").await;
    system.route(HOST, &app).await;
    if let Some(policy) = policy {
        set_policy(&system, &policy).await;
    }
    system.settle().await;
    (system, app)
}

async fn set_policy(system: &System, policy: &Value) {
    system.cli::<()>(System::PRIMARY, &format!("SET policy:{HOST} {policy}")).await;
    system.settle().await;
}

/// Sends a request from another address of this machine, and returns the connection.
async fn from(ip: Ipv4Addr, to: SocketAddr, target: &str) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((ip, 0).into())?;
    let mut stream = socket.connect(to).await?;
    let head = format!("GET {target} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    Ok(stream)
}

async fn answer(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ipv4_client_of_a_listener_for_both_families_uses_up_only_its_own_places() {
    let mut reservation = Reservation::default();
    let port = reservation.add().expect("a free port");
    let (system, app) = edge("neighbor-dual-stack", None, |builder| {
        builder.nginx("EDGE_LISTEN", format!("[::]:{port} ipv6only=off")).nginx("ADDRESS_REQUESTS", "3")
    })
    .await;
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let noisy = Ipv4Addr::new(127, 0, 0, 5);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(from(noisy, to, "/hold").await.unwrap());
    }
    eventually("requests held", async || equal(app.running(), 3)).await;
    let own = answer(&mut from(noisy, to, "/").await.unwrap()).await;
    assert!(own.starts_with("HTTP/1.1 429 "), "{own}");
    for other in [Ipv4Addr::new(127, 0, 0, 6), Ipv4Addr::new(127, 7, 8, 9)] {
        let other = answer(&mut from(other, to, "/").await.unwrap()).await;
        assert!(other.starts_with("HTTP/1.1 200 "), "{other}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_killed_workers_do_not_use_up_the_connections_of_a_host() {
    let policy = json!({"v": 1, "limits": {"connections": {"most": 4, "by": "host"}}});
    let (system, app) = edge("neighbor-killed-workers", Some(policy), |builder| builder).await;
    system.allow("exited on signal");
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(from(Ipv4Addr::LOCALHOST, system.edge, "/hold").await.unwrap());
    }
    eventually("requests held", async || equal(app.running(), 4)).await;
    assert_eq!(system.get(HOST, "/").await.status, 429);
    for worker in system.workers() {
        system.signal_pid(worker, Signal::SIGKILL);
    }
    eventually("the places of the killed workers to be free", async || {
        match Request::get(HOST, "/").send(system.edge).await {
            Ok(response) if response.status == 200 => Ok(()),
            Ok(response) => Err(response.status.to_string()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
    // All four places, and not one more.
    drop(held);
    let mut held = Vec::new();
    let before = app.hits();
    for _ in 0..4 {
        held.push(from(Ipv4Addr::LOCALHOST, system.edge, "/hold").await.unwrap());
    }
    eventually("requests held again", async || equal(app.hits() - before, 4)).await;
    assert_eq!(system.get(HOST, "/").await.status, 429);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_left_a_paused_host_keep_no_place_and_their_requests_are_not_sent() {
    let pause = json!({"v": 1, "pause": {"wait_ms": 60_000, "most": 2}});
    let (system, app) = edge("neighbor-pause", Some(pause), |builder| builder.workers(1)).await;
    let post = Request::new("POST", HOST, "/").body("pay").to_bytes();
    // Two wait, and both leave.
    let mut gone = Vec::new();
    for _ in 0..2 {
        let mut connection = Connection::open(system.edge).await.unwrap();
        connection.write(&post).await.unwrap();
        gone.push(connection);
    }
    eventually("no place to be left", async || {
        let mut third = Connection::open(system.edge).await.unwrap();
        let refused = third.send_noise_patiently(&post, Duration::from_millis(300)).await;
        equal(refused.map(|response| response.status), Some(503))
    })
    .await;
    drop(gone);
    let mut patient = eventually("a place to be free", async || {
        let mut stream = from(Ipv4Addr::LOCALHOST, system.edge, "/").await.unwrap();
        let response = timeout(Duration::from_millis(500), answer(&mut stream)).await;
        response.map_or(Ok(stream), Err)
    })
    .await;
    set_policy(&system, &json!({"v": 1})).await;
    let response = answer(&mut patient).await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert_eq!(system.get(HOST, "/").await.status, 200);
    assert_eq!(app.hits(), 2, "and no request of a client that left");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_instances_get_no_request_again_after_the_retry_window() {
    let (system, first) = edge("neighbor-retry-window", None, |builder| {
        builder.nginx("READ_TIMEOUT", "2s").nginx("RETRY_TIMEOUT", "1s")
    })
    .await;
    system.allow("upstream timed out");
    let apps = [first, App::start("second").await, App::start("third").await];
    for app in &apps {
        app.set(Mode::Hang);
        system.route(HOST, app).await;
    }
    system.settle().await;
    let hits = || apps.iter().map(App::hits).sum::<u64>();
    let start = Instant::now();
    load::send(system.edge, 100, 100, |_| Request::get(HOST, "/")).await;
    assert_eq!(hits(), 100, "one attempt for each");
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_retry_budget_bounds_the_load_on_hanging_instances() {
    let policy =
        json!({"v": 1, "ejection": false, "retries": {"budget_percent": 20}, "timeouts": {"read_ms": 300}});
    let (system, first) = edge("neighbor-retry-budget", Some(policy), |builder| builder.workers(1)).await;
    system.allow("upstream timed out");
    let apps = [first, App::start("second").await, App::start("third").await];
    for app in &apps {
        app.set(Mode::Hang);
        system.route(HOST, app).await;
    }
    system.settle().await;
    let start = Instant::now();
    load::send(system.edge, 100, 500, |_| Request::get(HOST, "/")).await;
    let attempts = apps.iter().map(App::hits).sum::<u64>();
    // 100 saved, 20%, ten per second, and one for each request under way when the budget ended.
    let most = 500 + 100 + 100 + 10 * start.elapsed().as_secs() + 100;
    assert!(attempts <= most, "{attempts} attempts, at most {most}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_invents_server_names_delays_no_certificate_of_another() {
    const CUSTOMER: &str = "shop.customer.test";
    let mut server = AcmeServer::reserve().await;
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let names = Arc::clone(&asked);
    let checker = Receiver::answering(move |call| {
        let name = call.line.split("domain=").nth(1).and_then(|rest| rest.split(' ').next());
        names.lock().unwrap().push(name.unwrap_or_default().to_owned());
        Answer::status(if name == Some(CUSTOMER) { "200 OK" } else { "403 Forbidden" })
    })
    .await;
    let keys = [("check_url", checker.url().into())];
    let system = acme::start("neighbor-names", &mut server, 90 * acme::DAY, &keys).await;
    let app = App::start("app").await;
    system.register("one", &app, "*", "17").await;
    let port = acme::tls(&system).port();
    let invented = (0..300).map(|n| format!("https://a-{n}.invented.test:{port}/"));
    let mut noisy = Command::new("curl");
    noisy.args(["--silent", "--insecure", "--output", "/dev/null", "--interface", "127.0.0.9"]);
    noisy.args(["--connect-to", &format!("::127.0.0.1:{port}")]).args(invented);
    noisy.output().await.unwrap();
    acme::presented(&system, CUSTOMER).await;
    acme::until_issued(&system, CUSTOMER).await;
    let asked = asked.lock().unwrap().clone();
    assert!(asked.len() <= 51, "half of the hour's calls are for one client: {}", asked.len());
    system.stop().await;
}
