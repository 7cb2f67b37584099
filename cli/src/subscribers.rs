//! `signalbox subscribers`: manages subscribers and their dead letters.

use std::time::Duration;

use clap::Subcommand;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};
use signalbox_client::{
    Client,
    events::{DeadLetter, DeliveryAttempt, SubscriberNumbers, Subscription},
    segment, with_query,
};

use crate::{
    confirm::Sure,
    exit::Failure,
    listing::{Cell, Listing},
    outline,
    remote::{Remote, duration, past},
    terminal::{self, Progress},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List subscribers with their backlog and health
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Show a subscriber: its topics, its limits and its numbers
    #[command(visible_alias = "get")]
    Show(One),
    /// Create or replace the subscription of the token's client
    Subscribe(Box<Subscribe>),
    /// Unsubscribe the token's client from a topic
    Unsubscribe(Unsubscribe),
    /// End a subscription; waiting events are dropped
    #[command(visible_alias = "rm", alias = "delete")]
    Remove(Confirmed),
    /// Show the secret that signs deliveries
    Secret(One),
    /// Replace the secret that signs deliveries; previous secrets also sign for a while
    RotateSecret(RotateSecret),
    /// Send a test delivery
    Test(One),
    /// List dead letters
    Dead(Rows),
    /// Redeliver all dead letters
    Redrive(One),
    /// Drop all dead letters
    DropDead(Confirmed),
    /// Redeliver the events of a period
    Replay(Replay),
    /// List the last attempts to deliver, newest first
    Deliveries(Rows),
    /// Retry failed deliveries now
    Retry(One),
    /// Skip an event that the receiver rejects; it becomes a dead letter
    Skip(Event),
    /// Redeliver one event: a dead letter, or an event that the log still has
    Resend(Event),
    /// Set the callback or the retry limits
    Set(Set),
    /// Pause deliveries; events wait
    Pause(One),
    /// Resume paused deliveries
    Resume(One),
    /// Disable a subscription; new events are not stored for it
    Disable(Confirmed),
    /// Enable a disabled subscription
    Enable(One),
}

#[derive(Debug, clap::Args)]
pub(crate) struct One {
    /// Subscriber
    name: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rows {
    /// Subscriber
    name: String,
    #[command(flatten)]
    listing: Listing,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Confirmed {
    /// Subscriber
    name: String,
    #[command(flatten)]
    sure: Sure,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Subscribe {
    /// Topic; repeat it for several. Other topics are unsubscribed
    #[arg(long = "topic", value_name = "TOPIC", required = true)]
    topics: Vec<String>,
    /// URL to deliver to
    #[arg(long, value_name = "URL")]
    callback: String,
    /// User name of deliveries [default: as before, or generated]
    #[arg(long, value_name = "NAME")]
    uuid: Option<String>,
    /// Time that a batch waits to fill, at most 1h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    batch_time: Option<Duration>,
    /// Maximum number of events in a batch
    #[arg(long, value_name = "COUNT")]
    batch_events: Option<u32>,
    /// Batches that are delivered at the same time
    #[arg(long, value_name = "COUNT")]
    concurrency: Option<u32>,
    /// What happens to a batch whose attempts all failed
    #[arg(long, value_parser = ["dead", "block"])]
    on_exhausted: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Unsubscribe {
    /// Topic
    topic: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RotateSecret {
    /// Subscriber
    name: String,
    /// Time for which previous secrets also sign
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1d")]
    overlap: Duration,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Replay {
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
pub(crate) struct Event {
    /// Subscriber
    name: String,
    /// ID of the event
    id: u64,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Set {
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

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List(listing) => list(&listing).await,
        Command::Show(One { name, remote }) => show(&name, &remote).await,
        Command::Subscribe(args) => subscribe(*args).await,
        Command::Unsubscribe(Unsubscribe { topic, remote }) => {
            let path = format!("/subscriber/topics/{}", segment(&topic));
            remote.change("DELETE", &path, None, |_| format!("unsubscribed from {topic}")).await
        }
        Command::Remove(Confirmed { name, sure, remote }) => {
            sure.confirm_name(&format!("end the subscription of {name} and drop its waiting events"), &name)?;
            remote
                .change("DELETE", &of("/subscription", &name), None, |_| {
                    format!("subscription of {name} ended")
                })
                .await
        }
        Command::Secret(One { name, remote }) => remote.document(&of("/subscriber/secret", &name)).await,
        Command::RotateSecret(RotateSecret { name, overlap, remote }) => {
            let body = json!({"overlap_seconds": overlap.as_secs()});
            let secret = |answer: &Value| answer["secret"].as_str().unwrap_or("-").to_owned();
            remote.change("POST", &of("/subscriber/secret", &name), Some(&body), secret).await
        }
        Command::Test(args) => test(args).await,
        Command::Dead(Rows { name, listing }) => {
            listing
                .run(async || {
                    let dead = listing.client()?.events().all_dead(&name, listing.limit()).await?;
                    listing.show_first(&dead, ["ID", "TOPIC", "URL", "DIED", "ATTEMPTS", "REASON"], dead_row)
                })
                .await
        }
        Command::Redrive(One { name, remote }) => {
            let redriven = remote.client()?.events().redrive(&name).await?;
            remote.done(&json!({"redriven": redriven}), &format!("redelivering {redriven} events to {name}"))
        }
        Command::DropDead(Confirmed { name, sure, remote }) => {
            sure.confirm(&format!("delete all dead letters of {name}"))?;
            let dropped = remote.client()?.events().drop_dead(&name).await?;
            remote.done(&json!({"dropped": dropped}), &format!("{dropped} events dropped"))
        }
        Command::Replay(Replay { name, from, to, rate, remote }) => {
            let ms = |at: Timestamp| u64::try_from(at.as_millisecond()).unwrap_or_default();
            remote.client()?.events().replay(&name, ms(from), ms(to), rate).await?;
            remote.done(
                &json!({"replaying": true}),
                &format!("redelivering the events of that period to {name}"),
            )
        }
        Command::Deliveries(Rows { name, listing }) => {
            listing.list(async |client| client.events().deliveries(&name).await, DELIVERY, delivery_row).await
        }
        Command::Retry(One { name, remote }) => {
            let retried = remote.client()?.events().retry(&name).await?;
            remote.done(&json!({"retried": retried}), &format!("retrying {retried} lanes of {name}"))
        }
        Command::Skip(Event { name, id, remote }) => {
            remote.client()?.events().skip(&name, id).await?;
            remote.done(&json!({"skipped": id}), &format!("event {id} is a dead letter of {name}"))
        }
        Command::Resend(Event { name, id, remote }) => {
            remote.client()?.events().resend(&name, id).await?;
            remote.done(&json!({"resent": id}), &format!("redelivering event {id} to {name}"))
        }
        Command::Set(args) => set(args).await,
        Command::Pause(One { name, remote }) => {
            alter(&name, &remote, &json!({"paused": true}), "deliveries are paused").await
        }
        Command::Resume(One { name, remote }) => {
            alter(&name, &remote, &json!({"paused": false}), "deliveries continue").await
        }
        Command::Disable(Confirmed { name, sure, remote }) => {
            sure.confirm(&format!("store no new events for {name} until it is enabled"))?;
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

fn of(path: &str, subscriber: &str) -> String {
    with_query(path, &[("subscriber", Some(subscriber))])
}

async fn subscribe(args: Subscribe) -> Result<(), Failure> {
    let mut body = Map::new();
    body.insert("topics".to_owned(), json!(args.topics));
    body.insert("callback".to_owned(), args.callback.into());
    let mut put =
        |member: &str, value: Option<Value>| value.map(|value| body.insert(member.to_owned(), value));
    put("uuid", args.uuid.map(Value::from));
    put("timeout", args.batch_time.and_then(|time| u64::try_from(time.as_millis()).ok()).map(Value::from));
    put("max", args.batch_events.map(Value::from));
    put("concurrency", args.concurrency.map(Value::from));
    put("on_exhausted", args.on_exhausted.map(Value::from));
    let done = |_: &Value| format!("subscribed to {}", args.topics.join(", "));
    args.remote.change("PUT", "/subscription", Some(&body.into()), done).await
}

/// One subscriber. The API only lists them.
async fn show(name: &str, remote: &Remote) -> Result<(), Failure> {
    let all = subscribers(&remote.client()?).await?;
    let Some(one) = all.into_iter().find(|one| one.subscription.subscriber == name) else {
        return Err(Failure::refused_because(format!(
            "unknown subscriber {name}; `signalbox subscribers list` shows all"
        )));
    };
    remote.show(&one, |one| outline::print(&json!(one)))
}

const DELIVERY: [&str; 8] = ["AT", "RESULT", "STATUS", "TOOK", "ATTEMPT", "EVENT", "NEXT TRY", "RESPONSE"];

fn delivery_row(one: &DeliveryAttempt) -> [Cell; 8] {
    let events = if one.events == 1 { one.first.to_string() } else { format!("{} events", one.events) };
    [
        Cell::Time(one.at),
        format!("{:?}", one.result).to_lowercase().into(),
        terminal::or_dash(one.status).into(),
        terminal::span(one.duration_ms).into(),
        one.attempt.to_string().into(),
        events.into(),
        Cell::time(one.next),
        terminal::or_dash(one.response.as_ref().or(one.why.as_ref())).into(),
    ]
}

/// A subscription with its numbers.
#[derive(Debug, Serialize)]
struct Subscriber {
    #[serde(flatten)]
    subscription: Subscription,
    numbers: Option<SubscriberNumbers>,
}

async fn list(listing: &Listing) -> Result<(), Failure> {
    listing.list(async |client| subscribers(&client).await, HEADS, row).await
}

async fn subscribers(client: &Client) -> Result<Vec<Subscriber>, Failure> {
    let subscriptions = client.events().subscriptions().await?;
    let mut numbers = client.events().numbers().await?;
    let with_numbers = |subscription: Subscription| {
        let numbers = numbers.subscribers.remove(&subscription.subscriber);
        Subscriber { subscription, numbers }
    };
    Ok(subscriptions.into_iter().map(with_numbers).collect())
}

const HEADS: [&str; 10] =
    ["SUBSCRIBER", "STATE", "HEALTH", "WAITING", "OLDEST", "FAILED", "DEAD", "TOPICS", "CALLBACK", "+SENT"];

fn row(one: &Subscriber) -> [Cell; 10] {
    let count =
        |of: fn(&SubscriberNumbers) -> u64| Cell::from(terminal::or_dash(one.numbers.as_ref().map(of)));
    let subscription = &one.subscription;
    let state = match (&subscription.disabled, subscription.paused) {
        (Some(_), _) => "disabled",
        (None, true) => "paused",
        (None, false) => "active",
    };
    [
        subscription.subscriber.clone().into(),
        state.into(),
        subscription.health.to_string().into(),
        count(|numbers| numbers.events),
        Cell::time(one.numbers.as_ref().and_then(|numbers| numbers.oldest_ms)),
        count(|numbers| numbers.failed),
        count(|numbers| numbers.dead),
        terminal::list(&subscription.topics).into(),
        subscription.callback.clone().into(),
        count(|numbers| numbers.sent),
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

fn dead_row(letter: &DeadLetter) -> [Cell; 6] {
    let event: Value = serde_json::from_str(letter.event.get()).unwrap_or_default();
    let word = |name: &str| match &event[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    [
        word("id").into(),
        word("topic").into(),
        word("url").into(),
        Cell::Time(letter.died_at),
        letter.attempts.to_string().into(),
        letter.reason.clone().into(),
    ]
}
