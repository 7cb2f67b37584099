//! Accepted events that are still in memory, so that a delivery seldom reads them from Redis again.
//!
//! First in, first out, bounded by bytes: batches are delivered in about the order in which their events were accepted,
//! so the oldest events are the least likely to be needed. A miss costs one read; nothing depends on a hit.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};

use super::{Event, EventId};

/// One multiplication spreads IDs well enough, and no client chooses them.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte) ^ self.0);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (number >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

#[derive(Default)]
struct Shelf {
    events: HashMap<u64, Arc<Event>, BuildHasherDefault<IdHasher>>,
    order: VecDeque<(u64, usize)>,
    bytes: usize,
}

/// The cache.
pub(super) struct Cache {
    shelf: Mutex<Shelf>,
    limit: usize,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Cache {
    pub(super) fn new(limit: usize) -> Self {
        Self { shelf: Mutex::default(), limit }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock()
    }

    pub(super) fn put(&self, events: impl IntoIterator<Item = Arc<Event>>) {
        let mut shelf = self.shelf();
        for event in events {
            let (id, weight) = (event.id.0, event.weight());
            if shelf.events.insert(id, event).is_none() {
                shelf.order.push_back((id, weight));
                shelf.bytes += weight;
            }
        }
        while shelf.bytes > self.limit {
            let Some((id, weight)) = shelf.order.pop_front() else { break };
            shelf.events.remove(&id);
            shelf.bytes -= weight;
        }
    }

    /// The cached events, at the positions of their IDs.
    pub(super) fn get(&self, ids: impl IntoIterator<Item = EventId>) -> Vec<Option<Arc<Event>>> {
        let shelf = self.shelf();
        ids.into_iter().map(|id| shelf.events.get(&id.0).cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, NewEvent};

    pub(crate) fn event(id: u64) -> Arc<Event> {
        let new = NewEvent {
            kind: Kind::Noop,
            url: "https://a.example/".into(),
            timestamp_ms: None,
            data: None,
            tenant: None,
            object: None,
            idempotency_key: None,
        };
        Arc::new(new.accepted((EventId(id), None, None), "t", "e".into()))
    }

    #[test]
    fn the_oldest_leave_when_the_bytes_are_used_up() {
        let cache = Cache::new(event(0).weight() * 3);
        cache.put((1..=5).map(|n| event(n * 64)));
        let here: Vec<bool> =
            cache.get((1..=5).map(|n| EventId(n * 64))).iter().map(Option::is_some).collect();
        assert_eq!(here, [false, false, true, true, true]);
        assert!(cache.shelf().bytes <= cache.limit);
    }

    #[test]
    fn an_event_that_is_put_twice_counts_once() {
        let cache = Cache::new(usize::MAX);
        cache.put([event(64), event(64)]);
        assert_eq!(cache.shelf().bytes, event(64).weight());
    }
}
