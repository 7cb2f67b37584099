//! Neighbors that share topics and the registry.
