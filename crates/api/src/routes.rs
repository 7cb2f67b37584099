//! The route table: instances, hosts, routing decisions and routers.

mod decision;
mod hosts;
mod instances;
mod routers;

pub use decision::{
    Answer, By, Candidate, Chance, Choice, Explained, ExplainedPath, ExplainedShare, Explanation, Step,
    StepResult,
};
pub use hosts::{
    Host, HostList, HostState, Promote, PromotedHost, Promotion, RuledHost, UndoPromotion, Undoable,
};
pub use instances::{
    ChangedInstance, Drain, DrainedNode, Fault, Faults, Health, Heartbeat, Instance, InstanceList,
    NewInstance, State, Statuses, text,
};
pub use routers::{Bucket, Convergence, Liveness, Propagation, Router};
