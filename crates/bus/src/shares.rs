//! Divides delivery slots between lanes, so that receivers that hang or fail do not delay the others. Pure.
//!
//! A subscriber is *proven* if an attempt succeeded since its last failure. Lanes of proven subscribers use the *quick*
//! share: the workers. All other lanes use the *slow* share, which has more slots but no workers. After a failure, only one
//! delivery at a time is attempted to a subscriber, until one succeeds. Its other lanes wait in Redis until that delivery
//! ends (`refuse.lua`), which costs nothing.
//!
//! If the pauses of a subscriber are ended, because its subscription was changed or an operator retries, it starts again: its
//! receiver may be another one, and a delivery to the former one does not delay it.

use std::collections::{BTreeMap, HashMap};

use super::{
    store::{Held, Holder},
    verdict::FULL_HEALTH,
};

/// Deliveries to one subscriber that may be under way from before its pauses were ended. A client that ends them again and
/// again gets no more.
const MAX_EARLIER: usize = 4;

/// The share that a delivery draws on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Share {
    /// The workers.
    Quick,
    /// Deliveries that count as no worker.
    Slow,
    /// None now: the lane waits until the subscriber's delivery of this worker ends.
    Behind(Holder),
    /// None now: the lane waits until a slow delivery ends.
    Full,
}

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The receiver accepted the batch.
    Delivered,
    /// It did not.
    Failed,
    /// No attempt was made, or none whose result depends on the receiver.
    NotAttempted,
}

/// The last attempt of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Quick,
    Slow,
    Failed,
}

#[derive(Debug, Default)]
struct Subscriber {
    /// How often its pauses had been ended when this began, and the generation of its lanes: a client that ended its
    /// subscription and made another one begins again.
    kicks: String,
    generation: String,
    /// `None` until its first attempt in this process ends.
    proven: Option<bool>,
    lanes: HashMap<String, Last>,
    /// The jobs under way, by worker.
    in_flight: BTreeMap<String, Vec<u8>>,
    /// Those from before its pauses were ended.
    earlier: BTreeMap<String, Vec<u8>>,
    /// How many have been under way for long.
    hanging: usize,
}

impl Subscriber {
    fn new(held: &Held, health: u8, kicks: &str, earlier: BTreeMap<String, Vec<u8>>) -> Self {
        // A subscriber that failed when another process delivered to it has to succeed first.
        let proven = (health < FULL_HEALTH).then_some(false);
        let (kicks, generation) = (kicks.to_owned(), held.generation.clone());
        Self { kicks, generation, proven, earlier, ..Self::default() }
    }

    /// A delivery that the next one has to wait for.
    fn before(&self, slow_is_full: bool) -> Option<Holder> {
        let own = match self.proven {
            Some(false) => self.in_flight.first_key_value(),
            // So a subscriber has one job among those that wait for a place.
            None if slow_is_full => self.in_flight.first_key_value(),
            _ => None,
        };
        let earlier = || (self.earlier.len() >= MAX_EARLIER).then(|| self.earlier.first_key_value());
        let (worker, job) = own.or_else(|| earlier().flatten())?;
        Some(Holder { worker: worker.clone(), job: job.clone() })
    }
}

/// This process's knowledge about all subscribers.
#[derive(Debug, Default)]
pub(super) struct Shares(HashMap<String, Subscriber>);

impl Shares {
    /// The share of a job's delivery, which begins now unless it is [`Share::Behind`] or [`Share::Full`]. `health` and
    /// `kicks` are the subscriber's in the fabric; `slow_is_full` that no more deliveries fit into the slow share.
    pub(super) fn begin(&mut self, held: &Held, health: u8, kicks: &str, slow_is_full: bool) -> Share {
        let one = self
            .0
            .entry(held.token.clone())
            .or_insert_with(|| Subscriber::new(held, health, kicks, BTreeMap::new()));
        if one.kicks != kicks || one.generation != held.generation {
            let mut earlier = std::mem::take(&mut one.earlier);
            earlier.append(&mut one.in_flight);
            *one = Subscriber::new(held, health, kicks, earlier);
        }
        let is_quick = matches!(one.lanes.get(&lane(held)), None | Some(Last::Quick)) && one.hanging == 0;
        let share = match one.before(slow_is_full) {
            Some(before) => return Share::Behind(before),
            None if one.proven == Some(true) && is_quick => Share::Quick,
            None if slow_is_full => return Share::Full,
            None => Share::Slow,
        };
        one.in_flight.insert(held.worker.clone(), held.job.clone());
        share
    }

    /// A delivery has been under way for long.
    pub(super) fn hangs(&mut self, held: &Held) {
        if let Some(one) = self.0.get_mut(&held.token)
            && one.in_flight.contains_key(&held.worker)
        {
            one.hanging += 1;
        }
    }

    /// A delivery ended. `hung` if it was reported by [`Self::hangs`].
    pub(super) fn end(&mut self, held: &Held, ended: Ended, hung: bool) {
        let Some(one) = self.0.get_mut(&held.token) else { return };
        if one.in_flight.remove(&held.worker).is_none() {
            // It shows nothing about the receiver of now.
            one.earlier.remove(&held.worker);
            return;
        }
        one.hanging = one.hanging.saturating_sub(usize::from(hung));
        let last = match ended {
            Ended::NotAttempted => return,
            Ended::Delivered if hung => Last::Slow,
            Ended::Delivered => Last::Quick,
            Ended::Failed => Last::Failed,
        };
        let before = one.lanes.insert(lane(held), last);
        match ended {
            Ended::Delivered => one.proven = Some(true),
            // A lane that failed before has an event that its receiver rejects. The other lanes are not affected.
            Ended::Failed if before == Some(Last::Failed) && one.proven == Some(true) => {}
            Ended::Failed | Ended::NotAttempted => one.proven = Some(false),
        }
    }

    /// Forgets the subscribers that are gone.
    pub(super) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|token, one| !one.in_flight.is_empty() || !one.earlier.is_empty() || is_there(token));
    }
}

/// The name of a job's lane.
fn lane(held: &Held) -> String {
    format!("{}.{}", held.generation, held.lane)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job of a lane of a subscriber, taken by a worker with the name of the lane.
    fn held(token: &str, lane: &str) -> Held {
        let (worker, generation, lane) = (format!("{token}{lane}"), "1".to_owned(), lane.to_owned());
        Held { job: worker.clone().into(), worker, token: token.into(), generation, lane, batch: "b".into() }
    }

    fn begin(shares: &mut Shares, token: &str, lane: &str, health: u8, slow_is_full: bool) -> Share {
        shares.begin(&held(token, lane), health, "0", slow_is_full)
    }

    fn behind(lane: &str) -> Share {
        let Held { worker, job, .. } = held("a", lane);
        Share::Behind(Holder { worker, job })
    }

    /// One attempt in lane `lane`, from its begin to its end.
    fn attempt(shares: &mut Shares, lane: &str, ended: Ended) -> Share {
        let share = begin(shares, "a", lane, 100, false);
        shares.end(&held("a", lane), ended, false);
        share
    }

    #[test]
    fn a_subscriber_is_quick_after_its_first_success() {
        let mut shares = Shares::default();
        assert_eq!(attempt(&mut shares, "0", Ended::Delivered), Share::Slow);
        assert_eq!(attempt(&mut shares, "0", Ended::Delivered), Share::Quick);
        assert_eq!(attempt(&mut shares, "1", Ended::Delivered), Share::Quick);
    }

    #[test]
    fn of_a_subscriber_that_fails_one_delivery_at_a_time_is_attempted() {
        let mut shares = Shares::default();
        attempt(&mut shares, "0", Ended::Failed);
        assert_eq!(begin(&mut shares, "a", "1", 100, false), Share::Slow);
        assert_eq!(begin(&mut shares, "a", "2", 100, false), behind("1"));
        assert_eq!(begin(&mut shares, "a", "0", 100, false), behind("1"));
        shares.end(&held("a", "1"), Ended::Delivered, false);
        assert_eq!(begin(&mut shares, "a", "2", 100, false), Share::Quick);
        assert_eq!(begin(&mut shares, "a", "0", 100, false), Share::Slow, "its last attempt failed");
    }

    #[test]
    fn a_subscriber_that_failed_elsewhere_has_to_succeed_first() {
        let mut shares = Shares::default();
        assert_eq!(begin(&mut shares, "a", "0", 96, false), Share::Slow);
        assert_eq!(begin(&mut shares, "a", "1", 96, false), behind("0"));
        assert_eq!(begin(&mut shares, "b", "0", 100, false), Share::Slow);
        assert_eq!(begin(&mut shares, "b", "1", 100, false), Share::Slow);
    }

    #[test]
    fn an_event_that_is_rejected_again_and_again_concerns_its_own_lane_only() {
        let mut shares = Shares::default();
        attempt(&mut shares, "0", Ended::Failed);
        attempt(&mut shares, "1", Ended::Delivered);
        assert_eq!(attempt(&mut shares, "0", Ended::Failed), Share::Slow);
        assert_eq!(attempt(&mut shares, "1", Ended::Delivered), Share::Quick);
    }

    #[test]
    fn while_one_delivery_hangs_the_others_do_not_use_workers() {
        let mut shares = Shares::default();
        attempt(&mut shares, "0", Ended::Delivered);
        assert_eq!(begin(&mut shares, "a", "0", 100, false), Share::Quick);
        shares.hangs(&held("a", "0"));
        assert_eq!(begin(&mut shares, "a", "1", 100, false), Share::Slow);
        assert_eq!(begin(&mut shares, "a", "2", 100, true), Share::Full);
        shares.end(&held("a", "0"), Ended::Delivered, true);
        assert_eq!(begin(&mut shares, "a", "2", 100, false), Share::Quick);
        assert_eq!(begin(&mut shares, "a", "0", 100, false), Share::Slow, "it is slow");
    }

    #[test]
    fn a_delivery_that_was_not_attempted_changes_nothing() {
        let mut shares = Shares::default();
        attempt(&mut shares, "0", Ended::Delivered);
        assert_eq!(attempt(&mut shares, "0", Ended::NotAttempted), Share::Quick);
        assert_eq!(attempt(&mut shares, "0", Ended::NotAttempted), Share::Quick);
    }

    #[test]
    fn a_subscriber_whose_pauses_were_ended_does_not_wait_for_its_former_receiver() {
        let mut shares = Shares::default();
        attempt(&mut shares, "0", Ended::Failed);
        assert_eq!(begin(&mut shares, "a", "0", 98, false), Share::Slow);
        shares.hangs(&held("a", "0"));
        assert_eq!(shares.begin(&held("a", "1"), 98, "1", false), Share::Slow);
        shares.end(&held("a", "0"), Ended::Failed, true);
        shares.end(&held("a", "1"), Ended::Delivered, false);
        assert_eq!(
            shares.begin(&held("a", "2"), 99, "1", false),
            Share::Quick,
            "the former one says nothing"
        );
    }

    #[test]
    fn a_client_that_subscribed_again_does_not_wait_for_the_receiver_of_its_ended_subscription() {
        let mut shares = Shares::default();
        attempt(&mut shares, "0", Ended::Failed);
        assert_eq!(begin(&mut shares, "a", "0", 98, false), Share::Slow);
        shares.hangs(&held("a", "0"));
        let next = Held { generation: "2".to_owned(), ..held("a", "1") };
        assert_eq!(shares.begin(&next, 100, "0", false), Share::Slow);
        shares.end(&next, Ended::Delivered, false);
        shares.end(&held("a", "0"), Ended::Failed, true);
        assert_eq!(shares.begin(&next, 100, "0", false), Share::Quick, "the ended one says nothing");
    }

    #[test]
    fn ending_the_pauses_again_and_again_begins_a_bounded_number_of_deliveries() {
        let mut shares = Shares::default();
        let begun = (0..20).filter(|n| {
            let one = held("a", &n.to_string());
            shares.begin(&one, 90, &n.to_string(), false) == Share::Slow
        });
        assert_eq!(begun.count(), MAX_EARLIER);
    }

    #[test]
    fn a_subscriber_without_a_result_has_one_job_among_those_that_wait_for_a_place() {
        let mut shares = Shares::default();
        assert_eq!(begin(&mut shares, "b", "0", 100, true), Share::Full);
        assert_eq!(begin(&mut shares, "a", "0", 100, false), Share::Slow);
        assert_eq!(begin(&mut shares, "a", "1", 100, true), behind("0"));
    }
}
