//! The audit log.

pub use signalbox_api::audit::{Kind, Page, Record};

use crate::{Client, Error, with_query};

/// The calls about the audit log.
#[derive(Debug, Clone, Copy)]
pub struct Audit<'a>(pub(crate) &'a Client);

/// Which records are read.
#[derive(Debug, Clone, Default)]
pub struct Query<'a> {
    /// Only records of this kind.
    pub kind: Option<&'a str>,
    /// Only records of this token or person.
    pub who: Option<&'a str>,
    /// Only records whose path begins so.
    pub target: Option<&'a str>,
    /// Only records before this position, newest first.
    pub before: Option<&'a str>,
    /// Only records after this position, oldest first.
    pub after: Option<&'a str>,
    /// The maximum number of records.
    pub limit: Option<usize>,
}

impl Audit<'_> {
    /// A part of the audit log.
    ///
    /// # Errors
    /// As every call.
    pub async fn page(&self, query: &Query<'_>) -> Result<Page, Error> {
        let limit = query.limit.map(|limit| limit.to_string());
        let pairs = [
            ("kind", query.kind),
            ("who", query.who),
            ("target", query.target),
            ("before", query.before),
            ("after", query.after),
            ("limit", limit.as_deref()),
        ];
        self.0.get(&with_query("/audit", &pairs)).await
    }
}
