//! Ends leases and drains.
//!
//! One pacemaker sweeps at a time. The deadlines and the clock they are compared with are the routes primary's, so
//! pacemakers' clocks do not matter; the check and the removal are one script there. So a heartbeat is either
//! executed before the script and has an effect, or after it and is rejected with `unknown_instance`.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Notify,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

use super::{
    Error, Registry,
    store::{Due, Fence, TableMark},
};
use crate::metrics::Metrics;
use signalbox_lease::Lease;
use signalbox_route_table::InstanceId;

/// Maximum number of ended leases, and of ended drains, that one check returns.
const BATCH: usize = 200;
/// How often in [`Sweeper::gap`] the sweeper checks that the fabric knows the table. While it does not, no heartbeat is
/// accepted, and sweeps would hide the absence that restarts the leases.
const CHECKS_IN_GAP: u32 = 2;

/// The service; [`Self::run`] it.
#[derive(Debug)]
pub struct Sweeper {
    registry: Registry,
    lease: Lease,
    interval: Duration,
    gap: Duration,
    nudge: Arc<Notify>,
    metrics: Metrics,
    /// When the fabric was last seen to know the table.
    known: Option<Instant>,
}

impl Sweeper {
    /// `gap` is the silence that is treated as absence of all pacemakers; `nudge` wakes the reconciler.
    pub fn new(
        registry: Registry,
        lease: Lease,
        interval: Duration,
        gap: Duration,
        nudge: Arc<Notify>,
        metrics: Metrics,
    ) -> Self {
        Self { registry, lease, interval, gap, nudge, metrics, known: None }
    }

    /// Runs until `shutdown`, then releases the lease.
    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            match self.lease.hold().await {
                Ok(Some(epoch)) => match self.pass(epoch).await {
                    Ok(_) => {}
                    Err(Error::Fenced { epoch }) => self.lease.fenced(epoch),
                    Err(error) => tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "sweep failed; it will be retried"
                    ),
                },
                Ok(None) => self.show_presence().await,
                Err(error) => tracing::debug!(%error, "fabric unavailable; nothing expires"),
            }
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = time::sleep(self.interval) => {}
            }
        }
        self.lease.release().await;
    }

    fn gap_ms(&self) -> u64 {
        u64::try_from(self.gap.as_millis()).unwrap_or(u64::MAX)
    }

    /// Lets the table know that a pacemaker is there to take heartbeats, though another one sweeps.
    async fn show_presence(&self) {
        if let Err(error) = self.registry.store().sweep(0, self.gap_ms(), 0).await {
            tracing::debug!(%error, "routes primary unavailable");
        }
    }

    /// The table that changes have to expect. If the fabric knows none, the reconciler is asked to look.
    async fn mark(&mut self) -> Result<Option<TableMark>, Error> {
        let mark = self.registry.store().table_mark().await?;
        self.known = mark.as_ref().map(|_| Instant::now());
        if mark.is_none() {
            self.nudge.notify_one();
        }
        Ok(mark)
    }

    /// One sweep under the lease's fencing `epoch`; how many instances ended.
    pub(crate) async fn pass(&mut self, epoch: u64) -> Result<usize, Error> {
        let is_known = self.known.is_some_and(|at| at.elapsed() < self.gap / CHECKS_IN_GAP);
        if !is_known && self.mark().await?.is_none() {
            return Ok(0);
        }
        let Due { after_absence, ids } = self.registry.store().sweep(epoch, self.gap_ms(), BATCH).await?;
        if after_absence {
            tracing::info!("leases restarted because no pacemaker had swept for a while");
        }
        if ids.is_empty() {
            return Ok(0);
        }
        let Some(mark) = self.mark().await? else { return Ok(0) };
        let now_ms = self.registry.store().table_now_ms().await?;
        let name = self.lease.name();
        let fence = Fence { lease: &name, epoch };
        let mut ended = 0;
        for id in ids {
            if let Some(change) = self.registry.expire(&InstanceId::parse(&id)?, &mark, fence, now_ms).await?
            {
                self.metrics.expired(change.kind.as_str());
                ended += 1;
            }
        }
        Ok(ended)
    }
}
