//! `signalbox hosts`: shows hosts, and changes their policies, traffic splits and versions.

use std::{fs, io::Read as _, path::PathBuf, time::Duration};

use clap::Subcommand;
use serde_json::{Value, json};
use signalbox_client::{Client, routes::Host, segment};

use crate::{
    exit::Failure,
    listing::Listing,
    remote::{Remote, duration},
    routes::Until,
    terminal,
};

/// The largest policy that is read from a file.
const MAX_POLICY_BYTES: u64 = 1024 * 1024;

/// Flags of `signalbox hosts`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List host names and the addresses that serve them
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Show a host with its policy, as JSON
    #[command(visible_alias = "get")]
    Show(One),
    /// Replace the policy of a host by that of a JSON file
    SetPolicy(SetPolicy),
    /// Remove the policy of a host
    ResetPolicy(Change),
    /// Divide the requests of a host between version types, by percentages
    Split(Split),
    /// Send all requests of a host to a version type, and drain the other instances
    Promote(Promote),
    /// Remove a host; instances that serve no other host are removed, too
    #[command(visible_alias = "rm")]
    Remove(Remove),
}

#[derive(Debug, clap::Args)]
struct One {
    /// Host name
    host: String,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct Change {
    /// Host name
    host: String,
    #[command(flatten)]
    until: Until,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
struct SetPolicy {
    #[command(flatten)]
    change: Change,
    /// File with the policy; - is standard input
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Split {
    #[command(flatten)]
    change: Change,
    /// Version type and its percentage; together 100. Without one, the split is removed
    #[arg(value_name = "VERSION_TYPE=PERCENT", value_parser = share)]
    shares: Vec<(String, f64)>,
}

#[derive(Debug, clap::Args)]
struct Promote {
    #[command(flatten)]
    change: Change,
    /// Version type
    version_type: String,
    /// Remove the other instances after this time
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    drain: Duration,
}

#[derive(Debug, clap::Args)]
struct Remove {
    #[command(flatten)]
    change: Change,
    /// Confirm; this cannot be undone
    #[arg(long, required = true)]
    yes: bool,
}

fn share(text: &str) -> Result<(String, f64), String> {
    let share = text.rsplit_once('=').and_then(|(version, percent)| Some((version, percent.parse().ok()?)));
    let (version, percent): (&str, f64) = share.ok_or("must be VERSION_TYPE=PERCENT, such as 18=5")?;
    if version.is_empty() || !(0.0..=100.0).contains(&percent) {
        return Err("the percentage must be 0 to 100".to_owned());
    }
    Ok((version.to_owned(), percent))
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::List(listing) => list(&listing).await,
        Command::Show(One { host, remote }) => {
            let host = remote.client()?.routes().host(&host).await?;
            remote.show(&host, |host| terminal::line(&format!("{:#}", json!(host))))
        }
        Command::SetPolicy(SetPolicy { change, file }) => {
            let policy = read(&file)?;
            let answer = change.call("PUT", "", Some(&policy)).await?;
            change.report(&answer, "policy set")
        }
        Command::ResetPolicy(change) => {
            let answer = change.call("DELETE", "/policy", None).await?;
            change.report(&answer, "policy removed")
        }
        Command::Split(Split { change, shares }) => {
            let mut policy = policy(&change.remote.client()?, &change.host).await?;
            policy["shares"] = shares
                .into_iter()
                .map(|(version, percent)| json!({"version_type": version, "percent": percent}))
                .collect();
            if policy["shares"].as_array().is_some_and(Vec::is_empty) {
                for member in ["shares", "shares_by"] {
                    policy.as_object_mut().map(|policy| policy.remove(member));
                }
            }
            let answer = change.call("PUT", "", Some(&policy)).await?;
            change.report(&answer, "traffic split changed")
        }
        Command::Promote(Promote { change, version_type, drain }) => {
            let routes = change.remote.client()?;
            let switched =
                routes.routes().switch(&change.host, &version_type, Some(drain), change.until.wait).await?;
            change.remote.show(&switched, |switched| {
                let drained = terminal::list(&switched.drained);
                let text = format!("{} is served by version type {version_type}", change.host);
                terminal::line(&format!("{text} (serial {}); draining: {drained}", switched.serial));
            })
        }
        Command::Remove(Remove { change, yes: _ }) => {
            change.call("DELETE", "", None).await?;
            change.report(&json!({"hostname": change.host, "removed": true}), "removed")
        }
    }
}

async fn list(listing: &Listing) -> Result<(), Failure> {
    listing
        .run(async || {
            let hosts = listing.client()?.routes().hosts().await?;
            listing.show(
                &hosts,
                ["HOST", "ADDRESSES", "COUNTED UNDER", "HOW", "+INSTANCES"],
                |host: &Host| {
                    let by = if host.registered { "registered" } else { "manual" };
                    [
                        host.hostname.clone().into(),
                        terminal::list(&host.addresses).into(),
                        terminal::or_dash(host.log_key.as_ref()).into(),
                        by.into(),
                        terminal::list(&host.instance_ids).into(),
                    ]
                },
            )
        })
        .await
}

/// The policy as it was set. A host without one has an empty policy.
async fn policy(client: &Client, host: &str) -> Result<Value, Failure> {
    let rules = match client.routes().host(host).await {
        Ok(host) => host.rules,
        Err(error) if error.code() == Some("unknown_host") => None,
        Err(error) => return Err(error.into()),
    };
    let rules = rules.map(|rules| serde_json::from_str(rules.get())).transpose();
    Ok(rules.map_err(|error| Failure::internal(error.to_string()))?.unwrap_or_else(|| json!({})))
}

fn read(file: &PathBuf) -> Result<Value, Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::configuration(format!("{}: {error}", file.display()));
    let mut text = String::new();
    let read = if file.as_os_str() == "-" {
        std::io::stdin().take(MAX_POLICY_BYTES).read_to_string(&mut text)
    } else {
        fs::File::open(file).and_then(|open| open.take(MAX_POLICY_BYTES).read_to_string(&mut text))
    };
    read.map_err(|error| failed(&error))?;
    serde_json::from_str(&text).map_err(|error| failed(&error))
}

impl Change {
    async fn call(&self, method: &str, below: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let wait = self.until.wait.map_or_else(String::new, |wait| format!("?wait={}ms", wait.as_millis()));
        let path = format!("/hosts/{}{below}{wait}", segment(&self.host));
        let progress = self.until.progress();
        let answer = self.remote.client()?.call(method, &path, body).await?;
        drop(progress);
        Ok(answer)
    }

    fn report(&self, answer: &Value, what: &str) -> Result<(), Failure> {
        self.remote.show(answer, |answer| {
            let serial =
                answer["serial"].as_u64().map_or_else(String::new, |serial| format!(" (serial {serial})"));
            terminal::line(&format!("{}: {what}{serial}", self.host));
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_version_type_and_a_percentage() {
        assert_eq!(share("18=5"), Ok(("18".to_owned(), 5.0)));
        assert_eq!(share("a=b=0.5"), Ok(("a=b".to_owned(), 0.5)));
        for bad in ["18", "=5", "18=", "18=101", "18=-1", "18=NaN"] {
            share(bad).unwrap_err();
        }
    }
}
