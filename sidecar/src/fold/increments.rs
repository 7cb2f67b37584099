//! The increments of Redis hashes that a fold produces, in a fixed order and cut into parts.

use std::{borrow::Cow, ops::Range, sync::Arc};

use signalbox_store::{Key, StatsSpace, keys::stats};

use super::{
    Cell, Fold, METRICS,
    latency::{self, BUCKETS, Latency},
};

/// Seconds are kept this long after the end of their hour.
pub const HISTORY_KEPT_SECONDS: u64 = 2 * 3600;
/// Minutes are kept this long after the end of their hour.
pub const ROLLUP_KEPT_SECONDS: u64 = 14 * 24 * 3600;
/// Minutes of an instance are kept this long after the end of their hour. Instances are many and short-lived.
pub const INSTANCES_KEPT_SECONDS: u64 = 48 * 3600;

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

/// All increments of a window, in two flat lists. A window has tens of thousands of hashes, and allocating a
/// vector and a name for each was most of the cost of folding. Names are created when a hash is sent.
#[derive(Debug, Default)]
pub struct Increments {
    names: Vec<Arc<str>>,
    hashes: Vec<Entry>,
    /// Fields and increments, never zero.
    fields: Vec<(Field, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// The index of the name.
    name: usize,
    kind: Kind,
    /// The index of its first field. Its fields end where those of the next hash begin.
    begin: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Totals,
    History { hour: u64, metric: usize },
    Rollup { hour: u64, metric: usize },
    Latency { hour: u64, bucket: usize },
    InstanceLatency { hour: u64, bucket: usize },
}

/// The increments of a window that one script adds.
#[derive(Debug, Clone)]
pub struct Part<'a> {
    all: &'a Increments,
    fields: Range<usize>,
}

/// Increments of the fields of one hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hash<'a> {
    /// The hash.
    pub key: Key<StatsSpace>,
    /// The unix second at which it expires; `None` for no expiry.
    pub expire_at: Option<u64>,
    /// Fields (a metric, a code, a unix second) and increments, never zero.
    pub fields: &'a [(Field, u64)],
}

impl Fold {
    /// The increments of all folded lines: totals, history per second, rollup and latency per minute.
    ///
    /// Their order depends only on the folded lines: keys in order of appearance, and for each its totals, its codes in
    /// order of appearance, and its seconds and minutes by time; then instances in order of appearance.
    pub fn increments(&self) -> Increments {
        let mut all = Increments {
            names: (self.keys.iter().map(|key| &key.name))
                .chain(self.instances.iter().map(|instance| &instance.address))
                .map(Arc::clone)
                .collect(),
            hashes: Vec::new(),
            fields: Vec::with_capacity(self.increments),
        };
        let mut minutes: Vec<(u64, Cell)> = Vec::new();
        for (name, key) in self.keys.iter().enumerate() {
            let seconds = by_time(&key.seconds);
            let mut total = Cell::default();
            minutes.clear();
            for (second, cell) in seconds.iter() {
                total.merge(cell);
                let minute = second - second % 60;
                match minutes.last_mut().filter(|(last, _)| *last == minute) {
                    Some((_, sum)) => sum.merge(cell),
                    None => minutes.push((minute, *cell)),
                }
            }
            all.hashes.push(Entry { name, kind: Kind::Totals, begin: all.fields.len() });
            all.fields.extend(total.nonzero().map(|(metric, value)| (Field::Metric(METRICS[metric]), value)));
            all.fields
                .extend(key.codes.iter().map(|(code, count)| (Field::Number(u64::from(*code)), *count)));
            all.push_spans(name, &seconds, |hour, metric| Kind::History { hour, metric });
            all.push_spans(name, &minutes, |hour, metric| Kind::Rollup { hour, metric });
            all.push_latency(name, &key.latency, |hour, bucket| Kind::Latency { hour, bucket });
        }
        for (at, instance) in self.instances.iter().enumerate() {
            let name = self.keys.len() + at;
            all.push_latency(name, &instance.latency, |hour, bucket| Kind::InstanceLatency { hour, bucket });
        }
        debug_assert_eq!(all.len(), self.increments, "a fold knows what it costs");
        all
    }
}

/// Lines are almost in order, so sorting is rarely needed.
pub(super) fn by_time<T: Clone>(seconds: &[(u64, T)]) -> Cow<'_, [(u64, T)]> {
    if seconds.is_sorted_by_key(|(second, _)| *second) {
        return Cow::Borrowed(seconds);
    }
    let mut sorted = seconds.to_vec();
    sorted.sort_unstable_by_key(|(second, _)| *second);
    Cow::Owned(sorted)
}

impl Increments {
    fn push_spans(&mut self, name: usize, spans: &[(u64, Cell)], kind: impl Fn(u64, usize) -> Kind) {
        for spans in spans.chunk_by(|(one, _), (other, _)| one / 3600 == other / 3600) {
            let hour = spans[0].0 - spans[0].0 % 3600;
            for metric in 0..METRICS.len() {
                let begin = self.fields.len();
                let touched = spans.iter().filter(|(_, cell)| cell.values[metric] > 0);
                self.fields.extend(touched.map(|(at, cell)| (Field::Number(*at), cell.values[metric])));
                if self.fields.len() > begin {
                    self.hashes.push(Entry { name, kind: kind(hour, metric), begin });
                }
            }
        }
    }

    fn push_latency(&mut self, name: usize, latency: &Latency, kind: impl Fn(u64, usize) -> Kind) {
        let minutes = latency.by_time();
        for minutes in minutes.chunk_by(|(one, _), (other, _)| one / 3600 == other / 3600) {
            let hour = minutes[0].0 - minutes[0].0 % 3600;
            for bucket in 0..BUCKETS {
                let begin = self.fields.len();
                let touched = minutes.iter().filter(|(_, counts)| counts[bucket] > 0);
                self.fields
                    .extend(touched.map(|(at, counts)| (Field::Number(*at), u64::from(counts[bucket]))));
                if self.fields.len() > begin {
                    self.hashes.push(Entry { name, kind: kind(hour, bucket), begin });
                }
            }
        }
    }

    /// The number of increments.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there are no increments.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// All increments as one part.
    pub fn whole(&self) -> Part<'_> {
        Part { all: self, fields: 0..self.len() }
    }

    /// The part at `index`, if each part has at most `most` increments.
    pub fn part(&self, index: u32, most: usize) -> Part<'_> {
        let begin = (index as usize).saturating_mul(most).min(self.len());
        Part { all: self, fields: begin..begin.saturating_add(most).min(self.len()) }
    }

    /// A checksum over every name, field and value in order. It prevents a process from continuing a partly counted
    /// window whose bytes, or the way to fold them, have changed.
    pub fn digest(&self) -> u32 {
        let mut digest = crc32fast::Hasher::new();
        for (at, hash) in self.hashes.iter().enumerate() {
            let (kind, hour, metric) = match hash.kind {
                Kind::Totals => (0, 0, 0),
                Kind::History { hour, metric } => (1, hour, metric as u64),
                Kind::Rollup { hour, metric } => (2, hour, metric as u64),
                Kind::Latency { hour, bucket } => (3, hour, bucket as u64),
                Kind::InstanceLatency { hour, bucket } => (4, hour, bucket as u64),
            };
            let end = self.hashes.get(at + 1).map_or(self.len(), |next| next.begin);
            digest.update(self.names[hash.name].as_bytes());
            for number in [kind, hour, metric, (end - hash.begin) as u64] {
                digest.update(&number.to_be_bytes());
            }
            for (field, more) in &self.fields[hash.begin..end] {
                match field {
                    Field::Metric(name) => digest.update(name.as_bytes()),
                    Field::Number(number) => digest.update(&number.to_be_bytes()),
                }
                digest.update(&more.to_be_bytes());
            }
        }
        digest.finalize()
    }
}

impl<'a> Part<'a> {
    /// The number of increments.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether it has no increments.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Its increments by hash. A hash may continue in the next part.
    pub fn hashes(&self) -> impl Iterator<Item = Hash<'a>> + use<'a> {
        let (all, Range { start, end }) = (self.all, self.fields.clone());
        let first = all.hashes.partition_point(|hash| hash.begin <= start).saturating_sub(1);
        let ends = all.hashes[all.hashes.len().min(first + 1)..].iter().map(|next| next.begin);
        let hashes = all.hashes[first.min(all.hashes.len())..].iter().zip(ends.chain([all.len()]));
        hashes.take_while(move |(hash, _)| hash.begin < end).map(move |(hash, next)| Hash {
            key: hash.key(&all.names[hash.name]),
            expire_at: hash.kind.expire_at(),
            fields: &all.fields[hash.begin.max(start)..next.min(end)],
        })
    }
}

impl Entry {
    fn key(&self, name: &str) -> Key<StatsSpace> {
        // Seconds come from milliseconds below 2^44, so they fit a signed number.
        match self.kind {
            Kind::Totals => stats::stat(name),
            Kind::History { hour, metric } => stats::history(name, hour as i64, METRICS[metric]),
            Kind::Rollup { hour, metric } => stats::rollup(name, hour as i64, METRICS[metric]),
            Kind::Latency { hour, bucket } => stats::latency(name, hour as i64, latency::NAMES[bucket]),
            Kind::InstanceLatency { hour, bucket } => {
                stats::instance_latency(name, hour as i64, latency::NAMES[bucket])
            }
        }
    }
}

impl Kind {
    fn expire_at(self) -> Option<u64> {
        match self {
            Self::Totals => None,
            Self::History { hour, .. } => Some(hour + 3600 + HISTORY_KEPT_SECONDS),
            Self::Rollup { hour, .. } | Self::Latency { hour, .. } => Some(hour + 3600 + ROLLUP_KEPT_SECONDS),
            Self::InstanceLatency { hour, .. } => Some(hour + 3600 + INSTANCES_KEPT_SECONDS),
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
