//! The input of a condition.

use std::cell::OnceCell;

use jiff::{Timestamp, civil, tz::TimeZone};
use serde_json::{Map, Value as Json};

use crate::instant::TimeOfDay;

/// The current state of a feed.
#[derive(Debug, Clone, Copy)]
pub enum Feed<'a> {
    /// The feed has this value. Null if there is none.
    Value(&'a Json),
    /// It could not be fetched, and its policy is `hold`: every value read from it is unknown.
    Failed,
    /// It was not queried yet. An evaluation that needs it stops with [`crate::NeedsFeed`].
    NotAsked,
}

/// Where the values of feeds come from.
pub trait Feeds {
    /// The feed of that name.
    fn feed(&self, name: &str) -> Feed<'_>;
}

impl Feeds for Map<String, Json> {
    fn feed(&self, name: &str) -> Feed<'_> {
        Feed::Value(self.get(name).unwrap_or(&Json::Null))
    }
}

/// The label's stay in the state whose condition is evaluated.
#[derive(Debug, Clone, Copy)]
pub struct Visit<'a> {
    /// When it entered the state: `system.entered_state`, `history.entered_state`.
    pub entered: Timestamp,
    /// The state that it came from, null for the first state: `history.previous_state`.
    pub previous_state: Option<&'a str>,
    /// `system.state_machine`.
    pub state_machine: Option<&'a str>,
    /// `system.label`.
    pub label: Option<&'a str>,
}

/// The values of all paths at one time. Created for one evaluation or explanation, and cheap to create.
#[derive(Clone)]
pub struct Facts<'a> {
    pub(crate) metadata: &'a Json,
    pub(crate) feeds: &'a dyn Feeds,
    pub(crate) visit: Visit<'a>,
    pub(crate) now: Timestamp,
    pub(crate) zone: &'a TimeZone,
    /// Computed on first use: most conditions never read the wall clock.
    local: OnceCell<Local>,
}

impl std::fmt::Debug for Facts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Metadata and feeds may contain values that must not be logged.
        f.debug_struct("Facts").field("visit", &self.visit).field("now", &self.now).finish_non_exhaustive()
    }
}

impl<'a> Facts<'a> {
    /// Facts as of `now`; `zone` is that of `system.time`, `system.date` and `system.weekday`.
    pub fn new(
        metadata: &'a Json,
        feeds: &'a dyn Feeds,
        visit: Visit<'a>,
        now: Timestamp,
        zone: &'a TimeZone,
    ) -> Self {
        Self { metadata, feeds, visit, now, zone, local: OnceCell::new() }
    }

    /// The facts with a different wall clock than `now` and the zone give, to try a condition out.
    #[must_use]
    pub fn with_local(mut self, local: Local) -> Self {
        self.local = OnceCell::from(local);
        self
    }

    /// The time on the wall clock.
    pub fn local(&self) -> &Local {
        self.local.get_or_init(|| Local::at(self.now, self.zone))
    }

    /// The same facts at another time.
    pub fn at(&self, now: Timestamp) -> Self {
        Self::new(self.metadata, self.feeds, self.visit, now, self.zone)
    }
}

/// The names of weekdays.
pub const WEEKDAYS: [&str; 7] =
    ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// The reading of a wall clock and a calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    pub(crate) time: TimeOfDay,
    pub(crate) date: [u8; 10],
    pub(crate) weekday: civil::Weekday,
}

impl Local {
    /// The reading at a time in a zone.
    pub fn at(now: Timestamp, zone: &TimeZone) -> Self {
        let local = zone.to_datetime(now);
        Self { time: TimeOfDay::of(local.time()), date: date(local.date()), weekday: local.weekday() }
    }

    /// The reading with this time of day; fractions of a second are dropped.
    #[must_use]
    pub fn with_time(self, time: civil::Time) -> Self {
        Self { time: TimeOfDay::of(time), ..self }
    }

    /// The reading with this date; the weekday is unchanged.
    #[must_use]
    pub fn with_date(self, day: civil::Date) -> Self {
        Self { date: date(day), ..self }
    }

    /// The reading with this weekday.
    #[must_use]
    pub fn with_weekday(self, weekday: civil::Weekday) -> Self {
        Self { weekday, ..self }
    }

    pub(crate) fn date(&self) -> &str {
        // `date` consists of digits and hyphens.
        std::str::from_utf8(&self.date).unwrap_or_default()
    }

    pub(crate) fn weekday(&self) -> &'static str {
        WEEKDAYS[usize::from(self.weekday.to_monday_zero_offset().unsigned_abs())]
    }
}

/// `2026-01-31`, without allocating. Negative years are not supported: no label can wait for one.
fn date(date: civil::Date) -> [u8; 10] {
    let mut text = *b"0000-00-00";
    let mut put = |at: usize, width: usize, mut number: u16| {
        for place in text[at..at + width].iter_mut().rev() {
            // A digit is below 10.
            *place = b'0' + u8::try_from(number % 10).unwrap_or_default();
            number /= 10;
        }
    };
    put(0, 4, date.year().max(0).unsigned_abs());
    put(5, 2, date.month().unsigned_abs().into());
    put(8, 2, date.day().unsigned_abs().into());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_is_that_of_the_zone() {
        let now: Timestamp = "2026-01-31T23:30:59.9Z".parse().unwrap();
        let tokyo = TimeZone::get("Asia/Tokyo").unwrap();
        let local = Local::at(now, &tokyo);
        assert_eq!(
            (local.time.to_string().as_str(), local.date(), local.weekday()),
            ("08:30:59", "2026-02-01", "sunday")
        );
        let local = Local::at(now, &TimeZone::UTC);
        assert_eq!(
            (local.time.to_string().as_str(), local.date(), local.weekday()),
            ("23:30:59", "2026-01-31", "saturday")
        );
    }

    #[test]
    fn a_date_before_the_year_zero_is_still_a_date() {
        assert_eq!(&date(civil::date(-5, 3, 4)), b"0000-03-04");
        assert_eq!(&date(civil::date(9999, 12, 31)), b"9999-12-31");
    }
}
