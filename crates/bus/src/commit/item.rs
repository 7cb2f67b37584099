//! What a committer takes: events of one object, and the way back of their answers.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::value::RawValue;
use signalbox_daemon::traces::Cause;
use tokio::{sync::oneshot, time::Instant};

use crate::{Change, Delay, EventId, NewEvent, NewMessage, Refusal, event, view::View};

/// The answers to one publish, collected from as many shards and calls as its events went to.
#[derive(Debug)]
pub(crate) struct Gather(Mutex<Answers>);

#[derive(Debug)]
struct Answers {
    results: Vec<Option<Result<EventId, Refusal>>>,
    left: usize,
    done: Option<oneshot::Sender<()>>,
}

impl Gather {
    /// For `count` events; the receiver is notified when all are answered.
    pub(crate) fn new(count: usize) -> (Arc<Self>, oneshot::Receiver<()>) {
        let (done, all) = oneshot::channel();
        let answers = Answers { results: vec![None; count], left: count, done: Some(done) };
        (Arc::new(Self(Mutex::new(answers))), all)
    }

    pub(super) fn answer(&self, place: usize, result: Result<EventId, Refusal>) {
        let mut answers = self.0.lock();
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
    pub(crate) fn take(&self) -> Vec<Result<EventId, Refusal>> {
        let mut answers = self.0.lock();
        std::mem::take(&mut answers.results)
            .into_iter()
            .map(|one| one.unwrap_or(Err(Refusal::Unavailable)))
            .collect()
    }
}

/// The place of one event's answer. Dropped without one (a shutdown, a panic) it answers that nothing is known.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) gather: Arc<Gather>,
    pub(crate) place: usize,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.gather.answer(self.place, Err(Refusal::Unavailable));
    }
}

/// One event of a group.
#[derive(Debug)]
pub(crate) struct Part {
    pub(super) tenant: String,
    pub(super) channel: String,
    pub(super) rest: Vec<u8>,
    /// The span that published it, if that is recorded. The log keeps it, at the end of `rest`.
    pub(super) cause: Option<Cause>,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
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
    pub(crate) fn new(topic: &Arc<str>, tenant: String, event: NewEvent) -> Self {
        Self {
            channel: format!("{tenant}:{}:{topic}", event.kind.as_str()),
            rest: event.rest(topic, &tenant),
            cause: None,
            tenant,
            content: Content::Event { topic: Arc::clone(topic), event },
        }
    }

    /// A message, whose object and live channel are its name: `tenant:type:name`.
    pub(crate) fn message(message: NewMessage) -> Self {
        let object = format!("{}:{}:{}", message.tenant, message.kind, message.name);
        Self {
            channel: object.clone(),
            rest: message.rest(&object),
            cause: None,
            tenant: message.tenant,
            content: Content::Message { object, delay: message.delay },
        }
    }

    pub(super) fn delay(&self) -> Option<Delay> {
        match &self.content {
            Content::Event { .. } => None,
            Content::Message { delay, .. } => *delay,
        }
    }

    /// The tenant, if the subscribers of the topic depend on it.
    pub(super) fn divided_by(&self, view: &View) -> Option<&str> {
        view.is_divided(self.topic()?).then_some(&self.tenant)
    }

    pub(crate) fn object(&self) -> &str {
        match &self.content {
            Content::Event { event, .. } => event.object(),
            Content::Message { object, .. } => object,
        }
    }

    pub(super) fn topic(&self) -> Option<&Arc<str>> {
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
/// a topic is a group of one. Within a call ids follow each other by [`event::ID_STEP`], and a group is never cut apart, so
/// the ID of its first event determines those of the others.
#[derive(Debug)]
pub(crate) struct Item {
    pub(super) client: Arc<str>,
    pub(super) hash: u32,
    pub(super) parts: Vec<Part>,
    /// The object's new state, written with the events.
    pub(super) state: Option<Box<RawValue>>,
    /// Digests of the idempotency key and of everything that was sent under it.
    pub(super) idempotency: Option<(String, String)>,
    /// A label's change, which may come without events.
    pub(crate) change: Option<Change>,
    /// The object of all its events.
    pub(crate) object: String,
    /// When its publisher began to wait.
    pub(super) since: Instant,
    /// Where its answer goes; `None` until it is handed to a committer.
    pub(crate) ticket: Option<Ticket>,
}

impl Item {
    /// A group of events of one object, at least one unless a change of a label is added.
    pub(crate) fn new(
        client: &Arc<str>,
        object: String,
        mut parts: Vec<Part>,
        state: Option<Box<RawValue>>,
        idempotency_key: Option<&str>,
    ) -> Self {
        let idempotency = idempotency_key.map(|key| {
            let sent = parts.iter().map(|part| &part.rest[..]);
            let sent = sent.chain(state.as_ref().map(|state| state.get().as_bytes()));
            (event::digest([object.as_bytes(), key.as_bytes()]), event::digest_of_events(sent))
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
            ticket: None,
        }
    }

    /// How many events it counts as, by its cost. A change of a label costs as much as two events, even without an event.
    pub(crate) fn events(&self) -> usize {
        (self.parts.len() + if self.change.is_some() { 2 } else { 0 }).max(1)
    }

    pub(crate) fn bytes(&self) -> usize {
        let state = self.state.as_ref().map_or(0, |state| state.get().len());
        let change = self.change.as_ref().map_or(0, Change::bytes);
        state + change + self.parts.iter().map(Part::bytes).sum::<usize>()
    }

    /// Answers with the id of its first event.
    pub(crate) fn answer(&self, result: Result<EventId, Refusal>) {
        if let Some(ticket) = &self.ticket {
            ticket.gather.answer(ticket.place, result);
        }
    }
}
