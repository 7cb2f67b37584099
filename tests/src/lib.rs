//! Support for the integration tests: see `it/`.
