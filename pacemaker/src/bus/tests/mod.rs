//! The bus against a real Redis.

#![allow(clippy::expect_used, clippy::unwrap_used)] // A test that cannot set itself up has failed.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

mod hands;
mod lifecycle;
mod model;
mod path;
mod scripts;
mod support;
mod truth;
