//! Batches calls: what arrives while a call is under way shares the next one.
//!
//! Nothing waits for others to arrive. The busier a server is, the more share a call, and the less each of them costs.

use std::sync::Arc;

use signalbox_store::Error;
use tokio::sync::{mpsc, oneshot};

/// The result for one item. An error that concerns all items of a call is shared.
pub type Batched<O> = Result<O, Arc<Error>>;

type Waiting<I, O> = (I, oneshot::Sender<Batched<O>>);

/// Where items are sent that share calls. Cheap to clone.
#[derive(Debug)]
pub struct Batcher<I, O>(mpsc::UnboundedSender<Waiting<I, O>>);

impl<I, O> Clone for Batcher<I, O> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<I, O> Batcher<I, O> {
    /// A batcher, with the task that makes its calls of at most `most` items, one at a time. It ends when the last clone of
    /// the batcher is dropped. `call` returns a result for each item.
    pub fn new<F, R>(most: usize, call: F) -> (Self, impl Future<Output = ()>)
    where
        F: Fn(Vec<I>) -> R,
        R: Future<Output = Vec<Batched<O>>>,
    {
        let (sender, waiting) = mpsc::unbounded_channel();
        (Self(sender), run(waiting, most, call))
    }

    /// Sends an item, and waits for its result. `None` if the task has ended.
    pub async fn call(&self, item: I) -> Option<Batched<O>> {
        let (sender, result) = oneshot::channel();
        self.0.send((item, sender)).ok()?;
        result.await.ok()
    }
}

async fn run<I, O, F, R>(mut waiting: mpsc::UnboundedReceiver<Waiting<I, O>>, most: usize, call: F)
where
    F: Fn(Vec<I>) -> R,
    R: Future<Output = Vec<Batched<O>>>,
{
    let mut batch = Vec::with_capacity(most);
    while waiting.recv_many(&mut batch, most).await > 0 {
        let (items, senders): (Vec<_>, Vec<_>) = batch.drain(..).unzip();
        // A dropped receiver means that its caller has stopped.
        for (sender, result) in senders.into_iter().zip(call(items).await) {
            let _ = sender.send(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn items_that_arrive_during_a_call_share_the_next_one() {
        let (batcher, run) = Batcher::new(3, async |items: Vec<u32>| {
            let together = items.len();
            items.into_iter().map(|item| Ok((item, together))).collect()
        });
        let calls = [1, 2, 3, 4].map(|item| {
            let batcher = batcher.clone();
            async move { batcher.call(item).await.unwrap().unwrap() }
        });
        drop(batcher);
        let (results, ()) = tokio::join!(futures_util::future::join_all(calls), run);
        assert_eq!(results, [(1, 3), (2, 3), (3, 3), (4, 1)]);
    }

    #[tokio::test]
    async fn a_call_returns_when_the_task_has_ended() {
        let (batcher, run) = Batcher::<u32, u32>::new(3, |_| pending());
        drop(run);
        assert!(batcher.call(1).await.is_none());
    }
}
