//! What can be set.

use serde::Deserialize;

/// The settings of the machines.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Look after what is due: times, retries, feeds. A pacemaker that does not only judges what is sent to it.
    pub serve: bool,
    /// A folder with definitions that are applied at start, when they were never seen before and need no map.
    pub folder: Option<std::path::PathBuf>,
    /// Names of environment variables that headers of definitions may name as `${NAME}`.
    pub environment: Vec<String>,
    /// Labels of a wave that are judged between two notes of how far it came.
    pub page: usize,
    /// Labels that are worked on at a time when many are due.
    pub concurrency: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { serve: true, folder: None, environment: Vec::new(), page: 500, concurrency: 64 }
    }
}
