//! What can be set.

use serde::Deserialize;

/// The settings of queues.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Queues in all.
    pub queues: usize,
    /// Messages that one pull may ask for.
    pub pull_messages: usize,
    /// Bytes of messages in one answer; one message always goes.
    pub pull_bytes: usize,
    /// The longest time that a pull may wait for a message, in seconds.
    pub wait_seconds: u64,
    /// Pulls that may wait at a time in this process.
    pub waiting_pulls: usize,
    /// Dead letters kept for one queue in each shard; the oldest go beyond that.
    pub dead_messages: u64,
    /// How many messages of a facet wait when it counts as noisy in the histogram of dwell times.
    pub noisy_backlog: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queues: 1_000,
            pull_messages: 1_000,
            pull_bytes: 8 << 20,
            wait_seconds: 30,
            waiting_pulls: 10_000,
            dead_messages: 10_000,
            noisy_backlog: 100,
        }
    }
}
