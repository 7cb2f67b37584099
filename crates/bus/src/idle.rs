//! Subscribers to which nothing can be delivered, and the parts of the log that only they need.
//!
//! A segment of the log has the events of all tenants. A subscriber that waits for one small event in it would keep all of it, and
//! pay for what others publish if that was dropped for the sake of the log's size. So what such subscribers wait for is copied to
//! the present segment, and only those pay that need much themselves.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use signalbox_store::Kind;

use super::{
    Error, EventId, Subscription,
    core::Core,
    housekeeping::{READS, report, trim_all, unless_damaged},
    store::{Dropped, Measured, SEGMENT_IDS, Store},
};

/// Segments from which events are copied in one round, and calls that copy.
const MAX_COPIED: usize = 500;
const MAX_COPIES: usize = 2_500;
/// Calls that measure in one round, each up to 400 events of a subscriber. Tests reach the limit.
pub(super) const MAX_MEASURES: usize = if cfg!(test) { 30 } else { 2_500 };

/// The bytes of the segments that only idle subscribers need.
pub(super) async fn pinned(core: &Core, store: &Store) -> Result<u64, Error> {
    Ok(all_pinned(core, store).await?.iter().map(|one| one.bytes).sum())
}

/// The subscribers to whom nothing can be delivered: paused, disabled, without readable credentials, or failing all the time.
async fn idle(core: &Core, store: &Store) -> Result<HashSet<String>, Error> {
    let view = core.refresh().await?;
    let is_stopped = |one: &Subscription| one.paused || one.disabled.is_some() || one.is_locked();
    let (stopped, others): (Vec<_>, Vec<_>) =
        view.registry.subscriptions.iter().partition(|(_, one)| is_stopped(one));
    let mut idle: HashSet<String> = stopped.into_iter().map(|(token, _)| token.clone()).collect();
    let others: Vec<String> = others.into_iter().map(|(token, _)| token.clone()).collect();
    let mut read = stream::iter(others).map(|token| always_fails(store, token)).buffered(READS);
    while let Some(failing) = read.try_next().await? {
        idle.extend(failing);
    }
    Ok(idle)
}

/// The subscriber if its last deliveries have failed.
async fn always_fails(store: &Store, token: String) -> Result<Option<String>, signalbox_store::Error> {
    let movements = unless_damaged(&token, store.movements(&token).await)?;
    Ok(movements.is_some_and(|one| one.health == 0).then_some(token))
}

/// A segment of the log that only idle subscribers need.
#[derive(Debug, Default)]
struct Pinned {
    segment: u64,
    bytes: u64,
    /// These subscribers, and how many events wait there for each; after `measure`, how many bytes these have.
    holders: BTreeMap<String, u64>,
    /// Those of them whose events could not be measured.
    estimated: HashSet<String>,
    /// The measured events: the bytes of each, and the number of subscribers for which it waits.
    events: HashMap<u64, (u64, u32)>,
    /// The bytes that are needed. What waits for several subscribers is stored once, and counts once.
    needed: u64,
}

impl Pinned {
    /// The bytes that are needed.
    fn needed(&self) -> u64 {
        if self.holders.is_empty() { 0 } else { self.needed.min(self.bytes) }
    }

    /// Whether it can be removed: no subscriber needs it, or most of it is of others, who pay nothing for it while it is kept. What is
    /// copied from such a segment is less than what is removed, so copies cost less than what was published, however often an
    /// event is copied.
    fn is_removable(&self, copies: bool) -> bool {
        self.holders.is_empty() || copies && self.needed() <= self.bytes / 2
    }

    /// The bytes that the log loses if it is removed; 0 if it cannot be.
    fn gain(&self, copies: bool) -> u64 {
        if self.is_removable(copies) { self.bytes - self.needed() } else { 0 }
    }

    /// The bytes that it keeps: all of it if nothing can be copied.
    fn kept(&self, copies: bool) -> u64 {
        if copies || self.holders.is_empty() { self.needed() } else { self.bytes }
    }

    /// An event waits for one of the holders.
    fn add(&mut self, id: u64, bytes: u64) {
        let (_, holders) = self.events.entry(id).or_insert_with(|| {
            self.needed = self.needed.saturating_add(bytes);
            (bytes, 0)
        });
        *holders += 1;
    }

    /// Events of a holder were dropped. Returns the bytes that it has less.
    fn forget(&mut self, token: &str, dropped: &Dropped) -> u64 {
        if self.estimated.contains(token) {
            self.needed = self.needed.saturating_sub(dropped.bytes);
        } else {
            for id in &dropped.ids {
                let Some((bytes, holders)) = self.events.get_mut(id) else { continue };
                *holders -= 1;
                if *holders == 0 {
                    self.needed = self.needed.saturating_sub(*bytes);
                    self.events.remove(id);
                }
            }
        }
        let Some(held) = self.holders.get_mut(token) else { return 0 };
        let before = *held;
        *held = held.saturating_sub(dropped.bytes);
        before - *held
    }
}

/// A segment, with the waiting events of each subscriber that needs it, if no queue does.
async fn holders(store: &Store, segment: u64, bytes: u64) -> Result<Option<Pinned>, signalbox_store::Error> {
    let holders = unless_damaged(&format!("segment {segment}"), store.holders(segment).await)?.flatten();
    Ok(holders.map(|holders| Pinned { segment, bytes, holders, ..Pinned::default() }))
}

/// The segments that only idle subscribers need, oldest first.
async fn all_pinned(core: &Core, store: &Store) -> Result<Vec<Pinned>, Error> {
    let idle = idle(core, store).await?;
    let mut pinned = Vec::new();
    if idle.is_empty() {
        return Ok(pinned);
    }
    let present = EventId::at_ms(store.now_ms().await?).0 / SEGMENT_IDS;
    let segments: Vec<(u64, u64)> = store.segments().await?.range(..present).map(|(&s, &b)| (s, b)).collect();
    let mut read =
        stream::iter(segments).map(|(segment, bytes)| holders(store, segment, bytes)).buffered(READS);
    while let Some(found) = read.try_next().await? {
        pinned.extend(found.filter(|one| one.holders.keys().all(|holder| idle.contains(holder))));
    }
    Ok(pinned)
}

/// A subscriber's waiting events; `None` if finding them takes more calls than are `left`.
pub(super) async fn waiting(
    store: &Store,
    token: &str,
    left: &mut usize,
) -> Result<Option<Vec<Measured>>, signalbox_store::Error> {
    let (mut events, mut cursor) = (Vec::new(), <[String; 4]>::default());
    while *left > 0 {
        *left -= 1;
        let found = unless_damaged(token, store.measure_part(token, &cursor).await)?;
        let (part, next) = found.unwrap_or_default();
        events.extend(part);
        let Some(next) = next else { return Ok(Some(events)) };
        cursor = next;
    }
    Ok(None)
}

/// Measures what each subscriber needs of the segments. Its oldest events do not show the size of the others.
async fn measure(store: &Store, pinned: &mut [Pinned]) -> Result<(), signalbox_store::Error> {
    let places: HashMap<u64, usize> = pinned.iter().enumerate().map(|(at, one)| (one.segment, at)).collect();
    let mut holders = BTreeMap::<String, (u64, Vec<usize>)>::new();
    for (at, one) in pinned.iter_mut().enumerate() {
        for (token, events) in &one.holders {
            let (all, segments) = holders.entry(token.clone()).or_default();
            *all += events;
            segments.push(at);
        }
    }
    let mut holders: Vec<_> = holders.into_iter().collect();
    holders.sort_by_key(|(_, (events, _))| *events);
    let mut left = MAX_MEASURES;
    for (token, (_, segments)) in holders {
        let Some(events) = waiting(store, &token, &mut left).await? else {
            // Too many events wait to measure all of them in one round, and these are of one of the subscribers with the most.
            let mean = unless_damaged(&token, store.event_size(&token).await)?.unwrap_or_default();
            for at in segments {
                let one = &mut pinned[at];
                let bytes = one.holders.get(&token).copied().unwrap_or_default().saturating_mul(mean);
                one.holders.insert(token.clone(), bytes.min(one.bytes));
                one.estimated.insert(token.clone());
                one.needed = one.needed.saturating_add(bytes.min(one.bytes));
            }
            continue;
        };
        for at in segments {
            pinned[at].holders.insert(token.clone(), 0);
        }
        for (segment, id, bytes) in events {
            let one = places.get(&segment).map(|at| &mut pinned[*at]);
            let Some(one) = one.filter(|one| one.holders.contains_key(&token)) else { continue };
            one.add(id, bytes);
            if let Some(held) = one.holders.get_mut(&token) {
                *held += bytes;
            }
        }
    }
    Ok(())
}

/// Removes segments that only idle subscribers need, until the log has lost so many bytes. Where most of a segment is of others,
/// what waits for these subscribers is copied. If that is not enough, and what they need alone has more than `kept` bytes, the
/// oldest batches of those with the most bytes are dropped: no subscriber pays for what others publish.
pub(super) async fn free(
    core: &Arc<Core>,
    store: &Store,
    bytes: u64,
    kept: u64,
    why: &str,
) -> Result<(), Error> {
    let mut pinned = all_pinned(core, store).await?;
    measure(store, &mut pinned).await?;
    let mut dropped = BTreeMap::new();
    // At the limit of the memory nothing can be copied, and no client can publish before something is dropped.
    for copies in [true, false] {
        drop_heaviest(store, &mut pinned, (bytes, kept), copies, &mut dropped).await?;
        if remove(store, &pinned, bytes, copies).await? {
            break;
        }
    }
    report(core, dropped, why);
    Ok(())
}

/// Drops the oldest batches of the subscriber that needs most of these segments, then of the next one, until so many bytes can be
/// removed, or what is needed has no more than `kept`. Counts the dropped events of each.
async fn drop_heaviest(
    store: &Store,
    pinned: &mut [Pinned],
    (bytes, kept): (u64, u64),
    copies: bool,
    dropped: &mut BTreeMap<String, u64>,
) -> Result<(), signalbox_store::Error> {
    let mut gain: u64 = pinned.iter().map(|one| one.gain(copies)).sum();
    let mut needed: u64 = pinned.iter().map(|one| one.kept(copies)).sum();
    // Of each subscriber the bytes, and the segments that it needs.
    let mut own = BTreeMap::<String, (u64, VecDeque<usize>)>::new();
    for (at, one) in pinned.iter().enumerate() {
        for (token, bytes) in &one.holders {
            let (all, segments) = own.entry(token.clone()).or_default();
            *all += bytes;
            segments.push_back(at);
        }
    }
    // One batch at a time: subscribers that wait for the same events lose them together, and only then the log becomes smaller.
    while gain < bytes && needed > kept {
        let Some((token, _)) = own.iter().max_by_key(|(_, (bytes, _))| *bytes) else { break };
        let token = token.clone();
        let Some((left, segments)) = own.get_mut(&token) else { break };
        let Some(one) = segments.front().map(|at| &mut pinned[*at]) else {
            own.remove(&token);
            continue;
        };
        gain -= one.gain(copies);
        needed -= one.kept(copies);
        let part = store.drop_from(&token, "autodropped", one.segment).await;
        if let Some(part) = unless_damaged(&token, part)?.flatten() {
            *dropped.entry(token.clone()).or_default() += part.events;
            *left = left.saturating_sub(one.forget(&token, &part));
        } else {
            segments.pop_front();
            *left = left.saturating_sub(one.holders.remove(&token).unwrap_or_default());
        }
        gain += one.gain(copies);
        needed += one.kept(copies);
    }
    Ok(())
}

/// Removes the oldest segments that can be removed, until the log has lost so many bytes. False at the limit of the memory.
async fn remove(
    store: &Store,
    pinned: &[Pinned],
    bytes: u64,
    copies: bool,
) -> Result<bool, signalbox_store::Error> {
    let mut planned = 0;
    let is_needed = |one: &&Pinned| {
        let is_needed = planned < bytes;
        planned += one.gain(copies);
        is_needed
    };
    let removable = pinned.iter().filter(|one| one.is_removable(copies)).take(MAX_COPIED);
    copy(store, &removable.take_while(is_needed).collect::<Vec<_>>()).await
}

/// Copies what is needed of segments to the present one, and removes them. False at the limit of the memory, where nothing can be
/// copied.
async fn copy(store: &Store, chosen: &[&Pinned]) -> Result<bool, signalbox_store::Error> {
    if chosen.is_empty() {
        return Ok(true);
    }
    let segments: Vec<u64> = chosen.iter().map(|one| one.segment).collect();
    let tokens: HashSet<&String> = chosen.iter().flat_map(|one| one.holders.keys()).collect();
    let mut calls = 0;
    for token in tokens {
        let mut next = Some(<[String; 4]>::default());
        while let Some(cursor) = next.filter(|_| calls < MAX_COPIES) {
            calls += 1;
            let copied = match store.copy_part(token, &segments, &cursor).await {
                Err(error) if error.kind() == Kind::Refused => return Ok(false),
                copied => unless_damaged(token, copied)?,
            };
            next = copied.and_then(|(_, next)| next);
        }
    }
    trim_all(store, &segments).await?;
    Ok(true)
}
