//! `signalbox queues create|set`: the definition of a queue.

use std::time::Duration;

use serde_json::json;
use signalbox_client::queues::{NewQueue, Overflow, QueuePatch};

use crate::{
    exit::Failure,
    remote::{Remote, duration},
    terminal,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// Queue
    queue: String,
    /// Regular expression over environment:type:topic
    #[arg(long, value_name = "REGEX")]
    pattern: String,
    #[command(flatten)]
    definition: Definition,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Change {
    /// Queue
    queue: String,
    /// Regular expression over environment:type:topic
    #[arg(long, value_name = "REGEX")]
    pattern: Option<String>,
    #[command(flatten)]
    definition: Definition,
    /// Remove this limit; can be repeated
    #[arg(long, value_name = "LIMIT", value_parser = ["in-flight-limit", "max-waiting", "max-waiting-per-tenant"])]
    unlimited: Vec<String>,
    #[command(flatten)]
    remote: Remote,
}

/// The parts of a definition apart from the pattern.
#[derive(Debug, clap::Args)]
pub(crate) struct Definition {
    /// Lease of a pulled message
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lease: Option<Duration>,
    /// Messages of one environment that may be in flight
    #[arg(long, value_name = "COUNT")]
    in_flight_limit: Option<u64>,
    /// Maximum number of attempts before a message becomes a dead letter
    #[arg(long, value_name = "COUNT")]
    max_attempts: Option<u32>,
    /// Maximum time that a message waits before it is dropped
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    retention: Option<Duration>,
    /// Time before the second delivery of a message; it doubles with each further one
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    backoff: Option<Duration>,
    /// Maximum of this time
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    max_backoff: Option<Duration>,
    /// Maximum number of waiting messages
    #[arg(long, value_name = "COUNT")]
    max_waiting: Option<u64>,
    /// Maximum number of waiting messages of one environment
    #[arg(long, value_name = "COUNT")]
    max_waiting_per_tenant: Option<u64>,
    /// Drop the oldest messages beyond these limits, in place of rejecting new ones
    #[arg(long)]
    drop_oldest: bool,
    /// Reject new messages beyond these limits
    #[arg(long, conflicts_with = "drop_oldest")]
    reject_new: bool,
}

impl Definition {
    fn overflow(&self) -> Option<Overflow> {
        match (self.drop_oldest, self.reject_new) {
            (true, _) => Some(Overflow::DropOldest),
            (false, true) => Some(Overflow::Reject),
            (false, false) => None,
        }
    }
}

pub(super) async fn create(args: Create) -> Result<(), Failure> {
    let Create { queue: name, pattern, definition, remote } = args;
    let seconds = |time: Duration| time.as_secs_f64();
    let queue = NewQueue {
        pattern,
        lease_seconds: definition.lease.map(seconds),
        in_flight_limit: definition.in_flight_limit,
        max_attempts: definition.max_attempts,
        retention_seconds: definition.retention.map(|retention| retention.as_secs()),
        backoff_seconds: definition.backoff.map(seconds),
        max_backoff_seconds: definition.max_backoff.map(seconds),
        max_waiting: definition.max_waiting,
        max_waiting_per_tenant: definition.max_waiting_per_tenant,
        overflow: definition.overflow().unwrap_or_default(),
        weights: None,
    };
    let queue = remote.client()?.queues().put(&name, &queue).await?;
    remote.show(&queue, |queue| terminal::line(&format!("{} matches {}", queue.name, queue.pattern)))
}

pub(super) async fn change(args: Change) -> Result<(), Failure> {
    let Change { queue: name, pattern, definition, unlimited, remote } = args;
    let seconds = |time: Duration| time.as_secs_f64();
    let limit = |limit: Option<u64>, name: &str| {
        if unlimited.iter().any(|one| one == name) { Some(None) } else { limit.map(Some) }
    };
    let patch = QueuePatch {
        pattern,
        lease_seconds: definition.lease.map(seconds),
        in_flight_limit: limit(definition.in_flight_limit, "in-flight-limit"),
        max_attempts: definition.max_attempts,
        retention_seconds: definition.retention.map(|retention| retention.as_secs()),
        backoff_seconds: definition.backoff.map(seconds),
        max_backoff_seconds: definition.max_backoff.map(seconds),
        max_waiting: limit(definition.max_waiting, "max-waiting"),
        max_waiting_per_tenant: limit(definition.max_waiting_per_tenant, "max-waiting-per-tenant"),
        overflow: definition.overflow(),
        weights: std::collections::BTreeMap::new(),
    };
    if json!(patch) == json!({}) {
        return Err(Failure::configuration("nothing to change: set at least one flag, such as --lease 30s"));
    }
    let queue = remote.client()?.queues().change(&name, &patch).await?;
    remote.show(&queue, |queue| {
        terminal::line(&format!("{} changed (revision {})", queue.name, queue.revision))
    })
}
