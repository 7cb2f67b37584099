//! State that all parts of the bus share in one process: the shards, the last known registry, the cache.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use futures_util::future::join_all;
use parking_lot::RwLock;
use tokio::sync::{Mutex, Notify, mpsc};

use super::{
    Credentials, Error, EventId, Handle, Kind, NewEvent, Options, Registry,
    attempts::AttemptLog,
    cache::Cache,
    commit::Item,
    idle::Searches,
    registry,
    rng::Rng,
    sealed,
    store::{Committed, Store, Stored},
    view::{State, View},
};
use signalbox_queues::{self as queues, Definition};
use signalbox_seal::Keys;

/// Maximum number of attempts to change the registry.
const CHANGE_TRIES: usize = 10;

/// The definition of a queue that this process has put into effect last, in every shard.
type Configured = Arc<Mutex<Option<Arc<Definition>>>>;

pub(super) struct Core {
    pub(super) options: Options,
    pub(super) stores: Vec<Arc<Store>>,
    /// The same shards, for what queues keep in them.
    pub(super) queues: Vec<Arc<queues::Store>>,
    /// Names this process, this time: it is in the ids of its workers and calls.
    pub(super) incarnation: String,
    /// The machine that this process runs on.
    pub(super) node: OnceLock<String>,
    /// What encrypts credentials.
    pub(super) keys: OnceLock<Keys>,
    pub(super) cache: Cache,
    pub(super) attempts: AttemptLog,
    pub(super) rng: Rng,
    /// The way to each shard's committer.
    pub(super) committers: Vec<mpsc::Sender<Item>>,
    /// Searches for what idle subscribers need of the log.
    pub(super) idle_searches: Searches,
    /// Bytes of events on that way.
    pub(super) waiting_bytes: AtomicUsize,
    /// A replay was asked for.
    pub(super) replays: Notify,
    view: RwLock<Arc<View>>,
    /// By queue: held while this process puts its definition into effect; the definition that was in effect last.
    pub(super) configured: parking_lot::Mutex<HashMap<String, Configured>>,
    /// The fabric that this process trusts; another one, or an empty one, is refused.
    trusted: RwLock<Option<String>>,
    /// Reads of the registry that have begun.
    reads: AtomicU64,
    /// Held while this process reads or writes the registry, so that views replace each other in the order in which the
    /// fabric had them. The number of the last read that succeeded.
    registry: Mutex<u64>,
    changing: Mutex<()>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

impl Core {
    /// The prefix of the names of this process's workers.
    pub(super) fn worker_prefix(&self) -> String {
        match self.node.get() {
            Some(node) => format!("{node}/{}", self.incarnation),
            None => self.incarnation.clone(),
        }
    }

    pub(super) fn new(
        options: Options,
        stores: Vec<Arc<Store>>,
        queues: Vec<Arc<queues::Store>>,
        rng: Rng,
        committers: Vec<mpsc::Sender<Item>>,
        trusted: Option<String>,
    ) -> Self {
        Self {
            incarnation: rng.characters(20),
            node: OnceLock::new(),
            keys: OnceLock::new(),
            cache: Cache::new(options.cache_bytes),
            attempts: AttemptLog::default(),
            options,
            stores,
            queues,
            rng,
            committers,
            idle_searches: Searches::default(),
            waiting_bytes: AtomicUsize::new(0),
            replays: Notify::new(),
            view: RwLock::new(Arc::new(View::unknown(false))),
            configured: parking_lot::Mutex::default(),
            trusted: RwLock::new(trusted),
            reads: AtomicU64::new(0),
            registry: Mutex::new(0),
            changing: Mutex::new(()),
        }
    }

    /// The registry as last seen.
    pub(super) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read())
    }

    fn set_view(&self, view: View) -> Arc<View> {
        let view = Arc::new(view);
        *self.view.write() = Arc::clone(&view);
        view
    }

    fn trusted(&self) -> Option<String> {
        self.trusted.read().clone()
    }

    fn trust(&self, fabric: &str) {
        *self.trusted.write() = Some(fabric.to_owned());
    }

    /// The registry as the fabric had it at some moment after this call. Tasks that call at the same time share a read, but
    /// none gets one that began before its call: a change that was confirmed in the meantime could be missing in it.
    pub(super) async fn refresh(&self) -> Result<Arc<View>, Error> {
        let begun = self.reads.load(Ordering::SeqCst);
        let mut last = self.registry.lock().await;
        if *last > begun { Ok(self.view()) } else { self.read_registry(&mut last).await }
    }

    /// Reads the registry. `last` is what [`Self::registry`] guards.
    async fn read_registry(&self, last: &mut u64) -> Result<Arc<View>, Error> {
        let read = self.reads.fetch_add(1, Ordering::SeqCst) + 1;
        let before = self.view();
        if before.state == State::Ready
            && self.stores[0].stamp().await?.is_some_and(|found| before.is(&found))
        {
            *last = read;
            return Ok(before);
        }
        let view = self.read_changed(&before).await?;
        *last = read;
        Ok(view)
    }

    async fn read_changed(&self, before: &View) -> Result<Arc<View>, Error> {
        let stored = self.stores[0].registry().await?;
        let Some(stored) = stored.filter(|stored| self.trusted().is_none_or(|known| known == stored.fabric))
        else {
            if before.state == State::Ready {
                tracing::error!(
                    known = before.fabric,
                    "the fabric has been replaced by an empty or another one: events are rejected until it is \
                     initialized again"
                );
            }
            return Ok(self.set_view(View::unknown(true)));
        };
        if stored.shards != self.stores.len() {
            return Err(Error::OtherShards { stored: stored.shards, configured: self.stores.len() });
        }
        self.trust(&stored.fabric);
        let view = View::read(stored, before, self.keys())?;
        if view.credentials.locked > 0 && view.credentials.locked != before.credentials.locked {
            tracing::error!(
                owners = view.credentials.locked,
                "credentials of deliveries cannot be decrypted by any key of `edge_key_file`"
            );
        }
        Ok(self.set_view(view))
    }

    /// Trusts the fabric as it is now, and lays a registry where there is none.
    pub(super) async fn initialize(&self) -> Result<Arc<View>, Error> {
        let alone = self.registry.lock().await;
        let wanted = Stored {
            fabric: self.rng.characters(20),
            stamp: format!("1.{}", self.rng.characters(8)),
            snapshot: serde_json::to_string(&Registry::default()).map_err(Error::BadRegistry)?,
            shards: self.stores.len(),
        };
        let home = self.stores[0].initialize(&wanted).await?.ok_or(Error::Uninitialized)?;
        if home.shards != self.stores.len() {
            return Err(Error::OtherShards { stored: home.shards, configured: self.stores.len() });
        }
        for store in &self.stores[1..] {
            store.initialize(&home).await?;
        }
        self.trust(&home.fabric);
        let view = self.set_view(View::read(home, &self.view(), self.keys())?);
        drop(alone);
        self.spread(&view).await?;
        Ok(view)
    }

    /// Trusts the fabric of this identity, and no other.
    pub(super) async fn adopt(&self, fabric: &str) -> Result<(), Error> {
        let mut last = self.registry.lock().await;
        self.trust(fabric);
        self.read_registry(&mut last).await.map(drop)
    }

    /// Startup: a fabric that was never seen before gets an empty registry; one that existed before must still have
    /// its own.
    pub(super) async fn start(&self) -> Result<Arc<View>, Error> {
        let view = self.refresh().await?;
        if view.state == State::Uninitialized && self.trusted().is_none() {
            return self.initialize().await;
        }
        self.encrypt_again().await?;
        Ok(view)
    }

    fn keys(&self) -> &Keys {
        static NONE: Keys = Keys::none();
        self.keys.get().unwrap_or(&NONE)
    }

    /// The keys with which credentials are stored; none if they are stored in clear text.
    fn sealing_keys(&self) -> &Keys {
        static NONE: Keys = Keys::none();
        if self.options.encrypt_credentials { self.keys() } else { &NONE }
    }

    /// Stores the registry again if credentials in it are in clear text, or encrypted with another key than the first of the
    /// file. If they must not be encrypted, it is stored again if some are.
    async fn encrypt_again(&self) -> Result<(), Error> {
        let is_encrypted = !self.sealing_keys().is_empty();
        let is_outdated = |found: Credentials| {
            if is_encrypted { found.clear + found.outdated > 0 } else { found.encrypted > 0 }
        };
        if !is_outdated(self.view().credentials) {
            return Ok(());
        }
        let _one_at_a_time = self.changing.lock().await;
        let mut last = self.registry.lock().await;
        let view = self.read_registry(&mut last).await?;
        if view.state == State::Uninitialized || !is_outdated(view.credentials) {
            return Ok(());
        }
        // The projection of all subscriptions, because the keys for single lookups have the user names, too.
        let mut before = Registry::clone(&view.registry);
        for one in before.subscriptions.values_mut() {
            one.uuid.push(' ');
        }
        let stamp = format!("{}.{}", view.version() + 1, self.rng.characters(8));
        if self.commit(&view.stamp, &stamp, &before, &view.registry).await? {
            let before = view;
            let view = self.stored(before.fabric.clone(), stamp, Registry::clone(&before.registry), &before);
            drop(last);
            tracing::info!(is_encrypted, "credentials of deliveries stored again");
            self.spread_change(&before, &view).await?;
        }
        Ok(())
    }

    /// The view of a registry that this process has just stored.
    fn stored(&self, fabric: String, stamp: String, registry: Registry, before: &View) -> Arc<View> {
        let credentials = sealed::of(&registry, self.sealing_keys());
        self.set_view(View::new(fabric, stamp, registry, credentials, before))
    }

    /// Changes the registry: computed from the stored one, written only if that has not changed, and answered when
    /// every shard has it.
    pub(super) async fn change<T>(
        &self,
        change: impl Fn(&mut Registry, u64) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let _one_at_a_time = self.changing.lock().await;
        for attempt in 0..CHANGE_TRIES {
            // Also while it is written: a read in between could be put in place of what this process wrote.
            let mut last = self.registry.lock().await;
            let view = self.read_registry(&mut last).await?;
            if view.state == State::Uninitialized {
                return Err(Error::Uninitialized);
            }
            let mut registry = Registry::clone(&view.registry);
            let version = view.version() + 1;
            let value = change(&mut registry, version)?;
            if registry == *view.registry {
                drop(last);
                self.spread(&view).await?;
                return Ok(value);
            }
            registry.note_changes(&view.registry, version);
            let stamp = format!("{version}.{}", self.rng.characters(8));
            if self.commit(&view.stamp, &stamp, &view.registry, &registry).await? {
                let before = view;
                let view = self.stored(before.fabric.clone(), stamp, registry, &before);
                drop(last);
                self.spread_change(&before, &view).await?;
                return Ok(value);
            }
            tracing::debug!(attempt, "the registry was changed by another pacemaker, computing again");
        }
        Err(Error::Contended)
    }

    /// Stores `after` under the stamp `to`, if the stamp is still `from`. False if it is another one.
    async fn commit(&self, from: &str, to: &str, before: &Registry, after: &Registry) -> Result<bool, Error> {
        let snapshot = self.snapshot(after)?;
        let home = &self.stores[0];
        let commands =
            registry::projection(home.shard().tag(), before, after, self.sealing_keys().is_empty());
        let mut result = home.commit(from, to, &snapshot, &commands).await;
        // Once more after a lost reply: the script knows its own stamp.
        if result.as_ref().is_err_and(|error| error.kind() == signalbox_store::Kind::Unavailable) {
            result = home.commit(from, to, &snapshot, &commands).await;
        }
        match result? {
            Committed::Done => Ok(true),
            Committed::Stale => Ok(false),
            Committed::Empty => Err(Error::Uninitialized),
        }
    }

    /// The registry as it is stored.
    fn snapshot(&self, registry: &Registry) -> Result<String, Error> {
        serde_json::to_string(&sealed::seal(registry, self.sealing_keys())?).map_err(Error::BadRegistry)
    }

    /// Brings every other shard to the registry of the first.
    pub(super) async fn spread(&self, view: &View) -> Result<(), Error> {
        self.spread_change(view, view).await
    }

    /// Brings every other shard to the registry of the first. `before` is a registry that they probably have: of those that
    /// have it, only the stamp is read.
    async fn spread_change(&self, before: &View, view: &View) -> Result<(), Error> {
        let snapshot = OnceLock::new();
        let others = self.stores[1..].iter().map(|store| self.spread_to(store, view, before, &snapshot));
        join_all(others).await.into_iter().collect()
    }

    /// Brings a shard to the registry of the first, with the commands that it lacks. `snapshot` is that of `view`, made if any
    /// shard needs it.
    async fn spread_to(
        &self,
        store: &Store,
        view: &View,
        before: &View,
        snapshot: &OnceLock<String>,
    ) -> Result<(), Error> {
        let Some((fabric, stamp)) = store.stamp().await? else { return Err(Error::Uninitialized) };
        if stamp == view.stamp {
            return Ok(());
        }
        // A shard that is ahead was changed after the view, or the first shard has lost its last writes in a failover. In
        // the second case the shard would reject every publish until the first has as many changes again.
        let is_ahead = super::view::version(&stamp) > view.version();
        if is_ahead && !self.stores[0].stamp().await?.is_some_and(|found| view.is(&found)) {
            return Ok(());
        }
        let (stamp, there) = if before.is(&(fabric, stamp.clone())) {
            (stamp, Arc::clone(&before.registry))
        } else {
            let Some(stored) = store.registry().await? else { return Err(Error::Uninitialized) };
            let there = serde_json::from_str(&stored.snapshot).map_err(Error::BadRegistry)?;
            (stored.stamp, Arc::new(there))
        };
        let snapshot = match snapshot.get() {
            Some(snapshot) => snapshot,
            None => {
                let made = self.snapshot(&view.registry)?;
                snapshot.get_or_init(|| made)
            }
        };
        let commands = registry::projection_elsewhere(store.shard().tag(), &there, &view.registry);
        // Another pacemaker doing the same at this moment is as good.
        store.commit(&stamp, &view.stamp, snapshot, &commands).await?;
        Ok(())
    }

    /// Reserves `bytes` of the memory for waiting events, if that much is free.
    pub(super) fn reserve(&self, bytes: usize) -> bool {
        let limit = 64 * self.options.call_bytes;
        if self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= limit {
            return true;
        }
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        false
    }

    pub(super) fn release(&self, bytes: usize) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The shard that numbered an event: the low six bits of its ID.
    pub(super) fn store_of(&self, id: EventId) -> Option<&Arc<Store>> {
        self.stores.get(usize::try_from(id.0 & 63).ok()?)
    }

    /// How a client is called towards others, logs included.
    pub(super) fn name_of(&self, client: &str) -> String {
        self.view().registry.name_of(client)
    }

    /// Announces an event about a subscriber, under Signalbox's own topics; `data` is an object, to which its name is
    /// added. The caller does not wait for the publish.
    pub(super) fn announce(self: &Arc<Self>, topic: &'static str, client: &str, mut data: serde_json::Value) {
        let handle = Handle { core: Arc::clone(self) };
        let subscriber = self.name_of(client);
        data["subscriber"] = subscriber.as_str().into();
        let event = NewEvent {
            kind: Kind::Update,
            url: "/subscriptions".to_owned(),
            timestamp_ms: None,
            data: serde_json::value::to_raw_value(&data).ok(),
            tenant: None,
            object: Some(format!("signalbox:subscriber:{subscriber}")),
            idempotency_key: None,
        };
        tokio::spawn(async move {
            for refusal in handle.announce(topic, vec![event]).await.into_iter().filter_map(Result::err) {
                tracing::warn!(topic, %refusal, "own event not accepted");
            }
        });
    }
}
