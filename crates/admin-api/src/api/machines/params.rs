//! Path parameters of machines.

use std::ops::Deref;

use crate::http::{Problem, path::Parameter};
use signalbox_machines::{Error, is_label_name};

/// The name of a machine.
#[derive(Debug)]
pub(super) struct MachineName(pub(super) String);

impl Deref for MachineName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Parameter for MachineName {
    type Raw = String;

    /// No machine has an invalid name, so the answer is that the machine does not exist.
    fn check(raw: String) -> Result<Self, Problem> {
        if is_machine_name(&raw) { Ok(Self(raw)) } else { Err(Error::NoSuchMachine.into()) }
    }
}

/// Whether a machine can have this name.
pub(crate) fn is_machine_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// The name of a label.
#[derive(Debug)]
pub(super) struct LabelName(pub(super) String);

impl Deref for LabelName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Parameter for LabelName {
    type Raw = String;

    fn check(raw: String) -> Result<Self, Problem> {
        label_name(&raw)?;
        Ok(Self(raw))
    }
}

/// Checks the name of a label, in a path or in a body.
pub(super) fn label_name(name: &str) -> Result<(), Problem> {
    if is_label_name(name) {
        return Ok(());
    }
    let detail = "a label's name must be 1 to 256 bytes without control characters, and not `.` or `..`";
    Err(Problem::unprocessable("invalid_label_name", detail))
}
