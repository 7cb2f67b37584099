//! The due set of a shard: labels with a pending time, and sweeps.

use signalbox_store::{Error, FabricRole, Script, Subscription};

use super::Shards;

pub(super) static CORRECT: Script<FabricRole> =
    Script::new("machines/due", include_str!("../scripts/due.lua"));
pub(super) static DROP: Script<FabricRole> =
    Script::new("machines/drop", include_str!("../scripts/drop.lua"));

pub(super) static POSTPONE: Script<FabricRole> =
    Script::new("machines/postpone", include_str!("../scripts/postpone.lua"));

/// An entry of the due set.
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

/// The due sets of all shards. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct DueSet(pub(crate) Shards);

impl DueSet {
    pub(crate) fn shards(&self) -> usize {
        self.0.count()
    }

    /// When the next entry of a shard is due, Unix milliseconds.
    pub(crate) async fn next(&self, shard: usize) -> Result<Option<u64>, Error> {
        let command = self.0.redis(shard).command("ZRANGE").key(&self.0.keys(shard).due());
        let first: Vec<(String, u64)> = command.arg(0).arg(0).arg("WITHSCORES").query().await?;
        Ok(first.first().map(|(_, at_ms)| *at_ms))
    }

    /// The entries that are due at `now_ms`, the most overdue first.
    pub(crate) async fn due(
        &self,
        shard: usize,
        now_ms: u64,
        limit: usize,
    ) -> Result<Vec<(String, u64)>, Error> {
        let command =
            self.0.redis(shard).command("ZRANGE").key(&self.0.keys(shard).due()).arg("-inf").arg(now_ms);
        command.arg("BYSCORE").arg("LIMIT").arg(0).arg(limit).arg("WITHSCORES").query().await
    }

    /// The first entries by time, whether they are due or not.
    pub(crate) async fn upcoming(&self, shard: usize, limit: usize) -> Result<Vec<(String, u64)>, Error> {
        let command = self.0.redis(shard).command("ZRANGE").key(&self.0.keys(shard).due());
        command.arg(0).arg(limit.saturating_sub(1)).arg("WITHSCORES").query().await
    }

    /// How many entries are due, and since when the oldest is.
    pub(crate) async fn overdue(&self, shard: usize, now_ms: u64) -> Result<(u64, Option<u64>), Error> {
        let count =
            self.0.redis(shard).command("ZCOUNT").key(&self.0.keys(shard).due()).arg("-inf").arg(now_ms);
        let count = count.query().await?;
        Ok((count, self.next(shard).await?.filter(|first| *first <= now_ms)))
    }

    /// Moves an entry to another time, or removes it.
    pub(crate) async fn set(&self, shard: usize, member: &str, at_ms: Option<u64>) -> Result<(), Error> {
        let key = self.0.keys(shard).due();
        let redis = self.0.redis(shard);
        match at_ms {
            Some(at_ms) => redis.command("ZADD").key(&key).arg(at_ms).arg(member).run().await,
            None => redis.command("ZREM").key(&key).arg(member).run().await,
        }
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
        let keys = self.0.keys(shard);
        let call = POSTPONE.call().key(&keys.due()).key(&keys.sweeps());
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
        let call = DROP.call().key(&keys.current(machine)).key(&keys.due()).key(&keys.sweeps());
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
        let keys = self.0.keys(shard);
        let call = CORRECT.call().key(&keys.label(machine, label)).key(&keys.due());
        call.arg(header).arg(entry).arg(at).run::<u64>(self.0.redis(shard)).await.map(drop)
    }

    /// Adds an entry unless it exists, and wakes the pacemakers that wait for the shard. Returns whether it was added.
    pub(crate) async fn ensure(&self, shard: usize, member: &str, at_ms: u64) -> Result<bool, Error> {
        let key = self.0.keys(shard).due();
        let added: u64 =
            self.0.redis(shard).command("ZADD").key(&key).arg("NX").arg(at_ms).arg(member).query().await?;
        if added == 1 {
            let channel = self.wake_channel(shard);
            self.0.redis(shard).command("PUBLISH").arg(channel).arg(at_ms).run().await?;
        }
        Ok(added == 1)
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

    /// Subscribes to the messages that an entry was added.
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
        for bad in ["", "l", "l m", "x m a", "w m g", "w m g 18:30"] {
            assert_eq!(Due::parse(bad), None, "{bad:?}");
        }
    }
}
