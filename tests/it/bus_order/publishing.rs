//! Publishers: each request is repeated under its idempotency key, through another pacemaker, until every event in it is
//! accepted.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use signalbox_tests::{
    fleet::Fleet,
    http::{Connection, Request, Response},
    ledger::{Ledger, Published},
};
use tokio::time;

use super::{OBJECTS, PACEMAKERS, TOPICS};

/// One request of a publisher.
struct Array {
    key: String,
    topic: &'static str,
    numbers: Range<usize>,
    body: String,
}

/// Everything that is published, the same for the same seed.
pub(super) struct Plan {
    pub(super) published: Vec<Published>,
    arrays: Vec<Array>,
}

impl Plan {
    pub(super) fn new(random: &mut StdRng, events: usize, request: usize) -> Self {
        let mut plan = Self { published: Vec::with_capacity(events), arrays: Vec::new() };
        while plan.published.len() < events {
            // Most events come in arrays, many requests are single ones.
            let count = if random.random_bool(0.3) { 1 } else { random.random_range(50..request) };
            let count = count.min(events - plan.published.len());
            let topic = TOPICS[usize::from(random.random_bool(0.15))];
            let first = plan.published.len();
            let bodies: Vec<String> = (first..first + count).map(|n| plan.event(n, topic, random)).collect();
            let body = if count == 1 { bodies[0].clone() } else { format!("[{}]", bodies.join(",")) };
            plan.arrays.push(Array {
                key: format!("request-{}", plan.arrays.len()),
                topic,
                numbers: first..first + count,
                body,
            });
        }
        plan
    }

    fn event(&mut self, number: usize, topic: &str, random: &mut StdRng) -> String {
        // Some objects are far busier than others.
        let object = (random.random_range(0.0..1.0_f64).powi(2) * OBJECTS as f64) as usize;
        let url = format!("https://shop.example/{object}");
        let padding = "x".repeat(random.random_range(0..60));
        let event = format!(
            r#"{{"type":"update","url":"{url}","timestamp":{number},"data":{{"n":{number},"p":"{padding}"}}}}"#
        );
        self.published.push(Published { topic: topic.to_owned(), url });
        event
    }
}

/// State shared by all publishers.
pub(super) struct Publishing {
    pub(super) fleet: Arc<Fleet>,
    plan: Plan,
    pub(super) ledger: Arc<Ledger>,
    next: AtomicUsize,
    /// Events up to this number may be published: publishing lasts as long as the killing.
    pub(super) allowed: AtomicUsize,
    pub(super) again: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) broken: AtomicU64,
}

impl Publishing {
    pub(super) fn new(fleet: &Arc<Fleet>, plan: Plan, ledger: &Arc<Ledger>) -> Self {
        Self {
            fleet: Arc::clone(fleet),
            plan,
            ledger: Arc::clone(ledger),
            next: AtomicUsize::new(0),
            allowed: AtomicUsize::new(0),
            again: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            broken: AtomicU64::new(0),
        }
    }

    /// Publishes one request after the other, each until all of its events are accepted.
    pub(super) async fn run(self: Arc<Self>, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut connections: [Option<Connection>; PACEMAKERS] = Default::default();
        loop {
            let Some(array) = self.plan.arrays.get(self.next.fetch_add(1, Ordering::SeqCst)) else { return };
            while self.allowed.load(Ordering::SeqCst) < array.numbers.start {
                time::sleep(Duration::from_millis(2)).await;
            }
            let mut at = random.random_range(0..PACEMAKERS);
            while !self.attempt(&mut connections[at], at, array).await {
                // An outcome that is unknown, or a refusal: the same again, by way of another.
                self.again.fetch_add(1, Ordering::Relaxed);
                at = (at + 1) % PACEMAKERS;
                time::sleep(Duration::from_millis(random.random_range(1..30))).await;
            }
            if random.random_bool(0.05) {
                // Repeating an accepted request returns the same events.
                at = (at + 1) % PACEMAKERS;
                self.attempt(&mut connections[at], at, array).await;
            }
        }
    }

    /// True when every event of the request is accepted.
    async fn attempt(&self, connection: &mut Option<Connection>, at: usize, array: &Array) -> bool {
        match self.send(connection, at, array).await {
            Ok(answer) => self.accepted(array, &answer),
            Err(_) => {
                *connection = None;
                self.broken.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    async fn send(
        &self,
        connection: &mut Option<Connection>,
        at: usize,
        array: &Array,
    ) -> std::io::Result<Response> {
        let to = self.fleet.address(at);
        let mut open = match connection.take() {
            Some(open) => open,
            None => Connection::open(to).await?,
        };
        let many = if array.numbers.len() > 1 { "/events" } else { "" };
        let request = Request::new("POST", &to.to_string(), &format!("/topics/{}{many}", array.topic))
            .token("shop")
            .header("Content-Type", "application/json")
            .header("Idempotency-Key", &array.key)
            .body(array.body.as_bytes());
        let answer = open.send(&request).await?;
        *connection = answer.keeps_alive().then_some(open);
        Ok(answer)
    }

    fn accepted(&self, array: &Array, answer: &Response) -> bool {
        match answer.status {
            200 if array.numbers.len() == 1 => {
                let id = answer.header("X-Signalbox-Event-Id").and_then(|id| id.parse().ok());
                id.inspect(|id| self.ledger.accept(array.numbers.start, *id)).is_some()
            }
            200 => {
                let results = answer.json();
                let results = results.as_array().expect("a result for each event");
                assert_eq!(results.len(), array.numbers.len(), "a result for each event");
                let mut all = true;
                for (number, result) in array.numbers.clone().zip(results) {
                    match (result["status"].as_u64(), result["id"].as_u64()) {
                        (Some(200), Some(id)) => self.ledger.accept(number, id),
                        (Some(503), None) => {
                            self.refused.fetch_add(1, Ordering::Relaxed);
                            all = false;
                        }
                        _ => self.ledger.flaw(format!("event {number}: {result}")),
                    }
                }
                all
            }
            503 => {
                if answer.header("Retry-After").is_none() {
                    self.ledger.flaw(format!("503 without Retry-After: {answer:?}"));
                }
                self.refused.fetch_add(array.numbers.len() as u64, Ordering::Relaxed);
                false
            }
            _ => {
                self.ledger.flaw(format!("{} was answered {answer:?}", array.key));
                false
            }
        }
    }
}
