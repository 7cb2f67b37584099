//! Periodic maintenance, by one pacemaker at a time: dead workers, lanes of ended subscriptions, old segments, full
//! memory, and shards with an outdated registry.
//!
//! The pacemaker that holds the lease `bus` does this work. The lease only avoids duplicate work: every step may be
//! repeated or left incomplete, so no fencing is needed. Maintenance runs separately from the workers, never as jobs, so
//! that no job can delay it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    Error, EventId,
    core::Core,
    queue_admin::QueueMaintenance,
    store::{SEGMENT_IDS, Store},
    view::State,
};
use signalbox_lease::Lease;

/// Batches cleared away in one call.
const PURGE_PART: usize = 200;
/// Batches dropped in one round, before memory is checked again.
const DROP_PART: usize = 100;
/// Segments forgotten in one call.
const TRIM_PART: usize = 100;
/// Missed heartbeats after which an earlier process on the same machine is dead.
const MISSED_BEATS: u32 = 2;
/// Checks within that time.
const RECOVERY_CHECKS: u32 = 5;
/// Interval between two checks of the memory while it is nearly full.
const MEMORY_EVERY: Duration = Duration::from_secs(1);
/// The fastest growth of the memory that is expected, in bytes per second: no check is later than the memory could be full.
const GROWTH: u64 = 100 << 20;

/// Keeps one shard in order until `shutdown`.
pub(super) async fn run(core: Arc<Core>, store: Arc<Store>, mut lease: Lease, shutdown: CancellationToken) {
    let mut watch = Watch::default();
    let mut keeping = QueueMaintenance::default();
    let every = Duration::from_millis(core.options.housekeeping_ms);
    let mut last_round: Option<Instant> = None;
    let mut check_at = Instant::now();
    loop {
        if holds(&mut lease).await {
            if check_at <= Instant::now() {
                match relieve(&core, &store).await {
                    Ok(headroom) => check_at = Instant::now() + until_full(headroom).min(every),
                    Err(error) => tracing::debug!(%error, "memory cannot be checked now"),
                }
            }
            if last_round.is_none_or(|at| at.elapsed() >= every) {
                last_round = Some(Instant::now());
                if let Err(error) = round(&core, &store, &mut watch, &mut keeping).await {
                    tracing::debug!(%error, "housekeeping is interrupted");
                    // Observations from before an interruption do not show which workers are alive.
                    watch.forget();
                }
            }
        } else {
            watch.forget();
        }
        tokio::select! {
            () = sleep(MEMORY_EVERY.min(every)) => {}
            () = shutdown.cancelled() => break,
        }
    }
    lease.release().await;
}

/// A server that is too full to write a lease needs its memory freed most of all.
async fn holds(lease: &mut Lease) -> bool {
    match lease.hold().await {
        Ok(epoch) => epoch.is_some(),
        Err(error) => error.kind() == signalbox_store::Kind::Refused,
    }
}

async fn round(
    core: &Arc<Core>,
    store: &Store,
    watch: &mut Watch,
    keeping: &mut QueueMaintenance,
) -> Result<(), Error> {
    scrub(core, store, watch).await?;
    purge(store).await?;
    limit(core, store).await?;
    keeping.round(core, store).await;
    trim(core, store).await?;
    let view = core.refresh().await?;
    if view.state == State::Ready {
        core.spread(&view).await?;
    }
    Ok(())
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
        match store.scrub(&worker, &seen).await? {
            Some(freed) => tracing::warn!(worker, freed, "worker died; another can take its job"),
            None => tracing::debug!(worker, "worker heartbeat recovered"),
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
        while store.purge(&token, PURGE_PART).await? {}
    }
    Ok(())
}

/// Drops what is too much for one subscriber.
async fn limit(core: &Arc<Core>, store: &Store) -> Result<(), Error> {
    let numbers = store.numbers().await?;
    for (token, events) in numbers.events {
        let over = events.saturating_sub(core.options.queued_events);
        let mut dropped = 0;
        while dropped < over {
            match store.drop_oldest(&token, "limit").await? {
                0 => break,
                more => dropped += more,
            }
        }
        if dropped > 0 {
            tracing::warn!(
                subscriber = core.name_of(&token),
                events,
                dropped,
                "subscriber's oldest batches dropped: limit reached"
            );
            core.announce("subscriber.autodropped", &token, json!({ "events": dropped, "reason": "limit" }));
        }
    }
    Ok(())
}

/// Segments that are older than the log is kept, or more than it may weigh; the oldest first. The present one stays.
fn outdated(segments: &BTreeMap<u64, u64>, oldest_kept: u64, bytes: u64) -> Vec<u64> {
    let mut total: u64 = segments.values().sum();
    let mut outdated = Vec::new();
    for (segment, weight) in segments {
        if *segment >= oldest_kept && total <= bytes {
            break;
        }
        total -= weight;
        outdated.push(*segment);
    }
    outdated
}

async fn trim(core: &Core, store: &Store) -> Result<(), Error> {
    let now_ms = store.now_ms().await?;
    let kept_from = now_ms.saturating_sub(core.options.log_seconds * 1000);
    let outdated =
        outdated(&store.segments().await?, EventId::at_ms(kept_from).0 / SEGMENT_IDS, core.options.log_bytes);
    trim_all(store, &outdated).await
}

/// Removes segments that are no longer needed. A queue may need an old one and none of those after it, so all of them
/// are tried.
async fn trim_all(store: &Store, segments: &[u64]) -> Result<(), Error> {
    for part in segments.chunks(TRIM_PART) {
        store.trim(part).await?;
    }
    Ok(())
}

/// How long it takes at least until so many bytes are used.
fn until_full(headroom: u64) -> Duration {
    Duration::from_secs(headroom / GROWTH).max(MEMORY_EVERY)
}

/// Returns how many bytes are free until the fabric is nearly full. If none are, frees memory: first events that are kept only
/// for replay, then the oldest batches of the subscriber with the most events.
async fn relieve(core: &Arc<Core>, store: &Store) -> Result<u64, Error> {
    let headroom = |(used, limit): (u64, u64)| match limit {
        0 => u64::MAX,
        limit => (limit / 100 * u64::from(core.options.memory_percent)).saturating_sub(used),
    };
    let free = headroom(store.memory().await?);
    if free > 0 {
        return Ok(free);
    }
    forget_log(store).await?;
    let mut all: BTreeMap<String, u64> = BTreeMap::new();
    while headroom(store.memory().await?) == 0 {
        let Some(noisiest) = noisiest(store.numbers().await?.events) else { break };
        let mut dropped = 0;
        for _ in 0..DROP_PART {
            match store.drop_oldest(&noisiest, "autodropped").await? {
                0 => break,
                events => dropped += events,
            }
        }
        if dropped == 0 {
            break;
        }
        forget_log(store).await?;
        *all.entry(noisiest).or_default() += dropped;
    }
    for (token, dropped) in all {
        tracing::warn!(
            subscriber = core.name_of(&token),
            dropped,
            "memory low: oldest batches of the noisiest subscriber dropped"
        );
        core.announce("subscriber.autodropped", &token, json!({ "events": dropped, "reason": "memory" }));
    }
    Ok(0)
}

/// Forgets every segment that no batch and no queue needs.
async fn forget_log(store: &Store) -> Result<(), Error> {
    trim_all(store, &store.segments().await?.into_keys().collect::<Vec<_>>()).await
}

/// The subscriber with the most waiting events.
fn noisiest(events: BTreeMap<String, u64>) -> Option<String> {
    events
        .into_iter()
        .filter(|(_, events)| *events > 0)
        .max_by_key(|(_, events)| *events)
        .map(|(token, _)| token)
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
    fn the_noisiest_has_most_waiting() {
        assert_eq!(noisiest(BTreeMap::from([("a".into(), 3), ("b".into(), 5)])), Some("b".into()));
        assert_eq!(noisiest(BTreeMap::from([("a".into(), 0)])), None);
    }
}
