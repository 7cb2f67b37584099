//! Coordination between the pacemakers of one installation, through the fabric.
//!
//! [`Lease`] lets one pacemaker at a time run a task. [`Presence`] lists the pacemakers that are running.

mod lease;
mod presence;

pub use lease::Lease;
pub use presence::{Presence, Seen};
