//! Pulls that wait for a message: woken, never polling.
//!
//! A notification wakes *one* waiter of the queue in each pacemaker. A pull that got messages and left others wakes
//! the next waiter, so one message does not make a hundred waiters query Redis. A waiter that is woken and ends before
//! it has queried passes the notification on.

use std::{collections::HashMap, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// All waiting pulls of this process, by queue.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    queues: Mutex<HashMap<String, Waiters>>,
}

#[derive(Debug)]
struct Waiters {
    notify: Arc<Notify>,
    count: usize,
}

/// The slot of a waiting pull, freed when it is dropped.
#[derive(Debug)]
pub(super) struct WaitSlot<'a> {
    waiting: &'a Waiting,
    queue: String,
    pub(super) notify: Arc<Notify>,
}

impl Waiting {
    fn queues(&self) -> MutexGuard<'_, HashMap<String, Waiters>> {
        self.queues.lock()
    }

    /// Acquires a slot for a pull of `queue`; `None` if `most` pulls already wait.
    pub(super) fn acquire(&self, queue: &str, most: usize) -> Option<WaitSlot<'_>> {
        let mut queues = self.queues();
        if queues.values().map(|waiters| waiters.count).sum::<usize>() >= most {
            return None;
        }
        let waiters =
            queues.entry(queue.to_owned()).or_insert_with(|| Waiters { notify: Arc::default(), count: 0 });
        waiters.count += 1;
        Some(WaitSlot { waiting: self, queue: queue.to_owned(), notify: Arc::clone(&waiters.notify) })
    }

    /// Wakes one waiting pull, because `queue` has messages.
    pub(super) fn wake(&self, queue: &str) {
        if let Some(waiters) = self.queues().get(queue) {
            waiters.notify.notify_one();
        }
    }

    /// Wakes all pulls of a deleted `queue`, including those for one tenant.
    pub(super) fn wake_queue(&self, queue: &str) {
        for (place, waiters) in &*self.queues() {
            if place.split('|').next() == Some(queue) {
                waiters.notify.notify_one();
            }
        }
    }

    /// Wakes all pulls, because notifications may have been missed.
    pub(super) fn wake_all(&self) {
        for waiters in self.queues().values() {
            waiters.notify.notify_one();
        }
    }

    /// The number of waiting pulls.
    pub(crate) fn count(&self) -> usize {
        self.queues().values().map(|waiters| waiters.count).sum()
    }
}

impl Drop for WaitSlot<'_> {
    fn drop(&mut self) {
        let mut queues = self.waiting.queues();
        if let Some(waiters) = queues.get_mut(&self.queue) {
            waiters.count -= 1;
            if waiters.count == 0 {
                queues.remove(&self.queue);
            }
        }
    }
}

/// A notification that was received but not yet processed. If it is dropped before [`Self::acted`], the next
/// waiter gets it.
#[derive(Debug)]
pub(super) struct Notice<'a>(Option<&'a Notify>);

impl<'a> Notice<'a> {
    pub(super) fn of(slot: &'a WaitSlot<'_>) -> Self {
        Self(Some(&slot.notify))
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
        let first = waiting.acquire("a", 2).unwrap();
        let second = waiting.acquire("b", 2).unwrap();
        assert!(waiting.acquire("a", 2).is_none());
        drop(first);
        assert_eq!(waiting.count(), 1);
        drop(second);
        assert!(waiting.queues().is_empty(), "queues without waiters are forgotten");
    }

    #[tokio::test]
    async fn one_notice_wakes_one_waiter_and_a_leaving_waiter_passes_it_on() {
        let waiting = Waiting::default();
        let (one, two) = (waiting.acquire("q", 9).unwrap(), waiting.acquire("q", 9).unwrap());
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
