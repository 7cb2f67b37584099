//! The audit log: records of changes, log-ins and refusals, in the order in which they were written.
//!
//! **Data.** Fabric `audit` STREAM: changes and log-ins. `audit:refused` STREAM: refused calls and log-ins. They are apart
//! because a client can cause refusals at will, and the number of records is limited: refusals must not displace changes.
//! A record is JSON that this module does not interpret.
//!
//! **Invariant.** Records are appended and never changed. The oldest are removed beyond the limit.

use std::fmt;

use signalbox_store::{Fabric, keys};

use super::Error;

/// The maximum number of records about refusals.
const MAX_REFUSED: usize = 10_000;

/// An entry of a stream as Redis names it: milliseconds and a sequence number.
type Id = (u64, u64);

/// The audit log. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AuditLog {
    fabric: Fabric,
    max_records: usize,
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
pub struct Cursor {
    changes: Option<Id>,
    refused: Option<Id>,
}

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
        let (changes, refused) = text.split_once('_')?;
        let id = |text: &str| if text.is_empty() { Some(None) } else { parse(text).map(Some) };
        Some(Self { changes: id(changes)?, refused: id(refused)? })
    }
}

fn parse(id: &str) -> Option<Id> {
    let (ms, sequence) = id.split_once('-')?;
    Some((ms.parse().ok()?, sequence.parse().ok()?))
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = |id: Option<Id>| id.map_or_else(String::new, |(ms, sequence)| format!("{ms}-{sequence}"));
        write!(f, "{}_{}", id(self.changes), id(self.refused))
    }
}

impl AuditLog {
    /// The log in `fabric`, which keeps about `max_records` changes and log-ins.
    pub fn new(fabric: Fabric, max_records: usize) -> Self {
        Self { fabric, max_records }
    }

    /// Appends a record. If the fabric does not respond, the record may have been written.
    pub async fn append(&self, record: &str, is_refusal: bool) -> Result<(), Error> {
        let (key, limit) = if is_refusal {
            (keys::fabric::audit_refused(), MAX_REFUSED)
        } else {
            (keys::fabric::audit(), self.max_records)
        };
        let command = self.fabric.command("XADD").key(&key).arg("MAXLEN").arg("~").arg(limit);
        Ok(command.arg("*").arg("record").arg(record).run().await?)
    }

    /// Up to `limit` records before or after `cursor`; from the newest, or from the oldest, without one.
    pub async fn page(
        &self,
        direction: Direction,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Error> {
        let from = cursor.unwrap_or_default();
        let changes = self.read(&keys::fabric::audit(), direction, from.changes, limit).await?;
        let refused = self.read(&keys::fabric::audit_refused(), direction, from.refused, limit).await?;
        Ok(merge(direction, from, changes, refused, limit))
    }

    async fn read(
        &self,
        key: &signalbox_store::Key<signalbox_store::FabricSpace>,
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

/// Merges what was read of both streams by time.
fn merge(
    direction: Direction,
    from: Cursor,
    changes: Vec<(Id, String)>,
    refused: Vec<(Id, String)>,
    limit: usize,
) -> Page {
    let total = changes.len() + refused.len();
    let mut page = Page { newest: from, ..Page::default() };
    let mut cursor = from;
    let (mut changes, mut refused) = (changes.into_iter().peekable(), refused.into_iter().peekable());
    while page.records.len() < limit {
        let first = match (changes.peek(), refused.peek()) {
            (None, None) => break,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some((one, _)), Some((other, _))) => match direction {
                Direction::Older => one >= other,
                Direction::Newer => one <= other,
            },
        };
        let next = if first { changes.next() } else { refused.next() };
        let Some((id, record)) = next else { break };
        let (place, newest) = if first {
            (&mut cursor.changes, &mut page.newest.changes)
        } else {
            (&mut cursor.refused, &mut page.newest.refused)
        };
        *place = Some(id);
        *newest = (*newest).max(Some(id));
        page.records.push((cursor, record));
    }
    // A stream of which nothing fitted on the page still has its newest record, which is its first in this direction.
    if direction == Direction::Older {
        page.newest.changes = page.newest.changes.max(changes.peek().map(|(id, _)| *id));
        page.newest.refused = page.newest.refused.max(refused.peek().map(|(id, _)| *id));
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
            Cursor { changes: Some((1, 2)), refused: None },
            Cursor { changes: Some((1, 2)), refused: Some((3, 0)) },
        ] {
            assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor));
        }
        for bad in ["", "1-2", "1_2", "a-b_", "1-2_3-4_5-6"] {
            assert_eq!(Cursor::parse(bad), None, "{bad}");
        }
    }

    fn texts(page: &Page) -> Vec<&str> {
        page.records.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn both_streams_are_read_by_time() {
        let changes = || stream(&[9, 5, 1], "c");
        let page = merge(Direction::Older, Cursor::default(), changes(), stream(&[7, 3], "r"), 3);
        assert_eq!(texts(&page), ["c9", "r7", "c5"]);
        assert_eq!(page.records[2].0, Cursor { changes: Some((5, 0)), refused: Some((7, 0)) });
        assert_eq!(page.newest, Cursor { changes: Some((9, 0)), refused: Some((7, 0)) });
        assert!(page.more);
        let page = merge(Direction::Older, Cursor::default(), changes(), stream(&[0], "r"), 3);
        assert_eq!(page.records[2].0.refused, None, "nothing of it is on the page");
        assert_eq!(page.newest.refused, Some((0, 0)));
        let from = Cursor { changes: Some((9, 0)), refused: None };
        let page = merge(Direction::Newer, from, stream(&[11], "c"), stream(&[10, 12], "r"), 9);
        assert_eq!(texts(&page), ["r10", "c11", "r12"]);
        assert_eq!(page.records[2].0, Cursor { changes: Some((11, 0)), refused: Some((12, 0)) });
        assert!(!page.more);
    }
}
