//! The due sets of a shard, one for each machine: what is due at which time. Each change of one also gives its machine the time of
//! its first entry, among the machines of the shard.

use std::collections::BTreeMap;

use signalbox_bus::SETTLE_LUA;
use signalbox_store::{Call, Error, FabricRole, Kind, Script, Subscription};

use super::Shards;

/// The parts of a script that changes a due set. It defines `main`. Its first two keys are the due set and the machines of the
/// shard by their times, and its first argument is the channel for a new earliest time.
pub(super) const fn changing(main: &'static str) -> [&'static str; 3] {
    [main, SETTLE_LUA, CHANGE]
}

const CHANGE: &str = include_str!("../scripts/change.lua");

pub(super) static SET: Script<FabricRole> =
    Script::composed("machines/set", &changing(include_str!("../scripts/set.lua")));
pub(super) static ADOPT: Script<FabricRole> =
    Script::composed("machines/adopt", &changing(include_str!("../scripts/adopt.lua")));
pub(super) static CORRECT: Script<FabricRole> =
    Script::composed("machines/due", &changing(include_str!("../scripts/due.lua")));
pub(super) static DROP: Script<FabricRole> =
    Script::composed("machines/drop", &changing(include_str!("../scripts/drop.lua")));
pub(super) static POSTPONE: Script<FabricRole> =
    Script::composed("machines/postpone", &changing(include_str!("../scripts/postpone.lua")));

/// The pause before the next attempt with a machine whose due set is damaged.
const DAMAGED_PAUSE_MS: u64 = 5_000;

/// The index of the machines with something due, after `machine:`.
pub(crate) const MACHINES: &str = "next";

/// The due set of a machine, after `machine:`.
pub(crate) fn due_index(machine: &str) -> String {
    format!("{machine}:due")
}

/// The name of the machine of an entry, also of one that cannot be read.
fn machine_of(member: &str) -> &str {
    member.split(' ').nth(1).unwrap_or_default()
}

/// An entry of a due set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Due {
    /// A retry, a feed to ask again, or an interval of one label.
    Label { machine: String, label: String },
    /// A time of day at a gate, for all labels there that use the zone.
    Sweep {
        machine: String,
        gate: String,
        /// `HH:MM:SS`, or another schedule without spaces.
        time: String,
        zone: String,
        /// Whether it concerns only labels whose own metadata names this zone.
        own: bool,
    },
    /// The next page of a task.
    Task { machine: String, id: String },
    /// Labels that wait for the limit of an address.
    Limit { machine: String, target: String },
}

impl Due {
    /// The member of the sorted set. Names of machines, gates and zones contain no space; the name of a label comes last.
    pub(crate) fn member(&self) -> String {
        match self {
            Self::Label { machine, label } => format!("l {machine} {label}"),
            Self::Task { machine, id } => format!("t {machine} {id}"),
            Self::Limit { machine, target } => format!("p {machine} {target}"),
            Self::Sweep { machine, gate, time, zone, own } => {
                format!("{} {machine} {gate} {time} {zone}", if *own { 'o' } else { 'w' })
            }
        }
    }

    /// The name of its machine.
    pub(crate) fn machine(&self) -> &str {
        match self {
            Self::Label { machine, .. }
            | Self::Task { machine, .. }
            | Self::Limit { machine, .. }
            | Self::Sweep { machine, .. } => machine,
        }
    }

    /// Reads a member of the sorted set.
    pub(crate) fn parse(member: &str) -> Option<Self> {
        let (kind, rest) = member.split_once(' ')?;
        let (machine, rest) = rest.split_once(' ')?;
        let machine = machine.to_owned();
        match kind {
            "t" => Some(Self::Task { machine, id: rest.to_owned() }),
            "p" => Some(Self::Limit { machine, target: rest.to_owned() }),
            "l" => Some(Self::Label { machine, label: rest.to_owned() }),
            "w" | "o" => {
                let mut parts = rest.split(' ').map(str::to_owned);
                let (gate, time, zone) = (parts.next()?, parts.next()?, parts.next()?);
                Some(Self::Sweep { machine, gate, time, zone, own: kind == "o" })
            }
            _ => None,
        }
    }
}

impl Shards {
    /// Starts a call of a script that changes the due set of a machine.
    pub(super) fn change_due<'a>(
        &self,
        script: &'a Script<FabricRole>,
        shard: usize,
        machine: &str,
    ) -> Call<'a, FabricRole> {
        let keys = self.keys(shard);
        script.call().key(&keys.due(machine)).key(&keys.next()).arg(keys.wake_channel())
    }
}

/// The due sets of all shards. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct DueSet(pub(crate) Shards);

impl DueSet {
    pub(crate) fn shards(&self) -> usize {
        self.0.count()
    }

    /// When the next entry of a shard is due, Unix milliseconds.
    pub(crate) async fn next(&self, shard: usize) -> Result<Option<u64>, Error> {
        let command = self.0.redis(shard).command("ZRANGE").key(&self.0.keys(shard).next());
        let first: Vec<(String, u64)> = command.arg(0).arg(0).arg("WITHSCORES").query().await?;
        Ok(first.first().map(|(_, at_ms)| *at_ms))
    }

    /// The machines that have something due at `now_ms`, the most overdue first.
    pub(crate) async fn machines(&self, shard: usize, now_ms: u64) -> Result<Vec<String>, Error> {
        let command = self.0.redis(shard).command("ZRANGE").key(&self.0.keys(shard).next());
        command.arg("-inf").arg(now_ms).arg("BYSCORE").query().await
    }

    /// The entries that are due at `now_ms`, the most overdue first: of each of these machines, at most so many.
    pub(crate) async fn due_of(
        &self,
        shard: usize,
        now_ms: u64,
        machines: &[(impl AsRef<str>, usize)],
    ) -> Result<Vec<Vec<(String, u64)>>, Error> {
        if machines.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = self.0.redis(shard).batch();
        for (machine, limit) in machines {
            let key = self.0.keys(shard).due(machine.as_ref());
            batch.add("ZRANGE", &key, ("-inf", now_ms, "BYSCORE", "LIMIT", 0, *limit, "WITHSCORES"));
        }
        match batch.query().await {
            Err(error) if error.kind() == Kind::Broken => {}
            found => return found,
        }
        // The set of one of them is damaged.
        let mut found = Vec::with_capacity(machines.len());
        for (machine, limit) in machines {
            let machine = machine.as_ref();
            let command = self.0.redis(shard).command("ZRANGE").key(&self.0.keys(shard).due(machine));
            let command = command.arg(("-inf", now_ms, "BYSCORE", "LIMIT", 0, *limit, "WITHSCORES"));
            found.push(match command.query().await {
                Err(error) if error.kind() == Kind::Broken => {
                    tracing::error!(machine, %error, "what the machine has due cannot be read");
                    self.put_off(shard, machine, now_ms + DAMAGED_PAUSE_MS).await?;
                    Vec::new()
                }
                entries => entries?,
            });
        }
        Ok(found)
    }

    /// Makes a machine wait for its turn until a later time.
    async fn put_off(&self, shard: usize, machine: &str, at_ms: u64) -> Result<(), Error> {
        let command = self.0.redis(shard).command("ZADD").key(&self.0.keys(shard).next());
        command.arg("XX").arg(at_ms).arg(machine).run().await
    }

    /// The first entries of a machine by time, whether they are due or not.
    pub(crate) async fn upcoming(
        &self,
        shard: usize,
        machine: &str,
        limit: usize,
    ) -> Result<Vec<(String, u64)>, Error> {
        let command = self.0.redis(shard).command("ZRANGE").key(&self.0.keys(shard).due(machine));
        command.arg(0).arg(limit.saturating_sub(1)).arg("WITHSCORES").query().await
    }

    /// How many entries are due, and since when the oldest is.
    pub(crate) async fn overdue(&self, shard: usize, now_ms: u64) -> Result<(u64, Option<u64>), Error> {
        let machines = self.machines(shard, now_ms).await?;
        if machines.is_empty() {
            return Ok((0, None));
        }
        let mut batch = self.0.redis(shard).batch();
        for machine in &machines {
            batch.add("ZCOUNT", &self.0.keys(shard).due(machine), ("-inf", now_ms));
        }
        let counts: Vec<u64> = batch.query().await?;
        Ok((counts.iter().sum(), self.next(shard).await?.filter(|first| *first <= now_ms)))
    }

    /// Moves entries from the set that all machines shared in earlier versions to those of their machines, the earliest first.
    /// Returns how many it found.
    pub(crate) async fn adopt(&self, shard: usize, limit: usize) -> Result<usize, Error> {
        let old = self.0.keys(shard).old_due();
        let command = self.0.redis(shard).command("ZRANGE").key(&old);
        let found: Vec<String> = command.arg(0).arg(limit.saturating_sub(1)).query().await?;
        let mut of_machines: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for member in &found {
            of_machines.entry(machine_of(member)).or_default().push(member);
        }
        for (machine, members) in of_machines {
            let call = self.0.change_due(&ADOPT, shard, machine).key(&old).arg(members);
            call.run::<u64>(self.0.redis(shard)).await?;
        }
        Ok(found.len())
    }

    /// Gives a machine the time of its first entry, if a damaged index has another one.
    pub(crate) async fn settle(&self, shard: usize, machine: &str) -> Result<(), Error> {
        let call = self.0.change_due(&SET, shard, machine).arg("").arg("").arg(0);
        call.run::<u64>(self.0.redis(shard)).await.map(drop)
    }

    /// Moves an entry to another time, or removes it.
    pub(crate) async fn set(&self, shard: usize, member: &str, at_ms: Option<u64>) -> Result<(), Error> {
        let at = at_ms.map(|at_ms| at_ms.to_string()).unwrap_or_default();
        let call = self.0.change_due(&SET, shard, machine_of(member)).arg(member).arg(at).arg(0);
        call.run::<u64>(self.0.redis(shard)).await.map(drop)
    }

    /// Moves an entry that is due at `from_ms` to `to_ms`. `begins` is whether it is a sweep, whose time is then stored. Returns
    /// whether the entry was moved: it was as it had been read.
    pub(crate) async fn postpone(
        &self,
        shard: usize,
        member: &str,
        (from_ms, to_ms): (u64, u64),
        begins: bool,
    ) -> Result<bool, Error> {
        let call = self.0.change_due(&POSTPONE, shard, machine_of(member));
        let call = call.key(&self.0.keys(shard).sweeps());
        let call = call.arg(member).arg(from_ms).arg(to_ms).arg(u8::from(begins));
        Ok(call.run::<u64>(self.0.redis(shard)).await? == 1)
    }

    /// Removes an entry that the active version of its machine does not need, with the progress of its sweep; `None` if the
    /// machine does not exist. If another version is active by now, the entry stays.
    pub(crate) async fn drop_entry(
        &self,
        shard: usize,
        member: &str,
        (machine, version): (&str, Option<u64>),
    ) -> Result<(), Error> {
        let keys = self.0.keys(shard);
        let call = self.0.change_due(&DROP, shard, machine).key(&keys.current(machine)).key(&keys.sweeps());
        call.arg(member).arg(version.unwrap_or(0)).run::<u64>(self.0.redis(shard)).await.map(drop)
    }

    /// Sets a label's entry to the time that its record requires, unless the record no longer begins with `header`.
    pub(crate) async fn correct(
        &self,
        (machine, label): (&str, &str),
        header: &[u8],
        at_ms: Option<u64>,
    ) -> Result<(), Error> {
        let shard = self.0.of(machine, label);
        let entry = Due::Label { machine: machine.to_owned(), label: label.to_owned() }.member();
        let at = at_ms.map(|at_ms| at_ms.to_string()).unwrap_or_default();
        let record = self.0.keys(shard).label(machine, label);
        let call = self.0.change_due(&CORRECT, shard, machine).key(&record);
        call.arg(header).arg(entry).arg(at).run::<u64>(self.0.redis(shard)).await.map(drop)
    }

    /// Adds an entry unless it exists. Returns whether it was added.
    pub(crate) async fn ensure(&self, shard: usize, member: &str, at_ms: u64) -> Result<bool, Error> {
        let call = self.0.change_due(&SET, shard, machine_of(member)).arg(member).arg(at_ms).arg(1);
        Ok(call.run::<u64>(self.0.redis(shard)).await? == 1)
    }

    /// The progress of a sweep: its instant in Unix milliseconds, and the last label that was evaluated.
    pub(crate) async fn progress(&self, shard: usize, member: &str) -> Result<Option<(u64, String)>, Error> {
        let command = self.0.redis(shard).command("HGET").key(&self.0.keys(shard).sweeps()).arg(member);
        let progress: Option<String> = command.query().await?;
        Ok(progress.and_then(|progress| {
            let (instant, label) = progress.split_once(' ')?;
            Some((instant.parse().ok()?, label.to_owned()))
        }))
    }

    /// Stores the progress of a sweep.
    pub(crate) async fn set_progress(
        &self,
        shard: usize,
        member: &str,
        instant_ms: u64,
        label: &str,
    ) -> Result<(), Error> {
        let key = self.0.keys(shard).sweeps();
        let progress = format!("{instant_ms} {label}");
        self.0.redis(shard).command("HSET").key(&key).arg(member).arg(progress).run().await
    }

    /// Ends a sweep: moves its entry to the next instant or removes it, and then removes its progress. A sweep without
    /// progress starts again, which evaluates labels twice but moves none twice.
    pub(crate) async fn end_sweep(
        &self,
        shard: usize,
        member: &str,
        next_ms: Option<u64>,
    ) -> Result<(), Error> {
        self.set(shard, member, next_ms).await?;
        self.0.redis(shard).command("HDEL").key(&self.0.keys(shard).sweeps()).arg(member).run().await
    }

    /// Subscribes to the messages that an entry is due before all others.
    pub(crate) fn wakes(&self) -> Subscription {
        let channels: Vec<String> = (0..self.shards()).map(|shard| self.wake_channel(shard)).collect();
        let names: Vec<&str> = channels.iter().map(String::as_str).collect();
        // Pub/sub ignores shards: a message reaches subscribers on every node.
        self.0.redis(0).subscribe(&names)
    }

    pub(crate) fn wake_channel(&self, shard: usize) -> String {
        self.0.keys(shard).wake_channel()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_reads_as_it_is_written() {
        let sweep = |own| Due::Sweep {
            machine: "m".into(),
            gate: "g".into(),
            time: "18:30:00".into(),
            zone: "Asia/Tokyo".into(),
            own,
        };
        let label = Due::Label { machine: "m".into(), label: "a b  c".into() };
        let limit = Due::Limit { machine: "m".into(), target: "https://a.example:8443".into() };
        for due in [sweep(true), sweep(false), label, limit] {
            assert_eq!(Due::parse(&due.member()), Some(due));
        }
        assert_eq!(["t m 1", "? m", "l"].map(machine_of), ["m", "m", ""]);
        for bad in ["", "l", "l m", "x m a", "w m g", "w m g 18:30"] {
            assert_eq!(Due::parse(bad), None, "{bad:?}");
        }
    }
}
