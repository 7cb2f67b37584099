//! `signalbox queues pull|extend|ack|nack|reject`: messages that are leased to a consumer.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use signalbox_client::queues::{Outcomes, Pull as PullBody, Pulled};

use super::{Message, path};
use crate::{
    exit::Failure,
    remote::{Remote, duration},
    terminal::{self, Progress, out},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Pull {
    /// Queue; name several to pull from all of them, in turns
    #[arg(required = true, value_name = "QUEUE")]
    queues: Vec<String>,
    /// Maximum number of messages
    #[arg(long, default_value_t = 1)]
    max: usize,
    /// Maximum time to wait for the first message
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "0s")]
    wait: Duration,
    /// Acknowledge the messages immediately
    #[arg(long)]
    ack: bool,
    /// Only messages of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Lease of the messages [default: the lease of the queue]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lease: Option<Duration>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Leased {
    /// Queue
    pub(super) queue: String,
    /// Receipts, as printed by `pull`
    #[arg(required = true)]
    pub(super) receipts: Vec<String>,
}

pub(super) async fn pull(args: Pull, remote: &Remote) -> Result<(), Failure> {
    let Pull { queues, max, wait, ack, tenant, lease } = args;
    let client = remote.patient(wait + Duration::from_secs(30))?;
    let progress = Progress::new();
    if !wait.is_zero() {
        progress.say(&format!("waiting up to {} s for a message", wait.as_secs()));
    }
    let mut body = json!(PullBody {
        max: Some(max),
        wait_seconds: Some(wait.as_secs_f64()),
        auto_ack: ack,
        tenant,
        lease_seconds: lease.map(|lease| lease.as_secs_f64()),
    });
    let path = match queues.as_slice() {
        [queue] => path(queue, "/pull"),
        several => {
            body["queues"] = several.iter().map(|name| json!({"name": name})).collect();
            "/messages/pull".to_owned()
        }
    };
    let pulled: Pulled<Value> = client.send("POST", &path, &body).await?;
    drop(progress);
    remote.show(&pulled.messages, |messages| list(messages))
}

/// Prints one message per line. A table would truncate the JSON of messages.
pub(super) fn list(messages: &[Message]) {
    for message in messages {
        // Messages are printed as JSON, which has no control characters.
        terminal::line(&json!(message).to_string());
    }
}

/// Sends receipts, and prints the result of each.
pub(super) async fn settle(
    remote: &Remote,
    queue: &str,
    verb: &str,
    body: &impl Serialize,
) -> Result<(), Failure> {
    let outcomes: Outcomes = remote.client()?.send("POST", &path(queue, &format!("/{verb}")), body).await?;
    remote.show(&outcomes, |outcomes| {
        for outcome in &outcomes.results {
            let result = outcome.result.as_deref().or(outcome.code.as_deref()).unwrap_or_default();
            out!("{} {result}", outcome.receipt);
        }
    })
}
