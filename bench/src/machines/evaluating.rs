//! How many conditions one core judges in a second.

use std::{hint::black_box, time::Duration};

use anyhow::{Context as _, ensure};
use jiff::{Timestamp, tz::TimeZone};
use serde_json::{Map, Value, json};
use signalbox_condition::{Condition, Facts, KnownFeeds, Visit};
use tokio::{task::spawn_blocking, time::Instant};

use crate::{
    compare::median_of,
    machine::pin_current_thread,
    report::{Table, grouped},
    session::{Output, Session},
};

/// The target: evaluations per second on one core.
const TARGET: f64 = 5_000_000.0;

/// A condition that is evaluated.
struct Subject {
    name: &'static str,
    text: &'static str,
}

const SUBJECTS: [Subject; 3] = [
    Subject {
        name: "the onboarding emails: a metadata path, a duration, the time of day",
        text: "metadata.has_recommendations and 12h has passed since system.entered_state and system.time >= 18:30",
    },
    Subject {
        name: "the canary: two values of a feed",
        text: "(metadata.calm_seconds has passed since system.entered_state and feeds.five.requests >= 100 \
               and feeds.five.5xx_percentage <= 1) or metadata.abort is defined or \
               30m has passed since system.entered_state",
    },
    Subject { name: "a metadata path", text: "metadata.plan = \"pro\"" },
];

pub(super) async fn measure(session: &Session, output: &mut Output) -> anyhow::Result<()> {
    let times = if session.quick { 200_000 } else { 2_000_000 };
    let mut table = Table::new(
        "conditions evaluated on one core",
        &["condition", "zone", "evaluations per second", "ns each", "target"],
    );
    for subject in SUBJECTS {
        for zone in ["UTC", "Europe/London"] {
            let mut rates = Vec::new();
            for _ in 0..=session.rounds.min(5) {
                let (text, core) = (subject.text, session.cores.worker);
                rates.push(spawn_blocking(move || evaluate(text, zone, times, core)).await??);
            }
            // The first run warms the core up.
            let rate = median_of(rates.into_iter().skip(1));
            table.rows.push(vec![
                subject.name.to_owned(),
                zone.to_owned(),
                grouped(rate),
                format!("{:.0}", 1e9 / rate),
                format!("≥ {} {}", grouped(TARGET), if rate >= TARGET { "met" } else { "MISSED" }),
            ]);
        }
    }
    table.notes.push(format!(
        "medians of the runs of {} each; metadata is built for each evaluation, as for each label, and every \
         condition is true, so that each of its parts is evaluated",
        grouped(f64::from(times))
    ));
    output.table(table)
}

/// Evaluates a condition this many times on one core; returns the rate per second.
fn evaluate(text: &str, zone: &str, times: u32, core: usize) -> anyhow::Result<f64> {
    // A thread of the runtime's pool would remain pinned.
    std::thread::scope(|scope| {
        let judging = scope.spawn(|| {
            pin_current_thread(&[core])?;
            let condition =
                Condition::parse(text, KnownFeeds::Any).map_err(|error| anyhow::anyhow!("{error}"))?;
            let (metadata, feeds) = facts();
            let zone = TimeZone::get(zone)?;
            let (entered, now): (Timestamp, Timestamp) =
                ("2026-01-31T06:00:00Z".parse()?, "2026-01-31T18:45:00Z".parse()?);
            let visit =
                Visit { entered, previous_state: None, state_machine: Some("machine"), label: Some("label") };
            let (begun, mut held) = (Instant::now(), 0);
            for _ in 0..times {
                let facts = Facts::new(black_box(&metadata), &feeds, visit, black_box(now), &zone);
                held += u32::from(condition.evaluate(&facts).is_ok_and(|verdict| verdict.truth.holds()));
            }
            let elapsed = begun.elapsed().max(Duration::from_nanos(1));
            ensure!(held == times, "{text} held {held} times of {times}");
            Ok(f64::from(times) / elapsed.as_secs_f64())
        });
        judging
            .join()
            .map_err(|_| anyhow::anyhow!("the thread that judges has panicked"))
            .context("judging")?
    })
}

/// The metadata of a label, and the answer of its feed.
fn facts() -> (Value, Map<String, Value>) {
    let metadata = json!({
        "has_recommendations": true, "calm_seconds": 600, "plan": "pro", "user": {"blocked": false},
        "email": "someone@example.org", "signed_up": "2026-01-01T00:00:00Z", "orders": 3, "score": 0.75,
    });
    let five = json!({"requests": 5000, "5xx_percentage": 0.2, "time_average_ms": 12.5});
    (metadata, Map::from_iter([("five".to_owned(), five)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_condition_holds() {
        for subject in SUBJECTS {
            let core = crate::machine::cores()[0];
            assert!(evaluate(subject.text, "Europe/London", 10, core).unwrap() > 0.0);
        }
        evaluate("metadata.plan = \"free\"", "UTC", 10, crate::machine::cores()[0]).unwrap_err();
    }
}
