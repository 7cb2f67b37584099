//! The definition of a machine: the YAML format, strictly parsed, and all checks that need no label.
//!
//! ```text
//! text ─ yaml ─▶ tree with places ─ load ─▶ Machine ─ checks ─▶ File {machines, warnings} | Refused {problems}
//!                 (text finds a place          (conditions are compiled, names resolved,
//!                  within a block again)        placeholders taken apart)
//! ```
//!
//! A file is accepted completely or not at all, and all its problems are reported together.

mod action;
mod checks;
mod cycles;
mod keys;
mod load;
mod model;
mod outside;
mod problem;
pub(crate) mod read;
mod sources;
mod states;
mod template;
mod text;
pub(crate) mod yaml;
mod zone;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub use model::{
    Action, Alert, Call, Daily, Deadline, DeadlineAt, Failure, Gate, Kind, Machine, Next, OnFailure, Path,
    Quiet, ResultPart, Retry, State, StateIndex, Trigger,
};
pub use outside::{
    EventPath, Feed, FeedSource, Header, HeaderPart, Input, Limit, OnError, Pattern, Stats, Webhook,
};
pub use problem::{Problem, Refused};
pub use template::{Part, Template, Text};
pub use zone::{Zone, ZoneRule};

use load::Origin;
pub(crate) use read::metadata_path;

/// The JSON Schema of the format.
pub const SCHEMA: &str = include_str!("schema.json");

/// The content of a file.
#[derive(Debug, Clone)]
pub struct File {
    /// Its machines in their order, at least one.
    pub machines: Vec<Arc<Machine>>,
    /// Warnings about the machines.
    pub warnings: Vec<Problem>,
}

/// Reads a file of machines; `file` is its name in messages.
///
/// # Errors
/// Every problem of the file.
pub fn load(file: &str, source: &str) -> Result<File, Refused> {
    load::load(file, source, Origin::Author { applied: None })
}

/// Like [`load`], for a definition that Signalbox has stored. It may have more states than a new one: the limit came later, and
/// labels of a machine that cannot be read would stop.
///
/// # Errors
/// Every problem of the file.
pub fn load_stored(file: &str, source: &str) -> Result<File, Refused> {
    load::load(file, source, Origin::Store)
}

/// The secrets of a machine, each with the beginning of the addresses that it may be sent to. An empty text allows every
/// address.
pub type SecretNames = BTreeMap<String, String>;

/// Like [`load`], for a machine that is about to be applied, or for all machines of the file. Also rejects
/// `${NAME}` if `secrets` does not have it for the address, and a `route` action whose host the definition
/// does not list.
///
/// # Errors
/// Every problem of the file.
pub fn load_with<'a>(
    file: &str,
    source: &'a str,
    machine: Option<&str>,
    secrets: &'a SecretNames,
) -> Result<File, Refused> {
    load::load(file, source, Origin::Author { applied: Some((machine, secrets)) })
}

/// Formats a duration as definitions write it: `1h30m`.
pub fn units(duration: Duration) -> String {
    let mut seconds = duration.as_secs();
    let mut text = String::new();
    for (unit, length) in [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)] {
        if seconds >= length {
            text.push_str(&format!("{}{unit}", seconds / length));
            seconds %= length;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}
