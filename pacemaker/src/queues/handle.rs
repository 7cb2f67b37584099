//! The one door to the queues: for consumers and operators.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rand::RngExt as _;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    Definition, Error, Options, Receipt, Taken,
    metrics::Metrics,
    store::{Clock, DeadLetter, FacetRow, Nacked, PullCall, PullReply, Redriven, Store},
    waiting::{Notice, Waiting},
};
use signalbox_store::{Fabric, Shard};

/// The moment from which ids count, and how far they move in a millisecond. The bus, which knows queues and is not
/// known by them, gives the ids; the scripts here have the same numbers.
const ID_EPOCH_MS: u64 = 1_704_067_200_000;
const IDS_PER_MS: u64 = 6_400;
/// Ids in one segment of the log.
const SEGMENT_IDS: u64 = 64_000_000;
/// Dead letters that one call puts back.
const REDRIVE_PART: u64 = 500;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// What a consumer asks for.
#[derive(Debug, Clone, Copy)]
pub struct PullRequest {
    /// Most messages.
    pub most: usize,
    /// How long to wait for the first.
    pub wait: Duration,
    /// Forget the messages at once.
    pub auto_ack: bool,
}

/// What a consumer gets.
#[derive(Debug, Clone, Default)]
pub struct Handed {
    /// The messages with their receipts, in the order of their turns.
    pub messages: Vec<(Receipt, Taken)>,
    /// How long until something may be pulled again, if nothing can be now and there is such a moment. In milliseconds.
    pub next_due_in_ms: Option<u64>,
}

/// What became of a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The message is forgotten.
    Acked,
    /// The message waits at the head of its facet.
    Back,
    /// The message waits for its delay.
    Delayed,
    /// The message was handed out often enough and is a dead letter.
    Dead,
    /// The lease ends at this moment, unix milliseconds of the shard's clock.
    Extended(u64),
    /// This is no receipt.
    Malformed,
    /// The receipt is of another queue.
    OtherQueue,
    /// The receipt was used before.
    Used,
    /// The lease is over, and the message went back to its queue or was settled since.
    Expired,
}

/// Numbers of a queue, over all shards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueNumbers {
    /// Messages that wait.
    pub waiting: u64,
    /// Messages that were handed out and not settled.
    pub in_flight: u64,
    /// Messages that were given back with a delay.
    pub delayed: u64,
    /// Dead letters.
    pub dead: u64,
    /// Environments with messages. One with messages in several shards counts in each.
    pub facets: u64,
    /// Messages that came in, in all.
    pub pushed: u64,
    /// Messages that were handed out, in all.
    pub pulled: u64,
    /// Messages that were acknowledged, in all.
    pub acked: u64,
    /// Messages that were given back, in all.
    pub nacked: u64,
    /// Messages whose lease ended, in all.
    pub expired: u64,
    /// Messages that became dead letters, in all.
    pub died: u64,
    /// Dead letters that were put back, in all.
    pub redriven: u64,
    /// Messages that were dropped, in all.
    pub dropped: u64,
    /// Messages whose bodies were not in the log any more, in all.
    pub lost: u64,
}

impl QueueNumbers {
    /// What happened in all, by name.
    pub(super) fn moved(&self) -> [(&'static str, u64); 9] {
        [
            ("pushed", self.pushed),
            ("pulled", self.pulled),
            ("acked", self.acked),
            ("nacked", self.nacked),
            ("expired", self.expired),
            ("died", self.died),
            ("redriven", self.redriven),
            ("dropped", self.dropped),
            ("lost", self.lost),
        ]
    }

    fn add(&mut self, numbers: &BTreeMap<String, u64>, facets: u64, dead: u64) {
        let of = |name: &str| numbers.get(name).copied().unwrap_or_default();
        self.waiting += of("waiting");
        self.in_flight += of("inflight");
        self.delayed += of("delayed");
        self.pushed += of("pushed");
        self.pulled += of("pulled");
        self.acked += of("acked");
        self.nacked += of("nacked");
        self.expired += of("expired");
        self.died += of("died");
        self.redriven += of("redriven");
        self.dropped += of("dropped");
        self.lost += of("lost");
        self.facets += facets;
        self.dead += dead;
    }
}

/// A facet, over all shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FacetStatus {
    /// The environment.
    pub environment: String,
    /// Messages in a turn; 0 is paused.
    pub weight: u32,
    /// Messages that wait.
    pub waiting: u64,
    /// Messages that were handed out and not settled.
    pub in_flight: u64,
    /// Messages that were given back with a delay.
    pub delayed: u64,
    /// How long ago the message at its head was accepted.
    pub oldest_age_ms: Option<u64>,
    /// The mean time from acceptance to the first pull of its latest messages (an exponential mean of about eight).
    pub dwell_ms: Option<u64>,
}

/// A part of a list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Behind what the next part begins; nothing when this is the last.
    pub next: Option<String>,
}

pub(super) struct Inner {
    pub(super) stores: Vec<Arc<Store>>,
    pub(super) options: Options,
    pub(super) waiting: Waiting,
    pub(super) metrics: Metrics,
    /// The shard that the next pull begins with.
    turn: AtomicUsize,
    /// Cancelled when pulls that wait must come to an end.
    pub(super) closing: CancellationToken,
}

/// The queues, for everybody who pulls or asks. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(super) inner: Arc<Inner>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("shards", &self.inner.stores.len()).finish_non_exhaustive()
    }
}

impl Handle {
    /// The queues of a fabric of `shards` shards. Waiting pulls end when `closing` is cancelled.
    pub fn new(redis: &Fabric, shards: usize, options: Options, closing: CancellationToken) -> Self {
        Self::assemble(Shard::all(redis, shards), &Clock::Redis, options, closing)
    }

    pub(super) fn assemble(
        shards: Vec<Shard>,
        clock: &Clock,
        options: Options,
        closing: CancellationToken,
    ) -> Self {
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

    /// Hands out messages, and waits for the first if that is wanted. `revision` is that of the queue's definition as the
    /// caller knows it.
    ///
    /// # Errors
    /// [`Error::NoSuchQueue`], [`Error::Behind`], [`Error::Busy`]; else when the fabric does not answer: then messages
    /// may have been handed out to nobody, and come back when their leases end.
    pub async fn pull(&self, queue: &str, revision: u64, request: PullRequest) -> Result<Handed, Error> {
        let inner = &*self.inner;
        if request.wait.is_zero() {
            let (handed, more) = self.pull_once(queue, revision, request).await?;
            if more {
                inner.waiting.wake(queue);
            }
            return Ok(handed);
        }
        let deadline = Instant::now() + request.wait;
        let seat = inner.waiting.sit(queue, inner.options.waiting_pulls).ok_or(Error::Busy)?;
        let mut notice = None;
        loop {
            // Listening before looking: what comes in between is heard.
            let mut woken = Box::pin(seat.notify.notified());
            woken.as_mut().enable();
            let (handed, more) = self.pull_once(queue, revision, request).await?;
            if let Some(notice) = notice.take() {
                Notice::acted(notice);
            }
            if more {
                inner.waiting.wake(queue);
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
            notice = Some(Notice::of(&seat));
        }
    }

    /// One round over the shards. Also whether there is more to be pulled now, as far as was seen.
    async fn pull_once(
        &self,
        queue: &str,
        revision: u64,
        request: PullRequest,
    ) -> Result<(Handed, bool), Error> {
        let inner = &*self.inner;
        let shards = inner.stores.len();
        // Each pull begins with the next shard, so that none comes first for ever.
        let first = inner.turn.fetch_add(1, Ordering::Relaxed);
        let nonce = nonce();
        let (mut handed, mut more, mut bytes) = (Handed::default(), false, 0);
        for shard in (0..shards).map(|n| (first + n) % shards) {
            let most = request.most - handed.messages.len();
            if most == 0 || bytes >= inner.options.pull_bytes {
                // Nobody looked there, so there may be something.
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
            };
            let pulled = match inner.stores[shard].pull(call).await {
                Ok(PullReply::Pulled(pulled)) => pulled,
                // What an earlier shard handed out goes to the consumer; whoever asks next meets this again.
                _ if !handed.messages.is_empty() => break,
                Ok(PullReply::Gone) => return Err(Error::NoSuchQueue),
                Ok(PullReply::Behind) => return Err(Error::Behind),
                Err(error) => return Err(error.into()),
            };
            if pulled.lost > 0 {
                tracing::error!(queue, lost = pulled.lost, "bodies of messages are not in the log any more");
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

    /// Forgets messages; what became of each receipt.
    ///
    /// # Errors
    /// When the fabric does not answer. It can be repeated: what was acknowledged then says that it was used.
    pub async fn ack(&self, queue: &str, receipts: &[&str]) -> Result<Vec<Settled>, Error> {
        self.settle(queue, receipts, Action::Ack).await
    }

    /// Gives messages back, at once or after `delay`; what became of each receipt.
    ///
    /// # Errors
    /// When the fabric does not answer. It can be repeated.
    pub async fn nack(&self, queue: &str, delay_ms: u64, receipts: &[&str]) -> Result<Vec<Settled>, Error> {
        let keep_dead = self.inner.options.dead_messages;
        self.settle(queue, receipts, Action::Nack { delay_ms, keep_dead }).await
    }

    /// Makes leases end `lease_ms` from now; what became of each receipt.
    ///
    /// # Errors
    /// When the fabric does not answer. It can be repeated.
    pub async fn extend(&self, queue: &str, lease_ms: u64, receipts: &[&str]) -> Result<Vec<Settled>, Error> {
        self.settle(queue, receipts, Action::Extend { lease_ms }).await
    }

    /// Reads receipts, settles those of each shard, and says of those that were not held why.
    async fn settle(&self, queue: &str, receipts: &[&str], action: Action) -> Result<Vec<Settled>, Error> {
        let stores = &self.inner.stores;
        let mut answers = vec![Settled::Malformed; receipts.len()];
        let mut by_shard: BTreeMap<usize, Vec<(usize, Receipt)>> = BTreeMap::new();
        for (place, text) in receipts.iter().enumerate() {
            match text.parse::<Receipt>() {
                Ok(receipt) if receipt.queue != queue => answers[place] = Settled::OtherQueue,
                Ok(receipt) if receipt.shard < stores.len() => {
                    by_shard.entry(receipt.shard).or_default().push((place, receipt));
                }
                _ => {}
            }
        }
        for (shard, receipts) in by_shard {
            let held: Vec<(u64, &str)> = receipts.iter().map(|(_, one)| (one.id, &*one.nonce)).collect();
            let found = action.carry_out(&stores[shard], queue, &held).await?;
            let mut now_ms = None;
            for ((place, receipt), found) in receipts.iter().zip(found) {
                answers[*place] = match found {
                    Some(settled) => settled,
                    None => {
                        let now = match now_ms {
                            Some(now) => now,
                            None => *now_ms.insert(stores[shard].now_ms().await?),
                        };
                        if receipt.until_ms <= now { Settled::Expired } else { Settled::Used }
                    }
                };
            }
        }
        for settled in &answers {
            self.inner.metrics.settled(queue, settled.result(), 1);
        }
        Ok(answers)
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

    /// Numbers of queues.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn numbers(&self, queues: &[&str]) -> Result<Vec<QueueNumbers>, Error> {
        let mut numbers = vec![QueueNumbers::default(); queues.len()];
        for store in &self.inner.stores {
            for (sum, counts) in numbers.iter_mut().zip(store.counts(queues).await?) {
                sum.add(&counts.numbers, counts.facets, counts.dead);
            }
        }
        Ok(numbers)
    }

    /// Facets in the order of their names, those behind `after`.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn facets(&self, queue: &str, after: &str, limit: usize) -> Result<Page<FacetStatus>, Error> {
        let mut names = std::collections::BTreeSet::new();
        for store in &self.inner.stores {
            names.extend(store.facets_after(queue, after, limit + 1).await?);
        }
        let more = names.len() > limit;
        let names: Vec<String> = names.into_iter().take(limit).collect();
        let next = if more { names.last().cloned() } else { None };
        Ok(Page { items: self.facets_named(queue, &names).await?, next })
    }

    /// Facets by name; those without messages are left out.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn facets_named(&self, queue: &str, names: &[String]) -> Result<Vec<FacetStatus>, Error> {
        let mut facets: Vec<Option<FacetStatus>> = vec![None; names.len()];
        for store in &self.inner.stores {
            let now_ms = store.now_ms().await?;
            for ((name, sum), row) in names.iter().zip(&mut facets).zip(store.facets(queue, names).await?) {
                add_facet(sum, name, &row, now_ms);
            }
        }
        Ok(facets.into_iter().flatten().collect())
    }

    /// Drops what waits or is delayed, in one facet or in all; what is in flight stays. How many messages.
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
            // What is in flight first: it could come back to what is dropped after it, and not the other way round.
            dropped += store.drop_flying(queue, environment).await?;
        }
        Ok(dropped + self.purge(queue, Some(environment)).await?)
    }

    /// Dead letters, oldest first in each shard, from `after` on: what [`Page::next`] told.
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
    /// [`Error::Stale`] when the registry moved on; else when the fabric does not answer. What was put back stays so.
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

    /// A queue is gone: what was counted of it is forgotten.
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
            .inspect_err(|error| tracing::debug!(%error, "the fabric tells no numbers at the moment"))
            .map(|numbers| queues.iter().cloned().zip(numbers).collect::<Vec<_>>());
        self.inner.metrics.encode(self.inner.waiting.count(), numbers.as_deref().ok())
    }
}

/// What is done with messages in flight.
#[derive(Debug, Clone, Copy)]
enum Action {
    Ack,
    Nack { delay_ms: u64, keep_dead: u64 },
    Extend { lease_ms: u64 },
}

impl Action {
    /// What became of each message; nothing for one that was not held.
    async fn carry_out(
        self,
        store: &Store,
        queue: &str,
        held: &[(u64, &str)],
    ) -> Result<Vec<Option<Settled>>, signalbox_store::Error> {
        Ok(match self {
            Self::Ack => {
                let acked = store.ack(queue, held).await?;
                acked.into_iter().map(|held| held.then_some(Settled::Acked)).collect()
            }
            Self::Nack { delay_ms, keep_dead } => {
                let settled = |nacked| match nacked {
                    Nacked::NotHeld => None,
                    Nacked::Back => Some(Settled::Back),
                    Nacked::Delayed => Some(Settled::Delayed),
                    Nacked::Dead => Some(Settled::Dead),
                };
                store.nack(queue, delay_ms, keep_dead, held).await?.into_iter().map(settled).collect()
            }
            Self::Extend { lease_ms } => {
                let (until_ms, extended) = store.extend(queue, lease_ms, held).await?;
                extended.into_iter().map(|held| held.then_some(Settled::Extended(until_ms))).collect()
            }
        })
    }
}

impl Settled {
    /// The word for it in metrics.
    fn result(self) -> &'static str {
        match self {
            Self::Acked => "acked",
            Self::Back => "back",
            Self::Delayed => "delayed",
            Self::Dead => "dead",
            Self::Extended(_) => "extended",
            Self::Malformed | Self::OtherQueue | Self::Used | Self::Expired => "refused",
        }
    }
}

fn add_facet(sum: &mut Option<FacetStatus>, name: &str, row: &FacetRow, now_ms: u64) {
    if row.waiting + row.in_flight + row.delayed == 0 {
        return;
    }
    let age = row.oldest.as_deref().and_then(since_ms).map(|since| now_ms.saturating_sub(since));
    let one = sum.get_or_insert_with(|| FacetStatus {
        environment: name.to_owned(),
        weight: row.weight,
        waiting: 0,
        in_flight: 0,
        delayed: 0,
        oldest_age_ms: None,
        dwell_ms: None,
    });
    one.waiting += row.waiting;
    one.in_flight += row.in_flight;
    one.delayed += row.delayed;
    one.oldest_age_ms = one.oldest_age_ms.max(age);
    one.dwell_ms = one.dwell_ms.max(row.dwell_ms);
}

/// When an item of a queue was accepted, or stored again if that was later.
fn since_ms(item: &str) -> Option<u64> {
    let item = item.split('#').next()?;
    let (id, segment) = match item.split_once('@') {
        Some((id, segment)) => (id.parse::<u64>().ok()?, segment.parse::<u64>().ok()?),
        None => (item.parse().ok()?, 0),
    };
    Some(ID_EPOCH_MS + (id / IDS_PER_MS).max(segment * (SEGMENT_IDS / IDS_PER_MS)))
}

/// Random characters of a pull, which make its receipts ones that nobody can guess.
fn nonce() -> String {
    let mut rng = rand::rng();
    (0..16).map(|_| char::from(DIGITS[rng.random_range(0..DIGITS.len())])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_tells_its_age() {
        assert_eq!(since_ms("6400000"), Some(ID_EPOCH_MS + 1000));
        assert_eq!(since_ms("6400000#3"), Some(ID_EPOCH_MS + 1000));
        assert_eq!(since_ms("6400000@7#3"), Some(ID_EPOCH_MS + 70_000), "stored again later");
        assert_eq!(since_ms("x"), None);
    }

    #[test]
    fn no_two_pulls_have_the_same_nonce() {
        let nonces: std::collections::BTreeSet<String> = (0..1000).map(|_| nonce()).collect();
        assert_eq!(nonces.len(), 1000);
        assert!(nonces.iter().all(|nonce| nonce.len() == 16 && !nonce.contains('~')));
    }
}
