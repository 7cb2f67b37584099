//! The server that actions and feeds call. It answers correctly most of the time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use signalbox_tests::receiver::{Answer, Delivery, Receiver};

use super::plan::Plan;

/// One in this many attempts of a visit may fail.
const UNRULY: u32 = 3;

/// The calls received, and those that are expected.
pub(super) struct Outside {
    plans: BTreeMap<String, Plan>,
    came: Mutex<Came>,
    random: Mutex<StdRng>,
}

#[derive(Default)]
struct Came {
    /// Label → tokens that its actions came with, and how often.
    tokens: BTreeMap<String, BTreeMap<String, u32>>,
    flaws: Vec<String>,
}

impl Outside {
    pub(super) fn new(plans: &[Plan], seed: u64) -> Arc<Self> {
        let plans = plans.iter().map(|plan| (plan.name.clone(), plan.clone())).collect();
        Arc::new(Self { plans, came: Mutex::default(), random: Mutex::new(StdRng::seed_from_u64(seed)) })
    }

    pub(super) async fn open(self: &Arc<Self>) -> Receiver {
        let outside = Arc::clone(self);
        Receiver::passing(move |delivery| outside.answer(delivery)).await
    }

    fn came(&self) -> std::sync::MutexGuard<'_, Came> {
        self.came.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, delivery: &Delivery) -> Answer {
        let target = delivery.line.split(' ').nth(1).unwrap_or_default();
        let mut parts = target.trim_start_matches('/').splitn(2, '/');
        let (room, label) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let Some(plan) = self.plans.get(label) else {
            self.came().flaws.push(format!("no label is called with {}", delivery.line));
            return Answer::status("404 Not Found");
        };
        match room {
            "ways" => self.feed(&json!({"way": if plan.left { "left" } else { "right" }})),
            "load" => self.feed(&json!({"value": 1})),
            "maybe" => self.feed(&json!({"ok": true})),
            "hopeless" => {
                self.note(plan, delivery);
                Answer::status("503 Service Unavailable")
            }
            _ => self.action(plan, room, delivery),
        }
    }

    fn feed(&self, value: &Value) -> Answer {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        if random.random_bool(0.8) {
            return Answer::Bytes(ok(&value.to_string()));
        }
        match random.random_range(0..8) {
            0 => hang(),
            1 => Answer::status("500 Internal Server Error"),
            2 => Answer::Bytes(ok("neither here nor there")),
            3 => Answer::Bytes(b"garbage\r\n\r\n".to_vec()),
            // All but the end of what is larger than may be.
            4 => Answer::Endless,
            5 => Answer::Close,
            6 => Answer::EndlessChunks,
            _ => Answer::After(Duration::from_millis(300), Box::new(Answer::Bytes(ok(&value.to_string())))),
        }
    }

    fn action(&self, plan: &Plan, room: &str, delivery: &Delivery) -> Answer {
        let (token, attempt, body) = self.note(plan, delivery);
        if plan.gone && room == "call" && body["metadata"]["last"] == true {
            return Answer::status("410 Gone");
        }
        // The result that the definition stores.
        let receipt = json!({"receipt": token}).to_string();
        let good = || match room {
            "call" => Answer::Bytes(ok(&receipt)),
            _ if plan.is_refused() => Answer::status("422 Unprocessable Entity"),
            _ => Answer::status("200 OK"),
        };
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        if attempt > UNRULY || random.random_bool(0.7) {
            return good();
        }
        match random.random_range(0..10) {
            0 => hang(),
            1 => Answer::status("500 Internal Server Error"),
            2 => Answer::status("503 Service Unavailable\r\nRetry-After: 1"),
            3 => Answer::status("302 Found\r\nLocation: http://127.0.0.1:9/"),
            4 => Answer::Bytes(b"garbage\r\n\r\n".to_vec()),
            5 => Answer::Close,
            6 => Answer::Broken(b"HTTP/1.1 200 O".to_vec()),
            7 => Answer::EndlessHead,
            // Taken, if with many words, unless they are needed.
            8 if !plan.is_refused() || room == "call" => Answer::Endless,
            _ => Answer::After(Duration::from_millis(500), Box::new(good())),
        }
    }

    /// Enters an attempt. Returns its token, its number, and its body.
    fn note(&self, plan: &Plan, delivery: &Delivery) -> (String, u32, Value) {
        let token = delivery.header("X-Idempotency-Token").unwrap_or_default().to_owned();
        let body: Value = serde_json::from_slice(&delivery.body).unwrap_or_default();
        let mut came = self.came();
        if body["label"] != plan.name.as_str() {
            came.flaws.push(format!("{}: {body}", delivery.line));
        }
        let count = came.tokens.entry(plan.name.clone()).or_default().entry(token.clone()).or_default();
        *count += 1;
        (token, *count, body)
    }

    /// How often actions were tried.
    pub(super) fn attempts(&self) -> u64 {
        self.came().tokens.values().flat_map(BTreeMap::values).map(|count| u64::from(*count)).sum()
    }

    /// Unexpected calls, and expected calls that are missing. `expected` has the tokens of each label, with whether they are
    /// certain.
    pub(super) fn audit(&self, expected: &BTreeMap<String, BTreeMap<String, bool>>) -> Vec<String> {
        let came = self.came();
        let mut flaws = came.flaws.clone();
        for label in self.plans.keys() {
            let found: BTreeSet<String> =
                came.tokens.get(label).into_iter().flat_map(BTreeMap::keys).cloned().collect();
            let tokens = expected.get(label).into_iter().flatten();
            let tokens = tokens.filter(|(token, certain)| **certain || found.contains(*token));
            let expected: BTreeSet<String> = tokens.map(|(token, _)| token.clone()).collect();
            if found != expected {
                flaws.push(format!("{label}: tokens {found:?} came, not {expected:?}"));
            }
        }
        flaws
    }
}

/// Silence for longer than any timeout of the machine. It is limited because there may be thousands
/// of these.
fn hang() -> Answer {
    Answer::After(Duration::from_secs(4), Box::new(Answer::Close))
}

fn ok(body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
