//! `signalbox queues create|set`: the definition of a queue.

use std::time::Duration;

use serde_json::{Value, json};
use signalbox_client::queues::{Overflow, Queue};

use super::path;
use crate::{
    exit::Failure,
    input,
    remote::{Remote, duration},
    terminal::out,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// Queue
    queue: String,
    /// Regular expression over tenant:type:topic
    #[arg(long, value_name = "REGEX")]
    pattern: String,
    #[command(flatten)]
    definition: Definition,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Change {
    /// Queue
    queue: String,
    /// Regular expression over tenant:type:topic
    #[arg(long, value_name = "REGEX")]
    pattern: Option<String>,
    #[command(flatten)]
    definition: Definition,
    /// Remove this limit; can be repeated
    #[arg(long, value_name = "LIMIT", value_parser = ["in-flight-limit", "max-waiting", "max-waiting-per-tenant"])]
    unlimited: Vec<String>,
}

/// The parts of a definition apart from the pattern.
#[derive(Debug, clap::Args)]
pub(crate) struct Definition {
    /// Lease of a pulled message
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lease: Option<Duration>,
    /// Messages of one tenant that may be in flight
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
    /// Maximum number of waiting messages of one tenant
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
    /// The body of a request.
    fn body(&self, pattern: Option<String>) -> Value {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let overflow = match (self.drop_oldest, self.reject_new) {
            (true, _) => Some(Overflow::DropOldest),
            (false, true) => Some(Overflow::Reject),
            (false, false) => None,
        };
        input::given(json!({
            "pattern": pattern,
            "lease_seconds": seconds(self.lease),
            "in_flight_limit": self.in_flight_limit,
            "max_attempts": self.max_attempts,
            "retention_seconds": self.retention.map(|retention| retention.as_secs()),
            "backoff_seconds": seconds(self.backoff),
            "max_backoff_seconds": seconds(self.max_backoff),
            "max_waiting": self.max_waiting,
            "max_waiting_per_tenant": self.max_waiting_per_tenant,
            "overflow": overflow,
        }))
    }
}

pub(super) async fn create(args: Create, remote: &Remote) -> Result<(), Failure> {
    let body = args.definition.body(Some(args.pattern));
    let queue: Queue = remote.client()?.send("PUT", &path(&args.queue, ""), &body).await?;
    remote.show(&queue, |queue| out!("{} matches {}", queue.name, queue.pattern))
}

pub(super) async fn change(args: Change, remote: &Remote) -> Result<(), Failure> {
    let mut body = args.definition.body(args.pattern);
    for limit in &args.unlimited {
        body[limit.replace('-', "_")] = Value::Null;
    }
    if body == json!({}) {
        return Err(Failure::configuration("nothing to change: set at least one flag, such as --lease 30s"));
    }
    let queue: Queue = remote.client()?.send("PATCH", &path(&args.queue, ""), &body).await?;
    remote.show(&queue, |queue| out!("{} changed (revision {})", queue.name, queue.revision))
}
