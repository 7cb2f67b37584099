//! The audit log: records of changes, log-ins and refusals, in the order in which they were written.
//!
//! **Data.** Fabric `audit` STREAM: changes and log-ins. `audit:frequent` STREAM: those of callers with many of them.
//! `audit:refused` STREAM: refused calls and log-ins. They are apart because a client can cause refusals and changes at will, and
//! the log is limited: they must not displace changes of others. A record is JSON that this module does not interpret.
//!
//! **Invariant.** Records are appended and never changed. The oldest of a part are removed beyond its limits.

use std::{fmt, sync::Arc};

use signalbox_store::{Fabric, FabricRole, FabricSpace, Key, Script, keys};

use super::{Error, frequent::Frequent};

static APPEND: Script<FabricRole> = Script::new("audit/append", include_str!("../scripts/append.lua"));

/// The maximum number of records about refusals.
const MAX_REFUSED: usize = 10_000;
/// The maximum size of a part. It is reached by unusually large records only.
const MAX_BYTES: usize = 64 << 20;

/// The parts of the log, each a stream: changes, frequent changes, and refusals.
const PARTS: usize = 3;

/// An entry of a stream as Redis names it: milliseconds and a sequence number.
type Id = (u64, u64);

/// The audit log. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AuditLog {
    fabric: Fabric,
    max_records: usize,
    frequent: Arc<Frequent>,
}

/// Which side of a cursor is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The records before it, newest first.
    Older,
    /// The records after it, oldest first.
    Newer,
}

/// A position in the audit log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor([Option<Id>; PARTS]);

/// A part of the audit log.
#[derive(Debug, Default)]
pub struct Page {
    /// Records as JSON, each with the position after it in the direction in which it was read.
    pub records: Vec<(Cursor, String)>,
    /// The position of the newest record.
    pub newest: Cursor,
    /// Whether there may be more.
    pub more: bool,
}

impl Cursor {
    /// Reads a cursor that was written with `Display`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut ids = text.split('_');
        let mut cursor = Self::default();
        for place in &mut cursor.0 {
            let id = ids.next()?;
            *place = if id.is_empty() { None } else { Some(parse(id)?) };
        }
        ids.next().is_none().then_some(cursor)
    }
}

fn parse(id: &str) -> Option<Id> {
    let (ms, sequence) = id.split_once('-')?;
    let id = (ms.parse().ok()?, sequence.parse().ok()?);
    // Redis has no entries before the first and after the last ID.
    (id > (0, 0) && id < (u64::MAX, u64::MAX)).then_some(id)
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = |id: Option<Id>| id.map_or_else(String::new, |(ms, sequence)| format!("{ms}-{sequence}"));
        write!(f, "{}", self.0.map(id).join("_"))
    }
}

impl AuditLog {
    /// The log in `fabric`, which keeps about `max_records` changes and log-ins, and as many of callers with many of them.
    pub fn new(fabric: Fabric, max_records: usize) -> Self {
        Self { fabric, max_records, frequent: Arc::default() }
    }

    /// Appends a record of what `caller` did, or was refused, at a time in unix milliseconds. All state machines are one caller. If
    /// the fabric does not respond, the record may have been written.
    pub async fn append(
        &self,
        record: &str,
        caller: Option<&str>,
        is_refusal: bool,
        now_ms: u64,
    ) -> Result<(), Error> {
        let [changes, frequent, refused] = parts();
        let (key, limit) = if is_refusal {
            (refused, MAX_REFUSED)
        } else if self.frequent.take(caller.unwrap_or_default(), record.len(), now_ms) {
            (frequent, self.max_records)
        } else {
            (changes, self.max_records)
        };
        let call = APPEND.call().key(&key).arg(record).arg(limit).arg(MAX_BYTES);
        Ok(call.run(&self.fabric).await?)
    }

    /// Up to `limit` records before or after `cursor`; from the newest, or from the oldest, without one.
    pub async fn page(
        &self,
        direction: Direction,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Error> {
        let from = cursor.unwrap_or_default();
        let mut read = [const { Vec::new() }; PARTS];
        for (part, key) in parts().iter().enumerate() {
            read[part] = self.read(key, direction, from.0[part], limit).await?;
        }
        Ok(merge(direction, from, read, limit))
    }

    async fn read(
        &self,
        key: &Key<FabricSpace>,
        direction: Direction,
        from: Option<Id>,
        limit: usize,
    ) -> Result<Vec<(Id, String)>, Error> {
        let after = from.map(|(ms, sequence)| format!("({ms}-{sequence}"));
        let (name, open, end) = match direction {
            Direction::Older => ("XREVRANGE", "+", "-"),
            Direction::Newer => ("XRANGE", "-", "+"),
        };
        let command = self.fabric.command(name).key(key).arg(after.as_deref().unwrap_or(open)).arg(end);
        let entries: Vec<(String, Vec<String>)> = command.arg("COUNT").arg(limit).query().await?;
        let read = |(id, fields): (String, Vec<String>)| Some((parse(&id)?, fields.into_iter().nth(1)?));
        Ok(entries.into_iter().filter_map(read).collect())
    }
}

fn parts() -> [Key<FabricSpace>; PARTS] {
    [keys::fabric::audit(), keys::fabric::audit_frequent(), keys::fabric::audit_refused()]
}

/// Merges what was read of the parts by time.
fn merge(direction: Direction, from: Cursor, read: [Vec<(Id, String)>; PARTS], limit: usize) -> Page {
    let total: usize = read.iter().map(Vec::len).sum();
    let mut page = Page { newest: from, ..Page::default() };
    let mut cursor = from;
    let mut parts = read.map(|part| part.into_iter().peekable());
    while page.records.len() < limit {
        let ids = parts.iter_mut().enumerate().filter_map(|(part, records)| Some((records.peek()?.0, part)));
        let next = match direction {
            Direction::Older => ids.max(),
            Direction::Newer => ids.min(),
        };
        let Some((_, part)) = next else { break };
        let Some((id, record)) = parts[part].next() else { break };
        cursor.0[part] = Some(id);
        page.newest.0[part] = page.newest.0[part].max(Some(id));
        page.records.push((cursor, record));
    }
    // A part of which nothing fitted on the page still has its newest record, which is its first in this direction.
    if direction == Direction::Older {
        for (newest, records) in page.newest.0.iter_mut().zip(&mut parts) {
            *newest = (*newest).max(records.peek().map(|(id, _)| *id));
        }
    }
    page.more = total > page.records.len() || page.records.len() == limit;
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(ids: &[u64], name: &str) -> Vec<(Id, String)> {
        ids.iter().map(|ms| ((*ms, 0), format!("{name}{ms}"))).collect()
    }

    #[test]
    fn a_cursor_reads_back() {
        for cursor in [
            Cursor::default(),
            Cursor([Some((1, 2)), None, None]),
            Cursor([Some((1, 2)), Some((5, 6)), Some((3, 0))]),
        ] {
            assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor));
        }
        for bad in [
            "",
            "1-2",
            "1-2_",
            "1_2_3",
            "a-b__",
            "1-2_3-4_5-6_7-8",
            "0-0__",
            "18446744073709551615-18446744073709551615__",
        ] {
            assert_eq!(Cursor::parse(bad), None, "{bad}");
        }
    }

    fn texts(page: &Page) -> Vec<&str> {
        page.records.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn all_parts_are_read_by_time() {
        let read = |refused: &[u64]| [stream(&[9, 5, 1], "c"), stream(&[8], "f"), stream(refused, "r")];
        let page = merge(Direction::Older, Cursor::default(), read(&[7, 3]), 4);
        assert_eq!(texts(&page), ["c9", "f8", "r7", "c5"]);
        assert_eq!(page.records[3].0, Cursor([Some((5, 0)), Some((8, 0)), Some((7, 0))]));
        assert_eq!(page.newest, Cursor([Some((9, 0)), Some((8, 0)), Some((7, 0))]));
        assert!(page.more);
        let page = merge(Direction::Older, Cursor::default(), read(&[0]), 4);
        assert_eq!(page.records[3].0.0[2], None, "nothing of it is on the page");
        assert_eq!(page.newest.0[2], Some((0, 0)));
        let from = Cursor([Some((9, 0)), None, None]);
        let read = [stream(&[11], "c"), Vec::new(), stream(&[10, 12], "r")];
        let page = merge(Direction::Newer, from, read, 9);
        assert_eq!(texts(&page), ["r10", "c11", "r12"]);
        assert_eq!(page.records[2].0, Cursor([Some((11, 0)), None, Some((12, 0))]));
        assert!(!page.more);
    }
}
