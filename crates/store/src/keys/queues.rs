//! Queues: on the fabric, in every shard.
//!
//! A queue's waiting messages are stored in one list per environment, `queue:<queue>:<environment>`. The queue's other
//! keys contain a vertical bar, which names of queues and environments cannot contain, so no environment name is
//! rejected. Keys that all queues of a shard share have no queue name before the bar.

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
    row("queue:<queue>|later", "hash", "while messages wait for their first delivery"),
    row("queue:<queue>|throttled", "zset", "while a facet has used up its rate"),
    row("queue:<queue>|rates", "hash", "while the queue exists"),
    row("queue:<queue>|gaps", "hash", "until dropped"),
    row("queue:<queue>|watched", "string", "while a pull may wait for one environment"),
    row("queue:|acked", "hash", "ten minutes after the newest, or 50,000 receipts"),
    row("queue:|acked-before", "hash", "until as many receipts again"),
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
    /// HASH: segment of the bus's log → the number of queued messages whose bodies are in it.
    pub fn held(&self) -> Key<FabricSpace> {
        Key::new(format!("{}queue:|held", self.0.as_str()))
    }

    /// HASH: `id nonce attempt` of the receipts that were acknowledged recently, without values.
    pub fn acked(&self) -> Key<FabricSpace> {
        Key::new(format!("{}queue:|acked", self.0.as_str()))
    }

    /// HASH: the same, of earlier ones.
    pub fn acked_before(&self) -> Key<FabricSpace> {
        Key::new(format!("{}queue:|acked-before", self.0.as_str()))
    }

    /// ZSET: queues by the earliest time at which a lease ends, a delayed message is due or the rate of a
    /// facet allows messages again, in unix milliseconds.
    pub fn due(&self) -> Key<FabricSpace> {
        Key::new(format!("{}queue:|due", self.0.as_str()))
    }

    /// The channel for `pull <queue>` (messages are waiting), `only <queue>|<environment>` (of that environment),
    /// `gone <queue>` (it was deleted) and `due <unix ms>` (poll at that time).
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

    /// LIST: a facet's waiting messages, the next one first: `id`, or `id@segment` if the body was stored again, each with
    /// `#attempts` if it was pulled before.
    pub fn waiting(&self, environment: &str) -> Key<FabricSpace> {
        self.key(format_args!(":{environment}"))
    }

    /// ZSET: the environments with waiting messages, by their position in the ring. The lowest is next.
    pub fn ring(&self) -> Key<FabricSpace> {
        self.key("|ring")
    }

    /// HASH: `weight`, `flying`, `delayed`, `used` of its turn, mean `dwell` in ms, and `rules` if the environment has
    /// any: `limit:rate`.
    pub fn facet(&self, environment: &str) -> Key<FabricSpace> {
        self.key(format_args!("|facet:{environment}"))
    }

    /// ZSET: the environments that have messages, all with score 0.
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

    /// ZSET: `item environment` by when it is due, unix milliseconds. Of a message that was never delivered the item is
    /// `id@0`.
    pub fn delayed(&self) -> Key<FabricSpace> {
        self.key("|delayed")
    }

    /// HASH: id of a delayed message that was never delivered → body.
    pub fn later(&self) -> Key<FabricSpace> {
        self.key("|later")
    }

    /// ZSET: environments that have used up their rates, by when they allow messages again, unix milliseconds.
    pub fn throttled(&self) -> Key<FabricSpace> {
        self.key("|throttled")
    }

    /// HASH: environment → messages that its rate allows, and when that was computed, unix milliseconds.
    pub fn rates(&self) -> Key<FabricSpace> {
        self.key("|rates")
    }

    /// HASH: environment → `first last count ms`: the messages that were dropped because too many waited, and
    /// the time of the last drop. The empty field is for environments beyond the first 10,000.
    pub fn gaps(&self) -> Key<FabricSpace> {
        self.key("|gaps")
    }

    /// LIST: dead letters, oldest first: MessagePack of died, attempts, reason, environment, id, body.
    pub fn dead(&self) -> Key<FabricSpace> {
        self.key("|dead")
    }

    /// HASH: `waiting`, `inflight`, `delayed`, and totals: `pushed`, `pulled`, `acked`, `returned`, …
    pub fn count(&self) -> Key<FabricSpace> {
        self.key("|count")
    }

    /// HASH: the parts of the queue's definition that the scripts use, and its revision.
    pub fn settings(&self) -> Key<FabricSpace> {
        self.key("|settings")
    }
}
