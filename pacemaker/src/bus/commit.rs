//! Group commit: publishes that come while a call is under way share the next one.
//!
//! One task for each shard has at most one call under way. What a call costs Redis is mostly paid once, so the more
//! publishers there are, the less an event costs. A call whose reply was lost is sent again as it was: the script
//! knows its sequence and returns the first reply. A call that was given up is never carried out later, because the
//! next one has a higher sequence.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use signalbox_store::Kind;
use tokio::sync::{mpsc, oneshot};

use super::{
    Error, EventId, NewEvent, Refusal,
    core::Core,
    event,
    store::{Accepted, FanOut, PublishCall, PublishReply, Published, Store},
    view::{State, View},
};

/// How often a call is made again because the registry had moved on.
const STALE_TRIES: usize = 3;
/// How often a call is sent in all when its outcome stays unknown.
const SEND_TRIES: u32 = 4;

/// The answers to one publish, collected from as many shards and calls as its events went to.
#[derive(Debug)]
pub(super) struct Gather {
    answers: Mutex<Answers>,
}

#[derive(Debug)]
struct Answers {
    results: Vec<Option<Result<EventId, Refusal>>>,
    left: usize,
    done: Option<oneshot::Sender<()>>,
}

impl Gather {
    /// For `count` events; the receiver hears when all are answered.
    pub(super) fn new(count: usize) -> (Arc<Self>, oneshot::Receiver<()>) {
        let (done, all) = oneshot::channel();
        let answers = Answers { results: vec![None; count], left: count, done: Some(done) };
        (Arc::new(Self { answers: Mutex::new(answers) }), all)
    }

    fn answer(&self, place: usize, result: Result<EventId, Refusal>) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken already when nobody waits any more; answered already when this is the ticket's end.
        if answers.results.get(place).is_some_and(Option::is_none) {
            answers.results[place] = Some(result);
            answers.left -= 1;
            if answers.left == 0 {
                let _ = answers.done.take().map(|done| done.send(()));
            }
        }
    }

    /// All answers; what was never answered is unknown.
    pub(super) fn take(&self) -> Vec<Result<EventId, Refusal>> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut answers.results)
            .into_iter()
            .map(|one| one.unwrap_or(Err(Refusal::Unavailable)))
            .collect()
    }
}

/// The place of one event's answer. Dropped without one (a shutdown, a panic) it answers that nothing is known.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) gather: Arc<Gather>,
    pub(super) place: usize,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.gather.answer(self.place, Err(Refusal::Unavailable));
    }
}

/// An event on its way to the shard.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) client: Arc<str>,
    pub(super) topic: Arc<str>,
    pub(super) environment: String,
    pub(super) channel: String,
    pub(super) hash: u32,
    pub(super) rest: Vec<u8>,
    /// Digests of the idempotency key and of the event.
    pub(super) idempotency: Option<(String, String)>,
    pub(super) event: NewEvent,
    pub(super) ticket: Ticket,
}

impl Item {
    pub(super) fn new(
        client: &Arc<str>,
        topic: &Arc<str>,
        environment: String,
        event: NewEvent,
        ticket: Ticket,
    ) -> Self {
        let rest = event.rest(topic, &environment);
        let idempotency = event.idempotency_key.as_ref().map(|key| {
            let key = event::digest([event.object().as_bytes(), key.as_bytes()]);
            (key, event::digest([&rest[..]]))
        });
        Self {
            client: Arc::clone(client),
            topic: Arc::clone(topic),
            channel: format!("{environment}:{}:{topic}", event.kind.as_str()),
            hash: event::lane_hash(event.object()),
            environment,
            rest,
            idempotency,
            event,
            ticket,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.rest.len() + 256
    }

    pub(super) fn answer(self, result: Result<EventId, Refusal>) {
        self.ticket.gather.answer(self.ticket.place, result);
    }
}

/// How many of the items at the front go into the next call. `subscribers` counts those of an item's topic.
fn cut<'a>(
    items: impl Iterator<Item = &'a Item>,
    subscribers: impl Fn(&Item) -> usize,
    (most_events, most_appends, most_bytes): (usize, usize, usize),
) -> usize {
    let (mut events, mut appends, mut bytes) = (0, 0, 0);
    for item in items {
        appends += subscribers(item);
        bytes += item.bytes();
        // One event always goes, however many subscribers or bytes it has.
        if events > 0 && (events >= most_events || appends > most_appends || bytes > most_bytes) {
            break;
        }
        events += 1;
    }
    events
}

/// One shard's committer.
pub(super) struct Committer {
    pub(super) core: Arc<Core>,
    pub(super) store: Arc<Store>,
    pub(super) items: mpsc::Receiver<Item>,
    pub(super) sequence: u64,
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
            let count = cut(waiting.iter(), |item| view.subscribers(&item.topic), limits);
            let items: Vec<Item> = waiting.drain(..count).collect();
            let bytes = items.iter().map(Item::bytes).sum();
            self.commit(items).await;
            self.core.release(bytes);
        }
    }

    async fn commit(&mut self, mut items: Vec<Item>) {
        for _ in 0..STALE_TRIES {
            let mut view = self.core.view();
            if view.state == State::Uninitialised {
                match self.core.reload(&view.stamp).await {
                    Ok(reloaded) => view = reloaded,
                    Err(error) => return refuse_all(items, refusal_of(&error)),
                }
                if view.state == State::Uninitialised {
                    return refuse_all(items, Refusal::Uninitialised);
                }
            }
            items = self.claimed(items, &mut view).await;
            if items.is_empty() {
                return;
            }
            match self.call(&view, &items).await {
                Ok(PublishReply::Accepted(accepted)) => return self.accepted(items, &accepted),
                Ok(PublishReply::Stale) => {
                    if let Err(error) = self.refresh(&view).await {
                        return refuse_all(items, refusal_of(&error));
                    }
                }
                Ok(PublishReply::Empty) => {
                    let _ = self.core.reload(&view.stamp).await;
                    return refuse_all(items, Refusal::Uninitialised);
                }
                // Only a later call of this same task could have been before this one.
                Ok(PublishReply::Late) => return refuse_all(items, Refusal::Unavailable),
                Err(error) => return refuse_all(items, refusal_of_store(&error)),
            }
        }
        refuse_all(items, Refusal::Unavailable);
    }

    /// The registry moved on, here or there: this process reads it, and a shard that was left behind gets it.
    async fn refresh(&self, view: &View) -> Result<(), Error> {
        let view = self.core.reload(&view.stamp).await?;
        if view.state == State::Ready {
            self.core.spread(&view).await?;
        }
        Ok(())
    }

    /// Claims topics that nobody has published to yet, and refuses the events of those that another has.
    async fn claimed(&self, items: Vec<Item>, view: &mut Arc<View>) -> Vec<Item> {
        let mut kept = Vec::with_capacity(items.len());
        for item in items {
            if view.is_claimed_by(&item.topic, &item.client) {
                kept.push(item);
                continue;
            }
            let limits = &self.core.options;
            let claim =
                self.core.change(|registry, _| registry.claim(&item.topic, &item.client, limits)).await;
            *view = self.core.view();
            match claim {
                Ok(()) => kept.push(item),
                Err(error) => item.answer(Err(refusal_of(&error))),
            }
        }
        kept
    }

    /// Sends the call, and again as it was while its outcome is unknown.
    async fn call(&mut self, view: &View, items: &[Item]) -> Result<PublishReply, signalbox_store::Error> {
        let fan_out = fan_out(view, items);
        let topics: HashMap<&str, usize> =
            fan_out.topics.iter().enumerate().map(|(place, (topic, _))| (&**topic, place)).collect();
        let clients: HashMap<&str, usize> =
            fan_out.clients.iter().enumerate().map(|(place, client)| (&**client, place)).collect();
        let events: Vec<Published<'_>> = items
            .iter()
            .map(|item| Published {
                object: item.event.object(),
                hash: item.hash,
                topic: topics.get(&*item.topic).copied().unwrap_or_default(),
                channel: &item.channel,
                rest: &item.rest,
                idempotency: item.idempotency.as_ref().map(|(key, body)| {
                    (clients.get(&*item.client).copied().unwrap_or_default(), &**key, &**body)
                }),
            })
            .collect();
        self.sequence += 1;
        let options = &self.core.options;
        let call = PublishCall {
            pacemaker: &self.core.incarnation,
            sequence: self.sequence,
            seed: &self.core.chance.seed(),
            batch_bytes: options.batch_bytes,
            objects: options.objects,
            object_seconds: options.object_seconds,
            idempotency_keys: options.idempotency_keys,
            idempotency_seconds: options.idempotency_seconds,
            fan_out: &fan_out,
            events: &events,
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
                Some(Accepted::New { id, prev, tprev }) => {
                    let Item { event, topic, environment, ticket, .. } = item;
                    fresh.push(Arc::new(event.accepted((*id, *prev, *tprev), &topic, environment)));
                    ticket.gather.answer(ticket.place, Ok(*id));
                }
                Some(Accepted::Repeat(id)) => item.answer(Ok(*id)),
                Some(Accepted::Conflict) => item.answer(Err(Refusal::Conflict)),
                None => item.answer(Err(Refusal::Unavailable)),
            }
        }
        self.core.cache.put(fresh);
    }
}

fn fan_out(view: &View, items: &[Item]) -> FanOut {
    let (mut topics, mut clients) = (Vec::new(), Vec::new());
    for item in items {
        if !topics.contains(&item.topic) {
            topics.push(Arc::clone(&item.topic));
        }
        if item.idempotency.is_some() && !clients.contains(&item.client) {
            clients.push(Arc::clone(&item.client));
        }
    }
    view.fan_out(topics, clients)
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
        Error::Uninitialised | Error::OtherShards { .. } => Refusal::Uninitialised,
        Error::Store(error) => refusal_of_store(error),
        error => {
            tracing::error!(%error, "an event could not be accepted");
            Refusal::Unavailable
        }
    }
}

fn refusal_of_store(error: &signalbox_store::Error) -> Refusal {
    match error.kind() {
        Kind::Unavailable => Refusal::Unavailable,
        Kind::Refused => Refusal::Full,
        Kind::Broken => {
            tracing::error!(%error, source = ?std::error::Error::source(error), "an event could not be accepted");
            Refusal::Unavailable
        }
    }
}
