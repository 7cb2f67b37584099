//! Group commit: publishes that arrive while a call is under way share the next one.
//!
//! One task for each shard has at most one call under way. Most of a call's cost in Redis is fixed, so the more
//! publishers there are, the less an event costs. A call whose reply was lost is repeated unchanged: the script
//! recognizes its sequence and returns the first reply. An abandoned call is never executed later, because the next
//! one has a higher sequence.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::value::RawValue;
use signalbox_daemon::traces::Cause;
use signalbox_store::Kind;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};

use super::{
    Change, Delay, Error, Event, EventId, NewEvent, NewMessage, Refusal,
    acknowledged::Acknowledged,
    core::Core,
    event,
    store::{Accepted, FanOut, Group, InQueue, PublishCall, PublishReply, Published, Store},
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
    /// For `count` events; the receiver is notified when all are answered.
    pub(super) fn new(count: usize) -> (Arc<Self>, oneshot::Receiver<()>) {
        let (done, all) = oneshot::channel();
        let answers = Answers { results: vec![None; count], left: count, done: Some(done) };
        (Arc::new(Self { answers: Mutex::new(answers) }), all)
    }

    fn answer(&self, place: usize, result: Result<EventId, Refusal>) {
        let mut answers = self.answers.lock();
        // The result is absent if the caller stopped waiting, and already set if the ticket is being dropped.
        if answers.results.get(place).is_some_and(Option::is_none) {
            answers.results[place] = Some(result);
            answers.left -= 1;
            if answers.left == 0 {
                let _ = answers.done.take().map(|done| done.send(()));
            }
        }
    }

    /// All answers; a missing one is reported as unknown.
    pub(super) fn take(&self) -> Vec<Result<EventId, Refusal>> {
        let mut answers = self.answers.lock();
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

/// One event of a group.
#[derive(Debug)]
pub(super) struct Part {
    environment: String,
    channel: String,
    rest: Vec<u8>,
    /// The span that published it, if that is recorded. The log keeps it, at the end of `rest`.
    cause: Option<Cause>,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Event {
        topic: Arc<str>,
        event: NewEvent,
    },
    /// A message has no topic: it has no publisher and no subscribers. Its name is `object`.
    Message {
        object: String,
        delay: Option<Delay>,
    },
}

impl Part {
    pub(super) fn new(topic: &Arc<str>, environment: String, event: NewEvent) -> Self {
        Self {
            channel: format!("{environment}:{}:{topic}", event.kind.as_str()),
            rest: event.rest(topic, &environment),
            cause: None,
            environment,
            content: Content::Event { topic: Arc::clone(topic), event },
        }
    }

    /// A message, whose object and live channel are its name: `environment:type:name`.
    pub(super) fn message(message: NewMessage) -> Self {
        let object = format!("{}:{}:{}", message.environment, message.kind, message.name);
        Self {
            channel: object.clone(),
            rest: message.rest(&object),
            cause: None,
            environment: message.environment,
            content: Content::Message { object, delay: message.delay },
        }
    }

    fn delay(&self) -> Option<Delay> {
        match &self.content {
            Content::Event { .. } => None,
            Content::Message { delay, .. } => *delay,
        }
    }

    /// The environment, if the subscribers of the topic depend on it.
    fn divided_by(&self, view: &View) -> Option<&str> {
        view.is_divided(self.topic()?).then_some(&self.environment)
    }

    fn object(&self) -> &str {
        match &self.content {
            Content::Event { event, .. } => event.object(),
            Content::Message { object, .. } => object,
        }
    }

    fn topic(&self) -> Option<&Arc<str>> {
        match &self.content {
            Content::Event { topic, .. } => Some(topic),
            Content::Message { .. } => None,
        }
    }

    fn bytes(&self) -> usize {
        self.rest.len() + 256
    }

    /// Records the current span as the cause of the publish.
    fn note_cause(&mut self) {
        self.cause = Cause::current();
        if let Some(cause) = &self.cause {
            cause.append(&mut self.rest);
        }
    }
}

/// Events of one object on their way to its shard: all of them are accepted, in this order, or none is. A publish to
/// a topic is a group of one. Within a call ids follow each other by [`ID_STEP`], and a group is never cut apart, so
/// the ID of its first event determines those of the others.
#[derive(Debug)]
pub(super) struct Item {
    client: Arc<str>,
    hash: u32,
    parts: Vec<Part>,
    /// The object's new state, written with the events.
    state: Option<Box<RawValue>>,
    /// Digests of the idempotency key and of everything that was sent under it.
    idempotency: Option<(String, String)>,
    /// A label's change, which may come without events.
    change: Option<Change>,
    object: String,
    /// When its publisher began to wait.
    since: Instant,
    ticket: Ticket,
}

impl Item {
    /// A group of events, at least one, all of the same object.
    pub(super) fn new(
        client: &Arc<str>,
        mut parts: Vec<Part>,
        state: Option<Box<RawValue>>,
        idempotency_key: Option<&str>,
        ticket: Ticket,
    ) -> Self {
        let object = parts.first().map_or("", Part::object).to_owned();
        let idempotency = idempotency_key.map(|key| {
            let sent = parts.iter().map(|part| &part.rest[..]);
            let sent = sent.chain(state.as_ref().map(|state| state.get().as_bytes()));
            (event::digest([object.as_bytes(), key.as_bytes()]), event::digest(sent))
        });
        // Behind the digests: a repeat has another cause, and is the same publish.
        parts.iter_mut().for_each(Part::note_cause);
        Self {
            client: Arc::clone(client),
            hash: event::lane_hash(&object),
            parts,
            state,
            idempotency,
            change: None,
            object,
            since: Instant::now(),
            ticket,
        }
    }

    /// A change of a label with its events, of which there may be none.
    pub(super) fn changing(
        client: &Arc<str>,
        object: String,
        mut parts: Vec<Part>,
        change: Change,
        ticket: Ticket,
    ) -> Self {
        let hash = event::lane_hash(&object);
        let client = Arc::clone(client);
        parts.iter_mut().for_each(Part::note_cause);
        let since = Instant::now();
        Self {
            client,
            hash,
            parts,
            state: None,
            idempotency: None,
            change: Some(change),
            object,
            since,
            ticket,
        }
    }

    /// The object of all its events.
    pub(super) fn object(&self) -> &str {
        &self.object
    }

    /// How many events it has.
    pub(crate) fn events(&self) -> usize {
        // A change without events costs a call as much.
        self.parts.len().max(1)
    }

    pub(super) fn bytes(&self) -> usize {
        let state = self.state.as_ref().map_or(0, |state| state.get().len());
        let change = self.change.as_ref().map_or(0, Change::bytes);
        state + change + self.parts.iter().map(Part::bytes).sum::<usize>()
    }

    /// Answers with the id of its first event.
    pub(super) fn answer(self, result: Result<EventId, Refusal>) {
        self.ticket.gather.answer(self.ticket.place, result);
    }
}

/// How many of the items at the front go into the next call. `appends` counts the subscribers and queues of an event.
fn cut<'a>(
    items: impl Iterator<Item = &'a Item>,
    appends_of: impl Fn(&Part) -> usize,
    (most_events, most_appends, most_bytes): (usize, usize, usize),
) -> usize {
    let (mut count, mut events, mut appends, mut bytes) = (0, 0, 0, 0);
    for item in items {
        events += item.events();
        appends += item.parts.iter().map(&appends_of).sum::<usize>();
        bytes += item.bytes();
        // One group always goes, however many events, subscribers or bytes it has.
        if count > 0 && (events > most_events || appends > most_appends || bytes > most_bytes) {
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
            let appends = |part: &Part| {
                let subscribers = part.topic().map_or(0, |topic| view.subscribers(topic));
                subscribers + view.queues_for(&part.channel).len()
            };
            let count = cut(waiting.iter(), appends, limits);
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

    /// Claims topics without a publisher, and rejects the groups with events of topics that belong to another client.
    async fn claimed(&self, items: Vec<Item>, view: &mut Arc<View>) -> Vec<Item> {
        let mut kept = Vec::with_capacity(items.len());
        for item in items {
            match self.claim_all(&item, view).await {
                Ok(()) => kept.push(item),
                Err(refusal) => item.answer(Err(refusal)),
            }
        }
        kept
    }

    async fn claim_all(&self, item: &Item, view: &mut Arc<View>) -> Result<(), Refusal> {
        for topic in item.parts.iter().filter_map(Part::topic) {
            if view.is_claimed_by(topic, &item.client) {
                continue;
            }
            let limits = &self.core.options;
            let claim = self.core.change(|registry, _| registry.claim(topic, &item.client, limits)).await;
            *view = self.core.view();
            claim.map_err(|error| refusal_of(&error))?;
        }
        Ok(())
    }

    /// Sends the call, and again as it was while its outcome is unknown.
    async fn call(&mut self, view: &View, items: &[Item]) -> Result<PublishReply, signalbox_store::Error> {
        let (fan_out, places) = fan_out(view, items);
        let clients: HashMap<&str, usize> =
            fan_out.clients.iter().enumerate().map(|(place, client)| (&**client, place)).collect();
        let groups: Vec<Group<'_>> = items
            .iter()
            .map(|item| Group {
                object: item.object(),
                hash: item.hash,
                state: item.state.as_ref().map(|state| state.get()),
                backend: view.backend_of(item.object()),
                idempotency: item.idempotency.as_ref().map(|(key, body)| {
                    (clients.get(&*item.client).copied().unwrap_or_default(), &**key, &**body)
                }),
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
            batch_bytes: options.batch_bytes,
            objects: options.objects,
            object_seconds: options.object_seconds,
            idempotency_keys: options.idempotency_keys,
            idempotency_seconds: options.idempotency_seconds,
            object_events: options.object_events,
            // Rounded up: a small limit is still one.
            environment_bytes: options.environment_bytes.div_ceil(self.core.stores.len() as u64),
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
                    let Item { parts, ticket, .. } = item;
                    // A change without events has no ID to return.
                    let first = Ok(numbers.first().map_or(EventId(0), |(id, _, _)| *id));
                    for (Part { content, environment, cause, .. }, numbers) in parts.into_iter().zip(numbers)
                    {
                        if let Content::Event { topic, event } = content {
                            let event = event.accepted(*numbers, &topic, environment);
                            fresh.push(Arc::new(Event { cause, ..event }));
                        }
                    }
                    ticket.gather.answer(ticket.place, first);
                }
                Some(Accepted::Repeat(first)) => item.answer(Ok(*first)),
                Some(Accepted::QueueFull) => item.answer(Err(Refusal::QueueFull)),
                Some(Accepted::WaitingFull) => item.answer(Err(Refusal::WaitingFull)),
                Some(Accepted::EnvironmentFull) => {
                    item.answer(Err(Refusal::EnvironmentFull { limit: self.core.options.environment_bytes }));
                }
                Some(Accepted::Outdated) => item.answer(Err(Refusal::Outdated)),
                Some(Accepted::Conflict) => item.answer(Err(Refusal::Conflict)),
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

/// The positions of topics and queues within a call.
struct Places<'a> {
    /// By name, and by environment if the subscribers depend on it.
    topics: HashMap<(&'a str, Option<&'a str>), usize>,
    /// By their positions in the view.
    queues: HashMap<usize, usize>,
}

impl Places<'_> {
    fn topic(&self, view: &View, part: &Part) -> Option<usize> {
        let topic = part.topic()?;
        self.topics.get(&(&**topic, part.divided_by(view))).copied()
    }

    /// The queues that take an event, each with what is set for the event's facet.
    fn queues(&self, view: &View, part: &Part) -> Vec<InQueue> {
        let found = view.queues_for(&part.channel);
        let place = |known: &usize| {
            let definition = &view.queues.at(*known)?.definition;
            let (weight, rules) = (definition.weight(&part.environment), definition.rules(&part.environment));
            Some(InQueue { place: *self.queues.get(known)?, weight, rules })
        };
        found.iter().filter_map(place).collect()
    }
}

fn fan_out<'a>(view: &View, items: &'a [Item]) -> (FanOut, Places<'a>) {
    let (mut topics, mut clients, mut queues) = (Vec::new(), Vec::new(), Vec::new());
    let (mut topic_places, mut places) = (HashMap::new(), HashMap::new());
    for item in items {
        for part in &item.parts {
            if let Some(topic) = part.topic() {
                let environment = part.divided_by(view);
                topic_places.entry((&**topic, environment)).or_insert_with(|| {
                    topics.push((Arc::clone(topic), environment));
                    topics.len() - 1
                });
            }
            for known in view.queues_for(&part.channel).iter() {
                if let Some(queue) = view.queues.at(*known) {
                    places.entry(*known).or_insert_with(|| {
                        queues.push((Arc::clone(&queue.name), queue.definition.publish_limits()));
                        queues.len() - 1
                    });
                }
            }
        }
        if item.idempotency.is_some() && !clients.contains(&item.client) {
            clients.push(Arc::clone(&item.client));
        }
    }
    let fan_out = FanOut { queues, ..view.fan_out(&topics, clients) };
    (fan_out, Places { topics: topic_places, queues: places })
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
