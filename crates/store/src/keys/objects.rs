//! Objects and the queues of their events: on the fabric, in every shard.
//!
//! Keys of one object end with a suffix after its name. Keys of the shard contain only one colon, so no name of an object can
//! collide with them.

use super::{Entry, row};
use crate::{FabricSpace, Key, Tag};

/// The rows of `docs/keys.md` for objects.
pub const CATALOG: &[Entry] = &[
    row("object:<object>:data", "string", "no expiry"),
    row("object:<object>:events", "list", "while events wait for a backend"),
    row("object:<object>:flight", "string", "while an event is being sent"),
    row("object:<object>:event.worker", "string", "while a worker holds the object"),
    row("object:<object>:failure", "hash", "from a failed attempt to the event's end"),
    row(
        "object:<object>:gaps",
        "list",
        "until reported with the next event; 30 days when its backend was removed",
    ),
    row("object:<object>:last.event.id", "string", "30 days after the last event sent"),
    row("object:queued", "hash", "while an object has a queue"),
    row("object:objects.with.events@<backend>", "zset", "while an object can be taken"),
    row("object:leases", "zset", "while an object is held"),
    row("object:retry", "zset", "while an object waits for its retry"),
    row("object:parked", "zset", "until unparked or skipped"),
    row("object:workers", "hash", "while a worker holds an object"),
    row("object:numbers", "hash", "no expiry"),
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

    /// HASH: object → its backend, while it has a queue. The scripts derive every other key from it.
    pub fn queued(&self) -> Key<FabricSpace> {
        self.key("queued")
    }

    /// HASH: `turn` and `epoch`, counters, and the queued events by backend.
    pub fn numbers(&self) -> Key<FabricSpace> {
        self.key("numbers")
    }

    /// ZSET: ready objects of a backend, by turn.
    pub fn ready(&self, backend: &str) -> Key<FabricSpace> {
        self.key(format_args!("objects.with.events@{backend}"))
    }

    /// ZSET: leased objects, by the end of the lease in unix milliseconds.
    pub fn leases(&self) -> Key<FabricSpace> {
        self.key("leases")
    }

    /// ZSET: objects that wait for a retry, by its time in unix milliseconds.
    pub fn retry(&self) -> Key<FabricSpace> {
        self.key("retry")
    }

    /// ZSET: parked objects, by the time of parking in unix milliseconds.
    pub fn parked(&self) -> Key<FabricSpace> {
        self.key("parked")
    }

    /// LIST: waiting entries of an object's events. The head is sent next.
    pub fn waiting(&self, object: &str) -> Key<FabricSpace> {
        self.key(format_args!("{object}:events"))
    }

    /// STRING: the entry of an object's event that is being sent.
    pub fn flight(&self, object: &str) -> Key<FabricSpace> {
        self.key(format_args!("{object}:flight"))
    }

    /// LIST: dead letters of a backend: `died attempts length reason` and the event's JSON.
    pub fn dead(&self, backend: &str) -> Key<FabricSpace> {
        self.key(format_args!("dead@{backend}"))
    }

    /// The channel that wakes idle workers: `now`, or the time until which they can sleep, in unix
    /// milliseconds.
    pub fn wake_channel(&self) -> String {
        format!("{}object:wake", self.0.as_str())
    }
}
