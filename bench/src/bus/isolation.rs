//! How subscribers that hang or fail, and the death of the only pacemaker, affect the others.

use std::{net::SocketAddr, time::Duration};

use anyhow::bail;
use serde_json::{Value, json};
use signalbox_stack::Part;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    load::{self, Run, Way},
    testbed::{ARRAY, Audience, Testbed},
};
use crate::{
    compare::median_of,
    load::Pace,
    report::{Table, grouped},
    session::{Output, Session},
};

/// Half of these subscribers hang, half of them fail.
const SICK: usize = 200;
/// The target for p99 of the time from acceptance to delivery, in milliseconds.
const LATE_TARGET: f64 = 100.0;
/// The target for the time from the return of a pacemaker until everything is delivered.
const RETURN_TARGET: Duration = Duration::from_secs(2);
/// How long that may take at most.
const MAX_RETURN: Duration = Duration::from_secs(120);
/// Times that the pacemaker is killed.
const KILLS: usize = 5;

pub(super) async fn measure(session: &Session, testbed: &Testbed, output: &mut Output) -> anyhow::Result<()> {
    let time = Duration::from_millis(if session.quick { 500 } else { 4_000 });
    let way = Way { audience: Audience::AtOnce, events: 1, connections: 256, share: None, target: None };
    let half = async || anyhow::Ok(load::once(testbed, way, Pace::Closed, time).await?.rate() / 2.0);
    let pace = Pace::Sleepy { rate: half().await? };
    let mut table =
        Table::new("one subscriber next to others", &["", "accepted/s", "late p50, p99 ms", "target"]);
    let mut runs = Vec::new();
    for _ in 0..session.rounds.min(3) {
        runs.push(load::once(testbed, way, pace, time).await?);
    }
    table.rows.push(row("alone", &runs));
    let mut sick = JoinSet::new();
    for number in 0..SICK {
        let callback = start_sick(&mut sick, number % 2 == 0).await?;
        let token = testbed.client(&format!("sick-{number}"))?;
        let wanted = json!({"topics": [Audience::AtOnce.topic()], "callback": callback, "timeout": 0});
        testbed.call("POST", "/subscription", &token, Some(&wanted))?;
    }
    runs.clear();
    // Each event has 201 subscribers now, so the fabric accepts fewer.
    let pace = Pace::Sleepy { rate: half().await? };
    for _ in 0..session.rounds.min(3) {
        runs.push(load::once(testbed, way, pace, time).await?);
    }
    table.rows.push(row(&format!("next to {} that hang and {} that fail", SICK / 2, SICK / 2), &runs));
    table.notes.push("each at half of the highest rate with the same subscribers; late: from acceptance to delivery to the healthy one".to_owned());
    output.table(table)?;
    output.table(returns(testbed).await?)
}

#[allow(clippy::cast_precision_loss)]
fn row(name: &str, runs: &[Run]) -> Vec<String> {
    let late = |share| median_of(runs.iter().map(|run| run.late.quantile(share) as f64 / 1e6));
    let p99 = late(0.99);
    let verdict = if p99 < LATE_TARGET { "met" } else { "missed" };
    vec![
        name.to_owned(),
        grouped(median_of(runs.iter().map(Run::rate))),
        format!("{:.0}, {p99:.0}", late(0.5)),
        format!("p99 < {LATE_TARGET:.0} {verdict}"),
    ]
}

/// Kills the only pacemaker while deliveries are under way, starts it again, and measures how long they take from the
/// moment when it answers.
async fn returns(testbed: &Testbed) -> anyhow::Result<Table> {
    let pacemaker = testbed.stack.part(&Part::PACEMAKER);
    let body = testbed.prepared_array(ARRAY);
    let path = format!("/topics/{}/events", Audience::Ten.topic());
    let mut taken = Vec::new();
    for _ in 0..KILLS {
        for _ in 0..20 {
            testbed.call("POST", &path, testbed.publisher(), Some(&body))?;
        }
        pacemaker.kill().await?;
        pacemaker.start().await?;
        let back = Instant::now();
        while waiting(testbed)? > 0 {
            if back.elapsed() > MAX_RETURN {
                bail!("{} events were not delivered", waiting(testbed)?);
            }
            sleep(Duration::from_millis(5)).await;
        }
        taken.push(back.elapsed());
    }
    let seconds = || taken.iter().map(Duration::as_secs_f64);
    let longest = taken.iter().max().copied().unwrap_or_default();
    let mut table = Table::new("the only pacemaker is killed and returns", &["", "p50, max s", "target"]);
    table.rows.push(vec![
        "from its first answer until everything is delivered".to_owned(),
        format!("{:.2}, {:.2}", median_of(seconds()), longest.as_secs_f64()),
        format!("< {} s {}", RETURN_TARGET.as_secs(), if longest < RETURN_TARGET { "met" } else { "missed" }),
    ]);
    table.notes.push(format!("{KILLS} times, with {} events for ten subscribers under way", 20 * ARRAY));
    Ok(table)
}

/// Events that wait for a healthy subscriber.
fn waiting(testbed: &Testbed) -> anyhow::Result<u64> {
    let numbers = testbed.call("GET", "/bus/metrics", testbed.stack.token(), None)?;
    let subscribers = numbers["subscribers"].as_object().into_iter().flatten();
    let healthy = subscribers.filter(|(name, _)| name.starts_with("subscriber-"));
    Ok(healthy.filter_map(|(_, one): (_, &Value)| one["events"].as_u64()).sum())
}

/// Starts a subscriber that never answers, or answers 500. Returns its callback.
async fn start_sick(servers: &mut JoinSet<()>, hangs: bool) -> anyhow::Result<String> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let callback = format!("http://{}/", listener.local_addr()?);
    servers.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            while connections.try_join_next().is_some() {}
            connections.spawn(serve_sick(stream, hangs));
        }
    });
    Ok(callback)
}

async fn serve_sick(mut stream: TcpStream, hangs: bool) {
    let mut received = vec![0; 64 * 1024];
    while let Ok(1..) = stream.read(&mut received).await {
        if !hangs {
            let answer =
                b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(answer).await;
            return;
        }
    }
}
