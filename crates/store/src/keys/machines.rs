//! State machines: on the fabric, in every shard.
//!
//! A label is the object `machine:<machine>:<label>`; its record stands where an object's state stands. Names of machines
//! and states hold no colon, so what belongs to a machine cannot be mistaken for what belongs to the shard.

use super::{Entry, row};
use crate::{FabricSpace, Key, Tag};

/// The rows of `docs/keys.md` for machines.
pub const CATALOG: &[Entry] = &[
    row("object:machine:<machine>:<label>:data", "string", "while the label exists, and 30 days after"),
    row("machine:<machine>:in:<state>", "zset", "while a label is in the state"),
    row("machine:<machine>:is:<status>", "zset", "while a label has the status"),
    row("machine:<machine>:gone", "zset", "30 days after a label was deleted"),
    row("machine:<machine>:zone:<gate>:<zone>", "zset", "while a label with that zone is at the gate"),
    row("machine:<machine>:current", "string", "for ever"),
    row("machine:<machine>:versions", "hash", "for ever"),
    row("machine:<machine>:plan:<plan>", "string", "an hour"),
    row("machine:applying", "hash", "until every shard has the version"),
    row("machine:names", "zset", "for ever"),
    row("machine:seen", "set", "for ever"),
    row("machine:due", "zset", "while something is due at a time"),
    row("machine:waves", "hash", "while a wave is under way"),
    row("machine:inputs", "hash", "for ever"),
];

/// The keys of machines in one shard.
#[derive(Debug, Clone)]
pub struct Machines<'a>(&'a Tag);

/// The keys of machines in the shard with this tag.
pub fn machines(tag: &Tag) -> Machines<'_> {
    Machines(tag)
}

impl Machines<'_> {
    fn key(&self, name: impl std::fmt::Display) -> Key<FabricSpace> {
        Key::new(format!("{}machine:{name}", self.0.as_str()))
    }

    /// STRING: a label's packed record.
    pub fn label(&self, machine: &str, label: &str) -> Key<FabricSpace> {
        Key::new(format!("{}object:machine:{machine}:{label}:data", self.0.as_str()))
    }

    /// What the keys of all labels' records begin with; behind it stand machine, colon, label and `:data`.
    pub fn label_prefix(&self) -> String {
        format!("{}object:machine:", self.0.as_str())
    }

    /// ZSET: an index by what stands behind `machine:` in its name.
    pub fn index(&self, name: &str) -> Key<FabricSpace> {
        self.key(name)
    }

    /// ZSET: the labels in a state, by name.
    pub fn in_state(&self, machine: &str, state: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:in:{state}"))
    }

    /// ZSET: the labels with a status that is not the usual one of their state, by name.
    pub fn with_status(&self, machine: &str, status: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:is:{status}"))
    }

    /// ZSET: deleted labels by when, unix milliseconds.
    pub fn gone(&self, machine: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:gone"))
    }

    /// ZSET: labels at a gate with a zone of their own, by name.
    pub fn in_zone(&self, machine: &str, gate: &str, zone: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:zone:{gate}:{zone}"))
    }

    /// STRING: the version of the machine's definition that counts in this shard.
    pub fn current(&self, machine: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:current"))
    }

    /// HASH: version → the machine's definition, never changed.
    pub fn versions(&self, machine: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:versions"))
    }

    /// STRING: a plan, with what it was computed from. In the first shard.
    pub fn plan(&self, machine: &str, plan: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:plan:{plan}"))
    }

    /// HASH: machine → a change of definition that is not in every shard yet. In the first shard.
    pub fn applying(&self) -> Key<FabricSpace> {
        self.key("applying")
    }

    /// ZSET: the machines, by name. In the first shard.
    pub fn names(&self) -> Key<FabricSpace> {
        self.key("names")
    }

    /// SET: digests of definitions that were applied once. In the first shard.
    pub fn seen(&self) -> Key<FabricSpace> {
        self.key("seen")
    }

    /// ZSET: labels and waves by when something is due for them, unix milliseconds.
    pub fn due(&self) -> Key<FabricSpace> {
        self.key("due")
    }

    /// HASH: wave → how far it came.
    pub fn waves(&self) -> Key<FabricSpace> {
        self.key("waves")
    }

    /// HASH: shard of the bus' log → the id up to which its events were taken as facts. In the first shard.
    pub fn inputs(&self) -> Key<FabricSpace> {
        self.key("inputs")
    }

    /// The channel that tells the time in unix milliseconds at which something is due earlier than anything before.
    pub fn wake_channel(&self) -> String {
        format!("{}machine:wake", self.0.as_str())
    }
}
