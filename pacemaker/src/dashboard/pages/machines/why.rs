//! The answer to "why is it here" as a person reads it: a tree with what every test compares, and what would open the gate.

use jiff::Timestamp;
use serde_json::Value;

use crate::dashboard::words;

/// What is told.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Why {
    pub(super) reason: Option<String>,
    pub(super) stuck: Option<String>,
    pub(super) condition: Option<String>,
    pub(super) result: &'static str,
    pub(super) tree: Vec<Row>,
    pub(super) fewest: Vec<Wish>,
    pub(super) earliest: String,
    pub(super) next: String,
    pub(super) triggers: String,
    pub(super) zone: String,
}

/// A test that would have to come out otherwise.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) text: String,
    pub(super) should_be: bool,
}

/// A line of the tree.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Row {
    pub(super) text: String,
    /// `true`, `false` or `unknown`, and the class of the style sheet.
    pub(super) truth: &'static str,
    pub(super) colour: &'static str,
    /// What it would have to be to open the gate.
    pub(super) opens: Option<bool>,
    /// Whether the evaluation was decided before it.
    pub(super) passed_over: bool,
    pub(super) operands: Vec<Operand>,
    pub(super) error: Option<String>,
    /// Whether lines below belong to it, and how many such lists end behind it.
    pub(super) parent: bool,
    pub(super) ends: usize,
}

#[derive(Debug, PartialEq)]
pub(super) struct Operand {
    pub(super) text: String,
    pub(super) value: String,
    pub(super) note: Option<&'static str>,
}

/// Reads an explanation.
pub(super) fn read(why: &Value, now_ms: u64) -> Why {
    let text = |name: &str| why[name].as_str().map(str::to_owned);
    let fewest: Vec<Wish> = why["fewest"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|wish| Wish {
            text: wish["text"].as_str().unwrap_or_default().to_owned(),
            should_be: wish["should_be"].as_bool().unwrap_or(true),
        })
        .collect();
    let mut tree = Vec::new();
    if why["tree"].is_object() {
        flatten(&why["tree"], &fewest, &mut tree);
    }
    let (result, _) = truth(&why["result"]);
    let next = why["next"]["at"].as_str().map(|at| {
        format!("{}, by {}", moment(at, now_ms), why["next"]["trigger"].as_str().unwrap_or_default())
    });
    let triggers: Vec<&str> =
        why["triggers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    Why {
        reason: text("reason"),
        stuck: text("stuck"),
        condition: text("condition"),
        result,
        tree,
        fewest,
        earliest: earliest(&why["earliest"], now_ms),
        next: next.unwrap_or_else(|| "nothing but facts or events".to_owned()),
        triggers: triggers.join(", "),
        zone: text("timezone").unwrap_or_default(),
    }
}

fn earliest(at: &Value, now_ms: u64) -> String {
    match at.as_str() {
        None => "never, unless facts come".to_owned(),
        Some("now") => "now".to_owned(),
        Some(at) => match at.strip_prefix("not before ") {
            Some(at) => format!("not before {}", moment(at, now_ms)),
            None => moment(at, now_ms),
        },
    }
}

/// A moment, and how far away it is.
fn moment(at: &str, now_ms: u64) -> String {
    let Ok(time) = at.parse::<Timestamp>() else { return at.to_owned() };
    let at_ms = u64::try_from(time.as_millisecond()).unwrap_or(0);
    let away = if at_ms >= now_ms {
        format!("in {}", words::span(at_ms - now_ms))
    } else {
        words::ago(now_ms, at_ms)
    };
    format!("{} ({away})", words::moment(at_ms))
}

fn truth(value: &Value) -> (&'static str, &'static str) {
    match value {
        Value::Bool(true) => ("true", "good"),
        Value::Bool(false) => ("false", "bad"),
        _ => ("unknown", "warn"),
    }
}

/// The node and all below it, line by line.
fn flatten(node: &Value, fewest: &[Wish], rows: &mut Vec<Row>) {
    let (truth, colour) = truth(&node["result"]);
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
        colour,
        opens: fewest.iter().find(|wish| is_test && wish.text == bare).map(|wish| wish.should_be),
        passed_over: node["reached"] == false,
        operands: node["operands"].as_array().into_iter().flatten().filter_map(operand).collect(),
        error: node["error"].as_str().map(str::to_owned),
        parent: !below.is_empty(),
        ends: 0,
    });
    for one in &below {
        flatten(one, fewest, rows);
    }
    if let Some(last) = rows.last_mut().filter(|_| !below.is_empty()) {
        last.ends += 1;
    }
}

/// A side of a test, unless it says no more than the text does.
fn operand(operand: &Value) -> Option<Operand> {
    let source = operand["source"].as_str().unwrap_or_default();
    if matches!(source, "literal" | "tests") {
        return None;
    }
    let note = match operand["note"].as_str() {
        Some("missing") => Some("is missing"),
        Some("feed_failed") => Some("is not known: the feed failed"),
        Some("feed_not_asked") => Some("is not known: the feed was not asked"),
        Some("unknown") => Some("is not known"),
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
    fn the_tree_says_what_each_test_compares_and_what_would_open_it() {
        let test = |text: &str, result: Value, operands: Value| json!({"kind": "test", "text": text, "result": result, "reached": true, "operands": operands});
        let asked = json!({
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
        let why = read(&asked, now_ms);
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
        assert_eq!(why.tree[4].operands.len(), 1, "a literal says nothing new");
        assert_eq!(why.tree[4].operands[0].note, Some("is not known: the feed failed"));
        assert_eq!(why.earliest, "2026-01-01 00:01:00 UTC (in 60 s)");
        assert_eq!(why.next, "2026-01-01 00:00:30 UTC (in 30 s), by interval 30s");
    }

    #[test]
    fn a_label_that_is_at_no_gate_has_a_reason_and_no_tree() {
        let why = read(&json!({"reason": "it has come to its end", "stuck": "nothing will"}), 0);
        assert_eq!((why.tree.len(), why.reason.as_deref()), (0, Some("it has come to its end")));
        assert_eq!(why.earliest, "never, unless facts come");
    }
}
