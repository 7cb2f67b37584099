//! The Redis operations of the edge module.

use signalbox_diagnosis::thresholds::ROUTER_FORGOTTEN_MS;
use signalbox_store::{Error, RoutesReplica, Script, Stats, StatsRole, keys};

use super::{Replica, Report};

static REPORT: Script<StatsRole> = Script::new("report", include_str!("scripts/report.lua"));

/// Writes `router:<node>`, and publishes a changed serial or alarm.
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
        .arg(ROUTER_FORGOTTEN_MS / 1000)
        .arg(&report.in_flight)
        .arg(&report.requested_names)
        .arg(&report.ejected)
        .run::<u64>(stats)
        .await
        .map(drop)
}

/// Reads the state of the routes replica.
pub(super) async fn replica(redis: &RoutesReplica) -> Result<Replica, Error> {
    let serial: Option<u64> = redis.command("GET").key(&keys::routes::serial()).query().await?;
    let info = replication(redis).await?;
    let linked = info.lines().any(|line| line.trim_end() == "master_link_status:up");
    Ok(Replica { up: true, linked, serial: serial.unwrap_or(0) })
}

/// Makes the replica copy `host`, unless it does so already. Returns whether it was changed.
pub(super) async fn copy_from(redis: &RoutesReplica, host: &str, port: u16) -> Result<bool, Error> {
    let info = replication(redis).await?;
    let field =
        |name: &str| info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'));
    if field("master_host") == Some(host) && field("master_port") == Some(&port.to_string()) {
        return Ok(false);
    }
    redis.command("REPLICAOF").arg(host).arg(port).run().await.map(|()| true)
}

async fn replication(redis: &RoutesReplica) -> Result<String, Error> {
    redis.command("INFO").arg("replication").query().await
}
