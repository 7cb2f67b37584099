//! Singleton duties: work that one of several pacemakers does at a time.
//!
//! A duty is a lease in the fabric (`duty:<name>`: holder, end by the fabric's clock, fencing epoch). Whoever takes it
//! over raises the epoch; every script that acts in a duty's name carries it, and refuses one lower than it has seen.
//! So a holder that slept through its lease can do no harm when it wakes: being late is allowed, being wrong is not.
//!
//! Asked for before each piece of work; the fabric is asked only when a third of the lease is over, so a duty that is
//! looked after every second does not cost a command every second. A crashed holder is followed after its lease; one that shuts down
//! gives it back. A fabric that was replaced starts its epochs anew; the first refusal tells the floor to begin from.

mod store;

use std::{sync::Arc, time::Duration};

use signalbox_store::{self as redis, Fabric};
use tokio::time::Instant;

/// Which part of the lease may be over before it is renewed.
const RENEW_AFTER: u32 = 3;

/// One pacemaker's side of one duty.
#[derive(Debug)]
pub struct Lease {
    fabric: Fabric,
    name: Arc<str>,
    who: String,
    ttl: Duration,
    floor: u64,
    /// Our epoch, and when we asked for it.
    held: Option<(u64, Instant)>,
    /// Replaces the fabric's clock in tests.
    clock_ms: Option<u64>,
}

impl Lease {
    /// `who` must be unique among all processes, also among incarnations of one.
    pub fn new(fabric: Fabric, name: impl Into<Arc<str>>, who: String, ttl: Duration) -> Self {
        Self { fabric, name: name.into(), who, ttl, floor: 0, held: None, clock_ms: None }
    }

    /// The duty's name, as scripts know it.
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Takes or renews the duty: its epoch, or nothing while another holds it.
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
        // Counted from before the call: the lease began later.
        self.held = held.map(|epoch| (epoch, asked));
        Ok(held)
    }

    /// A script refused our epoch because it has seen `epoch`: the next time we hold the duty, ours is above.
    pub fn fenced(&mut self, epoch: u64) {
        tracing::warn!(lease = &*self.name, epoch, "another pacemaker took the duty over");
        self.floor = self.floor.max(epoch);
        self.held = None;
    }

    /// Gives the duty back.
    pub async fn release(&mut self) {
        self.held = None;
        if let Err(error) = store::release(&self.fabric, &self.name, &self.who).await {
            tracing::debug!(lease = &*self.name, %error, "the duty was not given back and will lapse");
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
