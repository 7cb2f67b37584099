//! Neighbors that share pull queues.
