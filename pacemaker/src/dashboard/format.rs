//! Formats numbers, durations and times for display.

pub(super) use signalbox_diagnosis::span;

/// The age of a point in time: `4 s ago`.
pub(super) fn ago(now_ms: u64, then_ms: u64) -> String {
    match now_ms.saturating_sub(then_ms) {
        0..1000 => "now".to_owned(),
        age => format!("{} ago", span(age)),
    }
}

/// The time until a point in time: `4 s`.
pub(super) fn until(now_ms: u64, then_ms: u64) -> String {
    span(then_ms.saturating_sub(now_ms))
}

/// A point in time in UTC.
pub(super) fn time(unix_ms: u64) -> String {
    let at = i64::try_from(unix_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| "–".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

/// A part of a whole in percent: `2.0%`.
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    #[allow(clippy::cast_precision_loss, reason = "display precision")]
    let percent = part as f64 * 100.0 / whole as f64;
    match percent {
        0.0 => "0%".to_owned(),
        percent if percent < 0.1 => "< 0.1%".to_owned(),
        percent if percent < 10.0 => format!("{percent:.1}%"),
        percent => format!("{percent:.0}%"),
    }
}

/// A rate per second, from the count of one minute.
pub(super) fn per_second(minute: u64) -> String {
    match minute {
        0 => "0".to_owned(),
        #[allow(clippy::cast_precision_loss, reason = "display precision")]
        1..600 => format!("{:.1}", minute as f64 / 60.0),
        _ => (minute / 60).to_string(),
    }
}

/// A number in at most five characters: `9999`, `10.1k`, `2.5M`.
pub(super) fn compact(number: u64) -> String {
    let scaled = |unit: u64, name| match number / unit {
        whole @ 0..100 => format!("{whole}.{}{name}", number % unit * 10 / unit),
        whole => format!("{whole}{name}"),
    };
    match number {
        0..10_000 => number.to_string(),
        10_000..1_000_000 => scaled(1000, "k"),
        1_000_000..1_000_000_000 => scaled(1_000_000, "M"),
        _ => scaled(1_000_000_000, "G"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_with_their_units() {
        assert_eq!([ago(5000, 4500), ago(5000, 9000), ago(9000, 5000)], ["now", "now", "4 s ago"]);
        assert_eq!([time(1_767_225_661_999), time(u64::MAX)], ["2026-01-01 00:01:01 UTC", "–"]);
        assert_eq!([percent(0, 0), percent(0, 5), percent(1, 5000)], ["–", "0%", "< 0.1%"]);
        assert_eq!([percent(1, 50), percent(1, 2)], ["2.0%", "50%"]);
        let numbers = [9999, 10_059, 100_900, 2_590_000, 999_999_999, 4_000_000_000];
        assert_eq!(numbers.map(compact), ["9999", "10.0k", "100k", "2.5M", "999M", "4.0G"]);
        assert_eq!([per_second(0), per_second(30), per_second(6000)], ["0", "0.5", "100"]);
    }
}
