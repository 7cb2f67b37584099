//! How many messages are where: of queues, and of their facets.

use std::collections::BTreeMap;

use super::{
    Error, Handle,
    handle::{ID_EPOCH_MS, IDS_PER_MS, Page},
    store::FacetRow,
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
    /// Environments with messages. An environment with messages in several shards is counted in each.
    pub facets: u64,
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
    /// The totals by name.
    pub(super) fn moved(&self) -> [(&'static str, u64); 9] {
        [
            ("pushed", self.pushed),
            ("pulled", self.pulled),
            ("acked", self.acked),
            ("nacked", self.nacked),
            ("expired", self.expired),
            ("died", self.died),
            ("redriven", self.redriven),
            ("dropped", self.dropped),
            ("lost", self.lost),
        ]
    }

    fn add(&mut self, numbers: &BTreeMap<String, u64>, facets: u64, dead: u64) {
        let of = |name: &str| numbers.get(name).copied().unwrap_or_default();
        self.waiting += of("waiting");
        self.in_flight += of("inflight");
        self.delayed += of("delayed");
        self.pushed += of("pushed");
        self.pulled += of("pulled");
        self.acked += of("acked");
        self.nacked += of("nacked");
        self.expired += of("expired");
        self.died += of("died");
        self.redriven += of("redriven");
        self.dropped += of("dropped");
        self.lost += of("lost");
        self.facets += facets;
        self.dead += dead;
    }
}

/// A facet, summed over all shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FacetStatus {
    /// The environment.
    pub environment: String,
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

impl FacetStatus {
    /// A facet without messages.
    pub fn empty(environment: &str) -> Self {
        Self {
            environment: environment.to_owned(),
            weight: 0,
            waiting: 0,
            in_flight: 0,
            delayed: 0,
            oldest_age_ms: None,
            dwell_ms: None,
        }
    }
}

/// Messages of an environment that were dropped because too many waited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DropGap {
    /// The environment; empty for the environments beyond the number that is recorded individually.
    pub environment: String,
    /// The lowest id.
    pub first: u64,
    /// The highest id.
    pub last: u64,
    /// The number of messages.
    pub messages: u64,
    /// When the last one was dropped, unix milliseconds.
    pub dropped_ms: u64,
}

impl DropGap {
    /// Parses the stored form.
    fn read(environment: String, words: &str) -> Option<Self> {
        let mut numbers = words.split(' ').map(|word| word.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        let (first, last, messages, dropped_ms) = (next()?, next()?, next()?, next()?);
        Some(Self { environment, first, last, messages, dropped_ms })
    }
}

impl Handle {
    /// Lists messages that were dropped because too many waited, by environment. An environment has a gap for
    /// each shard.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn gaps(&self, queue: &str) -> Result<Vec<DropGap>, Error> {
        let mut gaps = Vec::new();
        for store in &self.inner.stores {
            let found = store.gaps(queue).await?.into_iter();
            gaps.extend(found.filter_map(|(environment, words)| DropGap::read(environment, &words)));
        }
        gaps.sort_by(|a, b| (&a.environment, a.first).cmp(&(&b.environment, b.first)));
        Ok(gaps)
    }

    /// Deletes the gaps of a queue.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn forget_gaps(&self, queue: &str) -> Result<(), Error> {
        for store in &self.inner.stores {
            store.forget_gaps(queue).await?;
        }
        Ok(())
    }

    /// Statistics of queues.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn numbers(&self, queues: &[&str]) -> Result<Vec<QueueNumbers>, Error> {
        let mut numbers = vec![QueueNumbers::default(); queues.len()];
        for store in &self.inner.stores {
            for (sum, counts) in numbers.iter_mut().zip(store.counts(queues).await?) {
                sum.add(&counts.numbers, counts.facets, counts.dead);
            }
        }
        Ok(numbers)
    }

    /// Facets sorted by name, after the name `after`.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn facets(&self, queue: &str, after: &str, limit: usize) -> Result<Page<FacetStatus>, Error> {
        let mut names = std::collections::BTreeSet::new();
        for store in &self.inner.stores {
            names.extend(store.facets_after(queue, after, limit + 1).await?);
        }
        let more = names.len() > limit;
        let names: Vec<String> = names.into_iter().take(limit).collect();
        let next = if more { names.last().cloned() } else { None };
        Ok(Page { items: self.facets_named(queue, &names).await?, next })
    }

    /// The facets with these names. Facets without messages are omitted.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn facets_named(&self, queue: &str, names: &[String]) -> Result<Vec<FacetStatus>, Error> {
        let mut facets: Vec<Option<FacetStatus>> = vec![None; names.len()];
        for store in &self.inner.stores {
            let now_ms = store.now_ms().await?;
            for ((name, sum), row) in names.iter().zip(&mut facets).zip(store.facets(queue, names).await?) {
                add_facet(sum, name, &row, now_ms);
            }
        }
        Ok(facets.into_iter().flatten().collect())
    }
}

fn add_facet(sum: &mut Option<FacetStatus>, name: &str, row: &FacetRow, now_ms: u64) {
    if row.waiting + row.in_flight + row.delayed == 0 {
        return;
    }
    let age = row.oldest.as_deref().and_then(since_ms).map(|since| now_ms.saturating_sub(since));
    let one = sum.get_or_insert_with(|| FacetStatus { weight: row.weight, ..FacetStatus::empty(name) });
    one.waiting += row.waiting;
    one.in_flight += row.in_flight;
    one.delayed += row.delayed;
    one.oldest_age_ms = one.oldest_age_ms.max(age);
    one.dwell_ms = one.dwell_ms.max(row.dwell_ms);
}

/// The time at which an item of a queue was accepted or, if that was later, stored again.
fn since_ms(item: &str) -> Option<u64> {
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
