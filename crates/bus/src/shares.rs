//! Divides delivery slots between lanes, so that receivers that hang or fail do not delay the others. Pure.
//!
//! A subscriber is *proven* if an attempt succeeded since its last failure. Lanes of proven subscribers use the *quick*
//! share: the workers. All other lanes use the *slow* share, which has more slots but no workers. After a failure, only one
//! delivery at a time is attempted to a subscriber, until one succeeds. Its other lanes pause, which costs nothing.

use std::collections::HashMap;

use super::verdict::FULL_HEALTH;

/// The share that a delivery draws on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// The workers.
    Quick,
    /// Deliveries that count as no worker.
    Slow,
    /// None now: the lane pauses without an attempt.
    Refused,
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

#[derive(Debug)]
struct Subscriber {
    /// `None` until its first attempt in this process ends.
    proven: Option<bool>,
    lanes: HashMap<String, Last>,
    in_flight: usize,
    /// Those that have been under way for long.
    hanging: usize,
}

/// This process's knowledge about all subscribers.
#[derive(Debug, Default)]
pub(super) struct Shares(HashMap<String, Subscriber>);

impl Shares {
    /// The share of a lane's next delivery, which begins now unless it is refused. `health` is the subscriber's in the
    /// fabric; `slow_is_full` that no more deliveries fit into the slow share.
    pub(super) fn begin(&mut self, token: &str, lane: &str, health: u8, slow_is_full: bool) -> Share {
        let one = self.0.entry(token.to_owned()).or_insert_with(|| Subscriber {
            // A subscriber that failed when another process delivered to it has to succeed first.
            proven: (health < FULL_HEALTH).then_some(false),
            lanes: HashMap::new(),
            in_flight: 0,
            hanging: 0,
        });
        let is_quick = matches!(one.lanes.get(lane), None | Some(Last::Quick)) && one.hanging == 0;
        let share = match one.proven {
            Some(true) if is_quick => Share::Quick,
            Some(false) if one.in_flight > 0 => Share::Refused,
            _ if slow_is_full => Share::Refused,
            _ => Share::Slow,
        };
        if share != Share::Refused {
            one.in_flight += 1;
        }
        share
    }

    /// A delivery of the subscriber has been under way for long.
    pub(super) fn hangs(&mut self, token: &str) {
        if let Some(one) = self.0.get_mut(token) {
            one.hanging += 1;
        }
    }

    /// A delivery of the lane ended. `hung` if it was reported by [`Self::hangs`].
    pub(super) fn end(&mut self, token: &str, lane: &str, ended: Ended, hung: bool) {
        let Some(one) = self.0.get_mut(token) else { return };
        one.in_flight = one.in_flight.saturating_sub(1);
        one.hanging = one.hanging.saturating_sub(usize::from(hung));
        let last = match ended {
            Ended::NotAttempted => return,
            Ended::Delivered if hung => Last::Slow,
            Ended::Delivered => Last::Quick,
            Ended::Failed => Last::Failed,
        };
        let before = one.lanes.insert(lane.to_owned(), last);
        match ended {
            Ended::Delivered => one.proven = Some(true),
            // A lane that failed before has an event that its receiver rejects. The other lanes are not affected.
            Ended::Failed if before == Some(Last::Failed) && one.proven == Some(true) => {}
            Ended::Failed | Ended::NotAttempted => one.proven = Some(false),
        }
    }

    /// Forgets the subscribers that are gone.
    pub(super) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|token, one| one.in_flight > 0 || is_there(token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One attempt in lane `lane`, from its begin to its end.
    fn attempt(shares: &mut Shares, lane: &str, ended: Ended) -> Share {
        let share = shares.begin("a", lane, 100, false);
        if share != Share::Refused {
            shares.end("a", lane, ended, false);
        }
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
        assert_eq!(shares.begin("a", "1", 100, false), Share::Slow);
        assert_eq!(shares.begin("a", "2", 100, false), Share::Refused);
        assert_eq!(shares.begin("a", "0", 100, false), Share::Refused);
        shares.end("a", "1", Ended::Delivered, false);
        assert_eq!(shares.begin("a", "2", 100, false), Share::Quick);
        assert_eq!(shares.begin("a", "0", 100, false), Share::Slow, "its last attempt failed");
    }

    #[test]
    fn a_subscriber_that_failed_elsewhere_has_to_succeed_first() {
        let mut shares = Shares::default();
        assert_eq!(shares.begin("a", "0", 96, false), Share::Slow);
        assert_eq!(shares.begin("a", "1", 96, false), Share::Refused);
        assert_eq!(shares.begin("b", "0", 100, false), Share::Slow);
        assert_eq!(shares.begin("b", "1", 100, false), Share::Slow);
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
        assert_eq!(shares.begin("a", "0", 100, false), Share::Quick);
        shares.hangs("a");
        assert_eq!(shares.begin("a", "1", 100, false), Share::Slow);
        assert_eq!(shares.begin("a", "2", 100, true), Share::Refused);
        shares.end("a", "0", Ended::Delivered, true);
        assert_eq!(shares.begin("a", "2", 100, false), Share::Quick);
        assert_eq!(shares.begin("a", "0", 100, false), Share::Slow, "it is slow");
    }

    #[test]
    fn a_delivery_that_was_not_attempted_changes_nothing() {
        let mut shares = Shares::default();
        attempt(&mut shares, "0", Ended::Delivered);
        assert_eq!(attempt(&mut shares, "0", Ended::NotAttempted), Share::Quick);
        assert_eq!(attempt(&mut shares, "0", Ended::NotAttempted), Share::Quick);
    }
}
