//! A pacemaker with state machines: it applies definitions, creates labels, and moves the time of day.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use signalbox_stack::{Part, PartHandle};
use signalbox_store::{Fabric, FabricSpace, Key, Options, Tag, keys::machines};
use tokio::time::Instant;

use crate::{
    bus::testbed::{Split, Testbed, head},
    compare::median_of,
    load::{Ends, Outcome, Plan, Requests},
    machine::cores,
    process::{CpuTime, Pid},
    report::{Table, grouped},
};

/// Labels per request that updates many.
pub(super) const MANY: u64 = 100;
/// Requests of that kind under way at a time.
pub(super) const CONNECTIONS: usize = 16;
/// The longest that requests of one run, or a time of day, may take: on a busy machine, figures are better than none.
const MAX_WAIT: Duration = Duration::from_secs(600);
/// The polling interval of a sweep.
const POLL: Duration = Duration::from_millis(5);

/// The result of one run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// Labels moved, or updated.
    pub(super) units: u64,
    pub(super) elapsed: Duration,
    pub(super) cost: Split,
}

/// The columns of [`row`].
pub(super) fn table() -> Table {
    let columns = ["", "per second", "CPU µs each: pacemaker", "Redis", "load", "cores busy", "target"];
    Table::new("labels moved and updated", &columns)
}

/// Medians of the runs.
#[allow(clippy::cast_precision_loss)]
pub(super) fn row(what: &str, runs: &[Run], target: Option<f64>) -> Vec<String> {
    let median = |property: &dyn Fn(&Run) -> f64| median_of(runs.iter().map(property));
    let cost = |part: &dyn Fn(&Split) -> Duration| {
        format!("{:.1}", median(&|run| part(&run.cost).as_secs_f64() * 1e6 / run.units as f64))
    };
    let rate = median(&|run| run.units as f64 / run.elapsed.as_secs_f64());
    let busy = median(&|run| run.cost.machine.as_secs_f64() / run.elapsed.as_secs_f64());
    let verdict =
        |target: f64| format!("≥ {} {}", grouped(target), if rate >= target { "met" } else { "MISSED" });
    vec![
        what.to_owned(),
        grouped(rate),
        cost(&|cost| cost.pacemaker),
        cost(&|cost| cost.redis),
        cost(&|cost| cost.load),
        format!("{busy:.1} of {}", cores().len()),
        target.map(verdict).unwrap_or_default(),
    ]
}

/// Everything that runs.
pub(crate) struct Machines {
    pub(crate) testbed: Testbed,
    /// Pacemakers in addition to the first.
    pub(super) others: Vec<PartHandle>,
    pub(super) fabric: Fabric,
}

impl Machines {
    /// Starts one pacemaker with its fabric.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let testbed = Testbed::start(&[], 0).await?;
        let fabric = Fabric::open(&testbed.stack.fabric_url(), Options::default())?;
        Ok(Self { testbed, others: Vec::new(), fabric })
    }

    /// Where every pacemaker listens.
    pub(super) fn addresses(&self) -> anyhow::Result<Vec<SocketAddr>> {
        let others = self.others.iter().map(|part| {
            let address = part.address().trim_start_matches("http://").trim_end_matches('/');
            address.parse().with_context(|| format!("the address of a pacemaker: {address}"))
        });
        std::iter::once(Ok(self.testbed.pacemaker())).chain(others).collect()
    }

    /// The first pacemaker's process.
    pub(super) fn pacemaker(&self) -> Pid {
        self.testbed.pid(&Part::PACEMAKER)
    }

    /// CPU time so far.
    pub(super) fn cost(&self) -> Split {
        let others = self.others.iter().filter_map(PartHandle::pid).map(i32::unsigned_abs);
        let pacemakers: Vec<Pid> = others.chain([self.pacemaker()]).collect();
        let load = CpuTime::of(&[std::process::id()]).on_cpu;
        Split { pacemaker: CpuTime::of(&pacemakers).on_cpu, load, ..self.testbed.cpu() }
    }

    /// Brings a machine's definition there.
    pub(super) fn define(&self, machine: &str, states: &Value) -> anyhow::Result<()> {
        self.define_whole(machine, &json!({"states": states}))
    }

    /// Brings a machine's definition there, with more than states.
    pub(super) fn define_whole(&self, machine: &str, definition: &Value) -> anyhow::Result<()> {
        let (token, path) = (self.testbed.stack.token(), format!("/state-machines/{machine}"));
        // JSON is valid YAML.
        let definition = json!({"state_machines": {machine: definition}});
        let plan = self.testbed.call("POST", &format!("{path}/plan"), token, Some(&definition))?;
        self.testbed.call("POST", &format!("{path}/apply"), token, Some(&json!({"plan": plan["plan"]})))?;
        Ok(())
    }

    /// Requests about `count` labels of a machine, [`MANY`] in each, with the metadata that `facts` gives for a number.
    pub(super) fn many(
        &self,
        method: &str,
        machine: &str,
        count: u64,
        facts: impl Fn(u64) -> Value,
    ) -> Requests {
        let path = format!("/state-machines/{machine}/labels");
        Requests::of((0..count).step_by(usize::try_from(MANY).unwrap_or(1)).map(|from| {
            let labels = (from..(from + MANY).min(count))
                .map(|number| json!({"name": label(number), "metadata": facts(number)}));
            let body = json!({"labels": labels.collect::<Vec<_>>()}).to_string();
            (head(method, &path, self.testbed.stack.token(), body.len()) + &body).into_bytes()
        }))
    }

    /// Sends each request once, from this many connections to each pacemaker, and expects that all are accepted.
    pub(super) async fn send(&self, requests: Requests, connections: usize) -> anyhow::Result<Outcome> {
        let count = requests.len();
        let plan = Plan::once(self.testbed.pacemaker(), Arc::new(requests), connections, MAX_WAIT);
        let outcome = self.testbed.ends.run(plan).await?;
        check(&outcome, count)?;
        Ok(outcome)
    }

    /// Makes `count` labels.
    pub(super) async fn create(
        &self,
        machine: &str,
        state: &str,
        count: u64,
        facts: impl Fn(u64) -> Value,
    ) -> anyhow::Result<Run> {
        let requests = self.many("POST", machine, count, facts);
        let (begun, cost) = (Instant::now(), self.cost());
        self.send(requests, CONNECTIONS).await.context("creating labels")?;
        let (elapsed, cost) = (begun.elapsed(), self.cost() - cost);
        self.expect(machine, state, count)?;
        Ok(Run { units: count, elapsed, cost })
    }

    /// Fails unless exactly `count` labels are in the state: results of requests about many labels are not checked
    /// individually.
    pub(super) fn expect(&self, machine: &str, state: &str, count: u64) -> anyhow::Result<()> {
        let found = self.count(machine, state)?;
        ensure!(found == count, "{count} labels of {machine} ought to be in {state}, and there are {found}");
        Ok(())
    }

    /// The number of labels in a state.
    fn count(&self, machine: &str, state: &str) -> anyhow::Result<u64> {
        let path = format!("/state-machines/{machine}");
        let found = self.testbed.call("GET", &path, self.testbed.stack.token(), None)?;
        found["labels"][state].as_u64().context("a number of labels")
    }

    /// Events of moves that were queued so far.
    pub(super) fn events(&self) -> anyhow::Result<u64> {
        self.testbed.events_of("signalbox.labels")
    }

    /// Fails unless `moves` more events were queued since there were `before`.
    pub(super) fn expect_events(&self, before: u64, moves: u64) -> anyhow::Result<()> {
        let events = self.events()? - before;
        ensure!(events == moves, "{moves} labels moved, and {events} events were queued");
        Ok(())
    }

    /// Triggers a gate's time of day now, and waits until its sweep is over.
    pub(super) async fn sweep(&self, machine: &str, gate: &str) -> anyhow::Result<Duration> {
        let keys = tag();
        let due = machines::machines(&keys).due(machine);
        let prefix = format!("w {machine} {gate} ");
        let all: Vec<String> = self.fabric.command("ZRANGE").key(&due).arg(0).arg(-1).query().await?;
        let member = all.into_iter().find(|member| member.starts_with(&prefix));
        let member = member.with_context(|| format!("{gate} has no time of day"))?;
        let now_ms = self.fabric.now_ms().await?;
        let begun = Instant::now();
        self.fabric.command("ZADD").key(&due).arg(now_ms).arg(&member).run().await?;
        self.fabric
            .command("ZADD")
            .key(&machines::machines(&keys).next())
            .arg(now_ms)
            .arg(machine)
            .run()
            .await?;
        let channel = machines::machines(&keys).wake_channel();
        self.fabric.command("PUBLISH").arg(channel).arg(now_ms).run().await?;
        loop {
            tokio::time::sleep(POLL).await;
            // During the sweep, its entry is only postponed. At its end there is no label left.
            let is_begun = self.instant(&due, &member).await? > now_ms;
            if is_begun && self.count(machine, gate)? == 0 {
                return Ok(begun.elapsed());
            }
            if begun.elapsed() > MAX_WAIT {
                bail!("the sweep of {gate} did not end");
            }
        }
    }

    async fn instant(&self, due: &Key<FabricSpace>, member: &str) -> anyhow::Result<u64> {
        let at_ms: f64 = self.fabric.command("ZSCORE").key(due).arg(member).query().await?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "unix milliseconds")]
        Ok(at_ms as u64)
    }
}

/// The fabric has one shard.
pub(super) fn tag() -> Tag {
    Tag::new(0, 1)
}

/// The name of a label.
pub(crate) fn label(number: u64) -> String {
    format!("label-{number:07}")
}

/// Fails unless all `count` requests were answered 2xx. The load generator sends none any more when the time is up; without
/// this check, labels that were never created would look like labels that were lost.
fn check(outcome: &Outcome, count: usize) -> anyhow::Result<()> {
    let why = || outcome.first_failure.clone().unwrap_or_default();
    ensure!(outcome.failed == 0, "{} requests failed: {}", outcome.failed, why());
    let (completed, seconds) = (outcome.completed, MAX_WAIT.as_secs());
    ensure!(
        completed == count as u64,
        "only {completed} of {count} requests were answered within {seconds} s"
    );
    Ok(())
}

/// Sends requests to several pacemakers in parallel, different ones to each.
pub(super) async fn send_to_each(
    ends: &[Ends],
    targets: &[SocketAddr],
    requests: Vec<Requests>,
    connections: usize,
) -> anyhow::Result<()> {
    let counts: Vec<usize> = requests.iter().map(Requests::len).collect();
    let runs = ends.iter().zip(targets).zip(requests).map(|((ends, target), requests)| {
        ends.run(Plan::once(*target, Arc::new(requests), connections, MAX_WAIT))
    });
    for (outcome, count) in futures_util::future::join_all(runs).await.into_iter().zip(counts) {
        check(&outcome?, count)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_were_not_sent_in_time_are_a_failure() {
        let outcome = Outcome {
            completed: 296,
            elapsed: MAX_WAIT,
            latency: crate::histogram::Histogram::default(),
            cpu: CpuTime::default(),
            own_cpu: Duration::ZERO,
            foreign_cpu: Duration::ZERO,
            failed: 0,
            first_failure: None,
        };
        check(&outcome, 296).unwrap();
        let error = check(&outcome, 300).unwrap_err().to_string();
        assert_eq!(error, "only 296 of 300 requests were answered within 600 s");
    }

    #[test]
    fn a_rate_is_compared_with_its_target() {
        let run = |ms| Run {
            units: 1_000,
            elapsed: Duration::from_millis(ms),
            cost: Split { redis: Duration::from_millis(50), ..Split::default() },
        };
        let runs = [run(100), run(50), run(200)];
        let met = row("moves", &runs, Some(10_000.0));
        assert_eq!((met[1].as_str(), met[3].as_str(), met[6].as_str()), ("10,000", "50.0", "≥ 10,000 met"));
        assert_eq!(row("moves", &runs, Some(10_001.0))[6], "≥ 10,001 MISSED");
        assert_eq!(row("moves", &runs, None)[6], "");
    }
}
