//! `signalbox hosts`: shows hosts, and changes their policies, traffic splits and versions.

use std::{path::PathBuf, time::Duration};

use clap::Subcommand;
use serde_json::{Value, json};
use signalbox_client::{
    Client,
    routes::{Host, Promote, PromotedHost, UndoPromotion},
    segment,
};
use signalbox_machine::definition::Path;

use crate::{
    confirm::Sure,
    exit::Failure,
    input,
    listing::{Cell, Listing, cells},
    remote::{Remote, duration},
    routes::Until,
    terminal::out,
};

/// The revision of a policy that does not exist.
const NO_POLICY: &str = "\"0\"";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List host names and the addresses that serve them
    #[command(visible_alias = "ls")]
    List(Listing),
    /// Show a host with its policy
    #[command(visible_alias = "get")]
    Show {
        /// Host name
        host: String,
    },
    /// Replace the policy of a host with the policy in a JSON file
    SetPolicy {
        #[command(flatten)]
        change: Change,
        /// File with the policy; - is standard input
        #[arg(long, value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        force: Force,
    },
    /// Change fields of the policy of a host; the other fields stay
    Set {
        #[command(flatten)]
        change: Change,
        /// Field and value, such as retries.attempts=2; the value is JSON, or text if it is not valid JSON
        #[arg(value_name = "FIELD=VALUE", value_parser = field, required_unless_present = "remove")]
        fields: Vec<(Path, Value)>,
        /// Remove this field, such as limits.requests; can be repeated
        #[arg(long, value_name = "FIELD", value_parser = path)]
        remove: Vec<Path>,
        #[command(flatten)]
        force: Force,
    },
    /// Remove the policy of a host
    ResetPolicy(Change),
    /// Divide the requests of a host between version types, by percentages
    Split {
        #[command(flatten)]
        change: Change,
        /// Version type and its percentage; together 100. Without one, the split is removed
        #[arg(value_name = "VERSION_TYPE=PERCENT", value_parser = share)]
        shares: Vec<(String, f64)>,
        #[command(flatten)]
        force: Force,
    },
    /// Send all requests of a host to a version type; the other instances drain and are on standby until it is final
    Promote {
        #[command(flatten)]
        change: Change,
        /// Version type
        version_type: String,
        #[command(flatten)]
        replaced: Replaced,
    },
    /// Undo the promotion of a host: what was served before is served again, with its traffic split
    Undo(Change),
    /// Remove a host; instances that serve no other host are removed, too
    #[command(visible_alias = "rm", alias = "delete")]
    Remove {
        #[command(flatten)]
        change: Change,
        #[command(flatten)]
        sure: Sure,
    },
}

/// Whether a traffic split may name version types that do not serve the host yet.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Force {
    /// Also accept version types that no instance of the host has; their requests go to the others
    #[arg(long)]
    force: bool,
}

/// How long the instances remain that a promotion replaces.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Replaced {
    /// Let the replaced instances finish their requests and sessions for this time
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    drain: Duration,
    /// Keep the replaced instances on standby for this time, in which the promotion can be undone; then remove them
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1h")]
    undo_for: Duration,
}

impl Replaced {
    /// The request that promotes a version type.
    pub(crate) fn promote(&self, version_type: &str) -> Promote {
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        Promote {
            version_type_id: version_type.to_owned(),
            drain_seconds: Some(seconds(self.drain)),
            undo_seconds: Some(seconds(self.undo_for)),
        }
    }

    /// Reports what happens to the instances that do not serve any longer.
    pub(crate) fn report(&self, promoted: &PromotedHost) {
        if promoted.drained.is_empty() {
            return;
        }
        let drained = promoted.drained.join(", ");
        let span =
            |time: Duration| signalbox_diagnosis::span(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let (drain, undo) = (span(self.drain), span(self.undo_for.max(self.drain)));
        let [verb, are] = verbs(&promoted.drained);
        out!("  {drained} {verb} for {drain}, and {are} removed after {undo}");
        if promoted.undo_until.is_some() && !self.undo_for.is_zero() {
            out!("  until then: signalbox hosts undo {}", promoted.hostname);
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Change {
    /// Host name
    host: String,
    #[command(flatten)]
    until: Until,
}

fn path(text: &str) -> Result<Path, String> {
    let path = Path::parse(text)?;
    if path.keys().is_empty() {
        Err("must name a field, such as limits.requests".to_owned())
    } else {
        Ok(path)
    }
}

fn field(text: &str) -> Result<(Path, Value), String> {
    let (name, value) = text.split_once('=').ok_or("must be FIELD=VALUE, such as retries.attempts=2")?;
    Ok((path(name)?, input::value(value)))
}

/// Sets a member, or removes it. An object that becomes empty is removed, too, because it would not be a policy's part.
fn put(policy: &mut Value, keys: &[Box<str>], value: Option<&Value>) {
    let Some((first, rest)) = keys.split_first() else { return };
    if !policy.is_object() {
        *policy = json!({});
    }
    let Some(members) = policy.as_object_mut() else { return };
    if let (true, Some(value)) = (rest.is_empty(), value) {
        members.insert(first.to_string(), value.clone());
    } else if rest.is_empty() {
        members.remove(&**first);
    } else if value.is_some() || members.contains_key(&**first) {
        let below = members.entry(first.to_string()).or_insert_with(|| json!({}));
        put(below, rest, value);
        if value.is_none() && below.as_object().is_some_and(serde_json::Map::is_empty) {
            members.remove(&**first);
        }
    }
}

fn share(text: &str) -> Result<(String, f64), String> {
    let share = text.rsplit_once('=').and_then(|(version, percent)| Some((version, percent.parse().ok()?)));
    let (version, percent): (&str, f64) = share.ok_or("must be VERSION_TYPE=PERCENT, such as 18=5")?;
    if version.is_empty() || !(0.0..=100.0).contains(&percent) {
        return Err("the percentage must be 0 to 100".to_owned());
    }
    Ok((version.to_owned(), percent))
}

pub(crate) async fn run(command: Command, remote: &Remote) -> Result<(), Failure> {
    match command {
        Command::List(listing) => {
            let heads = ["HOST", "STATE", "ADDRESSES", "VERSION TYPE", "SOURCE", "+INSTANCES"];
            let read = async |client: Client| Ok(client.routes().hosts().await?);
            listing.list(remote, read, heads, row).await
        }
        Command::Show { host } => remote.document(&format!("/hosts/{}", segment(&host))).await,
        Command::SetPolicy { change, file, force } => {
            let policy = input::json(&file)?;
            let answer = change.send(remote, "PUT", force.query(), Some(&policy)).await?;
            change.report(remote, &answer, "policy set")
        }
        Command::Set { change, fields, remove, force } => {
            let edited = change.edit(remote, force, |policy| {
                fields.iter().for_each(|(path, value)| put(policy, path.keys(), Some(value)));
                remove.iter().for_each(|path| put(policy, path.keys(), None));
            });
            change.report(remote, &edited.await?, "policy changed")
        }
        Command::ResetPolicy(change) => {
            let answer = change.send(remote, "DELETE", "/policy", None).await?;
            change.report(remote, &answer, "policy removed")
        }
        Command::Split { change, shares, force } => {
            let share =
                |(version, percent): &(String, f64)| json!({"version_type": version, "percent": percent});
            let edited = change.edit(remote, force, |policy| {
                if let Some(policy) = policy.as_object_mut() {
                    if shares.is_empty() {
                        policy.remove("shares");
                        policy.remove("shares_by");
                    } else {
                        policy.insert("shares".to_owned(), shares.iter().map(share).collect());
                    }
                }
            });
            let done = if shares.is_empty() { "traffic split removed" } else { "traffic split changed" };
            change.report(remote, &edited.await?, done)
        }
        Command::Promote { change: Change { host, until }, version_type, replaced } => {
            let client = remote.client()?;
            let progress = until.progress();
            let promoted =
                client.routes().promote(&host, &replaced.promote(&version_type), until.wait).await?;
            drop(progress);
            remote.show(&promoted, |promoted| {
                out!("{host} is served by version type {version_type} (serial {})", promoted.serial);
                replaced.report(promoted);
            })
        }
        Command::Undo(Change { host, until }) => {
            let client = remote.client()?;
            let promotion = client.routes().host(&host).await?.promotion;
            // The promotion that this command reads is undone, and no other one.
            let promoted = promotion.and_then(|one| Some((one.version_type_id?, one.at)));
            let Some((version_type_id, at)) = promoted else {
                return Err(Failure::refused_because(format!(
                    "no version type of {host} is promoted (nothing_to_undo)"
                )));
            };
            let progress = until.progress();
            let undo = UndoPromotion { version_type_id, at: Some(at), drain_seconds: None };
            let undone = client.routes().undo_promotion(&host, &undo, until.wait).await?;
            drop(progress);
            remote.show(&undone, |undone| {
                let serving = undone.version_types.join(", ");
                out!("{host} is served by version type {serving} (serial {})", undone.serial);
                if !undone.drained.is_empty() {
                    let [verb, are] = verbs(&undone.drained);
                    out!("  {} {verb}, and {are} then on standby", undone.drained.join(", "));
                }
            })
        }
        Command::Remove { change, sure } => {
            sure.confirm_name(&format!("remove the host {} with its policy", change.host), &change.host)?;
            change.send(remote, "DELETE", "", None).await?;
            change.report(remote, &json!({"hostname": change.host, "removed": true}), "removed")
        }
    }
}

fn row(host: &Host) -> [Cell; 6] {
    let source = if host.registered { "registered" } else { "manual" };
    let state = host.state.as_ref().map(|state| state.short.clone());
    cells![host.hostname, state, host.addresses, host.log_key, source, host.instance_ids]
}

/// The verbs of a sentence about these instances.
fn verbs(drained: &[String]) -> [&'static str; 2] {
    if drained.len() == 1 { ["drains", "is"] } else { ["drain", "are"] }
}

impl Force {
    fn query(self) -> &'static str {
        if self.force { "?force=true" } else { "" }
    }
}

impl Change {
    fn path(&self, below: &str) -> String {
        format!("/hosts/{}{below}", segment(&self.host))
    }

    /// Reads the policy, changes it, and writes it unless another client changed it in the meantime.
    async fn edit(
        &self,
        remote: &Remote,
        force: Force,
        change: impl FnOnce(&mut Value),
    ) -> Result<Value, Failure> {
        let client = remote.client()?;
        let (mut policy, etag) = match client.tagged::<Value>(&self.path("")).await {
            Ok((mut host, etag)) => (host["rules"].take(), etag),
            // A policy can be set before the first instance is registered.
            Err(error) if error.code() == Some("unknown_host") => (Value::Null, Some(NO_POLICY.to_owned())),
            Err(error) => return Err(error.into()),
        };
        if policy.is_null() {
            policy = json!({});
        }
        change(&mut policy);
        let progress = self.until.progress();
        let path = self.until.path(&self.path(force.query()));
        let written = client.call_if("PUT", &path, Some(&policy), etag.as_deref()).await;
        drop(progress);
        written.map_err(|error| {
            if error.status() != Some(412) {
                return error.into();
            }
            Failure::refused_because(format!(
                "nothing was changed, because another client changed the policy of {0} at the same time; show it with \
                 `signalbox hosts show {0}`, and repeat the command (policy_changed)",
                self.host
            ))
        })
    }

    async fn send(
        &self,
        remote: &Remote,
        method: &str,
        below: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        self.until.send(remote, method, &self.path(below), body).await
    }

    fn report(&self, remote: &Remote, answer: &Value, what: &str) -> Result<(), Failure> {
        remote.show(answer, |answer| {
            let serial =
                answer["serial"].as_u64().map_or_else(String::new, |serial| format!(" (serial {serial})"));
            out!("{}: {what}{serial}", self.host);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_policy_are_set_and_removed() {
        let mut policy = json!({"retries": {"attempts": 3}, "limits": {"rate": 5}, "hold_ms": 10});
        let keys = |text: &str| path(text).unwrap().keys().to_vec();
        for (name, value) in [
            ("retries.attempts", Some(json!(2))),
            ("access.allow", Some(json!(["10.0.0.0/8"]))),
            ("limits.rate", None),
            ("hold_ms", None),
            ("none.at.all", None),
        ] {
            put(&mut policy, &keys(name), value.as_ref());
        }
        assert_eq!(policy, json!({"retries": {"attempts": 2}, "access": {"allow": ["10.0.0.0/8"]}}));
        assert_eq!(field("redirect.to=https://a.test/?x=1").unwrap().1, "https://a.test/?x=1");
        for bad in ["retries", "=1", ".a=1"] {
            field(bad).unwrap_err();
        }
    }

    #[test]
    fn a_share_is_a_version_type_and_a_percentage() {
        assert_eq!(share("18=5"), Ok(("18".to_owned(), 5.0)));
        assert_eq!(share("a=b=0.5"), Ok(("a=b".to_owned(), 0.5)));
        for bad in ["18", "=5", "18=", "18=101", "18=-1", "18=NaN"] {
            share(bad).unwrap_err();
        }
    }
}
