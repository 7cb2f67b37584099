//! Starts the whole system as child processes.
