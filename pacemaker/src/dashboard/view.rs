//! What the page shows.

use std::collections::{BTreeSet, HashMap};

use askama::Template;

use super::store::Minute;
use crate::{
    http::App,
    routing::{Error, Hostname, InstanceId, LIVE_MS, RouterReport},
    tokens::Caller,
};

/// How many hosts and how many instances are shown.
const SHOWN: usize = 200;

/// The page's content.
#[derive(Debug, Template)]
#[template(path = "dashboard.html")]
pub(super) struct Page {
    nonce: String,
    version: &'static str,
    serial: u64,
    epoch: String,
    hosts: Vec<HostRow>,
    more_hosts: bool,
    instances: Vec<InstanceRow>,
    more_instances: bool,
    /// Nothing while the stats Redis does not answer.
    routers: Option<Vec<RouterRow>>,
    traffic: Option<Vec<TrafficRow>>,
}

#[derive(Debug)]
struct HostRow {
    name: String,
    addresses: String,
    log_key: String,
}

#[derive(Debug)]
struct InstanceRow {
    id: String,
    address: String,
    hostnames: String,
    version_type_id: String,
    node_id: String,
    state: &'static str,
    faults: u64,
}

#[derive(Debug)]
struct RouterRow {
    node: String,
    serial: u64,
    in_step: bool,
    alarm: String,
}

#[derive(Debug)]
struct TrafficRow {
    version_type_id: String,
    minute: Minute,
}

impl Page {
    /// Reads everything. A confined token sees its own hosts and instances.
    pub(super) async fn gather(app: &App, caller: &Caller, nonce: String) -> Result<Self, Error> {
        let store = app.registry.store();
        let (lineage, serial, _) = store.table_head().await?;
        let epoch = lineage.split(' ').next().unwrap_or("").to_owned();
        let (hosts, more_hosts) = hosts(app, caller).await?;
        let (instances, more_instances) = instances(app, caller).await?;
        let mut version_types: BTreeSet<String> =
            hosts.iter().map(|host| host.log_key.clone()).filter(|log_key| !log_key.is_empty()).collect();
        version_types.extend(instances.iter().map(|instance| instance.version_type_id.clone()));
        let ids: Vec<String> = version_types.into_iter().collect();
        let traffic = app.traffic.last_minute(&ids).await.ok().map(|minutes| traffic(ids, &minutes));
        let routers = store.routers(LIVE_MS).await.ok();
        let routers = routers
            .map(|routers| routers.into_iter().map(|router| router_row(router, &epoch, serial)).collect());
        let version = env!("CARGO_PKG_VERSION");
        Ok(Self {
            nonce,
            version,
            serial,
            epoch,
            hosts,
            more_hosts,
            instances,
            more_instances,
            routers,
            traffic,
        })
    }
}

async fn hosts(app: &App, caller: &Caller) -> Result<(Vec<HostRow>, bool), Error> {
    let store = app.registry.store();
    let mut names = store.hosts_after(None, SHOWN + 1).await?;
    let more = names.len() > SHOWN;
    names.truncate(SHOWN);
    names.retain(|name| Hostname::parse(name).is_ok_and(|name| caller.may_touch(&name)));
    let records = store.table_hosts(&names).await?;
    let row = |(name, host): (String, crate::routing::TableHost)| HostRow {
        name,
        addresses: host.addresses.join(", "),
        log_key: host.log_key.unwrap_or_default(),
    };
    Ok((names.into_iter().zip(records).map(row).collect(), more))
}

async fn instances(app: &App, caller: &Caller) -> Result<(Vec<InstanceRow>, bool), Error> {
    let store = app.registry.store();
    let mut ids = store.ids_after(None, SHOWN + 1).await?;
    let more = ids.len() > SHOWN;
    ids.truncate(SHOWN);
    let mut stored = store.stored_many(&ids).await?;
    stored.retain(|stored| caller.may_touch_all(&stored.record.desired.spec.hostnames));
    let ids: Vec<InstanceId> = stored.iter().map(|stored| stored.id.clone()).collect();
    let live = store.live(&ids).await?;
    let rows = stored.into_iter().zip(live).map(|(stored, live)| {
        let desired = stored.record.desired;
        let hostnames: Vec<&str> = desired.spec.hostnames.iter().map(Hostname::as_str).collect();
        InstanceRow {
            id: stored.id.to_string(),
            address: desired.spec.address.to_string(),
            hostnames: hostnames.join(", "),
            version_type_id: desired.spec.version_type_id.as_str().to_owned(),
            node_id: desired.spec.node_id.map_or_else(String::new, |node| node.as_str().to_owned()),
            state: desired.state.as_str(),
            faults: live.faults,
        }
    });
    Ok((rows.collect(), more))
}

fn traffic(ids: Vec<String>, minutes: &HashMap<String, Minute>) -> Vec<TrafficRow> {
    ids.into_iter()
        .map(|version_type_id| {
            let minute = minutes.get(&version_type_id).copied().unwrap_or_default();
            TrafficRow { version_type_id, minute }
        })
        .collect()
}

fn router_row(router: RouterReport, epoch: &str, serial: u64) -> RouterRow {
    RouterRow {
        in_step: crate::routing::has_acknowledged(&router, epoch, serial),
        node: router.node,
        serial: router.serial,
        alarm: router.alarm.unwrap_or_default(),
    }
}
