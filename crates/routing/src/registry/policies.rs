//! Policies of hosts: set, removed, and what remains of one after a switch of versions.

use std::collections::BTreeMap;

use super::{Attempts, Registry, ResourceChange};
use crate::Error;
use signalbox_access::Caller;
use signalbox_route_table::{Hostname, Label, Policy};

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

    /// Whether the policy of a host splits its requests between version types.
    pub(super) async fn is_split(&self, hostname: &Hostname) -> Result<bool, Error> {
        Ok(self.store.policy(hostname).await?.is_some_and(|policy| policy.value.shares.is_some()))
    }

    /// Sets the shares of a host, in proportion to the weights of the version types. The rest of its policy stays.
    pub(super) async fn set_shares(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        weights: &BTreeMap<Label, u32>,
    ) -> Result<ResourceChange, Error> {
        let mut attempts = Attempts::new();
        loop {
            let before = self.store.policy(hostname).await?;
            let revision = before.as_ref().map_or(0, |before| before.revision);
            let policy = before.map(|before| before.value).unwrap_or_default().with_shares(weights);
            match self.set_resource(caller, hostname, Some(&policy), Some(revision)).await? {
                Some(changed) => return Ok(changed),
                None => attempts.lost()?,
            }
        }
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
