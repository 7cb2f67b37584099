//! Queues as part of the registry: their creation, change, deletion and periodic maintenance.
//!
//! The registry determines which messages a queue receives, so a publish that was computed before a queue was created
//! or deleted is rejected and computed again, as with subscriptions. Each shard is informed of a queue's settings
//! afterwards (`configure`), and any process that detects an outdated shard does so.

use std::{collections::HashMap, sync::Arc};

use signalbox_store::Error as StoreError;

use super::{Error, Handle, Registry, core::Core, store::Store};
use signalbox_queues::{self as queues, Configured, Definition, Matcher};

/// Maximum number of repetitions when the registry changes while a shard is configured.
const CONFIGURE_TRIES: usize = 10;

/// Messages checked for their age in one round.
const RETENTION_PART: usize = 1_000;

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
            None if queues >= most => Err(Error::TooMany("queues")),
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
        if self.retired_queues.contains(name) {
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
                let definition = change(registry.queue_to_change(name, expected)?)?;
                let created = registry.put_queue(name, definition, version, most)?;
                let stored = registry.queues.get(name).cloned().ok_or(Error::NoSuchQueue)?;
                Ok((created, stored))
            })
        };
        let created = match put().await {
            Err(Error::QueueEnding) => {
                clear(&self.core, name).await?;
                put().await?
            }
            result => result?,
        };
        self.configure_queue(name).await?;
        Ok(created)
    }

    /// Deletes a queue with all its messages.
    ///
    /// # Errors
    /// [`Error::NoSuchQueue`] when there is none. When the fabric does not answer, the queue may be deleted; what is
    /// left of it is cleared away later.
    pub async fn delete_queue(&self, name: &str) -> Result<(), Error> {
        self.core
            .change(|registry, _| {
                registry.queues.remove(name).ok_or(Error::NoSuchQueue)?;
                registry.retired_queues.insert(name.to_owned());
                Ok(())
            })
            .await?;
        clear(&self.core, name).await
    }

    /// Configures the queue on every shard, as it is defined in the fabric now. Returns whether the queue exists.
    pub async fn configure_queue(&self, name: &str) -> Result<bool, Error> {
        'again: for _ in 0..CONFIGURE_TRIES {
            let view = self.core.refresh().await?;
            let Some(queue) = view.queues.get(name) else { return Ok(false) };
            self.core.spread(&view).await?;
            for store in &self.core.queues {
                if store.configure(name, &view.stamp, &queue.definition).await? == Configured::Stale {
                    continue 'again;
                }
            }
            return Ok(true);
        }
        Err(Error::Contended)
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

/// Clears away what a deleted queue left, in every shard, and sets its name free.
async fn clear(core: &Core, name: &str) -> Result<(), Error> {
    for store in &core.queues {
        while store.clear(name).await? {}
    }
    core.change(|registry, _| {
        registry.retired_queues.remove(name);
        Ok(())
    })
    .await
}

/// State that housekeeping keeps of a shard's queues between two rounds.
#[derive(Debug, Default)]
pub(super) struct QueueMaintenance {
    /// Queue → the facet after which the next look for messages that are too old begins.
    cursors: HashMap<String, String>,
}

impl QueueMaintenance {
    /// One round in one shard: definitions that did not arrive, messages that are too old, queues that ended.
    pub(super) async fn round(&mut self, core: &Arc<Core>, store: &Store) -> Result<(), Error> {
        let view = core.view();
        if store.shard().index() == 0 {
            for name in &view.registry.retired_queues {
                clear(core, name).await?;
            }
        }
        let Some(shard) = core.queues.get(store.shard().index()) else { return Ok(()) };
        self.cursors.retain(|name, _| view.registry.queues.contains_key(name));
        let names: Vec<&str> = view.registry.queues.keys().map(String::as_str).collect();
        for (name, state) in names.iter().zip(shard.states(&names).await?) {
            let Some(definition) = view.registry.queues.get(*name) else { continue };
            if state.revision.is_none_or(|revision| revision < definition.revision) {
                // An outdated definition is updated in the next round.
                let _ = shard.configure(name, &view.stamp, definition).await?;
            }
            if state.waiting > 0 {
                self.expire(shard, name, definition).await?;
            }
        }
        Ok(())
    }

    async fn expire(
        &mut self,
        shard: &queues::Store,
        name: &str,
        definition: &Definition,
    ) -> Result<(), StoreError> {
        let before = shard.now_ms().await?.saturating_sub(definition.retention_seconds * 1000);
        let cursor = self.cursors.remove(name).unwrap_or_default();
        let (dropped, next) = shard.drop_part(name, None, Some(before), &cursor, RETENTION_PART).await?;
        if dropped > 0 {
            tracing::info!(queue = name, dropped, "messages beyond their retention dropped");
        }
        self.cursors.insert(name.to_owned(), next);
        Ok(())
    }
}
