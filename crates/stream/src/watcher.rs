//! One watcher: from a position on, first the events of the log, then live ones.

use std::{sync::Arc, time::Duration};

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
/// How long a client's queue may stay full.
const STALLED: Duration = Duration::from_secs(10);
/// The interval of keep-alive messages, each with the position, on a stream on which no event matches.
const QUIET: Duration = Duration::from_secs(15);
/// Maximum number of events that one call reads from the log.
const PART: u64 = 500;
/// The pause between two attempts to read the log.
const PAUSE: Duration = Duration::from_millis(500);

/// Why a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The client disconnected.
    Left,
    /// The client does not read the messages.
    Slow,
    /// The pacemaker shuts down.
    Shutdown,
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
    /// When the last message was sent, so that a stream on which no event matches is kept alive.
    pub(super) last_sent: Instant,
}

impl Watcher {
    /// Sends until the client leaves, is too slow, or `shutdown`.
    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        // One place in the queue is reserved for the reason of the end, so that it can be sent even if the
        // queue is full.
        let last_place = self.messages.clone().try_reserve_owned();
        let messages = self.messages.clone();
        let end = tokio::select! {
            end = self.watch() => end,
            // While no event matches, only this detects a client that disconnected.
            () = messages.closed() => End::Left,
            () = shutdown.cancelled() => End::Shutdown,
        };
        let reason = end.reason();
        if end != End::Left {
            self.hub.metrics.ended(reason);
            let last_words =
                Message { kind: Some("end"), data: Some(format!(r#"{{"reason":"{reason}"}}"#)), id: None };
            if let Ok(place) = last_place {
                place.send(last_words);
            }
        }
        tracing::debug!(reason, "a stream of events ended");
        drop(self.slot);
    }

    async fn watch(&mut self) -> End {
        loop {
            // The subscription begins before the log is read, so no event can be missed in between.
            let mut heard = self.hub.listen();
            if let Err(end) = self.catch_up().await {
                return end;
            }
            loop {
                let passed_on = match timeout_at(self.last_sent + QUIET, heard.recv()).await {
                    Ok(Ok(Heard::Event(entry))) => self.pass_on(&entry).await,
                    Ok(Ok(Heard::ReadTheLog)) => break,
                    // The stream is thousands of events behind, which happens only if the client does not
                    // read its messages.
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

    /// Sends the events in the log after the position, shard by shard.
    async fn catch_up(&mut self) -> Result<(), End> {
        for shard in 0..self.hub.bus.shards() {
            let mut window = self.hub.bus.window(shard, self.position.of(shard));
            loop {
                if self.last_sent.elapsed() >= QUIET {
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

    /// Waits while the fabric is unavailable. The stream stays open, and continues when the fabric is
    /// available again.
    async fn wait(&self, error: &bus::Error) -> Result<(), End> {
        tracing::debug!(%error, "the log cannot be read for a stream, reading again");
        tokio::select! {
            () = sleep(PAUSE) => Ok(()),
            () = self.messages.closed() => Err(End::Left),
        }
    }

    /// Sends an event if it matches and was not sent before, and detects missing events before it.
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
            let (id, data) =
                (Some(self.position.to_string()), Some(entry.for_client(self.filter.is_divided())));
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
        self.last_sent = Instant::now();
        match timeout(STALLED, self.messages.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Left),
            Err(_) => Err(End::Slow),
        }
    }
}
