//! Neighbors that share deliveries to subscribers and backends.
