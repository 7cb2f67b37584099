//! `signalbox routes`: manages instances, and shows which routers have the newest table.

mod bulk;
mod explain;

use std::{path::PathBuf, time::Duration};

use clap::{Subcommand, builder::PossibleValuesParser};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use signalbox_client::{
    Client,
    routes::{
        ChangedInstance, Convergence, Filter, Health, Host, Instance, Liveness, NewInstance, RuledHost,
        State, waiting,
    },
    segment,
};
use tokio::time::{Instant, sleep};

use crate::{
    exit::Failure,
    listing::{Cell, Listing, cells},
    remote::{Remote, duration, seconds},
    terminal::{Progress, out},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List instances
    #[command(visible_alias = "ls")]
    List {
        /// Only instances with this host name
        #[arg(long)]
        host: Option<String>,
        /// Only instances of this version type
        #[arg(long, value_name = "ID")]
        version_type: Option<String>,
        /// Only instances on this node
        #[arg(long)]
        node: Option<String>,
        /// Only instances in this state
        #[arg(long, value_parser = PossibleValuesParser::new(State::words()))]
        state: Option<String>,
        #[command(flatten)]
        listing: Listing,
    },
    /// Show an instance: its state, its last health check and its faults
    #[command(visible_alias = "get")]
    Show {
        /// Instance
        id: String,
    },
    /// Register or update an instance
    Add(Box<Add>),
    /// Register or update the instances in a file
    Import {
        /// File with instances as in the API, each with an `id`: a JSON array, or one per line; - is standard input
        file: PathBuf,
        #[command(flatten)]
        until: Until,
    },
    /// Remove an instance immediately
    #[command(visible_alias = "rm", alias = "delete")]
    Remove {
        /// Instance
        id: String,
        #[command(flatten)]
        until: Until,
    },
    /// Drain an instance: send it no new requests
    Drain {
        /// Instance
        id: String,
        /// Remove the instance after this time
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        deadline: Option<Duration>,
        /// End draining: send requests to the instance again
        #[arg(long, conflicts_with = "deadline")]
        resume: bool,
        #[command(flatten)]
        until: Until,
    },
    /// Drain all instances of a node, or send them requests again
    DrainNode(bulk::DrainNode),
    /// List or replace the rules that lead paths of a host to other hosts
    Paths(Paths),
    /// Pause a host: its requests wait until it is resumed
    Pause {
        /// Host name that clients ask for
        host: String,
        /// Answer a request with 503 after this time (at most 60s; default 30s)
        #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
        longest: Option<Duration>,
        #[command(flatten)]
        until: Until,
    },
    /// Resume a paused host
    Resume {
        /// Host name that clients ask for
        host: String,
        #[command(flatten)]
        until: Until,
    },
    /// Explain the routing decision for a host, or for the request to a URL
    Explain(explain::Explain),
    /// Print the whole route table
    Dump,
    /// Wait until every router serves the newest table
    Wait {
        /// Wait for this serial instead of the newest
        #[arg(long)]
        serial: Option<u64>,
        /// Fail after this time
        #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
        timeout: Duration,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Add {
    /// ID of the instance; registering the same ID again updates it
    id: String,
    /// Address of the instance
    #[arg(long, value_name = "HOST:PORT")]
    address: String,
    /// Host name that the instance serves; can be repeated
    #[arg(long, value_name = "NAME", required = true)]
    host: Vec<String>,
    /// Version type under which its requests are counted
    #[arg(long, value_name = "ID")]
    version_type: String,
    /// Weight relative to the other instances
    #[arg(long)]
    weight: Option<u32>,
    /// Remove the instance after this time without a heartbeat
    #[arg(long, value_name = "DURATION", value_parser = seconds::<u32>)]
    lease: Option<u32>,
    /// Check the health of the instance with requests for this path
    #[arg(long, value_name = "PATH")]
    health_path: Option<String>,
    /// Node of the instance
    #[arg(long, value_name = "ID")]
    node: Option<String>,
    /// Version of the instance
    #[arg(long, value_name = "ID")]
    version_id: Option<String>,
    /// Application of the instance
    #[arg(long, value_name = "ID")]
    application: Option<String>,
    /// Workspace of the instance
    #[arg(long, value_name = "ID")]
    workspace: Option<String>,
    /// Send it no requests until it is resumed or its version type is promoted
    #[arg(long)]
    standby: bool,
    #[command(flatten)]
    until: Until,
}

/// When a command that changes the table returns.
#[derive(Debug, clap::Args)]
pub(crate) struct Until {
    /// Wait until every router has the change; fail after this time (at most 60s)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
}

/// Without a rule, the command lists the rules.
#[derive(Debug, clap::Args)]
pub(crate) struct Paths {
    /// Host name that clients ask for
    host: String,
    /// Lead a path and all paths below it to the instances of another host; can be repeated
    #[arg(long, value_name = "PATH=HOST", value_parser = path_rule)]
    prefix: Vec<(String, String)>,
    /// The same, for this path only; can be repeated
    #[arg(long, value_name = "PATH=HOST", value_parser = path_rule)]
    exact: Vec<(String, String)>,
    /// As --prefix, and remove the prefix from the path; can be repeated
    #[arg(long, value_name = "PATH=HOST", value_parser = path_rule)]
    strip: Vec<(String, String)>,
    /// Remove all rules
    #[arg(long, conflicts_with_all = ["prefix", "exact", "strip"])]
    clear: bool,
    #[command(flatten)]
    until: Until,
    #[command(flatten)]
    listing: Listing,
}

fn path_rule(text: &str) -> Result<(String, String), String> {
    let (path, host) = text.rsplit_once('=').ok_or("expected PATH=HOST, such as /api=orders.internal")?;
    Ok((path.to_owned(), host.to_owned()))
}

pub(crate) async fn run(command: Command, remote: &Remote) -> Result<(), Failure> {
    match command {
        Command::List { host, version_type, node, state, listing } => {
            let filter = Filter { host, version_type, node, state };
            let read = async |client: Client| Ok(client.routes().instances(&filter).await?);
            listing.list(remote, read, HEADS, row).await
        }
        Command::Show { id } => remote.document(&format!("/instances/{}", segment(&id))).await,
        Command::Add(args) => add(*args, remote).await,
        Command::Import { file, until } => bulk::import(&file, &until, remote).await,
        Command::DrainNode(args) => bulk::drain_node(args, remote).await,
        Command::Dump => bulk::dump(remote).await,
        Command::Remove { id, until } => {
            let client = remote.client()?;
            let progress = until.progress();
            client.routes().remove(&id, until.wait).await?;
            drop(progress);
            remote.done(&json!({"id": id, "removed": true}), &format!("{id} removed"))
        }
        Command::Drain { id, deadline, resume, until } => {
            let client = remote.client()?;
            let progress = until.progress();
            let (changed, now, already) = if resume {
                let changed = client.routes().resume(&id, until.wait).await?;
                (changed, "receives requests again", "was not draining")
            } else {
                let changed = client.routes().drain(&id, deadline, until.wait).await?;
                (changed, "draining", "already draining")
            };
            drop(progress);
            remote.show(&changed, |changed| report(changed, now, already))
        }
        Command::Paths(args) => paths(args, remote).await,
        Command::Pause { host, longest, until } => {
            let body = longest.map_or_else(
                || json!({}),
                |longest| json!({"wait_ms": u64::try_from(longest.as_millis()).unwrap_or(u64::MAX)}),
            );
            let paused: RuledHost = until.send(remote, "PUT", &pause(&host), Some(&body)).await?;
            remote.show(&paused, |paused| {
                out!("requests for {} wait (serial {})", paused.hostname, paused.serial);
            })
        }
        Command::Resume { host, until } => {
            until.send::<Value>(remote, "DELETE", &pause(&host), None).await?;
            remote.done(&json!({"hostname": host, "paused": false}), &format!("requests for {host} continue"))
        }
        Command::Explain(args) => explain::run(args, remote).await,
        Command::Wait { serial, timeout } => wait(serial, timeout, remote).await,
    }
}

fn pause(host: &str) -> String {
    format!("/hosts/{}/pause", segment(host))
}

const HEADS: [&str; 12] = [
    "ID",
    "ADDRESS",
    "HOSTS",
    "VERSION TYPE",
    "WEIGHT",
    "STATE",
    "HEALTH",
    "SINCE",
    "+REASON",
    "+NODE",
    "+APPLICATION",
    "+LEASE EXPIRES",
];

fn row(instance: &Instance) -> [Cell; 12] {
    let health = match (instance.healthy, instance.routed) {
        (Some(false), _) => "unhealthy",
        (_, Some(false)) => "not in the table yet",
        (Some(true), _) => "healthy",
        (None, _) => "-",
    };
    cells![
        instance.id,
        instance.address,
        instance.hostnames,
        instance.version_type_id,
        instance.weight,
        instance.state.as_str(),
        health,
        instance.health_since,
        instance.unhealthy_because,
        instance.node_id,
        instance.application_id,
        instance.lease_expires_at,
    ]
}

async fn add(args: Add, remote: &Remote) -> Result<(), Failure> {
    let mut instance = NewInstance::new(args.address, args.host, args.version_type);
    (instance.weight, instance.lease_seconds, instance.node_id) = (args.weight, args.lease, args.node);
    instance.version_id = args.version_id;
    (instance.application_id, instance.workspace_id) = (args.application, args.workspace);
    instance.standby = args.standby;
    instance.health = args.health_path.map(|path| Health { path: Some(path), ..Health::default() });
    let client = remote.client()?;
    let progress = args.until.progress();
    let changed = client.routes().register(&args.id, &instance, args.until.wait).await?;
    drop(progress);
    remote.show(&changed, |changed| report(changed, "registered", "unchanged"))
}

impl Until {
    /// The path of a change, with the time to wait.
    pub(crate) fn path(&self, path: &str) -> String {
        waiting(path, self.wait)
    }

    /// Makes a change, and waits.
    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        remote: &Remote,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Failure> {
        let client = remote.client()?;
        let _shown = self.progress();
        Ok(client.call(method, &self.path(path), body).await?)
    }

    pub(crate) fn progress(&self) -> Option<Progress> {
        self.wait.map(|wait| {
            let progress = Progress::new();
            progress.say(&format!("waiting up to {} s for every router", wait.as_secs()));
            progress
        })
    }
}

fn report(changed: &ChangedInstance, now: &str, already: &str) {
    let what = if changed.changed { now } else { already };
    out!("{} {what} (serial {})", changed.instance.id, changed.serial);
}

async fn paths(args: Paths, remote: &Remote) -> Result<(), Failure> {
    let path = format!("/hosts/{}", segment(&args.host));
    if args.clear {
        args.until.send::<Value>(remote, "DELETE", &format!("{path}/paths"), None).await?;
        let text = format!("{} serves all paths itself", args.host);
        return remote.done(&json!({"hostname": args.host, "paths": []}), &text);
    }
    let rules = |rules: &[(String, String)], member: &str, value: Value| -> Vec<Value> {
        let rule =
            |(path, service): &(String, String)| json!({"path": path, "service": service, member: value});
        rules.iter().map(rule).collect()
    };
    let prefix = rules(&args.prefix, "match", json!("prefix"));
    let exact = rules(&args.exact, "match", json!("exact"));
    let rules = [prefix, exact, rules(&args.strip, "strip", json!(true))].concat();
    if !rules.is_empty() {
        let body = json!({"paths": rules});
        args.until.send::<Value>(remote, "PUT", &format!("{path}/paths"), Some(&body)).await?;
    }
    let read = async |client: Client| {
        let rules = client.get::<Host>(&path).await?.rules;
        let policy: Value =
            rules.and_then(|rules| serde_json::from_str(rules.get()).ok()).unwrap_or_default();
        Ok(policy["paths"].as_array().cloned().unwrap_or_default())
    };
    let row = |rule: &Value| {
        let prefix = if rule["strip"] == true { "removed" } else { "kept" };
        cells![rule["path"], rule["match"].as_str().unwrap_or("prefix"), rule["service"], prefix]
    };
    args.listing.list(remote, read, ["PATH", "MATCH", "SERVICE", "PREFIX"], row).await
}

async fn wait(serial: Option<u64>, timeout: Duration, remote: &Remote) -> Result<(), Failure> {
    let client = remote.client()?;
    let (deadline, progress) = (Instant::now() + timeout, Progress::new());
    loop {
        let state = client.routes().convergence().await?;
        let wanted = serial.unwrap_or(state.serial);
        let behind: Vec<&str> = state
            .routers
            .iter()
            .filter(|router| {
                router.state == Liveness::Live && (router.serial < wanted || router.epoch != state.epoch)
            })
            .map(|router| &*router.node)
            .collect();
        if behind.is_empty() && state.serial >= wanted {
            drop(progress);
            return remote.show(&state, |state| serve(state, wanted));
        }
        let who = if behind.is_empty() { "the table".to_owned() } else { behind.join(", ") };
        if Instant::now() >= deadline {
            drop(progress);
            remote.show(&state, |_| ())?;
            return Err(Failure::unavailable(format!("{who} has not reached serial {wanted}")));
        }
        progress.say(&format!("waiting for {who} to reach serial {wanted}"));
        sleep(Duration::from_millis(100)).await;
    }
}

fn serve(state: &Convergence, serial: u64) {
    let live = state.routers.iter().filter(|router| router.state == Liveness::Live).count();
    let routers = if live == 1 { "router serves" } else { "routers serve" };
    out!("{live} {routers} serial {serial}");
}
