//! Projects changes from the fabric to the table.

use super::{Attempts, Registry};
use crate::{
    Error,
    store::{Applied, Projection, TableMark},
};
use signalbox_route_table::{InstanceId, Record};

/// Where the table is after a projection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Projected {
    pub(super) serial: u64,
    pub(super) epoch: String,
}

/// Whether the table has an unchanged instance.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Confirmed {
    Applied(Projected),
    /// Its lease or drain ended on the table a moment ago, and the fabric is about to learn of it.
    Expired,
}

impl Registry {
    /// Brings a change that the fabric has taken to the table.
    pub(super) async fn project(
        &self,
        id: &InstanceId,
        projection: Projection<'_>,
        mut table: TableMark,
        attempts: &mut Attempts,
    ) -> Result<Confirmed, Error> {
        let revision = match projection {
            Projection::Wanted(record) | Projection::Expired(record) => record.revision,
            Projection::Removed(revision) => revision,
        };
        let (serial, settled) = loop {
            let applied = self.store.apply(id, projection, Some(&table), None).await;
            match applied.map_err(Error::after_recording)? {
                Applied::Done { serial, displaced, .. } => {
                    if let Some(displaced) = displaced {
                        tracing::info!(%id, displaced, "address taken over");
                    }
                    break (serial, true);
                }
                Applied::Same { serial } => break (serial, true),
                Applied::Gone { .. } => return Ok(Confirmed::Expired),
                // A later change of the instance or its address was accepted after ours, and replaced it.
                Applied::Stale { .. } | Applied::Superseded { .. } => {
                    let (_, serial, _) = self.store.table_head().await.map_err(Error::after_recording)?;
                    break (serial, true);
                }
                Applied::OtherTable => self.await_table(&mut table, attempts).await?,
                Applied::Blocked { key } => return Err(Error::Blocked { key, recorded: true }),
                Applied::Early => break (table.serial, false),
                Applied::Fenced { epoch } => {
                    return Err(Error::Reply { script: "apply", reply: format!("fenced {epoch}") });
                }
            }
        };
        // The table has it. If removing the mark fails, the reconciler does that later.
        if settled && let Err(error) = self.store.settle(id.as_str(), revision, serial, &table.epoch).await {
            tracing::debug!(%id, %error, "projected change remains noted as outstanding");
        }
        Ok(Confirmed::Applied(Projected { serial, epoch: table.epoch }))
    }

    /// Waits for a reconciliation after the primary turned out to hold another table, and reads which one to expect.
    pub(super) async fn await_table(
        &self,
        table: &mut TableMark,
        attempts: &mut Attempts,
    ) -> Result<(), Error> {
        attempts.await_reconciliation(&self.nudge).await?;
        if let Some(mark) = self.store.table_state().await?.mark() {
            *table = mark;
        }
        Ok(())
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
