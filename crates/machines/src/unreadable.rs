//! Labels whose records cannot be read: they are skipped, counted, and logged once each.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use crate::metrics::Metrics;

/// Maximum number of labels that are logged.
const MAX_LOGGED: usize = 1_000;

/// Reports unreadable labels.
#[derive(Debug)]
pub(crate) struct UnreadableLabels {
    metrics: Metrics,
    logged: Mutex<HashSet<String>>,
}

impl UnreadableLabels {
    /// None reported yet.
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { metrics, logged: Mutex::default() }
    }

    /// Reports that a label was skipped.
    pub(crate) fn report(&self, machine: &str, label: &str) {
        self.metrics.skipped_unreadable();
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() < MAX_LOGGED && logged.insert(format!("{machine} {label}")) {
            tracing::error!(machine, label, "unreadable label skipped");
        }
    }
}
