//! Previews a change of definition.

use std::{collections::HashSet, sync::Arc, time::Duration};

use signalbox_api::machines::{Plan, StateChanges};
use signalbox_machine::{
    Machine, State,
    plan::{self, Outlook},
};
use tokio::{task::spawn_blocking, time::Instant};

use crate::{
    Error, Version,
    clock::Clock,
    evaluator::{Evaluator, Happened, instant},
    feeds::FeedAnswers,
    record::Record,
    store::{Index, Records},
};

/// Maximum number of labels that a preview evaluates.
const MAX_CHECKED: u64 = 10_000;
/// How long a preview may evaluate. Labels whose conditions are expensive are then not all checked.
const MAX_COMPUTING: Duration = Duration::from_secs(5);
/// Labels that are read together.
const PAGE: usize = 500;

/// Previews changes of definitions. Reads only.
#[derive(Debug)]
pub struct Planner {
    pub(crate) records: Records,
    pub(crate) clock: Clock,
}

impl Planner {
    /// The effects of replacing `old` with `new`, without an ID and warnings. Evaluates at most ten thousand labels, and for at
    /// most five seconds.
    pub async fn preview(&self, old: Option<&Version>, new: &Machine) -> Result<Plan, Error> {
        let Some(old) = old else {
            let added = new.states().iter().map(|state| state.name().to_owned()).collect();
            return Ok(Plan { states: StateChanges { added, ..StateChanges::default() }, ..Plan::default() });
        };
        let states = plan::states(&old.machine, new);
        let moved = states.removed.iter().filter(|state| !old.keeps(state));
        let names: Vec<&str> = moved.map(String::as_str).collect();
        let counts = self.records.count_states(new.name(), &names).await?;
        let labels = names.iter().map(|name| (*name).to_owned()).zip(counts).collect();
        let changed = plan::outside(&old.machine, new);
        let mut preview = Plan { version: old.number, states, changed, labels, ..Plan::default() };
        let next = Version {
            number: old.number + 1,
            machine: Arc::new(new.clone()),
            origin: Arc::clone(&old.origin),
            author: Arc::clone(&old.author),
            effort: Arc::default(),
            active: None,
        };
        let change = Arc::new(Change { old: old.clone(), next, now_ms: self.clock.now_ms().await? });
        let mut left = MAX_COMPUTING;
        let unsettled = preview.states.changed.clone();
        for shard in 0..self.records.shards().count() {
            for state in by_interest(new, &preview.states.changed, &unsettled) {
                let settles = unsettled.iter().any(|name| name == state.name());
                let mut after: Option<String> = None;
                loop {
                    let (machine, after_name) = (new.name(), after.as_deref());
                    let index = Index::State(state.name());
                    let names = self.records.names(shard, machine, index, after_name, PAGE).await?;
                    let Some(last) = names.last().cloned() else { break };
                    let records = self.records.many(shard, machine, &names).await?;
                    let (change, state) = (Arc::clone(&change), state.name().to_owned());
                    // Outside of the threads that serve requests, because it computes only.
                    let counted = spawn_blocking(move || {
                        let began = Instant::now();
                        for (name, record) in names.iter().zip(records) {
                            if began.elapsed() >= left {
                                break;
                            }
                            if let Some(record) = record.and_then(|bytes| Record::read(&bytes).ok()) {
                                change.count(&mut preview, &state, settles, name, &record);
                            }
                        }
                        (preview, left.saturating_sub(began.elapsed()))
                    });
                    let counted = counted.await;
                    (preview, left) =
                        counted.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()));
                    if preview.checked >= MAX_CHECKED || left.is_zero() {
                        return Ok(preview);
                    }
                    after = Some(last);
                }
            }
        }
        Ok(preview)
    }
}

/// A change of definition at a time.
struct Change {
    old: Version,
    /// The version that the new definition would be.
    next: Version,
    now_ms: u64,
}

impl Change {
    /// Adds the effects on one label.
    fn count(&self, preview: &mut Plan, state: &str, settles: bool, name: &str, record: &Record) {
        let answers = FeedAnswers::default();
        // It stays on its version.
        if record.kept.is_some() {
            return;
        }
        let evaluator = Evaluator { version: &self.old, label: name, now_ms: self.now_ms, feeds: &answers };
        let Some(standing) = evaluator.label(record) else { return };
        preview.checked += 1;
        // It is not evaluated until it is resumed.
        if record.suspended {
            return;
        }
        preview.starts += u64::from(settles && self.starts(name, record));
        match plan::outlook(&self.next.machine, state, standing, &answers, instant(self.now_ms)) {
            Outlook::Moves => preview.would_move += 1,
            Outlook::NeedsFeed => preview.needs_feed += 1,
            Outlook::Stays | Outlook::Removed => {}
        }
    }

    /// Whether a label moves or acts when it is adapted to the new definition.
    fn starts(&self, label: &str, record: &Record) -> bool {
        let mut record = record.clone();
        let answers = FeedAnswers::default();
        let evaluator = Evaluator { version: &self.next, label, now_ms: self.now_ms, feeds: &answers };
        let turn = evaluator.run(&mut record, &Happened::Redefined);
        turn.moves > 0 || turn.attempt
    }
}

/// The gates, and other states whose labels must be adapted. Changed states come first, because not all labels may be
/// evaluated.
fn by_interest<'m>(machine: &'m Machine, changed: &[String], unsettled: &[String]) -> Vec<&'m State> {
    let changed: HashSet<&str> = changed.iter().map(String::as_str).collect();
    let concerned =
        |state: &&State| state.gate().is_some() || unsettled.iter().any(|name| name == state.name());
    let mut states: Vec<&State> = machine.states().iter().filter(concerned).collect();
    states.sort_by_key(|state| !changed.contains(state.name()));
    states
}
