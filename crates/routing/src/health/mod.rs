//! Active health checks: one pacemaker at a time checks each instance that has a health check, and stores the result in the
//! table.
//!
//! **Data.** Routes primary: `checks`, the IDs; in `instance:<id>` the record with its check, `unhealthy` (reason) and
//! `health_ms` (since when). The state is in the table: the next holder of the lease continues from it. Only results that
//! did not lead to a verdict yet are counted again from the start.
//!
//! ```text
//!  checks, instance:<id> ─▶ schedule.rs, places.rs ─▶ probe.rs ─▶ schedule.rs ─▶ health.lua
//!     ▲ read when the table has changed   a place     cut off at     n in a row     one serial each
//!     │                                               its timeout                    │
//!     └──────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Fabric: `routes:registrants`, because the places for checks are shared between the tokens that registered the instances.
//!
//! **Invariants.** An instance is checked by one prober, once at a time, at an address that the configured networks
//! allow. A verdict applies to the address that was checked. When more checks are due than may run concurrently, they
//! are delayed, not multiplied, and those of the tokens and hosts with most checks first. In the budget of outgoing calls, the
//! checks of each token have an owner of their own. The edge ensures that not too many instances of a host are excluded,
//! because it knows which others are left.
//!
//! **Failure.** Without the fabric no pacemaker holds the lease, and health stays as it is. Without the routes
//! primary, verdicts are repeated with each further check. The script rejects a prober that has lost its lease without
//! noticing.

mod places;
mod probe;
mod schedule;

use std::time::Duration;

use rand::RngExt as _;
use tokio::{
    task::JoinSet,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

pub(crate) use probe::Target;
pub(crate) use schedule::Listed;
use schedule::{Check, Schedule};

use super::{
    Error, Registry,
    store::{Diagnosed, Diagnosis, Fence},
};
use crate::metrics::Metrics;
use signalbox_egress::{Budget, Owner};
use signalbox_lease::Lease;

/// How often the list is read though nothing seems to have changed.
const REREAD: Duration = Duration::from_secs(60);

/// The service; [`Self::run`] it.
#[derive(Debug)]
pub struct Prober {
    registry: Registry,
    lease: Lease,
    interval: Duration,
    metrics: Metrics,
    budget: Budget,
    schedule: Schedule,
    under_way: JoinSet<Finished>,
    /// The head of the table at which the list was read, and when.
    read: Option<((String, u64, u64), Instant)>,
}

/// A check that has ended.
#[derive(Debug)]
struct Finished {
    check: Check,
    result: Result<(), String>,
}

impl Prober {
    /// `interval` is how often the lease is renewed and the table is read.
    pub fn new(registry: Registry, lease: Lease, interval: Duration, metrics: Metrics) -> Self {
        let budget = Budget::default();
        let (schedule, under_way) = (Schedule::new(budget.limits().health_checks()), JoinSet::new());
        Self { registry, lease, interval, metrics, budget, schedule, under_way, read: None }
    }

    /// Takes the place of each check from the budget of the process.
    #[must_use]
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.schedule = Schedule::new(budget.limits().health_checks());
        self.budget = budget;
        self
    }

    /// Runs until `shutdown`, then releases the lease.
    pub async fn run(mut self, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(self.turn()).await.is_some() {}
        self.under_way.abort_all();
        self.lease.release().await;
    }

    async fn turn(&mut self) {
        let until = Instant::now() + self.interval;
        match self.lease.hold().await {
            Ok(Some(epoch)) => {
                if let Err(error) = self.read_list().await {
                    tracing::debug!(%error, "instances to check not read; will be retried");
                }
                self.work(epoch, until).await;
            }
            Ok(None) => {
                self.rest();
                time::sleep_until(until).await;
            }
            Err(error) => {
                tracing::debug!(%error, "fabric unavailable; health checks paused");
                self.rest();
                time::sleep_until(until).await;
            }
        }
    }

    fn rest(&mut self) {
        self.schedule.clear();
        self.under_way.abort_all();
        self.read = None;
    }

    /// Reads the instances to check, if the table has changed since.
    async fn read_list(&mut self) -> Result<(), Error> {
        let head = self.registry.store().table_head().await?;
        let now = Instant::now();
        if self.read.as_ref().is_some_and(|(read, at)| *read == head && now < *at + REREAD) {
            return Ok(());
        }
        let mut list = self.registry.store().listed_for_checks().await?;
        // The configuration may have changed since the instance was registered.
        list.retain(|listed| self.registry.rules().may_check(&listed.target.address));
        self.schedule.update(list, now, throw);
        self.read = Some((head, now));
        Ok(())
    }

    /// Starts due checks and receives the results of ended ones, until `until`.
    async fn work(&mut self, epoch: u64, until: Instant) {
        loop {
            let now = Instant::now();
            while let Some(check) = self.schedule.take_due(now) {
                let (registry, budget) = (self.registry.clone(), self.budget.clone());
                self.under_way.spawn(async move {
                    let target = &check.target;
                    let owner = Owner::of(&check.token, "health checks");
                    let _place = budget.place(&owner, &target.address).await;
                    // Again, because the list may be older than what a name of a Redis server resolves to.
                    let result = if registry.rules().may_check(&target.address) {
                        probe::check(target).await
                    } else {
                        Err("its address is not allowed".to_owned())
                    };
                    Finished { check, result }
                });
            }
            let next = self.schedule.next_due(now).map_or(until, |due| due.min(until));
            tokio::select! {
                Some(ended) = self.under_way.join_next() => match ended {
                    Ok(finished) => self.hear(finished, epoch).await,
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => {
                        // Its place is not known, so all checks start again.
                        tracing::error!(%error, "health check panicked");
                        self.rest();
                    }
                },
                () = time::sleep_until(next) => {}
            }
            if Instant::now() >= until {
                return;
            }
        }
    }

    async fn hear(&mut self, finished: Finished, epoch: u64) {
        let Finished { check, result } = finished;
        self.metrics.checked(result.is_ok());
        let verdict = self.schedule.finished(&check, result.is_ok(), Instant::now(), throw());
        let Check { id, target, .. } = check;
        let Some(unhealthy) = verdict else { return };
        let reason = result.err().unwrap_or_default();
        let diagnosis =
            Diagnosis { id: &id, address: &target.address, unhealthy: unhealthy.then_some(&*reason) };
        match self.record(diagnosis, epoch).await {
            Ok(Diagnosed::Done { serial }) => {
                tracing::info!(%id, address = target.address, unhealthy, reason, serial, "instance health changed");
                self.read = None;
            }
            // The list is older than the table.
            Ok(Diagnosed::Same | Diagnosed::Gone) => self.read = None,
            Err(Error::Fenced { epoch }) => {
                self.lease.fenced(epoch);
                self.rest();
            }
            Err(error) => tracing::debug!(%id, %error, "instance health not stored; will be retried"),
        }
    }

    async fn record(&self, diagnosis: Diagnosis<'_>, epoch: u64) -> Result<Diagnosed, Error> {
        let Some(mark) = self.registry.store().table_state().await?.mark() else {
            return Err(Error::Resyncing { recorded: false });
        };
        let name = self.lease.name();
        let fence = Fence { lease: &name, epoch };
        self.registry.store().diagnose(diagnosis, &mark, fence).await
    }
}

/// Chance, in [0, 1).
fn throw() -> f64 {
    rand::rng().random()
}
