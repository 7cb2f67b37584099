//! Coordination between the pacemakers of one installation, through the fabric.
//!
//! [`Lease`] makes one of several pacemakers do a task at a time. [`Presence`] lists the pacemakers that are running.

mod lease;
mod presence;

pub use lease::Lease;
pub use presence::{Presence, Seen};
