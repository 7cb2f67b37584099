//! State machines, their definitions, and their labels.

mod definitions;
mod flow;
mod labels;
mod secrets;
mod simulate;
mod status;
mod tasks;

pub use definitions::{
    Applied, Apply, KeptVersion, LimitUse, Machine, MachineEntry, MachineState, Machines, PassedLimit, Plan,
    StateChanges, Version, VersionSource, Versions,
};
pub use flow::{EdgeFlow, Flow, Funnel, StateFlow, VersionFunnel};
pub use labels::{
    Activity, ActivityLine, Changed, Facts, History, Item, Items, Label, LabelPage, LabelRow, Move, Results,
    Retried,
};
pub use secrets::{NewSecret, Secret, Secrets};
pub use simulate::{AssumedAnswer, AssumedResponse, Simulate};
pub use status::{Cause, Status};
pub use tasks::{LabelFilter, LabelOperation, NewTask, Task, Tasks};
