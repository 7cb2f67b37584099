//! The subsystem against real Redis servers.

mod announcing;
mod certificates;
mod checking;
mod hosts;
mod leases;
mod model;
mod policies;
mod projection;
mod promoting;
mod reconciling;
mod registering;
mod scripts;
mod stored_forms;
mod time;

use std::{sync::Arc, time::Duration};

use signalbox_daemon::RootToken;
use signalbox_store::{FromRedisValue, keys};
use tokio::sync::Notify;

use super::{
    Reconciler, Registry, Store, Sweeper,
    store::{Applied, Projection, TableMark, TableState},
};
use crate::metrics::Metrics;
use signalbox_access::Tokens;
use signalbox_lease::Lease;
use signalbox_route_table::{AddressRules, Desired, Hostname, InstanceId, Record, Spec, State};
use signalbox_testkit::Servers;

/// Servers, and one pacemaker's handles to them.
struct Rig {
    servers: Servers,
    store: Store,
    registry: Registry,
    nudge: Arc<Notify>,
}

impl Rig {
    /// With empty servers.
    async fn bare() -> Self {
        Self::over(Servers::start().await)
    }

    /// After a first reconciliation, which is what a running pacemaker has behind it.
    async fn new() -> Self {
        let rig = Self::bare().await;
        rig.reconcile().await;
        rig
    }

    fn over(servers: Servers) -> Self {
        let store = Store::new(servers.fabric(), servers.routes(), servers.stats());
        let rules = AddressRules {
            networks: vec!["127.0.0.0/8".parse().unwrap()],
            unix_folders: vec!["/tmp".parse().unwrap()],
            check_local: true,
            ..AddressRules::default()
        };
        let nudge = Arc::new(Notify::new());
        let registry = Registry::new(store.clone(), rules, Arc::clone(&nudge), Metrics::default());
        Self { servers, store, registry, nudge }
    }

    /// Another process on the same servers.
    fn another_store(&self) -> Store {
        Store::new(self.servers.fabric(), self.servers.routes(), self.servers.stats())
    }

    fn lease(&self, name: &'static str) -> Lease {
        Lease::new(self.servers.fabric(), name, "test".to_owned(), Duration::from_secs(60))
    }

    fn reconciler(&self) -> Reconciler {
        let root = RootToken::new("0123456789abcdef0123456789abcdef").unwrap();
        let tokens =
            Tokens::new(&root, self.servers.fabric(), self.servers.stats(), || std::time::UNIX_EPOCH);
        let (lease, nudge) = (self.lease("reconciler"), Arc::clone(&self.nudge));
        Reconciler::new(
            self.registry.clone(),
            tokens,
            lease,
            nudge,
            Duration::from_secs(1),
            Metrics::default(),
        )
    }

    fn sweeper(&self) -> Sweeper {
        let (lease, nudge) = (self.lease("sweeper"), Arc::clone(&self.nudge));
        let (interval, gap) = (Duration::from_secs(1), Duration::from_secs(3));
        Sweeper::new(self.registry.clone(), lease, interval, gap, nudge, Metrics::default())
    }

    /// Runs passes, as a restarted pacemaker would, until nothing is left to repair.
    async fn reconcile(&self) {
        let mut reconciler = self.reconciler();
        for _ in 0..3 {
            reconciler.pass(1).await.unwrap();
        }
    }

    async fn mark(&self) -> TableMark {
        self.store.table_state().await.unwrap().mark().unwrap()
    }

    async fn head(&self) -> (String, u64, u64) {
        self.store.table_head().await.unwrap()
    }

    async fn serial(&self) -> u64 {
        self.head().await.1
    }

    /// Applies with the right mark and no fence.
    async fn apply(&self, id: &str, projection: Projection<'_>) -> Applied {
        let mark = self.mark().await;
        self.store.apply(&instance_id(id), projection, Some(&mark), None).await.unwrap()
    }

    async fn put(&self, id: &str, spec: Spec) -> super::RouteChange {
        self.registry.put(&signalbox_access::Caller::root(), &instance_id(id), spec).await.unwrap()
    }

    async fn addresses(&self, host: &str) -> Vec<String> {
        self.table(host).await.addresses
    }

    async fn table(&self, host: &str) -> signalbox_route_table::TableHost {
        self.store.table_hosts(&[host.to_owned()]).await.unwrap().pop().unwrap()
    }

    async fn routes<T: FromRedisValue>(&self, command: &'static str, args: &[&str]) -> T {
        self.store.routes().command(command).arg(args).query().await.unwrap()
    }

    async fn fabric<T: FromRedisValue>(&self, command: &'static str, args: &[&str]) -> T {
        self.store.fabric().command(command).arg(args).query().await.unwrap()
    }

    async fn outstanding(&self) -> Vec<(String, u64)> {
        self.store.outstanding(100).await.unwrap()
    }

    /// Fails on a key that the catalog does not describe.
    async fn check_catalog(&self) {
        let known = |catalog: &[keys::Entry], key: &String| catalog.iter().any(|entry| entry.describes(key));
        let routes: Vec<String> = self.routes("KEYS", &["*"]).await;
        let fabric: Vec<String> = self.fabric("KEYS", &["*"]).await;
        assert!(routes.iter().all(|key| known(keys::routes::CATALOG, key)), "{routes:?}");
        assert!(fabric.iter().all(|key| known(keys::fabric::CATALOG, key)), "{fabric:?}");
    }
}

fn instance_id(id: &str) -> InstanceId {
    InstanceId::parse(id).unwrap()
}

fn subjects(changes: &[crate::RouteChange]) -> Vec<&str> {
    changes.iter().map(|change| change.subject.as_str()).collect()
}

fn host(name: &str) -> Hostname {
    Hostname::parse(name).unwrap()
}

/// An instance on a loopback port.
fn spec(port: u16, hostnames: &[&str], version_type: &str) -> Spec {
    let json = serde_json::json!({
        "address": format!("127.0.0.1:{port}"), "hostnames": hostnames, "version_type_id": version_type,
    });
    let networks = vec!["127.0.0.0/8".parse().unwrap()];
    let rules = AddressRules { networks, check_local: true, ..AddressRules::default() };
    Spec::check(serde_json::from_value(json).unwrap(), &rules).unwrap()
}

fn leased(port: u16, hostnames: &[&str], lease_seconds: u32) -> Spec {
    Spec { lease_seconds: Some(lease_seconds), ..spec(port, hostnames, "1") }
}

fn active(revision: u64, spec: Spec) -> Record {
    Record { revision, desired: Desired::new(spec, State::Active) }
}

fn draining(revision: u64, spec: Spec, deadline_ms: u64) -> Record {
    let desired = Desired {
        spec,
        state: State::Draining,
        drain_deadline_ms: Some(deadline_ms),
        standby_until_ms: None,
    };
    Record { revision, desired }
}

fn done(serial: u64, visible: bool) -> Applied {
    Applied::Done { serial, visible, displaced: None }
}
