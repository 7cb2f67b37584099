//! Labels read, judged and written; what follows a move is set going.
//!
//! Every change has the same shape: read, let [`Judge`] decide, write if nobody was faster (`labels.lua` compares the
//! header and the definition's version), else read again. What comes after the commit (an attempt of an action, a feed to
//! be asked) is done by whoever committed, in the background and holding no lock; its time in the due set is when another
//! takes over if nothing is heard of it.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rand::RngExt as _;
use signalbox_machine::attempt::{self, Verdict};
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Error, Options,
    actions::{Actions, Outcome},
    clock::Clock,
    commit::commit,
    definitions::{Definitions, Version},
    feeds::{Asked, Feeds},
    judge::{Happened, Judge, Turn, ms},
    labels,
    metrics::Metrics,
    record::{Cause, Record, Row, Status},
    store::Store,
};
use signalbox_bus::{self as bus, Refusal};

/// How often a change loses its compare-and-set before it gives up. Others won each of those rounds.
const ROUNDS: usize = 200;
/// Before what could not be written is tried again.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 5 } else { 250 });
/// How often an outcome is brought again while the fabric is away: a quarter of an hour.
const PATIENCE: usize = 3_600;
/// Feeds that one label may have asked in a row: more than a machine's conditions can name.
const MOST_FEEDS: usize = 100;

/// Everything that works on labels. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Engine(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) store: Store,
    pub(super) bus: bus::Handle,
    pub(super) definitions: Definitions,
    pub(super) clock: Clock,
    pub(super) actions: Actions,
    pub(super) feeds: Feeds,
    pub(super) options: Options,
    pub(super) metrics: Metrics,
    pub(super) tasks: TaskTracker,
    /// Cancelled when what goes on in the background comes to its end.
    pub(super) shutdown: CancellationToken,
    /// Waves that stand in the due set for certain, by version.
    pub(super) waves: Mutex<HashSet<(u64, usize, String)>>,
    /// Notified when the fabric was away, and may have forgotten something.
    pub(super) doubted: tokio::sync::Notify,
    /// Labels whose records cannot be read, as far as that was told already.
    pub(super) unreadable: Mutex<HashSet<String>>,
    /// Notified when a definition was applied here.
    pub(super) redefined: tokio::sync::Notify,
    /// One change of definition at a time in this process.
    pub(super) applying: tokio::sync::Mutex<()>,
}

/// What is to become of a label.
#[allow(clippy::large_enum_variant, reason = "one at a time, on its way from a closure to its caller")]
pub(super) enum Edit<'a> {
    /// Nothing.
    Leave,
    /// This, and then what follows from what happened. `rows` of its newest rows are new already.
    Write { record: Record, happened: Option<Happened<'a>>, rows: usize },
}

/// What became of it.
#[derive(Debug)]
pub(super) struct Done {
    /// The label as it stands now, if it does.
    pub(super) record: Option<Record>,
    pub(super) version: Version,
    pub(super) turn: Turn,
    pub(super) changed: bool,
}

impl Engine {
    /// A label as it stands, if there is any record of it.
    pub(super) async fn read(&self, machine: &str, label: &str) -> Result<Option<Record>, Error> {
        let bytes = self.0.store.label(machine, label).await?;
        Ok(bytes.map(|bytes| Record::read(&bytes)).transpose()?)
    }

    /// Changes a label: `edit` says how from what stands there, and is asked again when somebody was faster.
    pub(super) async fn change<'a>(
        &self,
        place: (&str, &str),
        asked: &Asked,
        edit: impl Fn(Option<&Record>, &Version, u64) -> Result<Edit<'a>, Error>,
    ) -> Result<Done, Error> {
        self.change_keyed(place, asked, None, edit).await
    }

    /// The same, noting the answer under an idempotency key; what is known under the key is left as it is.
    pub(super) async fn change_keyed<'a>(
        &self,
        (machine, label): (&str, &str),
        asked: &Asked,
        key: Option<(u64, u32)>,
        edit: impl Fn(Option<&Record>, &Version, u64) -> Result<Edit<'a>, Error>,
    ) -> Result<Done, Error> {
        let inner = &*self.0;
        let shard = inner.store.shard_of(machine, label);
        for round in 0..ROUNDS {
            let version = inner.definitions.of(machine, shard).await?;
            let before = self.read(machine, label).await?;
            let now_ms = inner.clock.now_ms().await?;
            if let (Some(key), Some(before)) = (key, &before)
                && labels::is_known(before, key)
            {
                return Ok(Done {
                    record: Some(before.clone()),
                    version,
                    turn: Turn::default(),
                    changed: false,
                });
            }
            let (mut record, happened, rows) = match edit(before.as_ref(), &version, now_ms)? {
                Edit::Leave => {
                    return Ok(Done { record: before, version, turn: Turn::default(), changed: false });
                }
                Edit::Write { record, happened, rows } => (record, happened, rows),
            };
            let turn = {
                let (machine, number) = (&version.machine, version.number);
                let judge = Judge { machine, version: number, label, now_ms, feeds: asked };
                happened.map(|happened| judge.run(&mut record, &happened)).unwrap_or_default()
            };
            inner.metrics.evaluated(turn.evaluations);
            // A label may only ask for another feed than before.
            let only_asks = turn.needs.is_some() && turn.moves + rows == 0;
            let stays =
                before.as_ref().is_some_and(|old| *old == record || (only_asks && same(old, &record)));
            if stays {
                // No commit compares the version, so whether it counts still is asked for.
                if inner.store.current(shard, machine).await? == Some(version.number) {
                    return Ok(Done { record: before, version, turn, changed: false });
                }
                inner.definitions.forget(machine, shard);
                continue;
            }
            // The header of what was there before counts on, also for a name that comes back.
            record.revision = before.as_ref().map_or(0, |before| before.revision);
            if let Some(key) = key {
                labels::note(&mut record, key);
            }
            self.ensure(shard, &version, &turn.waves).await?;
            let new_rows = rows + turn.moves;
            let place = (machine, label);
            match commit(
                (&inner.bus, &inner.store.fate),
                place,
                Some(version.number),
                before.as_ref(),
                &mut record,
                new_rows,
            )
            .await
            {
                Ok(()) => {
                    inner.metrics.moved(new_rows);
                    return Ok(Done { record: Some(record), version, turn, changed: true });
                }
                Err(Refusal::Outdated) => {
                    inner.definitions.forget(machine, shard);
                    if round > 2 {
                        // Those who meet again and again come apart by chance.
                        let pause_ms = rand::rng().random_range(0..20);
                        sleep(Duration::from_millis(pause_ms)).await;
                    }
                }
                Err(refusal) => return Err(refusal.into()),
            }
        }
        Err(Error::Contended)
    }

    /// Lets waves come that the gates need.
    pub(super) async fn ensure(
        &self,
        shard: usize,
        version: &Version,
        waves: &[(String, u64)],
    ) -> Result<(), Error> {
        for (member, at_ms) in waves {
            let place = (version.number, shard, member.clone());
            let known = self.0.waves.lock().unwrap_or_else(PoisonError::into_inner).contains(&place);
            if !known {
                self.0.store.ensure_due(shard, member, *at_ms).await?;
                self.0.waves.lock().unwrap_or_else(PoisonError::into_inner).insert(place);
            }
        }
        Ok(())
    }

    /// Sets going what follows a commit.
    pub(super) fn follow(&self, machine: &str, label: &str, done: &Done) {
        if !done.turn.attempt && done.turn.needs.is_none() {
            return;
        }
        let Some(record) = &done.record else { return };
        let (engine, machine, label) = (self.clone(), machine.to_owned(), label.to_owned());
        let (record, version, turn) = (record.clone(), done.version.clone(), done.turn.clone());
        self.0.tasks.spawn(async move {
            let shutdown = engine.0.shutdown.clone();
            shutdown
                .run_until_cancelled(Box::pin(engine.go_on(&machine, &label, record, version, turn)))
                .await;
        });
    }

    /// Attempts and feeds, one after the other, until the label rests.
    async fn go_on(
        &self,
        machine: &str,
        label: &str,
        mut record: Record,
        mut version: Version,
        mut turn: Turn,
    ) {
        // A circle of actions that are done at once is a circle as well, and pauses as others do.
        let mut moved = turn.steps;
        loop {
            let done = if turn.attempt {
                let Some(done) = self.act((machine, label), &record, &version, moved).await else { return };
                done
            } else if turn.needs.is_some() {
                let resumed =
                    self.ask_and_resume(machine, label, turn.needs.take(), &record, &version, moved);
                match resumed.await {
                    Ok(done) => done,
                    Err(error) => {
                        // Its time in the due set brings it back.
                        tracing::debug!(%error, machine, "a label goes on later");
                        return;
                    }
                }
            } else {
                return;
            };
            let Some(now) = done.record else { return };
            moved += done.turn.steps;
            (record, version, turn) = (now, done.version, done.turn);
        }
    }

    /// Asks feeds until the label can be judged, and judges it; it has moved so many times without a rest.
    pub(super) async fn ask_and_resume(
        &self,
        machine: &str,
        label: &str,
        first: Option<String>,
        record: &Record,
        version: &Version,
        moved: usize,
    ) -> Result<Done, Error> {
        let mut asked = Asked::default();
        let mut steps = 0;
        let (mut needs, mut record, mut version) = (first, record.clone(), version.clone());
        for _ in 0..MOST_FEEDS {
            if let Some(feed) = needs.take() {
                self.0.feeds.ask(&mut asked, &version.machine, label, &record.metadata, &feed).await;
            }
            let visit = record.visit;
            let resumed = Happened::Resumed(moved + steps);
            let mut done = self
                .change((machine, label), &asked, |before, _, _| match before {
                    Some(before) if before.visit == visit && before.status != Status::Deleted => {
                        Ok(Edit::Write { record: before.clone(), happened: Some(resumed.clone()), rows: 0 })
                    }
                    _ => Ok(Edit::Leave),
                })
                .await?;
            done.turn.steps += steps;
            steps = done.turn.steps;
            let Some(now) = &done.record else { return Ok(done) };
            if done.turn.needs.is_none() || done.turn.attempt {
                return Ok(done);
            }
            if now.visit != record.visit {
                // A new gate is judged by what feeds say now.
                asked = Asked::default();
            }
            needs = done.turn.needs.clone();
            (record, version) = (now.clone(), done.version.clone());
        }
        Err(Error::Contended)
    }

    /// Makes the attempt that was counted, and writes what came of it; nothing when the label is elsewhere by now.
    async fn act(
        &self,
        (machine, label): (&str, &str),
        record: &Record,
        version: &Version,
        moved: usize,
    ) -> Option<Done> {
        let outcome = self.0.actions.perform(&version.machine, label, record).await;
        self.0.metrics.acted(&outcome);
        for _ in 0..PATIENCE {
            match self.settle((machine, label), record, &outcome, moved).await {
                Ok(done) => return Some(done),
                Err(Error::NoSuchMachine | Error::Unreadable) => return None,
                Err(error) => {
                    // What was done is not done again because nobody could write it down.
                    tracing::debug!(%error, machine, "the outcome of an action is written later");
                    sleep(PAUSE).await;
                }
            }
        }
        None
    }

    /// Writes the outcome of an attempt that was made for `made_for`.
    async fn settle(
        &self,
        place: (&str, &str),
        made_for: &Record,
        outcome: &Outcome,
        moved: usize,
    ) -> Result<Done, Error> {
        self.change(place, &Asked::default(), |before, version, now_ms| {
            let Some(before) = before.filter(|one| one.incarnation == made_for.incarnation) else {
                return Ok(Edit::Leave);
            };
            let mut record = before.clone();
            if before.status == Status::Deleted {
                // Whoever deleted it won. What the action came to is told by its history, and nothing follows.
                record.history.push(Row {
                    visit: made_for.visit,
                    at_ms: now_ms,
                    from: Some(made_for.state.clone()),
                    to: None,
                    cause: Cause::Action,
                    trigger: Some(outcome.word().into()),
                    version: version.number,
                    event: 0,
                });
                let told = before.history.iter().any(|row| row.cause == Cause::Action && row.to.is_none());
                return Ok(if told { Edit::Leave } else { Edit::Write { record, happened: None, rows: 1 } });
            }
            let under_way = matches!(before.status, Status::Acting | Status::Errored);
            if before.visit != made_for.visit || !under_way {
                return Ok(Edit::Leave);
            }
            let happened = match outcome {
                Outcome::Done => Some(Happened::Done(moved)),
                Outcome::Failed { .. } if before.work.attempts != made_for.work.attempts => {
                    return Ok(Edit::Leave);
                }
                Outcome::Failed { why, kind } => {
                    record.work.error = Some(why.as_str().into());
                    let action =
                        version.machine.state(&before.state).and_then(signalbox_machine::State::action);
                    let retry = action.map(|action| action.retry.clone()).unwrap_or_default();
                    match attempt::judge(&retry, before.work.attempts, *kind, rand::rng().random()) {
                        Verdict::Again(pause) => record.work.again_ms = Some(now_ms + ms(pause)),
                        Verdict::Done | Verdict::Errored => {
                            record.status = Status::Errored;
                            record.work.again_ms = None;
                        }
                    }
                    None
                }
            };
            Ok(Edit::Write { record, happened, rows: 0 })
        })
        .await
    }

    /// One of the label's own times has come; whether anything was written, and with it the time at which it is due next.
    pub(super) async fn due(&self, machine: &str, label: &str) -> Result<bool, Error> {
        let done = self
            .change((machine, label), &Asked::default(), |before, _, now_ms| match before {
                Some(before) if before.due_ms().is_some_and(|due_ms| due_ms <= now_ms) => {
                    Ok(Edit::Write { record: before.clone(), happened: Some(Happened::Due), rows: 0 })
                }
                _ => Ok(Edit::Leave),
            })
            .await?;
        self.follow(machine, label, &done);
        Ok(done.changed)
    }
}

/// Whether two records say the same but for when they are looked at again.
fn same(old: &Record, new: &Record) -> bool {
    let mut new = new.clone();
    new.work.again_ms = old.work.again_ms;
    *old == new && old.work.again_ms.is_some()
}
