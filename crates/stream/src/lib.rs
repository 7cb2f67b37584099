//! Live: events watched as they are accepted, over server-sent events.
//!
//! ```text
//!  publish.lua ─ PUBLISH environment:type:topic ─▶ hub ─ one broadcast ─▶ watcher ─ filter ─▶ client
//!       └─ log ◀──────────── window: what a watcher has missed ─────────────┘
//! ```
//!
//! **Position.** A watcher stands after one id in each shard, and tells it to its client as the id of every message. A
//! client that comes back with it (`Last-Event-ID`) goes on from there, as far as the log still holds it.
//!
//! **Nothing is missed silently.** Each event carries the id of its shard's event before it. The hub notices a hole in
//! what it hears (pub/sub forgets what nobody was there to take, and a busy server drops slow listeners) and tells all
//! watchers to read the log from where they stand. What the log does not have any more is told as a `gap`.
//!
//! **Nothing grows.** The hub keeps the last [`hub::KEPT`] events for all watchers together. A client that does not
//! read what is sent to it is cut off, with the reason, and can come back with its position. The hub listens only while
//! somebody watches, so an idle pacemaker does nothing here.
//!
//! **Failure.** Without the fabric a stream stays open and silent, and goes on when it is back; new ones get 503.

mod entry;
mod filter;
mod hub;
mod metrics;
mod position;
mod watcher;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use filter::{Error as FilterError, Filter};
pub use hub::{Hub, NoSeat, Seat};
pub use position::Position;

/// What a client is sent, as server-sent events name its parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// The position behind this message.
    pub id: Option<String>,
    /// `gap` or `end`; absent for an event.
    pub kind: Option<&'static str>,
    /// JSON; absent in a sign of life.
    pub data: Option<String>,
}

/// Follows the events from `position` on. The task ends when the receiver is dropped, when the client does not read what it is
/// sent, or at `shutdown`.
pub fn watch(
    hub: Hub,
    seat: Seat,
    filter: Filter,
    position: Position,
    shutdown: CancellationToken,
) -> mpsc::Receiver<Message> {
    let (messages, queue) = mpsc::channel(watcher::QUEUE);
    let watcher = watcher::Watcher { hub, seat, filter, position, messages };
    tokio::spawn(watcher.run(shutdown));
    queue
}
