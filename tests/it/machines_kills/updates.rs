//! Clients that send facts: each request is repeated until it is answered, through any pacemaker that is up.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use signalbox_tests::{fleet::Fleet, http::Request};
use tokio::{sync::watch, time};

use super::{
    ledger::Ledger,
    plan::{ANSWERS, Kind, MACHINE, Plan},
};

/// State that all updaters share.
pub(super) struct Updates {
    pub(super) fleet: Arc<Fleet>,
    pub(super) ledger: Arc<Ledger>,
    /// How long a label may take from one step to the next.
    pub(super) patience: Duration,
    pub(super) again: AtomicU64,
}

impl Updates {
    /// Brings one label all its way.
    pub(super) async fn run(self: Arc<Self>, plan: Plan, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut visits = self.ledger.visits(&plan.name);
        let label = format!("/state-machines/{MACHINE}/labels/{}", plan.name);
        self.update(
            ("POST", &label),
            super::plan::CREATE,
            &json!({"metadata": {"created": true}}),
            &mut random,
        )
        .await;
        for (place, kind) in plan.laps.iter().enumerate() {
            let (lap, last) = (place + 1, place + 1 == plan.laps.len());
            let mut go = json!({"metadata": {"go": lap, "lap": lap, "kind": kind.word(), "last": last}});
            if *kind == Kind::Due {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "the time of the label is one of the real clock"
                )]
                let due = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                // The time of some is over already.
                go["metadata"]["due"] = json!(due.as_secs() + random.random_range(0..4));
            }
            self.update(("PATCH", &label), &format!("go-{lap}"), &go, &mut random).await;
            // No gate waits for this update, but it must be stored in the end.
            let noise = json!({"metadata": {"noise": {lap.to_string(): lap}}});
            self.update(("PATCH", &label), &format!("noise-{lap}"), &noise, &mut random).await;
            if *kind == Kind::Ask {
                self.comes(&plan, &mut visits, plan.visit("ask", lap)).await;
                for number in 0..ANSWERS {
                    let url = format!("https://trial.test/{}", plan.name);
                    let answer = json!({"type": "update", "url": url, "data": plan.answer(lap, number)});
                    let key = format!("{}-{lap}-{number}", plan.name);
                    self.update(("POST", "/topics/answers"), &key, &answer, &mut random).await;
                }
            }
            if plan.gone && last {
                break;
            }
            self.comes(&plan, &mut visits, plan.visit("round", lap)).await;
            let round = json!({"metadata": {"round": lap}});
            self.update(("PATCH", &label), &format!("round-{lap}"), &round, &mut random).await;
            if !last {
                // Its next lap begins where it has come round.
                self.comes(&plan, &mut visits, plan.visit("start", lap)).await;
            }
        }
        self.comes(&plan, &mut visits, plan.path().len() as u64).await;
    }

    /// Waits until the label has come so far.
    async fn comes(&self, plan: &Plan, visits: &mut watch::Receiver<u64>, visit: u64) {
        let came = time::timeout(self.patience, visits.wait_for(|now| *now >= visit)).await.is_ok();
        if came {
            return;
        }
        let target = format!("/state-machines/{MACHINE}/labels/{}", plan.name);
        let token = &self.fleet.system.token;
        let why = self.fleet.call(0, token, "GET", &format!("{target}/why"), None).await;
        let stands = self.fleet.call(0, token, "GET", &target, None).await;
        panic!("{plan:?} does not reach visit {visit}: {} {}", stands.text(), why.text());
    }

    /// One request, until it is taken.
    async fn update(&self, (method, target): (&str, &str), key: &str, body: &Value, random: &mut StdRng) {
        let started = time::Instant::now();
        loop {
            let at = random.random_range(0..self.fleet.len());
            let to = self.fleet.address(at);
            let token = if target.starts_with("/topics") { "shop" } else { &self.fleet.system.token };
            let request = Request::new(method, &to.to_string(), target).token(token).json(body);
            match request.header("Idempotency-Key", key).send(to).await {
                Ok(answer) if matches!(answer.status, 200 | 201) => return,
                // Its outcome is unknown, or it was refused for now: the same again, by way of another.
                Ok(answer) if answer.status == 503 => {}
                Ok(answer) => self.ledger.flaw(format!("{method} {target} {key}: {answer:?}")),
                Err(_) => {}
            }
            self.again.fetch_add(1, Ordering::Relaxed);
            assert!(started.elapsed() < self.patience, "no pacemaker accepts {method} {target} {key}");
            time::sleep(Duration::from_millis(random.random_range(10..100))).await;
        }
    }
}
