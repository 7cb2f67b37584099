//! The promotion of a host, as a [`Resource`]. Only the registry reads it: routers see its effect on instances and shares.

use serde::Deserialize;
use signalbox_store::{
    FabricSpace, Key, RoutesSpace, Script,
    keys::{fabric, routes},
};

use super::{
    SHARED, Store,
    resource::{ADOPT, DESIRE, Entry, PROJECT, Record, Resource, Scripts, Wanted},
};
use crate::{ChangeKind, Error, Promotion};
use signalbox_route_table::Hostname;

/// It has no index of its own.
const INDEX: &str = include_str!("../scripts/promotion_index.lua");
const TABLE: &str = include_str!("../scripts/promotion_table.lua");

static SCRIPTS: Scripts = Scripts {
    desire: Script::composed("routing/desire_promotion", &[DESIRE, INDEX]),
    adopt: Script::composed("routing/adopt_promotion", &[ADOPT, INDEX]),
    project: Script::composed("routing/project_promotion", &[PROJECT, TABLE, SHARED]),
};

impl Resource for Promotion {
    const NAME: &'static str = "promotion";
    const SIGN: char = '^';
    const CHANGE: ChangeKind = ChangeKind::HostAltered;
    const REMOVED_WITH_HOST: bool = true;
    const TABLE_FIELD: &'static str = "promotion";

    fn scripts() -> &'static Scripts {
        &SCRIPTS
    }

    fn desired_key() -> Key<FabricSpace> {
        fabric::routes_promotions()
    }

    fn index_keys() -> Vec<Key<FabricSpace>> {
        Vec::new()
    }

    fn table_key(name: &str) -> Key<RoutesSpace> {
        routes::promotion(name)
    }

    fn text_key(_: &str) -> Option<Key<RoutesSpace>> {
        None
    }

    fn parse(record: &str) -> Result<Wanted<Self>, Error> {
        #[derive(Deserialize)]
        struct Stored {
            revision: u64,
            promotion: Promotion,
        }
        let Stored { revision, promotion } = serde_json::from_str(record).map_err(Error::Record)?;
        Ok(Wanted { revision, value: promotion })
    }

    fn record(&self) -> Result<Record, Error> {
        Ok(record(&serde_json::to_string(self).map_err(Error::Record)?))
    }

    fn entry(&self) -> Result<Entry, Error> {
        Ok(Entry { text: serde_json::to_string(self).map_err(Error::Record)?, fields: Vec::new() })
    }

    fn restored(promotion: Option<String>, _: Option<String>) -> Result<Option<Record>, Error> {
        Ok(promotion.map(|promotion| record(&promotion)))
    }
}

fn record(promotion: &str) -> Record {
    Record { tail: format!(",\"promotion\":{promotion}}}"), index: Vec::new() }
}

impl Store {
    /// The promotion of a host.
    pub async fn promotion(&self, hostname: &Hostname) -> Result<Option<Wanted<Promotion>>, Error> {
        Ok(self.wanted(&[hostname.as_str()]).await?.pop().flatten())
    }

    /// The promotions of these hosts, in their order.
    pub(crate) async fn promotions(
        &self,
        hostnames: &[Hostname],
    ) -> Result<Vec<Option<Wanted<Promotion>>>, Error> {
        self.wanted(&hostnames.iter().map(Hostname::as_str).collect::<Vec<_>>()).await
    }
}
