//! Adds many lines up to few increments.
//!
//! One second of traffic of one version type is ten numbers, for any number of requests. [`Fold`] adds lines up in memory, per
//! key and second, and [`Fold::increments`] derives the rest: totals per key, history per second, rollup per minute, and
//! response times per key and per instance ([`latency`]), the same over all keys ([`TOTAL`]), and which keys have most
//! requests and errors in a minute ([`RANKINGS`]). Zeros are never written.
//!
//! A fold counts the Redis increments that it needs and stops at a limit, always at the end of a line. The covered range of
//! whole lines is a *window*. Its memory is limited for any number of version types. In a larger window, more lines share an
//! increment: with a thousand busy version types, two thousand increments cover a hundred lines, and two hundred thousand
//! increments cover a hundred thousand lines and more.
//!
//! One script must not block Redis for that long. So [`Increments`] orders a window's increments by its bytes alone, and cuts
//! them into parts. Folding the same bytes later yields the same parts, so another process can continue in the middle
//! ([`FORMAT`], [`Increments::digest`]).

mod file;
mod increments;
pub mod latency;

use rustc_hash::FxBuildHasher;
use std::{collections::HashMap, sync::Arc};

pub use file::{Summary, file};
pub use increments::{
    Field, HISTORY_KEPT_SECONDS, Hash, INSTANCES_KEPT_SECONDS, Increments, Part, ROLLUP_KEPT_SECONDS,
};

use crate::line::{self, MAX_ANSWERS, Record, UNCAUGHT};
use latency::Latency;

/// The names of the metrics in Redis. History and rollup contain all of them.
pub const METRICS: [&str; 11] =
    ["requests", "bytes", "timecount", "time", "nginxtime", "1xx", "2xx", "3xx", "4xx", "5xx", "edge_5xx"];

pub use signalbox_store::keys::stats::TOTAL;

/// The rankings of version types in a minute: by requests, and by those that an instance failed or answered with 5xx.
pub const RANKINGS: [&str; 2] = ["requests", "errors"];

const REQUESTS: usize = 0;
const BYTES: usize = 1;
const TIMECOUNT: usize = 2;
const TIME: usize = 3;
const NGINXTIME: usize = 4;
/// The index of `1xx`; the other classes follow.
const FIRST_CLASS: usize = 5;
const SERVER_ERRORS: usize = 9;
/// Those of them that the edge answered without trying an instance.
const EDGE_ERRORS: usize = 10;
/// The bits of metrics in a mask.
const METRIC_BITS: u16 = (1 << METRICS.len()) - 1;
/// The bit of a request that counts in the ranking by errors.
const FAILED: u16 = 1 << 15;

/// The version of folding and cutting. Raise it with any change to the parsing of lines, the metrics, the order of the
/// increments or the size of a part, so that an unfinished window of an older sidecar is not continued. (The digest would
/// detect this, too; the number shows the reason.)
pub const FORMAT: u32 = 3;

/// The limits of a window and of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The maximum increments of one script, which blocks Redis for a few milliseconds. At least 1.
    pub part: usize,
    /// The maximum increments of one window: about 20 MB in this process, and half a second of Redis in a
    /// hundred scripts.
    pub window: usize,
    /// The maximum bytes of one window. A window of few keys could contain any number of lines; with this limit a sidecar that
    /// catches up moves its position several times per second.
    pub window_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { part: 2_000, window: 200_000, window_bytes: 64 << 20 }
    }
}

/// The maximum increments of one line: requests, bytes, timecount, time, nginxtime and a class, each as total, second and
/// minute, and one bucket, for its key and for all keys; one code; one bucket of each instance; and the rankings.
const MAX_PER_LINE: usize = 2 * (6 * 3 + 1) + 1 + MAX_ANSWERS + RANKINGS.len();

/// The key of operators' requests to the daemons, which are not instances.
const OPERATORS: &str = "pacemaker";

/// The maximum stored length of a bad line.
const SAMPLE_BYTES: usize = 512;

/// The metrics of one second or another period.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Cell {
    values: [u64; METRICS.len()],
    /// One bit per value that is not zero and needs an increment.
    touched: u16,
}

/// The folded lines of one key.
#[derive(Debug)]
struct Key {
    name: Arc<str>,
    /// Whether it is a version type, which is ranked.
    ranked: bool,
    /// One bit per total that is not zero.
    touched: u16,
    /// Unix seconds. Lines are almost in order, so the last entry nearly always matches.
    seconds: Vec<(u64, Cell)>,
    /// Unix seconds of minutes, with the metrics that are not zero in each, and whether a request [`FAILED`].
    minutes: Vec<(u64, u16)>,
    /// Status codes. A key has a handful, so searching a list beats hashing.
    codes: Vec<(u16, u64)>,
    latency: Latency,
}

/// Which increments the sums over all keys need. The sums themselves are made from those of the keys.
#[derive(Debug, Default)]
struct Total {
    touched: u16,
    seconds: Vec<(u64, u16)>,
    minutes: Vec<(u64, u16)>,
    /// Unix seconds of minutes, with one bit per bucket.
    buckets: Vec<(u64, u32)>,
}

impl Total {
    /// Records what a line changes. Returns the number of new increments.
    fn touch(&mut self, second: u64, touched: u16, ms: Option<u64>) -> usize {
        let (touched, minute) = (touched & METRIC_BITS, second - second % 60);
        let mut new = mark(&mut self.seconds, second, touched);
        // What is not new in its second is not new in its minute.
        if new > 0 {
            new += mark(&mut self.minutes, minute, touched);
            new += (touched & !self.touched).count_ones();
            self.touched |= touched;
        }
        if let Some(ms) = ms {
            new += mark(&mut self.buckets, minute, 1 << latency::bucket(ms));
        }
        new as usize
    }
}

/// Sets bits of a time, and returns how many were not set before. The last time nearly always matches.
fn mark<T>(times: &mut Vec<(u64, T)>, at: u64, bits: T) -> u32
where
    T: Copy + Into<u32> + std::ops::BitOrAssign,
{
    match times.iter().rposition(|(time, _)| *time == at) {
        Some(place) => {
            let set = &mut times[place].1;
            let new = bits.into() & !(*set).into();
            *set |= bits;
            new.count_ones()
        }
        None => {
            times.push((at, bits));
            bits.into().count_ones()
        }
    }
}

/// The response times of one instance.
#[derive(Debug)]
struct Instance {
    address: Arc<str>,
    latency: Latency,
}

/// Added-up lines, ready to be committed.
#[derive(Debug, Default)]
pub struct Fold {
    keys: Vec<Key>,
    index: HashMap<Arc<str>, usize, FxBuildHasher>,
    instances: Vec<Instance>,
    instance_index: HashMap<Arc<str>, usize, FxBuildHasher>,
    total: Total,
    /// The key of the previous line. On a router with one busy application, no hash is computed.
    last: usize,
    increments: usize,
    lines: u64,
    bad_lines: u64,
    bad_sample: Option<String>,
    latest_ms: u64,
}

/// The result of [`Fold::absorb`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Absorbed {
    /// Bytes of the folded lines.
    pub consumed: usize,
    /// Whether it stopped because the fold is full, not at the last newline.
    pub full: bool,
}

impl Fold {
    /// Folds whole lines from the start of `bytes`, as long as the next one cannot exceed `most` increments. The first line
    /// is always folded.
    pub fn absorb(&mut self, bytes: &[u8], most: usize) -> Absorbed {
        let mut consumed = 0;
        for newline in memchr::memchr_iter(b'\n', bytes) {
            if self.is_full(most) {
                return Absorbed { consumed, full: true };
            }
            self.line(&bytes[consumed..newline]);
            consumed = newline + 1;
        }
        Absorbed { consumed, full: self.is_full(most) }
    }

    /// Folds one line without its newline.
    pub fn line(&mut self, line: &[u8]) {
        match line::parse(line) {
            Some(record) => {
                self.lines += 1;
                self.latest_ms = self.latest_ms.max(record.at_ms);
                self.add(&record);
            }
            None => self.bad_line(line),
        }
    }

    /// Counts an invalid line. It is kept as a sample, because a number alone does not help an operator.
    pub fn bad_line(&mut self, line: &[u8]) {
        self.bad_lines += 1;
        let sample = &line[..line.len().min(SAMPLE_BYTES)];
        self.bad_sample = Some(String::from_utf8_lossy(sample).into_owned());
    }

    fn add(&mut self, record: &Record<'_>) {
        let at = self.key(&record.key);
        let key = &mut self.keys[at];
        let second = record.at_ms / 1000;
        let cell = key.cell(second);
        let touched = cell.add(record);
        let new = touched & !cell.touched;
        if new != 0 {
            cell.touched |= new;
            self.increments += (new & METRIC_BITS).count_ones() as usize + key.touch(second, touched);
        }
        if record.key != OPERATORS {
            self.increments += self.total.touch(second, touched, record.upstream_ms);
        }
        if (100..=599).contains(&record.code) {
            self.increments += key.count_code(record.code);
        }
        if let Some(ms) = record.upstream_ms {
            self.increments += key.latency.add(second, ms);
        }
        if record.key != OPERATORS {
            for answer in record.answers.iter() {
                let at = self.instance(&answer.address);
                self.increments += self.instances[at].latency.add(second, answer.ms);
            }
        }
    }

    fn instance(&mut self, address: &str) -> usize {
        if let Some(at) = self.instance_index.get(address) {
            return *at;
        }
        let address: Arc<str> = address.into();
        self.instance_index.insert(Arc::clone(&address), self.instances.len());
        self.instances.push(Instance { address, latency: Latency::default() });
        self.instances.len() - 1
    }

    fn key(&mut self, name: &str) -> usize {
        if self.keys.get(self.last).is_some_and(|key| *key.name == *name) {
            return self.last;
        }
        self.last = match self.index.get(name) {
            Some(at) => *at,
            None => {
                let at = self.keys.len();
                let name: Arc<str> = name.into();
                self.keys.push(Key::new(Arc::clone(&name)));
                self.index.insert(name, at);
                at
            }
        };
        self.last
    }

    fn is_full(&self, most: usize) -> bool {
        self.increments > most.saturating_sub(MAX_PER_LINE)
    }

    /// Whether no line was folded, good or bad.
    pub fn is_empty(&self) -> bool {
        self.lines == 0 && self.bad_lines == 0
    }

    /// The number of Redis increments that the folded lines need.
    pub fn cost(&self) -> usize {
        self.increments
    }

    /// Number of good lines.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Number of bad lines.
    pub fn bad_lines(&self) -> u64 {
        self.bad_lines
    }

    /// The beginning of the last bad line.
    pub fn bad_sample(&self) -> Option<&str> {
        self.bad_sample.as_deref()
    }

    /// The end of the latest request, in unix milliseconds; 0 without lines.
    pub fn latest_ms(&self) -> u64 {
        self.latest_ms
    }

    /// Empties the fold but keeps its memory.
    pub fn clear(&mut self) {
        let Self { mut keys, mut index, mut instances, mut instance_index, .. } = std::mem::take(self);
        keys.clear();
        index.clear();
        instances.clear();
        instance_index.clear();
        *self = Self { keys, index, instances, instance_index, ..Self::default() };
    }
}

impl Cell {
    /// Adds a line, and returns the metrics that it changes.
    fn add(&mut self, record: &Record<'_>) -> u16 {
        let values = &mut self.values;
        let mut touched = 1 << REQUESTS;
        values[REQUESTS] += 1;
        values[BYTES] += record.bytes;
        touched |= u16::from(record.bytes > 0) << BYTES;
        if let Some(ms) = record.upstream_ms {
            values[TIMECOUNT] += 1;
            values[TIME] += ms;
            touched |= 1 << TIMECOUNT | u16::from(ms > 0) << TIME;
        }
        values[NGINXTIME] += record.nginx_ms;
        touched |= u16::from(record.nginx_ms > 0) << NGINXTIME;
        if let class @ 1..=5 = record.code / 100 {
            let metric = FIRST_CLASS + usize::from(class) - 1;
            values[metric] += 1;
            touched |= 1 << metric;
            if metric == SERVER_ERRORS {
                values[EDGE_ERRORS] += u64::from(record.by_edge);
                touched |= if record.by_edge { 1 << EDGE_ERRORS } else { FAILED };
            }
        }
        touched
    }
}

impl Key {
    fn new(name: Arc<str>) -> Self {
        Self {
            ranked: ![UNCAUGHT, OPERATORS].contains(&&*name),
            name,
            touched: 0,
            seconds: Vec::new(),
            minutes: Vec::new(),
            codes: Vec::new(),
            latency: Latency::default(),
        }
    }

    fn cell(&mut self, second: u64) -> &mut Cell {
        let found = self.seconds.iter().rposition(|(at, _)| *at == second);
        let at = found.unwrap_or_else(|| {
            self.seconds.push((second, Cell::default()));
            self.seconds.len() - 1
        });
        &mut self.seconds[at].1
    }

    /// Records which metrics a line changes in its minute and in the totals. Returns the number of new increments.
    fn touch(&mut self, second: u64, touched: u16) -> usize {
        let minute = second - second % 60;
        let found = self.minutes.iter().rposition(|(at, _)| *at == minute);
        let at = found.unwrap_or_else(|| {
            self.minutes.push((minute, 0));
            self.minutes.len() - 1
        });
        let in_minute = &mut self.minutes[at].1;
        let new = touched & !*in_minute;
        *in_minute |= touched;
        let metrics = touched & METRIC_BITS;
        let mut increments = (new & METRIC_BITS).count_ones() + (metrics & !self.touched).count_ones();
        self.touched |= metrics;
        if self.ranked {
            increments += (new & (1 << REQUESTS | FAILED)).count_ones();
        }
        increments as usize
    }

    /// Counts a status code. Returns 1 if it is the key's first of that code.
    fn count_code(&mut self, code: u16) -> usize {
        match self.codes.iter_mut().find(|(seen, _)| *seen == code) {
            Some((_, count)) => {
                *count += 1;
                0
            }
            None => {
                self.codes.push((code, 1));
                1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Counters = BTreeMap<String, BTreeMap<String, u64>>;

    fn line(key: u32, at_ms: u64, code: u16, bytes: u64, upstream: &str) -> String {
        let status = if upstream == "-" { "-" } else { "200" };
        format!(
            r#"{{"key":"{key}","bytes":{bytes},"code":{code},"timemsec":{}.{:03},"nginx_response_time":0.005,"upstream_response_time":"{upstream}","upstream_status":"{status}","upstream_addr":"a:1","time":"t","method":"GET","host":"h","uri":"/","request_id":"r"}}"#,
            at_ms / 1000,
            at_ms % 1000,
        )
    }

    /// The maximum increments of a window in these tests.
    const MAX_COST: usize = 1_500;

    fn add(counters: &mut Counters, fold: &Fold) {
        add_in_parts(counters, fold, usize::MAX);
    }

    fn add_in_parts(counters: &mut Counters, fold: &Fold, most: usize) {
        let increments = fold.increments();
        let mut cost = 0;
        for index in 0..increments.len().div_ceil(most) as u32 {
            let part = increments.part(index, most);
            assert!(!part.is_empty() && part.len() <= most);
            let mut fields = 0;
            for hash in part.hashes() {
                assert!(!hash.fields.is_empty(), "no key is sent for nothing");
                for (field, more) in hash.fields {
                    assert!(*more > 0, "zeros are not written");
                    fields += 1;
                    let field = counters.entry(hash.key.to_string()).or_default().entry(field.to_string());
                    *field.or_default() += more;
                }
            }
            assert_eq!(fields, part.len());
            cost += fields;
        }
        assert_eq!(cost, fold.cost(), "a fold knows what it costs");
    }

    /// Folds `text` in pieces of at most `piece` bytes, committing in parts of at most `part` whenever it is full.
    fn fold_in_pieces(text: &[u8], piece: usize, part: usize) -> Counters {
        let mut counters = Counters::new();
        let mut fold = Fold::default();
        let mut at = 0;
        let mut end = 0;
        while end < text.len() {
            end = (end + piece).min(text.len());
            loop {
                let absorbed = fold.absorb(&text[at..end], MAX_COST);
                at += absorbed.consumed;
                if !absorbed.full {
                    break;
                }
                assert!(fold.cost() <= MAX_COST);
                add_in_parts(&mut counters, &fold, part);
                fold.clear();
            }
        }
        add_in_parts(&mut counters, &fold, part);
        counters
    }

    #[test]
    fn a_line_adds_to_totals_history_and_rollup() {
        let mut fold = Fold::default();
        for line in [line(17, 7_261_005, 200, 10, "0.004"), line(17, 7_261_999, 404, 0, "-")] {
            fold.line(line.as_bytes());
        }
        let mut counters = Counters::new();
        add(&mut counters, &fold);
        let hash = |name: &str| counters.get(name).cloned().unwrap_or_default();
        let fields = |pairs: &[(&str, u64)]| -> BTreeMap<String, u64> {
            pairs.iter().map(|(field, value)| ((*field).to_owned(), *value)).collect()
        };
        assert_eq!(
            hash("stat:17"),
            fields(&[
                ("200", 1),
                ("2xx", 1),
                ("404", 1),
                ("4xx", 1),
                ("bytes", 10),
                ("nginxtime", 10),
                ("requests", 2),
                ("time", 4),
                ("timecount", 1),
            ])
        );
        assert_eq!(hash("history:17:7200:requests"), fields(&[("7261", 2)]));
        assert_eq!(hash("history:17:7200:time"), fields(&[("7261", 4)]));
        assert_eq!(hash("rollup:17:7200:requests"), fields(&[("7260", 2)]));
        assert_eq!(hash("latency:17:7200:6"), fields(&[("7260", 1)]));
        assert_eq!(hash("instance_latency:a:1:7200:6"), fields(&[("7260", 1)]));
        assert!(!counters.contains_key("history:17:7200:5xx"));
    }

    #[test]
    fn all_requests_of_applications_are_added_up_and_version_types_are_ranked() {
        let mut fold = Fold::default();
        let minute = 7_260_000;
        for (key, code, upstream) in
            [(17, 200, "0.004"), (17, 502, "0.001"), (17, 503, "-"), (18, 503, "-"), (18, 200, "0.004")]
        {
            fold.line(line(key, minute, code, 10, upstream).as_bytes());
        }
        for other in ["null", "pacemaker"] {
            let line =
                line(17, minute, 500, 10, "0.001").replace("\"key\":\"17\"", &format!("\"key\":\"{other}\""));
            fold.line(line.as_bytes());
        }
        let mut counters = Counters::new();
        add(&mut counters, &fold);
        let hash = |name: &str| counters.get(name).cloned().unwrap_or_default();
        let fields = |pairs: &[(&str, u64)]| -> BTreeMap<String, u64> {
            pairs.iter().map(|(field, value)| ((*field).to_owned(), *value)).collect()
        };
        let total = hash("stat:*");
        assert_eq!((total["requests"], total["5xx"], total["edge_5xx"], total["timecount"]), (6, 4, 2, 4));
        assert_eq!(hash("history:*:7200:requests"), fields(&[("7260", 6)]));
        assert_eq!(hash("rollup:*:7200:edge_5xx"), fields(&[("7260", 2)]));
        assert_eq!(hash("latency:*:7200:6"), fields(&[("7260", 2)]));
        assert_eq!(hash("ranking:7260:requests"), fields(&[("17", 3), ("18", 2)]));
        // What the edge answered itself is not an error of a version type.
        assert_eq!(hash("ranking:7260:errors"), fields(&[("17", 1)]));
        let increments = fold.increments();
        let ranked: Vec<bool> = increments.whole().hashes().map(|hash| hash.is_ranking).collect();
        assert!(ranked.is_sorted(), "rankings come last");
    }

    #[test]
    fn an_unknown_status_code_has_no_class() {
        let mut fold = Fold::default();
        fold.line(line(1, 0, 0, 1, "-").as_bytes());
        let mut counters = Counters::new();
        add(&mut counters, &fold);
        assert_eq!(counters["stat:1"].keys().collect::<Vec<_>>(), ["bytes", "nginxtime", "requests"]);
    }

    #[test]
    fn bad_lines_are_counted_and_the_beginning_of_the_last_is_kept() {
        let mut fold = Fold::default();
        assert_eq!(fold.absorb(b"one\n\nno end", MAX_COST), Absorbed { consumed: 5, full: false });
        fold.line(&[0xff; 10_000]);
        assert_eq!((fold.lines(), fold.bad_lines()), (0, 3));
        assert_eq!(fold.bad_sample().map(|sample| sample.chars().count()), Some(SAMPLE_BYTES));
        fold.clear();
        assert!(fold.is_empty() && fold.bad_sample().is_none() && fold.cost() == 0);
    }

    /// Another process can continue a window because the same bytes yield the same parts, however they are read.
    #[test]
    fn the_same_lines_yield_the_same_parts() {
        let fold = |lines: &[String]| {
            let mut fold = Fold::default();
            lines.iter().for_each(|line| fold.line(line.as_bytes()));
            fold.increments()
        };
        let mut lines: Vec<_> = (0..500).map(|n| line(n % 37, u64::from(n) * 977, 200, 7, "0.002")).collect();
        let digest = fold(&lines).digest();
        assert_eq!(fold(&lines).digest(), digest);
        let last = line(499 % 37, 499 * 977, 200, 8, "0.002");
        lines[499] = last;
        assert_ne!(fold(&lines).digest(), digest, "one byte more in one line");
        // The same sums in another order would be cut differently.
        lines.swap(0, 1);
        let swapped = fold(&lines).digest();
        lines.swap(0, 1);
        assert_ne!(fold(&lines).digest(), swapped);
    }

    #[test]
    fn folding_a_file_equals_folding_its_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut text: Vec<u8> = Vec::new();
        for number in 0..20_000 {
            text.extend(line(number % 300, u64::from(number) * 7, 200, 3, "0.001").bytes());
            text.push(b'\n');
        }
        text.extend(b"not finished");
        std::fs::write(&path, &text).unwrap();
        let mut counters = Counters::new();
        let summary = file(&path, |fold| add(&mut counters, fold)).unwrap();
        assert_eq!((summary.lines, summary.bad_lines), (20_000, 0));
        assert_eq!(summary.bytes as usize, text.len() - "not finished".len());
        assert_eq!(counters, fold_in_pieces(&text, 4096, usize::MAX));
    }

    proptest! {
        /// The counters do not depend on how the log is cut into reads, windows and parts.
        #[test]
        fn any_split_folds_to_the_same(
            lines in proptest::collection::vec(
                (0u32..40, 0u64..200_000, prop_oneof![Just(200u16), 100u16..600], 0u64..3, "-|0\\.00[0-2]"),
                0..400,
            ),
            piece in 1usize..3000,
            part in 1usize..400,
        ) {
            let mut text = String::new();
            for (key, at_ms, code, bytes, upstream) in &lines {
                text += &line(*key, *at_ms, *code, *bytes, upstream);
                text.push('\n');
            }
            let whole = fold_in_pieces(text.as_bytes(), usize::MAX / 2, usize::MAX);
            prop_assert_eq!(&fold_in_pieces(text.as_bytes(), piece, part), &whole);
            let requests: u64 = whole.iter()
                .filter(|(key, _)| key.starts_with("stat:"))
                .map(|(_, fields)| fields["requests"])
                .sum();
            let total = whole.get("stat:*").map_or(0, |fields| fields["requests"]);
            prop_assert_eq!((total, requests), (lines.len() as u64, 2 * lines.len() as u64));
            let sum = |begins: &str| -> u64 {
                whole.iter().filter(|(key, _)| key.starts_with(begins)).flat_map(|(_, fields)| fields.values()).sum()
            };
            let answered = lines.iter().filter(|(.., upstream)| upstream != "-").count() as u64;
            prop_assert_eq!((sum("latency:"), sum("instance_latency:")), (2 * answered, answered));
            let ranked = |by: &str| -> u64 {
                whole.iter()
                    .filter(|(key, _)| key.starts_with("ranking:") && key.ends_with(by))
                    .flat_map(|(_, fields)| fields.values())
                    .sum()
            };
            let failed = lines.iter().filter(|(_, _, code, _, upstream)| upstream != "-" && code / 100 == 5).count();
            prop_assert_eq!((ranked(":requests"), ranked(":errors")), (lines.len() as u64, failed as u64));
        }
    }
}
