//! Neighbors that share state machines: threads, labels, definitions.
