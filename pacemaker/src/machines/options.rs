//! The section `[machines]` of the configuration.

use std::path::PathBuf;

use serde::Deserialize;
use signalbox_settings::{section, within};

/// The settings of the machines. [`Options::DEFAULTS`] describes them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Options {
    pub(crate) serve: bool,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) environment: Vec<String>,
    #[serde(deserialize_with = "within::<_, _, 1, 10_000>")]
    pub(crate) page: usize,
    #[serde(deserialize_with = "within::<_, _, 1, 10_000>")]
    pub(crate) concurrency: usize,
}

impl Options {
    /// The section of the default file: every key with its default and description.
    pub(crate) const DEFAULTS: &str = include_str!("defaults.toml");
}

impl Default for Options {
    fn default() -> Self {
        section("machines", Self::DEFAULTS)
    }
}
