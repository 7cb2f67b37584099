//! Events through the bus.

use std::time::Duration;

use anyhow::bail;
use tokio::time::Instant;

use super::testbed::{ARRAY, Audience, DATA, OBJECTS, Split, Testbed};
use crate::{
    compare::median_of,
    histogram::Histogram,
    load::{Choice, Pace, Plan},
    machine::cores,
    report::{Table, grouped},
    session::{Output, Session},
};

/// The target for p99 of the time from acceptance to delivery, in milliseconds, in addition to the requested timeout.
const LATE_TARGET: f64 = 100.0;
/// Deliveries keep up when they are done this soon after the load has ended, beyond what subscribers asked for.
const KEPT_UP: Duration = Duration::from_millis(500);

/// One way to publish.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub(super) audience: Audience,
    /// Events in a request.
    pub(super) events: usize,
    pub(super) connections: usize,
    /// The share of the highest rate to publish at; nothing for as much as goes.
    pub(super) share: Option<f64>,
    /// Events a second that must be accepted.
    pub(super) target: Option<f64>,
}

const WAYS: [Way; 6] = [
    Way { audience: Audience::Ten, events: 1, connections: 256, share: None, target: Some(25_000.0) },
    Way { audience: Audience::One, events: 1, connections: 256, share: None, target: None },
    Way { audience: Audience::One, events: ARRAY, connections: 16, share: None, target: Some(100_000.0) },
    Way { audience: Audience::Ten, events: ARRAY, connections: 16, share: None, target: Some(50_000.0) },
    Way { audience: Audience::Ten, events: 1, connections: 256, share: Some(0.5), target: None },
    Way { audience: Audience::AtOnce, events: 1, connections: 256, share: Some(0.5), target: None },
];

/// The result of one run.
#[derive(Debug)]
pub(super) struct Run {
    elapsed: Duration,
    /// Events that were accepted in it.
    accepted: f64,
    delivered: f64,
    /// From the first request to the last answer.
    wall: Duration,
    /// Of the publish requests.
    publishing: Histogram,
    pub(super) late: Histogram,
    /// Deliveries still to be made at its end, and how long they took.
    left: u64,
    drained: Duration,
    cpu: Split,
}

/// Measures all of it.
pub(super) async fn measure(session: &Session, testbed: &Testbed, output: &mut Output) -> anyhow::Result<()> {
    let mut table = Table::new(
        "events through the bus",
        &[
            "published",
            "subscribers",
            "accepted/s",
            "publish p50, p99 ms",
            "delivered/s",
            "late p50, p99 ms",
            "left, drained in ms",
            "CPU µs per event: pacemaker",
            "Redis",
            "load",
            "receivers",
            "cores busy",
            "target",
        ],
    );
    let mut highest = [0.0; 3];
    for way in WAYS {
        let place = Audience::ALL.iter().position(|audience| *audience == way.audience).unwrap_or(0);
        // A publisher that does not wait publishes at the rate of one that does.
        let of = if highest[place] > 0.0 { highest[place] } else { highest[0] };
        let pace = way.share.map_or(Pace::Closed, |share| Pace::Sleepy { rate: of * share });
        let mut runs = Vec::new();
        let (warm, measured) = if session.quick { (100, 400) } else { (1_000, 4_000) };
        once(testbed, way, pace, Duration::from_millis(warm)).await?;
        for _ in 0..session.rounds.min(3) {
            runs.push(once(testbed, way, pace, Duration::from_millis(measured)).await?);
        }
        let rate = median_of(runs.iter().map(Run::rate));
        if way.events == 1 && way.share.is_none() {
            highest[place] = rate;
        }
        table.rows.push(row(way, &runs, rate));
    }
    table.notes.push(format!(
        "{DATA} bytes of data, {OBJECTS} objects, subscriptions with the default timeout (500 ms), max (100) and \
         concurrency (4); `immediate` has a timeout of 0"
    ));
    table.notes.push(
        "medians of the runs; late: beyond the timeout, or beyond the last event of a full batch; left: deliveries \
         to be made when publishing stopped, with those that wait for their batch to fill"
            .to_owned(),
    );
    if testbed.receivers.behind() > 0 {
        table.notes.push(format!("{} events came out of order or again", testbed.receivers.behind()));
    } else {
        table.notes.push("every delivery was in order for its object, and none came twice".to_owned());
    }
    output.table(table)
}

/// One run.
pub(super) async fn once(testbed: &Testbed, way: Way, pace: Pace, duration: Duration) -> anyhow::Result<Run> {
    let requests = testbed.requests(way.audience, way.events);
    let once = Plan::once(testbed.pacemaker(), requests, way.connections, duration);
    let plan = Plan { choice: Choice::Uniform, pace, ..once };
    let receivers = &testbed.receivers;
    receivers.take_lateness();
    let (begun, cpu, delivered) = (Instant::now(), testbed.cpu(), receivers.events());
    let outcome = testbed.ends.run(plan).await?;
    let (cpu, wall, delivered_then) = (testbed.cpu() - cpu, begun.elapsed(), receivers.events());
    if outcome.failed > 0 {
        bail!("{} publish requests failed: {}", outcome.failed, outcome.first_failure.unwrap_or_default());
    }
    let expected = testbed.expected()?;
    let drained = testbed.drained(expected).await?;
    #[allow(clippy::cast_precision_loss)]
    Ok(Run {
        elapsed: outcome.elapsed,
        accepted: (outcome.completed * way.events as u64) as f64,
        delivered: (delivered_then - delivered) as f64,
        wall,
        publishing: outcome.latency,
        late: receivers.take_lateness(),
        left: expected.saturating_sub(delivered_then),
        drained,
        cpu,
    })
}

impl Run {
    /// Events accepted per second.
    pub(super) fn rate(&self) -> f64 {
        self.accepted / self.elapsed.as_secs_f64()
    }

    /// Events accepted.
    pub(super) fn events(&self) -> f64 {
        self.accepted
    }

    /// The pacemaker's CPU time per event, in µs.
    pub(super) fn pacemaker_cpu(&self) -> f64 {
        self.cpu.pacemaker.as_secs_f64() * 1e6 / self.accepted.max(1.0)
    }
}

impl Way {
    /// In words.
    pub(super) fn describe(self) -> String {
        match (self.events, self.share) {
            (1, None) => format!("one by one, {} connections", self.connections),
            (1, Some(share)) => format!("one by one, {:.0} % of that", share * 100.0),
            (events, _) => format!("arrays of {events}, {} connections", self.connections),
        }
    }
}

#[allow(clippy::cast_precision_loss)]
fn row(way: Way, runs: &[Run], rate: f64) -> Vec<String> {
    let median = |property: &dyn Fn(&Run) -> f64| median_of(runs.iter().map(property));
    let cost = |part: &dyn Fn(&Split) -> Duration| {
        format!("{:.1}", median(&|run| part(&run.cpu).as_secs_f64() * 1e6 / run.accepted.max(1.0)))
    };
    let quantiles = |of: &dyn Fn(&Run) -> &Histogram| {
        let at = |share| median(&|run| of(run).quantile(share) as f64 / 1e6);
        (at(0.5), at(0.99))
    };
    let (publishing, late) = (quantiles(&|run| &run.publishing), quantiles(&|run| &run.late));
    let kept_up = runs.iter().all(|run| run.drained <= way.audience.timeout() + KEPT_UP);
    let mut targets = Vec::new();
    if let Some(target) = way.target {
        let met = rate >= target && kept_up;
        let but = if kept_up { "" } else { ", deliveries do not keep up" };
        targets.push(format!("≥ {}/s {}{but}", grouped(target), if met { "met" } else { "missed" }));
    }
    if way.share.is_some() {
        targets
            .push(format!("late < {LATE_TARGET:.0} {}", if late.1 < LATE_TARGET { "met" } else { "missed" }));
    }
    vec![
        way.describe(),
        if way.audience == Audience::AtOnce {
            "1, immediate".to_owned()
        } else {
            way.audience.subscribers().to_string()
        },
        grouped(rate),
        format!("{:.1}, {:.1}", publishing.0, publishing.1),
        grouped(median(&|run| run.delivered / run.wall.as_secs_f64())),
        format!("{:.0}, {:.0}", late.0, late.1),
        format!(
            "{}, {:.0}",
            grouped(median(&|run| run.left as f64)),
            median(&|run| run.drained.as_secs_f64() * 1e3)
        ),
        cost(&|cpu| cpu.pacemaker),
        cost(&|cpu| cpu.redis),
        cost(&|cpu| cpu.load),
        cost(&|cpu| cpu.receivers),
        format!(
            "{:.1} of {}",
            median(&|run| run.cpu.machine.as_secs_f64() / run.wall.as_secs_f64()),
            cores().len()
        ),
        targets.join(", "),
    ]
}
