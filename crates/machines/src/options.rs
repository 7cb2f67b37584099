//! Configuration.

use serde::Deserialize;

/// The settings of the machines.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Work on due times: sweeps, intervals, retries. Without it, this pacemaker evaluates only labels that clients update.
    pub serve: bool,
    /// A folder of definitions to apply at start, if they were never applied before and need no map.
    pub folder: Option<std::path::PathBuf>,
    /// Names of environment variables that headers of definitions may use as `${NAME}`.
    pub environment: Vec<String>,
    /// Labels of a sweep that are evaluated before its progress is stored.
    pub page: usize,
    /// Labels that are changed at a time when many are due.
    pub concurrency: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { serve: true, folder: None, environment: Vec::new(), page: 500, concurrency: 64 }
    }
}
