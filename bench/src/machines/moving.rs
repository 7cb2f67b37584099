//! Moves of labels, each with its event: caused by batches of facts, and by a time of day.

use serde_json::json;
use tokio::time::Instant;

use super::testbed::{CONNECTIONS, MANY, Machines, Run, row};
use crate::{report::Table, session::Session};

/// Targets, in transitions per second: after updates, and at a time of day.
const BY_UPDATE: f64 = 25_000.0;
const BY_TIME: f64 = 20_000.0;
/// Gates that a time of day opens, one after the other: one for each run.
const DAYS: [&str; 4] = ["first", "second", "third", "fourth"];

pub(super) async fn measure(session: &Session, machines: &Machines, table: &mut Table) -> anyhow::Result<()> {
    let labels = if session.quick { 2_000 } else { 30_000 };
    let created = facts(labels, machines, table, session.rounds.min(3)).await?;
    days(labels, machines, table, session.rounds.min(DAYS.len() - 1)).await?;
    table.rows.push(row("labels created, 100 in a request", &created, None));
    table.notes.push(format!(
        "medians of the runs of {labels} labels; every move has its row of history and its event in the topic \
         signalbox.labels, which are counted afterwards"
    ));
    Ok(())
}

/// Two gates, from each of which a fact leads to the other.
async fn facts(
    labels: u64,
    machines: &Machines,
    table: &mut Table,
    rounds: usize,
) -> anyhow::Result<Vec<Run>> {
    let gate = |name: &str, to: &str| {
        json!({
            "gate": name, "exit_condition": format!("metadata.side = \"{to}\""), "triggers": [{"metadata": "side"}],
            "next": to,
        })
    };
    machines.define("ring", &json!([gate("left", "right"), gate("right", "left")]))?;
    let created = machines.create("ring", "left", labels, |_| json!({"side": "left"})).await?;
    let mut runs = Vec::new();
    // The first run warms everything up, and one more brings an even number: all are where they began.
    for round in 0..=rounds {
        let side = if round % 2 == 0 { "right" } else { "left" };
        let requests = machines.many("PATCH", "ring", labels, |_| json!({"side": side}));
        let (events, begun, cost) = (machines.events()?, Instant::now(), machines.cost());
        machines.send(requests, CONNECTIONS).await?;
        let run = Run { units: labels, elapsed: begun.elapsed(), cost: machines.cost() - cost };
        machines.expect("ring", side, labels)?;
        machines.expect_events(events, labels)?;
        if round > 0 {
            runs.push(run);
        }
    }
    let what = format!("transitions, {MANY} updates in a request, {CONNECTIONS} connections");
    table.rows.push(row(&what, &runs, Some(BY_UPDATE)));
    Ok(vec![created])
}

/// Gates in a row that a time of day opens.
async fn days(labels: u64, machines: &Machines, table: &mut Table, rounds: usize) -> anyhow::Result<()> {
    let mut states: Vec<_> = DAYS
        .into_iter()
        .zip(DAYS.into_iter().skip(1).chain(["end"]))
        .map(|(name, next)| {
            json!({"gate": name, "exit_condition": "metadata.ready", "triggers": [{"time": "18:30"}], "next": next})
        })
        .collect();
    states.push(json!({"gate": "end"}));
    machines.define("days", &json!(states))?;
    machines.create("days", DAYS[0], labels, |_| json!({"ready": true})).await?;
    let mut runs = Vec::new();
    for (round, gate) in DAYS.into_iter().enumerate().take(rounds + 1) {
        let (events, cost) = (machines.events()?, machines.cost());
        let elapsed = machines.sweep("days", gate).await?;
        let run = Run { units: labels, elapsed, cost: machines.cost() - cost };
        machines.expect("days", gate, 0)?;
        machines.expect_events(events, labels)?;
        if round > 0 {
            runs.push(run);
        }
    }
    table.rows.push(row("transitions, a time-of-day trigger", &runs, Some(BY_TIME)));
    Ok(())
}
