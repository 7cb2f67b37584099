//! Why something could not be done with a queue.

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A command failed. [`signalbox_store::Error::kind`] says whether anything may have changed.
    #[error("the queues cannot reach their data")]
    Store(#[from] signalbox_store::Error),
    /// There is no such queue, as far as the fabric knows.
    #[error("there is no such queue")]
    NoSuchQueue,
    /// A shard does not go by the definition that the caller knows; it has to be told.
    #[error("a shard has an older definition of the queue")]
    Behind,
    /// The registry moved on; the caller has to look again.
    #[error("the definition of the queue has changed")]
    Stale,
    /// As many pulls are waiting as this process will hold.
    #[error("too many pulls are waiting")]
    Busy,
}
