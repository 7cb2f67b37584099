//! How the machines of a process are put together, and what is told of all of them.

use std::{collections::BTreeMap, sync::Arc};

use signalbox_machine::{Machine, State};
use signalbox_store::{Fabric, Stats};

use super::{
    Engine, Options,
    actions::Actions,
    clock::Clock,
    definitions::Definitions,
    engine::Inner,
    feeds::Feeds,
    metrics::{Metrics, Numbers},
    record::Status,
    store::{Statistics, Store},
};
use signalbox_bus as bus;
use signalbox_egress::Client;
use signalbox_routing::Registry;

/// What the machines work with.
#[derive(Debug)]
pub struct Around {
    pub fabric: Fabric,
    pub shards: usize,
    pub stats: Stats,
    pub bus: bus::Handle,
    pub client: Client,
    pub routes: Registry,
    /// Values of environment variables that definitions may name.
    pub environment: BTreeMap<String, String>,
}

impl Engine {
    /// The machines of this process, not running yet.
    pub fn new(around: Around, options: Options) -> Self {
        let store = Store::new(&around.fabric, around.shards);
        let clock = Clock::new(store.clone());
        Self::assemble(around, options, store, clock)
    }

    pub(super) fn assemble(around: Around, options: Options, store: Store, clock: Clock) -> Self {
        let metrics = Metrics::default();
        let Around { stats, bus, client, routes, environment, .. } = around;
        #[cfg(test)]
        let shutdown = store.fate.death.clone();
        let actions = Actions::new(client.clone(), bus.clone(), routes, environment);
        let feeds = Feeds::new(client, Statistics::new(stats), actions.clone(), metrics.clone());
        Self(Arc::new(Inner {
            definitions: Definitions::new(store.clone()),
            store,
            bus,
            clock,
            actions,
            feeds,
            options,
            metrics,
            tasks: tokio_util::task::TaskTracker::new(),
            #[cfg(not(test))]
            shutdown: tokio_util::sync::CancellationToken::new(),
            // Who dies does nothing more in the background.
            #[cfg(test)]
            shutdown,
            waves: std::sync::Mutex::default(),
            doubted: tokio::sync::Notify::new(),
            unreadable: std::sync::Mutex::default(),
            redefined: tokio::sync::Notify::new(),
            applying: tokio::sync::Mutex::default(),
        }))
    }

    /// The text for `/metrics`.
    pub async fn metrics_text(&self) -> Result<String, std::fmt::Error> {
        let numbers = self.numbers().await;
        let numbers = numbers
            .inspect_err(|error| tracing::debug!(%error, "the machines tell no numbers at the moment"));
        self.0.metrics.encode(numbers.ok().as_ref())
    }

    async fn numbers(&self) -> Result<Numbers, super::Error> {
        let mut numbers = Numbers::default();
        let indexed: Vec<&'static str> =
            Status::ALL.into_iter().filter(|status| status.has_index()).map(Status::as_str).collect();
        for machine in self.0.store.machines().await? {
            let Ok(version) = self.0.definitions.of(&machine, 0).await else { continue };
            let states: Vec<&str> = version.machine.states().iter().map(State::name).collect();
            let counts = self.0.store.count_states(&machine, &states).await?;
            let named =
                states.iter().zip(counts).map(|(state, count)| (machine.clone(), (*state).to_owned(), count));
            numbers.states.extend(named);
            let counts = self.0.store.count_statuses(&machine, &indexed).await?;
            for (status, count) in indexed.iter().zip(counts) {
                if *status == Status::Errored.as_str() {
                    numbers.stuck.push((machine.clone(), "errored", count));
                }
                numbers.statuses.push((machine.clone(), status, count));
            }
            let waiting = self.left_waiting(&version.machine).await?;
            numbers.stuck.push((machine.clone(), "no_trigger", waiting.values().sum()));
        }
        let now_ms = self.0.clock.now_ms().await?;
        for shard in 0..self.0.store.count() {
            let (count, oldest) = self.0.store.overdue(shard, now_ms).await?;
            numbers.overdue += count;
            let lag_ms = oldest.map_or(0, |oldest| now_ms.saturating_sub(oldest));
            numbers.lag_seconds = numbers.lag_seconds.max(lag_ms / 1000);
        }
        Ok(numbers)
    }

    /// Labels at gates of which no trigger can fire for them any more, by gate: those that look on entry only. Told by the
    /// definition and the lengths of indexes, without looking at any label.
    pub(super) async fn left_waiting(
        &self,
        machine: &Machine,
    ) -> Result<BTreeMap<String, u64>, super::Error> {
        let deaf = |state: &&State| state.gate().is_some_and(|gate| !gate.looks_again());
        let gates: Vec<&str> = machine.states().iter().filter(deaf).map(State::name).collect();
        let counts = self.0.store.count_at_rest(machine.name(), &gates).await?;
        let named = gates.iter().map(|gate| (*gate).to_owned()).zip(counts);
        Ok(named.filter(|(_, count)| *count > 0).collect())
    }
}
