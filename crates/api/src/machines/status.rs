//! What a label does in its state, and why it moved. Records store a value as its place in the list, so their order stays.

use serde::{Deserialize, Serialize};

use crate::words::words;

/// A label's status in its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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

words!(Status {
    Waiting: "waiting",
    Acting: "acting",
    Choosing: "choosing",
    Errored: "errored",
    Looping: "looping",
    Ended: "ended",
    Deleted: "deleted",
});

impl Status {
    /// Whether labels with this status have an index: those that neither rest nor are deleted.
    pub fn has_index(self) -> bool {
        matches!(self, Self::Acting | Self::Choosing | Self::Errored | Self::Looping)
    }
}

/// Why a label moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
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

words!(Cause {
    Created: "created",
    Metadata: "metadata",
    Time: "time",
    Interval: "interval",
    Entry: "entry",
    Topic: "topic",
    Feed: "feed",
    Action: "action",
    Migrated: "migrated",
    Deleted: "deleted",
    Evaluated: "evaluated",
    Failed: "failed",
    Deadline: "deadline",
    Moved: "moved",
});
