//! State machines: on the fabric, in every shard.
//!
//! A label is the object `machine:<machine>:<label>`, and its record is stored as the object's state. Names of machines and
//! states contain no colon, so keys of a machine cannot collide with keys of the shard.

use crate::{FabricSpace, Key, Tag};

/// The keys of machines in one shard.
#[derive(Debug, Clone)]
pub struct Machines<'a>(&'a Tag);

/// The keys of machines in the shard with this tag.
pub fn machines(tag: &Tag) -> Machines<'_> {
    Machines(tag)
}

impl Machines<'_> {
    /// The prefix of the keys of all labels' records, followed by machine, colon, label and `:data`.
    pub fn label_prefix(&self) -> String {
        format!("{}object:machine:", self.0.as_str())
    }

    /// ZSET: the index with this name after `machine:`.
    pub fn index(&self, name: &str) -> Key<FabricSpace> {
        Key::new(format!("{}machine:{name}", self.0.as_str()))
    }

    /// ZSET: the labels with an indexed value, by name.
    pub fn by_value(&self, machine: &str, digest: u64) -> Key<FabricSpace> {
        self.index(&format!("{machine}:by:{digest:016x}"))
    }

    /// The channel for a new earliest due time, in unix milliseconds.
    pub fn wake_channel(&self) -> String {
        format!("{}machine:wake", self.0.as_str())
    }
}

keys! {
    impl Machines() {
        /// STRING: a label's packed record.
        label(machine: &str, label: &str) = "object:machine:{machine}:{label}:data",
            "string", "while the label exists, and 30 days after";
        /// LIST: the lines of a label's log.
        log(machine: &str, label: &str) = "object:machine:{machine}:{label}:log",
            "list", "machines.history_hours after its last line";
        /// ZSET: the labels in a state, by name.
        in_state(machine: &str, state: &str) = "machine:{machine}:in:{state}",
            "zset", "while a label is in the state";
        /// ZSET: the labels with a status that is unusual in their state, by name.
        with_status(machine: &str, status: &str) = "machine:{machine}:is:{status}",
            "zset", "while a label has the status";
        /// ZSET: the labels that stay on a version until they leave their state, by the version.
        kept(machine: &str) = "machine:{machine}:kept", "zset", "while a label is in a state with on_apply";
        /// ZSET: the labels in a state, by when they entered it.
        since(machine: &str, state: &str) = "machine:{machine}:since:{state}",
            "zset", "while a label is in a state with an alert by age";
        /// HASH: kind of transition in this hour → its count. In the first shard.
        flow(machine: &str, hour: u64) = "machine:{machine}:flow:{hour}",
            "hash", "eight days after its last count";
        /// ZSET: deleted labels by the time of deletion, in unix milliseconds.
        gone(machine: &str) = "machine:{machine}:gone", "zset", "30 days after a label was deleted";
        /// ZSET: labels at a gate with their own time zone, by name.
        in_zone(machine: &str, gate: &str, zone: &str) = "machine:{machine}:zone:{gate}:{zone}",
            "zset", "while a label with that zone is at the gate";
        /// ZSET: attempt that has a permit → when the permit expires, in unix milliseconds. In the first shard.
        permits(machine: &str, target: &str) = "machine:{machine}:permits:{target}",
            "zset", "two hours after its last permit";
        /// LIST: when the last attempts were permitted, in unix milliseconds, the newest first. In the first shard.
        begun(machine: &str, target: &str) = "machine:{machine}:begun:{target}",
            "list", "two hours after its last permit";
        /// STRING: the active version of the machine's definition in this shard.
        current(machine: &str) = "machine:{machine}:current", "string", "no expiry";
        /// HASH: version → JSON of the machine's definition without its text, never changed.
        versions(machine: &str) = "machine:{machine}:versions", "hash", "no expiry";
        /// HASH: version → the text of the machine's definition, never changed.
        sources(machine: &str) = "machine:{machine}:sources", "hash", "no expiry";
        /// STRING: a plan and its inputs. In the first shard.
        plan(machine: &str, plan: &str) = "machine:{machine}:plan:{plan}", "string", "an hour";
        /// ZSET: the keys of a client's plans, by when they were made. In the first shard.
        plans(client: &str) = "plans:{client}", "zset", "an hour after the last plan";
        /// HASH: client → the bytes of its definitions of the machine in this shard.
        definition_bytes(machine: &str) = "machine:{machine}:definitions", "hash", "while the machine exists";
        /// HASH: machine → a change of definition that is not in every shard yet. In the first shard.
        applying() = "machine:applying", "hash", "until every shard has the version";
        /// ZSET: the machines, by name. In the first shard.
        names() = "machine:names", "zset", "no expiry";
        /// SET: digests of definitions that were applied before. In the first shard.
        seen() = "machine:seen", "set", "no expiry";
        /// HASH: machine that was deleted → the number of its last version. In the first shard.
        retired() = "machine:retired", "hash", "no expiry";
        /// HASH: task → JSON of a task of the machine and its progress. In the first shard.
        tasks(machine: &str) = "machine:{machine}:tasks", "hash", "a week after its last task has ended";
        /// ZSET: machine, task and client of each task that runs, by name. In the first shard.
        running() = "machine:running", "zset", "while a task runs";
        /// HASH: what earlier versions have stored instead of the tasks of machines. In the first shard.
        old_tasks() = "machine:tasks", "hash", "until a pacemaker moves its tasks to the hashes of their machines";
        /// HASH: machine and name → JSON of a secret, whose value is encrypted. In the first shard.
        secrets() = "machine:secrets", "hash", "until a secret or its machine is deleted";
        /// HASH: machine and task → the client that canceled it. In the first shard.
        cancels() = "machine:cancels", "hash", "until a canceled task has ended";
        /// HASH: machine → bytes that a recount of its labels has found and the last label that was counted, or a mark that all are
        /// counted.
        recounts() = "machine:recounts", "hash", "while the machine exists";
        /// ZSET: the machine's labels, sweeps, tasks and limits by their due time, in unix milliseconds.
        due(machine: &str) = "machine:{machine}:due", "zset", "while something is due at a time";
        /// ZSET: machines by the due time of their first entry, in unix milliseconds.
        next() = "machine:next", "zset", "while something is due at a time";
        /// ZSET: what earlier versions have stored instead of the due sets of machines.
        old_due() = "machine:due", "zset", "until a pacemaker moves its entries to the due sets of their machines";
        /// HASH: sweep → its progress.
        sweeps() = "machine:sweeps", "hash", "while a sweep is under way";
        /// HASH: machine → up to which event of this shard its inputs have applied the log, and its versions since then.
        inputs() = "machine:inputs", "hash", "while a machine has inputs";
        _ = "machine:{machine}:by:{digest}", "zset", "while a label has the indexed value";
        _ = "machine:{machine}:limit:{target}", "zset", "while a label waits for the limit of the address";
    }
}
