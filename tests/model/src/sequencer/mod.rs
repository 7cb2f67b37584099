//! Many producers, one order per object.

mod action;
mod calls;
#[cfg(test)]
mod exhaustive;
pub mod model;
mod receiver;
mod reference;
mod rules;
mod state;
#[cfg(test)]
mod traces;
mod view;

pub use calls::{
    Committed, Event, Gap, NewEvent, Part, Place, Refused, Settings, Sink, Skipped, Standing, Taken, Visit,
};
pub use reference::Reference;

/// The ordering key of events.
pub type Object = u32;

/// One life of one worker: a restarted one has another number.
pub type Worker = u32;

/// The number of an event; it rises in its shard.
pub type Id = u64;

/// The scope of `tprev`.
pub type Topic = u32;
