//! Containers of Docker or Podman, by their labels.
//!
//! The engine's event stream announces changes; each one leads to a complete list. A SIGTERM that the engine sends, as for
//! `docker stop`, ends the instance before the container ends, so that requests in flight can finish.

mod engine;
mod labels;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use tokio::time::{self, Instant};

use crate::{
    Error,
    snapshot::{Entry, Snapshot, Source, key},
};
use engine::{Engine, Event, Events};

pub use labels::PREFIX as LABEL_PREFIX;

/// A container that received SIGTERM and still runs after this time has ignored it.
const ENDING: Duration = Duration::from_secs(20);
/// The pause before the event stream is opened again.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the end of a container is remembered, at least until the next reading.
const MEMORY: Duration = Duration::from_secs(3600);

/// The containers of one engine.
#[derive(Debug)]
pub struct Docker {
    engine: Engine,
    events: Option<Events>,
    /// Containers that received SIGTERM.
    ending: BTreeMap<String, Instant>,
    /// Containers that ended.
    ended: BTreeMap<String, Instant>,
}

impl Docker {
    /// The engine that listens at this Unix socket.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        let (ending, ended) = Default::default();
        Self { engine: Engine { socket: socket.into() }, events: None, ending, ended }
    }

    fn note(&mut self, event: Event) {
        let name = name(&event.container);
        match event.kind {
            engine::Kind::Ending => _ = self.ending.insert(name, Instant::now()),
            engine::Kind::Ended => {
                self.ending.remove(&name);
                self.ended.insert(name, Instant::now());
            }
            engine::Kind::Other => {}
        }
    }
}

/// The beginning of a container's ID, as the engine's commands show it.
fn name(id: &str) -> String {
    key(id.get(..12).unwrap_or(id))
}

impl Source for Docker {
    async fn read(&mut self) -> Result<Snapshot, Error> {
        // Opened before the list is read, so that no change between the two is missed.
        if self.events.is_none() {
            self.events = Some(self.engine.events().await?);
        }
        let containers = match self.engine.containers().await {
            Ok(containers) => containers,
            Err(error) => {
                self.events = None;
                return Err(error);
            }
        };
        self.ending.retain(|_, since| since.elapsed() < ENDING);
        self.ended.retain(|_, since| since.elapsed() < MEMORY);
        let mut snapshot = Snapshot::default();
        for container in containers {
            let name = name(&container.id);
            if self.ending.contains_key(&name) {
                continue;
            }
            self.ended.remove(&name);
            let entry = match labels::read(&container) {
                Ok(Some(instance)) => Entry::Instance(Box::new(instance)),
                Ok(None) => Entry::Pending,
                Err(why) => Entry::Unclear(format!("container {}: {why}", container.name())),
            };
            snapshot.add(&name, entry);
        }
        snapshot.ended = self.ending.keys().chain(self.ended.keys()).cloned().collect();
        Ok(snapshot)
    }

    async fn changed(&mut self) {
        loop {
            let Some(events) = &mut self.events else {
                time::sleep(PAUSE).await;
                return;
            };
            match events.next().await {
                Some(event) => {
                    self.note(event);
                    return;
                }
                // The next reading opens it again.
                None => self.events = None,
            }
        }
    }
}
