//! Facts sent over HTTP, one label per request. Each is evaluated and stored.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::testbed::{Machines, Run, label, row, send_to_each};
use crate::{
    bus::testbed::head,
    load::{Ends, Requests},
    machine::cores,
    report::Table,
    session::Session,
};

/// The target, in updates per second.
const TARGET: f64 = 15_000.0;
/// Connections in all.
const CONNECTIONS: usize = 192;

/// Measures it, with one pacemaker and with three.
pub(super) async fn measure(
    session: &Session,
    machines: &mut Machines,
    table: &mut Table,
) -> anyhow::Result<()> {
    let labels = if session.quick { 1_000 } else { 20_000 };
    let gate = json!({
        "gate": "waiting",
        "exit_condition": "metadata.opened >= 1000000000 and 12h has passed since system.entered_state",
        // A gate that reads the clock is rejected without a time trigger.
        "triggers": [{"metadata": "opened"}, {"time": "18:30"}], "next": "done",
    });
    machines.define("updated", &json!([gate, {"gate": "done"}]))?;
    machines.create("updated", "waiting", labels, |_| json!({"opened": 0})).await?;
    let mut opened = 0;
    for pacemakers in [1, 3] {
        while machines.others.len() + 1 < pacemakers {
            machines.others.push(machines.testbed.stack.add_pacemaker().await?);
        }
        let targets = machines.addresses()?;
        let mut ends = Vec::new();
        for _ in &targets {
            ends.push(Ends::start(0, &cores())?);
        }
        let connections = CONNECTIONS / pacemakers;
        let mut runs = Vec::new();
        for round in 0..=session.rounds.min(3) {
            opened += 1;
            let share = labels / pacemakers as u64;
            let requests = (0..pacemakers as u64)
                .map(|part| updates(machines, part * share..(part + 1) * share, opened));
            let requests = requests.collect();
            let (begun, cost) = (Instant::now(), machines.cost());
            send_to_each(&ends, &targets, requests, connections).await?;
            let elapsed = begun.elapsed().max(Duration::from_nanos(1));
            let run = Run { units: share * pacemakers as u64, elapsed, cost: machines.cost() - cost };
            // The first run warms everything up.
            if round > 0 {
                runs.push(run);
            }
        }
        machines.expect("updated", "waiting", labels)?;
        let which =
            if pacemakers == 1 { "one pacemaker".to_owned() } else { format!("{pacemakers} pacemakers") };
        table.rows.push(row(&format!("updates over HTTP, {which}"), &runs, Some(TARGET)));
    }
    table.notes.push(format!(
        "updates: a PATCH for one label each, {CONNECTIONS} connections in all, every one changes the label's metadata and is \
         judged by its gate, which stays shut"
    ));
    Ok(())
}

fn updates(machines: &Machines, labels: std::ops::Range<u64>, opened: u64) -> Requests {
    let token = machines.testbed.stack.token();
    Requests::of(labels.map(|number| {
        let path = format!("/state-machines/updated/labels/{}", label(number));
        let body = json!({"metadata": {"opened": opened}}).to_string();
        (head("PATCH", &path, token, body.len()) + &body).into_bytes()
    }))
}
