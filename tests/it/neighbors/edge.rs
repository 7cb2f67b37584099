//! Neighbors that share places, limits and memory of the edge.
