//! The event bus: on the fabric, in every shard.

use crate::Tag;

/// The event bus's keys of one shard.
#[derive(Debug, Clone)]
pub struct Bus<'a>(&'a Tag);

/// The event bus's keys of the shard with this tag.
pub fn bus(tag: &Tag) -> Bus<'_> {
    Bus(tag)
}

impl Bus<'_> {
    /// The channel that wakes idle workers: `now`, or the time until which they can sleep, in unix
    /// milliseconds.
    pub fn wake_channel(&self) -> String {
        format!("{}bus:wake", self.0.as_str())
    }

    /// The channel on which a new stamp of the registry is published.
    pub fn registry_channel(&self) -> String {
        format!("{}bus:registry", self.0.as_str())
    }
}

keys! {
    impl Bus() {
        /// HASH: identity, shards, stamp and snapshot of topics, subscriptions and tokens.
        registry() = "bus:registry", "hash", "no expiry";
        /// SET of topic names.
        topics() = "bus:topics", "set", "no expiry";
        /// HASH: a topic's `publisher` and `counter`.
        topic(name: &str) = "bus:topic:{name}", "hash", "while the topic exists";
        /// SET of a subscriber's topics.
        topics_of(token: &str) = "bus:topics:{token}", "set", "while subscribed";
        /// SET of subscribers' tokens.
        subscribers() = "bus:subscribers", "set", "no expiry";
        /// SET of a topic's subscribers.
        subscribers_of(topic: &str) = "bus:subscribers:{topic}", "set", "while the topic exists";
        /// HASH of a subscription's metadata and counters.
        subscriber(token: &str) = "bus:subscriber:{token}", "hash", "while subscribed";
        /// HASH: token → name and scopes.
        api_tokens() = "bus:api_tokens", "hash", "no expiry";
        /// STRING: a pacemaker's last call of the publish script.
        call(pacemaker: &str, slot: usize) = "bus:call:{pacemaker}:{slot}",
            "string", "10 minutes after the last call";
        /// INTEGER: the last ID assigned in the shard.
        last_event_id() = "bus:last.event.id", "string", "no expiry";
        /// HASH: the last ids of objects.
        objects() = "bus:objects", "hash", "exchanged after 30 days or a million objects";
        /// HASH: the last IDs of objects without recent events.
        objects_old() = "bus:objects:old", "hash", "forgotten at the next exchange";
        /// HASH: the time at which the two hashes were last swapped.
        objects_state() = "bus:objects:state", "hash", "no expiry";
        /// HASH: digest of an idempotency key → the result of its publish call.
        idempotency_keys(client: &str) = "bus:idempotency:keys:{client}",
            "hash", "20 minutes after the last key";
        /// ZSET: digests of idempotency keys by age.
        idempotency_ages(client: &str) = "bus:idempotency:ages:{client}",
            "zset", "20 minutes after the last key";
        /// HASH: client → idempotency keys that it uses and when they were counted, if these are many.
        idempotency_used() = "bus:idempotency:used", "hash", "20 minutes after the last change";
        /// HASH: segment of the log → bytes.
        log() = "bus:log", "hash", "no expiry";
        /// HASH: id → event.
        log_segment(segment: u64) = "bus:log:{segment}", "hash", "a day, and while a batch needs it";
        /// LIST: the ids of a segment in order.
        log_order(segment: u64) = "bus:log:{segment}:order", "list", "as its segment";
        /// ZSET: all batches by creation.
        batches_index() = "bus:batches:index", "zset", "no expiry";
        /// HASH: token → events in batches of its subscription.
        gauges_event() = "bus:batches:gauges:event", "hash", "no expiry";
        /// HASH: token → batches of its subscription.
        gauges_batch() = "bus:batches:gauges:batch", "hash", "no expiry";
        /// SET of all jobs.
        jobs_index() = "bus:jobs:index:main", "set", "no expiry";
        /// ZSET of jobs by due time.
        jobs_scheduled() = "bus:jobs:scheduled:main", "zset", "no expiry";
        /// LIST of ready jobs.
        jobs_instant() = "bus:jobs:instant:main", "list", "no expiry";
        /// LIST of jobs that wait for a slow delivery.
        jobs_slow() = "bus:jobs:slow:main", "list", "while all slow deliveries are in use";
        /// SET of workers with a job.
        jobs_pending_index() = "bus:jobs:pending:index:main", "set", "no expiry";
        /// HASH: worker → last heartbeat.
        workers() = "bus:workers", "hash", "no expiry";
        /// HASH of telemetry.
        counters() = "bus:counters", "hash", "no expiry";
        /// LIST of dead letters.
        dead(token: &str) = "bus:dead:{token}", "list", "until redriven or dropped";
        /// LIST of the last attempts to deliver to a subscriber, oldest first. It is only in the first shard.
        attempts(token: &str) = "bus:attempts:{token}", "list", "a week after the last attempt";
        /// HASH: token → bytes of its dead letters.
        dead_bytes() = "bus:dead.bytes", "hash", "no expiry";
        /// HASH: lanes to be deleted.
        purge() = "bus:purge", "hash", "until cleared away";
        /// HASH: token of a changed subscription → milliseconds that its batches wait to fill.
        changed() = "bus:changed", "hash", "until the pauses of its lanes are ended";
        /// ZSET of replays by their next step.
        replays() = "bus:replays", "zset", "no expiry";
        /// HASH of a replay.
        replay(token: &str) = "bus:replay:{token}", "hash", "until done";
        /// HASH: subscriber → its waiting events whose bodies are in the segment. The field without a name: some are marked.
        log_held(segment: u64) = "bus:log:{segment}:held", "hash", "while a batch needs the segment";
        /// HASH: event that is kept for subscribers to which nothing can be delivered → items that need it, its bytes, the segment that had
        /// it, and its tenant.
        log_uses() = "bus:log:0:uses", "hash", "while an item needs the event";
        /// HASH: subscriber → the bytes that are kept for it.
        log_kept() = "bus:log:0:bytes", "hash", "while it has any";
        /// HASH: owner (a tenant, or `machine:` and a state machine) → bytes that are stored for it.
        tenants() = "bus:environments", "hash", "no expiry";
        /// HASH: tenant → the client that publishes most of its bytes, behind how many more these are than those of others.
        tenant_clients() = "bus:environments:clients", "hash", "while the tenant stores something";
        /// HASH: object → bytes of its state, and the tenant that they are counted for.
        states() = "bus:states", "hash", "no expiry";
        /// HASH: sets of lanes of a subscriber.
        generations(token: &str) = "bus:generations:{token}", "hash", "while subscribed";
        _ = "bus:log:{segment}:environments", "hash", "as its segment";
        _ = "bus:batches:current:{token}", "hash", "while batches fill";
        _ = "bus:batches:ready:{token}:{lane}", "list", "while batches wait";
        _ = "bus:jobs:waiting:{token}", "set", "while an older generation has batches";
        _ = "bus:jobs:behind:{token}", "list", "while a delivery to the subscriber is under way";
        _ = "bus:batch:{bid}", "list", "until delivered, dead or dropped";
        _ = "bus:gaps:{token}:{lane}", "list", "until reported";
        _ = "bus:jobs:pending:main:{worker}", "list", "while the worker holds a job";
    }
}
