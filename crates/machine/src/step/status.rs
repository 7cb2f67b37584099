//! The status of a label in its state, and the causes of transitions: the decision returns them, records store them, and the API
//! shows them.

/// A label's status in its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = LabelStatus))]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It waits at a gate.
    Waiting,
    /// Its action is under way, or waits for the next attempt.
    Acting,
    /// Its action is done, and the next state depends on a feed that failed.
    Choosing,
    /// Its action failed finally, until a client retries it.
    Errored,
    /// It has moved fifty times in a row, and continues a second later.
    Looping,
    /// It is in a state without a next one.
    Ended,
    /// It was deleted, and is never evaluated.
    Deleted,
}

impl Status {
    /// All statuses, in the order of their stored numbers.
    pub const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Acting,
        Self::Choosing,
        Self::Errored,
        Self::Looping,
        Self::Ended,
        Self::Deleted,
    ];

    /// The word of the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Acting => "acting",
            Self::Choosing => "choosing",
            Self::Errored => "errored",
            Self::Looping => "looping",
            Self::Ended => "ended",
            Self::Deleted => "deleted",
        }
    }

    /// Whether labels with this status have an index: those that neither rest nor are deleted.
    pub fn has_index(self) -> bool {
        matches!(self, Self::Acting | Self::Choosing | Self::Errored | Self::Looping)
    }
}

/// Why a label moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = MoveCause))]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// It was created.
    Created,
    /// A metadata update.
    Metadata,
    /// A time of day.
    Time,
    /// An interval.
    Interval,
    /// It had just entered the gate.
    Entry,
    /// An event of a topic.
    Topic,
    /// A feed that had failed answered.
    Feed,
    /// The action is done.
    Action,
    /// Its state was removed from the definition.
    Migrated,
    /// It was deleted.
    Deleted,
    /// A client had its gate evaluated, or the definition was changed.
    Evaluated,
    /// Its action failed for good.
    Failed,
    /// It was in the state for too long.
    Deadline,
    /// A client moved it, or skipped its action.
    Moved,
}

impl Cause {
    /// All causes, in the order of their stored numbers.
    pub const ALL: [Self; 14] = [
        Self::Created,
        Self::Metadata,
        Self::Time,
        Self::Interval,
        Self::Entry,
        Self::Topic,
        Self::Feed,
        Self::Action,
        Self::Migrated,
        Self::Deleted,
        Self::Evaluated,
        Self::Failed,
        Self::Deadline,
        Self::Moved,
    ];

    /// The word of the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Metadata => "metadata",
            Self::Time => "time",
            Self::Interval => "interval",
            Self::Entry => "entry",
            Self::Topic => "topic",
            Self::Feed => "feed",
            Self::Action => "action",
            Self::Migrated => "migrated",
            Self::Deleted => "deleted",
            Self::Evaluated => "evaluated",
            Self::Failed => "failed",
            Self::Deadline => "deadline",
            Self::Moved => "moved",
        }
    }
}
