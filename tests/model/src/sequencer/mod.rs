//! Many producers, one order per object.

#[cfg(test)]
mod exhaustive;
pub mod model;
pub mod published;
mod receiver;
mod reference;
mod rules;
#[cfg(test)]
mod traces;

pub use reference::{
    Committed, Event, Gap, NewEvent, Part, Place, Reference, Refused, Settings, Sink, Skipped, Standing,
    Taken, Visit,
};

/// What events are ordered by.
pub type Object = u32;

/// One life of one worker: a restarted one has another number.
pub type Worker = u32;

/// The number of an event; it rises in its shard.
pub type Id = u64;

/// What `tprev` is kept for.
pub type Topic = u32;
