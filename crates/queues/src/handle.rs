//! The one door to the queues: for consumers and operators.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rand::RngExt as _;
use signalbox_daemon::traces::{self, Cause};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{
    Definition, Error, Options, Receipt, Taken,
    metrics::Metrics,
    store::{DeadLetter, PullCall, PullReply, Redriven, Store},
    waiting::{Notice, Waiting},
};
use signalbox_store::{Clock, Fabric, Shard};

/// The moment from which ids count, and how far they move in a millisecond. The bus, which knows queues and is not
/// known by them, gives the ids; the scripts here have the same numbers.
pub(super) const ID_EPOCH_MS: u64 = 1_704_067_200_000;
pub(super) const IDS_PER_MS: u64 = 6_400;
/// Dead letters that one call returns.
const REDRIVE_PART: u64 = 500;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The parameters of a pull.
#[derive(Debug, Clone, Copy)]
pub struct PullRequest<'a> {
    /// Most messages.
    pub most: usize,
    /// How long to wait for the first.
    pub wait: Duration,
    /// Acknowledge the messages on pull.
    pub auto_ack: bool,
    /// Pull messages of this environment only, regardless of turns.
    pub environment: Option<&'a str>,
}

/// The result of a pull.
#[derive(Debug, Clone, Default)]
pub struct Handed {
    /// The messages with their receipts, in the order of their turns.
    pub messages: Vec<(Receipt, Taken)>,
    /// How long until something may be pulled again, if nothing can be now and there is such a moment. In milliseconds.
    pub next_due_in_ms: Option<u64>,
}

/// A part of a list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// The position of the next part; `None` after the last part.
    pub next: Option<String>,
}

pub(crate) struct Inner {
    pub stores: Vec<Arc<Store>>,
    pub(super) options: Options,
    pub waiting: Waiting,
    pub(super) metrics: Metrics,
    /// The shard that the next pull begins with.
    turn: AtomicUsize,
    /// Cancelled to end waiting pulls.
    pub(super) closing: CancellationToken,
}

/// The queues, for everybody who pulls or asks. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("shards", &self.inner.stores.len()).finish_non_exhaustive()
    }
}

impl Handle {
    /// The queues of a fabric of `shards` shards. Waiting pulls end when `closing` is cancelled.
    pub fn new(redis: &Fabric, shards: usize, options: Options, closing: CancellationToken) -> Self {
        Self::assemble(Shard::all(redis, shards), &Clock::Server, options, closing)
    }

    /// The queues' data, shard by shard.
    pub fn stores(&self) -> &[Arc<Store>] {
        &self.inner.stores
    }

    /// How many pulls wait for messages in this process.
    pub fn waiting_pulls(&self) -> usize {
        self.inner.waiting.count()
    }

    /// Like [`Self::new`], with shards and a clock from the caller.
    pub fn assemble(shards: Vec<Shard>, clock: &Clock, options: Options, closing: CancellationToken) -> Self {
        let stores = shards.into_iter().map(|shard| Arc::new(Store::new(shard, clock.clone()))).collect();
        let inner = Inner {
            stores,
            options,
            waiting: Waiting::default(),
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

    /// Delivers messages, and waits for the first if that is wanted. `revision` is that of the queue's definition as the
    /// caller knows it.
    ///
    /// [`Error::NoSuchQueue`], [`Error::Behind`], [`Error::Busy`]; also when the fabric does not answer: then messages
    /// may have been leased without reaching the consumer, and become available again when their leases expire.
    pub async fn pull(&self, queue: &str, revision: u64, request: PullRequest<'_>) -> Result<Handed, Error> {
        let inner = &*self.inner;
        let place = waiting_place(queue, request.environment);
        if request.wait.is_zero() {
            let (handed, more) = self.pull_once(queue, revision, request).await?;
            if more {
                inner.waiting.wake(&place);
            }
            return Ok(handed);
        }
        let deadline = Instant::now() + request.wait;
        let slot = inner.waiting.acquire(&place, inner.options.waiting_pulls).ok_or(Error::Busy)?;
        let mut notice = None;
        loop {
            // Subscribes before it queries, so that no notification in between is missed.
            let mut woken = Box::pin(slot.notify.notified());
            woken.as_mut().enable();
            let (handed, more) = self.pull_once(queue, revision, request).await?;
            if let Some(notice) = notice.take() {
                Notice::acted(notice);
            }
            if more {
                inner.waiting.wake(&place);
            }
            if !handed.messages.is_empty() {
                return Ok(handed);
            }
            let woken = tokio::select! {
                woken = timeout_at(deadline, woken) => woken.is_ok(),
                () = inner.closing.cancelled() => false,
            };
            if !woken {
                return Ok(handed);
            }
            notice = Some(Notice::of(&slot));
        }
    }

    /// One round over the shards. Also whether there is more to be pulled now, as far as was seen.
    async fn pull_once(
        &self,
        queue: &str,
        revision: u64,
        request: PullRequest<'_>,
    ) -> Result<(Handed, bool), Error> {
        let span = traces::pull(queue);
        let pulled = self.pull_round(queue, revision, request).instrument(span.clone()).await;
        if let Ok((handed, _)) = &pulled
            && !span.is_none()
        {
            let causes: Vec<Cause> =
                handed.messages.iter().filter_map(|(_, taken)| Cause::at_end_of(&taken.body)).collect();
            traces::pulled(&span, handed.messages.len(), &causes);
        }
        pulled
    }

    async fn pull_round(
        &self,
        queue: &str,
        revision: u64,
        request: PullRequest<'_>,
    ) -> Result<(Handed, bool), Error> {
        let inner = &*self.inner;
        let shards = inner.stores.len();
        // Each pull begins with the next shard, so that no shard is always preferred.
        let first = inner.turn.fetch_add(1, Ordering::Relaxed);
        let nonce = nonce();
        let (mut handed, mut more, mut bytes) = (Handed::default(), false, 0);
        for shard in (0..shards).map(|n| (first + n) % shards) {
            let most = request.most - handed.messages.len();
            if most == 0 || bytes >= inner.options.pull_bytes {
                // The shard was not checked, so it may have messages.
                more = true;
                break;
            }
            let call = PullCall {
                queue,
                most,
                most_bytes: inner.options.pull_bytes - bytes,
                nonce: &nonce,
                auto_ack: request.auto_ack,
                revision,
                environment: request.environment,
                wait_ms: wait_ms(request.wait),
            };
            let pulled = match inner.stores[shard].pull(call).await {
                Ok(PullReply::Pulled(pulled)) => pulled,
                // Messages of an earlier shard go to the consumer; the next pull meets this error again.
                _ if !handed.messages.is_empty() => break,
                Ok(PullReply::Gone) => return Err(Error::NoSuchQueue),
                Ok(PullReply::Behind) => return Err(Error::Behind),
                Err(error) => return Err(error.into()),
            };
            if pulled.lost > 0 {
                tracing::error!(queue, lost = pulled.lost, "bodies of messages are no longer in the log");
            }
            more |= pulled.more;
            let due_in = pulled.next_due_ms.map(|due| due.saturating_sub(pulled.now_ms));
            handed.next_due_in_ms = [handed.next_due_in_ms, due_in].into_iter().flatten().min();
            for taken in pulled.messages {
                self.count_dwell(queue, pulled.now_ms, &taken);
                bytes += taken.body.len();
                let receipt = Receipt {
                    queue: queue.to_owned(),
                    shard,
                    id: taken.id,
                    attempt: taken.attempt,
                    until_ms: pulled.until_ms,
                    nonce: nonce.clone(),
                };
                handed.messages.push((receipt, taken));
            }
        }
        if !handed.messages.is_empty() {
            handed.next_due_in_ms = None;
        }
        inner.metrics.pulled(queue, handed.messages.len(), request.auto_ack);
        Ok((handed, more))
    }

    fn count_dwell(&self, queue: &str, now_ms: u64, taken: &Taken) {
        if taken.attempt == 1 {
            let accepted_ms = ID_EPOCH_MS + taken.id / IDS_PER_MS;
            let noisy = taken.backlog > self.inner.options.noisy_backlog;
            let dwell = Duration::from_millis(now_ms.saturating_sub(accepted_ms));
            self.inner.metrics.dwelt(queue, noisy, dwell.as_secs_f64());
        }
    }

    /// Messages that wait, without handing them out: the first of a facet, or the next of each in the order of turns.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn peek(
        &self,
        queue: &str,
        environment: Option<&str>,
        most: usize,
    ) -> Result<Vec<Taken>, Error> {
        let mut shown = Vec::new();
        for store in &self.inner.stores {
            let left = most - shown.len();
            if left == 0 {
                break;
            }
            shown.extend(store.peek(queue, environment, left, self.inner.options.pull_bytes).await?);
        }
        Ok(shown)
    }

    /// Drops the waiting and delayed messages of one facet or of all, not those in flight; returns their number.
    ///
    /// # Errors
    /// When the fabric does not answer: a part may have been dropped.
    pub async fn purge(&self, queue: &str, environment: Option<&str>) -> Result<u64, Error> {
        let mut dropped = 0;
        for store in &self.inner.stores {
            dropped += store.drop_delayed(queue, environment).await?;
            dropped += store.drop_waiting(queue, environment, None).await?;
        }
        Ok(dropped)
    }

    /// Drops everything of a facet, also what is in flight: its receipts are worth nothing afterwards. How many messages.
    ///
    /// # Errors
    /// When the fabric does not answer: a part may have been dropped.
    pub async fn drop_facet(&self, queue: &str, environment: &str) -> Result<u64, Error> {
        let mut dropped = 0;
        for store in &self.inner.stores {
            // Messages in flight first: one of them could be returned to the list that is dropped after it, and not
            // the other way round.
            dropped += store.drop_flying(queue, environment).await?;
        }
        Ok(dropped + self.purge(queue, Some(environment)).await?)
    }

    /// Dead letters, oldest first in each shard, after `after`, a value of [`Page::next`].
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn dead(&self, queue: &str, after: &str, limit: usize) -> Result<Page<DeadLetter>, Error> {
        let (mut shard, mut place) = after
            .split_once(':')
            .and_then(|(shard, place)| Some((shard.parse::<usize>().ok()?, place.parse::<u64>().ok()?)))
            .unwrap_or_default();
        let mut items = Vec::new();
        while let Some(store) = self.inner.stores.get(shard) {
            let wanted = (limit - items.len()) as u64;
            let letters = store.dead(queue, place, wanted).await?;
            place += letters.len() as u64;
            let through = (letters.len() as u64) < wanted;
            items.extend(letters);
            if !through {
                return Ok(Page { items, next: Some(format!("{shard}:{place}")) });
            }
            (shard, place) = (shard + 1, 0);
        }
        Ok(Page { items, next: None })
    }

    /// Puts all dead letters back into their facets; how many there were. `stamp` is the registry's that `definition` is
    /// of.
    ///
    /// # Errors
    /// [`Error::Stale`] when the registry has changed; also when the fabric does not answer. Messages that were
    /// returned stay so.
    pub async fn redrive(&self, queue: &str, stamp: &str, definition: &Definition) -> Result<u64, Error> {
        let mut put = 0;
        for store in &self.inner.stores {
            loop {
                match store.redrive(queue, stamp, definition, REDRIVE_PART).await? {
                    Redriven::Stale => return Err(Error::Stale),
                    Redriven::Put(part) => {
                        put += part;
                        if part < REDRIVE_PART {
                            break;
                        }
                    }
                }
            }
        }
        Ok(put)
    }

    /// Forgets all dead letters; how many there were.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn drop_dead(&self, queue: &str) -> Result<u64, Error> {
        let mut dropped = 0;
        for store in &self.inner.stores {
            dropped += store.drop_dead(queue).await?;
        }
        Ok(dropped)
    }

    /// Removes the metrics of a deleted queue.
    pub fn forget(&self, queue: &str) {
        self.inner.metrics.forget(queue);
    }

    /// All metrics of queues.
    ///
    /// # Errors
    /// Never, as strings take everything.
    pub async fn metrics_text(&self, queues: Vec<String>) -> Result<String, std::fmt::Error> {
        let names: Vec<&str> = queues.iter().map(String::as_str).collect();
        let numbers = self.numbers(&names).await;
        let numbers = numbers
            .inspect_err(|error| tracing::debug!(%error, "the numbers of the queues cannot be read now"))
            .map(|numbers| queues.iter().cloned().zip(numbers).collect::<Vec<_>>());
        self.inner.metrics.encode(self.inner.waiting.count(), numbers.as_deref().ok())
    }
}

/// The name under which a pull waits: the queue, or `queue|environment` for a pull of one environment. Neither name
/// contains `|`.
fn waiting_place<'a>(queue: &'a str, environment: Option<&str>) -> std::borrow::Cow<'a, str> {
    match environment {
        Some(environment) => format!("{queue}|{environment}").into(),
        None => queue.into(),
    }
}

/// How long scripts have to know of a waiting pull: somewhat longer than it waits.
fn wait_ms(wait: Duration) -> u64 {
    if wait.is_zero() {
        return 0;
    }
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX / 2).saturating_add(10_000)
}

/// Random characters of a pull, which make its receipts impossible to guess.
fn nonce() -> String {
    let mut rng = rand::rng();
    (0..16).map(|_| char::from(DIGITS[rng.random_range(0..DIGITS.len())])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_pulls_have_the_same_nonce() {
        let nonces: std::collections::BTreeSet<String> = (0..1000).map(|_| nonce()).collect();
        assert_eq!(nonces.len(), 1000);
        assert!(nonces.iter().all(|nonce| nonce.len() == 16 && !nonce.contains('~')));
    }
}
