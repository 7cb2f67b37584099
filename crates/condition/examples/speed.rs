//! How many conditions a core evaluates in a second: `cargo run --release -p signalbox-condition --example speed`.

use std::hint::black_box;
#[allow(clippy::disallowed_types, reason = "a measurement is about real time")]
use std::time::Instant;

use jiff::{Timestamp, tz::TimeZone};
use serde_json::json;
use signalbox_condition::{Condition, Facts, KnownFeeds, Visit};

const CONDITIONS: [(&str, &str); 4] = [
    (
        "drip feed",
        "metadata.has_recommendations and 12h has passed since system.entered_state and system.time >= 18:30",
    ),
    (
        "canary",
        "(metadata.calm_seconds has passed since system.entered_state and feeds.five.requests >= 100 \
         and feeds.five.5xx_percentage <= 1) or metadata.abort is defined or 30m has passed since system.entered_state",
    ),
    ("a fact", "metadata.plan = \"pro\""),
    ("a list", "metadata.plan is in [\"free\", \"pro\", \"team\"] and not metadata.user.blocked"),
];

#[allow(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement prints real time")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let metadata = json!({
        "has_recommendations": true, "calm_seconds": 600, "plan": "pro", "user": {"blocked": false, "name": "x"},
        "email": "someone@example.org", "signed_up": "2026-01-01T00:00:00Z", "orders": 3, "score": 0.75,
    });
    let five = json!({"five": {"requests": 5000, "5xx_percentage": 0.2, "time_average_ms": 12.5}});
    let feeds = five.as_object().cloned().unwrap_or_default();
    let entered: Timestamp = "2026-01-31T06:00:00Z".parse()?;
    let now: Timestamp = "2026-01-31T18:45:00Z".parse()?;
    for zone in ["UTC", "Europe/London"] {
        let zone_found = TimeZone::get(zone)?;
        for (name, text) in CONDITIONS {
            let condition = Condition::parse(text, KnownFeeds::Any)?;
            let visit = Visit { entered, previous_state: None, state_machine: Some("m"), label: Some("l") };
            let run = |times: u32| {
                let begun = Instant::now();
                for _ in 0..times {
                    // The facts are built each time, as they are for each label.
                    let facts = Facts::new(black_box(&metadata), &feeds, visit, black_box(now), &zone_found);
                    assert!(condition.evaluate(&facts).is_ok_and(|verdict| verdict.truth.holds()), "{name}");
                }
                f64::from(times) / begun.elapsed().as_secs_f64()
            };
            // The best of many short runs, which is least affected by other load on the machine.
            let best = (0..200).map(|_| run(20_000)).fold(0.0, f64::max);
            println!("{name:<12} {zone:<14} {best:>12.0} evaluations/s");
        }
    }
    Ok(())
}
