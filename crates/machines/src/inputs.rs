//! Events of the bus as facts: each event of an input's topic is taken once for the label that it names.
//!
//! The log of every shard is read on from a noted place; live events only say when to look. The place is noted after the
//! facts of a page are committed. Every label remembers, of each shard, the last event that it took, in the very commit of
//! the facts: a page that is read twice is taken once, and whoever is late brings nothing that is older than what is there.

use std::time::Duration;

use serde_json::Value;
use signalbox_machine::{
    definition::{EventPath, Input},
    merge,
};
use signalbox_store::Notice;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    Error,
    engine::Engine,
    labels::{Brought, Update},
};
use signalbox_bus::{Event, EventId};

/// Events read together.
const PAGE: u64 = 200;
/// Between two looks while the fabric does not answer.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a message that was missed may go unnoticed, and how often machines are looked through for inputs.
const QUIET: Duration = Duration::from_secs(30);

impl Engine {
    pub(super) async fn take_inputs(self, shutdown: CancellationToken) {
        loop {
            let looked = shutdown.run_until_cancelled(Box::pin(self.take_for_a_while())).await;
            match looked {
                None => return,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::debug!(%error, "events are taken as facts later");
                    if shutdown.run_until_cancelled(sleep(PAUSE)).await.is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// Takes events as long as the machines stay what they are.
    async fn take_for_a_while(&self) -> Result<(), Error> {
        let inputs = self.inputs().await?;
        if inputs.is_empty() {
            // A machine with inputs is seen when it is applied here, or after a while.
            let _ = timeout(QUIET, self.0.redefined.notified()).await;
            return Ok(());
        }
        let mut live = self.0.bus.live();
        for shard in 0..self.0.store.count() {
            if self.0.store.taken_up_to(shard).await?.is_none() {
                // What was before the first input is no fact.
                let last = self.0.bus.last_id(shard).await.map_err(|_| Error::Away)?;
                self.0.store.take_from(shard, last.map_or(0, |id| id.0)).await?;
            }
        }
        loop {
            for shard in 0..self.0.store.count() {
                while self.take_page(shard, &inputs).await? {}
            }
            let topics: Vec<String> =
                inputs.iter().map(|(_, _, input)| format!(":{}", input.topic)).collect();
            let heard = async {
                loop {
                    match live.next().await {
                        Notice::Resumed => return,
                        Notice::Message { channel, .. }
                            if topics.iter().any(|topic| channel.ends_with(topic)) =>
                        {
                            return;
                        }
                        Notice::Message { .. } => {}
                    }
                }
            };
            tokio::select! {
                heard = timeout(QUIET, heard) => {
                    if heard.is_err() {
                        return Ok(());
                    }
                }
                () = self.0.redefined.notified() => return Ok(()),
            }
        }
    }

    /// Every machine's inputs, each with its number.
    async fn inputs(&self) -> Result<Vec<(String, u32, Input)>, Error> {
        let mut inputs = Vec::new();
        for machine in self.0.store.machines().await? {
            match self.0.definitions.current(&machine).await {
                Ok(version) => inputs.extend(
                    (0..).zip(version.machine.inputs()).map(|(n, input)| (machine.clone(), n, input.clone())),
                ),
                Err(Error::NoSuchMachine | Error::Unreadable) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(inputs)
    }

    /// Takes the next events of a shard; whether there were any.
    async fn take_page(&self, shard: usize, inputs: &[(String, u32, Input)]) -> Result<bool, Error> {
        let after = self.0.store.taken_up_to(shard).await?.unwrap_or(0);
        let mut window = self.0.bus.window(shard, EventId(after));
        let logged = window.next(PAGE).await.map_err(|_| Error::Away)?;
        let Some(last) = logged.last().map(|logged| logged.id) else { return Ok(false) };
        for logged in &logged {
            let Ok(event) = Event::from_log(&logged.entry) else { continue };
            for (machine, number, input) in inputs.iter().filter(|(_, _, input)| *input.topic == *event.topic)
            {
                self.take(machine, *number, input, &event).await?;
            }
        }
        self.0.store.take_up_to(shard, last.0).await?;
        Ok(true)
    }

    async fn take(&self, machine: &str, number: u32, input: &Input, event: &Event) -> Result<(), Error> {
        let data: Value =
            event.data.as_ref().and_then(|data| serde_json::from_str(data.get()).ok()).unwrap_or(Value::Null);
        let named = match &input.label {
            EventPath::Object => Value::from(event.object.as_str()),
            EventPath::Url => Value::from(event.url.as_str()),
            EventPath::Environment => Value::from(event.environment.as_str()),
            EventPath::Data(keys) => signalbox_machine::definition::Path::new(keys.clone()).of(&data).clone(),
        };
        let label = match named {
            Value::String(name) => name,
            Value::Number(number) if number.is_i64() || number.is_u64() => number.to_string(),
            _ => {
                self.0.metrics.took("unnamed");
                return Ok(());
            }
        };
        if super::labels::check_name(&label).is_err() {
            self.0.metrics.took("unnamed");
            return Ok(());
        }
        let update = input.into.as_ref().map(|path| merge::at_path(path, data));
        let update = Update {
            metadata: update.as_ref(),
            patch: false,
            event: Some(Brought { topic: &input.topic, id: event.id.0, input: number }),
            create: input.create,
            key: None,
        };
        match self.update(machine, &label, &update).await {
            Ok(_) => self.0.metrics.took("taken"),
            Err(Error::NoSuchLabel | Error::Gone | Error::Deleted) => self.0.metrics.took("no_label"),
            Err(Error::BadMetadata(why)) => {
                tracing::warn!(machine, why, "an event's facts are left out");
                self.0.metrics.took("too_much");
            }
            Err(Error::NoSuchMachine) => {}
            // One label that cannot be told keeps nothing from the others.
            Err(Error::Unreadable) => {
                self.pass_over(machine, &label);
                self.0.metrics.took("unreadable");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
