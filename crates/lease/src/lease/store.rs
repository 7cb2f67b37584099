//! Leases in the fabric.

use std::time::Duration;

use signalbox_store::{self as redis, Fabric, FabricRole, Script, keys};

static HOLD: Script<FabricRole> = Script::new("lease/hold", include_str!("scripts/hold.lua"));
static RELEASE: Script<FabricRole> = Script::new("lease/release", include_str!("scripts/release.lua"));

/// Acquires or renews a lease. Returns its epoch, which is above `floor` after a takeover, or `None` while another
/// process holds it.
/// `clock_ms` replaces the fabric's clock.
pub(super) async fn hold(
    fabric: &Fabric,
    name: &str,
    who: &str,
    ttl: Duration,
    floor: u64,
    clock_ms: Option<u64>,
) -> Result<Option<u64>, redis::Error> {
    let reply: Vec<redis::Value> = HOLD
        .call()
        .key(&keys::fabric::lease(name))
        .arg(who)
        .arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
        .arg(floor)
        .arg(clock_ms.map_or(String::new(), |now| now.to_string()))
        .run(fabric)
        .await?;
    let mut items = reply.into_iter();
    let word: Option<String> = items.next().and_then(|word| redis::from_redis_value(word).ok());
    let number = items.next().and_then(|value| redis::from_redis_value::<u64>(value).ok());
    Ok(number.filter(|_| word.as_deref() == Some("held")))
}

/// Releases a lease if `who` holds it.
pub(super) async fn release(fabric: &Fabric, name: &str, who: &str) -> Result<(), redis::Error> {
    RELEASE.call().key(&keys::fabric::lease(name)).arg(who).run::<u64>(fabric).await.map(drop)
}
