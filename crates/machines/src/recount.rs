//! Counts the bytes of all labels again after an upgrade.
//!
//! If the memory of the fabric is short, the machine whose labels use most gets no more of them. Each change of a label adds
//! to the count of its machine. A release without these counts may have written to the fabric, so a machine is counted when a
//! process starts, unless it has a mark. Pacemakers of the earlier release may still run then. So each machine is counted a
//! second time after [`UPGRADE`], and only this recount marks it: later starts count nothing. A process that ends earlier leaves
//! that to the next start.
//!
//! A recount goes through the labels of a machine by name, a page at a time, and notes in the fabric how far it is. Changes of
//! labels before that name are added to it, so it is exact, and several pacemakers may do it together. It pauses after each page
//! for longer than the page took.
//!
//! A machine that cannot be counted delays no other, and is tried again after increasing pauses. Its count stays as it is, even if
//! a version of its definition cannot be read: labels may be in states that only this version names.

use std::{
    collections::{BTreeSet, HashSet},
    time::Duration,
};

use signalbox_store::Kind;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::{
    Error,
    definitions::Definitions,
    store::{LabelBytes, Records},
};

/// About as many labels are counted in a page.
pub(crate) const PAGE: usize = 250;
/// Machines with more states are not counted: each page reads the names in all states.
const MAX_STATES: usize = 250;
/// The shortest pause after a page.
const PAUSE: Duration = Duration::from_millis(2);
/// How often a recount begins again because a definition was applied.
const ATTEMPTS: usize = 3;
/// The pause before machines that could not be counted are tried again doubles from the first to the second.
const RETRIES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));
/// All pacemakers are upgraded within this time.
const UPGRADE: Duration = Duration::from_secs(3600);

/// The states of a machine, and the number of its active version.
type States = (u64, Vec<String>);

/// Counts again.
#[derive(Debug, Clone)]
pub(crate) struct Recounter {
    pub(crate) definitions: Definitions,
    pub(crate) records: Records,
    pub(crate) bytes: LabelBytes,
    /// Labels of a page.
    pub(crate) page: usize,
}

/// Machines that still have to be counted, and those whose failure was logged.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// `None`: all.
    pub(crate) machines: Option<Vec<String>>,
    reported: HashSet<String>,
}

impl Recounter {
    /// Counts all machines without a mark, and an hour later again; then they get one.
    pub(crate) async fn run(&self) {
        let upgraded = Instant::now() + UPGRADE;
        _ = timeout_at(upgraded, Box::pin(self.count_all(false))).await;
        sleep_until(upgraded).await;
        Box::pin(self.count_all(true)).await;
    }

    async fn count_all(&self, is_last: bool) {
        let (mut left, (mut pause, longest)) = (Left::default(), RETRIES);
        while !self.round(&mut left, is_last).await {
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Counts the machines that are left, one after the other. Returns whether none is left.
    pub(crate) async fn round(&self, left: &mut Left, is_last: bool) -> bool {
        let machines = match left.machines.take() {
            Some(machines) => machines,
            None => match self.definitions.names().await {
                Ok(machines) => machines,
                Err(error) => {
                    tracing::debug!(%error, "bytes of labels not counted again yet");
                    return false;
                }
            },
        };
        let (mut failed, mut is_away) = (Vec::new(), false);
        for machine in machines {
            if is_away {
                failed.push(machine);
                continue;
            }
            let error = match Box::pin(self.count(&machine, is_last)).await {
                // It was deleted.
                Ok(()) | Err(Error::NoSuchMachine | Error::NoSuchVersion) => continue,
                Err(error) => error,
            };
            is_away = matches!(&error, Error::Store(error) if error.kind() == Kind::Unavailable);
            if is_away {
                tracing::debug!(%error, "bytes of labels not counted again yet");
            } else if left.reported.insert(machine.clone()) {
                tracing::warn!(machine, %error, "bytes of labels not counted again");
            }
            // A version that this process cannot read stays stored.
            if !matches!(error, Error::Unreadable) {
                failed.push(machine);
            }
        }
        let is_done = failed.is_empty();
        left.machines = Some(failed);
        is_done
    }

    /// Counts the labels of a machine, unless it has a mark. If this is the last recount, it gets one.
    async fn count(&self, machine: &str, is_last: bool) -> Result<(), Error> {
        if self.bytes.is_counted(machine).await? {
            return Ok(());
        }
        for _ in 0..ATTEMPTS {
            let before = self.states(machine).await?;
            let states = self.with_abandoned(machine, &before.1).await?;
            if states.len() > MAX_STATES {
                tracing::warn!(
                    machine,
                    states = states.len(),
                    "too many states to count the bytes of labels again"
                );
                return Ok(());
            }
            for shard in 0..self.bytes.shards() {
                self.bytes.begin(shard, machine).await?;
                loop {
                    let began = Instant::now();
                    if self.next(shard, machine, &states).await? {
                        break;
                    }
                    sleep(PAUSE + began.elapsed()).await;
                }
            }
            // A label may have come into a state that was not known.
            if self.states(machine).await? == before {
                return if is_last { Ok(self.bytes.mark(machine).await?) } else { Ok(()) };
            }
        }
        Err(Error::ApplyUnderWay)
    }

    /// The states into which labels may come, as the fabric has them now.
    async fn states(&self, machine: &str) -> Result<States, Error> {
        for shard in 0..self.bytes.shards() {
            self.definitions.forget(machine, shard);
        }
        let number = self.definitions.active_number(machine).await?;
        Ok((number, self.definitions.present_states(machine).await?))
    }

    /// The same, and the other states in which labels are: of versions that were replaced although they could not be read.
    ///
    /// # Errors
    /// [`Error::Unreadable`] if a version cannot be read.
    async fn with_abandoned(&self, machine: &str, present: &[String]) -> Result<Vec<String>, Error> {
        let all = self.definitions.all_states(machine).await?;
        if !all.complete {
            return Err(Error::Unreadable);
        }
        let known: BTreeSet<&String> = present.iter().collect();
        let others: Vec<String> = all.names.into_iter().filter(|name| !known.contains(name)).collect();
        let counts = self.records.count_states(machine, &others).await?;
        let abandoned = others.into_iter().zip(counts).filter(|(_, count)| *count > 0);
        Ok(present.iter().cloned().chain(abandoned.map(|(name, _)| name)).collect())
    }

    /// Counts a page. Returns whether it was the last.
    pub(crate) async fn next(&self, shard: usize, machine: &str, states: &[String]) -> Result<bool, Error> {
        Ok(self.bytes.count_next(shard, machine, states, self.page).await?)
    }
}
