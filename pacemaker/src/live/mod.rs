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

mod api;
mod entry;
mod filter;
mod hub;
mod metrics;
mod position;
mod watcher;

pub(crate) use api::routes;
pub(crate) use hub::Hub;
