//! Single messages: found, dropped, or made available, wherever in their queue they are.

use signalbox_api::queues::MessageState;

use super::{
    Act, Error, Stored,
    handle::{Handle, Page},
    store::Store,
};

/// The low six bits of an id contain its shard.
const SHARDS: u64 = 64;
/// Maximum number of calls for one page that find no message of the requested tenant. After that, the
/// page ends early.
const LIST_CALLS: usize = 50;
/// The places of a message, in the order in which messages move. A message that moves during a search is
/// therefore still found.
const PLACES: [MessageState; 4] =
    [MessageState::Delayed, MessageState::Waiting, MessageState::InFlight, MessageState::Dead];

impl Handle {
    /// Lists messages that are delayed or in flight, after the position `after`, a value of [`Page::next`].
    /// In each shard they are sorted by the end of their delay or lease. A page may contain fewer than
    /// `limit` messages.
    pub async fn list(
        &self,
        queue: &str,
        place: MessageState,
        tenant: Option<&str>,
        after: &str,
        limit: usize,
    ) -> Result<Page<Stored>, Error> {
        let (mut shard, mut position) = match after {
            "" => Default::default(),
            after => read_position(after, self.inner.stores.len()).ok_or(Error::InvalidCursor)?,
        };
        let mut items = Vec::new();
        let mut left_bytes = self.inner.options.pull_bytes;
        let mut calls = 0;
        while let Some(store) = self.inner.stores.get(shard) {
            let after = (&*position.0, &*position.1);
            let most = limit - items.len();
            let (messages, next) = store.list(queue, place, tenant, after, most, left_bytes).await?;
            let bytes: usize = messages.iter().map(|stored| stored.message.body.len()).sum();
            left_bytes = left_bytes.saturating_sub(bytes);
            items.extend(messages);
            match next {
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

    /// Finds a message and acts on it. Returns where it was. A waiting message is found only if `tenant` is
    /// set. Dead letters are not changed (use [`Handle::take_dead`]), and [`Act::Advance`] changes only delayed
    /// messages.
    pub async fn message(
        &self,
        queue: &str,
        id: u64,
        tenant: Option<&str>,
        act: Act,
    ) -> Result<Option<Stored>, Error> {
        let Some(store) = self.shard_of(id) else { return Ok(None) };
        // The places are searched twice, in case the message moved backward: it was returned, or redriven as
        // a dead letter.
        for place in PLACES.into_iter().chain(PLACES) {
            if place == MessageState::Waiting && tenant.is_none() {
                continue;
            }
            if let Some(stored) = store.message(queue, id, act, place, tenant).await? {
                return Ok(Some(stored));
            }
        }
        Ok(None)
    }

    /// The log entry of an accepted message, if the log still contains it.
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
}

/// Parses a position: shard, time and entry. The last two are empty where a shard begins.
fn read_position(after: &str, shards: usize) -> Option<(usize, (String, String))> {
    let (shard, rest) = after.split_once(':')?;
    let (at, entry) = rest.split_once(':')?;
    let shard = shard.parse().ok().filter(|shard| *shard < shards)?;
    let is_time = !at.is_empty() && at.len() <= 16 && at.bytes().all(|byte| byte.is_ascii_digit());
    (rest == ":" || is_time && !entry.is_empty()).then(|| (shard, (at.to_owned(), entry.to_owned())))
}
