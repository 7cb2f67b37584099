//! Permits of attempts whose addresses have limits, in the first shard; and the labels that wait for one, each in its shard.

use std::time::Duration;

use signalbox_machine::definition::Limit;
use signalbox_store::{Error, FabricRole, Script};

use super::{Due, Shards, due::changing};

pub(super) static PERMIT: Script<FabricRole> =
    Script::composed("machines/permit", &changing(include_str!("../scripts/permit.lua")));

/// The result of [`Permits::take`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permit {
    /// The attempt may begin.
    Taken,
    /// A limit is reached.
    Full,
    /// The attempt has a permit, which another caller uses.
    InUse,
}

/// Limits that all pacemakers share. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Permits(pub(crate) Shards);

/// The index of the labels that wait for a limit, after `machine:`.
pub(crate) fn queue(machine: &str, target: &str) -> String {
    format!("{machine}:limit:{target}")
}

impl Permits {
    /// The entry in the due set at which waiting labels are evaluated again.
    pub(crate) fn entry(machine: &str, target: &str) -> String {
        Due::Limit { machine: machine.to_owned(), target: target.to_owned() }.member()
    }

    /// Takes a permit for an attempt. It expires at `expires_ms`, if the process that has it dies.
    pub(crate) async fn take(
        &self,
        machine: &str,
        limit: &Limit,
        attempt: &str,
        (now_ms, expires_ms): (u64, u64),
    ) -> Result<Permit, Error> {
        let (rate, per) = limit.rate.unwrap_or((0, Duration::ZERO));
        let keys = self.0.keys(0);
        let call = self
            .0
            .change_due(&PERMIT, 0, machine)
            .key(&keys.permits(machine, &limit.target))
            .key(&keys.begun(machine, &limit.target))
            .arg(now_ms)
            .arg(attempt)
            .arg(expires_ms)
            .arg(limit.concurrent.unwrap_or(0))
            .arg(rate)
            .arg(u64::try_from(per.as_millis()).unwrap_or(u64::MAX))
            .arg(Self::entry(machine, &limit.target));
        Ok(match call.run::<i64>(self.0.redis(0)).await? {
            1 => Permit::Taken,
            -1 => Permit::InUse,
            _ => Permit::Full,
        })
    }

    /// Returns the permit of an attempt that has ended.
    pub(crate) async fn give_back(&self, machine: &str, target: &str, attempt: &str) -> Result<(), Error> {
        let key = self.0.keys(0).permits(machine, target);
        self.0.redis(0).command("ZREM").key(&key).arg(attempt).run().await
    }

    /// The labels that have waited for longest, at most `limit`, and since when they wait.
    pub(crate) async fn waiting(
        &self,
        machine: &str,
        target: &str,
        limit: usize,
    ) -> Result<Vec<(u64, String)>, Error> {
        let mut waiting = Vec::new();
        for shard in 0..self.0.count() {
            let key = self.0.keys(shard).index(&queue(machine, target));
            let command = self.0.redis(shard).command("ZRANGE").key(&key).arg(0).arg(limit.saturating_sub(1));
            let found: Vec<(String, u64)> = command.arg("WITHSCORES").query().await?;
            waiting.extend(found.into_iter().map(|(label, since_ms)| (since_ms, label)));
        }
        waiting.sort_unstable();
        waiting.truncate(limit);
        Ok(waiting)
    }

    /// How many labels wait for a limit, of those that began to wait before `before_ms`.
    pub(crate) async fn count_waiting(
        &self,
        machine: &str,
        target: &str,
        before_ms: Option<u64>,
    ) -> Result<u64, Error> {
        let last = before_ms.map_or_else(|| "+inf".to_owned(), |before_ms| format!("({before_ms}"));
        let mut count = 0;
        for shard in 0..self.0.count() {
            let key = self.0.keys(shard).index(&queue(machine, target));
            let command = self.0.redis(shard).command("ZCOUNT").key(&key).arg("-inf").arg(&last);
            count += command.query::<u64>().await?;
        }
        Ok(count)
    }

    /// How many attempts are in progress.
    pub(crate) async fn count_taken(&self, machine: &str, target: &str, now_ms: u64) -> Result<u64, Error> {
        let key = self.0.keys(0).permits(machine, target);
        let command = self.0.redis(0).command("ZCOUNT").key(&key).arg(format!("({now_ms}")).arg("+inf");
        command.query().await
    }
}
