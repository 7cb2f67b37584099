//! Single messages: found, dropped, or made available, wherever in their queue they are.

use super::{
    Error, Place, Stored,
    handle::{Handle, Page},
    store::{Act, ListCall, Search, SearchCall, Store},
};

/// The low six bits of an id contain its shard.
const SHARDS: u64 = 64;
/// Maximum number of messages that one call reads.
const PART: usize = 2_000;
/// Maximum number of calls for one page that find no message of the requested environment. After that, the
/// page ends early.
const LIST_CALLS: usize = 50;
/// The places of a message, in the order in which messages move. A message that moves during a search is
/// therefore still found.
const PLACES: [Place; 4] = [Place::Delayed, Place::Waiting, Place::InFlight, Place::Dead];

/// A change of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Drop it. A consumer that holds it cannot acknowledge it any more.
    Drop,
    /// End its delay.
    Advance,
}

impl Handle {
    /// Lists messages that are delayed or in flight, after the position `after`, a value of [`Page::next`].
    /// In each shard they are sorted by the end of their delay or lease. A page may contain fewer than
    /// `limit` messages.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn list(
        &self,
        queue: &str,
        place: Place,
        environment: Option<&str>,
        after: &str,
        limit: usize,
    ) -> Result<Page<Stored>, Error> {
        let (mut shard, mut position) = read_position(after).unwrap_or_default();
        let mut items = Vec::new();
        let mut left_bytes = self.inner.options.pull_bytes;
        let mut calls = 0;
        while let Some(store) = self.inner.stores.get(shard) {
            let call = ListCall {
                queue,
                place,
                environment,
                after: (&position.0, &position.1),
                most: limit - items.len(),
                most_bytes: left_bytes,
                read: PART,
            };
            let listed = store.list(call).await?;
            let bytes: usize = listed.messages.iter().map(|stored| stored.message.body.len()).sum();
            left_bytes = left_bytes.saturating_sub(bytes);
            items.extend(listed.messages);
            match listed.next {
                Some(next) => position = next,
                None => (shard, position) = (shard + 1, Default::default()),
            }
            calls += 1;
            if items.len() == limit || left_bytes == 0 || calls == LIST_CALLS {
                break;
            }
        }
        let more = shard < self.inner.stores.len();
        let next = more.then(|| format!("{shard}:{}:{}", position.0, position.1));
        Ok(Page { items, next })
    }

    /// Finds a message. A waiting message is found only if `environment` is set.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn message(
        &self,
        queue: &str,
        id: u64,
        environment: Option<&str>,
    ) -> Result<Option<Stored>, Error> {
        self.search(queue, id, environment, Act::Show).await
    }

    /// Changes a message, and returns where it was. Dead letters are not changed (use [`Handle::take_dead`]),
    /// and [`Change::Advance`] changes only delayed messages. A waiting message is found only if
    /// `environment` is set.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn change_message(
        &self,
        queue: &str,
        id: u64,
        environment: Option<&str>,
        change: Change,
    ) -> Result<Option<Stored>, Error> {
        let act = match change {
            Change::Drop => Act::Drop,
            Change::Advance => Act::Advance,
        };
        self.search(queue, id, environment, act).await
    }

    /// The log entry of an accepted message, if the log still contains it.
    ///
    /// # Errors
    /// When the fabric does not answer.
    pub async fn log_entry(&self, id: u64) -> Result<Option<Vec<u8>>, Error> {
        match self.shard_of(id) {
            Some(store) => Ok(store.log_entry(id).await?),
            None => Ok(None),
        }
    }

    fn shard_of(&self, id: u64) -> Option<&Store> {
        let shard = usize::try_from(id % SHARDS).ok()?;
        self.inner.stores.get(shard).map(|store| &**store)
    }

    async fn search(
        &self,
        queue: &str,
        id: u64,
        environment: Option<&str>,
        act: Act,
    ) -> Result<Option<Stored>, Error> {
        let Some(store) = self.shard_of(id) else { return Ok(None) };
        // The places are searched twice, in case the message moved backward: it was returned, or redriven as
        // a dead letter.
        for place in PLACES.into_iter().chain(PLACES) {
            if place == Place::Waiting && environment.is_none() {
                continue;
            }
            let mut from = 0;
            loop {
                let call = SearchCall { queue, id, act, place, environment, from, most: PART };
                match store.message(call).await? {
                    Search::Found(stored) => return Ok(Some(stored)),
                    Search::Next(next) => from = next,
                    Search::Nowhere => break,
                }
            }
        }
        Ok(None)
    }
}

/// Parses a position: shard, time and entry.
fn read_position(after: &str) -> Option<(usize, (String, String))> {
    let (shard, rest) = after.split_once(':')?;
    let (at, entry) = rest.split_once(':')?;
    Some((shard.parse().ok()?, (at.to_owned(), entry.to_owned())))
}
