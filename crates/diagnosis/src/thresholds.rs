//! The limits that the rules use. The pacemaker's own events, its router states and the sidecar's alarms use the same
//! constants.

/// Clocks that differ by more make leases, signatures and statistics wrong.
pub(crate) const MAX_CLOCK_SKEW_MS: u64 = 2_000;
/// The oldest supported major version of Redis.
pub(crate) const MIN_REDIS_MAJOR: u32 = 7;
/// A primary contacts its replicas every second. This long without contact is a fault.
pub(crate) const REPLICA_SILENT_SECONDS: u64 = 15;
/// Used memory, in percent of `maxmemory`, that calls for action.
pub(crate) const REDIS_MEMORY_PERCENT: u64 = 90;

/// Routers report every second. After this long without a report a router is shown as silent.
pub const ROUTER_SILENT_MS: u64 = 3_000;
/// After this long without a report, changes are no longer held back for the router.
pub const ROUTER_EXCLUDED_MS: u64 = 10_000;
/// After this long without a report the router is no longer listed.
pub const ROUTER_FORGOTTEN_MS: u64 = 60_000;
/// How much longer than [`ROUTER_EXCLUDED_MS`] a router is silent before an event is published. After an outage of the
/// stats Redis all last reports are old until each router has reported once.
pub const ROUTER_SILENCE_CONFIRMED_MS: u64 = 3_000;
/// Alarms with which a router reports that it rejected the table in Redis and serves an older one.
pub const TABLE_ALARMS: [&str; 2] = ["table_regressed", "epoch_unknown"];

/// Counters are normally half a second behind the log.
pub(crate) const MAX_COUNTING_LAG_SECONDS: f64 = 10.0;
/// The lag at which the sidecar itself raises the alarm `statistics_late`, which publishes an event.
pub const COUNTING_ALARM_MS: u64 = 30_000;
/// With fewer requests in a minute, a share of errors means nothing.
pub(crate) const MIN_REQUESTS: u64 = 20;
/// The share of server errors, in percent, that is a problem.
pub(crate) const MAX_ERROR_PERCENT: u64 = 5;

/// Days before its end at which an event about a certificate is published, and the end itself. Ascending.
pub const CERTIFICATE_EVENT_DAYS: [u32; 5] = [0, 1, 7, 14, 30];
/// Days before its end from which a certificate is a finding: long enough to renew it.
pub const CERTIFICATE_WARNING_DAYS: u64 = 14;

/// Below this health, of 100, most deliveries fail and are slowed down.
pub(crate) const MIN_SUBSCRIBER_HEALTH: u32 = 50;
/// The age of the oldest waiting batch, beyond the batch's own timeout, at which a subscriber is behind.
pub(crate) const MAX_BATCH_AGE_MS: u64 = 60_000;
/// Labels are evaluated within a second of when they are due.
pub(crate) const MAX_LABEL_LAG_SECONDS: f64 = 60.0;
/// The share of failed feed requests, in percent, that is a problem.
pub(crate) const MAX_FEED_FAILURE_PERCENT: u64 = 10;
/// The share of its idempotency keys that a client uses, in percent, that calls for action.
pub(crate) const IDEMPOTENCY_KEYS_PERCENT: u64 = 80;
/// How many objects one finding names.
pub(crate) const NAMED_OBJECTS: usize = 3;
