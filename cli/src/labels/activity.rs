//! `signalbox labels history --all`: what happened to a label, a line each.

use signalbox_client::machines::ActivityLine;

use crate::{
    listing::{Cell, cells},
    outline::printable,
};

pub(super) const COLUMNS: [&str; 4] = ["AT", "VISIT", "WHAT", "DETAILS"];

/// A line as a row of the table.
pub(super) fn row(line: &ActivityLine) -> [Cell; 4] {
    cells![line.at, line.visit, line.kind, printable(&described(line))]
}

/// The members of a line in words.
fn described(line: &ActivityLine) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    match &*line.kind {
        "move" => {
            let trigger = line.trigger.as_ref().map(|trigger| format!(" ({trigger})")).unwrap_or_default();
            format!("{} -> {}: {}{trigger}", text(&line.from), text(&line.to), text(&line.cause))
        }
        "attempt" => {
            let number = line.attempt.unwrap_or_default();
            let status = line.status.map(|status| format!(", status {status}")).unwrap_or_default();
            let took = line.duration_ms.map(|ms| format!(", {ms} ms")).unwrap_or_default();
            let error = line.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            let answer = line.answer.as_ref().map(|answer| format!(" | {answer}")).unwrap_or_default();
            format!("{} {number} {}{status}{took}{error}{answer}", text(&line.state), text(&line.outcome))
        }
        "operation" => format!("{} by {}", text(&line.operation), text(&line.by)),
        _ => match (&line.change, line.bytes) {
            (Some(change), _) => format!("{change} by {}", text(&line.by)),
            (None, bytes) => format!("{} bytes by {}", bytes.unwrap_or_default(), text(&line.by)),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_is_described_in_a_line() {
        for (line, expected) in [
            (
                json!({"kind": "move", "from": "a", "to": "b", "cause": "time", "trigger": "time 18:30"}),
                "a -> b: time (time 18:30)",
            ),
            (
                json!({"kind": "attempt", "state": "act", "attempt": 2, "outcome": "failed", "status": 503, "duration_ms": 12,
                    "error": "answered 503", "answer": "busy"}),
                "act 2 failed, status 503, 12 ms: answered 503 | busy",
            ),
            (json!({"kind": "operation", "operation": "retry", "by": "ada"}), "retry by ada"),
            (json!({"kind": "metadata", "by": "ada", "change": {"a": 1}}), r#"{"a":1} by ada"#),
            (json!({"kind": "metadata", "by": "ada", "bytes": 2000}), "2000 bytes by ada"),
        ] {
            let line: ActivityLine = serde_json::from_value(line).unwrap();
            assert_eq!(described(&line), expected);
        }
    }
}
