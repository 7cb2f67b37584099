//! Policies of hosts: set, removed, and what remains of one after a switch of versions.

use super::{Attempts, Registry, ResourceChange};
use crate::Error;
use signalbox_access::Caller;
use signalbox_route_table::{Hostname, Policy};

impl Registry {
    /// Sets the policy of a host. Repeating it changes nothing, but completes what an earlier attempt left. An empty
    /// policy is the same as none.
    pub async fn set_policy(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        policy: &Policy,
    ) -> Result<ResourceChange, Error> {
        let policy = Some(policy).filter(|policy| !policy.is_empty());
        self.set_resource(caller, hostname, policy, None).await?.ok_or(Error::Contended)
    }

    /// Removes the policy of a host. A host without a policy is not an error.
    pub async fn remove_policy(&self, caller: &Caller, hostname: &Hostname) -> Result<ResourceChange, Error> {
        self.set_resource::<Policy>(caller, hostname, None, None).await?.ok_or(Error::Contended)
    }

    /// Removes the shares from the policy of a host; `None` if it has no shares.
    pub(super) async fn drop_shares(
        &self,
        caller: &Caller,
        hostname: &Hostname,
    ) -> Result<Option<ResourceChange>, Error> {
        let mut attempts = Attempts::new();
        loop {
            let Some(wanted) = self.store.policy(hostname).await? else { return Ok(None) };
            if wanted.value.shares.is_none() {
                return Ok(None);
            }
            let rest = wanted.value.without_shares();
            let rest = Some(&rest).filter(|policy| !policy.is_empty());
            match self.set_resource(caller, hostname, rest, Some(wanted.revision)).await? {
                Some(changed) => return Ok(Some(changed)),
                None => attempts.lost()?,
            }
        }
    }
}
