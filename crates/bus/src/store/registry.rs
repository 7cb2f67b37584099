//! The registry: every shard stores a snapshot with a stamp; the first shard also stores it key by key.

use signalbox_store::{Error, FabricRole, FabricSpace, Key, Script};

use super::{LANES, Store};

static START: Script<FabricRole> =
    Script::new("registry_start", include_str!("../scripts/registry_start.lua"));
static COMMIT: Script<FabricRole> =
    Script::new("registry_commit", include_str!("../scripts/registry_commit.lua"));
static PURGE: Script<FabricRole> = Script::composed("purge", &[include_str!("../scripts/purge.lua"), LANES]);

/// A command of a change of the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    pub name: &'static str,
    pub key: Key<FabricSpace>,
    pub args: Vec<String>,
}

/// How a change of the registry ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Committed {
    Done,
    /// The stamp is another one: compute the change again.
    Stale,
    /// The registry does not exist.
    Empty,
}

/// The registry as a shard has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub fabric: String,
    pub stamp: String,
    pub snapshot: String,
    pub shards: usize,
}

type Row = (Option<String>, Option<String>, Option<String>, Option<usize>);

fn stored((fabric, stamp, snapshot, shards): Row) -> Option<Stored> {
    Some(Stored { fabric: fabric?, stamp: stamp?, snapshot: snapshot?, shards: shards? })
}

impl Store {
    /// The registry, unless the shard is empty.
    pub(crate) async fn registry(&self) -> Result<Option<Stored>, Error> {
        let fields = ["fabric", "stamp", "snapshot", "shards"];
        let row: Row =
            self.redis().command("HMGET").key(&self.bus().registry()).arg(&fields[..]).query().await?;
        Ok(stored(row))
    }

    /// The identity of the fabric and the stamp of the registry, without its content.
    pub(crate) async fn stamp(&self) -> Result<Option<(String, String)>, Error> {
        let fields = ["fabric", "stamp"];
        let (fabric, stamp): (Option<String>, Option<String>) =
            self.redis().command("HMGET").key(&self.bus().registry()).arg(&fields[..]).query().await?;
        Ok(fabric.zip(stamp))
    }

    /// Creates a registry unless there is one; returns the one that exists afterwards.
    pub(crate) async fn initialize(&self, wanted: &Stored) -> Result<Option<Stored>, Error> {
        let row: Row = START
            .call()
            .key(&self.bus().registry())
            .arg(&wanted.fabric)
            .arg(&wanted.stamp)
            .arg(&wanted.snapshot)
            .arg(wanted.shards)
            .run(self.redis())
            .await?;
        Ok(stored(row))
    }

    /// Changes the registry from stamp `from` to stamp `to`.
    pub(crate) async fn commit(
        &self,
        from: &str,
        to: &str,
        snapshot: &str,
        commands: &[Command],
    ) -> Result<Committed, Error> {
        let bus = self.bus();
        let mut call = COMMIT.call().key(&bus.registry());
        for command in commands {
            call = call.key(&command.key);
        }
        call = call.arg(from).arg(to).arg(snapshot).arg(bus.registry_channel());
        for (place, command) in commands.iter().enumerate() {
            call = call.arg(command.name).arg(place + 2).arg(command.args.len()).arg(&command.args);
        }
        Ok(match call.run::<i64>(self.redis()).await? {
            1 => Committed::Done,
            0 => Committed::Stale,
            _ => Committed::Empty,
        })
    }

    /// Whether there is a token of this digest.
    pub(crate) async fn has_api_token(&self, digest: &str) -> Result<bool, Error> {
        self.redis().command("HEXISTS").key(&self.bus().api_tokens()).arg(digest).query().await
    }

    /// Tokens whose lanes wait to be cleared away.
    pub(crate) async fn purges(&self) -> Result<Vec<String>, Error> {
        self.redis().command("HKEYS").key(&self.bus().purge()).query().await
    }

    /// Clears away a part of the lanes of a subscription that ended. True when there is more.
    pub(crate) async fn purge(&self, token: &str, events: usize) -> Result<bool, Error> {
        let call = self.lanes_call(&PURGE).key(&self.bus().purge()).arg(token).arg(events);
        Ok(call.run::<i64>(self.redis()).await? == 1)
    }

    /// A topic's count of events in this shard, for each of `topics`.
    pub(crate) async fn topic_counters(&self, topics: &[&str]) -> Result<Vec<u64>, Error> {
        let bus = self.bus();
        let mut counters = Vec::with_capacity(topics.len());
        for part in topics.chunks(1000) {
            let mut batch = self.redis().batch();
            for topic in part {
                batch.add("HGET", &bus.topic(topic), "counter");
            }
            let part: Vec<Option<u64>> = batch.query().await?;
            counters.extend(part.into_iter().map(Option::unwrap_or_default));
        }
        Ok(counters)
    }
}
