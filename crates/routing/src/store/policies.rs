//! The policy of a host, as a [`Resource`].

use serde::Deserialize;
use signalbox_store::{
    FabricSpace, Key, RoutesSpace, Script,
    keys::{fabric, routes},
};

use super::{
    SHARED, Store,
    resource::{ADOPT, DESIRE, Entry, PROJECT, Record, Resource, Scripts, Wanted},
};
use crate::{ChangeKind, Error};
use signalbox_route_table::{Hostname, Policy};

/// Its index in the fabric is that of all host names.
const INDEX: &str = include_str!("../scripts/policy_index.lua");
/// In the table it becomes part of what the edge reads of a host.
const TABLE: &str = include_str!("../scripts/policy_table.lua");

static SCRIPTS: Scripts = Scripts {
    desire: Script::composed("routing/desire_policy", &[DESIRE, INDEX]),
    adopt: Script::composed("routing/adopt_policy", &[ADOPT, INDEX]),
    project: Script::composed("routing/project_policy", &[PROJECT, TABLE, SHARED]),
};

impl Resource for Policy {
    const NAME: &'static str = "policy";
    const SIGN: char = '%';
    const CHANGE: ChangeKind = ChangeKind::HostAltered;
    const REMOVED_WITH_HOST: bool = true;
    const TABLE_FIELD: &'static str = "members";

    fn scripts() -> &'static Scripts {
        &SCRIPTS
    }

    fn desired_key() -> Key<FabricSpace> {
        fabric::routes_policies()
    }

    fn index_keys() -> Vec<Key<FabricSpace>> {
        vec![fabric::routes_hosts(), fabric::routes_hosts_index()]
    }

    fn table_key(name: &str) -> Key<RoutesSpace> {
        routes::rules(name)
    }

    fn text_key(_: &str) -> Option<Key<RoutesSpace>> {
        None
    }

    fn parse(record: &str) -> Result<Wanted<Self>, Error> {
        #[derive(Deserialize)]
        struct Stored {
            revision: u64,
            policy: Policy,
        }
        let Stored { revision, policy } = serde_json::from_str(record).map_err(Error::Record)?;
        Ok(Wanted { revision, value: policy })
    }

    fn record(&self) -> Result<Record, Error> {
        Ok(record(&members(self)?))
    }

    fn entry(&self) -> Result<Entry, Error> {
        let wanted = [("slow_start", self.slow_start_ms.is_some()), ("by_version", self.shares.is_some())];
        let fields = wanted.into_iter().filter(|(_, wanted)| *wanted);
        let fields = fields.flat_map(|(field, _)| [field.to_owned(), "1".to_owned()]).collect();
        Ok(Entry { text: members(self)?, fields })
    }

    fn restored(members: Option<String>, _: Option<String>) -> Result<Option<Record>, Error> {
        Ok(members.map(|members| record(&members)))
    }
}

/// The policy as JSON without the braces, because the table adds members.
fn members(policy: &Policy) -> Result<String, Error> {
    let json = serde_json::to_string(policy).map_err(Error::Record)?;
    Ok(json.strip_prefix('{').and_then(|json| json.strip_suffix('}')).unwrap_or_default().to_owned())
}

fn record(members: &str) -> Record {
    Record { tail: format!(",\"policy\":{{{members}}}}}"), index: Vec::new() }
}

impl Store {
    /// The desired policy of a host.
    pub async fn policy(&self, hostname: &Hostname) -> Result<Option<Wanted<Policy>>, Error> {
        Ok(self.wanted(&[hostname.as_str()]).await?.pop().flatten())
    }

    /// The desired policies of these hosts, in their order. One that cannot be read, because a later Signalbox stored it, or it
    /// is damaged, hides no other.
    pub async fn policies(
        &self,
        hostnames: &[String],
    ) -> Result<Vec<Option<Result<Wanted<Policy>, Error>>>, Error> {
        self.wanted_each(&hostnames.iter().map(String::as_str).collect::<Vec<_>>()).await
    }
}
