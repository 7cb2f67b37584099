//! The keys of `[bus]`: in a file, in the environment and as flags.

use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;

use super::Error;
use signalbox_bus::Options;

/// Writes each key once: its name, type, flag, environment variable, range and what `--help` says.
macro_rules! keys {
    ($($key:ident: $type:ty, $flag:literal, $env:literal, $range:expr, $help:literal;)*) => {
        /// One source of the keys of `[bus]`; the same struct for files and flags.
        #[derive(Debug, Default, Clone, Deserialize, clap::Args)]
        #[serde(deny_unknown_fields)]
        #[command(next_help_heading = "Event bus")]
        pub(crate) struct BusLayer {
            $(
                #[doc = $help]
                #[arg(id = $flag, long = $flag, value_name = "N", env = $env)]
                $key: Option<$type>,
            )*
            /// Deliver batches; a pacemaker that does not only accepts events
            #[arg(id = "bus-deliver", long = "bus-deliver", value_name = "BOOL", env = "SIGNALBOX_PACEMAKER_BUS_DELIVER")]
            deliver: Option<bool>,
            /// Accept http in the urls of events and callbacks
            #[arg(id = "bus-allow-http", long = "bus-allow-http", value_name = "BOOL", env = "SIGNALBOX_PACEMAKER_BUS_ALLOW_HTTP")]
            allow_http: Option<bool>,
            /// Networks that callbacks may lead to beside the public internet
            #[arg(id = "bus-allow-networks", long = "bus-allow-networks", value_name = "CIDR", value_delimiter = ',', env = "SIGNALBOX_PACEMAKER_BUS_ALLOW_NETWORKS")]
            allow_networks: Option<Vec<IpNet>>,
            /// Certificate authorities (PEM) to believe beside the system's
            #[arg(id = "bus-ca-file", long = "bus-ca-file", value_name = "FILE", env = "SIGNALBOX_PACEMAKER_BUS_CA_FILE")]
            ca_file: Option<PathBuf>,
        }

        impl BusLayer {
            /// Fills what is missing from `under`.
            pub(super) fn or(self, under: Self) -> Self {
                Self {
                    $($key: self.$key.or(under.$key),)*
                    deliver: self.deliver.or(under.deliver),
                    allow_http: self.allow_http.or(under.allow_http),
                    allow_networks: self.allow_networks.or(under.allow_networks),
                    ca_file: self.ca_file.or(under.ca_file),
                }
            }

            /// The checked settings.
            pub(super) fn complete(self) -> Result<Options, Error> {
                Ok(Options {
                    $(
                        $key: {
                            let key = concat!("bus.", stringify!($key));
                            let value = super::required(key, self.$key)?;
                            let range: std::ops::RangeInclusive<$type> = $range;
                            if !range.contains(&value) {
                                let message = format!("must be between {} and {}", range.start(), range.end());
                                return Err(Error::Value { key, message });
                            }
                            value
                        },
                    )*
                    deliver: super::required("bus.deliver", self.deliver)?,
                    allow_http: super::required("bus.allow_http", self.allow_http)?,
                    allow_networks: super::required("bus.allow_networks", self.allow_networks)?,
                    ca_file: self.ca_file,
                })
            }
        }
    };
}

/// Memory of Redis and of this process, in bytes: more than anybody has.
const MOST_BYTES: u64 = 1 << 50;

keys! {
    workers: usize, "bus-workers", "SIGNALBOX_PACEMAKER_BUS_WORKERS", 1..=10_000, "Deliveries at a time";
    slow_deliveries: usize, "bus-slow-deliveries", "SIGNALBOX_PACEMAKER_BUS_SLOW_DELIVERIES", 0..=100_000, "Slow deliveries that do not count as such";
    slow_ms: u64, "bus-slow-ms", "SIGNALBOX_PACEMAKER_BUS_SLOW_MS", 1..=3_600_000, "When a delivery is slow";
    connect_ms: u64, "bus-connect-ms", "SIGNALBOX_PACEMAKER_BUS_CONNECT_MS", 1..=600_000, "How long connecting to a subscriber may take";
    delivery_ms: u64, "bus-delivery-ms", "SIGNALBOX_PACEMAKER_BUS_DELIVERY_MS", 1..=600_000, "How long a delivery may take";
    data_bytes: usize, "bus-data-bytes", "SIGNALBOX_PACEMAKER_BUS_DATA_BYTES", 2..=900_000, "Bytes of an event's data";
    request_events: usize, "bus-request-events", "SIGNALBOX_PACEMAKER_BUS_REQUEST_EVENTS", 1..=10_000, "Events in one request";
    batch_bytes: usize, "bus-batch-bytes", "SIGNALBOX_PACEMAKER_BUS_BATCH_BYTES", 1024..=(64 << 20), "Bytes in one batch";
    max_attempts: u32, "bus-max-attempts", "SIGNALBOX_PACEMAKER_BUS_MAX_ATTEMPTS", 1..=u32::MAX, "Attempts before a batch is given up";
    max_age_seconds: u64, "bus-max-age-seconds", "SIGNALBOX_PACEMAKER_BUS_MAX_AGE_SECONDS", 1..=315_360_000, "Age at which a batch is given up";
    log_seconds: u64, "bus-log-seconds", "SIGNALBOX_PACEMAKER_BUS_LOG_SECONDS", 0..=315_360_000, "How long events stay for replay and streams";
    log_bytes: u64, "bus-log-bytes", "SIGNALBOX_PACEMAKER_BUS_LOG_BYTES", 0..=MOST_BYTES, "Bytes of events that stay when no batch needs them";
    queued_events: u64, "bus-queued-events", "SIGNALBOX_PACEMAKER_BUS_QUEUED_EVENTS", 1..=MOST_BYTES, "Events that may wait for one subscriber";
    dead_events: u64, "bus-dead-events", "SIGNALBOX_PACEMAKER_BUS_DEAD_EVENTS", 0..=MOST_BYTES, "Dead letters of one subscriber";
    dead_bytes: u64, "bus-dead-bytes", "SIGNALBOX_PACEMAKER_BUS_DEAD_BYTES", 0..=MOST_BYTES, "Bytes of one subscriber's dead letters";
    objects: u64, "bus-objects", "SIGNALBOX_PACEMAKER_BUS_OBJECTS", 1..=MOST_BYTES, "Objects whose last event id is remembered";
    object_seconds: u64, "bus-object-seconds", "SIGNALBOX_PACEMAKER_BUS_OBJECT_SECONDS", 1..=315_360_000, "How long it is remembered at least";
    object_events: u64, "bus-object-events", "SIGNALBOX_PACEMAKER_BUS_OBJECT_EVENTS", 1..=MOST_BYTES, "Events of one object that may wait for a backend";
    backends: usize, "bus-backends", "SIGNALBOX_PACEMAKER_BUS_BACKENDS", 1..=1_000, "Backends in all";
    idempotency_keys: u64, "bus-idempotency-keys", "SIGNALBOX_PACEMAKER_BUS_IDEMPOTENCY_KEYS", 0..=MOST_BYTES, "Idempotency keys remembered for one client";
    idempotency_seconds: u64, "bus-idempotency-seconds", "SIGNALBOX_PACEMAKER_BUS_IDEMPOTENCY_SECONDS", 0..=86_400, "How long a key is remembered";
    topics: usize, "bus-topics", "SIGNALBOX_PACEMAKER_BUS_TOPICS", 1..=1_000_000, "Topics in all";
    subscriptions: usize, "bus-subscriptions", "SIGNALBOX_PACEMAKER_BUS_SUBSCRIPTIONS", 1..=100_000, "Subscriptions in all";
    streams: usize, "bus-streams", "SIGNALBOX_PACEMAKER_BUS_STREAMS", 0..=100_000, "Streams of events at a time";
    overdue_jobs: u64, "bus-overdue-jobs", "SIGNALBOX_PACEMAKER_BUS_OVERDUE_JOBS", 0..=MOST_BYTES, "Overdue jobs from which the scaling pulse is slow";
    memory_percent: u8, "bus-memory-percent", "SIGNALBOX_PACEMAKER_BUS_MEMORY_PERCENT", 1..=100, "Share of the fabric's memory from which batches are dropped";
    call_events: usize, "bus-call-events", "SIGNALBOX_PACEMAKER_BUS_CALL_EVENTS", 1..=10_000, "Events in one call of the publish script";
    call_appends: usize, "bus-call-appends", "SIGNALBOX_PACEMAKER_BUS_CALL_APPENDS", 1..=1_000_000, "Events times subscribers in one call";
    call_bytes: usize, "bus-call-bytes", "SIGNALBOX_PACEMAKER_BUS_CALL_BYTES", 1024..=(256 << 20), "Bytes in one call";
    waiting_events: usize, "bus-waiting-events", "SIGNALBOX_PACEMAKER_BUS_WAITING_EVENTS", 1..=10_000_000, "Events that may wait for Redis";
    cache_bytes: usize, "bus-cache-bytes", "SIGNALBOX_PACEMAKER_BUS_CACHE_BYTES", 0..=(1 << 40), "Bytes of events kept in this process";
    beat_ms: u64, "bus-beat-ms", "SIGNALBOX_PACEMAKER_BUS_BEAT_MS", 10..=60_000, "Time between two heartbeats of a worker";
    dead_after_ms: u64, "bus-dead-after-ms", "SIGNALBOX_PACEMAKER_BUS_DEAD_AFTER_MS", 100..=3_600_000, "Silence after which a worker counts as dead";
    housekeeping_ms: u64, "bus-housekeeping-ms", "SIGNALBOX_PACEMAKER_BUS_HOUSEKEEPING_MS", 10..=3_600_000, "Time between two rounds of housekeeping";
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::{DEFAULTS, Layer};

    use super::*;

    fn defaults() -> BusLayer {
        Layer::parse(DEFAULTS, Path::new("defaults")).unwrap().bus
    }

    #[test]
    fn the_commented_file_says_what_the_code_does() {
        let (file, code) = (defaults().complete().unwrap(), Options::default());
        assert_eq!(format!("{file:#?}"), format!("{code:#?}"));
    }

    #[test]
    fn a_value_out_of_its_range_is_named() {
        let layer = BusLayer { workers: Some(0), ..BusLayer::default() };
        let error = layer.or(defaults()).complete().unwrap_err().to_string();
        assert_eq!(error, "bus.workers: must be between 1 and 10000");
    }

    #[test]
    fn a_network_that_is_none_is_reported_with_its_place() {
        let error = Layer::parse("[bus]\nallow_networks = ['everything']", Path::new("p.toml")).unwrap_err();
        assert!(error.to_string().starts_with("p.toml:2:"), "{error}");
    }
}
