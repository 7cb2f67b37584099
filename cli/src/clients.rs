//! `signalbox clients`: manages the clients of the event bus, which publish and subscribe with tokens of their own.

use std::time::Duration;

use clap::{Subcommand, builder::PossibleValuesParser};
use serde_json::json;
use signalbox_client::{segment, tokens::Scope};

use crate::{
    confirm::Sure,
    exit::Failure,
    listing::Listing,
    remote::{Remote, duration},
    tokens::expiry,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List clients
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Create a client and print its token once
    Create(Create),
    /// Give a client another token and print it once; the previous tokens stay valid for a while
    Rotate(Rotate),
    /// Remove a client, its tokens and its subscription
    #[command(visible_alias = "rm", alias = "delete")]
    Remove(Remove),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// Client
    name: String,
    /// Scope of its token; can be repeated [default: publish and subscribe]
    #[arg(long, value_parser = PossibleValuesParser::new(Scope::words()))]
    scope: Vec<String>,
    /// End of the token: a time, or a duration from now
    #[arg(long, value_name = "TIME", value_parser = expiry)]
    expires: Option<u64>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rotate {
    /// Client
    name: String,
    /// Time for which the previous tokens stay valid
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    overlap: Duration,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Remove {
    /// Client
    name: String,
    #[command(flatten)]
    sure: Sure,
    #[command(flatten)]
    remote: Remote,
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    let secret = |answer: &serde_json::Value| answer["token"].as_str().unwrap_or("-").to_owned();
    match command {
        Command::List(listing) => {
            listing
                .list(
                    async |client| client.events().clients().await,
                    ["CLIENT"],
                    |client| [client.name.clone().into()],
                )
                .await
        }
        Command::Create(Create { name, scope, expires, remote }) => {
            let mut body = json!({"name": name});
            if !scope.is_empty() {
                body["scopes"] = json!(scope);
            }
            if let Some(at_ms) = expires {
                body["expires_at_ms"] = json!(at_ms);
            }
            remote.change("POST", "/api_tokens", Some(&body), secret).await
        }
        Command::Rotate(Rotate { name, overlap, remote }) => {
            let body = json!({"overlap_seconds": overlap.as_secs()});
            remote
                .change("POST", &format!("/api_tokens/{}/rotate", segment(&name)), Some(&body), secret)
                .await
        }
        Command::Remove(Remove { name, sure, remote }) => {
            sure.confirm_name(&format!("remove the client {name} with its tokens"), &name)?;
            let path = format!("/api_tokens/{}", segment(&name));
            remote.change("DELETE", &path, None, |_| format!("{name} removed")).await
        }
    }
}
