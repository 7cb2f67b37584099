//! Restores sweeps that the fabric has lost.
//!
//! When a label enters a gate, the process adds the gate's sweeps to the due set once, and from then on remembers that
//! they exist. If Redis loses the writes of its last second, it can lose the sweeps together with the label's
//! transition, and the process would not add them again. So the process forgets what it remembers whenever the
//! connection was lost. It also checks every minute that all necessary sweeps exist.

use std::time::Duration;

use jiff::tz;
use signalbox_machine::definition::{Zone, ZoneRule};

use crate::{
    Error, Version,
    clock::Clock,
    definitions::Definitions,
    evaluator::{ms, sweep_entry},
    store::{DueSet, Records, due_index},
};

/// How often sweeps are checked.
pub(crate) const INTERVAL: Duration = Duration::from_secs(60);
/// A lost time of day that passed this long ago is restored too, because no check has seen it in the meantime.
const LOOK_BACK: Duration = Duration::from_secs(75);

/// Restores lost sweeps.
#[derive(Debug, Clone)]
pub(crate) struct SweepReconciler {
    pub(crate) definitions: Definitions,
    pub(crate) records: Records,
    pub(crate) due: DueSet,
    pub(crate) clock: Clock,
}

impl SweepReconciler {
    /// Adds every sweep that must exist and does not. Returns how many were added.
    pub(crate) async fn restore(&self) -> Result<usize, Error> {
        let under_way = self.definitions.applying().await?;
        let mut restored = 0;
        for machine in self.definitions.names().await? {
            // The pacemaker that applies a definition adds its sweeps itself.
            if under_way.iter().any(|one| one.machine == machine) {
                continue;
            }
            for shard in 0..self.due.shards() {
                match self.definitions.family(&machine, shard).await {
                    Ok(family) => {
                        for version in family.all() {
                            restored += self.restore_in(shard, version).await?;
                        }
                    }
                    Err(Error::NoSuchMachine | Error::NoSuchVersion | Error::Unreadable) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        if restored > 0 {
            tracing::warn!(restored, "lost sweeps restored");
        }
        Ok(restored)
    }

    async fn restore_in(&self, shard: usize, version: &Version) -> Result<usize, Error> {
        let since_ms = self.clock.now_ms().await?.saturating_sub(ms(LOOK_BACK));
        let machine = &version.machine;
        let mut entries = Vec::new();
        for (state, gate) in machine.states().iter().filter_map(|state| Some((state.name(), state.gate()?))) {
            let by_label = gate.daily().any(|(_, daily)| matches!(daily.zone, ZoneRule::Metadata { .. }));
            let own = if by_label { self.own_zones(shard, machine.name(), state).await? } else { Vec::new() };
            for (_, daily) in gate.daily() {
                let (machine, all) = (machine.name(), daily.zone.default());
                entries.extend(sweep_entry(machine, state, daily, all, false, since_ms));
                if matches!(daily.zone, ZoneRule::Metadata { .. }) {
                    let entry = |zone| sweep_entry(machine, state, daily, zone, true, since_ms);
                    entries.extend(own.iter().filter_map(entry));
                }
            }
        }
        let index = due_index(machine.name());
        let places: Vec<(&str, &str)> = entries.iter().map(|(member, _)| (&*index, &**member)).collect();
        let scores = self.records.scores(shard, &places).await?;
        let missing: Vec<_> =
            entries.iter().zip(scores).filter(|(_, score)| score.is_none()).map(|(entry, _)| entry).collect();
        for (member, at_ms) in &missing {
            self.due.ensure(shard, member, *at_ms).await?;
        }
        Ok(missing.len())
    }

    /// The zones that labels at a gate name in their own metadata.
    async fn own_zones(&self, shard: usize, machine: &str, gate: &str) -> Result<Vec<Zone>, Error> {
        let names: Vec<String> = tz::db().available().map(|name| name.as_str().to_owned()).collect();
        let present = self.records.zones_present(shard, machine, gate, &names).await?;
        let names = names.iter().zip(present).filter(|(_, present)| *present);
        Ok(names.filter_map(|(name, _)| Zone::named(name)).collect())
    }
}
