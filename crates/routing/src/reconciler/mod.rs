//! Keeps the route table consistent with the desired state in the fabric, whatever was interrupted or lost.
//!
//! Runs periodically and on request, on the pacemaker that holds the lease. Each pass compares epoch and serial of the
//! table with those in the fabric, repairs what [`judge`] finds, then projects outstanding changes. Every step can be
//! repeated; an interrupted pass is run again. If both were in step in the previous pass and have not changed since, and
//! nothing is outstanding, a pass costs one command to each server.

mod judge;
mod merge;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use rand::RngExt as _;
use tokio::{sync::Notify, time};
use tokio_util::sync::CancellationToken;

use super::{
    Error, Registry, RouterReport, Store, liveness,
    routers::KNOWN_MS,
    store::{Fence, Lineage, Pulse, TableMark, TableState},
};
use crate::metrics::Metrics;
use judge::{Head, Situation, judge};
use signalbox_access::Tokens;
use signalbox_api::routes::Liveness;
use signalbox_lease::Lease;
use signalbox_route_table::InstanceId;

/// How many tokens a lineage keeps. A router that slept through more re-seedings than that raises an alarm.
const MAX_LINEAGE: usize = 16;
/// How many instances are read at a time when all are gone through.
const CHUNK: usize = 500;
/// How many projections are on their way at a time.
const PARALLEL: usize = 32;
/// How much of what is outstanding one pass takes on.
const BATCH: usize = 1000;
/// The highest serial of a report that is accepted. The pacemaker continues above what a router reports, and the edge reads up
/// to 15 digits: with one report of more, no router would accept the table again.
const MAX_SERIAL: u64 = 100_000_000_000_000;
/// The sidecars' copy of the tokens is compared once in this many passes. Changes are copied immediately anyway.
const TOKEN_PASSES: u64 = 10;

/// The service; [`Self::run`] it.
#[derive(Debug)]
pub struct Reconciler {
    registry: Registry,
    tokens: Tokens,
    lease: Lease,
    nudge: Arc<Notify>,
    interval: Duration,
    metrics: Metrics,
    /// Go through every instance in the next pass.
    thorough: bool,
    /// Routers that were reported as silent.
    silent: BTreeSet<String>,
    /// Keys of an unexpected type that were reported.
    blocked: BTreeSet<String>,
    passes: u64,
    /// Both sides as they were last found in step.
    in_step: Option<(TableState, Head)>,
}

/// Both sides at one moment.
#[derive(Debug)]
struct Heads {
    fabric: TableState,
    table: Head,
    /// The highest serial that a router has acknowledged in our epoch.
    witnessed: u64,
    /// Something may not be in the table or in the membership sets yet.
    is_outstanding: bool,
}

/// The result of a round of projections.
#[derive(Debug)]
struct Left {
    /// More is outstanding, and another round can project it.
    more: bool,
    /// Keys of an unexpected type that block a change.
    blocked: BTreeSet<String>,
}

impl Reconciler {
    /// `nudge` starts a pass immediately; `interval` is the longest time between two passes.
    pub fn new(
        registry: Registry,
        tokens: Tokens,
        lease: Lease,
        nudge: Arc<Notify>,
        interval: Duration,
        metrics: Metrics,
    ) -> Self {
        Self {
            registry,
            tokens,
            lease,
            nudge,
            interval,
            metrics,
            thorough: true,
            silent: BTreeSet::new(),
            blocked: BTreeSet::new(),
            passes: 0,
            in_step: None,
        }
    }

    /// Runs until `shutdown`, then releases the lease.
    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            match self.lease.hold().await {
                Ok(Some(epoch)) => match self.pass(epoch).await {
                    Ok(()) => self.metrics.reconciled(true),
                    Err(error) => {
                        self.metrics.reconciled(false);
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "reconciliation failed; it will be retried"
                        );
                    }
                },
                Ok(None) => {
                    // After a takeover, the first pass checks everything that the previous holder may have left.
                    self.thorough = true;
                    self.observe().await;
                }
                Err(error) => {
                    self.thorough = true;
                    tracing::debug!(%error, "fabric unavailable");
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = self.nudge.notified() => {}
                () = time::sleep(self.interval) => {}
            }
        }
        self.lease.release().await;
    }

    /// Learns the highest revision, so that this process, too, notices a fabric that lost changes.
    async fn observe(&mut self) {
        if let Ok(Some(Heads { fabric, table, witnessed, .. })) = self.heads().await
            && judge(&fabric, &table, witnessed) == Situation::InStep
        {
            self.store().saw_revision(table.revision);
            self.in_step = Some((fabric, table));
        }
    }

    fn store(&self) -> &Store {
        self.registry.store()
    }

    /// One pass under the lease's fencing `epoch`.
    pub async fn pass(&mut self, epoch: u64) -> Result<(), Error> {
        let name = self.lease.name();
        let fence = Fence { lease: &name, epoch };
        let Some(heads) = self.heads().await? else { return Ok(()) };
        let Heads { fabric, table, witnessed, mut is_outstanding } = heads;
        let situation = judge(&fabric, &table, witnessed);
        // A repair may leave more to do than was outstanding before it.
        is_outstanding |= situation != Situation::InStep || self.thorough;
        self.in_step = (situation == Situation::InStep).then(|| (fabric.clone(), table.clone()));
        self.metrics.table_foreign(situation == Situation::Foreign);
        match situation {
            Situation::InStep => {
                self.store().saw_revision(table.revision);
                if self.thorough {
                    self.merge(&fabric, fabric.mark().as_ref(), fence).await?;
                }
            }
            Situation::SeedingEnded => {
                self.note(&fabric, TableState { seeding: false, serial: table.serial, ..fabric.clone() })
                    .await?;
            }
            Situation::FabricEmpty => self.begin(&fabric, &table, fence).await?,
            Situation::FabricBehind => self.catch_up(&fabric, &table, fence).await?,
            Situation::TableBehind => self.seed(&fabric, &table, witnessed, fence).await?,
            Situation::Foreign => {
                tracing::error!(
                    "the routes primary holds a table of another installation; nothing is written to it. If it is to \
                     be taken over, delete its key `epoch`"
                );
                return Err(Error::Resyncing { recorded: true });
            }
        }
        // A second round finds the removals that a fabric that was behind could not list yet.
        self.thorough = situation == Situation::FabricBehind;
        if is_outstanding {
            let mark = match situation {
                Situation::InStep => fabric.mark(),
                _ => self.store().table_state().await?.mark(),
            };
            self.complete_outstanding(mark.as_ref(), fence).await?;
        } else {
            self.metrics.outstanding(0);
            self.blocked.clear();
        }
        if self.passes.is_multiple_of(TOKEN_PASSES) {
            self.copy_tokens().await;
        }
        self.passes += 1;
        Ok(())
    }

    /// Projects and reports what is outstanding.
    async fn complete_outstanding(
        &mut self,
        mark: Option<&TableMark>,
        fence: Fence<'_>,
    ) -> Result<(), Error> {
        let left = self.project_outstanding(mark, fence).await?;
        for key in left.blocked.difference(&self.blocked) {
            tracing::warn!(key, "change blocked by a key of an unexpected type; delete the key");
        }
        self.blocked = left.blocked;
        if left.more {
            self.nudge.notify_one();
        }
        self.report_outstanding().await;
        Ok(())
    }

    /// Both heads, read so that changes of this moment look like neither side's loss: the fabric's revision is read
    /// after the table's, its serial before. Nothing when the lineage changed between.
    async fn heads(&mut self) -> Result<Option<Heads>, Error> {
        let Pulse { state: before, is_outstanding } = self.store().pulse().await?;
        let reports = self.reports(&before).await;
        let (lineage, serial, revision) = self.store().table_head().await?;
        let witnessed = witnessed(&reports);
        let table = Head { lineage, serial, revision };
        // Neither side has changed since they were in step, so there is no change in between that a second reading could show.
        let is_same = self.in_step.as_ref().is_some_and(|(fabric, head)| *fabric == before && *head == table);
        let after = if is_same { before.clone() } else { self.store().table_state().await? };
        let unchanged = before.lineage == after.lineage && before.seeding == after.seeding;
        let fabric = TableState { serial: before.serial, ..after };
        Ok(unchanged.then_some(Heads { fabric, table, witnessed, is_outstanding }))
    }

    /// The reports of routers that follow our epoch. None without the stats Redis.
    async fn reports(&mut self, fabric: &TableState) -> Vec<RouterReport> {
        let Ok(mut routers) = self.store().routers(KNOWN_MS).await else { return Vec::new() };
        self.watch_over(&routers);
        let Some(mark) = fabric.mark() else { return Vec::new() };
        routers.retain(|router| router.epoch.split(' ').next() == Some(&mark.epoch));
        routers
    }

    /// Logs which routers became silent, so that changes no longer wait for them, and which report again.
    fn watch_over(&mut self, routers: &[RouterReport]) {
        for router in routers {
            let excluded = liveness(router.age_ms) == Liveness::Excluded;
            if excluded && self.silent.insert(router.node.clone()) {
                let age_ms = router.age_ms;
                tracing::warn!(router = router.node, age_ms, "router silent; changes do not wait for it");
            } else if !excluded && self.silent.remove(&router.node) {
                tracing::info!(router = router.node, "router reports again");
            }
        }
        // After a minute it is forgotten: it was removed from service, or the log shows it.
        self.silent.retain(|node| routers.iter().any(|router| router.node == *node));
        self.metrics.silent_routers(self.silent.len());
    }

    /// A first start, or a fabric that was replaced: takes over what the table has, and its lineage or a first one.
    async fn begin(&self, fabric: &TableState, table: &Head, fence: Fence<'_>) -> Result<(), Error> {
        self.merge(fabric, None, fence).await?;
        let fresh = table.lineage.is_empty();
        let lineage = if fresh { token() } else { table.lineage.clone() };
        tracing::info!(fresh, serial = table.serial, "route table copied to the fabric");
        let new = TableState { lineage, serial: table.serial, seeding: fresh, revision: table.revision };
        self.note(fabric, new.clone()).await?;
        if fresh {
            self.publish(&new, &table.lineage, table.serial, Lineage::Begun, "", fence).await
        } else {
            Ok(())
        }
    }

    /// The fabric lost changes that the table has seen: takes them over.
    async fn catch_up(&self, fabric: &TableState, table: &Head, fence: Fence<'_>) -> Result<(), Error> {
        self.store().saw_revision(table.revision);
        tracing::warn!(
            fabric = fabric.revision,
            table = table.revision,
            "fabric lost changes; copying them from the route table"
        );
        self.merge(fabric, None, fence).await?;
        let Head { lineage, serial, revision } = table.clone();
        self.note(fabric, TableState { lineage, serial, seeding: false, revision }).await
    }

    /// The table is gone or older than it was: rebuilds it under a new token, which routers see last.
    async fn seed(
        &self,
        fabric: &TableState,
        table: &Head,
        witnessed: u64,
        fence: Fence<'_>,
    ) -> Result<(), Error> {
        let floor = fabric.serial.max(witnessed);
        let lineage = if fabric.seeding {
            // An earlier attempt stopped before routers saw its token, so the token can be used.
            fabric.lineage.clone()
        } else {
            let mut tokens = vec![token()];
            tokens.extend(fabric.lineage.split(' ').take(MAX_LINEAGE - 1).map(str::to_owned));
            tokens.join(" ")
        };
        tracing::warn!(serial = table.serial, floor, "route table lost or outdated; seeding it again");
        // From here on requests wait, because the table that they expect does not exist yet.
        let new = TableState { lineage, serial: floor, seeding: true, revision: fabric.revision };
        self.note(fabric, new.clone()).await?;
        let mark = new.lineage.split(' ').next().unwrap_or_default().to_owned();
        self.store().begin_seeding(&table.lineage, &mark, fence).await?;
        self.merge(fabric, None, fence).await?;
        while self.project_outstanding(None, fence).await?.more {}
        self.seed_hosts().await?;
        // A table restored from elsewhere may know revisions that the fabric lost with it.
        let revision = fabric.revision.max(table.revision);
        let new = TableState { revision, ..new };
        self.publish(&new, "", floor, Lineage::Reseeded, &mark, fence).await?;
        self.metrics.reseeded();
        Ok(())
    }

    async fn publish(
        &self,
        new: &TableState,
        expected: &str,
        floor: u64,
        reason: Lineage,
        mark: &str,
        fence: Fence<'_>,
    ) -> Result<(), Error> {
        let serial = self.store().publish_lineage(expected, &new.lineage, floor, reason, mark, fence).await?;
        self.note(new, TableState { serial, seeding: false, ..new.clone() }).await
    }

    async fn note(&self, before: &TableState, after: TableState) -> Result<(), Error> {
        match self.store().set_lineage(&before.lineage, &after).await? {
            true => Ok(()),
            false => Err(Error::Resyncing { recorded: true }),
        }
    }

    /// Log keys of hosts that have no instance at the moment, so that they stay known.
    async fn seed_hosts(&self) -> Result<(), Error> {
        let mut after: Option<String> = None;
        loop {
            let names = self.store().hosts_after(after.as_deref(), CHUNK).await?;
            let Some(last) = names.last() else { return Ok(()) };
            after = Some(last.clone());
            let version_types = self.store().host_version_types(&names).await?;
            let known = names.into_iter().zip(version_types);
            let known = known.filter_map(|(name, version_type)| Some((name, version_type?)));
            self.store().seed_log_keys(&known.collect::<Vec<_>>()).await?;
        }
    }

    /// Projects what interrupted changes left.
    async fn project_outstanding(&self, mark: Option<&TableMark>, fence: Fence<'_>) -> Result<Left, Error> {
        let outstanding = self.store().outstanding(BATCH).await?;
        self.metrics.outstanding(outstanding.len());
        let count = outstanding.len();
        let results: Vec<Result<(), Error>> =
            stream::iter(outstanding)
                .map(|(member, revision)| async move {
                    self.registry.complete(&member, revision, mark, fence).await
                })
                .buffer_unordered(PARALLEL)
                .collect()
                .await;
        let mut blocked = BTreeSet::new();
        for result in results {
            match result {
                // One that cannot be projected must not keep the others back.
                Err(Error::Blocked { key, .. }) => {
                    blocked.insert(key);
                }
                other => other?,
            }
        }
        Ok(Left { more: count == BATCH && blocked.len() < BATCH / 2, blocked })
    }

    /// Fills membership sets, which can wait for the stats Redis.
    async fn report_outstanding(&self) {
        let reported = async {
            let unreported = self.store().unreported(BATCH).await?;
            let ids: Vec<InstanceId> =
                unreported.iter().filter_map(|(id, _)| InstanceId::parse(id).ok()).collect();
            let stored = self.store().stored_many(&ids).await?;
            let specs: Vec<_> = stored.iter().map(|stored| &stored.record.desired.spec).collect();
            self.store().add_memberships(&specs).await?;
            for (id, revision) in unreported {
                self.store().reported(&InstanceId::parse(&id)?, revision).await?;
            }
            Ok::<(), Error>(())
        };
        if let Err(error) = reported.await {
            tracing::debug!(%error, "membership sets not updated; will be retried");
        }
    }

    async fn copy_tokens(&self) {
        if let Err(error) = self.tokens.reconcile().await {
            tracing::debug!(%error, "tokens not copied to the stats Redis; will be retried");
        }
    }
}

/// The highest serial that a router has acknowledged, of those that can be true.
fn witnessed(reports: &[RouterReport]) -> u64 {
    let (possible, impossible): (Vec<_>, Vec<_>) =
        reports.iter().partition(|router| router.serial < MAX_SERIAL);
    for router in impossible {
        let (router, serial) = (&router.node, router.serial);
        tracing::warn!(router, serial, "router reports a serial that no table reaches; ignored");
    }
    possible.iter().map(|router| router.serial).max().unwrap_or(0)
}

/// A lineage token: 64 random bits suffice to distinguish the tables of one installation.
fn token() -> String {
    format!("{:016x}", rand::rng().random::<u64>())
}
