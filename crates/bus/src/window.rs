//! The retained window: the log in order of ids, for streams.
//!
//! A reader continues after a given ID. It finds its place in a segment from the end backwards, so catching up costs
//! as much as was missed and not as much as the segment holds. Redriven and replayed events are in the log a second
//! time, in a later segment than their IDs belong to; a reader skips them.

use std::sync::Arc;

use signalbox_store::Subscription;

use super::{
    Error, Event, EventId, Handle,
    core::Core,
    store::{SEGMENT_IDS, Store},
};

/// IDs read in one step backwards.
const LOOK: u64 = 1_000;

/// An event as the log has it, and as it is published live.
#[derive(Debug, Clone)]
pub struct Logged {
    /// Its number.
    pub id: EventId,
    /// Its JSON. `last` in it is the id of the shard's event before it.
    pub entry: Vec<u8>,
}

/// A reader of one shard's log.
#[derive(Debug)]
pub struct Window {
    core: Arc<Core>,
    shard: usize,
    after: EventId,
    /// Segment and position in it of the next ID to read; `None` before the first read.
    at: Option<(u64, u64)>,
}

impl Handle {
    /// How many shards the fabric has.
    pub fn shards(&self) -> usize {
        self.core.stores.len()
    }

    /// The last ID assigned in a shard; `None` before the first.
    pub async fn last_id(&self, shard: usize) -> Result<Option<EventId>, Error> {
        Ok(self.core.stores[shard].last_id().await?.map(EventId))
    }

    /// An event, as long as the log holds it in the segment of its ID. A redriven or replayed copy is elsewhere and is
    /// not found after that.
    pub async fn event(&self, id: EventId) -> Result<Option<Event>, Error> {
        let Some(store) = self.core.store_of(id) else { return Ok(None) };
        Ok(store.body(id).await?.and_then(|entry| {
            let read = Event::from_log(&entry);
            read.inspect_err(|error| tracing::error!(%error, %id, "event in the log not readable")).ok()
        }))
    }

    /// Reads what a shard's log holds after `after`.
    pub fn window(&self, shard: usize, after: EventId) -> Window {
        Window { core: Arc::clone(&self.core), shard, after, at: None }
    }

    /// A live subscription to every event of every shard as it is accepted: entries as in [`Logged`]. The log has the
    /// events that were missed.
    pub fn live(&self) -> Subscription {
        // Pub/sub is not sharded: every node delivers all messages.
        self.core.stores[0].live()
    }
}

impl Window {
    /// The next events, at most `most` and about a megabyte; none when the reader has caught up for now.
    pub async fn next(&mut self, most: u64) -> Result<Vec<Logged>, Error> {
        let core = Arc::clone(&self.core);
        let store = &core.stores[self.shard];
        loop {
            let (segment, place) = match self.at {
                Some(at) => at,
                None => self.find(store).await?,
            };
            let ids = store.order(segment, place, most).await?;
            let checked = ids.len() as u64;
            let wanted: Vec<(u64, EventId)> = (place..)
                .zip(ids)
                .filter(|(_, id)| id / SEGMENT_IDS == segment && *id > self.after.0)
                .map(|(at, id)| (at, EventId(id)))
                .collect();
            let names: Vec<EventId> = wanted.iter().map(|(_, id)| *id).collect();
            let bodies = store.bodies_part(segment, &names).await?;
            // The first one that did not fit begins the next part.
            let next = wanted.get(bodies.len()).map_or(place + checked, |(at, _)| *at);
            // A segment may be trimmed between the two reads; the hole is visible in the events' `prev`.
            let bodies = bodies.into_iter();
            let events: Vec<Logged> =
                bodies.filter_map(|(id, entry)| Some(Logged { id, entry: entry? })).collect();
            self.at = Some((segment, next));
            if let Some(event) = events.last() {
                self.after = event.id;
                return Ok(events);
            }
            if checked > 0 {
                continue;
            }
            // Ids only rise, so the segment is complete once there is a later one. What came between the two reads is read first.
            let Some((&later, _)) = store.segments().await?.range(segment + 1..).next() else {
                return Ok(Vec::new());
            };
            if store.order(segment, next, 1).await?.is_empty() {
                self.at = Some((later, 0));
            }
        }
    }

    /// Where the first id after `after` is, or would come.
    async fn find(&self, store: &Store) -> Result<(u64, u64), Error> {
        let home = self.after.0 / SEGMENT_IDS;
        let segments = store.segments().await?;
        if !segments.contains_key(&home) {
            let later = segments.range(home..).next().map(|(segment, _)| *segment);
            return Ok((later.unwrap_or(home), 0));
        }
        let mut end = store.order_length(home).await?;
        while end > 0 {
            let start = end.saturating_sub(LOOK);
            let ids = store.order(home, start, end - start).await?;
            let known = ids.iter().rposition(|id| id / SEGMENT_IDS == home && *id <= self.after.0);
            if let Some(known) = known {
                return Ok((home, start + known as u64 + 1));
            }
            end = start;
        }
        Ok((home, 0))
    }
}
