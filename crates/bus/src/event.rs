//! Events: as a publisher sends them, as the log keeps them, as a subscriber gets them.

use std::{borrow::Cow, fmt, sync::OnceLock};

use data_encoding::HEXLOWER;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use signalbox_daemon::traces::Cause;

/// The moment from which ids count, in unix milliseconds: 2024-01-01T00:00:00Z.
pub const ID_EPOCH_MS: u64 = 1_704_067_200_000;

/// How far ids move in a millisecond: a hundred events with sixty-four shards each.
pub const IDS_PER_MS: u64 = 6_400;

/// How far apart the ids of two events of one call are at least, and those of a group exactly: the low six bits of an
/// id name its shard.
pub(super) const ID_STEP: u64 = 64;

/// The number of an event: rises within a shard, never repeats between shards, stays below 2^53.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(pub u64);

impl EventId {
    /// When the fabric accepted the event, in unix milliseconds of its clock (later by what a burst of more than a
    /// hundred events in a millisecond borrowed from the future).
    pub fn accepted_ms(self) -> u64 {
        ID_EPOCH_MS + self.0 / IDS_PER_MS
    }

    /// The lowest id that an event of this moment can have.
    pub fn at_ms(unix_ms: u64) -> Self {
        Self(unix_ms.saturating_sub(ID_EPOCH_MS) * IDS_PER_MS)
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The kind of change of the resource that the event's URL names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It exists from now on.
    Create,
    /// It changed.
    Update,
    /// It is gone.
    Delete,
    /// No change: the publisher reports the resource's current state.
    Noop,
}

impl Kind {
    /// The word of the wire format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Noop => "noop",
        }
    }
}

/// An event that a publisher wants to send. Its creator has validated it (lengths, schemes, characters).
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// The kind of change.
    pub kind: Kind,
    /// Where the thing can be fetched.
    pub url: String,
    /// The publisher's own time in unix milliseconds. Nothing is ordered or delayed by it.
    pub timestamp_ms: Option<u64>,
    /// Any JSON, its bytes kept verbatim.
    pub data: Option<Box<RawValue>>,
    /// The tenant that it belongs to; the publisher's name if absent.
    pub tenant: Option<String>,
    /// The object whose events stay in order; the url when absent.
    pub object: Option<String>,
    /// A repeat under the same key, client and object within ten minutes returns the first event's id.
    pub idempotency_key: Option<String>,
}

/// An accepted event.
#[derive(Debug)]
pub struct Event {
    /// Its number.
    pub id: EventId,
    /// The object's event before this one.
    pub prev: Option<EventId>,
    /// The event before this one of the same object and topic.
    pub tprev: Option<EventId>,
    /// The object.
    pub object: String,
    /// The topic.
    pub topic: String,
    /// The kind of change.
    pub kind: Kind,
    /// The tenant that it belongs to.
    pub tenant: String,
    /// Where the thing can be fetched.
    pub url: String,
    /// The publisher's time, or else when it was accepted; unix milliseconds.
    pub timestamp_ms: u64,
    /// The publisher's JSON, verbatim.
    pub data: Option<Box<RawValue>>,
    /// The span that published it, if it was recorded.
    pub cause: Option<Cause>,
    /// The event as it is delivered, made at the first delivery.
    pub rendered: OnceLock<Box<[u8]>>,
}

impl Event {
    /// Reads an event as the log and the queues of objects keep it.
    pub fn from_log(entry: &[u8]) -> Result<Self, serde_json::Error> {
        let cause = Cause::at_end_of(entry);
        let entry: Entry<'_> = serde_json::from_slice(entry)?;
        Ok(Self {
            id: entry.id,
            prev: entry.prev,
            tprev: entry.tprev,
            object: entry.object.into_owned(),
            topic: entry.topic.into_owned(),
            kind: entry.kind,
            tenant: entry.tenant.into_owned(),
            url: entry.url.into_owned(),
            timestamp_ms: entry.timestamp.unwrap_or_else(|| entry.id.accepted_ms()),
            data: entry.data,
            cause,
            rendered: OnceLock::new(),
        })
    }

    /// Bytes that it takes in memory, about.
    pub(super) fn weight(&self) -> usize {
        // The rendered form holds nearly everything again; the constant is the size of the struct and its map entry.
        let texts = self.object.len() + self.topic.len() + self.tenant.len() + self.url.len();
        256 + 2 * (texts + self.data.as_ref().map_or(0, |data| data.get().len()))
    }
}

/// An event in the log: the members that the publish script writes around [`NewEvent::rest`].
#[derive(Deserialize)]
struct Entry<'a> {
    id: EventId,
    prev: Option<EventId>,
    tprev: Option<EventId>,
    #[serde(borrow)]
    object: Cow<'a, str>,
    #[serde(borrow)]
    topic: Cow<'a, str>,
    #[serde(rename = "type")]
    kind: Kind,
    // Earlier releases stored it as `environment`.
    #[serde(borrow, alias = "environment")]
    tenant: Cow<'a, str>,
    #[serde(borrow)]
    url: Cow<'a, str>,
    timestamp: Option<u64>,
    #[serde(default, deserialize_with = "verbatim")]
    data: Option<Box<RawValue>>,
}

/// The part of an [`Entry`] that does not depend on the publish.
#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct Rest<'a> {
    object: &'a str,
    topic: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    tenant: &'a str,
    url: Option<&'a str>,
    timestamp: Option<u64>,
    data: Option<&'a RawValue>,
}

impl Rest<'_> {
    /// Its members, without the brace before them.
    fn text(&self) -> Vec<u8> {
        let data = self.data.map_or(0, |data| data.get().len());
        let mut text = Vec::with_capacity(self.object.len() * 2 + data + 160);
        // Strings, numbers and checked JSON: writing them to a vector cannot fail.
        let _ = serde_json::to_writer(&mut text, self);
        text.drain(..1);
        text
    }
}

/// An `Option` would take `null` for nothing, but a publisher who sends `null` gets it delivered.
fn verbatim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

impl NewEvent {
    /// The object whose events stay in order.
    pub(super) fn object(&self) -> &str {
        self.object.as_deref().unwrap_or(&self.url)
    }

    /// The event's JSON from `"object"` on; the script puts its numbers before it.
    pub(super) fn rest(&self, topic: &str, tenant: &str) -> Vec<u8> {
        let (object, kind) = (self.object(), self.kind.as_str());
        let (url, timestamp, data) = (Some(&*self.url), self.timestamp_ms, self.data.as_deref());
        Rest { object, topic, kind, tenant, url, timestamp, data }.text()
    }

    /// The accepted event, without reading the log again.
    pub(super) fn accepted(
        self,
        (id, prev, tprev): (EventId, Option<EventId>, Option<EventId>),
        topic: &str,
        tenant: String,
    ) -> Event {
        Event {
            id,
            prev,
            tprev,
            object: self.object.unwrap_or_else(|| self.url.clone()),
            topic: topic.to_owned(),
            kind: self.kind,
            tenant,
            url: self.url,
            timestamp_ms: self.timestamp_ms.unwrap_or_else(|| id.accepted_ms()),
            data: self.data,
            cause: None,
            rendered: OnceLock::new(),
        }
    }
}

/// A message for queues and for live streams. Its creator has validated it.
#[derive(Debug, Clone)]
pub struct NewMessage {
    /// The tenant; no `:`, no `|`.
    pub tenant: String,
    /// Anything; no `:`, no `|`.
    pub kind: String,
    /// Anything; no `:`, no `|`.
    pub name: String,
    /// Any JSON, its bytes kept verbatim.
    pub payload: Option<Box<RawValue>>,
    /// A repeat under the same key and client with the same `tenant:type:name` returns the first message's id.
    pub idempotency_key: Option<String>,
    /// When queues may deliver it, if not immediately.
    pub delay: Option<Delay>,
}

/// When a message may be delivered for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delay {
    /// This many milliseconds after it was accepted.
    After(u64),
    /// At this time, unix milliseconds.
    At(u64),
}

impl NewMessage {
    /// The message's JSON from `"object"` on: like an event's, without a url.
    pub(super) fn rest(&self, object: &str) -> Vec<u8> {
        let Self { tenant, kind, name: topic, payload, .. } = self;
        Rest { object, topic, kind, tenant, url: None, timestamp: None, data: payload.as_deref() }.text()
    }
}

/// Where an object's events go: the shard by the upper half, the lane by the lower. FNV-1a with a final mix, written
/// out here because every pacemaker of every version has to compute the same, or an object would change its lane.
pub(super) fn hash(object: &str) -> u64 {
    let mut hash = object.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash ^ (hash >> 32)
}

/// The lane half of [`hash`].
pub(super) fn lane_hash(object: &str) -> u32 {
    (hash(object) & 0xffff_ffff) as u32
}

/// The shard of an object.
pub fn shard_of(object: &str, shards: usize) -> usize {
    ((hash(object) >> 32) as usize) % shards
}

/// Thirty-two characters that stand for some parts.
pub(super) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        // The length keeps two lists of parts with the same text apart.
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    HEXLOWER.encode(&hasher.finalize()[..16])
}

/// As [`digest`], of events from `"object"` on. Their tenant has the name that it had before, so that a request that is repeated
/// after an upgrade is the same.
pub(super) fn digest_of_events<'a>(events: impl IntoIterator<Item = &'a [u8]>) -> String {
    const NAME: &[u8] = b",\"tenant\":";
    const BEFORE: &[u8] = b",\"environment\":";
    let mut hasher = Sha256::new();
    for event in events {
        // The first one: quotation marks in texts before it are escaped.
        let at = event.windows(NAME.len()).position(|part| part == NAME);
        let (before, name, after) = match at {
            Some(at) => (&event[..at], BEFORE, &event[at + NAME.len()..]),
            None => (event, &b""[..], &b""[..]),
        };
        hasher.update(((before.len() + name.len() + after.len()) as u64).to_be_bytes());
        [before, name, after].iter().for_each(|part| hasher.update(part));
    }
    HEXLOWER.encode(&hasher.finalize()[..16])
}

/// A range of one lane's events that are *not known delivered*: dropped, or dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The lowest id of the range.
    pub first: EventId,
    /// The highest id of the range.
    pub last: EventId,
    /// How many events of the lane are missing.
    pub count: u64,
    /// Why: `dead`, `autodropped`, `limit`, `expired` or `unsubscribed`.
    pub reason: String,
}

impl Gap {
    /// Reads a gap as the fabric keeps it: `first last count reason`.
    pub fn from_words(words: &str) -> Option<Self> {
        let mut words = words.splitn(4, ' ');
        Some(Self {
            first: EventId(words.next()?.parse().ok()?),
            last: EventId(words.next()?.parse().ok()?),
            count: words.next()?.parse().ok()?,
            reason: words.next()?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn event(data: Option<&str>) -> NewEvent {
        NewEvent {
            kind: Kind::Update,
            url: "https://a.example/1?\"x\"\u{7}".into(),
            timestamp_ms: None,
            data: data.map(|text| RawValue::from_string(text.into()).expect("JSON")),
            tenant: None,
            object: None,
            idempotency_key: None,
        }
    }

    fn stored(new: &NewEvent) -> Vec<u8> {
        let mut entry = br#"{"id":6400128,"prev":64,"last":64,"#.to_vec();
        entry.extend(new.rest("orders", "shop"));
        entry
    }

    #[test]
    fn the_digest_of_an_event_is_that_of_earlier_releases() {
        let text =
            r#"object":"a,\"tenant\":1","topic":"t","type":"update","tenant":"e","data":{"a":1,"tenant":2}}"#;
        let before = text.replacen(r#","tenant":"e""#, r#","environment":"e""#, 1);
        assert_ne!(text, before);
        assert_eq!(digest_of_events([text.as_bytes()]), digest([before.as_bytes()]));
        assert_eq!(digest_of_events([&b"{\"state\":1}"[..]]), digest([&b"{\"state\":1}"[..]]));
    }

    #[test]
    fn an_entry_of_the_log_reads_back_as_the_accepted_event() {
        for data in [None, Some("null"), Some("{ \"b\" : 1.10,\n\"a\":[] }"), Some("\"\u{1F600}\"")] {
            let new = event(data);
            let read = Event::from_log(&stored(&new)).expect("an entry");
            let made = new.accepted((EventId(6_400_128), Some(EventId(64)), None), "orders", "shop".into());
            assert_eq!(format!("{read:?}"), format!("{made:?}"));
            assert_eq!(read.data.as_ref().map(|data| data.get()), data, "data is kept verbatim");
            assert_eq!(read.timestamp_ms, ID_EPOCH_MS + 1000);
        }
    }

    #[test]
    fn ids_and_times_convert() {
        assert_eq!(EventId::at_ms(ID_EPOCH_MS + 7), EventId(44_800));
        assert_eq!(EventId(44_863).accepted_ms(), ID_EPOCH_MS + 7);
        assert!(EventId::at_ms(ID_EPOCH_MS + 1000 * 3600 * 24 * 365 * 40).0 < 1 << 53);
    }

    /// These numbers are on disk in every fabric: an object's lane is its hash.
    #[test]
    fn the_hash_of_an_object_never_changes() {
        assert_eq!((lane_hash("https://a.example/1"), lane_hash("work:1")), (4_137_282_433, 3_973_549_097));
    }

    #[test]
    fn hashes_spread_over_lanes_and_shards() {
        let mut lanes = [0; 4];
        let mut shards = [0; 3];
        for n in 0..1000 {
            let object = format!("https://a.example/{n}");
            lanes[lane_hash(&object) as usize % 4] += 1;
            shards[shard_of(&object, 3)] += 1;
        }
        assert!(lanes.iter().all(|count| (200..300).contains(count)), "{lanes:?}");
        assert!(shards.iter().all(|count| (280..390).contains(count)), "{shards:?}");
    }
}
