//! The bus against a real Redis.

#![allow(clippy::expect_used, clippy::unwrap_used)] // A test that cannot set itself up has failed.

mod support;

mod path;
