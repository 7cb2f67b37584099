//! Active health checks: verdicts on the table, and the prober against real servers.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, UnixListener},
    sync::watch,
    task::JoinHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    Error, Prober,
    store::{Diagnosed, Diagnosis, Fence},
};
use signalbox_access::Caller;
use signalbox_egress::{Budget, Limits};
use signalbox_testkit::eventually;

const HOST: &str = "a.example";

fn checked(port: u16, hostnames: &[&str], health: Value) -> Spec {
    Spec { health: Some(serde_json::from_value(health).unwrap()), ..spec(port, hostnames, "17") }
}

fn quick(mut health: Value) -> Value {
    health["interval_seconds"] = json!(1);
    health["unhealthy_after"] = json!(1);
    health["healthy_after"] = json!(1);
    health
}

impl Rig {
    async fn diagnose(&self, id: &str, port: u16, unhealthy: Option<&str>, epoch: u64) -> Diagnosed {
        self.try_diagnose(id, port, unhealthy, epoch).await.unwrap()
    }

    async fn try_diagnose(
        &self,
        id: &str,
        port: u16,
        unhealthy: Option<&str>,
        epoch: u64,
    ) -> Result<Diagnosed, Error> {
        let (id, address) = (instance_id(id), format!("127.0.0.1:{port}"));
        let diagnosis = Diagnosis { id: &id, address: &address, unhealthy };
        let fence = Fence { lease: "prober", epoch };
        self.store.diagnose(diagnosis, &self.mark().await, fence).await
    }

    async fn policy_of(&self, name: &str) -> Option<Value> {
        self.table(name).await.policy.map(|text| serde_json::from_str(&text).unwrap())
    }

    async fn unhealthy(&self, id: &str) -> Option<String> {
        self.store.live(&[instance_id(id)]).await.unwrap().pop().unwrap().unhealthy
    }

    async fn until_unhealthy(&self, id: &str, why: Option<&str>) {
        eventually("the health changes", async || {
            let unhealthy = self.unhealthy(id).await;
            if unhealthy.as_deref() == why {
                Ok(())
            } else {
                Err(format!("{id}: {unhealthy:?}, not {why:?}"))
            }
        })
        .await;
    }

    fn prober(&self, who: &str) -> (CancellationToken, JoinHandle<()>) {
        self.prober_with(who, Budget::default())
    }

    fn prober_with(&self, who: &str, budget: Budget) -> (CancellationToken, JoinHandle<()>) {
        let lease = Lease::new(self.servers.fabric(), "prober", who.to_owned(), Duration::from_secs(3));
        let prober = Prober::new(self.registry.clone(), lease, Duration::from_millis(50), Metrics::default())
            .with_budget(budget);
        let shutdown = CancellationToken::new();
        (shutdown.clone(), tokio::spawn(prober.run(shutdown)))
    }
}

/// How a server under test answers connections.
#[derive(Debug, Clone)]
enum Mood {
    Says(&'static str),
    /// Accepts and does not answer.
    Hangs,
}

/// A server with moods.
struct Moody {
    /// Of the first listener.
    port: u16,
    ports: Vec<u16>,
    mood: watch::Sender<Mood>,
    heard: watch::Receiver<String>,
    most_at_a_time: Arc<AtomicUsize>,
}

const GOOD: Mood = Mood::Says("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nall well");
const BAD: Mood = Mood::Says("HTTP/1.1 500 Sorry\r\nContent-Length: 0\r\n\r\n");

impl Moody {
    async fn start(mood: Mood) -> Self {
        Self::at(1, mood).await
    }

    /// Listens at this many ports.
    async fn at(count: usize, mood: Mood) -> Self {
        let (mood, moods) = watch::channel(mood);
        let (say, heard) = watch::channel(String::new());
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let most_at_a_time = Arc::clone(&most);
        let mut ports = Vec::new();
        for _ in 0..count {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            ports.push(listener.local_addr().unwrap().port());
            let (moods, say) = (moods.clone(), say.clone());
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            tokio::spawn(Self::serve(listener, moods, say, now, most));
        }
        Self { port: ports[0], ports, mood, heard, most_at_a_time }
    }

    async fn serve(
        listener: TcpListener,
        moods: watch::Receiver<Mood>,
        say: watch::Sender<String>,
        now: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    ) {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mood, say) = (moods.borrow().clone(), say.clone());
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            tokio::spawn(async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let mut buffer = vec![0; 4096];
                if let Ok(count) = stream.read(&mut buffer).await
                    && count > 0
                {
                    say.send_replace(String::from_utf8_lossy(&buffer[..count]).into_owned());
                    match mood {
                        Mood::Says(text) => drop(stream.write_all(text.as_bytes()).await),
                        // Until the other side closes the connection.
                        Mood::Hangs => drop(stream.read(&mut buffer).await),
                    }
                }
                now.fetch_sub(1, Ordering::SeqCst);
            });
        }
    }

    fn is(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }
}

#[tokio::test]
async fn a_verdict_is_one_serial_for_all_names_and_one_change() {
    let rig = Rig::new().await;
    let names = [HOST, "b.example"];
    rig.put("i", checked(9001, &names, json!({"path": "/"}))).await;
    let serial = rig.serial().await;
    assert_eq!(rig.diagnose("i", 9001, Some("status 500"), 1).await, Diagnosed::Done { serial: serial + 1 });
    for name in names {
        assert_eq!(rig.policy_of(name).await, Some(json!({"v": 1, "unhealthy": ["127.0.0.1:9001"]})));
    }
    assert_eq!(rig.diagnose("i", 9001, Some("status 503"), 1).await, Diagnosed::Same);
    assert_eq!(rig.unhealthy("i").await.as_deref(), Some("status 500"));
    assert_eq!(rig.diagnose("i", 9001, None, 1).await, Diagnosed::Done { serial: serial + 2 });
    assert_eq!((rig.policy_of(HOST).await, rig.serial().await), (None, serial + 2));
    let told: Vec<(String, Vec<String>)> =
        rig.routes("XRANGE", &["changes", &format!("{}", serial + 1), "+"]).await;
    let kinds: Vec<_> = told.iter().map(|(id, fields)| (id.as_str(), fields[1].as_str())).collect();
    let (ill, well) = (format!("{}-0", serial + 1), format!("{}-0", serial + 2));
    assert_eq!(kinds, [(ill.as_str(), "failing"), (well.as_str(), "recovered")]);
    rig.check_catalog().await;
}

#[tokio::test]
async fn a_health_verdict_applies_only_to_the_checked_registration() {
    let rig = Rig::new().await;
    rig.put("i", checked(9001, &[HOST], json!({"path": "/"}))).await;
    rig.put("unchecked", spec(9002, &[HOST], "17")).await;
    for (id, port) in [("i", 9009), ("unchecked", 9002), ("nobody", 9001)] {
        assert_eq!(rig.diagnose(id, port, Some("x"), 1).await, Diagnosed::Gone, "{id}");
    }
    rig.diagnose("i", 9001, Some("x"), 5).await;
    let fenced = rig.try_diagnose("i", 9001, None, 4).await;
    assert!(matches!(fenced, Err(Error::Fenced { epoch: 5 })), "{fenced:?}");
    let mark = TableMark { epoch: "x".into(), ..rig.mark().await };
    let (id, fence) = (instance_id("i"), Fence { lease: "prober", epoch: 5 });
    let diagnosis = Diagnosis { id: &id, address: "127.0.0.1:9001", unhealthy: None };
    let other = rig.store.diagnose(diagnosis, &mark, fence).await;
    assert!(matches!(other, Err(Error::Resyncing { .. })), "{other:?}");
    assert_eq!(rig.unhealthy("i").await.as_deref(), Some("x"));
}

#[tokio::test]
async fn an_instance_stays_unhealthy_until_it_is_another_or_unchecked() {
    let rig = Rig::new().await;
    let health = json!({"path": "/"});
    rig.put("i", checked(9001, &[HOST], health.clone())).await;
    rig.diagnose("i", 9001, Some("x"), 1).await;
    // Altered, drained and resumed it is still the same process.
    rig.put("i", checked(9001, &[HOST, "b.example"], health.clone())).await;
    rig.registry.drain(&Caller::root(), &instance_id("i"), 600).await.unwrap();
    rig.registry.resume(&Caller::root(), &instance_id("i")).await.unwrap();
    assert_eq!(rig.policy_of("b.example").await, Some(json!({"v": 1, "unhealthy": ["127.0.0.1:9001"]})));
    rig.put("i", checked(9002, &[HOST], health.clone())).await;
    assert_eq!(rig.policy_of(HOST).await, None);
    rig.diagnose("i", 9002, Some("x"), 1).await;
    rig.put("i", spec(9002, &[HOST], "17")).await;
    assert_eq!(rig.policy_of(HOST).await, None);
    assert_eq!(rig.routes::<Vec<String>>("SMEMBERS", &["checks"]).await, [""; 0]);
    rig.put("i", checked(9002, &[HOST], health)).await;
    rig.registry.remove(&Caller::root(), &instance_id("i")).await.unwrap();
    assert_eq!(rig.routes::<u64>("EXISTS", &["checks"]).await, 0);
}

#[tokio::test]
async fn a_recovered_instance_starts_slowly_again() {
    let rig = Rig::new().await;
    rig.store.set_clock_ms(1_000_000);
    rig.put("i", checked(9001, &[HOST], json!({"path": "/"}))).await;
    let policy = serde_json::from_value(json!({"slow_start_ms": 1000})).unwrap();
    rig.registry.set_policy(&Caller::root(), &host(HOST), &policy, None).await.unwrap();
    let joined = async || rig.policy_of(HOST).await.unwrap()["joined"]["127.0.0.1:9001"].clone();
    rig.store.set_clock_ms(2_000_000);
    rig.diagnose("i", 9001, Some("x"), 1).await;
    assert_eq!(joined().await, 1_000_000);
    rig.store.set_clock_ms(3_000_000);
    rig.diagnose("i", 9001, None, 1).await;
    assert_eq!(joined().await, 3_000_000);
}

#[tokio::test]
async fn an_unhealthy_version_is_not_promoted() {
    let rig = Rig::new().await;
    rig.put("old", spec(9001, &[HOST], "16")).await;
    rig.put("new", checked(9002, &[HOST], json!({"path": "/"}))).await;
    rig.diagnose("new", 9002, Some("x"), 1).await;
    let version = signalbox_route_table::Label::parse("17", "version_type_id").unwrap();
    use crate::{NotPromoted, PromotionTimes};
    let times = PromotionTimes { drain_seconds: 1, undo_seconds: 1 };
    let refused = rig.registry.promote(&Caller::root(), &host(HOST), &version, times).await;
    assert!(matches!(refused, Err(Error::CannotPromote { reason: NotPromoted::Unhealthy, .. })));
}

#[tokio::test]
async fn the_prober_detects_failures_and_recoveries() {
    let rig = Rig::new().await;
    let server = Moody::start(GOOD).await;
    let health = json!({"path": "/health?x=1", "body": "well", "timeout_ms": 300});
    rig.put("i", checked(server.port, &["*.a.example", HOST], quick(health))).await;
    let (shutdown, prober) = rig.prober("one");
    let mut heard = server.heard.clone();
    heard.wait_for(|heard| !heard.is_empty()).await.unwrap();
    let request = heard.borrow().clone();
    assert!(request.starts_with("GET /health?x=1 HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("host: a.example\r\n"), "{request}");
    for (mood, why) in [
        (BAD, "status 500"),
        (Mood::Hangs, "no answer within 300 ms"),
        (Mood::Says("SSH-2.0-no\r\n\r\n"), "it broke the connection or spoke no HTTP"),
        (Mood::Says("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nill"), "the text is not in the answer"),
        // A body that never ends is cut off with the rest.
        (Mood::Says("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\nwel"), "the text is not in the answer"),
    ] {
        server.is(mood);
        rig.until_unhealthy("i", Some(why)).await;
        server.is(GOOD);
        rig.until_unhealthy("i", None).await;
    }
    shutdown.cancel();
    prober.await.unwrap();
}

#[tokio::test]
async fn tcp_and_unix_sockets_are_checked_too() {
    let rig = Rig::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    rig.put("tcp", checked(port, &[HOST], quick(json!({"tcp": true})))).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sock");
    let json = json!({
        "address": format!("unix:{}", path.display()), "hostnames": [HOST], "version_type_id": "17",
        "health": quick(json!({"tcp": true})),
    });
    let unix = Spec::check(serde_json::from_value(json).unwrap(), rig.registry.rules()).unwrap();
    rig.put("unix", unix).await;
    let (shutdown, prober) = rig.prober("one");
    rig.until_unhealthy("unix", Some("it cannot be connected to (entity not found)")).await;
    assert_eq!(rig.unhealthy("tcp").await, None);
    let _unix = UnixListener::bind(&path).unwrap();
    drop(listener);
    rig.until_unhealthy("unix", None).await;
    rig.until_unhealthy("tcp", Some("it cannot be connected to (connection refused)")).await;
    shutdown.cancel();
    prober.await.unwrap();
}

#[tokio::test]
async fn another_pacemaker_continues_from_the_table() {
    let rig = Rig::new().await;
    let server = Moody::start(BAD).await;
    rig.put("i", checked(server.port, &[HOST], quick(json!({"path": "/"})))).await;
    let (first_stops, first) = rig.prober("first");
    rig.until_unhealthy("i", Some("status 500")).await;
    let serial = rig.serial().await;
    first_stops.cancel();
    first.await.unwrap();
    let (second_stops, second) = rig.prober("second");
    let mut heard = server.heard.clone();
    heard.mark_unchanged();
    heard.changed().await.unwrap();
    heard.changed().await.unwrap();
    // An unchanged verdict is not written.
    assert_eq!((rig.serial().await, rig.unhealthy("i").await.as_deref()), (serial, Some("status 500")));
    server.is(GOOD);
    rig.until_unhealthy("i", None).await;
    second_stops.cancel();
    second.await.unwrap();
}

#[tokio::test]
async fn an_instance_is_checked_once_at_a_time_however_many_probers_there_are() {
    let rig = Rig::new().await;
    let server = Moody::start(Mood::Hangs).await;
    // Each check hangs until the interval ends, so that any two probers would hang there together.
    rig.put("i", checked(server.port, &[HOST], quick(json!({"path": "/", "timeout_ms": 60_000})))).await;
    let probers = [rig.prober("one"), rig.prober("two"), rig.prober("three")];
    rig.until_unhealthy("i", Some("no answer within 1000 ms")).await;
    assert_eq!(server.most_at_a_time.load(Ordering::SeqCst), 1);
    for (shutdown, prober) in probers {
        shutdown.cancel();
        prober.await.unwrap();
    }
}

#[tokio::test]
async fn hanging_instances_of_one_token_do_not_delay_the_checks_of_others() {
    let rig = Rig::new().await;
    let hanging = Moody::at(200, Mood::Hangs).await;
    for (number, port) in hanging.ports.iter().enumerate() {
        let health = quick(json!({"path": "/", "timeout_ms": 60_000}));
        rig.put(&format!("i-{number}"), checked(*port, &[HOST], health)).await;
    }
    let server = Moody::start(GOOD).await;
    rig.put("quiet", checked(server.port, &["quiet.example"], quick(json!({"path": "/"})))).await;
    let () = rig.fabric("HSET", &["routes:registrants", "quiet", "@quiet"]).await;
    let (shutdown, prober) = rig.prober("one");
    eventually("all have a verdict", async || {
        let policy = rig.policy_of(HOST).await.unwrap_or_default();
        let count = policy["unhealthy"].as_array().map_or(0, Vec::len);
        if count == 200 { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
    let most = hanging.most_at_a_time.load(Ordering::SeqCst);
    assert!((22..=86).contains(&most), "a third of the prompt places and of the slow ones at most: {most}");
    for (mood, why) in [(BAD, Some("status 500")), (GOOD, None)] {
        server.is(mood);
        let start = Instant::now();
        rig.until_unhealthy("quiet", why).await;
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
    shutdown.cancel();
    prober.await.unwrap();
}

#[tokio::test]
async fn hanging_instances_delay_no_checks_of_others_in_a_process_that_may_open_few_files() {
    let rig = Rig::new().await;
    let hanging = Moody::at(60, Mood::Hangs).await;
    for (number, port) in hanging.ports.iter().enumerate() {
        let health = json!({"path": "/", "interval_seconds": 20, "timeout_ms": 20_000});
        let host = format!("h{number}.example");
        rig.put(&format!("i-{number}"), checked(*port, &[&host], health)).await;
    }
    let server = Moody::start(GOOD).await;
    rig.put("quiet", checked(server.port, &["quiet.example"], quick(json!({"path": "/"})))).await;
    let () = rig.fabric("HSET", &["routes:registrants", "quiet", "@quiet"]).await;
    let budget = Budget::new(Limits::of_files(64));
    let (shutdown, prober) = rig.prober_with("one", budget.clone());
    eventually("its calls are used", async || {
        let now = hanging.most_at_a_time.load(Ordering::SeqCst);
        if now >= 3 { Ok(()) } else { Err(now.to_string()) }
    })
    .await;
    for (mood, why) in [(BAD, Some("status 500")), (GOOD, None)] {
        server.is(mood);
        let start = Instant::now();
        rig.until_unhealthy("quiet", why).await;
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
    assert_eq!(budget.calls().waiting, 0, "checks wait for their own places only");
    shutdown.cancel();
    prober.await.unwrap();
}
