//! The event bus: on the fabric, in every shard.

use super::{Entry, row};
use crate::{FabricSpace, Key, Tag};

/// The rows of `docs/keys.md` for the bus.
pub const CATALOG: &[Entry] = &[
    row("bus:registry", "hash", "no expiry"),
    row("bus:topics", "set", "no expiry"),
    row("bus:topic:<name>", "hash", "while the topic exists"),
    row("bus:topics:<token>", "set", "while subscribed"),
    row("bus:subscribers", "set", "no expiry"),
    row("bus:subscribers:<topic>", "set", "while the topic exists"),
    row("bus:subscriber:<token>", "hash", "while subscribed"),
    row("bus:api_tokens", "hash", "no expiry"),
    row("bus:call:<pacemaker>:<slot>", "string", "10 minutes after the last call"),
    row("bus:last.event.id", "string", "no expiry"),
    row("bus:objects", "hash", "exchanged after 30 days or a million objects"),
    row("bus:objects:old", "hash", "forgotten at the next exchange"),
    row("bus:objects:state", "hash", "no expiry"),
    row("bus:idempotency:keys:<client>", "hash", "20 minutes after the last key"),
    row("bus:idempotency:ages:<client>", "zset", "20 minutes after the last key"),
    row("bus:log", "hash", "no expiry"),
    row("bus:log:<segment>", "hash", "a day, and while a batch needs it"),
    row("bus:log:<segment>:order", "list", "as its segment"),
    row("bus:log:<segment>:environments", "hash", "as its segment, while bus.environment_bytes is set"),
    row("bus:environments", "hash", "no expiry, while bus.environment_bytes is set"),
    row("bus:batch:<bid>", "list", "until delivered, dead or dropped"),
    row("bus:batches:current:<token>", "hash", "while batches fill"),
    row("bus:batches:ready:<token>:<lane>", "list", "while batches wait"),
    row("bus:batches:index", "zset", "no expiry"),
    row("bus:batches:gauges:event", "hash", "no expiry"),
    row("bus:batches:gauges:batch", "hash", "no expiry"),
    row("bus:generations:<token>", "hash", "while subscribed"),
    row("bus:gaps:<token>:<lane>", "list", "until reported"),
    row("bus:jobs:index:main", "set", "no expiry"),
    row("bus:jobs:scheduled:main", "zset", "no expiry"),
    row("bus:jobs:instant:main", "list", "no expiry"),
    row("bus:jobs:waiting:<token>", "set", "while an older generation has batches"),
    row("bus:jobs:pending:index:main", "set", "no expiry"),
    row("bus:jobs:pending:main:<worker>", "list", "while the worker holds a job"),
    row("bus:workers", "hash", "no expiry"),
    row("bus:counters", "hash", "no expiry"),
    row("bus:dead:<token>", "list", "until redriven or dropped"),
    row("bus:attempts:<token>", "list", "a week after the last attempt"),
    row("bus:dead.bytes", "hash", "no expiry"),
    row("bus:purge", "hash", "until cleared away"),
    row("bus:replays", "zset", "no expiry"),
    row("bus:replay:<token>", "hash", "until done"),
];

/// The event bus's keys of one shard.
#[derive(Debug, Clone)]
pub struct Bus<'a>(&'a Tag);

/// The event bus's keys of the shard with this tag.
pub fn bus(tag: &Tag) -> Bus<'_> {
    Bus(tag)
}

impl Bus<'_> {
    fn key(&self, name: impl std::fmt::Display) -> Key<FabricSpace> {
        Key::new(format!("{}{name}", self.0.as_str()))
    }

    /// The channel that wakes idle workers: `now`, or the time until which they can sleep, in unix
    /// milliseconds.
    pub fn wake_channel(&self) -> String {
        format!("{}bus:wake", self.0.as_str())
    }

    /// The channel on which a new stamp of the registry is published.
    pub fn registry_channel(&self) -> String {
        format!("{}bus:registry", self.0.as_str())
    }

    /// STRING: a pacemaker's last call of the publish script.
    pub fn call(&self, pacemaker: &str, slot: usize) -> Key<FabricSpace> {
        self.key(format_args!("bus:call:{pacemaker}:{slot}"))
    }

    /// HASH: identity, shards, stamp and snapshot of topics, subscriptions and tokens.
    pub fn registry(&self) -> Key<FabricSpace> {
        self.key("bus:registry")
    }

    /// SET of topic names.
    pub fn topics(&self) -> Key<FabricSpace> {
        self.key("bus:topics")
    }

    /// HASH: a topic's `publisher` and `counter`.
    pub fn topic(&self, name: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:topic:{name}"))
    }

    /// SET of a subscriber's topics.
    pub fn topics_of(&self, token: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:topics:{token}"))
    }

    /// SET of subscribers' tokens.
    pub fn subscribers(&self) -> Key<FabricSpace> {
        self.key("bus:subscribers")
    }

    /// SET of a topic's subscribers.
    pub fn subscribers_of(&self, topic: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:subscribers:{topic}"))
    }

    /// HASH of a subscription's metadata and counters.
    pub fn subscriber(&self, token: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:subscriber:{token}"))
    }

    /// HASH: token → name and scopes.
    pub fn api_tokens(&self) -> Key<FabricSpace> {
        self.key("bus:api_tokens")
    }

    /// INTEGER: the last ID assigned in the shard.
    pub fn last_event_id(&self) -> Key<FabricSpace> {
        self.key("bus:last.event.id")
    }

    /// HASH: the last ids of objects.
    pub fn objects(&self) -> Key<FabricSpace> {
        self.key("bus:objects")
    }

    /// HASH: the last IDs of objects without recent events.
    pub fn objects_old(&self) -> Key<FabricSpace> {
        self.key("bus:objects:old")
    }

    /// HASH: the time at which the two hashes were last swapped.
    pub fn objects_state(&self) -> Key<FabricSpace> {
        self.key("bus:objects:state")
    }

    /// HASH: digest of an idempotency key → the result of its publish call.
    pub fn idempotency_keys(&self, client: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:idempotency:keys:{client}"))
    }

    /// ZSET: digests of idempotency keys by age.
    pub fn idempotency_ages(&self, client: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:idempotency:ages:{client}"))
    }

    /// HASH: segment of the log → bytes.
    pub fn log(&self) -> Key<FabricSpace> {
        self.key("bus:log")
    }

    /// HASH: id → event.
    pub fn log_segment(&self, segment: u64) -> Key<FabricSpace> {
        self.key(format_args!("bus:log:{segment}"))
    }

    /// LIST: the ids of a segment in order.
    pub fn log_order(&self, segment: u64) -> Key<FabricSpace> {
        self.key(format_args!("bus:log:{segment}:order"))
    }

    /// LIST: a batch.
    pub fn batch(&self, bid: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:batch:{bid}"))
    }

    /// ZSET: all batches by creation.
    pub fn batches_index(&self) -> Key<FabricSpace> {
        self.key("bus:batches:index")
    }

    /// HASH: token → events in batches.
    pub fn gauges_event(&self) -> Key<FabricSpace> {
        self.key("bus:batches:gauges:event")
    }

    /// HASH: token → batches.
    pub fn gauges_batch(&self) -> Key<FabricSpace> {
        self.key("bus:batches:gauges:batch")
    }

    /// HASH: a subscriber's generations of lanes.
    pub fn generations(&self, token: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:generations:{token}"))
    }

    /// LIST: gaps of a lane that are not reported yet.
    pub fn gaps(&self, token: &str, lane: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:gaps:{token}:{lane}"))
    }

    /// SET of all jobs.
    pub fn jobs_index(&self) -> Key<FabricSpace> {
        self.key("bus:jobs:index:main")
    }

    /// ZSET of jobs by due time.
    pub fn jobs_scheduled(&self) -> Key<FabricSpace> {
        self.key("bus:jobs:scheduled:main")
    }

    /// LIST of ready jobs.
    pub fn jobs_instant(&self) -> Key<FabricSpace> {
        self.key("bus:jobs:instant:main")
    }

    /// SET of workers with a job.
    pub fn jobs_pending_index(&self) -> Key<FabricSpace> {
        self.key("bus:jobs:pending:index:main")
    }

    /// LIST: the job of a worker.
    pub fn jobs_pending(&self, worker: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:jobs:pending:main:{worker}"))
    }

    /// HASH: worker → last heartbeat.
    pub fn workers(&self) -> Key<FabricSpace> {
        self.key("bus:workers")
    }

    /// HASH of telemetry.
    pub fn counters(&self) -> Key<FabricSpace> {
        self.key("bus:counters")
    }

    /// LIST of dead letters.
    pub fn dead(&self, token: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:dead:{token}"))
    }

    /// LIST of the last attempts to deliver to a subscriber, oldest first. It is only in the first shard.
    pub fn attempts(&self, token: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:attempts:{token}"))
    }

    /// HASH: token → bytes of its dead letters.
    pub fn dead_bytes(&self) -> Key<FabricSpace> {
        self.key("bus:dead.bytes")
    }

    /// HASH: lanes to be deleted.
    pub fn purge(&self) -> Key<FabricSpace> {
        self.key("bus:purge")
    }

    /// ZSET of replays by their next step.
    pub fn replays(&self) -> Key<FabricSpace> {
        self.key("bus:replays")
    }

    /// HASH of a replay.
    pub fn replay(&self, token: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:replay:{token}"))
    }
}
