//! The list of pacemakers, in the fabric.

use std::time::Duration;

use signalbox_store::{self as redis, Fabric, FabricRole, Script, keys};

static BEAT: Script<FabricRole> = Script::new("presence/beat", include_str!("scripts/beat.lua"));
static LIST: Script<FabricRole> = Script::new("presence/list", include_str!("scripts/list.lua"));

/// A running pacemaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its node's name.
    pub node: String,
    /// The version of its software.
    pub version: String,
    /// Milliseconds since its last heartbeat.
    pub age_ms: u64,
}

/// Records a heartbeat of `who`.
pub(super) async fn beat(
    fabric: &Fabric,
    who: &str,
    version: &str,
    known: Duration,
) -> Result<(), redis::Error> {
    let call = BEAT.call().key(&keys::fabric::pacemakers()).arg(who).arg(version).arg(millis(known));
    call.run::<u64>(fabric).await.map(drop)
}

/// Removes `who` from the list.
pub(super) async fn leave(fabric: &Fabric, who: &str) -> Result<(), redis::Error> {
    fabric.command("HDEL").key(&keys::fabric::pacemakers()).arg(who).run().await
}

/// The pacemakers with a heartbeat within `known`, by node.
pub(super) async fn all(fabric: &Fabric, known: Duration) -> Result<Vec<Seen>, redis::Error> {
    let call = LIST.call().key(&keys::fabric::pacemakers()).arg(millis(known));
    let rows: Vec<(String, String, u64)> = call.run(fabric).await?;
    let mut seen: Vec<Seen> = rows
        .into_iter()
        .map(|(who, version, age_ms)| {
            let node = who.rsplit_once('/').map_or(&*who, |(node, _)| node).to_owned();
            Seen { node, version, age_ms }
        })
        .collect();
    seen.sort_by(|a, b| (&a.node, a.age_ms).cmp(&(&b.node, b.age_ms)));
    Ok(seen)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
