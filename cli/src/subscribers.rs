//! `signalbox subscribers`: manages subscribers and their dead letters.

use std::time::Duration;

use clap::Subcommand;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use signalbox_client::events::{DeadLetters, DeliveryAttempt, SubscriberNumbers, Subscription};

use crate::{
    exit::Failure,
    listing::{Cell, Listing},
    remote::{Remote, duration, past},
    terminal::{self, Progress},
};

/// Flags of `signalbox subscribers`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List subscribers with their backlog and health
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Send a test delivery
    Test(One),
    /// List dead letters
    Dead(Dead),
    /// Redeliver all dead letters
    Redrive(One),
    /// Drop all dead letters
    DropDead(Sure),
    /// Redeliver the events of a period
    Replay(Replay),
    /// List the last attempts to deliver, newest first
    Deliveries(One),
    /// Retry failed deliveries now
    Retry(One),
    /// Skip an event that the receiver rejects; it becomes a dead letter
    Skip(Event),
    /// Redeliver one event: a dead letter, or an event that the log still has
    Resend(Event),
    /// Set the callback or the limits of retries
    Set(Set),
    /// Pause deliveries; events wait
    Pause(One),
    /// Resume paused deliveries
    Resume(One),
    /// Disable a subscription; new events are not stored for it
    Disable(Sure),
    /// Enable a disabled subscription
    Enable(One),
}

#[derive(Debug, clap::Args)]
struct One {
    /// Subscriber
    name: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Dead {
    /// Subscriber
    name: String,
    /// Cursor of the next page
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Sure {
    /// Subscriber
    name: String,
    /// Confirm; this cannot be undone
    #[arg(long, required = true)]
    yes: bool,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Replay {
    /// Subscriber
    name: String,
    /// Start of the period: a time, or a duration before now
    #[arg(long, value_name = "TIME", value_parser = past)]
    from: Timestamp,
    /// End of the period: a time, or a duration before now
    #[arg(long, value_name = "TIME", value_parser = past, default_value = "0s")]
    to: Timestamp,
    /// Maximum events per second
    #[arg(long)]
    rate: Option<u64>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Event {
    /// Subscriber
    name: String,
    /// ID of the event
    id: u64,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Set {
    /// Subscriber
    name: String,
    /// URL to deliver to from now on, waiting events included
    #[arg(long, value_name = "URL")]
    callback: Option<String>,
    /// Attempts after which a batch is dead-lettered
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Age at which a batch is dead-lettered
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    max_age: Option<Duration>,
    /// Pause before each retry, such as 5s,30s,5m; the last repeats
    #[arg(long, value_name = "DURATION", value_parser = duration, value_delimiter = ',')]
    retry: Option<Vec<Duration>>,
    /// Reset limits that are not given to the configured ones
    #[arg(long)]
    default: bool,
    #[command(flatten)]
    remote: Remote,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::List(listing) => list(&listing).await,
        Command::Test(args) => test(args).await,
        Command::Dead(args) => dead(args).await,
        Command::Redrive(One { name, remote }) => {
            let redriven = remote.client()?.events().redrive(&name).await?;
            remote.show(&json!({"redriven": redriven}), |_| {
                terminal::line(&format!("redelivering {redriven} events to {name}"));
            })
        }
        Command::DropDead(Sure { name, yes: _, remote }) => {
            let dropped = remote.client()?.events().drop_dead(&name).await?;
            remote.show(&json!({"dropped": dropped}), |_| {
                terminal::line(&format!("{dropped} events dropped"));
            })
        }
        Command::Replay(Replay { name, from, to, rate, remote }) => {
            let ms = |at: Timestamp| u64::try_from(at.as_millisecond()).unwrap_or_default();
            remote.client()?.events().replay(&name, ms(from), ms(to), rate).await?;
            remote.show(&json!({"replaying": true}), |_| {
                terminal::line(&format!("redelivering the events of that period to {name}"));
            })
        }
        Command::Deliveries(One { name, remote }) => {
            let deliveries = remote.client()?.events().deliveries(&name).await?;
            remote.show(&json!({"deliveries": deliveries}), |_| print_deliveries(&deliveries))
        }
        Command::Retry(One { name, remote }) => {
            let retried = remote.client()?.events().retry(&name).await?;
            remote.show(&json!({"retried": retried}), |_| {
                terminal::line(&format!("retrying {retried} lanes of {name}"));
            })
        }
        Command::Skip(Event { name, id, remote }) => {
            remote.client()?.events().skip(&name, id).await?;
            remote.show(&json!({"skipped": id}), |_| {
                terminal::line(&format!("event {id} is a dead letter of {name}"));
            })
        }
        Command::Resend(Event { name, id, remote }) => {
            remote.client()?.events().resend(&name, id).await?;
            remote.show(&json!({"resent": id}), |_| {
                terminal::line(&format!("redelivering event {id} to {name}"));
            })
        }
        Command::Set(args) => set(args).await,
        Command::Pause(One { name, remote }) => {
            alter(&name, &remote, &json!({"paused": true}), "deliveries are paused").await
        }
        Command::Resume(One { name, remote }) => {
            alter(&name, &remote, &json!({"paused": false}), "deliveries continue").await
        }
        Command::Disable(Sure { name, yes: _, remote }) => {
            alter(&name, &remote, &json!({"disabled": true}), "subscription disabled").await
        }
        Command::Enable(One { name, remote }) => {
            alter(&name, &remote, &json!({"disabled": false}), "subscription enabled").await
        }
    }
}

async fn set(args: Set) -> Result<(), Failure> {
    let mut change = serde_json::Map::new();
    let mut put = |member: &str, value: Option<serde_json::Value>, limit: bool| {
        if value.is_some() || (limit && args.default) {
            change.insert(member.to_owned(), value.unwrap_or_default());
        }
    };
    put("callback", args.callback.map(Into::into), false);
    put("max_attempts", args.max_attempts.map(Into::into), true);
    put("max_age_seconds", args.max_age.map(|age| age.as_secs().into()), true);
    put("retry_seconds", args.retry.map(|pauses| pauses.iter().map(Duration::as_secs).collect()), true);
    alter(&args.name, &args.remote, &change.into(), "settings changed").await
}

async fn alter(name: &str, remote: &Remote, change: &serde_json::Value, what: &str) -> Result<(), Failure> {
    remote.client()?.events().alter(name, change).await?;
    remote.show(change, |_| terminal::line(&format!("{name}: {what}")))
}

fn print_deliveries(deliveries: &[DeliveryAttempt]) {
    let time = |ms: u64| {
        let at = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        at.map_or_else(|| ms.to_string(), |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    };
    let rows: Vec<_> = deliveries
        .iter()
        .map(|one| {
            let events =
                if one.events == 1 { one.first.to_string() } else { format!("{} events", one.events) };
            [
                time(one.at),
                format!("{:?}", one.result).to_lowercase(),
                terminal::or_dash(one.status),
                terminal::span(one.duration_ms),
                one.attempt.to_string(),
                events,
                terminal::or_dash(one.next.map(time)),
                terminal::or_dash(one.response.as_ref().or(one.why.as_ref())),
            ]
        })
        .collect();
    terminal::table(["AT", "RESULT", "STATUS", "TOOK", "ATTEMPT", "EVENT", "NEXT TRY", "RESPONSE"], &rows);
}

/// A subscription with its numbers.
#[derive(Debug, Serialize)]
struct Subscriber {
    #[serde(flatten)]
    subscription: Subscription,
    numbers: Option<SubscriberNumbers>,
}

async fn list(listing: &Listing) -> Result<(), Failure> {
    listing
        .run(async || {
            let client = listing.client()?;
            let subscriptions = client.events().subscriptions().await?;
            let mut numbers = client.events().numbers().await?;
            let with_numbers = |subscription: Subscription| {
                let numbers = numbers.subscribers.remove(&subscription.subscriber);
                Subscriber { subscription, numbers }
            };
            let all: Vec<Subscriber> = subscriptions.into_iter().map(with_numbers).collect();
            listing.show(&all, HEADS, row)
        })
        .await
}

const HEADS: [&str; 8] =
    ["SUBSCRIBER", "HEALTH", "SENT", "WAITING", "DEAD", "TOPICS", "CALLBACK", "DISABLED"];

fn row(one: &Subscriber) -> [Cell; 8] {
    let count =
        |of: fn(&SubscriberNumbers) -> u64| Cell::from(terminal::or_dash(one.numbers.as_ref().map(of)));
    let subscription = &one.subscription;
    [
        subscription.subscriber.clone().into(),
        subscription.health.to_string().into(),
        count(|numbers| numbers.sent),
        count(|numbers| numbers.events),
        count(|numbers| numbers.dead),
        terminal::list(&subscription.topics).into(),
        subscription.callback.clone().into(),
        terminal::or_dash(subscription.disabled.as_ref()).into(),
    ]
}

async fn test(args: One) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let progress = Progress::new();
    progress.say("waiting for the subscriber's answer");
    let tested = client.events().test(&args.name).await?;
    drop(progress);
    args.remote.show(&tested, |tested| {
        let span = terminal::span(tested.duration_ms);
        if tested.delivered {
            terminal::line(&format!("{} accepted the test delivery in {span}", args.name));
        }
    })?;
    if tested.delivered {
        return Ok(());
    }
    let why = tested.why.unwrap_or_else(|| "it rejected the test delivery".to_owned());
    Err(Failure::broken(format!("{}: {why}", args.name)))
}

async fn dead(args: Dead) -> Result<(), Failure> {
    let page = args.remote.client()?.events().dead(&args.name, args.cursor.as_deref()).await?;
    args.remote.show(&page, print)
}

fn print(page: &DeadLetters) {
    let rows: Vec<_> = page
        .dead
        .iter()
        .map(|letter| {
            let event: serde_json::Value = serde_json::from_str(letter.event.get()).unwrap_or_default();
            let word = |name: &str| match &event[name] {
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            [word("id"), word("topic"), word("url"), letter.attempts.to_string(), letter.reason.clone()]
        })
        .collect();
    terminal::table(["ID", "TOPIC", "URL", "ATTEMPTS", "REASON"], &rows);
    if let Some(cursor) = &page.cursor {
        terminal::line(&format!("next page: --cursor {cursor}"));
    }
}
