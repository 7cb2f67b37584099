//! Path parameters of objects and backends.

use crate::http::{Problem, path::Parameter};
use signalbox_bus::intake;

/// The name of an object.
#[derive(Debug)]
pub(super) struct ObjectName(pub(super) String);

impl Parameter for ObjectName {
    type Raw = String;

    fn check(raw: String) -> Result<Self, Problem> {
        intake::object_name(&raw)?;
        Ok(Self(raw))
    }
}

/// The name of a backend.
#[derive(Debug)]
pub(super) struct BackendName(pub(super) String);

impl Parameter for BackendName {
    type Raw = String;

    fn check(raw: String) -> Result<Self, Problem> {
        intake::backend_name(&raw)?;
        Ok(Self(raw))
    }
}
