//! Instances: register, remove, drain, keep alive.

use std::time::Duration;

use super::{Attempts, Limits, Registry, check_names, check_record};
use crate::{
    ChangeKind, Error, Promotion, RouteChange,
    store::{Desire, DesireOutcome, Projection, Registrant, Sight, Stored, TableMark, Wanted},
};
use signalbox_access::Caller;
use signalbox_api::routes::Heartbeat;
use signalbox_route_table::{Desired, Hostname, InstanceId, Label, Record, Spec, State};

/// Maximum number of instances of one host: each change of one examines all of them inside Redis.
const MAX_INSTANCES_PER_HOST: usize = 1000;
const LIMIT_PATIENCE: Duration = Duration::from_millis(250);
/// How many instances are read at a time when all are gone through.
const CHUNK: usize = 500;

impl Registry {
    /// Registers an instance, or alters it. Repeating it changes nothing, but completes what an earlier try left and
    /// renews the lease.
    pub async fn put(&self, caller: &Caller, id: &InstanceId, spec: Spec) -> Result<RouteChange, Error> {
        self.put_as(caller, id, spec, false, None).await
    }

    /// Like [`Self::put`]. An instance that is new begins on standby if `standby` is set, or if a promotion of one of its hosts
    /// replaced its version type. With `expected`, the instance must have this revision; 0 means that it must not exist.
    pub async fn put_as(
        &self,
        caller: &Caller,
        id: &InstanceId,
        spec: Spec,
        standby: bool,
        expected: Option<u64>,
    ) -> Result<RouteChange, Error> {
        check_spec(caller, id, &spec)?;
        let Limits { instances: max_instances, names: max_names } =
            if caller.is_root() { Limits::default() } else { self.limits_per_token };
        let registrant = Registrant { token: caller.bus_client().into_owned(), max_instances, max_names };
        let mut attempts = Attempts::new();
        let mut expired = false;
        loop {
            let sight = self.store.sight(id, &spec.address).await?;
            check_sight(caller, &sight)?;
            let revision = sight.current.as_ref().map_or(0, |current| current.record.revision);
            if expected.is_some_and(|expected| expected != revision) {
                return Err(Error::InstanceChanged { revision });
            }
            let Some(table) = sight.table.clone() else {
                attempts.await_reconciliation(&self.nudge).await?;
                continue;
            };
            let before = sight.current.as_ref().map(|current| &current.record.desired);
            let promotions = match before.is_some_and(|before| before.is_known(&spec)) {
                true => None,
                false => Some(self.store.promotions(&spec.hostnames).await?),
            };
            let superseded = promotions.iter().flatten().flatten();
            let superseded = { superseded }.any(|one| one.value.supersedes(&spec.version_type_id));
            let first = if standby || superseded { State::Standby } else { State::Active };
            let after = Desired::registered(spec.clone(), first, before);
            if let (Some(current), false) = (&sight.current, expired)
                && sight.owner.is_none()
                && current.record.desired == after
            {
                let confirmed =
                    self.confirm(current, sight.outstanding.is_some(), table, &mut attempts).await?;
                let Some(table) = confirmed else {
                    // Wanted again: it needs a revision above its tombstone's.
                    expired = true;
                    continue;
                };
                let record = Some(current.record.clone());
                return Ok(self.changed(ChangeKind::Unchanged, id, table, [record.clone(), record], None));
            }
            self.check_instance_limit(&spec, before).await?;
            let (before, owner) = (sight.current.as_ref(), sight.owner.as_ref());
            let revision = |one: &Option<Wanted<Promotion>>| one.as_ref().map_or(0, |one| one.revision);
            let promotions = promotions.map(|promotions| promotions.iter().map(revision).collect());
            let registrant = Some(&registrant);
            let desire = Desire { id, before, after: Some(&after), owner, registrant, promotions };
            let outcome = self.store.desire(desire).await?;
            let Some((revision, table)) = self.accepted(outcome, &mut attempts).await? else { continue };
            let record = Record { revision, desired: after };
            let table = self.project_new(id, Projection::Wanted(&record), table, &mut attempts).await?;
            self.report(id.clone(), record.clone());
            let kind = if sight.current.is_some() { ChangeKind::Altered } else { ChangeKind::Registered };
            let displaced = sight.owner.map(|owner| owner.id);
            let before = sight.current.map(|current| current.record);
            return Ok(self.changed(kind, id, table, [before, Some(record)], displaced));
        }
    }

    /// Checks whether [`Self::put`] would accept an instance now. Changes nothing.
    pub async fn check_put(&self, caller: &Caller, id: &InstanceId, spec: &Spec) -> Result<(), Error> {
        check_spec(caller, id, spec)?;
        let sight = self.store.sight(id, &spec.address).await?;
        check_sight(caller, &sight)?;
        let before = sight.current.as_ref().map(|current| &current.record.desired);
        self.check_instance_limit(spec, before).await
    }

    /// Removes an instance. An unknown instance is not an error; an interrupted removal is completed.
    pub async fn remove(&self, caller: &Caller, id: &InstanceId) -> Result<RouteChange, Error> {
        let mut attempts = Attempts::new();
        loop {
            let Some(current) = self.store.stored(id).await? else {
                let table = self.complete_removal(id, &mut attempts).await?;
                return Ok(self.changed(ChangeKind::Unchanged, id, table, [None, None], None));
            };
            check_record(caller, &current.record)?;
            let outcome = self.desire_over(&current, None).await?;
            let Some((revision, table)) = self.accepted(outcome, &mut attempts).await? else { continue };
            let table = self.project_new(id, Projection::Removed(revision), table, &mut attempts).await?;
            return Ok(self.changed(ChangeKind::Removed, id, table, [Some(current.record), None], None));
        }
    }

    async fn complete_removal(&self, id: &InstanceId, attempts: &mut Attempts) -> Result<TableMark, Error> {
        let state = self.store.table_state().await?;
        let outstanding = self.store.outstanding_of(id.as_str()).await?;
        match (outstanding, state.mark()) {
            (Some(revision), Some(table)) => {
                attempts.recorded = true;
                self.project_new(id, Projection::Removed(revision), table, attempts).await
            }
            (_, mark) => Ok(mark.unwrap_or(TableMark { epoch: String::new(), serial: state.serial })),
        }
    }

    /// Starts a drain: no new requests, and removal at the deadline. A repetition moves the deadline.
    pub async fn drain(
        &self,
        caller: &Caller,
        id: &InstanceId,
        deadline_seconds: u32,
    ) -> Result<RouteChange, Error> {
        let now_ms = self.store.table_now_ms().await?;
        let deadline_ms = now_ms + u64::from(deadline_seconds) * 1000;
        let drain = |before: &Desired| Desired {
            spec: before.spec.clone(),
            state: State::Draining,
            drain_deadline_ms: Some(deadline_ms),
            standby_until_ms: None,
        };
        self.alter(caller, id, ChangeKind::Draining, drain).await
    }

    /// The active instances of a version type that serve a host, all of which the caller may drain. Changes nothing.
    pub async fn drainable(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        version_type: &Label,
    ) -> Result<Vec<InstanceId>, Error> {
        let ids = self.store.ids_of_host(hostname).await?;
        let ids = ids.iter().map(|id| InstanceId::parse(id)).collect::<Result<Vec<_>, _>>()?;
        let mut stored = self.store.stored_many(&ids).await?;
        stored.retain(|one| {
            let desired = &one.record.desired;
            // An instance that drains already keeps its deadline.
            desired.spec.version_type_id == *version_type && desired.state == State::Active
        });
        stored.iter().try_for_each(|one| check_record(caller, &one.record))?;
        Ok(stored.into_iter().map(|one| one.id).collect())
    }

    /// Ends a drain, or the time on standby. If a promotion replaced the version type, other instances of it may serve as well
    /// when they are registered again.
    pub async fn resume(&self, caller: &Caller, id: &InstanceId) -> Result<RouteChange, Error> {
        let stored = self.instance(caller, id).await?;
        let Spec { hostnames, version_type_id, .. } = &stored.record.desired.spec;
        for hostname in hostnames {
            self.admit(caller, hostname, std::slice::from_ref(version_type_id)).await?;
        }
        let resume = |before: &Desired| Desired::new(before.spec.clone(), State::Active);
        self.alter(caller, id, ChangeKind::Resumed, resume).await
    }

    /// Drains an instance that a promotion replaces. After the drain it is on standby until `standby_until_ms`; then it is
    /// removed. An instance that no longer receives requests keeps its state.
    pub(super) async fn replace(
        &self,
        caller: &Caller,
        id: &InstanceId,
        (drain_deadline_ms, standby_until_ms): (u64, u64),
    ) -> Result<RouteChange, Error> {
        let replace = |before: &Desired| match before.state {
            State::Active => Desired {
                spec: before.spec.clone(),
                state: State::Draining,
                drain_deadline_ms: Some(drain_deadline_ms),
                standby_until_ms: Some(standby_until_ms),
            },
            State::Draining | State::Standby => before.clone(),
        };
        self.alter(caller, id, ChangeKind::Draining, replace).await
    }

    /// Puts an instance on standby, if its drain has ended. Returns `None` if `current` has changed in the meantime.
    pub(crate) async fn stand_by(
        &self,
        current: &Stored,
        after: &Desired,
    ) -> Result<Option<RouteChange>, Error> {
        let (revision, table) = match self.desire_over(current, Some(after)).await? {
            DesireOutcome::Changed => return Ok(None),
            DesireOutcome::Behind => return Err(Error::Resyncing { recorded: false }),
            DesireOutcome::Accepted { revision, table } => (revision, table),
        };
        let record = Record { revision, desired: after.clone() };
        let mut attempts = Attempts::new();
        attempts.recorded = true;
        let id = &current.id;
        let table = self.project_new(id, Projection::Wanted(&record), table, &mut attempts).await?;
        let records = [Some(current.record.clone()), Some(record)];
        Ok(Some(self.changed(ChangeKind::DrainEnded, id, table, records, None)))
    }

    /// Drains every instance of a node, or without a deadline resumes those that drain. Interrupted, it can be repeated. `done` gets
    /// the changes, also those before an error. Returns the epoch and the serial of the table that has them.
    pub async fn drain_node(
        &self,
        caller: &Caller,
        node: &Label,
        deadline_seconds: Option<u32>,
        done: &mut Vec<RouteChange>,
    ) -> Result<(String, u64), Error> {
        let table = self.store.table_state().await?;
        let mut reached = (table.mark().map_or_else(String::new, |mark| mark.epoch), table.serial);
        let mut after: Option<InstanceId> = None;
        loop {
            let ids = self.store.ids_after(after.as_ref().map(InstanceId::as_str), CHUNK).await?;
            let Some(last) = ids.last() else { return Ok(reached) };
            after = Some(last.clone());
            for stored in self.store.stored_many(&ids).await? {
                let desired = &stored.record.desired;
                // Those that a promotion replaced are resumed by undoing it.
                let drains = desired.state == State::Draining && desired.standby_until_ms.is_none();
                let concerned = deadline_seconds.is_some() || drains;
                if desired.spec.node_id.as_ref() != Some(node) || !concerned {
                    continue;
                }
                let changed = match deadline_seconds {
                    Some(seconds) => self.drain(caller, &stored.id, seconds).await,
                    None => self.resume(caller, &stored.id).await,
                };
                match changed {
                    Ok(change) => {
                        reached = (change.epoch.clone(), change.serial);
                        done.push(change);
                    }
                    // Removed in the meantime: that is drained enough.
                    Err(Error::NoInstance(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Renews a lease. The table may have lost the instance while the fabric has it: then it is projected again.
    pub async fn heartbeat(&self, caller: &Caller, id: &InstanceId) -> Result<Heartbeat, Error> {
        let gone = || Error::NoInstance(id.clone());
        if !caller.is_unconfined() {
            self.instance(caller, id).await?;
        }
        if let Some(heartbeat) = self.store.heartbeat(id).await? {
            return Ok(heartbeat);
        }
        let current = self.store.stored(id).await?.ok_or_else(gone)?;
        let mut attempts = Attempts::new();
        attempts.recorded = true;
        let Some(table) = self.store.table_state().await?.mark() else {
            return Err(Error::Resyncing { recorded: true });
        };
        self.project(id, Projection::Wanted(&current.record), table, &mut attempts)
            .await?
            .ok_or_else(gone)?;
        self.store.heartbeat(id).await?.ok_or_else(gone)
    }

    /// Counts a fault that a client saw at an instance; the number so far.
    pub async fn fault(
        &self,
        caller: &Caller,
        id: &InstanceId,
        message: &str,
        fault_id: Option<&str>,
    ) -> Result<u64, Error> {
        self.instance(caller, id).await?;
        let faults = self.store.fault(id, message, fault_id).await?;
        faults.ok_or(Error::Resyncing { recorded: false })
    }

    /// Updates an existing instance.
    async fn alter(
        &self,
        caller: &Caller,
        id: &InstanceId,
        kind: ChangeKind,
        change: impl Fn(&Desired) -> Desired,
    ) -> Result<RouteChange, Error> {
        let mut attempts = Attempts::new();
        loop {
            let current = self.instance(caller, id).await?;
            let after = change(&current.record.desired);
            if after == current.record.desired {
                let Some(table) = self.store.table_state().await?.mark() else {
                    attempts.await_reconciliation(&self.nudge).await?;
                    continue;
                };
                let confirmed = self.confirm(&current, true, table, &mut attempts).await?;
                let table = confirmed.ok_or_else(|| Error::NoInstance(id.clone()))?;
                let record = Some(current.record);
                return Ok(self.changed(ChangeKind::Unchanged, id, table, [record.clone(), record], None));
            }
            let outcome = self.desire_over(&current, Some(&after)).await?;
            let Some((revision, table)) = self.accepted(outcome, &mut attempts).await? else { continue };
            let record = Record { revision, desired: after };
            let table = self.project_new(id, Projection::Wanted(&record), table, &mut attempts).await?;
            return Ok(self.changed(kind, id, table, [Some(current.record), Some(record)], None));
        }
    }

    /// Removes the instance that `current` describes, if it is unchanged; `None` when it has changed.
    pub(crate) async fn remove_exactly(
        &self,
        current: &Stored,
        kind: ChangeKind,
    ) -> Result<Option<RouteChange>, Error> {
        let (revision, table) = match self.desire_over(current, None).await? {
            DesireOutcome::Changed => return Ok(None),
            DesireOutcome::Behind => return Err(Error::Resyncing { recorded: false }),
            DesireOutcome::Accepted { revision, table } => (revision, table),
        };
        let mut attempts = Attempts::new();
        attempts.recorded = true;
        let projection = Projection::Removed(revision);
        let table = self.project_new(&current.id, projection, table, &mut attempts).await?;
        Ok(Some(self.changed(kind, &current.id, table, [Some(current.record.clone()), None], None)))
    }

    /// Makes sure that the table has an unchanged instance, and renews its lease. Returns the same as [`Self::project`].
    async fn confirm(
        &self,
        current: &Stored,
        outstanding: bool,
        table: TableMark,
        attempts: &mut Attempts,
    ) -> Result<Option<TableMark>, Error> {
        attempts.recorded = true;
        let projection = Projection::Wanted(&current.record);
        if outstanding || self.store.heartbeat(&current.id).await?.is_none() {
            return self.project(&current.id, projection, table, attempts).await;
        }
        let (lineage, serial, _) = self.store.table_head().await?;
        if lineage.split(' ').next() != Some(&table.epoch) {
            attempts.await_reconciliation(&self.nudge).await?;
            return self.project(&current.id, projection, table, attempts).await;
        }
        Ok(Some(TableMark { serial, ..table }))
    }

    /// Projects a revision of this moment, which cannot have expired before it was in the table.
    async fn project_new(
        &self,
        id: &InstanceId,
        projection: Projection<'_>,
        table: TableMark,
        attempts: &mut Attempts,
    ) -> Result<TableMark, Error> {
        self.project(id, projection, table, attempts).await?.ok_or(Error::Contended)
    }

    async fn check_instance_limit(&self, spec: &Spec, before: Option<&Desired>) -> Result<(), Error> {
        let new = |name: &&Hostname| before.is_none_or(|before| !before.spec.hostnames.contains(name));
        let added: Vec<_> = spec.hostnames.iter().filter(new).cloned().collect();
        if added.is_empty() {
            return Ok(());
        }
        // If the primary is unavailable, the number is unknown. The limit only keeps scripts short, so accept the instance.
        let counts = tokio::time::timeout(LIMIT_PATIENCE, self.store.instance_counts(&added)).await;
        let Ok(Ok(counts)) = counts else { return Ok(()) };
        match added.iter().zip(counts).find(|(_, count)| *count >= MAX_INSTANCES_PER_HOST) {
            Some((hostname, _)) => Err(Error::HostFull { hostname: hostname.to_string() }),
            None => Ok(()),
        }
    }

    /// Changes or removes an instance that keeps its address.
    pub(super) async fn desire_over(
        &self,
        current: &Stored,
        after: Option<&Desired>,
    ) -> Result<DesireOutcome, Error> {
        let id = &current.id;
        let desire =
            Desire { id, before: Some(current), after, owner: None, registrant: None, promotions: None };
        self.store.desire(desire).await
    }

    pub(super) fn changed(
        &self,
        kind: ChangeKind,
        id: &InstanceId,
        table: TableMark,
        [before, record]: [Option<Record>; 2],
        displaced: Option<InstanceId>,
    ) -> RouteChange {
        self.metrics.count_change(kind.as_str());
        if kind != ChangeKind::Unchanged {
            tracing::info!(%id, change = kind.as_str(), serial = table.serial, "route table changed");
        }
        let TableMark { serial, epoch } = table;
        RouteChange { kind, subject: id.to_string(), serial, epoch, before, record, displaced }
    }
}

/// Whether the caller may register an instance as specified.
fn check_spec(caller: &Caller, id: &InstanceId, spec: &Spec) -> Result<(), Error> {
    check_names(caller, &spec.hostnames)?;
    if !caller.may_own(id.as_str()) {
        return Err(Error::IdNotAllowed(id.clone()));
    }
    if !caller.may_count_as(spec.version_type_id.as_str()) {
        return Err(Error::VersionTypeNotAllowed(spec.version_type_id.as_str().to_owned()));
    }
    Ok(())
}

/// Whether the caller may replace the instance that has the ID, and the one that has the address.
fn check_sight(caller: &Caller, sight: &Sight) -> Result<(), Error> {
    if let Some(current) = &sight.current {
        check_record(caller, &current.record)?;
    }
    let taken =
        |owner: &Stored| check_record(caller, &owner.record).is_err() || !caller.may_own(owner.id.as_str());
    if sight.owner.as_ref().is_some_and(taken) { Err(Error::AddressTaken) } else { Ok(()) }
}
