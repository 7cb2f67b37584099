//! The interface for request handlers.

use std::sync::Arc;

use crate::{
    apply::Applier, definitions::Definitions, inspector::Inspector, label_store::LabelStore, labels::Labels,
    search::Search, secrets::Secrets, tasks::TaskRunner,
};

/// The machines of this process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    /// Changes of labels: create, update, delete, retry.
    pub labels: Labels,
    /// Reads of labels.
    pub label_store: Arc<LabelStore>,
    /// Versions of definitions, and plans.
    pub definitions: Definitions,
    /// Changes of definitions.
    pub applier: Arc<Applier>,
    /// Searches for labels.
    pub search: Search,
    /// Operations on many labels.
    pub tasks: Arc<TaskRunner>,
    /// Values for headers and signatures of webhooks.
    pub secrets: Secrets,
    /// Read-only questions: explanations, overviews, previews, the check.
    pub inspector: Arc<Inspector>,
}
