//! Leases: work that one of several pacemakers does at a time.
//!
//! A lease is a hash in the fabric (`lease:<name>`: holder, expiry by the fabric's clock, fencing epoch). A process that
//! takes it over raises the epoch. Every script that acts for the holder passes the epoch, and rejects one that is lower
//! than the highest it has seen. A holder that was suspended until its lease expired can therefore do no harm when it
//! resumes: it may be late, but it cannot be wrong.
//!
//! The holder asks for its lease before each piece of work. The fabric is asked only after a third of the lease has
//! passed, so a task that runs every second does not cost a command every second. If a holder crashes, another process
//! takes over when the lease expires; a holder that shuts down releases it. A fabric that was replaced starts its epochs
//! again; the first rejection reports the epoch that the next one must exceed.

mod store;

use std::{sync::Arc, time::Duration};

use signalbox_store::{self as redis, Fabric};
use tokio::time::Instant;

/// The lease is renewed after this fraction of it has passed.
const RENEW_AFTER: u32 = 3;

/// This process's participation in one lease.
#[derive(Debug)]
pub struct Lease {
    fabric: Fabric,
    name: Arc<str>,
    who: String,
    ttl: Duration,
    floor: u64,
    /// The epoch of this process, and the time at which it requested the lease.
    held: Option<(u64, Instant)>,
    /// Replaces the fabric's clock in tests.
    clock_ms: Option<u64>,
}

impl Lease {
    /// `who` must be unique among all processes, including restarts of the same one.
    pub fn new(fabric: Fabric, name: impl Into<Arc<str>>, who: String, ttl: Duration) -> Self {
        Self { fabric, name: name.into(), who, ttl, floor: 0, held: None, clock_ms: None }
    }

    /// The name of the lease in scripts.
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Acquires or renews the lease. Returns its epoch, or `None` while another process holds it.
    pub async fn hold(&mut self) -> Result<Option<u64>, redis::Error> {
        let asked = Instant::now();
        if let Some((epoch, since)) = self.held
            && self.clock_ms.is_none()
            && asked.duration_since(since) < self.ttl / RENEW_AFTER
        {
            return Ok(Some(epoch));
        }
        self.held = None;
        let held =
            store::hold(&self.fabric, &self.name, &self.who, self.ttl, self.floor, self.clock_ms).await?;
        // Measured from before the call, because the lease began after that time.
        self.held = held.map(|epoch| (epoch, asked));
        Ok(held)
    }

    /// Records that a script rejected this process's epoch because it has seen `epoch`. The next epoch will
    /// be higher.
    pub fn fenced(&mut self, epoch: u64) {
        tracing::warn!(lease = &*self.name, epoch, "lease lost to another pacemaker");
        self.floor = self.floor.max(epoch);
        self.held = None;
    }

    /// Releases the lease, so that another process can acquire it immediately.
    pub async fn release(&mut self) {
        self.held = None;
        if let Err(error) = store::release(&self.fabric, &self.name, &self.who).await {
            tracing::debug!(lease = &*self.name, %error, "lease not released; it will expire");
        }
    }

    #[cfg(test)]
    pub(crate) fn at(mut self, now_ms: u64) -> Self {
        self.clock_ms = Some(now_ms);
        self
    }
}

#[cfg(test)]
mod tests;
