//! `signalbox queues`: manages pull queues and their messages.

use std::time::Duration;

use clap::Subcommand;
use serde_json::json;
use signalbox_client::queues::{
    FacetPatch, Message, MessageState, NewQueue, Outcome, Overflow, Pull as PullBody, Queue,
    Redrive as Letters,
};

use crate::{
    exit::Failure,
    listing::{Cell, Listing},
    remote::{Remote, duration},
    terminal::{self, Progress},
};

/// Flags of `signalbox queues`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List queues
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Create or update a queue
    Create(Create),
    /// Delete a queue and its messages
    Remove(Sure),
    /// Set the weight or the limits of an environment
    Tenant(Tenant),
    /// Pause the delivery of an environment's messages
    Pause(OneTenant),
    /// Resume the delivery of an environment's messages
    Resume(OneTenant),
    /// List a queue's environments by depth, with age and dwell time
    Facets(One),
    /// Show the next messages without pulling them
    Peek(Peek),
    /// Pull messages
    Pull(Pull),
    /// Acknowledge pulled messages
    Ack(Ack),
    /// Release pulled messages, so that they can be pulled again
    Nack(Nack),
    /// Reject pulled messages: they become dead letters
    Reject(Ack),
    /// Drop waiting messages
    Purge(Purge),
    /// List dead letters, as JSON
    Dead(Page),
    /// Return dead letters to the queue
    Redrive(Redrive),
    /// Drop dead letters
    DropDead(DropDead),
    /// List delayed messages or messages in flight, as JSON
    Messages(Messages),
    /// Show a message, wherever in the queue it is, as JSON
    ShowMessage(OneMessage),
    /// Drop a message, wherever in the queue it is
    DropMessage(DropMessage),
    /// Make a delayed message or a dead letter available now
    RedriveMessage(OneMessage),
    /// List messages that were dropped because too many waited
    Gaps(One),
}

#[derive(Debug, clap::Args)]
struct Messages {
    /// Queue
    queue: String,
    /// State of the messages
    #[arg(long, value_enum)]
    state: State,
    /// Only messages of this environment
    #[arg(long)]
    environment: Option<String>,
    /// Cursor of the next page
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum State {
    Delayed,
    InFlight,
}

#[derive(Debug, clap::Args)]
struct OneMessage {
    /// Queue
    queue: String,
    /// Message
    id: u64,
    /// Environment of the message
    #[arg(long)]
    environment: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct DropMessage {
    #[command(flatten)]
    message: OneMessage,
    /// Confirm; this cannot be undone
    #[arg(long, required = true)]
    yes: bool,
}

#[derive(Debug, clap::Args)]
struct OneTenant {
    /// Queue
    queue: String,
    /// Environment
    environment: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Tenant {
    /// Queue
    queue: String,
    /// Environment
    environment: String,
    /// Messages in a turn
    #[arg(long, value_name = "COUNT")]
    weight: Option<u32>,
    /// Messages that may be in flight; 0 for no limit
    #[arg(long, value_name = "COUNT")]
    in_flight_limit: Option<u64>,
    /// Messages per second
    #[arg(long, value_name = "COUNT")]
    rate: Option<f64>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Nack {
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
struct Redrive {
    /// Queue
    queue: String,
    /// Only messages of this environment
    #[arg(long)]
    environment: Option<String>,
    /// Only this message; may be repeated
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<u64>,
    /// Messages that become available per second
    #[arg(long, value_name = "COUNT")]
    rate: Option<f64>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct DropDead {
    /// Queue
    queue: String,
    /// Only messages of this environment
    #[arg(long)]
    environment: Option<String>,
    /// Only this message
    #[arg(long)]
    id: Option<u64>,
    /// Confirm; this cannot be undone
    #[arg(long, required = true)]
    yes: bool,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct One {
    /// Queue
    queue: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Sure {
    /// Queue
    queue: String,
    /// Confirm; this cannot be undone
    #[arg(long, required = true)]
    yes: bool,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Create {
    /// Queue
    queue: String,
    /// Regular expression over environment:type:topic
    #[arg(long, value_name = "REGEX")]
    pattern: String,
    /// Lease of a pulled message
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lease: Option<Duration>,
    /// Maximum number of attempts before a message becomes a dead letter
    #[arg(long, value_name = "COUNT")]
    max_attempts: Option<u32>,
    /// Maximum time that a message waits before it is dropped
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    retention: Option<Duration>,
    /// Time before the second delivery of a message; it doubles with each further one
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    backoff: Option<Duration>,
    /// Maximum number of waiting messages
    #[arg(long, value_name = "COUNT")]
    max_waiting: Option<u64>,
    /// Maximum number of waiting messages of one environment
    #[arg(long, value_name = "COUNT")]
    max_waiting_per_tenant: Option<u64>,
    /// Drop the oldest messages beyond these limits, in place of rejecting new ones
    #[arg(long)]
    drop_oldest: bool,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Peek {
    /// Queue
    queue: String,
    /// Only messages of this environment
    #[arg(long)]
    environment: Option<String>,
    /// Maximum number of messages
    #[arg(long, default_value_t = 10)]
    max: usize,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Pull {
    /// Queue
    queue: String,
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
struct Ack {
    /// Queue
    queue: String,
    /// Receipts, as printed by `pull`
    #[arg(required = true)]
    receipts: Vec<String>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Purge {
    /// Queue
    queue: String,
    /// Only messages of this environment
    #[arg(long)]
    environment: Option<String>,
    /// Confirm; this cannot be undone
    #[arg(long, required = true)]
    yes: bool,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Page {
    /// Queue
    queue: String,
    /// Cursor of the next page
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::List(listing) => {
            listing
                .run(async || {
                    let queues = listing.client()?.queues().list().await?;
                    listing.show(
                        &queues,
                        ["QUEUE", "PATTERN", "WAITING", "IN FLIGHT", "DELAYED", "DEAD"],
                        row,
                    )
                })
                .await
        }
        Command::Create(args) => create(args).await,
        Command::Remove(Sure { queue, yes: _, remote }) => {
            remote.client()?.queues().remove(&queue).await?;
            remote.show(&json!({"removed": true}), |_| terminal::line(&format!("{queue} deleted")))
        }
        Command::Facets(args) => facets(args).await,
        Command::Peek(Peek { queue, environment, max, remote }) => {
            let messages = remote.client()?.queues().peek(&queue, environment.as_deref(), max).await?;
            remote.show(&messages, |messages| list(messages))
        }
        Command::Pull(args) => pull(args).await,
        Command::Ack(args) => ack(args).await,
        Command::Purge(Purge { queue, environment, yes: _, remote }) => {
            let count = remote.client()?.queues().purge(&queue, environment.as_deref()).await?;
            counted(&remote, count, "messages dropped")
        }
        Command::Dead(Page { queue, cursor, remote }) => {
            let page = remote.client()?.queues().dead(&queue, cursor.as_deref()).await?;
            remote.show(&page, |page| terminal::line(&format!("{:#}", json!(page))))
        }
        Command::Redrive(Redrive { queue, environment, ids, rate, remote }) => {
            let which =
                Letters { environment, ids: Some(ids).filter(|ids| !ids.is_empty()), rate_per_second: rate };
            let count = remote.client()?.queues().redrive(&queue, &which).await?;
            counted(&remote, count, "messages returned to the queue")
        }
        Command::DropDead(DropDead { queue, environment, id, yes: _, remote }) => {
            let count = remote.client()?.queues().drop_dead(&queue, environment.as_deref(), id).await?;
            counted(&remote, count, "dead letters dropped")
        }
        Command::Tenant(Tenant { queue, environment, weight, in_flight_limit, rate, remote }) => {
            let patch = FacetPatch {
                weight: weight.map(Some),
                paused: None,
                in_flight_limit: in_flight_limit.map(Some),
                rate_per_second: rate.map(Some),
            };
            set(&remote, &queue, &environment, &patch).await
        }
        Command::Pause(OneTenant { queue, environment, remote }) => {
            let patch = FacetPatch { paused: Some(true), ..FacetPatch::default() };
            set(&remote, &queue, &environment, &patch).await
        }
        Command::Resume(OneTenant { queue, environment, remote }) => {
            let patch = FacetPatch { paused: Some(false), ..FacetPatch::default() };
            set(&remote, &queue, &environment, &patch).await
        }
        Command::Nack(Nack { queue, receipts, delay, remote }) => {
            let answer = remote.client()?.queues().nack(&queue, &receipts, delay).await?;
            remote.show(&answer, |answer| print_outcomes(&answer.results))
        }
        Command::Reject(Ack { queue, receipts, remote }) => {
            let answer = remote.client()?.queues().reject(&queue, &receipts).await?;
            remote.show(&answer, |answer| print_outcomes(&answer.results))
        }
        Command::Messages(args) => messages(args).await,
        Command::ShowMessage(OneMessage { queue, id, environment, remote }) => {
            let message = remote.client()?.queues().message(&queue, id, environment.as_deref()).await?;
            remote.show(&message, |message| terminal::line(&format!("{:#}", json!(message))))
        }
        Command::DropMessage(DropMessage { message, yes: _ }) => {
            let OneMessage { queue, id, environment, remote } = message;
            remote.client()?.queues().drop_message(&queue, id, environment.as_deref()).await?;
            counted(&remote, 1, "messages dropped")
        }
        Command::RedriveMessage(OneMessage { queue, id, environment, remote }) => {
            let count = remote.client()?.queues().redrive_message(&queue, id, environment.as_deref()).await?;
            counted(&remote, count, "messages made available")
        }
        Command::Gaps(One { queue, remote }) => {
            let gaps = remote.client()?.queues().gaps(&queue).await?;
            remote.show(&gaps, |gaps| {
                let rows: Vec<_> = gaps
                    .iter()
                    .map(|gap| {
                        let environment = gap.environment.clone().unwrap_or_else(|| "(others)".to_owned());
                        [environment, gap.messages.to_string(), gap.first.to_string(), gap.last.to_string()]
                    })
                    .collect();
                terminal::table(["ENVIRONMENT", "DROPPED", "FIRST", "LAST"], &rows);
            })
        }
    }
}

async fn messages(args: Messages) -> Result<(), Failure> {
    let Messages { queue, state, environment, cursor, remote } = args;
    let state = match state {
        State::Delayed => MessageState::Delayed,
        State::InFlight => MessageState::InFlight,
    };
    let client = remote.client()?;
    let (messages, next) =
        client.queues().messages(&queue, state, environment.as_deref(), cursor.as_deref()).await?;
    remote.show(&json!({"messages": messages, "next": next}), |page| terminal::line(&format!("{page:#}")))
}

async fn set(remote: &Remote, queue: &str, environment: &str, patch: &FacetPatch) -> Result<(), Failure> {
    let facet = remote.client()?.queues().change_facet(queue, environment, patch).await?;
    remote.show(&facet, |facet| {
        let state = if facet.paused { "paused" } else { "active" };
        terminal::line(&format!("{} of {queue} is {state}, weight {}", facet.environment, facet.weight));
    })
}

fn counted(remote: &Remote, count: u64, what: &str) -> Result<(), Failure> {
    remote.show(&json!({"messages": count}), |_| terminal::line(&format!("{count} {what}")))
}

fn row(queue: &Queue) -> [Cell; 6] {
    let messages = &queue.messages;
    [
        queue.name.clone().into(),
        queue.pattern.clone().into(),
        messages.waiting.to_string().into(),
        messages.in_flight.to_string().into(),
        messages.delayed.to_string().into(),
        messages.dead.to_string().into(),
    ]
}

async fn create(args: Create) -> Result<(), Failure> {
    let Create { queue: name, pattern, lease, max_attempts, retention, backoff, .. } = args;
    let Create { max_waiting, max_waiting_per_tenant, drop_oldest, remote, .. } = args;
    let queue = NewQueue {
        pattern,
        lease_seconds: lease.map(|lease| lease.as_secs_f64()),
        max_attempts,
        retention_seconds: retention.map(|retention| retention.as_secs()),
        backoff_seconds: backoff.map(|backoff| backoff.as_secs_f64()),
        max_waiting,
        max_waiting_per_tenant,
        overflow: if drop_oldest { Overflow::DropOldest } else { Overflow::Reject },
        ..NewQueue::default()
    };
    let queue = remote.client()?.queues().put(&name, &queue).await?;
    remote.show(&queue, |queue| terminal::line(&format!("{} matches {}", queue.name, queue.pattern)))
}

async fn facets(args: One) -> Result<(), Failure> {
    let mut facets = args.remote.client()?.queues().facets(&args.queue).await?;
    facets.sort_by(|a, b| b.waiting.cmp(&a.waiting).then_with(|| a.environment.cmp(&b.environment)));
    args.remote.show(&facets, |facets| {
        let rows: Vec<_> = facets
            .iter()
            .map(|facet| {
                [
                    facet.environment.clone(),
                    if facet.paused { "paused".to_owned() } else { facet.weight.to_string() },
                    facet.waiting.to_string(),
                    facet.in_flight.to_string(),
                    facet.delayed.to_string(),
                    terminal::or_dash(facet.oldest_age_ms.map(terminal::span)),
                    terminal::or_dash(facet.dwell_ms.map(terminal::span)),
                ]
            })
            .collect();
        let heads = ["ENVIRONMENT", "WEIGHT", "WAITING", "IN FLIGHT", "DELAYED", "OLDEST", "DWELL"];
        terminal::table(heads, &rows);
    })
}

async fn pull(args: Pull) -> Result<(), Failure> {
    let client = args.remote.patient(args.wait + Duration::from_secs(30))?;
    let progress = Progress::new();
    if !args.wait.is_zero() {
        progress.say(&format!("waiting up to {} s for a message", args.wait.as_secs()));
    }
    let pull = PullBody {
        max: Some(args.max),
        wait_seconds: Some(args.wait.as_secs_f64()),
        auto_ack: args.ack,
        environment: args.environment,
        lease_seconds: args.lease.map(|lease| lease.as_secs_f64()),
    };
    let messages = client.queues().pull_with(&args.queue, &pull).await?;
    drop(progress);
    args.remote.show(&messages, |messages| list(messages))
}

/// Prints one message per line. A table would truncate the JSON of messages.
fn list(messages: &[Message]) {
    for message in messages {
        // Messages are printed as JSON, which has no control characters.
        terminal::line(&json!(message).to_string());
    }
}

async fn ack(args: Ack) -> Result<(), Failure> {
    let answer = args.remote.client()?.queues().ack(&args.queue, &args.receipts).await?;
    args.remote.show(&answer, |answer| print_outcomes(&answer.results))
}

fn print_outcomes(outcomes: &[Outcome]) {
    for outcome in outcomes {
        let result = outcome.result.as_deref().or(outcome.code.as_deref()).unwrap_or_default();
        terminal::line(&format!("{} {result}", outcome.receipt));
    }
}
