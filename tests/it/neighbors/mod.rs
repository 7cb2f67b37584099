//! Noisy neighbors: for each resource that several tokens, tenants, receivers or hosts share, one of them exhausts it in each
//! way that it can, and the promises made to another one are asserted: its events arrive, its calls are as fast as before, its
//! registrations work, and `/health` responds.
//!
//! A file covers one resource. Every test is one way to exhaust it. `tests/src/neighbor.rs` measures the victim.

mod calls;
mod descriptors;
mod edge;
mod health_checks;
mod machines;
mod memory;
mod queues;
mod redis_time;
mod statistics;
mod subscribers;
mod tokens;
mod topics;
