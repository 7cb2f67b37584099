//! How many messages are where: of queues, and of their tenants.

use std::collections::BTreeMap;

use signalbox_api::{Time, queues::Gap};

use super::{
    Error, Handle,
    handle::{ID_EPOCH_MS, IDS_PER_MS, Page},
};

/// The number of ids in one segment of the log.
pub(super) const SEGMENT_IDS: u64 = 64_000_000;

/// Statistics of a queue, summed over all shards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueNumbers {
    /// Messages that wait.
    pub waiting: u64,
    /// Messages that are leased to consumers.
    pub in_flight: u64,
    /// Messages that wait for the end of a delay.
    pub delayed: u64,
    /// Dead letters.
    pub dead: u64,
    /// Tenants with messages. A tenant with messages in several shards is counted in each.
    pub tenants: u64,
    /// Total number of accepted messages.
    pub pushed: u64,
    /// Total number of deliveries.
    pub pulled: u64,
    /// Total number of acknowledged messages.
    pub acked: u64,
    /// Total number of returned messages.
    pub nacked: u64,
    /// Total number of expired leases.
    pub expired: u64,
    /// Total number of messages that became dead letters.
    pub died: u64,
    /// Total number of redriven dead letters.
    pub redriven: u64,
    /// Total number of dropped messages.
    pub dropped: u64,
    /// Total number of messages whose bodies were no longer in the log.
    pub lost: u64,
}

impl QueueNumbers {
    /// The totals by the names that scripts and metrics give them.
    pub(super) fn totals(&mut self) -> [(&'static str, &mut u64); 9] {
        [
            ("pushed", &mut self.pushed),
            ("pulled", &mut self.pulled),
            ("acked", &mut self.acked),
            ("nacked", &mut self.nacked),
            ("expired", &mut self.expired),
            ("died", &mut self.died),
            ("redriven", &mut self.redriven),
            ("dropped", &mut self.dropped),
            ("lost", &mut self.lost),
        ]
    }

    fn add(&mut self, numbers: &BTreeMap<String, u64>, tenants: u64, dead: u64) {
        let of = |name: &str| numbers.get(name).copied().unwrap_or_default();
        self.waiting += of("waiting");
        self.in_flight += of("inflight");
        self.delayed += of("delayed");
        for (name, total) in self.totals() {
            *total += of(name);
        }
        self.tenants += tenants;
        self.dead += dead;
    }
}

/// A tenant, summed over all shards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantStatus {
    /// The tenant.
    pub tenant: String,
    /// Messages per turn; 0 if paused.
    pub weight: u32,
    /// Messages that wait.
    pub waiting: u64,
    /// Messages that are leased to consumers.
    pub in_flight: u64,
    /// Messages that wait for the end of a delay.
    pub delayed: u64,
    /// The age of its first waiting message, from the acceptance.
    pub oldest_age_ms: Option<u64>,
    /// The mean time from acceptance to the first pull of its latest messages (an exponential moving average
    /// over about eight).
    pub dwell_ms: Option<u64>,
}

impl TenantStatus {
    fn has_messages(&self) -> bool {
        self.waiting + self.in_flight + self.delayed > 0
    }

    /// Adds what another shard has of the tenant.
    fn add(&mut self, other: &Self) {
        self.waiting += other.waiting;
        self.in_flight += other.in_flight;
        self.delayed += other.delayed;
        self.oldest_age_ms = self.oldest_age_ms.max(other.oldest_age_ms);
        self.dwell_ms = self.dwell_ms.max(other.dwell_ms);
    }
}

/// Parses a gap: `first last messages dropped_ms`. The tenant is empty for those beyond the number that is recorded
/// individually.
fn read_gap(tenant: String, words: &str) -> Option<Gap> {
    let mut numbers = words.split(' ').map(|word| word.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    let (first, last, messages, dropped_ms) = (next()?, next()?, next()?, next()?);
    let tenant = Some(tenant).filter(|name| !name.is_empty());
    Some(Gap { tenant, first, last, messages, dropped_at: Time::from_ms(dropped_ms) })
}

impl Handle {
    /// Lists messages that were dropped because too many waited, by tenant. A tenant has a gap for
    /// each shard.
    pub async fn gaps(&self, queue: &str) -> Result<Vec<Gap>, Error> {
        let mut gaps = Vec::new();
        for store in &self.inner.stores {
            let found = store.gaps(queue).await?.into_iter();
            gaps.extend(found.filter_map(|(tenant, words)| read_gap(tenant, &words)));
        }
        gaps.sort_by(|a, b| (&a.tenant, a.first).cmp(&(&b.tenant, b.first)));
        Ok(gaps)
    }

    /// Deletes the gaps of a queue.
    pub async fn forget_gaps(&self, queue: &str) -> Result<(), Error> {
        for store in &self.inner.stores {
            store.forget_gaps(queue).await?;
        }
        Ok(())
    }

    /// Statistics of queues.
    pub async fn numbers(&self, queues: &[&str]) -> Result<Vec<QueueNumbers>, Error> {
        let mut numbers = vec![QueueNumbers::default(); queues.len()];
        for store in &self.inner.stores {
            for (sum, (numbers, tenants, dead)) in numbers.iter_mut().zip(store.counts(queues).await?) {
                sum.add(&numbers, tenants, dead);
            }
        }
        Ok(numbers)
    }

    /// Tenants sorted by name, after the name `after`.
    pub async fn tenants(&self, queue: &str, after: &str, limit: usize) -> Result<Page<TenantStatus>, Error> {
        let mut names = std::collections::BTreeSet::new();
        for store in &self.inner.stores {
            names.extend(store.tenants_after(queue, after, limit + 1).await?);
        }
        let more = names.len() > limit;
        let names: Vec<String> = names.into_iter().take(limit).collect();
        let next = if more { names.last().cloned() } else { None };
        Ok(Page { items: self.tenants_named(queue, &names).await?, next })
    }

    /// The deepest tenants: those with most messages that wait or are delayed, the deepest first. Tenants with fewer than two
    /// messages are not ranked. A rank may be an eighth behind, so the last ones may miss some that are a little deeper.
    pub async fn deepest(&self, queue: &str, limit: usize) -> Result<Vec<TenantStatus>, Error> {
        let mut names = std::collections::BTreeSet::new();
        for store in &self.inner.stores {
            names.extend(store.deepest(queue, limit).await?);
        }
        let names: Vec<String> = names.into_iter().collect();
        let mut tenants = self.tenants_named(queue, &names).await?;
        tenants.sort_by_key(|tenant| std::cmp::Reverse(tenant.waiting + tenant.delayed));
        tenants.truncate(limit);
        Ok(tenants)
    }

    /// Names of tenants that contain `wanted`, in lower case, sorted, at most `limit` of the first `most` tenants.
    pub async fn tenants_like(
        &self,
        queue: &str,
        wanted: &str,
        limit: usize,
        most: usize,
    ) -> Result<Vec<TenantStatus>, Error> {
        const PART: usize = 2000;
        let (mut found, mut after, mut examined) = (Vec::new(), String::new(), 0);
        while found.len() < limit && examined < most {
            let mut names = std::collections::BTreeSet::new();
            for store in &self.inner.stores {
                names.extend(store.tenants_after(queue, &after, PART).await?);
            }
            let names: Vec<String> = names.into_iter().take(PART).collect();
            let Some(last) = names.last().cloned() else { break };
            examined += names.len();
            after = last;
            found.extend(names.into_iter().filter(|name| name.to_lowercase().contains(wanted)));
        }
        found.truncate(limit);
        self.tenants_named(queue, &found).await
    }

    /// The tenants with these names. Tenants without messages are omitted.
    pub async fn tenants_named(&self, queue: &str, names: &[String]) -> Result<Vec<TenantStatus>, Error> {
        let mut tenants: Vec<Option<TenantStatus>> = vec![None; names.len()];
        for store in &self.inner.stores {
            for (sum, tenant) in tenants.iter_mut().zip(store.tenants(queue, names).await?) {
                match sum {
                    Some(sum) => sum.add(&tenant),
                    None => *sum = Some(tenant).filter(TenantStatus::has_messages),
                }
            }
        }
        Ok(tenants.into_iter().flatten().collect())
    }
}

/// The time at which an item of a queue was accepted or, if that was later, stored again.
pub(super) fn since_ms(item: &str) -> Option<u64> {
    let item = item.split('#').next()?;
    let (id, segment) = match item.split_once('@') {
        Some((id, segment)) => (id.parse::<u64>().ok()?, segment.parse::<u64>().ok()?),
        None => (item.parse().ok()?, 0),
    };
    Some(ID_EPOCH_MS + (id / IDS_PER_MS).max(segment * (SEGMENT_IDS / IDS_PER_MS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_items_age_follows_from_its_id() {
        assert_eq!(since_ms("6400000"), Some(ID_EPOCH_MS + 1000));
        assert_eq!(since_ms("6400000#3"), Some(ID_EPOCH_MS + 1000));
        assert_eq!(since_ms("6400000@7#3"), Some(ID_EPOCH_MS + 70_000), "stored again later");
        assert_eq!(since_ms("x"), None);
    }
}
