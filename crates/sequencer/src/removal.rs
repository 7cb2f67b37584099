//! Removing a backend that still has events.
//!
//! The registry is changed first: the backend accepts no new objects, and the treatment of its events is set. Only
//! then are events dropped, a part in each call of a script that rejects any other registry. So a publish that is
//! under way either came before and is dropped with the others, or is computed again and goes elsewhere; and any
//! pacemaker can continue at any point.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::store::Store;
use signalbox_bus::{self as bus, Error, Queued};

/// How long a request waits for the removal to finish. After that, the fetchers continue it.
const PATIENCE: Duration = Duration::from_secs(5);

/// The result of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing is queued for the backend in this shard, and nothing can be added.
    Empty,
    /// Some events remain.
    Going,
    /// The shard or this process has an outdated registry.
    Stale,
}

/// Performs one step in one shard. The first `cursor` is `0`.
pub(super) async fn step(
    bus: &bus::Handle,
    store: &Store,
    name: &str,
    cursor: &mut String,
    dead_events: u64,
) -> Result<Step, Error> {
    // The order matters: the script rejects a registry that is newer than its stamp.
    let stamp = bus.stamp();
    let registry = bus.registry();
    let Some(backend) = registry.backends.get(name).filter(|one| one.draining) else {
        return Ok(Step::Stale);
    };
    let cleared = store.clear(&stamp, name, backend.queued, cursor, dead_events).await?;
    if cleared.dropped > 0 {
        tracing::info!(
            backend = name,
            events = cleared.dropped,
            queued = backend.queued.as_str(),
            "events of a removed backend dropped"
        );
    }
    *cursor = cleared.cursor;
    Ok(match cleared.left {
        Some(0) => Step::Empty,
        Some(_) => Step::Going,
        None => Step::Stale,
    })
}

/// Deletes a backend for which no shard has queued events. Returns whether it is deleted.
pub(super) async fn forget_if_empty(
    bus: &bus::Handle,
    stores: &[Arc<Store>],
    name: &str,
) -> Result<bool, Error> {
    let Some(first) = bus.registry().backends.get(name).cloned() else { return Ok(true) };
    for store in stores {
        let stamp = bus.stamp();
        let registry = bus.registry();
        let Some(backend) = registry.backends.get(name) else { return Ok(true) };
        // If it was defined again in the meantime, events may have been queued in the shards that were read before.
        let is_same = backend.draining && backend.drained_in == first.drained_in;
        // `Send` makes the script only report what is queued.
        if !is_same || store.clear(&stamp, name, Queued::Send, "0", 0).await?.left != Some(0) {
            return Ok(false);
        }
    }
    bus.forget_backend(name, first.drained_in).await
}

/// Makes as much progress as possible while the request waits. Returns whether the backend was removed.
pub(super) async fn run(
    bus: &bus::Handle,
    stores: &[Arc<Store>],
    name: &str,
    queued: Queued,
    dead_events: u64,
) -> Result<bool, Error> {
    if queued != Queued::Send {
        let all = async {
            for store in stores {
                let mut cursor = "0".to_owned();
                while step(bus, store, name, &mut cursor, dead_events).await? == Step::Going {}
            }
            Ok::<_, Error>(())
        };
        match timeout(PATIENCE, all).await {
            Ok(done) => done?,
            Err(_) => return Ok(false),
        }
    }
    forget_if_empty(bus, stores, name).await
}
