//! What can be set.

use std::{path::PathBuf, time::Duration};

use ipnet::IpNet;
use serde::Deserialize;

/// The settings of the event bus.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Deliveries at a time. One that is slow (see `slow_ms`) no longer counts.
    pub workers: usize,
    /// How many slow deliveries may be under way beside the workers.
    pub slow_deliveries: usize,
    /// When a delivery counts as slow, in milliseconds.
    pub slow_ms: u64,
    /// Deliver at all. A pacemaker that does not only accepts events.
    pub deliver: bool,
    /// Events in one call of the publish script.
    pub call_events: usize,
    /// Events × subscribers in one call of the publish script: what bounds how long it holds up Redis.
    pub call_appends: usize,
    /// Bytes in one call of the publish script.
    pub call_bytes: usize,
    /// Events that may wait for Redis in this process before publishers are told to come back.
    pub waiting_events: usize,
    /// Bytes of events kept in this process, so that deliveries seldom read them again.
    pub cache_bytes: usize,
    /// Bytes in one batch.
    pub batch_bytes: usize,
    /// Attempts before a batch is given up.
    pub max_attempts: u32,
    /// Age in seconds at which a batch is given up.
    pub max_age_seconds: u64,
    /// Seconds that events stay in the log for replay and streams.
    pub log_seconds: u64,
    /// Bytes of events that stay in the log when no batch needs them.
    pub log_bytes: u64,
    /// Events that may wait for one subscriber; its oldest batches go beyond that.
    pub queued_events: u64,
    /// Dead letters kept for one subscriber, in events.
    pub dead_events: u64,
    /// Dead letters kept for one subscriber, in bytes.
    pub dead_bytes: u64,
    /// Objects whose last event id is remembered for certain (twice as many may be).
    pub objects: u64,
    /// Seconds for which an object's last event id is remembered at least.
    pub object_seconds: u64,
    /// Events that may wait for a backend in the queue of one object; publishers are told to come back beyond that.
    pub object_events: u64,
    /// Backends in all.
    pub backends: usize,
    /// Idempotency keys remembered for one client.
    pub idempotency_keys: u64,
    /// Seconds for which an idempotency key is remembered.
    pub idempotency_seconds: u64,
    /// Topics in all.
    pub topics: usize,
    /// Subscriptions in all.
    pub subscriptions: usize,
    /// Streams of events that one pacemaker serves at a time.
    pub streams: usize,
    /// Share of the fabric's `maxmemory` (percent) from which memory is freed.
    pub memory_percent: u8,
    /// Milliseconds between two heartbeats of a busy worker.
    pub beat_ms: u64,
    /// Milliseconds without a heartbeat, as seen by a living pacemaker, after which a worker counts as dead.
    pub dead_after_ms: u64,
    /// Milliseconds between two rounds of housekeeping.
    pub housekeeping_ms: u64,
    /// Jobs overdue before the scaling pulse slows down.
    pub overdue_jobs: u64,
    /// Accept `http` in the urls of events and callbacks, not only `https`.
    pub allow_http: bool,
    /// Networks that callbacks may lead to beside the public internet.
    pub allow_networks: Vec<IpNet>,
    /// A PEM file with certificate authorities to believe beside the system's.
    pub ca_file: Option<PathBuf>,
    /// Milliseconds that connecting to a subscriber may take.
    pub connect_ms: u64,
    /// Milliseconds that a delivery may take in all.
    pub delivery_ms: u64,
    /// Bytes of an event's `data`.
    pub data_bytes: usize,
    /// Events in one request.
    pub request_events: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workers: 16,
            slow_deliveries: 256,
            slow_ms: 500,
            deliver: true,
            call_events: 400,
            call_appends: 20_000,
            call_bytes: 4 << 20,
            waiting_events: 40_000,
            cache_bytes: 64 << 20,
            batch_bytes: 1 << 20,
            max_attempts: 100_000,
            max_age_seconds: 3 * 24 * 3600,
            log_seconds: 24 * 3600,
            log_bytes: 256 << 20,
            queued_events: 1_000_000,
            dead_events: 10_000,
            dead_bytes: 64 << 20,
            objects: 1_000_000,
            object_seconds: 30 * 24 * 3600,
            object_events: 1_000,
            backends: 100,
            idempotency_keys: 100_000,
            idempotency_seconds: 600,
            topics: 10_000,
            subscriptions: 1_000,
            streams: 256,
            memory_percent: 90,
            beat_ms: 2_000,
            dead_after_ms: 15_000,
            housekeeping_ms: 10_000,
            overdue_jobs: 1_000,
            allow_http: false,
            allow_networks: Vec::new(),
            ca_file: None,
            connect_ms: 3_000,
            delivery_ms: 15_000,
            data_bytes: 64 << 10,
            request_events: 1_000,
        }
    }
}

impl Options {
    /// The limits of deliveries and of every other outgoing call.
    pub fn egress(&self) -> signalbox_egress::Options {
        signalbox_egress::Options {
            allow_networks: self.allow_networks.clone(),
            ca_file: self.ca_file.clone(),
            connect_timeout: Duration::from_millis(self.connect_ms),
            timeout: Duration::from_millis(self.delivery_ms),
        }
    }

    pub(super) fn dead_after(&self) -> Duration {
        Duration::from_millis(self.dead_after_ms)
    }
}
