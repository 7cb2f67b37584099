//! Questions that change nothing: why, where to, how many.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use jiff::Timestamp;
use serde_json::{Value, json};
use signalbox_machine::{
    Machine, State, merge,
    plan::{self, Outlook},
    simulate::{Assumed, Start, simulate},
    why::why,
};

use super::{
    Engine, Error,
    definitions::{StoredPlan, StoredVersion, Version},
    feeds::Asked,
    judge::{Happened, Judge, held, instant},
    record::{Record, Status},
};

/// Labels that a plan looks at.
const MOST_CHECKED: usize = 10_000;
/// Labels that a plan reads together.
const PAGE: usize = 500;

/// What a simulation assumes.
#[derive(Debug, Default)]
pub struct Asking {
    pub span: Duration,
    pub until: Option<Timestamp>,
    pub metadata: Option<Value>,
    pub feeds: BTreeMap<String, Option<Value>>,
    pub webhooks: BTreeMap<String, u16>,
}

/// A machine's labels.
#[derive(Debug)]
pub struct Counts {
    pub version: Version,
    /// By state.
    pub labels: BTreeMap<String, u64>,
    /// Those that do not rest, by status.
    pub busy: BTreeMap<String, u64>,
    /// Those that wait where nothing looks again, by gate.
    pub stuck: BTreeMap<String, u64>,
}

/// What a definition would change.
#[derive(Debug, Default)]
pub struct Preview {
    pub states: plan::States,
    /// What differs beside the states.
    pub changed: Vec<String>,
    /// Labels in states that go.
    pub labels: BTreeMap<String, u64>,
    /// Labels that go on as soon as it counts, because their state has become something else: a gate that is an action now, an
    /// end that leads on.
    pub starts: u64,
    /// Labels that would move if their gate looked now.
    pub would_move: u64,
    /// Labels of which only a feed could tell.
    pub needs_feed: u64,
    /// Labels that were looked at.
    pub checked: u64,
}

impl Engine {
    /// The machines, by name.
    pub async fn names(&self) -> Result<Vec<String>, Error> {
        Ok(self.0.store.machines().await?)
    }

    /// The version of a machine that counts.
    pub async fn current(&self, machine: &str) -> Result<Version, Error> {
        self.0.definitions.current(machine).await
    }

    /// The names of the environment that headers may ask for.
    pub fn environment(&self) -> &[String] {
        &self.0.options.environment
    }

    /// All versions of a machine, the oldest first.
    pub async fn versions(&self, machine: &str) -> Result<Vec<(u64, StoredVersion)>, Error> {
        self.0.definitions.versions(machine).await
    }

    /// One of them.
    pub async fn stored_version(&self, machine: &str, number: u64) -> Result<StoredVersion, Error> {
        self.0.definitions.stored(machine, 0, number).await?.ok_or(Error::NoSuchVersion)
    }

    /// Keeps a plan for an hour.
    pub async fn keep_plan(&self, machine: &str, plan: &str, base: u64, source: &str) -> Result<(), Error> {
        self.0.definitions.keep_plan(machine, plan, &StoredPlan { base, source: source.to_owned() }).await
    }

    /// A plan that is kept.
    pub async fn kept_plan(&self, machine: &str, plan: &str) -> Result<StoredPlan, Error> {
        self.0.definitions.plan(machine, plan).await?.ok_or(Error::NoSuchPlan)
    }

    /// A machine with its labels by state, those that do not rest by status, and those that nothing will look at again by
    /// gate.
    pub async fn counts(&self, machine: &str) -> Result<Counts, Error> {
        let version = self.current(machine).await?;
        let states: Vec<&str> = version.machine.states().iter().map(State::name).collect();
        let counts = self.0.store.count_states(machine, &states).await?;
        let labels = states.iter().map(|state| (*state).to_owned()).zip(counts).collect();
        let statuses: Vec<&str> =
            Status::ALL.into_iter().filter(|status| status.has_index()).map(Status::as_str).collect();
        let counts = self.0.store.count_statuses(machine, &statuses).await?;
        let busy = statuses.iter().map(|status| (*status).to_owned()).zip(counts).collect();
        let stuck = self.left_waiting(&version.machine).await?;
        Ok(Counts { version, labels, busy, stuck })
    }

    async fn stands(&self, machine: &str, label: &str) -> Result<(Record, Version, u64), Error> {
        let record = self.label(machine, label).await?;
        let version = self.0.definitions.of(machine, self.0.store.shard_of(machine, label)).await?;
        Ok((record, version, self.0.clock.now_ms().await?))
    }

    /// Why a label is where it is.
    pub async fn why(&self, machine: &str, label: &str) -> Result<Value, Error> {
        let (record, version, now_ms) = self.stands(machine, label).await?;
        let mut asked = Asked::default();
        let gate = version.machine.state(&record.state).and_then(State::gate);
        let mut feeds = serde_json::Map::new();
        for feed in gate.into_iter().flat_map(|gate| gate.condition.feeds()) {
            let about = (&*version.machine, label, &record.metadata);
            let looked = self.0.feeds.look(&mut asked, about, feed).await;
            feeds.insert(feed.to_owned(), looked.to_json());
        }
        let judge = judge(&version, label, now_ms, &asked);
        let standing = judge.label(&record);
        // Also while a feed is being asked: if nothing is heard of it.
        let again = record.work.again_ms.filter(|_| record.work.held.is_some()).map(instant);
        let explained =
            standing.and_then(|label| why(&version.machine, &label, &asked, instant(now_ms), again));
        let mut told = explained.map_or_else(|| json!({}), |why| why.to_json());
        told["state"] = json!(record.state);
        told["status"] = json!(record.status);
        told["since"] = json!(instant(record.entered_ms).to_string());
        told["version"] = json!(version.number);
        if !feeds.is_empty() {
            told["feeds"] = Value::Object(feeds);
        }
        if let Some(error) = &record.work.error {
            told["last_error"] = json!(error);
        }
        if let Some(again_ms) = record.work.again_ms {
            told["next_retry"] = json!(instant(again_ms).to_string());
        }
        let reason = match record.status {
            Status::Waiting => None,
            Status::Acting => Some(format!("its action is under way, attempt {}", record.work.attempts)),
            Status::Choosing => {
                Some("its action is done; where it goes depends on a feed that failed".to_owned())
            }
            Status::Errored => {
                told["stuck"] = json!("nothing will evaluate this again, unless its action is retried");
                Some("its action failed for good, until somebody retries it".to_owned())
            }
            Status::Looping => Some("it moved fifty times in a row and goes on a second later".to_owned()),
            Status::Ended => {
                told["stuck"] = json!("nothing will evaluate this again: it is at its end");
                Some("it has come to its end".to_owned())
            }
            Status::Deleted => Some("it was deleted".to_owned()),
        };
        if let Some(reason) = reason {
            told["reason"] = json!(reason);
        }
        Ok(told)
    }

    /// Where a label would go.
    pub async fn simulate(&self, machine: &str, label: &str, asking: Asking) -> Result<Value, Error> {
        let (record, version, now_ms) = self.stands(machine, label).await?;
        let machine = &*version.machine;
        let now = instant(now_ms);
        let until = asking.until.or_else(|| now.checked_add(asking.span).ok()).unwrap_or(Timestamp::MAX);
        let assumed = Assumed { feeds: asking.feeds, webhooks: asking.webhooks };
        if let Some(update) = &asking.metadata {
            let mut metadata = record.metadata.clone();
            merge::merge(&mut metadata, update);
            merge::check(&metadata).map_err(|error| Error::BadMetadata(error.to_string()))?;
        }
        let asked = Asked::default();
        let judge = judge(&version, label, now_ms, &asked);
        let Some(standing) = judge.label(&record) else {
            return Ok(json!({"steps": [], "end": "state_removed", "state": record.state}));
        };
        let start = Start {
            name: label.to_owned(),
            state: standing.state,
            status: standing.status,
            metadata: record.metadata.clone(),
            entered: standing.entered,
            previous_state: record.previous_state().map(str::to_owned),
            facts_waiting: record.work.facts,
            attempts: record.work.attempts.saturating_sub(u32::from(record.status == Status::Acting)),
            again: again_ms(&record).map(instant),
            feed_failures: record.work.feed_failures,
            held: held(&record.work).map(|(cause, trigger)| (cause, trigger.map(str::to_owned))),
            fresh: false,
        };
        let facts = asking.metadata.as_ref();
        Ok(simulate(machine, start, &assumed, facts, now, until).to_json(machine))
    }

    /// What another definition would change. Looks at ten thousand labels at most.
    pub async fn preview(&self, old: Option<&Version>, new: &Machine) -> Result<Preview, Error> {
        let Some(old) = old else {
            let added = new.states().iter().map(|state| state.name().to_owned()).collect();
            return Ok(Preview {
                states: plan::States { added, ..plan::States::default() },
                ..Preview::default()
            });
        };
        let states = plan::states(&old.machine, new);
        let names: Vec<&str> = states.removed.iter().map(String::as_str).collect();
        let counts = self.0.store.count_states(new.name(), &names).await?;
        let labels = states.removed.iter().cloned().zip(counts).collect();
        let changed = plan::outside(&old.machine, new);
        let mut preview = Preview { states, changed, labels, ..Preview::default() };
        let now_ms = self.0.clock.now_ms().await?;
        let asked = Asked::default();
        let unsettled = plan::unsettled(&old.machine, new);
        for shard in 0..self.0.store.count() {
            for state in by_interest(new, &preview.states.changed, &unsettled) {
                let settles = unsettled.iter().any(|name| name == state.name());
                let mut after: Option<String> = None;
                loop {
                    let cursor = after.as_deref();
                    let names = self.0.store.in_state(shard, new.name(), state.name(), cursor, PAGE).await?;
                    let Some(last) = names.last().cloned() else { break };
                    let records = self.0.store.labels(shard, new.name(), &names).await?;
                    for (name, record) in names.iter().zip(records) {
                        let Some(record) = record.and_then(|bytes| Record::read(&bytes).ok()) else {
                            continue;
                        };
                        let judge = judge(old, name, now_ms, &asked);
                        let Some(standing) = judge.label(&record) else { continue };
                        preview.checked += 1;
                        preview.starts +=
                            u64::from(settles && starts(new, old.number + 1, name, &record, now_ms));
                        match plan::outlook(new, state.name(), standing, &asked, instant(now_ms)) {
                            Outlook::Moves => preview.would_move += 1,
                            Outlook::NeedsFeed => preview.needs_feed += 1,
                            Outlook::Stays | Outlook::Removed => {}
                        }
                    }
                    if preview.checked >= MOST_CHECKED as u64 {
                        return Ok(preview);
                    }
                    after = Some(last);
                }
            }
        }
        Ok(preview)
    }
}

/// The gates, and what else has to be looked over; those first at which something is different, because not all labels may be
/// looked at.
fn by_interest<'m>(machine: &'m Machine, changed: &[String], unsettled: &[String]) -> Vec<&'m State> {
    let changed: HashSet<&str> = changed.iter().map(String::as_str).collect();
    let counts = |state: &&State| state.gate().is_some() || unsettled.iter().any(|name| name == state.name());
    let mut states: Vec<&State> = machine.states().iter().filter(counts).collect();
    states.sort_by_key(|state| !changed.contains(state.name()));
    states
}

/// Whether a label goes on by itself when it is brought in line with another definition.
fn starts(new: &Machine, version: u64, label: &str, record: &Record, now_ms: u64) -> bool {
    let mut record = record.clone();
    let judge = Judge { machine: new, version, label, now_ms, feeds: &Asked::default() };
    let turn = judge.run(&mut record, &Happened::Redefined);
    turn.moves > 0 || turn.attempt
}

/// When a label goes on that loops, or waits for a feed that failed. What is under way goes on now.
fn again_ms(record: &Record) -> Option<u64> {
    let pauses = match record.status {
        Status::Looping => true,
        Status::Waiting | Status::Choosing => record.work.feed_failures > 0,
        _ => false,
    };
    record.work.again_ms.filter(|_| pauses)
}

fn judge<'a>(version: &'a Version, label: &'a str, now_ms: u64, asked: &'a Asked) -> Judge<'a> {
    Judge { machine: &version.machine, version: version.number, label, now_ms, feeds: asked }
}
