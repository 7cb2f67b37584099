//! Queues with tenants, pulled fairly.

mod calls;
#[cfg(test)]
mod exhaustive;
pub mod model;
mod reference;
mod rules;
#[cfg(test)]
mod traces;
mod view;

pub use calls::{Counts, Part, Place, Pulled, Receipt, Settings, TenantView, Verdict};
pub use reference::Reference;

/// A tenant's part of a queue. Drivers of the real scripts number their tenants in the order of their names.
pub type Tenant = u32;

/// A message. Numbers are assigned in order of acceptance, so they order the messages of a tenant.
pub type Message = u64;
