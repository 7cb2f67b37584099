//! Times that a calendar repeats: every day, on days of the week or of the month, or by a cron expression.
//!
//! A time is by the clock on the wall of a zone. One that is skipped by a clock change is delayed by the length of the change;
//! one that occurs twice is used the first time.

use std::fmt;

use jiff::{Timestamp, ToSpan, civil, tz::TimeZone};
use signalbox_condition::WEEKDAYS;

/// Maximum number of days that are searched for the next time. The 29th of February on a given weekday can be
/// 40 years away.
const MAX_DAYS: i64 = 40 * 366;
/// Extra days around a date: a zone may skip a day (as Samoa did), and a skipped time is moved past its date.
const AROUND: i64 = 3;

/// The days of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Days {
    /// Bit 0 is Monday.
    weekdays: u8,
    /// Bit 1 is the first day of the month; bit 0 is the last day of any month.
    month_days: u32,
    /// Bit 1 is January.
    months: u16,
    /// Whether either the weekday or the day of the month has to match, as in a cron expression that
    /// restricts both.
    either: bool,
}

const EVERY_WEEKDAY: u8 = 0x7f;
const EVERY_MONTH_DAY: u32 = 0xffff_fffe;
const EVERY_MONTH: u16 = 0x1ffe;

impl Days {
    const EVERY: Self =
        Self { weekdays: EVERY_WEEKDAY, month_days: EVERY_MONTH_DAY, months: EVERY_MONTH, either: false };

    fn contain(&self, date: civil::Date) -> bool {
        let weekday = self.weekdays >> date.weekday().to_monday_zero_offset() & 1 == 1;
        let last = date.day() == date.days_in_month();
        let month_day = self.month_days >> date.day() & 1 == 1 || (last && self.month_days & 1 == 1);
        let day = if self.either { weekday || month_day } else { weekday && month_day };
        day && self.months >> date.month() & 1 == 1
    }

    /// Whether such a day exists, unlike the 30th of February.
    fn exist(&self) -> bool {
        let some_month = (1..=12).any(|month: u32| {
            let longest = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month as usize - 1];
            self.months >> month & 1 == 1
                && (self.month_days & 1 == 1 || (1..=longest).any(|day| self.month_days >> day & 1 == 1))
        });
        some_month || (self.either && self.weekdays != 0 && self.months != 0)
    }
}

/// Recurring times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Sorted, without repeats.
    times: Vec<civil::Time>,
    days: Days,
    /// The notation in the definition.
    text: Box<str>,
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

impl Schedule {
    /// A schedule for every day at this time.
    pub fn daily(time: civil::Time) -> Self {
        Self { times: vec![time], days: Days::EVERY, text: clock(time).into() }
    }

    /// A schedule at this time on these days: names of weekdays, or days of the month from 1 to 31 and
    /// `last`.
    ///
    /// # Errors
    /// A description of the problem.
    pub fn on_days(time: civil::Time, days: &[String]) -> Result<Self, String> {
        let weekday = |day: &String| WEEKDAYS.iter().position(|name| name == day);
        let month_day = |day: &String| match &**day {
            "last" => Some(0_u32),
            number => number.parse().ok().filter(|number| (1..=31).contains(number)),
        };
        let mut set = Days { weekdays: 0, month_days: 0, ..Days::EVERY };
        for day in days {
            match (weekday(day), month_day(day)) {
                (Some(place), _) => set.weekdays |= 1 << place,
                (None, Some(number)) => set.month_days |= 1 << number,
                (None, None) => {
                    return Err(format!(
                        "`{day}` is neither a weekday such as monday, nor 1 to 31, nor last"
                    ));
                }
            }
        }
        match (set.weekdays, set.month_days) {
            (0, 0) => return Err("`days` has at least one day".to_owned()),
            (0, _) => set.weekdays = EVERY_WEEKDAY,
            (_, 0) => set.month_days = EVERY_MONTH_DAY,
            _ => return Err("`days` has either weekdays or days of the month".to_owned()),
        }
        Ok(Self { times: vec![time], days: set, text: format!("{} {}", clock(time), days.join(",")).into() })
    }

    /// Parses a cron expression: minute, hour, day of the month, month, day of the week. Each is `*`,
    /// numbers, ranges and steps; months and weekdays may be names. If both kinds of days are restricted,
    /// either one has to match.
    ///
    /// # Errors
    /// A description of the problem.
    pub fn cron(text: &str) -> Result<Self, String> {
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let [minute, hour, month_day, month, weekday] = *fields else {
            return Err("a cron expression has five fields: minute, hour, day, month and weekday".to_owned());
        };
        let minutes = cron_field(minute, "minute", 0..=59, &[])?;
        let hours = cron_field(hour, "hour", 0..=23, &[])?;
        let month_days = cron_field(month_day, "day of the month", 1..=31, &[])?;
        let months = cron_field(month, "month", 1..=12, &MONTHS)?;
        let weekdays = cron_field(weekday, "day of the week", 0..=7, &CRON_WEEKDAYS)?;
        let bits = |numbers: &[u8]| numbers.iter().fold(0_u32, |bits, number| bits | 1 << number);
        // Cron weeks begin with Sunday, which is 0 or 7.
        let monday_first = weekdays.iter().fold(0_u8, |bits, day| bits | 1 << ((day + 6) % 7));
        #[allow(clippy::cast_possible_truncation, reason = "at most bit 12")]
        let days = Days {
            weekdays: monday_first,
            month_days: bits(&month_days),
            months: bits(&months) as u16,
            either: !month_day.starts_with('*') && !weekday.starts_with('*'),
        };
        if !days.exist() {
            return Err("no day is meant: such a date does not exist".to_owned());
        }
        let mut times = Vec::new();
        for hour in &hours {
            for minute in &minutes {
                times.extend(civil::Time::new(
                    i8::try_from(*hour).unwrap_or(0),
                    i8::try_from(*minute).unwrap_or(0),
                    0,
                    0,
                ));
            }
        }
        Ok(Self { times, days, text: format!("cron {}", fields.join(" ")).into() })
    }

    /// The first time after `after`. `None` at the end of the calendar.
    pub fn next(&self, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
        let first = |date| self.on(date, zone).filter(|moment| *moment > after).min();
        search(zone.to_datetime(after).date(), 1, first, Timestamp::min)
    }

    /// The last time at or before `at`. `None` at the beginning of the calendar.
    pub fn last(&self, zone: &TimeZone, at: Timestamp) -> Option<Timestamp> {
        let last = |date| self.on(date, zone).filter(|moment| *moment <= at).max();
        search(zone.to_datetime(at).date(), -1, last, Timestamp::max)
    }

    /// The times of the schedule on a date.
    fn on<'a>(&'a self, date: civil::Date, zone: &'a TimeZone) -> impl Iterator<Item = Timestamp> + 'a {
        let times = if self.days.contain(date) { self.times.as_slice() } else { &[] };
        times
            .iter()
            .filter_map(move |time| zone.to_ambiguous_timestamp(date.to_datetime(*time)).compatible().ok())
    }

    /// An identifier without spaces. Equal schedules of a gate have the same one.
    pub fn key(&self) -> String {
        match (&*self.times, &self.days) {
            ([time], days) if *days == Days::EVERY && !self.text.starts_with("cron") => time.to_string(),
            _ => self.text.replace(' ', "_"),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The best time on the days from `today` on, or before it if `direction` is -1.
fn search(
    today: civil::Date,
    direction: i64,
    best_on: impl Fn(civil::Date) -> Option<Timestamp>,
    better: fn(Timestamp, Timestamp) -> Timestamp,
) -> Option<Timestamp> {
    let (mut found, mut ahead) = (None::<Timestamp>, MAX_DAYS);
    let mut days = -AROUND;
    while days <= ahead {
        let date = today.checked_add((direction * days).days()).ok();
        if let Some(best) = date.and_then(&best_on) {
            // A time of a later day can come first only if a clock change is in between.
            ahead = ahead.min(days + AROUND);
            found = Some(found.map_or(best, |found| better(found, best)));
        }
        days += 1;
    }
    found
}

/// `18:30`, with seconds only if there are any.
pub(crate) fn clock(time: civil::Time) -> String {
    let format = if time.second() == 0 { "%H:%M" } else { "%H:%M:%S" };
    time.strftime(format).to_string()
}

/// The names of cron's weekdays.
const CRON_WEEKDAYS: [&str; 7] =
    ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];

/// The numbers of a field, in order. The first of `names` is the lowest number of the range.
fn cron_field(
    text: &str,
    what: &str,
    bounds: std::ops::RangeInclusive<u8>,
    names: &[&str],
) -> Result<Vec<u8>, String> {
    let wrong = || {
        let (first, last) = (bounds.start(), bounds.end());
        format!("`{text}` is not a valid {what}: write * or {first} to {last}, with `,`, `-` and `/`")
    };
    let number = |text: &str| -> Option<u8> {
        let named = || {
            let lower = text.to_ascii_lowercase();
            let place = names
                .iter()
                .position(|name| lower == *name || (lower.len() == 3 && name.starts_with(&lower)))?;
            u8::try_from(place).ok().map(|place| place + bounds.start())
        };
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = if digits { text.parse().ok() } else { named() };
        number.filter(|number| bounds.contains(number))
    };
    let mut found = Vec::new();
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            None => (part, None),
            Some((range, step)) => {
                (range, Some(step.parse::<u8>().ok().filter(|step| *step > 0).ok_or_else(wrong)?))
            }
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (number(first).ok_or_else(wrong)?, number(last).ok_or_else(wrong)?),
            None if range == "*" => (*bounds.start(), *bounds.end()),
            None => {
                let first = number(range).ok_or_else(wrong)?;
                (first, if step.is_some() { *bounds.end() } else { first })
            }
        };
        if first > last {
            return Err(wrong());
        }
        found.extend((first..=last).step_by(step.unwrap_or(1).into()));
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::definition::Zone;

    fn zone(name: &str) -> TimeZone {
        Zone::named(name).unwrap().rules().clone()
    }

    fn moments(schedule: &Schedule, name: &str, from: &str, count: usize) -> Vec<String> {
        let (zone, mut now) = (zone(name), from.parse::<Timestamp>().unwrap());
        let mut found = Vec::new();
        for _ in 0..count {
            now = schedule.next(&zone, now).unwrap();
            found.push(zone.to_datetime(now).to_string());
        }
        found
    }

    fn on(time: (i8, i8), days: &[&str]) -> Schedule {
        let days: Vec<String> = days.iter().map(|day| (*day).to_owned()).collect();
        Schedule::on_days(civil::time(time.0, time.1, 0, 0), &days).unwrap()
    }

    #[test]
    fn weekly_times_are_on_their_weekdays() {
        let schedule = on((18, 30), &["monday", "friday"]);
        assert_eq!(
            moments(&schedule, "Europe/London", "2026-03-25T00:00:00Z", 3),
            ["2026-03-27T18:30:00", "2026-03-30T18:30:00", "2026-04-03T18:30:00"]
        );
        assert_eq!(
            (schedule.to_string(), schedule.key()),
            ("18:30 monday,friday".into(), "18:30_monday,friday".into())
        );
    }

    #[test]
    fn monthly_times_are_on_their_days_and_the_last_day_is_of_each_month() {
        assert_eq!(
            moments(&on((9, 0), &["1", "last"]), "Asia/Tokyo", "2026-01-31T00:00:00Z", 4),
            ["2026-02-01T09:00:00", "2026-02-28T09:00:00", "2026-03-01T09:00:00", "2026-03-31T09:00:00"]
        );
        // Months without this day are skipped.
        assert_eq!(
            moments(&on((9, 0), &["31"]), "UTC", "2026-01-31T09:00:00Z", 2),
            ["2026-03-31T09:00:00", "2026-05-31T09:00:00"]
        );
    }

    #[test]
    fn cron_expressions_mean_what_they_mean_elsewhere() {
        for (text, expected) in [
            ("0 9 * * mon-fri", ["2026-01-02T09:00:00", "2026-01-05T09:00:00"]),
            ("*/30 17 * * *", ["2026-01-01T17:00:00", "2026-01-01T17:30:00"]),
            ("0 0 1,15 * *", ["2026-01-15T00:00:00", "2026-02-01T00:00:00"]),
            ("5 4 29 feb *", ["2028-02-29T04:05:00", "2032-02-29T04:05:00"]),
            // If both kinds of days are restricted, either one has to match.
            ("0 12 13 * 5", ["2026-01-02T12:00:00", "2026-01-09T12:00:00"]),
            ("0 12 * * 0", ["2026-01-04T12:00:00", "2026-01-11T12:00:00"]),
            ("0 12 * * 7", ["2026-01-04T12:00:00", "2026-01-11T12:00:00"]),
            ("10-20/5 8 * * *", ["2026-01-02T08:10:00", "2026-01-02T08:15:00"]),
        ] {
            let schedule = Schedule::cron(text).unwrap();
            assert_eq!(moments(&schedule, "UTC", "2026-01-01T12:30:00Z", 2), expected, "{text}");
        }
    }

    #[test]
    fn invalid_expressions_and_days_are_refused() {
        for bad in [
            "",
            "* * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "*/0 * * * *",
            "5-1 * * * *",
            "a * * * *",
            "0 0 30 feb *",
            "0 0 31 4,6 *",
            "1,,2 * * * *",
            "+1 * * * *",
        ] {
            assert!(Schedule::cron(bad).is_err(), "{bad}");
        }
        for bad in [&["someday"][..], &["0"], &["32"], &["monday", "1"], &[]] {
            let days: Vec<String> = bad.iter().map(|day| (*day).to_owned()).collect();
            assert!(Schedule::on_days(civil::Time::midnight(), &days).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_time_that_a_clock_change_skips_is_later_and_one_that_it_doubles_is_once() {
        let nightly = Schedule::cron("30 1 * * *").unwrap();
        assert_eq!(
            moments(&nightly, "Europe/London", "2026-03-28T12:00:00Z", 2),
            ["2026-03-29T02:30:00", "2026-03-30T01:30:00"]
        );
        assert_eq!(
            moments(&nightly, "Europe/London", "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T01:30:00", "2026-10-26T01:30:00"]
        );
    }

    /// Any schedule that the formats can express.
    fn schedule() -> impl Strategy<Value = Schedule> {
        let time = (0..24_i8, 0..60_i8).prop_map(|(hour, minute)| civil::time(hour, minute, 0, 0));
        let weekly =
            (time.clone(), proptest::sample::subsequence(&WEEKDAYS[..], 1..=7)).prop_map(|(time, days)| {
                Schedule::on_days(time, &days.iter().map(|day| (*day).to_owned()).collect::<Vec<_>>())
                    .unwrap()
            });
        let monthly = (time.clone(), proptest::collection::vec(0..=31_u8, 1..4)).prop_map(|(time, days)| {
            let day = |day: &u8| if *day == 0 { "last".to_owned() } else { day.to_string() };
            Schedule::on_days(time, &days.iter().map(day).collect::<Vec<_>>()).unwrap()
        });
        let field = |most: u8| {
            prop_oneof![
                Just("*".to_owned()),
                (1..=most).prop_map(|n| n.to_string()),
                (2..=most).prop_map(|n| format!("*/{n}"))
            ]
        };
        let cron = (field(59), field(23), field(28), field(12), field(6))
            .prop_map(|(a, b, c, d, e)| Schedule::cron(&format!("{a} {b} {c} {d} {e}")).unwrap());
        prop_oneof![time.prop_map(Schedule::daily), weekly, monthly, cron]
    }

    #[test]
    fn a_day_of_the_month_on_a_weekday_is_found_however_rare_it_is() {
        let (utc, start) = (zone("UTC"), Timestamp::from_second(1_790_121_600).unwrap());
        // The first or the 22nd of September on a Tuesday; the 29th of February on a Sunday.
        for (cron, expected) in
            [("0 0 */21 9 2", "2037-09-01T00:00:00Z"), ("0 0 */28 2 0", "2032-02-01T00:00:00Z")]
        {
            let next = Schedule::cron(cron).unwrap().next(&utc, start).map(|next| next.to_string());
            assert_eq!(next.as_deref(), Some(expected), "{cron}");
        }
    }

    proptest! {
        #[test]
        fn next_and_last_agree_and_no_moment_is_left_out(
            schedule in schedule(), start in 1_600_000_000..1_900_000_000_i64,
            name in prop_oneof![Just("Europe/London"), Just("America/New_York"), Just("Australia/Lord_Howe"), Just("UTC")],
        ) {
            let zone = zone(name);
            let start = Timestamp::from_second(start).unwrap();
            let next = schedule.next(&zone, start).unwrap();
            prop_assert!(next > start);
            prop_assert_eq!(schedule.last(&zone, next), Some(next));
            let before = schedule.last(&zone, start).unwrap();
            prop_assert!(before <= start);
            prop_assert_eq!(schedule.next(&zone, before), Some(next));
            // The reference result: every time of every date until the next one.
            let mut date = zone.to_datetime(start).date();
            let end = zone.to_datetime(next).date();
            while date < end {
                prop_assert!(schedule.on(date, &zone).all(|moment| moment <= start || moment >= next), "{date}");
                date = date.tomorrow().unwrap();
            }
        }

        #[test]
        fn any_text_is_parsed_or_refused_without_a_panic(text in "[0-9*/,a-z -]{0,30}") {
            let _parsed = Schedule::cron(&text);
        }
    }
}
