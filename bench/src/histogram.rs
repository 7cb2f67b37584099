//! Latencies in nanoseconds, with the precision that the reports print.

/// Values up to 2^40 ns (18 minutes) are known to within two significant digits; longer ones count as that long.
const HIGHEST: u64 = 1 << 40;
const SIGNIFICANT_DIGITS: u8 = 2;

/// A histogram of nanoseconds. Recording is an index and an addition, because the load generator pays for it with every
/// request.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    counts: hdrhistogram::Histogram<u64>,
    /// The largest value, which the buckets would round.
    max: u64,
}

impl Default for Histogram {
    #[expect(clippy::expect_used, reason = "the bounds are constants, and valid")]
    fn default() -> Self {
        let counts = hdrhistogram::Histogram::new_with_max(HIGHEST, SIGNIFICANT_DIGITS);
        Self { counts: counts.expect("valid bounds"), max: 0 }
    }
}

impl Histogram {
    /// Counts one value.
    pub(crate) fn record(&mut self, nanos: u64) {
        self.counts.saturating_record(nanos);
        self.max = self.max.max(nanos);
    }

    /// How many values were counted.
    pub(crate) fn count(&self) -> u64 {
        self.counts.len()
    }

    /// The largest value, exactly.
    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// The smallest value that `share` (0 to 1) of all values do not exceed, rounded up to the end of its bucket.
    /// 0 when nothing was counted.
    pub(crate) fn quantile(&self, share: f64) -> u64 {
        self.counts.value_at_quantile(share).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_histogram_is_zero() {
        let empty = Histogram::default();
        assert_eq!((empty.quantile(0.5), empty.max(), empty.count()), (0, 0, 0));
    }

    #[test]
    fn a_value_beyond_the_range_is_kept_as_maximum() {
        let mut histogram = Histogram::default();
        histogram.record(u64::MAX);
        assert_eq!((histogram.max(), histogram.count()), (u64::MAX, 1));
        assert!(histogram.quantile(0.5) >= HIGHEST);
    }

    proptest! {
        #[test]
        fn quantiles_are_within_one_percent_and_the_maximum_is_exact(
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
            prop_assert_eq!(histogram.max(), values[values.len() - 1]);
        }
    }
}
