//! Explains where a label is, and simulates where it would go.

use std::{collections::BTreeMap, iter, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};
use signalbox_api::Time;
use signalbox_machine::{
    Machine, State, merge,
    render::{Filling, Request},
    simulate::{Assumed, Assumption, Start, simulate_while},
    why::why,
};
use tokio::{
    sync::Semaphore,
    task::spawn_blocking,
    time::{Instant, timeout},
};

use crate::{
    Error, Version,
    clock::Clock,
    definitions::Definitions,
    evaluator::{Evaluator, RETRY, held, instant},
    feeds::{FeedAnswers, Feeds},
    label_store::LabelStore,
    record::{Record, Status},
    store::{Permits, Shards},
};

/// How long a simulation may compute. Then it ends with `steps`.
const MAX_SIMULATION: Duration = Duration::from_secs(2);
/// How long an explanation waits for a feed.
const FEED_PATIENCE: Duration = Duration::from_secs(3);

/// Explanations that are computed at the same time. Others wait: they use processors that all requests need.
pub(crate) const EXPLANATIONS: usize = 2;

/// The assumptions of a simulation.
#[derive(Debug, Default)]
pub struct Assumptions {
    /// How much time to simulate, unless `until` is set.
    pub span: Duration,
    /// The end of the simulated time.
    pub until: Option<Timestamp>,
    /// An update of the label's metadata at the start.
    pub metadata: Option<Value>,
    /// The answer of each feed; `None` for a feed that fails.
    pub feeds: BTreeMap<String, Option<Value>>,
    /// The answer of the webhook of each action.
    pub webhooks: BTreeMap<String, Assumption>,
}

/// Explains single labels. Reads only.
#[derive(Debug)]
pub struct Explainer {
    pub(crate) labels: Arc<LabelStore>,
    pub(crate) definitions: Definitions,
    pub(crate) shards: Shards,
    pub(crate) feeds: Arc<Feeds>,
    pub(crate) permits: Permits,
    pub(crate) clock: Clock,
    /// See [`EXPLANATIONS`].
    pub(crate) explaining: Arc<Semaphore>,
}

impl Explainer {
    async fn read(&self, machine: &str, label: &str) -> Result<(Record, Version, u64), Error> {
        let record = self.labels.label(machine, label).await?;
        let shard = self.shards.of(machine, label);
        let version = self.definitions.of_label(machine, shard, Some(&record)).await?;
        Ok((record, version, self.clock.now_ms().await?))
    }

    /// Explains why a label is where it is, as JSON: its condition with each part's value, its feeds, and its next times.
    ///
    /// # Errors
    /// [`Error::NoSuchMachine`], [`Error::NoSuchLabel`], [`Error::Gone`], or a failure of the fabric.
    pub async fn why(&self, machine: &str, label: &str) -> Result<Value, Error> {
        let (record, version, now_ms) = self.read(machine, label).await?;
        let mut answers = FeedAnswers::default();
        let gate = version.machine.state(&record.state).and_then(State::gate);
        let mut feeds = serde_json::Map::new();
        for feed in gate.into_iter().flat_map(|gate| gate.condition.feeds()) {
            let about = (&version, label, &record.metadata);
            let inspected = timeout(FEED_PATIENCE, self.feeds.inspect(&mut answers, about, feed)).await;
            let late = |_| json!({"result": "not_asked", "error": "it does not answer at once; its value is not shown"});
            feeds.insert(feed.to_owned(), inspected.unwrap_or_else(late));
        }
        let waits = record.status == Status::Acting && record.work.limit().is_some();
        let limited = if waits { Some(self.limited(&version, label, &record, now_ms).await?) } else { None };
        let mut explanation = self.explained(&version, label, &record, answers, now_ms).await;
        explanation["state"] = json!(record.state);
        explanation["status"] = json!(record.status);
        explanation["since"] = json!(Time::from_ms(record.entered_ms));
        explanation["version"] = json!(version.number);
        if !feeds.is_empty() {
            explanation["feeds"] = Value::Object(feeds);
        }
        if let Some(error) = &record.work.error {
            explanation["last_error"] = json!(error);
        }
        if let Some(again_ms) =
            record.work.again_ms.filter(|_| record.work.limit().is_none() && record.work.place().is_none())
        {
            explanation["next_retry"] = json!(Time::from_ms(again_ms));
        }
        let reason = match record.status {
            Status::Waiting => None,
            Status::Acting => {
                let (action, reason) = limited.unwrap_or_else(|| acting(&version, label, &record));
                explanation["action"] = action;
                Some(reason)
            }
            Status::Choosing => {
                Some("its action is done; where it goes depends on a feed that failed".to_owned())
            }
            Status::Errored => {
                explanation["stuck"] =
                    json!("nothing will evaluate this again, unless its action is retried");
                Some("its action failed permanently; it waits for a retry by an operator".to_owned())
            }
            Status::Looping => Some("it moved fifty times in a row and continues a second later".to_owned()),
            Status::Ended => Some("it has ended".to_owned()),
            Status::Deleted => Some("it was deleted".to_owned()),
        };
        if record.suspended {
            explanation["suspended"] = json!(true);
            explanation["stuck"] =
                json!("it is suspended: no gate is evaluated and no attempt begins until it is resumed");
        }
        if let Some(reason) = reason {
            explanation["reason"] = json!(reason);
        }
        Ok(explanation)
    }

    /// The condition of a label's gate and its next times, as JSON.
    async fn explained(
        &self,
        version: &Version,
        label: &str,
        record: &Record,
        answers: FeedAnswers,
        now_ms: u64,
    ) -> Value {
        let permit = Arc::clone(&self.explaining).acquire_owned().await;
        let (version, label, record) = (version.clone(), label.to_owned(), record.clone());
        // Outside of the threads that serve requests, because it computes only.
        let explained = spawn_blocking(move || {
            let _permit = permit;
            let evaluator = Evaluator { version: &version, label: &label, now_ms, feeds: &answers };
            // Also while a feed is asked: the time at which it is asked again if it does not answer.
            let again = record.work.again_ms.filter(|_| record.work.held.is_some()).map(instant);
            let standing = evaluator.label(&record);
            let explained =
                standing.and_then(|label| why(&version.machine, &label, &answers, instant(now_ms), again));
            explained.map_or_else(|| json!({}), |why| why.to_json())
        });
        explained.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
    }

    /// What the action of a label does that waits for the limit of its address.
    async fn limited(
        &self,
        version: &Version,
        label: &str,
        record: &Record,
        now_ms: u64,
    ) -> Result<(Value, String), Error> {
        let (mut action, _) = acting(version, label, record);
        let (since_ms, target) = record.work.limit().unwrap_or_default();
        let machine = version.machine.name();
        let ahead = self.permits.count_waiting(machine, target, Some(since_ms)).await?;
        let in_progress = self.permits.count_taken(machine, target, now_ms).await?;
        action["waits_for_retry"] = json!(false);
        action["waits_for_limit"] = json!({
            "target": target, "since": Time::from_ms(since_ms), "ahead": ahead, "in_progress": in_progress,
        });
        let next = record.work.attempts + 1;
        let reason = format!(
            "attempt {next} of its action waits for the limit of {target} since {}; {ahead} labels wait longer",
            instant(since_ms)
        );
        Ok((action, reason))
    }

    /// Simulates where a label would go under assumptions, as JSON.
    ///
    /// # Errors
    /// As [`Explainer::why`], or [`Error::BadMetadata`].
    pub async fn simulate(
        &self,
        machine: &str,
        label: &str,
        assumptions: Assumptions,
    ) -> Result<Value, Error> {
        let (record, version, now_ms) = self.read(machine, label).await?;
        let now = instant(now_ms);
        let until =
            assumptions.until.or_else(|| now.checked_add(assumptions.span).ok()).unwrap_or(Timestamp::MAX);
        check_names(&version, &assumptions)?;
        let assumed = Assumed { feeds: assumptions.feeds, webhooks: assumptions.webhooks };
        if let Some(update) = &assumptions.metadata {
            let mut metadata = record.metadata.clone();
            merge::merge(&mut metadata, update);
            merge::check(&metadata)?;
        }
        let Some(start) = start(&version, label, &record, now_ms) else {
            return Ok(json!({"steps": [], "end": "state_removed", "state": record.state}));
        };
        let metadata = assumptions.metadata;
        let began = Instant::now();
        // Outside of the threads that serve requests, because it computes only.
        let simulated = spawn_blocking(move || {
            let goes_on = || began.elapsed() < MAX_SIMULATION;
            let active = version.active.as_ref().map(|active| &*active.machine);
            let versions = (&*version.machine, active);
            simulate_while(&goes_on, versions, start, &assumed, metadata.as_ref(), (now, until)).to_json()
        });
        Ok(simulated.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic())))
    }
}

/// A label at the beginning of a simulation. `None` if the definition does not contain its state.
fn start(version: &Version, label: &str, record: &Record, now_ms: u64) -> Option<Start> {
    let answers = FeedAnswers::default();
    let evaluator = Evaluator { version, label, now_ms, feeds: &answers };
    let standing = evaluator.label(record)?;
    Some(Start {
        name: label.to_owned(),
        state: standing.state,
        status: standing.status,
        metadata: record.metadata.clone(),
        entered: standing.entered,
        previous_state: record.previous_state().map(str::to_owned),
        facts_waiting: record.work.facts,
        topics_waiting: record.work.topics.clone(),
        // The attempt that is in progress is simulated; no attempt is while the label waits for the next one.
        attempts: record
            .work
            .attempts
            .saturating_sub(u32::from(record.status == Status::Acting && record.work.held.is_none())),
        again: again_ms(record).map(instant),
        feed_failures: record.work.feed_failures,
        held: held(&record.work)
            .filter(|_| record.status != Status::Acting)
            .map(|(cause, trigger)| (cause, trigger.map(str::to_owned))),
        fresh: false,
        suspended: record.suspended,
    })
}

/// What the action of a label does now, for programs and in words.
fn acting(version: &Version, label: &str, record: &Record) -> (Value, String) {
    let (machine, work) = (&version.machine, &record.work);
    let action = machine.state(&record.state).and_then(State::action);
    let attempts = action.map_or(0, |action| action.retry.attempts);
    let filling = Filling { state_machine: machine.name(), label, metadata: &record.metadata };
    let address = match action.map(|action| action.request(filling)) {
        Some(Ok(Request::Webhook { url, .. })) => Some(url),
        _ => None,
    };
    let pauses = work.held.is_some();
    let mut json = json!({
        "attempt": work.attempts, "attempts": attempts, "address": address, "waits_for_retry": pauses,
    });
    if let Some((since_ms, destination)) = work.place() {
        json["waits_for_retry"] = json!(false);
        json["waits_for_place"] = json!({"destination": destination, "since": Time::from_ms(since_ms)});
        let reason = format!(
            "attempt {} of its action waits for a place among the outgoing calls to {destination} since {}",
            work.attempts + 1,
            instant(since_ms)
        );
        return (json, reason);
    }
    let count = format!("attempt {} of {attempts}", work.attempts);
    let reason = match (pauses, work.again_ms) {
        (true, _) if record.suspended => "its action continues when the label is resumed".to_owned(),
        (true, Some(again_ms)) if work.attempts == 0 => {
            format!("its action waits for the end of quiet hours at {}", instant(again_ms))
        }
        (true, Some(again_ms)) => {
            let why = work.error.as_deref().unwrap_or("no outcome is known");
            format!("{count} of its action failed ({why}); the next is at {}", instant(again_ms))
        }
        _ => format!("its action is under way, {count}"),
    };
    (json, reason)
}

/// When a label continues that loops, waits for its next attempt, or for a failed feed. Other work is simulated as done
/// immediately.
fn again_ms(record: &Record) -> Option<u64> {
    let pauses = match record.status {
        Status::Looping => true,
        Status::Acting => record.work.held.as_deref() == Some(RETRY),
        Status::Waiting | Status::Choosing => record.work.feed_failures > 0,
        _ => false,
    };
    record.work.again_ms.filter(|_| pauses)
}

/// Rejects assumptions about feeds and actions that neither the label's version nor the active one has.
fn check_names(version: &Version, assumptions: &Assumptions) -> Result<(), Error> {
    let machines: Vec<&Machine> =
        iter::once(version).chain(version.active.as_deref()).map(|one| &*one.machine).collect();
    let unknown = |kind: &str, name: &str, known: Vec<&str>| {
        let hint = match signalbox_condition::nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known are: {}", known.join(", ")),
        };
        Err(Error::BadAssumption(format!("the machine has no {kind} `{name}`; {hint}")))
    };
    let feeds = || machines.iter().flat_map(|machine| machine.feeds()).map(|feed| &*feed.name);
    if let Some(name) = assumptions.feeds.keys().find(|name| !feeds().any(|feed| feed == *name)) {
        return unknown("feed", name, feeds().collect());
    }
    let states = || machines.iter().flat_map(|machine| machine.states());
    let actions = || states().filter(|state| state.action().is_some()).map(State::name);
    match assumptions.webhooks.keys().find(|name| !actions().any(|action| action == *name)) {
        Some(name) => unknown("action", name, actions().collect()),
        None => Ok(()),
    }
}
