//! The section `[machines]` of the configuration.

use std::path::PathBuf;

use serde::Deserialize;
use signalbox_settings::{section, within};

/// The settings of the machines. [`Options::DEFAULTS`] describes them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "`defaults.toml` describes the keys")]
pub struct Options {
    pub serve: bool,
    pub folder: Option<PathBuf>,
    #[serde(deserialize_with = "within::<_, _, 0, 1_000_000_000>")]
    pub labels: u64,
    #[serde(deserialize_with = "within::<_, _, 0, 8_760>")]
    pub history_hours: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 1_000>")]
    pub history_lines: usize,
    #[serde(deserialize_with = "within::<_, _, 1, 10_000>")]
    pub page: usize,
    #[serde(deserialize_with = "within::<_, _, 1, 10_000>")]
    pub concurrency: usize,
}

impl Options {
    /// The section of the default file: every key with its default and description.
    pub const DEFAULTS: &str = include_str!("defaults.toml");
}

impl Default for Options {
    fn default() -> Self {
        section("machines", Self::DEFAULTS)
    }
}
