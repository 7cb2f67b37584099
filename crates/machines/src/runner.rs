//! Runs the consequences of a change: attempts of actions, and requests to feeds, until the label waits or has ended.
//!
//! The process that commits a change also runs its consequences, in the background and without a lock. If it has not
//! written an outcome by the time of the label's entry in the due set, another process takes over.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use rand::RngExt as _;
use serde_json::Value;
use signalbox_egress::Place;
use signalbox_machine::{
    State,
    attempt::{self, Verdict},
    merge,
};
use tokio::time::{Instant, sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Error, Version,
    actions::{Actions, Attempted, Outcome},
    evaluator::{Happened, RETRY, Turn, ms},
    feeds::{FeedAnswers, Feeds},
    label_store::{Done, Edit, LabelStore, Note},
    limits::{self, Limits},
    log::{Entry, shortened},
    metrics::Metrics,
    places::Waiting,
    record::{Cause, Record, Row, Status},
};

/// The pause before an outcome that could not be written is written again.
pub(crate) const OUTCOME_PAUSE: Duration = Duration::from_millis(250);
/// How often writing an outcome is tried while the fabric is unavailable: for a quarter of an hour.
const MAX_OUTCOME_WRITES: usize = 3_600;
/// Feeds that one label may need in a row: more than a machine's conditions can name.
const MAX_FEEDS: usize = 100;
/// Labels that a limit admits in parallel.
const ADMITTED_AT_A_TIME: usize = 16;

/// Runs actions and asks feeds.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) labels: Arc<LabelStore>,
    pub(crate) actions: Arc<Actions>,
    pub(crate) feeds: Arc<Feeds>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) metrics: Metrics,
    /// See [`OUTCOME_PAUSE`].
    pub(crate) outcome_pause: Duration,
    /// Labels whose calls wait for a place in this process.
    pub(crate) waiting: Waiting,
    pub(crate) tasks: TaskTracker,
    /// Canceled when background work must end.
    pub(crate) stopped: CancellationToken,
}

impl Runner {
    /// Cancels what runs in the background, and waits for it.
    pub(crate) async fn stop(&self) {
        self.stopped.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Whether nothing runs in the background.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Starts what follows a change.
    pub(crate) fn follow(self: &Arc<Self>, machine: &str, label: &str, done: &Done) {
        self.follow_with(machine, label, done, None);
    }

    /// As [`Self::follow`], with a place for the call of an attempt.
    pub(crate) fn follow_with(
        self: &Arc<Self>,
        machine: &str,
        label: &str,
        done: &Done,
        place: Option<Place>,
    ) {
        if let Some(target) = &done.turn.limit {
            self.admit_soon(machine, target);
        }
        if !done.turn.attempt && done.turn.needs.is_none() {
            return;
        }
        let Some(record) = &done.record else { return };
        let (runner, machine, label) = (Arc::clone(self), machine.to_owned(), label.to_owned());
        let (record, version, turn) = (record.clone(), done.version.clone(), done.turn.clone());
        self.tasks.spawn(async move {
            let running = Box::pin(runner.run_until_rest(&machine, &label, record, version, turn, place));
            runner.stopped.run_until_cancelled(running).await;
        });
    }

    /// In the background, lets labels that wait for the limit of an address begin their attempts.
    pub(crate) fn admit_soon(self: &Arc<Self>, machine: &str, target: &str) {
        let (runner, machine, target) = (Arc::clone(self), machine.to_owned(), target.to_owned());
        self.tasks.spawn(async move {
            let admitting = Box::pin(runner.admit(&machine, &target));
            if let Some(Err(error)) = runner.stopped.run_until_cancelled(admitting).await {
                // The limit's entry in the due set brings it back.
                tracing::debug!(%error, machine, target, "labels that wait for a limit postponed");
            }
        });
    }

    /// Lets labels that wait for a limit begin their attempts, the one that has waited longest first. A call during another
    /// makes that one look again.
    async fn admit(self: &Arc<Self>, machine: &str, target: &str) -> Result<(), Error> {
        let Some(mut turn) = self.limits.begin(machine, target) else { return Ok(()) };
        loop {
            let admitted = self.limits.next(machine, target).await?;
            let mut more = admitted.more && admitted.permits.is_empty();
            let mut changes = stream::iter(admitted.permits)
                .map(|(label, permit)| self.admit_label(machine, target, label, permit))
                .buffer_unordered(ADMITTED_AT_A_TIME);
            while let Some(left) = changes.next().await {
                more |= left? && admitted.more;
            }
            if !more && turn.ends() {
                return Ok(());
            }
        }
    }

    /// Lets a label begin its attempt with a permit. Returns whether it has left the queue.
    async fn admit_label(
        self: &Arc<Self>,
        machine: &str,
        target: &str,
        label: String,
        permit: String,
    ) -> Result<bool, Error> {
        let permitted = |before: Option<&Record>, _: &Version, _| {
            // A permit is for one attempt of one visit.
            let before =
                before.filter(|before| limits::permit(&label, before, before.work.attempts + 1) == permit);
            Ok(before.map_or(Edit::Leave, |before| Edit::evaluate(before, Happened::Permitted(target))))
        };
        let done = self.labels.change((machine, &label), &FeedAnswers::default(), permitted).await?;
        self.follow(machine, &label, &done);
        // If the outcome of the change is unknown, the permit expires.
        if !done.turn.attempt {
            self.limits.permits.give_back(machine, target, &permit).await?;
        }
        Ok(done.changed)
    }

    /// Makes attempts and asks feeds, one after the other, until the label rests.
    async fn run_until_rest(
        self: &Arc<Self>,
        machine: &str,
        label: &str,
        mut record: Record,
        mut version: Version,
        mut turn: Turn,
        mut place: Option<Place>,
    ) {
        // A loop of actions that are done immediately pauses as other loops do.
        let mut moved = turn.steps;
        loop {
            let done = if turn.attempt {
                let at = (machine, label);
                let Some(place) = self.place(at, &record, &version, (&turn, place.take())).await else {
                    return;
                };
                let Some(done) = self.act(at, &record, &version, (moved, place)).await else { return };
                done
            } else if turn.needs.is_some() {
                let resumed =
                    self.ask_and_resume(machine, label, turn.needs.take(), &record, &version, moved);
                match resumed.await {
                    Ok(done) => done,
                    Err(error) => {
                        // The label's time in the due set brings it back.
                        tracing::debug!(%error, machine, "label postponed");
                        return;
                    }
                }
            } else {
                return;
            };
            let Some(now) = done.record else { return };
            if let Some(target) = &done.turn.limit {
                self.admit_soon(machine, target);
            }
            moved += done.turn.steps;
            (record, version, turn) = (now, done.version, done.turn);
        }
    }

    /// Asks feeds until the label can be evaluated, and evaluates it. `moved` is how often it has moved without resting.
    async fn ask_and_resume(
        &self,
        machine: &str,
        label: &str,
        first: Option<String>,
        record: &Record,
        version: &Version,
        moved: usize,
    ) -> Result<Done, Error> {
        let mut answers = FeedAnswers::default();
        let mut steps = 0;
        let (mut needs, mut record, mut version) = (first, record.clone(), version.clone());
        for _ in 0..MAX_FEEDS {
            if let Some(feed) = needs.take() {
                let asked = self.feeds.ask(&mut answers, &version, label, &record.metadata, &feed);
                if !asked.await {
                    return Err(Error::Contended);
                }
            }
            let resumed = Happened::Resumed(moved + steps);
            let same = |before: &&Record| {
                before.is_of_same_label(&record)
                    && before.visit == record.visit
                    && before.status != Status::Deleted
            };
            let mut done = self
                .labels
                .change((machine, label), &answers, |before, _, _| {
                    let before = before.filter(same);
                    Ok(before.map_or(Edit::Leave, |before| Edit::evaluate(before, resumed.clone())))
                })
                .await?;
            done.turn.steps += steps;
            steps = done.turn.steps;
            let Some(now) = &done.record else { return Ok(done) };
            if done.turn.needs.is_none() || done.turn.attempt {
                return Ok(done);
            }
            if now.visit != record.visit {
                // Another gate is evaluated with new answers.
                answers = FeedAnswers::default();
            }
            needs = done.turn.needs.clone();
            (record, version) = (now.clone(), done.version.clone());
        }
        Err(Error::Contended)
    }

    /// Makes the attempt that was counted, and writes its outcome. `None` if the label has left the action.
    async fn act(
        self: &Arc<Self>,
        (machine, label): (&str, &str),
        record: &Record,
        version: &Version,
        (moved, place): (usize, Option<Place>),
    ) -> Option<Done> {
        let began = Instant::now();
        let attempted = self.actions.perform((version, label), record, place).await;
        self.metrics.acted(&attempted.outcome);
        self.give_back(machine, label, record, version).await;
        let entry = logged(record, &attempted, began.elapsed());
        for _ in 0..MAX_OUTCOME_WRITES {
            match self.settle((machine, label), record, (&attempted.outcome, &entry), moved).await {
                Ok(done) => return Some(done),
                Err(Error::NoSuchMachine | Error::Unreadable) => return None,
                Err(error) => {
                    // An action is not repeated only because its outcome could not be written.
                    tracing::debug!(%error, machine, "outcome of an action not written yet");
                    sleep(self.outcome_pause).await;
                }
            }
        }
        None
    }

    /// Gives back the permit of an attempt whose address has a limit.
    pub(crate) async fn give_back(
        self: &Arc<Self>,
        machine: &str,
        label: &str,
        record: &Record,
        version: &Version,
    ) {
        let limit = version
            .machine
            .state(&record.state)
            .and_then(State::action)
            .and_then(|action| version.active().machine.limit_of(action));
        if let Some(limit) = limit {
            let permit = limits::permit(label, record, record.work.attempts);
            // If it cannot be given back, it expires.
            let _expires = self.limits.permits.give_back(machine, &limit.target, &permit).await;
            self.admit_soon(machine, &limit.target);
        }
    }

    /// Writes the outcome of an attempt that was made for the record `made_for`.
    async fn settle(
        &self,
        place: (&str, &str),
        made_for: &Record,
        (outcome, entry): (&Outcome, &Entry),
        moved: usize,
    ) -> Result<Done, Error> {
        let note = || Note { by: String::new(), entry: Some(entry.clone()) };
        self.labels
            .change(place, &FeedAnswers::default(), |before, version, now_ms| {
                let Some(before) = before.filter(|one| one.is_of_same_label(made_for)) else {
                    return Ok(Edit::Leave);
                };
                if before.status == Status::Deleted {
                    return Ok(note_outcome(before, made_for, outcome, version.number, now_ms).noted(note()));
                }
                let under_way = matches!(before.status, Status::Acting | Status::Errored);
                if before.visit != made_for.visit || !under_way {
                    return Ok(Edit::Leave);
                }
                let edit = match outcome {
                    Outcome::Done(None) => Edit::evaluate(before, Happened::Done(moved)),
                    Outcome::Done(Some(result)) => done_with(before, version, result, moved, now_ms),
                    // Another attempt has begun, or the action was canceled. A retry begins to count again, so the number alone does
                    // not identify an attempt; until when it may take does.
                    Outcome::Failed { .. }
                        if before.work.attempts != made_for.work.attempts
                            || before.work.again_ms != made_for.work.again_ms
                            || before.status == Status::Errored =>
                    {
                        Edit::Leave
                    }
                    Outcome::Failed { why, kind } => failed(before, version, why, *kind, moved, now_ms),
                };
                Ok(edit.noted(note()))
            })
            .await
    }
}

/// The line of an attempt in the log.
fn logged(record: &Record, attempted: &Attempted, took: Duration) -> Entry {
    Entry::Attempt {
        state: record.state.to_string(),
        number: record.work.attempts,
        outcome: attempted.outcome.word().to_owned(),
        status: attempted.answer.as_ref().map(|answer| answer.status),
        took_ms: Some(ms(took)),
        answer: attempted.answer.as_ref().and_then(|answer| answer.excerpt.clone()),
        error: match &attempted.outcome {
            Outcome::Done(_) => None,
            Outcome::Failed { why, .. } => Some(shortened(why)),
        },
    }
}

/// Adds the outcome of an attempt to the history of a label that was deleted during the attempt. Nothing follows it.
fn note_outcome(
    before: &Record,
    made_for: &Record,
    outcome: &Outcome,
    version: u64,
    now_ms: u64,
) -> Edit<'static> {
    if before.history.iter().any(|row| row.cause == Cause::Action && row.to.is_none()) {
        return Edit::Leave;
    }
    let mut record = before.clone();
    record.history.push(Row {
        visit: made_for.visit,
        at_ms: now_ms,
        from: Some(made_for.state.clone()),
        to: None,
        cause: Cause::Action,
        trigger: Some(outcome.word().into()),
        version,
        event: 0,
    });
    Edit::Write { record, happened: None, rows: 1, note: Note::default() }
}

/// Merges the result of an action into the metadata, and continues. Metadata that would be too large fails the action.
fn done_with(before: &Record, version: &Version, result: &Value, moved: usize, now_ms: u64) -> Edit<'static> {
    let mut record = before.clone();
    merge::merge(&mut record.metadata, result);
    if let Err(too_much) = merge::check(&record.metadata) {
        let why = format!("its result cannot be stored: {too_much}");
        return failed(before, version, &why, attempt::Outcome::Refused, moved, now_ms);
    }
    // The next gate is evaluated on arrival if an update of its metadata triggers it.
    record.work.facts = true;
    Edit::write(record, Some(Happened::Done(moved)))
}

/// Schedules the next attempt after a failure, or ends the action: the label goes where the definition says, or is errored.
fn failed(
    before: &Record,
    version: &Version,
    why: &str,
    kind: attempt::Outcome,
    moved: usize,
    now_ms: u64,
) -> Edit<'static> {
    let mut record = before.clone();
    record.work.error = Some(why.into());
    let action = version.machine.state(&before.state).and_then(State::action);
    let retry = action.map(|action| action.retry.clone()).unwrap_or_default();
    match attempt::judge(&retry, before.work.attempts, kind, rand::rng().random()) {
        Verdict::Again(pause) => {
            record.work.again_ms = Some(now_ms + ms(pause));
            record.work.held = Some(RETRY.into());
        }
        Verdict::Done | Verdict::Errored => {
            return Edit::write(record, Some(Happened::Failed(kind, moved)));
        }
    }
    Edit::write(record, None)
}
