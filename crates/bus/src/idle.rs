//! Subscribers to which nothing can be delivered, and the parts of the log that only they need.
//!
//! A segment of the log has the events of all tenants. A subscriber that waits for one small event in it would keep all of it, and
//! pay for what others publish if that was dropped for the sake of the log's size. So what such subscribers wait for is moved to
//! segment 0, which has nothing else: an event is stored there once, and removed when no item of a batch needs it. The bytes of each
//! subscriber are counted there, and only those pay that have much.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use parking_lot::Mutex;

use super::{
    Error, EventId,
    core::Core,
    housekeeping::{READS, report, trim_all, unless_damaged, waiting_bytes},
    store::{Cursor, SEGMENT_IDS, Store},
    view::View,
};

/// Segments that are freed together: a search of a subscriber's lanes is for all of them.
const TOGETHER: usize = 500;
/// Calls that move events in one round, and calls that drop some. Tests reach the first limit.
const MAX_MOVES: usize = if cfg!(test) { 30 } else { 1_000 };
const MAX_DROPS: usize = 5_000;
/// Calls that measure while memory is short, each up to 400 events.
const MAX_MEASURES: usize = 500;
/// Bytes that may be moved at the limit of the memory.
const LEAST_ROOM: u64 = 4 << 20;

/// Where searches that were too long for a round continue in the next one, by shard and subscriber.
#[derive(Debug, Default)]
pub(super) struct Searches(Mutex<HashMap<(usize, String), Cursor>>);

impl Searches {
    fn take(&self, shard: usize, token: &str) -> Cursor {
        self.0.lock().remove(&(shard, token.to_owned())).unwrap_or_default()
    }

    fn put(&self, shard: usize, token: &str, cursor: Cursor) {
        self.0.lock().insert((shard, token.to_owned()), cursor);
    }

    /// Forgets searches of other subscribers than these.
    fn retain(&self, shard: usize, tokens: &BTreeSet<String>) {
        self.0.lock().retain(|(of, token), _| *of != shard || tokens.contains(token));
    }
}

/// The subscribers to whom nothing can be delivered.
async fn idle(core: &Core, store: &Store) -> Result<HashSet<String>, Error> {
    let view = core.refresh().await?;
    let tokens = view.registry.subscriptions.keys().cloned();
    let mut read =
        stream::iter(tokens.map(|token| idle_one(Arc::clone(&view), store, token))).buffered(READS);
    let mut idle = HashSet::new();
    while let Some(found) = read.try_next().await? {
        idle.extend(found);
    }
    Ok(idle)
}

/// The subscriber if nothing can be delivered to it: it is paused, disabled, without readable credentials, or its last deliveries
/// have failed.
async fn idle_one(
    view: Arc<View>,
    store: &Store,
    token: String,
) -> Result<Option<String>, signalbox_store::Error> {
    let Some(one) = view.registry.subscriptions.get(&token) else { return Ok(None) };
    if one.paused || one.disabled.is_some() || one.is_locked() {
        return Ok(Some(token));
    }
    let movements = unless_damaged(&token, store.movements(&token).await)?;
    Ok(movements.is_some_and(|one| one.health == 0).then_some(token))
}

/// A segment of the log that only idle subscribers need.
#[derive(Debug)]
struct Pinned {
    segment: u64,
    bytes: u64,
    /// These subscribers, and how many events wait there for each.
    holders: BTreeMap<String, u64>,
}

impl Pinned {
    /// What a subscriber needs of it at most, as far as is known.
    fn needed_by(&self, token: &str, sizes: &HashMap<String, Size>) -> u64 {
        let events = self.holders.get(token).copied().unwrap_or_default();
        sizes.get(token).map_or(0, |size| events.saturating_mul(size.mean).min(size.all))
    }

    /// Whether no subscriber needs more than half of it. All together may need more: then little is gained, and each event is moved
    /// once all the same.
    fn gains(&self, sizes: &HashMap<String, Size>) -> bool {
        self.holders.keys().all(|token| self.needed_by(token, sizes) <= self.bytes / 2)
    }
}

/// The bytes that wait for a subscriber.
#[derive(Debug, Clone, Copy)]
struct Size {
    /// Of an event, by those that wait longest.
    mean: u64,
    /// Of all events, if they were measured.
    all: u64,
}

/// A segment, with the waiting events of each subscriber that needs it, if no queue does.
async fn holders(store: &Store, segment: u64, bytes: u64) -> Result<Option<Pinned>, signalbox_store::Error> {
    let holders = unless_damaged(&format!("segment {segment}"), store.holders(segment).await)?.flatten();
    Ok(holders.map(|holders| Pinned { segment, bytes, holders }))
}

/// The segments that only idle subscribers need, oldest first, but for what is kept for them.
async fn all_pinned(store: &Store, idle: &HashSet<String>) -> Result<Vec<Pinned>, Error> {
    let mut pinned = Vec::new();
    if idle.is_empty() {
        return Ok(pinned);
    }
    let present = EventId::at_ms(store.now_ms().await?).0 / SEGMENT_IDS;
    let segments: Vec<(u64, u64)> =
        store.segments().await?.range(1..present).map(|(&s, &b)| (s, b)).collect();
    let mut read =
        stream::iter(segments).map(|(segment, bytes)| holders(store, segment, bytes)).buffered(READS);
    while let Some(found) = read.try_next().await? {
        pinned.extend(found.filter(|one| one.holders.keys().all(|holder| idle.contains(holder))));
    }
    Ok(pinned)
}

/// The bytes that only idle subscribers need: what is kept for them, and the segments that have something of them.
pub(super) async fn pinned(core: &Core, store: &Store) -> Result<u64, Error> {
    let idle = idle(core, store).await?;
    let segments: u64 = all_pinned(store, &idle).await?.iter().map(|one| one.bytes).sum();
    Ok(segments + store.kept().await?)
}

/// How much of the log is to be freed, and why.
#[derive(Debug, Clone, Copy)]
pub(super) struct Goal<'a> {
    /// Bytes that the log has to lose.
    pub(super) bytes: u64,
    /// Bytes that may be kept for idle subscribers.
    pub(super) kept: u64,
    /// Whether memory is short, so that a segment is left as it is if most of it is needed: to move that would need as much again.
    pub(super) is_short: bool,
    /// The reason, for people.
    pub(super) why: &'a str,
}

/// Frees segments that only idle subscribers need, oldest first, until the log has lost so many bytes. What waits for these
/// subscribers is kept. If that has more bytes than allowed, the oldest batches of those with the most bytes are dropped: no
/// subscriber pays for what others publish.
pub(super) async fn free(core: &Arc<Core>, store: &Store, goal: Goal<'_>) -> Result<(), Error> {
    let idle = idle(core, store).await?;
    let mut pinned = all_pinned(store, &idle).await?;
    let tokens = pinned.iter().flat_map(|one| one.holders.keys().cloned()).collect();
    core.idle_searches.retain(store.shard().index(), &tokens);
    // To move a segment needs as much memory as is needed of it, until it is removed.
    let (used, limit) = store.memory().await?;
    let free = if limit == 0 { u64::MAX } else { limit.saturating_sub(used) };
    let fits = |one: &Pinned| !goal.is_short && one.bytes <= free / 2;
    if !pinned.iter().all(fits) {
        let mut sizes = event_sizes(store, tokens).await?;
        measure(store, &pinned, &mut sizes).await?;
        pinned.retain(|one| fits(one) || one.gains(&sizes));
    }
    let target = log_bytes(store).await?.saturating_sub(goal.bytes);
    let mut dropped = BTreeMap::new();
    let freed = free_until(core, store, (target, goal.kept), (&idle, &pinned), &mut dropped).await;
    // Also what was dropped before a failure.
    report(core, dropped, goal.why);
    freed
}

/// Frees these segments until the log has no more than `target` bytes. Counts the dropped events of each subscriber.
async fn free_until(
    core: &Core,
    store: &Store,
    (target, kept): (u64, u64),
    (idle, pinned): (&HashSet<String>, &[Pinned]),
    dropped: &mut BTreeMap<String, u64>,
) -> Result<(), Error> {
    let (mut calls, mut drops, mut left) = (MAX_MOVES, MAX_DROPS, pinned);
    loop {
        let over = log_bytes(store).await?.saturating_sub(target);
        drop_kept(core, store, idle, (over, kept), &mut drops, dropped).await?;
        let over = log_bytes(store).await?.saturating_sub(target);
        if over == 0 || left.is_empty() || calls == 0 {
            break;
        }
        let room = room(store).await?;
        let (part, others) = left.split_at(together(left, over.min(room)));
        left = others;
        if !keep(core, store, part, room, &mut calls).await? {
            break;
        }
    }
    Ok(())
}

/// How much may be moved before what it frees is removed. The limit of the memory may be exceeded by a little: moving is how it
/// becomes less.
async fn room(store: &Store) -> Result<u64, signalbox_store::Error> {
    let (used, limit) = store.memory().await?;
    Ok(if limit == 0 { u64::MAX } else { (limit.saturating_sub(used) / 4).max(LEAST_ROOM) })
}

/// The size of the events that wait for each subscriber, by those that wait longest.
async fn event_sizes(
    store: &Store,
    tokens: BTreeSet<String>,
) -> Result<HashMap<String, Size>, signalbox_store::Error> {
    let size = |token: String| async move {
        let mean = unless_damaged(&token, store.event_size(&token).await)?.unwrap_or_default();
        Ok::<_, signalbox_store::Error>((token, Size { mean, all: u64::MAX }))
    };
    stream::iter(tokens).map(size).buffered(READS).try_collect().await
}

/// Measures what waits for the subscribers that seem to need most of a segment: their oldest events may be their largest.
async fn measure(
    store: &Store,
    pinned: &[Pinned],
    sizes: &mut HashMap<String, Size>,
) -> Result<(), signalbox_store::Error> {
    let seems = |one: &Pinned, token: &str| one.needed_by(token, sizes) > one.bytes / 2;
    let large: BTreeSet<String> = pinned
        .iter()
        .flat_map(|one| one.holders.keys().filter(move |token| seems(one, token)))
        .cloned()
        .collect();
    let count = large.len();
    let mut left = MAX_MEASURES;
    for (at, token) in large.into_iter().enumerate() {
        let mut share = left.div_ceil(count - at);
        left -= share;
        let all = waiting_bytes(store, &token, &mut share).await?;
        left += share;
        if let (Some(all), Some(size)) = (all, sizes.get_mut(&token)) {
            size.all = all;
        }
    }
    Ok(())
}

async fn log_bytes(store: &Store) -> Result<u64, signalbox_store::Error> {
    Ok(store.segments().await?.values().sum())
}

/// How many of the first segments have so many bytes.
fn together(segments: &[Pinned], bytes: u64) -> usize {
    let mut sum = 0;
    let is_needed = |one: &&Pinned| {
        let is_needed = sum < bytes;
        sum += one.bytes;
        is_needed
    };
    segments.iter().take(TOGETHER).take_while(is_needed).count()
}

/// Moves what subscribers need of segments to the part that is kept, and removes the segments. False if there was not enough room.
async fn keep(
    core: &Core,
    store: &Store,
    part: &[Pinned],
    mut room: u64,
    calls: &mut usize,
) -> Result<bool, signalbox_store::Error> {
    let segments: Vec<u64> = part.iter().map(|one| one.segment).collect();
    let mut holders = BTreeMap::<&String, u64>::new();
    for (token, events) in part.iter().flat_map(|one| &one.holders) {
        *holders.entry(token).or_default() += events;
    }
    // Those with the fewest events first: what they do not use of their share is left to the others.
    let mut holders: Vec<_> = holders.into_iter().collect();
    holders.sort_by_key(|(_, events)| *events);
    let count = holders.len();
    for (at, (token, _)) in holders.into_iter().enumerate() {
        let mut share = calls.div_ceil(count - at);
        let mut next = Some(core.idle_searches.take(store.shard().index(), token));
        while let Some(cursor) = next.take_if(|_| share > 0 && room > 0) {
            (share, *calls) = (share - 1, calls.saturating_sub(1));
            let moved = unless_damaged(token, store.keep_part(token, &segments, &cursor).await)?;
            let (bytes, following) = moved.unwrap_or_default();
            (room, next) = (room.saturating_sub(bytes), following);
        }
        if let Some(cursor) = next {
            core.idle_searches.put(store.shard().index(), token, cursor);
        }
    }
    trim_all(store, &segments).await?;
    Ok(room > 0)
}

/// Drops the oldest batches of the idle subscribers with the most bytes in the part that is kept, until it has lost so many bytes, or
/// has no more than so many of theirs. What is there of others is being delivered. Counts the dropped events of each.
async fn drop_kept(
    core: &Core,
    store: &Store,
    idle: &HashSet<String>,
    (over, most): (u64, u64),
    drops: &mut usize,
    dropped: &mut BTreeMap<String, u64>,
) -> Result<(), Error> {
    let mut kept = store.kept().await?;
    let target = kept.saturating_sub(over);
    if kept <= target || kept <= most {
        return Ok(());
    }
    let mut own = store.kept_for().await?;
    let running: u64 = own.iter().filter(|(token, _)| !idle.contains(*token)).map(|(_, bytes)| bytes).sum();
    own.retain(|token, _| idle.contains(token));
    // One batch at a time: subscribers that wait for the same events lose them together, and only then bytes are free.
    while kept > target && kept.saturating_sub(running) > most && *drops > 0 {
        let Some((token, bytes)) = own.iter_mut().max_by_key(|(_, bytes)| **bytes) else { break };
        *drops -= 1;
        // It may have been resumed since the round began.
        let is_idle = idle_one(core.refresh().await?, store, token.clone()).await?.is_some();
        let part = if is_idle { store.drop_from(token, "autodropped", 0).await.map(Some) } else { Ok(None) };
        if let Some(part) = unless_damaged(token, part)?.flatten().flatten() {
            *dropped.entry(token.clone()).or_default() += part.events;
            *bytes = bytes.saturating_sub(part.bytes);
        } else {
            let token = token.clone();
            own.remove(&token);
        }
        kept = store.kept().await?;
    }
    Ok(())
}
