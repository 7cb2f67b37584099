//! The interface of the sequencer for request handlers.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::value::RawValue;

use super::{
    Options, check, redrive, removal,
    store::{Status, Store},
};
use signalbox_bus::{self as bus, Backend, Error, EventId, Finding, Queued, WantedBackend, shard_of};

/// The status of an object.
#[derive(Debug)]
pub struct ObjectStatus {
    /// Its state, as JSON.
    pub data: Option<Box<RawValue>>,
    /// The id of its latest event.
    pub last_id: Option<EventId>,
    /// The backend that its queue goes to, while it has one.
    pub backend: Option<String>,
    /// Events that wait, without the one in flight.
    pub waiting: u64,
    /// The event being sent at this moment.
    pub flight: Option<EventId>,
    /// The event that is sent next.
    pub head: Option<EventId>,
    /// The worker that sends it, with the epoch of its lease.
    pub owner: Option<String>,
    /// When the lease ends unless the worker shows that it lives, unix milliseconds.
    pub lease_until_ms: Option<u64>,
    /// When the event at the head is tried again, unix milliseconds.
    pub retry_at_ms: Option<u64>,
    /// Since when it waits for a decision, unix milliseconds.
    pub parked_since_ms: Option<u64>,
    /// Failed attempts with the event at the head.
    pub attempts: u64,
    /// Why the last one failed.
    pub why: Option<String>,
    /// The id of the latest event that its backend took.
    pub last_sent: Option<EventId>,
}

/// A backend with its numbers.
#[derive(Debug, Clone)]
pub struct BackendStatus {
    /// Its name.
    pub name: String,
    /// Its definition.
    pub backend: Backend,
    /// Objects with a queue.
    pub objects: u64,
    /// Events that wait or are in flight.
    pub events: u64,
    /// Objects that could be taken at this moment.
    pub ready: u64,
    /// Dead letters.
    pub dead: u64,
}

/// All numbers of the sequencer.
#[derive(Debug, Clone, Default)]
pub struct Numbers {
    /// By backend.
    pub backends: Vec<BackendStatus>,
    /// Objects that a worker holds.
    pub leased: u64,
    /// Objects that wait for a retry.
    pub retry: u64,
    /// Objects that wait for a decision.
    pub parked: u64,
    /// The counters since the fabric was created: `sent`, `failed`, `dead`, `discarded`, `redriven`, `parked`,
    /// `swept`.
    pub counters: BTreeMap<String, u64>,
}

/// An event that became a dead letter.
#[derive(Debug)]
pub struct DeadEvent {
    /// When, unix milliseconds.
    pub died_ms: u64,
    /// Attempts made.
    pub attempts: u32,
    /// Why the last one failed.
    pub why: String,
    /// The event as it was accepted, as JSON.
    pub event: Box<RawValue>,
}

/// The result of removing a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It is gone.
    Gone,
    /// It accepts no new objects, and disappears once its queues are empty.
    Going,
    /// Nothing was done: events are queued for it, and the call did not specify their treatment.
    NotEmpty {
        /// Objects with a queue.
        objects: u64,
        /// Events in them.
        events: u64,
    },
}

/// An operator's decision about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Try the event at the head again, now.
    Unpark,
    /// Give this event up, which must be the one at the head: a decision whose reply was lost may be repeated.
    Skip(EventId),
}

/// The result of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decided {
    /// It was executed.
    Done,
    /// The object has no queue.
    Idle,
    /// Nothing has failed, so nothing is to be decided.
    NothingToDecide,
    /// The event is being sent at this moment.
    InFlight,
    /// Another event is at the head.
    AnotherEvent,
}

/// The sequencer, for everybody who asks. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    bus: bus::Handle,
    stores: Vec<Arc<Store>>,
    options: Options,
}

impl Handle {
    pub(super) fn new(bus: bus::Handle, stores: Vec<Arc<Store>>, options: Options) -> Self {
        Self { bus, stores, options }
    }

    fn store_of(&self, object: &str) -> &Store {
        &self.stores[shard_of(object, self.stores.len())]
    }

    /// The status of an object; `None` for an unknown object.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn object(&self, object: &str) -> Result<Option<ObjectStatus>, Error> {
        let status = self.store_of(object).status(object).await?;
        if status.data.is_none()
            && status.memory.is_none()
            && status.backend.is_none()
            && status.sent.is_none()
        {
            return Ok(None);
        }
        Ok(Some(object_status(status)))
    }

    /// The latest events of an object's queue, newest first, the one in flight included.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn queue(&self, object: &str, most: usize) -> Result<Vec<bus::Event>, Error> {
        let entries = self.store_of(object).queue(object, most).await?;
        Ok(entries.iter().rev().filter_map(|entry| bus::Event::from_log(entry).ok()).collect())
    }

    /// Carries a decision out.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn decide(&self, object: &str, decision: Decision) -> Result<Decided, Error> {
        let skipped = match decision {
            Decision::Unpark => None,
            Decision::Skip(id) => Some(id.0),
        };
        let word = self.store_of(object).decide(object, skipped, self.options.dead_events).await?;
        Ok(match &*word {
            "done" => Decided::Done,
            "leased" => Decided::InFlight,
            "other" => Decided::AnotherEvent,
            "ready" => Decided::NothingToDecide,
            _ => Decided::Idle,
        })
    }

    /// Objects that wait for a decision, oldest first, with since when (unix milliseconds).
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn parked(&self, limit: usize) -> Result<Vec<(String, u64)>, Error> {
        let mut all = Vec::new();
        for store in &self.stores {
            all.extend(store.parked(limit).await?);
        }
        all.sort_by_key(|(_, since)| *since);
        all.truncate(limit);
        Ok(all)
    }

    /// All numbers.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn numbers(&self) -> Result<Numbers, Error> {
        let registry = self.bus.registry();
        let names: Vec<&str> = registry.backends.keys().map(String::as_str).collect();
        let mut all = Numbers {
            backends: registry
                .backends
                .iter()
                .map(|(name, backend)| BackendStatus {
                    name: name.clone(),
                    backend: backend.clone(),
                    objects: 0,
                    events: 0,
                    ready: 0,
                    dead: 0,
                })
                .collect(),
            ..Numbers::default()
        };
        for store in &self.stores {
            let shard = store.numbers(&names).await?;
            all.leased += shard.leased;
            all.retry += shard.retry;
            all.parked += shard.parked;
            let number = |field: String| shard.numbers.get(&field).copied().unwrap_or_default();
            for (one, (ready, dead)) in all.backends.iter_mut().zip(&shard.backends) {
                one.objects += number(format!("objects@{}", one.name));
                one.events += number(format!("events@{}", one.name));
                one.ready += ready;
                one.dead += dead;
            }
            for name in ["sent", "failed", "dead", "discarded", "redriven", "parked", "swept"] {
                *all.counters.entry(name.to_owned()).or_default() += number(name.to_owned());
            }
        }
        Ok(all)
    }

    /// Defines or replaces a backend. Whether it is new.
    ///
    /// # Errors
    /// [`Error::PrefixTaken`], or when there are too many.
    pub async fn put_backend(
        &self,
        name: &str,
        wanted: WantedBackend,
        new_secret: &str,
    ) -> Result<bool, Error> {
        let new = self.bus.put_backend(name, wanted, new_secret).await?;
        self.wake().await;
        Ok(new)
    }

    /// Removes a backend: immediately when nothing is queued for it, otherwise as `queued` specifies. Without that it
    /// is rejected while anything is queued. May be repeated; if this ends early, other pacemakers continue.
    ///
    /// # Errors
    /// [`Error::NoSuchBackend`] when there is none.
    pub async fn remove_backend(&self, name: &str, queued: Option<Queued>) -> Result<Removed, Error> {
        let registry = self.bus.registry();
        let backend = registry.backends.get(name);
        let queued = match (queued, backend) {
            (Some(queued), _) => queued,
            (None, Some(backend)) if backend.draining => backend.queued,
            (None, _) => {
                let (objects, events) = self.queued(name).await?;
                if objects > 0 {
                    return Ok(Removed::NotEmpty { objects, events });
                }
                Queued::Send
            }
        };
        self.bus.drain_backend(name, queued).await?;
        // Others begin to clear as well: if this process dies now, that is enough.
        self.wake().await;
        let gone = removal::run(&self.bus, &self.stores, name, queued).await?;
        self.wake().await;
        Ok(if gone { Removed::Gone } else { Removed::Going })
    }

    /// Objects with a queue for a backend, and the events in them.
    async fn queued(&self, backend: &str) -> Result<(u64, u64), Error> {
        let (mut objects, mut events) = (0, 0);
        for store in &self.stores {
            let numbers = store.numbers(&[]).await?.numbers;
            let number = |what: &str| numbers.get(&format!("{what}@{backend}")).copied().unwrap_or_default();
            objects += number("objects");
            events += number("events");
        }
        Ok((objects, events))
    }

    /// The latest dead letters of a backend, oldest first.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn dead(&self, backend: &str, limit: usize) -> Result<Vec<DeadEvent>, Error> {
        let mut all = Vec::new();
        for store in &self.stores {
            all.extend(store.dead(backend, limit).await?.iter().filter_map(|entry| dead_event(entry)));
        }
        all.sort_by_key(|one| one.died_ms);
        let surplus = all.len().saturating_sub(limit);
        all.drain(..surplus);
        Ok(all)
    }

    /// Forgets the dead letters of a backend; how many there were.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn drop_dead(&self, backend: &str) -> Result<u64, Error> {
        let mut dropped = 0;
        for store in &self.stores {
            dropped += store.drop_dead(backend).await?;
        }
        Ok(dropped)
    }

    /// Puts the dead letters of a backend back into the queues of their objects: how many, and how many are left because
    /// their object's queue is full. Events that become dead letters in the meantime stay.
    ///
    /// # Errors
    /// [`Error::NoSuchBackend`] when there is none, or it is being removed.
    pub async fn redrive(&self, backend: &str) -> Result<(u64, u64), Error> {
        redrive::run(&self.bus, &self.stores, backend).await
    }

    /// Lists the consistency violations, none if all is well. Only reads, in parts, while work continues.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn check(&self) -> Result<Vec<Finding>, Error> {
        let registry = self.bus.registry();
        let names: Vec<&str> = registry.backends.keys().map(String::as_str).collect();
        let mut findings = Vec::new();
        for store in &self.stores {
            findings.extend(check::run(store, &names, self.options.lease_ms).await?);
        }
        Ok(findings)
    }

    /// A failed wake-up delays the work by a minute at most.
    async fn wake(&self) {
        for store in &self.stores {
            if let Err(error) = store.wake().await {
                tracing::debug!(%error, "sleepers look later");
            }
        }
    }
}

fn object_status(status: Status) -> ObjectStatus {
    let json = |bytes: Vec<u8>| serde_json::from_slice(&bytes).ok();
    // Times in unix milliseconds are far below what a double holds exactly.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and positive")]
    let ms = |score: f64| score as u64;
    let id = |entry: Option<Vec<u8>>| bus::Event::from_log(&entry?).ok().map(|event| event.id);
    let last_id = status.memory.as_deref().and_then(|memory| memory.split(' ').next()?.parse().ok());
    ObjectStatus {
        data: status.data.and_then(json),
        last_id: last_id.map(EventId),
        backend: status.backend,
        waiting: status.waiting,
        flight: id(status.flight),
        head: id(status.head),
        owner: status.owner,
        lease_until_ms: status.lease_ms.map(ms),
        retry_at_ms: status.retry_ms.map(ms),
        parked_since_ms: status.parked_ms.map(ms),
        attempts: status.attempts,
        why: status.why,
        last_sent: status.sent.map(EventId),
    }
}

/// Reads `died attempts length why` and the event's JSON.
pub(super) fn letter_parts(entry: &[u8]) -> Option<(u64, u64, &[u8], &[u8])> {
    let mut parts = entry.splitn(4, |byte| *byte == b' ');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
    let (died_ms, attempts, length) = (number()?, number()?, usize::try_from(number()?).ok()?);
    let (why, event) = parts.next()?.split_at_checked(length)?;
    Some((died_ms, attempts, why, event))
}

fn dead_event(entry: &[u8]) -> Option<DeadEvent> {
    let (died_ms, attempts, why, event) = letter_parts(entry)?;
    let event = without_chain(std::str::from_utf8(event).ok()?);
    Some(DeadEvent {
        died_ms,
        attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
        why: String::from_utf8_lossy(why).into_owned(),
        event: serde_json::from_str(&event).ok()?,
    })
}

/// An entry without `last`, which belongs to the log. Numbers come first, and `last` is the last of them, so the first
/// match is ours, whatever the event contains.
fn without_chain(entry: &str) -> String {
    match entry.split_once(",\"last\":").and_then(|(head, rest)| Some((head, rest.split_once(',')?.1))) {
        Some((head, rest)) => format!("{head},{rest}"),
        None => entry.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_letter_is_read_whatever_its_reason_contains() {
        let why = "answered 500 {\"id\":1} é";
        let event = r#"{"id":64,"last":7,"data":[1,",\"last\":8,"]}"#;
        let entry = format!("1700000000000 3 {} {why}{event}", why.len());
        let dead = dead_event(entry.as_bytes()).unwrap();
        assert_eq!((dead.died_ms, dead.attempts, &*dead.why), (1_700_000_000_000, 3, why));
        assert_eq!(dead.event.get(), r#"{"id":64,"data":[1,",\"last\":8,"]}"#);
        for bad in ["", "1", "1 2 3", "1 2 9 short{}", "x 2 0 {}", "1 2 0 {"] {
            assert!(dead_event(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
