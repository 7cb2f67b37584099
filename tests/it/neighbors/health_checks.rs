//! Neighbors that share health checks.
