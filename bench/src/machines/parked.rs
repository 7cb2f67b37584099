//! A million waiting labels: their memory in Redis, and a time-of-day trigger for all of them.
//!
//! A thousand labels are created and moved over HTTP until they have the maximum number of history rows; the others
//! are copies of their records under other names, with the index entry of their state. (Creating a million over HTTP
//! would take minutes and leave a million events in the log, which expire and are not part of a label.)

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use signalbox_store::{Fabric, keys::machines::machines as keys};
use tokio::time::Instant;

use super::testbed::{CONNECTIONS, Machines, Run, label, tag};
use crate::{
    process::private_memory,
    report::{Table, grouped},
    session::{Output, Session},
};

/// Labels that are made as clients make them.
pub(super) const ORIGINALS: u64 = 1_000;
/// One in this many transitions.
const MOVES_ONE_IN: u64 = 100;
/// Entries into a state until a label has all the rows that are kept.
const VISITS: u64 = 20;
/// Copies that are sent together.
pub(super) const TOGETHER: u64 = 1_000;
/// The polling interval of the pacemaker's memory.
const POLL: Duration = Duration::from_millis(10);
/// The time limit for Redis to rewrite its log.
const MAX_REWRITE: Duration = Duration::from_secs(60);

/// Bytes of a parked label.
const MAX_BYTES: f64 = 1024.0;
/// The target for the sweep, in seconds.
const MAX_SECONDS: f64 = 6.0;
/// The limit for the growth of the pacemaker's memory in a sweep, for any number of labels. More is a failure, not a
/// slow sweep.
const MAX_GROWTH: u64 = 128 << 20;

/// Defines the machine, and creates its first labels.
async fn create_originals(machines: &Machines) -> anyhow::Result<Run> {
    let wait = json!({
        "gate": "parked",
        "exit_condition": "(metadata.has_recommendations and metadata.due and system.time >= 00:00) or metadata.turn = \"on\"",
        "triggers": [{"time": "18:30"}, {"metadata": "turn"}], "next": "turning",
    });
    let turn = json!({
        "gate": "turning", "exit_condition": "metadata.turn = \"back\"", "triggers": [{"metadata": "turn"}],
        "next": "parked",
    });
    machines.define("parked", &json!([wait, turn]))?;
    machines.create("parked", "parked", ORIGINALS, metadata).await
}

/// Fills the machine `parked` with labels, for lists of them: without a history.
pub(crate) async fn fill(machines: &Machines, labels: u64) -> anyhow::Result<()> {
    create_originals(machines).await?;
    copy(&machines.fabric, "parked", labels).await?;
    machines.expect("parked", "parked", labels)
}

pub(super) async fn measure(
    session: &Session,
    machines: &Machines,
    output: &mut Output,
) -> anyhow::Result<()> {
    let labels = labels(session);
    create_originals(machines).await?;
    for visit in 0..VISITS {
        let turn = if visit % 2 == 0 { "on" } else { "back" };
        let requests = machines.many("PATCH", "parked", ORIGINALS, |_| json!({"turn": turn}));
        machines.send(requests, CONNECTIONS).await?;
    }
    machines.expect("parked", "parked", ORIGINALS)?;
    let before = used_memory(&machines.fabric).await?;
    copy(&machines.fabric, "parked", labels).await?;
    machines.expect("parked", "parked", labels)?;
    let used = used_memory(&machines.fabric).await?.saturating_sub(before);
    #[allow(clippy::cast_precision_loss)]
    let bytes = used as f64 / (labels - ORIGINALS) as f64;
    let sweep = sweep(machines, labels).await?;
    output.table(sweep.table(labels, bytes))?;
    ensure!(
        sweep.peak.saturating_sub(sweep.before) <= MAX_GROWTH,
        "a sweep over {labels} labels took the pacemaker from {} to {} bytes",
        sweep.before,
        sweep.peak
    );
    Ok(())
}

/// How many labels there are.
pub(super) fn labels(session: &Session) -> u64 {
    if session.quick { 100_000 } else { 1_000_000 }
}

/// Half a kilobyte.
pub(super) fn metadata(number: u64) -> Value {
    json!({
        "email": format!("somebody.{number:04}@mail.example.com"), "locale": "en-GB", "plan": "team",
        "seats": number % 40, "has_recommendations": true, "due": number.is_multiple_of(MOVES_ONE_IN),
        "last_seen": "2026-01-31T12:34:56Z",
        "interests": ["science", "engineering", "history", "philosophy", "mathematics", "biology"],
        "address": {"street": format!("{number} Long Lane"), "city": "London", "postcode": "EC1A 9HF", "country": "GB"},
        "campaign": {"id": format!("{:016x}", (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)), "source": "newsletter"},
        "counts": {"opened": number % 90, "clicked": number % 7, "bounced": 0, "unsubscribed": 0},
        "referrer": "https://www.example.com/recommendations?from=friend",
    })
}

/// Bytes that the fabric's Redis uses when it has nothing else to do.
async fn used_memory(fabric: &Fabric) -> anyhow::Result<u64> {
    let begun = Instant::now();
    loop {
        let text: String = fabric.command("INFO").query().await?;
        let number = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|value| value.trim().parse::<u64>().ok())
                .with_context(|| format!("no {name} in Redis's INFO"))
        };
        // Pending writes to the log are transient.
        if number("aof_rewrite_in_progress")? == 0 {
            return Ok(number("used_memory")?.saturating_sub(number("mem_aof_buffer")?));
        }
        if begun.elapsed() > MAX_REWRITE {
            bail!("Redis does not finish rewriting its log");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Copies the first labels' records to all that follow.
pub(super) async fn copy(fabric: &Fabric, machine: &str, labels: u64) -> anyhow::Result<()> {
    let tag = tag();
    let keys = keys(&tag);
    let key = |number| keys.label(machine, &label(number));
    let mut reading = fabric.batch();
    for number in 0..ORIGINALS {
        reading.add("GET", &key(number), &[""; 0][..]);
    }
    let records: Vec<Vec<u8>> = reading.query().await?;
    let index = keys.in_state(machine, "parked");
    for first in (ORIGINALS..labels).step_by(usize::try_from(TOGETHER)?) {
        let (mut writing, mut entries) = (fabric.batch(), Vec::new());
        for number in first..(first + TOGETHER).min(labels) {
            let record = &records[usize::try_from(number % ORIGINALS)?];
            writing.add("SET", &key(number), &record[..]);
            entries.extend(["0".to_owned(), label(number)]);
        }
        writing.add("ZADD", &index, entries);
        writing.query::<Vec<signalbox_store::Value>>().await?;
    }
    Ok(())
}

/// The result of a sweep.
#[derive(Debug)]
struct Sweep {
    elapsed: Duration,
    moved: u64,
    /// The pacemaker's memory, in bytes.
    before: u64,
    peak: u64,
    after: u64,
    pacemaker: Duration,
    redis: Duration,
}

/// Triggers the time of day, and polls the pacemaker's memory until the sweep ends.
async fn sweep(machines: &Machines, labels: u64) -> anyhow::Result<Sweep> {
    let pid = machines.pacemaker();
    let (before, events, cost) = (private_memory(pid)?, machines.events()?, machines.cost());
    let (mut peak, mut look) = (before, tokio::time::interval(POLL));
    let sweeping = machines.sweep("parked", "parked");
    tokio::pin!(sweeping);
    let elapsed = loop {
        tokio::select! {
            elapsed = &mut sweeping => break elapsed?,
            _ = look.tick() => peak = peak.max(private_memory(pid)?),
        }
    };
    let (after, cost) = (private_memory(pid)?, machines.cost() - cost);
    let moved = labels / MOVES_ONE_IN;
    machines.expect("parked", "turning", moved)?;
    machines.expect_events(events, moved)?;
    let (pacemaker, redis) = (cost.pacemaker, cost.redis);
    Ok(Sweep { elapsed, moved, before, peak: peak.max(after), after, pacemaker, redis })
}

impl Sweep {
    #[allow(clippy::cast_precision_loss)]
    fn table(&self, labels: u64, bytes: f64) -> Table {
        let mut table = Table::new("labels that wait", &["", "", "target"]);
        let seconds = self.elapsed.as_secs_f64();
        let each = |time: Duration| time.as_secs_f64() * 1e6 / labels as f64;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let mut row =
            |what: &str, value: String, target: String| table.rows.push(vec![what.to_owned(), value, target]);
        let below = |value: f64, target: f64| if value <= target { "met" } else { "MISSED" };
        row(
            "bytes of Redis's memory per label",
            format!("{bytes:.0}"),
            format!("≤ {MAX_BYTES:.0} {}", below(bytes, MAX_BYTES)),
        );
        row(
            "a time of day comes for all of them, until all are judged",
            format!("{seconds:.2} s"),
            format!("< {MAX_SECONDS:.0} s {}", below(seconds, MAX_SECONDS)),
        );
        row("labels evaluated per second", grouped(labels as f64 / seconds), String::new());
        row("CPU of the pacemaker", format!("{:.2} µs per label", each(self.pacemaker)), String::new());
        row("CPU of Redis", format!("{:.2} µs per label", each(self.redis)), String::new());
        row(
            "the pacemaker's memory: before, at most, after",
            format!("{:.1}, {:.1}, {:.1} MiB", mib(self.before), mib(self.peak), mib(self.after)),
            format!("+ {:.0} MiB met", mib(MAX_GROWTH)),
        );
        table.notes.push(format!(
            "{} labels with half a kilobyte of metadata and 20 rows of history each, of which {} move; all but {} of them \
             are copies of those under other names",
            grouped(labels as f64),
            grouped(self.moved as f64),
            grouped(ORIGINALS as f64)
        ));
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_half_a_kilobyte_of_metadata_and_one_in_a_hundred_is_to_move() {
        for number in 0..ORIGINALS {
            let metadata = metadata(number);
            let bytes = metadata.to_string().len();
            assert!((480..560).contains(&bytes), "{bytes}");
            assert_eq!(metadata["due"], number.is_multiple_of(MOVES_ONE_IN));
        }
    }
}
