//! One pub/sub subscription, shared by all live streams.

use std::{sync::Arc, time::Duration};

use signalbox_store::Notice;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, broadcast, watch},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Position, entry::Entry, metrics::Metrics};
use signalbox_bus::{self as bus, EventId, Handle};

/// The number of events that are kept for clients that are slightly behind.
pub(super) const KEPT: usize = 4096;
/// How long a new stream waits for the subscription.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the subscription is kept without streams, so that clients can reconnect.
const LINGER: Duration = Duration::from_secs(10);
/// Maximum number of concurrent reads of the log.
const READS: usize = 2;
/// The pause between two attempts to read the position of the shards.
const PAUSE: Duration = Duration::from_millis(500);

/// A notification to all streams.
#[derive(Debug, Clone)]
pub(super) enum Heard {
    Event(Arc<Entry>),
    /// Events were missed and have to be read from the log.
    ReadTheLog,
}

/// Opens streams of events. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Hub {
    pub(super) bus: Handle,
    pub(super) metrics: Metrics,
    heard: broadcast::Sender<Heard>,
    /// Whether the subscription is active.
    standing: Arc<watch::Sender<bool>>,
    watchers: Arc<watch::Sender<usize>>,
    slots: Arc<Semaphore>,
    /// Limits concurrent reads of the log, so that many resuming clients do not delay publishers.
    pub(super) reads: Arc<Semaphore>,
}

/// One open stream; dropping it frees the slot.
#[derive(Debug)]
pub struct StreamSlot {
    watchers: Arc<watch::Sender<usize>>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.watchers.send_modify(|count| *count -= 1);
    }
}

/// Why a stream cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamLimit {
    /// The limit of open streams is reached.
    Full,
    /// The fabric is unavailable.
    Unavailable,
}

impl Hub {
    /// A hub for at most `slots` streams. It receives events while [`Self::run`] runs.
    pub fn new(bus: Handle, slots: usize) -> Self {
        Self {
            bus,
            metrics: Metrics::default(),
            heard: broadcast::channel(KEPT).0,
            standing: Arc::new(watch::channel(false).0),
            watchers: Arc::new(watch::channel(0).0),
            slots: Arc::new(Semaphore::new(slots)),
            reads: Arc::new(Semaphore::new(READS)),
        }
    }

    /// The metrics of streams in the text format of Prometheus.
    pub fn metrics_text(&self) -> Result<String, std::fmt::Error> {
        self.metrics.encode(*self.watchers.borrow())
    }

    /// Acquires a slot. The stream receives every event that is accepted after this returns.
    pub async fn acquire(&self) -> Result<StreamSlot, StreamLimit> {
        let permit = Arc::clone(&self.slots).try_acquire_owned().map_err(|_| StreamLimit::Full)?;
        self.watchers.send_modify(|count| *count += 1);
        let slot = StreamSlot { watchers: Arc::clone(&self.watchers), _permit: permit };
        let mut standing = self.standing.subscribe();
        match timeout(PATIENCE, standing.wait_for(|standing| *standing)).await {
            Ok(Ok(_)) => Ok(slot),
            _ => Err(StreamLimit::Unavailable),
        }
    }

    /// Receives all notifications from now on.
    pub(super) fn listen(&self) -> broadcast::Receiver<Heard> {
        self.heard.subscribe()
    }

    /// Subscribes to events while streams are open, until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut watchers = self.watchers.subscribe();
        loop {
            tokio::select! {
                ended = watchers.wait_for(|count| *count > 0) => if ended.is_err() { return },
                () = shutdown.cancelled() => return,
            }
            tokio::select! {
                () = self.relay() => {}
                () = self.no_watchers() => {}
                () = shutdown.cancelled() => return,
            }
            self.standing.send_replace(false);
        }
    }

    /// Returns when there have been no streams for [`LINGER`].
    async fn no_watchers(&self) {
        let mut watchers = self.watchers.subscribe();
        loop {
            if watchers.wait_for(|count| *count == 0).await.is_err() {
                return;
            }
            if timeout(LINGER, watchers.wait_for(|count| *count > 0)).await.is_err() {
                return;
            }
        }
    }

    /// Forwards published events, and detects missed ones.
    async fn relay(&self) {
        let mut notices = self.bus.live();
        let mut last = Position(vec![EventId(0); self.bus.shards()]);
        loop {
            match notices.next().await {
                Notice::Resumed => {
                    last = self.stand().await;
                    self.standing.send_replace(true);
                    let _ = self.heard.send(Heard::ReadTheLog);
                }
                Notice::Message { payload, .. } => {
                    let Some(entry) = Entry::read(payload) else { continue };
                    let Some(place) = last.0.get_mut(entry.shard()) else { continue };
                    if entry.id <= *place {
                        continue;
                    }
                    let missed = entry.last > *place;
                    *place = entry.id;
                    // The log contains this event, too.
                    let heard = if missed { Heard::ReadTheLog } else { Heard::Event(Arc::new(entry)) };
                    // Fails only if no stream is open.
                    let _ = self.heard.send(heard);
                }
            }
        }
    }

    /// The position of the shards, once all of them answer.
    async fn stand(&self) -> Position {
        loop {
            match self.position().await {
                Ok(position) => return position,
                Err(error) => {
                    tracing::debug!(%error, "the last event of a shard cannot be read, retrying");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// The number of shards of the fabric.
    pub fn shards(&self) -> usize {
        self.bus.shards()
    }

    /// The position after the latest event of each shard.
    pub async fn position(&self) -> Result<Position, bus::Error> {
        let mut ends = Vec::with_capacity(self.shards());
        for shard in 0..self.shards() {
            ends.push(self.bus.last_id(shard).await?.unwrap_or(EventId(0)));
        }
        Ok(Position(ends))
    }
}
