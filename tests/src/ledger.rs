//! A ledger of accepted events and of what each subscriber received, and every flaw that can be between the two.
//!
//! Order is checked as deliveries arrive: an event that a subscriber receives for the first time must follow, and name, the
//! last event of its object that this subscriber received. Completeness is checked at the end: no event is missing, and no
//! subscriber received an event that no publisher sent.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, PoisonError},
};

use serde::Deserialize;
use serde_json::value::RawValue;

/// Flaws beyond this number are only counted: the first ones are the most informative.
const KEPT: usize = 20;

/// An event as a publisher creates it. Its number is in its `data` and determines everything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The topic.
    pub topic: String,
    /// Its url, which is also its object.
    pub url: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Item<'a> {
    #[serde(borrow)]
    topic: &'a str,
    #[serde(borrow, rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    url: &'a str,
    t: u64,
    #[serde(borrow)]
    data: &'a RawValue,
    id: u64,
    prev: Option<u64>,
    tprev: Option<u64>,
    #[serde(borrow)]
    gap: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Data {
    n: usize,
}

impl Item<'_> {
    /// Everything that must be the same in each attempt and for each subscriber.
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let Self { topic, kind, url, t, data, id, prev, tprev, gap: _ } = self;
        (topic, kind, url, t, data.get(), id, prev, tprev).hash(&mut hasher);
        hasher.finish()
    }
}

/// The content of a delivered event.
#[derive(Debug, Clone, Copy)]
struct Stated {
    number: usize,
    prev: Option<u64>,
    tprev: Option<u64>,
    fingerprint: u64,
}

/// One subscriber's column.
#[derive(Debug, Default)]
struct Column {
    topics: Vec<String>,
    /// Event → attempts that it was part of.
    seen: HashMap<u64, u32>,
    /// Object → the last event that was seen first.
    last: HashMap<String, u64>,
    deliveries: u64,
}

#[derive(Debug, Default)]
struct Records {
    /// By number.
    published: Vec<Published>,
    /// By number: the id under which it was accepted.
    accepted: Vec<Option<u64>>,
    accepted_count: usize,
    stated: HashMap<u64, Stated>,
    columns: Vec<Column>,
    flaws: Vec<String>,
    flaw_count: usize,
}

/// The totals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sums {
    /// Events that publishers know to be accepted.
    pub accepted: usize,
    /// Requests that reached subscribers.
    pub deliveries: u64,
    /// Events that subscribers saw for the first time.
    pub firsts: usize,
    /// Events that they saw again.
    pub repeats: u64,
    /// Events that are still to come.
    pub missing: usize,
}

/// The ledger. All publishers and receivers write to it concurrently.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Records>);

impl Ledger {
    /// An empty ledger for these events, by number, and for subscribers with these topics.
    pub fn new(published: Vec<Published>, subscribers: &[&[&str]]) -> Self {
        let column = |topics: &&[&str]| Column {
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
            ..Column::default()
        };
        Self(Mutex::new(Records {
            accepted: vec![None; published.len()],
            published,
            columns: subscribers.iter().map(column).collect(),
            ..Records::default()
        }))
    }

    fn records(&self) -> std::sync::MutexGuard<'_, Records> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A publisher was answered that its event has this ID.
    pub fn accept(&self, number: usize, id: u64) {
        let mut records = self.records();
        match records.accepted[number].replace(id) {
            Some(before) if before != id => {
                records.flaw(format!("event {number} was accepted as {before}, and again as {id}"));
            }
            None => records.accepted_count += 1,
            Some(_) => {}
        }
    }

    /// Something else is wrong.
    pub fn flaw(&self, what: String) {
        self.records().flaw(what);
    }

    /// A request reached a subscriber.
    pub fn receive(&self, subscriber: usize, body: &[u8]) {
        // Read before the lock: a lane's requests come one after the other, and others' order does not matter.
        let items: Vec<Item<'_>> = match serde_json::from_slice(body) {
            Ok(items) => items,
            Err(error) => return self.flaw(format!("{error} in {}", String::from_utf8_lossy(body))),
        };
        let stated: Vec<(Stated, &Item<'_>)> = items
            .iter()
            .map(|item| {
                let number = serde_json::from_str::<Data>(item.data.get()).map_or(usize::MAX, |data| data.n);
                let stated =
                    Stated { number, prev: item.prev, tprev: item.tprev, fingerprint: item.fingerprint() };
                (stated, item)
            })
            .collect();
        let mut records = self.records();
        records.columns[subscriber].deliveries += 1;
        for (stated, item) in stated {
            records.enter(subscriber, stated, item);
        }
    }

    /// The totals so far.
    pub fn sums(&self) -> Sums {
        let records = self.records();
        let firsts = records.columns.iter().map(|column| column.seen.len()).sum();
        let attempts: u64 =
            records.columns.iter().flat_map(|column| column.seen.values()).map(|n| u64::from(*n)).sum();
        Sums {
            accepted: records.accepted_count,
            deliveries: records.columns.iter().map(|column| column.deliveries).sum(),
            firsts,
            repeats: attempts - firsts as u64,
            missing: records.missing().len(),
        }
    }

    /// How many events were accepted, and how many were seen for the first time, all subscribers together.
    pub fn progress(&self) -> (usize, usize) {
        let records = self.records();
        (records.accepted_count, records.columns.iter().map(|column| column.seen.len()).sum())
    }

    /// Accepted events that a subscriber has not seen: the subscriber, the number, the id.
    pub fn missing(&self) -> Vec<(usize, usize, u64)> {
        self.records().missing()
    }

    /// Everything that is wrong, when nothing more is to come.
    pub fn audit(&self) -> Vec<String> {
        let mut records = self.records();
        records.audit();
        let more = records.flaw_count - records.flaws.len();
        let mut flaws = records.flaws.clone();
        if more > 0 {
            flaws.push(format!("and {more} more"));
        }
        flaws
    }
}

impl Records {
    fn flaw(&mut self, what: String) {
        self.flaw_count += 1;
        if self.flaws.len() < KEPT {
            self.flaws.push(what);
        }
    }

    fn enter(&mut self, subscriber: usize, stated: Stated, item: &Item<'_>) {
        let id = item.id;
        let known = *self.stated.entry(id).or_insert(stated);
        if known.fingerprint != stated.fingerprint {
            self.flaw(format!("{id} was delivered in two ways: {known:?}, then {stated:?}"));
        }
        if let Some(gap) = item.gap {
            self.flaw(format!("subscriber {subscriber}, {id}: a gap {gap}"));
        }
        let column = &mut self.columns[subscriber];
        let attempts = column.seen.entry(id).or_default();
        *attempts += 1;
        if *attempts > 1 {
            return;
        }
        // With all topics, the event before is `prev`; with one of them, `tprev`.
        let named = if column.topics.len() > 1 { stated.prev } else { stated.tprev };
        let last = column.last.insert(item.url.to_owned(), id);
        if last != named || last >= Some(id) {
            let url = item.url;
            self.flaw(format!(
                "subscriber {subscriber}, {url}: {id} names {named:?}, it came after {last:?}"
            ));
        }
    }

    fn missing(&self) -> Vec<(usize, usize, u64)> {
        let mut missing = Vec::new();
        for (subscriber, column) in self.columns.iter().enumerate() {
            for (number, id) in self.accepted.iter().enumerate() {
                let Some(id) = *id else { continue };
                if column.topics.contains(&self.published[number].topic) && !column.seen.contains_key(&id) {
                    missing.push((subscriber, number, id));
                }
            }
        }
        missing
    }

    fn audit(&mut self) {
        let mut flaws = Vec::new();
        for (subscriber, number, id) in self.missing() {
            flaws.push(format!("subscriber {subscriber} never got event {number}, accepted as {id}"));
        }
        let mut numbers: HashMap<u64, usize> = HashMap::new();
        for (number, id) in self.accepted.iter().enumerate() {
            let Some(id) = *id else {
                flaws.push(format!("event {number} was never accepted"));
                continue;
            };
            if let Some(other) = numbers.insert(id, number) {
                flaws.push(format!("events {other} and {number} are both {id}"));
            }
        }
        for (id, stated) in &self.stated {
            match numbers.get(id) {
                Some(number) if *number == stated.number => {}
                Some(number) => flaws.push(format!("{id} was accepted for event {number}: {stated:?}")),
                None => flaws.push(format!("{id} was delivered, and accepted under another id: {stated:?}")),
            }
        }
        // In order of id: what each had to name.
        let mut ids: Vec<(u64, usize)> = numbers.into_iter().collect();
        ids.sort_unstable();
        let mut last: HashMap<(&str, Option<&str>), u64> = HashMap::new();
        for (id, number) in ids {
            let event = &self.published[number];
            let prev = last.insert((&event.url, None), id);
            let tprev = last.insert((&event.url, Some(&event.topic)), id);
            if let Some(stated) = self.stated.get(&id)
                && (stated.prev, stated.tprev) != (prev, tprev)
            {
                flaws.push(format!(
                    "{id} of {} has {stated:?}; the event before has {prev:?}, {tprev:?}",
                    event.url
                ));
            }
        }
        for (place, column) in self.columns.iter().enumerate() {
            for id in column.seen.keys() {
                let topic = self.stated.get(id).and_then(|stated| self.published.get(stated.number));
                if !topic.is_some_and(|event| column.topics.contains(&event.topic)) {
                    flaws.push(format!("subscriber {place} got {id} of a topic that it has not"));
                }
            }
        }
        for flaw in flaws {
            self.flaw(flaw);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        let event = |topic: &str, object: u32| Published {
            topic: topic.to_owned(),
            url: format!("https://shop.example/{object}"),
        };
        let events = vec![event("orders", 1), event("refunds", 1), event("orders", 1), event("orders", 2)];
        Ledger::new(events, &[&["orders", "refunds"], &["orders"]])
    }

    fn item(number: usize, topic: &str, object: u32, ids: &str) -> String {
        format!(
            r#"{{"topic":"{topic}","type":"update","url":"https://shop.example/{object}","t":1,"data":{{"n":{number}}},{ids}}}"#
        )
    }

    /// The items that a correct bus sends.
    fn items() -> [String; 4] {
        [
            item(0, "orders", 1, r#""id":64"#),
            item(1, "refunds", 1, r#""id":128,"prev":64"#),
            item(2, "orders", 1, r#""id":192,"prev":128,"tprev":64"#),
            item(3, "orders", 2, r#""id":256"#),
        ]
    }

    fn deliver(ledger: &Ledger, subscriber: usize, items: &[&str]) {
        ledger.receive(subscriber, format!("[{}]", items.join(",")).as_bytes());
    }

    fn accept_all(ledger: &Ledger) {
        for (number, id) in [64, 128, 192, 256].into_iter().enumerate() {
            ledger.accept(number, id);
        }
    }

    #[track_caller]
    fn expect_flaw(ledger: &Ledger, text: &str) {
        let flaws = ledger.audit();
        assert!(flaws.iter().any(|flaw| flaw.contains(text)), "{text:?} is not in {flaws:#?}");
    }

    #[test]
    fn a_correct_history_has_no_flaws() {
        let ledger = ledger();
        accept_all(&ledger);
        let [a, b, c, d] = &items();
        deliver(&ledger, 0, &[d]);
        deliver(&ledger, 0, &[a, b]);
        deliver(&ledger, 0, &[a, b, c]);
        deliver(&ledger, 1, &[a, c, d]);
        assert_eq!(ledger.audit(), Vec::<String>::new());
        let sums = Sums { accepted: 4, deliveries: 4, firsts: 7, repeats: 2, missing: 0 };
        assert_eq!(ledger.sums(), sums);
    }

    #[test]
    fn a_lost_event_is_a_flaw() {
        let ledger = ledger();
        accept_all(&ledger);
        let [a, b, _, d] = &items();
        deliver(&ledger, 0, &[a, b, d]);
        assert_eq!(ledger.missing().len(), 4);
        expect_flaw(&ledger, "subscriber 0 never got event 2");
    }

    #[test]
    fn an_event_out_of_order_or_after_a_hole_is_a_flaw() {
        let [a, b, c, _] = &items();
        let inverted = ledger();
        deliver(&inverted, 0, &[a, c, b]);
        expect_flaw(&inverted, "192 names Some(128), it came after Some(64)");
        let holed = ledger();
        deliver(&holed, 1, &[c]);
        expect_flaw(&holed, "192 names Some(64), it came after None");
    }

    #[test]
    fn an_event_that_changes_between_attempts_is_a_flaw() {
        let ledger = ledger();
        let [a, ..] = &items();
        deliver(&ledger, 0, &[a]);
        deliver(&ledger, 0, &[&a.replace(r#""n":0"#, r#""n":0,"more":1"#)]);
        expect_flaw(&ledger, "64 was delivered in two ways");
    }

    #[test]
    fn an_event_that_was_accepted_twice_is_a_flaw() {
        let twice = ledger();
        twice.accept(0, 64);
        twice.accept(0, 128);
        expect_flaw(&twice, "event 0 was accepted as 64, and again as 128");
        let behind = ledger();
        accept_all(&behind);
        deliver(&behind, 0, &[&item(0, "orders", 1, r#""id":32"#)]);
        expect_flaw(&behind, "32 was delivered, and accepted under another id");
    }

    #[test]
    fn a_wrong_predecessor_is_a_flaw_even_if_all_receivers_get_it() {
        let ledger = ledger();
        accept_all(&ledger);
        let [a, ..] = &items();
        deliver(&ledger, 1, &[a, &item(2, "orders", 1, r#""id":192,"prev":64,"tprev":64"#)]);
        expect_flaw(&ledger, "192 of https://shop.example/1 has");
    }

    #[test]
    fn gaps_and_unexpected_topics_are_flaws() {
        let ledger = ledger();
        let [a, b, ..] = &items();
        deliver(&ledger, 0, &[&a.replace(r#""id""#, r#""gap":[],"id""#)]);
        deliver(&ledger, 1, &[b]);
        expect_flaw(&ledger, "a gap []");
        expect_flaw(&ledger, "subscriber 1 got 128 of a topic that it has not");
    }
}
