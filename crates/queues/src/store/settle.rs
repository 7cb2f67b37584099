//! Settling messages in flight.

use std::time::Duration;

use signalbox_store::{Error, keys};

use super::Store;
use crate::Settled;

scripts! { ACK: "ack", NACK: "nack", EXTEND: "extend", SWEEP: "sweep", POSTPONE: "postpone" }

/// Maximum number of messages with an expired lease, of those with an ended delay, and of tenants that one sweep returns. It limits
/// how long a call blocks Redis.
const SWEEP_PART: usize = 50;

/// The result of a sweep, in messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    pub expired: u64,
    pub due: u64,
    pub dead: u64,
    /// Tenants that were returned to the ring, because their rates allow messages again.
    pub ready: u64,
}

/// The destination of messages that are returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// They are available after this many milliseconds.
    After(u64),
    /// They are available after the backoff of their queue.
    Backoff,
    /// They become dead letters.
    Reject,
    /// Those that have reached their maximum number of attempts become dead letters; others stay in flight.
    Exhausted,
}

/// The id of a message, and the proof of its lease: nonce and attempt.
pub(crate) type Held = (u64, String);

impl Store {
    /// Removes messages. Returns the result of each; `None` if it is not, or no longer, in flight under this
    /// receipt.
    pub(crate) async fn ack(&self, queue: &str, held: &[Held]) -> Result<Vec<Option<Settled>>, Error> {
        let shared = keys::queues::shared(self.shard.tag());
        let mut call = self.call(&ACK, queue).key(&shared.acked()).key(&shared.acked_before());
        for (id, proof) in held {
            call = call.arg(*id).arg(proof);
        }
        let codes: Vec<u8> = call.run(self.redis()).await?;
        let read = |code| match code {
            1 => Some(Settled::Acked),
            2 => Some(Settled::AckedBefore),
            _ => None,
        };
        Ok(codes.into_iter().map(read).collect())
    }

    /// Returns messages to their tenants. Returns the result of each, like [`Self::ack`].
    pub(crate) async fn nack(
        &self,
        queue: &str,
        disposition: Disposition,
        keep_dead: u64,
        held: &[Held],
    ) -> Result<Vec<Option<Settled>>, Error> {
        let delay = match disposition {
            Disposition::After(ms) => ms.to_string(),
            Disposition::Backoff => "backoff".to_owned(),
            Disposition::Reject => "reject".to_owned(),
            Disposition::Exhausted => "exhausted".to_owned(),
        };
        let mut call = self
            .call(&NACK, queue)
            .key(&keys::bus::bus(self.shard.tag()).log())
            .arg(self.clock.argument())
            .arg(delay)
            .arg(keep_dead);
        for (id, proof) in held {
            call = call.arg(*id).arg(proof);
        }
        let codes: Vec<u8> = call.run(self.redis()).await?;
        let read = |code| match code {
            1 => Some(Settled::Back),
            2 => Some(Settled::Delayed),
            3 => Some(Settled::Dead),
            _ => None,
        };
        Ok(codes.into_iter().map(read).collect())
    }

    /// Makes leases end `ms` from now. Returns the new end, and whether each message was held.
    pub(crate) async fn extend(
        &self,
        queue: &str,
        ms: u64,
        held: &[Held],
    ) -> Result<(u64, Vec<bool>), Error> {
        let mut call = self.call(&EXTEND, queue).arg(self.clock.argument()).arg(ms);
        for (id, proof) in held {
            call = call.arg(*id).arg(proof);
        }
        call.run(self.redis()).await
    }

    /// Returns a part of the due messages of one queue, with an expired lease or an ended delay.
    pub async fn sweep(&self, queue: &str, keep_dead: u64) -> Result<Swept, Error> {
        let (expired, due, dead, ready) = self
            .call(&SWEEP, queue)
            .key(&keys::bus::bus(self.shard.tag()).log())
            .arg(self.clock.argument())
            .arg(SWEEP_PART)
            .arg(keep_dead)
            .run(self.redis())
            .await?;
        Ok(Swept { expired, due, dead, ready })
    }

    /// Postpones the next sweep of a queue that was due at `due_ms`, by `pause` from now.
    pub(crate) async fn postpone(&self, queue: &str, due_ms: u64, pause: Duration) -> Result<(), Error> {
        let call = POSTPONE.call().key(&keys::queues::shared(self.shard.tag()).due());
        let call = call.arg(self.clock.argument()).arg(queue).arg(due_ms);
        call.arg(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX))
            .run::<u64>(self.redis())
            .await
            .map(drop)
    }

    /// The queue whose next sweep is due first, and its time in unix milliseconds.
    pub async fn next_due(&self) -> Result<Option<(String, u64)>, Error> {
        let key = keys::queues::shared(self.shard.tag()).due();
        let first: Vec<(String, f64)> =
            self.redis().command("ZRANGE").key(&key).arg((0, 0, "WITHSCORES")).query().await?;
        // Scores are whole milliseconds.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Ok(first.into_iter().map(|(queue, due)| (queue, due as u64)).next())
    }
}
