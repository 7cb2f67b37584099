//! Certificates of server names: set, taken away, brought to the table.

use super::{Attempts, Registry, RuledHost, check_names, project::Standing};
use crate::{
    ChangeKind, Error,
    store::{Certificate, PolicyOutcome, Ruling, TableMark},
};
use signalbox_access::Caller;
use signalbox_route_table::Hostname;

impl Registry {
    /// Gives a server name this certificate instead of whatever it has, nothing taking it away. Repeating it changes
    /// nothing, but completes what an earlier try left. With `expected` only if that revision is the present one, else
    /// nothing is done and nothing returned.
    pub async fn set_certificate(
        &self,
        caller: &Caller,
        name: &Hostname,
        certificate: Option<&Certificate>,
        expected: Option<u64>,
    ) -> Result<Option<RuledHost>, Error> {
        check_names(caller, std::slice::from_ref(name))?;
        let mut attempts = Attempts::new();
        let (changed, revision, table) = loop {
            match self.store.desire_certificate(name, certificate, expected).await? {
                PolicyOutcome::Accepted { revision, table } => break (true, Some(revision), table),
                PolicyOutcome::Same { outstanding, table } => break (false, outstanding, table),
                PolicyOutcome::Changed => return Ok(None),
                PolicyOutcome::Behind => attempts.await_reconciliation(&self.nudge).await?,
            }
        };
        attempts.recorded = true;
        let standing = match revision {
            Some(revision) => {
                self.project_certificate(name, revision, certificate, table, &mut attempts).await?
            }
            // The table is where the fabric last knew it to be, or further.
            None => Standing { serial: table.serial, epoch: table.epoch },
        };
        let kind = if changed { ChangeKind::CertificateAltered } else { ChangeKind::Unchanged };
        self.metrics.count_change(kind.as_str());
        if changed {
            let removed = certificate.is_none();
            tracing::info!(server_name = %name, removed, serial = standing.serial, "certificate changed");
        }
        Ok(Some(RuledHost { changed, serial: standing.serial, epoch: standing.epoch }))
    }

    /// Takes a certificate out of the table that nobody wants: the fabric gives its removal a revision.
    pub(crate) async fn unwant_certificate(&self, name: &Hostname) -> Result<(), Error> {
        self.store.desire_certificate(name, None, Some(0)).await.map(drop)
    }

    async fn project_certificate(
        &self,
        name: &Hostname,
        revision: u64,
        certificate: Option<&Certificate>,
        table: TableMark,
        attempts: &mut Attempts,
    ) -> Result<Standing, Error> {
        let mut table = table;
        let serial = loop {
            let ruling = self.store.certify(name, revision, certificate, Some(&table)).await;
            match ruling.map_err(Error::after_recording)? {
                Ruling::Stands { serial } => break serial,
                // A later word stands. Ours was accepted before it, and is history.
                Ruling::Stale { .. } => {
                    let (_, serial, _) = self.store.table_head().await.map_err(Error::after_recording)?;
                    break serial;
                }
                Ruling::OtherTable => {
                    attempts.await_reconciliation(&self.nudge).await?;
                    if let Some(mark) = self.store.table_state().await?.mark() {
                        table = mark;
                    }
                }
                Ruling::Blocked { key } => return Err(Error::Blocked { key, recorded: true }),
            }
        };
        let member = format!("={name}");
        if let Err(error) = self.store.settle(&member, revision, serial, &table.epoch).await {
            tracing::debug!(server_name = %name, %error, "a projected certificate stays noted as outstanding");
        }
        Ok(Standing { serial, epoch: table.epoch })
    }
}
