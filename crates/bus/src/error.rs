//! Why something could not be done.

/// Why one event was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another client published to the topic first.
    #[error("the topic belongs to another publisher")]
    Claimed,
    /// The name is no topic that a client may publish to.
    #[error("this is no topic name that a client may publish to")]
    BadTopic,
    /// Another event was accepted under the same idempotency key.
    #[error("another event was published under this idempotency key")]
    Conflict,
    /// A limit of the registry (topics) would be passed.
    #[error("there are as many topics as the limit allows")]
    TooManyTopics,
    /// The pacemaker has as many events waiting for Redis as it is willing to hold. Nothing was done.
    #[error("too many events are waiting")]
    Busy,
    /// As many events wait in the object's queue as may. Nothing was done.
    #[error("the object's queue is full")]
    QueueFull,
    /// The label is not as its change expects it: read it again. Only changes of labels get this.
    #[error("the label has changed")]
    Outdated,
    /// The fabric is full. Nothing was done.
    #[error("the fabric is out of memory")]
    Full,
    /// The fabric is away or its registry does not settle. Whether the event was accepted is *unknown*, and it is
    /// never accepted after this answer unless it was before it.
    #[error("the fabric is unavailable")]
    Unavailable,
    /// The fabric is an empty or another server than the one this pacemaker knows: see [`super::Handle::initialise`].
    #[error("the fabric holds no registry, or another one")]
    Uninitialised,
}

/// Why an operation other than publishing failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A command failed. [`signalbox_store::Error::kind`] says whether anything may have changed.
    #[error("the event bus cannot reach its data")]
    Store(#[from] signalbox_store::Error),
    /// The registry changed under every attempt.
    #[error("the registry was changed by others at every attempt")]
    Contended,
    /// The fabric is an empty or another server than the one this pacemaker knows.
    #[error("the fabric holds no registry, or another one")]
    Uninitialised,
    /// The fabric was laid out for another number of shards.
    #[error("the fabric has {stored} shards, the configuration says {configured}")]
    OtherShards {
        /// What the fabric says.
        stored: usize,
        /// What the configuration says.
        configured: usize,
    },
    /// There is no such topic.
    #[error("there is no such topic")]
    NoSuchTopic,
    /// There is no such subscription.
    #[error("there is no such subscription")]
    NoSuchSubscription,
    /// There is no such backend.
    #[error("there is no such backend")]
    NoSuchBackend,
    /// Another backend has the same prefix.
    #[error("another backend has this prefix")]
    PrefixTaken,
    /// There is no such token.
    #[error("there is no such token")]
    NoSuchToken,
    /// The token exists already under another name.
    #[error("the token exists already")]
    TokenExists,
    /// The topic belongs to another client.
    #[error("the topic belongs to another publisher")]
    Forbidden,
    /// A topic name that cannot be subscribed to.
    #[error("{0:?} is no topic name")]
    BadTopic(String),
    /// A value outside its range.
    #[error("{field} must lie between {least} and {most}")]
    OutOfRange {
        /// Which one.
        field: &'static str,
        /// The lowest that is accepted.
        least: u64,
        /// The highest that is accepted.
        most: u64,
    },
    /// A limit would be passed.
    #[error("there are as many {0} as the limit allows")]
    TooMany(&'static str),
    /// There is no such queue.
    #[error("there is no such queue")]
    NoSuchQueue,
    /// A queue of this name was deleted and is being cleared away.
    #[error("a queue of this name is still being cleared away")]
    QueueEnding,
    /// The bus has been shut down.
    #[error("the event bus has been shut down")]
    Closed,
    /// The registry's snapshot cannot be read: written by a newer version, or damaged.
    #[error("the registry cannot be read")]
    BadRegistry(#[source] serde_json::Error),
}
