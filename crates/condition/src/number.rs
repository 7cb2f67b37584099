//! Numbers that compare by value: 64-bit integers exactly, also with floats.

use std::cmp::Ordering;

/// A JSON number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    /// From `i64::MIN` to `u64::MAX`.
    Integer(i128),
    /// Always finite, as in JSON.
    Float(f64),
}

impl Number {
    pub(crate) fn of(number: &serde_json::Number) -> Self {
        match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Self::Integer(integer.into()),
            (_, Some(integer)) => Self::Integer(integer.into()),
            _ => Self::Float(number.as_f64().unwrap_or(f64::MAX)),
        }
    }

    pub(crate) fn is_zero(self) -> bool {
        match self {
            Self::Integer(integer) => integer == 0,
            Self::Float(float) => float == 0.0,
        }
    }

    pub(crate) fn compare(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::Integer(left), Self::Integer(right)) => left.cmp(&right),
            // Neither value is NaN, so they are ordered.
            (Self::Float(left), Self::Float(right)) => left.partial_cmp(&right).unwrap_or(Ordering::Equal),
            (Self::Integer(left), Self::Float(right)) => integer_with_float(left, right),
            (Self::Float(left), Self::Integer(right)) => integer_with_float(right, left).reverse(),
        }
    }

    /// A number of seconds in nanoseconds, rounded to the nearest and limited to the range.
    pub(crate) fn seconds_to_nanos(self) -> i128 {
        match self {
            Self::Integer(seconds) => seconds.saturating_mul(NANOS),
            // Computed separately, so that whole seconds stay exact beyond 2^53 nanoseconds.
            Self::Float(seconds) => (whole(seconds).saturating_mul(NANOS))
                .saturating_add((seconds.fract() * NANOS as f64).round() as i128),
        }
    }

    pub(crate) fn to_json(self) -> serde_json::Value {
        match self {
            Self::Integer(integer) => match i64::try_from(integer) {
                Ok(integer) => integer.into(),
                Err(_) => u64::try_from(integer).unwrap_or(u64::MAX).into(),
            },
            Self::Float(float) => float.into(),
        }
    }
}

pub(crate) const NANOS: i128 = 1_000_000_000;

/// A cast of the integer to a float would lose digits (2^53 + 1). Instead, the integer is compared with the
/// float's whole part, which is exact and saturates far outside of the range of 64 bits.
fn integer_with_float(integer: i128, float: f64) -> Ordering {
    integer.cmp(&whole(float)).then_with(|| {
        // The whole parts are equal, so the fraction decides. It has the float's sign.
        0.0_f64.partial_cmp(&float.fract()).unwrap_or(Ordering::Equal)
    })
}

#[allow(clippy::cast_possible_truncation, reason = "a float cast saturates")]
fn whole(float: f64) -> i128 {
    float.trunc() as i128
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(left: Number, right: Number) -> Ordering {
        assert_eq!(left.compare(right), right.compare(left).reverse());
        left.compare(right)
    }

    #[test]
    fn an_integer_beyond_what_a_float_holds_differs_from_the_float_next_to_it() {
        let float = Number::Float(9_007_199_254_740_992.0);
        assert_eq!(order(Number::Integer(9_007_199_254_740_993), float), Ordering::Greater);
        assert_eq!(order(Number::Integer(9_007_199_254_740_992), float), Ordering::Equal);
        assert_eq!(order(Number::Integer(9_007_199_254_740_991), float), Ordering::Less);
        assert_eq!(
            order(Number::Integer(u64::MAX.into()), Number::Float(18_446_744_073_709_551_616.0)),
            Ordering::Less
        );
    }

    #[test]
    fn the_fraction_is_compared_on_both_sides_of_zero() {
        assert_eq!(order(Number::Integer(1), Number::Float(1.5)), Ordering::Less);
        assert_eq!(order(Number::Integer(-1), Number::Float(-1.5)), Ordering::Greater);
        assert_eq!(order(Number::Integer(0), Number::Float(-0.0)), Ordering::Equal);
        assert_eq!(order(Number::Integer(0), Number::Float(1e-300)), Ordering::Less);
    }

    #[test]
    fn a_huge_float_is_beyond_all_integers() {
        for float in [1e300, f64::MAX] {
            assert_eq!(order(Number::Integer(u64::MAX.into()), Number::Float(float)), Ordering::Less);
            assert_eq!(order(Number::Integer(i64::MIN.into()), Number::Float(-float)), Ordering::Greater);
        }
    }

    #[test]
    fn seconds_are_exact_to_the_nanosecond() {
        assert_eq!(Number::Float(0.1).seconds_to_nanos(), 100_000_000);
        assert_eq!(Number::Float(-0.5).seconds_to_nanos(), -500_000_000);
        assert_eq!(Number::Float(100_000_000.25).seconds_to_nanos(), 100_000_000_250_000_000);
        assert_eq!(Number::Float(1e300).seconds_to_nanos(), i128::MAX);
        assert_eq!(Number::Integer(43_200).seconds_to_nanos(), 43_200_000_000_000);
    }
}
