//! Many items in one command: sent in parts, with progress, and each failure reported.

use std::{path::Path, time::Duration};

use serde_json::{Value, json};

use crate::{
    exit::Failure,
    input,
    remote::Remote,
    terminal::{self, Progress, out},
};

/// Failures that are printed. The rest is counted.
const MAX_PRINTED: usize = 20;

/// How items are sent.
pub(crate) struct Import<'a> {
    pub(crate) noun: &'a str,
    /// The member that names an item.
    pub(crate) name: &'a str,
    /// Items of one call.
    pub(crate) part: usize,
    /// The time limit of one call.
    pub(crate) patience: Duration,
    pub(crate) method: &'a str,
    pub(crate) path: String,
    /// The body of a call.
    pub(crate) body: fn(&[Value]) -> Value,
}

/// Sends the items in a file, in parts.
pub(crate) async fn import(remote: &Remote, file: &Path, import: Import<'_>) -> Result<(), Failure> {
    let Import { noun, name, part, patience, method, path, body } = import;
    let items = input::items(file)?;
    let client = remote.patient(patience)?;
    let (progress, mut sent, mut failures) = (Progress::new(), 0, Vec::new());
    for chunk in items.chunks(part) {
        progress.say(&format!("{sent} of {} {noun}", items.len()));
        let answer: Value = client.send(method, &path, &body(chunk)).await?;
        for (item, result) in chunk.iter().zip(answer["results"].as_array().into_iter().flatten()) {
            if let Some(why) = failure(result) {
                failures.push(json!({"item": item[name], "why": why}));
            }
        }
        sent += chunk.len();
    }
    drop(progress);
    let done = items.len() - failures.len();
    remote.show(&json!({"done": done, "failures": failures}), |_| {
        for failure in failures.iter().take(MAX_PRINTED) {
            let text = |member: &str| failure[member].as_str().unwrap_or("-").to_owned();
            terminal::error(&format!("{}: {}", text("item"), text("why")));
        }
        if failures.len() > MAX_PRINTED {
            terminal::error(&format!("and {} more; -o json lists all", failures.len() - MAX_PRINTED));
        }
        out!("{done} of {} {noun} done", items.len());
    })?;
    if failures.is_empty() {
        return Ok(());
    }
    Err(Failure::refused_because(format!(
        "{} {noun} were rejected; correct them, and repeat the command",
        failures.len()
    )))
}

/// Why an item failed; nothing if it did not.
fn failure(result: &Value) -> Option<String> {
    let error = if result["error"].is_object() { &result["error"] } else { result };
    let code = error["code"].as_str()?;
    Some(format!("{} ({code})", error["detail"].as_str().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_of_an_item_is_a_success_or_a_problem() {
        assert_eq!(failure(&json!({"status": 200, "instance": {}})), None);
        assert_eq!(failure(&json!({"state": "asked", "status": "waiting"})), None);
        let problem = json!({"status": 422, "code": "invalid_address", "detail": "no port"});
        assert_eq!(failure(&problem).unwrap(), "no port (invalid_address)");
        let wrapped = json!({"status": 422, "error": problem});
        assert_eq!(failure(&wrapped).unwrap(), "no port (invalid_address)");
    }
}
