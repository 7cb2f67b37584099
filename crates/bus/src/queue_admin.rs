//! Queues as part of the registry: their creation, change, deletion and periodic maintenance.
//!
//! The registry determines which messages a queue receives, so a publish that was computed before a queue was created
//! or deleted is rejected and computed again, as with subscriptions. Each shard is informed of a queue's settings
//! afterwards (`configure`), and any process that detects an outdated shard does so.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{Error, Handle, Limit, Registry, core::Core, store::Store, view::State};
use signalbox_queues::{self as queues, Cleared, Configured, Definition, Matcher};

/// Maximum number of repetitions when the registry changes before any of a shard was configured or cleared.
const TRIES: usize = 10;

/// Messages dropped, and tenants checked, in one part of the check for messages that are too old.
const RETENTION_PART: usize = 1_000;
/// The check for messages that are too old ends a round after this time, and continues in the next round.
const RETENTION_TIME: Duration = Duration::from_secs(5);

impl Registry {
    /// Makes a queue or replaces its definition; whether it is new. One that stays the same keeps its revision.
    pub(super) fn put_queue(
        &mut self,
        name: &str,
        definition: Definition,
        version: u64,
        most: usize,
    ) -> Result<bool, Error> {
        let queues = self.queues.len();
        match self.queues.get_mut(name) {
            Some(known) => {
                if !known.is_same(&definition) {
                    *known = Definition { revision: version, ..definition };
                }
                Ok(false)
            }
            None if queues >= most => Err(Error::TooMany(Limit::Queues)),
            None => {
                self.queues.insert(name.to_owned(), Definition { revision: version, ..definition });
                Ok(true)
            }
        }
    }

    /// The queue that is to be changed. `expected` is its revision, if only that one may be changed; 0 for no queue.
    pub(super) fn queue_to_change(
        &self,
        name: &str,
        expected: Option<u64>,
    ) -> Result<Option<&Definition>, Error> {
        if self.retired_queues.contains_key(name) {
            return Err(Error::QueueEnding);
        }
        let known = self.queues.get(name);
        let revision = known.map_or(0, |known| known.revision);
        match expected {
            Some(expected) if expected != revision => Err(Error::QueueChanged(revision)),
            _ => Ok(known),
        }
    }
}

impl Handle {
    /// Makes a queue or changes its definition, and returns when every shard goes by it. Whether it is new, and its
    /// definition. `change` computes the definition from the one that exists. `expected` is the revision of the queue, if
    /// only that one may be changed; 0 if there must be none.
    ///
    /// # Errors
    /// When `change` fails, the queue has another revision, there would be more than `most` queues, or the fabric does
    /// not answer; then it can be repeated.
    pub async fn put_queue(
        &self,
        name: &str,
        expected: Option<u64>,
        most: usize,
        change: impl Fn(Option<&Definition>) -> Result<Definition, Error>,
    ) -> Result<(bool, Definition), Error> {
        let put = || {
            self.core.change(|registry, version| {
                let known = registry.queue_to_change(name, expected)?.cloned();
                let definition = change(known.as_ref())?;
                let created = registry.put_queue(name, definition, version, most)?;
                let stored = registry.queues.get(name).cloned().ok_or(Error::NoSuchQueue)?;
                Ok((created, stored, known))
            })
        };
        let (created, stored, known) = match put().await {
            Err(Error::QueueEnding) => {
                clear(&self.core, name).await?;
                put().await?
            }
            result => result?,
        };
        self.configure(name, known).await?;
        Ok((created, stored))
    }

    /// Deletes a queue with all its messages.
    ///
    /// # Errors
    /// [`Error::NoSuchQueue`] when there is none. When the fabric does not answer, the queue may be deleted; what is
    /// left of it is cleared away later.
    pub async fn delete_queue(&self, name: &str) -> Result<(), Error> {
        self.core
            .change(|registry, version| {
                registry.queues.remove(name).ok_or(Error::NoSuchQueue)?;
                registry.retired_queues.insert(name.to_owned(), version);
                Ok(())
            })
            .await?;
        clear(&self.core, name).await
    }

    /// Configures the queue on every shard, as it is defined in the fabric now. Returns whether the queue exists.
    pub async fn configure_queue(&self, name: &str) -> Result<bool, Error> {
        self.configure(name, None).await
    }

    /// The same. `known` is an earlier definition. A caller that stops waiting does not stop the work, so a repetition of its
    /// call continues where this one is.
    async fn configure(&self, name: &str, known: Option<Definition>) -> Result<bool, Error> {
        let (core, name) = (Arc::clone(&self.core), name.to_owned());
        let task = tokio::spawn(async move { configure(&core, &name, known.as_ref()).await });
        task.await.unwrap_or(Err(Error::Contended))
    }

    /// Reads the queues as this pacemaker knows them.
    pub fn queues<T>(&self, look: impl FnOnce(&Matcher) -> T) -> T {
        look(&self.core.view().queues)
    }

    /// The stamp of the registry as this pacemaker knows it.
    pub fn stamp(&self) -> String {
        self.core.view().stamp.clone()
    }

    /// Events that may wait for a backend in the queue of one object.
    pub fn object_events(&self) -> u64 {
        self.core.options.object_events
    }

    /// Reads the registry again, and brings shards to it that are behind.
    pub async fn refresh_registry(&self) -> Result<(), Error> {
        let view = self.core.refresh().await?;
        self.core.spread(&view).await
    }
}

/// Puts the present definition of a queue into effect on every shard, unless it is. Returns whether the queue exists.
async fn configure(core: &Core, name: &str, known: Option<&Definition>) -> Result<bool, Error> {
    let place = Arc::clone(core.configured.lock().entry(name.to_owned()).or_default());
    let mut last = place.lock().await;
    'again: for _ in 0..TRIES {
        let view = core.refresh().await?;
        let Some(queue) = view.queues.get(name) else {
            core.configured.lock().remove(name);
            return Ok(false);
        };
        core.spread(&view).await?;
        let earlier: Vec<&Definition> = last.as_deref().into_iter().chain(known).collect();
        for store in &core.queues {
            if store.configure(name, &view.stamp, &queue.definition, &earlier).await? == Configured::Stale {
                continue 'again;
            }
        }
        *last = Some(Arc::clone(&queue.definition));
        return Ok(true);
    }
    Err(Error::Contended)
}

/// Clears away what a deleted queue left, in every shard, and sets its name free. Each part proves that the queue is deleted in
/// the registry of its shard. If the name was set free in the meantime, there is nothing to do.
async fn clear(core: &Core, name: &str) -> Result<(), Error> {
    let mut view = core.refresh().await?;
    let Some(ended) = view.registry.retired_queues.get(name).copied() else { return Ok(()) };
    let is_ended = |registry: &Registry| registry.retired_queues.get(name) == Some(&ended);
    for store in &core.queues {
        let mut tries = 0;
        loop {
            match store.clear(name, &view.stamp).await? {
                Cleared::Part => tries = 0,
                Cleared::All => break,
                Cleared::Stale if tries == TRIES => return Err(Error::Contended),
                Cleared::Stale => {
                    tries += 1;
                    view = core.refresh().await?;
                    if !is_ended(&view.registry) {
                        return Ok(());
                    }
                    core.spread(&view).await?;
                }
            }
        }
    }
    core.change(|registry, _| {
        if is_ended(registry) {
            registry.retired_queues.remove(name);
        }
        Ok(())
    })
    .await
}

/// State that housekeeping keeps of a shard's queues between two rounds.
#[derive(Debug, Default)]
pub(super) struct QueueMaintenance {
    /// Queue → the tenant after which the next check for messages that are too old begins.
    cursors: HashMap<String, String>,
}

impl QueueMaintenance {
    /// One round in one shard: queues that ended, definitions that did not arrive, messages that are too old. A queue that
    /// fails is logged, and delays no other. The script that changes a queue proves that the change is current.
    pub(super) async fn round(&mut self, core: &Arc<Core>, store: &Store) {
        let view = core.view();
        if view.state != State::Ready {
            return;
        }
        if store.shard().index() == 0 {
            for name in view.registry.retired_queues.keys() {
                log(name, clear(core, name).await);
            }
        }
        let Some(shard) = core.queues.get(store.shard().index()) else { return };
        self.cursors.retain(|name, _| view.registry.queues.contains_key(name));
        let mut waiting = Vec::new();
        for (name, definition) in &view.registry.queues {
            let Some(state) = log(name, shard.state(name).await.map_err(Error::from)) else { continue };
            if state.revision.is_none_or(|revision| revision < definition.revision) {
                log(name, configure(core, name, None).await);
            }
            if state.waiting > 0 {
                waiting.push(name.as_str());
            }
        }
        self.expire(shard, waiting).await;
    }

    /// Drops messages that are too old. The queues take turns, part by part, until each was checked to its end.
    async fn expire(&mut self, shard: &queues::Store, mut names: Vec<&str>) {
        let until = Instant::now() + RETENTION_TIME;
        let mut dropped: BTreeMap<&str, u64> = BTreeMap::new();
        while !names.is_empty() && Instant::now() < until {
            let mut unfinished = Vec::new();
            for name in names {
                let cursor = self.cursors.remove(name).unwrap_or_default();
                let part = shard.drop_expired(name, &cursor, RETENTION_PART).await;
                let Some((count, next)) = log(name, part.map_err(Error::from)) else { continue };
                *dropped.entry(name).or_default() += count;
                if !next.is_empty() {
                    self.cursors.insert(name.to_owned(), next);
                    unfinished.push(name);
                }
            }
            names = unfinished;
        }
        for (queue, dropped) in dropped.into_iter().filter(|(_, dropped)| *dropped > 0) {
            tracing::info!(queue, dropped, "messages beyond their retention dropped");
        }
    }
}

/// The result, unless it is an error, which is logged.
fn log<T>(queue: &str, result: Result<T, Error>) -> Option<T> {
    let log = |error: &Error| {
        let source = std::error::Error::source(error);
        match error {
            Error::Store(store) if store.kind() == signalbox_store::Kind::Broken => {
                tracing::error!(queue, %error, ?source, "queue not maintained");
            }
            _ => tracing::debug!(queue, %error, ?source, "queue not maintained, retrying"),
        }
    };
    result.inspect_err(log).ok()
}
