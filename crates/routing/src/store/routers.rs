//! The reports of routers, on the stats Redis.

use std::collections::{BTreeMap, HashMap, HashSet};

use signalbox_store::{
    Script, StatsRole, Subscription, Value,
    keys::{fabric, stats as key},
    traffic::{Recent, recent},
};

use super::{Store, reply::Reply};
use crate::Error;

static ROUTERS: Script<StatsRole> = Script::new("routing/routers", include_str!("../scripts/routers.lua"));

/// Time after the last alarm event until the published state is forgotten.
const ALARMS_PUBLISHED_SECONDS: u64 = 30 * 24 * 3600;

const MINUTE_SECONDS: i64 = 60;
/// How many version types with most requests, and as many with most errors, are read exactly.
const MAX_EXACT: usize = 100;

/// A router's latest report.
#[derive(Debug, Clone, PartialEq)]
pub struct RouterReport {
    /// The router's name.
    pub node: String,
    /// The serial that all of its workers have acknowledged.
    pub serial: u64,
    /// The lineage of its table, newest token first.
    pub epoch: String,
    /// Milliseconds since the report, by the clock of the server that holds it.
    pub age_ms: u64,
    /// Its workers, as it wrote them.
    pub workers: serde_json::Value,
    /// Why it rejects the table, if it does.
    pub alarm: Option<String>,
    /// The address of the router's edge, if it reports one.
    pub address: Option<String>,
    /// Requests under way by the address of the instance that has them.
    pub in_flight: BTreeMap<String, u64>,
    /// Server names without a certificate that its clients asked for lately.
    pub requested_names: Vec<String>,
    /// Addresses that it has ejected, with the ends of the ejections in unix milliseconds; at most 200.
    pub ejected: BTreeMap<String, u64>,
}

impl Store {
    /// Routers that reported within `within_ms`, by name.
    pub async fn routers(&self, within_ms: u64) -> Result<Vec<RouterReport>, Error> {
        type Row = (String, f64, HashMap<String, String>);
        let reply = ROUTERS
            .call()
            .arg(key::routers().as_str())
            .arg(key::router("").as_str())
            .arg(within_ms)
            .run::<Vec<Value>>(&self.stats)
            .await
            .map_err(Error::Stats)?;
        let reply = Reply::new("routers", reply);
        let now_ms: u64 = reply.at(0)?;
        let mut seen: Vec<Row> = reply.rest(1)?;
        seen.sort_by(|a, b| a.0.cmp(&b.0));
        let report = |(node, at_ms, mut fields): Row| RouterReport {
            node,
            serial: fields.get("serial").and_then(|serial| serial.parse().ok()).unwrap_or(0),
            epoch: fields.remove("epoch").unwrap_or_default(),
            age_ms: now_ms.saturating_sub(at_ms as u64),
            workers: fields
                .get("workers")
                .and_then(|workers| serde_json::from_str(workers).ok())
                .unwrap_or(serde_json::Value::Null),
            alarm: fields.remove("alarm").filter(|alarm| !alarm.is_empty() && alarm != "null"),
            address: fields.remove("address").filter(|address| !address.is_empty()),
            in_flight: fields
                .get("in_flight")
                .and_then(|counts| serde_json::from_str(counts).ok())
                .unwrap_or_default(),
            requested_names: fields
                .get("requested_names")
                .and_then(|names| serde_json::from_str(names).ok())
                .unwrap_or_default(),
            ejected: fields
                .get("ejected")
                .and_then(|ejected| serde_json::from_str(ejected).ok())
                .unwrap_or_default(),
        };
        Ok(seen.into_iter().map(report).collect())
    }

    /// The requests of the last minute to these version types.
    pub(crate) async fn last_minute(&self, versions: &HashSet<&str>) -> Result<Recent, Error> {
        recent(&self.stats, MINUTE_SECONDS, MAX_EXACT, Some(versions)).await.map_err(Error::Stats)
    }

    /// The published alarms of routers, by node: `<number> <alarm>`.
    pub(crate) async fn published_alarms(&self) -> Result<BTreeMap<String, String>, Error> {
        let command = self.fabric.command("HGETALL").key(&fabric::routes_alarms_published());
        command.query().await.map_err(Error::Fabric)
    }

    /// Records the published alarm of a router.
    pub(crate) async fn published_alarm(&self, node: &str, what: &str) -> Result<(), Error> {
        let key = fabric::routes_alarms_published();
        let mut batch = self.fabric.batch();
        batch.add("HSET", &key, &[node, what]);
        // Router names change over time, so old ones must expire. An alarm that lasts longer is published again.
        batch.add("EXPIRE", &key, &[ALARMS_PUBLISHED_SECONDS]);
        batch.query::<(u64, u64)>().await.map(drop).map_err(Error::Fabric)
    }

    /// Announcements of new serials and alarms, as `<node> <serial>` and `<node> <serial> alarm`.
    pub(crate) fn router_announcements(&self) -> Subscription {
        self.stats.subscribe(&[key::ROUTERS_CHANNEL])
    }
}
