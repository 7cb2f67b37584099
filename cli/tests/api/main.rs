//! The command against a small server that records its calls.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod completion;
mod coverage;
mod preconditions;
mod server;
