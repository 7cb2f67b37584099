//! Shared code of the end-to-end tests in `it/`.
//!
//! Each test starts its own complete Signalbox ([`system::System`]: four Redis servers, nginx, both
//! daemons; [`slots`] limits how many run at the same time). It uses the system from outside: over
//! HTTP as a client, over Redis as an operator, and with signals that kill and stop parts.
//!
//! - Applications: [`upstream`] misbehaves on request, [`grpc`] speaks gRPC.
//! - Clients: [`load`] accounts for every byte, [`http`] sends any request, valid or not, [`http2`] one over HTTP/2, [`tls`] has certificates.
//! - Events: [`fleet`] is several pacemakers on one fabric, [`receiver`] a subscriber, [`events`] a live stream, and
//!   [`ledger`] a record of what was published and received. [`neighbor`] measures what one client notices of another.
//! - Observability: [`collector`] receives traces, [`openmetrics`] checks metrics.
//! - Faults: [`relay`] loses and repeats HTTP requests, [`victim`] is a part that dies again and again, and
//!   [`fault_ledger`] records which instances were healthy when. Faults of single bytes are in `signalbox_testkit::wire`.
//!
//! No test sleeps for a fixed time: `signalbox_testkit::eventually` waits for a condition.

#![allow(clippy::print_stdout, reason = "the output of a test is shown when it fails")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot continue has failed, and the panic shows where"
)]

pub mod acme;
pub mod collector;
pub mod engine;
pub mod events;
pub mod fault_ledger;
pub mod fleet;
pub mod grpc;
pub mod http;
pub mod http2;
pub mod ledger;
pub mod load;
pub mod neighbor;
pub mod openmetrics;
pub mod receiver;
pub mod relay;
pub mod slots;
pub mod system;
pub mod tls;
pub mod upstream;
pub mod victim;
