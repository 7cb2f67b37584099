//! `signalbox subscribers`: manages subscribers and their dead letters.

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::json;
use signalbox_client::events::{DeadLetters, Numbers, Subscription};

use crate::{
    exit::Failure,
    remote::{Remote, past},
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
    List(All),
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
}

#[derive(Debug, clap::Args)]
struct All {
    #[command(flatten)]
    remote: Remote,
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

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::List(args) => list(args).await,
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
    }
}

async fn list(args: All) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let (subscriptions, numbers) = (client.events().subscriptions().await?, client.events().numbers().await?);
    let answer = json!({"subscriptions": subscriptions, "numbers": numbers});
    args.remote.show(&answer, |_| {
        let rows: Vec<_> = subscriptions.iter().map(|one| row(one, &numbers)).collect();
        terminal::table(
            ["SUBSCRIBER", "HEALTH", "SENT", "WAITING", "DEAD", "TOPICS", "CALLBACK", "DISABLED"],
            &rows,
        );
    })
}

fn row(one: &Subscription, numbers: &Numbers) -> [String; 8] {
    let counted = numbers.subscribers.get(&one.subscriber);
    let count =
        |of: fn(&signalbox_client::events::SubscriberNumbers) -> u64| terminal::or_dash(counted.map(of));
    [
        one.subscriber.clone(),
        one.health.to_string(),
        count(|numbers| numbers.sent),
        count(|numbers| numbers.events),
        count(|numbers| numbers.dead),
        terminal::list(&one.topics),
        one.callback.clone(),
        terminal::or_dash(one.disabled.as_ref()),
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
