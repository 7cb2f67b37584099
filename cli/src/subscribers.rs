//! `signalbox subscribers`: manages subscribers and their dead letters.

use std::time::Duration;

use clap::Subcommand;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use signalbox_client::{
    Client,
    events::{
        DeadLetter, DeadLetters, DeliveryAttempt, DeliveryLog, Numbers, SubscriberNumbers, Subscription,
        Tested,
    },
    segment, with_query,
};

use crate::{
    confirm::Sure,
    exit::Failure,
    input,
    listing::{Cell, Listing, cells},
    outline,
    remote::{Remote, duration, past},
    terminal::{self, Progress, out},
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
    Unsubscribe {
        /// Topic
        topic: String,
    },
    /// End a subscription; waiting events are dropped
    #[command(visible_alias = "rm", alias = "delete")]
    Remove(Confirmed),
    /// Show the secret that signs deliveries
    Secret(One),
    /// Replace the secret that signs deliveries; previous secrets also sign for a while
    RotateSecret {
        /// Subscriber
        name: String,
        /// Time for which previous secrets also sign
        #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1d")]
        overlap: Duration,
    },
    /// Send a test delivery
    Test(One),
    /// List dead letters
    Dead(Rows),
    /// Redeliver all dead letters
    Redrive(One),
    /// Drop all dead letters
    DropDead(Confirmed),
    /// Redeliver the events of a period
    Replay {
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
    },
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
}

#[derive(Debug, clap::Args)]
pub(crate) struct Event {
    /// Subscriber
    name: String,
    /// ID of the event
    id: u64,
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
}

pub(crate) async fn run(command: Command, remote: &Remote) -> Result<(), Failure> {
    match command {
        Command::List(listing) => {
            listing.list(remote, async |client| subscribers(&client).await, HEADS, row).await
        }
        Command::Show(One { name }) => show(&name, remote).await,
        Command::Subscribe(args) => subscribe(*args, remote).await,
        Command::Unsubscribe { topic } => {
            let path = format!("/subscriber/topics/{}", segment(&topic));
            remote.change("DELETE", &path, None, |_| format!("unsubscribed from {topic}")).await
        }
        Command::Remove(Confirmed { name, sure }) => {
            sure.confirm_name(&format!("end the subscription of {name} and drop its waiting events"), &name)?;
            let done = |_: &Value| format!("subscription of {name} ended");
            remote.change("DELETE", &of("/subscription", &name), None, done).await
        }
        Command::Secret(One { name }) => remote.document(&of("/subscriber/secret", &name)).await,
        Command::RotateSecret { name, overlap } => {
            let body = json!({"overlap_seconds": overlap.as_secs()});
            let secret = |answer: &Value| answer["secret"].as_str().unwrap_or("-").to_owned();
            remote.change("POST", &of("/subscriber/secret", &name), Some(&body), secret).await
        }
        Command::Test(One { name }) => test(&name, remote).await,
        Command::Dead(Rows { name, listing }) => {
            let heads = ["ID", "TOPIC", "URL", "DIED", "ATTEMPTS", "REASON"];
            let read = async |client: Client, most| {
                let split = |page: DeadLetters| (page.dead, page.cursor);
                Ok(client.list(&of("/subscriber/dead", &name), most, split).await?)
            };
            listing.list_first(remote, read, heads, dead_row).await
        }
        Command::Redrive(One { name }) => {
            let done = |answer: &Value| format!("redelivering {} events to {name}", answer["redriven"]);
            remote.change("POST", &of("/subscriber/dead/redrive", &name), None, done).await
        }
        Command::DropDead(Confirmed { name, sure }) => {
            sure.confirm(&format!("delete all dead letters of {name}"))?;
            let done = |answer: &Value| format!("{} events dropped", answer["dropped"]);
            remote.change("DELETE", &of("/subscriber/dead", &name), None, done).await
        }
        Command::Replay { name, from, to, rate } => {
            let body = json!({"from": from, "to": to, "rate": rate});
            remote.call("POST", &of("/subscriber/replay", &name), Some(&body)).await?;
            remote.done(
                &json!({"replaying": true}),
                &format!("redelivering the events of that period to {name}"),
            )
        }
        Command::Deliveries(Rows { name, listing }) => {
            let path = of("/subscriber/deliveries", &name);
            let read = async |client: Client| Ok(client.get::<DeliveryLog>(&path).await?.deliveries);
            listing.list(remote, read, DELIVERY, delivery_row).await
        }
        Command::Retry(One { name }) => {
            let done = |answer: &Value| format!("retrying {} lanes of {name}", answer["retried"]);
            remote.change("POST", &of("/subscriber/retry", &name), None, done).await
        }
        Command::Skip(Event { name, id }) => {
            remote.call("POST", &of("/subscriber/skip", &name), Some(&json!({"id": id}))).await?;
            remote.done(&json!({"skipped": id}), &format!("event {id} is a dead letter of {name}"))
        }
        Command::Resend(Event { name, id }) => {
            remote.call("POST", &of("/subscriber/resend", &name), Some(&json!({"id": id}))).await?;
            remote.done(&json!({"resent": id}), &format!("redelivering event {id} to {name}"))
        }
        Command::Set(args) => set(args, remote).await,
        Command::Pause(One { name }) => {
            alter(&name, remote, &json!({"paused": true}), "deliveries are paused").await
        }
        Command::Resume(One { name }) => {
            alter(&name, remote, &json!({"paused": false}), "deliveries continue").await
        }
        Command::Disable(Confirmed { name, sure }) => {
            sure.confirm(&format!("store no new events for {name} until it is enabled"))?;
            alter(&name, remote, &json!({"disabled": true}), "subscription disabled").await
        }
        Command::Enable(One { name }) => {
            alter(&name, remote, &json!({"disabled": false}), "subscription enabled").await
        }
    }
}

async fn set(args: Set, remote: &Remote) -> Result<(), Failure> {
    let limits = json!({
        "max_attempts": args.max_attempts,
        "max_age_seconds": args.max_age.map(|age| age.as_secs()),
        "retry_seconds": args.retry.map(|pauses| pauses.iter().map(Duration::as_secs).collect::<Vec<_>>()),
    });
    // `null` resets a limit to the configured one.
    let mut change = if args.default { limits } else { input::given(limits) };
    if let Some(callback) = args.callback {
        change["callback"] = callback.into();
    }
    alter(&args.name, remote, &change, "settings changed").await
}

async fn alter(name: &str, remote: &Remote, change: &Value, what: &str) -> Result<(), Failure> {
    remote.call("PATCH", &of("/subscription", name), Some(change)).await?;
    remote.done(change, &format!("{name}: {what}"))
}

fn of(path: &str, subscriber: &str) -> String {
    with_query(path, &[("subscriber", subscriber)])
}

async fn subscribe(args: Subscribe, remote: &Remote) -> Result<(), Failure> {
    let body = input::given(json!({
        "topics": args.topics,
        "callback": args.callback,
        "uuid": args.uuid,
        "timeout": args.batch_time.and_then(|time| u64::try_from(time.as_millis()).ok()),
        "max": args.batch_events,
        "concurrency": args.concurrency,
        "on_exhausted": args.on_exhausted,
    }));
    let done = |_: &Value| format!("subscribed to {}", args.topics.join(", "));
    remote.change("PUT", "/subscription", Some(&body), done).await
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
    cells![
        one.at,
        terminal::word(one.result),
        one.status,
        terminal::span(one.duration_ms),
        one.attempt,
        events,
        one.next,
        one.response.as_ref().or(one.why.as_ref()),
    ]
}

/// A subscription with its numbers.
#[derive(Debug, Serialize)]
struct Subscriber {
    #[serde(flatten)]
    subscription: Subscription,
    numbers: Option<SubscriberNumbers>,
}

async fn subscribers(client: &Client) -> Result<Vec<Subscriber>, Failure> {
    let subscriptions: Vec<Subscription> = client.get("/subscriptions").await?;
    let mut numbers: Numbers = client.get("/bus/metrics").await?;
    let with_numbers = |subscription: Subscription| {
        let numbers = numbers.subscribers.remove(&subscription.subscriber);
        Subscriber { subscription, numbers }
    };
    Ok(subscriptions.into_iter().map(with_numbers).collect())
}

const HEADS: [&str; 10] =
    ["SUBSCRIBER", "STATE", "HEALTH", "WAITING", "OLDEST", "FAILED", "DEAD", "TOPICS", "CALLBACK", "+SENT"];

fn row(one: &Subscriber) -> [Cell; 10] {
    let count = |of: fn(&SubscriberNumbers) -> u64| one.numbers.as_ref().map(of);
    let subscription = &one.subscription;
    let state = match (&subscription.disabled, subscription.paused) {
        (Some(_), _) => "disabled",
        (None, true) => "paused",
        (None, false) => "active",
    };
    cells![
        subscription.subscriber,
        state,
        subscription.health.to_string(),
        count(|numbers| numbers.events),
        one.numbers.as_ref().and_then(|numbers| numbers.oldest_at),
        count(|numbers| numbers.failed),
        count(|numbers| numbers.dead),
        subscription.topics,
        subscription.callback,
        count(|numbers| numbers.sent),
    ]
}

async fn test(name: &str, remote: &Remote) -> Result<(), Failure> {
    let client = remote.client()?;
    let progress = Progress::new();
    progress.say("waiting for the subscriber's answer");
    let tested: Tested = client.call("POST", &of("/subscriber/test", name), None).await?;
    drop(progress);
    remote.show(&tested, |tested| {
        let span = terminal::span(tested.duration_ms);
        if tested.delivered {
            out!("{name} accepted the test delivery in {span}");
        }
    })?;
    if tested.delivered {
        return Ok(());
    }
    let why = tested.why.unwrap_or_else(|| "it rejected the test delivery".to_owned());
    Err(Failure::broken(format!("{name}: {why}")))
}

fn dead_row(letter: &DeadLetter) -> [Cell; 6] {
    let event: Value = serde_json::from_str(letter.event.get()).unwrap_or_default();
    cells![event["id"], event["topic"], event["url"], letter.died_at, letter.attempts, letter.reason]
}
