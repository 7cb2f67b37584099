//! Replay: events of the log, delivered to a subscriber of their topics again, at a limited rate.
//!
//! A replay is a cursor in the fabric, which any pacemaker may advance. The script that puts some events into the lanes
//! also moves the cursor behind them, if the cursor is still where the pacemaker read it. So a pacemaker that dies loses
//! nothing, two in parallel duplicate nothing, and a repeated call changes nothing, because the cursor has moved.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{
    Error, Event, EventId, Handle,
    core::Core,
    store::{Again, Appended, ReplayState, Resend, SEGMENT_IDS, Store},
    view::{View, target},
};
use signalbox_store::Kind;

/// Events examined in one step, whether they match or not.
const LOOK: u64 = 1_000;
/// Bodies read together, of which the caller may not need all.
const BODIES: usize = 100;
/// Events put into lanes in one step.
const PART: u64 = 400;
/// Bytes put into lanes in one step, unless a single event has more.
const PART_BYTES: usize = 1 << 20;
/// Events that wait for a subscriber, from which on its replay pauses.
const AHEAD: u64 = 2_000;
/// How long it pauses then, in milliseconds, and if deliveries are stopped.
const AHEAD_PAUSE_MS: u64 = 200;
const STOPPED_PAUSE_MS: u64 = 5_000;
/// How long a replay pauses that fails because of damaged data, in milliseconds.
const DAMAGED_PAUSE_MS: u64 = 60_000;
/// The fastest replay, events a second.
const MAX_RATE: u64 = 100_000;
/// Pause after a replay was replaced just when it was to be removed.
const REPLACED_PAUSE: Duration = Duration::from_millis(100);
/// Attempts to start a replay, each with a newer registry.
const START_TRIES: usize = 3;
/// Pause when there is nothing to replay; another pacemaker's replay is found after it.
const IDLE: Duration = Duration::from_secs(5);

impl Handle {
    /// Sends the client again what the log holds of its topics from `from_ms` until before `to_ms` (and not of the
    /// future), at most `rate` events a second. A replay that is under way is replaced.
    pub async fn replay(&self, client: &str, from_ms: u64, to_ms: u64, rate: u64) -> Result<(), Error> {
        self.known(client).await?;
        if !(1..=MAX_RATE).contains(&rate) {
            return Err(Error::OutOfRange { field: "rate", least: 1, most: MAX_RATE });
        }
        if from_ms >= to_ms {
            return Err(Error::OutOfRange { field: "to", least: from_ms + 1, most: u64::MAX });
        }
        // A shard that has not seen yet that an earlier subscription ended removes the replay when it does.
        let view = self.core.refresh().await?;
        self.core.spread(&view).await?;
        for store in &self.core.stores {
            let now_ms = store.now_ms().await?;
            let state = ReplayState {
                // The word distinguishes it from a replay that it replaces, whose next step may be under way.
                cursor: cursor(EventId::at_ms(from_ms).0 / SEGMENT_IDS, 0, &self.core.rng.characters(8)),
                from_ms,
                // Events that are published from now on are delivered anyway.
                to_ms: to_ms.min(now_ms),
                rate,
            };
            start(&self.core, store, client, &state, now_ms).await?;
        }
        self.core.replays.notify_waiters();
        self.core.replays.notify_one();
        Ok(())
    }
}

/// Starts a replay in a shard, unless the subscription has ended by now: nothing would remove the replay of none.
async fn start(
    core: &Core,
    store: &Store,
    client: &str,
    state: &ReplayState,
    due_ms: u64,
) -> Result<(), Error> {
    for _ in 0..START_TRIES {
        let view = core.view();
        view.subscription(client).ok_or(Error::NoSuchSubscription)?;
        if store.start_replay(&view.stamp, client, state, due_ms).await? {
            return Ok(());
        }
        let view = core.refresh().await?;
        core.spread(&view).await?;
    }
    Err(Error::Contended)
}

/// The position of a replay, of this word.
fn cursor(segment: u64, place: u64, word: &str) -> String {
    format!("{segment}:{place}:{word}")
}

/// Moves replays of one shard, until `shutdown`.
pub(super) async fn run(core: Arc<Core>, store: Arc<Store>, shutdown: CancellationToken) {
    loop {
        let pause = step(&core, &store).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "a replay does not move");
            Duration::from_secs(1)
        });
        tokio::select! {
            () = sleep(pause) => {}
            () = core.replays.notified() => {}
            () = shutdown.cancelled() => return,
        }
    }
}

/// Moves the replay that is due first; how long to wait for the next.
pub(super) async fn step(core: &Core, store: &Store) -> Result<Duration, Error> {
    let Some((token, due_ms)) = store.next_replay().await? else { return Ok(IDLE) };
    let now_ms = store.now_ms().await?;
    if due_ms > now_ms {
        return Ok(Duration::from_millis(due_ms - now_ms).min(IDLE));
    }
    // The subscription may have been created through another pacemaker a moment ago.
    let view = core.refresh().await?;
    let mut position = None;
    match advance(core, store, &view, &token, now_ms, &mut position).await {
        Err(Error::Store(error)) if error.kind() == Kind::Broken => {
            let subscriber = core.name_of(&token);
            tracing::error!(
                subscriber,
                %error,
                source = ?std::error::Error::source(&error),
                "replay does not move: stored data is damaged"
            );
            // It is tried again later, so that the replays of others move.
            store.schedule_replay(&token, position.as_deref(), Some(now_ms + DAMAGED_PAUSE_MS)).await?;
            Ok(Duration::ZERO)
        }
        result => result,
    }
}

/// One step of a subscriber's replay, whose position is put into `found`; how long to wait before the next step of any.
async fn advance(
    core: &Core,
    store: &Store,
    view: &View,
    token: &str,
    now_ms: u64,
    found: &mut Option<String>,
) -> Result<Duration, Error> {
    let state = store.replay(token).await?;
    *found = state.as_ref().map(|state| state.cursor.clone());
    let position = found.as_deref();
    let (Some(state), Some(subscription)) = (&state, view.subscription(token)) else {
        let is_removed = store.schedule_replay(token, position, None).await?;
        return Ok(if is_removed { Duration::ZERO } else { REPLACED_PAUSE });
    };
    if store.waiting(token).await? >= AHEAD || store.is_full().await? {
        // What a replay puts into the lanes is stored again, so it waits until the subscriber has caught up.
        let is_stopped = subscription.paused || subscription.disabled.is_some();
        let pause = if is_stopped { STOPPED_PAUSE_MS } else { AHEAD_PAUSE_MS };
        store.schedule_replay(token, position, Some(now_ms + pause)).await?;
        return Ok(Duration::ZERO);
    }
    let (events, cursor) = part(store, state, |event| {
        subscription.topics.contains(&event.topic) && subscription.takes(&event.tenant)
    })
    .await?;
    let seed = core.rng.seed();
    let to = cursor.as_deref().unwrap_or("done");
    let target = target(subscription);
    let again = Again::Replay { from: &state.cursor, to };
    let appended =
        store.append(again, &view.stamp, &target, core.options.batch_bytes, &seed, &events).await?;
    match appended {
        Appended::Put(count) => {
            let next = cursor.as_ref().map(|_| now_ms + count * 1000 / state.rate);
            store.schedule_replay(token, cursor.as_deref(), next).await?;
        }
        Appended::Moved => {}
        Appended::Stale => {
            let view = core.refresh().await?;
            core.spread(&view).await?;
        }
    }
    Ok(Duration::ZERO)
}

/// The next events of a replay, and its position after them; `None` at its end.
async fn part(
    store: &Store,
    state: &ReplayState,
    wanted: impl Fn(&Event) -> bool,
) -> Result<(Vec<Resend>, Option<String>), Error> {
    let mut words = state.cursor.splitn(3, ':');
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or_default();
    let (segment, place) = (number(), number());
    let word = words.next().unwrap_or_default();
    let last = EventId::at_ms(state.to_ms).0 / SEGMENT_IDS;
    // Segments without events do not exist, so the list shows where to continue.
    let segments = store.segments().await?;
    let Some((&current, _)) = segments.range::<u64, _>(segment..=last.max(segment)).next() else {
        return Ok((Vec::new(), None));
    };
    let place: u64 = if current == segment { place } else { 0 };
    let most = PART.min(state.rate);
    let ids = store.order(current, place, LOOK).await?;
    let (mut events, mut checked, mut bytes): (Vec<Resend>, u64, usize) = (Vec::new(), 0, 0);
    let ids: Vec<EventId> = ids.into_iter().map(EventId).collect();
    while let Some(ids) =
        usize::try_from(checked).ok().and_then(|from| ids.get(from..)).filter(|ids| !ids.is_empty())
    {
        for (id, body) in store.bodies_part(current, &ids[..ids.len().min(BODIES)]).await? {
            if events.len() as u64 == most || bytes >= PART_BYTES {
                return Ok((events, Some(cursor(current, place + checked, word))));
            }
            checked += 1;
            let accepted = id.accepted_ms();
            if accepted < state.from_ms || accepted >= state.to_ms {
                continue;
            }
            let Some(body) = body else { continue };
            let Ok(event) = Event::from_log(&body) else { continue };
            if wanted(&event) {
                bytes += body.len();
                events.push(Resend::new(&event, body, Vec::new()));
            }
        }
    }
    let next =
        if checked < LOOK { cursor(current + 1, 0, word) } else { cursor(current, place + checked, word) };
    let ended = checked < LOOK && current >= last;
    Ok((events, (!ended).then_some(next)))
}
