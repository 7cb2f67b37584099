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
    housekeeping::{Memory, READS, report, trim_until, unless_damaged},
    store::{Cursor, Holders, SEGMENT_IDS, Store},
    view::View,
};

/// Segments that are freed together: a search of a subscriber's lanes is for all of them.
const TOGETHER: usize = 500;
/// Calls that mark events in one round, and calls that drop some. Tests reach the first limit.
const MAX_MARKS: usize = if cfg!(test) { 30 } else { 1_000 };
const MAX_DROPS: usize = 5_000;
/// Bytes that the mark of an event needs, about.
const MARK_BYTES: u64 = 150;
/// While memory is short: how much of its last part marks leave free, in thousandths. Of segments of which it is certain that more is
/// freed than the marks need, and of others: how many events several subscribers need together is not known before they are marked,
/// and nothing may be dropped because of marks that free nothing.
const FREE_IF_CERTAIN: u64 = 250;
const FREE_IF_NOT: u64 = 700;
/// The part of the memory that marks of segments that certainly pay may always use, even at its limit.
const PART_OF_MARKS: u64 = 64;

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
    /// Whether it is certain that to mark it frees more than the marks need: at most so many events are needed.
    fn certainly_pays(&self) -> bool {
        let unmarked = self.holders.waiting.values().sum::<u64>();
        let needed = (unmarked + self.holders.marked).min(self.holders.events);
        needed <= self.holders.events / 2 && needed.saturating_mul(MARK_BYTES) <= self.bytes / 4
    }

    /// Whether it can be that subscribers need little of it, or its marks are small.
    fn may_pay(&self) -> bool {
        let waiting = self.holders.waiting.values();
        let largest = waiting.clone().max().copied().unwrap_or_default();
        largest <= self.holders.events / 4
            || waiting.sum::<u64>().saturating_mul(MARK_BYTES) <= self.bytes / 32
    }
}

/// Segments to free, oldest first, and how much memory may be used while they are marked.
#[derive(Debug)]
struct Candidates {
    segments: Vec<Pinned>,
    most_used: u64,
    /// Marks that are always allowed.
    most_marks: u64,
}

/// Which segments are marked: all of them until memory is short, and then only those for which that can pay.
fn candidates(pinned: Vec<Pinned>, memory: Memory) -> Vec<Candidates> {
    if !memory.is_short() {
        return vec![Candidates { segments: pinned, most_used: memory.short, most_marks: 0 }];
    }
    let leave = |thousandths: u64| memory.limit - (memory.limit - memory.short) / 1000 * thousandths;
    let (certain, mut others): (Vec<_>, Vec<_>) = pinned.into_iter().partition(Pinned::certainly_pays);
    others.retain(Pinned::may_pay);
    vec![
        Candidates {
            segments: certain,
            most_used: leave(FREE_IF_CERTAIN),
            most_marks: memory.limit / PART_OF_MARKS / MARK_BYTES,
        },
        Candidates { segments: others, most_used: leave(FREE_IF_NOT), most_marks: 0 },
    ]
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
/// subscriber pays for what others publish. Returns whether that has marked events or freed bytes, so that the next round continues.
pub(super) async fn free(core: &Arc<Core>, store: &Store, goal: Goal<'_>) -> Result<bool, Error> {
    let idle = idle(core, store).await?;
    let pinned = all_pinned(store, &idle).await?;
    core.idle_searches.retain(store.shard().index(), &pinned);
    let before = log_bytes(store).await?;
    let limits = Limits {
        target: before.saturating_sub(goal.bytes),
        kept: goal.kept,
        until: Instant::now() + goal.time,
        most_used: u64::MAX,
        most_marks: 0,
        calls: MAX_MARKS,
        drops: MAX_DROPS,
        marked: 0,
    };
    let mut dropped = BTreeMap::new();
    let freed = free_all(core, store, limits, (&idle, pinned), &mut dropped).await;
    // Also what was dropped before a failure.
    report(core, dropped, goal.why);
    Ok(freed? > 0 || log_bytes(store).await? < before)
}

/// What is left of a round.
#[derive(Debug)]
struct Limits {
    /// Bytes that the log may have.
    target: u64,
    /// Bytes that may be kept for idle subscribers.
    kept: u64,
    until: Instant,
    /// Bytes of memory that may be used while events are marked.
    most_used: u64,
    /// Marks that are allowed even if more is used.
    most_marks: u64,
    /// Calls that mark, and calls that drop.
    calls: usize,
    drops: usize,
    /// Bytes of events that were marked.
    marked: u64,
}

/// Frees segments until a limit is reached. Counts the dropped events of each subscriber. Returns the bytes of the events that were
/// marked.
async fn free_all(
    core: &Core,
    store: &Store,
    mut limits: Limits,
    (idle, pinned): (&HashSet<String>, Vec<Pinned>),
    dropped: &mut BTreeMap<String, u64>,
) -> Result<u64, Error> {
    for Candidates { segments, most_used, most_marks } in candidates(pinned, Memory::read(core, store).await?)
    {
        (limits.most_used, limits.most_marks) = (most_used, most_marks);
        let mut left = &segments[..];
        loop {
            let over = log_bytes(store).await?.saturating_sub(limits.target);
            drop_kept(core, store, idle, over, &mut limits, dropped).await?;
            let over = log_bytes(store).await?.saturating_sub(limits.target);
            if over == 0 || left.is_empty() || limits.calls == 0 || Instant::now() >= limits.until {
                break;
            }
            let room = most_used.saturating_sub(Memory::read(core, store).await?.used);
            let (part, others) = left.split_at(together(left, over, room));
            left = others;
            mark(core, store, part, &mut limits).await?;
            trim_until(store, &part.iter().map(|one| one.segment).collect::<Vec<_>>(), limits.until).await?;
        }
    }
    Ok(limits.marked)
}

async fn log_bytes(store: &Store) -> Result<u64, signalbox_store::Error> {
    Ok(store.segments().await?.values().sum())
}

/// How many of the first segments have so many bytes, and need so little memory for their marks: one at least.
fn together(segments: &[Pinned], bytes: u64, room: u64) -> usize {
    let (mut sum, mut marks) = (0, 0);
    let is_needed = |one: &&Pinned| {
        marks += one.holders.waiting.values().max().unwrap_or(&0).saturating_mul(MARK_BYTES);
        let is_needed = sum == 0 || sum < bytes && marks <= room;
        sum += one.bytes.max(1);
        is_needed
    };
    segments.iter().take(TOGETHER).take_while(is_needed).count()
}

/// Marks what subscribers need of segments, as far as memory, calls and time allow: the next round continues.
async fn mark(core: &Core, store: &Store, part: &[Pinned], limits: &mut Limits) -> Result<(), Error> {
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
        let mut share = limits.calls.div_ceil(count - at);
        let mut next = Some(core.idle_searches.take(store.shard().index(), token));
        while let Some(cursor) = next.take_if(|_| share > 0 && Instant::now() < limits.until) {
            // What marks need is only known when they are made.
            if Memory::read(core, store).await?.used >= limits.most_used
                && store.marks().await? >= limits.most_marks
            {
                next = Some(cursor);
                break;
            }
            (share, limits.calls) = (share - 1, limits.calls.saturating_sub(1));
            let found = unless_damaged(token, store.keep_part(token, &segments, &cursor).await)?;
            let (marked, cursor) = found.unwrap_or_default();
            (limits.marked, next) = (limits.marked + marked, cursor);
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
    over: u64,
    limits: &mut Limits,
    dropped: &mut BTreeMap<String, u64>,
) -> Result<(), Error> {
    let mut kept = store.kept().await?;
    let (target, most) = (kept.saturating_sub(over), limits.kept);
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
    while kept > target && of_idle(kept, &own) > most && limits.drops > 0 {
        let Some((token, bytes)) = own.iter_mut().max_by_key(|(_, bytes)| **bytes) else { break };
        limits.drops -= 1;
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
