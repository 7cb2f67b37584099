//! Pulls that wait for a message: woken, never polling.
//!
//! A notice wakes *one* waiter of the queue in each pacemaker. Whoever got something and left something wakes the next,
//! so a hundred waiters do not all ask because of one message. Whoever is woken and goes away before it has asked
//! passes the notice on.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// All waiting pulls of this process, by queue.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    queues: Mutex<HashMap<String, Seats>>,
}

#[derive(Debug)]
struct Seats {
    notify: Arc<Notify>,
    taken: usize,
}

/// A waiter's place; given back when dropped.
#[derive(Debug)]
pub(super) struct Seat<'a> {
    waiting: &'a Waiting,
    queue: String,
    pub(super) notify: Arc<Notify>,
}

impl Waiting {
    fn queues(&self) -> MutexGuard<'_, HashMap<String, Seats>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place among those who wait for `queue`; nothing when `most` wait already.
    pub(super) fn sit(&self, queue: &str, most: usize) -> Option<Seat<'_>> {
        let mut queues = self.queues();
        if queues.values().map(|seats| seats.taken).sum::<usize>() >= most {
            return None;
        }
        let seats =
            queues.entry(queue.to_owned()).or_insert_with(|| Seats { notify: Arc::default(), taken: 0 });
        seats.taken += 1;
        Some(Seat { waiting: self, queue: queue.to_owned(), notify: Arc::clone(&seats.notify) })
    }

    /// There is something in `queue`.
    pub(super) fn wake(&self, queue: &str) {
        if let Some(seats) = self.queues().get(queue) {
            seats.notify.notify_one();
        }
    }

    /// Something may have been missed.
    pub(super) fn wake_all(&self) {
        for seats in self.queues().values() {
            seats.notify.notify_one();
        }
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.queues().values().map(|seats| seats.taken).sum()
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut queues = self.waiting.queues();
        if let Some(seats) = queues.get_mut(&self.queue) {
            seats.taken -= 1;
            if seats.taken == 0 {
                queues.remove(&self.queue);
            }
        }
    }
}

/// A notice that was received and not yet acted upon. Dropped before [`Self::acted`], it goes to the next waiter.
#[derive(Debug)]
pub(super) struct Notice<'a>(Option<&'a Notify>);

impl<'a> Notice<'a> {
    pub(super) fn of(seat: &'a Seat<'_>) -> Self {
        Self(Some(&seat.notify))
    }

    pub(super) fn acted(mut self) {
        self.0 = None;
    }
}

impl Drop for Notice<'_> {
    fn drop(&mut self) {
        if let Some(notify) = self.0 {
            notify.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_given_back() {
        let waiting = Waiting::default();
        let first = waiting.sit("a", 2).unwrap();
        let second = waiting.sit("b", 2).unwrap();
        assert!(waiting.sit("a", 2).is_none());
        drop(first);
        assert_eq!(waiting.count(), 1);
        drop(second);
        assert!(waiting.queues().is_empty(), "queues that nobody waits for are forgotten");
    }

    #[tokio::test]
    async fn one_notice_wakes_one_waiter_and_who_leaves_passes_it_on() {
        let waiting = Waiting::default();
        let (one, two) = (waiting.sit("q", 9).unwrap(), waiting.sit("q", 9).unwrap());
        let (mut first, mut second) = (Box::pin(one.notify.notified()), Box::pin(two.notify.notified()));
        first.as_mut().enable();
        second.as_mut().enable();
        waiting.wake("q");
        first.await;
        assert!(!second.as_mut().enable(), "only one is woken");
        drop(Notice::of(&one));
        second.await;
    }
}
