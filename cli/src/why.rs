//! The text output of `signalbox labels why`: the gate's comparisons as a tree, and the changes that would open it.
//!
//! ```text
//! signed_up (waiting) since 2026-11-22T15:52:27.846Z
//! The gate's condition is false. The fewest changes that would open it:
//!   metadata.has_recommendations should be true
//! all of these                      false
//!   metadata.has_recommendations    false  it is missing
//!   system.time >= 18:30            false  system.time is "15:52:27"
//! earliest opening  only when new data arrives
//! next evaluation   2026-11-22T18:30:00Z, by time 18:30 metadata.timezone
//! ```

use serde_json::{Map, Value};

/// Members that the lines below contain. The tree contains the condition, and its leaves contain `blocking`.
const SHOWN: [&str; 13] = [
    "state",
    "status",
    "since",
    "result",
    "fewest",
    "towards",
    "blocking",
    "tree",
    "condition",
    "earliest",
    "next",
    "triggers",
    "timezone",
];
/// The maximum column of the results. A longer test does not move the results of the others.
const MAX_COLUMN: usize = 64;

/// A test or a group of tests: depth, text, result, and the compared values.
type Row = (usize, String, String, String);

/// Formats the answer as lines. `outline` formats members that are unknown here, so that nothing is omitted.
pub(crate) fn lines(why: &Value, outline: impl Fn(&Value) -> Vec<String>) -> Vec<String> {
    let Some(members) = why.as_object() else { return outline(why) };
    let text = |name: &str| why[name].as_str().unwrap_or_default();
    let mut lines = vec![format!("{} ({}) since {}", text("state"), text("status"), text("since"))];
    if why["tree"].is_object() {
        lines.push(condition(why));
        for wish in why["fewest"].as_array().into_iter().flatten() {
            let wanted = wish["should_be"].as_bool().unwrap_or(true);
            lines.push(format!("  {} should be {wanted}", wish["text"].as_str().unwrap_or_default()));
        }
        let mut rows = Vec::new();
        flatten(&why["tree"], 0, &mut rows);
        lines.extend(aligned(&rows));
        lines.push(format!(
            "earliest opening  {}",
            why["earliest"].as_str().unwrap_or("only when new data arrives")
        ));
        lines.push(format!("next evaluation   {}", next(&why["next"])));
        let triggers: Vec<&str> =
            why["triggers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        lines.push(format!("evaluated on      {}", triggers.join(", ")));
        lines.push(format!("time zone         {}", text("timezone")));
    }
    let known = |name: &str| SHOWN.contains(&name) && (why["tree"].is_object() || name.starts_with('s'));
    let more: Map<String, Value> = members
        .iter()
        .filter(|(name, value)| !known(name) && !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if !more.is_empty() {
        lines.extend(outline(&Value::Object(more)));
    }
    lines
}

fn condition(why: &Value) -> String {
    let wishes = why["fewest"].as_array().is_some_and(|wishes| !wishes.is_empty());
    let end = match (wishes, why["towards"].as_str()) {
        (true, Some(state)) => format!(" The fewest changes that would open it, to {state}:"),
        (true, None) => " The fewest changes that would open it:".to_owned(),
        (false, _) => String::new(),
    };
    format!("The gate's condition is {}.{end}", truth(&why["result"]))
}

fn truth(value: &Value) -> String {
    value.as_bool().map_or_else(|| "unknown".to_owned(), |truth| truth.to_string())
}

fn next(next: &Value) -> String {
    match next["at"].as_str() {
        Some(at) => format!("{at}, by {}", next["trigger"].as_str().unwrap_or_default()),
        None => "only by facts or events".to_owned(),
    }
}

/// Adds the node and all nodes below it.
fn flatten(node: &Value, depth: usize, rows: &mut Vec<Row>) {
    let text = node["text"].as_str().unwrap_or_default();
    let kind = node["kind"].as_str();
    let words = match kind {
        Some("and") => "all of these",
        Some("or") => "any of these",
        Some("not") => "not",
        _ => text,
    };
    let operands = || node["operands"].as_array().into_iter().flatten();
    let mut notes: Vec<String> = operands().filter_map(|one| operand(one, text)).collect();
    notes.extend(node["error"].as_str().map(str::to_owned));
    if node["reached"] == false {
        notes.push("not needed".to_owned());
    }
    rows.push((depth, words.to_owned(), truth(&node["result"]), notes.join(", ")));
    let below: Vec<&Value> = match kind {
        Some("test") => operands().map(|one| &one["tree"]).collect(),
        _ => node["parts"].as_array().into_iter().flatten().collect(),
    };
    below.into_iter().filter(|one| one.is_object()).for_each(|one| flatten(one, depth + 1, rows));
}

/// Describes an operand of a test, unless the test's text already contains it.
fn operand(operand: &Value, test: &str) -> Option<String> {
    if matches!(operand["source"].as_str(), Some("literal" | "tests")) {
        return None;
    }
    let text = operand["text"].as_str().unwrap_or_default();
    let name = if text == test { "it" } else { text };
    Some(match operand["note"].as_str() {
        Some("feed_failed") => "the feed failed".to_owned(),
        Some("feed_not_asked") => "the feed was not requested".to_owned(),
        Some(note) => format!("{name} is {note}"),
        None => format!("{name} is {}", operand["value"]),
    })
}

fn aligned(rows: &[Row]) -> Vec<String> {
    let width = |(depth, text, ..): &Row| 2 * depth + text.chars().count();
    let column = rows.iter().map(width).filter(|width| *width <= MAX_COLUMN).max().unwrap_or_default();
    rows.iter()
        .map(|row| {
            let (depth, text, truth, notes) = row;
            let gap = " ".repeat(column.saturating_sub(width(row)) + 2);
            format!("{}{text}{gap}{truth:<7}  {notes}", "  ".repeat(*depth)).trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(why: &Value) -> Vec<String> {
        lines(why, |more| vec![more.to_string()])
    }

    #[test]
    fn a_gate_is_a_tree_with_the_operands_of_each_test() {
        let why = json!({
            "state": "signed_up", "status": "waiting", "since": "2026-01-01T00:00:00Z", "result": false, "version": 3,
            "condition": "…", "reason": null, "earliest": null, "timezone": "Europe/London", "blocking": [],
            "next": {"at": "2026-01-01T18:30:00Z", "trigger": "time 18:30"}, "triggers": ["time 18:30", "entry"],
            "fewest": [{"text": "metadata.paid", "is": false, "should_be": true}],
            "tree": {"kind": "and", "result": false, "reached": true, "parts": [
                {"kind": "test", "text": "metadata.paid", "result": false, "reached": true, "operands": [
                    {"text": "metadata.paid", "value": null, "source": "metadata", "note": "missing"}]},
                {"kind": "or", "result": "unknown", "reached": false, "parts": [
                    {"kind": "test", "text": "feeds.crm.tier = gold", "result": "unknown", "reached": false, "operands": [
                        {"text": "feeds.crm.tier", "value": null, "source": "feed", "note": "feed_failed"},
                        {"text": "gold", "value": "gold", "source": "literal"}]}]}]},
        });
        let expected = [
            "signed_up (waiting) since 2026-01-01T00:00:00Z",
            "The gate's condition is false. The fewest changes that would open it:",
            "  metadata.paid should be true",
            "all of these               false",
            "  metadata.paid            false    it is missing",
            "  any of these             unknown  not needed",
            "    feeds.crm.tier = gold  unknown  the feed failed, not needed",
            "earliest opening  only when new data arrives",
            "next evaluation   2026-01-01T18:30:00Z, by time 18:30",
            "evaluated on      time 18:30, entry",
            "time zone         Europe/London",
            r#"{"version":3}"#,
        ];
        assert_eq!(read(&why), expected);
    }

    #[test]
    fn a_label_without_a_gate_is_shown_with_all_other_data() {
        let why = json!({"state": "done", "status": "ended", "since": "x", "reason": "it has ended", "next": {"at": "y"}});
        assert_eq!(read(&why), ["done (ended) since x", r#"{"next":{"at":"y"},"reason":"it has ended"}"#]);
        assert_eq!(read(&json!(5)), ["5"]);
    }
}
