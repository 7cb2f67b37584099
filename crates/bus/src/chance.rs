//! Randomness, passed in so that a test can repeat it.

use std::sync::{Mutex, PoisonError};

use rand::{RngExt, SeedableRng, rngs::StdRng};

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A source of random names and numbers.
#[derive(Debug)]
pub(super) struct Chance(Mutex<StdRng>);

impl Chance {
    pub(super) fn from_system() -> Self {
        Self(Mutex::new(StdRng::from_rng(&mut rand::rng())))
    }

    fn with<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Random characters that need no quoting anywhere.
    pub(super) fn characters(&self, count: usize) -> String {
        self.with(|rng| (0..count).map(|_| char::from(DIGITS[rng.random_range(0..DIGITS.len())])).collect())
    }

    /// What a script makes its batch ids from.
    pub(super) fn seed(&self) -> String {
        self.characters(16)
    }

    /// Uniform in 0..1.
    pub(super) fn dice(&self) -> f64 {
        self.with(|rng| rng.random())
    }
}
