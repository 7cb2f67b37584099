//! The only part of the bus that talks to Redis: one function for each script, and the plain reads.

mod jobs;
mod log;
mod memory;
mod publish;
mod registry;

use std::sync::Arc;

use signalbox_store::{
    Call, Clock, Combiner, Error, Fabric, FabricRole, FabricSpace, Key, Script, Shard, SharedResult,
    Subscription, keys,
};

pub(super) use jobs::{Ack, Cursor, Held, Holder, Nack, Nacked, Skipped, Taken, Turn};
pub(super) use log::{Again, Appended, Holders, ReplayState, Resend, SEGMENT_IDS, read_item};
pub use memory::FabricMemory;
pub(super) use publish::{Accepted, FanOut, Group, InQueue, PublishCall, PublishReply, Published, Target};
pub(super) use registry::{Command, Committed, Stored};

/// One shard's data.
#[derive(Debug)]
pub(super) struct Store {
    shard: Shard,
    clock: Clock,
    /// The nine keys that every script of the lanes begins with.
    lanes: [Key<FabricSpace>; 9],
    acks: Arc<Combiner<(), Ack, SharedResult<bool>>>,
}

impl Store {
    pub(super) fn new(shard: Shard, clock: Clock) -> Self {
        let bus = keys::bus::bus(shard.tag());
        let lanes = [
            bus.batches_index(),
            bus.gauges_event(),
            bus.gauges_batch(),
            bus.jobs_index(),
            bus.jobs_scheduled(),
            bus.jobs_instant(),
            bus.jobs_pending_index(),
            bus.workers(),
            bus.counters(),
        ];
        Self { shard, clock, lanes, acks: Combiner::new(jobs::shared_acks) }
    }

    pub(super) fn shard(&self) -> &Shard {
        &self.shard
    }

    fn redis(&self) -> &Fabric {
        self.shard.redis()
    }

    pub(super) fn bus(&self) -> keys::bus::Bus<'_> {
        keys::bus::bus(self.shard.tag())
    }

    /// Starts a call of a script that works on lanes.
    fn lanes_call<'a>(&self, script: &'a Script<FabricRole>) -> Call<'a, FabricRole> {
        self.lanes.iter().fold(script.call(), |call, key| call.key(key))
    }

    /// Whether the server answers.
    pub(super) async fn ping(&self) -> Result<(), Error> {
        self.redis().command("PING").run().await
    }

    /// Hears when jobs can be taken: `now`, or the time until which one may sleep, in unix milliseconds.
    pub(super) fn wakes(&self) -> Subscription {
        self.redis().subscribe(&[&self.bus().wake_channel()])
    }

    /// Hears the stamps of changes of the registry.
    pub(super) fn registry_changes(&self) -> Subscription {
        self.redis().subscribe(&[&self.bus().registry_channel()])
    }

    /// Hears every event: channels are `tenant:type:topic`.
    pub(super) fn live(&self) -> Subscription {
        self.redis().subscribe_to_patterns(&["*:*:*"])
    }

    /// The time that scripts see, in unix milliseconds.
    pub(super) async fn now_ms(&self) -> Result<u64, Error> {
        self.clock.now_ms(self.redis()).await
    }
}

/// The Lua functions that keep the queues of objects with a backend. Publishing appends to them; the sequencer takes from
/// them.
pub const OBJECTS_LUA: &str = include_str!("../scripts/objects.lua");

/// The Lua function that a script calls after it has changed the due set of a machine.
pub const SETTLE_LUA: &str = include_str!("../scripts/settle.lua");

/// Shared code of the scripts that work on lanes and their batches; each script defines `main`. Workers are woken after `main`,
/// so that a script cannot return without that.
const LANES: &str = concat!(
    include_str!("../scripts/lanes.lua"),
    include_str!("../scripts/batches.lua"),
    "
local reply = main(lanes)
lanes.finish()
return reply
"
);
