//! What the end-to-end tests in `it/` are made of.
//!
//! Each test starts a whole Signalbox of its own ([`system::System`]: four Redis, nginx, both daemons) and talks to it
//! from outside, over HTTP as a client, over Redis as an operator, and with signals as fate. Around it stand
//! applications that misbehave on request ([`upstream`]), a client whose every byte is accounted for ([`load`]), one
//! that says whatever it is told ([`http`]), a wire that can be cut ([`wire`]), and a network that loses and repeats
//! requests ([`relay`]). For the event bus there are several
//! pacemakers on one fabric ([`fleet`]), a fabric that is a
//! cluster ([`cluster`]), parts that die again and again ([`victim`]), subscribers ([`receiver`]), a collector of traces
//! ([`collector`]), streams ([`events`]), and a book of what they were sent ([`ledger`]).
//!
//! Nothing here sleeps for a fixed time: [`poll::until`] waits for a condition and says in its failure what it saw last.

#![allow(clippy::print_stdout, reason = "the output of a test is shown when it fails")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed, and says where"
)]

pub mod cluster;
pub mod collector;
pub mod events;
pub mod fates;
pub mod fleet;
pub mod grpc;
pub mod http;
pub mod ledger;
pub mod load;
pub mod openmetrics;
pub mod poll;
pub mod receiver;
pub mod relay;
pub mod slots;
pub mod system;
pub mod tls;
pub mod upstream;
pub mod victim;

pub use signalbox_testkit::wire;
