//! Subscribers to which nothing can be delivered, and the parts of the log that only they need.
//!
//! A segment of the log has the events of all tenants. A subscriber that waits for one small event in it would keep all of it, and
//! pay for what others publish if that was dropped for the sake of the log's size. So what such subscribers wait for is first marked,
//! which needs little memory. When a segment has no other waiting events, each event leaves it: a marked one to segment 0, and each
//! other one is freed. An event is in segment 0 once, until no item of a batch needs it. The bytes of each subscriber are counted
//! there, and only those pay that have much.
//!
//! At no time is a body stored twice, and all of it can be interrupted after every call.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Error, EventId,
    core::Core,
    housekeeping::{READS, report, trim_until, unless_damaged},
    store::{Cursor, Holders, SEGMENT_IDS, Store},
    view::View,
};

/// Segments that are freed together: a search of a subscriber's lanes is for all of them.
const TOGETHER: usize = 500;
/// Calls that mark events in one round, and calls that drop some. Tests reach the first limit.
const MAX_MARKS: usize = if cfg!(test) { 30 } else { 1_000 };
const MAX_DROPS: usize = 5_000;
/// Bytes that the mark of an event needs, about.
const MARK_BYTES: u64 = 120;
/// Bytes that the marks of a round may need at the limit of the memory, if it is not known that much more is freed.
const LEAST_ROOM: u64 = 64 << 10;

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
    fn retain(&self, shard: usize, pinned: &[Pinned]) {
        let tokens: HashSet<&String> = pinned.iter().flat_map(|one| one.holders.waiting.keys()).collect();
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
    holders: Holders,
}

impl Pinned {
    /// How many distinct events are needed, about: subscribers of the same topics and environments wait for the same ones.
    fn needed(&self, view: &View) -> u64 {
        let mut most = HashMap::new();
        for (token, count) in &self.holders.waiting {
            let filter = view.registry.subscriptions.get(token).map(|one| (&one.topics, &one.environments));
            let known: &mut u64 = most.entry(filter).or_default();
            *known = (*known).max(*count);
        }
        most.values().sum::<u64>().min(self.holders.events)
    }

    /// Whether to mark it: that frees much more than it needs, or there is `room` for the marks, from which they are subtracted then.
    /// While memory is short, they also have to be a small part of the segment, as perhaps nothing is freed.
    fn pays(&self, view: &View, room: &mut u64, is_short: bool) -> bool {
        let needed = self.needed(view);
        let marks = needed.saturating_mul(MARK_BYTES);
        let frees_most = needed <= self.holders.events / 4 && marks <= self.bytes / 8;
        // What has begun is finished.
        if self.holders.marked || frees_most {
            return true;
        }
        let pays = marks <= *room && (!is_short || marks <= self.bytes / 32);
        if pays {
            *room -= marks;
        }
        pays
    }
}

/// A segment, if no queue needs it.
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
        pinned.extend(found.filter(|one| one.holders.waiting.keys().all(|holder| idle.contains(holder))));
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
    /// How long it may take: the next round continues.
    pub(super) time: Duration,
    /// The reason, for people.
    pub(super) why: &'a str,
}

/// Frees segments that only idle subscribers need, oldest first, until the log has lost so many bytes. What waits for these
/// subscribers is kept. If that has more bytes than allowed, the oldest batches of those with the most bytes are dropped: no
/// subscriber pays for what others publish. Returns the bytes that the log has lost.
pub(super) async fn free(core: &Arc<Core>, store: &Store, goal: Goal<'_>) -> Result<u64, Error> {
    let idle = idle(core, store).await?;
    let mut pinned = all_pinned(store, &idle).await?;
    let (used, limit) = store.memory().await?;
    if limit > 0 {
        let is_short = used >= limit / 100 * u64::from(core.options.memory_percent);
        let (view, mut room) = (core.view(), LEAST_ROOM.max(limit.saturating_sub(used) / 4));
        pinned.retain(|one| one.pays(&view, &mut room, is_short));
    }
    core.idle_searches.retain(store.shard().index(), &pinned);
    let before = log_bytes(store).await?;
    let target = before.saturating_sub(goal.bytes);
    let mut dropped = BTreeMap::new();
    let limits = (target, goal.kept, Instant::now() + goal.time);
    let freed = free_until(core, store, limits, (&idle, &pinned), &mut dropped).await;
    // Also what was dropped before a failure.
    report(core, dropped, goal.why);
    freed?;
    Ok(before.saturating_sub(log_bytes(store).await?))
}

/// Frees these segments until the log has no more than `target` bytes, or the time has come. Counts the dropped events of each
/// subscriber.
async fn free_until(
    core: &Core,
    store: &Store,
    (target, kept, until): (u64, u64, Instant),
    (idle, pinned): (&HashSet<String>, &[Pinned]),
    dropped: &mut BTreeMap<String, u64>,
) -> Result<(), Error> {
    let (mut calls, mut drops, mut left) = (MAX_MARKS, MAX_DROPS, pinned);
    loop {
        let over = log_bytes(store).await?.saturating_sub(target);
        drop_kept(core, store, idle, (over, kept), &mut drops, dropped).await?;
        let over = log_bytes(store).await?.saturating_sub(target);
        if over == 0 || left.is_empty() || calls == 0 || Instant::now() >= until {
            break;
        }
        let (part, others) = left.split_at(together(left, over));
        left = others;
        mark(core, store, part, &mut calls, until).await?;
        trim_until(store, &part.iter().map(|one| one.segment).collect::<Vec<_>>(), until).await?;
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

/// Marks what subscribers need of segments, as far as calls and time allow: the next round continues.
async fn mark(
    core: &Core,
    store: &Store,
    part: &[Pinned],
    calls: &mut usize,
    until: Instant,
) -> Result<(), signalbox_store::Error> {
    let segments: Vec<u64> = part.iter().map(|one| one.segment).collect();
    let mut holders = BTreeMap::<&String, u64>::new();
    for (token, events) in part.iter().flat_map(|one| &one.holders.waiting) {
        *holders.entry(token).or_default() += events;
    }
    // Those with the fewest events first: what they do not use of their share is left to the others.
    let mut holders: Vec<_> = holders.into_iter().collect();
    holders.sort_by_key(|(_, events)| *events);
    let count = holders.len();
    for (at, (token, _)) in holders.into_iter().enumerate() {
        let mut share = calls.div_ceil(count - at);
        let mut next = Some(core.idle_searches.take(store.shard().index(), token));
        while let Some(cursor) = next.take_if(|_| share > 0 && Instant::now() < until) {
            (share, *calls) = (share - 1, calls.saturating_sub(1));
            let marked = unless_damaged(token, store.keep_part(token, &segments, &cursor).await)?;
            next = marked.and_then(|(_, next)| next);
        }
        if let Some(cursor) = next {
            core.idle_searches.put(store.shard().index(), token, cursor);
        }
    }
    Ok(())
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
    // What running ones share counts once for each of them.
    let of_idle = |kept: u64, own: &BTreeMap<String, u64>| {
        kept.saturating_sub(running).max(own.values().max().copied().unwrap_or_default())
    };
    // One batch at a time: subscribers that wait for the same events lose them together, and only then bytes are free.
    while kept > target && of_idle(kept, &own) > most && *drops > 0 {
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
