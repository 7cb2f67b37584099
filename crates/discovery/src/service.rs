//! Reads a source again and again, and applies what differs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use signalbox_client::{Client, Error as ApiError, routes::Filter};
use tokio::time::{self, Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    reconcile::{Memory, Plan, Present, plan, text},
    snapshot::{Entry, Snapshot, Source},
};

/// The pause after a change was noticed, so that a burst of changes is one reading.
const SETTLE: Duration = Duration::from_millis(50);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// How instances are managed.
#[derive(Debug, Clone)]
pub struct Options {
    /// The beginning of the IDs of all instances. Each discovery of a system needs another one.
    pub name: String,
    /// The longest time between two readings.
    pub interval: Duration,
    /// The time for which an instance must be absent from every reading, unless the source shows that it ended.
    pub confirm: Duration,
    /// The time after which a drained instance is removed.
    pub drain: Duration,
}

/// Receives a line for each change and each problem.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// Keeps the instances of one source registered.
pub struct Discovery {
    client: Client,
    options: Options,
    report: Report,
    memory: Memory,
    absent_since: BTreeMap<String, Instant>,
    /// Problems that were reported, by their subject.
    reported: BTreeMap<String, String>,
}

impl Discovery {
    /// A discovery that registers instances with `client`.
    pub fn new(client: Client, options: Options, report: Report) -> Self {
        let (memory, absent_since, reported) = Default::default();
        Self { client, options, report, memory, absent_since, reported }
    }

    /// Runs until `shutdown`. The instances stay registered.
    pub async fn run(mut self, mut source: impl Source, shutdown: CancellationToken) {
        loop {
            let pause = tokio::select! {
                pause = self.pass(&mut source) => pause,
                () = shutdown.cancelled() => return,
            };
            let changed = async {
                source.changed().await;
                time::sleep(SETTLE).await;
            };
            tokio::select! {
                () = changed => {}
                () = time::sleep(pause) => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    /// One reading; returns the longest time until the next one.
    async fn pass(&mut self, source: &mut impl Source) -> Duration {
        let snapshot = match source.read().await {
            Ok(snapshot) => snapshot,
            Err(error) => {
                // What was absent before may be there now.
                self.absent_since.clear();
                self.problem("source", &format!("{error}; nothing is changed"));
                return PAUSE;
            }
        };
        self.solved("source", "the source can be read again");
        let present = match self.present().await {
            Ok(present) => present,
            Err(error) => {
                self.problem("table", &format!("the registered instances cannot be read: {error}"));
                return PAUSE;
            }
        };
        self.solved("table", "the registered instances can be read again");
        self.confirm(&snapshot);
        let plan = plan(&snapshot, &present, &self.memory);
        let now = Instant::now();
        self.absent_since.retain(|key, _| plan.absent.contains(key) || plan.drain.contains(key));
        for key in &plan.absent {
            self.absent_since.entry(key.clone()).or_insert(now);
        }
        self.memory.sent.retain(|key, _| present.contains_key(key));
        self.memory.refused.retain(|key, _| snapshot.entries.contains_key(key));
        self.memory.drained.retain(|key| present.contains_key(key));
        let complete = self.apply(&snapshot, &plan).await;
        let interval = source.expires().unwrap_or(self.options.interval).min(self.options.interval);
        match (complete, plan.absent.is_empty()) {
            (false, _) => PAUSE.min(interval),
            (true, false) => (self.options.confirm / 4).clamp(SETTLE, interval),
            (true, true) => interval,
        }
    }

    /// The instances whose IDs begin with the name, by their key.
    async fn present(&self) -> Result<BTreeMap<String, Present>, ApiError> {
        let all = self.client.routes().instances(&Filter::default()).await?;
        let own = all.into_iter().filter_map(|one| {
            let key = one.id.strip_prefix(&self.options.name)?.strip_prefix('.')?;
            // A key has no dot: this one belongs to a discovery with a longer name.
            (!key.contains('.'))
                .then(|| (key.to_owned(), Present { address: one.address.clone(), state: one.state }))
        });
        Ok(own.collect())
    }

    /// Moves what was absent for long enough to the confirmed ones.
    fn confirm(&mut self, snapshot: &Snapshot) {
        let confirmed: BTreeSet<String> = self
            .absent_since
            .iter()
            .filter(|(key, since)| {
                !snapshot.entries.contains_key(*key) && since.elapsed() >= self.options.confirm
            })
            .map(|(key, _)| key.clone())
            .collect();
        self.memory.confirmed = confirmed;
    }

    /// Applies each change separately, so that one that is rejected does not affect the others. Returns whether all succeeded.
    async fn apply(&mut self, snapshot: &Snapshot, plan: &Plan) -> bool {
        let mut complete = true;
        for (key, why) in &plan.unclear {
            self.problem(key, &format!("{key}: {why}; it stays as it is"));
        }
        for key in &plan.register {
            let Some(Entry::Instance(instance)) = snapshot.entries.get(key) else { continue };
            let id = self.id(key);
            let registered = self.client.routes().register(&id, instance, None).await.map(drop);
            match &registered {
                Err(error) if !error.is_unavailable() => {
                    self.memory.refused.insert(key.clone(), text(instance));
                }
                _ => _ = self.memory.refused.remove(key),
            }
            if self.settle(key, registered, &format!("{id} registered at {}", instance.address)) {
                self.memory.sent.insert(key.clone(), text(instance));
            } else {
                complete = false;
            }
        }
        for key in &plan.resume {
            let id = self.id(key);
            let resumed = self.client.routes().resume(&id, None).await.map(drop);
            if self.settle(key, resumed, &format!("{id} receives requests again")) {
                self.memory.drained.remove(key);
            } else {
                complete = false;
            }
        }
        for key in &plan.drain {
            let id = self.id(key);
            let drained = match self.client.routes().drain(&id, Some(self.options.drain), None).await {
                Err(error) if error.code() == Some("unknown_instance") => Ok(()),
                other => other.map(drop),
            };
            if self.settle(key, drained, &format!("{id} drained")) {
                self.memory.drained.insert(key.clone());
                self.memory.sent.remove(key);
            } else {
                complete = false;
            }
        }
        let known = |key: &String| {
            ["source", "table"].contains(&&**key)
                || plan.unclear.iter().any(|(other, _)| other == key)
                || plan.register.contains(key)
                || plan.drain.contains(key)
                || plan.resume.contains(key)
        };
        self.reported.retain(|key, _| known(key));
        complete
    }

    fn id(&self, key: &str) -> String {
        format!("{}.{key}", self.options.name)
    }

    /// Reports the result of a change. Returns whether it is made.
    fn settle(&mut self, key: &str, result: Result<(), ApiError>, done: &str) -> bool {
        match result {
            Ok(()) => {
                self.reported.remove(key);
                (self.report)(done);
                true
            }
            Err(error) => {
                self.problem(key, &format!("{}: {error}", self.id(key)));
                false
            }
        }
    }

    /// Reports a problem when it begins or changes.
    fn problem(&mut self, subject: &str, text: &str) {
        if self.reported.get(subject).is_none_or(|before| before != text) {
            (self.report)(text);
            self.reported.insert(subject.to_owned(), text.to_owned());
        }
    }

    fn solved(&mut self, subject: &str, text: &str) {
        if self.reported.remove(subject).is_some() {
            (self.report)(text);
        }
    }
}
