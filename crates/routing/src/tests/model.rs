//! Any interleaving of changes and of projections that arrive late, twice or out of order ends in the same table, and
//! the serial counts exactly the changes that routers can see. Compared with a model that fits in a map.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{
    prelude::*,
    test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner},
};

use super::*;
use crate::store::{Desire, DesireOutcome, ResourceOutcome};
use signalbox_route_table::Policy;

const IDS: [&str; 4] = ["a", "b", "c", "d"];
const HOSTS: [&str; 3] = ["one.example", "two.example", "*.example"];
const POLICIES: [&str; 3] = [
    "{}",
    r#"{"hold_ms":5}"#,
    r#"{"shares":[{"version_type":"1","percent":90},{"version_type":"2","percent":10}]}"#,
];
const DEADLINE_MS: u64 = 4_000_000_000_000;

#[derive(Debug, Clone)]
enum Step {
    /// Changes the desired state; its projection is then on its way.
    Register {
        id: usize,
        port: u16,
        hosts: u8,
        version_type: u8,
        weight: u32,
    },
    /// Changes the desired policy of a host, by number; 0 is none.
    Rule {
        host: usize,
        policy: usize,
    },
    Remove {
        id: usize,
    },
    Drain {
        id: usize,
    },
    /// One of the projections that were ever on their way arrives, perhaps not for the first time.
    Arrive {
        which: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let id = 0..IDS.len();
    prop_oneof![
        3 => (id.clone(), 9001..9004_u16, 1..8_u8, 1..3_u8, 0..3_u32).prop_map(
            |(id, port, hosts, version_type, weight)| Step::Register { id, port, hosts, version_type, weight }
        ),
        2 => (0..HOSTS.len(), 0..POLICIES.len()).prop_map(|(host, policy)| Step::Rule { host, policy }),
        1 => id.clone().prop_map(|id| Step::Remove { id }),
        1 => id.prop_map(|id| Step::Drain { id }),
        4 => (0..64_usize).prop_map(|which| Step::Arrive { which }),
    ]
}

#[derive(Debug, Clone)]
enum Sent {
    Wanted(Box<Record>),
    Removed(u64),
    Ruled(u64, Option<Box<Policy>>),
}

/// One run: the desired state as the model has it, and everything that was ever sent to the table.
struct Run<'a> {
    rig: &'a Rig,
    store: Store,
    mark: TableMark,
    wanted: BTreeMap<String, Record>,
    /// By host.
    ruled: BTreeMap<String, Policy>,
    sent: Vec<(String, Sent)>,
}

type Checked = Result<(), TestCaseError>;

impl Run<'_> {
    async fn change(&mut self, id: &str, after: Option<Desired>) {
        let instance = instance_id(id);
        let current = self.store.stored(&instance).await.unwrap();
        let owner = match &after {
            Some(after) => self.store.sight(&instance, &after.spec.address).await.unwrap().owner,
            None => None,
        };
        let desire = Desire {
            id: &instance,
            before: current.as_ref(),
            after: after.as_ref(),
            owner: owner.as_ref(),
            registrant: None,
            promotions: None,
        };
        let DesireOutcome::Accepted { revision, .. } = self.store.desire(desire).await.unwrap() else {
            panic!("no other client makes changes")
        };
        if let Some(owner) = owner {
            self.wanted.remove(owner.id.as_str());
            self.sent.push((owner.id.to_string(), Sent::Removed(revision - 1)));
        }
        match after {
            Some(desired) => {
                let record = Record { revision, desired };
                self.wanted.insert(id.to_owned(), record.clone());
                self.sent.push((id.to_owned(), Sent::Wanted(Box::new(record))));
            }
            None => {
                self.wanted.remove(id);
                self.sent.push((id.to_owned(), Sent::Removed(revision)));
            }
        }
    }

    async fn take(&mut self, step: Step) -> Checked {
        match step {
            Step::Rule { host, policy } => self.rule(HOSTS[host], POLICIES[policy]).await,
            Step::Register { id, port, hosts, version_type, weight } => {
                let names: Vec<&str> = HOSTS
                    .iter()
                    .enumerate()
                    .filter_map(|(bit, name)| (hosts >> bit & 1 == 1).then_some(*name))
                    .collect();
                let spec = Spec { weight, ..spec(port, &names, &version_type.to_string()) };
                let after = Desired::new(spec, State::Active);
                self.change(IDS[id], Some(after)).await;
            }
            Step::Remove { id } => self.change(IDS[id], None).await,
            Step::Drain { id } => {
                if let Some(record) = self.wanted.get(IDS[id]) {
                    let spec = record.desired.spec.clone();
                    let drained = draining(0, spec, DEADLINE_MS).desired;
                    self.change(IDS[id], Some(drained)).await;
                }
            }
            Step::Arrive { which } if !self.sent.is_empty() => self.arrive(which % self.sent.len()).await?,
            Step::Arrive { .. } => {}
        }
        Ok(())
    }

    async fn rule(&mut self, name: &str, policy: &str) {
        let policy: Policy = serde_json::from_str(policy).unwrap();
        let policy = Some(policy).filter(|policy| !policy.is_empty());
        match self.store.desire_resource(&host(name), policy.as_ref(), None).await.unwrap() {
            ResourceOutcome::Accepted { revision, .. } => {
                assert_ne!(self.ruled.get(name), policy.as_ref(), "only a change is one");
                self.sent.push((name.to_owned(), Sent::Ruled(revision, policy.clone().map(Box::new))));
            }
            ResourceOutcome::Same { .. } => assert_eq!(self.ruled.get(name), policy.as_ref()),
            other => panic!("no other client makes changes: {other:?}"),
        }
        match policy {
            Some(policy) => drop(self.ruled.insert(name.to_owned(), policy)),
            None => drop(self.ruled.remove(name)),
        }
    }

    /// Lets a projection arrive and checks what it did to the serial and to ownership.
    async fn arrive(&mut self, which: usize) -> Checked {
        let (id, sent) = self.sent[which].clone();
        let (before, serial) = (self.visible().await, self.rig.serial().await);
        let apply = async |projection| {
            let id = instance_id(&id);
            format!("{:?}", self.store.apply(&id, projection, Some(&self.mark), None).await.unwrap())
        };
        let applied = match &sent {
            Sent::Wanted(record) => apply(Projection::Wanted(record)).await,
            Sent::Removed(revision) => apply(Projection::Removed(*revision)).await,
            Sent::Ruled(revision, policy) => {
                let ruling = self
                    .store
                    .project_resource(&host(&id), *revision, policy.as_deref(), Some(&self.mark))
                    .await;
                format!("{:?}", ruling.unwrap())
            }
        };
        let (after, raised) = (self.visible().await, self.rig.serial().await - serial);
        prop_assert_eq!(raised, u64::from(before != after), "{} {:?}: {}", id, sent, applied);
        self.check_owners().await
    }

    /// The data that routers can see, and the IDs.
    async fn visible(&self) -> BTreeMap<String, TableView> {
        let names: Vec<String> = HOSTS.iter().map(ToString::to_string).collect();
        let hosts = self.store.table_hosts(&names).await.unwrap();
        let view = |host: signalbox_route_table::TableHost| {
            (host.addresses, host.instance_ids, host.log_key, host.policy)
        };
        names.into_iter().zip(hosts.into_iter().map(view)).collect()
    }

    /// An address is listed under a host only if its owner serves that host.
    async fn check_owners(&self) -> Checked {
        for (name, (addresses, ..)) in self.visible().await {
            for (address, owner) in self.store.owners(&addresses).await.unwrap() {
                let hostnames: String =
                    self.rig.routes("HGET", &[&format!("instance:{}", owner.id), "hostnames"]).await;
                prop_assert!(
                    hostnames.split(' ').any(|host| host == name),
                    "{} {} {}",
                    name,
                    address,
                    owner.id
                );
            }
            let owned = self.store.owners(&addresses).await.unwrap().len();
            prop_assert_eq!(owned, addresses.len(), "an address without owner under {}", name);
        }
        Ok(())
    }

    /// The table that follows from the desired state alone.
    async fn check_end(&self) -> Checked {
        let visible = self.visible().await;
        for name in HOSTS {
            let serving = || {
                self.wanted.iter().filter(|(_, record)| {
                    record.desired.spec.hostnames.iter().any(|host| host.as_str() == name)
                })
            };
            let (addresses, ids, log_key, policy) = &visible[name];
            let expected: BTreeSet<String> =
                serving().map(|(_, record)| record.desired.spec.address.to_string()).collect();
            prop_assert_eq!(&expected.into_iter().collect::<Vec<_>>(), addresses, "{}", name);
            prop_assert_eq!(&serving().map(|(id, _)| id.clone()).collect::<Vec<_>>(), ids, "{}", name);
            let rank = |record: &&Record| (record.desired.state == State::Active, record.revision);
            if let Some(latest) = serving().map(|(_, record)| record).max_by_key(rank) {
                let version_type = latest.desired.spec.version_type_id.as_str();
                prop_assert_eq!(log_key.as_deref(), Some(version_type), "{}", name);
            }
            let policy: Option<serde_json::Value> =
                policy.as_deref().map(|policy| serde_json::from_str(policy).unwrap());
            let expected = expected_policy(serving().map(|(_, record)| record), self.ruled.get(name));
            prop_assert_eq!(policy, expected, "{}", name);
        }
        Ok(())
    }
}

type TableView = (Vec<String>, Vec<String>, Option<String>, Option<String>);

fn expected_policy<'a>(
    serving: impl Iterator<Item = &'a Record>,
    ruled: Option<&Policy>,
) -> Option<serde_json::Value> {
    let mut weights = BTreeMap::new();
    let (mut log_keys, mut draining, mut kinds) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    for record in serving {
        let spec = &record.desired.spec;
        let (address, version_type) = (spec.address.to_string(), spec.version_type_id.as_str().to_owned());
        if record.desired.state == State::Draining {
            draining.insert(address.clone());
        }
        kinds.insert(version_type.clone());
        weights.insert(address.clone(), spec.weight);
        log_keys.insert(address, version_type);
    }
    let mut policy = serde_json::Map::from_iter([("v".to_owned(), 1.into())]);
    let by_version = ruled.is_some_and(|policy| policy.shares.is_some()) && !kinds.is_empty();
    if kinds.len() > 1 || by_version {
        policy.insert("log_keys".to_owned(), serde_json::to_value(log_keys).unwrap());
    }
    if !draining.is_empty() {
        policy.insert("draining".to_owned(), serde_json::to_value(draining).unwrap());
    }
    if weights.values().collect::<BTreeSet<_>>().len() > 1 {
        policy.insert("weights".to_owned(), serde_json::to_value(weights).unwrap());
    }
    if let Some(serde_json::Value::Object(rules)) = ruled.map(|ruled| serde_json::to_value(ruled).unwrap()) {
        policy.extend(rules);
    }
    (policy.len() > 1).then_some(serde_json::Value::Object(policy))
}

async fn play(rig: &Rig, steps: Vec<Step>, order: Vec<u32>) -> Checked {
    let () = rig.routes("FLUSHALL", &[]).await;
    let () = rig.fabric("FLUSHALL", &[]).await;
    rig.reconcile().await;
    let (store, mark) = (rig.another_store(), rig.mark().await);
    let mut run = Run { rig, store, mark, wanted: BTreeMap::new(), ruled: BTreeMap::new(), sent: Vec::new() };
    for step in steps {
        run.take(step).await?;
    }
    // The remaining projections arrive now, in any order.
    let mut last: Vec<usize> = (0..run.sent.len()).collect();
    last.sort_by_key(|which| order.get(*which).copied().unwrap_or(0));
    for which in last {
        run.arrive(which).await?;
    }
    run.check_end().await
}

#[test]
fn projections_in_any_order_end_in_the_desired_table() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let rig = runtime.block_on(Rig::bare());
    let persistence = FileFailurePersistence::SourceParallel("proptest-regressions");
    let config = Config {
        cases: 60,
        source_file: Some(file!()),
        failure_persistence: Some(Box::new(persistence)),
        ..Config::default()
    };
    let plans = (prop::collection::vec(step(), 1..30), prop::collection::vec(any::<u32>(), 40));
    TestRunner::new(config).run(&plans, |(steps, order)| runtime.block_on(play(&rig, steps, order))).unwrap();
}
