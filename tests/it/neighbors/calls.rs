//! Neighbors that share outgoing connections and file descriptors.
