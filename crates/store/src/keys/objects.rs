//! Objects and the queues of their events: on the fabric, in every shard.
//!
//! Keys of one object end in a word behind its name; what belongs to the shard holds one colon only, so no name of an
//! object can lead there.

use super::{Entry, row};
use crate::{FabricSpace, Key, Tag};

/// The rows of `docs/keys.md` for objects.
pub const CATALOG: &[Entry] = &[
    row("object:<object>:data", "string", "for ever"),
    row("object:<object>:events", "list", "while events wait for a backend"),
    row("object:<object>:flight", "string", "while an event is being sent"),
    row("object:<object>:event.worker", "string", "while a worker holds the object"),
    row("object:<object>:failure", "hash", "from a failed attempt to the event's end"),
    row(
        "object:<object>:gaps",
        "list",
        "until told with the next event; 30 days when its backend was removed",
    ),
    row("object:<object>:last.event.id", "string", "30 days after the last event sent"),
    row("object:queued", "hash", "while an object has a queue"),
    row("object:objects.with.events@<backend>", "zset", "while an object can be taken"),
    row("object:leases", "zset", "while an object is held"),
    row("object:retry", "zset", "while an object waits for its retry"),
    row("object:parked", "zset", "until unparked or skipped"),
    row("object:workers", "hash", "while a worker holds an object"),
    row("object:numbers", "hash", "for ever"),
    row("object:dead@<backend>", "list", "until redriven or dropped"),
];

/// The keys of objects in one shard.
#[derive(Debug, Clone)]
pub struct Objects<'a>(&'a Tag);

/// The keys of objects in the shard with this tag.
pub fn objects(tag: &Tag) -> Objects<'_> {
    Objects(tag)
}

impl Objects<'_> {
    fn key(&self, name: impl std::fmt::Display) -> Key<FabricSpace> {
        Key::new(format!("{}object:{name}", self.0.as_str()))
    }

    /// HASH: object → its backend, while it has a queue. What the scripts build every other key from.
    pub fn queued(&self) -> Key<FabricSpace> {
        self.key("queued")
    }

    /// HASH: `turn` and `epoch`, counters, and by backend what is queued.
    pub fn numbers(&self) -> Key<FabricSpace> {
        self.key("numbers")
    }

    /// ZSET: objects of a backend that can be taken, by turn.
    pub fn ready(&self, backend: &str) -> Key<FabricSpace> {
        self.key(format_args!("objects.with.events@{backend}"))
    }

    /// ZSET: objects that workers hold, by the end of the lease in unix milliseconds.
    pub fn leases(&self) -> Key<FabricSpace> {
        self.key("leases")
    }

    /// ZSET: objects that are tried again, by when in unix milliseconds.
    pub fn retry(&self) -> Key<FabricSpace> {
        self.key("retry")
    }

    /// ZSET: objects that wait for a decision, since when in unix milliseconds.
    pub fn parked(&self) -> Key<FabricSpace> {
        self.key("parked")
    }

    /// LIST: entries of an object's events that wait, the head is sent next.
    pub fn waiting(&self, object: &str) -> Key<FabricSpace> {
        self.key(format_args!("{object}:events"))
    }

    /// STRING: the entry of an object's event that is being sent.
    pub fn flight(&self, object: &str) -> Key<FabricSpace> {
        self.key(format_args!("{object}:flight"))
    }

    /// LIST: events of a backend that were given up: `died attempts length why` and the event's JSON.
    pub fn dead(&self, backend: &str) -> Key<FabricSpace> {
        self.key(format_args!("dead@{backend}"))
    }

    /// The channel on which sleepers are woken: `now`, or the time in unix milliseconds until which they may sleep.
    pub fn wake_channel(&self) -> String {
        format!("{}object:wake", self.0.as_str())
    }
}
