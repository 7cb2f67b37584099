//! Labels whose calls wait for a place among the outgoing calls of the process.
//!
//! An attempt is counted before its call. If the call has no place soon, the attempt is undone: the label then waits as it
//! does for a limit, its action is not under way, and its next time is a minute or more away. In this process, only the names of
//! the label wait in the queue of the budget. When the call has a place, the attempt is counted again, so an attempt's timeout
//! begins when its call does. If this process dies, or the label's next time comes first, another process begins the attempt,
//! and the change by which this one would begin it finds that the label no longer waits.

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use signalbox_egress::{Owner, Place, destination};
use tokio::time::timeout;

use crate::{
    Version,
    actions::{Actions, owner},
    evaluator::{Happened, Turn},
    feeds::FeedAnswers,
    label_store::Edit,
    record::{Record, Status},
    runner::Runner,
};

/// How long a call waits for a place before its attempt is undone: less than the time after which an attempt without an
/// outcome is considered lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// The labels that wait in this process, by machine and name.
#[derive(Debug)]
pub(crate) struct Waiting {
    labels: Mutex<HashSet<(String, String)>>,
    /// See [`PATIENCE`].
    patience: Duration,
}

/// A label that waits. It waits no longer when this is dropped.
struct One {
    runner: Arc<Runner>,
    label: (String, String),
}

impl Drop for One {
    fn drop(&mut self) {
        self.runner.waiting.labels.lock().remove(&self.label);
    }
}

impl Waiting {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { labels: Mutex::default(), patience }
    }
}

impl Runner {
    /// The place for the call of an attempt that was counted; `Some(None)` if it makes no call. `None` if there was none in time:
    /// the attempt is then undone, and begins again later.
    pub(crate) async fn place(
        self: &Arc<Self>,
        (machine, label): (&str, &str),
        record: &Record,
        version: &Version,
        (turn, place): (&Turn, Option<Place>),
    ) -> Option<Option<Place>> {
        if place.is_some() {
            return Some(place);
        }
        let Some(to) = Actions::address(&version.machine, label, record) else { return Some(None) };
        let owner = owner(version);
        if let Ok(place) = timeout(self.waiting.patience, self.actions.client.place(&owner, &to)).await {
            return Some(Some(place));
        }
        let to_name = destination(&to);
        let none = FeedAnswers::default();
        let undone = self.labels.change((machine, label), &none, |before, _, _| {
            let same = before.filter(|before| {
                before.is_of_same_label(record)
                    && before.visit == record.visit
                    && before.status == Status::Acting
                    && before.work.attempts == record.work.attempts
                    && before.work.held.is_none()
            });
            let no_place = Happened::NoPlace(&to_name, turn.placeless_ms);
            Ok(same.map_or(Edit::Leave, |before| Edit::evaluate(before, no_place)))
        });
        match undone.await {
            Ok(_) => {
                self.give_back(machine, label, record, version).await;
                self.wait_for_place((machine, label), owner, to);
            }
            // The attempt is counted as lost at the label's next time.
            Err(error) => tracing::debug!(%error, machine, "attempt without a place not undone"),
        }
        None
    }

    /// In the background, waits for a place for the label's call, and begins its attempt.
    fn wait_for_place(self: &Arc<Self>, (machine, label): (&str, &str), owner: Owner, to: http::Uri) {
        let label = (machine.to_owned(), label.to_owned());
        if !self.waiting.labels.lock().insert(label.clone()) {
            return;
        }
        let one = One { runner: Arc::clone(self), label };
        self.tasks.spawn(async move {
            let runner = Arc::clone(&one.runner);
            let waiting = Box::pin(runner.begin_when_placed(one, (owner, to)));
            runner.stopped.run_until_cancelled(waiting).await;
        });
    }

    async fn begin_when_placed(self: &Arc<Self>, one: One, (owner, to): (Owner, http::Uri)) {
        let (machine, label) = one.label.clone();
        let place = self.actions.client.place(&owner, &to).await;
        drop((one, to));
        let none = FeedAnswers::default();
        let change = self.labels.change((&machine, &label), &none, |before, _, _| {
            let waits = before.filter(|before| before.work.place().is_some());
            Ok(waits.map_or(Edit::Leave, |before| Edit::evaluate(before, Happened::Placed)))
        });
        match Box::pin(change).await {
            Ok(done) => self.follow_with(&machine, &label, &done, Some(place)),
            // The label's time in the due set brings it back.
            Err(error) => tracing::debug!(%error, machine, "label with a place postponed"),
        }
    }
}
