//! `signalbox queues`: manages pull queues and their messages.

mod definition;
mod leases;

use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};
use signalbox_client::{
    Client,
    queues::{
        DeadLetter, DeadPage, Extend, Gap, Gaps, MessagePage, MessageState, Nack, Peek, Peeked, Purge, Queue,
        QueueList, Receipts, Redrive, StoredMessage, Tenant, TenantPage, TenantPatch,
    },
    segment, with_query,
};

use crate::{
    confirm::Sure,
    exit::Failure,
    input,
    listing::{Cell, Listing, Shown as _, cells},
    outline,
    remote::{Remote, duration},
    terminal::{self, out},
};
use leases::Leased;

type Message = signalbox_client::queues::Message<Value>;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List queues
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Show a queue: its definition and its numbers
    #[command(visible_alias = "get")]
    Show {
        /// Queue
        queue: String,
    },
    /// Create a queue, or replace its definition
    Create(Box<definition::Create>),
    /// Change parts of a queue's definition; the others stay
    Set(Box<definition::Change>),
    /// Delete a queue and its messages
    #[command(visible_alias = "rm", alias = "delete")]
    Remove(Confirmed),
    /// Show a tenant of a queue, or set its weight or limits
    Tenant {
        #[command(flatten)]
        tenant: OneTenant,
        /// Messages in a turn
        #[arg(long, value_name = "COUNT")]
        weight: Option<u32>,
        /// Messages that may be in flight; 0 for no limit
        #[arg(long, value_name = "COUNT")]
        in_flight_limit: Option<u64>,
        /// Messages per second
        #[arg(long, value_name = "COUNT")]
        rate: Option<f64>,
    },
    /// Pause the delivery of a tenant's messages
    Pause(OneTenant),
    /// Resume the delivery of a tenant's messages
    Resume(OneTenant),
    /// List a queue's tenants by depth, with age and dwell time
    Tenants(Rows),
    /// Publish a message to the queues whose patterns match
    Publish {
        /// Tenant of the message
        tenant: String,
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
    },
    /// Show the next messages without pulling them
    Peek {
        /// Queue
        queue: String,
        /// Only messages of this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Maximum number of messages
        #[arg(long, default_value_t = 10)]
        max: usize,
    },
    /// Pull messages, from one queue or from several
    Pull(leases::Pull),
    /// Extend the leases of pulled messages
    Extend {
        #[command(flatten)]
        leased: Leased,
        /// Time from now after which the leases expire
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        lease: Duration,
    },
    /// Acknowledge pulled messages
    Ack(leases::Leased),
    /// Release pulled messages, so that they can be pulled again
    Nack {
        #[command(flatten)]
        leased: Leased,
        /// Time before they can be pulled again [default: the backoff of the queue]
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        delay: Option<Duration>,
    },
    /// Reject pulled messages: they become dead letters
    Reject(leases::Leased),
    /// Drop waiting messages
    Purge {
        /// Queue
        queue: String,
        /// Only messages of this tenant
        #[arg(long)]
        tenant: Option<String>,
        #[command(flatten)]
        sure: Sure,
    },
    /// Drop all messages of a tenant, in flight or not
    DropTenant {
        #[command(flatten)]
        tenant: OneTenant,
        #[command(flatten)]
        sure: Sure,
    },
    /// List dead letters
    Dead(Rows),
    /// Return dead letters to the queue
    Redrive {
        /// Queue
        queue: String,
        /// Only messages of this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only this message; may be repeated
        #[arg(long = "id", value_name = "ID")]
        ids: Vec<u64>,
        /// Messages that become available per second
        #[arg(long, value_name = "COUNT")]
        rate: Option<f64>,
    },
    /// Drop dead letters
    DropDead {
        /// Queue
        queue: String,
        /// Only messages of this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only this message
        #[arg(long)]
        id: Option<u64>,
        #[command(flatten)]
        sure: Sure,
    },
    /// List delayed messages or messages in flight
    Messages {
        /// Queue
        queue: String,
        /// State of the messages
        #[arg(long, value_enum)]
        state: State,
        /// Only messages of this tenant
        #[arg(long)]
        tenant: Option<String>,
        #[command(flatten)]
        listing: Listing,
    },
    /// Show a message, wherever in the queue it is
    ShowMessage(OneMessage),
    /// Drop a message, wherever in the queue it is
    DropMessage {
        #[command(flatten)]
        message: OneMessage,
        #[command(flatten)]
        sure: Sure,
    },
    /// Make a delayed message or a dead letter available now
    RedriveMessage(OneMessage),
    /// List messages that were dropped because too many waited
    Gaps(Rows),
    /// Delete the record of messages that were dropped because too many waited
    DropGaps(Confirmed),
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum State {
    Delayed,
    InFlight,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OneMessage {
    /// Queue
    queue: String,
    /// Message
    id: u64,
    /// Tenant of the message
    #[arg(long)]
    tenant: Option<String>,
}

impl OneMessage {
    fn path(&self, below: &str) -> String {
        let path = path(&self.queue, &format!("/messages/{}{below}", self.id));
        with_query(&path, &[("tenant", &self.tenant)])
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct OneTenant {
    /// Queue
    queue: String,
    /// Tenant
    tenant: String,
}

impl OneTenant {
    fn path(&self) -> String {
        path(&self.queue, &format!("/tenants/{}", segment(&self.tenant)))
    }

    async fn set(&self, remote: &Remote, patch: &TenantPatch) -> Result<(), Failure> {
        let tenant: Tenant = remote.client()?.send("PATCH", &self.path(), patch).await?;
        remote.show(&tenant, |tenant| {
            let state = if tenant.paused { "paused" } else { "active" };
            out!("{} of {} is {state}, weight {}", tenant.tenant, self.queue, tenant.weight);
        })
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rows {
    /// Queue
    queue: String,
    #[command(flatten)]
    listing: Listing,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Confirmed {
    /// Queue
    queue: String,
    #[command(flatten)]
    sure: Sure,
}

pub(crate) async fn run(command: Command, remote: &Remote) -> Result<(), Failure> {
    let counted = |what: &'static str| move |answer: &Value| format!("{} {what}", answer["messages"]);
    match command {
        Command::List(listing) => {
            let heads = ["QUEUE", "PATTERN", "WAITING", "IN FLIGHT", "DELAYED", "DEAD"];
            let read = async |client: Client| Ok(client.get::<QueueList>("/queues").await?.queues);
            listing.list(remote, read, heads, row).await
        }
        Command::Show { queue } => remote.document(&path(&queue, "")).await,
        Command::Create(args) => definition::create(*args, remote).await,
        Command::Set(args) => definition::change(*args, remote).await,
        Command::Publish { tenant, kind, name, payload, delay } => {
            let mut message = json!({"tenant": tenant, "type": kind, "name": name, "payload": payload});
            if let Some(delay) = delay {
                message["delay_seconds"] = json!(delay.as_secs_f64());
            }
            let done = |answer: &Value| format!("published {}", answer["id"]);
            remote.change("POST", "/messages", Some(&message), done).await
        }
        Command::DropTenant { tenant: one, sure } => {
            let OneTenant { queue, tenant } = &one;
            sure.confirm(&format!("drop all messages of {tenant} in {queue}, including those in flight"))?;
            remote.change("DELETE", &one.path(), None, counted("messages dropped")).await
        }
        Command::DropGaps(Confirmed { queue, sure }) => {
            sure.confirm(&format!("delete the record of messages that {queue} has dropped"))?;
            let done = |_: &Value| format!("gaps of {queue} forgotten");
            remote.change("DELETE", &path(&queue, "/gaps"), None, done).await
        }
        Command::Remove(Confirmed { queue, sure }) => {
            sure.confirm_name(&format!("delete the queue {queue} with all of its messages"), &queue)?;
            remote.call("DELETE", &path(&queue, ""), None).await?;
            remote.done(&json!({"removed": true}), &format!("{queue} deleted"))
        }
        Command::Tenants(args) => tenants(args, remote).await,
        Command::Peek { queue, tenant, max } => {
            let body = Peek { tenant, max: Some(max) };
            let peeked: Peeked<Value> = remote.client()?.send("POST", &path(&queue, "/peek"), &body).await?;
            remote.show(&peeked.messages, |messages| leases::list(messages))
        }
        Command::Pull(args) => leases::pull(args, remote).await,
        Command::Extend { leased: Leased { queue, receipts }, lease } => {
            let body = Extend { receipts, lease_seconds: lease.as_secs_f64() };
            leases::settle(remote, &queue, "extend", &body).await
        }
        Command::Ack(Leased { queue, receipts }) => {
            leases::settle(remote, &queue, "ack", &Receipts { receipts }).await
        }
        Command::Nack { leased: Leased { queue, receipts }, delay } => {
            let body = Nack { receipts, delay_seconds: delay.map(|delay| delay.as_secs_f64()) };
            leases::settle(remote, &queue, "nack", &body).await
        }
        Command::Reject(Leased { queue, receipts }) => {
            leases::settle(remote, &queue, "reject", &Receipts { receipts }).await
        }
        Command::Purge { queue, tenant, sure } => {
            match &tenant {
                Some(one) => sure.confirm(&format!("drop the waiting messages of {one} in {queue}"))?,
                None => sure.confirm_name(&format!("drop all waiting messages of {queue}"), &queue)?,
            }
            let body = json!(Purge { tenant });
            remote.change("POST", &path(&queue, "/purge"), Some(&body), counted("messages dropped")).await
        }
        Command::Dead(Rows { queue, listing }) => {
            let read = async |client: Client, most| {
                let split = |page: DeadPage<Message>| (page.dead, page.next);
                Ok(client.list(&path(&queue, "/dead"), most, split).await?)
            };
            listing.list_first(remote, read, DEAD, dead_row).await
        }
        Command::Redrive { queue, tenant, ids, rate } => {
            let ids = Some(ids).filter(|ids| !ids.is_empty());
            let which = json!(Redrive { tenant, ids, rate_per_second: rate });
            let done = counted("messages returned to the queue");
            remote.change("POST", &path(&queue, "/dead/redrive"), Some(&which), done).await
        }
        Command::DropDead { queue, tenant, id, sure } => {
            let which =
                id.map_or_else(|| "all dead letters".to_owned(), |id| format!("the dead letter {id}"));
            let whose = tenant.as_ref().map(|one| format!("{one} in ")).unwrap_or_default();
            sure.confirm(&format!("delete {which} of {whose}{queue}"))?;
            let id = id.map(|id| id.to_string());
            let path = with_query(&path(&queue, "/dead"), &[("tenant", tenant), ("id", id)]);
            remote.change("DELETE", &path, None, counted("dead letters dropped")).await
        }
        Command::Tenant { tenant, weight: None, in_flight_limit: None, rate: None } => {
            remote.document(&tenant.path()).await
        }
        Command::Tenant { tenant, weight, in_flight_limit, rate } => {
            let patch = TenantPatch {
                weight: weight.map(Some),
                paused: None,
                in_flight_limit: in_flight_limit.map(Some),
                rate_per_second: rate.map(Some),
            };
            tenant.set(remote, &patch).await
        }
        Command::Pause(tenant) => {
            tenant.set(remote, &TenantPatch { paused: Some(true), ..TenantPatch::default() }).await
        }
        Command::Resume(tenant) => {
            tenant.set(remote, &TenantPatch { paused: Some(false), ..TenantPatch::default() }).await
        }
        Command::Messages { queue, state, tenant, listing } => {
            let state = match state {
                State::Delayed => MessageState::Delayed,
                State::InFlight => MessageState::InFlight,
            };
            let state = json!(state);
            let query = [("state", state.as_str()), ("tenant", tenant.as_deref())];
            let path = with_query(&path(&queue, "/messages"), &query);
            let read = async |client: Client, most| {
                let split = |page: MessagePage<Message>| (page.messages, page.next);
                Ok(client.list(&path, most, split).await?)
            };
            listing.list_first(remote, read, MESSAGES, message_row).await
        }
        Command::ShowMessage(message) => {
            let message: StoredMessage<Message> = remote.client()?.get(&message.path("")).await?;
            remote.show(&message, |message| outline::print(&json!(message)))
        }
        Command::DropMessage { message, sure } => {
            sure.confirm(&format!("delete message {} of {}", message.id, message.queue))?;
            remote.call("DELETE", &message.path(""), None).await?;
            remote.done(&json!({"messages": 1}), "1 messages dropped")
        }
        Command::RedriveMessage(message) => {
            let done = counted("messages made available");
            remote.change("POST", &message.path("/redrive"), None, done).await
        }
        Command::Gaps(Rows { queue, listing }) => {
            let heads = ["TENANT", "MESSAGES", "FIRST", "LAST", "DROPPED"];
            let read = async |client: Client| Ok(client.get::<Gaps>(&path(&queue, "/gaps")).await?.gaps);
            listing.list(remote, read, heads, gap_row).await
        }
    }
}

fn path(queue: &str, below: &str) -> String {
    format!("/queues/{}{below}", segment(queue))
}

fn gap_row(gap: &Gap) -> [Cell; 5] {
    let tenant = gap.tenant.as_deref().unwrap_or("(others)");
    cells![tenant, gap.messages, gap.first, gap.last, gap.dropped_at]
}

const DEAD: [&str; 7] = ["ID", "TENANT", "TYPE", "NAME", "DIED", "REASON", "+PAYLOAD"];

fn dead_row(letter: &DeadLetter<Message>) -> [Cell; 7] {
    let [id, tenant, kind, name, payload] = message_cells(letter.message.as_ref());
    cells![id, tenant, kind, name, letter.died_at, letter.reason, payload]
}

const MESSAGES: [&str; 7] = ["ID", "TENANT", "TYPE", "NAME", "UNTIL", "ATTEMPT", "+PAYLOAD"];

fn message_row(stored: &StoredMessage<Message>) -> [Cell; 7] {
    let [id, tenant, kind, name, payload] = message_cells(stored.message.as_ref());
    let attempt = stored.message.as_ref().map(|message| message.attempt);
    cells![id, tenant, kind, name, stored.until, attempt, payload]
}

/// ID, tenant, type, name and payload.
fn message_cells(message: Option<&Message>) -> [Cell; 5] {
    let Some(message) = message else { return std::array::from_fn(|_| "-".cell()) };
    let payload = message.payload.as_ref().map(Value::to_string);
    cells![message.id, message.tenant, message.kind, message.name, payload]
}

fn row(queue: &Queue) -> [Cell; 6] {
    let messages = &queue.messages;
    cells![queue.name, queue.pattern, messages.waiting, messages.in_flight, messages.delayed, messages.dead]
}

const TENANTS: [&str; 8] =
    ["TENANT", "STATE", "WEIGHT", "WAITING", "IN FLIGHT", "DELAYED", "OLDEST", "DWELL"];

async fn tenants(Rows { queue, listing }: Rows, remote: &Remote) -> Result<(), Failure> {
    let read = async |client: Client| {
        let split = |page: TenantPage| (page.tenants, page.next);
        let mut tenants = client.list(&path(&queue, "/tenants"), usize::MAX, split).await?;
        tenants.sort_by(|a, b| b.waiting.cmp(&a.waiting).then_with(|| a.tenant.cmp(&b.tenant)));
        Ok(tenants)
    };
    let row = |tenant: &Tenant| {
        cells![
            tenant.tenant,
            if tenant.paused { "paused" } else { "active" },
            tenant.weight,
            tenant.waiting,
            tenant.in_flight,
            tenant.delayed,
            tenant.oldest_age_ms.map(Cell::ago),
            tenant.dwell_ms.map(terminal::span),
        ]
    };
    listing.list(remote, read, TENANTS, row).await
}
