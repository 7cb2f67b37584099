//! The only part of the sequencer that talks to Redis: one function for each script, and the plain reads.

use std::{collections::BTreeMap, sync::Arc};

use signalbox_api::{Time, objects::ObjectState};
use signalbox_store::{
    Call, Clock, Combiner, Error, Fabric, FabricRole, FromRedisValue, Script, Shard, SharedResult,
    Subscription, Value, from_redis_value,
    keys::{bus, objects},
    list_end, list_part,
};

use signalbox_bus::{Event, OBJECTS_LUA, Queued};

/// Calls the `main` function that each script defines.
const MAIN: &str = include_str!("scripts/main.lua");

/// Declares the scripts, and lists them for the tests that check their headers.
macro_rules! scripts {
    ($($script:ident: $name:literal),+ $(,)?) => {
        $(static $script: Script<FabricRole> = Script::composed(
            $name,
            &[include_str!(concat!("scripts/", $name, ".lua")), OBJECTS_LUA, MAIN],
        );)+

        #[cfg(test)]
        pub(super) const SCRIPTS: &[&Script<FabricRole>] = &[$(&$script),+];
    };
}

scripts! {
    TAKE: "take",
    COMMIT: "commit",
    FAIL: "fail",
    DECIDE: "decide",
    BEAT: "beat",
    STATUS: "status",
    AUDIT: "audit",
    SUMS: "sums",
    REDRIVE: "redrive",
    CLEAR: "clear",
}

const NONE: &[&str] = &[];
/// Parked objects that are read in one call.
const PARKED_PART: usize = 1_000;
/// The mark of a redriven event, after its id.
pub(super) const REDRIVEN: &[u8] = b",\"redriven\":true";
/// How long the id of the last event sent is kept, in milliseconds.
const LAST_ID_MS: u64 = 30 * 24 * 3600 * 1000;
/// Maximum number of commits in one call. Each takes one command, so this limits the duration of a call.
pub(super) const MAX_COMMITS: usize = 64;
/// Maximum number of leases to extend in one call.
const MAX_BEATS: usize = 500;
/// Maximum number of objects to examine, and of events to drop, in one call of the removal script.
const CLEARED: (usize, usize) = (40, 300);

/// A dead letter that is being redriven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Letter {
    pub object: String,
    /// The entry in the list of dead letters.
    pub letter: Vec<u8>,
    /// The entry for the queue: the event's JSON with its mark.
    pub entry: Vec<u8>,
}

/// The effect of one call of the removal script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cleared {
    /// Where to continue: `0` when all objects were examined.
    pub cursor: String,
    /// The number of dropped events.
    pub dropped: u64,
    /// The number of objects that still have this backend; `None` if the shard has another registry, so that
    /// nothing was done.
    pub left: Option<u64>,
}

/// An object that a worker holds, with the values that a commit must specify.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub object: String,
    pub worker: String,
    pub epoch: u64,
}

impl Held {
    /// The value of `object:<object>:event.worker`.
    pub(super) fn owner(&self) -> String {
        format!("{}/{}", self.worker, self.epoch)
    }
}

/// The event in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sending {
    /// The event's JSON.
    pub entry: Vec<u8>,
    pub attempts: u32,
    /// In the stored form `first last count reason`.
    pub gaps: Vec<String>,
}

impl Sending {
    /// Whether it is a redriven event, whose id may be lower than that of the event before.
    pub(super) fn is_redriven(&self) -> bool {
        let rest = self.entry.strip_prefix(b"{\"id\":").unwrap_or_default();
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        rest[digits..].starts_with(REDRIVEN)
    }

    /// The event's ID at the beginning of the entry; 0 if the entry is not valid.
    pub(super) fn id(&self) -> u64 {
        let digits = self.entry.strip_prefix(b"{\"id\":").unwrap_or_default();
        let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |id: u64, digit| id.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
    }
}

/// A lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taken {
    pub held: Held,
    pub backend: String,
    pub sending: Sending,
}

/// The result of one round of taking objects.
#[derive(Debug, Clone)]
pub(super) struct Turn {
    pub stamp: String,
    pub now_ms: u64,
    /// The earliest time at which a lease expires or an object is retried.
    pub next_due_ms: Option<u64>,
    /// The number of objects that can still be leased.
    pub left: u64,
    pub taken: Vec<Taken>,
}

/// An event that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Commit {
    pub held: Held,
    /// The event's id.
    pub id: u64,
    /// The number of gaps that were reported with it.
    pub reported: usize,
    /// Whether the worker continues with the object's next event.
    pub more: bool,
}

/// The result of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Committed {
    /// This event is in flight now.
    Next(Sending),
    /// The object was released.
    Done,
    /// Another worker has the lease; nothing was recorded.
    Lost,
}

/// The treatment of an event that the backend did not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failed {
    /// Retry after this pause.
    Retry { pause_ms: u64 },
    /// Its object waits for an operator's decision.
    Park,
    /// Make it a dead letter and record a gap.
    Skip,
    /// Another worker sends it; no attempt is counted.
    Release,
}

/// Statistics of one shard.
#[derive(Debug, Clone, Default)]
pub(super) struct ShardNumbers {
    pub numbers: BTreeMap<String, u64>,
    pub leased: u64,
    pub retry: u64,
    pub parked: u64,
    /// By backend: the number of ready objects and of dead letters.
    pub backends: Vec<(u64, u64)>,
}

/// A suspected violation: predicate, name, description.
pub(super) type Suspicion = (String, String, String);

/// One shard's data.
#[derive(Debug)]
pub(super) struct Store {
    shard: Shard,
    clock: Clock,
    commits: Arc<Combiner<(), Commit, SharedResult<Committed>>>,
}

async fn commit_all(store: Arc<Store>, commits: Vec<Commit>, lease_ms: u64) -> Vec<SharedResult<Committed>> {
    match store.commit(&commits, lease_ms).await {
        Ok(replies) => replies.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(Arc::new(error)); commits.len()],
    }
}

impl Store {
    pub(super) fn new(shard: Shard, clock: Clock) -> Self {
        Self { shard, clock, commits: Combiner::new(|_| MAX_COMMITS) }
    }

    pub(super) fn shard(&self) -> &Shard {
        &self.shard
    }

    fn redis(&self) -> &Fabric {
        self.shard.redis()
    }

    fn keys(&self) -> objects::Objects<'_> {
        objects::objects(self.shard.tag())
    }

    /// Starts a script call with the key that all scripts begin with.
    fn call<'a>(&self, script: &'a Script<FabricRole>) -> Call<'a, FabricRole> {
        script.call().key(&self.keys().queued())
    }

    /// Subscribes to wake-ups: `now`, or the time until which a fetcher may sleep, in unix milliseconds. The stamp of a changed
    /// registry wakes fetchers too: a backend may have been added, changed or removed.
    pub(super) fn wakes(&self) -> Subscription {
        let registry = bus::bus(self.shard.tag()).registry_channel();
        self.redis().subscribe(&[&self.keys().wake_channel(), &registry])
    }

    /// Gives objects to free workers, by backend. `part` limits how many objects are swept and made ready.
    pub(super) async fn take(
        &self,
        free: &[(String, Vec<String>)],
        lease_ms: u64,
        part: usize,
    ) -> Result<Turn, Error> {
        let mut call = self
            .call(&TAKE)
            .key(&bus::bus(self.shard.tag()).registry())
            .arg(self.clock.argument())
            .arg(lease_ms)
            .arg(part);
        for (backend, workers) in free {
            call = call.arg(backend).arg(workers.len()).arg(workers);
        }
        let (stamp, now_ms, due, left, taken): (String, u64, u64, u64, Vec<Value>) =
            call.run(self.redis()).await?;
        Ok(Turn {
            stamp,
            now_ms,
            next_due_ms: (due > 0).then_some(due),
            left,
            taken: taken.into_iter().filter_map(read_taken).collect(),
        })
    }

    /// Records that events were sent; returns the result of each, in the same order.
    pub(super) async fn commit(&self, commits: &[Commit], lease_ms: u64) -> Result<Vec<Committed>, Error> {
        let mut call = self.call(&COMMIT).arg(self.clock.argument()).arg(lease_ms).arg(LAST_ID_MS);
        for Commit { held, id, reported, more } in commits {
            call = call
                .arg(&held.object)
                .arg(&held.worker)
                .arg(held.epoch)
                .arg(*id)
                .arg(*reported)
                .arg(u8::from(*more));
        }
        let replies: Vec<Vec<Value>> = call.run(self.redis()).await?;
        Ok(replies.into_iter().map(read_committed).collect())
    }

    /// Like [`Self::commit`], in a call that is shared with the other visits that commit now.
    pub(super) async fn commit_together(
        self: &Arc<Self>,
        commit: Commit,
        lease_ms: u64,
    ) -> SharedResult<Committed> {
        let store = Arc::clone(self);
        let run = move |commits| commit_all(Arc::clone(&store), commits, lease_ms);
        // The process ends, or the call panicked. The lease expires.
        self.commits.call((), commit, run).await.unwrap_or(Ok(Committed::Lost))
    }

    /// Ends a lease without a commit. `version` is that of the registry from which the backend was read that the event was sent
    /// to. Returns false if another worker has the lease now.
    pub(super) async fn fail(
        &self,
        held: &Held,
        id: u64,
        failed: &Failed,
        why: &str,
        dead_events: u64,
        version: u64,
    ) -> Result<bool, Error> {
        let (what, pause_ms) = match failed {
            Failed::Retry { pause_ms } => ("retry", *pause_ms),
            Failed::Park => ("park", 0),
            Failed::Skip => ("skip", 0),
            Failed::Release => ("release", 0),
        };
        let done: i64 = self
            .call(&FAIL)
            .arg(self.clock.argument())
            .arg(&held.object)
            .arg(&held.worker)
            .arg(held.epoch)
            .arg(id)
            .arg(what)
            .arg(pause_ms)
            .arg(why)
            .arg(dead_events)
            .arg(version)
            .run(self.redis())
            .await?;
        Ok(done == 1)
    }

    /// Retries the event at the head now or, if `skipped` is set, skips that event. Returns the script's word
    /// for the result.
    pub(super) async fn decide(
        &self,
        object: &str,
        skipped: Option<u64>,
        dead_events: u64,
    ) -> Result<String, Error> {
        self.call(&DECIDE)
            .arg(self.clock.argument())
            .arg(object)
            .arg(if skipped.is_some() { "skip" } else { "unpark" })
            .arg(dead_events)
            .arg(skipped.map(|id| id.to_string()).unwrap_or_default())
            .run(self.redis())
            .await
    }

    /// Extends leases; returns how many of them are still valid.
    pub(super) async fn beat(&self, held: &[Held], lease_ms: u64) -> Result<u64, Error> {
        let mut extended = 0;
        for part in held.chunks(MAX_BEATS) {
            let pairs: Vec<String> =
                part.iter().flat_map(|held| [held.object.clone(), held.owner()]).collect();
            let call = self.call(&BEAT).arg(self.clock.argument()).arg(lease_ms).arg(pairs);
            extended += call.run::<u64>(self.redis()).await?;
        }
        Ok(extended)
    }

    /// The status of an object; `None` for an unknown object.
    pub(super) async fn status(&self, object: &str) -> Result<Option<ObjectState>, Error> {
        let bus = bus::bus(self.shard.tag());
        let reply: Vec<Value> = self
            .call(&STATUS)
            .key(&bus.objects())
            .key(&bus.objects_old())
            .arg(object)
            .run(self.redis())
            .await?;
        let mut reply = reply.into_iter();
        let data: Option<Vec<u8>> = read(reply.next());
        // Stored as `id topic id topic id…`
        let memory: Option<String> = read(reply.next());
        let backend = read(reply.next());
        let waiting: Option<u64> = read(reply.next());
        let in_flight = id_of(reply.next());
        let owner = read(reply.next());
        let [lease_until, next_try_at, parked_since] =
            std::array::from_fn(|_| ms(reply.next()).map(Time::from_ms));
        let attempts: Option<u64> = read(reply.next());
        let last_error = read(reply.next());
        let last_sent_id = read(reply.next());
        if data.is_none() && memory.is_none() && backend.is_none() && last_sent_id.is_none() {
            return Ok(None);
        }
        Ok(Some(ObjectState {
            object: object.to_owned(),
            data: data.and_then(|data| serde_json::from_slice(&data).ok()),
            last_id: memory.and_then(|memory| memory.split(' ').next()?.parse().ok()),
            backend,
            queued: waiting.unwrap_or_default() + u64::from(in_flight.is_some()),
            in_flight,
            next_id: id_of(reply.next()),
            owner,
            lease_until,
            parked: parked_since.is_some(),
            parked_since,
            attempts: attempts.unwrap_or_default(),
            last_error,
            next_try_at,
            last_sent_id,
        }))
    }

    /// Entries of an object's queue, oldest first: the latest `most` waiting ones, and the one in flight.
    pub(super) async fn queue(&self, object: &str, most: usize) -> Result<Vec<Vec<u8>>, Error> {
        let keys = self.keys();
        let from = -i64::try_from(most).unwrap_or(i64::MAX);
        let mut batch = self.redis().batch();
        batch.add("GET", &keys.flight(object), NONE).add("LRANGE", &keys.waiting(object), (from, -1));
        let (flight, waiting): (Option<Vec<u8>>, Vec<Vec<u8>>) = batch.query().await?;
        // If the list is as long as requested, events may be missing between it and the one in flight.
        let flight = flight.filter(|_| waiting.len() < most);
        Ok(flight.into_iter().chain(waiting).collect())
    }

    /// Statistics of the shard, including those of each of `backends`.
    pub(super) async fn numbers(&self, backends: &[&str]) -> Result<ShardNumbers, Error> {
        let keys = self.keys();
        let mut batch = self.redis().batch();
        batch.add("HGETALL", &keys.numbers(), NONE);
        batch.add("ZCARD", &keys.leases(), NONE);
        batch.add("ZCARD", &keys.retry(), NONE);
        batch.add("ZCARD", &keys.parked(), NONE);
        let (numbers, leased, retry, parked) = batch.query().await?;
        let mut of_backends = Vec::with_capacity(backends.len());
        for backend in backends {
            let mut batch = self.redis().batch();
            batch.add("ZCARD", &keys.ready(backend), NONE);
            batch.add("LLEN", &keys.dead(backend), NONE);
            of_backends.push(batch.query().await?);
        }
        Ok(ShardNumbers { numbers, leased, retry, parked, backends: of_backends })
    }

    /// Parked objects, each with the time since when, oldest first. They are read in parts; one that an operator decides about in
    /// the meantime may hide another.
    pub(super) async fn parked(&self, limit: usize) -> Result<Vec<(String, u64)>, Error> {
        let mut all: Vec<(String, u64)> = Vec::new();
        while all.len() < limit {
            let most = PARKED_PART.min(limit - all.len());
            let range = (all.len(), all.len() + most - 1, "WITHSCORES");
            let part: Vec<_> =
                self.redis().command("ZRANGE").key(&self.keys().parked()).arg(range).query().await?;
            let is_last = part.len() < most;
            all.extend(part);
            if is_last {
                break;
            }
        }
        Ok(all)
    }

    /// Dead letters of a backend from an index on, oldest first, at most `count` and about a megabyte: `died attempts length why`
    /// and the event's JSON.
    pub(super) async fn dead(&self, backend: &str, from: u64, count: u64) -> Result<Vec<Vec<u8>>, Error> {
        list_part(self.redis(), &self.keys().dead(backend), from, count).await
    }

    /// The latest dead letters of a backend, latest first: `count`, or fewer when their bytes exceed `bytes`, from which they
    /// are subtracted.
    pub(super) async fn latest_dead(
        &self,
        backend: &str,
        count: u64,
        bytes: &mut usize,
    ) -> Result<Vec<Vec<u8>>, Error> {
        list_end(self.redis(), &self.keys().dead(backend), count, bytes).await
    }

    /// Deletes the dead letters of a backend.
    pub(super) async fn drop_dead(&self, backend: &str) -> Result<u64, Error> {
        let key = self.keys().dead(backend);
        let mut batch = self.redis().batch();
        batch.add("LLEN", &key, NONE);
        batch.add("UNLINK", &key, NONE);
        let (count, _): (u64, u64) = batch.query().await?;
        Ok(count)
    }

    /// The number of dead letters of a backend.
    pub(super) async fn dead_count(&self, backend: &str) -> Result<usize, Error> {
        self.redis().command("LLEN").key(&self.keys().dead(backend)).query().await
    }

    /// Puts dead letters back into the queues of their objects. Returns how many were put back, and how many
    /// remain. Returns `None` if the shard has a registry with another stamp.
    pub(super) async fn redrive(
        &self,
        stamp: &str,
        backend: &str,
        most: u64,
        letters: &[Letter],
    ) -> Result<Option<(u64, u64)>, Error> {
        let mut call =
            self.call(&REDRIVE).key(&bus::bus(self.shard.tag()).registry()).arg(stamp).arg(backend).arg(most);
        for Letter { object, letter, entry } in letters {
            call = call.arg(object).arg(letter.as_slice()).arg(entry.as_slice());
        }
        let (put, left): (i64, i64) = call.run(self.redis()).await?;
        Ok(u64::try_from(put).ok().zip(u64::try_from(left).ok()))
    }

    /// Drops a part of the events that are queued for a backend, which accepts no new objects under the
    /// registry with this stamp.
    pub(super) async fn clear(
        &self,
        stamp: &str,
        backend: &str,
        queued: Queued,
        cursor: &str,
        dead_events: u64,
    ) -> Result<Cleared, Error> {
        let (cursor, dropped, left): (String, u64, i64) = self
            .call(&CLEAR)
            .key(&bus::bus(self.shard.tag()).registry())
            .arg(self.clock.argument())
            .arg(stamp)
            .arg(backend)
            .arg(queued.as_str())
            .arg(cursor)
            .arg(CLEARED.0)
            .arg(CLEARED.1)
            .arg(LAST_ID_MS)
            .arg(dead_events)
            .run(self.redis())
            .await?;
        Ok(Cleared { cursor, dropped, left: u64::try_from(left).ok() })
    }

    /// Checks a part of the objects with a queue, or only `objects` if the cursor is `-`. Returns where to
    /// continue (`0` at the end), and suspected violations.
    pub(super) async fn audit(
        &self,
        cursor: &str,
        count: usize,
        objects: &[&str],
        late_ms: u64,
    ) -> Result<(String, Vec<Suspicion>), Error> {
        let (next, _checked, found): (_, u64, _) = self
            .call(&AUDIT)
            .arg(self.clock.argument())
            .arg(late_ms)
            .arg(cursor)
            .arg(count)
            .arg(objects)
            .run(self.redis())
            .await?;
        Ok((next, found))
    }

    /// Compares the counters of the shard with each other.
    pub(super) async fn sums(&self, backends: &[&str]) -> Result<Vec<Suspicion>, Error> {
        self.call(&SUMS).arg(backends).run(self.redis()).await
    }
}

fn read<T: FromRedisValue>(value: Option<Value>) -> Option<T> {
    value.and_then(|value| from_redis_value::<Option<T>>(value).ok().flatten())
}

/// A time in unix milliseconds, stored as a score.
fn ms(score: Option<Value>) -> Option<u64> {
    // Times are far below the largest integer that a double represents exactly.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and positive")]
    read::<f64>(score).map(|score| score as u64)
}

/// The id of an entry.
fn id_of(entry: Option<Value>) -> Option<u64> {
    Event::from_log(&read::<Vec<u8>>(entry)?).ok().map(|event| event.id.0)
}

fn read_sending(value: Value) -> Option<Sending> {
    let (entry, attempts, _, gaps): (Vec<u8>, u32, u64, Vec<String>) = from_redis_value(value).ok()?;
    Some(Sending { entry, attempts, gaps })
}

fn read_committed(reply: Vec<Value>) -> Committed {
    let mut reply = reply.into_iter();
    let word: Option<String> = reply.next().and_then(|word| from_redis_value(word).ok());
    match (word.as_deref(), reply.next().and_then(read_sending)) {
        (Some("next"), Some(sending)) => Committed::Next(sending),
        (Some("done"), _) => Committed::Done,
        _ => Committed::Lost,
    }
}

fn read_taken(value: Value) -> Option<Taken> {
    let (worker, object, backend, epoch, sending): (String, String, String, u64, Value) =
        from_redis_value(value).ok()?;
    Some(Taken { held: Held { object, worker, epoch }, backend, sending: read_sending(sending)? })
}
