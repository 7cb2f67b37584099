//! Errors of the machines.

use signalbox_bus::Refusal;
use signalbox_machine::merge;

use crate::record::Unreadable;

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum Error {
    #[error("unknown machine")]
    NoSuchMachine,
    #[error("unknown version")]
    NoSuchVersion,
    /// The label does not exist, and was not deleted in the last thirty days.
    #[error("unknown label")]
    NoSuchLabel,
    #[error("the label was deleted")]
    Gone,
    #[error("the label exists already")]
    Exists,
    /// A label of this name was deleted, and the request does not allow to create it again.
    #[error("a label of this name was deleted")]
    Deleted,
    /// The metadata is too large, too deep, or not an object.
    #[error(transparent)]
    BadMetadata(#[from] merge::TooMuch),
    #[error("label limit of the machine reached ({0})")]
    TooManyLabels(u64),
    #[error("another update was sent under this idempotency key")]
    Conflict,
    /// The request names a revision that the label does not have.
    #[error("the label has revision {0}, and the request expects another one")]
    OtherRevision(u64),
    #[error("the label has no failed action to retry")]
    NotErrored,
    /// The label is not in an action that can be skipped or canceled.
    #[error("the label is not in an action")]
    NotActing,
    #[error("unknown state {0}")]
    NoSuchState(String),
    #[error("the machine is being deleted")]
    BeingDeleted,
    #[error("{0}")]
    BadSecret(String),
    #[error("limit of secrets of one machine reached ({0}); delete unused ones")]
    TooManySecrets(usize),
    #[error("secrets are stored encrypted, and this pacemaker has no `edge_key_file` to encrypt with")]
    NoKey,
    /// The task does not exist, or was finished long ago.
    #[error("unknown task")]
    NoSuchTask,
    #[error("{0} tasks of the machine run already; wait for one, or cancel it")]
    TooManyTasks(usize),
    /// A simulation assumes something about a feed or an action that does not exist.
    #[error("{0}")]
    BadAssumption(String),
    #[error("{0}")]
    BadFilter(String),
    #[error("more than {0} labels match; narrow the filter, or list them by name")]
    TooManyMatches(usize),
    #[error("another definition was applied since this plan was made; plan again")]
    DefinitionChanged,
    /// The plan does not exist, or has expired.
    #[error("unknown plan")]
    NoSuchPlan,
    /// The fabric has little memory left, and the client that applies the definition uses most of it.
    #[error("memory is short, and this client uses most of it")]
    TooManyDefinitions,
    #[error("another definition is being applied; try again")]
    ApplyUnderWay,
    /// The map does not name these removed states, which contain labels.
    #[error("labels are in removed states that `map` does not name: {}", .0.join(", "))]
    Unmapped(Vec<String>),
    /// The map names a state that is not removed, or a target that does not exist.
    #[error("{0}")]
    BadMap(String),
    /// A stored definition or record is damaged, or was written by a later version.
    #[error("a stored record cannot be read")]
    Unreadable,
    /// The label was changed by others in every round of the compare-and-set.
    #[error("the label is changed too often at the moment; try again")]
    Contended,
    #[error("the change could not be accepted")]
    Refused(#[from] Refusal),
    #[error("the bus does not answer")]
    Away,
    #[error("the fabric does not answer")]
    Store(#[from] signalbox_store::Error),
}

impl From<Unreadable> for Error {
    fn from(_: Unreadable) -> Self {
        Self::Unreadable
    }
}
