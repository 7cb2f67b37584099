//! `signalbox clients`: manages the clients of the event bus, which publish and subscribe with tokens of their own.

use std::time::Duration;

use clap::{Subcommand, builder::PossibleValuesParser};
use serde_json::{Value, json};
use signalbox_client::{Time, events::ClientToken, segment, tokens::Scope};

use crate::{
    confirm::Sure,
    exit::Failure,
    input,
    listing::{Listing, cells},
    remote::{Remote, duration},
    tokens::expiry,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List clients
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Create a client and print its token once
    Create {
        /// Client
        name: String,
        /// Scope of its token; can be repeated [default: publish and subscribe]
        #[arg(long, value_parser = PossibleValuesParser::new(Scope::words()))]
        scope: Option<Vec<String>>,
        /// End of the token: a time, or a duration from now
        #[arg(long, value_name = "TIME", value_parser = expiry)]
        expires: Option<Time>,
    },
    /// Give a client another token and print it once; the previous tokens stay valid for a while
    Rotate {
        /// Client
        name: String,
        /// Time for which the previous tokens stay valid
        #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
        overlap: Duration,
    },
    /// Remove a client, its tokens and its subscription
    #[command(visible_alias = "rm", alias = "delete")]
    Remove {
        /// Client
        name: String,
        #[command(flatten)]
        sure: Sure,
    },
}

pub(crate) async fn run(command: Command, remote: &Remote) -> Result<(), Failure> {
    let secret = |answer: &Value| answer["token"].as_str().unwrap_or("-").to_owned();
    match command {
        Command::List(listing) => {
            let row = |client: &ClientToken| cells![client.name];
            listing.list(remote, async |client| Ok(client.get("/api_tokens").await?), ["CLIENT"], row).await
        }
        Command::Create { name, scope, expires } => {
            let body = input::given(json!({"name": name, "scopes": scope, "expires_at": expires}));
            remote.change("POST", "/api_tokens", Some(&body), secret).await
        }
        Command::Rotate { name, overlap } => {
            let body = json!({"overlap_seconds": overlap.as_secs()});
            let path = format!("/api_tokens/{}/rotate", segment(&name));
            remote.change("POST", &path, Some(&body), secret).await
        }
        Command::Remove { name, sure } => {
            sure.confirm_name(&format!("remove the client {name} with its tokens"), &name)?;
            let path = format!("/api_tokens/{}", segment(&name));
            remote.change("DELETE", &path, None, |_| format!("{name} removed")).await
        }
    }
}
