//! The explanation of a label's state for display: the tree of its gate's condition, with the operands of every test, and
//! the changes that would open the gate.

use jiff::Timestamp;
use serde_json::Value;

use crate::dashboard::format;

/// The explanation of one label.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Why {
    pub(super) reason: Option<String>,
    pub(super) stuck: Option<String>,
    /// What has to happen before the gate is evaluated.
    pub(super) waits_for: Option<String>,
    pub(super) condition: Option<String>,
    /// The state that the changes lead to, if the gate has several.
    pub(super) towards: Option<String>,
    pub(super) result: &'static str,
    pub(super) tree: Vec<Row>,
    /// The smallest set of changes that opens the gate.
    pub(super) changes: Vec<Change>,
    pub(super) earliest: String,
    pub(super) next: String,
    pub(super) triggers: String,
    pub(super) zone: String,
}

/// A test and the result that it would need.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) text: String,
    pub(super) required: bool,
}

/// A line of the tree.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Row {
    pub(super) text: String,
    /// `true`, `false` or `unknown`.
    pub(super) truth: &'static str,
    /// The CSS class of the result.
    pub(super) color: &'static str,
    /// The result that would open the gate.
    pub(super) opens: Option<bool>,
    /// Whether it was not evaluated, because an earlier test decided the result.
    pub(super) skipped: bool,
    pub(super) operands: Vec<Operand>,
    pub(super) error: Option<String>,
    /// Whether the following rows are its children.
    pub(super) parent: bool,
    /// How many nested lists end after this row.
    pub(super) ends: usize,
}

#[derive(Debug, PartialEq)]
pub(super) struct Operand {
    pub(super) text: String,
    pub(super) value: String,
    pub(super) note: Option<&'static str>,
}

/// Converts the engine's JSON.
pub(super) fn read(why: &Value, now_ms: u64) -> Why {
    let text = |name: &str| why[name].as_str().map(str::to_owned);
    let changes: Vec<Change> = why["fewest"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|change| Change {
            text: change["text"].as_str().unwrap_or_default().to_owned(),
            required: change["should_be"].as_bool().unwrap_or(true),
        })
        .collect();
    let mut tree = Vec::new();
    if why["tree"].is_object() {
        flatten(&why["tree"], &changes, &mut tree);
    }
    let (result, _) = truth(&why["result"]);
    let next = why["next"]["at"].as_str().map(|at| {
        format!("{} (trigger: {})", distance(at, now_ms), why["next"]["trigger"].as_str().unwrap_or_default())
    });
    let triggers: Vec<&str> =
        why["triggers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    Why {
        reason: text("reason"),
        stuck: text("stuck"),
        waits_for: text("waits_for"),
        condition: text("condition"),
        towards: text("towards"),
        result,
        tree,
        changes,
        earliest: earliest(&why["earliest"], now_ms),
        next: next.unwrap_or_else(|| "none scheduled: waits for metadata or events".to_owned()),
        triggers: triggers.join(", "),
        zone: text("timezone").unwrap_or_default(),
    }
}

fn earliest(at: &Value, now_ms: u64) -> String {
    match at.as_str() {
        None => "never without a metadata update".to_owned(),
        Some("now") => "now".to_owned(),
        Some(at) => match at.strip_prefix("not before ") {
            Some(at) => format!("not before {}", distance(at, now_ms)),
            None => distance(at, now_ms),
        },
    }
}

/// A point in time, and its distance from now.
fn distance(at: &str, now_ms: u64) -> String {
    let Ok(time) = at.parse::<Timestamp>() else { return at.to_owned() };
    let at_ms = u64::try_from(time.as_millisecond()).unwrap_or(0);
    let away = if at_ms >= now_ms {
        format!("in {}", format::span(at_ms - now_ms))
    } else {
        format::ago(now_ms, at_ms)
    };
    format!("{}, {away}", format::time(at_ms))
}

fn truth(value: &Value) -> (&'static str, &'static str) {
    match value {
        Value::Bool(true) => ("true", "good"),
        Value::Bool(false) => ("false", "bad"),
        _ => ("unknown", "warn"),
    }
}

/// Appends a node and its children to the rows.
fn flatten(node: &Value, changes: &[Change], rows: &mut Vec<Row>) {
    let (truth, color) = truth(&node["result"]);
    let text = node["text"].as_str().unwrap_or_default();
    let below: Vec<&Value> = match node["kind"].as_str() {
        Some("test") => node["operands"].as_array().into_iter().flatten().map(|one| &one["tree"]).collect(),
        _ => node["parts"].as_array().into_iter().flatten().collect(),
    };
    let below: Vec<&Value> = below.into_iter().filter(|one| one.is_object()).collect();
    let is_test = node["kind"] == "test";
    let bare = text.trim_start_matches("not ");
    rows.push(Row {
        text: match node["kind"].as_str() {
            Some("and") => "all of these".to_owned(),
            Some("or") => "any of these".to_owned(),
            Some("not") => "not".to_owned(),
            _ => text.to_owned(),
        },
        truth,
        color,
        opens: changes.iter().find(|change| is_test && change.text == bare).map(|change| change.required),
        skipped: node["reached"] == false,
        operands: node["operands"].as_array().into_iter().flatten().filter_map(operand).collect(),
        error: node["error"].as_str().map(str::to_owned),
        parent: !below.is_empty(),
        ends: 0,
    });
    for one in &below {
        flatten(one, changes, rows);
    }
    if let Some(last) = rows.last_mut().filter(|_| !below.is_empty()) {
        last.ends += 1;
    }
}

/// An operand of a test, unless the text of the test already shows its value.
fn operand(operand: &Value) -> Option<Operand> {
    let source = operand["source"].as_str().unwrap_or_default();
    if matches!(source, "literal" | "tests") {
        return None;
    }
    let note = match operand["note"].as_str() {
        Some("missing") => Some("is missing"),
        Some("feed_failed") => Some("is unknown: the feed failed"),
        Some("feed_not_asked") => Some("is unknown: the feed was not queried"),
        Some("unknown") => Some("is unknown"),
        _ => None,
    };
    Some(Operand {
        text: operand["text"].as_str().unwrap_or_default().to_owned(),
        value: operand["value"].to_string(),
        note,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_tree_shows_the_operands_of_each_test_and_the_changes_that_open_the_gate() {
        let test = |text: &str, result: Value, operands: Value| json!({"kind": "test", "text": text, "result": result, "reached": true, "operands": operands});
        let explanation = json!({
            "condition": "a and not b or c", "result": false, "earliest": "2026-01-01T00:01:00Z", "timezone": "UTC",
            "next": {"at": "2026-01-01T00:00:30Z", "trigger": "interval 30s"}, "triggers": ["interval 30s"],
            "fewest": [{"text": "metadata.b", "is": true, "should_be": false}],
            "tree": {"kind": "and", "text": "…", "result": false, "reached": true, "parts": [
                test("metadata.a", json!(true), json!([{"text": "metadata.a", "value": 1, "source": "metadata"}])),
                {"kind": "or", "text": "…", "result": "unknown", "reached": true, "parts": [
                    test("not metadata.b", json!(false), json!([{"text": "metadata.b", "value": true, "source": "metadata"}])),
                    test("feeds.x.y > 3", json!("unknown"), json!([
                        {"text": "feeds.x.y", "value": null, "source": "feed", "note": "feed_failed"},
                        {"text": "3", "value": 3, "source": "literal"}])),
                ]},
            ]},
        });
        let now_ms = 1_767_225_600_000;
        let why = read(&explanation, now_ms);
        let lines: Vec<(&str, &str, bool, usize)> =
            why.tree.iter().map(|row| (&*row.text, row.truth, row.parent, row.ends)).collect();
        assert_eq!(
            lines,
            [
                ("all of these", "false", true, 0),
                ("metadata.a", "true", false, 0),
                ("any of these", "unknown", true, 0),
                ("not metadata.b", "false", false, 0),
                ("feeds.x.y > 3", "unknown", false, 2),
            ]
        );
        assert_eq!(why.tree[3].opens, Some(false));
        assert_eq!(why.tree[1].opens, None);
        assert_eq!(why.tree[4].operands.len(), 1, "literals are omitted");
        assert_eq!(why.tree[4].operands[0].note, Some("is unknown: the feed failed"));
        assert_eq!(why.earliest, "2026-01-01 00:01:00 UTC, in 60 s");
        assert_eq!(why.next, "2026-01-01 00:00:30 UTC, in 30 s (trigger: interval 30s)");
    }

    #[test]
    fn a_label_outside_a_gate_has_a_reason_and_no_tree() {
        let why = read(&json!({"reason": "it has ended", "stuck": "nothing will"}), 0);
        assert_eq!((why.tree.len(), why.reason.as_deref()), (0, Some("it has ended")));
        assert_eq!(why.earliest, "never without a metadata update");
    }
}
