//! The test kit under the name that the modules of this crate use.

pub(crate) use signalbox_testkit::{PATIENCE, Servers, eventually};
