//! Queues with facets, pulled fairly.

mod calls;
#[cfg(test)]
mod exhaustive;
pub mod model;
mod reference;
mod rules;
#[cfg(test)]
mod traces;
mod view;

pub use calls::{Counts, FacetView, Part, Place, Pulled, Receipt, Settings, Verdict};
pub use reference::Reference;

/// A tenant's part of a queue. Drivers of the real scripts number their environments in the order of their names.
pub type Facet = u32;

/// A message. Numbers are assigned in order of acceptance, so they order the messages of a facet.
pub type Message = u64;
