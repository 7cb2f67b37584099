//! Combines calls: what arrives for a key while a call for this key is in flight shares the next call.
//!
//! Nothing waits for others to arrive. The busier a process is, the more items share a call of a script, and the less each
//! of them costs.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    mem,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::Error;

/// The result for one item. An error that concerns all items of a call is shared.
pub type SharedResult<T> = Result<T, Arc<Error>>;

type Waiting<I, O> = Vec<(I, oneshot::Sender<O>)>;

/// Items that wait for the next call, by key. A key exists while a call for it is in flight.
#[derive(Debug)]
pub struct Combiner<K, I, O> {
    waiting: Mutex<HashMap<K, Waiting<I, O>>>,
    cut: fn(&[I]) -> usize,
}

impl<K, I, O> Combiner<K, I, O>
where
    K: Clone + Eq + Hash + Send + 'static,
    I: Send + 'static,
    O: Send + 'static,
{
    /// A combiner. `cut` returns how many of the waiting items share the next call; at least one always does.
    pub fn new(cut: fn(&[I]) -> usize) -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::default(), cut })
    }

    /// Sends an item and waits for its result. `run` makes a call, and returns a result for each item, in
    /// their order. Returns `None` if the call panicked or the process is shutting down.
    pub async fn call<F, R>(self: &Arc<Self>, key: K, item: I, run: F) -> Option<O>
    where
        F: Fn(Vec<I>) -> R + Send + 'static,
        R: Future<Output = Vec<O>> + Send,
    {
        let (sender, result) = oneshot::channel();
        let is_idle = {
            let mut waiting = self.waiting.lock();
            let is_idle = !waiting.contains_key(&key);
            waiting.entry(key.clone()).or_default().push((item, sender));
            is_idle
        };
        if is_idle {
            // A separate task: the caller of the first item may disconnect while others wait for their
            // results.
            let (items, senders) = (VecDeque::new(), VecDeque::new());
            let calls = Calls { combiner: Arc::clone(self), key, items, senders, is_over: false };
            tokio::spawn(async move { calls.run(run).await });
        }
        result.await.ok()
    }
}

/// Makes the calls for a key, one after the other, until no items wait.
struct Calls<K: Eq + Hash, I, O> {
    combiner: Arc<Combiner<K, I, O>>,
    key: K,
    /// Items of later calls, and where their results are sent.
    items: VecDeque<I>,
    senders: VecDeque<oneshot::Sender<O>>,
    /// Whether the key was removed. If it exists again, it belongs to another task.
    is_over: bool,
}

impl<K: Eq + Hash, I, O> Calls<K, I, O> {
    async fn run<F, R>(mut self, run: F)
    where
        F: Fn(Vec<I>) -> R,
        R: Future<Output = Vec<O>>,
    {
        while let Some((items, senders)) = self.next() {
            for (sender, result) in senders.into_iter().zip(run(items).await) {
                // Sending fails only if the caller has stopped waiting.
                let _ = sender.send(result);
            }
        }
    }

    /// Returns the items of the next call. If there are none, removes the key, so that the next item starts a
    /// new task.
    fn next(&mut self) -> Option<(Vec<I>, Vec<oneshot::Sender<O>>)> {
        let arrived = {
            let mut waiting = self.combiner.waiting.lock();
            let all = waiting.get_mut(&self.key)?;
            if all.is_empty() && self.items.is_empty() {
                waiting.remove(&self.key);
                self.is_over = true;
                return None;
            }
            mem::take(all)
        };
        for (item, sender) in arrived {
            self.items.push_back(item);
            self.senders.push_back(sender);
        }
        let count = (self.combiner.cut)(self.items.make_contiguous()).clamp(1, self.items.len());
        let (items, senders) = (self.items.drain(..count).collect(), self.senders.drain(..count).collect());
        Some((items, senders))
    }
}

impl<K: Eq + Hash, I, O> Drop for Calls<K, I, O> {
    /// If a call panics or the runtime ends, the callers' results are canceled, so that none waits without end.
    fn drop(&mut self) {
        if !self.is_over {
            self.combiner.waiting.lock().remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    type Numbers = Combiner<&'static str, u32, (u32, usize)>;

    /// Each call returns its items with the number of items, after it got a permit.
    async fn shared(
        numbers: &Arc<Numbers>,
        gate: &Arc<Semaphore>,
        key: &'static str,
        item: u32,
    ) -> Option<(u32, usize)> {
        let gate = Arc::clone(gate);
        let run = move |items: Vec<u32>| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.unwrap().forget();
                let together = items.len();
                items.into_iter().map(|item| (item, together)).collect()
            }
        };
        numbers.call(key, item, run).await
    }

    #[tokio::test]
    async fn items_that_arrive_during_a_call_share_the_next_ones() {
        let numbers = Numbers::new(|items| items.len().min(3));
        let gate = Arc::new(Semaphore::new(0));
        let calls: Vec<_> = (0..6)
            .map(|item| {
                let (numbers, gate) = (Arc::clone(&numbers), Arc::clone(&gate));
                tokio::spawn(async move { shared(&numbers, &gate, "a", item).await.unwrap() })
            })
            .collect();
        // A different key does not wait for the first one.
        gate.add_permits(1);
        let other = shared(&numbers, &gate, "b", 9);
        gate.add_permits(9);
        assert_eq!(other.await, Some((9, 1)));
        let mut results = Vec::new();
        for call in calls {
            results.push(call.await.unwrap());
        }
        let mut items: Vec<u32> = results.iter().map(|(item, _)| *item).collect();
        items.sort_unstable();
        assert_eq!(items, [0, 1, 2, 3, 4, 5]);
        assert!(results.iter().all(|(_, together)| *together <= 3), "{results:?}");
        while !numbers.waiting.lock().is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_consumer_that_disconnects_does_not_take_the_others_with_it() {
        let numbers = Numbers::new(|items| items.len());
        let gate = Arc::new(Semaphore::new(0));
        let first = {
            let (numbers, gate) = (Arc::clone(&numbers), Arc::clone(&gate));
            tokio::spawn(async move { shared(&numbers, &gate, "a", 1).await })
        };
        while numbers.waiting.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        first.abort();
        gate.add_permits(2);
        assert_eq!(shared(&numbers, &gate, "a", 2).await.map(|(item, _)| item), Some(2));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_item_is_lost_when_a_task_ends_while_another_begins() {
        let numbers = Numbers::new(|items| items.len());
        let consumers = (0..8).map(|item| {
            let numbers = Arc::clone(&numbers);
            tokio::spawn(async move {
                for _ in 0..5_000 {
                    let run =
                        |items: Vec<u32>| async move { items.into_iter().map(|item| (item, 1)).collect() };
                    assert_eq!(numbers.call("a", item, run).await, Some((item, 1)));
                }
            })
        });
        for consumer in consumers.collect::<Vec<_>>() {
            consumer.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_call_that_panics_is_reported_and_the_next_one_runs() {
        let numbers = Numbers::new(|items| items.len());
        let failed = numbers.call("a", 1, |_| async { panic!("as the test wants") }).await;
        assert_eq!(failed, None);
        let gate = Arc::new(Semaphore::new(1));
        assert_eq!(shared(&numbers, &gate, "a", 2).await, Some((2, 1)));
    }
}
