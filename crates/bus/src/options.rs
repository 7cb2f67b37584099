//! The section `[bus]` of the configuration.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use ipnet::IpNet;
use serde::Deserialize;
use signalbox_egress::{Budget, OwnAddresses};
use signalbox_settings::{section, within};

/// More bytes, or entries, than any machine has memory for.
const MAX_BYTES: u64 = 1 << 50;

/// The settings of the event bus. [`Options::DEFAULTS`] describes them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "`defaults.toml` describes the keys")]
pub struct Options {
    pub deliver: bool,
    #[serde(deserialize_with = "within::<_, _, 1, 10_000>")]
    pub workers: usize,
    #[serde(deserialize_with = "within::<_, _, 1, 3_600_000>")]
    pub slow_ms: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 100_000>")]
    pub slow_deliveries: usize,
    #[serde(deserialize_with = "within::<_, _, 1, 600_000>")]
    pub connect_ms: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 600_000>")]
    pub delivery_ms: u64,
    pub allow_http: bool,
    pub allow_networks: Vec<IpNet>,
    pub allow_addresses: Vec<SocketAddr>,
    pub ca_file: Option<PathBuf>,
    #[serde(deserialize_with = "within::<_, _, 2, 900_000>")]
    pub data_bytes: usize,
    #[serde(deserialize_with = "within::<_, _, 1, 10_000>")]
    pub request_events: usize,
    #[serde(deserialize_with = "within::<_, _, 1024, 8_388_608>")]
    pub batch_bytes: usize,
    #[serde(deserialize_with = "within::<_, _, 1, 4_294_967_295>")]
    pub max_attempts: u32,
    #[serde(deserialize_with = "within::<_, _, 1, 315_360_000>")]
    pub max_age_seconds: u64,
    #[serde(deserialize_with = "within::<_, _, 0, 315_360_000>")]
    pub log_seconds: u64,
    #[serde(deserialize_with = "within::<_, _, 0, MAX_BYTES>")]
    pub log_bytes: u64,
    #[serde(deserialize_with = "within::<_, _, 0, MAX_BYTES>")]
    pub tenant_bytes: u64,
    #[serde(deserialize_with = "within::<_, _, 1, MAX_BYTES>")]
    pub queued_events: u64,
    #[serde(deserialize_with = "within::<_, _, 0, MAX_BYTES>")]
    pub dead_events: u64,
    #[serde(deserialize_with = "within::<_, _, 0, MAX_BYTES>")]
    pub dead_bytes: u64,
    #[serde(deserialize_with = "within::<_, _, 1, MAX_BYTES>")]
    pub objects: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 315_360_000>")]
    pub object_seconds: u64,
    #[serde(deserialize_with = "within::<_, _, 1, MAX_BYTES>")]
    pub object_events: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 1_000>")]
    pub backends: usize,
    #[serde(deserialize_with = "within::<_, _, 1, MAX_BYTES>")]
    pub idempotency_keys: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 86_400>")]
    pub idempotency_seconds: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 1_000_000>")]
    pub topics: usize,
    #[serde(deserialize_with = "within::<_, _, 1, 1_000_000>")]
    pub topics_per_client: usize,
    #[serde(deserialize_with = "within::<_, _, 1, 100_000>")]
    pub subscriptions: usize,
    #[serde(deserialize_with = "within::<_, _, 1, 64>")]
    pub concurrency: u64,
    pub legacy_token_list: bool,
    pub topic_metrics: bool,
    pub encrypt_credentials: bool,
    #[serde(deserialize_with = "within::<_, _, 0, 100_000>")]
    pub streams: usize,
    #[serde(deserialize_with = "within::<_, _, 0, MAX_BYTES>")]
    pub overdue_jobs: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 100>")]
    pub memory_percent: u8,
    #[serde(deserialize_with = "within::<_, _, 1, 500>")]
    pub call_events: usize,
    #[serde(deserialize_with = "within::<_, _, 1, 1_000>")]
    pub call_appends: usize,
    #[serde(deserialize_with = "within::<_, _, 1024, 33_554_432>")]
    pub call_bytes: usize,
    #[serde(deserialize_with = "within::<_, _, 1, 10_000_000>")]
    pub waiting_events: usize,
    #[serde(deserialize_with = "within::<_, _, 0, 1_099_511_627_776>")]
    pub cache_bytes: usize,
    #[serde(deserialize_with = "within::<_, _, 10, 60_000>")]
    pub beat_ms: u64,
    #[serde(deserialize_with = "within::<_, _, 100, 3_600_000>")]
    pub dead_after_ms: u64,
    #[serde(deserialize_with = "within::<_, _, 10, 3_600_000>")]
    pub housekeeping_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        section("bus", Self::DEFAULTS)
    }
}

impl Options {
    /// The section of the default file: every key with its default and description.
    pub const DEFAULTS: &str = include_str!("defaults.toml");

    /// The limits of deliveries and of every other outgoing call. `own` are addresses that are never called,
    /// and `budget` is that of the process.
    pub fn egress(&self, own: OwnAddresses, budget: Budget) -> signalbox_egress::Options {
        signalbox_egress::Options {
            allow_networks: self.allow_networks.clone(),
            allow_addresses: self.allow_addresses.clone(),
            allow_http: self.allow_http,
            own,
            ca_file: self.ca_file.clone(),
            connect_timeout: Duration::from_millis(self.connect_ms),
            timeout: Duration::from_millis(self.delivery_ms),
            budget,
        }
    }

    pub(super) fn dead_after(&self) -> Duration {
        Duration::from_millis(self.dead_after_ms)
    }
}
