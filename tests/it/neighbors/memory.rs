//! Neighbors that share memory of the fabric and of the event log.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::{Request, Response},
    receiver,
    system::System,
};

/// The limit of the fabric's memory in these tests.
const MEMORY: u64 = 40 << 20;
/// Bytes of data in an event of the noisy tenant.
const LARGE: usize = 10_000;

/// A system with a tenant whose twenty events wait for a receiver that is down.
struct World {
    system: System,
    publisher: String,
    /// The token of the tenant's subscriber.
    victim: String,
    /// It accepts connections and never responds.
    silent: tokio::net::TcpListener,
}

async fn ask(system: &System, token: &str, method: &str, target: &str, body: Option<&Value>) -> Response {
    let request = Request::new(method, &system.pacemaker.to_string(), target).token(token);
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    request.send(system.pacemaker).await.unwrap_or_else(|error| panic!("{method} {target}: {error}"))
}

impl World {
    async fn new(name: &str, settings: &[(&str, i64)]) -> Self {
        let mut bus = receiver::allowed();
        bus.insert("delivery_ms".to_owned(), 1_000.into());
        bus.insert("housekeeping_ms".to_owned(), 200.into());
        bus.extend(settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())));
        let system = System::with(name, |builder| builder.without_sidecar().pacemaker("bus", bus)).await;
        let publisher = system.token("publisher", &["publish"]).await;
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut world = Self { system, publisher, victim: String::new(), silent };
        world.victim = world.subscribe("victim", "small").await;
        assert_eq!(world.publish("quiet", "small", 20, 10).await.status, 200);
        world
    }

    /// Subscribes a client to a topic, with the receiver that is down. Returns the client's token.
    async fn subscribe(&self, name: &str, topic: &str) -> String {
        let token = self.system.token(name, &["subscribe"]).await;
        let callback = format!("http://{}/", self.silent.local_addr().unwrap());
        let subscription = json!({"topics": [topic], "callback": callback, "uuid": "u", "timeout": 0});
        let made = ask(&self.system, &token, "POST", "/subscription", Some(&subscription)).await;
        assert_eq!(made.status, 204, "{}", made.text());
        token
    }

    /// Publishes an array of events, of different objects.
    async fn publish(&self, tenant: &str, topic: &str, count: usize, bytes: usize) -> Response {
        let data = "x".repeat(bytes);
        let event = |number| json!({"type": "noop", "url": format!("https://a.test/{number}"), "tenant": tenant, "data": data});
        let events: Value = (0..count).map(event).collect();
        ask(&self.system, &self.publisher, "POST", &format!("/topics/{topic}/events"), Some(&events)).await
    }

    async fn fabric<T: redis::FromRedisValue>(&self, command: &str) -> T {
        self.system.cli(System::FABRIC, command).await
    }

    async fn limit_memory(&self) {
        let _: String = self.fabric(&format!("CONFIG SET maxmemory {MEMORY}")).await;
    }

    /// Publishes until a publish is rejected because memory is short.
    async fn fill(&self, topic: &str) {
        eventually("the noisy tenant to be rejected", || async {
            for _ in 0..10 {
                let sent = self.publish("loud", topic, 80, LARGE).await;
                if sent.status == 429 && sent.json()["code"] == "tenant_limit_reached" {
                    return Ok(());
                }
            }
            Err("everything was accepted")
        })
        .await;
    }

    /// The victim's events wait still, and its publishes are accepted.
    async fn assert_victim_is_served(&self) {
        let waiting: Vec<(String, u64)> = self.fabric("HGETALL bus:batches:gauges:event").await;
        assert!(waiting.iter().any(|(_, events)| *events == 20), "{waiting:?}");
        let sent = self.publish("quiet", "other", 1, 10).await;
        assert_eq!(sent.status, 200, "{}", sent.text());
        assert!(sent.json()[0].get("id").is_some(), "{}", sent.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_whose_queue_fills_the_memory_is_rejected_and_others_lose_nothing() {
    let world = World::new("memory-queue", &[]).await;
    let queue = json!({"pattern": "loud:.*"});
    let made = ask(&world.system, &world.system.token, "PUT", "/queues/backlog", Some(&queue)).await;
    assert_eq!(made.status, 201, "{}", made.text());
    world.limit_memory().await;
    world.fill("large").await;
    world.assert_victim_is_served().await;
    let waiting: u64 = world.fabric("HGET queue:backlog|count waiting").await;
    assert!(waiting > 500, "{waiting}");
    world.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_subscriber_does_not_keep_more_of_the_log_than_its_limit() {
    let world = World::new("memory-paused", &[("log_bytes", 200_000)]).await;
    // A subscriber that is only slow keeps the parts of the log that it needs.
    let ended = ask(&world.system, &world.victim, "DELETE", "/subscription", None).await;
    assert_eq!(ended.status, 204, "{}", ended.text());
    let paused = world.subscribe("paused", "rare").await;
    let pause = ask(&world.system, &paused, "PATCH", "/subscription", Some(&json!({"paused": true}))).await;
    assert!(pause.status < 300, "{}", pause.text());
    assert_eq!(world.publish("loud", "rare", 1, 10).await.status, 200);
    for _ in 0..10 {
        assert_eq!(world.publish("loud", "unread", 80, LARGE).await.status, 200);
    }
    eventually("the log to be as small as configured", || async {
        let segments: Vec<u64> = world.fabric("HVALS bus:log").await;
        let log: u64 = segments.iter().sum();
        if log <= 200_000 { Ok(()) } else { Err(log) }
    })
    .await;
    let gaps: Vec<String> = world.fabric("KEYS bus:gaps:*").await;
    assert!(gaps.is_empty(), "the one event that it waits for is kept: {gaps:?}");
    world.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_publishes_without_a_subscriber_disturbs_no_other() {
    let world = World::new("memory-unread", &[]).await;
    world.limit_memory().await;
    for _ in 0..60 {
        world.publish("loud", "unread", 80, LARGE).await;
    }
    world.assert_victim_is_served().await;
    world.system.stop().await;
}

/// No tenant of the noisy client has as many bytes as the only one of the victim.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_fills_the_memory_with_many_tenants_is_rejected_before_a_tenant_with_one() {
    let world = World::new("memory-tenants", &[]).await;
    let queue = json!({"pattern": ".*"});
    let made = ask(&world.system, &world.system.token, "PUT", "/queues/backlog", Some(&queue)).await;
    assert_eq!(made.status, 201, "{}", made.text());
    assert_eq!(world.publish("quiet", "other", 80, LARGE).await.status, 200);
    world.limit_memory().await;
    let spreader = world.system.token("spreader", &["publish"]).await;
    let (number, data) = (AtomicUsize::new(0), "x".repeat(LARGE));
    eventually("the client to be rejected", || async {
        for _ in 0..10 {
            let event = |_| {
                let tenant = format!("e{}", number.fetch_add(1, Ordering::Relaxed));
                json!({"type": "noop", "url": "https://b.test/1", "tenant": tenant, "data": data})
            };
            let events: Value = (0..80).map(event).collect();
            let sent = ask(&world.system, &spreader, "POST", "/topics/spread/events", Some(&events)).await;
            if sent.status == 429 && sent.json()["code"] == "tenant_limit_reached" {
                return Ok(());
            }
        }
        Err("everything was accepted")
    })
    .await;
    world.assert_victim_is_served().await;
    world.system.stop().await;
}

/// A text that cannot be compressed much: labels are stored compressed.
fn noise(seed: u64) -> String {
    let mut state = seed + 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'0' + (state >> 32) as u8 % 75)
    };
    (0..60_000).map(next).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_labels_fill_the_memory_gets_no_more_and_others_lose_nothing() {
    let world = World::new("memory-labels", &[]).await;
    let definition = "
state_machines:
  large:
    states:
      - {gate: wait, exit_condition: metadata.done, triggers: [{metadata: done}], next: end}
      - {gate: end}
";
    world.system.apply("large", definition).await;
    let _: String = world.fabric(&format!("CONFIG SET maxmemory {}", MEMORY / 2)).await;
    let number = AtomicUsize::new(0);
    eventually("the machine to be rejected", || async {
        for _ in 0..20 {
            let label = number.fetch_add(1, Ordering::Relaxed);
            let target = format!("/state-machines/large/labels/{label}");
            let metadata = json!({"metadata": {"data": noise(label as u64)}});
            let created = ask(&world.system, &world.system.token, "POST", &target, Some(&metadata)).await;
            if created.status == 429 && created.json()["code"] == "label_limit_reached" {
                return Ok(());
            }
        }
        Err("everything was accepted")
    })
    .await;
    world.assert_victim_is_served().await;
    // Labels that exist continue to move.
    let done = json!({"metadata": {"done": true}});
    let target = "/state-machines/large/labels/0";
    let moved = ask(&world.system, &world.system.token, "PATCH", target, Some(&done)).await;
    assert_eq!(moved.status, 200, "{}", moved.text());
    world.system.stop().await;
}
