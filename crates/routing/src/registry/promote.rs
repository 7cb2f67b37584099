//! Promotes a version type of a host, and undoes that: the instances that serve from then on join, all requests move to them
//! in one change of the table, and the others drain. They are kept on standby for as long as the promotion can be undone.
//!
//! What is done is first recorded as the host's [`Promotion`], so an interrupted promotion can be repeated, and an instance of
//! the old version that registers in the meantime begins on standby. The instances are read after that: one that was
//! registered earlier is in the table, or it is outstanding.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{Registry, ResourceChange, check_names, check_record};
use crate::{
    Before, Error, Promotion, RouteChange,
    store::{Live, Stored, Wanted},
};
use signalbox_access::Caller;
use signalbox_api::{Time, routes::PromotedHost};
use signalbox_route_table::{Hostname, InstanceId, Label, Policy, Share, State};

/// Maximum number of outstanding changes that are read, the latest first.
const MAX_OUTSTANDING: usize = 1000;
/// Maximum number of times that another client may change the promotion while it is recorded.
const ROUNDS: usize = 10;

/// How long replaced instances remain.
#[derive(Debug, Clone, Copy)]
pub struct PromotionTimes {
    /// Seconds in which they finish their requests and sessions.
    pub drain_seconds: u32,
    /// Seconds in which the promotion can be undone.
    pub undo_seconds: u32,
}

/// Everything about a host that a promotion depends on.
#[derive(Debug)]
struct Scene {
    stored: Vec<Stored>,
    /// What the table knows of `stored`, in its order.
    live: Vec<Live>,
    policy: Option<Policy>,
    promotion: Option<Wanted<Promotion>>,
    now_ms: u64,
}

/// What the host serves afterwards.
#[derive(Debug)]
struct Goal<'a> {
    version_types: &'a [Label],
    shares: Option<&'a Vec<Share>>,
    /// Whether instances that an operator drains are resumed as well.
    resumes_drained: bool,
}

/// The instances to resume and to drain.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    resume: Vec<InstanceId>,
    drain: Vec<InstanceId>,
    /// The version types that serve now, by weight.
    before: BTreeMap<Label, u32>,
    /// Those that serve afterwards, by weight.
    after: BTreeMap<Label, u32>,
}

impl Registry {
    /// Makes `version_type` the one that serves the host. If it is interrupted, it can be repeated.
    ///
    /// # Errors
    /// [`Error::CannotPromote`]; then nothing was changed.
    pub async fn promote(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        version_type: &Label,
        times: PromotionTimes,
    ) -> Result<PromotedHost, Error> {
        let goal =
            Goal { version_types: std::slice::from_ref(version_type), shares: None, resumes_drained: true };
        for _ in 0..ROUNDS {
            let scene = self.scene(caller, hostname).await?;
            let plan = plan(hostname, &goal, &scene)?;
            let promotion = scene.promotion.as_ref().map(|promotion| &promotion.value);
            let is_promoted = promotion.is_some_and(|one| one.version_type.as_ref() == Some(version_type));
            // A repetition of an interrupted promotion must not take the mix of that moment for what was served before.
            let is_interrupted =
                is_promoted && promotion.is_some_and(|one| one.pending && one.undone.is_none());
            if is_interrupted || is_promoted && plan.changes_nothing(&scene, &goal) {
                return self.bring_about(caller, hostname, &goal, times).await;
            }
            let before = Before {
                version_types: plan.before.keys().cloned().collect(),
                shares: scene.policy.as_ref().and_then(|policy| policy.shares.clone()),
                promoted: promotion.and_then(|promotion| promotion.version_type.clone()),
                until_ms: scene.now_ms + u64::from(times.undo_seconds) * 1000,
            };
            let next = promotion.cloned().unwrap_or_default().promote(version_type, scene.now_ms, before);
            if self.record(caller, hostname, &next, scene.promotion.as_ref()).await? {
                return self.bring_about(caller, hostname, &goal, times).await;
            }
        }
        Err(Error::Contended)
    }

    /// Serves what was served before `version_type` was promoted, at `at_ms` if it is given. Repeating it changes nothing.
    ///
    /// # Errors
    /// [`Error::NothingToUndo`], and [`Error::CannotPromote`] if the instances of that time cannot serve; then nothing was
    /// changed.
    pub async fn undo_promotion(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        version_type: &Label,
        at_ms: Option<u64>,
        times: PromotionTimes,
    ) -> Result<PromotedHost, Error> {
        let refused = |reason| Error::NothingToUndo {
            hostname: hostname.to_string(),
            version_type: version_type.as_str().to_owned(),
            reason,
        };
        for _ in 0..ROUNDS {
            let scene = self.scene(caller, hostname).await?;
            let Some(promotion) = &scene.promotion else { return Err(refused("nothing was promoted")) };
            let present = &promotion.value;
            let is_undone = present.undone.as_ref().is_some_and(|undone| {
                undone.version_type == *version_type && at_ms.is_none_or(|at_ms| at_ms == undone.at_ms)
            });
            if is_undone {
                let Some(before) = &present.before else { return self.unchanged(hostname, &scene).await };
                return self.bring_about(caller, hostname, &before.goal(), times).await;
            }
            let is_meant = present.version_type.as_ref() == Some(version_type)
                && at_ms.is_none_or(|at_ms| at_ms == present.at_ms);
            if !is_meant {
                return Err(refused("something else was promoted since"));
            }
            let Some(before) = present.undo(scene.now_ms) else {
                return Err(refused("the time in which it could be undone is over, or it was undone"));
            };
            plan(hostname, &before.goal(), &scene)?;
            let next = present.undoing(version_type, scene.now_ms, before);
            if self.record(caller, hostname, &next, Some(promotion)).await? {
                return self.bring_about(caller, hostname, &before.goal(), times).await;
            }
        }
        Err(Error::Contended)
    }

    /// Records a promotion in place of `before`; false if another client was faster.
    async fn record(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        next: &Promotion,
        before: Option<&Wanted<Promotion>>,
    ) -> Result<bool, Error> {
        let expected = before.map_or(0, |before| before.revision);
        Ok(self.set_resource(caller, hostname, Some(next), Some(expected)).await?.is_some())
    }

    /// Brings every instance into the state that the recorded promotion requires. Each step can be repeated; instances that
    /// drain already keep their deadlines.
    ///
    /// 1. If instances are to be resumed, requests are bound to the versions that serve now, unless the policy splits them
    ///    already. Otherwise the first one that is resumed would get more than its part.
    /// 2. Instances that serve from now on are resumed if they drain or stand by.
    /// 3. All requests move to them, in one change of the table.
    /// 4. The other instances are drained, and the policy gets the split of the goal.
    async fn bring_about(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        goal: &Goal<'_>,
        times: PromotionTimes,
    ) -> Result<PromotedHost, Error> {
        let scene = self.scene(caller, hostname).await?;
        let plan = plan(hostname, goal, &scene)?;
        let mut promoted = self.unchanged(hostname, &scene).await?;
        promoted.version_types = goal.version_types.iter().map(|one| one.as_str().to_owned()).collect();
        let is_split = scene.policy.as_ref().is_some_and(|policy| policy.shares.is_some());
        if plan.drain.is_empty() && goal.shares.is_some() {
            self.split(caller, hostname, |policy| policy.with_split(goal.shares.cloned())).await?;
        } else if !plan.drain.is_empty() && !plan.resume.is_empty() && !is_split {
            self.split(caller, hostname, |policy| policy.with_shares(&plan.before)).await?;
        }
        for id in &plan.resume {
            note(&mut promoted, self.resume(caller, id).await?);
            promoted.resumed.push(id.to_string());
        }
        if !plan.drain.is_empty() {
            let moved = self.split(caller, hostname, |policy| match goal.shares {
                Some(shares) => policy.with_split(Some(shares.clone())),
                None => policy.with_shares(&plan.after),
            });
            moved.await?;
        }
        let drained_ms = scene.now_ms + u64::from(times.drain_seconds) * 1000;
        let kept_ms = scene.now_ms + u64::from(times.undo_seconds.max(times.drain_seconds)) * 1000;
        for id in &plan.drain {
            match self.replace(caller, id, (drained_ms, kept_ms)).await {
                Ok(change) => {
                    note(&mut promoted, change);
                    promoted.drained.push(id.to_string());
                }
                // Removed in the meantime: that is drained enough.
                Err(Error::NoInstance(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let split = self.split(caller, hostname, |policy| policy.with_split(goal.shares.cloned())).await?;
        let split = split.filter(|split| split.changed);
        promoted.changed = split.is_some() || !promoted.resumed.is_empty() || !promoted.drained.is_empty();
        if let Some(split) = split {
            (promoted.serial, promoted.epoch) = (split.serial, split.epoch);
        }
        if let Some(Wanted { revision, value }) = scene.promotion
            && value.pending
        {
            // If another client changed it in the meantime, that change completes itself.
            let done = value.completed();
            self.set_resource(caller, hostname, Some(&done), Some(revision)).await?;
            promoted.changed = true;
        }
        Ok(promoted)
    }

    /// The host as it is.
    async fn unchanged(&self, hostname: &Hostname, scene: &Scene) -> Result<PromotedHost, Error> {
        let state = self.store.table_state().await?;
        let promotion = scene.promotion.as_ref().map(|promotion| &promotion.value);
        let version_type = promotion.and_then(|promotion| promotion.version_type.as_ref());
        let undo = promotion.and_then(|promotion| promotion.undo(scene.now_ms));
        let active = scene.stored.iter().filter(|one| is_active(one));
        let version_types: BTreeSet<&str> =
            active.map(|one| one.record.desired.spec.version_type_id.as_str()).collect();
        Ok(PromotedHost {
            hostname: hostname.to_string(),
            version_type_id: version_type.map(|one| one.as_str().to_owned()),
            version_types: version_types.into_iter().map(ToOwned::to_owned).collect(),
            resumed: Vec::new(),
            drained: Vec::new(),
            undo_until: undo.map(|before| Time::from_ms(before.until_ms)),
            changed: false,
            serial: state.serial,
            epoch: state.mark().map_or_else(String::new, |mark| mark.epoch),
        })
    }

    async fn scene(&self, caller: &Caller, hostname: &Hostname) -> Result<Scene, Error> {
        check_names(caller, std::slice::from_ref(hostname))?;
        let promotion = self.store.promotion(hostname).await?;
        let policy = self.store.policy(hostname).await?.map(|wanted| wanted.value);
        let stored = self.instances_of(hostname).await?;
        // All of it is allowed before any of it is done.
        stored.iter().try_for_each(|one| check_record(caller, &one.record))?;
        let ids: Vec<_> = stored.iter().map(|one| one.id.clone()).collect();
        let live = self.store.live(&ids).await?;
        let now_ms = self.store.table_now_ms().await?;
        Ok(Scene { stored, live, policy, promotion, now_ms })
    }

    /// Every instance that serves the host, including those that the table does not have yet, by ID.
    pub(super) async fn instances_of(&self, hostname: &Hostname) -> Result<Vec<Stored>, Error> {
        // In this order: an instance that is settled in between is in the table.
        let mut ids: BTreeSet<_> =
            self.store.outstanding_instances(MAX_OUTSTANDING).await?.into_iter().collect();
        for id in self.store.ids_of_host(hostname).await? {
            ids.insert(InstanceId::parse(&id)?);
        }
        let ids: Vec<_> = ids.into_iter().collect();
        let mut stored = self.store.stored_many(&ids).await?;
        stored.retain(|one| one.record.desired.spec.hostnames.contains(hostname));
        Ok(stored)
    }

    /// Changes the traffic split of the policy; `None` if nothing is to be changed.
    async fn split(
        &self,
        caller: &Caller,
        hostname: &Hostname,
        alter: impl Fn(Policy) -> Policy,
    ) -> Result<Option<ResourceChange>, Error> {
        let present = self.store.policy(hostname).await?.map(|wanted| wanted.value).unwrap_or_default();
        if alter(present.clone()) == present {
            return Ok(None);
        }
        let altered = self
            .alter_policy(caller, hostname, None, |before| Ok(alter(before.cloned().unwrap_or_default())));
        Ok(Some(altered.await?.change))
    }
}

impl Before {
    fn goal(&self) -> Goal<'_> {
        Goal { version_types: &self.version_types, shares: self.shares.as_ref(), resumes_drained: false }
    }
}

impl Plan {
    fn changes_nothing(&self, scene: &Scene, goal: &Goal<'_>) -> bool {
        let shares = scene.policy.as_ref().and_then(|policy| policy.shares.as_ref());
        self.resume.is_empty() && self.drain.is_empty() && shares == goal.shares
    }
}

fn note(promoted: &mut PromotedHost, change: RouteChange) {
    (promoted.serial, promoted.epoch) = (change.serial, change.epoch);
}

fn is_active(one: &Stored) -> bool {
    one.record.desired.state == State::Active
}

/// Decides, or returns why the goal cannot be reached.
fn plan(hostname: &Hostname, goal: &Goal<'_>, scene: &Scene) -> Result<Plan, Error> {
    let is_goal = |one: &Stored| goal.version_types.contains(&one.record.desired.spec.version_type_id);
    let drained_by_operator = |one: &Stored| {
        let desired = &one.record.desired;
        desired.state == State::Draining && desired.standby_until_ms.is_none()
    };
    // Those that serve afterwards.
    let is_new = |one: &&Stored| is_goal(one) && (goal.resumes_drained || !drained_by_operator(one));
    let new: Vec<&Stored> = scene.stored.iter().filter(is_new).collect();
    let refused = |reason| Error::CannotPromote {
        hostname: hostname.to_string(),
        version_type: goal.version_types.iter().map(Label::as_str).collect::<Vec<_>>().join(", "),
        reason,
    };
    if new.is_empty() {
        return Err(refused(NotPromoted::NoInstance));
    }
    let mut live = scene.stored.iter().zip(&scene.live);
    if !live.any(|(one, live)| is_new(&one) && live.unhealthy.is_none()) {
        return Err(refused(NotPromoted::Unhealthy));
    }
    let old = scene.stored.iter().filter(|one| !is_goal(one) && is_active(one));
    let old: Vec<&Stored> = old.collect();
    // An instance drains for all its names; each of them must keep another instance.
    let covered = |name: &&Hostname| new.iter().any(|one| one.record.desired.spec.hostnames.contains(name));
    let names = old.iter().flat_map(|one| &one.record.desired.spec.hostnames);
    let mut bare: Vec<String> = names.filter(|name| !covered(name)).map(ToString::to_string).collect();
    bare.sort_unstable();
    bare.dedup();
    if !bare.is_empty() {
        return Err(refused(NotPromoted::Incomplete(bare)));
    }
    let weights = |of: &mut dyn Iterator<Item = &Stored>| {
        let mut weights = BTreeMap::new();
        for spec in of.map(|one| &one.record.desired.spec) {
            *weights.entry(spec.version_type_id.clone()).or_default() += spec.weight;
        }
        weights
    };
    let resume = new.iter().filter(|one| !is_active(one));
    Ok(Plan {
        resume: resume.map(|one| one.id.clone()).collect(),
        drain: old.iter().map(|one| one.id.clone()).collect(),
        before: weights(&mut scene.stored.iter().filter(|one| is_active(one))),
        after: weights(&mut new.iter().copied()),
    })
}

/// Why a version type is not promoted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotPromoted {
    /// No instance of the version serves it.
    NoInstance,
    /// None of those that do is healthy.
    Unhealthy,
    /// The instances that would be drained also serve these names, and none of the version does.
    Incomplete(Vec<String>),
}

impl fmt::Display for NotPromoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInstance => f.write_str("no instance of it serves the host"),
            Self::Unhealthy => f.write_str("none of its instances is healthy"),
            Self::Incomplete(names) => {
                write!(f, "none of its instances serves {}", names.join(", "))
            }
        }
    }
}
