//! Errors of the bus.

/// Why an event was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe some variants")]
pub enum Refusal {
    /// Another client published to the topic first.
    #[error("the topic belongs to another publisher")]
    Claimed,
    /// The name is not one that clients may publish to.
    #[error("invalid topic name: must match `[a-z_]{{1,64}}`")]
    BadTopic,
    #[error("a different event was published under this idempotency key")]
    Conflict,
    /// The registry has the maximum number of topics.
    #[error("topic limit reached; raise `bus.topics` or `bus.topics_per_client`, or delete unused topics")]
    TooManyTopics,
    /// The limit of events that wait for Redis in this pacemaker is reached. Nothing was changed.
    #[error("too many events are waiting")]
    Busy,
    /// The limit of events in the object's queue is reached. Nothing was changed.
    #[error("the object's queue is full")]
    QueueFull,
    /// A pull queue that takes the message has the maximum number of waiting messages. Nothing was changed.
    #[error("a pull queue is full")]
    WaitingFull,
    /// The fabric stores as many bytes of the tenant as it may. Nothing was changed.
    #[error("the tenant's limit of stored bytes is reached ({limit})")]
    TenantFull {
        /// The configured limit, for all shards together.
        limit: u64,
    },
    /// The fabric has little memory left, and the tenant or the client uses most of it. Nothing was changed.
    #[error("memory is short, and the tenant or its client uses most of it")]
    MemoryShort,
    /// The client stores as many idempotency keys as it may. Nothing was changed.
    #[error("limit of idempotency keys reached; the oldest one expires in {retry_ms} ms")]
    KeysUsedUp {
        /// Milliseconds until the client's oldest key expires, or until memory is checked again.
        retry_ms: u64,
    },
    /// The label is not in the state that the change expects: read it again. Only changes of labels get this.
    #[error("the label has changed")]
    Outdated,
    /// The fabric has no memory left. Nothing was changed.
    #[error("the fabric is out of memory")]
    Full,
    /// The fabric rejects writes for another reason: too few replicas, a disk that is full, or it is a replica. Nothing was
    /// changed.
    #[error("the fabric rejects writes")]
    ReadOnly,
    /// The fabric does not answer, or its registry keeps changing. Whether the event was accepted is *unknown*. It is not
    /// accepted later than an event that this pacemaker publishes after this answer.
    #[error("the fabric is unavailable")]
    Unavailable,
    /// The fabric is empty or not the one that this pacemaker knows: see [`super::Handle::initialize`].
    #[error("the fabric is empty or not the one that this pacemaker knows")]
    Uninitialized,
}

/// A limit that a change of the registry would exceed, with what to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe them")]
pub enum Limit {
    #[error("topic limit reached; raise `bus.topics` or delete unused topics")]
    Topics,
    #[error("topic limit of one client reached; raise `bus.topics_per_client` or delete unused topics")]
    TopicsOfClient,
    #[error("subscription limit reached; raise `bus.subscriptions` or delete unused subscriptions")]
    Subscriptions,
    #[error("token limit reached ({0}); delete unused tokens")]
    Tokens(usize),
    #[error(
        "{0} tokens of the client are valid, which is the maximum; wait until one expires, or rotate without an overlap"
    )]
    TokensOfClient(usize),
    #[error("backend limit reached; raise `bus.backends` or delete unused backends")]
    Backends,
    #[error("queue limit reached; raise `queues.queues` or delete unused queues")]
    Queues,
    /// The lanes of so many numbers have events at the same time.
    #[error(
        "events published under {0} earlier values of `concurrency` still wait; change it again when some of them are delivered"
    )]
    Generations(u64),
}

/// Why an operation other than publishing failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe most variants")]
pub enum Error {
    /// A command failed. [`signalbox_store::Error::kind`] shows whether anything may have changed.
    #[error("the event bus cannot reach its data")]
    Store(#[from] signalbox_store::Error),
    /// The log does not have the event, or it is not the subscriber's.
    #[error("unknown event")]
    NoSuchEvent,
    /// A shard did not answer a ping in time.
    #[error("the fabric does not answer")]
    Silent,
    /// Every attempt conflicted with a change by another pacemaker.
    #[error("the registry was changed concurrently at every attempt; try again")]
    Contended,
    #[error("the fabric is empty or not the one that this pacemaker knows")]
    Uninitialized,
    /// The fabric was initialized for another number of shards.
    #[error("the fabric has {stored} shards, but {configured} are configured")]
    OtherShards { stored: usize, configured: usize },
    /// The cursor of a list is not one that an earlier part of the list returned.
    #[error("invalid cursor")]
    InvalidCursor,
    #[error("unknown topic")]
    NoSuchTopic,
    #[error("unknown subscription")]
    NoSuchSubscription,
    #[error("unknown backend")]
    NoSuchBackend,
    #[error("another backend has this prefix")]
    PrefixTaken,
    #[error("unknown token")]
    NoSuchToken,
    #[error("the token exists under another name")]
    TokenExists,
    #[error("the topic belongs to another publisher")]
    Forbidden,
    #[error("invalid topic name {0:?}: must match `[a-z_]{{1,64}}`")]
    BadTopic(String),
    #[error("`{field}` must be between {least} and {most}")]
    OutOfRange { field: &'static str, least: u64, most: u64 },
    #[error("{0}")]
    TooMany(Limit),
    #[error("unknown queue")]
    NoSuchQueue,
    #[error("invalid queue")]
    InvalidQueue(#[source] signalbox_queues::Flaw),
    /// The queue has another definition than the caller expects.
    #[error("the queue was changed: its revision is {0}")]
    QueueChanged(u64),
    #[error("a deleted queue of this name is still being removed; try again")]
    QueueEnding,
    #[error("the credentials are encrypted with a key that this pacemaker does not have")]
    Locked,
    #[error("the credentials could not be encrypted")]
    Seal,
    /// The registry's snapshot cannot be read: it is damaged, or a newer version wrote it.
    #[error("the registry cannot be read")]
    BadRegistry(#[source] serde_json::Error),
}
