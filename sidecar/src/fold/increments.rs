//! The increments of Redis hashes that a fold produces, in a fixed order and cut into parts.

use std::{borrow::Cow, collections::BTreeMap, ops::Range, sync::Arc};

use signalbox_store::{Key, StatsSpace, keys::stats};

use super::{
    Cell, EDGE_ERRORS, Fold, METRICS, OPERATORS, RANKINGS, REQUESTS, SERVER_ERRORS, TOTAL,
    latency::{self, BUCKETS, Latency},
};

/// Seconds are kept this long after the end of their hour.
pub const HISTORY_KEPT_SECONDS: u64 = 2 * 3600;
/// Minutes are kept this long after the end of their hour.
pub const ROLLUP_KEPT_SECONDS: u64 = 14 * 24 * 3600;
/// Minutes of an instance are kept this long after the end of their hour. Instances are many and short-lived.
pub const INSTANCES_KEPT_SECONDS: u64 = 48 * 3600;

/// Rankings are kept this long after the end of their minute: readers need the present one and the one before.
const RANKING_KEPT_SECONDS: u64 = 600;

/// The name of a hash field, or a member of a ranking.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// One of [`METRICS`].
    Metric(&'static str),
    /// A status code or a unix second.
    Number(u64),
    /// A version type.
    Member(Arc<str>),
}

impl std::fmt::Display for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Metric(name) => f.write_str(name),
            Self::Number(number) => number.fmt(f),
            Self::Member(name) => f.write_str(name),
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
    History {
        hour: u64,
        metric: usize,
    },
    Rollup {
        hour: u64,
        metric: usize,
    },
    Latency {
        hour: u64,
        bucket: usize,
    },
    InstanceLatency {
        hour: u64,
        bucket: usize,
    },
    /// A sorted set; the others are hashes.
    Ranking {
        minute: u64,
        by: usize,
    },
}

/// The increments of a window that one script adds.
#[derive(Debug, Clone)]
pub struct Part<'a> {
    all: &'a Increments,
    fields: Range<usize>,
}

/// Increments of the fields of one hash, or of the members of a ranking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hash<'a> {
    /// The hash, or the sorted set.
    pub key: Key<StatsSpace>,
    /// Whether it is a sorted set. These come last.
    pub is_ranking: bool,
    /// The unix second at which it expires; `None` for no expiry.
    pub expire_at: Option<u64>,
    /// Fields (a metric, a code, a unix second) and increments, never zero.
    pub fields: &'a [(Field, u64)],
}

impl Fold {
    /// The increments of all folded lines: totals, history per second, rollup and latency per minute.
    ///
    /// Their order depends only on the folded lines: keys in order of appearance, and for each its totals, its codes in
    /// order of appearance, and its seconds and minutes by time; then instances in order of appearance, the sums over all
    /// keys, and the rankings by time.
    pub fn increments(&self) -> Increments {
        let total = Arc::from(TOTAL);
        let mut all = Increments {
            names: (self.keys.iter().map(|key| &key.name))
                .chain(self.instances.iter().map(|instance| &instance.address))
                .chain([&total])
                .map(Arc::clone)
                .collect(),
            hashes: Vec::new(),
            fields: Vec::with_capacity(self.increments),
        };
        let mut minutes: Vec<(u64, Cell)> = Vec::new();
        let mut rankings: BTreeMap<u64, [Vec<(Field, u64)>; RANKINGS.len()]> = BTreeMap::new();
        for (name, key) in self.keys.iter().enumerate() {
            let seconds = by_time(&key.seconds);
            let total = sum_minutes(&seconds, &mut minutes);
            for (minute, cell) in minutes.iter().filter(|_| key.ranked) {
                let of_minute = rankings.entry(*minute).or_default();
                let counts = [cell.values[REQUESTS], cell.values[SERVER_ERRORS] - cell.values[EDGE_ERRORS]];
                for (ranking, count) in of_minute.iter_mut().zip(counts).filter(|(_, count)| *count > 0) {
                    ranking.push((Field::Member(Arc::clone(&key.name)), count));
                }
            }
            all.push_totals(name, &total);
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
        self.push_total(&mut all, &mut minutes);
        for (minute, rankings) in rankings {
            for (by, fields) in rankings.into_iter().enumerate().filter(|(_, fields)| !fields.is_empty()) {
                all.hashes.push(Entry {
                    name: 0,
                    kind: Kind::Ranking { minute, by },
                    begin: all.fields.len(),
                });
                all.fields.extend(fields);
            }
        }
        debug_assert_eq!(all.len(), self.increments, "a fold knows what it costs");
        all
    }

    /// Adds the sums over all keys of applications. `minutes` is memory.
    fn push_total(&self, all: &mut Increments, minutes: &mut Vec<(u64, Cell)>) {
        let name = self.keys.len() + self.instances.len();
        let (mut seconds, mut latencies) = (BTreeMap::new(), BTreeMap::new());
        for key in self.keys.iter().filter(|key| &*key.name != OPERATORS) {
            for (second, cell) in &key.seconds {
                seconds.entry(*second).or_insert_with(Cell::default).merge(cell);
            }
            for (minute, counts) in key.latency.by_time().iter() {
                let sums: &mut [u32; BUCKETS] = latencies.entry(*minute).or_default();
                sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
        }
        if seconds.is_empty() {
            return;
        }
        let seconds: Vec<(u64, Cell)> = seconds.into_iter().collect();
        let total = sum_minutes(&seconds, minutes);
        all.push_totals(name, &total);
        all.push_spans(name, &seconds, |hour, metric| Kind::History { hour, metric });
        all.push_spans(name, minutes, |hour, metric| Kind::Rollup { hour, metric });
        let latencies: Vec<(u64, [u32; BUCKETS])> = latencies.into_iter().collect();
        all.push_buckets(name, &latencies, |hour, bucket| Kind::Latency { hour, bucket });
    }
}

/// Adds seconds up to minutes, and returns their sum.
fn sum_minutes(seconds: &[(u64, Cell)], minutes: &mut Vec<(u64, Cell)>) -> Cell {
    let mut total = Cell::default();
    minutes.clear();
    for (second, cell) in seconds {
        total.merge(cell);
        let minute = second - second % 60;
        match minutes.last_mut().filter(|(last, _)| *last == minute) {
            Some((_, sum)) => sum.merge(cell),
            None => minutes.push((minute, *cell)),
        }
    }
    total
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
    fn push_totals(&mut self, name: usize, total: &Cell) {
        self.hashes.push(Entry { name, kind: Kind::Totals, begin: self.fields.len() });
        self.fields.extend(total.nonzero().map(|(metric, value)| (Field::Metric(METRICS[metric]), value)));
    }

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
        self.push_buckets(name, &latency.by_time(), kind);
    }

    fn push_buckets(
        &mut self,
        name: usize,
        minutes: &[(u64, [u32; BUCKETS])],
        kind: impl Fn(u64, usize) -> Kind,
    ) {
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
                Kind::Ranking { minute, by } => (5, minute, by as u64),
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
                    Field::Member(name) => digest.update(name.as_bytes()),
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
            is_ranking: matches!(hash.kind, Kind::Ranking { .. }),
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
            Kind::Ranking { minute, by } => stats::ranking(minute as i64, RANKINGS[by]),
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
            Self::Ranking { minute, .. } => Some(minute + 60 + RANKING_KEPT_SECONDS),
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
