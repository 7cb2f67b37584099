//! `signalbox-demo canary good|bad`: deploys a new version of a sample application with the canary machine.
//!
//! `signalbox up --demo` runs two processes for `canary.localhost`, of which one serves the host, and applies
//! `examples/machines/canary.yaml`. This command gives the idle process a new version to serve, creates the label that
//! deploys it, sends requests to the host, and prints each move until the label ends: a good version replaces the old one,
//! a bad one is rolled back. The next call uses the other process, so it can be repeated.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use clap::ValueEnum;
use parking_lot::Mutex;
use serde_json::{Value, json};
use signalbox_client::{
    Client, Error,
    machines::{Applied, Apply, History, Label, LabelPage, Machine, Move, Plan},
    routes::{Filter, Instance, NewInstance, State},
};
use signalbox_stack::{Description, Probe, local_client};
use tokio::{
    sync::Semaphore,
    task::JoinHandle,
    time::{self, MissedTickBehavior},
};

use crate::{exit::Failure, line, system::System};

/// The host name of the canary.
const HOST: &str = "canary.localhost";
/// The prefix of the names of the parts that serve it.
const PART: &str = "demo-canary-";
/// The machine, and the prefix of its versions and labels.
const MACHINE: &str = "canary";
const DEFINITION: &str = include_str!("../../machines/canary.yaml");
/// Interval at which the label is read.
const POLL: Duration = Duration::from_millis(250);
/// The maximum number of concurrent requests.
const AT_A_TIME: usize = 64;

/// Flags of `signalbox-demo canary`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Whether the new version answers 200 or 500
    #[arg(value_enum)]
    version: Kind,
    /// Seconds that each step must be without errors
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    calm_seconds: u64,
    /// Requests per second
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=5000))]
    rate: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    system: System,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Good,
    Bad,
}

impl Kind {
    fn status(self) -> u16 {
        if self == Self::Good { 200 } else { 500 }
    }

    /// The state in which its label should end.
    fn end(self) -> &'static str {
        if self == Self::Good { "done" } else { "rolled_back" }
    }
}

/// Registers one of the processes for the host and applies the machine, unless both are already done.
pub(crate) async fn prepare(client: &Client, addresses: &[String]) -> Result<(), Error> {
    let there = instances(client).await?;
    let serves =
        |instance: &Instance| instance.state == State::Active && addresses.contains(&instance.address);
    if let Some(first) = addresses.first()
        && !there.iter().any(serves)
    {
        // Instances of an earlier start have other ports and their own policy.
        for instance in &there {
            client.routes().remove(&instance.id, None).await?;
        }
        let policy = format!("/hosts/{HOST}/policy");
        let removed: Result<Value, Error> = client.call("DELETE", &policy, None).await;
        removed.map(drop).or_else(|error| if error.status() == Some(404) { Ok(()) } else { Err(error) })?;
        let instance = NewInstance::new(first.clone(), [HOST], format!("{MACHINE}-1"));
        client.routes().register(&format!("{MACHINE}-1-1"), &instance, None).await?;
    }
    let path = format!("/state-machines/{MACHINE}");
    match client.get::<Machine>(&path).await {
        Err(error) if error.status() == Some(404) => {
            let definition = DEFINITION.as_bytes().to_vec();
            let plan: Plan =
                client.send_bytes("POST", &format!("{path}/plan"), "application/yaml", definition).await?;
            let body = Apply { plan: plan.plan, map: BTreeMap::new() };
            client.send::<Applied>("POST", &format!("{path}/apply"), &body).await.map(drop)
        }
        other => other.map(drop),
    }
}

async fn instances(client: &Client) -> Result<Vec<Instance>, Error> {
    client.routes().instances(&Filter { host: Some(HOST.to_owned()), ..Filter::default() }).await
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let here = args.system.description()?;
    let client = args.system.client(&here.admin_url)?;
    let say = |text: &str| {
        if !args.json {
            line(text);
        }
    };
    let label = match on_its_way(&client).await? {
        Some(label) => {
            say(&format!("{label} is still being deployed, and continues"));
            label
        }
        None => {
            let processes = processes(&here);
            let (label, address) = release(&client, &processes, &args).await?;
            let kind = if args.version == Kind::Good { "good" } else { "bad" };
            say(&format!("{label} is a {kind} version: {address} answers {}", args.version.status()));
            label
        }
    };
    say(&format!(
        "sending {} requests per second to {HOST} until the rollout ends; in another terminal, run:",
        args.rate
    ));
    // The operator's command is next to this one.
    let own = std::env::args().next().unwrap_or_default();
    let program = own
        .rsplit_once('/')
        .map_or_else(|| "signalbox".to_owned(), |(folder, _)| format!("{folder}/signalbox"));
    for command in [
        format!("labels why {MACHINE} {label}"),
        format!("labels history {MACHINE} {label}"),
        "stats top".to_owned(),
    ] {
        say(&format!("  {program} {command}"));
    }
    let traffic = Traffic::start(&here.edge_url, args.rate)?;
    let watched = tokio::select! {
        watched = watch(&client, &label, &traffic, &say) => watched,
        _ = tokio::signal::ctrl_c() => {
            say("no more requests are sent; the same command continues with it, and without requests it is rolled back after half an hour");
            return Err(Failure::Interrupted);
        }
    };
    let (ended, moves) = watched?;
    let result = json!({"label": label, "state": ended.state, "moves": moves, "answers": traffic.json()});
    drop(traffic);
    if args.json {
        line(&serde_json::to_string_pretty(&result)?);
    } else {
        line(&conclusion(&ended));
    }
    if ended.state == args.version.end() {
        return Ok(());
    }
    let error = ended.error.map(|error| format!(": {error}")).unwrap_or_default();
    Err(Failure::Broken(format!("{label} ended in {} ({}){error}", ended.state, ended.status)))
}

fn conclusion(ended: &Label) -> String {
    let stable = ended.metadata["stable"].as_str().unwrap_or_default();
    match ended.state.as_str() {
        "done" => format!("{} has all requests now, and {stable} is retired", ended.name),
        "rolled_back" => format!("{} was rolled back, and {stable} has all requests again", ended.name),
        other => format!("{} stays in {other}", ended.name),
    }
}

/// The addresses of the two processes that alternate.
fn processes(here: &Description) -> Vec<String> {
    let address = |probe: &Probe| match probe {
        Probe::Http(url) => {
            Some(url.strip_prefix("http://")?.strip_suffix("/health").unwrap_or_default().to_owned())
        }
        _ => None,
    };
    let parts = here.parts.iter().filter(|part| part.name.starts_with(PART));
    parts.filter_map(|part| address(&part.probe)).collect()
}

fn number(name: &str) -> Option<u64> {
    name.strip_prefix(MACHINE)?.strip_prefix('-')?.parse().ok()
}

/// The newest label, if it has not ended yet.
async fn on_its_way(client: &Client) -> Result<Option<String>, Error> {
    let Some(newest) = newest(client).await? else { return Ok(None) };
    let name = format!("{MACHINE}-{newest}");
    let label: Label = client.get(&format!("/state-machines/{MACHINE}/labels/{name}")).await?;
    Ok((label.status != "ended").then_some(name))
}

async fn newest(client: &Client) -> Result<Option<u64>, Error> {
    let path = format!("/state-machines/{MACHINE}/labels?limit=1000");
    let labels = client.list(&path, usize::MAX, |page: LabelPage| (page.labels, page.next)).await?;
    Ok(labels.iter().filter_map(|label| number(&label.name)).max())
}

/// Gives the idle process a new version, and creates its label. Returns the label and the address.
async fn release(client: &Client, processes: &[String], args: &Args) -> Result<(String, String), Failure> {
    let instances = instances(client).await?;
    let stable = instances.iter().find(|instance| instance.state == State::Active);
    let stable = stable.ok_or_else(|| {
        Failure::unavailable(format!(
            "no instance serves {HOST}: start the demo again with `signalbox up --demo`"
        ))
    })?;
    let idle = processes.iter().find(|address| **address != stable.address);
    let idle = idle.ok_or_else(|| Failure::unavailable("the demo runs without a second process for it"))?;
    for leaving in instances.iter().filter(|instance| instance.address == *idle) {
        // The version before is draining and receives no requests.
        client.routes().remove(&leaving.id, Some(Duration::from_secs(5))).await?;
    }
    let versions = instances.iter().filter_map(|instance| number(&instance.version_type_id));
    let last = versions.chain(newest(client).await?).max().unwrap_or(1);
    let version = format!("{MACHINE}-{}", last + 1);
    let answer = local_client(Duration::from_secs(5))?
        .put(format!("http://{idle}/release"))
        .json(&json!({"name": version, "status": args.version.status()}))
        .send()
        .await
        .and_then(reqwest::Response::error_for_status);
    answer.map_err(|error| Failure::unavailable(format!("the demo's process at {idle}: {error}")))?;
    let facts = json!({"metadata": {
        "host": HOST, "stable": stable.version_type_id, "version": version, "instances": [idle],
        "calm_seconds": args.calm_seconds,
    }});
    let path = format!("/state-machines/{MACHINE}/labels/{version}");
    client.send::<Value>("POST", &path, &facts).await?;
    Ok((version, idle.clone()))
}

/// Prints each move until the label has ended or failed.
async fn watch(
    client: &Client,
    label: &str,
    traffic: &Traffic,
    say: &impl Fn(&str),
) -> Result<(Label, Vec<Move>), Failure> {
    let mut seen = 0;
    loop {
        let path = format!("/state-machines/{MACHINE}/labels/{label}");
        let now: Label = client.get(&path).await?;
        let moves = client.get::<History>(&format!("{path}/history")).await?.history;
        for one in moves.iter().filter(|one| one.visit > seen) {
            say(&row(one, moves.first(), &traffic.counted()));
        }
        seen = moves.last().map_or(seen, |one| one.visit);
        if matches!(now.status.as_str(), "ended" | "errored") {
            return Ok((now, moves));
        }
        time::sleep(POLL).await;
    }
}

/// `  41 s  half          canary-1: 612 answered; canary-2: 205 answered`
fn row(one: &Move, first: Option<&Move>, counted: &str) -> String {
    let since = first.map_or(0, |first| one.at.ms().saturating_sub(first.at.ms()) / 1000);
    let to = one.to.as_deref().unwrap_or_default();
    format!("{since:>4} s  {to:<13} {counted}").trim_end().to_owned()
}

/// Requests to the host until this is dropped, and how each version answered them.
struct Traffic {
    answers: Arc<Mutex<Answers>>,
    task: JoinHandle<()>,
}

/// Version → answers below 500, and others.
type Counts = BTreeMap<String, (u64, u64)>;

#[derive(Default)]
struct Answers {
    all: Counts,
    /// The counts since they were last printed.
    new: Counts,
}

impl Traffic {
    fn start(edge: &str, rate: u64) -> Result<Self, Failure> {
        let (http, url) = (local_client(Duration::from_secs(5))?, format!("{edge}/"));
        let answers = Arc::<Mutex<Answers>>::default();
        let counts = Arc::clone(&answers);
        let task = tokio::spawn(async move {
            let places = Arc::new(Semaphore::new(AT_A_TIME));
            let mut ticks = time::interval(Duration::from_secs(1) / u32::try_from(rate).unwrap_or(u32::MAX));
            // A slow machine gets fewer requests, not a burst later.
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
                let request = http.get(&url).header("host", HOST).send();
                let counts = Arc::clone(&counts);
                tokio::spawn(async move {
                    let (who, good) = answer(request.await).await;
                    let Answers { all, new } = &mut *counts.lock();
                    for counts in [all, new] {
                        let (answered, failed) = counts.entry(who.clone()).or_default();
                        *(if good { answered } else { failed }) += 1;
                    }
                    drop(place);
                });
            }
        });
        Ok(Self { answers, task })
    }

    /// The counts since the last call.
    fn counted(&self) -> String {
        let counts = std::mem::take(&mut self.answers.lock().new);
        let text = |(who, (answered, failed)): (&String, &(u64, u64))| match (answered, failed) {
            (answered, 0) => format!("{who} answered {answered}"),
            (0, failed) => format!("{who} failed {failed}"),
            (answered, failed) => format!("{who} answered {answered} and failed {failed}"),
        };
        counts.iter().map(text).collect::<Vec<_>>().join(", ")
    }

    fn json(&self) -> Value {
        let answers = self.answers.lock();
        answers
            .all
            .iter()
            .map(|(who, (answered, failed))| json!({"version": who, "answered": answered, "failed": failed}))
            .collect()
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The version that answered, and whether with less than 500.
async fn answer(answer: Result<reqwest::Response, reqwest::Error>) -> (String, bool) {
    let Ok(answer) = answer else { return ("no server".to_owned(), false) };
    let good = answer.status().as_u16() < 500;
    let body = answer.text().await.unwrap_or_default();
    let who = body.strip_prefix("Hello from ").and_then(|rest| rest.split(',').next());
    (who.unwrap_or("nginx").to_owned(), good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbered() {
        assert_eq!(["canary-12", "canary-", "canary-x", "other-1"].map(number), [Some(12), None, None, None]);
    }

    #[test]
    fn a_row_shows_the_time_the_state_and_which_version_answered() {
        let one = |at: &str, to: &str| -> Move {
            let row = json!({"visit": 1, "at": at, "from": null, "to": to, "cause": "action", "version": 1, "event": 7});
            serde_json::from_value(row).unwrap()
        };
        let (first, later) = (one("2026-01-31T12:00:00Z", "asked"), one("2026-01-31T12:00:41.5Z", "half"));
        assert_eq!(row(&first, Some(&first), ""), "   0 s  asked");
        assert_eq!(row(&later, Some(&first), "x answered 3"), "  41 s  half          x answered 3");
    }
}
