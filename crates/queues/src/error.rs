//! Errors of queues.

use std::sync::Arc;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A command failed. [`signalbox_store::Error::kind`] shows whether anything may have changed.
    /// Shared by all consumers whose calls were combined.
    #[error("a command on the queues failed")]
    Store(#[source] Arc<signalbox_store::Error>),
    /// The process is shutting down, and the outcome is unknown.
    #[error("the process is shutting down")]
    Ending,
    /// The fabric does not know the queue.
    #[error("unknown queue")]
    NoSuchQueue,
    /// A shard has an older definition than the caller; the caller has to send it the current one.
    #[error("a shard has an older definition of the queue")]
    Behind,
    /// The registry has changed; the caller has to read it again.
    #[error("the definition of the queue has changed")]
    Stale,
    /// The position of a page is not one that an earlier page returned.
    #[error("invalid cursor")]
    InvalidCursor,
    /// The limit of waiting pulls in this process is reached.
    #[error("too many pulls are waiting")]
    Busy,
}

impl From<signalbox_store::Error> for Error {
    fn from(error: signalbox_store::Error) -> Self {
        Self::Store(Arc::new(error))
    }
}
