//! JSON for people: one member per line, nested members indented, times in words.

use serde_json::Value;
use signalbox_client::Time;

use crate::{
    listing::{now_ms, relative, timestamp},
    terminal,
};

/// Prints a value.
pub(crate) fn print(value: &Value) {
    lines(value).iter().for_each(|line| terminal::line(line));
}

/// The lines of a value.
pub(crate) fn lines(value: &Value) -> Vec<String> {
    outlined(value, 0, now_ms())
}

/// Formats a text. It is quoted only if it is empty or could move the cursor.
pub(crate) fn word(text: &str) -> String {
    let plain = !text.is_empty() && !text.contains(char::is_control);
    // JSON permits unescaped control characters above 0x7f.
    if plain { text.to_owned() } else { format!("{text:?}") }
}

/// A line without characters that could move the cursor.
pub(crate) fn printable(line: &str) -> String {
    line.chars()
        .map(|one| if one.is_control() { one.escape_default().to_string() } else { one.to_string() })
        .collect()
}

/// A member that is a time, and how long it is from now.
fn time(value: &Value, now_ms: u64) -> Option<String> {
    let ms = value.as_str()?.parse::<Time>().ok()?.ms();
    Some(format!("{} ({})", timestamp(ms), relative(ms, now_ms)))
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => word(text),
        other => printable(&other.to_string()),
    }
}

/// Whether the value has members or items.
pub(crate) fn is_nested(value: &Value) -> bool {
    match value {
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    }
}

fn outlined(value: &Value, depth: usize, now_ms: u64) -> Vec<String> {
    let space = "  ".repeat(depth);
    match value {
        Value::Object(members) => members
            .iter()
            .flat_map(|(name, member)| {
                if is_nested(member) {
                    return [vec![format!("{space}{}:", word(name))], outlined(member, depth + 1, now_ms)]
                        .concat();
                }
                let shown = time(member, now_ms).unwrap_or_else(|| plain(member));
                vec![format!("{space}{}: {shown}", word(name))]
            })
            .collect(),
        Value::Array(items) => items
            .iter()
            .flat_map(|item| {
                let mut lines =
                    if is_nested(item) { outlined(item, depth + 1, now_ms) } else { vec![plain(item)] };
                if let Some(first) = lines.first_mut() {
                    *first = format!("{space}- {}", first.trim_start());
                }
                lines
            })
            .collect(),
        other => vec![format!("{space}{}", plain(other))],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_outline_leaves_nothing_out() {
        let why = json!({"state": "asked", "leaves": [{"path": "metadata.a", "value": null}, 7], "none": []});
        let lines = lines(&why);
        let text = lines.join("\n");
        for part in
            ["state: asked", "leaves:", "  - path: metadata.a", "    value: null", "  - 7", "none: []"]
        {
            assert!(lines.iter().any(|line| line == part), "{part:?} in\n{text}");
        }
    }

    #[test]
    fn nothing_in_an_outline_moves_the_cursor() {
        assert_eq!(lines(&json!("a\u{1b}[2J")), [r#""a\u{1b}[2J""#]);
        assert_eq!(lines(&json!({"": {"\u{9b}": 1}})), ["\"\":", "  \"\\u{9b}\": 1"]);
    }

    #[test]
    fn times_are_shown_as_times_and_spans_as_numbers() {
        let now = 1_801_353_600_000;
        let value = json!({"at": "2027-01-31T00:00:00.000Z", "timeout_ms": 500, "count_at": 7});
        let expected = ["at: 2027-01-31T00:00:00Z (0s ago)", "count_at: 7", "timeout_ms: 500"];
        let mut lines = outlined(&value, 0, now);
        lines.sort();
        assert_eq!(lines, expected);
    }
}
