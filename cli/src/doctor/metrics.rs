//! The metrics page, as far as rules need it.

/// Samples with their labels.
#[derive(Debug, Clone, Default)]
pub(super) struct Metrics(Vec<(String, f64)>);

impl Metrics {
    /// Reads a page in Prometheus' text format; what is no sample is left out.
    pub(super) fn read(page: &str) -> Self {
        let samples = page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Self(samples.collect())
    }

    /// The greatest sample of a name.
    pub(super) fn most(&self, name: &str) -> Option<f64> {
        self.all(name).map(|(_, value)| value).reduce(f64::max)
    }

    /// The smallest sample of a name.
    pub(super) fn least(&self, name: &str) -> Option<f64> {
        self.all(name).map(|(_, value)| value).reduce(f64::min)
    }

    /// Whether a sample of this name is above zero.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.most(name).is_some_and(|value| value > 0.0)
    }

    /// Labels, as they stand between the braces, and values of a name.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.0.iter().filter_map(move |(sample, value)| {
            let rest = sample.strip_prefix(name)?;
            let labels = if rest.is_empty() { "" } else { rest.strip_prefix('{')?.strip_suffix('}')? };
            Some((labels, *value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_by_their_whole_name() {
        let page = "# TYPE a gauge\na 1\na{x=\"1 2\"} 3\nab 9\nbroken\n";
        let metrics = Metrics::read(page);
        assert_eq!((metrics.most("a"), metrics.least("a"), metrics.most("b")), (Some(3.0), Some(1.0), None));
        assert_eq!(metrics.all("a").collect::<Vec<_>>(), [("", 1.0), ("x=\"1 2\"", 3.0)]);
        assert!(metrics.is_set("ab") && !metrics.is_set("zz"));
    }
}
