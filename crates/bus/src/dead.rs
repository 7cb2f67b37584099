//! Lists and redrives dead letters.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    DeadLetter, Error, Event, EventId, Page,
    core::Core,
    event::lane_hash,
    store::{Appended, DeadEntry, Resend, SEGMENT_IDS, Store},
    view::target,
};

/// Dead letters in one call of the script.
const PART: u64 = 100;
/// Bytes in one call of the script.
const PART_BYTES: usize = 1 << 20;

/// A part of a client's dead letters. The cursor is `shard:place`.
pub(super) async fn list(
    core: &Core,
    client: &str,
    cursor: Option<&str>,
    limit: usize,
) -> Result<Page<DeadLetter>, Error> {
    let (mut shard, mut place) = cursor
        .and_then(|cursor| cursor.split_once(':'))
        .and_then(|(shard, place)| Some((shard.parse().ok()?, place.parse().ok()?)))
        .unwrap_or((0, 0));
    let mut items = Vec::new();
    while let Some(store) = core.stores.get::<usize>(shard) {
        let wanted = (limit - items.len()) as u64;
        if wanted == 0 {
            return Ok(Page { items, cursor: Some(format!("{shard}:{place}")) });
        }
        let entries = store.dead(client, place, wanted).await?;
        place += entries.len() as u64;
        if (entries.len() as u64) < wanted {
            shard += 1;
            place = 0;
        }
        items.extend(entries.iter().filter_map(letter));
    }
    Ok(Page { items, cursor: None })
}

fn letter(entry: &DeadEntry) -> Option<DeadLetter> {
    let dead = entry.read()?;
    let event = Event::read(&dead.entry)
        .inspect_err(|error| tracing::error!(%error, "dead letter not readable"))
        .ok()?;
    Some(DeadLetter {
        event: Arc::new(event),
        died_ms: dead.died_ms,
        attempts: dead.attempts,
        reason: dead.reason,
    })
}

/// Returns a client's dead letters to its lanes: those that exist now, not those that are added in the meantime.
pub(super) async fn redrive(core: &Core, client: &str) -> Result<u64, Error> {
    let mut redriven = 0;
    for store in &core.stores {
        let mut left = store.movements(client).await?.dead;
        while left > 0 {
            let entries = store.dead(client, 0, left.min(PART)).await?;
            if entries.is_empty() {
                break;
            }
            let mut parts = Vec::new();
            let mut bytes = 0;
            for entry in &entries {
                bytes += entry.0.len();
                if !parts.is_empty() && bytes > PART_BYTES {
                    break;
                }
                parts.push(returned(entry));
            }
            left = left.saturating_sub(parts.len() as u64);
            redriven += put(core, store, client, &parts, true).await?;
        }
    }
    Ok(redriven)
}

/// Delivers one event again: a dead letter, or an event of the subscriber's topics in the log.
pub(super) async fn resend(core: &Core, client: &str, id: EventId) -> Result<(), Error> {
    // The low six bits are the shard that numbered it.
    let shard = usize::try_from(id.0 & 63).unwrap_or(usize::MAX);
    let store = core.stores.get::<usize>(shard).ok_or(Error::NoSuchEvent)?;
    let mut place = 0;
    loop {
        let entries = store.dead(client, place, PART).await?;
        if let Some(one) = entries.iter().map(returned).find(|one| one.id == id) {
            let redriven = put(core, store, client, &[one], true).await?;
            return if redriven > 0 { Ok(()) } else { Err(Error::NoSuchEvent) };
        }
        place += entries.len() as u64;
        if (entries.len() as u64) < PART {
            break;
        }
    }
    let view = core.view();
    let subscription = view.subscription(client).ok_or(Error::NoSuchSubscription)?;
    let found = store.bodies(&BTreeMap::from([(id.0 / SEGMENT_IDS, vec![id])])).await?;
    let body = found.into_iter().find_map(|(_, body)| body).ok_or(Error::NoSuchEvent)?;
    let event = Event::read(&body).map_err(|_| Error::NoSuchEvent)?;
    // An event of another topic or environment is none of the subscriber's business.
    if !subscription.topics.contains(&event.topic) || !subscription.takes(&event.environment) {
        return Err(Error::NoSuchEvent);
    }
    let one = Resend { id, hash: lane_hash(&event.object), body, letter: Vec::new() };
    put(core, store, client, &[one], false).await.map(drop)
}

fn returned(entry: &DeadEntry) -> Resend {
    let event = entry.read().and_then(|dead| Some((Event::read(&dead.entry).ok()?, dead.entry)));
    match event {
        Some((event, body)) => {
            Resend { id: event.id, hash: lane_hash(&event.object), body, letter: entry.0.clone() }
        }
        // An unreadable entry cannot be delivered; this body removes it from the list, and the delivery counts it as
        // lost.
        None => Resend { id: EventId(0), hash: 0, body: Vec::new(), letter: entry.0.clone() },
    }
}

/// Puts events into the client's lanes: dead letters, which leave their list, or others.
async fn put(
    core: &Core,
    store: &Store,
    client: &str,
    events: &[Resend],
    letters: bool,
) -> Result<u64, Error> {
    for _ in 0..3 {
        let view = core.view();
        let subscription = view.subscription(client).ok_or(Error::NoSuchSubscription)?;
        let target = target(subscription);
        let seed = core.rng.seed();
        let stamp = &view.stamp;
        let appended = if letters {
            store.redrive(stamp, &target, core.options.batch_bytes, &seed, events).await?
        } else {
            store.resend(stamp, &target, core.options.batch_bytes, &seed, events).await?
        };
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
