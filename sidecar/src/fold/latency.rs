//! Response times as a histogram.
//!
//! The buckets are fixed, so histograms of any version types, instances, routers and times can be added: two per octave from
//! 2 ms to 33 s (an error of at most a third), one up to 66 s, and one for the rest. The log contains truncated milliseconds,
//! so a bucket contains the values below its bound and not below the previous bound.

/// The number of buckets.
pub const BUCKETS: usize = 32;

/// The exclusive upper bound of each bucket but the last, in milliseconds.
pub const BELOW_MS: [u64; BUCKETS - 1] = [
    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12_288, 16_384, 24_576, 32_768, 65_536,
];

/// The names of the buckets in key names: their bounds.
pub const NAMES: [&str; BUCKETS] = [
    "1", "2", "3", "4", "6", "8", "12", "16", "24", "32", "48", "64", "96", "128", "192", "256", "384",
    "512", "768", "1024", "1536", "2048", "3072", "4096", "6144", "8192", "12288", "16384", "24576", "32768",
    "65536", "inf",
];

/// The bucket of `ms`. Its highest bit selects the octave, the next one the half of it.
pub fn bucket(ms: u64) -> usize {
    if ms < 2 {
        return ms as usize;
    }
    let octave = ms.ilog2() as usize;
    let half = (ms >> (octave - 1)) as usize & 1;
    match octave {
        ..15 => 2 * octave + half,
        15 => BUCKETS - 2,
        _ => BUCKETS - 1,
    }
}

/// The value in milliseconds at `quantile` (0 to 1), assuming that the values of a bucket are spread evenly. For the last
/// bucket, which has no bound, its start. `None` without values.
pub fn quantile(counts: &[u64; BUCKETS], quantile: f64) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    // 100 × 0.55 is 55.00000000000001 in binary, which would be a rank of the next bucket.
    let wanted = (total as f64 * quantile * 1e6).round() / 1e6;
    let mut below = 0;
    for (at, count) in counts.iter().enumerate() {
        let reached = (below + count) as f64 >= wanted;
        if *count > 0 && reached {
            let start = if at == 0 { 0 } else { BELOW_MS[at - 1] } as f64;
            let end = BELOW_MS.get(at).map_or(start, |end| *end as f64);
            return Some(start + (end - start) * (wanted - below as f64) / *count as f64);
        }
        below += count;
    }
    None
}

/// The histograms of one key, by minute.
#[derive(Debug, Default)]
pub(super) struct Latency {
    /// Unix seconds of minutes, in order of appearance.
    minutes: Vec<(u64, [u32; BUCKETS])>,
}

impl Latency {
    /// Counts an answer that ended at the unix second `second`. Returns the number of new increments.
    pub(super) fn add(&mut self, second: u64, ms: u64) -> usize {
        let minute = second - second % 60;
        let found = self.minutes.iter().rposition(|(at, _)| *at == minute);
        let at = found.unwrap_or_else(|| {
            self.minutes.push((minute, [0; BUCKETS]));
            self.minutes.len() - 1
        });
        // A window has far fewer than 2^32 lines.
        let count = &mut self.minutes[at].1[bucket(ms)];
        *count += 1;
        usize::from(*count == 1)
    }

    /// The minutes, ordered by time.
    pub(super) fn by_time(&self) -> std::borrow::Cow<'_, [(u64, [u32; BUCKETS])]> {
        super::increments::by_time(&self.minutes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_are_named_by_their_bounds() {
        for (below, name) in BELOW_MS.iter().zip(NAMES) {
            assert_eq!(below.to_string(), name);
        }
        assert!(BELOW_MS.is_sorted_by(|one, next| one < next));
    }

    #[test]
    fn every_value_is_below_the_bound_of_its_bucket_and_not_of_the_one_before() {
        for ms in (0..70_000).chain([1 << 20, u64::MAX]) {
            let at = bucket(ms);
            assert!(BELOW_MS.get(at).is_none_or(|below| ms < *below), "{ms}");
            assert!(at == 0 || ms >= BELOW_MS[at - 1], "{ms}");
        }
    }

    #[test]
    fn quantiles_of_no_value_one_value_and_the_last_bucket() {
        let mut counts = [0; BUCKETS];
        assert_eq!(quantile(&counts, 0.5), None);
        counts[bucket(5)] = 4;
        assert_eq!(quantile(&counts, 0.5), Some(5.0));
        assert_eq!(quantile(&counts, 1.0), Some(6.0));
        counts[BUCKETS - 1] = 1000;
        assert_eq!(quantile(&counts, 0.99), Some(65_536.0));
    }

    proptest! {
        /// A quantile is in the bucket of the value that it represents.
        #[test]
        fn a_quantile_is_as_good_as_its_bucket(
            mut values in proptest::collection::vec(0u64..60_000, 1..200),
            percent in 1u64..=100,
        ) {
            values.sort_unstable();
            let mut counts = [0; BUCKETS];
            values.iter().for_each(|value| counts[bucket(*value)] += 1);
            let rank = (values.len() as u64 * percent).div_ceil(100) as usize;
            let exact = values[rank - 1];
            let found = quantile(&counts, percent as f64 / 100.0).unwrap();
            let at = bucket(exact);
            let start = if at == 0 { 0 } else { BELOW_MS[at - 1] };
            prop_assert!(found >= start as f64 && found <= BELOW_MS[at] as f64, "{exact} as {found}");
        }
    }
}
