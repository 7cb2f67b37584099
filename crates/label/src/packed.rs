//! A label as it is stored: one packed string.
//!
//! ```text
//!  format 1 │ incarnation 4 │ visit 8 │ revision 8 │ id of the last commit's first event 8 │ status 1 │ fresh 1 │ length, body
//!  ╰───────────────── header, compared by scripts ─╯ ╰─ filled in by the script ─────────╯
//! ```
//!
//! The body (state, times, metadata, the last twenty rows of history, the last sixteen idempotency keys) is compressed as
//! a whole, because it repeats the names of states. Numbers have variable length and are stored as differences. Only the
//! script that writes the record knows the IDs of its events, so the IDs of the `fresh` newest rows are counted from the ID
//! in the header; the next commit writes them to the body.

use std::sync::Arc;

use super::{
    Cause, ID_STEP, MAX_KEYS, MAX_ROWS, Record, Row, Seen, Status, Work,
    packing::{Reader, Writer},
};

/// The first byte of a record. A new layout gets another number, and `read` accepts all.
const FORMAT: u8 = 1;
/// The same of a label that stays on a version. A pacemaker that does not know such labels skips them.
const KEPT_FORMAT: u8 = 2;
/// Bytes that scripts compare: see `labels.lua`.
pub const HEADER: usize = 21;
/// The time of ID 0, and the number of IDs in a millisecond divided by 64: see the bus's `EventId`.
const ID_EPOCH_MS: u64 = 1_704_067_200_000;
const STEPS_PER_MS: u64 = 100;
/// Maximum size of a body, bytes. A longer one is rejected: metadata is limited to 64 KiB.
const MAX_BODY_BYTES: usize = 1 << 20;

/// The string is not a record, or was written by a later version.
#[derive(Debug, thiserror::Error)]
#[error("the record of a label cannot be read")]
pub struct Unreadable;

impl Record {
    /// The header, which scripts compare.
    pub fn header(&self) -> Vec<u8> {
        let mut header = Vec::with_capacity(HEADER);
        header.push(if self.kept.is_some() { KEPT_FORMAT } else { FORMAT });
        header.extend(self.incarnation.to_be_bytes());
        header.extend(self.visit.to_be_bytes());
        header.extend(self.revision.to_be_bytes());
        header
    }

    /// Everything after the header and the ID. The `fresh` newest rows (possibly more than there are) have no event IDs yet.
    pub fn tail(&self, fresh: usize) -> Vec<u8> {
        let mut body = Writer::default();
        body.text(&self.state);
        body.number(self.entered_ms);
        // Names of zones contain no space.
        body.option((!self.zones.is_empty()).then(|| self.zones.join(" ")).as_deref(), Writer::text);
        if let Some(version) = self.kept {
            body.number(version);
        }
        self.write_work(&mut body);
        self.write_history(&mut body, fresh);
        self.write_seen(&mut body);
        // Metadata comes late, so that the parts that are equal in all records of a machine come first.
        let metadata = serde_json::to_vec(&self.metadata).unwrap_or_default();
        body.bytes(&metadata);
        // Few labels take events; the others have nothing here.
        for (id, input) in &self.taken {
            body.number(*id);
            body.number((*input).into());
        }
        let body = body.finish();
        let packed = lz4_flex::block::compress(&body);
        let mut tail = Writer::default();
        tail.byte(Status::ALL.iter().position(|status| *status == self.status).unwrap_or_default() as u8);
        tail.byte(u8::try_from(fresh).unwrap_or(u8::MAX));
        // The length 0 means that the body is not compressed, because compression does not shorten it.
        let shorter = packed.len() < body.len();
        tail.number(if shorter { body.len() as u64 } else { 0 });
        tail.raw(if shorter { &packed } else { &body });
        tail.finish()
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When the bytes are not a record, or one of a later version.
    pub fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        Self::parse(bytes).ok_or(Unreadable)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut head = Reader::new(bytes);
        let format = head.byte()?;
        if !matches!(format, FORMAT | KEPT_FORMAT) {
            return None;
        }
        let incarnation = u32::from_be_bytes(head.take(4)?.try_into().ok()?);
        let mut long = || Some(u64::from_be_bytes(head.take(8)?.try_into().ok()?));
        let (visit, revision, first_event) = (long()?, long()?, long()?);
        let status = *Status::ALL.get(usize::from(head.byte()?))?;
        let fresh = usize::from(head.byte()?);
        let length = usize::try_from(head.number()?).ok().filter(|length| *length <= MAX_BODY_BYTES)?;
        let unpacked;
        let body = if length == 0 {
            head.rest()
        } else {
            unpacked = lz4_flex::block::decompress(head.rest(), length).ok()?;
            &unpacked
        };
        let mut body = Reader::new(body);
        let mut record = Self { visit, revision, status, ..Self::new(incarnation) };
        record.state = body.text()?.into();
        record.entered_ms = body.number()?;
        let zones = body.option(Reader::text)?;
        record.zones = zones.iter().flat_map(|zones| zones.split(' ')).map(Box::from).collect();
        if format == KEPT_FORMAT {
            record.kept = Some(body.number()?);
        }
        record.read_work(&mut body)?;
        record.read_history(&mut body)?;
        record.read_seen(&mut body)?;
        record.metadata = serde_json::from_slice(body.bytes()?).ok()?;
        while !body.rest().is_empty() {
            record.taken.push((body.number()?, body.number()?.try_into().ok()?));
        }
        if fresh > 0 {
            record.numbered(fresh, first_event);
        }
        record.bytes = bytes.len();
        (record.metadata.is_object()).then_some(record)
    }

    fn write_work(&self, to: &mut Writer) {
        let work = &self.work;
        let flags = [
            *work != Work::default(),
            work.facts,
            work.deadline_ms.is_some(),
            self.suspended,
            !self.indexed.is_empty(),
            self.timed,
            self.origin != 0,
            !work.topics.is_empty(),
        ];
        to.byte(flags.iter().rev().fold(0, |byte, flag| byte << 1 | u8::from(*flag)));
        if !self.indexed.is_empty() {
            to.number(self.indexed.len() as u64);
            self.indexed.iter().for_each(|digest| to.raw(&digest.to_be_bytes()));
        }
        if let Some(ms) = work.deadline_ms {
            to.number(ms);
        }
        if self.origin != 0 {
            to.signed(difference(self.entered_ms, self.origin));
        }
        if *work == Work::default() {
            return;
        }
        to.number(work.attempts.into());
        to.number(work.feed_failures.into());
        to.option(work.again_ms, |to, ms| to.number(ms));
        to.option(work.interval_ms, |to, ms| to.number(ms));
        to.option(work.error.as_deref(), Writer::text);
        to.option(work.held.as_deref(), Writer::text);
        if !work.topics.is_empty() {
            // Names of topics contain no space.
            to.text(&work.topics.join(" "));
        }
    }

    fn read_work(&mut self, from: &mut Reader<'_>) -> Option<()> {
        let flags = from.byte()?;
        self.suspended = flags & 8 != 0;
        self.timed = flags & 32 != 0;
        if flags & 16 != 0 {
            self.indexed = from.list(|from| Some(u64::from_be_bytes(from.take(8)?.try_into().ok()?)))?;
        }
        let deadline_ms = if flags & 4 != 0 { Some(from.number()?) } else { None };
        if flags & 64 != 0 {
            self.origin = apart(self.entered_ms, from.signed()?.checked_neg()?);
        }
        if flags & 1 != 0 {
            self.work = Work {
                deadline_ms,
                facts: flags & 2 != 0,
                attempts: from.number()?.try_into().ok()?,
                feed_failures: from.number()?.try_into().ok()?,
                again_ms: from.option(Reader::number)?,
                interval_ms: from.option(Reader::number)?,
                error: from.option(Reader::text)?,
                held: from.option(Reader::text)?,
                topics: Vec::new(),
            };
            if flags & 128 != 0 {
                self.work.topics = from.text()?.split(' ').map(Box::from).collect();
            }
        }
        Some(())
    }

    fn write_history(&self, to: &mut Writer, fresh: usize) {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.history {
            let used = [row.from.as_deref(), row.to.as_deref(), row.trigger.as_deref()];
            for name in used.into_iter().flatten() {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        to.number(names.len() as u64);
        names.iter().for_each(|name| to.text(name));
        let place = |name: &Option<Arc<str>>| {
            let place = name.as_deref().and_then(|name| names.iter().position(|known| *known == name));
            place.map_or(0, |place| place as u64 + 1)
        };
        to.number(self.history.len() as u64);
        let (mut visit, mut at_ms, mut version, mut came_to) = (0, 0, 0, 0);
        let numbered = self.history.len().saturating_sub(fresh);
        for (n, row) in self.history.iter().enumerate() {
            let (from, trigger) = (place(&row.from), place(&row.trigger));
            let cause = Cause::ALL.iter().position(|cause| *cause == row.cause).unwrap_or_default() as u8;
            let follows = from == came_to && row.visit == visit + 1 && row.version == version;
            let unnumbered = n >= numbered;
            to.byte(cause | u8::from(follows) << 4 | u8::from(trigger != 0) << 5 | u8::from(unnumbered) << 6);
            if !follows {
                to.number(from);
                to.signed(difference(row.visit, visit));
                to.signed(difference(row.version, version));
            }
            let goes_to = place(&row.to);
            to.number(goes_to);
            if trigger != 0 {
                to.number(trigger);
            }
            to.signed(difference(row.at_ms, at_ms));
            if !unnumbered {
                to.byte((row.event % ID_STEP) as u8);
                to.signed(difference(row.event / ID_STEP, expected_step(row.at_ms)));
            }
            (visit, at_ms, version, came_to) = (row.visit, row.at_ms, row.version, goes_to);
        }
    }

    fn read_history(&mut self, from: &mut Reader<'_>) -> Option<()> {
        let names: Vec<Arc<str>> = from.list(|from| Some(Reader::text(from)?.into()))?;
        let name = |place: u64| match place {
            0 => Some(None),
            place => names.get(usize::try_from(place - 1).ok()?).cloned().map(Some),
        };
        let count = usize::try_from(from.number()?).ok().filter(|count| *count <= MAX_ROWS)?;
        let (mut visit, mut at_ms, mut version, mut came_to) = (0, 0, 0, 0);
        for _ in 0..count {
            let flags = from.byte()?;
            let follows = flags & 16 != 0;
            let came_from = if follows { came_to } else { from.number()? };
            visit = if follows { visit + 1 } else { apart(visit, from.signed()?) };
            version = if follows { version } else { apart(version, from.signed()?) };
            let goes_to = from.number()?;
            let trigger = if flags & 32 != 0 { from.number()? } else { 0 };
            at_ms = apart(at_ms, from.signed()?);
            let has_id = flags & 64 == 0;
            let event = if has_id {
                let shard = u64::from(from.byte()?);
                apart(expected_step(at_ms), from.signed()?).checked_mul(ID_STEP)?.checked_add(shard)?
            } else {
                0
            };
            self.history.push(Row {
                visit,
                at_ms,
                from: name(came_from)?,
                to: name(goes_to)?,
                cause: *Cause::ALL.get(usize::from(flags & 15))?,
                trigger: name(trigger)?,
                version,
                event,
            });
            came_to = goes_to;
        }
        Some(())
    }

    fn write_seen(&self, to: &mut Writer) {
        to.number(self.seen.len() as u64);
        for seen in &self.seen {
            to.raw(&seen.key.to_be_bytes());
            to.raw(&seen.body.to_be_bytes());
            to.signed(difference(self.revision, seen.revision));
            to.signed(difference(self.visit, seen.visit));
            to.signed(difference(self.entered_ms, seen.since_ms));
            to.text(&seen.state);
            to.byte(Status::ALL.iter().position(|status| *status == seen.status).unwrap_or_default() as u8);
        }
    }

    fn read_seen(&mut self, from: &mut Reader<'_>) -> Option<()> {
        let count = usize::try_from(from.number()?).ok().filter(|count| *count <= MAX_KEYS)?;
        for _ in 0..count {
            self.seen.push(Seen {
                key: u64::from_be_bytes(from.take(8)?.try_into().ok()?),
                body: u32::from_be_bytes(from.take(4)?.try_into().ok()?),
                revision: apart(self.revision, from.signed()?.checked_neg()?),
                visit: apart(self.visit, from.signed()?.checked_neg()?),
                since_ms: apart(self.entered_ms, from.signed()?.checked_neg()?),
                state: from.text()?.into(),
                status: *Status::ALL.get(usize::from(from.byte()?))?,
            });
        }
        Some(())
    }
}

/// `to − from`, wrapping, so that [`apart`] reverses it for any two numbers.
fn difference(to: u64, from: u64) -> i64 {
    to.wrapping_sub(from).cast_signed()
}

fn apart(from: u64, by: i64) -> u64 {
    from.wrapping_add(by.cast_unsigned())
}

/// The approximate ID, divided by 64, of an event at this time.
fn expected_step(at_ms: u64) -> u64 {
    at_ms.saturating_sub(ID_EPOCH_MS).wrapping_mul(STEPS_PER_MS)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, option, prelude::*};
    use serde_json::json;

    use super::*;

    fn name<T: From<String> + std::fmt::Debug>() -> impl Strategy<Value = T> {
        prop_oneof!["[a-z_]{1,12}", Just("wait".to_owned()), Just("send".to_owned())].prop_map(T::from)
    }

    fn row() -> impl Strategy<Value = Row> {
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), 0..1_u64 << 53);
        let numbers =
            prop_oneof![numbers, (0..9_u64, ID_EPOCH_MS..ID_EPOCH_MS * 2, 0..4_u64, 0..1_u64 << 53)];
        (numbers, option::of(name()), option::of(name()), 0..Cause::ALL.len(), option::of(name())).prop_map(
            |((visit, at_ms, version, event), from, to, cause, trigger)| Row {
                visit,
                at_ms,
                from,
                to,
                cause: Cause::ALL[cause],
                trigger,
                version,
                event,
            },
        )
    }

    fn seen() -> impl Strategy<Value = Seen> {
        (any::<u64>(), any::<u32>(), any::<(u64, u64, u64)>(), name(), 0..Status::ALL.len()).prop_map(
            |(key, body, (revision, visit, since_ms), state, status)| Seen {
                key,
                body,
                revision,
                visit,
                since_ms,
                state,
                status: Status::ALL[status],
            },
        )
    }

    fn work() -> impl Strategy<Value = Work> {
        let times = (option::of(any::<u64>()), option::of(any::<u64>()), option::of(any::<u64>()));
        let topics = vec(name(), 0..3);
        (any::<(u32, u32, bool)>(), times, option::of(name()), option::of(name()), topics).prop_map(
            |(
                (attempts, feed_failures, facts),
                (again_ms, interval_ms, deadline_ms),
                error,
                held,
                topics,
            )| Work {
                attempts,
                feed_failures,
                again_ms,
                interval_ms,
                deadline_ms,
                facts,
                topics,
                error,
                held,
            },
        )
    }

    prop_compose! {
        fn record()(
            incarnation: u32, numbers: (u64, u64, u64, u64), state in name(), status in 0..Status::ALL.len(),
            text in ".{0,200}", history in vec(row(), 0..=MAX_ROWS), seen in vec(seen(), 0..=MAX_KEYS),
            zones in vec(name(), 0..3), work in work(), taken in vec((any::<u64>(), any::<u32>()), 0..3),
            (suspended, timed, kept) in (any::<bool>(), any::<bool>(), option::of(any::<u64>())), indexed in vec(any::<u64>(), 0..3)
        ) -> Record {
            let (visit, revision, entered_ms, origin) = numbers;
            let metadata = json!({"text": text, "list": [1, null, {"a": -1.5}]});
            let status = Status::ALL[status];
            Record {
                incarnation, origin, visit, revision, state, status, entered_ms, metadata, history, seen, zones, work, taken,
                suspended, indexed, kept, timed, bytes: 0,
            }
        }
    }

    fn stored(record: &Record, fresh: usize, first: u64) -> Vec<u8> {
        [record.header(), first.to_be_bytes().to_vec(), record.tail(fresh)].concat()
    }

    proptest! {
        #[test]
        fn a_record_reads_as_it_was_written(record in record(), fresh in 0..MAX_ROWS, first in 0..1_u64 << 52) {
            let fresh = fresh.min(record.history.len());
            let bytes = stored(&record, fresh, first);
            let read = Record::read(&bytes).unwrap();
            let mut expected = Record { bytes: bytes.len(), ..record };
            if fresh > 0 {
                expected.numbered(fresh, first);
            }
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn arbitrary_bytes_are_rejected_without_a_panic(mut bytes: Vec<u8>, record in record(), cut: u16, flip: u8) {
            let _ = Record::read(&bytes);
            bytes.insert(0, FORMAT);
            let _ = Record::read(&bytes);
            let mut good = stored(&record, 0, 0);
            let at = usize::from(cut) % good.len();
            good[at] ^= flip;
            let _ = Record::read(&good);
            // A record that is cut between two taken events reads as one with fewer of them. Redis never cuts strings.
            good.truncate(at);
            let shorter = Record::read(&good);
            prop_assert!(shorter.is_err() || !record.taken.is_empty(), "{:?}", shorter);
            prop_assert!(shorter.is_err() || at > HEADER + 8);
        }
    }

    /// A record stores a status and a cause as their places in these lists.
    #[test]
    fn the_stored_numbers_of_statuses_and_causes_do_not_change() {
        let statuses: Vec<&str> = Status::words().collect();
        assert_eq!(statuses, ["waiting", "acting", "choosing", "errored", "looping", "ended", "deleted"]);
        assert_eq!(
            json!(Cause::ALL),
            json!([
                "created",
                "metadata",
                "time",
                "interval",
                "entry",
                "topic",
                "feed",
                "action",
                "migrated",
                "deleted",
                "evaluated",
                "failed",
                "deadline",
                "moved"
            ])
        );
    }

    /// The target: at most 1 KB in Redis for a label with half a KB of metadata and all rows, including what Redis adds.
    #[test]
    fn a_record_of_half_a_kilobyte_of_metadata_is_small() {
        let mut record = Record::new(1);
        record.metadata = json!({
            "email": "somebody.with.a.name@mail.example.com", "locale": "en-GB", "plan": "team", "seats": 12,
            "has_recommendations": true, "last_seen": "2026-01-31T12:34:56Z", "timezone": "Europe/London",
            "interests": ["science", "engineering", "history", "philosophy", "mathematics", "biology"],
            "address": {"street": "12 Long Lane", "city": "London", "postcode": "EC1A 9HF", "country": "GB"},
            "campaign": {"id": "8f14e45fceea167a5a36dedd4bea2543", "source": "newsletter", "variant": "b"},
            "counts": {"opened": 14, "clicked": 3, "bounced": 0, "unsubscribed": 0}
        });
        let metadata = serde_json::to_vec(&record.metadata).unwrap().len();
        assert!((480..620).contains(&metadata), "{metadata}");
        let states = ["no_recommendations", "send_email", "emailed", "remind"];
        for n in 0..30_u64 {
            let at_ms = 1_760_000_000_000 + n * 86_412_345;
            record.history.push(Row {
                visit: n + 1,
                at_ms,
                from: (n > 0).then(|| states[(n as usize + 3) % 4].into()),
                to: Some(states[n as usize % 4].into()),
                cause: Cause::Time,
                trigger: Some("time 18:30 Europe/London".into()),
                version: 3,
                event: (at_ms + 2 - ID_EPOCH_MS) * 6400 + 64 * n,
            });
            record.visit = n + 1;
            record.state = states[n as usize % 4].into();
            record.entered_ms = at_ms;
        }
        record.trim();
        let size = stored(&record, 1, 7).len();
        assert!(size < 800, "{size} bytes");
    }
}
