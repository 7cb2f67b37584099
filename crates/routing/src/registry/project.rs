//! Projects changes from the fabric to the table.

use super::{Attempts, Registry};
use crate::{
    Error,
    store::{Applied, DesireOutcome, Projection, TableMark},
};
use signalbox_route_table::{InstanceId, Record};

impl Registry {
    /// Brings a change that the fabric has taken to the table. Returns where the table is then; `None` if the lease or drain
    /// of the instance ended on the table a moment ago, and the fabric is about to learn of it.
    pub(super) async fn project(
        &self,
        id: &InstanceId,
        projection: Projection<'_>,
        mut table: TableMark,
        attempts: &mut Attempts,
    ) -> Result<Option<TableMark>, Error> {
        let revision = match projection {
            Projection::Wanted(record) | Projection::Expired(record) => record.revision,
            Projection::Removed(revision) => revision,
        };
        let serial = loop {
            let applied = self.store.apply(id, projection, Some(&table), None).await;
            let Some(applied) = self.on_this_table(applied, &mut table, attempts).await? else { continue };
            match applied {
                Applied::Done { serial, displaced, .. } => {
                    if let Some(displaced) = displaced {
                        tracing::info!(%id, displaced, "address taken over");
                    }
                    break serial;
                }
                Applied::Same { serial } => break serial,
                Applied::Gone { .. } => return Ok(None),
                // A later change of the instance or its address was accepted after ours, and replaced it.
                Applied::Stale { .. } | Applied::Superseded { .. } => {
                    let (_, serial, _) = self.store.table_head().await.map_err(Error::after_recording)?;
                    break serial;
                }
                Applied::Early => return Ok(Some(table)),
            }
        };
        self.settle(id.as_str(), revision, serial, &table).await;
        Ok(Some(TableMark { serial, ..table }))
    }

    /// Records that the table has a change. If this fails, the reconciler does it later.
    pub(super) async fn settle(&self, member: &str, revision: u64, serial: u64, table: &TableMark) {
        if let Err(error) = self.store.settle(member, revision, serial, &table.epoch).await {
            tracing::debug!(member, %error, "projected change remains noted as outstanding");
        }
    }

    /// The result of a projection of a recorded change. `None` to try again: the primary turned out to hold another table, a
    /// reconciliation was waited for, and `table` is the one to expect now.
    pub(super) async fn on_this_table<T>(
        &self,
        projected: Result<T, Error>,
        table: &mut TableMark,
        attempts: &mut Attempts,
    ) -> Result<Option<T>, Error> {
        match projected {
            Err(Error::Resyncing { .. }) => {
                attempts.await_reconciliation(&self.nudge).await?;
                if let Some(mark) = self.store.table_state().await?.mark() {
                    *table = mark;
                }
                Ok(None)
            }
            projected => projected.map(Some).map_err(Error::after_recording),
        }
    }

    /// The revision of an accepted change, and the table to expect. `None` if another change was faster, or a reconciliation
    /// was waited for: read again.
    pub(super) async fn accepted(
        &self,
        outcome: DesireOutcome,
        attempts: &mut Attempts,
    ) -> Result<Option<(u64, TableMark)>, Error> {
        match outcome {
            DesireOutcome::Accepted { revision, table } => {
                attempts.recorded = true;
                return Ok(Some((revision, table)));
            }
            DesireOutcome::Changed => attempts.lost()?,
            DesireOutcome::Behind => attempts.await_reconciliation(&self.nudge).await?,
        }
        Ok(None)
    }

    /// Notes an instance in the membership sets of the statistics, in the background: an unavailable stats Redis must
    /// not delay a registration. The reconciler completes the rest.
    pub(super) fn report(&self, id: InstanceId, record: Record) {
        let store = self.store.clone();
        tokio::spawn(async move {
            let reported = async {
                store.add_memberships(&[&record.desired.spec]).await?;
                store.reported(&id, record.revision).await
            };
            if let Err(error) = reported.await {
                tracing::debug!(%id, %error, "membership sets not updated; the reconciler will retry");
            }
        });
    }
}
