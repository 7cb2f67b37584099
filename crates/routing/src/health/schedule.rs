//! Decides when each instance is checked, which checks may be under way together, and which verdict follows from their
//! results. Pure: time and randomness are passed in.
//!
//! A check that takes longer than [`PROMPT`] moves to places of its own, and so does the next check of its instance. So a rack
//! of dead instances does not delay the checks of those that respond.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    places::{Party, Places},
    probe::Target,
};
use signalbox_route_table::{Health, InstanceId};

/// How many prompt and how many slow checks may be under way, if there are as many outgoing calls.
const PROMPT_PLACES: usize = 64;
const SLOW_PLACES: usize = 192;
/// A check that takes longer is slow.
const PROMPT: Duration = Duration::from_millis(500);

/// All instances whose health is checked.
#[derive(Debug)]
pub(super) struct Schedule {
    patients: HashMap<InstanceId, Patient>,
    /// Those whose next check is not due yet.
    queue: BTreeSet<(Instant, InstanceId)>,
    prompt: Places,
    slow: Places,
    under_way: HashMap<u64, UnderWay>,
    /// The number of the latest check.
    latest: u64,
    calls: usize,
}

#[derive(Debug)]
struct Patient {
    target: Target,
    party: Party,
    phase: Phase,
    /// Whether its last check was slow.
    slow: bool,
    /// As the table has it.
    unhealthy: bool,
    /// Consecutive results that contradict the verdict.
    against: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its next check is due then.
    Until(Instant),
    /// Its check is due and waits for a place.
    Waiting,
    /// The check with this number is under way.
    UnderWay(u64),
}

/// The place that a check has.
#[derive(Debug)]
struct UnderWay {
    party: Party,
    since: Instant,
    slow: bool,
}

/// An instance to check, as in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) id: InstanceId,
    pub(crate) target: Target,
    /// The token that registered it; empty if it is not known.
    pub(crate) token: String,
    pub(crate) unhealthy: bool,
}

/// A check to perform.
#[derive(Debug, Clone)]
pub(super) struct Check {
    pub(super) id: InstanceId,
    pub(super) target: Target,
    /// The token that registered the instance; empty if it is not known.
    pub(super) token: String,
    number: u64,
}

impl Schedule {
    /// `calls` is how many outgoing calls a token may have under way. Its checks have at most half of the places of each
    /// kind, so none that has a place waits for a call.
    pub(super) fn new(calls: usize) -> Self {
        Self {
            patients: HashMap::new(),
            queue: BTreeSet::new(),
            prompt: Places::new(PROMPT_PLACES.min((calls / 2).max(2))),
            slow: Places::new(SLOW_PLACES.min((calls * 3 / 2).max(2))),
            under_way: HashMap::new(),
            latest: 0,
            calls,
        }
    }

    /// Accepts the current list. New instances are checked at a random time within the interval, so that a thousand
    /// that arrived together do not stay together. `dice` throws in [0, 1).
    pub(super) fn update(&mut self, list: Vec<Listed>, now: Instant, mut dice: impl FnMut() -> f64) {
        let present: HashSet<InstanceId> = list.iter().map(|listed| listed.id.clone()).collect();
        self.patients.retain(|id, _| present.contains(id));
        self.queue.retain(|(_, id)| present.contains(id));
        for Listed { id, target, token, unhealthy } in list {
            let party = Party { token, host: target.host.clone() };
            if let Some(patient) = self.patients.get_mut(&id)
                && patient.target == target
            {
                if patient.unhealthy != unhealthy {
                    (patient.unhealthy, patient.against) = (unhealthy, 0);
                }
                patient.party = party;
                continue;
            }
            let due = now + interval(&target.health).mul_f64(dice());
            if let Some(Patient { phase: Phase::Until(old), .. }) = self.patients.get(&id) {
                self.queue.remove(&(*old, id.clone()));
            }
            self.queue.insert((due, id.clone()));
            let phase = Phase::Until(due);
            self.patients.insert(id, Patient { target, party, phase, slow: false, unhealthy, against: 0 });
        }
        self.wait_again();
    }

    /// Makes the lists of waiting checks again, without those of instances that were removed or replaced.
    fn wait_again(&mut self) {
        self.prompt.forget_waiting();
        self.slow.forget_waiting();
        for (id, patient) in &self.patients {
            if patient.phase == Phase::Waiting {
                let places = if patient.slow { &mut self.slow } else { &mut self.prompt };
                places.push(&patient.party, id.clone());
            }
        }
    }

    /// When [`Self::take_due`], which has returned nothing at `now`, may have a check, unless one ends before.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let due = self.queue.first().map(|(due, _)| *due);
        let prompt = self.under_way.values().filter(|check| !check.slow).map(|check| check.since + PROMPT);
        due.into_iter().chain(prompt.filter(|at| *at > now)).min()
    }

    /// The next check that is due and has a place. It is under way from here on.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Check> {
        while self.queue.first().is_some_and(|(due, _)| *due <= now) {
            let (_, id) = self.queue.pop_first()?;
            let Some(patient) = self.patients.get_mut(&id) else { continue };
            patient.phase = Phase::Waiting;
            let places = if patient.slow { &mut self.slow } else { &mut self.prompt };
            places.push(&patient.party, id);
        }
        self.move_slow(now);
        loop {
            let (id, slow) = match self.prompt.next() {
                Some(id) => (id, false),
                None => (self.slow.next()?, true),
            };
            let Some(patient) = self.patients.get_mut(&id) else { continue };
            if patient.phase != Phase::Waiting {
                continue;
            }
            self.latest += 1;
            patient.phase = Phase::UnderWay(self.latest);
            let places = if slow { &mut self.slow } else { &mut self.prompt };
            places.take(&patient.party);
            let party = patient.party.clone();
            let (target, token) = (patient.target.clone(), party.token.clone());
            self.under_way.insert(self.latest, UnderWay { party, since: now, slow });
            return Some(Check { id, target, token, number: self.latest });
        }
    }

    /// Moves checks that turn out to be slow to the places for these. If none is left for their token or host, they keep
    /// theirs, so that a token cannot have more checks under way in all.
    fn move_slow(&mut self, now: Instant) {
        for check in self.under_way.values_mut() {
            if !check.slow && check.since + PROMPT <= now && self.slow.try_take(&check.party) {
                self.prompt.give_back(&check.party);
                check.slow = true;
            }
        }
    }

    /// A check has ended. Returns the verdict to store: whether the instance is unhealthy now. It is repeated
    /// at each further check until [`Self::update`] has brought it back.
    pub(super) fn finished(&mut self, check: &Check, passed: bool, now: Instant, dice: f64) -> Option<bool> {
        let ended = self.under_way.remove(&check.number)?;
        let places = if ended.slow { &mut self.slow } else { &mut self.prompt };
        places.give_back(&ended.party);
        let patient = self.patients.get_mut(&check.id)?;
        if patient.phase != Phase::UnderWay(check.number) {
            // The result of a former address, or of former rules.
            return None;
        }
        patient.slow = ended.since + PROMPT <= now;
        // A tenth more or less, so that what fell into step falls out of it again.
        let health = &patient.target.health;
        let due = now + interval(health).mul_f64(0.9 + 0.2 * dice);
        patient.phase = Phase::Until(due);
        self.queue.insert((due, check.id.clone()));
        if passed != patient.unhealthy {
            patient.against = 0;
            return None;
        }
        patient.against = patient.against.saturating_add(1);
        let needed = if passed { health.healthy_after } else { health.unhealthy_after };
        (patient.against >= needed).then_some(!passed)
    }

    /// Forgets all instances: another pacemaker checks them. Results of checks that are under way are ignored.
    pub(super) fn clear(&mut self) {
        *self = Self { latest: self.latest, ..Self::new(self.calls) };
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
        let (id, token) = (InstanceId::parse(id).unwrap(), "@one".to_owned());
        Listed { id, target: target(1, HEALTH), token, unhealthy }
    }

    /// Runs one check of the instance that is due first.
    fn once(schedule: &mut Schedule, passed: bool) -> Option<bool> {
        let now = schedule.queue.first().unwrap().0;
        let check = schedule.take_due(now).unwrap();
        schedule.finished(&check, passed, now, 0.5)
    }

    fn listed_of(token: &str, host: &str, id: &str) -> Listed {
        let health = serde_json::from_str(r#"{"path":"/","interval_seconds":5}"#).unwrap();
        let target = Target { address: "127.0.0.1:1".to_owned(), host: host.to_owned(), health };
        Listed { id: InstanceId::parse(id).unwrap(), target, token: token.to_owned(), unhealthy: false }
    }

    /// Performs the checks of a minute. Checks of instances whose ID begins with `dead` last for `hang`, others end
    /// immediately. Returns the longest time without a check of one of the others, and the checks of dead ones.
    fn minute(list: Vec<Listed>, hang: Duration) -> (Duration, usize) {
        let (mut schedule, start) = (Schedule::new(256), Instant::now());
        let mut throws = (0..).map(|n| f64::from(n * 37 % 100) / 100.0);
        let mut dice = move || throws.next().unwrap();
        let mut last: HashMap<InstanceId, Instant> = list
            .iter()
            .filter(|listed| !listed.id.as_str().starts_with("dead"))
            .map(|listed| (listed.id.clone(), start))
            .collect();
        schedule.update(list, start, &mut dice);
        let (mut hanging, mut longest, mut dead) = (Vec::new(), Duration::ZERO, 0);
        for step in 0..6_000 {
            let now = start + Duration::from_millis(10) * step;
            let (over, rest): (Vec<_>, Vec<_>) = hanging.into_iter().partition(|(at, _)| *at <= now);
            hanging = rest;
            for (_, check) in over {
                schedule.finished(&check, false, now, dice());
            }
            while let Some(check) = schedule.take_due(now) {
                if let Some(before) =
                    last.insert(check.id.clone(), now).filter(|_| !check.id.as_str().starts_with("dead"))
                {
                    longest = longest.max(now - before);
                    schedule.finished(&check, true, now, dice());
                } else {
                    dead += 1;
                    hanging.push((now + hang, check));
                }
            }
            assert!(hanging.len() <= PROMPT_PLACES + SLOW_PLACES);
        }
        let end = start + Duration::from_secs(60);
        last.retain(|id, _| !id.as_str().starts_with("dead"));
        (last.values().map(|at| end - *at).max().unwrap().max(longest), dead)
    }

    #[test]
    fn a_rack_of_dead_instances_delays_no_check() {
        let dead = (0..225).map(|n| listed_of("@root", &format!("h{}.test", n % 20), &format!("dead-{n}")));
        let live = (0..200).map(|n| listed_of("@root", &format!("h{}.test", n % 20), &format!("live-{n}")));
        let (longest, checks) = minute(dead.chain(live).collect(), Duration::from_secs(2));
        assert!(longest <= Duration::from_millis(5_520), "{longest:?}");
        // A check takes two seconds, and the next one follows five seconds after it.
        assert!(checks >= 225 * 8, "the dead ones are checked as often as without others: {checks}");
    }

    #[test]
    fn a_token_with_hanging_instances_delays_no_check_of_another_token() {
        let dead = (0..1000).map(|n| listed_of("@noisy", &format!("h{n}.test"), &format!("dead-{n}")));
        let live = (0..100).map(|n| listed_of("@quiet", "quiet.test", &format!("live-{n}")));
        let (longest, _) = minute(dead.chain(live).collect(), Duration::from_secs(5));
        assert!(longest <= Duration::from_millis(5_520), "{longest:?}");
    }

    #[test]
    fn a_host_with_hanging_instances_delays_no_check_of_another_host() {
        let dead = (0..1000).map(|n| listed_of("@one", "noisy.test", &format!("dead-{n}")));
        let live = (0..100).map(|n| listed_of("@one", "quiet.test", &format!("live-{n}")));
        let (longest, _) = minute(dead.chain(live).collect(), Duration::from_secs(5));
        assert!(longest <= Duration::from_millis(5_520), "{longest:?}");
    }

    #[test]
    fn it_takes_several_in_a_row_either_way() {
        let mut schedule = Schedule::new(256);
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
        let (mut schedule, now) = (Schedule::new(256), Instant::now());
        schedule.update(vec![listed("i", false)], now, || 0.0);
        let old = schedule.take_due(now).unwrap();
        let moved = Listed { target: target(2, r#"{"path":"/","unhealthy_after":1}"#), ..listed("i", false) };
        schedule.update(vec![moved], now, || 0.0);
        let new = schedule.take_due(now).unwrap();
        assert_eq!(schedule.finished(&old, false, now, 0.5), None);
        assert_eq!(schedule.finished(&old, false, now, 0.5), None);
        assert_eq!(schedule.finished(&new, false, now, 0.5), Some(true));
        let (due, _) = schedule.queue.first().unwrap().clone();
        let last = schedule.take_due(due).unwrap();
        schedule.update(vec![], now, || 0.0);
        assert_eq!((schedule.queue.len(), schedule.patients.len()), (0, 0));
        assert_eq!(schedule.finished(&last, false, now, 0.5), None);
        assert!(schedule.under_way.is_empty());
    }

    proptest! {
        /// For any random numbers: no instance is checked twice at a time, and each within its interval and a tenth.
        #[test]
        fn every_instance_is_checked_in_time(throws in prop::collection::vec(0.0..1.0_f64, 1..50), count in 1..20_usize) {
            let (mut schedule, start) = (Schedule::new(256), Instant::now());
            let mut throws = throws.into_iter().cycle();
            let mut dice = move || throws.next().unwrap();
            let list: Vec<_> = (0..count).map(|n| listed(&format!("i{n}"), false)).collect();
            schedule.update(list, start, &mut dice);
            let mut last: HashMap<InstanceId, Instant> = HashMap::new();
            let mut now = start;
            for _ in 0..count * 5 {
                let due = schedule.take_due(now);
                let check = due.unwrap_or_else(|| {
                    now = schedule.next_due(now).unwrap();
                    schedule.take_due(now).unwrap()
                });
                prop_assert!(schedule.queue.iter().all(|(_, other)| *other != check.id));
                let since = now - last.insert(check.id.clone(), now).unwrap_or(start);
                prop_assert!(since <= Duration::from_millis(11_000), "{:?}", since);
                schedule.finished(&check, true, now, dice());
                prop_assert_eq!((schedule.patients.len(), schedule.under_way.len()), (count, 0));
            }
            prop_assert_eq!(last.len(), count);
        }
    }
}
