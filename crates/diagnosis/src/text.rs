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
