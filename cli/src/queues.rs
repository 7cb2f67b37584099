//! `signalbox queues`: manages pull queues and their messages.

mod definition;
mod leases;

use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};
use signalbox_client::{
    queues::{
        DeadLetter, Facet, FacetPatch, Gap, Message, MessageState, Queue, Redrive as Letters, StoredMessage,
    },
    segment,
};

use crate::{
    confirm::Sure,
    exit::Failure,
    input,
    listing::{Cell, Listing},
    outline,
    remote::{Remote, duration},
    terminal,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List queues
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Show a queue: its definition and its numbers
    #[command(visible_alias = "get")]
    Show(One),
    /// Create a queue, or replace its definition
    Create(Box<definition::Create>),
    /// Change parts of a queue's definition; the others stay
    Set(Box<definition::Change>),
    /// Delete a queue and its messages
    #[command(visible_alias = "rm", alias = "delete")]
    Remove(Confirmed),
    /// Show an environment of a queue, or set its weight or limits
    Tenant(Tenant),
    /// Pause the delivery of an environment's messages
    Pause(OneTenant),
    /// Resume the delivery of an environment's messages
    Resume(OneTenant),
    /// List a queue's environments by depth, with age and dwell time
    Facets(Rows),
    /// Publish a message to the queues whose patterns match
    Publish(Publish),
    /// Show the next messages without pulling them
    Peek(Peek),
    /// Pull messages, from one queue or from several
    Pull(leases::Pull),
    /// Extend the leases of pulled messages
    Extend(leases::Extend),
    /// Acknowledge pulled messages
    Ack(leases::Ack),
    /// Release pulled messages, so that they can be pulled again
    Nack(leases::Nack),
    /// Reject pulled messages: they become dead letters
    Reject(leases::Ack),
    /// Drop waiting messages
    Purge(Purge),
    /// Drop all messages of an environment, in flight or not
    DropTenant(DropTenant),
    /// List dead letters
    Dead(Rows),
    /// Return dead letters to the queue
    Redrive(Redrive),
    /// Drop dead letters
    DropDead(DropDead),
    /// List delayed messages or messages in flight
    Messages(Messages),
    /// Show a message, wherever in the queue it is
    ShowMessage(OneMessage),
    /// Drop a message, wherever in the queue it is
    DropMessage(DropMessage),
    /// Make a delayed message or a dead letter available now
    RedriveMessage(OneMessage),
    /// List messages that were dropped because too many waited
    Gaps(Rows),
    /// Delete the record of messages that were dropped because too many waited
    DropGaps(Confirmed),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Messages {
    /// Queue
    queue: String,
    /// State of the messages
    #[arg(long, value_enum)]
    state: State,
    /// Only messages of this environment
    #[arg(long)]
    environment: Option<String>,
    #[command(flatten)]
    listing: Listing,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum State {
    Delayed,
    InFlight,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OneMessage {
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
pub(crate) struct DropMessage {
    #[command(flatten)]
    message: OneMessage,
    #[command(flatten)]
    sure: Sure,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OneTenant {
    /// Queue
    queue: String,
    /// Environment
    environment: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Tenant {
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
pub(crate) struct Redrive {
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
pub(crate) struct DropDead {
    /// Queue
    queue: String,
    /// Only messages of this environment
    #[arg(long)]
    environment: Option<String>,
    /// Only this message
    #[arg(long)]
    id: Option<u64>,
    #[command(flatten)]
    sure: Sure,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct One {
    /// Queue
    queue: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rows {
    /// Queue
    queue: String,
    #[command(flatten)]
    listing: Listing,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Publish {
    /// Environment (tenant) of the message
    environment: String,
    /// Type of the message
    #[arg(value_name = "TYPE")]
    kind: String,
    /// Name of the message
    name: String,
    /// Payload, as JSON
    #[arg(long, value_name = "JSON", value_parser = input::flag_json)]
    payload: Option<Value>,
    /// Time after which the message becomes available
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    delay: Option<Duration>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DropTenant {
    /// Queue
    queue: String,
    /// Environment
    environment: String,
    #[command(flatten)]
    sure: Sure,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Confirmed {
    /// Queue
    queue: String,
    #[command(flatten)]
    sure: Sure,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Peek {
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
pub(crate) struct Purge {
    /// Queue
    queue: String,
    /// Only messages of this environment
    #[arg(long)]
    environment: Option<String>,
    #[command(flatten)]
    sure: Sure,
    #[command(flatten)]
    remote: Remote,
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List(listing) => {
            listing
                .list(
                    async |client| client.queues().list().await,
                    ["QUEUE", "PATTERN", "WAITING", "IN FLIGHT", "DELAYED", "DEAD"],
                    row,
                )
                .await
        }
        Command::Show(One { queue, remote }) => remote.document(&path(&queue, "")).await,
        Command::Create(args) => definition::create(*args).await,
        Command::Set(args) => definition::change(*args).await,
        Command::Publish(args) => publish(args).await,
        Command::Extend(args) => leases::extend(args).await,
        Command::DropTenant(DropTenant { queue, environment, sure, remote }) => {
            sure.confirm(&format!("drop all messages of {environment} in {queue}, also those in flight"))?;
            let done = |answer: &Value| format!("{} messages dropped", answer["messages"]);
            remote
                .change("DELETE", &path(&queue, &format!("/facets/{}", segment(&environment))), None, done)
                .await
        }
        Command::DropGaps(Confirmed { queue, sure, remote }) => {
            sure.confirm(&format!("delete the record of messages that {queue} has dropped"))?;
            remote
                .change("DELETE", &path(&queue, "/gaps"), None, |_| format!("gaps of {queue} forgotten"))
                .await
        }
        Command::Remove(Confirmed { queue, sure, remote }) => {
            sure.confirm_name(&format!("delete the queue {queue} with all of its messages"), &queue)?;
            remote.client()?.queues().remove(&queue).await?;
            remote.done(&json!({"removed": true}), &format!("{queue} deleted"))
        }
        Command::Facets(args) => facets(args).await,
        Command::Peek(Peek { queue, environment, max, remote }) => {
            let messages = remote.client()?.queues().peek(&queue, environment.as_deref(), max).await?;
            remote.show(&messages, |messages| leases::list(messages))
        }
        Command::Pull(args) => leases::pull(args).await,
        Command::Ack(args) => leases::ack(args).await,
        Command::Purge(Purge { queue, environment, sure, remote }) => {
            match &environment {
                Some(one) => sure.confirm(&format!("drop the waiting messages of {one} in {queue}"))?,
                None => sure.confirm_name(&format!("drop all waiting messages of {queue}"), &queue)?,
            }
            let count = remote.client()?.queues().purge(&queue, environment.as_deref()).await?;
            counted(&remote, count, "messages dropped")
        }
        Command::Dead(Rows { queue, listing }) => {
            listing
                .run(async || {
                    let dead = listing.client()?.queues().dead(&queue, listing.limit()).await?;
                    listing.show_first(&dead, DEAD, dead_row)
                })
                .await
        }
        Command::Redrive(Redrive { queue, environment, ids, rate, remote }) => {
            let which =
                Letters { environment, ids: Some(ids).filter(|ids| !ids.is_empty()), rate_per_second: rate };
            let count = remote.client()?.queues().redrive(&queue, &which).await?;
            counted(&remote, count, "messages returned to the queue")
        }
        Command::DropDead(DropDead { queue, environment, id, sure, remote }) => {
            let which =
                id.map_or_else(|| "all dead letters".to_owned(), |id| format!("the dead letter {id}"));
            let whose = environment.as_ref().map(|one| format!("{one} in ")).unwrap_or_default();
            sure.confirm(&format!("delete {which} of {whose}{queue}"))?;
            let count = remote.client()?.queues().drop_dead(&queue, environment.as_deref(), id).await?;
            counted(&remote, count, "dead letters dropped")
        }
        Command::Tenant(Tenant {
            queue,
            environment,
            weight: None,
            in_flight_limit: None,
            rate: None,
            remote,
        }) => remote.document(&path(&queue, &format!("/facets/{}", segment(&environment)))).await,
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
        Command::Nack(args) => leases::nack(args).await,
        Command::Reject(args) => leases::reject(args).await,
        Command::Messages(args) => messages(args).await,
        Command::ShowMessage(OneMessage { queue, id, environment, remote }) => {
            let message = remote.client()?.queues().message(&queue, id, environment.as_deref()).await?;
            remote.show(&message, |message| outline::print(&json!(message)))
        }
        Command::DropMessage(DropMessage { message, sure }) => {
            let OneMessage { queue, id, environment, remote } = message;
            sure.confirm(&format!("delete message {id} of {queue}"))?;
            remote.client()?.queues().drop_message(&queue, id, environment.as_deref()).await?;
            counted(&remote, 1, "messages dropped")
        }
        Command::RedriveMessage(OneMessage { queue, id, environment, remote }) => {
            let count = remote.client()?.queues().redrive_message(&queue, id, environment.as_deref()).await?;
            counted(&remote, count, "messages made available")
        }
        Command::Gaps(Rows { queue, listing }) => {
            listing
                .list(
                    async |client| client.queues().gaps(&queue).await,
                    ["ENVIRONMENT", "MESSAGES", "FIRST", "LAST", "DROPPED"],
                    gap_row,
                )
                .await
        }
    }
}

fn path(queue: &str, below: &str) -> String {
    format!("/queues/{}{below}", segment(queue))
}

fn gap_row(gap: &Gap) -> [Cell; 5] {
    [
        gap.environment.clone().unwrap_or_else(|| "(others)".to_owned()).into(),
        gap.messages.to_string().into(),
        gap.first.to_string().into(),
        gap.last.to_string().into(),
        Cell::Time(gap.dropped_ms),
    ]
}

const DEAD: [&str; 7] = ["ID", "ENVIRONMENT", "TYPE", "NAME", "DIED", "REASON", "+PAYLOAD"];

fn dead_row(letter: &DeadLetter<Message>) -> [Cell; 7] {
    let [id, environment, kind, name, payload] = message_cells(letter.message.as_ref());
    [id, environment, kind, name, Cell::Time(letter.died_ms), letter.reason.clone().into(), payload]
}

/// ID, environment, type, name and payload.
fn message_cells(message: Option<&Message>) -> [Cell; 5] {
    let text = |value: &Value| Cell::from(value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    let Some(message) = message else { return std::array::from_fn(|_| "-".into()) };
    [
        message.id.to_string().into(),
        text(&message.environment),
        text(&message.kind),
        text(&message.name),
        message.payload.as_ref().map_or_else(|| "-".into(), |payload| payload.to_string().into()),
    ]
}

async fn messages(args: Messages) -> Result<(), Failure> {
    let Messages { queue, state, environment, listing } = args;
    let state = match state {
        State::Delayed => MessageState::Delayed,
        State::InFlight => MessageState::InFlight,
    };
    let heads = ["ID", "ENVIRONMENT", "TYPE", "NAME", "UNTIL", "ATTEMPT", "+PAYLOAD"];
    let row = |stored: &StoredMessage<Message>| {
        let [id, environment, kind, name, payload] = message_cells(stored.message.as_ref());
        let attempt = terminal::or_dash(stored.message.as_ref().map(|message| message.attempt));
        [id, environment, kind, name, Cell::time(stored.until_ms), attempt.into(), payload]
    };
    listing
        .run(async || {
            let client = listing.client()?;
            let all =
                client.queues().messages(&queue, state, environment.as_deref(), listing.limit()).await?;
            listing.show_first(&all, heads, row)
        })
        .await
}

async fn publish(args: Publish) -> Result<(), Failure> {
    let Publish { environment, kind, name, payload, delay, remote } = args;
    let mut message = json!({"environment": environment, "type": kind, "name": name, "payload": payload});
    if let Some(delay) = delay {
        message["delay_seconds"] = json!(delay.as_secs_f64());
    }
    let done = |answer: &Value| format!("published {}", answer["id"]);
    remote.change("POST", "/messages", Some(&message), done).await
}

async fn set(remote: &Remote, queue: &str, environment: &str, patch: &FacetPatch) -> Result<(), Failure> {
    let facet = remote.client()?.queues().change_facet(queue, environment, patch).await?;
    remote.show(&facet, |facet| {
        let state = if facet.paused { "paused" } else { "active" };
        terminal::line(&format!("{} of {queue} is {state}, weight {}", facet.environment, facet.weight));
    })
}

fn counted(remote: &Remote, count: u64, what: &str) -> Result<(), Failure> {
    remote.done(&json!({"messages": count}), &format!("{count} {what}"))
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

const FACETS: [&str; 8] =
    ["ENVIRONMENT", "STATE", "WEIGHT", "WAITING", "IN FLIGHT", "DELAYED", "OLDEST", "DWELL"];

async fn facets(Rows { queue, listing }: Rows) -> Result<(), Failure> {
    listing
        .run(async || {
            let mut facets = listing.client()?.queues().facets(&queue).await?;
            facets.sort_by(|a, b| b.waiting.cmp(&a.waiting).then_with(|| a.environment.cmp(&b.environment)));
            listing.show(&facets, FACETS, |facet: &Facet| {
                [
                    facet.environment.clone().into(),
                    if facet.paused { "paused" } else { "active" }.into(),
                    facet.weight.to_string().into(),
                    facet.waiting.to_string().into(),
                    facet.in_flight.to_string().into(),
                    facet.delayed.to_string().into(),
                    facet.oldest_age_ms.map_or_else(|| "-".into(), Cell::ago),
                    terminal::or_dash(facet.dwell_ms.map(terminal::span)).into(),
                ]
            })
        })
        .await
}
