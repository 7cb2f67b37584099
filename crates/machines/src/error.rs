//! What can go wrong.

use signalbox_bus::Refusal;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such machine.
    #[error("there is no such machine")]
    NoSuchMachine,
    /// There is no such version of it.
    #[error("there is no such version")]
    NoSuchVersion,
    /// There is no such label, and there was none in the last thirty days.
    #[error("there is no such label")]
    NoSuchLabel,
    /// The label was deleted.
    #[error("the label was deleted")]
    Gone,
    /// The label exists already.
    #[error("the label exists already")]
    Exists,
    /// The label was deleted, and nobody said that it may come back.
    #[error("a label of this name was deleted")]
    Deleted,
    /// The metadata is too large, too deep, or no object.
    #[error("{0}")]
    BadMetadata(String),
    /// Something else came under the same idempotency key.
    #[error("something else came under this idempotency key")]
    Conflict,
    /// The label is not errored.
    #[error("the label is not errored")]
    NotErrored,
    /// The definition is not the one that the plan was made from.
    #[error("the definition has changed since the plan was made")]
    DefinitionChanged,
    /// There is no such plan any more.
    #[error("there is no such plan")]
    NoSuchPlan,
    /// Another change of the definition is under way.
    #[error("another change of the definition is under way")]
    ApplyUnderWay,
    /// States with labels that the map does not name.
    #[error("labels stand in states that are no more: {}", .0.join(", "))]
    Unmapped(Vec<String>),
    /// The map leads to where nothing is, or from where nothing leaves.
    #[error("{0}")]
    BadMap(String),
    /// A definition or a record of a later build, or damaged.
    #[error("what is stored cannot be read")]
    Unreadable,
    /// Others changed the label again and again.
    #[error("the label is changed too often at the moment")]
    Contended,
    /// The change could not be accepted.
    #[error("the change could not be accepted")]
    Refused(#[from] Refusal),
    /// The bus does not answer.
    #[error("the bus does not answer")]
    Away,
    /// The fabric does not answer.
    #[error("the fabric does not answer")]
    Store(#[from] signalbox_store::Error),
}

impl From<super::record::Unreadable> for Error {
    fn from(_: super::record::Unreadable) -> Self {
        Self::Unreadable
    }
}
