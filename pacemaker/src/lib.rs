//! The control plane of Signalbox.

pub mod bus;
