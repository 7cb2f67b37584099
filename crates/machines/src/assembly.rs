//! Puts the parts of the crate together. Each part gets only what it needs.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use signalbox_access::Rates;
use signalbox_bus as bus;
use signalbox_egress::Client;
use signalbox_routing::Registry;
use signalbox_seal::Keys;
use signalbox_store::{Fabric, Stats};
use tokio::sync::{Notify, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    AuditLog, Options, Secrets, Service,
    actions::Actions,
    apply::{Applier, UnderWay},
    background::Background,
    clock::Clock,
    commit::Committer,
    definitions::Definitions,
    due_times::DueTimes,
    effort,
    fair::FairPlaces,
    faults::Faults,
    feeds::Feeds,
    flow::{Flow, FlowReader},
    handle::Handle,
    inputs::{self, Inputs},
    inspector::{Checker, EXPLANATIONS, Explainer, Inspector, Overview, Planner},
    label_store::LabelStore,
    labels::Labels,
    limits::Limits,
    log::Retention,
    metrics::Metrics,
    places::{self, Waiting},
    population::Population,
    reconcile::SweepReconciler,
    recount::{self, Recounter},
    runner::{self, Runner},
    search::Search,
    store::{
        DueSet, FlowCounts, InputPositions, LabelBytes, Permits, Records, Shards, Statistics, StoredSecrets,
        Tasks, Versions,
    },
    sweep_entries::SweepEntries,
    sweeps::{self, Sweeps},
    tasks::{self, TaskRunner},
    turns::Turns,
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
    /// The log of what machines change.
    pub audit: AuditLog,
    /// How many events each client may publish per second. Those of a machine count for its author.
    pub publish_rates: Arc<Rates>,
    /// The clock of `publish_rates`.
    pub wall_clock: fn() -> SystemTime,
}

/// The differences between a pacemaker and a test. The default is a pacemaker.
#[derive(Debug)]
pub(crate) struct Hooks {
    pub(crate) clock: signalbox_store::Clock,
    pub(crate) faults: Faults,
    /// The pause before an outcome of an action that could not be written is written again.
    pub(crate) outcome_pause: Duration,
    /// See [`places::PATIENCE`].
    pub(crate) patience: Duration,
    /// Canceled when background work must end.
    pub(crate) stopped: CancellationToken,
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            clock: signalbox_store::Clock::Server,
            faults: Faults::default(),
            outcome_pause: runner::OUTCOME_PAUSE,
            patience: places::PATIENCE,
            stopped: CancellationToken::new(),
        }
    }
}

impl Service {
    /// Builds the machines of this process with other hooks than a pacemaker's. This is the only function that knows what
    /// each part gets, and it lists the parts in the order of their dependencies.
    pub(crate) fn with_hooks(dependencies: Dependencies, options: Options, hooks: Hooks) -> Self {
        let Dependencies {
            fabric,
            shards,
            stats,
            bus,
            client,
            routes,
            keys,
            audit,
            publish_rates,
            wall_clock,
        } = dependencies;
        let Options { page, concurrency, .. } = options;
        let redefined: Arc<Notify> = Arc::default();
        let shards = Shards::new(&fabric, shards, hooks.faults.clone());
        let clock = Clock::new(hooks.clock, shards.clone());
        let metrics = Metrics::default();
        let (records, due) = (Records::new(shards.clone()), DueSet(shards.clone()));
        let (versions, permits) = (Versions(shards.clone()), Permits(shards.clone()));
        let definitions = Definitions::new(versions.clone());
        let secrets = Secrets::new(StoredSecrets(shards.clone()), keys, clock.clone());
        let sweep_entries = SweepEntries::new(due.clone(), clock.clone());
        let flow = Flow::new(FlowCounts(shards.clone()), metrics.clone());

        let retention =
            Retention { lines: options.history_lines, ms: options.history_hours.saturating_mul(3_600_000) };
        let computing = effort::places();
        let label_store = Arc::new(LabelStore {
            records: records.clone(),
            definitions: definitions.clone(),
            committer: Committer { bus: bus.clone(), faults: hooks.faults, retention },
            sweeps: sweep_entries.clone(),
            computing: computing.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            flow: flow.clone(),
            logged: Mutex::default(),
            population: Population::new(records.clone(), definitions.clone(), options.labels),
        });
        let actions = Arc::new(Actions {
            client: client.clone(),
            bus: bus.clone(),
            routes,
            secrets: secrets.clone(),
            audit,
            publish_rates,
            wall_clock,
        });
        let feeds = Arc::new(Feeds {
            client,
            statistics: Statistics(stats),
            actions: Arc::clone(&actions),
            metrics: metrics.clone(),
            cache: Mutex::default(),
            inspections: Mutex::default(),
            memory: Mutex::default(),
        });
        let limits = Arc::new(Limits {
            permits: permits.clone(),
            due: due.clone(),
            definitions: definitions.clone(),
            labels: Arc::clone(&label_store),
            clock: clock.clone(),
            turns: Mutex::default(),
        });
        let runner = Arc::new(Runner {
            labels: Arc::clone(&label_store),
            actions,
            feeds: Arc::clone(&feeds),
            limits,
            metrics: metrics.clone(),
            outcome_pause: hooks.outcome_pause,
            waiting: Waiting::new(hooks.patience),
            tasks: TaskTracker::new(),
            stopped: hooks.stopped,
        });

        let labels = Labels::new(Arc::clone(&label_store), Arc::clone(&runner));
        let search = Search {
            records: records.clone(),
            labels: Arc::clone(&label_store),
            definitions: definitions.clone(),
            clock: clock.clone(),
        };
        let stored_tasks = Tasks::new(shards.clone(), tasks::KEPT_MS);
        let tasks = Arc::new(TaskRunner {
            tasks: stored_tasks.clone(),
            due: due.clone(),
            search: search.clone(),
            labels: labels.clone(),
            store: Arc::clone(&label_store),
            records: records.clone(),
            versions: versions.clone(),
            secrets: secrets.clone(),
            definitions: definitions.clone(),
            clock: clock.clone(),
            concurrency,
        });
        let pages = FairPlaces::new(sweeps::PLACES);
        let applier = Arc::new(Applier {
            versions,
            definitions: definitions.clone(),
            records: records.clone(),
            labels: Arc::clone(&label_store),
            runner: Arc::clone(&runner),
            sweeps: sweep_entries.clone(),
            tasks: stored_tasks,
            clock: clock.clone(),
            secrets: secrets.clone(),
            page,
            concurrency,
            redefined: Arc::clone(&redefined),
            applying: UnderWay::default(),
            pages: pages.clone(),
        });
        let inspector = Arc::new(Inspector {
            explainer: Explainer {
                labels: Arc::clone(&label_store),
                definitions: definitions.clone(),
                shards: shards.clone(),
                permits: permits.clone(),
                feeds: Arc::clone(&feeds),
                clock: clock.clone(),
                explaining: Arc::new(Semaphore::new(EXPLANATIONS)),
            },
            flow: FlowReader {
                store: FlowCounts(shards.clone()),
                definitions: definitions.clone(),
                clock: clock.clone(),
            },
            overview: Overview {
                definitions: definitions.clone(),
                records: records.clone(),
                due: due.clone(),
                permits,
                feeds,
                clock: clock.clone(),
                metrics: metrics.clone(),
            },
            planner: Planner { records: records.clone(), clock: clock.clone() },
            checker: Checker {
                records: records.clone(),
                definitions: definitions.clone(),
                clock: clock.clone(),
            },
        });

        let sweeps = Arc::new(Sweeps {
            labels: Arc::clone(&label_store),
            runner: Arc::clone(&runner),
            definitions: definitions.clone(),
            records: records.clone(),
            due: due.clone(),
            entries: sweep_entries,
            clock: clock.clone(),
            metrics: metrics.clone(),
            places: FairPlaces::new(sweeps::PLACES),
            computing,
            page,
            concurrency,
        });
        Self {
            runner: Arc::clone(&runner),
            due_times: Arc::new(DueTimes {
                due: due.clone(),
                definitions: definitions.clone(),
                labels: Arc::clone(&label_store),
                background: Arc::new(Background {
                    due: due.clone(),
                    clock: clock.clone(),
                    runner: Arc::clone(&runner),
                    ended: (0..shards.count()).map(|_| Arc::default()).collect(),
                    in_progress: Mutex::default(),
                }),
                runner,
                sweeps,
                tasks: Arc::clone(&tasks),
                task_places: pages,
                turns: Turns::default(),
                clock: clock.clone(),
                concurrency,
            }),
            inputs: Inputs {
                labels: labels.clone(),
                store: Arc::clone(&label_store),
                definitions: definitions.clone(),
                positions: InputPositions(shards.clone()),
                bus,
                shards: shards.count(),
                again: redefined,
                places: FairPlaces::new(inputs::PLACES),
                behind: Arc::default(),
                metrics,
                reported: Arc::default(),
                pause: inputs::PAUSE,
            },
            reconciler: SweepReconciler {
                definitions: definitions.clone(),
                records: records.clone(),
                due: due.clone(),
                clock,
            },
            recounter: Recounter {
                definitions: definitions.clone(),
                records,
                bytes: LabelBytes(shards),
                page: recount::PAGE,
            },
            due,
            flow,
            serve: options.serve,
            folder: options.folder,
            handle: Handle { labels, label_store, definitions, applier, search, tasks, secrets, inspector },
        }
    }
}
