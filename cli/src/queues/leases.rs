//! `signalbox queues pull|extend|ack|nack|reject`: messages that are leased to a consumer.

use std::time::Duration;

use serde_json::json;
use signalbox_client::queues::{Message, Outcomes, Pull as PullBody, PullFrom, PullSource};

use crate::{
    exit::Failure,
    remote::{Remote, duration},
    terminal::{self, Progress},
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
    /// Only messages of this environment
    #[arg(long)]
    environment: Option<String>,
    /// Lease of the messages [default: the lease of the queue]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lease: Option<Duration>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Ack {
    /// Queue
    queue: String,
    /// Receipts, as printed by `pull`
    #[arg(required = true)]
    receipts: Vec<String>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Nack {
    /// Queue
    queue: String,
    /// Receipts, as printed by `pull`
    #[arg(required = true)]
    receipts: Vec<String>,
    /// Time before they can be pulled again [default: the backoff of the queue]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    delay: Option<Duration>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Extend {
    /// Queue
    queue: String,
    /// Receipts, as printed by `pull`
    #[arg(required = true)]
    receipts: Vec<String>,
    /// Time from now after which the leases expire
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lease: Duration,
    #[command(flatten)]
    remote: Remote,
}

pub(super) async fn pull(args: Pull) -> Result<(), Failure> {
    let client = args.remote.patient(args.wait + Duration::from_secs(30))?;
    let progress = Progress::new();
    if !args.wait.is_zero() {
        progress.say(&format!("waiting up to {} s for a message", args.wait.as_secs()));
    }
    let lease_seconds = args.lease.map(|lease| lease.as_secs_f64());
    let (max, wait_seconds) = (Some(args.max), Some(args.wait.as_secs_f64()));
    let messages = match args.queues.as_slice() {
        [queue] => {
            let (auto_ack, environment) = (args.ack, args.environment);
            let pull = PullBody { max, wait_seconds, auto_ack, environment, lease_seconds };
            client.queues().pull_with(queue, &pull).await?
        }
        queues => {
            let source = |name: &String| PullSource { name: name.clone(), weight: None };
            let (auto_ack, environment) = (args.ack, args.environment);
            let queues = queues.iter().map(source).collect();
            let pull = PullFrom { queues, max, wait_seconds, auto_ack, environment, lease_seconds };
            client.queues().pull_from(&pull).await?
        }
    };
    drop(progress);
    args.remote.show(&messages, |messages| list(messages))
}

pub(super) async fn extend(args: Extend) -> Result<(), Failure> {
    let Extend { queue, receipts, lease, remote } = args;
    settled(&remote, &remote.client()?.queues().extend(&queue, &receipts, lease).await?)
}

pub(super) async fn ack(args: Ack) -> Result<(), Failure> {
    let Ack { queue, receipts, remote } = args;
    settled(&remote, &remote.client()?.queues().ack(&queue, &receipts).await?)
}

pub(super) async fn nack(args: Nack) -> Result<(), Failure> {
    let Nack { queue, receipts, delay, remote } = args;
    settled(&remote, &remote.client()?.queues().nack(&queue, &receipts, delay).await?)
}

pub(super) async fn reject(args: Ack) -> Result<(), Failure> {
    let Ack { queue, receipts, remote } = args;
    settled(&remote, &remote.client()?.queues().reject(&queue, &receipts).await?)
}

/// Prints one message per line. A table would truncate the JSON of messages.
pub(super) fn list(messages: &[Message]) {
    for message in messages {
        // Messages are printed as JSON, which has no control characters.
        terminal::line(&json!(message).to_string());
    }
}

fn settled(remote: &Remote, outcomes: &Outcomes) -> Result<(), Failure> {
    remote.show(outcomes, |outcomes| {
        for outcome in &outcomes.results {
            let result = outcome.result.as_deref().or(outcome.code.as_deref()).unwrap_or_default();
            terminal::line(&format!("{} {result}", outcome.receipt));
        }
    })
}
