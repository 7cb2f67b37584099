//! `signalbox topics`: lists and removes topics, and hands them over.

use clap::Subcommand;
use serde_json::{Value, json};
use signalbox_client::{events::Topic, segment};

use crate::{
    confirm::Sure,
    exit::Failure,
    listing::{Listing, cells},
    remote::Remote,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List topics with their publishers
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Let another client or token publish to a topic, in place of the current one
    SetPublisher {
        /// Topic
        topic: String,
        /// Name of the client or token
        publisher: String,
    },
    /// Remove a topic; events that were accepted are still delivered
    #[command(visible_alias = "rm", alias = "delete")]
    Remove {
        /// Topic
        topic: String,
        #[command(flatten)]
        sure: Sure,
    },
}

pub(crate) async fn run(command: Command, remote: &Remote) -> Result<(), Failure> {
    match command {
        Command::List(listing) => {
            let row = |topic: &Topic| cells![topic.name, topic.publisher, topic.events];
            let heads = ["TOPIC", "PUBLISHER", "EVENTS"];
            listing.list(remote, async |client| Ok(client.get("/topics").await?), heads, row).await
        }
        Command::SetPublisher { topic, publisher } => {
            let path = format!("/topics/{}/publisher", segment(&topic));
            let done = |_: &Value| format!("{publisher} publishes to {topic} from now on");
            remote.change("PUT", &path, Some(&json!({"publisher": publisher})), done).await
        }
        Command::Remove { topic, sure } => {
            sure.confirm(&format!("remove the topic {topic}"))?;
            let path = format!("/topics/{}", segment(&topic));
            remote.change("DELETE", &path, None, |_| format!("{topic} removed")).await
        }
    }
}
