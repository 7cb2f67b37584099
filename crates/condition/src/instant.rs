//! Instants as RFC 3339 writes them, and times of day.

use jiff::{Timestamp, civil, tz::Offset};

/// Parses an RFC 3339 date-time (`2026-01-31T18:30:00.5+01:00`). Other forms of ISO 8601 are rejected,
/// although jiff's own parser accepts week dates, missing separators and zone names: the values come from
/// programs that specify RFC 3339.
///
/// A leap second is read as the second before it. Digits beyond the nanosecond are dropped.
pub fn instant(text: &str) -> Option<Timestamp> {
    let (date, rest) = text.split_at_checked(10)?;
    let (time, rest) = rest.strip_prefix(['T', 't'])?.split_at_checked(8)?;
    let &[year1, year2, year3, year4, b'-', month1, month2, b'-', day1, day2] = date.as_bytes() else {
        return None;
    };
    let year = digits(&[year1, year2, year3, year4])?;
    let date = civil::Date::new(year, small(&[month1, month2])?, small(&[day1, day2])?).ok()?;
    let &[hour1, hour2, b':', minute1, minute2, b':', second1, second2] = time.as_bytes() else {
        return None;
    };
    let second = match small(&[second1, second2])? {
        60 => 59,
        second => second,
    };
    let (nanosecond, zone) = fraction(rest)?;
    let time =
        civil::Time::new(small(&[hour1, hour2])?, small(&[minute1, minute2])?, second, nanosecond).ok()?;
    offset(zone)?.to_timestamp(date.to_datetime(time)).ok()
}

/// The fraction after the seconds, in nanoseconds, and the rest of the text.
fn fraction(text: &str) -> Option<(i32, &str)> {
    let Some(text) = text.strip_prefix('.') else { return Some((0, text)) };
    let length = text.bytes().take_while(u8::is_ascii_digit).count();
    let (fraction, rest) = text.split_at(length);
    let digits = fraction.bytes().map(|byte| i32::from(byte - b'0'));
    let nanosecond = digits.chain(std::iter::repeat(0)).take(9).fold(0, |sum, digit| sum * 10 + digit);
    (length > 0).then_some((nanosecond, rest))
}

fn offset(text: &str) -> Option<Offset> {
    if matches!(text, "Z" | "z") {
        return Some(Offset::UTC);
    }
    let &[sign, hour1, hour2, b':', minute1, minute2] = text.as_bytes() else { return None };
    let (hour, minute) = (small(&[hour1, hour2])?, small(&[minute1, minute2])?);
    let seconds = i32::from(hour) * 3600 + i32::from(minute) * 60;
    match sign {
        _ if hour > 23 || minute > 59 => None,
        b'+' => Offset::from_seconds(seconds).ok(),
        b'-' => Offset::from_seconds(-seconds).ok(),
        _ => None,
    }
}

fn digits(bytes: &[u8]) -> Option<i16> {
    bytes.iter().try_fold(0_i16, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + i16::from(byte - b'0')))
}

fn small(bytes: &[u8; 2]) -> Option<i8> {
    i8::try_from(digits(bytes)?).ok()
}

/// A local time of day, in whole seconds since midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimeOfDay(u32);

impl TimeOfDay {
    pub(crate) const LAST: Self = Self(24 * 3600 - 1);

    pub(crate) fn new(hour: u32, minute: u32, second: u32) -> Option<Self> {
        (hour < 24 && minute < 60 && second < 60).then_some(Self(hour * 3600 + minute * 60 + second))
    }

    /// Parses a time of day in metadata: `HH:MM` or `HH:MM:SS`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        matches!(text.len(), 5 | 8).then(|| Self::parse_literal(text))?
    }

    /// Parses a time of day in a condition, where the hour may have one digit.
    pub(crate) fn parse_literal(text: &str) -> Option<Self> {
        let two = |text: &str| (text.len() == 2).then(|| number(text)).flatten();
        let (hour, rest) = text.split_once(':')?;
        let hour = if hour.len() == 1 { number(hour)? } else { two(hour)? };
        let (minute, second) = rest.split_once(':').unwrap_or((rest, "00"));
        Self::new(hour, two(minute)?, two(second)?)
    }

    pub(crate) fn of(time: civil::Time) -> Self {
        let [hour, minute, second] =
            [time.hour(), time.minute(), time.second()].map(i8::unsigned_abs).map(u32::from);
        Self(hour * 3600 + minute * 60 + second)
    }

    /// The next second of the same day.
    pub(crate) fn next(self) -> Option<Self> {
        (self < Self::LAST).then_some(Self(self.0 + 1))
    }

    pub(crate) fn civil(self) -> civil::Time {
        // The value is in range, because `new` and `of` are the only constructors.
        let part = |seconds: u32| i8::try_from(seconds).unwrap_or_default();
        civil::Time::new(part(self.0 / 3600), part(self.0 / 60 % 60), part(self.0 % 60), 0)
            .unwrap_or(civil::Time::MIN)
    }
}

fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

impl std::fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(seconds) = self;
        write!(f, "{:02}:{:02}", seconds / 3600, seconds / 60 % 60)?;
        if seconds % 60 > 0 { write!(f, ":{:02}", seconds % 60) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_3339_is_accepted() {
        for (text, expected) in [
            ("2026-01-31T18:30:00Z", "2026-01-31T18:30:00Z"),
            ("2026-01-31t18:30:00z", "2026-01-31T18:30:00Z"),
            ("2026-01-31T18:30:00.5+01:00", "2026-01-31T17:30:00.5Z"),
            ("2026-01-31T18:30:00.1234567891234-00:00", "2026-01-31T18:30:00.123456789Z"),
            ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59Z"),
            ("2024-02-29T00:00:00-23:59", "2024-02-29T23:59:00Z"),
        ] {
            assert_eq!(instant(text).map(|read| read.to_string()).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn formats_other_than_rfc_3339_are_not_instants() {
        for text in [
            "",
            "now",
            "2026-01-31",
            "2026-01-31 18:30:00Z",
            "2026-01-31T18:30Z",
            "2026-01-31T18:30:00",
            "2026-01-31T18:30:00.Z",
            "2026-01-31T18:30:00+0100",
            "2026-01-31T18:30:00+24:00",
            "2026-01-31T18:30:00Z[Europe/London]",
            "20260131T183000Z",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-31T24:00:00Z",
            "2026-01-31T18:60:00Z",
            "2026-01-31T18:30:61Z",
            "+02026-01-31T18:30:00Z",
            "2026-01-31T18:30:00Zx",
            "2026-01-3éT18:30:00Z",
            "２026-01-31T18:30:00Z",
        ] {
            assert_eq!(instant(text), None, "{text}");
        }
    }

    #[test]
    fn a_time_of_day_has_two_digits_each_and_in_a_condition_may_have_one_for_the_hour() {
        assert_eq!(TimeOfDay::parse("18:30"), TimeOfDay::new(18, 30, 0));
        assert_eq!(TimeOfDay::parse("18:30:15"), TimeOfDay::new(18, 30, 15));
        assert_eq!(TimeOfDay::parse_literal("9:05"), TimeOfDay::new(9, 5, 0));
        assert_eq!(TimeOfDay::parse_literal("9:05:59"), TimeOfDay::new(9, 5, 59));
        for text in
            ["9:05", "9:05:59x", "24:00", "18:60", "18:5", "+8:30", "18:30:60", "1830", "18:30:", "", "é8:30"]
        {
            assert_eq!(TimeOfDay::parse(text), None, "{text}");
        }
        for text in ["9:5", "009:05", ":30", "9:", "9:05:5", "9:05:05:05"] {
            assert_eq!(TimeOfDay::parse_literal(text), None, "{text}");
        }
    }
}
