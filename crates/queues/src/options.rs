//! The section `[queues]` of the configuration.

use serde::Deserialize;
use signalbox_settings::{section, within};

/// The settings of the queues. [`Options::DEFAULTS`] describes them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "`defaults.toml` describes the keys")]
pub struct Options {
    #[serde(deserialize_with = "within::<_, _, 0, 10_000>")]
    pub queues: usize,
    #[serde(deserialize_with = "within::<_, _, 1, 1_000>")]
    pub pull_messages: usize,
    #[serde(deserialize_with = "within::<_, _, 1024, 268_435_456>")]
    pub pull_bytes: usize,
    #[serde(deserialize_with = "within::<_, _, 0, 600>")]
    pub wait_seconds: u64,
    #[serde(deserialize_with = "within::<_, _, 0, 1_000_000>")]
    pub waiting_pulls: usize,
    #[serde(deserialize_with = "within::<_, _, 0, 10_000_000>")]
    pub dead_messages: u64,
    #[serde(deserialize_with = "within::<_, _, 0, 1_000_000_000>")]
    pub noisy_backlog: u64,
}

impl Options {
    /// The section of the default file: every key with its default and description.
    pub const DEFAULTS: &str = include_str!("defaults.toml");
}

impl Default for Options {
    fn default() -> Self {
        section("queues", Self::DEFAULTS)
    }
}
