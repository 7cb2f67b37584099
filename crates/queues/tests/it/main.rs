//! Queues on a running bus, against a real Redis.

mod consumers;
mod faults;
mod model;
mod scale;
mod shards;
mod support;
mod traces;
