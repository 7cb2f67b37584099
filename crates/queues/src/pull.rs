//! Pulls: which queues and shards a pull takes messages of, and how it waits for the first one.

use std::{
    borrow::Cow,
    future::poll_fn,
    pin::{Pin, pin},
    sync::atomic::Ordering,
    task::Poll,
    time::Duration,
};

use rand::{
    RngExt as _,
    distr::{Alphanumeric, SampleString as _},
};
use signalbox_daemon::traces::{self, Cause};
use tokio::{
    sync::futures::Notified,
    time::{Instant, timeout, timeout_at},
};
use tracing::Instrument as _;

use super::{
    Error, Handle, Receipt, Taken,
    handle::{ID_EPOCH_MS, IDS_PER_MS},
    shared_calls::PullKey,
    store::{Consumer, PullCall, PullReply, Pulled},
    waiting::Notice,
};

/// Maximum number of calls in one pull that deliver nothing although there are messages: they dropped expired
/// messages, or other consumers got the messages.
const EMPTY_CALLS: usize = 20;
/// Maximum number of messages that one call delivers. It limits how long a call blocks Redis: each may be of another tenant.
pub(super) const PULL_PART: usize = 100;

/// How long a consumer that may get messages waits until it may have their bytes.
const PATIENCE: Duration = Duration::from_secs(2);

/// The parameters of a pull.
#[derive(Debug, Clone, Copy)]
pub struct PullRequest<'a> {
    /// Maximum number of messages.
    pub most: usize,
    /// How long to wait for the first message.
    pub wait: Duration,
    /// Whether the messages are acknowledged when they are pulled.
    pub auto_ack: bool,
    /// If set, only messages of this tenant are pulled, regardless of turns.
    pub tenant: Option<&'a str>,
    /// The duration of the leases; that of the queue if absent.
    pub lease_ms: Option<u64>,
}

/// A queue to pull from.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// Its name.
    pub queue: &'a str,
    /// The revision of its definition that the caller knows.
    pub revision: u64,
    /// The queue's share of the messages relative to the other queues of the pull. At least 1.
    pub weight: u32,
}

/// The result of a pull.
#[derive(Debug, Clone, Default)]
pub struct Handed {
    /// The messages with their receipts, in the order of delivery.
    pub messages: Vec<(Receipt, Taken)>,
    /// Milliseconds until a message may become available, if none is available now and the time is known.
    pub next_due_in_ms: Option<u64>,
}

impl Handle {
    /// Pulls messages of one or several queues. If none is available, it waits for the first up to
    /// `request.wait`.
    ///
    /// `admit` is called before each attempt to take some, and ends when the consumer may have as many bytes as it may get. Its
    /// result is returned with the messages, if there are any. `None`: it did not end within two seconds.
    ///
    /// Within a queue, messages are delivered in the order of turns. Between queues, each gets a share of
    /// `most` by its weight; other queues use what one leaves.
    ///
    /// # Errors
    /// [`Error::NoSuchQueue`], [`Error::Behind`], [`Error::Busy`]; also if the fabric does not answer. Then
    /// messages may have been leased without reaching the consumer. They become available again when their
    /// leases expire.
    pub async fn pull<A, F: Future<Output = A>>(
        &self,
        sources: &[Source<'_>],
        request: PullRequest<'_>,
        admit: impl Fn() -> F,
    ) -> Result<Option<(Handed, Option<A>)>, Error> {
        let inner = &*self.inner;
        let places: Vec<_> =
            sources.iter().map(|source| waiting_place(source.queue, request.tenant)).collect();
        if request.wait.is_zero() {
            let Some(admitted) = admission(admit(), || ()).await else { return Ok(None) };
            return Ok(Some((self.pull_once(sources, &places, request).await?, Some(admitted))));
        }
        let deadline = Instant::now() + request.wait;
        let acquire = |place: &Cow<'_, str>| inner.waiting.acquire(place, inner.options.waiting_pulls);
        let slots: Vec<_> = places.iter().map(acquire).collect::<Option<_>>().ok_or(Error::Busy)?;
        let mut notice = None;
        loop {
            // While this consumer is not admitted, others are woken: it passes on what it has, and subscribes only afterwards.
            let Some(admitted) = admission(admit(), || drop(notice.take())).await else { return Ok(None) };
            // It subscribes before it queries, so that no notification in between is missed.
            let mut woken: Vec<_> = slots.iter().map(|slot| Box::pin(slot.notify.notified())).collect();
            for one in &mut woken {
                one.as_mut().enable();
            }
            let handed = self.pull_once(sources, &places, request).await?;
            if let Some(notice) = notice.take() {
                Notice::acted(notice);
            }
            if !handed.messages.is_empty() {
                return Ok(Some((handed, Some(admitted))));
            }
            drop(admitted);
            let woken = tokio::select! {
                woken = timeout_at(deadline, first(&mut woken)) => woken.ok(),
                () = inner.closing.cancelled() => None,
            };
            match woken.and_then(|place| slots.get(place)) {
                Some(slot) => notice = Some(Notice::of(slot)),
                None => return Ok(Some((handed, None))),
            }
        }
    }

    /// Makes one round over the queues. Wakes the next consumer of each queue that seems to have more
    /// messages.
    async fn pull_once(
        &self,
        sources: &[Source<'_>],
        places: &[Cow<'_, str>],
        request: PullRequest<'_>,
    ) -> Result<Handed, Error> {
        let mut sum = Handed::default();
        let mut left = Left { messages: request.most, bytes: self.inner.options.pull_bytes };
        let mut more = vec![true; sources.len()];
        for (place, share) in shares(sources, request.most) {
            let (Some(source), Some(more)) = (sources.get(place), more.get_mut(place)) else { continue };
            let most = share.min(left.messages);
            if most == 0 || left.bytes == 0 || !*more {
                continue;
            }
            let (handed, has_more) =
                match self.pull_traced(*source, Left { messages: most, ..left }, request).await {
                    Ok(pulled) => pulled,
                    // The consumer gets the messages of an earlier queue; the next pull will report this error.
                    Err(_) if !sum.messages.is_empty() => break,
                    Err(error) => return Err(error),
                };
            *more = has_more;
            left.take(&handed);
            sum.next_due_in_ms = [sum.next_due_in_ms, handed.next_due_in_ms].into_iter().flatten().min();
            sum.messages.extend(handed.messages);
        }
        for (place, _) in places.iter().zip(more).filter(|(_, more)| *more) {
            self.inner.waiting.wake(place);
        }
        if !sum.messages.is_empty() {
            sum.next_due_in_ms = None;
        }
        Ok(sum)
    }

    /// Makes one round over the shards of a queue, in a span. Also returns whether more messages seem to be
    /// available now.
    async fn pull_traced(
        &self,
        source: Source<'_>,
        left: Left,
        request: PullRequest<'_>,
    ) -> Result<(Handed, bool), Error> {
        let span = traces::pull(source.queue);
        let pulled = self.pull_round(source, left, request).instrument(span.clone()).await;
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
        source: Source<'_>,
        mut left: Left,
        request: PullRequest<'_>,
    ) -> Result<(Handed, bool), Error> {
        let inner = &*self.inner;
        let queue = source.queue;
        let shards = inner.stores.len();
        // Each pull starts with the next shard, so that no shard is preferred.
        let first = inner.turn.fetch_add(1, Ordering::Relaxed);
        let nonce = nonce();
        let (mut handed, mut more) = (Handed::default(), false);
        let mut places = (0..shards).map(|n| (first + n) % shards).peekable();
        while let Some(shard) = places.peek().copied() {
            if left.messages == 0 || left.bytes == 0 {
                // The shard was not checked, so it may have messages.
                more = true;
                break;
            }
            let most = left.messages.min(PULL_PART);
            let consumer = Consumer { most, nonce: nonce.clone() };
            let pulled = match self.pull_shard(shard, source, request, consumer, left.bytes).await {
                Ok(pulled) => pulled,
                // The consumer gets the messages of an earlier shard; the next pull will report this error.
                Err(_) if !handed.messages.is_empty() => break,
                Err(error) => return Err(error),
            };
            if pulled.lost > 0 {
                tracing::error!(queue, lost = pulled.lost, "bodies of queued messages missing in the log");
            }
            // A large pull takes several calls of a shard.
            let is_part = pulled.more && pulled.messages.len() == most;
            if !is_part {
                more |= pulled.more;
                places.next();
            }
            let due_in = pulled.next_due_ms.map(|due| due.saturating_sub(pulled.now_ms));
            handed.next_due_in_ms = [handed.next_due_in_ms, due_in].into_iter().flatten().min();
            for taken in pulled.messages {
                self.count_dwell(queue, pulled.now_ms, &taken);
                left.messages -= 1;
                left.bytes = left.bytes.saturating_sub(taken.body.len());
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
        inner.metrics.pulled(queue, handed.messages.len(), request.auto_ack);
        Ok((handed, more))
    }

    /// Pulls from a shard, and repeats the call while nothing is delivered although there are messages.
    async fn pull_shard(
        &self,
        shard: usize,
        source: Source<'_>,
        request: PullRequest<'_>,
        consumer: Consumer,
        most_bytes: usize,
    ) -> Result<Pulled, Error> {
        let Source { queue, revision, .. } = source;
        let (inner, store) = (&*self.inner, &self.inner.stores[shard]);
        let PullRequest { auto_ack, lease_ms, .. } = request;
        let mut calls = 1;
        loop {
            let reply = if let Some(tenant) = request.tenant {
                let call = PullCall {
                    queue,
                    consumers: std::slice::from_ref(&consumer),
                    most_bytes,
                    auto_ack,
                    revision,
                    tenant: Some(tenant),
                    wait_ms: wait_ms(request.wait),
                    lease_ms,
                };
                store.pull(call).await?
            } else {
                let key = PullKey { shard, queue: queue.to_owned(), revision, auto_ack, lease_ms };
                inner.shared_calls.pull(store, key, consumer.clone(), most_bytes).await?
            };
            let pulled = match reply {
                PullReply::Pulled(pulled) => pulled,
                PullReply::Gone => return Err(Error::NoSuchQueue),
                PullReply::Behind => return Err(Error::Behind),
            };
            if !pulled.again || calls == EMPTY_CALLS {
                return Ok(pulled);
            }
            calls += 1;
        }
    }

    fn count_dwell(&self, queue: &str, now_ms: u64, taken: &Taken) {
        if taken.attempt == 1 {
            let accepted_ms = ID_EPOCH_MS + taken.id / IDS_PER_MS;
            let noisy = taken.backlog > self.inner.options.noisy_backlog;
            let dwell = Duration::from_millis(now_ms.saturating_sub(accepted_ms));
            self.inner.metrics.dwelt(queue, noisy, dwell.as_secs_f64());
        }
    }
}

/// The result of `admit`; `None` if it takes too long. Calls `otherwise` if it does not end immediately.
async fn admission<A>(admit: impl Future<Output = A>, otherwise: impl FnOnce()) -> Option<A> {
    let mut admit = pin!(admit);
    if let Poll::Ready(admitted) = poll_fn(|context| Poll::Ready(admit.as_mut().poll(context))).await {
        return Some(admitted);
    }
    otherwise();
    timeout(PATIENCE, admit).await.ok()
}

/// The name under which a pull waits: the queue, or `queue|tenant` for a pull of one tenant.
/// Neither part can contain `|`.
fn waiting_place<'a>(queue: &'a str, tenant: Option<&str>) -> Cow<'a, str> {
    match tenant {
        Some(tenant) => format!("{queue}|{tenant}").into(),
        None => queue.into(),
    }
}

/// The number of messages that a pull may still deliver.
#[derive(Debug, Clone, Copy)]
struct Left {
    messages: usize,
    bytes: usize,
}

impl Left {
    fn take(&mut self, handed: &Handed) {
        self.messages = self.messages.saturating_sub(handed.messages.len());
        let bytes: usize = handed.messages.iter().map(|(_, taken)| taken.body.len()).sum();
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// The order in which a pull visits queues, and how many messages it takes at each visit: first the share of
/// each queue, in a random order by weight, then the remaining messages, in the same order.
fn shares(sources: &[Source<'_>], most: usize) -> Vec<(usize, usize)> {
    if sources.len() == 1 {
        return vec![(0, most)];
    }
    let mut rng = rand::rng();
    let weight = |source: &Source<'_>| f64::from(source.weight.max(1));
    // Of exponentially distributed numbers, each queue draws the smallest with a probability that is
    // proportional to its weight.
    let draw = |source: &Source<'_>, uniform: f64| -uniform.max(f64::MIN_POSITIVE).ln() / weight(source);
    let mut order: Vec<(f64, usize)> =
        sources.iter().enumerate().map(|(place, one)| (draw(one, rng.random()), place)).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let total: f64 = sources.iter().map(weight).sum();
    // Rounded down. The first queues of the order get one more until nothing remains.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let part = |place: usize| (most as f64 * weight(&sources[place]) / total) as usize;
    let rest = most - order.iter().map(|(_, place)| part(*place)).sum::<usize>().min(most);
    let parts =
        order.iter().enumerate().map(|(n, (_, place))| (*place, part(*place) + usize::from(n < rest)));
    parts.chain(order.iter().map(|(_, place)| (*place, most))).collect()
}

/// Waits for the first of several notifications; returns its place.
async fn first(notified: &mut [Pin<Box<Notified<'_>>>]) -> usize {
    poll_fn(|context| {
        let ready = notified.iter_mut().position(|one| one.as_mut().poll(context).is_ready());
        ready.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// How long the scripts record a waiting pull: somewhat longer than it waits.
fn wait_ms(wait: Duration) -> u64 {
    if wait.is_zero() {
        return 0;
    }
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX / 2).saturating_add(10_000)
}

/// Random characters for a pull, which make its receipts impossible to guess.
fn nonce() -> String {
    Alphanumeric.sample_string(&mut rand::rng(), 16)
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

    #[test]
    fn each_queue_gets_its_part_of_a_pull() {
        let source = |weight| Source { queue: "q", revision: 0, weight };
        let sources = [source(3), source(1), source(1)];
        for _ in 0..100 {
            let visits = shares(&sources, 10);
            let mut parts: Vec<(usize, usize)> = visits[..3].to_vec();
            parts.sort_unstable();
            assert_eq!(parts, [(0, 6), (1, 2), (2, 2)]);
            assert_eq!(visits[3..].iter().map(|(_, most)| *most).collect::<Vec<_>>(), [10; 3]);
        }
        // Each queue is first with a probability proportional to its weight: 3,000 draws, six standard
        // deviations.
        let firsts = (0..3_000).filter(|_| shares(&sources, 1)[0] == (0, 1)).count();
        assert!((1_640..=1_960).contains(&firsts), "{firsts} of 3,000");
        assert_eq!(shares(&sources[..1], 7), [(0, 7)]);
    }
}
