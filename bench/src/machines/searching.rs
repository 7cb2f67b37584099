//! Searches among a million labels by indexed metadata, over HTTP: a page, and how many labels match.
//!
//! As for the memory of waiting labels, all but a thousand are copies under other names.

use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use signalbox_store::{Fabric, keys::machines::machines as keys};
use tokio::time::Instant;

use super::{
    parked::{ORIGINALS, TOGETHER, copy, labels, metadata},
    testbed::{Machines, label, tag},
};
use crate::{
    compare::median_of,
    report::{Table, grouped},
    session::{Output, Session},
};

/// The metadata that is indexed: all labels have the same plan, and one in forty has each number of seats.
const INDEX: [&str; 2] = ["metadata.plan", "metadata.seats"];
/// The target for a page, in milliseconds.
const MAX_MS: f64 = 50.0;
/// Labels of a page: the default of the API.
const PAGE: usize = 100;

#[allow(clippy::cast_precision_loss)]
pub(super) async fn measure(
    session: &Session,
    machines: &Machines,
    output: &mut Output,
) -> anyhow::Result<()> {
    let labels = labels(session);
    let gate = json!({"gate": "parked", "exit_condition": "metadata.turn = \"on\"", "triggers": [{"metadata": "turn"}],
        "next": "end"});
    machines.define_whole("searched", &json!({"states": [gate, {"gate": "end"}], "index": INDEX}))?;
    machines.create("searched", "parked", ORIGINALS, metadata).await?;
    copy(&machines.fabric, "searched", labels).await?;
    index(&machines.fabric, labels).await?;
    machines.expect("searched", "parked", labels)?;
    let times = if session.quick { 3 } else { 15 };
    let mut table =
        Table::new("labels found by indexed metadata", &["", "found", "median", "longest", "target"]);
    let middle = format!("&cursor={}", label(labels / 2));
    // No index covers the last filter: labels with the one value are read, and compared with the other.
    for (what, metadata, rest) in [
        ("the first page, a value of all labels", "%7B%22plan%22:%22team%22%7D", String::new()),
        ("a page in the middle, a value of all labels", "%7B%22plan%22:%22team%22%7D", middle.clone()),
        (
            "the first page and the total, a value of all labels",
            "%7B%22plan%22:%22team%22%7D",
            "&count=true".to_owned(),
        ),
        ("the first page, a value of one label in 40", "%7B%22seats%22:7%7D", String::new()),
        ("a page in the middle, a value of one label in 40", "%7B%22seats%22:7%7D", middle),
        (
            "the first page and the total, a value of one label in 40",
            "%7B%22seats%22:7%7D",
            "&count=true".to_owned(),
        ),
        ("the first page, both values", "%7B%22plan%22:%22team%22,%22seats%22:7%7D", String::new()),
    ] {
        let path = format!("/state-machines/searched/labels?metadata={metadata}&limit={PAGE}{rest}");
        let mut elapsed = Vec::new();
        let mut total = None;
        for _ in 0..times {
            let begun = Instant::now();
            let found = machines.testbed.call("GET", &path, machines.testbed.stack.token(), None)?;
            elapsed.push(begun.elapsed());
            let page = found["labels"].as_array().map_or(0, Vec::len);
            ensure!(page == PAGE, "{what}: a page of {page} labels");
            total = found["total"].as_u64();
        }
        table.rows.push(row(what, &elapsed, total));
    }
    table.notes.push(format!(
        "{} labels, two indexed paths, pages of {PAGE} labels over HTTP, a new connection for each",
        grouped(labels as f64)
    ));
    output.table(table)
}

#[allow(clippy::cast_precision_loss)]
fn row(what: &str, elapsed: &[Duration], total: Option<u64>) -> Vec<String> {
    let ms = |elapsed: &Duration| elapsed.as_secs_f64() * 1e3;
    let median = median_of(elapsed.iter().map(ms));
    let longest = elapsed.iter().map(ms).fold(0.0, f64::max);
    let found = total.map_or_else(|| "a page".to_owned(), |total| grouped(total as f64));
    let verdict = if median < MAX_MS { "met" } else { "MISSED" };
    vec![
        what.to_owned(),
        found,
        format!("{median:.1} ms"),
        format!("{longest:.1} ms"),
        format!("< {MAX_MS:.0} ms {verdict}"),
    ]
}

/// Adds the copies to the indexes of the labels whose records they have.
async fn index(fabric: &Fabric, labels: u64) -> anyhow::Result<()> {
    let tag = tag();
    let pattern = format!("{}*", keys(&tag).index("searched:by:"));
    let mut cursor = "0".to_owned();
    let mut indexes: Vec<String> = Vec::new();
    loop {
        let scan = fabric.command("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(100_000);
        let (next, found): (String, Vec<String>) = scan.query().await?;
        indexes.extend(found);
        if next == "0" {
            break;
        }
        cursor = next;
    }
    ensure!(!indexes.is_empty(), "no label is indexed");
    for index in indexes {
        let originals: Vec<String> = fabric.command("ZRANGE").arg(&index).arg(0).arg(-1).query().await?;
        let places = (0..ORIGINALS).filter(|number| originals.contains(&label(*number)));
        let places: Vec<u64> = places.collect();
        for first in (ORIGINALS..labels).step_by(usize::try_from(TOGETHER)?) {
            let copies = places.iter().map(|place| first + place).filter(|number| *number < labels);
            let entries: Vec<String> = copies.flat_map(|number| ["0".to_owned(), label(number)]).collect();
            if !entries.is_empty() {
                fabric.command("ZADD").arg(&index).arg(entries).run().await?;
            }
        }
    }
    Ok(())
}
