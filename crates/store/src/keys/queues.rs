//! Queues: on the fabric, in every shard.
//!
//! A queue's waiting messages are stored in one list per tenant, `queue:<queue>:<tenant>`. The queue's other
//! keys contain a vertical bar, which names of queues and tenants cannot contain, so no tenant name is
//! rejected. Keys that all queues of a shard share have no queue name before the bar.

use crate::Tag;

/// One queue's keys in one shard.
#[derive(Debug, Clone)]
pub struct Queue<'a>(&'a Tag, &'a str);

/// A queue's keys in the shard with this tag.
pub fn queue<'a>(tag: &'a Tag, name: &'a str) -> Queue<'a> {
    Queue(tag, name)
}

/// The keys that all queues of a shard share.
#[derive(Debug, Clone)]
pub struct Shared<'a>(&'a Tag);

/// The keys that all queues of the shard with this tag share.
pub fn shared(tag: &Tag) -> Shared<'_> {
    Shared(tag)
}

impl Shared<'_> {
    /// The channel for `pull <queue>` (messages are waiting), `only <queue>|<tenant>` (of that tenant),
    /// `gone <queue>` (it was deleted) and `due <unix ms>` (poll at that time).
    pub fn wake_channel(&self) -> String {
        format!("{}queue:wake", self.0.as_str())
    }
}

keys! {
    impl Queue(queue) {
        /// LIST: a tenant's waiting messages, the next one first: `id`, or `id@segment` if the body was stored again, each with
        /// `#attempts` if it was pulled before.
        waiting(tenant: &str) = "queue:{queue}:{tenant}",
            "list", "while messages of the tenant wait";
        /// ZSET: the tenants with waiting messages, by their position in the ring. The lowest is next.
        ring() = "queue:{queue}|ring", "zset", "while a tenant can be pulled from";
        /// HASH: `weight`, `flying`, `delayed`, `used` of its turn, mean `dwell` in ms, `rules` if the tenant has any:
        /// `limit:rate`, and `rank`: its score in `depths`.
        tenant(tenant: &str) = "queue:{queue}|facet:{tenant}",
            "hash", "while the tenant has messages";
        /// ZSET: the tenants that have messages, all with score 0.
        tenants() = "queue:{queue}|facets", "zset", "while a tenant has messages";
        /// ZSET: the tenants with the most messages that wait or are delayed, by their number; the largest is last. A
        /// number may differ by an eighth from the true one, and tenants with a single message are missing.
        depths() = "queue:{queue}|depths", "zset", "while a tenant has two messages";
        /// HASH: tenant → the rest of its rate, and when that was computed.
        rates() = "queue:{queue}|rates", "hash", "while the queue exists";
        /// LIST: dead letters, oldest first: MessagePack of died, attempts, reason, tenant, id, body.
        dead() = "queue:{queue}|dead", "list", "until redriven or dropped";
        /// HASH: `waiting`, `inflight`, `delayed`, and totals: `pushed`, `pulled`, `acked`, `returned`, …
        count() = "queue:{queue}|count", "hash", "while the queue exists";
        /// HASH: the parts of the queue's definition that the scripts use, and its revision.
        settings() = "queue:{queue}|settings", "hash", "while the queue exists";
        /// HASH: tenant → `first last count ms`: the messages that were dropped because too many waited, and
        /// the time of the last drop. The empty field is for tenants beyond the first 10,000.
        gaps() = "queue:{queue}|gaps", "hash", "until dropped";
        _ = "queue:{queue}|watched", "string", "while a pull may wait for one tenant";
        _ = "queue:{queue}|inflight", "hash", "while messages are in flight";
        _ = "queue:{queue}|delayed", "zset", "while messages are delayed";
        _ = "queue:{queue}|later", "hash", "while messages wait for their first delivery";
        _ = "queue:{queue}|throttled", "zset", "while a tenant has used up its rate";
        _ = "queue:{queue}|leases", "zset", "while messages are in flight";
    }

    impl Shared() {
        /// HASH: `id nonce attempt` of the receipts that were acknowledged recently, without values.
        acked() = "queue:|acked", "hash", "ten minutes after the newest, or 50,000 receipts";
        /// HASH: the same, of earlier ones.
        acked_before() = "queue:|acked-before", "hash", "until as many receipts again";
        /// HASH: segment of the bus's log → the number of queued messages whose bodies are in it.
        held() = "queue:|held", "hash", "while a queue needs a body of the log";
        /// ZSET: queues by the earliest time at which a lease ends, a delayed message is due or the rate of a
        /// tenant allows messages again, in unix milliseconds.
        due() = "queue:|due", "zset", "while messages are in flight or delayed";
    }
}
