//! Errors of the machines.

use signalbox_bus::Refusal;

use crate::record::Unreadable;

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine does not exist.
    #[error("unknown machine")]
    NoSuchMachine,
    /// The version does not exist.
    #[error("unknown version")]
    NoSuchVersion,
    /// The label does not exist, and was not deleted in the last thirty days.
    #[error("unknown label")]
    NoSuchLabel,
    /// The label was deleted.
    #[error("the label was deleted")]
    Gone,
    /// The label exists already.
    #[error("the label exists already")]
    Exists,
    /// A label of this name was deleted, and the request does not allow to create it again.
    #[error("a label of this name was deleted")]
    Deleted,
    /// The metadata is too large, too deep, or not an object.
    #[error("{0}")]
    BadMetadata(String),
    /// The machine has the maximum number of labels.
    #[error("label limit of the machine reached ({0})")]
    TooManyLabels(u64),
    /// Another request had the same idempotency key.
    #[error("another update was sent under this idempotency key")]
    Conflict,
    /// The label is not errored.
    #[error("the label has no failed action to retry")]
    NotErrored,
    /// The label is not in an action that can be skipped or canceled.
    #[error("the label is not in an action")]
    NotActing,
    /// The machine has no such state.
    #[error("unknown state {0}")]
    NoSuchState(String),
    /// The machine is being deleted.
    #[error("the machine is being deleted")]
    BeingDeleted,
    /// A secret is not valid.
    #[error("{0}")]
    BadSecret(String),
    /// The machine has the maximum number of secrets.
    #[error("limit of secrets of one machine reached ({0}); delete unused ones")]
    TooManySecrets(usize),
    /// There is no key to encrypt with.
    #[error("secrets are stored encrypted, and this pacemaker has no `edge_key_file` to encrypt with")]
    NoKey,
    /// The task does not exist, or was finished long ago.
    #[error("unknown task")]
    NoSuchTask,
    /// Too many tasks of the machine run already.
    #[error("{0} tasks of the machine run already; wait for one, or cancel it")]
    TooManyTasks(usize),
    /// A simulation assumes something about a feed or an action that does not exist.
    #[error("{0}")]
    BadAssumption(String),
    /// The filter of a search is not valid.
    #[error("{0}")]
    BadFilter(String),
    /// Too many labels match to be sorted.
    #[error("more than {0} labels match; narrow the filter, or list them by name")]
    TooManyMatches(usize),
    /// The active definition is not the one that the plan was made from.
    #[error("another definition was applied since this plan was made; plan again")]
    DefinitionChanged,
    /// The plan does not exist, or has expired.
    #[error("unknown plan")]
    NoSuchPlan,
    /// Another change of the definition is under way.
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
    /// The bus rejected the change.
    #[error("the change could not be accepted")]
    Refused(#[from] Refusal),
    /// The bus does not answer.
    #[error("the bus does not answer")]
    Away,
    /// The fabric does not answer.
    #[error("the fabric does not answer")]
    Store(#[from] signalbox_store::Error),
}

impl From<Unreadable> for Error {
    fn from(_: Unreadable) -> Self {
        Self::Unreadable
    }
}
