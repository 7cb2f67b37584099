//! Inputs: each event of an input's topic updates the label that it names, once.
//!
//! The log of every shard is read from a stored position; live events only trigger a read. The position is stored after
//! the updates of a page are committed. Every label stores, for each shard, the last event that it applied, in the same
//! commit as the update. So a page that is read twice updates labels once, and a late pacemaker applies no older event.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use signalbox_bus::{self as bus, Event, EventId};
use signalbox_machine::{
    definition::{EventPath, Input},
    merge,
};
use signalbox_store::Notice;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Error,
    definitions::Definitions,
    label_store::LabelStore,
    labels::{self, InputEvent, Labels},
    metrics::Metrics,
    store::TakenEvents,
};

/// Events that are read together.
const PAGE: u64 = 200;
/// The pause before another try when the fabric does not answer.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a missed live event may stay unnoticed, and how often the inputs of all machines are read.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Takes events as updates of labels.
#[derive(Debug, Clone)]
pub(crate) struct Inputs {
    pub(crate) labels: Labels,
    pub(crate) store: Arc<LabelStore>,
    pub(crate) definitions: Definitions,
    pub(crate) taken: TakenEvents,
    pub(crate) bus: bus::Handle,
    pub(crate) shards: usize,
    /// Notified when a definition was applied in this process.
    pub(crate) redefined: Arc<Notify>,
    pub(crate) metrics: Metrics,
}

impl Inputs {
    /// Runs until `shutdown`.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        loop {
            let taken = shutdown.run_until_cancelled(Box::pin(self.take_for_a_while())).await;
            match taken {
                None => return,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::debug!(%error, "events not taken yet");
                    if shutdown.run_until_cancelled(sleep(PAUSE)).await.is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// Takes events until a definition may have changed.
    async fn take_for_a_while(&self) -> Result<(), Error> {
        let inputs = self.inputs().await?;
        if inputs.is_empty() {
            // A machine with inputs is found when it is applied in this process, or at the next poll.
            let _ = timeout(POLL_INTERVAL, self.redefined.notified()).await;
            return Ok(());
        }
        let mut live = self.bus.live();
        for shard in 0..self.shards {
            if self.taken.up_to(shard).await?.is_none() {
                // Events from before the first input are not taken.
                let last = self.bus.last_id(shard).await.map_err(|_| Error::Away)?;
                self.taken.begin_at(shard, last.map_or(0, |id| id.0)).await?;
            }
        }
        loop {
            for shard in 0..self.shards {
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
                heard = timeout(POLL_INTERVAL, heard) => {
                    if heard.is_err() {
                        return Ok(());
                    }
                }
                () = self.redefined.notified() => return Ok(()),
            }
        }
    }

    /// The inputs of every machine: machine, number and input.
    async fn inputs(&self) -> Result<Vec<(String, u32, Input)>, Error> {
        let mut inputs = Vec::new();
        for machine in self.definitions.names().await? {
            match self.definitions.current(&machine).await {
                Ok(version) => inputs.extend(
                    (0..).zip(version.machine.inputs()).map(|(n, input)| (machine.clone(), n, input.clone())),
                ),
                Err(Error::NoSuchMachine | Error::Unreadable) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(inputs)
    }

    /// Takes the next page of events of a shard. Returns whether there were any.
    async fn take_page(&self, shard: usize, inputs: &[(String, u32, Input)]) -> Result<bool, Error> {
        let after = self.taken.up_to(shard).await?.unwrap_or(0);
        let mut window = self.bus.window(shard, EventId(after));
        let logged = window.next(PAGE).await.map_err(|_| Error::Away)?;
        let Some(last) = logged.last().map(|logged| logged.id) else { return Ok(false) };
        for logged in &logged {
            let Ok(event) = Event::from_log(&logged.entry) else { continue };
            for (machine, number, input) in inputs.iter().filter(|(_, _, input)| *input.topic == *event.topic)
            {
                self.take(machine, *number, input, &event).await?;
            }
        }
        self.taken.set(shard, last.0).await?;
        Ok(true)
    }

    async fn take(&self, machine: &str, number: u32, input: &Input, event: &Event) -> Result<(), Error> {
        let data: Value =
            event.data.as_ref().and_then(|data| serde_json::from_str(data.get()).ok()).unwrap_or(Value::Null);
        let named = match &input.label {
            EventPath::Object => Value::from(event.object.as_str()),
            EventPath::Url => Value::from(event.url.as_str()),
            EventPath::Environment => Value::from(event.environment.as_str()),
            EventPath::Data(path) => path.of(&data).clone(),
        };
        let label = match named {
            Value::String(name) => name,
            Value::Number(number) if number.is_i64() || number.is_u64() => number.to_string(),
            _ => {
                self.metrics.took("unnamed");
                return Ok(());
            }
        };
        if !labels::is_label_name(&label) {
            self.metrics.took("unnamed");
            return Ok(());
        }
        let metadata = input.into.as_ref().map(|path| merge::at_path(path, data));
        let event = InputEvent {
            topic: &input.topic,
            id: event.id.0,
            input: number,
            metadata: metadata.as_ref(),
            create: input.create,
        };
        match self.labels.take(machine, &label, event).await {
            Ok(()) => self.metrics.took("taken"),
            Err(Error::NoSuchLabel | Error::Gone | Error::Deleted) => self.metrics.took("no_label"),
            Err(Error::BadMetadata(why)) => {
                tracing::warn!(machine, %why, "metadata of an event rejected");
                self.metrics.took("too_much");
            }
            Err(Error::TooManyLabels(_)) => self.metrics.took("label_limit"),
            Err(Error::NoSuchMachine) => {}
            // One unreadable label does not keep the others from being updated.
            Err(Error::Unreadable) => {
                self.store.report_unreadable(machine, &label);
                self.metrics.took("unreadable");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
