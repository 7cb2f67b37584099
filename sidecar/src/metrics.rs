//! All metrics of the sidecar.
//!
//! Counters of the node (lines, bad lines, gaps) are stored in the statistics Redis with each commit and survive restarts.
//! The others belong to this process. No label contains a name, so the page has a fixed size.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, text::encode},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};
use signalbox_daemon::traces::Counts;

use crate::{
    edge::{self, Report},
    follow::service::{Condition, Progress, Watch},
};

/// The page at `/metrics`.
#[derive(Debug)]
pub struct Metrics(Registry);

impl Metrics {
    /// Metrics of a follower, of nginx, and of exported spans. `clock` returns unix milliseconds.
    pub fn new(follower: Watch, edge: edge::Watch, spans: Counts, clock: fn() -> u64) -> Self {
        let mut registry = Registry::with_prefix("signalbox_sidecar");
        registry.register_collector(Box::new(Sidecar { follower, edge, spans, clock }));
        Self(registry)
    }

    /// The page, as OpenMetrics text.
    pub fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a string does not fail. If it did, a partial page would be better than none.
        if encode(&mut page, &self.0).is_err() {
            tracing::error!("metrics page incomplete");
        }
        page
    }
}

#[derive(Debug)]
struct Sidecar {
    follower: Watch,
    edge: edge::Watch,
    spans: Counts,
    clock: fn() -> u64,
}

impl Collector for Sidecar {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let progress = self.follower.progress();
        counted(&mut encoder, &progress)?;
        health(&mut encoder, &progress, (self.clock)())?;
        router(&mut encoder, &self.edge.report())?;
        counter(&mut encoder, "spans_sent", "Spans that the trace collector accepted", self.spans.sent())?;
        let help = "Spans that the trace collector did not accept in time";
        counter(&mut encoder, "spans_lost", help, self.spans.lost())
    }
}

fn counted(encoder: &mut DescriptorEncoder<'_>, progress: &Progress) -> std::fmt::Result {
    let tally = progress.tally;
    for (name, help, value) in [
        ("lines", "Log lines counted by this node", tally.lines),
        ("bad_lines", "Log lines that could not be parsed", tally.bad_lines),
        ("gaps", "Times that log data was lost, or may have been", tally.gaps),
        ("gap_bytes", "Bytes known to be lost in gaps", tally.gap_bytes),
        ("commits", "Commits to the statistics Redis", progress.commits),
        ("failed_steps", "Failed attempts to count, which are retried", progress.failures),
        (
            "refused_increments",
            "Increments lost because a key or field in the statistics Redis has the wrong type",
            progress.refused,
        ),
        ("rotations", "Rotations of the log", progress.rotations),
    ] {
        counter(encoder, name, help, value)?;
    }
    Ok(())
}

fn health(encoder: &mut DescriptorEncoder<'_>, progress: &Progress, now_ms: u64) -> std::fmt::Result {
    let is = |condition: Condition| f64::from(progress.condition == condition);
    let fenced = f64::from(matches!(progress.condition, Condition::Fenced { .. }));
    for (name, help, value) in [
        ("lag_bytes", "Bytes of the log that are not counted yet", progress.lag_bytes as f64),
        ("lag_seconds", "Delay of the counters behind the log", progress.lag_ms(now_ms) as f64 / 1000.0),
        ("following", "1 while the log is counted", is(Condition::Following)),
        ("fenced", "1 if a newer sidecar counts for this node", fenced),
        ("statistics_away", "1 while the statistics Redis does not respond", is(Condition::StoreAway)),
        ("statistics_refused", "1 while the statistics Redis rejects writes", is(Condition::StoreRefuses)),
        (
            "statistics_unreadable",
            "1 while the statistics Redis contains unexpected data",
            is(Condition::StoreBroken),
        ),
        ("log_unreadable", "1 while the log cannot be read", is(Condition::LogUnreadable)),
        ("rotation_failed", "1 if the last rotation failed", f64::from(progress.rotation_failed)),
        ("position_bytes", "Position in the current log file", progress.position as f64),
        ("file_generation", "Number of times the current log file changed", progress.generation as f64),
    ] {
        gauge(encoder, name, help, value)?;
    }
    Ok(())
}

fn router(encoder: &mut DescriptorEncoder<'_>, report: &Report) -> std::fmt::Result {
    counter(
        encoder,
        "lost_lines",
        "Requests that nginx accepted and that never reached the log",
        report.lost,
    )?;
    counter(encoder, "snapshots", "Snapshots of the route table written", report.snapshots)?;
    counter(
        encoder,
        "bad_snapshots",
        "Snapshots rejected because of a wrong checksum",
        report.bad_snapshots,
    )?;
    for (name, help, value) in [
        ("edge_up", "1 while nginx responds on its admin listener", f64::from(report.up)),
        (
            "edge_alarm",
            "1 while the edge rejects the route table in Redis",
            f64::from(report.alarm.is_some()),
        ),
        ("edge_serial", "Serial of the route table that every worker has acknowledged", report.serial as f64),
        ("replica_up", "1 while the routes replica responds", f64::from(report.replica.up)),
        (
            "replica_linked",
            "1 while the routes replica is connected to its primary",
            f64::from(report.replica.linked),
        ),
        ("replica_serial", "Serial of the route table on the routes replica", report.replica.serial as f64),
    ] {
        gauge(encoder, name, help, value)?;
    }
    Ok(())
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> std::fmt::Result {
    let metric = ConstCounter::new(value);
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> std::fmt::Result {
    let metric = ConstGauge::new(value);
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}
