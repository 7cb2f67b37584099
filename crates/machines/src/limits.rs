//! Limits of addresses: how many attempts of webhooks may begin in a period, and be in progress, in the whole system.
//!
//! A label whose action calls such an address waits before its attempt is counted. It is then in a queue, an index of its
//! shard that its record determines, so it cannot be lost and leaves the queue with the state. The first shard has the
//! *permits*: one for each attempt in progress, and the times of the last ones. Any pacemaker admits the label that has
//! waited for longest: when a label begins to wait, when an attempt ends, and when the limit's entry in the due set is due.
//!
//! A permit expires when the process that died with it can no longer be waiting for an answer: with the label's own time in
//! the due set, five seconds after the timeout of the attempt.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use signalbox_machine::{Machine, State};

use crate::{
    Error,
    clock::Clock,
    definitions::Definitions,
    evaluator::{ATTEMPT_SLACK_MS, ms},
    label_store::LabelStore,
    record::{Record, Status},
    store::{DueSet, Permit, Permits},
};

/// Labels that are read together.
const PAGE: usize = 64;
/// The longest timeout of an action.
const MAX_TIMEOUT: Duration = Duration::from_secs(300);

/// The name of the permit for an attempt of a label.
pub(crate) fn permit(label: &str, record: &Record, attempt: u32) -> String {
    format!("{}.{}.{attempt} {label}", record.incarnation, record.visit)
}

/// Labels that may begin an attempt.
#[derive(Debug, Default)]
pub(crate) struct Admitted {
    /// Labels and their permits.
    pub(crate) permits: Vec<(String, String)>,
    /// Whether more labels may be admitted after these.
    pub(crate) more: bool,
}

/// Machine and target → whether a call came during the turn.
type Turns = HashMap<(String, String), bool>;

/// The turn of this process to admit labels. It ends when it is dropped.
pub(crate) struct AdmitTurn<'a> {
    limits: &'a Limits,
    key: (String, String),
    ended: bool,
}

/// Decides which waiting labels may begin an attempt.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) permits: Permits,
    pub(crate) due: DueSet,
    pub(crate) definitions: Definitions,
    pub(crate) labels: Arc<LabelStore>,
    pub(crate) clock: Clock,
    pub(crate) turns: Mutex<Turns>,
}

impl Limits {
    /// Begins a turn. `None` if one is under way in this process, which then looks again.
    pub(crate) fn begin(&self, machine: &str, target: &str) -> Option<AdmitTurn<'_>> {
        let key = (machine.to_owned(), target.to_owned());
        let mut turns = self.turns.lock();
        if let Some(called) = turns.get_mut(&key) {
            *called = true;
            return None;
        }
        turns.insert(key.clone(), false);
        Some(AdmitTurn { limits: self, key, ended: false })
    }

    /// Takes permits for the labels that have waited for longest.
    pub(crate) async fn next(&self, machine: &str, target: &str) -> Result<Admitted, Error> {
        let waiting = self.permits.waiting(machine, target, PAGE).await?;
        if waiting.is_empty() {
            return self.retire(machine, target).await;
        }
        let definition = match self.definitions.of(machine, 0).await {
            Ok(version) => version.machine,
            // Its labels are being deleted.
            Err(Error::NoSuchMachine) => return Ok(Admitted::default()),
            Err(error) => return Err(error),
        };
        let mut admitted = Admitted::default();
        for (_, label) in waiting {
            let record = match self.labels.read(machine, &label).await {
                Ok(record) => record,
                Err(Error::Unreadable) => continue,
                Err(error) => return Err(error),
            };
            let waits = |record: &Record| record.work.limit().is_some_and(|(_, known)| known == target);
            let Some(record) = record.filter(|record| record.status == Status::Acting && waits(record))
            else {
                continue;
            };
            let name = permit(&label, &record, record.work.attempts + 1);
            match self.take(&definition, target, &record, &name).await? {
                Permit::Taken => admitted.permits.push((label, name)),
                Permit::InUse => {}
                Permit::Full => return Ok(admitted),
            }
        }
        admitted.more = !admitted.permits.is_empty();
        Ok(admitted)
    }

    /// Takes a permit for the next attempt of a label. A limit that the active version does not have limits nothing.
    async fn take(
        &self,
        machine: &Machine,
        target: &str,
        record: &Record,
        name: &str,
    ) -> Result<Permit, Error> {
        let Some(limit) = machine.limit(target) else { return Ok(Permit::Taken) };
        let action = machine.state(&record.state).and_then(State::action);
        let timeout = action.map_or(MAX_TIMEOUT, |action| action.timeout);
        let now_ms = self.clock.now_ms().await?;
        let expires_ms = now_ms + ms(timeout) + ATTEMPT_SLACK_MS;
        Ok(self.permits.take(machine.name(), limit, name, (now_ms, expires_ms)).await?)
    }

    /// Removes the entry in the due set of a limit for which no label waits.
    async fn retire(&self, machine: &str, target: &str) -> Result<Admitted, Error> {
        self.due.set(0, &Permits::entry(machine, target), None).await?;
        // A label may have begun to wait before the entry was removed.
        let more = !self.permits.waiting(machine, target, 1).await?.is_empty();
        Ok(Admitted { permits: Vec::new(), more })
    }
}

impl AdmitTurn<'_> {
    /// Whether the turn ends: no call came during it.
    pub(crate) fn ends(&mut self) -> bool {
        let mut turns = self.limits.turns.lock();
        self.ended = !turns.get_mut(&self.key).is_some_and(std::mem::take);
        if self.ended {
            turns.remove(&self.key);
        }
        self.ended
    }
}

impl Drop for AdmitTurn<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.limits.turns.lock().remove(&self.key);
        }
    }
}
