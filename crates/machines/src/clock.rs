//! The fabric's clock, because the clocks of two pacemakers differ. It is read from the server only every few seconds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::store::Shards;

/// How long a reading of the server's clock is used before it is read again.
const READING_LIFETIME: Duration = Duration::from_secs(10);

/// Returns the time in Unix milliseconds, and never goes back. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    source: signalbox_store::Clock,
    shards: Shards,
    reading: Arc<Reading>,
}

#[derive(Debug, Default)]
struct Reading {
    /// When the server's clock was read, and what it showed.
    last: Mutex<Option<(Instant, u64)>>,
    /// The latest time that was returned.
    latest_ms: AtomicU64,
}

impl Clock {
    /// A clock that follows `source`, on the first shard.
    pub(crate) fn new(source: signalbox_store::Clock, shards: Shards) -> Self {
        Self { source, shards, reading: Arc::default() }
    }

    /// The time in Unix milliseconds.
    pub(crate) async fn now_ms(&self) -> Result<u64, signalbox_store::Error> {
        if let signalbox_store::Clock::Fixed(now_ms) = &self.source {
            return Ok(now_ms.load(Ordering::SeqCst));
        }
        let known = *self.reading.last.lock();
        let (read_at, server_ms) = match known.filter(|(read_at, _)| read_at.elapsed() < READING_LIFETIME) {
            Some(known) => known,
            None => {
                let server_ms = self.source.now_ms(self.shards.redis(0)).await?;
                let known = (Instant::now(), server_ms);
                *self.reading.last.lock() = Some(known);
                known
            }
        };
        let now_ms = server_ms + u64::try_from(read_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(self.reading.latest_ms.fetch_max(now_ms, Ordering::SeqCst).max(now_ms))
    }
}
