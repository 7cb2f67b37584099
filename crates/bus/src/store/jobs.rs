//! The life of a job: taken, acknowledged, returned, buried, scrubbed.

use std::{collections::BTreeMap, sync::Arc};

use signalbox_store::{
    Call, Error, FabricRole, FromRedisValue, Kind, Script, SharedResult, Value, from_redis_value,
};

use super::{LANES, Store};
use crate::EventId;

static ACQUIRE: Script<FabricRole> =
    Script::composed("acquire", &[include_str!("../scripts/acquire.lua"), LANES]);
static ACK: Script<FabricRole> = Script::composed("ack", &[include_str!("../scripts/ack.lua"), LANES]);
static NACK: Script<FabricRole> = Script::composed("nack", &[include_str!("../scripts/nack.lua"), LANES]);
static REFUSE: Script<FabricRole> =
    Script::composed("refuse", &[include_str!("../scripts/refuse.lua"), LANES]);
static BURY: Script<FabricRole> = Script::composed("bury", &[include_str!("../scripts/bury.lua"), LANES]);
static SCRUB: Script<FabricRole> = Script::composed("scrub", &[include_str!("../scripts/scrub.lua"), LANES]);
static BEAT: Script<FabricRole> = Script::new("beat", include_str!("../scripts/beat.lua"));
static KEEP: Script<FabricRole> = Script::composed("keep", &[include_str!("../scripts/keep.lua"), LANES]);
static DROP: Script<FabricRole> = Script::composed("drop", &[include_str!("../scripts/drop.lua"), LANES]);
static KICK: Script<FabricRole> = Script::composed("kick", &[include_str!("../scripts/kick.lua"), LANES]);
static SKIP: Script<FabricRole> = Script::composed("skip", &[include_str!("../scripts/skip.lua"), LANES]);
static OLDEST: Script<FabricRole> =
    Script::composed("oldest", &[include_str!("../scripts/oldest.lua"), LANES]);
static AUDIT: Script<FabricRole> = Script::composed("audit", &[include_str!("../scripts/audit.lua"), LANES]);

/// Maximum number of workers whose heartbeats are written in one call.
const MAX_BEATS: usize = 500;
/// Maximum acknowledgements in one call, and events in their batches, each of which is read, if there is more than one. They
/// limit how long a call blocks Redis.
const MAX_ACKS: usize = 32;
const MAX_ACKED_EVENTS: usize = 2_000;

/// Batches of a lane in which an event is searched, from the next one to be delivered.
const SKIP_BATCHES: usize = 200;
/// Events that one call searches. It limits how long a call blocks Redis.
const SKIP_EVENTS: usize = 2_000;
/// Events that one call of `keep` searches or measures, and bytes that it moves. They limit how long the call blocks Redis.
const SEARCHED_EVENTS: usize = 4_000;
const MEASURED_EVENTS: usize = 2_000;
const KEPT_BYTES: usize = 1 << 20;

/// Events of a subscriber that are measured to estimate the size of all.
const SAMPLE: usize = 100;

/// Where a search of a subscriber's lanes continues: generation, lane, batch, event. All empty at its beginning.
pub(crate) type Cursor = [String; 4];

/// Events that were dropped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub events: u64,
    /// Their bytes in the segment that is to be freed.
    pub bytes: u64,
}

/// A job held by a worker, with the data that its acknowledgement has to name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub worker: String,
    pub job: Vec<u8>,
    pub token: String,
    pub generation: String,
    pub lane: String,
    pub batch: String,
}

/// A worker and the job that it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub worker: String,
    pub job: Vec<u8>,
}

/// An acknowledgement: the batch of a held job was delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ack {
    pub held: Held,
    /// How long a batch of the subscriber waits to fill.
    pub timeout_ms: u64,
    pub events: usize,
    /// The gaps that were reported with it, as stored.
    pub gaps: Vec<String>,
}

/// A job that was taken, with its batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    pub held: Held,
    pub health: u8,
    /// How often the pauses of the subscriber's lanes had been ended.
    pub kicks: String,
    pub created_ms: u64,
    pub attempts: u32,
    pub items: Vec<String>,
    /// As stored, to identify them once they were reported.
    pub gaps: Vec<String>,
}

/// The result of one round of taking jobs.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub now_ms: u64,
    /// When the earliest scheduled job is due.
    pub next_due_ms: Option<u64>,
    /// Jobs that wait to be taken still.
    pub left: u64,
    /// Jobs that wait for a slow delivery.
    pub slow: u64,
    pub stamp: String,
    pub taken: Vec<Taken>,
}

/// How a job is put back.
#[derive(Debug, Clone)]
pub(crate) struct Nack {
    pub pause_ms: u64,
    /// Whether a delivery was attempted: it counts against the batch and the subscriber's health.
    pub attempted: bool,
    /// Whether to halve the batch.
    pub split: bool,
}

/// The result of one search for an event that is to be skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Skipped {
    Done,
    /// It does not wait there.
    Absent,
    /// Another call has to continue at this cursor.
    More([String; 5]),
    /// The batch at the cursor was settled in the meantime.
    Moved,
}

/// The result of returning a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nacked {
    /// The worker no longer holds the job; nothing was done.
    NotHeld,
    Done,
    /// Done, and the subscriber was in full health until now.
    PacingBegins,
}

/// How many acknowledgements share a call.
pub(super) fn shared_acks(acks: &[Ack]) -> usize {
    let mut events = 0;
    let fits = |ack: &&Ack| {
        events += ack.events;
        events <= MAX_ACKED_EVENTS
    };
    acks.iter().take(MAX_ACKS).take_while(fits).count().max(1)
}

/// Acknowledges batches in one call. If that fails because of the data of one of them, the others are acknowledged
/// alone.
async fn ack_all(store: Arc<Store>, acks: Vec<Ack>) -> Vec<SharedResult<bool>> {
    match store.ack(&acks).await {
        Ok(held) => held.into_iter().map(Ok).collect(),
        Err(error) if error.kind() == Kind::Broken && acks.len() > 1 => {
            let mut results = Vec::with_capacity(acks.len());
            for ack in &acks {
                let result = store.ack(std::slice::from_ref(ack)).await;
                results.push(result.map(|held| held == [true]).map_err(Arc::new));
            }
            results
        }
        Err(error) => vec![Err(Arc::new(error)); acks.len()],
    }
}

impl Store {
    /// Takes a job for each of `workers`, as far as there are any. `places` slow deliveries may begin.
    pub(crate) async fn acquire(
        &self,
        workers: &[String],
        promote: usize,
        places: usize,
    ) -> Result<Turn, Error> {
        let call = self
            .lanes_call(&ACQUIRE)
            .key(&self.bus().registry())
            .arg(self.clock.argument())
            .arg(promote)
            .arg(places)
            .arg(workers);
        let reply: Vec<Value> = call.run(self.redis()).await?;
        Ok(read_turn(reply))
    }

    /// Batches were delivered. For each, false when its worker no longer holds the job. If the call fails because a key is
    /// of another type, nothing was done.
    pub(crate) async fn ack(&self, acks: &[Ack]) -> Result<Vec<bool>, Error> {
        let mut call = self.lanes_call(&ACK);
        for ack in acks {
            call = call.key(&self.bus().subscriber(&ack.held.token));
        }
        call = call.arg(self.clock.argument());
        for Ack { held, timeout_ms, events, gaps } in acks {
            call = held_words(call, held).arg(*timeout_ms).arg(*events).arg(gaps.len()).arg(gaps);
        }
        Ok(call.run::<Vec<i64>>(self.redis()).await?.into_iter().map(|held| held == 1).collect())
    }

    /// Like [`Self::ack`], in a call that is shared with the other deliveries that end now.
    pub(crate) async fn ack_together(self: &Arc<Self>, ack: Ack) -> SharedResult<bool> {
        let store = Arc::clone(self);
        let run = move |acks| ack_all(Arc::clone(&store), acks);
        // The process ends, or the call panicked. Another worker delivers the batch again.
        self.acks.call((), ack, run).await.unwrap_or(Ok(false))
    }

    /// The batch was not delivered.
    pub(crate) async fn nack(&self, held: &Held, nack: &Nack, seed: &str) -> Result<Nacked, Error> {
        let call = self
            .held_args(self.lanes_call(&NACK), held)
            .arg(nack.pause_ms)
            .arg(-2)
            .arg(u8::from(nack.attempted))
            .arg(u8::from(nack.split))
            .arg(seed);
        Ok(match call.run::<i64>(self.redis()).await? {
            0 => Nacked::NotHeld,
            2 => Nacked::PacingBegins,
            _ => Nacked::Done,
        })
    }

    /// The job got no place. It waits for the end of the delivery of `before`, or for a place if there is none. False when
    /// the worker no longer holds the job.
    pub(crate) async fn refuse(
        &self,
        held: &Held,
        before: Option<&Holder>,
        pause_ms: u64,
    ) -> Result<bool, Error> {
        let (worker, job) = before.map(|one| (&*one.worker, &*one.job)).unwrap_or_default();
        let call = self.held_args(self.lanes_call(&REFUSE), held).arg(worker).arg(job).arg(pause_ms);
        Ok(call.run::<i64>(self.redis()).await? == 1)
    }

    /// Drops the batch. False when the worker no longer holds the job.
    pub(crate) async fn bury(
        &self,
        held: &Held,
        timeout_ms: u64,
        why: &str,
        attempted: bool,
        keep: (u64, u64),
    ) -> Result<bool, Error> {
        let bus = self.bus();
        loop {
            let call = self.lanes_call(&BURY).key(&bus.dead(&held.token)).key(&bus.dead_bytes());
            let call = self
                .held_args(call, held)
                .arg(timeout_ms)
                .arg(why)
                .arg(u8::from(attempted))
                .arg(keep.0)
                .arg(keep.1)
                .arg(-2);
            match call.run::<i64>(self.redis()).await? {
                2 => {}
                done => return Ok(done == 1),
            }
        }
    }

    fn held_args<'a>(
        &self,
        call: signalbox_store::Call<'a, FabricRole>,
        held: &Held,
    ) -> signalbox_store::Call<'a, FabricRole> {
        held_words(call.arg(self.clock.argument()), held)
    }

    /// Takes the job from a worker whose last heartbeat is still `seen`. Nothing when it lives.
    pub(crate) async fn scrub(&self, worker: &str, seen: &str) -> Result<Option<u64>, Error> {
        let freed: i64 = self.lanes_call(&SCRUB).arg(worker).arg(seen).run(self.redis()).await?;
        Ok(u64::try_from(freed).ok())
    }

    /// Workers that hold a job, with their last heartbeats (empty when there is none).
    pub(crate) async fn heartbeats(&self) -> Result<Vec<(String, String)>, Error> {
        let bus = self.bus();
        let busy: Vec<String> =
            self.redis().command("SMEMBERS").key(&bus.jobs_pending_index()).query().await?;
        if busy.is_empty() {
            return Ok(Vec::new());
        }
        let beats: Vec<Option<String>> =
            self.redis().command("HMGET").key(&bus.workers()).arg(&busy).query().await?;
        Ok(busy.into_iter().zip(beats.into_iter().map(Option::unwrap_or_default)).collect())
    }

    /// The suspected violations in a subscriber's lanes: predicate, lane or gauge, description. `segments` are those of the log
    /// that seem to be kept for it.
    pub(crate) async fn audit(
        &self,
        token: &str,
        most: u64,
        segments: &[u64],
    ) -> Result<Vec<(String, String, String)>, Error> {
        self.lanes_call(&AUDIT).arg(token).arg(most).arg(segments).run(self.redis()).await
    }

    /// Writes the heartbeats of busy workers.
    pub(crate) async fn beat(&self, workers: &[String]) -> Result<u64, Error> {
        let mut noted = 0;
        for part in workers.chunks(MAX_BEATS) {
            let call = BEAT.call().key(&self.bus().workers()).arg(self.clock.argument()).arg(part);
            noted += call.run::<u64>(self.redis()).await?;
        }
        Ok(noted)
    }

    /// Drops the subscriber's oldest batch; how many events it had, or `None` if there is none to drop.
    pub(crate) async fn drop_oldest(&self, token: &str, reason: &str) -> Result<Option<u64>, Error> {
        Ok(self.drop_batch(token, reason, "", "").await?.map(|dropped| dropped.events))
    }

    /// The same, if more than `most` events wait for the subscriber.
    pub(crate) async fn drop_above(
        &self,
        token: &str,
        reason: &str,
        most: u64,
    ) -> Result<Option<u64>, Error> {
        Ok(self.drop_batch(token, reason, &most.to_string(), "").await?.map(|dropped| dropped.events))
    }

    /// The same, if the subscriber needs this segment of the log and the batch may be why.
    pub(crate) async fn drop_from(
        &self,
        token: &str,
        reason: &str,
        segment: u64,
    ) -> Result<Option<Dropped>, Error> {
        self.drop_batch(token, reason, "", &segment.to_string()).await
    }

    async fn drop_batch(
        &self,
        token: &str,
        reason: &str,
        most: &str,
        segment: &str,
    ) -> Result<Option<Dropped>, Error> {
        let call = self.lanes_call(&DROP).arg(token).arg(reason).arg(most).arg(segment);
        let (events, bytes): (i64, u64) = call.run(self.redis()).await?;
        Ok(u64::try_from(events).ok().map(|events| Dropped { events, bytes }))
    }

    /// Marks the subscriber's waiting events whose bodies are in these segments of the log, so that [`Self::trim`] moves them to segment
    /// 0. Searches a limited part of its lanes, from `cursor` on. Returns how many bytes were marked, and the cursor of the next part.
    pub(crate) async fn keep_part(
        &self,
        token: &str,
        segments: &[u64],
        cursor: &Cursor,
    ) -> Result<(u64, Option<Cursor>), Error> {
        self.search_part(token, (SEARCHED_EVENTS, KEPT_BYTES.to_string()), segments, cursor).await
    }

    /// The bytes of the subscriber's waiting events. Searches a limited part of its lanes, from `cursor` on, and returns the cursor of
    /// the next part.
    pub(crate) async fn measure_part(
        &self,
        token: &str,
        cursor: &Cursor,
    ) -> Result<(u64, Option<Cursor>), Error> {
        self.search_part(token, (MEASURED_EVENTS, String::new()), &[], cursor).await
    }

    async fn search_part(
        &self,
        token: &str,
        (events, bytes): (usize, String),
        segments: &[u64],
        cursor: &Cursor,
    ) -> Result<(u64, Option<Cursor>), Error> {
        let call = self.lanes_call(&KEEP).arg(token);
        let call = call.arg(events).arg(bytes).arg(&cursor[..]).arg(segments);
        let (bytes, a, b, c, d) = call.run(self.redis()).await?;
        Ok((bytes, Some([a, b, c, d]).filter(|next: &Cursor| !next[0].is_empty())))
    }

    /// The bytes of the events that are kept in segment 0 of the log.
    pub(crate) async fn kept(&self) -> Result<u64, Error> {
        let bytes: Option<u64> = self.redis().command("HGET").key(&self.bus().log()).arg(0).query().await?;
        Ok(bytes.unwrap_or_default())
    }

    /// How many events are marked.
    pub(crate) async fn marks(&self) -> Result<u64, Error> {
        self.redis().command("HLEN").key(&self.bus().log_uses()).query().await
    }

    /// The bytes that are kept there for each subscriber, or will be. Those of an event count for each one that waits for it.
    pub(crate) async fn kept_for(&self) -> Result<BTreeMap<String, u64>, Error> {
        self.redis().command("HGETALL").key(&self.bus().log_kept()).query().await
    }

    /// Ends the pauses of the subscriber's lanes. Batches that fill wait `timeout_ms` at most.
    pub(crate) async fn kick(&self, token: &str, timeout_ms: u64) -> Result<u64, Error> {
        self.kick_call(token).arg(timeout_ms).run(self.redis()).await
    }

    /// The same, if a change of the subscription is noted whose pauses have not been ended.
    pub(crate) async fn kick_changed(&self, token: &str) -> Result<u64, Error> {
        self.kick_call(token).arg("").run(self.redis()).await
    }

    fn kick_call(&self, token: &str) -> Call<'_, FabricRole> {
        let bus = self.bus();
        self.lanes_call(&KICK).key(&bus.subscriber(token)).key(&bus.changed()).arg(token)
    }

    /// Tokens of changed subscriptions whose lanes may pause still.
    pub(crate) async fn changed(&self) -> Result<Vec<String>, Error> {
        self.redis().command("HKEYS").key(&self.bus().changed()).query().await
    }

    /// Takes an event out of the subscriber's lanes; `hash` is that of its object, if that is known. Searches a limited part of
    /// them, from `cursor` on.
    pub(crate) async fn skip(
        &self,
        token: &str,
        id: EventId,
        hash: Option<u32>,
        keep: (u64, u64),
        cursor: &[String; 5],
    ) -> Result<Skipped, Error> {
        let bus = self.bus();
        let call = self.lanes_call(&SKIP).key(&bus.dead(token)).key(&bus.dead_bytes());
        let hash = hash.map(|hash| hash.to_string()).unwrap_or_default();
        let call = call.arg(self.clock.argument()).arg(token).arg(id.0).arg(hash).arg(SKIP_BATCHES);
        let call = call.arg(keep.0).arg(keep.1).arg(SKIP_EVENTS).arg(&cursor[..]);
        let mut words = call.run::<Vec<String>>(self.redis()).await?.into_iter();
        Ok(match words.next().as_deref() {
            Some("done") => Skipped::Done,
            Some("moved") => Skipped::Moved,
            Some("more") => Skipped::More(std::array::from_fn(|_| words.next().unwrap_or_default())),
            _ => Skipped::Absent,
        })
    }

    /// When the subscriber's oldest batch was created.
    pub(crate) async fn oldest(&self, token: &str) -> Result<Option<u64>, Error> {
        let (created, _, _): (String, u64, u64) =
            self.lanes_call(&OLDEST).arg(token).arg(0).run(self.redis()).await?;
        Ok(created.parse().ok())
    }

    /// The mean size of the events that wait longest for the subscriber, in bytes.
    pub(crate) async fn event_size(&self, token: &str) -> Result<u64, Error> {
        let (_, events, bytes): (String, u64, u64) =
            self.lanes_call(&OLDEST).arg(token).arg(SAMPLE).run(self.redis()).await?;
        Ok(bytes / events.max(1))
    }
}

/// Adds a held job to the arguments.
fn held_words<'a>(
    call: signalbox_store::Call<'a, FabricRole>,
    held: &Held,
) -> signalbox_store::Call<'a, FabricRole> {
    call.arg(&held.worker)
        .arg(&held.job[..])
        .arg(&held.token)
        .arg(&held.generation)
        .arg(&held.lane)
        .arg(&held.batch)
}

fn text(value: &Value) -> String {
    from_redis_value(value.clone()).unwrap_or_default()
}

fn number<T: FromRedisValue + Default>(value: &Value) -> T {
    from_redis_value(value.clone()).unwrap_or_default()
}

fn read_turn(reply: Vec<Value>) -> Turn {
    let mut values = reply.into_iter();
    let mut next = || values.next().unwrap_or(Value::Nil);
    let (now, due, left, slow, stamp) = (next(), next(), next(), next(), next());
    Turn {
        now_ms: number(&now),
        next_due_ms: text(&due).parse().ok(),
        left: number(&left),
        slow: number(&slow),
        stamp: text(&stamp),
        taken: values.filter_map(read_taken).collect(),
    }
}

fn read_taken(value: Value) -> Option<Taken> {
    type Entry = (String, Vec<u8>, String, String, String, String, u8, String, Vec<String>, Vec<String>);
    let (worker, job, token, generation, lane, batch, health, kicks, contents, gaps) =
        from_redis_value::<Entry>(value)
            .inspect_err(|error| tracing::error!(%error, "taken job not readable"))
            .ok()?;
    let mut contents = contents.into_iter();
    let _token = contents.next();
    let created_ms = contents.next().and_then(|text| text.parse().ok()).unwrap_or_default();
    let attempts = contents.next().and_then(|text| text.parse().ok()).unwrap_or_default();
    Some(Taken {
        held: Held { worker, job, token, generation, lane, batch },
        health,
        kicks,
        created_ms,
        attempts,
        items: contents.collect(),
        gaps,
    })
}
