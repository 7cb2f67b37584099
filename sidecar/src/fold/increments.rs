//! What a fold adds to which Redis hash.

use signalbox_store::{Key, StatsSpace, keys::stats};

use super::{Cell, Fold, METRICS};

/// Seconds are kept this long after the end of their hour.
pub const HISTORY_KEPT_SECONDS: u64 = 2 * 3600;
/// Minutes are kept this long after the end of their hour.
pub const ROLLUP_KEPT_SECONDS: u64 = 14 * 24 * 3600;

/// Increments of the fields of one hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Increments {
    /// The hash.
    pub key: Key<StatsSpace>,
    /// The unix second after which it may go; `None` stays for ever.
    pub expire_at: Option<u64>,
    /// Fields (a metric, a code, a unix second) and what to add, never zero.
    pub fields: Vec<(Field, u64)>,
}

/// The name of a hash field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// One of [`METRICS`].
    Metric(&'static str),
    /// A status code or a unix second.
    Number(u64),
}

impl std::fmt::Display for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Metric(name) => f.write_str(name),
            Self::Number(number) => number.fmt(f),
        }
    }
}

impl Fold {
    /// The increments of everything that was folded: totals, history per second, rollup per minute.
    pub fn increments(&self) -> Vec<Increments> {
        let mut all = Vec::new();
        for key in &self.keys {
            let mut total = Cell::default();
            let mut hours = Spans::default();
            let mut minutes = Spans::default();
            for (second, cell) in &key.seconds {
                total.merge(cell);
                hours.push(second - second % 3600, *second, cell);
                minutes.push(second - second % 3600, second - second % 60, cell);
            }
            all.push(Increments {
                key: stats::stat(&key.name),
                expire_at: None,
                fields: total
                    .nonzero()
                    .map(|(metric, value)| (Field::Metric(METRICS[metric]), value))
                    .chain(key.codes.iter().map(|(code, count)| (Field::Number(u64::from(*code)), *count)))
                    .collect(),
            });
            hours.hashes(&mut all, HISTORY_KEPT_SECONDS, |hour, metric| {
                stats::history(&key.name, hour, metric)
            });
            minutes
                .hashes(&mut all, ROLLUP_KEPT_SECONDS, |hour, metric| stats::rollup(&key.name, hour, metric));
        }
        all
    }
}

/// The cells of one key by hour and then by span within it, few of each.
#[derive(Default)]
struct Spans(Vec<(u64, Vec<(u64, Cell)>)>);

impl Spans {
    fn push(&mut self, hour: u64, at: u64, cell: &Cell) {
        let position = self.0.iter().rposition(|(seen, _)| *seen == hour).unwrap_or_else(|| {
            self.0.push((hour, Vec::new()));
            self.0.len() - 1
        });
        let spans = &mut self.0[position].1;
        match spans.iter_mut().rev().find(|(seen, _)| *seen == at) {
            Some((_, sum)) => sum.merge(cell),
            None => spans.push((at, *cell)),
        }
    }

    fn hashes(
        self,
        all: &mut Vec<Increments>,
        kept_seconds: u64,
        key: impl Fn(i64, &str) -> Key<StatsSpace>,
    ) {
        for (hour, spans) in self.0 {
            for (metric, name) in METRICS.iter().enumerate() {
                let fields: Vec<_> = spans
                    .iter()
                    .filter(|(_, cell)| cell.values[metric] > 0)
                    .map(|(at, cell)| (Field::Number(*at), cell.values[metric]))
                    .collect();
                if !fields.is_empty() {
                    // Seconds come from milliseconds below 2^44, so they fit a signed number.
                    let key = key(hour as i64, name);
                    all.push(Increments { key, expire_at: Some(hour + 3600 + kept_seconds), fields });
                }
            }
        }
    }
}

impl Cell {
    fn merge(&mut self, other: &Self) {
        for (value, more) in self.values.iter_mut().zip(&other.values) {
            *value += more;
        }
        self.touched |= other.touched;
    }

    fn nonzero(&self) -> impl Iterator<Item = (usize, u64)> {
        self.values.into_iter().enumerate().filter(|(_, value)| *value > 0)
    }
}
