//! The only part of the queues that talks to Redis: one function for each script, and the plain reads.

mod look;
mod manage;
mod message;
mod pull;
#[cfg(test)]
mod script_headers;
mod settle;

use std::sync::Arc;

use signalbox_store::{Call, Clock, Error, Fabric, FabricRole, Script, Shard, Subscription, keys};

pub(super) use look::FacetRow;
pub use manage::Configured;
pub use manage::DeadLetter;
pub(super) use manage::{DeadCall, DeadTaken};
pub(super) use message::{Act, ListCall, Search, SearchCall};
pub use message::{Place, Stored};
pub(super) use pull::{Consumer, PullCall, PullReply};
pub use pull::{Pulled, Taken};
pub(super) use settle::{Acked, Disposition, Held, Nacked};

/// The queues' data in one shard.
#[derive(Debug)]
pub struct Store {
    shard: Shard,
    clock: Clock,
}

impl Store {
    /// The data in `shard`. Scripts use the time of `clock`.
    pub fn new(shard: Shard, clock: Clock) -> Self {
        Self { shard, clock }
    }

    fn redis(&self) -> &Fabric {
        self.shard.redis()
    }

    /// A queue's keys.
    fn keys<'a>(&'a self, queue: &'a str) -> keys::queues::Queue<'a> {
        keys::queues::queue(self.shard.tag(), queue)
    }

    /// Starts a script call with the keys that all scripts begin with.
    fn call<'a>(&self, script: &'a Script<FabricRole>, queue: &str) -> Call<'a, FabricRole> {
        let shared = keys::queues::shared(self.shard.tag());
        script.call().key(&self.keys(queue).ring()).key(&shared.held()).key(&shared.due())
    }

    /// The channel that wakes this shard's sweepers and waiting pulls.
    pub(super) fn wake_channel(&self) -> String {
        keys::queues::shared(self.shard.tag()).wake_channel()
    }

    /// Subscribes to the wake channels of all `stores`, which are shards of one fabric.
    pub(super) fn wakes(stores: &[Arc<Self>]) -> Option<Subscription> {
        let channels: Vec<String> = stores.iter().map(|store| store.wake_channel()).collect();
        let channels: Vec<&str> = channels.iter().map(String::as_str).collect();
        stores.first().map(|store| store.redis().subscribe(&channels))
    }

    /// The time that scripts use, in unix milliseconds.
    pub async fn now_ms(&self) -> Result<u64, Error> {
        self.clock.now_ms(self.redis()).await
    }
}

/// The Lua functions that maintain the facets of queues. The publish script of the bus includes them.
pub const FACETS_LUA: &str = include_str!("../scripts/facets.lua");

/// Shared code of the queues' scripts; each script defines `main`.
const SHARED: &str = concat!(include_str!("../scripts/facets.lua"), "\nreturn main(facets)\n");

/// Every script of the queues, for the tests that check their headers.
#[cfg(test)]
pub(super) fn scripts() -> Vec<(&'static str, std::borrow::Cow<'static, str>)> {
    [manage::SCRIPTS, look::SCRIPTS, message::SCRIPTS, pull::SCRIPTS, settle::SCRIPTS]
        .into_iter()
        .flatten()
        .map(|(name, script)| (*name, script.source()))
        .collect()
}
