//! Records of what machines change outside of themselves. A state machine is another door to changes that the API has as well,
//! so its changes are in the same log. The log is the process's, which implements [`Audit`].

use std::{fmt, sync::Arc};

use futures_util::future::BoxFuture;
use serde_json::Value;

/// A change by an action of a machine, as if the API had been called, or its refusal.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// `machine:NAME`.
    pub who: String,
    /// The label whose action it is.
    pub label: String,
    /// The method and the route of the call that would have the same effect.
    pub call: (&'static str, &'static str),
    /// The path of this call.
    pub target: String,
    /// The code of the refusal; `None` if the change was made.
    pub refused: Option<&'static str>,
    /// The value before the change.
    pub before: Option<Value>,
    /// The value after the change.
    pub after: Option<Value>,
}

/// The log of changes.
pub trait Audit: Send + Sync {
    /// Stores a record. Returns whether it is stored.
    fn record(&self, change: Change) -> BoxFuture<'_, bool>;
}

/// The log of changes of this process. Cheap to clone.
#[derive(Clone)]
pub struct AuditLog(Arc<dyn Audit>);

impl AuditLog {
    /// Records are stored by `audit`.
    pub fn new(audit: impl Audit + 'static) -> Self {
        Self(Arc::new(audit))
    }

    pub(crate) async fn record(&self, change: Change) -> bool {
        self.0.record(change).await
    }
}

impl fmt::Debug for AuditLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("AuditLog").finish_non_exhaustive()
    }
}
