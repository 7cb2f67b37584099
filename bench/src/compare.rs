//! Measurements side by side, and the ratios between them.
//!
//! A shared machine's performance varies from one minute to the next, so absolute figures of two runs are hard to
//! compare. Contenders take turns of a second instead, and each *round* gives one ratio: both its halves saw nearly
//! the same machine. The result is the median of the rounds' ratios, with the smallest and largest.

use serde::Serialize;

/// A ratio over all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Ratio {
    /// The middle one.
    pub(crate) median: f64,
    /// The smallest.
    pub(crate) min: f64,
    /// The largest.
    pub(crate) max: f64,
}

impl Ratio {
    /// The ratio of each pair, first to second. `None` without pairs; a pair with a zero is left out.
    pub(crate) fn of_pairs(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let mut ratios: Vec<f64> = pairs
            .into_iter()
            .filter(|(one, other)| *one > 0.0 && *other > 0.0)
            .map(|(one, other)| one / other)
            .collect();
        ratios.sort_by(f64::total_cmp);
        Some(Self { median: median(&ratios)?, min: *ratios.first()?, max: *ratios.last()? })
    }
}

/// The median of sorted values; of an even number of them the mean of the two in the middle.
fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 { Some(upper) } else { Some(f64::midpoint(sorted[middle - 1], upper)) }
}

/// The median of values in any order; 0 of none.
pub(crate) fn median_of(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    median(&values).unwrap_or(0.0)
}

/// The result of one turn of one contender.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Sample {
    /// Work done a second (requests, lines).
    pub(crate) rate: f64,
    /// CPU time for one unit of it, in microseconds.
    pub(crate) cpu_us: f64,
    /// Median latency in milliseconds.
    pub(crate) p50_ms: f64,
    /// The latency that one in a hundred exceeds.
    pub(crate) p99_ms: f64,
    /// Share of its core that the contender used.
    pub(crate) busy: f64,
    /// Share of its core that the load generator used.
    pub(crate) generator_busy: f64,
    /// Share of one core that other processes used during the turn.
    pub(crate) disturbance: f64,
    /// Work that failed.
    pub(crate) failed: u64,
}

/// One contestant of a comparison.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Contender {
    /// Its name.
    pub(crate) name: String,
    /// The ratio it has to reach, where one is set.
    pub(crate) target: Option<f64>,
    /// One for each round.
    pub(crate) samples: Vec<Sample>,
}

impl Contender {
    /// One that has not had a turn yet.
    pub(crate) fn new(name: &str, target: Option<f64>) -> Self {
        Self { name: name.to_owned(), target, samples: Vec::new() }
    }

    /// The median of one property over all rounds.
    pub(crate) fn median(&self, property: impl Fn(&Sample) -> f64) -> f64 {
        median_of(self.samples.iter().map(property))
    }
}

/// The quantity that the ratios compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Measure {
    /// CPU for a unit of work: the contender's to ours, so that above 1 we are cheaper.
    Cpu,
    /// Latency at p99: ours to the contender's, so that below 1 we are quicker.
    P99,
    /// Rate: ours to the contender's.
    Rate,
}

/// Contenders that took turns. The first is ours, the others are compared with it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Comparison {
    /// The title of the comparison.
    pub(crate) title: String,
    /// The measure that the targets apply to.
    pub(crate) measure: Measure,
    /// Ours first.
    pub(crate) contenders: Vec<Contender>,
    /// Notes for the reader.
    pub(crate) notes: Vec<String>,
}

impl Comparison {
    /// A ratio between ours and the contender at `index`, for each round; `None` for ourselves.
    pub(crate) fn ratio(&self, index: usize, measure: Measure) -> Option<Ratio> {
        if index == 0 {
            return None;
        }
        let pairs = self.contenders[0].samples.iter().zip(&self.contenders[index].samples);
        Ratio::of_pairs(pairs.map(|(ours, theirs)| match measure {
            Measure::Cpu => (theirs.cpu_us, ours.cpu_us),
            Measure::P99 => (ours.p99_ms, theirs.p99_ms),
            Measure::Rate => (ours.rate, theirs.rate),
        }))
    }

    /// Whether the contender at `index` meets its target; `None` without a target.
    pub(crate) fn met(&self, index: usize) -> Option<bool> {
        let target = self.contenders[index].target?;
        let median = self.ratio(index, self.measure)?.median;
        Some(if self.measure == Measure::P99 { median <= target } else { median >= target })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contender(target: Option<f64>, cpu: &[f64]) -> Contender {
        let samples = cpu.iter().map(|cpu_us| Sample { cpu_us: *cpu_us, p99_ms: 1.0, ..Sample::default() });
        Contender { name: String::new(), target, samples: samples.collect() }
    }

    fn comparison(measure: Measure, contenders: Vec<Contender>) -> Comparison {
        Comparison { title: String::new(), measure, contenders, notes: Vec::new() }
    }

    #[test]
    fn a_ratio_is_taken_within_each_round() {
        // The machine was half as fast in the second round, which is not a difference between the two.
        let comparison = comparison(
            Measure::Cpu,
            vec![contender(None, &[10.0, 20.0]), contender(Some(0.9), &[9.0, 18.0])],
        );
        let ratio = comparison.ratio(1, Measure::Cpu).unwrap();
        assert_eq!(ratio, Ratio { median: 0.9, min: 0.9, max: 0.9 });
        assert_eq!(comparison.met(1), Some(true));
        assert_eq!(comparison.ratio(0, Measure::Cpu), None);
    }

    #[test]
    fn a_latency_target_is_an_upper_limit() {
        let mut slower = contender(None, &[1.0]);
        slower.samples[0].p99_ms = 1.3;
        let comparison = comparison(Measure::P99, vec![slower, contender(Some(1.2), &[1.0])]);
        assert_eq!(comparison.met(1), Some(false));
    }

    #[test]
    fn medians() {
        assert_eq!(median_of([]), 0.0);
        assert_eq!(median_of([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median_of([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(Ratio::of_pairs([(1.0, 0.0)]), None);
        assert_eq!(Ratio::of_pairs([]), None);
    }
}
