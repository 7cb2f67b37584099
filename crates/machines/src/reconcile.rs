//! What was lost is put back: times of day that no entry of the due set stands for any more.
//!
//! A label that comes to a gate sees to it that the gate's waves are in the due set, once: from then on this process takes
//! them for certain. A Redis that lost its last second has lost them together with that label's move; the next label to come
//! would find the process sure of what is not there. So what is taken for certain is doubted whenever the connection was
//! gone, and every minute what must be there is looked for itself.

use std::time::Duration;

use jiff::tz;
use signalbox_machine::definition::{Zone, ZoneRule};

use super::{
    Error,
    definitions::Version,
    engine::Engine,
    judge::{ms, wave},
};

/// How often it is looked.
pub(super) const EVERY: Duration = Duration::from_secs(60);
/// A time of day that has passed meanwhile is made up for: whoever found nothing in the due set had no look then.
const BACK: Duration = Duration::from_secs(75);

impl Engine {
    /// Takes nothing for certain any more that only this process remembers.
    pub(super) fn doubt(&self) {
        self.0.waves.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
        self.0.definitions.forget_all();
    }

    /// Puts back every wave that must be there and is not; how many.
    pub(super) async fn put_back_waves(&self) -> Result<usize, Error> {
        let under_way = self.0.store.applying().await?;
        let mut put_back = 0;
        for machine in self.0.store.machines().await? {
            // Whoever applies a definition brings its times himself, and only then they count.
            if under_way.iter().any(|one| one.machine == machine) {
                continue;
            }
            for shard in 0..self.0.store.count() {
                match self.0.definitions.of(&machine, shard).await {
                    Ok(version) => put_back += self.put_back(shard, &version).await?,
                    Err(Error::NoSuchMachine | Error::NoSuchVersion | Error::Unreadable) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        if put_back > 0 {
            tracing::warn!(put_back, "times of day at gates had been lost, and were put back");
        }
        Ok(put_back)
    }

    async fn put_back(&self, shard: usize, version: &Version) -> Result<usize, Error> {
        let since_ms = self.0.clock.now_ms().await?.saturating_sub(ms(BACK));
        let machine = &version.machine;
        let mut waves = Vec::new();
        for (state, gate) in machine.states().iter().filter_map(|state| Some((state.name(), state.gate()?))) {
            let by_label = gate.daily().any(|(_, daily)| matches!(daily.zone, ZoneRule::Metadata { .. }));
            let own = if by_label { self.own_zones(shard, machine.name(), state).await? } else { Vec::new() };
            for (_, daily) in gate.daily() {
                let (machine, all) = (machine.name(), daily.zone.default());
                waves.extend(wave(machine, state, daily, all, false, since_ms));
                if matches!(daily.zone, ZoneRule::Metadata { .. }) {
                    waves.extend(
                        own.iter().filter_map(|zone| wave(machine, state, daily, zone, true, since_ms)),
                    );
                }
            }
        }
        let places: Vec<(&str, &str)> = waves.iter().map(|(member, _)| ("due", &**member)).collect();
        let scores = self.0.store.scores(shard, &places).await?;
        let missing: Vec<_> =
            waves.iter().zip(scores).filter(|(_, score)| score.is_none()).map(|(wave, _)| wave).collect();
        for (member, at_ms) in &missing {
            self.0.store.ensure_due(shard, member, *at_ms).await?;
        }
        Ok(missing.len())
    }

    /// The zones that labels at a gate have for themselves.
    async fn own_zones(&self, shard: usize, machine: &str, gate: &str) -> Result<Vec<Zone>, Error> {
        let names: Vec<String> = tz::db().available().map(|name| name.as_str().to_owned()).collect();
        let there = self.0.store.zones_there(shard, machine, gate, &names).await?;
        let names = names.iter().zip(there).filter(|(_, there)| *there);
        Ok(names.filter_map(|(name, _)| Zone::named(name)).collect())
    }
}
