//! Randomness, passed in so that a test can repeat it.

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A source of random names and numbers.
#[derive(Debug)]
pub(super) struct Rng(Mutex<StdRng>);

impl Rng {
    pub(super) fn from_system() -> Self {
        Self(Mutex::new(StdRng::from_rng(&mut rand::rng())))
    }

    fn with<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.0.lock())
    }

    /// Random characters of the URL-safe base64 alphabet.
    pub(super) fn characters(&self, count: usize) -> String {
        self.with(|rng| (0..count).map(|_| char::from(DIGITS[rng.random_range(0..DIGITS.len())])).collect())
    }

    /// The seed from which a script makes batch IDs.
    pub(super) fn seed(&self) -> String {
        self.characters(16)
    }

    /// A number that is uniform in 0..1.
    pub(super) fn uniform(&self) -> f64 {
        self.with(|rng| rng.random())
    }
}
