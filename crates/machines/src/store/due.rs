//! What is due in a shard: labels with a time of their own, and waves.

use signalbox_store::{Error, FabricRole, Script};

use super::Store;

pub(super) static CORRECT: Script<FabricRole> =
    Script::new("machines/due", include_str!("../scripts/due.lua"));

/// Something that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Due {
    /// A retry, a feed to be asked again, an interval.
    Label { machine: String, label: String },
    /// A time of day at a gate, for all labels there that go by the zone.
    Wave {
        machine: String,
        gate: String,
        /// `HH:MM:SS`.
        time: String,
        zone: String,
        /// Whether it is of the labels that have this zone by their own metadata.
        own: bool,
    },
}

impl Due {
    /// How it stands in the set. Names of machines, gates and zones hold no space; that of a label comes last.
    pub(crate) fn member(&self) -> String {
        match self {
            Self::Label { machine, label } => format!("l {machine} {label}"),
            Self::Wave { machine, gate, time, zone, own } => {
                format!("{} {machine} {gate} {time} {zone}", if *own { 'o' } else { 'w' })
            }
        }
    }

    pub(crate) fn parse(member: &str) -> Option<Self> {
        let (kind, rest) = member.split_once(' ')?;
        let (machine, rest) = rest.split_once(' ')?;
        let machine = machine.to_owned();
        match kind {
            "l" => Some(Self::Label { machine, label: rest.to_owned() }),
            "w" | "o" => {
                let mut parts = rest.split(' ').map(str::to_owned);
                let (gate, time, zone) = (parts.next()?, parts.next()?, parts.next()?);
                Some(Self::Wave { machine, gate, time, zone, own: kind == "o" })
            }
            _ => None,
        }
    }
}

impl Store {
    /// When something is due next in the shard, unix milliseconds.
    pub(crate) async fn next_due(&self, shard: usize) -> Result<Option<u64>, Error> {
        let command = self.redis(shard).command("ZRANGE").key(&self.keys(shard).due());
        let first: Vec<(String, f64)> = command.arg(0).arg(0).arg("WITHSCORES").query().await?;
        Ok(first.first().map(|(_, score)| whole(*score)))
    }

    /// What is due at `now_ms`, the most overdue first.
    pub(crate) async fn due(
        &self,
        shard: usize,
        now_ms: u64,
        most: usize,
    ) -> Result<Vec<(String, u64)>, Error> {
        let command =
            self.redis(shard).command("ZRANGE").key(&self.keys(shard).due()).arg("-inf").arg(now_ms);
        let command = command.arg("BYSCORE").arg("LIMIT").arg(0).arg(most).arg("WITHSCORES");
        let found: Vec<(String, f64)> = command.query().await?;
        Ok(found.into_iter().map(|(member, score)| (member, whole(score))).collect())
    }

    /// What is due first, also what is due only later.
    pub(crate) async fn upcoming(&self, shard: usize, most: usize) -> Result<Vec<(String, u64)>, Error> {
        let command = self.redis(shard).command("ZRANGE").key(&self.keys(shard).due());
        let command = command.arg(0).arg(most.saturating_sub(1)).arg("WITHSCORES");
        let found: Vec<(String, f64)> = command.query().await?;
        Ok(found.into_iter().map(|(member, score)| (member, whole(score))).collect())
    }

    /// How many labels a wave may look at: those at the gate, or those with this zone of their own.
    pub(crate) async fn count_wave(
        &self,
        shard: usize,
        machine: &str,
        gate: &str,
        zone: Option<&String>,
    ) -> Result<u64, Error> {
        let keys = self.keys(shard);
        let key = match zone {
            Some(zone) => keys.in_zone(machine, gate, zone),
            None => keys.in_state(machine, gate),
        };
        self.redis(shard).command("ZCARD").key(&key).query().await
    }

    /// How many entries are due, and since when the oldest is.
    pub(crate) async fn overdue(&self, shard: usize, now_ms: u64) -> Result<(u64, Option<u64>), Error> {
        let count = self.redis(shard).command("ZCOUNT").key(&self.keys(shard).due()).arg("-inf").arg(now_ms);
        let count = count.query().await?;
        Ok((count, self.next_due(shard).await?.filter(|first| *first <= now_ms)))
    }

    /// Takes out an entry that nothing belongs to any more, or puts it to another time.
    pub(crate) async fn set_due(&self, shard: usize, member: &str, at_ms: Option<u64>) -> Result<(), Error> {
        let key = self.keys(shard).due();
        match at_ms {
            Some(at_ms) => self.redis(shard).command("ZADD").key(&key).arg(at_ms).arg(member).run().await,
            None => self.redis(shard).command("ZREM").key(&key).arg(member).run().await,
        }
    }

    /// Puts the entry of a label where its record, which begins with `header`, wants it; leaves it alone when the record is
    /// another by now.
    pub(crate) async fn correct_due(
        &self,
        (machine, label): (&str, &str),
        header: &[u8],
        at_ms: Option<u64>,
    ) -> Result<(), Error> {
        let shard = self.shard_of(machine, label);
        let entry = Due::Label { machine: machine.to_owned(), label: label.to_owned() }.member();
        let at = at_ms.map(|at_ms| at_ms.to_string()).unwrap_or_default();
        let keys = self.keys(shard);
        let call = CORRECT.call().key(&keys.label(machine, label)).key(&keys.due());
        call.arg(header).arg(entry).arg(at).run::<u64>(self.redis(shard)).await.map(drop)
    }

    /// Adds an entry unless it stands already. Sleepers hear of it.
    pub(crate) async fn ensure_due(&self, shard: usize, member: &str, at_ms: u64) -> Result<(), Error> {
        let key = self.keys(shard).due();
        let added: u64 =
            self.redis(shard).command("ZADD").key(&key).arg("NX").arg(at_ms).arg(member).query().await?;
        if added == 1 {
            let channel = self.wake_channel(shard);
            self.redis(shard).command("PUBLISH").arg(channel).arg(at_ms).run().await?;
        }
        Ok(())
    }

    /// How far a wave came: the instant that it is of, and the last label that was judged.
    pub(crate) async fn wave(&self, shard: usize, member: &str) -> Result<Option<(u64, String)>, Error> {
        let command = self.redis(shard).command("HGET").key(&self.keys(shard).waves()).arg(member);
        let cursor: Option<String> = command.query().await?;
        Ok(cursor.and_then(|cursor| {
            let (instant, label) = cursor.split_once(' ')?;
            Some((instant.parse().ok()?, label.to_owned()))
        }))
    }

    /// Notes how far a wave came.
    pub(crate) async fn set_wave(
        &self,
        shard: usize,
        member: &str,
        instant_ms: u64,
        label: &str,
    ) -> Result<(), Error> {
        let key = self.keys(shard).waves();
        let cursor = format!("{instant_ms} {label}");
        self.redis(shard).command("HSET").key(&key).arg(member).arg(cursor).run().await
    }

    /// A wave is over: its entry goes to the next instant, or away, and then the cursor is forgotten. A wave that is
    /// found without a cursor begins anew, which judges labels twice but moves none twice.
    pub(crate) async fn end_wave(
        &self,
        shard: usize,
        member: &str,
        next_ms: Option<u64>,
    ) -> Result<(), Error> {
        self.set_due(shard, member, next_ms).await?;
        self.redis(shard).command("HDEL").key(&self.keys(shard).waves()).arg(member).run().await
    }
}

/// Scores are unix milliseconds, far below what a double holds exactly.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and positive")]
pub(super) fn whole(score: f64) -> u64 {
    score as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_reads_as_it_is_written() {
        let wave = |own| Due::Wave {
            machine: "m".into(),
            gate: "g".into(),
            time: "18:30:00".into(),
            zone: "Asia/Tokyo".into(),
            own,
        };
        let label = Due::Label { machine: "m".into(), label: "a b  c".into() };
        for due in [wave(true), wave(false), label] {
            assert_eq!(Due::parse(&due.member()), Some(due));
        }
        for bad in ["", "l", "l m", "x m a", "w m g", "w m g 18:30"] {
            assert_eq!(Due::parse(bad), None, "{bad:?}");
        }
    }
}
