//! Sets and removes resources, and projects them to the table.

use super::{Attempts, Registry, check_names};
use crate::{
    ChangeKind, Error,
    store::{Certificate, Resource, ResourceOutcome, ResourceProjected, TableMark, Wanted, member},
};
use signalbox_access::Caller;
use signalbox_route_table::Hostname;

/// The route table after a change of a policy or certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceChange {
    /// Whether anything changed.
    pub changed: bool,
    /// The table's serial with the change in it.
    pub serial: u64,
    /// The newest token of the table's lineage.
    pub epoch: String,
}

impl Registry {
    /// Sets the certificate of a server name; `None` removes it. Repeating it changes nothing, but completes what an
    /// earlier attempt left. With `expected`, only if that revision is the present one; otherwise nothing is done and
    /// `None` returned.
    pub async fn set_certificate(
        &self,
        caller: &Caller,
        name: &Hostname,
        certificate: Option<&Certificate>,
        expected: Option<u64>,
    ) -> Result<Option<ResourceChange>, Error> {
        self.set_resource(caller, name, certificate, expected).await
    }

    /// Sets the resource of a name; `None` removes it. Returns `None` if `expected` is not the present revision.
    pub(crate) async fn set_resource<R: Resource>(
        &self,
        caller: &Caller,
        name: &Hostname,
        value: Option<&R>,
        expected: Option<u64>,
    ) -> Result<Option<ResourceChange>, Error> {
        check_names(caller, std::slice::from_ref(name))?;
        let mut attempts = Attempts::new();
        let (changed, revision, table) = loop {
            match self.store.desire_resource(name, value, expected).await? {
                ResourceOutcome::Accepted { revision, table } => break (true, Some(revision), table),
                ResourceOutcome::Same { outstanding, table } => break (false, outstanding, table),
                ResourceOutcome::Changed => return Ok(None),
                ResourceOutcome::Behind => attempts.await_reconciliation(&self.nudge).await?,
            }
        };
        attempts.recorded = true;
        let TableMark { serial, epoch } = match revision {
            Some(revision) => self.project_resource(name, revision, value, table, &mut attempts).await?,
            // The table has at least the serial that the fabric last knew.
            None => table,
        };
        let kind = if changed { R::CHANGE } else { ChangeKind::Unchanged };
        self.metrics.count_change(kind.as_str());
        if changed {
            let removed = value.is_none();
            tracing::info!(resource = R::NAME, %name, removed, serial, "resource changed");
        }
        Ok(Some(ResourceChange { changed, serial, epoch }))
    }

    async fn project_resource<R: Resource>(
        &self,
        name: &Hostname,
        revision: u64,
        value: Option<&R>,
        mut table: TableMark,
        attempts: &mut Attempts,
    ) -> Result<TableMark, Error> {
        let serial = loop {
            let projected = self.store.project_resource(name, revision, value, Some(&table)).await;
            match self.on_this_table(projected, &mut table, attempts).await? {
                Some(ResourceProjected::Done { serial }) => break serial,
                // A later change was accepted after ours, and replaced it.
                Some(ResourceProjected::Stale { .. }) => {
                    let (_, serial, _) = self.store.table_head().await.map_err(Error::after_recording)?;
                    break serial;
                }
                None => {}
            }
        };
        self.settle(&member::<R>(name.as_str()), revision, serial, &table).await;
        Ok(TableMark { serial, ..table })
    }

    /// Brings the wanted resource of a name to the table, or its removal with `revision`, for the reconciler.
    pub(crate) async fn complete_resource<R: Resource>(
        &self,
        name: &Hostname,
        revision: u64,
        mark: Option<&TableMark>,
    ) -> Result<(), Error> {
        let wanted = self.store.wanted::<R>(&[name.as_str()]).await?.pop().flatten();
        let (revision, value) = match &wanted {
            Some(Wanted { revision, value }) => (*revision, Some(value)),
            None => (revision, None),
        };
        let projected = self.store.project_resource(name, revision, value, mark).await;
        let serial = match projected.map_err(Error::after_recording)? {
            ResourceProjected::Done { serial } => serial,
            // A later change was projected in the meantime, and is settled by its own projection.
            ResourceProjected::Stale { .. } => 0,
        };
        self.settled(&member::<R>(name.as_str()), revision, serial, mark).await
    }

    /// Records the removal of a resource that the table has and no client wants, so that it will be projected.
    pub(crate) async fn unwant_resource<R: Resource>(&self, name: &Hostname) -> Result<(), Error> {
        self.store.desire_resource::<R>(name, None, Some(0)).await.map(drop)
    }
}
