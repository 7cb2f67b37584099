//! Decides when each instance is checked, and which verdict follows from its results. Pure: time and randomness are
//! passed in.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use tokio::time::Instant;

use super::probe::Target;
use signalbox_route_table::Health;
use signalbox_route_table::InstanceId;

/// Everybody whose health is checked.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    patients: HashMap<InstanceId, Patient>,
    /// Those that wait for their next check.
    queue: BTreeSet<(Instant, InstanceId)>,
}

#[derive(Debug)]
struct Patient {
    target: Target,
    /// When its next check is due; nothing while one is under way.
    due: Option<Instant>,
    /// As the table has it.
    unhealthy: bool,
    /// Consecutive results that contradict the verdict.
    against: u32,
}

/// An instance to check, as in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) id: InstanceId,
    pub(crate) target: Target,
    pub(crate) unhealthy: bool,
}

impl Schedule {
    /// Accepts the current list. New instances are checked at a random time within the interval, so that a thousand
    /// that arrived
    /// together do not stay together. `dice` throws in [0, 1).
    pub(super) fn update(&mut self, list: Vec<Listed>, now: Instant, mut dice: impl FnMut() -> f64) {
        let present: HashSet<InstanceId> = list.iter().map(|listed| listed.id.clone()).collect();
        self.patients.retain(|id, _| present.contains(id));
        self.queue.retain(|(_, id)| present.contains(id));
        for Listed { id, target, unhealthy } in list {
            if let Some(patient) = self.patients.get_mut(&id)
                && patient.target == target
            {
                if patient.unhealthy != unhealthy {
                    (patient.unhealthy, patient.against) = (unhealthy, 0);
                }
                continue;
            }
            let due = now + interval(&target.health).mul_f64(dice());
            if let Some(Patient { due: Some(old), .. }) = self.patients.get(&id) {
                self.queue.remove(&(*old, id.clone()));
            }
            self.queue.insert((due, id.clone()));
            self.patients.insert(id, Patient { target, due: Some(due), unhealthy, against: 0 });
        }
    }

    /// When the next check is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.queue.first().map(|(due, _)| *due)
    }

    /// The next check that is due, which is under way from here on.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<(InstanceId, Target)> {
        if self.next_due()? > now {
            return None;
        }
        let (_, id) = self.queue.pop_first()?;
        let patient = self.patients.get_mut(&id)?;
        patient.due = None;
        Some((id, patient.target.clone()))
    }

    /// A check has ended. Returns the verdict to store: whether the instance is unhealthy now. It is repeated
    /// at each further check until [`Self::update`] has brought it back.
    pub(super) fn finished(
        &mut self,
        id: &InstanceId,
        target: &Target,
        passed: bool,
        now: Instant,
        dice: f64,
    ) -> Option<bool> {
        let patient = self.patients.get_mut(id)?;
        if patient.due.is_some() || patient.target != *target {
            // The result of a former address, or of former rules.
            return None;
        }
        // A tenth more or less, so that what fell into step falls out of it again.
        let due = now + interval(&target.health).mul_f64(0.9 + 0.2 * dice);
        patient.due = Some(due);
        self.queue.insert((due, id.clone()));
        if passed != patient.unhealthy {
            patient.against = 0;
            return None;
        }
        patient.against = patient.against.saturating_add(1);
        let needed = if passed { target.health.healthy_after } else { target.health.unhealthy_after };
        (patient.against >= needed).then_some(!passed)
    }

    /// Forgets everybody: another pacemaker checks them.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn interval(health: &Health) -> Duration {
    Duration::from_secs(u64::from(health.interval_seconds))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target(port: u16, json: &str) -> Target {
        let health = serde_json::from_str(json).unwrap();
        Target { address: format!("127.0.0.1:{port}"), host: "a.example".to_owned(), health }
    }

    const HEALTH: &str = r#"{"path":"/","interval_seconds":10,"unhealthy_after":3,"healthy_after":2}"#;

    fn listed(id: &str, unhealthy: bool) -> Listed {
        Listed { id: InstanceId::parse(id).unwrap(), target: target(1, HEALTH), unhealthy }
    }

    /// Runs one check of the instance that is due first.
    fn once(schedule: &mut Schedule, passed: bool) -> Option<bool> {
        let now = schedule.next_due().unwrap();
        let (id, target) = schedule.take_due(now).unwrap();
        schedule.finished(&id, &target, passed, now, 0.5)
    }

    #[test]
    fn it_takes_several_in_a_row_either_way() {
        let mut schedule = Schedule::default();
        schedule.update(vec![listed("i", false)], Instant::now(), || 0.0);
        let results = [false, false, true, false, false, false];
        let verdicts: Vec<_> = results.into_iter().map(|passed| once(&mut schedule, passed)).collect();
        assert_eq!(verdicts, [None, None, None, None, None, Some(true)]);
        // While the table does not have it, it is repeated.
        assert_eq!(once(&mut schedule, false), Some(true));
        schedule.update(vec![listed("i", true)], Instant::now(), || 0.0);
        let results = [true, false, true, true];
        let verdicts: Vec<_> = results.into_iter().map(|passed| once(&mut schedule, passed)).collect();
        assert_eq!(verdicts, [None, None, None, Some(false)]);
    }

    #[test]
    fn a_result_of_another_address_is_ignored() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        schedule.update(vec![listed("i", false)], now, || 0.0);
        let (id, old) = schedule.take_due(now).unwrap();
        let moved = Listed { target: target(2, r#"{"path":"/","unhealthy_after":1}"#), ..listed("i", false) };
        schedule.update(vec![moved], now, || 0.0);
        assert_eq!(schedule.finished(&id, &old, false, now, 0.5), None);
        let (_, new) = schedule.take_due(now).unwrap();
        assert_eq!(schedule.finished(&id, &old, false, now, 0.5), None);
        assert_eq!(schedule.finished(&id, &new, false, now, 0.5), Some(true));
        schedule.update(vec![], now, || 0.0);
        assert_eq!((schedule.next_due(), schedule.patients.len()), (None, 0));
        assert_eq!(schedule.finished(&id, &new, false, now, 0.5), None);
    }

    proptest! {
        /// For any random numbers: no instance is checked twice at a time, and each within its interval and a tenth.
        #[test]
        fn every_instance_is_checked_in_time(throws in prop::collection::vec(0.0..1.0_f64, 1..50), count in 1..20_usize) {
            let (mut schedule, start) = (Schedule::default(), Instant::now());
            let mut throws = throws.into_iter().cycle();
            let mut dice = move || throws.next().unwrap();
            let list: Vec<_> = (0..count).map(|n| listed(&format!("i{n}"), false)).collect();
            schedule.update(list, start, &mut dice);
            let mut last: HashMap<InstanceId, Instant> = HashMap::new();
            for _ in 0..count * 5 {
                let now = schedule.next_due().unwrap();
                let (id, target) = schedule.take_due(now).unwrap();
                prop_assert!(schedule.queue.iter().all(|(_, other)| *other != id));
                let since = now - last.insert(id.clone(), now).unwrap_or(start);
                prop_assert!(since <= Duration::from_millis(11_000), "{:?}", since);
                schedule.finished(&id, &target, true, now, dice());
                prop_assert_eq!(schedule.queue.len(), count);
            }
            prop_assert_eq!(last.len(), count);
        }
    }
}
