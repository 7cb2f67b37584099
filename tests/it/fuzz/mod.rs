//! Mutated requests at the listeners, through real programs (see `signalbox_testkit::Fuzz`). Parsers have their targets in their
//! own crates.

mod api;
pub(crate) mod edge;
mod instance;
mod paths;
