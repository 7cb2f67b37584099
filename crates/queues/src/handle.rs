//! The interface of the queues, for consumers and operators.

use std::sync::{Arc, atomic::AtomicUsize};

use tokio_util::sync::CancellationToken;

use super::{
    DeadCursor, DeadKey, Definition, Error, Options, Taken,
    metrics::Metrics,
    shared_calls::SharedCalls,
    store::{Store, Stored},
    waiting::Waiting,
};
use signalbox_store::{Clock, Fabric, PAGE_BYTES, Shard};

/// The start of the time that ids contain, and the number of ids per millisecond. The bus assigns ids; this
/// crate cannot depend on it, so it has its own copy of the numbers, and so do the scripts.
pub(super) const ID_EPOCH_MS: u64 = 1_704_067_200_000;
pub(super) const IDS_PER_MS: u64 = 6_400;

/// Which dead letters to redrive or to drop.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeadLetters<'a> {
    /// If set, only those of this tenant.
    pub tenant: Option<&'a str>,
    /// Only those with these ids; all if empty.
    pub ids: &'a [u64],
    /// Whether they are dropped instead of redriven.
    pub drop: bool,
    /// Messages to redrive per 1,000 seconds; all immediately if absent.
    pub rate: Option<u64>,
}

/// A page of a list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// The position of the next page; `None` after the last page.
    pub next: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub stores: Vec<Arc<Store>>,
    pub(super) options: Options,
    pub waiting: Waiting,
    pub(super) shared_calls: SharedCalls,
    pub(super) metrics: Metrics,
    /// The shard that the next pull starts with.
    pub(super) turn: AtomicUsize,
    /// Canceled to end waiting pulls.
    pub(super) closing: CancellationToken,
}

/// Gives access to the queues. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    pub(crate) inner: Arc<Inner>,
}

impl Handle {
    /// The queues of a fabric with this number of shards. Waiting pulls end when `closing` is canceled.
    pub fn new(redis: &Fabric, shards: usize, options: Options, closing: CancellationToken) -> Self {
        Self::assemble(Shard::all(redis, shards), &Clock::Server, options, closing)
    }

    /// The queues' data, one store per shard.
    pub fn stores(&self) -> &[Arc<Store>] {
        &self.inner.stores
    }

    /// The time of the fabric, in unix milliseconds.
    pub async fn now_ms(&self) -> Result<u64, Error> {
        match self.inner.stores.first() {
            Some(store) => Ok(store.now_ms().await?),
            None => Ok(0),
        }
    }

    /// The number of pulls in this process that wait for messages.
    pub fn waiting_pulls(&self) -> usize {
        self.inner.waiting.count()
    }

    /// Like [`Self::new`], with shards and a clock that the caller provides.
    pub fn assemble(shards: Vec<Shard>, clock: &Clock, options: Options, closing: CancellationToken) -> Self {
        let stores = shards.into_iter().map(|shard| Arc::new(Store::new(shard, clock.clone()))).collect();
        let inner = Inner {
            stores,
            options,
            waiting: Waiting::default(),
            shared_calls: SharedCalls::default(),
            metrics: Metrics::default(),
            turn: AtomicUsize::new(0),
            closing,
        };
        Self { inner: Arc::new(inner) }
    }

    /// The settings.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Reads waiting messages without leasing them: the first of one tenant, or the next of each in the
    /// order of turns.
    pub async fn peek(&self, queue: &str, tenant: Option<&str>, most: usize) -> Result<Vec<Taken>, Error> {
        let mut shown = Vec::new();
        for store in &self.inner.stores {
            let left = most - shown.len();
            if left == 0 {
                break;
            }
            let bytes: usize = shown.iter().map(|taken: &Taken| taken.body.len()).sum();
            let bytes = self.inner.options.pull_bytes.saturating_sub(bytes);
            shown.extend(store.peek(queue, tenant, left, bytes).await?);
        }
        Ok(shown)
    }

    /// Drops the waiting and delayed messages of one tenant or of all, but not those in flight. Returns their
    /// number.
    ///
    /// # Errors
    /// If the fabric does not answer. A part may have been dropped.
    pub async fn purge(&self, queue: &str, tenant: Option<&str>) -> Result<u64, Error> {
        let mut dropped = 0;
        for store in &self.inner.stores {
            dropped += store.drop_delayed(queue, tenant).await?;
            dropped += store.drop_waiting(queue, tenant).await?;
        }
        Ok(dropped)
    }

    /// Drops all messages of a tenant, including those in flight, whose receipts become invalid. Returns their
    /// number.
    ///
    /// # Errors
    /// If the fabric does not answer. A part may have been dropped.
    pub async fn drop_tenant(&self, queue: &str, tenant: &str) -> Result<u64, Error> {
        let mut dropped = 0;
        for store in &self.inner.stores {
            // Messages in flight are dropped first: one of them could be returned to the waiting list, which
            // is dropped afterwards.
            dropped += store.drop_flying(queue, tenant).await?;
        }
        Ok(dropped + self.purge(queue, Some(tenant)).await?)
    }

    /// Reads dead letters, oldest first in each shard, after the position `after`, a value of [`Page::next`]. A page has at most
    /// `limit`, and fewer if they are large.
    pub async fn dead(&self, queue: &str, after: &str, limit: usize) -> Result<Page<Stored>, Error> {
        let stores = &self.inner.stores;
        let mut at = match after {
            "" => DeadCursor::default(),
            after => DeadCursor::parse(after, stores.len()).ok_or(Error::InvalidCursor)?,
        };
        let (mut items, mut bytes) = (Vec::new(), PAGE_BYTES);
        while let Some(store) = stores.get(at.shard) {
            let wanted = (limit - items.len()) as u64;
            let keys = |from, count| async move {
                let letters = store.dead_part(queue, from, count).await?;
                Ok::<_, Error>(letters.iter().map(|letter| dead_key(letter.as_ref())).collect())
            };
            let place = at.find(keys).await?;
            let (letters, is_last) = store.dead(queue, place, wanted, &mut bytes).await?;
            at.advance(place, letters.iter().map(|letter| dead_key(letter.as_ref())));
            items.extend(letters.into_iter().flatten());
            if !is_last {
                return Ok(Page { items, next: Some(at.to_string()) });
            }
            at.next_shard();
        }
        Ok(Page { items, next: None })
    }

    /// Redrives dead letters, or drops them. Returns their number. `definition` must come from the registry
    /// with this `stamp`.
    ///
    /// # Errors
    /// [`Error::Stale`] if the registry has changed; also if the fabric does not answer. Letters that were
    /// already redriven or dropped remain so.
    pub async fn take_dead(
        &self,
        queue: &str,
        stamp: &str,
        definition: &Definition,
        wanted: DeadLetters<'_>,
    ) -> Result<u64, Error> {
        let mut before = 0;
        for store in &self.inner.stores {
            let mut from = Some((0, String::new()));
            while let Some(place) = from {
                let part = store.take_dead(queue, stamp, definition, wanted, before, &place).await?;
                let (taken, next) = part.ok_or(Error::Stale)?;
                before += taken;
                from = next;
            }
        }
        Ok(before)
    }

    /// Removes the metrics of a deleted queue.
    pub fn forget(&self, queue: &str) {
        self.inner.metrics.forget(queue);
    }

    /// Encodes all metrics of queues.
    pub async fn metrics_text(&self, queues: Vec<String>) -> Result<String, std::fmt::Error> {
        let names: Vec<&str> = queues.iter().map(String::as_str).collect();
        let numbers = self.numbers(&names).await;
        let numbers = numbers
            .inspect_err(|error| tracing::debug!(%error, "statistics of queues not read"))
            .map(|numbers| queues.iter().cloned().zip(numbers).collect::<Vec<_>>());
        self.inner.metrics.encode(self.inner.waiting.count(), numbers.as_deref().ok())
    }
}

/// Identifies a dead letter; `None` if it is not readable.
fn dead_key(letter: Option<&Stored>) -> Option<DeadKey> {
    letter.map(|letter| (letter.at_ms.unwrap_or_default(), letter.message.id))
}
