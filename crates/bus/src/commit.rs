//! Group commit: publishes that arrive while a call is under way share the next one.
//!
//! One task for each shard has at most one call under way. Most of a call's cost in Redis is fixed, so the more
//! publishers there are, the less an event costs. A call whose reply was lost is repeated unchanged: the script
//! recognizes its sequence and returns the first reply. An abandoned call is never executed later, because the next
//! one has a higher sequence.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use signalbox_store::Kind;
use tokio::{sync::mpsc, time::timeout};

mod fan_out;
mod item;

use fan_out::fan_out;
use item::Content;
pub(super) use item::{Gather, Item, Part, Ticket};

use super::{
    Error, Event, EventId, Refusal, Registry,
    acknowledged::Acknowledged,
    core::Core,
    store::{Accepted, Group, PublishCall, PublishReply, Published, Store},
    view::{State, View},
};

/// How often a call is made again because the registry had moved on.
const STALE_TRIES: usize = 3;
/// How often a call is sent in all when its outcome stays unknown.
const SEND_TRIES: u32 = 4;

/// How long a publisher waits for the fabric, its turn included. Routemaster's client waits five seconds; an answer after
/// that would be lost.
const PATIENCE: Duration = Duration::from_millis(2_500);
/// How long a call may take at least, even if its events have waited for earlier calls.
const MIN_PATIENCE: Duration = Duration::from_millis(400);

/// How many lists the events of a call are appended to: lanes of subscribers, and tenants of queues.
struct Appends<'a> {
    view: &'a View,
    /// The events of each topic, and the lanes of its subscribers.
    topics: HashMap<&'a str, (usize, usize)>,
    /// The place of a queue, and a tenant.
    tenants: HashSet<(usize, &'a str)>,
    count: usize,
}

impl<'a> Appends<'a> {
    fn new(view: &'a View) -> Self {
        Self { view, topics: HashMap::new(), tenants: HashSet::new(), count: 0 }
    }

    /// Adds an event. Each subscriber of its topic appends it to one lane, perhaps to one that already gets an event.
    fn add(&mut self, part: &'a Part) {
        if let Some(topic) = part.topic() {
            let subscribers = self.view.subscribers(topic);
            let (events, lanes) =
                self.topics.entry(topic).or_insert_with(|| (0, self.view.lanes_of_subscribers(topic)));
            self.count += subscribers.min(lanes.saturating_sub(*events * subscribers));
            *events += 1;
        }
        for queue in self.view.queues_for(&part.channel).iter() {
            self.count += usize::from(self.tenants.insert((*queue, &part.tenant)));
        }
    }
}

/// How many of the items at the front go into the next call.
fn cut<'a>(
    items: impl Iterator<Item = &'a Item>,
    view: &'a View,
    (most_events, most_appends, most_bytes): (usize, usize, usize),
) -> usize {
    let (mut count, mut events, mut appends, mut bytes) = (0, 0, Appends::new(view), 0);
    for item in items {
        events += item.events();
        item.parts.iter().for_each(|part| appends.add(part));
        bytes += item.bytes();
        // One group always goes, however many events, subscribers or bytes it has.
        if count > 0 && (events > most_events || appends.count > most_appends || bytes > most_bytes) {
            break;
        }
        count += 1;
    }
    count
}

/// One shard's committer.
pub(super) struct Committer {
    pub(super) core: Arc<Core>,
    pub(super) store: Arc<Store>,
    pub(super) items: mpsc::Receiver<Item>,
    pub(super) sequence: u64,
    pub(super) acknowledged: Acknowledged,
    /// Whether the shard rejected the last call, which is logged once.
    pub(super) rejects: bool,
}

impl Committer {
    /// Commits until every sender is gone or `shutdown` is over, and then what has already come.
    pub(super) async fn run(mut self, shutdown: tokio_util::sync::CancellationToken) {
        let mut waiting = VecDeque::new();
        loop {
            if waiting.is_empty() {
                tokio::select! {
                    biased;
                    item = self.items.recv() => match item {
                        Some(item) => waiting.push_back(item),
                        None => return,
                    },
                    () = shutdown.cancelled() => {
                        self.items.close();
                        if self.items.is_empty() {
                            return;
                        }
                    }
                }
            }
            while let Ok(item) = self.items.try_recv() {
                waiting.push_back(item);
                // More than a call can take may stay in the channel, where it is bounded.
                if waiting.len() >= 2 * self.core.options.call_events {
                    break;
                }
            }
            let view = self.core.view();
            let options = &self.core.options;
            let limits = (options.call_events, options.call_appends, options.call_bytes);
            let count = cut(waiting.iter(), &view, limits);
            let items: Vec<Item> = waiting.drain(..count).collect();
            let bytes = items.iter().map(Item::bytes).sum();
            // The oldest item is the first.
            let waited = items.first().map(|item| item.since.elapsed()).unwrap_or_default();
            let patience = PATIENCE.saturating_sub(waited).max(MIN_PATIENCE);
            // Items that are dropped without an answer are reported as unknown. If their call arrives later, it is rejected or
            // accepted as a whole, as after a lost reply.
            if timeout(patience, self.commit(items)).await.is_err() {
                tracing::debug!("a publish call was abandoned: the fabric does not answer");
            }
            self.core.release(bytes);
        }
    }

    async fn commit(&mut self, mut items: Vec<Item>) {
        for _ in 0..STALE_TRIES {
            let mut view = self.core.view();
            if view.state == State::Uninitialized {
                match self.core.refresh().await {
                    Ok(refreshed) => view = refreshed,
                    Err(error) => return refuse_all(items, refusal_of(&error)),
                }
                if view.state == State::Uninitialized {
                    return refuse_all(items, Refusal::Uninitialized);
                }
            }
            items = self.claimed(items, &mut view).await;
            if items.is_empty() {
                return;
            }
            match self.call(&view, &items).await {
                Ok(PublishReply::Accepted(accepted)) => {
                    self.note_rejected(None);
                    self.acknowledged.note(self.sequence, count_new(&accepted));
                    return self.accepted(items, &accepted);
                }
                Ok(PublishReply::Lost(found)) => self.report_loss(found).await,
                Ok(PublishReply::Stale) => {
                    if let Err(error) = self.refresh().await {
                        return refuse_all(items, refusal_of(&error));
                    }
                }
                Ok(PublishReply::Empty) => {
                    let _ = self.core.refresh().await;
                    return refuse_all(items, Refusal::Uninitialized);
                }
                // Only a later call of this same task could have been before this one.
                Ok(PublishReply::Late) => return refuse_all(items, Refusal::Unavailable),
                Err(error) => {
                    if error.kind() == Kind::Refused {
                        self.note_rejected(Some(&error));
                    }
                    return refuse_all(items, refusal_of_store(&error));
                }
            }
        }
        refuse_all(items, Refusal::Unavailable);
    }

    /// Logs when the shard begins to reject calls, and when it accepts them again.
    fn note_rejected(&mut self, error: Option<&signalbox_store::Error>) {
        let shard = self.store.shard().index();
        match error {
            Some(error) if !self.rejects => {
                tracing::error!(shard, source = ?std::error::Error::source(error), "the fabric rejects writes");
            }
            None if self.rejects => tracing::info!(shard, "the fabric accepts writes again"),
            _ => {}
        }
        self.rejects = error.is_some();
    }

    /// The fabric's new primary does not have calls that were acknowledged.
    async fn report_loss(&mut self, found: u64) {
        let (calls, events) = self.acknowledged.take_lost(found);
        let shard = self.store.shard().index();
        tracing::error!(
            shard,
            calls,
            events,
            "the promoted primary of the fabric does not have accepted events; their publishers must send them again"
        );
        if let Err(error) = self.store.count_lost(events).await {
            tracing::debug!(%error, "the lost events cannot be counted");
        }
    }

    /// The registry moved on, here or there: this process reads it, and a shard that was left behind gets it.
    async fn refresh(&self) -> Result<(), Error> {
        let view = self.core.refresh().await?;
        if view.state == State::Ready {
            self.core.spread(&view).await?;
        }
        Ok(())
    }

    /// Claims topics without a publisher, and rejects the groups with events of topics that belong to another client. All claims of
    /// a call are one change of the registry, so the number of new topics does not decide how long other publishers wait.
    async fn claimed(&self, items: Vec<Item>, view: &mut Arc<View>) -> Vec<Item> {
        let before = Arc::clone(view);
        let claims = |item: &Item| unclaimed(item, &before).next().is_some();
        if !items.iter().any(claims) {
            return items;
        }
        let limits = &self.core.options;
        let claim = |registry: &mut Registry, item: &Item| {
            unclaimed(item, &before).try_for_each(|topic| registry.claim(topic, &item.client, limits))
        };
        let changed = self
            .core
            .change(|registry, _| Ok(items.iter().map(|item| claim(registry, item)).collect::<Vec<_>>()))
            .await;
        *view = self.core.view();
        let results: Vec<Result<(), Refusal>> = match changed {
            Ok(results) => {
                results.into_iter().map(|result| result.map_err(|error| refusal_of(&error))).collect()
            }
            Err(error) => {
                let refusal = refusal_of(&error);
                items.iter().map(|item| if claims(item) { Err(refusal) } else { Ok(()) }).collect()
            }
        };
        let mut kept = Vec::with_capacity(items.len());
        for (item, result) in items.into_iter().zip(results) {
            match result {
                Ok(()) => kept.push(item),
                Err(refusal) => item.answer(Err(refusal)),
            }
        }
        kept
    }

    /// Sends the call, and again as it was while its outcome is unknown.
    async fn call(&mut self, view: &View, items: &[Item]) -> Result<PublishReply, signalbox_store::Error> {
        let (fan_out, places) = fan_out(view, items);
        let groups: Vec<Group<'_>> = items
            .iter()
            .map(|item| Group {
                object: &item.object,
                hash: item.hash,
                state: item.state.as_ref().map(|state| state.get()),
                backend: view.backend_of(&item.object),
                client: places.client(item),
                idempotency: item.idempotency.as_ref().map(|(key, body)| (&**key, &**body)),
                events: item
                    .parts
                    .iter()
                    .map(|part| Published {
                        topic: places.topic(view, part),
                        channel: &part.channel,
                        rest: &part.rest,
                        queues: places.queues(view, part),
                        delay: part.delay(),
                    })
                    .collect(),
                change: item.change.as_ref(),
            })
            .collect();
        self.sequence += 1;
        let options = &self.core.options;
        let call = PublishCall {
            pacemaker: &self.core.incarnation,
            sequence: self.sequence,
            acknowledged: self.acknowledged.last(),
            seed: &self.core.rng.seed(),
            limits: options,
            // Rounded up: a small limit is still one.
            tenant_bytes: options.tenant_bytes.div_ceil(self.core.stores.len() as u64),
            fan_out: &fan_out,
            groups: &groups,
        };
        let mut tries = 1;
        loop {
            match self.store.publish(&call).await {
                Err(error) if error.kind() == Kind::Unavailable && tries < SEND_TRIES => {
                    tracing::debug!(%error, tries, "the outcome of a publish call is unknown, sending it again");
                    tokio::time::sleep(Duration::from_millis(50 << tries)).await;
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    fn accepted(&self, items: Vec<Item>, accepted: &[Accepted]) {
        let mut fresh = Vec::with_capacity(items.len());
        for (place, item) in items.into_iter().enumerate() {
            match accepted.get(place) {
                Some(Accepted::New(numbers)) => {
                    // A change without events has no ID to return.
                    let first = Ok(numbers.first().map_or(EventId(0), |(id, _, _)| *id));
                    item.answer(first);
                    for (part, numbers) in item.parts.into_iter().zip(numbers) {
                        let Part { content, tenant, cause, .. } = part;
                        if let Content::Event { topic, event } = content {
                            let event = event.accepted(*numbers, &topic, tenant);
                            fresh.push(Arc::new(Event { cause, ..event }));
                        }
                    }
                }
                Some(Accepted::Repeat(first)) => item.answer(Ok(*first)),
                Some(Accepted::Refused(refusal)) => item.answer(Err(*refusal)),
                None => item.answer(Err(Refusal::Unavailable)),
            }
        }
        self.core.cache.put(fresh);
    }
}

/// How many events a call added.
fn count_new(accepted: &[Accepted]) -> u64 {
    let events = accepted.iter().map(|one| match one {
        Accepted::New(numbers) => numbers.len() as u64,
        _ => 0,
    });
    events.sum()
}

/// The topics of a group that its client is not known to have claimed.
fn unclaimed<'a>(item: &'a Item, view: &View) -> impl Iterator<Item = &'a Arc<str>> {
    item.parts.iter().filter_map(Part::topic).filter(|topic| !view.is_claimed_by(topic, &item.client))
}

fn refuse_all(items: Vec<Item>, refusal: Refusal) {
    for item in items {
        item.answer(Err(refusal));
    }
}

fn refusal_of(error: &Error) -> Refusal {
    match error {
        Error::Forbidden => Refusal::Claimed,
        Error::TooMany(_) => Refusal::TooManyTopics,
        Error::Uninitialized | Error::OtherShards { .. } => Refusal::Uninitialized,
        Error::Store(error) => refusal_of_store(error),
        error => {
            tracing::error!(%error, "event not accepted");
            Refusal::Unavailable
        }
    }
}

fn refusal_of_store(error: &signalbox_store::Error) -> Refusal {
    match error.kind() {
        Kind::Unavailable => Refusal::Unavailable,
        Kind::Refused if error.code() == Some("OOM") => Refusal::Full,
        Kind::Refused => Refusal::ReadOnly,
        Kind::Broken => {
            tracing::error!(%error, source = ?std::error::Error::source(error), "event not accepted");
            Refusal::Unavailable
        }
    }
}
