//! Numbers with a range, declared at the field:
//! `#[serde(deserialize_with = "within::<_, _, 1, 10_000>")] workers: usize`.

use std::{fmt, marker::PhantomData, time::Duration};

use serde::de::{Deserializer, Error, Unexpected, Visitor};

struct Within<T, const MIN: u64, const MAX: u64>(PhantomData<T>);

impl<T: TryFrom<u64>, const MIN: u64, const MAX: u64> Visitor<'_> for Within<T, MIN, MAX> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an integer between {MIN} and {MAX}")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        match u64::try_from(value) {
            Ok(value) => self.visit_u64(value),
            Err(_) => Err(E::custom(format!("must be between {MIN} and {MAX}"))),
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        let value = Some(value).filter(|value| (MIN..=MAX).contains(value));
        let value = value.and_then(|value| T::try_from(value).ok());
        value.ok_or_else(|| E::custom(format!("must be between {MIN} and {MAX}")))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<T, E> {
        Err(E::invalid_type(Unexpected::Float(value), &self))
    }
}

/// An integer between `MIN` and `MAX`.
///
/// # Errors
/// If it is outside the range.
pub fn within<'de, D, T, const MIN: u64, const MAX: u64>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    deserializer.deserialize_u64(Within::<T, MIN, MAX>(PhantomData))
}

/// A time of `MIN` to `MAX` milliseconds.
///
/// # Errors
/// If it is outside the range.
pub fn milliseconds<'de, D, const MIN: u64, const MAX: u64>(deserializer: D) -> Result<Duration, D::Error>
where
    D: Deserializer<'de>,
{
    within::<D, u64, MIN, MAX>(deserializer).map(Duration::from_millis)
}
