//! Removes a host with all of its instances.

use super::{Attempts, Registry, check_names};
use crate::{
    ChangeKind, Error, RouteChange,
    store::{HostRemoved, Projection, TableMark},
};
use signalbox_access::Caller;
use signalbox_route_table::{Desired, Hostname, InstanceId, Record, Spec};

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
            let outcome = self.store.forget_host(hostname).await?;
            if let Some(accepted) = self.accepted(outcome, &mut attempts).await? {
                break accepted;
            }
        };
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
    ) -> Result<TableMark, Error> {
        let removed = loop {
            let removed = self.store.remove_host(hostname, revision, Some(&table)).await;
            if let Some(removed) = self.on_this_table(removed, &mut table, attempts).await? {
                break removed;
            }
        };
        let serial = match removed {
            HostRemoved::Done { serial } => serial,
            HostRemoved::InUse { serial } => {
                // Registered again while it was being removed. The registration is the later change.
                let host = self.store.table_hosts(&[hostname.to_string()]).await?.pop().unwrap_or_default();
                self.store.remember_host(hostname, host.log_key.as_deref().unwrap_or("")).await?;
                serial
            }
        };
        self.settle(&format!("@{hostname}"), revision, serial, &table).await;
        Ok(TableMark { serial, ..table })
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
            let desired = Desired { spec, ..current.record.desired.clone() };
            let outcome = self.desire_over(&current, Some(&desired)).await?;
            if let Some((revision, table)) = self.accepted(outcome, attempts).await? {
                self.project(id, Projection::Wanted(&Record { revision, desired }), table, attempts).await?;
                // The removal of the host itself is a later change.
                attempts.recorded = false;
                return Ok(());
            }
        }
    }
}
