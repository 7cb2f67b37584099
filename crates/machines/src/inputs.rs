//! Inputs: each event of an input's topic updates the label that it names, once.
//!
//! An event concerns the inputs of the version that was active in the event's shard when it was published. For each
//! machine and shard, the fabric stores up to which event the log was applied, and which versions govern the events after
//! it ([`InputPosition`]). Pacemakers read the log from there; live events only trigger a read. A position moves after the
//! updates of a page are committed, and only if it is still as it was read, so a pacemaker that does not know a machine, or
//! was paused while it was applied or deleted, skips no event. Positions are read before the log and after it: what has changed in
//! between is read again, because another version may govern the events.
//!
//! A round applies what was published to all machines, each for a short time. A machine that needs longer, that has to wait, or
//! whose definition was not read yet, catches up in a task of its own, without delaying the others.
//!
//! A version that cannot be read is replaced by applying another one, which then applies the events that waited.
//!
//! Every label stores, for each shard, the last event that it applied, in the same commit as the update. So a page that is
//! read twice, or by two pacemakers, updates labels once, and a late pacemaker applies no older event.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use signalbox_access::Effect;
use signalbox_bus::{self as bus, Event, EventId, Logged};
use signalbox_machine::{
    definition::{EventPath, Input},
    merge,
};
use signalbox_store::{Notice, Subscription};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Error, Version,
    definitions::Definitions,
    fair::{Caps, FairPlaces, Payer},
    label_store::LabelStore,
    labels::{self, InputEvent, Labels},
    metrics::Metrics,
    store::{InputPosition, InputPositions},
};

/// Events that are read together.
const PAGE: u64 = 200;
/// Versions of a machine that are kept in memory for a page: each can have a megabyte of text. Usually one or two govern the events
/// of a page; others wait for the next page.
const MAX_VERSIONS: usize = 4;
/// The pause before another try when the fabric does not answer, or events of a machine have to wait.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);
/// How long a missed live event may stay unnoticed.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// After an event of another topic, positions are read again at most this often: another process may have applied a
/// machine that takes it.
const OTHER_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of unreadable versions that are logged.
const MAX_REPORTED: usize = 1_000;
/// Machines whose events are applied in parallel.
const AT_A_TIME: usize = 16;
/// For how long, and for how many updates of labels, events are applied to a machine before others get a turn.
const TURN: Duration = Duration::from_millis(100);
const TURN_UPDATES: usize = 50;
/// Machines that catch up at a time.
pub(crate) const PLACES: Caps = Caps { all: 16, client: 8, machine: 2 };

/// Takes events as updates of labels.
#[derive(Debug, Clone)]
pub(crate) struct Inputs {
    pub(crate) labels: Labels,
    pub(crate) store: Arc<LabelStore>,
    pub(crate) definitions: Definitions,
    pub(crate) positions: InputPositions,
    pub(crate) bus: bus::Handle,
    pub(crate) shards: usize,
    /// Notified when a definition was applied in this process, or a machine has caught up.
    pub(crate) again: Arc<Notify>,
    /// For machines that catch up.
    pub(crate) places: FairPlaces,
    /// Shards and machines that catch up.
    pub(crate) behind: Arc<Mutex<HashSet<(usize, String)>>>,
    pub(crate) metrics: Metrics,
    /// Unreadable versions that were logged.
    pub(crate) reported: Arc<Mutex<HashSet<(String, u64)>>>,
    /// See [`PAUSE`].
    pub(crate) pause: Duration,
}

/// The next events for the machines that have the same position.
pub(crate) struct Page {
    shard: usize,
    positions: Vec<InputPosition>,
    /// Versions that govern the events. A version that was removed with its machine is missing.
    versions: HashMap<(String, u64), Version>,
    /// Versions that govern the events, but that this process cannot read.
    unreadable: BTreeSet<(String, u64)>,
    events: Vec<Logged>,
}

/// How far a machine has applied a page.
pub(crate) struct Reached {
    position: InputPosition,
    /// The last event that all of its inputs have applied.
    at: u64,
    result: Result<(), Error>,
}

/// The topics whose events are of interest.
#[derive(Default)]
struct Topics {
    names: BTreeSet<String>,
    /// Whether other topics may be, because not all definitions were read yet.
    others: bool,
}

/// A machine that catches up in a shard, until this is dropped.
struct Behind {
    inputs: Inputs,
    key: (usize, String),
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.inputs.behind.lock().remove(&self.key);
        // Events that have come since its last page are taken in the next round.
        self.inputs.again.notify_one();
    }
}

/// The shard's event before this one.
#[derive(Deserialize)]
struct Follows {
    last: u64,
}

impl Inputs {
    /// Runs until `shutdown`.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut live = self.bus.live();
        // Those who catch up end with this.
        let mut tasks = JoinSet::new();
        loop {
            let round = Box::pin(async {
                let began = Instant::now();
                while tasks.try_join_next().is_some() {}
                let (topics, taken) = self.take_all(&mut tasks).await;
                taken?;
                self.wait(&mut live, &topics, began).await;
                Ok::<_, Error>(())
            });
            let pause = async {
                if let Err(error) = round.await {
                    tracing::debug!(%error, "events not taken yet");
                    sleep(self.pause).await;
                }
            };
            if shutdown.run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

    /// Waits until there may be events to apply.
    async fn wait(&self, live: &mut Subscription, topics: &Topics, began: Instant) {
        let heard = async {
            let mut until = Instant::now() + POLL_INTERVAL;
            loop {
                match timeout_at(until, live.next()).await {
                    Err(_) | Ok(Notice::Resumed) => return,
                    Ok(Notice::Message { channel, .. }) => {
                        let topic = channel.rsplit(':').next().unwrap_or_default();
                        if topics.others || topics.names.contains(topic) {
                            return;
                        }
                        until = until.min(began + OTHER_INTERVAL);
                    }
                }
            }
        };
        tokio::select! {
            () = heard => {}
            () = self.again.notified() => {}
        }
    }

    /// Applies everything that was published. Returns the topics of all inputs, and an error if events of a shard could not be
    /// read.
    async fn take_all(&self, tasks: &mut JoinSet<()>) -> (Topics, Result<(), Error>) {
        loop {
            let (mut topics, mut more, mut result) = (Topics::default(), false, Ok(()));
            for shard in 0..self.shards {
                match self.take_pages(shard, &mut topics, tasks).await {
                    Ok(moved) => more |= moved,
                    Err(error) => result = Err(error),
                }
            }
            if !more {
                return (topics, result);
            }
        }
    }

    /// Applies the next page for each position in a shard. Returns whether there may be more.
    async fn take_pages(
        &self,
        shard: usize,
        topics: &mut Topics,
        tasks: &mut JoinSet<()>,
    ) -> Result<bool, Error> {
        let mut groups: BTreeMap<u64, Vec<InputPosition>> = BTreeMap::new();
        for position in self.positions.all(shard).await? {
            for number in position.versions() {
                match self.definitions.known_version(&position.machine, number) {
                    Some(version) => {
                        topics
                            .names
                            .extend(version.machine.inputs().iter().map(|input| input.topic.to_string()));
                    }
                    None => topics.others = true,
                }
            }
            if !self.behind.lock().contains(&(shard, position.machine.clone())) {
                groups.entry(position.at).or_default().push(position);
            }
        }
        let mut more = false;
        for (at, positions) in groups {
            let Some((mut page, changed)) = self.page(shard, at, positions).await? else { continue };
            more |= changed;
            let (now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut page.positions)
                .into_iter()
                .partition(|position| self.add_known(position, &mut page.versions));
            page.positions = now;
            let applied = self.apply(&page).await;
            more |= self.advance(&page, &applied).await?;
            let last = page.events.last().map_or(at, |event| event.id.0);
            let unfinished =
                applied.into_iter().filter(|reached| reached.result.is_err() || reached.at < last);
            for position in unfinished.map(|reached| reached.position).chain(later) {
                self.catch_up(shard, position.machine, tasks);
            }
        }
        Ok(more)
    }

    /// Adds the versions that govern events after a position, if all are known, and none takes long to evaluate. Returns whether
    /// it is so.
    fn add_known(&self, position: &InputPosition, versions: &mut HashMap<(String, u64), Version>) -> bool {
        let known = |number| {
            let version = self.definitions.known_version(&position.machine, number);
            Some((number, version.filter(|version| !version.effort.is_high())?))
        };
        let Some(known) = position.versions().map(known).collect::<Option<Vec<_>>>() else { return false };
        versions
            .extend(known.into_iter().map(|(number, version)| ((position.machine.clone(), number), version)));
        true
    }

    /// In a task of its own, applies events to a machine until none is left.
    fn catch_up(&self, shard: usize, machine: String, tasks: &mut JoinSet<()>) {
        let key = (shard, machine);
        if !self.behind.lock().insert(key.clone()) {
            return;
        }
        let behind = Behind { inputs: self.clone(), key };
        tasks.spawn(Box::pin(async move {
            let (inputs, (shard, machine)) = (&behind.inputs, &behind.key);
            loop {
                match inputs.catch_up_page(*shard, machine).await {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => {
                        tracing::debug!(%error, machine, "events not taken yet");
                        sleep(inputs.pause).await;
                    }
                }
            }
        }));
    }

    /// Applies the next page to one machine. Returns whether there may be more.
    async fn catch_up_page(&self, shard: usize, machine: &str) -> Result<bool, Error> {
        let Some(position) = self.positions.of(shard, machine).await? else { return Ok(false) };
        // Later versions are not read before an event needs them.
        let version =
            position.versions().rev().find_map(|number| self.definitions.known_version(machine, number));
        let payer = version.map_or_else(|| Payer::alone(machine), |version| Payer::of(&version));
        let _place = self.places.take(&payer).await;
        let Some((mut page, changed)) = self.page(shard, position.at, vec![position]).await? else {
            return Ok(false);
        };
        self.load(&mut page).await?;
        let applied = self.apply(&page).await;
        let moved = self.advance(&page, &applied).await?;
        applied.into_iter().try_for_each(|reached| reached.result)?;
        Ok(moved || changed)
    }

    /// The next events of a shard after `at`, for these positions. Returns also whether a position has changed since it was read;
    /// it is not on the page. `None` if there are no events.
    async fn page(
        &self,
        shard: usize,
        at: u64,
        mut positions: Vec<InputPosition>,
    ) -> Result<Option<(Page, bool)>, Error> {
        let events = self.bus.window(shard, EventId(at)).next(PAGE).await.map_err(|_| Error::Away)?;
        if events.is_empty() {
            return Ok(None);
        }
        // A version that became active before one of the events was published is in the position now.
        let before = positions.len();
        let now = match &*positions {
            [one] => self.positions.of(shard, &one.machine).await?.into_iter().collect(),
            _ => self.positions.all(shard).await?,
        };
        let now: HashMap<&str, &InputPosition> =
            now.iter().map(|position| (&*position.machine, position)).collect();
        positions.retain(|position| now.get(&*position.machine) == Some(&position));
        let changed = positions.len() < before;
        let (versions, unreadable) = (HashMap::new(), BTreeSet::new());
        Ok(Some((Page { shard, positions, versions, unreadable, events }, changed)))
    }

    /// Reads the versions that govern the events of a page, and leaves events to the next page if these are too many.
    async fn load(&self, page: &mut Page) -> Result<(), Error> {
        let Page { shard, positions, versions, unreadable, events } = page;
        for position in positions {
            let machine = &position.machine;
            let ids: Vec<u64> = events.iter().map(|event| event.id.0).collect();
            let (numbers, count) = position.versions_of(&ids, MAX_VERSIONS);
            events.truncate(count);
            for number in numbers {
                let key = (machine.clone(), number);
                match self.definitions.version(machine, *shard, number).await {
                    Ok(version) => drop(versions.insert(key, version)),
                    Err(Error::NoSuchVersion) => {}
                    Err(Error::Unreadable) => match self.successor(machine, *shard, number).await? {
                        Some(version) => drop(versions.insert(key, version)),
                        None => drop(unreadable.insert(key)),
                    },
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Reads the next page of a shard's log for each of these positions.
    #[cfg(test)]
    pub(crate) async fn read(&self, shard: usize, positions: Vec<InputPosition>) -> Result<Vec<Page>, Error> {
        let mut groups: BTreeMap<u64, Vec<InputPosition>> = BTreeMap::new();
        for position in positions {
            groups.entry(position.at).or_default().push(position);
        }
        let mut pages = Vec::new();
        for (at, positions) in groups {
            if let Some((mut page, _)) = self.page(shard, at, positions).await? {
                self.load(&mut page).await?;
                pages.push(page);
            }
        }
        Ok(pages)
    }

    /// The version that has taken the place of one that cannot be read, and applies its events, too.
    async fn successor(&self, machine: &str, shard: usize, number: u64) -> Result<Option<Version>, Error> {
        self.definitions.forget(machine, shard);
        match self.definitions.of(machine, shard).await {
            Ok(active) => Ok(Some(active).filter(|active| active.number > number)),
            Err(Error::Unreadable | Error::NoSuchMachine | Error::NoSuchVersion) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Applies the events of a page to labels, for one machine independently of another.
    pub(crate) async fn apply(&self, page: &Page) -> Vec<Reached> {
        let work = |position: InputPosition| async move {
            let mut at = position.at;
            let result = Box::pin(self.apply_to(page, &position, &mut at)).await;
            Reached { position, at, result }
        };
        stream::iter(page.positions.clone()).map(work).buffer_unordered(AT_A_TIME).collect().await
    }

    /// Applies events to the labels of a machine, for its turn. `reached` becomes the last event that was applied.
    async fn apply_to(&self, page: &Page, position: &InputPosition, reached: &mut u64) -> Result<(), Error> {
        let (began, mut updates) = (Instant::now(), 0);
        for Logged { id, entry } in &page.events {
            if updates >= TURN_UPDATES || began.elapsed() >= TURN {
                break;
            }
            let governs = position.version_of(id.0).map(|number| (position.machine.clone(), number));
            if let Some(version) = governs.as_ref().filter(|version| page.unreadable.contains(*version)) {
                // It may have inputs. A process that can read it takes the event, which may be this one after an upgrade.
                self.report_unreadable(version);
                return Err(Error::Unreadable);
            }
            if serde_json::from_slice::<Follows>(entry).is_ok_and(|follows| follows.last > *reached) {
                self.metrics.took("trimmed");
                let machine = &position.machine;
                tracing::error!(
                    machine,
                    after = *reached,
                    before = id.0,
                    "events lost: not in the log any more"
                );
            }
            let version = governs.and_then(|version| page.versions.get(&version));
            if let Some(version) = version.filter(|version| version.may(Effect::Listen).is_ok())
                && let Ok(event) = Event::from_log(entry)
            {
                let inputs = (0..).zip(version.machine.inputs());
                for (number, input) in inputs.filter(|(_, input)| *input.topic == *event.topic) {
                    self.take(version, number, input, &event).await?;
                    updates += 1;
                }
            }
            *reached = id.0;
        }
        Ok(())
    }

    /// Logs once that events wait for a version.
    fn report_unreadable(&self, (machine, number): &(String, u64)) {
        let mut reported = self.reported.lock();
        if reported.len() < MAX_REPORTED && reported.insert((machine.clone(), *number)) {
            tracing::error!(machine, version = number, "events wait: the definition cannot be read");
        }
    }

    /// Moves the positions of machines to the events that they have reached. Returns whether one has moved.
    pub(crate) async fn advance(&self, page: &Page, applied: &[Reached]) -> Result<bool, Error> {
        let moved = applied.iter().filter(|reached| reached.at > reached.position.at);
        let moved: Vec<_> = moved.map(|reached| (&reached.position, reached.at)).collect();
        let idle = |machine: &str, number: u64| {
            let version = page.versions.get(&(machine.to_owned(), number));
            version.is_some_and(|version| version.machine.inputs().is_empty())
        };
        Ok(self.positions.advance(page.shard, &moved, idle).await? > 0)
    }

    async fn take(&self, version: &Version, number: u32, input: &Input, event: &Event) -> Result<(), Error> {
        let machine = version.machine.name();
        let data: Value =
            event.data.as_ref().and_then(|data| serde_json::from_str(data.get()).ok()).unwrap_or(Value::Null);
        let named = match &input.label {
            EventPath::Object => Value::from(event.object.as_str()),
            EventPath::Url => Value::from(event.url.as_str()),
            EventPath::Tenant => Value::from(event.tenant.as_str()),
            EventPath::Data(path) => path.of(&data).clone(),
        };
        let label = match named {
            Value::String(name) => name,
            Value::Number(number) if number.is_i64() || number.is_u64() => number.to_string(),
            _ => {
                self.metrics.took("unnamed");
                return Ok(());
            }
        };
        if !labels::is_label_name(&label) {
            self.metrics.took("unnamed");
            return Ok(());
        }
        let metadata = input.into.as_ref().map(|path| merge::at_path(path, data));
        let event = InputEvent {
            topic: &input.topic,
            id: event.id.0,
            origin: &version.origin,
            input: number,
            metadata: metadata.as_ref(),
            create: input.create,
        };
        match self.labels.take(machine, &label, event).await {
            Ok(()) => self.metrics.took("taken"),
            Err(Error::NoSuchLabel | Error::Gone | Error::Deleted) => self.metrics.took("no_label"),
            Err(Error::BadMetadata(why)) => {
                tracing::warn!(machine, %why, "metadata of an event rejected");
                self.metrics.took("too_much");
            }
            Err(Error::TooManyLabels(_)) => self.metrics.took("label_limit"),
            // The machine was deleted since, or it was applied and this process or the label's shard does not know it yet.
            // In the last case the page is read again.
            Err(Error::NoSuchVersion | Error::NoSuchMachine) => {
                let under_way = self.definitions.applying().await?.iter().any(|one| one.machine == machine);
                let origin = self.store.origin(machine, &label).await?;
                if origin.map_or(under_way, |origin| origin == version.origin) {
                    return Err(Error::ApplyUnderWay);
                }
            }
            // One unreadable label does not keep the others from being updated, but an active version that cannot be read does.
            Err(Error::Unreadable) => {
                self.definitions.current(machine).await?;
                self.store.report_unreadable(machine, &label);
                self.metrics.took("unreadable");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
