//! Rejected values.

/// A rejected value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct Invalid {
    /// The stable error code.
    pub code: &'static str,
    /// The field that is wrong.
    pub field: &'static str,
    /// The problem, with the limit or the expected form.
    pub detail: String,
}

impl Invalid {
    /// An error for `field` with a stable `code`.
    pub fn new(code: &'static str, field: &'static str, detail: impl Into<String>) -> Self {
        Self { code, field, detail: detail.into() }
    }
}
