//! The fabric: the desired state of the route table, and what pacemakers share among themselves.

use super::Entry;
use crate::{FabricSpace, Key, Tag};

/// The rows of `docs/keys.md` for this server.
pub const CATALOG: &[Entry] = &[
    Entry {
        pattern: "routes:instances",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:instances:index",
        kind: "zset",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:addresses",
        kind: "hash",
        lifetime: "while an instance is registered there",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:hosts",
        kind: "hash",
        lifetime: "until the host is deleted",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:hosts:index",
        kind: "zset",
        lifetime: "until the host is deleted",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:policies",
        kind: "hash",
        lifetime: "until the policy or its host is deleted",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:certificates",
        kind: "hash",
        lifetime: "until the certificate is deleted",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:certificates:index",
        kind: "zset",
        lifetime: "until the certificate is deleted",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:certificates:ends",
        kind: "zset",
        lifetime: "until the certificate is deleted",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:certificates:told",
        kind: "hash",
        lifetime: "until the certificate is deleted",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:revision",
        kind: "string",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:unprojected",
        kind: "zset",
        lifetime: "while changes wait",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:unreported",
        kind: "zset",
        lifetime: "while registrations wait",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:table",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:alarms:told",
        kind: "hash",
        lifetime: "30 days after the last",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:announced",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "tokens",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "tokens:names",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "pacemakers",
        kind: "hash",
        lifetime: "for ever, members for 30 s of silence",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "duty:<name>",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:registry",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:topics",
        kind: "set",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:topic:<name>",
        kind: "hash",
        lifetime: "while the topic exists",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:topics:<token>",
        kind: "set",
        lifetime: "while subscribed",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:subscribers",
        kind: "set",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:subscribers:<topic>",
        kind: "set",
        lifetime: "while the topic exists",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:subscriber:<token>",
        kind: "hash",
        lifetime: "while subscribed",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:api_tokens",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:call:<pacemaker>:<slot>",
        kind: "string",
        lifetime: "10 minutes after the last call",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:last.event.id",
        kind: "string",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:objects",
        kind: "hash",
        lifetime: "exchanged after 30 days or a million objects",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:objects:old",
        kind: "hash",
        lifetime: "forgotten at the next exchange",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:objects:state",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:idempotency:keys:<client>",
        kind: "hash",
        lifetime: "20 minutes after the last key",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:idempotency:ages:<client>",
        kind: "zset",
        lifetime: "20 minutes after the last key",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:log",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:log:<segment>",
        kind: "hash",
        lifetime: "a day, and while a batch needs it",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:log:<segment>:order",
        kind: "list",
        lifetime: "as its segment",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:batch:<bid>",
        kind: "list",
        lifetime: "until delivered, dead or dropped",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:batches:current:<token>",
        kind: "hash",
        lifetime: "while batches fill",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:batches:ready:<token>:<lane>",
        kind: "list",
        lifetime: "while batches wait",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:batches:index",
        kind: "zset",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:batches:gauges:event",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:batches:gauges:batch",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:generations:<token>",
        kind: "hash",
        lifetime: "while subscribed",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:gaps:<token>:<lane>",
        kind: "list",
        lifetime: "until told",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:jobs:index:main",
        kind: "set",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:jobs:scheduled:main",
        kind: "zset",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:jobs:instant:main",
        kind: "list",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:jobs:waiting:<token>",
        kind: "set",
        lifetime: "while an older generation has batches",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:jobs:pending:index:main",
        kind: "set",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:jobs:pending:main:<worker>",
        kind: "list",
        lifetime: "while the worker holds a job",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:workers",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:counters",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:dead:<token>",
        kind: "list",
        lifetime: "until redriven or dropped",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:dead.bytes",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:purge",
        kind: "hash",
        lifetime: "until cleared away",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:replays",
        kind: "zset",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "bus:replay:<token>",
        kind: "hash",
        lifetime: "until done",
        writer: "pacemaker",
        readers: "pacemaker",
    },
];

/// HASH: instance id → its desired state as JSON.
pub fn routes_instances() -> Key<FabricSpace> {
    Key::new("routes:instances")
}

/// ZSET of the ids in `routes:instances`, all of score 0, for reading them in order.
pub fn routes_instances_index() -> Key<FabricSpace> {
    Key::new("routes:instances:index")
}

/// HASH: address → id of the one instance that owns it.
pub fn routes_addresses() -> Key<FabricSpace> {
    Key::new("routes:addresses")
}

/// HASH: host name → the version type last registered for it. A name stays when its last instance goes.
pub fn routes_hosts() -> Key<FabricSpace> {
    Key::new("routes:hosts")
}

/// ZSET of the names in `routes:hosts`, all of score 0, for reading them in order.
pub fn routes_hosts_index() -> Key<FabricSpace> {
    Key::new("routes:hosts:index")
}

/// INTEGER that rises with every change of the desired state.
pub fn routes_revision() -> Key<FabricSpace> {
    Key::new("routes:revision")
}

/// ZSET of what was changed here and is not known to stand on the routes master yet, by revision: instance ids, and
/// host names behind an `@`.
pub fn routes_unprojected() -> Key<FabricSpace> {
    Key::new("routes:unprojected")
}

/// ZSET of instance ids that are not known to stand in the membership sets of the statistics yet, by revision.
pub fn routes_unreported() -> Key<FabricSpace> {
    Key::new("routes:unreported")
}

/// HASH: `epoch` (lineage) and highest `serial` that the routes master was given, and in `seeding` a token of the
/// lineage that it has yet to get.
pub fn routes_table() -> Key<FabricSpace> {
    Key::new("routes:table")
}

/// HASH: host name → the policy that is wanted of it, as JSON with its revision.
pub fn routes_policies() -> Key<FabricSpace> {
    Key::new("routes:policies")
}

/// HASH: server name → the certificate that is wanted for it, its private key encrypted, as JSON with revision and end.
pub fn routes_certificates() -> Key<FabricSpace> {
    Key::new("routes:certificates")
}

/// ZSET of the server names that have a certificate, all of score 0: they sort by name.
pub fn routes_certificates_index() -> Key<FabricSpace> {
    Key::new("routes:certificates:index")
}

/// ZSET of server names by the end of their certificate, in unix seconds.
pub fn routes_certificates_ends() -> Key<FabricSpace> {
    Key::new("routes:certificates:ends")
}

/// HASH: server name → what was told of its certificate's end: that end, and the days that were left.
pub fn routes_certificates_told() -> Key<FabricSpace> {
    Key::new("routes:certificates:told")
}

/// HASH: router → what was told last of its refusing the table: how often anything was told, and the alarm or `-`.
pub fn routes_alarms_told() -> Key<FabricSpace> {
    Key::new("routes:alarms:told")
}

/// HASH: up to where the table's changes were told as events: `epoch`, `serial`, and `entry` of the list of changes.
pub fn routes_announced() -> Key<FabricSpace> {
    Key::new("routes:announced")
}

/// HASH: SHA-256 of a token in hexadecimal → its name, scopes and host patterns as JSON.
pub fn tokens() -> Key<FabricSpace> {
    Key::new("tokens")
}

/// HASH: token name → SHA-256 of the token in hexadecimal.
pub fn token_names() -> Key<FabricSpace> {
    Key::new("tokens:names")
}

/// HASH: pacemaker → when it last said that it serves (unix ms, this server's clock) and its version, a space between.
pub fn pacemakers() -> Key<FabricSpace> {
    Key::new("pacemakers")
}

/// HASH: who holds a singleton duty (`holder`), until when (`until_ms`, this server's clock), and the fencing `epoch`.
pub fn duty(name: &str) -> Key<FabricSpace> {
    Key::new(format!("duty:{name}"))
}

/// The event bus' keys of one shard.
#[derive(Debug, Clone)]
pub struct Bus<'a>(&'a Tag);

/// The event bus' keys of the shard with this tag.
pub fn bus(tag: &Tag) -> Bus<'_> {
    Bus(tag)
}

impl Bus<'_> {
    fn key(&self, name: impl std::fmt::Display) -> Key<FabricSpace> {
        Key::new(format!("{}{name}", self.0.as_str()))
    }

    /// The channel on which sleepers are woken: `now`, or the time in unix milliseconds until which they may sleep.
    pub fn wake_channel(&self) -> String {
        format!("{}bus:wake", self.0.as_str())
    }

    /// The channel on which a new stamp of the registry is announced.
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

    /// HASH of a subscription's metadata and of what moves in it.
    pub fn subscriber(&self, token: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:subscriber:{token}"))
    }

    /// HASH: token → name and scopes.
    pub fn api_tokens(&self) -> Key<FabricSpace> {
        self.key("bus:api_tokens")
    }

    /// INTEGER: the last id given out in the shard.
    pub fn last_event_id(&self) -> Key<FabricSpace> {
        self.key("bus:last.event.id")
    }

    /// HASH: the last ids of objects.
    pub fn objects(&self) -> Key<FabricSpace> {
        self.key("bus:objects")
    }

    /// HASH: the last ids of objects that have been quiet for long.
    pub fn objects_old(&self) -> Key<FabricSpace> {
        self.key("bus:objects:old")
    }

    /// HASH: when the two were exchanged.
    pub fn objects_state(&self) -> Key<FabricSpace> {
        self.key("bus:objects:state")
    }

    /// HASH: digest of an idempotency key → what was published under it.
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

    /// HASH: lane → the batch that fills.
    pub fn batches_current(&self, token: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:batches:current:{token}"))
    }

    /// LIST: a lane's ready batches; `lane` is `generation.lane`.
    pub fn batches_ready(&self, token: &str, lane: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:batches:ready:{token}:{lane}"))
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

    /// LIST: what a lane lost and has not told yet.
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

    /// LIST of jobs to be taken.
    pub fn jobs_instant(&self) -> Key<FabricSpace> {
        self.key("bus:jobs:instant:main")
    }

    /// SET of jobs that wait for an older generation.
    pub fn jobs_waiting(&self, token: &str) -> Key<FabricSpace> {
        self.key(format_args!("bus:jobs:waiting:{token}"))
    }

    /// SET of workers that hold a job.
    pub fn jobs_pending_index(&self) -> Key<FabricSpace> {
        self.key("bus:jobs:pending:index:main")
    }

    /// LIST: the job that a worker holds.
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

    /// HASH: token → bytes of its dead letters.
    pub fn dead_bytes(&self) -> Key<FabricSpace> {
        self.key("bus:dead.bytes")
    }

    /// HASH: lanes that are to be cleared away.
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
