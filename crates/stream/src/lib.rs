//! Live streams: events as they are accepted, over server-sent events.
//!
//! ```text
//!  publish.lua ─ PUBLISH tenant:type:topic ─▶ hub ─ one broadcast ─▶ watcher ─ filter ─▶ client
//!       └─ log ◀──────────── window: what a watcher has missed ─────────────┘
//! ```
//!
//! **Position.** A watcher's position is one event ID for each shard. It is the ID of every message that the client
//! receives. A client that reconnects with it (`Last-Event-ID`) continues from there, as far as the log still holds it.
//!
//! **No silent loss.** Each event carries the ID of its shard's previous event. Pub/sub drops messages that no listener
//! receives, and a busy server drops slow listeners. The hub detects missing events and notifies all watchers, which
//! then read the log from their positions. Events that the log no longer holds are reported as a `gap`.
//!
//! **Bounded memory.** The hub keeps the last [`hub::KEPT`] events for all watchers together. A client that does not
//! read its messages is disconnected, with the reason, and can reconnect with its position. The hub listens only while
//! a stream is open.
//!
//! **Failure.** Without the fabric an open stream stays silent, and continues when the fabric is available again. New
//! streams get 503.

mod entry;
mod filter;
mod hub;
mod metrics;
mod position;
mod watcher;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use filter::{Error as FilterError, Filter};
pub use hub::{Hub, StreamLimit, StreamSlot};
pub use position::Position;

/// A message to a client, with the fields of server-sent events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// The position after this message.
    pub id: Option<String>,
    /// `gap` or `end`; absent for an event.
    pub kind: Option<&'static str>,
    /// JSON; absent in a keep-alive message.
    pub data: Option<String>,
}

/// Sends the events after `position`. The task ends when the receiver is dropped, when the client does not
/// read the messages, or at `shutdown`.
pub fn watch(
    hub: Hub,
    slot: StreamSlot,
    filter: Filter,
    position: Position,
    shutdown: CancellationToken,
) -> mpsc::Receiver<Message> {
    let (messages, queue) = mpsc::channel(watcher::QUEUE);
    let last_sent = tokio::time::Instant::now();
    let watcher = watcher::Watcher { hub, slot, filter, position, messages, last_sent };
    tokio::spawn(watcher.run(shutdown));
    queue
}
