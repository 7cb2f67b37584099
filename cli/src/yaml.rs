//! Writes JSON values as YAML. Texts are quoted as in JSON unless they are plain words, so that every reader gets the same value.

use serde_json::Value;

use crate::outline::is_nested;

/// A value as a YAML document, without a line break at its end.
pub(crate) fn write(value: &Value) -> String {
    let mut out = String::new();
    block(value, 0, &mut out);
    out.trim_end().to_owned()
}

fn block(value: &Value, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (name, value) in members {
                out.push_str(&format!("{indent}{}:", text(name)));
                below(value, depth, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                out.push_str(&format!("{indent}-"));
                below(item, depth, out);
            }
        }
        scalar => out.push_str(&format!("{indent}{}\n", flow(scalar))),
    }
}

/// What follows a name or a dash.
fn below(value: &Value, depth: usize, out: &mut String) {
    if is_nested(value) {
        out.push('\n');
        block(value, depth + 1, out);
    } else {
        out.push_str(&format!(" {}\n", flow(value)));
    }
}

fn flow(value: &Value) -> String {
    match value {
        Value::String(word) => text(word),
        other => other.to_string(),
    }
}

/// Words that YAML readers take for something else.
const RESERVED: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];

fn text(word: &str) -> String {
    let plain = word.starts_with(|char: char| char.is_ascii_alphabetic())
        && word.chars().all(|char| char.is_ascii_alphanumeric() || "_-./".contains(char))
        && !RESERVED.contains(&&*word.to_lowercase());
    if plain { word.to_owned() } else { Value::from(word).to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_written_in_blocks() {
        let value = json!([{"id": "i-7", "hosts": ["a.test", "*.b"], "more": {}, "no": null, "n": {"x": [1, [2]]}}, 7]);
        let expected = "-\n  hosts:\n    - a.test\n    - \"*.b\"\n  id: i-7\n  more: {}\n  \"n\":\n    x:\n      - 1\n      -\n        - 2\n  \"no\": null\n- 7";
        assert_eq!(write(&value), expected);
        assert_eq!(write(&json!([])), "[]");
        assert_eq!(write(&json!("a: b\n")), r#""a: b\n""#);
    }
}
