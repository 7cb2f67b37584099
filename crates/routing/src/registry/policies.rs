//! Sets and removes policies of hosts.

use super::{Attempts, Registry, ResourceChange, check_names};
use crate::{Error, store::Wanted};
use signalbox_access::Caller;
use signalbox_route_table::{Hostname, Invalid, Label, PathRule, Pause, Policy, Share, State};

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
    ///
    /// Version types to which a traffic split gives a part serve from then on: their instances on standby are resumed, and new
    /// ones do not begin on standby.
    pub async fn set_policy(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        policy: &Policy,
        expected: Option<u64>,
    ) -> Result<(ResourceChange, Policy), Error> {
        check_names(caller, std::slice::from_ref(hostname))?;
        check_services(caller, hostname, policy)?;
        let (ruled, stored) = self.set_whole_policy(caller, hostname, policy, expected).await?;
        Ok((self.serve_shared(caller, hostname, policy, ruled).await?, stored))
    }

    /// Lets the version types serve to which the policy gives a part. `ruled` is the change of the policy, which may have been
    /// rejected and so is made first. Returns the last change.
    async fn serve_shared(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        policy: &Policy,
        ruled: ResourceChange,
    ) -> Result<ResourceChange, Error> {
        let shared: Vec<Label> = policy.shared_versions().cloned().collect();
        self.admit(caller, hostname, &shared).await?;
        // An instance that was registered before its version type was admitted is resumed here.
        match self.resume_shared(caller, hostname, policy).await? {
            Some((serial, epoch)) => Ok(ResourceChange { changed: true, serial, epoch }),
            None => Ok(ruled),
        }
    }

    /// Rejects a traffic split that gives a part to version types that no instance of the host has. A part that the policy
    /// has already is accepted, so that a repetition is.
    pub async fn check_shares_are_served(&self, hostname: &Hostname, policy: &Policy) -> Result<(), Error> {
        if policy.shares.is_none() {
            return Ok(());
        }
        let present = self.store.policy(hostname).await?.map(|wanted| wanted.value).unwrap_or_default();
        let known = self.instances_of(hostname).await?;
        let is_known = |version_type: &Label| {
            present.shared_versions().any(|one| one == version_type)
                || known.iter().any(|one| one.record.desired.spec.version_type_id == *version_type)
        };
        let unknown: Vec<String> = (policy.shared_versions().filter(|one| !is_known(one)))
            .map(|version_type| version_type.as_str().to_owned())
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        Err(Error::UnknownShares { hostname: hostname.to_string(), version_types: unknown })
    }

    /// Notes that instances of these version types may serve, although a promotion replaced them.
    pub(super) async fn admit(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        version_types: &[Label],
    ) -> Result<(), Error> {
        if version_types.is_empty() {
            return Ok(());
        }
        let mut attempts = Attempts::new();
        while let Some(wanted) = self.store.promotion(hostname).await? {
            let Some(next) = wanted.value.admitting(version_types) else { break };
            match self.set_resource(caller, hostname, Some(&next), Some(wanted.revision)).await? {
                Some(_) => break,
                None => attempts.lost()?,
            }
        }
        Ok(())
    }

    /// Resumes instances on standby to whose version types the policy gives a part, if the caller may change them. Returns
    /// serial and epoch of the last change.
    async fn resume_shared(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        policy: &Policy,
    ) -> Result<Option<(u64, String)>, Error> {
        let mut last = None;
        if policy.shares.is_none() {
            return Ok(last);
        }
        for one in self.instances_of(hostname).await? {
            let desired = &one.record.desired;
            let waits = desired.state == State::Standby || desired.standby_until_ms.is_some();
            let is_shared = policy.shared_versions().any(|shared| *shared == desired.spec.version_type_id);
            if waits && is_shared && caller.may_touch_all(&desired.spec.hostnames) {
                match self.resume(caller, &one.id).await {
                    Ok(change) => last = Some((change.serial, change.epoch)),
                    Err(Error::NoInstance(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(last)
    }

    async fn set_whole_policy(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        policy: &Policy,
        expected: Option<u64>,
    ) -> Result<(ResourceChange, Policy), Error> {
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
            rest.with_paths(rules.paths.clone()).keep_hidden(before)?.check_altered(before)
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
        let mode = Policy::default().with_pause(pause).check()?;
        self.alter_policy(caller, hostname, None, |before| {
            before.cloned().unwrap_or_default().with_pause(mode.pause().cloned()).check_altered(before)
        })
        .await
    }

    /// Removes the policy of a host. A host without a policy is not an error.
    pub async fn remove_policy(&self, caller: &Caller, hostname: &Hostname) -> Result<ResourceChange, Error> {
        self.set_resource::<Policy>(caller, hostname, None, None).await?.ok_or(Error::Contended)
    }

    /// Replaces the shares of a host, and lets their version types serve as [`Self::set_policy`] does. The rest of its policy stays,
    /// even if it leads to hosts that the caller may not change.
    pub async fn replace_shares(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        shares: &[Share],
    ) -> Result<AlteredPolicy, Error> {
        check_names(caller, std::slice::from_ref(hostname))?;
        let altered = self.alter_policy(caller, hostname, None, |before| with(before, shares)).await?;
        let change = self.serve_shared(caller, hostname, &altered.after, altered.change).await?;
        Ok(AlteredPolicy { change, ..altered })
    }

    /// Checks whether [`Self::replace_shares`] would accept these shares now. Changes nothing.
    pub async fn check_replace_shares(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        shares: &[Share],
    ) -> Result<(), Error> {
        check_names(caller, std::slice::from_ref(hostname))?;
        let before = self.policy_before(hostname).await?.map(|wanted| wanted.value);
        with(before.as_ref(), shares)?;
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
    pub(super) async fn alter_policy(
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
}

/// A policy with other shares.
fn with(before: Option<&Policy>, shares: &[Share]) -> Result<Policy, Invalid> {
    let split = Policy::default().with_split(Some(shares.to_vec())).check()?;
    before.cloned().unwrap_or_default().with_split(split.shares).check_altered(before)
}

/// Checks the hosts to which the policy of `hostname` leads. A caller can lead requests only to hosts that it may
/// change.
fn check_services(caller: &Caller, hostname: &Hostname, policy: &Policy) -> Result<(), Error> {
    policy.check_for(hostname)?;
    let services: Vec<Hostname> = policy.services().map(Hostname::parse).collect::<Result<_, _>>()?;
    check_names(caller, &services)
}
