//! Lists and redrives dead letters.

use std::sync::Arc;

use signalbox_queues::{DeadCursor, DeadKey};
use signalbox_store::{PAGE_BYTES, unpacked};

use super::{
    Error, Event, EventId, Handle,
    core::Core,
    event,
    store::{Again, Appended, Resend, Skipped, Store},
    view::target,
};

/// Dead letters in one call of the script.
const PART: u64 = 100;
/// How often a search for an event begins again because its lane moved.
const SKIP_TRIES: usize = 10;

/// One event that could not be delivered.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// The event.
    pub event: Arc<Event>,
    /// When it became a dead letter, unix milliseconds.
    pub died_ms: u64,
    /// Attempts made with the batch it was in.
    pub attempts: u32,
    /// The last failure.
    pub reason: String,
}

/// A part of a list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// The cursor of the next part; `None` after the last part.
    pub cursor: Option<String>,
}

impl Handle {
    /// A part of the client's dead letters, oldest first: at most `limit`, and fewer if they are large. The cursor is a
    /// [`DeadCursor`].
    pub async fn dead_letters(
        &self,
        client: &str,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page<DeadLetter>, Error> {
        self.known(client).await?;
        let stores = &self.core.stores;
        let mut at = match cursor {
            None => DeadCursor::default(),
            Some(cursor) => DeadCursor::parse(cursor, stores.len()).ok_or(Error::InvalidCursor)?,
        };
        let (mut items, mut bytes) = (Vec::new(), PAGE_BYTES);
        while let Some(store) = stores.get(at.shard) {
            let wanted = (limit - items.len()) as u64;
            let (entries, is_last) = page(store, client, &mut at, wanted, &mut bytes).await?;
            items.extend(entries.iter().filter_map(|stored| Some(DeadLetter::read(stored)?.0)));
            if !is_last {
                return Ok(Page { items, cursor: Some(at.to_string()) });
            }
            at.next_shard();
        }
        Ok(Page { items, cursor: None })
    }

    /// Puts the dead letters back into the client's lanes: those that exist now, not those that are added in the meantime.
    /// Returns how many there were.
    pub async fn redrive(&self, client: &str) -> Result<u64, Error> {
        self.known(client).await?;
        let mut redriven = 0;
        for store in &self.core.stores {
            let mut left = store.movements(client).await?.dead;
            while left > 0 {
                let entries = store.dead_part(client, 0, left.min(PART)).await?;
                if entries.is_empty() {
                    break;
                }
                let parts: Vec<Resend> = entries.iter().map(|entry| returned(entry)).collect();
                left = left.saturating_sub(parts.len() as u64);
                redriven += put(&self.core, store, client, &parts, Again::Redrive).await?;
            }
        }
        Ok(redriven)
    }

    /// Forgets all dead letters; how many there were.
    pub async fn drop_dead(&self, client: &str) -> Result<u64, Error> {
        self.known(client).await?;
        let mut dropped = 0;
        for store in &self.core.stores {
            dropped += store.drop_dead(client).await?;
        }
        Ok(dropped)
    }

    /// Delivers one event to the client again: a dead letter, or an event of its topics that the log still has.
    pub async fn resend(&self, client: &str, id: EventId) -> Result<(), Error> {
        self.known(client).await?;
        let store = self.core.store_of(id).ok_or(Error::NoSuchEvent)?;
        let mut at = DeadCursor::default();
        loop {
            let mut bytes = PAGE_BYTES;
            let (entries, is_last) = page(store, client, &mut at, PART, &mut bytes).await?;
            if let Some(one) = entries.iter().map(|stored| returned(stored)).find(|one| one.id == id) {
                let redriven = put(&self.core, store, client, &[one], Again::Redrive).await?;
                return if redriven > 0 { Ok(()) } else { Err(Error::NoSuchEvent) };
            }
            if is_last {
                break;
            }
        }
        let view = self.core.view();
        let subscription = view.subscription(client).ok_or(Error::NoSuchSubscription)?;
        let body = store.body(id).await?.ok_or(Error::NoSuchEvent)?;
        let event = Event::from_log(&body).map_err(|_| Error::NoSuchEvent)?;
        // An event of another topic or tenant is none of the subscriber's business.
        if !subscription.topics.contains(&event.topic) || !subscription.takes(&event.tenant) {
            return Err(Error::NoSuchEvent);
        }
        let one = Resend::new(&event, body, Vec::new());
        put(&self.core, store, client, &[one], Again::Resend).await.map(drop)
    }

    /// Takes an event that waits out of the client's lanes. It becomes a dead letter with a gap.
    ///
    /// # Errors
    /// [`Error::NoSuchSubscription`], or [`Error::NoSuchEvent`] when it is not among the client's next events.
    pub async fn skip(&self, client: &str, id: EventId) -> Result<(), Error> {
        self.known(client).await?;
        let store = self.core.store_of(id).ok_or(Error::NoSuchEvent)?;
        // The lane of an event that was put in again is not known if the log has only its copy.
        let hash = self.event(id).await?.map(|event| event::lane_hash(&event.object));
        let keep = (self.core.options.dead_events, self.core.options.dead_bytes);
        for _ in 0..SKIP_TRIES {
            let mut found = Skipped::More(Default::default());
            while let Skipped::More(cursor) = found {
                found = store.skip(client, id, hash, keep, &cursor).await?;
            }
            match found {
                Skipped::Done => return Ok(()),
                Skipped::Moved | Skipped::More(_) => {}
                Skipped::Absent => return Err(Error::NoSuchEvent),
            }
        }
        Err(Error::Contended)
    }
}

impl DeadLetter {
    fn key(&self) -> DeadKey {
        (self.died_ms, self.event.id.0)
    }

    /// Reads a dead letter as stored: MessagePack of died, attempts, reason and the event's JSON, which is returned, too.
    pub(super) fn read(stored: &[u8]) -> Option<(Self, Vec<u8>)> {
        let [died, attempts, reason, body] = unpacked(stored)?;
        let text = |bytes| String::from_utf8(bytes).ok();
        let event = Event::from_log(&body)
            .inspect_err(|error| tracing::error!(%error, "dead letter not readable"))
            .ok()?;
        let letter = Self {
            event: Arc::new(event),
            died_ms: text(died)?.parse().ok()?,
            attempts: text(attempts)?.parse().ok()?,
            reason: text(reason)?,
        };
        Some((letter, body))
    }
}

/// The dead letters of a shard behind a position, which is moved behind them, and whether there are no more. Their bytes are
/// subtracted from `bytes`.
async fn page(
    store: &Store,
    client: &str,
    at: &mut DeadCursor,
    count: u64,
    bytes: &mut usize,
) -> Result<(Vec<Vec<u8>>, bool), Error> {
    let key = |stored: &Vec<u8>| Some(DeadLetter::read(stored)?.0.key());
    let read = |from, count| async move {
        let entries = store.dead_part(client, from, count).await?;
        Ok::<_, Error>(entries.iter().map(key).collect())
    };
    let place = at.find(read).await?;
    let (entries, is_last) = store.dead(client, place, count, bytes).await?;
    at.advance(place, entries.iter().map(key));
    Ok((entries, is_last))
}

fn returned(stored: &[u8]) -> Resend {
    let letter = stored.to_vec();
    match DeadLetter::read(stored) {
        Some((DeadLetter { event, .. }, body)) => Resend::new(&event, body, letter),
        // An unreadable entry cannot be delivered; this body removes it from the list, and the delivery counts it as
        // lost.
        None => Resend { id: EventId(0), hash: 0, body: Vec::new(), letter, tenant: String::new() },
    }
}

/// Puts events into the client's lanes: dead letters, which leave their list, or others.
async fn put(
    core: &Core,
    store: &Store,
    client: &str,
    events: &[Resend],
    again: Again<'_>,
) -> Result<u64, Error> {
    for _ in 0..3 {
        let view = core.view();
        let subscription = view.subscription(client).ok_or(Error::NoSuchSubscription)?;
        let target = target(subscription);
        let seed = core.rng.seed();
        let stamp = &view.stamp;
        let appended = store.append(again, stamp, &target, core.options.batch_bytes, &seed, events).await?;
        match appended {
            Appended::Put(count) => return Ok(count),
            Appended::Stale | Appended::Moved => {
                let view = core.refresh().await?;
                core.spread(&view).await?;
            }
        }
    }
    Err(Error::Contended)
}
