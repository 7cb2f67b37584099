//! Single messages: found, dropped, or made available, wherever in their queue they are.

use super::{
    Error, Place, Stored,
    handle::{Handle, Page},
    store::{Act, ListCall, Search, SearchCall, Store},
};

/// The low bits of an id are the number of its shard.
const SHARDS: u64 = 64;
/// Messages that one call reads.
const PART: usize = 2_000;
/// Calls of one list that find no message of the wanted environment; then the page ends early.
const LIST_CALLS: usize = 50;
/// Where a message may be, in the order in which messages move: one that moves on during a search is still found.
const PLACES: [Place; 4] = [Place::Delayed, Place::Waiting, Place::InFlight, Place::Dead];

/// What to do with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Drop it. A consumer that has it cannot acknowledge it any more.
    Drop,
    /// End its delay.
    Advance,
}

impl Handle {
    /// Messages that are delayed or in flight, those first whose delay or lease ends first (in each shard), after `after`, a
    /// value of [`Page::next`]. A page may have fewer than `limit`.
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

    /// A message. Without its environment it is not found where it waits.
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

    /// Changes a message, and shows where it was. Nothing happens to a dead letter ([`Handle::take_dead`] changes those),
    /// nor by [`Change::Advance`] to a message that is not delayed. Without its environment it is not found where it waits.
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

    /// The entry that the log got when a message was accepted, while the log has it.
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
        // A second time for one that moved back: a message that was returned, or a dead letter that was redriven.
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

/// Reads a position: shard, moment, entry.
fn read_position(after: &str) -> Option<(usize, (String, String))> {
    let (shard, rest) = after.split_once(':')?;
    let (at, entry) = rest.split_once(':')?;
    Some((shard.parse().ok()?, (at.to_owned(), entry.to_owned())))
}
