//! Sets and removes policies of hosts, and computes what remains of one after a switch of versions.

use std::collections::BTreeMap;

use super::{Attempts, Registry, ResourceChange, check_names};
use crate::{Error, store::Wanted};
use signalbox_access::Caller;
use signalbox_route_table::{Hostname, Invalid, Label, PathRule, Pause, Policy, Share};

/// A policy that was altered.
#[derive(Debug, Clone)]
pub struct AlteredPolicy {
    /// The route table after the change.
    pub change: ResourceChange,
    /// The policy before; `None` if there was none.
    pub before: Option<Policy>,
    /// The policy now.
    pub after: Policy,
}

impl Registry {
    /// Sets the policy of a host. Repeating it changes nothing, but completes what an earlier attempt left. An empty
    /// policy is the same as none. With `expected`, only if the policy has this revision; 0 if there is none. Returns the policy
    /// as it is stored, too.
    pub async fn set_policy(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        policy: &Policy,
        expected: Option<u64>,
    ) -> Result<(ResourceChange, Policy), Error> {
        check_names(caller, std::slice::from_ref(hostname))?;
        check_services(caller, hostname, policy)?;
        if expected.is_some() || policy.has_mode() || policy.clone().keep_hidden(None).is_err() {
            let set =
                self.alter_policy(caller, hostname, expected, |before| policy.clone().keep_hidden(before));
            let set = set.await?;
            return Ok((set.change, set.after));
        }
        let wanted = Some(policy).filter(|policy| !policy.is_empty());
        let changed = self.set_resource(caller, hostname, wanted, None).await?.ok_or(Error::Contended)?;
        Ok((changed, policy.clone()))
    }

    /// Replaces the rules for paths of a host; `None` removes them. The rest of its policy stays. Returns the policy,
    /// too.
    pub async fn set_paths(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        paths: Option<Vec<PathRule>>,
    ) -> Result<AlteredPolicy, Error> {
        check_names(caller, std::slice::from_ref(hostname))?;
        let rules = Policy::default().with_paths(paths).check()?;
        check_services(caller, hostname, &rules)?;
        self.alter_policy(caller, hostname, None, |before| {
            let rest = before.cloned().unwrap_or_default();
            rest.with_paths(rules.paths.clone()).keep_hidden(before)?.check()
        })
        .await
    }

    /// Pauses a host, so that its requests wait; `None` resumes it. The rest of its policy stays. Returns the policy,
    /// too.
    pub async fn set_pause(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        pause: Option<Pause>,
    ) -> Result<AlteredPolicy, Error> {
        check_names(caller, std::slice::from_ref(hostname))?;
        self.alter_policy(caller, hostname, None, |before| {
            before.cloned().unwrap_or_default().with_pause(pause.clone()).check()
        })
        .await
    }

    /// Removes the policy of a host. A host without a policy is not an error.
    pub async fn remove_policy(&self, caller: &Caller, hostname: &Hostname) -> Result<ResourceChange, Error> {
        self.set_resource::<Policy>(caller, hostname, None, None).await?.ok_or(Error::Contended)
    }

    /// Whether the policy of a host splits its requests between version types.
    pub(super) async fn is_split(&self, hostname: &Hostname) -> Result<bool, Error> {
        Ok(self.policy_before(hostname).await?.is_some_and(|policy| policy.value.shares.is_some()))
    }

    /// Sets the shares of a host, in proportion to the weights of the version types. The rest of its policy stays.
    pub(super) async fn set_shares(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        weights: &BTreeMap<Label, u32>,
    ) -> Result<ResourceChange, Error> {
        let altered = self.alter_policy(caller, hostname, None, |before| {
            let policy = before.cloned().unwrap_or_default();
            Ok(policy.with_shares(weights))
        });
        Ok(altered.await?.change)
    }

    /// Replaces the shares of a host. The rest of its policy stays, even if it leads to hosts that the caller may not change.
    pub async fn replace_shares(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        shares: &[Share],
    ) -> Result<AlteredPolicy, Error> {
        check_names(caller, std::slice::from_ref(hostname))?;
        self.alter_policy(caller, hostname, None, |before| with(before.cloned(), shares)).await
    }

    /// Checks whether [`Self::replace_shares`] would accept these shares now. Changes nothing.
    pub async fn check_shares(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        shares: &[Share],
    ) -> Result<(), Error> {
        check_names(caller, std::slice::from_ref(hostname))?;
        let before = self.policy_before(hostname).await?.map(|wanted| wanted.value);
        with(before, shares)?;
        Ok(())
    }

    /// The desired policy, for a change that depends on it.
    async fn policy_before(&self, hostname: &Hostname) -> Result<Option<Wanted<Policy>>, Error> {
        self.store.policy(hostname).await.map_err(|error| match error {
            Error::Record(source) => Error::PolicyUnreadable { hostname: hostname.to_string(), source },
            other => other,
        })
    }

    /// Replaces the policy of a host by what `alter` makes of it. With `expected`, only if the policy has this revision.
    async fn alter_policy(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        expected: Option<u64>,
        alter: impl Fn(Option<&Policy>) -> Result<Policy, Invalid>,
    ) -> Result<AlteredPolicy, Error> {
        let mut attempts = Attempts::new();
        loop {
            let before = self.policy_before(hostname).await?;
            let revision = before.as_ref().map_or(0, |before| before.revision);
            if expected.is_some_and(|expected| expected != revision) {
                return Err(Error::PolicyChanged { revision });
            }
            let before = before.map(|before| before.value);
            let mut after = alter(before.as_ref())?;
            if after.has_mode() {
                let by = caller.person().unwrap_or(&caller.name);
                after = after.marked(before.as_ref(), (self.store.fabric_now_ms().await?, by));
            }
            let wanted = Some(&after).filter(|policy| !policy.is_empty());
            match self.set_resource(caller, hostname, wanted, Some(revision)).await? {
                Some(change) => return Ok(AlteredPolicy { change, before, after }),
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
            let Some(wanted) = self.policy_before(hostname).await? else { return Ok(None) };
            if wanted.value.shares.is_none() {
                return Ok(None);
            }
            let mut rest = wanted.value;
            rest.shares = None;
            let rest = Some(&rest).filter(|policy| !policy.is_empty());
            match self.set_resource(caller, hostname, rest, Some(wanted.revision)).await? {
                Some(changed) => return Ok(Some(changed)),
                None => attempts.lost()?,
            }
        }
    }
}

/// A policy with other shares.
fn with(before: Option<Policy>, shares: &[Share]) -> Result<Policy, Invalid> {
    let mut policy = before.unwrap_or_default();
    policy.shares = Some(shares.to_vec());
    policy.check()
}

/// Checks the hosts to which the policy of `hostname` leads. A caller can lead requests only to hosts that it may
/// change.
fn check_services(caller: &Caller, hostname: &Hostname, policy: &Policy) -> Result<(), Error> {
    policy.check_for(hostname)?;
    let services: Vec<Hostname> = policy.services().map(Hostname::parse).collect::<Result<_, _>>()?;
    check_names(caller, &services)
}
