//! Removes a host with all of its instances.

use super::{Attempts, Registry, check_names, project::Projected};
use crate::{
    ChangeKind, Error, RouteChange,
    store::{Desire, DesireOutcome, HostRemoved, Projection, Stored, TableMark},
};
use signalbox_access::Caller;
use signalbox_route_table::{Desired, Hostname, InstanceId, Spec};

impl Registry {
    /// Removes a host: no instance serves it afterwards, an instance that served nothing else is removed with it, and
    /// entries that were made by hand are removed, too. An unknown host is not an error.
    pub async fn remove_host(&self, caller: &Caller, hostname: &Hostname) -> Result<RouteChange, Error> {
        check_names(caller, std::slice::from_ref(hostname))?;
        let mut attempts = Attempts::new();
        for name in self.store.ids_of_host(hostname).await? {
            let id = InstanceId::parse(&name)?;
            self.withdraw(caller, &id, hostname, &mut attempts).await?;
        }
        let (revision, table) = loop {
            match self.store.forget_host(hostname).await? {
                DesireOutcome::Accepted { revision, table } => break (revision, table),
                DesireOutcome::Changed | DesireOutcome::Limited => attempts.lost()?,
                DesireOutcome::Behind => attempts.await_reconciliation(&self.nudge).await?,
            }
        };
        attempts.recorded = true;
        let applied = self.project_host_removal(hostname, revision, table, &mut attempts).await?;
        self.metrics.count_change(ChangeKind::HostRemoved.as_str());
        tracing::info!(%hostname, serial = applied.serial, "host removed");
        Ok(RouteChange {
            kind: ChangeKind::HostRemoved,
            subject: hostname.to_string(),
            serial: applied.serial,
            epoch: applied.epoch,
            before: None,
            record: None,
            displaced: None,
        })
    }

    /// Takes a forgotten host out of the table.
    pub(super) async fn project_host_removal(
        &self,
        hostname: &Hostname,
        revision: u64,
        mut table: TableMark,
        attempts: &mut Attempts,
    ) -> Result<Projected, Error> {
        let serial = loop {
            match self
                .store
                .remove_host(hostname, revision, Some(&table))
                .await
                .map_err(Error::after_recording)?
            {
                HostRemoved::Done { serial } => break serial,
                HostRemoved::InUse { serial } => {
                    // Registered again while it was being removed. The registration is the later change.
                    self.remember(hostname).await?;
                    break serial;
                }
                HostRemoved::OtherTable => self.await_table(&mut table, attempts).await?,
                HostRemoved::Blocked { key } => return Err(Error::Blocked { key, recorded: true }),
            }
        };
        let member = format!("@{hostname}");
        if let Err(error) = self.store.settle(&member, revision, serial, &table.epoch).await {
            tracing::debug!(%hostname, %error, "projected removal remains noted as outstanding");
        }
        Ok(Projected { serial, epoch: table.epoch })
    }

    async fn remember(&self, hostname: &Hostname) -> Result<(), Error> {
        let host = self.store.table_hosts(&[hostname.to_string()]).await?.pop().unwrap_or_default();
        self.store.remember_host(hostname, host.log_key.as_deref().unwrap_or("")).await
    }

    /// Takes one name from an instance, or removes the instance if that was its only one.
    async fn withdraw(
        &self,
        caller: &Caller,
        id: &InstanceId,
        hostname: &Hostname,
        attempts: &mut Attempts,
    ) -> Result<(), Error> {
        loop {
            let Some(current) = self.store.stored(id).await? else { return Ok(()) };
            let spec = &current.record.desired.spec;
            if !spec.hostnames.contains(hostname) {
                return Ok(());
            }
            let hostnames: Vec<_> = spec.hostnames.iter().filter(|name| *name != hostname).cloned().collect();
            if hostnames.is_empty() {
                self.remove(caller, id).await?;
                return Ok(());
            }
            let spec = Spec { hostnames, ..spec.clone() };
            let after = Desired { spec, ..current.record.desired.clone() };
            if self.replace(&current, after, attempts).await? {
                return Ok(());
            }
        }
    }

    /// Commits and projects one alteration; false when it must be tried again.
    async fn replace(
        &self,
        current: &Stored,
        after: Desired,
        attempts: &mut Attempts,
    ) -> Result<bool, Error> {
        let desire = Desire {
            id: &current.id,
            before: Some(current),
            after: Some(&after),
            owner: None,
            registrant: None,
        };
        match self.store.desire(desire).await? {
            DesireOutcome::Changed | DesireOutcome::Limited => attempts.lost().map(|()| false),
            DesireOutcome::Behind => attempts.await_reconciliation(&self.nudge).await.map(|()| false),
            DesireOutcome::Accepted { revision, table } => {
                let record = signalbox_route_table::Record { revision, desired: after };
                self.project(&current.id, Projection::Wanted(&record), table, attempts).await?;
                Ok(true)
            }
        }
    }
}
