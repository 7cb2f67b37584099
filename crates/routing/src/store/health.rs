//! The instances to check and their health, on the routes primary.

use signalbox_store::{RoutesPrimaryRole, Script, keys::fabric, keys::routes as key};

use super::{Fence, SHARED, Store, TableMark};
use crate::{
    Error,
    health::{Listed, Target},
};
use signalbox_route_table::{InstanceId, Record};

static HEALTH: Script<RoutesPrimaryRole> =
    Script::composed("routing/health", &[include_str!("../scripts/health.lua"), SHARED]);

/// How many instances are read at a time.
const CHUNK: usize = 500;

/// The prober's verdict on an instance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Diagnosis<'a> {
    pub(crate) id: &'a InstanceId,
    /// The address that was checked.
    pub(crate) address: &'a str,
    /// Why it is unhealthy; `None` when it is healthy.
    pub(crate) unhealthy: Option<&'a str>,
}

/// The result of storing a [`Diagnosis`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Diagnosed {
    Done {
        serial: u64,
    },
    /// The table has it already.
    Same,
    /// The instance was removed, moved, or is no longer checked.
    Gone,
}

impl Store {
    /// All instances to check.
    pub(crate) async fn listed_for_checks(&self) -> Result<Vec<Listed>, Error> {
        let mut ids: Vec<String> = Vec::new();
        let mut cursor: u64 = 0;
        loop {
            let command =
                self.routes.command("SSCAN").key(&key::checks()).arg(cursor).arg("COUNT").arg(CHUNK);
            let (next, some): (u64, Vec<String>) = command.query().await.map_err(Error::table)?;
            ids.extend(some);
            if next == 0 {
                break;
            }
            cursor = next;
        }
        let mut list = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(CHUNK) {
            let rows: Vec<(Option<String>, Option<String>)> =
                self.fields(chunk, &["record", "unhealthy"]).await?;
            let command = self.fabric.command("HMGET").key(&fabric::routes_registrants()).arg(chunk);
            let tokens: Vec<Option<String>> = command.query().await.map_err(Error::Fabric)?;
            for ((id, (record, unhealthy)), token) in chunk.iter().zip(rows).zip(tokens) {
                // Removed in the meantime, or written by other means: not checked.
                let record = record.and_then(|text| serde_json::from_str::<Record>(&text).ok());
                let Some(target) = record.and_then(target) else { continue };
                let (id, token) = (InstanceId::parse(id)?, token.unwrap_or_default());
                list.push(Listed { id, target, token, unhealthy: unhealthy.is_some() });
            }
        }
        Ok(list)
    }

    /// Stores a verdict.
    pub(crate) async fn diagnose(
        &self,
        diagnosis: Diagnosis<'_>,
        mark: &TableMark,
        fence: Fence<'_>,
    ) -> Result<Diagnosed, Error> {
        let call = HEALTH
            .call()
            .key(&key::serial())
            .key(&key::instance(diagnosis.id.as_str()))
            .key(&key::checks())
            .key(&key::epoch())
            .key(&key::fencing())
            .key(&key::changes())
            .arg(diagnosis.id.as_str())
            .arg(diagnosis.address)
            .arg(diagnosis.unhealthy.unwrap_or(""))
            .arg(&mark.epoch)
            .arg(mark.serial)
            .arg(self.clock())
            .arg(fence.lease)
            .arg(fence.epoch);
        let reply = self.on_table("health", call).await?;
        Ok(match reply.word()?.as_str() {
            "done" => Diagnosed::Done { serial: reply.at(1)? },
            "same" => Diagnosed::Same,
            "gone" => Diagnosed::Gone,
            _ => return Err(reply.unexpected()),
        })
    }
}

fn target(record: Record) -> Option<Target> {
    let spec = record.desired.spec;
    // A wildcard is not a name that an application would recognize.
    let host = spec.hostnames.iter().find(|name| !name.as_str().contains('*'));
    let host = host.map_or("localhost", |name| name.as_str()).to_owned();
    Some(Target { address: spec.address.as_str().to_owned(), host, health: spec.health? })
}
