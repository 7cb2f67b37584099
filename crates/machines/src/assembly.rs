//! Puts the parts of the crate together. Each part gets only what it needs.

use std::{sync::Arc, time::Duration};

use signalbox_bus as bus;
use signalbox_egress::Client;
use signalbox_routing::Registry;
use signalbox_seal::Keys;
use signalbox_store::{Fabric, Stats};
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::{
    Options, Secrets,
    actions::Actions,
    apply::Applier,
    clock::Clock,
    commit::Committer,
    definitions::Definitions,
    due_times::DueTimes,
    faults::Faults,
    feeds::Feeds,
    flow::{Flow, FlowReader},
    handle::Handle,
    inputs::Inputs,
    inspector::{Checker, Explainer, Inspector, Overview, Planner},
    label_store::LabelStore,
    labels::Labels,
    limits::Limits,
    log::Retention,
    metrics::Metrics,
    reconcile::SweepReconciler,
    runner::{self, Runner},
    search::Search,
    store::{
        DueSet, FlowCounts, Permits, Records, Shards, Statistics, StoredSecrets, TakenEvents, Tasks, Versions,
    },
    sweep_entries::SweepEntries,
    sweeps::Sweeps,
    tasks::TaskRunner,
};

/// The dependencies of machines on their process.
#[derive(Debug)]
pub struct Dependencies {
    /// The fabric, where labels and definitions are stored.
    pub fabric: Fabric,
    /// The number of shards of the fabric.
    pub shards: usize,
    /// The statistics of the edge, which feeds can read.
    pub stats: Stats,
    /// The bus, through which labels are written.
    pub bus: bus::Handle,
    /// The client for webhooks and feeds.
    pub client: Client,
    /// The registry of routes, which actions can change.
    pub routes: Registry,
    /// The keys that encrypt secrets of machines.
    pub keys: Keys,
}

/// The differences between a pacemaker and a test. The default is a pacemaker.
#[derive(Debug)]
pub(crate) struct Hooks {
    pub(crate) clock: signalbox_store::Clock,
    pub(crate) faults: Faults,
    /// The pause before an outcome of an action that could not be written is written again.
    pub(crate) outcome_pause: Duration,
    /// Canceled when background work must end.
    pub(crate) stopped: CancellationToken,
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            clock: signalbox_store::Clock::Server,
            faults: Faults::default(),
            outcome_pause: runner::OUTCOME_PAUSE,
            stopped: CancellationToken::new(),
        }
    }
}

/// The parts that several others need.
#[derive(Debug)]
pub(crate) struct Parts {
    options: Options,
    shards: Shards,
    clock: Clock,
    metrics: Metrics,
    bus: bus::Handle,
    records: Records,
    pub(crate) due: DueSet,
    versions: Versions,
    definitions: Definitions,
    sweep_entries: SweepEntries,
    label_store: Arc<LabelStore>,
    labels: Labels,
    feeds: Arc<Feeds>,
    pub(crate) secrets: Secrets,
    pub(crate) runner: Arc<Runner>,
    pub(crate) flow: Flow,
    redefined: Arc<Notify>,
}

impl Parts {
    pub(crate) fn new(dependencies: Dependencies, options: Options, hooks: Hooks) -> Self {
        let Dependencies { fabric, shards, stats, bus, client, routes, keys } = dependencies;
        let shards = Shards::new(&fabric, shards, hooks.faults.clone());
        let clock = Clock::new(hooks.clock, shards.clone());
        let metrics = Metrics::default();
        let (records, due) = (Records::new(shards.clone()), DueSet(shards.clone()));
        let versions = Versions(shards.clone());
        let definitions = Definitions::new(versions.clone());
        let sweep_entries = SweepEntries::new(due.clone(), clock.clone());
        let flow = Flow::new(FlowCounts(shards.clone()), metrics.clone());
        let retention =
            Retention { lines: options.history_lines, ms: options.history_hours.saturating_mul(3_600_000) };
        let label_store = Arc::new(LabelStore::new(
            records.clone(),
            definitions.clone(),
            Committer::new(bus.clone(), hooks.faults, retention),
            sweep_entries.clone(),
            clock.clone(),
            flow.clone(),
            options.labels,
        ));
        let secrets = Secrets::new(StoredSecrets(shards.clone()), keys, clock.clone());
        let actions = Arc::new(Actions::new(client.clone(), bus.clone(), routes, secrets.clone()));
        let statistics = Statistics::new(stats);
        let feeds = Arc::new(Feeds::new(client, statistics, Arc::clone(&actions), metrics.clone()));
        let permits = Permits(shards.clone());
        let limits =
            Limits::new(permits, due.clone(), definitions.clone(), Arc::clone(&label_store), clock.clone());
        let runner = Arc::new(Runner::new(
            Arc::clone(&label_store),
            actions,
            Arc::clone(&feeds),
            Arc::new(limits),
            metrics.clone(),
            hooks.outcome_pause,
            hooks.stopped,
        ));
        let labels = Labels::new(Arc::clone(&label_store), Arc::clone(&runner));
        Self {
            options,
            shards,
            clock,
            metrics,
            bus,
            records,
            due,
            versions,
            definitions,
            sweep_entries,
            label_store,
            labels,
            feeds,
            secrets,
            runner,
            flow,
            redefined: Arc::default(),
        }
    }

    pub(crate) fn handle(&self) -> Handle {
        Handle {
            labels: self.labels.clone(),
            label_store: Arc::clone(&self.label_store),
            definitions: self.definitions.clone(),
            applier: Arc::new(self.applier()),
            search: self.search(),
            tasks: Arc::new(self.tasks()),
            secrets: self.secrets.clone(),
            inspector: Arc::new(self.inspector()),
        }
    }

    fn search(&self) -> Search {
        Search {
            records: self.records.clone(),
            labels: Arc::clone(&self.label_store),
            definitions: self.definitions.clone(),
            clock: self.clock.clone(),
        }
    }

    fn tasks(&self) -> TaskRunner {
        TaskRunner {
            tasks: Tasks(self.shards.clone()),
            due: self.due.clone(),
            search: self.search(),
            labels: self.labels.clone(),
            store: Arc::clone(&self.label_store),
            records: self.records.clone(),
            versions: self.versions.clone(),
            secrets: self.secrets.clone(),
            definitions: self.definitions.clone(),
            clock: self.clock.clone(),
            concurrency: self.options.concurrency,
        }
    }

    fn applier(&self) -> Applier {
        Applier {
            versions: self.versions.clone(),
            definitions: self.definitions.clone(),
            records: self.records.clone(),
            labels: Arc::clone(&self.label_store),
            runner: Arc::clone(&self.runner),
            sweeps: self.sweep_entries.clone(),
            tasks: Tasks(self.shards.clone()),
            clock: self.clock.clone(),
            secrets: self.secrets.clone(),
            page: self.options.page,
            concurrency: self.options.concurrency,
            redefined: Arc::clone(&self.redefined),
            applying: Mutex::default(),
        }
    }

    fn inspector(&self) -> Inspector {
        Inspector {
            explainer: Explainer {
                labels: Arc::clone(&self.label_store),
                definitions: self.definitions.clone(),
                shards: self.shards.clone(),
                permits: Permits(self.shards.clone()),
                feeds: Arc::clone(&self.feeds),
                clock: self.clock.clone(),
            },
            flow: FlowReader {
                store: FlowCounts(self.shards.clone()),
                definitions: self.definitions.clone(),
                clock: self.clock.clone(),
            },
            overview: Overview {
                definitions: self.definitions.clone(),
                records: self.records.clone(),
                due: self.due.clone(),
                permits: Permits(self.shards.clone()),
                feeds: Arc::clone(&self.feeds),
                clock: self.clock.clone(),
                metrics: self.metrics.clone(),
            },
            planner: Planner { records: self.records.clone(), clock: self.clock.clone() },
            checker: Checker {
                records: self.records.clone(),
                definitions: self.definitions.clone(),
                clock: self.clock.clone(),
            },
        }
    }

    pub(crate) fn due_times(&self) -> DueTimes {
        let sweeps = Arc::new(Sweeps {
            labels: Arc::clone(&self.label_store),
            runner: Arc::clone(&self.runner),
            definitions: self.definitions.clone(),
            records: self.records.clone(),
            due: self.due.clone(),
            entries: self.sweep_entries.clone(),
            clock: self.clock.clone(),
            metrics: self.metrics.clone(),
            page: self.options.page,
            concurrency: self.options.concurrency,
        });
        DueTimes {
            due: self.due.clone(),
            labels: Arc::clone(&self.label_store),
            runner: Arc::clone(&self.runner),
            sweeps,
            tasks: Arc::new(self.tasks()),
            clock: self.clock.clone(),
            concurrency: self.options.concurrency,
        }
    }

    pub(crate) fn inputs(&self) -> Inputs {
        Inputs {
            labels: self.labels.clone(),
            store: Arc::clone(&self.label_store),
            definitions: self.definitions.clone(),
            taken: TakenEvents(self.shards.clone()),
            bus: self.bus.clone(),
            shards: self.shards.count(),
            redefined: Arc::clone(&self.redefined),
            metrics: self.metrics.clone(),
        }
    }

    pub(crate) fn reconciler(&self) -> SweepReconciler {
        SweepReconciler {
            definitions: self.definitions.clone(),
            records: self.records.clone(),
            due: self.due.clone(),
            clock: self.clock.clone(),
        }
    }
}
