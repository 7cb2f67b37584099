//! All hosts at a glance: how many instances each has, how many of them are healthy, and which versions they run.
//!
//! The table has an index of host names only, so a list that is sorted by anything else, or a search for problems, has to read
//! every host. That is done once for all readers: a reading is used until the serial of the table changes. Reading 50,000
//! hosts takes about a second, so a large table is read in the background and at most a tenth of the time; readers get the
//! previous reading in the meantime. A small table is read whenever it has changed, so its readers see their own changes.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use signalbox_route_table::Hostname;
use signalbox_routing::{Error, HostTable, InstanceState, Store, host_pace};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

/// Names of hosts that are read by one call.
const CHUNK: usize = 500;
/// A table that is read faster than this is small: it is read again after each change.
const QUICK: Duration = Duration::from_millis(100);
/// How many times as long as a reading took it is used, although the table has changed.
const REST: u32 = 10;

/// A host.
#[derive(Debug, Clone)]
pub struct HostSummary {
    /// The host name.
    pub name: Hostname,
    /// Addresses that get its requests.
    pub instances: usize,
    /// What the route table decides about its requests.
    pub table: HostTable,
    /// Instances with a failed health check, each with the reason.
    pub unhealthy: Vec<(String, String)>,
    /// The version types of its instances, and the one that requests without an instance count for.
    pub versions: BTreeSet<String>,
    /// Whether something is set for it, such as limits or shares.
    pub has_policy: bool,
}

impl HostSummary {
    /// The number of its instances that are healthy.
    pub fn healthy(&self) -> usize {
        self.instances.saturating_sub(self.unhealthy.len())
    }
}

/// All hosts, in the order of their names.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) hosts: Vec<HostSummary>,
    /// The lineage and serial of the table before it was read.
    head: (String, u64),
    read_at: Instant,
    took: Duration,
}

impl Reading {
    fn is_quick(&self) -> bool {
        self.took < QUICK
    }

    /// Whether it may be used although the table has changed.
    fn is_fresh(&self) -> bool {
        !self.is_quick() && self.read_at.elapsed() < self.took * REST
    }
}

/// The latest reading. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Directory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    latest: Mutex<Option<Arc<Reading>>>,
    /// Whether a reading is under way.
    reading: Mutex<bool>,
    /// Why the last reading failed; changed by each reading.
    done: watch::Sender<Option<String>>,
}

impl Default for Inner {
    fn default() -> Self {
        Self { latest: Mutex::default(), reading: Mutex::default(), done: watch::Sender::new(None) }
    }
}

impl Directory {
    /// All hosts. Waits for a reading at most for `patience`, and only if there is none that may be used.
    ///
    /// # Errors
    /// Why there is no reading, as a sentence for operators.
    pub(crate) async fn hosts(&self, store: &Store, patience: Duration) -> Result<Arc<Reading>, String> {
        let deadline = Instant::now() + patience;
        let late = |_| "The route table is still being read.".to_owned();
        let head = timeout_at(deadline, store.table_head()).await.map_err(late)?;
        let (lineage, serial, _) = head.map_err(|error| error.to_string())?;
        let current = |reading: &Reading| reading.head.0 == lineage && reading.head.1 >= serial;
        loop {
            let latest = self.0.latest.lock().clone();
            if let Some(latest) = latest.as_ref().filter(|latest| current(latest) || latest.is_fresh()) {
                return Ok(Arc::clone(latest));
            }
            let mut done = self.0.done.subscribe();
            self.read(store);
            // A large table is read in the background.
            if let Some(latest) = latest.filter(|latest| !latest.is_quick()) {
                return Ok(latest);
            }
            // The sender is a part of the directory, so it does not go away.
            timeout_at(deadline, done.changed()).await.map_err(late)?.unwrap_or_default();
            if let Some(error) = done.borrow().clone() {
                return Err(error);
            }
        }
    }

    /// Starts a reading, unless one is under way. It continues if the request that asked for it ends.
    fn read(&self, store: &Store) {
        if std::mem::replace(&mut *self.0.reading.lock(), true) {
            return;
        }
        let (directory, store) = (self.clone(), store.clone());
        tokio::spawn(async move {
            let result = read(&store).await;
            *directory.0.reading.lock() = false;
            let error = match result {
                Ok(reading) => {
                    *directory.0.latest.lock() = Some(Arc::new(reading));
                    None
                }
                Err(error) => Some(error.to_string()),
            };
            directory.0.done.send_replace(error);
        });
    }
}

async fn read(store: &Store) -> Result<Reading, Error> {
    let started = Instant::now();
    let (lineage, serial, _) = store.table_head().await?;
    let (mut hosts, mut after, mut pace) = (Vec::new(), None::<String>, host_pace());
    let mut names: Vec<String> = Vec::new();
    loop {
        if names.is_empty() {
            names = store.hosts_after(after.as_deref(), CHUNK).await?;
        }
        let Some(last) = names.last().cloned() else { break };
        after = Some(last);
        let records = store.table_hosts_part(&names, &mut pace).await?;
        let rest = names.split_off(records.len());
        let ids: BTreeSet<&String> = records.iter().flat_map(|record| &record.instance_ids).collect();
        let ids: Vec<String> = ids.into_iter().cloned().collect();
        let states = store.instance_states(&ids).await?;
        let states: HashMap<String, InstanceState> = ids.into_iter().zip(states).collect();
        for (name, record) in names.into_iter().zip(records) {
            // An index entry that is not a host name cannot be shown to any token.
            let Ok(name) = Hostname::parse(&name) else { continue };
            let own = || record.instance_ids.iter().filter_map(|id| Some((id, states.get(id)?)));
            let mut versions: BTreeSet<String> =
                own().filter_map(|(_, state)| state.version_type.clone()).collect();
            versions.extend(record.log_key.clone());
            hosts.push(HostSummary {
                name,
                instances: record.addresses.len(),
                table: HostTable::new(&record),
                unhealthy: own()
                    .filter_map(|(id, state)| Some((id.clone(), state.unhealthy.clone()?)))
                    .collect(),
                versions,
                has_policy: record.policy.is_some(),
            });
        }
        names = rest;
    }
    let services: HashSet<&str> = hosts.iter().flat_map(|host| host.table.all_services()).collect();
    let named = |host: &&HostSummary| {
        let name = host.name.as_str();
        // A wildcard may be the table of any service.
        services.contains(name) || name.starts_with('*')
    };
    let tables: HashMap<String, HostTable> =
        hosts.iter().filter(named).map(|host| (host.name.to_string(), host.table.clone())).collect();
    hosts.iter_mut().for_each(|host| host.table.resolve(|name| tables.get(name)));
    Ok(Reading { hosts, head: (lineage, serial), read_at: Instant::now(), took: started.elapsed() })
}
