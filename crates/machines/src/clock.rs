//! The fabric's clock, without asking it each time: two pacemakers' own clocks differ.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::store::Store;

/// After how long the fabric is asked again.
const GOOD_FOR: Duration = Duration::from_secs(10);

/// Tells the time in unix milliseconds. Cheap to clone; never goes back.
#[derive(Debug, Clone)]
pub(super) enum Clock {
    /// The fabric's.
    Fabric(Arc<Fabric>),
    /// A test's.
    #[cfg_attr(not(test), allow(dead_code))]
    Fixed(Arc<AtomicU64>),
}

#[derive(Debug)]
pub(super) struct Fabric {
    store: Store,
    asked: Mutex<Option<(Instant, u64)>>,
    latest: AtomicU64,
}

impl Clock {
    pub(super) fn new(store: Store) -> Self {
        Self::Fabric(Arc::new(Fabric { store, asked: Mutex::default(), latest: AtomicU64::new(0) }))
    }

    pub(super) async fn now_ms(&self) -> Result<u64, signalbox_store::Error> {
        let fabric = match self {
            Self::Fixed(now_ms) => return Ok(now_ms.load(Ordering::SeqCst)),
            Self::Fabric(fabric) => fabric,
        };
        let known = *fabric.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let (asked, told) = match known.filter(|(asked, _)| asked.elapsed() < GOOD_FOR) {
            Some(known) => known,
            None => {
                let told = fabric.store.now_ms().await?;
                let known = (Instant::now(), told);
                *fabric.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
                known
            }
        };
        let now_ms = told + u64::try_from(asked.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(fabric.latest.fetch_max(now_ms, Ordering::SeqCst).max(now_ms))
    }
}
