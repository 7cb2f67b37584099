//! Objects and the queues of their events: on the fabric, in every shard.
//!
//! Keys of one object end with a suffix after its name. Keys of the shard contain only one colon, so no name of an object can
//! collide with them.

use crate::Tag;

/// The keys of objects in one shard.
#[derive(Debug, Clone)]
pub struct Objects<'a>(&'a Tag);

/// The keys of objects in the shard with this tag.
pub fn objects(tag: &Tag) -> Objects<'_> {
    Objects(tag)
}

impl Objects<'_> {
    /// The channel that wakes idle workers: `now`, or the time until which they can sleep, in unix
    /// milliseconds.
    pub fn wake_channel(&self) -> String {
        format!("{}object:wake", self.0.as_str())
    }
}

keys! {
    impl Objects() {
        /// LIST: waiting entries of an object's events. The head is sent next.
        waiting(object: &str) = "object:{object}:events", "list", "while events wait for a backend";
        /// STRING: the entry of an object's event that is being sent.
        flight(object: &str) = "object:{object}:flight", "string", "while an event is being sent";
        /// HASH: object → its backend, while it has a queue. The scripts derive every other key from it.
        queued() = "object:queued", "hash", "while an object has a queue";
        /// ZSET: ready objects of a backend, by turn.
        ready(backend: &str) = "object:objects.with.events@{backend}", "zset", "while an object can be taken";
        /// ZSET: leased objects, by the end of the lease in unix milliseconds.
        leases() = "object:leases", "zset", "while an object is held";
        /// ZSET: objects that wait for a retry, by its time in unix milliseconds.
        retry() = "object:retry", "zset", "while an object waits for its retry";
        /// ZSET: parked objects, by the time of parking in unix milliseconds.
        parked() = "object:parked", "zset", "until unparked or skipped";
        /// HASH: `turn` and `epoch`, counters, and the queued events by backend.
        numbers() = "object:numbers", "hash", "no expiry";
        /// LIST: dead letters of a backend: `died attempts length reason` and the event's JSON.
        dead(backend: &str) = "object:dead@{backend}", "list", "until redriven or dropped";
        _ = "object:{object}:data", "string", "no expiry";
        _ = "object:{object}:event.worker", "string", "while a worker holds the object";
        _ = "object:{object}:failure", "hash", "from a failed attempt to the event's end";
        _ = "object:{object}:gaps",
            "list", "until reported with the next event; 30 days when its backend was removed";
        _ = "object:{object}:last.event.id", "string", "30 days after the last event sent";
        _ = "object:workers", "hash", "while a worker holds an object";
    }
}
