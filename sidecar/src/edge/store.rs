//! What the edge room writes to and reads from Redis.

use signalbox_store::{Error, RoutesReplica, Script, Stats, StatsRole, keys};

use super::{Replica, Report};

static REPORT: Script<StatsRole> = Script::new("report", include_str!("scripts/report.lua"));

/// A router that says nothing for so long is forgotten.
const FORGOTTEN_AFTER_SECONDS: u64 = 60;

/// Writes `router:<node>`, and announces a serial or an alarm that changed.
pub(super) async fn report(
    stats: &Stats,
    node: &str,
    address: &str,
    report: &Report,
    alarm: &str,
) -> Result<(), Error> {
    REPORT
        .call()
        .key(&keys::stats::router(node))
        .key(&keys::stats::routers())
        .arg(node)
        .arg(report.serial)
        .arg(&report.epoch)
        .arg(&report.workers)
        .arg(alarm)
        .arg(address)
        .arg(keys::stats::ROUTERS_CHANNEL)
        .arg(FORGOTTEN_AFTER_SECONDS)
        .arg(&report.in_flight)
        .run::<u64>(stats)
        .await
        .map(drop)
}

/// How the routes replica is.
pub(super) async fn replica(redis: &RoutesReplica) -> Result<Replica, Error> {
    let serial: Option<u64> = redis.command("GET").key(&keys::routes::serial()).query().await?;
    let info: String = redis.command("INFO").arg("replication").query().await?;
    let linked = info.lines().any(|line| line.trim_end() == "master_link_status:up");
    Ok(Replica { up: true, linked, serial: serial.unwrap_or(0) })
}
