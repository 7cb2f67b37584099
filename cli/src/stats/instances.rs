//! `signalbox stats top VERSION_TYPE`: the instances of a version type with their response times.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use signalbox_client::{
    Client,
    routes::{Filter, Instance},
    segment,
};
use tokio::time;

use super::draw;
use crate::{
    exit::Failure,
    listing::{Cell, Table, cells, now_ms},
    remote::Remote,
    terminal,
};

/// The time whose requests are shown.
const PERIOD_SECONDS: u64 = 60;

const HEADS: [&str; 10] =
    ["INSTANCE", "ADDRESS", "STATE", "HEALTH", "REQ/S", "P50 MS", "P95 MS", "P99 MS", "IN FLIGHT", "FAULTS"];

/// An instance, and the response times of its last minute.
#[derive(Debug, Serialize)]
struct Row {
    instance: Instance,
    latency: Value,
}

pub(super) async fn run(
    id: &str,
    interval: Duration,
    once: bool,
    table: &Table,
    remote: &Remote,
) -> Result<(), Failure> {
    let client = remote.client()?;
    loop {
        let rows = rows(&client, id).await?;
        if rows.is_empty() {
            return Err(Failure::refused_because(format!(
                "no instance has the version type {id}; `signalbox stats top` shows all version types"
            )));
        }
        draw(table, remote, once, &rows, HEADS, cells)?;
        if once || terminal::reader_is_gone() {
            return Ok(());
        }
        time::sleep(interval.max(Duration::from_millis(200))).await;
    }
}

async fn rows(client: &Client, id: &str) -> Result<Vec<Row>, Failure> {
    let filter = Filter { version_type: Some(id.to_owned()), ..Filter::default() };
    let start = (now_ms() / 1000).saturating_sub(PERIOD_SECONDS);
    let mut rows = Vec::new();
    for instance in client.routes().instances(&filter).await? {
        let path = format!("/stats/instance/{}?start={start}", segment(&instance.id));
        let latency = match client.call("GET", &path, None).await {
            Ok(latency) => latency,
            // It was removed since, or has served no request.
            Err(error) if error.status() == Some(404) => Value::Null,
            Err(error) => return Err(error.into()),
        };
        rows.push(Row { instance, latency });
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.latency["count"].as_u64()));
    Ok(rows)
}

fn cells(row: &Row) -> [Cell; 10] {
    let ms = |name: &str| row.latency[name].as_f64().map(|ms| format!("{ms:.1}"));
    let count = row.latency["count"].as_f64();
    #[expect(clippy::cast_precision_loss, reason = "a minute")]
    let rate = count.map(|count| format!("{:.1}", count / PERIOD_SECONDS as f64));
    let instance = &row.instance;
    cells![
        instance.id,
        instance.address,
        instance.state.as_str(),
        instance.healthy.map(|healthy| if healthy { "healthy" } else { "unhealthy" }),
        rate,
        ms("p50_ms"),
        ms("p95_ms"),
        ms("p99_ms"),
        instance.in_flight,
        instance.faults,
    ]
}
