//! Latencies, counted in buckets whose width grows with the value.
//!
//! The same idea as HdrHistogram: each power of two is cut into 128 equal buckets, so that a value is known to within
//! 0.8 % whatever its size, and recording one is an index and an addition. A sorted list would be exact, and would cost
//! the load generator more than a request does.

/// Buckets in each power of two, as a power of two.
const PRECISION_BITS: u32 = 7;
const PER_OCTAVE: usize = 1 << PRECISION_BITS;
/// Values from 2^40 ns (18 minutes) on share the last bucket.
const OCTAVES: usize = 40 - PRECISION_BITS as usize + 1;

/// A histogram of nanoseconds.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; OCTAVES * PER_OCTAVE], count: 0, max: 0 }
    }
}

impl Histogram {
    /// Counts one value.
    pub(crate) fn record(&mut self, nanos: u64) {
        self.buckets[index(nanos)] += 1;
        self.count += 1;
        self.max = self.max.max(nanos);
    }

    /// How many values were counted.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The largest value, exactly.
    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// The smallest value that `share` (0 to 1) of all values do not exceed, rounded up to the end of its bucket.
    /// 0 when nothing was counted.
    pub(crate) fn quantile(&self, share: f64) -> u64 {
        // At least one value, or the 0th quantile would be the end of the first, empty bucket.
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let wanted = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= wanted {
                return upper_end(index).min(self.max);
            }
        }
        self.max
    }
}

fn index(nanos: u64) -> usize {
    if nanos < PER_OCTAVE as u64 {
        return nanos as usize;
    }
    let exponent = nanos.ilog2() - PRECISION_BITS;
    // The leading one is implied by the octave; what is left selects the bucket.
    let bucket = (nanos >> exponent) as usize - PER_OCTAVE;
    ((exponent as usize + 1) * PER_OCTAVE + bucket).min(OCTAVES * PER_OCTAVE - 1)
}

fn upper_end(index: usize) -> u64 {
    if index < PER_OCTAVE {
        return index as u64;
    }
    let exponent = index / PER_OCTAVE - 1;
    let bucket = index % PER_OCTAVE + PER_OCTAVE;
    ((bucket as u64 + 1) << exponent) - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_counted_is_zero() {
        let empty = Histogram::default();
        assert_eq!((empty.quantile(0.5), empty.max(), empty.count()), (0, 0, 0));
    }

    #[test]
    fn small_values_are_exact() {
        let mut histogram = Histogram::default();
        for value in 1..=100 {
            histogram.record(value);
        }
        assert_eq!(histogram.quantile(0.0), 1);
        assert_eq!(histogram.quantile(0.5), 50);
        assert_eq!(histogram.quantile(0.99), 99);
        assert_eq!(histogram.quantile(1.0), 100);
    }

    #[test]
    fn a_value_beyond_the_range_is_kept_as_maximum() {
        let mut histogram = Histogram::default();
        histogram.record(u64::MAX);
        assert_eq!(histogram.max(), u64::MAX);
        assert_eq!(histogram.count(), 1);
    }

    proptest! {
        #[test]
        fn every_bucket_holds_its_own_values(nanos in 0u64..1 << 39) {
            let bucket = index(nanos);
            prop_assert!(nanos <= upper_end(bucket));
            prop_assert!(bucket == 0 || nanos > upper_end(bucket - 1));
        }

        #[test]
        fn quantiles_are_within_one_percent(
            mut values in proptest::collection::vec(0u64..1 << 38, 1..300),
            share in 0.0f64..=1.0,
        ) {
            let mut histogram = Histogram::default();
            for value in &values {
                histogram.record(*value);
            }
            values.sort_unstable();
            let rank = ((values.len() as f64 * share).ceil() as usize).clamp(1, values.len());
            let exact = values[rank - 1];
            let answer = histogram.quantile(share);
            prop_assert!(answer >= exact);
            prop_assert!(answer as f64 <= exact as f64 * 1.01 + 1.0, "{answer} for {exact}");
        }
    }
}
