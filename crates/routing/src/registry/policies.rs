//! Policies of hosts: set, taken away, and what a switch of versions leaves of one.

use super::{Attempts, Registry, check_names, project::Standing};
use crate::{
    ChangeKind, Error,
    store::{PolicyOutcome, Ruling, TableMark},
};
use signalbox_access::Caller;
use signalbox_route_table::{Hostname, Policy};

/// A host after a change of its policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuledHost {
    /// Whether anything changed.
    pub changed: bool,
    /// The table's serial with the change in it.
    pub serial: u64,
    /// The newest token of the table's lineage.
    pub epoch: String,
}

impl Registry {
    /// Gives a host this policy instead of whatever it has. Repeating it changes nothing, but completes what an earlier
    /// try left. One that says nothing takes the policy away.
    pub async fn set_policy(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        policy: &Policy,
    ) -> Result<RuledHost, Error> {
        check_names(caller, std::slice::from_ref(hostname))?;
        let policy = Some(policy).filter(|policy| !policy.is_empty());
        self.change_policy(hostname, policy, None).await?.ok_or(Error::Contended)
    }

    /// Takes a host's policy away. One that is not there is no error.
    pub async fn remove_policy(&self, caller: &Caller, hostname: &Hostname) -> Result<RuledHost, Error> {
        check_names(caller, std::slice::from_ref(hostname))?;
        self.change_policy(hostname, None, None).await?.ok_or(Error::Contended)
    }

    /// Takes a policy out of the table that nobody wants: the fabric gives its removal a revision.
    pub(crate) async fn unwant_policy(&self, hostname: &Hostname) -> Result<(), Error> {
        self.store.desire_policy(hostname, None, Some(0)).await.map(drop)
    }

    /// Takes the shares out of a host's policy, if it has any; nothing when it has none.
    pub(super) async fn drop_shares(&self, hostname: &Hostname) -> Result<Option<RuledHost>, Error> {
        let mut attempts = Attempts::new();
        loop {
            let Some(ruled) = self.store.policy(hostname).await? else { return Ok(None) };
            if ruled.policy.shares.is_none() {
                return Ok(None);
            }
            let left = ruled.policy.without_shares();
            let left = Some(&left).filter(|policy| !policy.is_empty());
            match self.change_policy(hostname, left, Some(ruled.revision)).await? {
                Some(changed) => return Ok(Some(changed)),
                None => attempts.lost()?,
            }
        }
    }

    /// Nothing when another than `expected` is there.
    async fn change_policy(
        &self,
        hostname: &Hostname,
        policy: Option<&Policy>,
        expected: Option<u64>,
    ) -> Result<Option<RuledHost>, Error> {
        let mut attempts = Attempts::new();
        let (changed, revision, table) = loop {
            match self.store.desire_policy(hostname, policy, expected).await? {
                PolicyOutcome::Accepted { revision, table } => break (true, Some(revision), table),
                PolicyOutcome::Same { outstanding, table } => break (false, outstanding, table),
                PolicyOutcome::Changed => return Ok(None),
                PolicyOutcome::Behind => attempts.await_reconciliation(&self.nudge).await?,
            }
        };
        attempts.recorded = true;
        let standing = match revision {
            Some(revision) => self.project_policy(hostname, revision, policy, table, &mut attempts).await?,
            // The table is where the fabric last knew it to be, or further.
            None => Standing { serial: table.serial, epoch: table.epoch },
        };
        let kind = if changed { ChangeKind::HostAltered } else { ChangeKind::Unchanged };
        self.metrics.count_change(kind.as_str());
        if changed {
            tracing::info!(%hostname, serial = standing.serial, "host policy changed");
        }
        Ok(Some(RuledHost { changed, serial: standing.serial, epoch: standing.epoch }))
    }

    async fn project_policy(
        &self,
        hostname: &Hostname,
        revision: u64,
        policy: Option<&Policy>,
        table: TableMark,
        attempts: &mut Attempts,
    ) -> Result<Standing, Error> {
        let mut table = table;
        let serial = loop {
            let ruling = self.store.rule(hostname, revision, policy, Some(&table)).await;
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
        let member = format!("%{hostname}");
        if let Err(error) = self.store.settle(&member, revision, serial, &table.epoch).await {
            tracing::debug!(%hostname, %error, "a projected policy stays noted as outstanding");
        }
        Ok(Standing { serial, epoch: table.epoch })
    }
}
