//! The changes that scripts recorded in the table, and the last one that was published.

use std::{collections::HashMap, time::Duration};

use signalbox_store::{
    FabricRole, RoutesPrimary, RoutesPrimaryRole, Script, Value,
    keys::{fabric, routes},
};

use super::Store;
use crate::Error;

static CHANGES: Script<RoutesPrimaryRole> =
    Script::new("routing/changes", include_str!("../scripts/changes.lua"));
static ANNOUNCED: Script<FabricRole> =
    Script::new("routing/announced", include_str!("../scripts/announced.lua"));

/// How long a server that was asked to answer after a while may take beyond it.
const GRACE: Duration = Duration::from_secs(5);

/// The last change of the table that was published.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The newest token of the lineage; empty if nothing was published yet.
    pub(crate) epoch: String,
    pub(crate) serial: u64,
    /// ID of the last entry that was published; empty if there was none.
    pub(crate) entry: String,
}

impl Place {
    /// The text that the script compares with.
    fn text(&self) -> String {
        if self.epoch.is_empty() {
            return String::new();
        }
        format!("{} {} {}", self.epoch, self.serial, self.entry)
    }
}

/// One entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// `serial-n`.
    pub(crate) id: String,
    pub(crate) fields: HashMap<String, String>,
}

impl Entry {
    /// The serial that the change made, or under which it happened.
    pub(crate) fn serial(&self) -> u64 {
        self.id.split('-').next().and_then(|serial| serial.parse().ok()).unwrap_or(0)
    }

    /// A field that is a number.
    pub(crate) fn number(&self, field: &str) -> Option<u64> {
        self.text(field).parse().ok()
    }

    /// A field's text; empty when there is none.
    pub(crate) fn text(&self, field: &str) -> &str {
        self.fields.get(field).map_or("", String::as_str)
    }
}

/// The list from some place on, and the head of the table at the same moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// The newest token of the lineage; empty before the table's first.
    pub(crate) epoch: String,
    pub(crate) serial: u64,
    /// The newest entry there is; empty when there is none.
    pub(crate) last: String,
    pub(crate) entries: Vec<Entry>,
}

impl Store {
    /// The last change that was published.
    pub(crate) async fn announced(&self) -> Result<Place, Error> {
        let command = self.fabric.command("HGETALL").key(&fabric::routes_announced());
        let mut fields: HashMap<String, String> = command.query().await.map_err(Error::Fabric)?;
        Ok(Place {
            epoch: fields.remove("epoch").unwrap_or_default(),
            serial: fields.get("serial").and_then(|serial| serial.parse().ok()).unwrap_or(0),
            entry: fields.remove("entry").unwrap_or_default(),
        })
    }

    /// Records that everything up to `place` was published; false if another process recorded something since `before` was
    /// read.
    pub(crate) async fn announced_up_to(&self, before: &Place, place: &Place) -> Result<bool, Error> {
        ANNOUNCED
            .call()
            .key(&fabric::routes_announced())
            .key(&fabric::routes_table())
            .arg(before.text())
            .arg(&place.epoch)
            .arg(place.serial)
            .arg(&place.entry)
            .run(&self.fabric)
            .await
            .map_err(Error::Fabric)
    }

    /// At most `limit` changes after `place`; the first ones of the table when its epoch is another.
    pub(crate) async fn changes_after(&self, place: &Place, limit: usize) -> Result<Changes, Error> {
        let call = CHANGES
            .call()
            .key(&routes::serial())
            .key(&routes::epoch())
            .key(&routes::changes())
            .arg(&place.epoch)
            .arg(&place.entry)
            .arg(limit);
        let reply = self.on_table("changes", call).await?;
        type Fields = (String, HashMap<String, String>);
        let entries = reply.rest::<Fields>(3)?;
        Ok(Changes {
            epoch: reply.at(0)?,
            serial: reply.at(1)?,
            last: reply.at(2)?,
            entries: entries.into_iter().map(|(id, fields)| Entry { id, fields }).collect(),
        })
    }

    /// A connection to wait on.
    pub(crate) fn watcher(&self) -> Result<RoutesPrimary, Error> {
        self.routes.dedicated().map_err(Error::table)
    }

    /// Waits on a separate connection until something changes after `entry`, at most `within`.
    pub(crate) async fn await_change(
        &self,
        watcher: &RoutesPrimary,
        entry: &str,
        within: Duration,
    ) -> Result<(), Error> {
        let after = if entry.is_empty() { "0-0" } else { entry };
        let block_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let command = watcher.command("XREAD").arg("COUNT").arg(1).arg("BLOCK").arg(block_ms).arg("STREAMS");
        let answer = command.key(&routes::changes()).arg(after).query::<Value>();
        // A frozen server does not answer, and this connection has no timeout.
        match tokio::time::timeout(within + GRACE, answer).await {
            Ok(answer) => answer.map(drop).map_err(Error::table),
            Err(_) => Ok(()),
        }
    }
}
