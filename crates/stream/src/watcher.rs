//! One watcher: from a position on, first the events of the log, then live ones.

use std::{fmt, sync::Arc, time::Duration};

use tokio::{
    sync::{broadcast::error::RecvError, mpsc},
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    Message,
    entry::Entry,
    filter::Filter,
    hub::{Heard, Hub, StreamSlot},
    position::Position,
};
use signalbox_bus::{self as bus, EventId};

/// Messages queued for a client, in addition to the buffers of the kernel and nginx.
pub(super) const QUEUE: usize = 64;
/// How long a client may leave its queue full.
const STALLED: Duration = Duration::from_secs(10);
/// Between two signs of life, each with the position, on a stream where nothing matches.
const QUIET: Duration = Duration::from_secs(15);
/// Events read from the log in one call.
const PART: u64 = 500;
/// Between two attempts to read the log.
const PAUSE: Duration = Duration::from_millis(500);

/// Why a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The client hung up.
    Left,
    /// It does not read the messages.
    Slow,
    /// The pacemaker ends.
    Shutdown,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl End {
    fn reason(self) -> &'static str {
        match self {
            Self::Left => "client_left",
            Self::Slow => "slow_reader",
            Self::Shutdown => "shutdown",
        }
    }
}

pub(super) struct Watcher {
    pub(super) hub: Hub,
    pub(super) slot: StreamSlot,
    pub(super) filter: Filter,
    pub(super) position: Position,
    pub(super) messages: mpsc::Sender<Message>,
    /// When something was sent last. Events that do not match are no sign of life.
    pub(super) said: Instant,
}

impl Watcher {
    /// Sends until the client leaves, is too slow, or `shutdown`.
    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        // One place of the queue is kept for the reason of the end: a queue that is full has no other.
        let last_place = self.messages.clone().try_reserve_owned();
        let messages = self.messages.clone();
        let end = tokio::select! {
            end = self.watch() => end,
            // Nothing else notices it while no event matches.
            () = messages.closed() => End::Left,
            () = shutdown.cancelled() => End::Shutdown,
        };
        if end != End::Left {
            self.hub.metrics.ended(end.reason());
            let last_words =
                Message { kind: Some("end"), data: Some(format!(r#"{{"reason":"{end}"}}"#)), id: None };
            if let Ok(place) = last_place {
                place.send(last_words);
            }
        }
        tracing::debug!(%end, "a stream of events ended");
        drop(self.slot);
    }

    async fn watch(&mut self) -> End {
        loop {
            // Listening starts before the log is read, so nothing can fall between the two.
            let mut heard = self.hub.listen();
            if let Err(end) = self.catch_up().await {
                return end;
            }
            loop {
                let passed_on = match timeout_at(self.said + QUIET, heard.recv()).await {
                    Ok(Ok(Heard::Event(entry))) => self.pass_on(&entry).await,
                    Ok(Ok(Heard::ReadTheLog)) => break,
                    // Thousands of events behind: only a client that does not take them keeps this loop from them.
                    Ok(Err(RecvError::Lagged(_))) => Err(End::Slow),
                    Ok(Err(RecvError::Closed)) => Err(End::Shutdown),
                    Err(_) => {
                        self.say(Message { id: Some(self.position.to_string()), ..Message::default() }).await
                    }
                };
                if let Err(end) = passed_on {
                    return end;
                }
            }
        }
    }

    /// Reads what the log holds after the position, shard by shard.
    async fn catch_up(&mut self) -> Result<(), End> {
        for shard in 0..self.hub.bus.shards() {
            let mut window = self.hub.bus.window(shard, self.position.of(shard));
            loop {
                if self.said.elapsed() >= QUIET {
                    self.say(Message { id: Some(self.position.to_string()), ..Message::default() }).await?;
                }
                let reading = self.hub.reads.acquire().await;
                let part = window.next(PART).await;
                drop(reading);
                let part = match part {
                    Ok(part) if part.is_empty() => break,
                    Ok(part) => part,
                    Err(error) => {
                        self.wait(&error).await?;
                        window = self.hub.bus.window(shard, self.position.of(shard));
                        continue;
                    }
                };
                for event in part {
                    let Some(entry) = String::from_utf8(event.entry).ok().and_then(Entry::read) else {
                        continue;
                    };
                    let entry = Arc::new(entry);
                    self.pass_on(&entry).await?;
                }
            }
        }
        Ok(())
    }

    /// The fabric is unavailable: the stream stays open, and continues when it is available again.
    async fn wait(&self, error: &bus::Error) -> Result<(), End> {
        tracing::debug!(%error, "the log cannot be read for a stream, reading again");
        tokio::select! {
            () = sleep(PAUSE) => Ok(()),
            () = self.messages.closed() => Err(End::Left),
        }
    }

    /// Sends an event if it matches and was not sent before, and reports when some before it are missing.
    async fn pass_on(&mut self, entry: &Arc<Entry>) -> Result<(), End> {
        let shard = entry.shard();
        let stood = self.position.of(shard);
        if entry.id <= stood {
            return Ok(());
        }
        if entry.last > stood {
            self.gap(stood, entry.last).await?;
        }
        self.position.set(shard, entry.id);
        if entry.head().is_some_and(|head| self.filter.takes(&head)) {
            let (id, data) = (Some(self.position.to_string()), Some(entry.for_client()));
            let message = Message { id, kind: None, data };
            self.say(message).await?;
            self.hub.metrics.sent.inc();
        }
        Ok(())
    }

    async fn gap(&mut self, after: EventId, last: EventId) -> Result<(), End> {
        let data = format!(r#"{{"after":{after},"last":{last},"reason":"no_longer_kept"}}"#);
        self.say(Message { kind: Some("gap"), data: Some(data), id: None }).await
    }

    async fn say(&mut self, message: Message) -> Result<(), End> {
        self.said = Instant::now();
        match timeout(STALLED, self.messages.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Left),
            Err(_) => Err(End::Slow),
        }
    }
}
