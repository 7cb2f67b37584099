//! Neighbors that share memory of the fabric and of the event log.
