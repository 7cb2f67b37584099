//! Read-only questions about labels and machines. Nothing here changes a label.

mod checker;
mod explainer;
mod overview;
mod planner;

pub use checker::{CheckCursor, CheckPage, Checker};
pub(crate) use explainer::EXPLANATIONS;
pub use explainer::{Assumptions, Explainer};
pub use overview::{Counts, Overview, Wake, Waking};
pub use planner::Planner;

use crate::flow::FlowReader;

/// The read-only questions, by kind.
#[derive(Debug)]
pub struct Inspector {
    /// Why a label is where it is, and where it would go.
    pub explainer: Explainer,
    /// How labels flow through a machine.
    pub flow: FlowReader,
    /// The numbers of a machine, and its next times.
    pub overview: Overview,
    /// The effects of a change of definition.
    pub planner: Planner,
    /// The consistency check.
    pub checker: Checker,
}
