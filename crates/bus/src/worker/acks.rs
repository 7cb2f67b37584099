//! Acknowledgements of a shard, several in one call.

use std::sync::Arc;

use signalbox_store::Kind;

use crate::{
    batcher::{Batched, Batcher},
    store::{Ack, Store},
};

/// Maximum acknowledgements in one call. It limits how long a call blocks Redis.
const MAX_ACKS: usize = 32;

/// Where a shard's deliveries send their acknowledgements.
pub(crate) type Acks = Batcher<Ack, bool>;

/// The batcher of a shard's acknowledgements, with the task that it needs.
pub(crate) fn acks(store: &Arc<Store>) -> (Acks, impl Future<Output = ()> + use<>) {
    let store = Arc::clone(store);
    Batcher::new(MAX_ACKS, move |acks| ack_all(Arc::clone(&store), acks))
}

/// Acknowledges batches in one call. If that fails because of the data of one of them, the others are acknowledged
/// alone.
async fn ack_all(store: Arc<Store>, acks: Vec<Ack>) -> Vec<Batched<bool>> {
    match store.ack(&acks).await {
        Ok(held) => held.into_iter().map(Ok).collect(),
        Err(error) if error.kind() == Kind::Broken && acks.len() > 1 => {
            let mut results = Vec::with_capacity(acks.len());
            for ack in &acks {
                let result = store.ack(std::slice::from_ref(ack)).await;
                results.push(result.map(|held| held == [true]).map_err(Arc::new));
            }
            results
        }
        Err(error) => vec![Err(Arc::new(error)); acks.len()],
    }
}
