//! The interface of the sequencer for request handlers.

use std::{collections::BTreeMap, sync::Arc};

use signalbox_api::{
    Time,
    objects::{DeadEvent, ObjectState},
};

use super::{Options, check, redrive, removal, store::Store};
use signalbox_bus::{self as bus, Backend, Error, EventId, Finding, Queued, WantedBackend, shard_of};
use signalbox_store::PAGE_BYTES;

/// A backend with its statistics.
#[derive(Debug, Clone)]
pub struct BackendStatus {
    /// Its name.
    pub name: String,
    /// Its definition.
    pub backend: Backend,
    /// The number of objects with a queue.
    pub objects: u64,
    /// The number of events that wait or are in flight.
    pub events: u64,
    /// The number of objects that a worker could lease now.
    pub ready: u64,
    /// The number of dead letters.
    pub dead: u64,
}

/// All statistics of the sequencer.
#[derive(Debug, Clone, Default)]
pub struct Numbers {
    /// The backends.
    pub backends: Vec<BackendStatus>,
    /// The number of leased objects.
    pub leased: u64,
    /// The number of objects that wait for a retry.
    pub retry: u64,
    /// The number of objects that wait for an operator's decision.
    pub parked: u64,
    /// The counters since the fabric was created: `sent`, `failed`, `dead`, `dead_forgotten` (dead
    /// letters beyond `sequencer.dead_events`), `discarded`, `redriven`, `parked`, `swept`.
    pub counters: BTreeMap<String, u64>,
}

/// The result of removing a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// The backend was removed.
    Gone,
    /// It accepts no new objects, and is removed once its queues are empty.
    Going,
    /// Nothing was changed, because events are queued for it and the call does not specify what to do with
    /// them.
    NotEmpty {
        /// The number of objects with a queue.
        objects: u64,
        /// The number of events in these queues.
        events: u64,
    },
}

/// An operator's decision about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Retry the event at the head now.
    Unpark,
    /// Drop this event, which must be the one at the head. A decision whose reply was lost can therefore be
    /// repeated safely.
    Skip(EventId),
}

/// The result of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decided {
    /// The decision was executed.
    Done,
    /// The object has no queue.
    Idle,
    /// No attempt has failed, so there is nothing to decide.
    NothingToDecide,
    /// The event is being sent now.
    InFlight,
    /// Another event is at the head.
    AnotherEvent,
}

/// Gives access to the sequencer. Cheap to clone.
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
    pub async fn object(&self, object: &str) -> Result<Option<ObjectState>, Error> {
        Ok(self.store_of(object).status(object).await?)
    }

    /// The latest events of an object's queue, newest first, including the one in flight.
    pub async fn queue(&self, object: &str, most: usize) -> Result<Vec<bus::Event>, Error> {
        let entries = self.store_of(object).queue(object, most).await?;
        Ok(entries.iter().rev().filter_map(|entry| bus::Event::from_log(entry).ok()).collect())
    }

    /// Executes an operator's decision.
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

    /// The objects that wait for a decision, each with the time since when (unix milliseconds), oldest first.
    pub async fn parked(&self, limit: usize) -> Result<Vec<(String, u64)>, Error> {
        let mut all = Vec::new();
        for store in &self.stores {
            all.extend(store.parked(limit).await?);
        }
        all.sort_by_key(|(_, since)| *since);
        all.truncate(limit);
        Ok(all)
    }

    /// All statistics.
    pub async fn numbers(&self) -> Result<Numbers, Error> {
        let registry = self.bus.fresh_registry().await?;
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
            for name in
                ["sent", "failed", "dead", "dead_forgotten", "discarded", "redriven", "parked", "swept"]
            {
                *all.counters.entry(name.to_owned()).or_default() += number(name.to_owned());
            }
        }
        Ok(all)
    }

    /// Defines or replaces a backend. Returns whether it is new.
    ///
    /// # Errors
    /// [`Error::PrefixTaken`], or if the maximum number of backends is reached.
    pub async fn put_backend(
        &self,
        name: &str,
        wanted: WantedBackend,
        new_secret: &str,
    ) -> Result<bool, Error> {
        self.bus.put_backend(name, wanted, new_secret).await
    }

    /// Removes a backend: immediately if nothing is queued for it, otherwise as `queued` specifies. If
    /// `queued` is `None`, the removal is rejected while events are queued. The call may be repeated. If it
    /// ends early, other pacemakers continue.
    ///
    /// # Errors
    /// [`Error::NoSuchBackend`] if the backend does not exist.
    pub async fn remove_backend(&self, name: &str, queued: Option<Queued>) -> Result<Removed, Error> {
        let registry = self.bus.fresh_registry().await?;
        let backend = registry.backends.get(name);
        let queued = match (queued, backend) {
            (Some(queued), _) => queued,
            (None, Some(backend)) if backend.draining => backend.queued,
            (None, _) => {
                let backends = self.numbers().await?.backends;
                let found = backends.iter().find(|one| one.name == name && one.objects > 0);
                if let Some(&BackendStatus { objects, events, .. }) = found {
                    return Ok(Removed::NotEmpty { objects, events });
                }
                Queued::Send
            }
        };
        // Other pacemakers begin to clear as well, so the removal continues even if this process crashes now.
        self.bus.drain_backend(name, queued).await?;
        let gone = removal::run(&self.bus, &self.stores, name, queued, self.options.dead_events).await?;
        Ok(if gone { Removed::Gone } else { Removed::Going })
    }

    /// The latest dead letters of a backend, oldest first: at most `limit`, and fewer if they are large.
    pub async fn dead(&self, backend: &str, limit: usize) -> Result<Vec<DeadEvent>, Error> {
        let mut all = Vec::new();
        for store in &self.stores {
            let mut bytes = PAGE_BYTES / self.stores.len();
            let latest = store.latest_dead(backend, limit as u64, &mut bytes).await?;
            all.extend(latest.iter().rev().filter_map(|entry| dead_event(entry)));
        }
        all.sort_by_key(|one| one.died_at);
        let surplus = all.len().saturating_sub(limit);
        all.drain(..surplus);
        Ok(all)
    }

    /// Deletes the dead letters of a backend. Returns how many there were.
    pub async fn drop_dead(&self, backend: &str) -> Result<u64, Error> {
        let mut dropped = 0;
        for store in &self.stores {
            dropped += store.drop_dead(backend).await?;
        }
        Ok(dropped)
    }

    /// Puts the dead letters of a backend back into the queues of their objects. Returns how many were put
    /// back, and how many remain because their object's queue is full. Events that become dead letters in the
    /// meantime remain.
    ///
    /// # Errors
    /// [`Error::NoSuchBackend`] if the backend does not exist, or is being removed.
    pub async fn redrive(&self, backend: &str) -> Result<(u64, u64), Error> {
        redrive::run(&self.bus, &self.stores, backend).await
    }

    /// Lists the consistency violations. The check only reads, in several calls, while deliveries continue.
    pub async fn check(&self) -> Result<Vec<Finding>, Error> {
        let registry = self.bus.registry();
        let names: Vec<&str> = registry.backends.keys().map(String::as_str).collect();
        let mut findings = Vec::new();
        for store in &self.stores {
            findings.extend(check::run(store, &names, self.options.lease_ms).await?);
        }
        Ok(findings)
    }
}

/// Splits a stored dead letter: `died attempts length why`, then the event's JSON.
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
        died_at: Time::from_ms(died_ms),
        attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
        why: String::from_utf8_lossy(why).into_owned(),
        event: serde_json::from_str(&event).ok()?,
    })
}

/// Removes `last`, which belongs to the log, from an entry. `last` follows the numbers at the beginning, so
/// the first match is the right one, whatever the event contains.
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
        assert_eq!((dead.died_at.ms(), dead.attempts, &*dead.why), (1_700_000_000_000, 3, why));
        assert_eq!(dead.event.get(), r#"{"id":64,"data":[1,",\"last\":8,"]}"#);
        for bad in ["", "1", "1 2 3", "1 2 9 short{}", "x 2 0 {}", "1 2 0 {"] {
            assert!(dead_event(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
