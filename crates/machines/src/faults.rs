//! Fault injection: faults between two calls of the fabric.
//!
//! A pacemaker runs without an injector, which costs one comparison with `None` per call. Tests pass one in that makes
//! the process "die" at a call, or loses a commit before or after it is made.

use std::{fmt::Debug, sync::Arc};

/// Decides at which points a process fails.
pub(crate) trait FaultInjector: Debug + Send + Sync {
    /// A call of the fabric is about to be made.
    fn before_call(&self);

    /// Whether a commit fails here. Asked once before the commit is made and once after it.
    fn fails_commit(&self) -> bool;
}

/// An optional [`FaultInjector`]. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults(pub(crate) Option<Arc<dyn FaultInjector>>);

impl Faults {
    /// See [`FaultInjector::before_call`].
    pub(crate) fn before_call(&self) {
        if let Some(injector) = &self.0 {
            injector.before_call();
        }
    }

    /// See [`FaultInjector::fails_commit`].
    pub(crate) fn fail_commit(&self) -> bool {
        self.0.as_ref().is_some_and(|injector| injector.fails_commit())
    }
}
