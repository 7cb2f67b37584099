//! The only part of the queues that talks to Redis: one function for each script, and the plain reads.

/// Declares scripts, which are composed with [`SHARED`], and lists them for the tests that check their headers.
macro_rules! scripts {
    ($($script:ident: $name:literal),+ $(,)?) => {
        $(static $script: signalbox_store::Script<signalbox_store::FabricRole> = signalbox_store::Script::composed(
            concat!("queues/", $name),
            &[include_str!(concat!("../scripts/", $name, ".lua")), super::SHARED],
        );)+

        #[cfg(test)]
        pub(super) const SCRIPTS: &[(&str, &signalbox_store::Script<signalbox_store::FabricRole>)] =
            &[$(($name, &$script)),+];
    };
}

mod look;
mod manage;
mod message;
mod pull;
#[cfg(test)]
mod script_headers;
mod settle;

use std::sync::Arc;

use signalbox_store::{Call, Clock, Error, Fabric, FabricRole, Script, Shard, Subscription, keys};

pub use manage::{Cleared, Configured};
pub use message::{Act, Stored};
pub use pull::Taken;
pub(super) use pull::{Consumer, PullCall, PullReply, Pulled};
pub(super) use settle::{Disposition, Held};

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

/// The Lua functions that maintain the tenants of queues. The publish script of the bus includes them.
pub const SLICES_LUA: &str = include_str!("../scripts/slices.lua");

/// Shared code of the queues' scripts; each script defines `main`.
const SHARED: &str = concat!(include_str!("../scripts/slices.lua"), "\nreturn main(slices)\n");

/// Every script of the queues, for the tests that check their headers.
#[cfg(test)]
pub(super) fn scripts() -> Vec<(&'static str, std::borrow::Cow<'static, str>)> {
    [manage::SCRIPTS, look::SCRIPTS, message::SCRIPTS, pull::SCRIPTS, settle::SCRIPTS]
        .into_iter()
        .flatten()
        .map(|(name, script)| (*name, script.source()))
        .collect()
}
