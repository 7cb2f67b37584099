//! Queues: on the fabric, in every shard.
//!
//! A queue's waiting messages stand in one list for each environment, `queue:<queue>:<environment>`. Whatever the queue
//! keeps of itself stands behind a bar, which names of queues and environments cannot hold, so no environment has to be
//! refused for its name. What all queues of a shard share has no queue's name before the bar.

use super::{Entry, row};
use crate::{FabricSpace, Key, Tag};

/// The rows of `docs/keys.md` for queues.
pub const CATALOG: &[Entry] = &[
    row("queue:<queue>:<environment>", "list", "while messages of the facet wait"),
    row("queue:<queue>|ring", "zset", "while a facet can be pulled from"),
    row("queue:<queue>|facet:<environment>", "hash", "while the facet has messages"),
    row("queue:<queue>|facets", "zset", "while a facet has messages"),
    row("queue:<queue>|leases", "zset", "while messages are in flight"),
    row("queue:<queue>|inflight", "hash", "while messages are in flight"),
    row("queue:<queue>|delayed", "zset", "while messages are delayed"),
    row("queue:<queue>|dead", "list", "until redriven or dropped"),
    row("queue:<queue>|count", "hash", "while the queue exists"),
    row("queue:<queue>|settings", "hash", "while the queue exists"),
    row("queue:<queue>|watched", "string", "while a pull may wait for one environment"),
    row("queue:|held", "hash", "while a queue needs a body of the log"),
    row("queue:|due", "zset", "while messages are in flight or delayed"),
];

/// The keys that all queues of a shard share.
#[derive(Debug, Clone)]
pub struct Shared<'a>(&'a Tag);

/// The keys that all queues of the shard with this tag share.
pub fn shared(tag: &Tag) -> Shared<'_> {
    Shared(tag)
}

impl Shared<'_> {
    /// HASH: segment of the bus' log → how many messages of queues have their bodies there.
    pub fn held(&self) -> Key<FabricSpace> {
        Key::new(format!("{}queue:|held", self.0.as_str()))
    }

    /// ZSET: queues by the earliest moment at which a lease ends or a delayed message is due, unix milliseconds.
    pub fn due(&self) -> Key<FabricSpace> {
        Key::new(format!("{}queue:|due", self.0.as_str()))
    }

    /// The channel that tells `pull <queue>` (there is something to pull), `only <queue>|<environment>` (of that one) and
    /// `due <unix ms>` (look again then).
    pub fn wake_channel(&self) -> String {
        format!("{}queue:wake", self.0.as_str())
    }
}

/// One queue's keys in one shard.
#[derive(Debug, Clone)]
pub struct Queue<'a> {
    tag: &'a Tag,
    name: &'a str,
}

/// A queue's keys in the shard with this tag.
pub fn queue<'a>(tag: &'a Tag, name: &'a str) -> Queue<'a> {
    Queue { tag, name }
}

impl Queue<'_> {
    fn key(&self, rest: impl std::fmt::Display) -> Key<FabricSpace> {
        Key::new(format!("{}queue:{}{rest}", self.tag.as_str(), self.name))
    }

    /// LIST: a facet's waiting messages, the next one first: `id`, `id@segment` when the body was stored again, each
    /// with `#attempts` when it was handed out before.
    pub fn waiting(&self, environment: &str) -> Key<FabricSpace> {
        self.key(format_args!(":{environment}"))
    }

    /// ZSET: the environments that can be pulled from, by their places in the ring; the lowest has its turn.
    pub fn ring(&self) -> Key<FabricSpace> {
        self.key("|ring")
    }

    /// HASH: `weight`, `flying`, `delayed`, `credit` left of its turn, mean `dwell` in ms.
    pub fn facet(&self, environment: &str) -> Key<FabricSpace> {
        self.key(format_args!("|facet:{environment}"))
    }

    /// ZSET: the environments that have messages, all of score 0.
    pub fn facets(&self) -> Key<FabricSpace> {
        self.key("|facets")
    }

    /// ZSET: ids of messages in flight by the end of their lease, unix milliseconds.
    pub fn leases(&self) -> Key<FabricSpace> {
        self.key("|leases")
    }

    /// HASH: id of a message in flight → `nonce attempt item environment`.
    pub fn inflight(&self) -> Key<FabricSpace> {
        self.key("|inflight")
    }

    /// ZSET: `item environment` by when it is due, unix milliseconds.
    pub fn delayed(&self) -> Key<FabricSpace> {
        self.key("|delayed")
    }

    /// LIST: dead letters, oldest first: MessagePack of died, attempts, reason, environment, id, body.
    pub fn dead(&self) -> Key<FabricSpace> {
        self.key("|dead")
    }

    /// HASH: `waiting`, `inflight`, `delayed`, and what happened in all: `pushed`, `pulled`, `acked`, `returned`, …
    pub fn count(&self) -> Key<FabricSpace> {
        self.key("|count")
    }

    /// HASH: what the scripts have to know of the queue's definition, and its revision.
    pub fn settings(&self) -> Key<FabricSpace> {
        self.key("|settings")
    }
}
