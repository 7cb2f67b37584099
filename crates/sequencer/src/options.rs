//! What can be set.

use serde::Deserialize;

/// The settings of the sequencer.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Send events to backends. A pacemaker that does not only accepts them.
    pub serve: bool,
    /// Milliseconds without a sign of life after which a worker's object is another's.
    pub lease_ms: u64,
    /// Events of one object that are sent before others have their turn.
    pub quantum: u32,
    /// Milliseconds of the pause after the first failure; each further one doubles it.
    pub first_pause_ms: u64,
    /// Milliseconds of the longest pause.
    pub longest_pause_ms: u64,
    /// Dead letters kept for one backend.
    pub dead_events: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            serve: true,
            lease_ms: 10_000,
            quantum: 16,
            first_pause_ms: 1_000,
            longest_pause_ms: 600_000,
            dead_events: 10_000,
        }
    }
}
