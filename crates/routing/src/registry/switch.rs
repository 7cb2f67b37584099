//! Switching a host to another version: the new instances join, all requests move to them in one change of the table, and
//! the old ones drain.

use std::collections::BTreeMap;

use super::{Registry, check_names, check_record};
use crate::{
    Error,
    store::{Live, Stored},
};
use signalbox_access::Caller;
use signalbox_api::routes::SwitchedHost;
use signalbox_route_table::{Hostname, InstanceId, Label, State};

/// The instances to resume and to drain.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    resume: Vec<InstanceId>,
    drain: Vec<InstanceId>,
    /// The version types that serve now, by weight.
    before: BTreeMap<Label, u32>,
}

impl Registry {
    /// Makes `version_type` the one that serves the host. If it is interrupted, it can be repeated; instances that drain
    /// already keep their deadline.
    ///
    /// 1. If instances of it are to be resumed, requests are bound to the versions that serve now, unless the policy splits
    ///    them already. Otherwise the first one that is resumed would get more than its part.
    /// 2. Its instances that drain or stand by are resumed.
    /// 3. All requests move to it, in one change of the table.
    /// 4. The other instances are drained, and the split is removed from the policy.
    pub async fn switch_version(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        version_type: &Label,
        deadline_seconds: u32,
    ) -> Result<SwitchedHost, Error> {
        check_names(caller, std::slice::from_ref(hostname))?;
        let state = self.store.table_state().await?;
        let ids = self.store.ids_of_host(hostname).await?;
        let mut ids = ids.iter().map(|id| InstanceId::parse(id)).collect::<Result<Vec<_>, _>>()?;
        ids.sort_unstable();
        let mut stored = self.store.stored_many(&ids).await?;
        stored.retain(|one| one.record.desired.spec.hostnames.contains(hostname));
        // All of it is allowed before any of it is done.
        stored.iter().try_for_each(|one| check_record(caller, &one.record))?;
        let ids: Vec<_> = stored.iter().map(|one| one.id.clone()).collect();
        let live = self.store.live(&ids).await?;
        let plan = plan(hostname, version_type, &stored, &live)?;

        let epoch = state.mark().map_or_else(String::new, |mark| mark.epoch);
        let mut switched = SwitchedHost {
            hostname: hostname.to_string(),
            version_type_id: version_type.as_str().to_owned(),
            resumed: Vec::new(),
            drained: Vec::new(),
            changed: false,
            serial: state.serial,
            epoch,
        };
        if !plan.drain.is_empty() && !plan.resume.is_empty() && !self.is_split(hostname).await? {
            self.set_shares(caller, hostname, &plan.before).await?;
        }
        for id in plan.resume {
            let change = self.resume(caller, &id).await?;
            (switched.serial, switched.epoch) = (change.serial, change.epoch);
            switched.resumed.push(id.to_string());
        }
        if !plan.drain.is_empty() {
            self.set_shares(caller, hostname, &BTreeMap::from([(version_type.clone(), 1)])).await?;
        }
        for id in plan.drain {
            match self.drain(caller, &id, deadline_seconds).await {
                Ok(change) => {
                    (switched.serial, switched.epoch) = (change.serial, change.epoch);
                    switched.drained.push(id.to_string());
                }
                // Removed in the meantime: that is drained enough.
                Err(Error::NoInstance(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let unshared = self.drop_shares(caller, hostname).await?;
        switched.changed = unshared.is_some() || !switched.resumed.is_empty() || !switched.drained.is_empty();
        if let Some(change) = unshared {
            (switched.serial, switched.epoch) = (change.serial, change.epoch);
        }
        Ok(switched)
    }
}

/// Decides, or returns why the host cannot be switched. `live` is what the table knows of `stored`, in its order.
fn plan(hostname: &Hostname, version_type: &Label, stored: &[Stored], live: &[Live]) -> Result<Plan, Error> {
    let is_new = |one: &&Stored| one.record.desired.spec.version_type_id == *version_type;
    let new: Vec<&Stored> = stored.iter().filter(is_new).collect();
    let refused = |reason| Error::CannotSwitch {
        hostname: hostname.to_string(),
        version_type: version_type.as_str().to_owned(),
        reason,
    };
    if new.is_empty() {
        return Err(refused(NotSwitched::NoInstance));
    }
    let well = stored.iter().zip(live).any(|(one, live)| is_new(&one) && live.unhealthy.is_none());
    if !well {
        return Err(refused(NotSwitched::Unhealthy));
    }
    let active = |one: &&Stored| one.record.desired.state == State::Active;
    let old: Vec<&Stored> = stored.iter().filter(|one| !is_new(one)).filter(active).collect();
    // An instance drains for all its names; each of them must keep another instance.
    let covered = |name: &&Hostname| new.iter().any(|one| one.record.desired.spec.hostnames.contains(name));
    let names = old.iter().flat_map(|one| &one.record.desired.spec.hostnames);
    let mut bare: Vec<String> = names.filter(|name| !covered(name)).map(ToString::to_string).collect();
    bare.sort_unstable();
    bare.dedup();
    if !bare.is_empty() {
        return Err(refused(NotSwitched::Incomplete(bare)));
    }
    let mut before = BTreeMap::new();
    for one in stored.iter().filter(active) {
        let spec = &one.record.desired.spec;
        *before.entry(spec.version_type_id.clone()).or_default() += spec.weight;
    }
    let ids = |list: Vec<&Stored>| list.into_iter().map(|one| one.id.clone()).collect();
    let resume = new.into_iter().filter(|one| !active(one)).collect();
    Ok(Plan { resume: ids(resume), drain: ids(old), before })
}

/// Why a host is not switched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotSwitched {
    /// No instance of the version serves it.
    NoInstance,
    /// None of those that do is healthy.
    Unhealthy,
    /// The instances that would go also serve these names, and none of the version does.
    Incomplete(Vec<String>),
}
