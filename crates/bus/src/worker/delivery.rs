//! One delivery of a batch: the attempt, its outcome, and the settling of its job.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::json;
use signalbox_store::{Kind, SharedResult};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::DeliverySlot;
use crate::{
    BatchContents, Deliverer, Event, EventId, Gap, Subscription,
    core::Core,
    shares::Ended,
    store::{Ack, Holder, Nack, Nacked, Store, Taken, read_item},
    verdict::{self, Failure, Patience, Verdict},
};
use signalbox_api::{
    Time,
    events::{DeliveryAttempt, DeliveryResult},
};
use signalbox_egress::{Answered, Outcome};

/// How long a disabled subscription's lane pauses before its age is checked again.
const DISABLED_PAUSE_MS: u64 = 3_600_000;

/// How long a lane rests whose subscription this process does not know (it was ended just now).
const UNKNOWN_PAUSE_MS: u64 = 1_000;

/// How long a lane waits for the notification that a delivery has ended which it should wait for.
const ENDED_PAUSE_MS: u64 = 50;

/// Between two attempts to settle a job while the fabric is unavailable.
const MAX_SETTLE_PAUSE: Duration = Duration::from_secs(2);

/// Attempts to settle a job that the fabric cannot understand; then it stays where it is until its worker asks again.
const BROKEN_TRIES: u32 = 10;

/// One delivery.
pub(super) struct Delivery<D> {
    pub(super) core: Arc<Core>,
    pub(super) store: Arc<Store>,
    pub(super) deliverer: Arc<D>,
    pub(super) shutdown: CancellationToken,
}

/// An attempt that ended.
struct Attempt {
    outcome: Outcome,
    answered: Answered,
    duration: Duration,
    events: usize,
    /// The lowest and the highest ID of its events.
    range: (EventId, EventId),
}

/// How to settle a job in the end.
enum Settle {
    Ack { events: usize },
    Nack(Nack),
    Bury { why: String, attempted: bool },
    Refuse(Option<Holder>),
}

impl Settle {
    /// No delivery was attempted; the lane pauses.
    fn rest(pause_ms: u64) -> Self {
        Self::Nack(Nack { pause_ms, attempted: false, split: false })
    }

    fn ended(&self) -> Ended {
        match self {
            Self::Ack { .. } => Ended::Delivered,
            Self::Nack(Nack { attempted: true, .. }) | Self::Bury { attempted: true, .. } => Ended::Failed,
            Self::Nack(_) | Self::Bury { .. } | Self::Refuse(_) => Ended::NotAttempted,
        }
    }
}

impl<D: Deliverer> Delivery<D> {
    pub(super) async fn run(
        self,
        taken: Taken,
        subscription: Option<Arc<Subscription>>,
        now_ms: u64,
        slot: DeliverySlot,
    ) -> Ended {
        let timeout_ms = subscription.as_ref().map_or(0, |subscription| subscription.timeout_ms);
        let settle = match subscription {
            // It ended a moment ago, and its lanes are being cleared away; or this process is behind.
            None => Settle::rest(UNKNOWN_PAUSE_MS),
            Some(subscription) if subscription.disabled.is_some() || subscription.paused => {
                self.rest(&taken, &subscription, now_ms)
            }
            Some(subscription) => self.attempt(&taken, &subscription, now_ms).await,
        };
        slot.release();
        self.settle(&taken, timeout_ms, &settle).await;
        settle.ended()
    }

    /// Returns a job that got no share. It waits until the delivery of `before` ends, or until there is a place.
    pub(super) async fn refuse(&self, taken: &Taken, before: Option<&Holder>) {
        self.settle(taken, 0, &Settle::Refuse(before.cloned())).await;
    }

    /// Logs that a batch waits for a place.
    pub(super) fn note_waiting(&self, taken: &Taken, now_ms: u64) {
        let ids = || taken.items.iter().filter_map(|item| read_item(item)).map(|(id, _)| id.0);
        let entry = DeliveryAttempt {
            at: Time::from_ms(now_ms),
            batch: taken.held.batch.clone(),
            attempt: taken.attempts + 1,
            events: taken.items.len() as u64,
            first: ids().min().unwrap_or_default(),
            last: ids().max().unwrap_or_default(),
            result: DeliveryResult::Waiting,
            status: None,
            duration_ms: 0,
            why: Some("all slow deliveries are in use (`bus.slow_deliveries`)".to_owned()),
            response: None,
            next: None,
        };
        self.core.attempts.note(&taken.held, entry);
    }

    /// A disabled or paused subscription gets no deliveries. Its waiting events become dead letters when they are old
    /// enough.
    fn rest(&self, taken: &Taken, subscription: &Subscription, now_ms: u64) -> Settle {
        let max_age = self.patience(subscription).max_age;
        if Duration::from_millis(now_ms.saturating_sub(taken.created_ms)) >= max_age {
            let what = if subscription.disabled.is_some() { "disabled" } else { "paused" };
            return Settle::Bury { why: format!("the subscription is {what}"), attempted: false };
        }
        Settle::rest(DISABLED_PAUSE_MS)
    }

    async fn attempt(&self, taken: &Taken, subscription: &Arc<Subscription>, now_ms: u64) -> Settle {
        let (events, redriven, missing) = match self.contents(taken).await {
            Ok(contents) => contents,
            Err(error) => {
                tracing::debug!(%error, "a batch cannot be read now");
                return Settle::rest(1000);
            }
        };
        if missing > 0 {
            tracing::error!(
                subscriber = self.core.name_of(&taken.held.token),
                batch = taken.held.batch,
                missing,
                "events of a batch are no longer in the log"
            );
        }
        if events.is_empty() {
            return Settle::Bury { why: "the events are lost".into(), attempted: false };
        }
        let batch = Arc::new(BatchContents {
            id: taken.held.batch.clone(),
            created_ms: taken.created_ms,
            attempts: taken.attempts,
            gaps: taken.gaps.iter().filter_map(|gap| Gap::from_words(gap)).collect(),
            events,
            redriven,
        });
        let count = batch.events.len();
        let ids = || batch.events.iter().map(|event| event.id);
        let range = (ids().min().unwrap_or(EventId(0)), ids().max().unwrap_or(EventId(0)));
        let started = Instant::now();
        // In a separate task: a panic in a deliverer is only a failed delivery.
        let deliverer = Arc::clone(&self.deliverer);
        let to = Arc::clone(subscription);
        let mut delivering = tokio::spawn(async move { deliverer.attempt(to, batch).await });
        let (outcome, answered) = tokio::select! {
            ended = &mut delivering => ended.unwrap_or_else(|error| {
                (Outcome::Failed { why: error.to_string(), retry_after: None }, Answered::default())
            }),
            () = self.shutdown.cancelled() => {
                delivering.abort();
                return Settle::rest(0);
            }
        };
        let attempt =
            Attempt { outcome: outcome.clone(), answered, duration: started.elapsed(), events: count, range };
        let settle = match outcome {
            Outcome::Delivered => Settle::Ack { events: count },
            Outcome::Gone => {
                self.disable(subscription).await;
                Settle::Nack(Nack { pause_ms: DISABLED_PAUSE_MS, attempted: true, split: false })
            }
            Outcome::Failed { why, retry_after } => {
                self.failed(taken, subscription, why, retry_after, now_ms)
            }
        };
        self.log(taken, &attempt, now_ms, &settle);
        settle
    }

    fn failed(
        &self,
        taken: &Taken,
        subscription: &Subscription,
        why: String,
        retry_after: Option<Duration>,
        now_ms: u64,
    ) -> Settle {
        let failure = Failure {
            attempts: taken.attempts + 1,
            age: Duration::from_millis(now_ms.saturating_sub(taken.created_ms)),
            events: taken.items.len(),
            health: verdict::health_after(taken.health, false),
            retry_after,
        };
        let verdict = verdict::judge(&failure, &self.patience(subscription), self.core.rng.uniform());
        tracing::debug!(
            subscriber = self.core.name_of(&taken.held.token),
            batch = taken.held.batch,
            attempts = failure.attempts,
            why,
            ?verdict,
            "a batch was not delivered"
        );
        let nack = |pause: Duration, split| {
            let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
            Settle::Nack(Nack { pause_ms, attempted: true, split })
        };
        match verdict {
            Verdict::Retry(pause) => nack(pause, false),
            Verdict::Split(pause) => nack(pause, true),
            Verdict::Dead => Settle::Bury { why, attempted: true },
        }
    }

    /// The limits of a subscription, or the configured ones.
    fn patience<'a>(&self, subscription: &'a Subscription) -> Patience<'a> {
        let options = &self.core.options;
        Patience {
            max_attempts: subscription.max_attempts.unwrap_or(options.max_attempts),
            max_age: Duration::from_secs(subscription.max_age_seconds.unwrap_or(options.max_age_seconds)),
            on_exhausted: subscription.on_exhausted,
            retry_seconds: &subscription.retry_seconds,
        }
    }

    /// Logs an attempt with what becomes of it.
    fn log(&self, taken: &Taken, attempt: &Attempt, now_ms: u64, settle: &Settle) {
        let duration_ms = u64::try_from(attempt.duration.as_millis()).unwrap_or(u64::MAX);
        let (result, next, why) = match (&attempt.outcome, settle) {
            (Outcome::Gone, _) => (DeliveryResult::Gone, None, None),
            (_, Settle::Ack { .. } | Settle::Refuse(_)) => (DeliveryResult::Delivered, None, None),
            (_, Settle::Bury { why, .. }) => (DeliveryResult::Dead, None, Some(why.as_str())),
            (outcome, Settle::Nack(nack)) => {
                let why = match outcome {
                    Outcome::Failed { why, .. } => Some(why.as_str()),
                    Outcome::Delivered | Outcome::Gone => None,
                };
                (DeliveryResult::Retried, Some(now_ms + duration_ms + nack.pause_ms), why)
            }
        };
        let (first, last) = attempt.range;
        let entry = DeliveryAttempt {
            at: Time::from_ms(now_ms),
            batch: taken.held.batch.clone(),
            attempt: taken.attempts + 1,
            events: attempt.events as u64,
            first: first.0,
            last: last.0,
            result,
            status: attempt.answered.status,
            duration_ms,
            why: why.map(|why| shortened(why).to_owned()),
            response: attempt.answered.excerpt.clone(),
            next: next.map(Time::from_ms),
        };
        self.core.attempts.note(&taken.held, entry);
    }

    /// The callback answered that it is gone permanently.
    async fn disable(&self, subscription: &Subscription) {
        let token = &subscription.token;
        let disabled = self
            .core
            .change(|registry, _| {
                // Unless it subscribed again in the meantime, or changed its callback.
                let one = registry.subscriptions.get_mut(token).filter(|one| {
                    one.changed_in == subscription.changed_in && one.generation == subscription.generation
                });
                Ok(one
                    .map(|one| one.disabled = Some("the callback answered that it is gone".into()))
                    .is_some())
            })
            .await;
        match disabled {
            Ok(false) => {}
            Ok(true) => {
                let subscriber = self.core.name_of(token);
                tracing::warn!(subscriber, "subscription disabled: its callback is gone");
                self.core.announce("subscriber.disabled", token, json!({ "reason": "gone" }));
            }
            // The next attempt finds the same answer.
            Err(error) => {
                let subscriber = self.core.name_of(token);
                tracing::warn!(subscriber, %error, "subscription not disabled; it stays active");
            }
        }
    }

    /// The batch's events in order, for each of them whether it was redriven, and how many are no longer in the log.
    async fn contents(
        &self,
        taken: &Taken,
    ) -> Result<(Vec<Arc<Event>>, Vec<bool>, usize), signalbox_store::Error> {
        let items: Vec<(EventId, u64)> = taken.items.iter().filter_map(|item| read_item(item)).collect();
        let mut events = self.core.cache.get(items.iter().map(|(id, _)| *id));
        let mut wanted: BTreeMap<u64, Vec<EventId>> = BTreeMap::new();
        for ((id, segment), _) in items.iter().zip(&events).filter(|(_, event)| event.is_none()) {
            wanted.entry(*segment).or_default().push(*id);
        }
        let mut read = BTreeMap::new();
        for (segment, ids) in wanted {
            for (id, body) in self.store.bodies(segment, &ids).await? {
                let event = body.and_then(|body| {
                    Event::from_log(&body)
                        .inspect_err(|error| tracing::error!(%id, %error, "event in the log not readable"))
                        .ok()
                });
                read.extend(event.map(|event| (id, Arc::new(event))));
            }
        }
        if !read.is_empty() {
            self.core.cache.put(read.values().cloned());
            for ((id, _), event) in items.iter().zip(&mut events).filter(|(_, event)| event.is_none()) {
                *event = read.get(id).cloned();
            }
        }
        let missing = taken.items.len() - events.iter().flatten().count();
        // An event that was appended again names the segment of its body in this way.
        let is_redriven = |item: &String| item.contains('@');
        let marks = taken.items.iter().filter(|item| read_item(item).is_some()).map(is_redriven);
        let (events, redriven) =
            events.into_iter().zip(marks).filter_map(|(event, mark)| Some((event?, mark))).unzip();
        Ok((events, redriven, missing))
    }

    /// Settles the job, and retries while the fabric does not answer. Until then the worker's heartbeat continues, so
    /// no other worker takes the job; the scripts make a repeat harmless.
    async fn settle(&self, taken: &Taken, timeout_ms: u64, settle: &Settle) {
        let mut pause = Duration::from_millis(50);
        let mut broken = 0;
        loop {
            match self.settle_once(taken, timeout_ms, settle).await {
                Ok(true) => return,
                Ok(false) => {
                    tracing::debug!(worker = taken.held.worker, "a job was taken from its worker");
                    return;
                }
                Err(error) if error.kind() == Kind::Broken => {
                    tracing::error!(%error, source = ?std::error::Error::source(&*error), "job not settled");
                    broken += 1;
                    if broken == BROKEN_TRIES {
                        return;
                    }
                }
                Err(error) => tracing::debug!(%error, "a job cannot be settled now"),
            }
            tokio::select! {
                () = sleep(pause) => {}
                // Another pacemaker will scrub this worker.
                () = self.shutdown.cancelled(), if pause == MAX_SETTLE_PAUSE => return,
            }
            pause = (pause * 2).min(MAX_SETTLE_PAUSE);
        }
    }

    async fn settle_once(&self, taken: &Taken, timeout_ms: u64, settle: &Settle) -> SharedResult<bool> {
        let (held, options) = (&taken.held, &self.core.options);
        match settle {
            Settle::Ack { events } => {
                let (held, gaps) = (held.clone(), taken.gaps.clone());
                self.store.ack_together(Ack { held, timeout_ms, events: *events, gaps }).await
            }
            Settle::Nack(nack) => {
                let nacked = self.store.nack(held, nack, &self.core.rng.seed()).await.map_err(Arc::new)?;
                // Reported once: again only after full health was restored. If this reply is lost, not at all.
                if nacked == Nacked::PacingBegins {
                    self.core.announce("subscriber.paced", &held.token, json!({ "pause_ms": nack.pause_ms }));
                }
                Ok(nacked != Nacked::NotHeld)
            }
            Settle::Refuse(before) => {
                self.store.refuse(held, before.as_ref(), ENDED_PAUSE_MS).await.map_err(Arc::new)
            }
            Settle::Bury { why, attempted } => {
                let keep = (options.dead_events, options.dead_bytes);
                let why = shortened(why);
                self.store.bury(held, timeout_ms, why, *attempted, keep).await.map_err(Arc::new)
            }
        }
    }
}

/// A reason is for people; a receiver's answer may be of any length.
fn shortened(why: &str) -> &str {
    let end = (0..=why.len().min(500)).rev().find(|end| why.is_char_boundary(*end)).unwrap_or_default();
    &why[..end]
}
