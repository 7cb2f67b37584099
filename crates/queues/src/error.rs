//! Errors of queues.

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A command failed. [`signalbox_store::Error::kind`] shows whether anything may have changed.
    #[error("a command on the queues failed")]
    Store(#[from] signalbox_store::Error),
    /// The fabric does not know the queue.
    #[error("unknown queue")]
    NoSuchQueue,
    /// A shard has an older definition than the caller; the caller has to send it the current one.
    #[error("a shard has an older definition of the queue")]
    Behind,
    /// The registry has changed; the caller has to read it again.
    #[error("the definition of the queue has changed")]
    Stale,
    /// The limit of waiting pulls in this process is reached.
    #[error("too many pulls are waiting")]
    Busy,
}
