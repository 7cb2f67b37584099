//! The log of a label: what happened to it, in more detail and for longer than its record can contain.
//!
//! A record has its last twenty moves. Older ones are moved to the log when a commit removes them from the record.
//! Attempts of actions, operations of clients and changes of metadata are appended to the log by the commit that they
//! belong to, in the same step, so that no line is lost or duplicated. A label that has only waited has no log.
//!
//! The number and the size of lines are limited, so a log has at most [`Retention::lines`] × 1.5 KiB.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::record::Row;

/// Characters of an answer or an error that a line has.
const MAX_TEXT: usize = 300;
/// Bytes of a change of metadata that a line has.
const MAX_CHANGE: usize = 1_024;

/// How much of a label's log is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retention {
    /// The number of lines.
    pub(crate) lines: usize,
    /// How long lines are shown, ms. 0: nothing is logged.
    pub(crate) ms: u64,
}

/// A line of a label's log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Unix milliseconds.
    #[serde(rename = "t")]
    pub at_ms: u64,
    /// The visit in which it happened, or that began with it.
    #[serde(rename = "v")]
    pub visit: u64,
    /// What happened.
    #[serde(flatten)]
    pub entry: Entry,
}

/// What a line of a log describes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "k", rename_all = "snake_case")]
pub enum Entry {
    /// The label entered a state.
    Move {
        /// The state before.
        from: Option<String>,
        /// The state after; `None` if the label was deleted.
        to: Option<String>,
        /// The word for why.
        cause: String,
        /// Details of the cause.
        trigger: Option<String>,
        /// The version of the definition.
        version: u64,
        /// The ID of the event; 0 if it is not known.
        event: u64,
    },
    /// An attempt of an action ended.
    Attempt {
        /// The state.
        state: String,
        /// Its number since the visit or the last retry by a client.
        number: u32,
        /// `done`, `failed`, `refused`, or `unknown` if the process that made it has ended.
        outcome: String,
        /// The status of the answer.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
        /// How long it took.
        #[serde(skip_serializing_if = "Option::is_none")]
        took_ms: Option<u64>,
        /// The beginning of the answer.
        #[serde(skip_serializing_if = "Option::is_none")]
        answer: Option<String>,
        /// Why it failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// A client applied an operation.
    Operation {
        /// Its word.
        operation: String,
        /// The client.
        by: String,
    },
    /// The metadata changed.
    Metadata {
        /// The client, topic or state that it comes from.
        by: String,
        /// The change, as JSON Merge Patch; `None` if it is too large.
        #[serde(skip_serializing_if = "Option::is_none")]
        change: Option<Value>,
        /// The bytes of the change, if it is too large.
        #[serde(skip_serializing_if = "Option::is_none")]
        bytes: Option<usize>,
    },
}

impl Entry {
    /// The word for its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Move { .. } => "move",
            Self::Attempt { .. } => "attempt",
            Self::Operation { .. } => "operation",
            Self::Metadata { .. } => "metadata",
        }
    }

    /// The change from one metadata to another; `None` if they are equal.
    pub(crate) fn change(by: &str, before: &Value, after: &Value) -> Option<Self> {
        let change = patch(before, after)?;
        let bytes = change.to_string().len();
        let fits = bytes <= MAX_CHANGE;
        Some(Self::Metadata {
            by: shortened(by),
            change: fits.then_some(change),
            bytes: (!fits).then_some(bytes),
        })
    }
}

impl Line {
    /// The line of a row of history.
    pub(crate) fn of_row(row: &Row) -> Self {
        let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().map(str::to_owned);
        Self {
            at_ms: row.at_ms,
            visit: row.visit,
            entry: Entry::Move {
                from: text(&row.from),
                to: text(&row.to),
                cause: row.cause.as_str().to_owned(),
                trigger: text(&row.trigger),
                version: row.version,
                event: row.event,
            },
        }
    }

    pub(crate) fn packed(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Its place among the lines of a label: a move begins the visit to which other lines belong.
    fn place(&self) -> (u64, u64, bool) {
        (self.at_ms, self.visit, !matches!(self.entry, Entry::Move { .. }))
    }
}

/// A text that is short enough for a line, without characters that could move a cursor.
pub(crate) fn shortened(text: &str) -> String {
    let printable = |one: char| if one.is_control() { ' ' } else { one };
    let mut short: String = text.chars().take(MAX_TEXT).map(printable).collect();
    if text.chars().nth(MAX_TEXT).is_some() {
        short.push('…');
    }
    short
}

/// The JSON Merge Patch that turns one value into another; `None` if they are equal.
fn patch(before: &Value, after: &Value) -> Option<Value> {
    if before == after {
        return None;
    }
    let (Value::Object(old), Value::Object(new)) = (before, after) else { return Some(after.clone()) };
    let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let changed = new.iter().filter_map(|(key, value)| {
        let change = match old.get(key) {
            Some(old) => patch(old, value)?,
            None => value.clone(),
        };
        Some((key.clone(), change))
    });
    Some(Value::Object(gone.chain(changed).collect::<Map<_, _>>()))
}

/// A page of a label's activity, the newest line first.
#[derive(Debug, Clone, PartialEq)]
pub struct Activity {
    /// The lines.
    pub lines: Vec<Line>,
    /// The cursor of the next page.
    pub next: Option<String>,
}

impl Activity {
    /// The page after `cursor` of the lines of a log and the rows of a record.
    pub(crate) fn page(
        log: &[Vec<u8>],
        rows: &[Row],
        since_ms: u64,
        cursor: Option<&str>,
        limit: usize,
    ) -> Option<Self> {
        let before = match cursor {
            None => None,
            Some(cursor) => Some(parse_cursor(cursor)?),
        };
        // A line that a later version wrote is left out.
        let mut lines: Vec<Line> = log.iter().filter_map(|line| serde_json::from_slice(line).ok()).collect();
        lines.retain(|line| line.at_ms >= since_ms);
        lines.extend(rows.iter().map(Line::of_row));
        // The sort is stable: lines of one moment keep the order in which they were written.
        lines.sort_by_key(Line::place);
        let mut numbered: Vec<(u64, u64, usize)> = Vec::with_capacity(lines.len());
        for line in &lines {
            let (at_ms, visit) = (line.at_ms, line.visit);
            let same = numbered.last().filter(|last| (last.0, last.1) == (at_ms, visit));
            numbered.push((at_ms, visit, same.map_or(0, |last| last.2 + 1)));
        }
        let mut older: Vec<(Line, (u64, u64, usize))> = lines.into_iter().zip(numbered).collect();
        older.retain(|(_, place)| before.is_none_or(|before| *place < before));
        let surplus = older.len().saturating_sub(limit);
        let next =
            older.get(surplus).filter(|_| surplus > 0).map(|(_, (at, visit, n))| format!("{at}.{visit}.{n}"));
        let lines = older.drain(surplus..).rev().map(|(line, _)| line).collect();
        Some(Self { lines, next })
    }
}

fn parse_cursor(text: &str) -> Option<(u64, u64, usize)> {
    let mut parts = text.split('.');
    let cursor = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(cursor)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_is_the_patch_from_before_to_after() {
        let before = json!({"a": 1, "b": {"c": 2, "d": 3}, "e": [1]});
        let after = json!({"a": 1, "b": {"c": 4}, "e": [2], "f": null});
        let Some(Entry::Metadata { by, change, bytes }) = Entry::change("ada", &before, &after) else {
            panic!()
        };
        assert_eq!((&*by, bytes), ("ada", None));
        assert_eq!(change, Some(json!({"b": {"c": 4, "d": null}, "e": [2], "f": null})));
        assert_eq!(Entry::change("ada", &after, &after), None);
        let large = json!({"text": "x".repeat(2_000)});
        let Some(Entry::Metadata { change, bytes, .. }) = Entry::change("ada", &before, &large) else {
            panic!()
        };
        assert!(change.is_none() && bytes.is_some_and(|bytes| bytes > 2_000));
    }

    proptest! {
        #[test]
        fn pages_contain_every_line_once_in_order(moments in proptest::collection::vec((0..20_u64, 0..4_u64), 0..60), limit in 1..9_usize) {
            let line = |(n, (at_ms, visit)): (usize, &(u64, u64))| Line {
                at_ms: *at_ms,
                visit: *visit,
                entry: Entry::Operation { operation: n.to_string(), by: String::new() },
            };
            let log: Vec<Vec<u8>> = moments.iter().enumerate().map(|one| line(one).packed()).collect();
            let whole = Activity::page(&log, &[], 0, None, 1_000).unwrap();
            prop_assert_eq!(whole.lines.len(), moments.len());
            prop_assert!(whole.lines.windows(2).all(|two| two[0].place() >= two[1].place()));
            let (mut paged, mut cursor) = (Vec::new(), None);
            loop {
                let page = Activity::page(&log, &[], 0, cursor.as_deref(), limit).unwrap();
                prop_assert!(page.lines.len() <= limit);
                paged.extend(page.lines);
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
            prop_assert_eq!(paged, whole.lines);
        }
    }

    #[test]
    fn an_invalid_cursor_is_rejected() {
        for bad in ["", "1", "1.2", "1.2.3.4", "a.b.c", "-1.0.0"] {
            assert_eq!(Activity::page(&[], &[], 0, Some(bad), 10), None, "{bad}");
        }
    }
}
