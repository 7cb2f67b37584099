//! Subscribers to which nothing can be delivered, and the parts of the log that only they need.
//!
//! A segment of the log has the events of all tenants. A subscriber that waits for one small event in it would keep all of it, and
//! pay for what others publish if that was dropped for the sake of the log's size. So what such subscribers wait for is first marked
//! in their batches, which needs little memory. When a segment has no other waiting events, each event leaves it: a marked one to
//! segment 0, and each other one is freed. An event is in segment 0 once, until no item of a batch needs it. The bytes of each
//! subscriber are counted there, and only those pay that have much. At no time is a body stored twice.

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
    housekeeping::{READS, report, trim_all, unless_damaged},
    store::{Cursor, Holders, SEGMENT_IDS, Store, read_item},
    view::View,
};

/// Segments that are freed together: a search of a subscriber's lanes is for all of them.
const TOGETHER: usize = 500;
/// Calls that mark events in one round, and calls that drop some. Tests reach the first limit.
const MAX_MARKS: usize = if cfg!(test) { 30 } else { 1_000 };
const MAX_DROPS: usize = 5_000;
/// Calls that measure while memory is short, and how long a subscriber is left out for whom these are not enough.
const MAX_MEASURES: usize = 500;
const TOO_LONG: Duration = Duration::from_secs(60);
/// Bytes that the mark of an event needs, about.
const MARK_BYTES: u64 = 120;
/// Bytes that marks may need at the limit of the memory, before what they free is removed.
const LEAST_ROOM: u64 = 256 << 10;

/// What the rounds of this process remember of a shard.
#[derive(Debug, Default)]
pub(super) struct Memories(Mutex<HashMap<usize, Memory>>);

#[derive(Debug, Default)]
struct Memory {
    /// Where searches that were too long for a round continue in the next one, by subscriber.
    cursors: HashMap<String, Cursor>,
    /// What is needed of segments, if they are still needed by the same.
    needs: HashMap<u64, (BTreeMap<String, u64>, Need)>,
    /// Subscribers whose lanes are too long to be measured, and since when that is known.
    too_long: HashMap<String, Instant>,
}

/// The distinct events of a segment that subscribers need.
#[derive(Debug, Clone, Copy, Default)]
struct Need {
    events: u64,
    bytes: u64,
}

impl Memories {
    fn of<T>(&self, store: &Store, with: impl FnOnce(&mut Memory) -> T) -> T {
        with(self.0.lock().entry(store.shard().index()).or_default())
    }

    fn cursor(&self, store: &Store, token: &str) -> Cursor {
        self.of(store, |memory| memory.cursors.remove(token).unwrap_or_default())
    }

    fn need(&self, store: &Store, one: &Pinned) -> Option<Need> {
        self.of(store, |memory| memory.needs.get(&one.segment).cloned())
            .filter(|(waiting, _)| *waiting == one.holders.waiting)
            .map(|(_, need)| need)
    }

    /// Forgets what is of other subscribers and segments than these.
    fn retain(&self, store: &Store, pinned: &[Pinned]) {
        let tokens: HashSet<&String> = pinned.iter().flat_map(|one| one.holders.waiting.keys()).collect();
        let segments: HashSet<u64> = pinned.iter().map(|one| one.segment).collect();
        self.of(store, |memory| {
            memory.cursors.retain(|token, _| tokens.contains(token));
            memory.needs.retain(|segment, _| segments.contains(segment));
        });
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
    /// What its marks need at most.
    fn mark_bytes(&self) -> u64 {
        let waiting: u64 = self.holders.waiting.values().sum();
        waiting.min(self.holders.events).saturating_mul(MARK_BYTES)
    }

    /// Whether its marks need next to nothing, so that it need not be measured.
    fn is_cheap(&self) -> bool {
        self.mark_bytes() <= self.bytes / 200
    }

    /// Whether much more can be freed than the marks need.
    fn gains(&self, need: Need) -> bool {
        let freed = self.bytes.saturating_sub(need.bytes);
        freed >= self.bytes / 4 && freed >= need.events.saturating_mul(2 * MARK_BYTES)
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
    /// Whether memory is short, so that a segment is left as it is if most of it is needed: that would only need memory.
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
    core.idle.retain(store, &pinned);
    if goal.is_short {
        measure(core, store, &pinned).await?;
        // What has begun is finished.
        pinned.retain(|one| {
            let gains = || core.idle.need(store, one).is_some_and(|need| one.gains(need));
            one.holders.marked || one.is_cheap() || gains()
        });
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
    let (mut calls, mut drops, mut left) = (MAX_MARKS, MAX_DROPS, pinned);
    loop {
        let over = log_bytes(store).await?.saturating_sub(target);
        drop_kept(core, store, idle, (over, kept), &mut drops, dropped).await?;
        let over = log_bytes(store).await?.saturating_sub(target);
        if over == 0 || left.is_empty() || calls == 0 {
            break;
        }
        let (part, others) = left.split_at(together(left, over, room(store).await?));
        // If there is no room for the marks of the first one, it stays as it is.
        left = if part.is_empty() { &others[1..] } else { others };
        mark(core, store, part, &mut calls).await?;
        trim_all(store, &part.iter().map(|one| one.segment).collect::<Vec<_>>()).await?;
    }
    Ok(())
}

/// Measures what is needed of segments, as far as the calls allow and if it is not known. Those that are not measured stay as they are.
async fn measure(core: &Core, store: &Store, pinned: &[Pinned]) -> Result<(), signalbox_store::Error> {
    let unknown: Vec<&Pinned> = pinned
        .iter()
        .filter(|one| !one.holders.marked && !one.is_cheap() && core.idle.need(store, one).is_none())
        .take(TOGETHER)
        .collect();
    let segments: Vec<u64> = unknown.iter().map(|one| one.segment).collect();
    let mut found: HashMap<u64, HashMap<u64, u64>> = HashMap::new();
    let mut unfinished = core.idle.of(store, |memory| {
        memory.too_long.retain(|_, since| since.elapsed() < TOO_LONG);
        memory.too_long.clone()
    });
    let mut calls = MAX_MEASURES;
    for (token, share) in by_need(&unknown) {
        if unfinished.contains_key(token) {
            continue;
        }
        let (mut left, mut next) = (calls.div_ceil(share), Some(Cursor::default()));
        while let Some(cursor) = next.take_if(|_| left > 0) {
            (left, calls) = (left - 1, calls.saturating_sub(1));
            let part = unless_damaged(token, store.found_part(token, &segments, &cursor).await)?;
            let (items, following) = part.unwrap_or_default();
            for (item, bytes) in items {
                if let Some((id, segment)) = read_item(&item) {
                    found.entry(segment).or_default().insert(id.0, bytes);
                }
            }
            next = following;
        }
        if next.is_some() {
            unfinished.insert(token.clone(), Instant::now());
        }
    }
    core.idle.of(store, |memory| memory.too_long.clone_from(&unfinished));
    for one in unknown {
        if one.holders.waiting.keys().all(|token| !unfinished.contains_key(token)) {
            let events = found.remove(&one.segment).unwrap_or_default();
            let need = Need { events: events.len() as u64, bytes: events.values().sum() };
            let known = (one.holders.waiting.clone(), need);
            core.idle.of(store, |memory| memory.needs.insert(one.segment, known));
        }
    }
    Ok(())
}

/// The subscribers that need segments, those with the fewest events first, and by how many the calls that are left are divided: what
/// one does not use of its share is left to the others.
fn by_need<'a>(part: &[&'a Pinned]) -> Vec<(&'a String, usize)> {
    let mut waiting = BTreeMap::<&String, u64>::new();
    for (token, events) in part.iter().flat_map(|one| &one.holders.waiting) {
        *waiting.entry(token).or_default() += events;
    }
    let mut tokens: Vec<_> = waiting.into_iter().collect();
    tokens.sort_by_key(|(_, events)| *events);
    let count = tokens.len();
    tokens.into_iter().enumerate().map(|(at, (token, _))| (token, count - at)).collect()
}

/// How much marks may need before what they free is removed.
async fn room(store: &Store) -> Result<u64, signalbox_store::Error> {
    let (used, limit) = store.memory().await?;
    Ok(if limit == 0 { u64::MAX } else { (limit.saturating_sub(used) / 2).max(LEAST_ROOM) })
}

async fn log_bytes(store: &Store) -> Result<u64, signalbox_store::Error> {
    Ok(store.segments().await?.values().sum())
}

/// How many of the first segments have so many bytes, as far as there is room for their marks.
fn together(segments: &[Pinned], bytes: u64, mut room: u64) -> usize {
    let mut sum = 0;
    let is_next = |one: &&Pinned| {
        let fits = one.mark_bytes() <= room;
        let is_next = sum < bytes && fits;
        room = room.saturating_sub(one.mark_bytes());
        sum += one.bytes;
        is_next
    };
    segments.iter().take(TOGETHER).take_while(is_next).count()
}

/// Marks what subscribers need of segments, as far as the calls allow: the next round continues.
async fn mark(
    core: &Core,
    store: &Store,
    part: &[Pinned],
    calls: &mut usize,
) -> Result<(), signalbox_store::Error> {
    let segments: Vec<u64> = part.iter().map(|one| one.segment).collect();
    for (token, share) in by_need(&part.iter().collect::<Vec<_>>()) {
        let (mut left, mut next) = (calls.div_ceil(share), Some(core.idle.cursor(store, token)));
        while let Some(cursor) = next.take_if(|_| left > 0) {
            (left, *calls) = (left - 1, calls.saturating_sub(1));
            let marked = unless_damaged(token, store.keep_part(token, &segments, &cursor).await)?;
            next = marked.and_then(|(_, next)| next);
        }
        if let Some(cursor) = next {
            core.idle.of(store, |memory| memory.cursors.insert(token.clone(), cursor));
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
