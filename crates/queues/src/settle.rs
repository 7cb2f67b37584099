//! Settling messages by their receipts, on behalf of consumers.

use std::collections::BTreeMap;

use super::{
    Error, Handle, Receipt,
    handle::Inner,
    store::{Disposition, Held},
};

/// Maximum number of receipts in one call. It limits how long a call blocks Redis: each message may be of another tenant.
pub(super) const SETTLE_PART: usize = 100;

/// The result of settling a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The message was acknowledged.
    Acked,
    /// An earlier call with this receipt acknowledged the message.
    AckedBefore,
    /// The message was returned to the head of its tenant.
    Back,
    /// The message was returned and becomes available after its delay.
    Delayed,
    /// The message became a dead letter: it was rejected, or has reached its maximum number of deliveries.
    Dead,
    /// The lease now ends at this time, in unix milliseconds of the shard's clock.
    Extended(u64),
    /// The text is not a receipt.
    Malformed,
    /// The receipt belongs to another queue.
    OtherQueue,
    /// The receipt was used before.
    Used,
    /// The lease has expired, and the message has been returned to its queue or settled since.
    Expired,
}

impl Handle {
    /// Acknowledges messages. Returns the result of each receipt.
    ///
    /// # Errors
    /// If the fabric does not answer. The call can be repeated: for a while, acknowledged receipts are
    /// reported as such, and later as used.
    pub async fn ack(&self, queue: &str, receipts: &[&str]) -> Result<Vec<Settled>, Error> {
        self.settle(queue, receipts, Action::Ack).await
    }

    /// Returns messages after a delay, or after the backoff of their queue. Returns the result of each
    /// receipt.
    ///
    /// # Errors
    /// If the fabric does not answer. The call can be repeated.
    pub async fn nack(
        &self,
        queue: &str,
        delay_ms: Option<u64>,
        receipts: &[&str],
    ) -> Result<Vec<Settled>, Error> {
        let disposition = delay_ms.map_or(Disposition::Backoff, Disposition::After);
        self.settle(queue, receipts, Action::Nack(disposition)).await
    }

    /// Turns messages into dead letters, whatever their number of attempts. Returns the result of each
    /// receipt.
    ///
    /// # Errors
    /// If the fabric does not answer. The call can be repeated.
    pub async fn reject(&self, queue: &str, receipts: &[&str]) -> Result<Vec<Settled>, Error> {
        self.settle(queue, receipts, Action::Nack(Disposition::Reject)).await
    }

    /// Sets the end of leases to `lease_ms` from now. Returns the result of each receipt.
    ///
    /// # Errors
    /// If the fabric does not answer. The call can be repeated.
    pub async fn extend(&self, queue: &str, lease_ms: u64, receipts: &[&str]) -> Result<Vec<Settled>, Error> {
        self.settle(queue, receipts, Action::Extend { lease_ms }).await
    }

    /// Parses receipts, settles those of each shard, and determines why others were not held.
    async fn settle(&self, queue: &str, receipts: &[&str], action: Action) -> Result<Vec<Settled>, Error> {
        let stores = &self.inner.stores;
        let mut answers = vec![Settled::Malformed; receipts.len()];
        let mut by_shard: BTreeMap<usize, Vec<(usize, Receipt)>> = BTreeMap::new();
        for (place, text) in receipts.iter().enumerate() {
            match text.parse::<Receipt>() {
                Ok(receipt) if receipt.queue != queue => answers[place] = Settled::OtherQueue,
                Ok(receipt) if receipt.shard < stores.len() => {
                    by_shard.entry(receipt.shard).or_default().push((place, receipt));
                }
                _ => {}
            }
        }
        for (shard, mut receipts) in by_shard {
            if receipts.len() > SETTLE_PART {
                receipts.sort_unstable_by_key(|(_, one)| one.id);
            }
            let held: Vec<Held> = receipts.iter().map(|(_, one)| (one.id, one.proof())).collect();
            let found = self.in_parts(shard, queue, &held, action).await?;
            let mut now_ms = None;
            for ((place, receipt), found) in receipts.iter().zip(found) {
                answers[*place] = match found {
                    Some(settled) => settled,
                    None => {
                        let now = match now_ms {
                            Some(now) => now,
                            None => *now_ms.insert(stores[shard].now_ms().await?),
                        };
                        if receipt.until_ms <= now { Settled::Expired } else { Settled::Used }
                    }
                };
            }
        }
        for settled in &answers {
            self.inner.metrics.settled(queue, settled.result(), 1);
        }
        Ok(answers)
    }

    /// Settles messages of a shard. Those that become dead letters are appended to them, so the part with the first ones is the
    /// first. Others return to the heads of their tenants, so their part with the first ones is the last.
    async fn in_parts(
        &self,
        shard: usize,
        queue: &str,
        held: &[Held],
        action: Action,
    ) -> Result<Vec<Option<Settled>>, Error> {
        let returns = matches!(action, Action::Nack(Disposition::After(_) | Disposition::Backoff));
        let (append, rest) = match action {
            _ if !returns || held.len() <= SETTLE_PART => (action, None),
            _ => (Action::Nack(Disposition::Exhausted), Some(action)),
        };
        let mut found = Vec::with_capacity(held.len());
        for part in held.chunks(SETTLE_PART) {
            found.extend(append.carry_out(&self.inner, shard, queue, part).await?);
        }
        let Some(rest) = rest else { return Ok(found) };
        for (part, found) in held.chunks(SETTLE_PART).zip(found.chunks_mut(SETTLE_PART)).rev() {
            let settled = rest.carry_out(&self.inner, shard, queue, part).await?;
            for (found, settled) in found.iter_mut().zip(settled) {
                *found = found.or(settled);
            }
        }
        Ok(found)
    }
}

/// The action on messages in flight.
#[derive(Debug, Clone, Copy)]
enum Action {
    Ack,
    Nack(Disposition),
    Extend { lease_ms: u64 },
}

impl Action {
    /// Returns the result for each message; `None` for one that was not held.
    async fn carry_out(
        self,
        inner: &Inner,
        shard: usize,
        queue: &str,
        held: &[Held],
    ) -> Result<Vec<Option<Settled>>, Error> {
        let store = &inner.stores[shard];
        Ok(match self {
            Self::Ack => inner.shared_calls.ack(store, shard, queue, held.to_vec()).await?,
            Self::Nack(disposition) => {
                store.nack(queue, disposition, inner.options.dead_messages, held).await?
            }
            Self::Extend { lease_ms } => {
                let (until_ms, extended) = store.extend(queue, lease_ms, held).await?;
                extended.into_iter().map(|held| held.then_some(Settled::Extended(until_ms))).collect()
            }
        })
    }
}

impl Settled {
    /// The name of the result in metrics.
    fn result(self) -> &'static str {
        match self {
            Self::Acked => "acked",
            Self::AckedBefore => "acked_before",
            Self::Back => "back",
            Self::Delayed => "delayed",
            Self::Dead => "dead",
            Self::Extended(_) => "extended",
            Self::Malformed | Self::OtherQueue | Self::Used | Self::Expired => "refused",
        }
    }
}
