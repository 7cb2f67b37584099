//! Neighbors that share time of the fabric's Redis.
