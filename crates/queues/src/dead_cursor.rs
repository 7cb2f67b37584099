//! Positions in lists of dead letters.
//!
//! A position names a place, because a list can only be read by places. Letters are removed while a client reads: the
//! oldest ones beyond a limit, and those that are redriven. So a position also names the letter before it, by which the
//! next page finds out where it begins now. If that letter was removed as well, its time shows where it was; letters of the
//! same millisecond may then be listed twice, but none is left out.

use std::fmt;

/// A place that is beyond the length of any list.
const MAX_PLACE: u64 = u32::MAX as u64;
/// Letters that are read together to find the one before a position among those of the same millisecond, and how many of
/// these steps are made.
const STEP: u64 = 100;
const MAX_STEPS: u64 = 10;

/// When a letter became one, in unix milliseconds, and its ID.
pub type DeadKey = (u64, u64);

/// A position in the dead letters of all shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeadCursor {
    /// The shard.
    pub shard: usize,
    place: u64,
    /// The last readable letter before the place.
    last: DeadKey,
}

impl DeadCursor {
    /// Reads what [`Display`](fmt::Display) has written; `None` for any other text.
    pub fn parse(text: &str, shards: usize) -> Option<Self> {
        let mut words = text.split(':');
        let shard = words.next()?.parse().ok().filter(|shard| *shard < shards)?;
        let mut number = || words.next()?.parse::<u64>().ok();
        let (place, last) = (number()?, (number()?, number()?));
        (place <= MAX_PLACE && words.next().is_none()).then_some(Self { shard, place, last })
    }

    /// The beginning of the next shard.
    pub fn next_shard(&mut self) {
        *self = Self { shard: self.shard + 1, ..Self::default() };
    }

    /// The place at which the page behind this position begins now. `read` returns the letters from a place on, at most so
    /// many and fewer if they are large; `None` for one that is not readable.
    ///
    /// # Errors
    /// Those of `read`.
    pub async fn find<F, E>(&self, read: impl Fn(u64, u64) -> F) -> Result<u64, E>
    where
        F: Future<Output = Result<Vec<Option<DeadKey>>, E>>,
    {
        let Some(before) = self.place.checked_sub(1) else { return Ok(0) };
        match read(before, 1).await?.first() {
            // Nothing shows that it has moved. A page of such letters must not begin again and again.
            Some(None) => return Ok(self.place),
            Some(letter) if *letter == Some(self.last) => return Ok(self.place),
            _ => {}
        }
        // Letters are in the order of their times. A client may have invented the place, so the number of reads must not
        // depend on it.
        let (mut from, mut to) = (0, before);
        while from < to {
            let middle = from + (to - from) / 2;
            match read(middle, 1).await?.first() {
                Some(letter) if letter.is_none_or(|letter| letter.0 < self.last.0) => from = middle + 1,
                _ => to = middle,
            }
        }
        let mut place = from;
        for _ in 0..MAX_STEPS {
            let letters = read(place, STEP).await?;
            if let Some(at) = letters.iter().position(|letter| *letter == Some(self.last)) {
                return Ok(place + at as u64 + 1);
            }
            let is_later = |letter: &Option<DeadKey>| letter.is_some_and(|letter| letter.0 > self.last.0);
            if letters.is_empty() || letters.iter().any(is_later) {
                break;
            }
            place += letters.len() as u64;
        }
        Ok(from)
    }

    /// Moves it behind letters that were read from a place on.
    pub fn advance(
        &mut self,
        place: u64,
        letters: impl DoubleEndedIterator<Item = Option<DeadKey>> + ExactSizeIterator,
    ) {
        self.place = place + letters.len() as u64;
        self.last = letters.rev().flatten().next().unwrap_or(self.last);
    }
}

impl fmt::Display for DeadCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.shard, self.place, self.last.0, self.last.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the page behind the first `place` letters of `before` begins in `now`.
    async fn found(before: &[DeadKey], place: usize, now: &[DeadKey]) -> u64 {
        let mut cursor = DeadCursor::default();
        cursor.advance(0, before[..place].iter().map(|letter| Some(*letter)));
        let cursor = DeadCursor::parse(&cursor.to_string(), 1).unwrap();
        let read = |from: u64, count: u64| {
            let part = now.iter().skip(from as usize).take(count as usize);
            std::future::ready(Ok::<_, ()>(part.map(|letter| Some(*letter)).collect()))
        };
        cursor.find(read).await.unwrap()
    }

    #[tokio::test]
    async fn a_page_begins_behind_the_last_letter_whatever_was_removed() {
        let all: Vec<DeadKey> = (0..500).map(|n| (1_000 + n / 2, n)).collect();
        assert_eq!(found(&all, 300, &all).await, 300);
        assert_eq!(found(&all, 0, &all).await, 0);
        assert_eq!(found(&all, 300, &all[7..]).await, 293, "the oldest were removed");
        assert_eq!(found(&all, 300, &all[250..]).await, 50);
        assert_eq!(found(&all, 300, &all[400..]).await, 0, "the last one was removed with them");
        assert_eq!(found(&all, 300, &[]).await, 0);
        let without = |gone: u64| all.iter().copied().filter(|(_, id)| *id != gone).collect::<Vec<_>>();
        assert_eq!(found(&all, 300, &without(8)).await, 299);
        assert_eq!(found(&all, 300, &without(299)).await, 298, "its place is found by its time");
        let same: Vec<DeadKey> = (0..500).map(|id| (1_000, id)).collect();
        assert_eq!(found(&same, 300, &same[7..]).await, 293, "all are of one millisecond");
    }

    #[tokio::test]
    async fn letters_that_cannot_be_read_do_not_begin_a_page_again() {
        let mut cursor = DeadCursor::default();
        cursor.advance(0, [Some((1, 1)), None, None].into_iter());
        let read = |from: u64, count: u64| {
            let all = [Some((1, 1)), None, None, None];
            let part = all.into_iter().skip(from as usize).take(count as usize);
            std::future::ready(Ok::<_, ()>(part.collect()))
        };
        assert_eq!(cursor.find(read).await.unwrap(), 3);
    }

    #[tokio::test]
    async fn an_invented_position_costs_few_reads() {
        let reads = std::cell::Cell::new(0);
        for last in ["0:0", "1000:7", "9999999999999:0"] {
            let cursor = DeadCursor::parse(&format!("0:{MAX_PLACE}:{last}"), 1).unwrap();
            for length in [0, 10_000] {
                let read = |from: u64, count: u64| {
                    reads.set(reads.get() + 1);
                    let places = from.min(length)..(from + count).min(length);
                    std::future::ready(Ok::<_, ()>(places.map(|id| Some((1_000, id))).collect()))
                };
                let place = cursor.find(read).await.unwrap();
                assert!(place <= length, "{place}");
            }
        }
        assert!(reads.get() < 6 * (34 + MAX_STEPS), "{}", reads.get());
    }

    #[test]
    fn other_texts_are_no_positions() {
        for bad in ["", "zzz", "0:1", "1:0:0:0", "0:0:0:0:0", "0:-1:0:0", "0:4294967296:0:0", "0:0:0:x"] {
            assert_eq!(DeadCursor::parse(bad, 1), None, "{bad}");
        }
    }
}
