//! `signalbox deploy`: replaces the instances of a host with those of a new version, or changes nothing.
//!
//! ```text
//!  register the targets on standby ─▶ every one healthy? ─ yes ─▶ promote their version, acknowledged by every router
//!                                            └─ no, or Ctrl-C ─▶ remove them again
//! ```
//!
//! The pacemaker checks the targets and promotes their version. So repeating the command completes a deploy that was interrupted.

use std::{net::SocketAddr, time::Duration};

use signalbox_client::{
    Client,
    routes::{Filter, Health, Instance, NewInstance, State},
};
use tokio::{
    signal,
    time::{Instant, sleep},
};

use crate::{
    exit::Failure,
    hosts::Replaced,
    remote::{Remote, duration},
    terminal::{self, Progress, out},
};

/// How often the state of the targets is read.
const POLL: Duration = Duration::from_millis(250);
/// The maximum length of an instance's ID.
const MAX_ID_BYTES: usize = 128;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Host name to deploy to
    host: String,
    /// Address of a new instance; repeat it for several
    #[arg(long = "target", value_name = "ADDRESS", required = true, num_args = 1..)]
    targets: Vec<String>,
    /// Version type of the new instances, under which their requests are counted [default: the time, as 20261123-093000]
    #[arg(long, value_name = "ID")]
    version: Option<String>,
    /// Application of the new instances
    #[arg(long, value_name = "ID")]
    application: Option<String>,
    /// Path that must be answered with a status of 200 to 399; without it, accepting a connection is enough
    #[arg(long, value_name = "PATH")]
    health_path: Option<String>,
    /// Fail if the new instances are not healthy after this time
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    timeout: Duration,
    #[command(flatten)]
    replaced: Replaced,
    /// Fail if a router has not acknowledged the promotion after this time (at most 60s)
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    wait: Duration,
    #[command(flatten)]
    remote: Remote,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    if let Some(twice) = named_twice(&args.targets) {
        return Err(Failure::configuration(format!("the target {twice} is named twice")));
    }
    let client = args.remote.client()?;
    let version =
        args.version.clone().unwrap_or_else(|| jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S").to_string());
    let filter = Filter { host: Some(args.host.clone()), ..Filter::default() };
    let present = client.routes().instances(&filter).await?;
    let wanted = plan(&args, &version, &present)?;

    let progress = Progress::new();
    let ids: Vec<&str> = wanted.iter().map(|(id, _)| id.as_str()).collect();
    let added: Vec<&str> =
        ids.iter().copied().filter(|id| !present.iter().any(|one| one.id == *id)).collect();
    let ready = tokio::select! {
        ready = prepare(&client, &wanted, args.timeout, &progress) => ready,
        _ = signal::ctrl_c() => Err(Failure::interrupted()),
    };
    if let Err(failure) = ready {
        remove(&client, &added).await;
        return Err(failure);
    }
    progress.say("promoting");
    let promoted =
        client.routes().promote(&args.host, &args.replaced.promote(&version), Some(args.wait)).await;
    drop(progress);
    // A conflict changed nothing. After any other failure it may have been promoted, and the deploy can be repeated.
    if promoted.as_ref().is_err_and(|error| error.status() == Some(409)) {
        remove(&client, &added).await;
    }
    let promoted = promoted?;
    args.remote.show(&promoted, |promoted| {
        let (host, ids, serial) = (&promoted.hostname, ids.join(", "), promoted.serial);
        out!("{host} is served by version {version}: {ids} (serial {serial})");
        args.replaced.report(promoted);
    })
}

/// Removes the instances that this deploy added. One that cannot be removed is reported; it receives no requests.
async fn remove(client: &Client, added: &[&str]) {
    for id in added {
        if let Err(error) = client.routes().remove(id, None).await {
            terminal::error(&format!("signalbox: {id} is still registered, on standby: {error}"));
        }
    }
}

/// A target that two arguments name. Registering the second one would remove the first.
fn named_twice(targets: &[String]) -> Option<&str> {
    let same = |one: &str, other: &str| match (one.parse::<SocketAddr>(), other.parse::<SocketAddr>()) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    };
    let mut later = targets.iter().enumerate();
    later.find(|(at, one)| targets[..*at].iter().any(|other| same(one, other))).map(|(_, one)| &**one)
}

/// The instances to register, with their IDs. A target that another version of the host has is rejected: registering it would
/// remove that instance before the new one is known to work.
fn plan(args: &Args, version: &str, present: &[Instance]) -> Result<Vec<(String, NewInstance)>, Failure> {
    let other =
        present.iter().find(|one| one.version_type_id != version && args.targets.contains(&one.address));
    if let Some(other) = other {
        return Err(Failure::refused_because(format!(
            "{} already serves {} as version {}. Start the new version at another address, or name that version.",
            other.address, args.host, other.version_type_id
        )));
    }
    let serving = |one: &&Instance| one.version_type_id == version && one.state == State::Active;
    if let Some(left) = present.iter().filter(serving).find(|one| !args.targets.contains(&one.address)) {
        return Err(Failure::refused_because(format!(
            "version {version} already serves {} at {}, which is not a target. Use another --version.",
            args.host, left.address
        )));
    }
    let health = Health {
        path: args.health_path.clone(),
        tcp: args.health_path.is_none(),
        interval_seconds: 1,
        ..Health::default()
    };
    let new = |(at, address): (usize, &String)| {
        let known = present.iter().find(|one| one.version_type_id == version && one.address == *address);
        let id = known.map_or_else(|| id(&args.host, version, at), |known| known.id.clone());
        let mut instance = NewInstance::new(address, [&args.host], version);
        instance.application_id = args.application.clone();
        instance.health = Some(health.clone());
        instance.standby = true;
        (id, instance)
    };
    Ok(args.targets.iter().enumerate().map(new).collect())
}

/// `shop.example` in version 7 has the instances `shop.example-7-1`, `shop.example-7-2`…
fn id(host: &str, version: &str, at: usize) -> String {
    let host = host.replace('*', "any");
    let id: String = format!("{host}-{version}-{}", at + 1);
    let plain = |char: char| if char.is_ascii_alphanumeric() || "._-".contains(char) { char } else { '_' };
    // The end distinguishes two of them.
    id.chars().skip(id.chars().count().saturating_sub(MAX_ID_BYTES)).map(plain).collect()
}

/// Registers the targets and waits until every one is healthy.
async fn prepare(
    client: &Client,
    wanted: &[(String, NewInstance)],
    timeout: Duration,
    progress: &Progress,
) -> Result<(), Failure> {
    for (id, instance) in wanted {
        client.routes().register(id, instance, None).await?;
    }
    let until = Instant::now() + timeout;
    loop {
        let mut waiting = Vec::new();
        for (id, _) in wanted {
            let instance = client.routes().instance(id).await?;
            if instance.healthy != Some(true) {
                waiting.push(instance);
            }
        }
        let Some(first) = waiting.first() else { return Ok(()) };
        if Instant::now() >= until {
            let why = first.unhealthy_because.as_deref().unwrap_or("no check has passed yet");
            return Err(Failure::unavailable(format!(
                "nothing was changed: {} was not healthy within {} s ({why})",
                first.address,
                timeout.as_secs()
            )));
        }
        progress.say(&format!("{} of {} targets are healthy", wanted.len() - waiting.len(), wanted.len()));
        sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_is_named_twice_is_found() {
        let find = |targets: &[&str]| {
            named_twice(&targets.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>()).map(str::to_owned)
        };
        assert_eq!(find(&["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:1"]).as_deref(), Some("127.0.0.1:1"));
        assert_eq!(find(&["[::1]:1", "[0:0::1]:1"]).as_deref(), Some("[0:0::1]:1"));
        assert_eq!(find(&["127.0.0.1:1", "127.0.0.2:1", "unix:/run/a"]), None);
    }

    #[test]
    fn an_id_has_only_characters_that_ids_may_have() {
        assert_eq!(id("shop.example", "7", 0), "shop.example-7-1");
        assert_eq!(id("*.shop.example", "feature/x y", 1), "any.shop.example-feature_x_y-2");
        assert_eq!(id("*", "1", 0), "any-1-1");
        assert_eq!(id(&"a".repeat(300), "1", 0).len(), 128);
    }
}
