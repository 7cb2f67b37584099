//! The log of delivery attempts: the last ones of each subscriber, so that an operator can find the cause of a failure.
//!
//! Attempts are collected in memory and written once per second, so a delivery needs no extra call of Redis for the
//! log. A pacemaker that dies loses the attempts of the last second.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use signalbox_api::events::DeliveryAttempt;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{Error, Handle, core::Core, housekeeping::unless_damaged, store::Held};

/// Attempts of a subscriber that are stored.
const MAX_ATTEMPTS: usize = 50;
/// How long the log of a subscriber without attempts is stored.
const KEPT_SECONDS: u64 = 7 * 24 * 3600;
/// Between two writes.
const EVERY: Duration = Duration::from_secs(1);

/// Attempts that are not written yet, oldest first, by subscriber and generation of its lanes.
#[derive(Debug, Default)]
pub(super) struct AttemptLog(Mutex<PendingAttempts>);

type PendingAttempts = HashMap<(String, String), VecDeque<DeliveryAttempt>>;

impl AttemptLog {
    pub(super) fn note(&self, held: &Held, attempt: DeliveryAttempt) {
        let mut pending = self.0.lock();
        let of_one = pending.entry((held.token.clone(), held.generation.clone())).or_default();
        if of_one.len() == MAX_ATTEMPTS {
            of_one.pop_front();
        }
        of_one.push_back(attempt);
    }

    fn take(&self) -> PendingAttempts {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Handle {
    /// The client's last `limit` attempts to deliver, newest first.
    pub async fn deliveries(&self, client: &str, limit: usize) -> Result<Vec<DeliveryAttempt>, Error> {
        self.known(client).await?;
        write(&self.core).await?;
        let stored = self.core.stores[0].attempts(client).await?;
        // An entry of another version that cannot be read is left out.
        let mut attempts: Vec<DeliveryAttempt> =
            stored.iter().filter_map(|entry| serde_json::from_str(entry).ok()).collect();
        attempts.sort_by_key(|attempt| std::cmp::Reverse(attempt.at));
        attempts.truncate(limit);
        Ok(attempts)
    }
}

/// Writes what was collected, until `shutdown`.
pub(super) async fn run(core: Arc<Core>, shutdown: CancellationToken) {
    let mut ends = false;
    while !ends {
        tokio::select! {
            () = sleep(EVERY) => {}
            () = shutdown.cancelled() => ends = true,
        }
        if let Err(error) = write(&core).await {
            tracing::debug!(%error, "attempts to deliver not logged");
        }
    }
}

async fn write(core: &Core) -> Result<(), Error> {
    let view = core.view();
    for ((token, generation), attempts) in core.attempts.take() {
        // The log of a subscription that ended was removed with it.
        if view.subscription_of(&token, &generation).is_none() {
            continue;
        }
        let entries: Vec<String> =
            attempts.iter().filter_map(|attempt| serde_json::to_string(attempt).ok()).collect();
        let noted = core.stores[0].note_attempts(&token, &entries, MAX_ATTEMPTS, KEPT_SECONDS).await;
        unless_damaged(&token, noted)?;
    }
    Ok(())
}
