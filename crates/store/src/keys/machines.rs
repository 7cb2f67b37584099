//! State machines: on the fabric, in every shard.
//!
//! A label is the object `machine:<machine>:<label>`, and its record is stored as the object's state. Names of machines and
//! states contain no colon, so keys of a machine cannot collide with keys of the shard.

use super::{Entry, row};
use crate::{FabricSpace, Key, Tag};

/// The rows of `docs/keys.md` for machines.
pub const CATALOG: &[Entry] = &[
    row("object:machine:<machine>:<label>:data", "string", "while the label exists, and 30 days after"),
    row("object:machine:<machine>:<label>:log", "list", "machines.history_hours after its last line"),
    row("machine:<machine>:in:<state>", "zset", "while a label is in the state"),
    row("machine:<machine>:is:<status>", "zset", "while a label has the status"),
    row("machine:<machine>:by:<digest>", "zset", "while a label has the indexed value"),
    row("machine:<machine>:kept", "zset", "while a label is in a state with on_apply"),
    row("machine:<machine>:since:<state>", "zset", "while a label is in a state with an alert by age"),
    row("machine:<machine>:flow:<hour>", "hash", "eight days after its last count"),
    row("machine:<machine>:gone", "zset", "30 days after a label was deleted"),
    row("machine:<machine>:zone:<gate>:<zone>", "zset", "while a label with that zone is at the gate"),
    row("machine:<machine>:limit:<target>", "zset", "while a label waits for the limit of the address"),
    row("machine:<machine>:permits:<target>", "zset", "two hours after its last permit"),
    row("machine:<machine>:begun:<target>", "list", "two hours after its last permit"),
    row("machine:<machine>:current", "string", "no expiry"),
    row("machine:<machine>:versions", "hash", "no expiry"),
    row("machine:<machine>:plan:<plan>", "string", "an hour"),
    row("machine:applying", "hash", "until every shard has the version"),
    row("machine:names", "zset", "no expiry"),
    row("machine:seen", "set", "no expiry"),
    row("machine:retired", "hash", "no expiry"),
    row("machine:tasks", "hash", "a week after a task has ended"),
    row("machine:secrets", "hash", "until a secret or its machine is deleted"),
    row("machine:cancels", "hash", "until a canceled task has ended"),
    row("machine:due", "zset", "while something is due at a time"),
    row("machine:sweeps", "hash", "while a sweep is under way"),
    row("machine:inputs", "hash", "no expiry"),
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

    /// LIST: the lines of a label's log.
    pub fn log(&self, machine: &str, label: &str) -> Key<FabricSpace> {
        Key::new(format!("{}object:machine:{machine}:{label}:log", self.0.as_str()))
    }

    /// The prefix of the keys of all labels' records, followed by machine, colon, label and `:data`.
    pub fn label_prefix(&self) -> String {
        format!("{}object:machine:", self.0.as_str())
    }

    /// ZSET: the index with this name after `machine:`.
    pub fn index(&self, name: &str) -> Key<FabricSpace> {
        self.key(name)
    }

    /// ZSET: the labels in a state, by name.
    pub fn in_state(&self, machine: &str, state: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:in:{state}"))
    }

    /// ZSET: the labels with a status that is unusual in their state, by name.
    pub fn with_status(&self, machine: &str, status: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:is:{status}"))
    }

    /// ZSET: the labels with an indexed value, by name.
    pub fn by_value(&self, machine: &str, digest: u64) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:by:{digest:016x}"))
    }

    /// ZSET: deleted labels by the time of deletion, in unix milliseconds.
    pub fn gone(&self, machine: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:gone"))
    }

    /// ZSET: labels at a gate with their own time zone, by name.
    pub fn in_zone(&self, machine: &str, gate: &str, zone: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:zone:{gate}:{zone}"))
    }

    /// ZSET: the labels that stay on a version until they leave their state, by the version.
    pub fn kept(&self, machine: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:kept"))
    }

    /// ZSET: the labels in a state, by when they entered it.
    pub fn since(&self, machine: &str, state: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:since:{state}"))
    }

    /// ZSET: attempt that has a permit → when the permit expires, in unix milliseconds. In the first shard.
    pub fn permits(&self, machine: &str, target: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:permits:{target}"))
    }

    /// LIST: when the last attempts were permitted, in unix milliseconds, the newest first. In the first shard.
    pub fn begun(&self, machine: &str, target: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:begun:{target}"))
    }

    /// HASH: kind of transition in this hour → its count. In the first shard.
    pub fn flow(&self, machine: &str, hour: u64) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:flow:{hour}"))
    }

    /// STRING: the active version of the machine's definition in this shard.
    pub fn current(&self, machine: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:current"))
    }

    /// HASH: version → the machine's definition, never changed.
    pub fn versions(&self, machine: &str) -> Key<FabricSpace> {
        self.key(format_args!("{machine}:versions"))
    }

    /// STRING: a plan and its inputs. In the first shard.
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

    /// SET: digests of definitions that were applied before. In the first shard.
    pub fn seen(&self) -> Key<FabricSpace> {
        self.key("seen")
    }

    /// HASH: machine that was deleted → the number of its last version. In the first shard.
    pub fn retired(&self) -> Key<FabricSpace> {
        self.key("retired")
    }

    /// HASH: machine and task → JSON of the task and its progress. In the first shard.
    pub fn tasks(&self) -> Key<FabricSpace> {
        self.key("tasks")
    }

    /// HASH: machine and name → JSON of a secret, whose value is encrypted. In the first shard.
    pub fn secrets(&self) -> Key<FabricSpace> {
        self.key("secrets")
    }

    /// HASH: machine and task → the client that canceled it. In the first shard.
    pub fn cancels(&self) -> Key<FabricSpace> {
        self.key("cancels")
    }

    /// ZSET: labels and sweeps by their due time, in unix milliseconds.
    pub fn due(&self) -> Key<FabricSpace> {
        self.key("due")
    }

    /// HASH: sweep → its progress.
    pub fn sweeps(&self) -> Key<FabricSpace> {
        self.key("sweeps")
    }

    /// HASH: shard of the bus's log → the ID up to which its events were processed as inputs. In the first shard.
    pub fn inputs(&self) -> Key<FabricSpace> {
        self.key("inputs")
    }

    /// The channel for a new earliest due time, in unix milliseconds.
    pub fn wake_channel(&self) -> String {
        format!("{}machine:wake", self.0.as_str())
    }
}
