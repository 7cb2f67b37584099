//! The section `[sequencer]` of the configuration.

use serde::Deserialize;
use signalbox_settings::{section, within};

/// The settings of the sequencer. [`Options::DEFAULTS`] describes them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "`defaults.toml` describes the keys")]
pub struct Options {
    pub serve: bool,
    #[serde(deserialize_with = "within::<_, _, 100, 3_600_000>")]
    pub lease_ms: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 1_000_000>")]
    pub quantum: u32,
    #[serde(deserialize_with = "within::<_, _, 1, 3_600_000>")]
    pub first_pause_ms: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 86_400_000>")]
    pub longest_pause_ms: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 1_000_000_000>")]
    pub dead_events: u64,
}

impl Options {
    /// The section of the default file: every key with its default and description.
    pub const DEFAULTS: &str = include_str!("defaults.toml");
}

impl Default for Options {
    fn default() -> Self {
        section("sequencer", Self::DEFAULTS)
    }
}
