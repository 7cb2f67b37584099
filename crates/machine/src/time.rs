//! When a gate is evaluated because of time.
//!
//! [`crate::schedule`] has the times that a calendar repeats. An interval starts at the entry.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp, ToSpan, tz::TimeZone};
use serde_json::Value as Json;
use signalbox_condition::{Earliest, Facts};

use crate::definition::{Daily, DeadlineAt, Gate, Path, Quiet, State, Zone, ZoneRule};

/// The time zone of one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Local {
    /// The zone.
    pub zone: Zone,
    /// The invalid zone name in the metadata, if that is why the default zone is used. Null if the name was
    /// missing.
    pub instead_of: Option<Json>,
    /// Whether the label's metadata named the zone.
    pub own: bool,
}

impl ZoneRule {
    /// The zone of a label with this metadata. If the metadata names none or an unknown one, it is the
    /// default.
    pub fn of(&self, metadata: &Json) -> Local {
        match self {
            Self::Fixed(zone) => Local { zone: zone.clone(), instead_of: None, own: false },
            Self::Metadata { path, default } => {
                let found = path.of(metadata);
                match found.as_str().and_then(Zone::named) {
                    Some(zone) => Local { zone, instead_of: None, own: true },
                    None => Local { zone: default.clone(), instead_of: Some(found.clone()), own: false },
                }
            }
        }
    }

    /// The zone of labels that do not name one.
    pub fn default(&self) -> &Zone {
        match self {
            Self::Fixed(zone) | Self::Metadata { default: zone, .. } => zone,
        }
    }
}

impl Daily {
    /// Whether a trigger time that is processed late is still valid: the last scheduled time is within the
    /// grace period.
    pub fn still_counts(&self, zone: &TimeZone, now: Timestamp) -> bool {
        self.schedule.last(zone, now).is_some_and(|last| {
            let passed = now.as_nanosecond() - last.as_nanosecond();
            u128::try_from(passed).is_ok_and(|passed| passed <= self.grace.as_nanos())
        })
    }
}

impl Quiet {
    /// The end of the quiet hours that contain this time, for a label with this metadata; `None` outside of
    /// them. If a clock change repeats the end, it is the first occurrence.
    pub fn until(&self, metadata: &Json, at: Timestamp) -> Option<Timestamp> {
        let zone = self.zone.of(metadata).zone;
        let local = zone.rules().to_datetime(at);
        let (time, over_midnight) = (local.time(), self.from > self.to);
        let (before_end, after_begin) = (time < self.to, time >= self.from);
        let end_date = match (over_midnight, before_end, after_begin) {
            (false, true, true) | (true, true, _) => local.date(),
            (true, false, true) => local.date().tomorrow().ok()?,
            _ => return None,
        };
        let end = zone.rules().to_ambiguous_timestamp(end_date.to_datetime(self.to)).compatible().ok()?;
        (end > at).then_some(end)
    }
}

/// The first time of an interval after `after`: the entry plus a positive multiple of the interval.
pub fn next_interval(entered: Timestamp, every: Duration, after: Timestamp) -> Option<Timestamp> {
    let every = i128::try_from(every.as_nanos()).ok()?.max(1);
    let (entered, after) = (entered.as_nanosecond(), after.as_nanosecond());
    let passed = (after - entered).div_euclid(every).max(0);
    Timestamp::from_nanosecond(entered.checked_add(every.checked_mul(passed + 1)?)?).ok()
}

/// The first time of an interval at or after `from`.
fn interval_from(entered: Timestamp, every: Duration, from: Timestamp) -> Option<Timestamp> {
    next_interval(entered, every, from.checked_sub(1.nanosecond()).ok()?)
}

impl Path {
    /// The time in the metadata at this path: an RFC 3339 text, or Unix seconds, which may have a fraction.
    pub fn moment(&self, metadata: &Json) -> Option<Timestamp> {
        match self.of(metadata) {
            Json::String(text) => signalbox_condition::instant(text),
            Json::Number(seconds) => match seconds.as_i64() {
                Some(seconds) => Timestamp::from_second(seconds).ok(),
                None => {
                    let span = SignedDuration::try_from_secs_f64(seconds.as_f64()?).ok()?;
                    Timestamp::from_duration(span).ok()
                }
            },
            _ => None,
        }
    }
}

impl State {
    /// When the state's deadline expires for a label.
    pub fn deadline_of(&self, entered: Timestamp, metadata: &Json) -> Option<Timestamp> {
        match &self.deadline()?.when {
            DeadlineAt::After(span) => entered.checked_add(*span).ok(),
            DeadlineAt::At(path) => path.moment(metadata),
        }
    }
}

impl Gate {
    /// The next evaluation of a label by an interval or by a time in its metadata: the trigger and the time.
    /// Times at which the condition cannot be true are skipped. `None` if there is no such trigger, or if
    /// only an update can make the condition true.
    ///
    /// `facts` holds the values of the present time. An evaluation at that time is assumed to be done.
    pub fn next_interval(
        &self,
        facts: &Facts<'_>,
        metadata: &Json,
        entered: Timestamp,
        now: Timestamp,
    ) -> Option<(usize, Timestamp)> {
        // The search may take as long as an evaluation.
        self.intervals().map(drop).chain(self.moments().map(drop)).next()?;
        let earliest = match self.condition.earliest(facts) {
            Earliest::Now => now,
            Earliest::At(at) | Earliest::NotBefore(at) => at.max(now),
            Earliest::Never => return None,
        };
        let next = |every| {
            let after = next_interval(entered, every, now)?;
            let possible = interval_from(entered, every, earliest)?;
            Some(after.max(possible))
        };
        let moment = |path: &Path| path.moment(metadata).filter(|at| *at > now && *at >= earliest);
        let moments = self.moments().filter_map(|(n, path)| Some((n, moment(path)?)));
        let intervals = self.intervals().filter_map(|(n, every)| Some((n, next(every)?)));
        intervals.chain(moments).min_by_key(|(_, at)| *at)
    }

    /// The next time trigger for a label with this metadata, and its time.
    pub fn next_daily(&self, metadata: &Json, now: Timestamp) -> Option<(usize, Timestamp)> {
        let next = |daily: &Daily| daily.schedule.next(daily.zone.of(metadata).zone.rules(), now);
        self.daily().filter_map(|(n, daily)| Some((n, next(daily)?))).min_by_key(|(_, at)| *at)
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil;
    use proptest::prelude::*;

    use super::*;
    use crate::schedule::Schedule;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn zone(name: &str) -> TimeZone {
        Zone::named(name).unwrap().zone
    }

    fn days(name: &str, time: (i8, i8), from: &str, count: usize) -> Vec<String> {
        let daily = Schedule::daily(civil::time(time.0, time.1, 0, 0));
        let mut now = at(from);
        let mut moments = Vec::new();
        for _ in 0..count {
            now = daily.next(&zone(name), now).unwrap();
            moments.push(now.to_string());
        }
        moments
    }

    #[test]
    fn tokyo_has_no_summer_time() {
        assert_eq!(
            days("Asia/Tokyo", (18, 30), "2026-03-28T09:30:00Z", 2),
            ["2026-03-29T09:30:00Z", "2026-03-30T09:30:00Z"]
        );
    }

    #[test]
    fn london_skips_an_hour_in_march_and_shows_one_twice_in_october() {
        // 01:30 does not exist on the 29th. It becomes 02:30 local time, an hour later, which is 01:30Z.
        assert_eq!(
            days("Europe/London", (1, 30), "2026-03-28T00:00:00Z", 3),
            ["2026-03-28T01:30:00Z", "2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"]
        );
        // 01:30 occurs twice on the 25th, at 00:30Z and 01:30Z. Only the first occurrence is used.
        assert_eq!(
            days("Europe/London", (1, 30), "2026-10-24T00:00:00Z", 3),
            ["2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
        );
        assert_eq!(
            days("Europe/London", (18, 30), "2026-03-28T00:00:00Z", 2),
            ["2026-03-28T18:30:00Z", "2026-03-29T17:30:00Z"]
        );
    }

    #[test]
    fn new_york_skips_an_hour_in_march_and_shows_one_twice_in_november() {
        assert_eq!(
            days("America/New_York", (2, 30), "2026-03-07T00:00:00Z", 3),
            // On the 8th, 02:30 is skipped and becomes 03:30 EDT.
            ["2026-03-07T07:30:00Z", "2026-03-08T07:30:00Z", "2026-03-09T06:30:00Z"]
        );
        assert_eq!(
            days("America/New_York", (1, 30), "2026-10-31T12:00:00Z", 2),
            ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]
        );
    }

    #[test]
    fn a_day_that_a_zone_skips_has_no_moment() {
        assert_eq!(
            days("Pacific/Apia", (12, 0), "2011-12-29T00:00:00Z", 3),
            ["2011-12-29T22:00:00Z", "2011-12-30T22:00:00Z", "2011-12-31T22:00:00Z"]
        );
    }

    #[test]
    fn a_missed_time_is_valid_within_the_grace() {
        let utc = Zone::utc();
        let daily = Daily {
            schedule: Schedule::daily(civil::time(18, 30, 0, 0)),
            zone: ZoneRule::Fixed(utc.clone()),
            grace: Duration::from_secs(3600),
        };
        for (now, counts) in [
            ("2026-01-31T18:30:00Z", true),
            ("2026-01-31T19:30:00Z", true),
            ("2026-01-31T19:30:00.000000001Z", false),
            ("2026-01-31T18:29:59Z", false),
        ] {
            assert_eq!(daily.still_counts(utc.rules(), at(now)), counts, "{now}");
        }
    }

    #[test]
    fn quiet_hours_end_in_the_morning_and_follow_the_clocks() {
        let quiet = |from: (i8, i8), to: (i8, i8), name: &str| Quiet {
            from: civil::time(from.0, from.1, 0, 0),
            to: civil::time(to.0, to.1, 0, 0),
            zone: ZoneRule::Fixed(Zone::named(name).unwrap()),
        };
        let night = quiet((22, 0), (7, 0), "Europe/London");
        let noon = quiet((12, 0), (14, 0), "Asia/Tokyo");
        for (quiet, now, end) in [
            (&night, "2026-01-31T21:59:59Z", None),
            (&night, "2026-01-31T22:00:00Z", Some("2026-02-01T07:00:00Z")),
            (&night, "2026-02-01T06:59:59Z", Some("2026-02-01T07:00:00Z")),
            (&night, "2026-02-01T07:00:00Z", None),
            // The clocks go forward in this night.
            (&night, "2026-03-28T23:00:00Z", Some("2026-03-29T06:00:00Z")),
            (&noon, "2026-01-31T03:30:00Z", Some("2026-01-31T05:00:00Z")),
            (&noon, "2026-01-31T05:00:00Z", None),
            (&noon, "2026-01-31T02:59:59Z", None),
        ] {
            assert_eq!(quiet.until(&Json::Null, at(now)), end.map(at), "{now}");
        }
    }

    #[test]
    fn intervals_count_from_the_entry() {
        let entered = at("2026-01-01T00:00:07Z");
        let next =
            |after: &str| next_interval(entered, Duration::from_secs(60), at(after)).unwrap().to_string();
        assert_eq!(next("2026-01-01T00:00:07Z"), "2026-01-01T00:01:07Z");
        assert_eq!(next("2026-01-01T00:01:06.9Z"), "2026-01-01T00:01:07Z");
        assert_eq!(next("2026-01-01T00:01:07Z"), "2026-01-01T00:02:07Z");
        assert_eq!(next("2025-01-01T00:00:00Z"), "2026-01-01T00:01:07Z");
    }

    proptest! {
        #[test]
        fn every_day_has_its_moment_and_none_is_skipped(
            zone_name in prop_oneof![
                Just("Europe/London"), Just("America/New_York"), Just("Asia/Tokyo"),
                Just("Australia/Lord_Howe"), Just("Africa/Casablanca"), Just("UTC"),
            ],
            hour in 0..24_i8, minute in 0..60_i8, start in 1_600_000_000..1_900_000_000_i64,
        ) {
            let zone = zone(zone_name);
            let daily = Schedule::daily(civil::time(hour, minute, 0, 0));
            let start = Timestamp::from_second(start).unwrap();
            let next = daily.next(&zone, start).unwrap();
            prop_assert!(next > start);
            // There are never two consecutive days without a trigger time.
            prop_assert!(next.as_second() - start.as_second() <= 26 * 3600);
            prop_assert_eq!(daily.last(&zone, next), Some(next));
            let before = daily.last(&zone, start).unwrap();
            prop_assert!(before <= start);
            prop_assert_eq!(daily.next(&zone, before), Some(next));
            let date = zone.to_datetime(next).date();
            let again = zone.to_datetime(daily.next(&zone, next).unwrap()).date();
            prop_assert_eq!(date.tomorrow().unwrap(), again);
        }
    }
}
