//! `signalbox routes`: manages instances, and shows which routers have the newest table.

mod bulk;
mod explain;

use std::time::Duration;

use clap::{Subcommand, builder::PossibleValuesParser};
use serde_json::{Value, json};
use signalbox_client::{
    routes::{ChangedInstance, Convergence, Filter, Health, Instance, Liveness, NewInstance, State},
    segment, with_query,
};
use tokio::time::{Instant, sleep};

use crate::{
    exit::Failure,
    listing::{Cell, Listing},
    remote::{Remote, duration, seconds},
    terminal::{self, Progress},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List instances
    #[command(visible_alias = "ls")]
    List(List),
    /// Show an instance: its state, its last health check and its faults
    #[command(visible_alias = "get")]
    Show(One),
    /// Register or update an instance
    Add(Box<Add>),
    /// Register or update the instances in a file
    Import(bulk::Import),
    /// Remove an instance immediately
    #[command(visible_alias = "rm", alias = "delete")]
    Remove(Remove),
    /// Drain an instance: send it no new requests
    Drain(Drain),
    /// Drain all instances of a node, or send them requests again
    DrainNode(bulk::DrainNode),
    /// List or replace the rules that lead paths of a host to other hosts
    Paths(Paths),
    /// Pause a host: its requests wait until it is resumed
    Pause(Pause),
    /// Resume a paused host
    Resume(Resume),
    /// Explain the routing decision for a host, or for the request to a URL
    Explain(explain::Explain),
    /// Print the whole route table
    Dump(bulk::Dump),
    /// Wait until every router serves the newest table
    Wait(Wait),
}

#[derive(Debug, clap::Args)]
pub(crate) struct List {
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
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Remove {
    /// Instance
    id: String,
    #[command(flatten)]
    until: Until,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Drain {
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
    #[command(flatten)]
    remote: Remote,
}

/// When a command that changes the table returns.
#[derive(Debug, clap::Args)]
pub(crate) struct Until {
    /// Wait until every router has the change; fail after this time (at most 60s)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct One {
    /// Instance
    id: String,
    #[command(flatten)]
    remote: Remote,
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

#[derive(Debug, clap::Args)]
pub(crate) struct Pause {
    /// Host name that clients ask for
    host: String,
    /// Answer a request with 503 after this time (at most 60s; default 30s)
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    longest: Option<Duration>,
    #[command(flatten)]
    until: Until,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Resume {
    /// Host name that clients ask for
    host: String,
    #[command(flatten)]
    until: Until,
    #[command(flatten)]
    remote: Remote,
}

fn path_rule(text: &str) -> Result<(String, String), String> {
    let (path, host) = text.rsplit_once('=').ok_or("expected PATH=HOST, such as /api=orders.internal")?;
    Ok((path.to_owned(), host.to_owned()))
}

#[derive(Debug, clap::Args)]
pub(crate) struct Wait {
    /// Wait for this serial instead of the newest
    #[arg(long)]
    serial: Option<u64>,
    /// Fail after this time
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    timeout: Duration,
    #[command(flatten)]
    remote: Remote,
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List(args) => list(args).await,
        Command::Show(One { id, remote }) => remote.document(&format!("/instances/{}", segment(&id))).await,
        Command::Add(args) => add(*args).await,
        Command::Import(args) => bulk::import(args).await,
        Command::DrainNode(args) => bulk::drain_node(args).await,
        Command::Dump(args) => bulk::dump(args).await,
        Command::Remove(args) => remove(args).await,
        Command::Drain(args) => drain(args).await,
        Command::Paths(args) => paths(args).await,
        Command::Pause(args) => pause(args).await,
        Command::Resume(args) => resume(args).await,
        Command::Explain(args) => explain::run(args).await,
        Command::Wait(args) => wait(args).await,
    }
}

async fn list(args: List) -> Result<(), Failure> {
    let List { host, version_type, node, state, listing } = args;
    let filter = Filter { host, version_type, node, state };
    listing.list(async |client| client.routes().instances(&filter).await, HEADS, row).await
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
    [
        instance.id.clone().into(),
        instance.address.clone().into(),
        terminal::list(&instance.hostnames).into(),
        instance.version_type_id.clone().into(),
        instance.weight.to_string().into(),
        instance.state.as_str().into(),
        health.into(),
        Cell::time(instance.health_since_ms),
        terminal::or_dash(instance.unhealthy_because.as_ref()).into(),
        terminal::or_dash(instance.node_id.as_ref()).into(),
        terminal::or_dash(instance.application_id.as_ref()).into(),
        Cell::time(instance.lease_expires_ms),
    ]
}

async fn add(args: Add) -> Result<(), Failure> {
    let mut instance = NewInstance::new(args.address, args.host, args.version_type);
    (instance.weight, instance.lease_seconds, instance.node_id) = (args.weight, args.lease, args.node);
    instance.version_id = args.version_id;
    (instance.application_id, instance.workspace_id) = (args.application, args.workspace);
    instance.standby = args.standby;
    instance.health = args.health_path.map(|path| Health { path: Some(path), ..Health::default() });
    let client = args.remote.client()?;
    let progress = args.until.progress();
    let changed = client.routes().register(&args.id, &instance, args.until.wait).await?;
    drop(progress);
    args.remote.show(&changed, |changed| report(changed, "registered", "unchanged"))
}

async fn remove(args: Remove) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let progress = args.until.progress();
    client.routes().remove(&args.id, args.until.wait).await?;
    drop(progress);
    args.remote.done(&json!({"id": args.id, "removed": true}), &format!("{} removed", args.id))
}

async fn drain(args: Drain) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let progress = args.until.progress();
    let routes = client.routes();
    let changed = if args.resume {
        routes.resume(&args.id, args.until.wait).await?
    } else {
        routes.drain(&args.id, args.deadline, args.until.wait).await?
    };
    drop(progress);
    let (now, already) = if args.resume {
        ("receives requests again", "was not draining")
    } else {
        ("draining", "already draining")
    };
    args.remote.show(&changed, |changed| report(changed, now, already))
}

impl Until {
    /// The path of a change, with the time to wait.
    pub(crate) fn path(&self, path: &str) -> String {
        let wait = self.wait.map(|wait| format!("{}ms", wait.as_millis()));
        with_query(path, &[("wait", wait.as_deref())])
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
    terminal::line(&format!("{} {what} (serial {})", changed.instance.id, changed.serial));
}

async fn pause(args: Pause) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let progress = args.until.progress();
    let paused = client.routes().pause(&args.host, args.longest, args.until.wait).await?;
    drop(progress);
    args.remote.show(&paused, |paused| {
        terminal::line(&format!("requests for {} wait (serial {})", paused.hostname, paused.serial));
    })
}

async fn resume(args: Resume) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let progress = args.until.progress();
    client.routes().resume_host(&args.host, args.until.wait).await?;
    drop(progress);
    args.remote.done(
        &json!({"hostname": args.host, "paused": false}),
        &format!("requests for {} continue", args.host),
    )
}

async fn paths(args: Paths) -> Result<(), Failure> {
    let client = args.listing.client()?;
    let rule = |(path, service): &(String, String), of: Value| {
        let mut rule = json!({"path": path, "service": service});
        if let (Some(rule), Value::Object(of)) = (rule.as_object_mut(), of) {
            rule.extend(of);
        }
        rule
    };
    let prefix = args.prefix.iter().map(|one| rule(one, json!({})));
    let exact = args.exact.iter().map(|one| rule(one, json!({"match": "exact"})));
    let strip = args.strip.iter().map(|one| rule(one, json!({"strip": true})));
    let rules: Vec<Value> = prefix.chain(exact).chain(strip).collect();
    let progress = args.until.progress();
    if args.clear {
        client.routes().remove_paths(&args.host, args.until.wait).await?;
        drop(progress);
        let answer = json!({"hostname": args.host, "paths": []});
        let text = format!("{} serves all paths itself", args.host);
        return Remote::show(&args.listing, &answer, |_| terminal::line(&text));
    }
    if !rules.is_empty() {
        client.routes().set_paths(&args.host, &json!(rules), args.until.wait).await?;
    }
    drop(progress);
    args.listing
        .run(async || {
            let rules = client.routes().host(&args.host).await?.rules;
            let policy: Value =
                rules.and_then(|rules| serde_json::from_str(rules.get()).ok()).unwrap_or_default();
            let rules = policy["paths"].as_array().cloned().unwrap_or_default();
            args.listing.show(&rules, ["PATH", "MATCH", "SERVICE", "PREFIX"], |rule| {
                let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
                [
                    text(&rule["path"]).into(),
                    rule["match"].as_str().unwrap_or("prefix").into(),
                    text(&rule["service"]).into(),
                    if rule["strip"] == true { "removed" } else { "kept" }.into(),
                ]
            })
        })
        .await
}

async fn wait(args: Wait) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let (deadline, progress) = (Instant::now() + args.timeout, Progress::new());
    loop {
        let state = client.routes().convergence().await?;
        let wanted = args.serial.unwrap_or(state.serial);
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
            return args.remote.show(&state, |state| serve(state, wanted));
        }
        let who = if behind.is_empty() { "the table".to_owned() } else { behind.join(", ") };
        if Instant::now() >= deadline {
            drop(progress);
            args.remote.show(&state, |_| ())?;
            return Err(Failure::unavailable(format!("{who} has not reached serial {wanted}")));
        }
        progress.say(&format!("waiting for {who} to reach serial {wanted}"));
        sleep(Duration::from_millis(100)).await;
    }
}

fn serve(state: &Convergence, serial: u64) {
    let live = state.routers.iter().filter(|router| router.state == Liveness::Live).count();
    let routers = if live == 1 { "router serves" } else { "routers serve" };
    terminal::line(&format!("{live} {routers} serial {serial}"));
}
