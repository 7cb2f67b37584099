//! `signalbox topics`: lists and removes topics, and hands them over.

use clap::Subcommand;
use serde_json::json;
use signalbox_client::segment;

use crate::{confirm::Sure, exit::Failure, listing::Listing, remote::Remote, terminal};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List topics with their publishers
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Let another client or token publish to a topic, in place of the current one
    SetPublisher(SetPublisher),
    /// Remove a topic; events that were accepted are still delivered
    #[command(visible_alias = "rm", alias = "delete")]
    Remove(Remove),
}

#[derive(Debug, clap::Args)]
pub(crate) struct SetPublisher {
    /// Topic
    topic: String,
    /// Name of the client or token
    publisher: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Remove {
    /// Topic
    topic: String,
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
                    async |client| client.events().topics().await,
                    ["TOPIC", "PUBLISHER", "EVENTS"],
                    |topic| {
                        let publisher = terminal::or_dash(topic.publisher.as_ref());
                        [topic.name.clone().into(), publisher.into(), topic.events.to_string().into()]
                    },
                )
                .await
        }
        Command::SetPublisher(SetPublisher { topic, publisher, remote }) => {
            let path = format!("/topics/{}/publisher", segment(&topic));
            let body = json!({"publisher": publisher});
            remote
                .change("PUT", &path, Some(&body), |_| {
                    format!("{publisher} publishes to {topic} from now on")
                })
                .await
        }
        Command::Remove(Remove { topic, sure, remote }) => {
            sure.confirm(&format!("remove the topic {topic}"))?;
            let path = format!("/topics/{}", segment(&topic));
            remote.change("DELETE", &path, None, |_| format!("{topic} removed")).await
        }
    }
}
