//! Numbers for people.

/// A time span in its largest suitable unit: `3 s`, `5 min`, `2 h`, `4 d`.
pub fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A time of today as `14:42 UTC`, another as `2026-11-20 14:42 UTC`.
pub(crate) fn day_and_time(at_ms: u64, now_ms: u64) -> String {
    const DAY_MS: u64 = 86_400_000;
    let minutes = at_ms % DAY_MS / 60_000;
    let time = format!("{:02}:{:02} UTC", minutes / 60, minutes % 60);
    if at_ms / DAY_MS == now_ms / DAY_MS {
        return time;
    }
    // Years of March to February, so that the leap day is the last; 146,097 days are 400 years.
    let days = at_ms / DAY_MS + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = 400 * era + year + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {time}")
}

/// `5003` as `5,003`.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 label`, `2 labels`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", thousands(usize::try_from(number).unwrap_or(usize::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_use_the_largest_unit_that_is_precise_enough() {
        assert_eq!([span(0), span(999), span(1000), span(119_999)], ["0 ms", "999 ms", "1 s", "119 s"]);
        assert_eq!([span(120_000), span(7_200_000), span(172_800_000)], ["2 min", "2 h", "2 d"]);
    }

    #[test]
    fn a_time_of_another_day_has_its_date() {
        let now = 1_709_251_199_000;
        assert_eq!(day_and_time(now - 60_000, now), "23:58 UTC");
        assert_eq!(day_and_time(now, now + 1000), "2024-02-29 23:59 UTC");
        assert_eq!(day_and_time(now + 1000, now), "2024-03-01 00:00 UTC");
        assert_eq!(day_and_time(0, now), "1970-01-01 00:00 UTC");
        assert_eq!(day_and_time(1_798_675_200_000, now), "2026-12-31 00:00 UTC");
    }

    #[test]
    fn one_is_singular() {
        assert_eq!([count(1, "label"), count(0, "label")], ["1 label", "0 labels"]);
    }

    #[test]
    fn large_numbers_are_grouped() {
        assert_eq!(
            [thousands(0), thousands(999), thousands(5003), thousands(1_234_567)],
            ["0", "999", "5,003", "1,234,567"]
        );
    }
}
