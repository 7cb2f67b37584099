//! Finds instances where they run, and keeps them registered: in containers, in a folder of files, and in DNS.
//!
//! A [`Source`] reads a [`Snapshot`] of what exists. [`Discovery::run`] compares it with the instances that it registered before,
//! and registers, drains or resumes what differs. It stores nothing: the IDs of its instances begin with its name, so that after
//! a restart it finds them in the route table.
//!
//! # Invariants
//! * A source that cannot be read changes nothing. An entry that cannot be understood leaves its instance as it is.
//! * An instance is drained immediately only if the source has shown that it ended. One that is merely absent is drained after it
//!   was absent from every reading for [`Options::confirm`].
//! * Instances have no lease: they remain when discovery itself is down. A health check removes those that do not work.
//! * An instance that an operator drained is not resumed.
//! * What an entry may claim is decided by the token: the pacemaker rejects a host name that the token does not cover, and the
//!   other entries are not affected.

mod dns;
mod docker;
mod error;
mod folder;
mod reconcile;
mod service;
mod snapshot;

pub use dns::{Dns, DnsOptions, system_nameserver};
pub use docker::{Docker, LABEL_PREFIX};
pub use error::Error;
pub use folder::Folder;
pub use service::{Discovery, Options, Report};
pub use snapshot::{Entry, Snapshot, Source};
