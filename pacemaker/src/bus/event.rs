//! Events: as a publisher sends them, as the log keeps them, as a subscriber gets them.

use std::{fmt, sync::OnceLock};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The moment from which ids count, in unix milliseconds: 2024-01-01T00:00:00Z.
pub const ID_EPOCH_MS: u64 = 1_704_067_200_000;

/// How far ids move in a millisecond: a hundred events with sixty-four shards each.
pub const IDS_PER_MS: u64 = 6_400;

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

/// What happened to the thing that the event's url names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It exists from now on.
    Create,
    /// It changed.
    Update,
    /// It is gone.
    Delete,
    /// Nothing: the publisher tells the state it is in.
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

/// An event that a publisher wants to send. Whoever makes one has validated it (lengths, schemes, characters).
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// What happened.
    pub kind: Kind,
    /// Where the thing can be fetched.
    pub url: String,
    /// The publisher's own time in unix milliseconds. Nothing is ordered or delayed by it.
    pub timestamp_ms: Option<u64>,
    /// Any JSON, its bytes kept verbatim.
    pub data: Option<Box<RawValue>>,
    /// Whose environment it concerns; the publisher's name when absent.
    pub environment: Option<String>,
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
    /// What happened.
    pub kind: Kind,
    /// Whose environment it concerns.
    pub environment: String,
    /// Where the thing can be fetched.
    pub url: String,
    /// The publisher's time, or else when it was accepted; unix milliseconds.
    pub timestamp_ms: u64,
    /// The publisher's JSON, verbatim.
    pub data: Option<Box<RawValue>>,
    pub(super) rendered: OnceLock<Box<[u8]>>,
}

impl Event {
    /// The event in the format of deliveries: rendered by the first subscriber's delivery, shared by all others.
    pub fn rendered(&self, render: impl FnOnce(&Self) -> Vec<u8>) -> &[u8] {
        self.rendered.get_or_init(|| render(self).into_boxed_slice())
    }
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
