//! Subscribers to which nothing can be delivered, and the parts of the log that only they need.
//!
//! A segment of the log has the events of all tenants. A subscriber that waits for one small event in it would keep all of it, and
//! pay for what others publish if that was dropped for the sake of the log's size. So what such subscribers wait for is copied to
//! the present segment, and only those pay that need much themselves.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use signalbox_store::Kind;

use super::{
    Error, EventId, Subscription,
    core::Core,
    housekeeping::{READS, report, trim_all, unless_damaged},
    store::{SEGMENT_IDS, Store},
};

/// Segments from which events are copied in one round, and calls that copy.
const MAX_COPIED: usize = 500;
const MAX_COPIES: usize = 500;

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
#[derive(Debug)]
struct Pinned {
    segment: u64,
    bytes: u64,
    /// These subscribers, and the bytes of their own waiting events there, about.
    holders: BTreeMap<String, u64>,
}

impl Pinned {
    /// The bytes that are needed, about.
    fn needed(&self) -> u64 {
        self.holders.values().sum()
    }

    /// The bytes that the log loses if what is needed is copied.
    fn gain(&self) -> u64 {
        self.bytes.saturating_sub(self.needed())
    }

    /// Whether most of it is of others, who pay nothing for it while it is kept.
    fn is_light(&self) -> bool {
        self.needed() <= self.bytes / 2
    }
}

/// A segment, with the waiting events of each subscriber that needs it, if no queue does.
async fn holders(store: &Store, segment: u64, bytes: u64) -> Result<Option<Pinned>, signalbox_store::Error> {
    let holders = unless_damaged(&format!("segment {segment}"), store.holders(segment).await)?.flatten();
    Ok(holders.map(|holders| Pinned { segment, bytes, holders }))
}

/// The mean size of a subscriber's waiting events.
async fn mean_size(store: &Store, token: String) -> Result<(String, u64), signalbox_store::Error> {
    let size = unless_damaged(&token, store.event_size(&token).await)?;
    Ok((token, size.unwrap_or_default()))
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
    let tokens: HashSet<String> = pinned.iter().flat_map(|one| one.holders.keys().cloned()).collect();
    let mut sizes = HashMap::new();
    let mut read = stream::iter(tokens).map(|token| mean_size(store, token)).buffered(READS);
    while let Some((token, size)) = read.try_next().await? {
        sizes.insert(token, size);
    }
    for (token, events) in pinned.iter_mut().flat_map(|one| &mut one.holders) {
        *events = events.saturating_mul(sizes.get(token).copied().unwrap_or_default());
    }
    Ok(pinned)
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
    let (light, mut heavy): (Vec<_>, Vec<_>) =
        all_pinned(core, store).await?.into_iter().partition(Pinned::is_light);
    let mut planned = 0;
    let chosen: Vec<Pinned> = light
        .into_iter()
        .take(MAX_COPIED)
        .take_while(|one| {
            let is_needed = planned < bytes;
            planned += if is_needed { one.gain() } else { 0 };
            is_needed
        })
        .collect();
    let is_all = chosen.len() < MAX_COPIED;
    if !copy(store, &chosen).await? {
        // No client can publish before something is dropped.
        planned = 0;
        heavy.extend(chosen);
        heavy.sort_by_key(|one| one.segment);
    }
    if is_all && planned < bytes {
        let dropped = drop_heaviest(store, heavy, bytes - planned, kept).await?;
        report(core, dropped, why);
    }
    Ok(())
}

/// Copies what is needed of segments to the present one, and removes them. False at the limit of the memory, where nothing can be
/// copied.
async fn copy(store: &Store, chosen: &[Pinned]) -> Result<bool, signalbox_store::Error> {
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

/// Drops the oldest batches of the subscriber that needs most of these segments, then of the next one, until the log has lost so
/// many bytes, or the segments that are left have no more than `kept`. Returns the dropped events of each.
async fn drop_heaviest(
    store: &Store,
    mut heavy: Vec<Pinned>,
    bytes: u64,
    kept: u64,
) -> Result<BTreeMap<String, u64>, Error> {
    let (mut freed, mut all) = (0, BTreeMap::<String, u64>::new());
    while freed < bytes && heavy.iter().map(|one| one.bytes).sum::<u64>() > kept {
        let mut own = BTreeMap::<&String, u64>::new();
        for (token, bytes) in heavy.iter().flat_map(|one| &one.holders) {
            *own.entry(token).or_default() += bytes;
        }
        let Some((token, _)) = own.into_iter().max_by_key(|(_, bytes)| *bytes) else { break };
        let token = token.clone();
        let Some(at) = heavy.iter().position(|one| one.holders.contains_key(&token)) else { break };
        let one = &mut heavy[at];
        while let Some(events) =
            unless_damaged(&token, store.drop_from(&token, "autodropped", one.segment).await)?.flatten()
        {
            *all.entry(token.clone()).or_default() += events;
        }
        one.holders.remove(&token);
        if one.is_light() {
            // The others need little of it, or nothing.
            copy(store, std::slice::from_ref(one)).await?;
            let one = heavy.remove(at);
            let is_removed = !store.segments().await?.contains_key(&one.segment);
            freed += if is_removed { one.gain() } else { 0 };
        }
    }
    Ok(all)
}
