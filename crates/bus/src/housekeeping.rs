//! Periodic maintenance, by one pacemaker at a time: dead workers, lanes of ended subscriptions, old segments, full
//! memory, and shards with an outdated registry.
//!
//! The pacemaker that holds the lease `bus` does this work. The lease only avoids duplicate work: every step may be
//! repeated or left incomplete, so no fencing is needed. Maintenance runs separately from the workers, never as jobs, so
//! that no job can delay it.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt as _, TryStreamExt as _, future::join_all, stream};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    Error, EventId,
    core::Core,
    idle::{self, Goal},
    queue_admin::QueueMaintenance,
    store::{Cursor, SEGMENT_IDS, Store},
    view::State,
};
use signalbox_lease::Lease;
use signalbox_store::Kind;

/// Events cleared away in one call; a batch and an empty lane count as 10 more.
pub(super) const PURGE_PART: usize = 2_000;
/// Batches dropped, or about how many bytes of events, before memory is checked again.
const DROP_PART: usize = 100;
const DROP_BYTES: u64 = 4 << 20;
/// Batches of a subscriber that are dropped in one turn because they are too much for it.
const LIMIT_PART: usize = 16;
/// Calls that measure what waits for a subscriber, each up to 2,000 events.
const MAX_MEASURES: usize = 2_500;
/// How long a round drops what is too much for one subscriber: the next one continues.
const LIMIT_TIME: Duration = Duration::from_secs(2);
/// Segments forgotten in one call, and how long a round forgets some.
const TRIM_PART: usize = 100;
const TRIM_TIME: Duration = Duration::from_secs(10);
/// How long a check of the memory forgets what nothing needs, and how long it frees what only idle subscribers keep, before it decides
/// who is rejected.
const FORGET_TIME: Duration = Duration::from_secs(1);
const FREE_TIME: Duration = Duration::from_millis(200);
/// Missed heartbeats after which an earlier process on the same machine is dead.
const MISSED_BEATS: u32 = 2;
/// Checks within that time.
const RECOVERY_CHECKS: u32 = 5;
/// How long new data of the largest owners is rejected, unless a check finds enough memory, in addition to two leases: if this
/// pacemaker dies, another one checks the memory when its lease has ended.
const REFUSED_MS: u64 = 10_000;
/// Maximum number of owners whose data is rejected: every publish reads the list.
const MAX_REFUSED: usize = 256;
/// Bytes of the fabric's memory that an idempotency key needs, about.
const KEY_BYTES: u64 = 250;
/// How often, and at what intervals, the memory is read until Redis has freed what was removed.
const FREE_CHECKS: u32 = 10;
const FREE_EVERY: Duration = Duration::from_millis(50);
/// Interval between two attempts to check the memory, and the shortest one while it fills up.
const MEMORY_EVERY: Duration = Duration::from_secs(1);
const MIN_MEMORY_EVERY: Duration = Duration::from_millis(50);
/// The fastest growth of the memory that is expected, in bytes per second: no check is later than the memory could be full.
const GROWTH: u64 = 100 << 20;

/// Reads that are under way at a time if there is one for each of many names. They share a connection, and so round trips.
pub(super) const READS: usize = 64;

/// Keeps one shard in order until `shutdown`. A round may take long. It delays neither the check of the memory nor the lease.
pub(super) async fn run(core: Arc<Core>, store: Arc<Store>, mut lease: Lease, shutdown: CancellationToken) {
    let (hold, held) = watch::channel(false);
    let every = Duration::from_millis(core.options.housekeeping_ms).min(MEMORY_EVERY);
    let holding = async {
        loop {
            let holds = holds(&mut lease).await;
            hold.send_if_modified(|held| std::mem::replace(held, holds) != holds);
            if shutdown.run_until_cancelled(sleep(every)).await.is_none() {
                break;
            }
        }
    };
    let memory = Box::pin(check_memory(&core, &store, held.clone(), &shutdown));
    tokio::join!(holding, memory, Box::pin(keep_order(&core, &store, held, &shutdown)));
    lease.release().await;
}

/// Checks the memory while the lease is held, the more often the less of it is left.
async fn check_memory(
    core: &Arc<Core>,
    store: &Store,
    mut held: watch::Receiver<bool>,
    shutdown: &CancellationToken,
) {
    let every = Duration::from_millis(core.options.housekeeping_ms);
    while shutdown.run_until_cancelled(held.wait_for(|held| *held)).await.is_some() {
        let next = match relieve(core, store).await {
            Ok(free) => until_half(free).min(every),
            Err(error) => {
                tracing::debug!(%error, "memory cannot be checked now");
                MEMORY_EVERY.min(every)
            }
        };
        shutdown.run_until_cancelled(sleep(next)).await;
    }
}

/// Makes a round again and again while the lease is held.
async fn keep_order(
    core: &Arc<Core>,
    store: &Store,
    mut held: watch::Receiver<bool>,
    shutdown: &CancellationToken,
) {
    let (mut watch, mut keeping) = (Watch::default(), QueueMaintenance::default());
    let every = Duration::from_millis(core.options.housekeeping_ms);
    while shutdown.run_until_cancelled(held.wait_for(|held| *held)).await.is_some() {
        let begun = Instant::now();
        round(core, store, &mut watch, &mut keeping).await;
        shutdown.run_until_cancelled(sleep_until(begun + every)).await;
        // Observations from before an interruption do not show which workers are alive.
        if held.has_changed().unwrap_or(true) {
            watch.forget();
        }
    }
}

/// A server that is too full to write a lease needs its memory freed most of all.
async fn holds(lease: &mut Lease) -> bool {
    match lease.hold().await {
        Ok(epoch) => epoch.is_some(),
        Err(error) => error.kind() == Kind::Refused,
    }
}

/// One round. A step that fails does not keep the others from being done.
pub(super) async fn round(
    core: &Arc<Core>,
    store: &Store,
    watch: &mut Watch,
    keeping: &mut QueueMaintenance,
) {
    let scrubbed = scrub(core, store, watch).await;
    let purged = purge(store).await.map_err(Error::from);
    let limited = limit(core, store).await;
    keeping.round(core, store).await;
    let trimmed = trim(core, store).await;
    let spread = spread(core).await;
    let kicked = kick_changed(store).await.map_err(Error::from);
    for error in [scrubbed, purged, limited, trimmed, spread, kicked].into_iter().filter_map(Result::err) {
        match &error {
            Error::Store(found) if found.kind() == Kind::Broken => {
                let source = std::error::Error::source(&error);
                tracing::error!(%error, ?source, "a step of housekeeping fails because of stored data");
            }
            _ => {
                tracing::debug!(%error, "housekeeping is interrupted");
                // Observations from before an interruption do not show which workers are alive.
                watch.forget();
            }
        }
    }
}

async fn spread(core: &Core) -> Result<(), Error> {
    let view = core.refresh().await?;
    if view.state == State::Ready { core.spread(&view).await } else { Ok(()) }
}

/// The result of work for one owner. If data of the owner is damaged, that is logged, and there is none: the work for the
/// others continues.
pub(super) fn unless_damaged<T>(
    owner: &str,
    result: Result<T, signalbox_store::Error>,
) -> Result<Option<T>, signalbox_store::Error> {
    match result {
        Err(error) if error.kind() == Kind::Broken => {
            let source = std::error::Error::source(&error);
            tracing::error!(owner, %error, ?source, "skipped: stored data is damaged");
            Ok(None)
        }
        result => result.map(Some),
    }
}

/// When each busy worker was first seen with its present heartbeat, on this process's clock. A worker is dead when
/// this process has observed it without a beat for long enough, rather than by a comparison of two clocks: an outage
/// of Redis, or a clock change, also stops the heartbeats of living workers.
#[derive(Debug, Default)]
pub(super) struct Watch(HashMap<String, (String, Instant)>);

impl Watch {
    fn forget(&mut self) {
        self.0.clear();
    }

    /// Notes the heartbeats seen now; the workers that have been still for `dead_after`, with their last beat.
    fn note(
        &mut self,
        beats: Vec<(String, String)>,
        now: Instant,
        dead_after: Duration,
    ) -> Vec<(String, String)> {
        let before = std::mem::take(&mut self.0);
        let mut dead = Vec::new();
        for (worker, beat) in beats {
            let since = match before.get(&worker) {
                Some((known, since)) if *known == beat => *since,
                _ => now,
            };
            if now.duration_since(since) >= dead_after {
                dead.push((worker.clone(), beat.clone()));
            }
            self.0.insert(worker, (beat, since));
        }
        dead
    }
}

async fn scrub(core: &Core, store: &Store, watch: &mut Watch) -> Result<(), Error> {
    let beats = store.heartbeats().await?;
    scrub_silent(store, watch.note(beats, Instant::now(), core.options.dead_after())).await
}

async fn scrub_silent(store: &Store, silent: Vec<(String, String)>) -> Result<(), Error> {
    for (worker, seen) in silent {
        match unless_damaged(&worker, store.scrub(&worker, &seen).await)? {
            Some(Some(freed)) => tracing::warn!(worker, freed, "worker died; another can take its job"),
            Some(None) => tracing::debug!(worker, "worker heartbeat recovered"),
            None => {}
        }
    }
    Ok(())
}

/// Takes the jobs from workers of earlier processes on this machine, once, after the start. These processes are dead
/// if they miss a few heartbeats; the workers of other machines get much more time, because a network can fail.
pub(super) async fn recover(core: Arc<Core>, store: Arc<Store>, shutdown: CancellationToken) {
    let Some(node) = core.node.get().map(|node| format!("{node}/")) else { return };
    let own = core.worker_prefix();
    let silence = (Duration::from_millis(core.options.beat_ms) * MISSED_BEATS).min(core.options.dead_after());
    let (mut watch, until) = (Watch::default(), Instant::now() + core.options.dead_after());
    while Instant::now() < until {
        match store.heartbeats().await {
            Ok(mut beats) => {
                beats.retain(|(worker, _)| worker.starts_with(&node) && !worker.starts_with(&own));
                if beats.is_empty() {
                    return;
                }
                if let Err(error) = scrub_silent(&store, watch.note(beats, Instant::now(), silence)).await {
                    tracing::debug!(%error, "jobs of an earlier process cannot be taken now");
                }
            }
            Err(error) => {
                tracing::debug!(%error, "heartbeats cannot be read now");
                watch.forget();
            }
        }
        tokio::select! {
            () = sleep(silence / RECOVERY_CHECKS) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

/// Clears away the lanes of subscriptions that ended.
pub(super) async fn purge(store: &Store) -> Result<(), signalbox_store::Error> {
    for token in store.purges().await? {
        unless_damaged(&token, purge_all(store, &token).await)?;
    }
    Ok(())
}

/// Ends the pauses of subscribers whose subscription was changed by a process that did not get as far as that.
async fn kick_changed(store: &Store) -> Result<(), signalbox_store::Error> {
    for token in store.changed().await? {
        unless_damaged(&token, store.kick_changed(&token).await)?;
    }
    Ok(())
}

/// Clears away the lanes of a client's subscriptions that ended.
pub(super) async fn purge_all(store: &Store, token: &str) -> Result<(), signalbox_store::Error> {
    while store.purge(token, PURGE_PART).await? {}
    Ok(())
}

/// Drops what is too much for one subscriber. Those with too much take turns: many small batches of one delay no others.
async fn limit(core: &Arc<Core>, store: &Store) -> Result<(), Error> {
    let most = core.options.queued_events;
    let until = Instant::now() + LIMIT_TIME;
    // At most what was too much at the beginning, and only for as long as it is.
    let mut turns: VecDeque<(String, u64, u64)> = VecDeque::new();
    for (token, events) in store.numbers().await?.events {
        if events > most {
            turns.push_back((token, events - most, 0));
        }
    }
    let mut failed = Ok(());
    while let Some((token, over, mut dropped)) = turns.pop_front() {
        let mut goes_on = failed.is_ok() && Instant::now() < until;
        let calls = if goes_on { LIMIT_PART } else { 0 };
        for call in join_all((0..calls).map(|_| store.drop_above(&token, "limit", most))).await {
            match unless_damaged(&token, call) {
                Ok(Some(Some(more))) => dropped += more,
                Ok(_) => goes_on = false,
                Err(error) => (failed, goes_on) = (Err(error), false),
            }
        }
        if goes_on && dropped < over {
            turns.push_back((token, over, dropped));
        } else if dropped > 0 {
            report(core, BTreeMap::from([(token, dropped)]), "limit");
        }
    }
    Ok(failed?)
}

/// Segments that are older than the log is kept, or more than it may weigh; the oldest first. The present one stays, and so does
/// what is kept for subscribers (segment 0).
fn outdated(segments: &BTreeMap<u64, u64>, oldest_kept: u64, bytes: u64) -> Vec<u64> {
    let mut total: u64 = segments.values().sum();
    let mut outdated = Vec::new();
    for (segment, weight) in segments.range(1..) {
        if *segment >= oldest_kept && total <= bytes {
            break;
        }
        total -= weight;
        outdated.push(*segment);
    }
    outdated
}

pub(super) async fn trim(core: &Arc<Core>, store: &Store) -> Result<(), Error> {
    let now_ms = store.now_ms().await?;
    let kept_from = now_ms.saturating_sub(core.options.log_seconds * 1000);
    // Before memory is short, because then there is little left for marks.
    let most = core.options.log_bytes.min(Memory::read(core, store).await?.short / 2);
    let outdated = outdated(&store.segments().await?, EventId::at_ms(kept_from).0 / SEGMENT_IDS, most);
    trim_all(store, &outdated).await?;
    let log: u64 = store.segments().await?.values().sum();
    if log > most {
        let goal = Goal { bytes: log - most, kept: most / 2, time: LIMIT_TIME, why: "log" };
        idle::free(core, store, goal).await?;
    }
    Ok(())
}

/// Removes segments that are no longer needed. A queue or a subscriber may need an old one and none of those after it, so all
/// of them are tried.
pub(super) async fn trim_all(store: &Store, segments: &[u64]) -> Result<(), signalbox_store::Error> {
    trim_until(store, segments, Instant::now() + TRIM_TIME).await
}

/// The same, as far as the time allows: the next round continues.
pub(super) async fn trim_until(
    store: &Store,
    segments: &[u64],
    until: Instant,
) -> Result<(), signalbox_store::Error> {
    let mut left = segments;
    while !left.is_empty() && Instant::now() < until {
        let (finished, _) = store.trim(&left[..left.len().min(TRIM_PART)]).await?;
        left = &left[finished.min(left.len())..];
    }
    Ok(())
}

/// A subscriber for which events wait, and an estimate of their bytes.
async fn size(
    store: &Store,
    token: String,
    events: u64,
) -> Result<Option<(String, u64)>, signalbox_store::Error> {
    let size = unless_damaged(&token, store.event_size(&token).await)?;
    Ok(size.map(|size| (token, events.saturating_mul(size))))
}

/// Logs and publishes which events were dropped.
pub(super) fn report(core: &Arc<Core>, dropped: BTreeMap<String, u64>, why: &str) {
    for (token, events) in dropped {
        tracing::warn!(
            subscriber = core.name_of(&token),
            dropped = events,
            reason = why,
            "subscriber's oldest batches dropped"
        );
        core.announce("subscriber.autodropped", &token, json!({ "events": events, "reason": why }));
    }
}

/// How long it takes at least until half of so many bytes are used.
fn until_half(free: u64) -> Duration {
    Duration::from_micros((free / 2).saturating_mul(1_000_000) / GROWTH).max(MIN_MEMORY_EVERY)
}

/// The memory of a shard's server, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    pub(super) used: u64,
    /// From here on, memory is short.
    pub(super) short: u64,
    pub(super) limit: u64,
}

impl Memory {
    pub(super) async fn read(core: &Core, store: &Store) -> Result<Self, Error> {
        let (used, limit) = store.memory().await?;
        let limit = if limit == 0 { u64::MAX } else { limit };
        Ok(Self { used, short: limit / 100 * u64::from(core.options.memory_percent), limit })
    }

    fn free(self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    pub(super) fn is_short(self) -> bool {
        self.used >= self.short
    }

    /// How much of the last part, which begins at `short`, is free: 1000 for all of it.
    fn free_thousandths(self) -> u64 {
        self.free().saturating_mul(1000) / (self.limit - self.short).max(1)
    }
}

/// The owners that use most: all of them at the end of the memory, and only the largest one when it begins to be short; the
/// largest first. `largest` is the use of the largest one, which may be something that has no owner.
fn refused(owners: &BTreeMap<String, u64>, largest: u64, free_thousandths: u64) -> Vec<String> {
    let least = u128::from(largest) * u128::from(free_thousandths.min(1000)) / 1000;
    let mut over: Vec<(&String, u64)> = owners.iter().map(|(name, bytes)| (name, *bytes)).collect();
    over.retain(|(_, bytes)| u128::from(*bytes) >= least.max(1));
    over.sort_unstable_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    over.into_iter().take(MAX_REFUSED).map(|(name, _)| name.clone()).collect()
}

/// The bytes of each owner: tenants, labels of state machines, and clients with definitions of machines and idempotency keys.
type Owners = BTreeMap<String, u64>;

/// Begins the name of a publisher among the owners.
const PUBLISHER: &str = "publisher:";

/// The tenants of which a client publishes most.
#[derive(Debug, Default, PartialEq, Eq)]
struct Publisher {
    tenants: u64,
    bytes: u64,
    /// The largest of them, and its bytes.
    largest: String,
    largest_bytes: u64,
}

impl Publisher {
    /// The bytes from which on one of its tenants is rejected with it: the average, and less at the end of the memory.
    /// So its quiet tenants do not pay for its loud ones.
    fn least(&self, free_thousandths: u64) -> u64 {
        let average = self.bytes / self.tenants.max(1);
        (average.saturating_mul(free_thousandths.min(1000)) / 1000).max(1)
    }
}

/// The bytes of each owner.
async fn owners(core: &Core, store: &Store) -> Result<Owners, Error> {
    let mut owners = store.owners().await?;
    for (client, keys) in store.idempotency_used(core.options.idempotency_seconds * 1000).await? {
        let bytes = owners.entry(format!("client:{client}")).or_default();
        *bytes = bytes.saturating_add(keys.saturating_mul(KEY_BYTES));
    }
    Ok(owners)
}

/// Counts the tenants of each publisher together. `clients` has the client that publishes most to each tenant.
fn publishers(owners: &Owners, clients: BTreeMap<String, String>) -> BTreeMap<String, Publisher> {
    let mut publishers: BTreeMap<String, Publisher> = BTreeMap::new();
    for (tenant, client) in clients {
        if let Some(bytes) = owners.get(&tenant) {
            let publisher = publishers.entry(client).or_default();
            publisher.tenants += 1;
            publisher.bytes = publisher.bytes.saturating_add(*bytes);
            if *bytes >= publisher.largest_bytes {
                (publisher.largest, publisher.largest_bytes) = (tenant, *bytes);
            }
        }
    }
    publishers
}

/// What each publisher uses beyond the largest tenant, as an owner. One that publishes for several tenants does not pay for
/// its largest one, which pays for itself; one that divides its data between many tenants pays for them.
fn beyond_one(owners: &Owners, publishers: &BTreeMap<String, Publisher>) -> Owners {
    let tenants = owners.iter().filter(|(name, _)| !name.contains(':'));
    let largest = tenants.map(|(_, bytes)| *bytes).max().unwrap_or_default();
    let beyond = |(name, one): (&String, &Publisher)| {
        (one.bytes > largest).then(|| (format!("{PUBLISHER}{name}"), one.bytes - largest))
    };
    publishers.iter().filter_map(beyond).collect()
}

/// What the script of publishes reads: the owners to reject, and for a publisher the bytes from which on its tenants are
/// rejected. Its largest tenant is rejected for all clients.
fn rejected(
    names: Vec<String>,
    publishers: &BTreeMap<String, Publisher>,
    free_thousandths: u64,
) -> Vec<String> {
    let mut rejected = Vec::new();
    for name in names {
        let client = name.strip_prefix(PUBLISHER);
        if let Some((client, one)) = client.and_then(|client| Some((client, publishers.get(client)?))) {
            rejected.push(format!("{PUBLISHER}{}:{client}", one.least(free_thousandths)));
            rejected.push(one.largest.clone());
        } else if !rejected.contains(&name) {
            rejected.push(name);
        }
    }
    rejected.truncate(MAX_REFUSED);
    rejected
}

/// Returns how many bytes are free. If memory is short, the owners who use most pay for it, and no others:
/// events that are kept only for replay are forgotten; then those in parts of the log that only idle subscribers need, if these
/// are much of everything; then new data of the largest owners is rejected. If memory becomes shorter all the same, the oldest
/// batches of a subscriber are dropped that has as much as the largest owner, for as long as that frees memory.
pub(super) async fn relieve(core: &Arc<Core>, store: &Store) -> Result<u64, Error> {
    let mut memory = Memory::read(core, store).await?;
    if !memory.is_short() {
        if store.is_full().await? {
            store.clear_full().await?;
        }
        return Ok(memory.free());
    }
    forget_log(store).await?;
    let mut owners = owners(core, store).await?;
    let publishers = publishers(&owners, store.tenant_clients().await?);
    memory = Memory::read(core, store).await?;
    // Dead letters and indexes use memory, although they belong to no owner.
    let others = memory.used.saturating_sub(owners.values().sum());
    let beyond = beyond_one(&owners, &publishers);
    owners.extend(beyond);
    let largest = owners.values().copied().max().unwrap_or_default().max(others);
    let mut goes_on = false;
    if memory.is_short() {
        // What follows takes long with many segments, and memory may be used up in the meantime.
        if !store.is_full().await? {
            note_rejected(core, store, &owners, largest, &publishers, memory).await?;
        }
        let pinned: u64 = idle::pinned(core, store).await?;
        if pinned.saturating_mul(2) >= largest {
            let bytes = memory.used - memory.short + memory.limit / 20;
            // Nothing is dropped here: new data of the largest owners is rejected first.
            let goal = Goal { bytes, kept: u64::MAX, time: FREE_TIME, why: "memory" };
            goes_on = idle::free(core, store, goal).await?;
            if goes_on {
                memory = settled(core, store, memory.used).await?;
            }
        }
    }
    if !memory.is_short() {
        store.clear_full().await?;
        return Ok(memory.free());
    }
    note_rejected(core, store, &owners, largest, &publishers, memory).await?;
    // Not while the log becomes smaller without.
    if memory.free_thousandths() <= 500 && !goes_on {
        drop_largest(core, store, largest, memory).await?;
    }
    // Until the next check only smaller owners can use more.
    Ok(memory.free().max(GROWTH / 2))
}

/// Notes the owners whose new data is rejected.
async fn note_rejected(
    core: &Core,
    store: &Store,
    owners: &Owners,
    largest: u64,
    publishers: &BTreeMap<String, Publisher>,
    memory: Memory,
) -> Result<(), Error> {
    let names = refused(owners, largest, memory.free_thousandths());
    let rejected = rejected(names, publishers, memory.free_thousandths());
    let until = store.now_ms().await? + REFUSED_MS + 2 * core.options.dead_after_ms;
    // At the limit this fails, and so does every publish.
    let was_full = store.is_full().await?;
    match store.note_full(until, &rejected).await {
        Ok(()) if was_full => {}
        Ok(()) => {
            tracing::warn!(owners = ?rejected, "memory short: new data of the largest owners is rejected");
        }
        Err(error) => tracing::debug!(%error, "the largest owners cannot be noted"),
    }
    Ok(())
}

/// The memory after something was removed. Redis frees large keys a moment later.
async fn settled(core: &Core, store: &Store, before: u64) -> Result<Memory, Error> {
    let mut memory = Memory::read(core, store).await?;
    for _ in 0..FREE_CHECKS {
        if memory.used < before {
            break;
        }
        sleep(FREE_EVERY).await;
        memory = Memory::read(core, store).await?;
    }
    Ok(memory)
}

/// Drops the oldest batches of the subscriber for which most bytes wait, if that is about as much as `largest` at least, while
/// memory is short and becomes less so.
async fn drop_largest(
    core: &Arc<Core>,
    store: &Store,
    largest: u64,
    mut memory: Memory,
) -> Result<(), Error> {
    let mut sizes = BTreeMap::new();
    let waiting = store.numbers().await?.events;
    let mut read = stream::iter(waiting).map(|(token, events)| size(store, token, events)).buffered(READS);
    while let Some(found) = read.try_next().await? {
        sizes.extend(found);
    }
    drop(read);
    let Some(token) = largest_measured(store, sizes, largest).await? else { return Ok(()) };
    let mean = unless_damaged(&token, store.event_size(&token).await)?.unwrap_or_default();
    let mut all: u64 = 0;
    while memory.is_short() {
        let before = all;
        for _ in 0..DROP_PART {
            if (all - before).saturating_mul(mean) >= DROP_BYTES {
                break;
            }
            match unless_damaged(&token, store.drop_oldest(&token, "autodropped").await)?.flatten() {
                None => break,
                Some(events) => all += events,
            }
        }
        forget_log(store).await?;
        let used = memory.used;
        memory = settled(core, store, used).await?;
        if all == before || memory.used >= used {
            break;
        }
    }
    if all > 0 {
        report(core, BTreeMap::from([(token, all)]), "memory");
    }
    Ok(())
}

/// The subscriber for which most bytes wait, if that is about as much as `largest` at least. The sizes are estimates, so none pays
/// before its events are measured, unless these are more than five million.
async fn largest_measured(
    store: &Store,
    mut sizes: BTreeMap<String, u64>,
    largest: u64,
) -> Result<Option<String>, signalbox_store::Error> {
    let mut measured = HashSet::new();
    while let Some((token, bytes)) = noisiest(&sizes) {
        if bytes.saturating_mul(2) < largest {
            break;
        }
        if !measured.insert(token.clone()) {
            return Ok(Some(token));
        }
        let mut left = MAX_MEASURES;
        if let Some(bytes) = waiting_bytes(store, &token, &mut left).await? {
            sizes.insert(token, bytes);
        }
    }
    Ok(None)
}

/// The bytes of a subscriber's waiting events; `None` if finding them takes more calls than are `left`.
pub(super) async fn waiting_bytes(
    store: &Store,
    token: &str,
    left: &mut usize,
) -> Result<Option<u64>, signalbox_store::Error> {
    let (mut bytes, mut cursor) = (0, Cursor::default());
    while *left > 0 {
        *left -= 1;
        let found = unless_damaged(token, store.measure_part(token, &cursor).await)?;
        let (part, next) = found.unwrap_or_default();
        bytes += part;
        let Some(next) = next else { return Ok(Some(bytes)) };
        cursor = next;
    }
    Ok(None)
}

/// Forgets segments that no batch and no queue needs, as far as the time allows: the next check continues.
async fn forget_log(store: &Store) -> Result<(), signalbox_store::Error> {
    let segments: Vec<u64> = store.segments().await?.into_keys().collect();
    trim_until(store, &segments, Instant::now() + FORGET_TIME).await
}

/// The subscriber with the most, and how much that is.
fn noisiest(sizes: &BTreeMap<String, u64>) -> Option<(String, u64)> {
    let (token, size) = sizes.iter().filter(|(_, size)| **size > 0).max_by_key(|(_, size)| **size)?;
    Some((token.clone(), *size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_worker_is_dead_only_after_being_watched_without_a_beat() {
        let mut watch = Watch::default();
        let dead_after = Duration::from_secs(15);
        let beats = |beat: &str| vec![("w".to_owned(), beat.to_owned())];
        assert_eq!(watch.note(beats("100"), Instant::now(), dead_after), []);
        tokio::time::advance(Duration::from_secs(14)).await;
        assert_eq!(watch.note(beats("100"), Instant::now(), dead_after), []);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(watch.note(beats("100"), Instant::now(), dead_after), beats("100"));
        // A new heartbeat, whatever its timestamp, restarts the observation.
        assert_eq!(watch.note(beats("7"), Instant::now(), dead_after), []);
        tokio::time::advance(Duration::from_secs(20)).await;
        watch.forget();
        assert_eq!(
            watch.note(beats("7"), Instant::now(), dead_after),
            [],
            "an outage does not make a worker dead"
        );
    }

    #[test]
    fn segments_go_by_age_and_by_weight() {
        let segments = BTreeMap::from([(1, 10), (2, 10), (3, 10), (4, 10)]);
        assert_eq!(outdated(&segments, 3, 100), [1, 2]);
        assert_eq!(outdated(&segments, 0, 25), [1, 2]);
        assert_eq!(outdated(&segments, 0, 100), [0; 0]);
    }

    #[test]
    fn the_shorter_memory_is_the_more_owners_are_refused() {
        let bytes = BTreeMap::from([("a".into(), 100), ("b".into(), 40), ("c".into(), 1)]);
        assert_eq!(refused(&bytes, 100, 1000), ["a"]);
        assert_eq!(refused(&bytes, 100, 410), ["a"]);
        assert_eq!(refused(&bytes, 100, 400), ["a", "b"]);
        assert_eq!(refused(&bytes, 100, 0), ["a", "b", "c"]);
        assert_eq!(refused(&bytes, 1000, 200), [""; 0], "something else uses most");
        let many = (0..1_000_u64).map(|n| (n.to_string(), n)).collect();
        let largest = refused(&many, 999, 0);
        assert_eq!((largest.len(), &*largest[0]), (MAX_REFUSED, "999"));
    }

    #[test]
    fn a_publisher_pays_for_what_it_uses_beyond_the_largest_tenant() {
        let bytes =
            |all: &[(&str, u64)]| all.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
        let owners: Owners = bytes(&[("loud", 30), ("quiet", 1), ("machine:m", 90)]);
        let one = |tenants, bytes| Publisher { tenants, bytes, ..Publisher::default() };
        let publishers = [("of-both", one(2, 31)), ("of-one", one(1, 30)), ("of-many", one(10, 70))]
            .map(|(name, one)| (name.to_owned(), one));
        let expected = bytes(&[("publisher:of-both", 1), ("publisher:of-many", 40)]);
        assert_eq!(beyond_one(&owners, &publishers.into()), expected);
    }

    #[test]
    fn with_a_publisher_its_largest_tenant_is_rejected_and_its_quiet_ones_are_not() {
        let mut owners: Owners = (0..40).map(|n| (format!("quiet{n}"), 500)).collect();
        owners.insert("loud".into(), 14_700);
        let clients = owners.keys().map(|name| (name.clone(), "gateway".to_owned())).collect();
        let publishers = publishers(&owners, clients);
        let gateway = Publisher { tenants: 41, bytes: 34_700, largest: "loud".into(), largest_bytes: 14_700 };
        assert_eq!(publishers["gateway"], gateway);
        owners.extend(beyond_one(&owners, &publishers));
        let rejected = |free| rejected(refused(&owners, 20_000, free), &publishers, free);
        assert_eq!(rejected(1000), ["publisher:846:gateway", "loud"]);
        assert_eq!(rejected(700), ["publisher:592:gateway", "loud"]);
        assert_eq!(rejected(0)[..2], ["publisher:1:gateway", "loud"]);
        assert_eq!(rejected(0).len(), 42);
    }

    #[test]
    fn the_noisiest_has_most_waiting() {
        assert_eq!(noisiest(&BTreeMap::from([("a".into(), 3), ("b".into(), 5)])), Some(("b".into(), 5)));
        assert_eq!(noisiest(&BTreeMap::from([("a".into(), 0)])), None);
    }
}
