//! Path parameters of the route table.

use crate::http::{Problem, path::Parameter};
use signalbox_route_table::{Hostname, InstanceId, Label};

impl Parameter for Hostname {
    type Raw = String;

    fn check(raw: String) -> Result<Self, Problem> {
        Ok(Self::parse(&raw)?)
    }
}

impl Parameter for InstanceId {
    type Raw = String;

    fn check(raw: String) -> Result<Self, Problem> {
        Ok(Self::parse(&raw)?)
    }
}

/// The name of a node.
#[derive(Debug)]
pub(super) struct NodeId(pub(super) Label);

impl Parameter for NodeId {
    type Raw = String;

    fn check(raw: String) -> Result<Self, Problem> {
        Ok(Self(Label::parse(&raw, "node")?))
    }
}
