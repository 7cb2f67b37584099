//! `signalbox labels set`: changes the metadata of a label.

use serde_json::{Value, json};
use signalbox_client::with_query;
use signalbox_machine::{definition::Path, merge};

use super::{Once, operate, path};
use crate::{exit::Failure, input, remote::Remote};

#[derive(Debug, clap::Args)]
pub(crate) struct Set {
    /// Machine
    machine: String,
    /// Label
    label: String,
    /// Metadata path and value; the value is JSON, or text if it is not valid JSON
    #[arg(value_name = "PATH=VALUE", value_parser = fact)]
    facts: Vec<Fact>,
    /// Metadata as a JSON object, applied before the PATH=VALUE arguments
    #[arg(long, value_name = "JSON", value_parser = super::object)]
    metadata: Option<Value>,
    /// Remove this metadata path; can be repeated
    #[arg(long, value_name = "PATH", value_parser = path_of)]
    remove: Vec<Path>,
    /// Create the label if it does not exist
    #[arg(long)]
    create: bool,
    /// Maximum time to wait until the label stays in a state
    #[arg(long, value_name = "DURATION", value_parser = crate::remote::duration)]
    wait: Option<std::time::Duration>,
    #[command(flatten)]
    once: Once,
}

#[derive(Debug, Clone, PartialEq)]
struct Fact {
    path: Path,
    value: Value,
}

fn path_of(text: &str) -> Result<Path, String> {
    let path = Path::parse(text)?;
    if path.keys().is_empty() {
        Err("the path must not name all of the metadata".to_owned())
    } else {
        Ok(path)
    }
}

/// Splits at the first `=` outside a quoted key.
fn fact(text: &str) -> Result<Fact, String> {
    let mut quoted = false;
    let equals = text.find(|char| {
        quoted ^= char == '"';
        char == '=' && !quoted
    });
    let (name, value) = equals
        .map(|at| (&text[..at], &text[at + 1..]))
        .ok_or_else(|| "expected PATH=VALUE, such as paid=true, plan=pro or user.age=30".to_owned())?;
    Ok(Fact { path: path_of(name)?, value: input::value(value) })
}

/// Combines everything into one update. If the update removes a path, null means removal and cannot be a value.
fn update(set: &Set) -> Result<Value, Failure> {
    let mut update = set.metadata.clone().unwrap_or_else(|| json!({}));
    for Fact { path, value } in &set.facts {
        merge::merge(&mut update, &merge::at_path(path, value.clone()));
    }
    if !set.remove.is_empty() && has_null(&update) {
        return Err(Failure::configuration("a null value and --remove cannot be combined: use two commands"));
    }
    for path in &set.remove {
        merge::merge(&mut update, &merge::at_path(path, Value::Null));
    }
    Ok(update)
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(members) => members.values().any(has_null),
        _ => false,
    }
}

pub(super) async fn set(set: Set, remote: &Remote) -> Result<(), Failure> {
    let update = update(&set)?;
    let Set { machine, label, remove, create, wait, once, .. } = &set;
    let client = once.key.client(remote.client()?)?;
    let wait = wait.map(|wait| format!("{}ms", wait.as_millis()));
    let path = with_query(&path(machine, label, ""), &[("wait", wait)]);
    // In a merge patch (RFC 7396), null removes.
    let kind = if remove.is_empty() { "application/json" } else { "application/merge-patch+json" };
    let body = json!({"metadata": update}).to_string().into_bytes();
    let changed = match client.send_bytes("PATCH", &once.path(&path), kind, body).await {
        // The key is in conflict if the command is repeated that has created the label under it.
        Err(error) if *create && matches!(error.code(), Some("unknown_label" | "idempotency_conflict")) => {
            // A new label has nothing that could be removed.
            let facts = if remove.is_empty() { update } else { without_null(&update) };
            client.send("POST", &path, &json!({"metadata": facts})).await?
        }
        updated => updated?,
    };
    operate::show_changed(remote, label, &changed)
}

fn without_null(update: &Value) -> Value {
    let mut facts = json!({});
    merge::patch(&mut facts, update);
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Value {
        let Fact { path, value } = fact(text).unwrap();
        merge::at_path(&path, value)
    }

    #[test]
    fn a_fact_is_json_or_text_at_a_path() {
        for (text, expected) in [
            ("paid=true", json!({"paid": true})),
            ("metadata.plan=pro", json!({"plan": "pro"})),
            ("plan=\"17\"", json!({"plan": "17"})),
            ("version=17", json!({"version": 17})),
            ("user.age=30", json!({"user": {"age": 30}})),
            ("tags=[\"a\"]", json!({"tags": ["a"]})),
            ("note=a=b", json!({"note": "a=b"})),
            ("note=", json!({"note": ""})),
            ("user.\"signed up\"=null", json!({"user": {"signed up": null}})),
            ("\"a=b\".c=1", json!({"a=b": {"c": 1}})),
        ] {
            assert_eq!(parsed(text), expected, "{text}");
        }
        for text in ["paid", "=1", "metadata=1", "a..b=1", "\"a=1"] {
            fact(text).unwrap_err();
        }
    }

    #[test]
    fn null_members_are_removed_from_created_metadata() {
        let update = json!({"a": null, "b": {"c": null, "d": 1}});
        assert_eq!(without_null(&update), json!({"b": {"d": 1}}));
    }
}
