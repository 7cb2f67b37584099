//! The log of bodies: reading, trimming, putting events into lanes again; dead letters, replays and numbers.

use std::collections::BTreeMap;

use signalbox_api::{
    Time,
    events::{Jobs, SubscriberNumbers},
};
use signalbox_store::{
    Error, FabricRole, FabricSpace, FromRedisValue, Key, Script, hash_part, keys, list_page, list_part,
};

use super::{LANES, Store, publish::Target};
use crate::{Event, EventId, event::lane_hash, verdict::FULL_HEALTH};

static APPEND: Script<FabricRole> =
    Script::composed("append", &[include_str!("../scripts/append.lua"), LANES]);
static REPLAY: Script<FabricRole> = Script::new("replay", include_str!("../scripts/replay.lua"));
static REPLAY_START: Script<FabricRole> =
    Script::new("replay_start", include_str!("../scripts/replay_start.lua"));
static TRIM: Script<FabricRole> = Script::new("trim", include_str!("../scripts/trim.lua"));

/// Ids in one segment: ten seconds of them. The scripts know the same number.
pub(crate) const SEGMENT_IDS: u64 = 64_000_000;

/// Segments, tenants in them and marked events that one call of `trim` removes. It limits how long the call blocks Redis.
const TRIM_ENTRIES: u64 = 1_000;

/// For commands without arguments.
const NONE: &[&str] = &[];

/// Reads an item of a batch: the id, and the segment of the log that its body lies in.
pub(crate) fn read_item(item: &str) -> Option<(EventId, u64)> {
    // A marked one is in segment 0, or will be.
    if let Some(id) = item.strip_prefix('-') {
        return Some((EventId(id.parse().ok()?), 0));
    }
    match item.split_once(['@', ':']) {
        Some((id, segment)) => Some((EventId(id.parse().ok()?), segment.parse().ok()?)),
        None => {
            let id = item.parse().ok()?;
            Some((EventId(id), id / SEGMENT_IDS))
        }
    }
}

/// Why events are put into lanes again.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Again<'a> {
    /// They are dead letters, and leave their list.
    Redrive,
    /// An operator asked for one event. A dead letter stays in its list.
    Resend,
    /// They are a part of a replay, whose cursor moves. `done` ends it.
    Replay { from: &'a str, to: &'a str },
}

/// An event that is put into a lane again.
#[derive(Debug, Clone)]
pub(crate) struct Resend {
    pub id: EventId,
    pub hash: u32,
    pub body: Vec<u8>,
    /// The dead letter it is, for a redrive.
    pub letter: Vec<u8>,
    /// The tenant that stores its body.
    pub tenant: String,
}

impl Resend {
    pub(crate) fn new(event: &Event, body: Vec<u8>, letter: Vec<u8>) -> Self {
        let (id, hash) = (event.id, lane_hash(&event.object));
        Self { id, hash, body, letter, tenant: event.tenant.clone() }
    }
}

/// How putting events in again ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Appended {
    Put(u64),
    /// The registry has moved on.
    Stale,
    /// The replay is at another position: another pacemaker has moved it.
    Moved,
}

/// Who needs a segment of the log.
#[derive(Debug)]
pub(crate) struct Holders {
    /// How many events wait there for each subscriber, without marked ones.
    pub waiting: BTreeMap<String, u64>,
    /// How many are marked, about.
    pub marked: u64,
    /// All events of the segment.
    pub events: u64,
}

/// A replay under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplayState {
    /// `segment:place` of the next ID to read.
    pub cursor: String,
    pub from_ms: u64,
    pub to_ms: u64,
    pub rate: u64,
}

impl Store {
    /// Bodies of a batch's events in a segment; nothing for one that is gone. Those of segment 0 may not have been moved there yet.
    pub(crate) async fn bodies(
        &self,
        segment: u64,
        ids: &[EventId],
    ) -> Result<Vec<(EventId, Option<Vec<u8>>)>, Error> {
        let key = self.bus().log_segment(segment);
        let mut found = Vec::with_capacity(ids.len());
        // A batch is capped in bytes, so this is a megabyte or so.
        for part in ids.chunks(1000) {
            let names: Vec<u64> = part.iter().map(|id| id.0).collect();
            let bodies: Vec<Option<Vec<u8>>> =
                self.redis().command("HMGET").key(&key).arg(names).query().await?;
            found.extend(part.iter().copied().zip(bodies));
        }
        if segment == 0 && found.iter().any(|(_, body)| body.is_none()) {
            self.add_marked(&mut found).await?;
        }
        Ok(found)
    }

    /// Adds bodies of marked events that are in the segments which their marks name, or were moved since these were asked.
    async fn add_marked(&self, found: &mut [(EventId, Option<Vec<u8>>)]) -> Result<(), Error> {
        let absent = found.iter_mut().filter(|(_, body)| body.is_none());
        let mut absent: Vec<(u64, &mut Option<Vec<u8>>)> = absent.map(|(id, body)| (id.0, body)).collect();
        for part in absent.chunks_mut(1000) {
            let ids: Vec<u64> = part.iter().map(|(id, _)| *id).collect();
            let marks = self.redis().command("HMGET").key(&self.bus().log_uses()).arg(&ids);
            let marks: Vec<Option<String>> = marks.query().await?;
            let mut batch = self.redis().batch();
            for (id, mark) in ids.iter().zip(&marks) {
                let home = mark.as_deref().and_then(|mark| mark.split(' ').nth(2)?.parse().ok());
                batch.add("HGET", &self.bus().log_segment(home.unwrap_or_default()), id);
                batch.add("HGET", &self.bus().log_segment(0), id);
            }
            let bodies: Vec<Option<Vec<u8>>> = batch.query().await?;
            for ((_, body), read) in part.iter_mut().zip(bodies.chunks_exact(2)) {
                **body = read[0].clone().or_else(|| read[1].clone());
            }
        }
        Ok(())
    }

    /// The same of the first of `ids`, as many as have a megabyte or so, and one at least.
    pub(crate) async fn bodies_part(
        &self,
        segment: u64,
        ids: &[EventId],
    ) -> Result<Vec<(EventId, Option<Vec<u8>>)>, Error> {
        let names: Vec<u64> = ids.iter().map(|id| id.0).collect();
        let bodies = hash_part(self.redis(), &self.bus().log_segment(segment), &names).await?;
        Ok(ids.iter().copied().zip(bodies).collect())
    }

    /// The body of an event in the segment of its ID.
    pub(crate) async fn body(&self, id: EventId) -> Result<Option<Vec<u8>>, Error> {
        let key = self.bus().log_segment(id.0 / SEGMENT_IDS);
        self.redis().command("HGET").key(&key).arg(id.0).query().await
    }

    /// The segments of the log with their bytes.
    pub(crate) async fn segments(&self) -> Result<BTreeMap<u64, u64>, Error> {
        self.redis().command("HGETALL").key(&self.bus().log()).query().await
    }

    /// Ids of a segment, from a place on.
    pub(crate) async fn order(&self, segment: u64, from: u64, count: u64) -> Result<Vec<u64>, Error> {
        let key = self.bus().log_order(segment);
        self.redis().command("LRANGE").key(&key).arg(from).arg(from + count - 1).query().await
    }

    /// How many ids the order of a segment names.
    pub(crate) async fn order_length(&self, segment: u64) -> Result<u64, Error> {
        self.redis().command("LLEN").key(&self.bus().log_order(segment)).query().await
    }

    /// The last id given out.
    pub(crate) async fn last_id(&self) -> Result<Option<u64>, Error> {
        self.redis().command("GET").key(&self.bus().last_event_id()).query().await
    }

    /// Forgets segments, as far as no batch and no queue needs them: how many of the list are finished, and how many of these
    /// were removed.
    pub(crate) async fn trim(&self, segments: &[u64]) -> Result<(usize, u64), Error> {
        let bus = self.bus();
        TRIM.call()
            .key(&bus.log())
            .key(&keys::queues::shared(self.shard.tag()).held())
            .arg(self.clock.argument())
            .arg(TRIM_ENTRIES)
            .arg(segments)
            .run(self.redis())
            .await
    }

    /// The subscribers that need a segment of the log; `None` if a queue needs it.
    pub(crate) async fn holders(&self, segment: u64) -> Result<Option<Holders>, Error> {
        let held = keys::queues::shared(self.shard.tag()).held();
        let mut batch = self.redis().batch();
        batch.add("HGETALL", &self.bus().log_held(segment), NONE);
        batch.add("HLEN", &self.bus().log_segment(segment), NONE);
        batch.add("HEXISTS", &held, segment);
        let (mut waiting, events, by_queue): (BTreeMap<String, u64>, u64, bool) = batch.query().await?;
        // Marked events have the name of no subscriber.
        let marked = waiting.remove("").unwrap_or_default();
        Ok((!by_queue).then_some(Holders { waiting, marked, events }))
    }

    /// The segments of the log that each subscriber needs, at most `most` for each.
    pub(crate) async fn needed(&self, most: usize) -> Result<BTreeMap<String, Vec<u64>>, Error> {
        let mut needed = BTreeMap::<String, Vec<u64>>::new();
        for segment in self.segments().await?.into_keys() {
            let waiting = self.holders(segment).await?.map(|holders| holders.waiting).unwrap_or_default();
            for token in waiting.into_keys() {
                let segments = needed.entry(token).or_default();
                if segments.len() < most {
                    segments.push(segment);
                }
            }
        }
        Ok(needed)
    }

    /// The bytes that are stored for each owner: tenants, and state machines for their labels.
    pub(crate) async fn owners(&self) -> Result<BTreeMap<String, u64>, Error> {
        let all = self.scan::<i64>(&self.bus().tenants()).await?.into_iter();
        Ok(all.map(|(name, bytes)| (name, u64::try_from(bytes).unwrap_or_default())).collect())
    }

    /// The client that publishes most of each tenant's bytes.
    pub(crate) async fn tenant_clients(&self) -> Result<BTreeMap<String, String>, Error> {
        let all = self.scan::<String>(&self.bus().tenant_clients()).await?.into_iter();
        let client = |ahead: &str| ahead.split_once(' ').map(|(_, client)| client.to_owned());
        Ok(all.filter_map(|(tenant, ahead)| Some((tenant, client(&ahead)?))).collect())
    }

    /// All fields of a hash, in parts.
    async fn scan<T: FromRedisValue>(&self, key: &Key<FabricSpace>) -> Result<BTreeMap<String, T>, Error> {
        let (mut all, mut cursor) = (BTreeMap::new(), "0".to_owned());
        loop {
            let command = self.redis().command("HSCAN").key(key).arg((&cursor, "COUNT", 1000));
            let (next, part): (String, Vec<(String, T)>) = command.query().await?;
            all.extend(part);
            if next == "0" {
                return Ok(all);
            }
            cursor = next;
        }
    }

    /// Notes the owners whose new data is rejected until `until_ms` because memory is short.
    pub(crate) async fn note_full(&self, until_ms: u64, owners: &[String]) -> Result<(), Error> {
        let add = |text: String, one: &String| text + &one.len().to_string() + ":" + one;
        let text = owners.iter().fold(format!("{until_ms} "), add);
        self.redis().command("HSET").key(&self.bus().objects_state()).arg(("full", text)).run().await
    }

    /// Whether new data of some owners is rejected because memory is short.
    pub(crate) async fn is_full(&self) -> Result<bool, Error> {
        self.redis().command("HEXISTS").key(&self.bus().objects_state()).arg("full").query().await
    }

    /// Accepts data of all owners again.
    pub(crate) async fn clear_full(&self) -> Result<(), Error> {
        self.redis().command("HDEL").key(&self.bus().objects_state()).arg("full").run().await
    }

    /// How many sets of lanes of a subscriber exist.
    pub(crate) async fn generations(&self, token: &str) -> Result<u64, Error> {
        let fields: u64 = self.redis().command("HLEN").key(&self.bus().generations(token)).query().await?;
        Ok(fields / 2)
    }

    /// The events that wait for a subscriber.
    pub(crate) async fn waiting(&self, token: &str) -> Result<u64, Error> {
        let command = self.redis().command("HGET").key(&self.bus().gauges_event()).arg(token);
        Ok(command.query::<Option<u64>>().await?.unwrap_or_default())
    }

    /// Puts events into the subscriber's lanes again.
    pub(crate) async fn append(
        &self,
        again: Again<'_>,
        stamp: &str,
        target: &Target,
        batch_bytes: usize,
        seed: &str,
        events: &[Resend],
    ) -> Result<Appended, Error> {
        let (mode, from, to) = match again {
            Again::Redrive => ("redrive", "", ""),
            Again::Resend => ("resend", "", ""),
            Again::Replay { from, to } => ("replay", from, to),
        };
        let bus = self.bus();
        let source = if mode == "replay" { bus.replay(&target.token) } else { bus.dead(&target.token) };
        let mut call = self
            .lanes_call(&APPEND)
            .key(&bus.registry())
            .key(&bus.log())
            .key(&source)
            .key(&bus.dead_bytes())
            .arg(self.clock.argument())
            .arg(stamp)
            .arg(seed)
            .arg(batch_bytes)
            .arg(&target.token)
            .arg(target.generation)
            .arg(target.concurrency)
            .arg(target.max_events)
            .arg(target.timeout_ms)
            .arg(mode)
            .arg(from)
            .arg(to);
        for event in events {
            call = call.arg(event.id.0).arg(event.hash).arg(&event.body[..]).arg(&event.letter[..]);
            call = call.arg(&event.tenant);
        }
        Ok(match call.run::<i64>(self.redis()).await? {
            -1 => Appended::Stale,
            -2 => Appended::Moved,
            put => Appended::Put(u64::try_from(put).unwrap_or_default()),
        })
    }

    /// Dead letters of a subscriber from a place on, oldest first: at most `count`, and about a megabyte.
    pub(crate) async fn dead_part(&self, token: &str, from: u64, count: u64) -> Result<Vec<Vec<u8>>, Error> {
        list_part(self.redis(), &self.bus().dead(token), from, count).await
    }

    /// The same in several parts, until their bytes exceed `bytes`, from which they are subtracted. Also returns whether there
    /// are no more.
    pub(crate) async fn dead(
        &self,
        token: &str,
        from: u64,
        count: u64,
        bytes: &mut usize,
    ) -> Result<(Vec<Vec<u8>>, bool), Error> {
        list_page(self.redis(), &self.bus().dead(token), from, count, bytes).await
    }

    /// Adds attempts to the log of a subscriber, of which the last `most` are kept.
    pub(crate) async fn note_attempts(
        &self,
        token: &str,
        entries: &[String],
        most: usize,
        seconds: u64,
    ) -> Result<(), Error> {
        let key = self.bus().attempts(token);
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let mut batch = self.redis().batch();
        batch.add("RPUSH", &key, entries);
        batch.add("LTRIM", &key, (-most, -1));
        batch.add("EXPIRE", &key, seconds);
        batch.query::<(u64, (), u64)>().await.map(drop)
    }

    /// The log of a subscriber, oldest first.
    pub(crate) async fn attempts(&self, token: &str) -> Result<Vec<String>, Error> {
        self.redis().command("LRANGE").key(&self.bus().attempts(token)).arg((0, -1)).query().await
    }

    /// Forgets a subscriber's dead letters; how many there were.
    pub(crate) async fn drop_dead(&self, token: &str) -> Result<u64, Error> {
        let bus = self.bus();
        let mut batch = self.redis().batch();
        batch.add("LLEN", &bus.dead(token), NONE);
        batch.add("UNLINK", &bus.dead(token), NONE);
        batch.add("HDEL", &bus.dead_bytes(), token);
        let (count, _, _): (u64, u64, u64) = batch.query().await?;
        Ok(count)
    }

    /// Starts a replay, in place of one that is under way. The subscription must exist in the registry with this `stamp`; false
    /// if the shard has another one.
    pub(crate) async fn start_replay(
        &self,
        stamp: &str,
        token: &str,
        replay: &ReplayState,
        due_ms: u64,
    ) -> Result<bool, Error> {
        let bus = self.bus();
        let call = REPLAY_START.call().key(&bus.registry()).key(&bus.replay(token)).key(&bus.replays());
        let call = call.arg(stamp).arg(token).arg(due_ms).arg(&replay.cursor);
        let call = call.arg(replay.from_ms).arg(replay.to_ms).arg(replay.rate);
        Ok(call.run::<i64>(self.redis()).await? == 1)
    }

    /// The replay whose next step comes first, and when.
    pub(crate) async fn next_replay(&self) -> Result<Option<(String, u64)>, Error> {
        let first: Vec<(String, f64)> = self
            .redis()
            .command("ZRANGE")
            .key(&self.bus().replays())
            .arg((0, 0, "WITHSCORES"))
            .query()
            .await?;
        // Scores are whole milliseconds.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Ok(first.into_iter().next().map(|(token, due)| (token, due as u64)))
    }

    /// Sets when the next step of a replay comes, or removes it (`None`), if its position is still `cursor` (`None` if there is
    /// no replay).
    pub(crate) async fn schedule_replay(
        &self,
        token: &str,
        cursor: Option<&str>,
        due_ms: Option<u64>,
    ) -> Result<bool, Error> {
        let bus = self.bus();
        let call = REPLAY.call().key(&bus.replay(token)).key(&bus.replays());
        let due = due_ms.map(|due| due.to_string()).unwrap_or_default();
        Ok(call.arg(token).arg(cursor.unwrap_or_default()).arg(due).run::<i64>(self.redis()).await? == 1)
    }

    /// The position of a replay.
    pub(crate) async fn replay(&self, token: &str) -> Result<Option<ReplayState>, Error> {
        let (cursor, from, to, rate): (Option<String>, Option<u64>, Option<u64>, Option<u64>) = self
            .redis()
            .command("HMGET")
            .key(&self.bus().replay(token))
            .arg(("cursor", "from", "to", "rate"))
            .query()
            .await?;
        Ok((|| Some(ReplayState { cursor: cursor?, from_ms: from?, to_ms: to?, rate: rate? }))())
    }

    /// Numbers of the shard: events and batches by token, dead bytes by token, counters.
    pub(crate) async fn numbers(&self) -> Result<Numbers, Error> {
        let bus = self.bus();
        let mut batch = self.redis().batch();
        batch.add("HGETALL", &bus.gauges_event(), NONE);
        batch.add("HGETALL", &bus.gauges_batch(), NONE);
        batch.add("HGETALL", &bus.counters(), NONE);
        batch.add("LLEN", &bus.jobs_instant(), NONE);
        batch.add("ZCARD", &bus.jobs_scheduled(), NONE);
        batch.add("SCARD", &bus.jobs_pending_index(), NONE);
        batch.add("SCARD", &bus.jobs_index(), NONE);
        batch.add("HVALS", &bus.log(), NONE);
        type Counts = BTreeMap<String, u64>;
        type Replies = (Counts, Counts, Counts, u64, u64, u64, u64, Vec<u64>);
        let (events, batches, counters, instant, scheduled, pending, all, log): Replies =
            batch.query().await?;
        // The others wait for a delivery that is under way, for a place, or for an older generation of lanes.
        let waiting = all.saturating_sub(instant + scheduled + pending);
        let jobs = Jobs { instant, scheduled, pending, waiting };
        Ok(Numbers { events, batches, counters, jobs, log_bytes: log.iter().sum() })
    }

    /// How many idempotency keys each client uses that uses many of them. What was counted more than `key_ms` ago has
    /// expired.
    pub(crate) async fn idempotency_used(&self, key_ms: u64) -> Result<Vec<(String, u64)>, Error> {
        let key = self.bus().idempotency_used();
        let used: Vec<(String, String)> = self.redis().command("HGETALL").key(&key).query().await?;
        if used.is_empty() {
            return Ok(Vec::new());
        }
        let now = self.now_ms().await?;
        let current = |(client, noted): (String, String)| {
            let (keys, at) = noted.split_once(' ')?;
            (at.parse::<u64>().ok()? + key_ms > now).then_some((client, keys.parse().ok()?))
        };
        Ok(used.into_iter().filter_map(current).collect())
    }

    /// The counters of a subscription and its dead letters.
    pub(crate) async fn movements(&self, token: &str) -> Result<SubscriberNumbers, Error> {
        let bus = self.bus();
        let mut batch = self.redis().batch();
        batch.add("HMGET", &bus.subscriber(token), ("sent", "failed", "health_points", "last_attempted_at"));
        batch.add("LLEN", &bus.dead(token), NONE);
        type Fields = (Option<u64>, Option<u64>, Option<u8>, Option<u64>);
        let ((sent, failed, health, last_attempted_ms), dead): (Fields, u64) = batch.query().await?;
        Ok(SubscriberNumbers {
            sent: sent.unwrap_or_default(),
            failed: failed.unwrap_or_default(),
            health: health.unwrap_or(FULL_HEALTH),
            last_attempted_at: last_attempted_ms.map(Time::from_ms),
            dead,
            ..SubscriberNumbers::default()
        })
    }

    /// Jobs that should have been taken: the instant ones, the scheduled ones that are due, and those that wait for a slow
    /// delivery.
    pub(crate) async fn overdue(&self) -> Result<u64, Error> {
        let bus = self.bus();
        let now = self.now_ms().await?;
        let mut batch = self.redis().batch();
        batch.add("LLEN", &bus.jobs_instant(), NONE);
        batch.add("ZCOUNT", &bus.jobs_scheduled(), ("-inf", now));
        batch.add("LLEN", &bus.jobs_slow(), NONE);
        let (instant, due, slow): (u64, u64, u64) = batch.query().await?;
        Ok(instant + due + slow)
    }

    /// Memory in use and its limit (0 for none), in bytes.
    pub(crate) async fn memory(&self) -> Result<(u64, u64), Error> {
        let text: String = self.redis().command("INFO").arg("memory").query().await?;
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
                .unwrap_or_default()
        };
        Ok((field("used_memory"), field("maxmemory")))
    }
}

/// Numbers of one shard.
#[derive(Debug, Clone, Default)]
pub(crate) struct Numbers {
    pub events: BTreeMap<String, u64>,
    pub batches: BTreeMap<String, u64>,
    pub counters: BTreeMap<String, u64>,
    pub jobs: Jobs,
    pub log_bytes: u64,
}
