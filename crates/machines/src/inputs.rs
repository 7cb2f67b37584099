//! Inputs: each event of an input's topic updates the label that it names, once.
//!
//! An event concerns the inputs of the version that was active in the event's shard when it was published. For each
//! machine and shard, the fabric stores up to which event the log was applied, and which versions govern the events after
//! it ([`InputPosition`]). Pacemakers read the log from there; live events only trigger a read. A position moves after the
//! updates of a page are committed, and only if it is still as it was read, so a pacemaker that does not know a machine, or
//! was paused while it was applied or deleted, skips no event.
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
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Error, Version,
    definitions::Definitions,
    label_store::LabelStore,
    labels::{self, InputEvent, Labels},
    metrics::Metrics,
    store::{InputPosition, InputPositions},
};

/// Events that are read together.
const PAGE: u64 = 200;
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

/// Takes events as updates of labels.
#[derive(Debug, Clone)]
pub(crate) struct Inputs {
    pub(crate) labels: Labels,
    pub(crate) store: Arc<LabelStore>,
    pub(crate) definitions: Definitions,
    pub(crate) positions: InputPositions,
    pub(crate) bus: bus::Handle,
    pub(crate) shards: usize,
    /// Notified when a definition was applied in this process.
    pub(crate) redefined: Arc<Notify>,
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

/// Whether events of one machine have to wait, until its definition was replaced or applied.
fn has_to_wait(error: &Error) -> bool {
    matches!(error, Error::Unreadable | Error::ApplyUnderWay)
}

/// The first error of two results, but one after which nothing can be taken is worse than one of a machine that has to wait.
fn worse(one: Result<(), Error>, other: Result<(), Error>) -> Result<(), Error> {
    match (one, other) {
        (Err(one), Err(other)) if has_to_wait(&one) => Err(other),
        (one, other) => one.and(other),
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
        loop {
            let round = Box::pin(async {
                let began = Instant::now();
                let (topics, taken) = self.take_all().await;
                let longest = match taken {
                    Ok(()) => POLL_INTERVAL,
                    // Events of other machines are heard in the meantime.
                    Err(error) if has_to_wait(&error) => self.pause,
                    Err(error) => return Err(error),
                };
                self.wait(&mut live, &topics, (began, longest)).await;
                Ok(())
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

    /// Waits until there may be events to apply, at most for so long.
    async fn wait(
        &self,
        live: &mut Subscription,
        topics: &BTreeSet<String>,
        (began, longest): (Instant, Duration),
    ) {
        let heard = async {
            let mut until = Instant::now() + longest;
            loop {
                match timeout_at(until, live.next()).await {
                    Err(_) | Ok(Notice::Resumed) => return,
                    Ok(Notice::Message { channel, .. }) => {
                        let topic = channel.rsplit(':').next().unwrap_or_default();
                        if topics.contains(topic) {
                            return;
                        }
                        until = until.min(began + OTHER_INTERVAL);
                    }
                }
            }
        };
        tokio::select! {
            () = heard => {}
            () = self.redefined.notified() => {}
        }
    }

    /// Applies everything that was published. Returns the topics of all inputs, and an error if something could not be applied:
    /// events of one machine or of one shard that have to wait do not delay others.
    async fn take_all(&self) -> (BTreeSet<String>, Result<(), Error>) {
        loop {
            let (mut topics, mut more, mut result) = (BTreeSet::new(), false, Ok(()));
            for shard in 0..self.shards {
                result = worse(result, self.take_pages(shard, &mut topics, &mut more).await);
            }
            if !more {
                return (topics, result);
            }
        }
    }

    /// Applies the next page for each position in a shard. `more` is set if a position has moved.
    async fn take_pages(
        &self,
        shard: usize,
        topics: &mut BTreeSet<String>,
        more: &mut bool,
    ) -> Result<(), Error> {
        let mut result = Ok(());
        for page in self.read(shard).await? {
            let inputs = page.versions.values().flat_map(|version| version.machine.inputs());
            topics.extend(inputs.map(|input| input.topic.to_string()));
            if page.events.is_empty() {
                continue;
            }
            let applied = self.apply(&page).await;
            *more |= self.advance(&page, &applied).await?;
            result = applied.into_iter().fold(result, |result, (_, applied)| worse(result, applied));
        }
        result
    }

    /// Reads the next page of a shard's log for each position that a machine has.
    pub(crate) async fn read(&self, shard: usize) -> Result<Vec<Page>, Error> {
        let mut groups: BTreeMap<u64, Vec<InputPosition>> = BTreeMap::new();
        for position in self.positions.all(shard).await? {
            groups.entry(position.at).or_default().push(position);
        }
        let mut pages = Vec::new();
        for (at, positions) in groups {
            let (mut versions, mut unreadable) = (HashMap::new(), BTreeSet::new());
            for (machine, number) in
                positions.iter().flat_map(|position| position.versions().map(|n| (&position.machine, n)))
            {
                match self.definitions.version(machine, shard, number).await {
                    Ok(version) => drop(versions.insert((machine.clone(), number), version)),
                    Err(Error::NoSuchVersion) => {}
                    Err(Error::Unreadable) => match self.successor(machine, shard, number).await? {
                        Some(version) => drop(versions.insert((machine.clone(), number), version)),
                        None => drop(unreadable.insert((machine.clone(), number))),
                    },
                    Err(error) => return Err(error),
                }
            }
            let events = self.bus.window(shard, EventId(at)).next(PAGE).await.map_err(|_| Error::Away)?;
            pages.push(Page { shard, positions, versions, unreadable, events });
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
    pub(crate) async fn apply(&self, page: &Page) -> Vec<(InputPosition, Result<(), Error>)> {
        let work = |position: InputPosition| async move {
            let result = Box::pin(self.apply_to(page, &position)).await;
            (position, result)
        };
        stream::iter(page.positions.clone()).map(work).buffer_unordered(AT_A_TIME).collect().await
    }

    async fn apply_to(&self, page: &Page, position: &InputPosition) -> Result<(), Error> {
        let mut before = position.at;
        for Logged { id, entry } in &page.events {
            let governs = position.version_of(id.0).map(|number| (position.machine.clone(), number));
            if let Some(version) = governs.as_ref().filter(|version| page.unreadable.contains(*version)) {
                // It may have inputs. A process that can read it takes the event, which may be this one after an upgrade.
                self.report_unreadable(version);
                return Err(Error::Unreadable);
            }
            if serde_json::from_slice::<Follows>(entry).is_ok_and(|follows| follows.last > before) {
                self.metrics.took("trimmed");
                let machine = &position.machine;
                tracing::error!(
                    machine,
                    after = before,
                    before = id.0,
                    "events lost: not in the log any more"
                );
            }
            before = id.0;
            let Some(version) = governs.and_then(|version| page.versions.get(&version)) else { continue };
            if version.may(Effect::Listen).is_err() {
                continue;
            }
            let inputs = (0..).zip(version.machine.inputs());
            let Ok(event) = Event::from_log(entry) else { continue };
            for (number, input) in inputs.filter(|(_, input)| *input.topic == *event.topic) {
                self.take(version, number, input, &event).await?;
            }
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

    /// Moves the positions of the machines that have applied the page. Returns whether one has moved.
    pub(crate) async fn advance(
        &self,
        page: &Page,
        applied: &[(InputPosition, Result<(), Error>)],
    ) -> Result<bool, Error> {
        let Some(last) = page.events.last() else { return Ok(false) };
        let done: Vec<InputPosition> = applied
            .iter()
            .filter(|(_, result)| result.is_ok())
            .map(|(position, _)| position.clone())
            .collect();
        let idle = |machine: &str, number: u64| {
            let version = page.versions.get(&(machine.to_owned(), number));
            version.is_some_and(|version| version.machine.inputs().is_empty())
        };
        Ok(self.positions.advance(page.shard, &done, last.id.0, idle).await? > 0)
    }

    async fn take(&self, version: &Version, number: u32, input: &Input, event: &Event) -> Result<(), Error> {
        let machine = version.machine.name();
        let data: Value =
            event.data.as_ref().and_then(|data| serde_json::from_str(data.get()).ok()).unwrap_or(Value::Null);
        let named = match &input.label {
            EventPath::Object => Value::from(event.object.as_str()),
            EventPath::Url => Value::from(event.url.as_str()),
            EventPath::Environment => Value::from(event.environment.as_str()),
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
