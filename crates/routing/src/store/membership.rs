//! Which version types belong to a workspace, application, version and node, on the stats Redis.

use signalbox_store::{Value, keys::stats as key};

use super::Store;
use crate::Error;
use signalbox_route_table::Spec;

impl Store {
    /// Adds each instance's version type to the sets it names. Members are never removed: version types without
    /// instances still have statistics.
    pub(crate) async fn add_memberships(&self, specs: &[&Spec]) -> Result<(), Error> {
        let mut batch = self.stats.batch();
        for spec in specs {
            let version_type = spec.version_type_id.as_str();
            let sets = [
                spec.workspace_id.as_ref().map(|id| key::workspace(id.as_str())),
                spec.application_id.as_ref().map(|id| key::application(id.as_str())),
                spec.version_id.as_ref().map(|id| key::version(id.as_str())),
                spec.node_id.as_ref().map(|id| key::node(id.as_str())),
            ];
            for set in sets.iter().flatten() {
                batch.add("SADD", set, version_type);
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        batch.query::<Value>().await.map(drop).map_err(Error::Stats)
    }
}
