//! Input of commands: files, standard input and JSON.

use std::{
    fmt::Display,
    fs,
    io::{self, Read as _},
    path::Path,
};

use serde_json::Value;

use crate::exit::Failure;

/// The largest file that is read.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// The failure of a file: its name, and what is wrong with it.
pub(crate) fn failed(file: &Path, error: &dyn Display) -> Failure {
    let name = if is_stdin(file) { "standard input".to_owned() } else { file.display().to_string() };
    Failure::configuration(format!("{name}: {error}"))
}

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// The text of a file; `-` is standard input.
pub(crate) fn text(file: &Path) -> Result<String, Failure> {
    let (mut text, source): (_, io::Result<Box<dyn io::Read>>) = if is_stdin(file) {
        (String::new(), Ok(Box::new(io::stdin())))
    } else {
        (String::new(), fs::File::open(file).map(|file| Box::new(file) as _))
    };
    let read = source.and_then(|source| source.take(MAX_BYTES + 1).read_to_string(&mut text));
    let bytes = read.map_err(|error| failed(file, &error))?;
    if bytes as u64 > MAX_BYTES {
        return Err(failed(file, &format_args!("larger than {} MiB; split it", MAX_BYTES / 1024 / 1024)));
    }
    Ok(text)
}

/// The JSON in a file.
pub(crate) fn json(file: &Path) -> Result<Value, Failure> {
    serde_json::from_str(&text(file)?).map_err(|error| failed(file, &error))
}

/// The items in a file: those of a JSON array, or one JSON value per line.
pub(crate) fn items(file: &Path) -> Result<Vec<Value>, Failure> {
    let text = text(file)?;
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(&text).map_err(|error| failed(file, &error));
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| {
            let failed = |error| failed(file, &format_args!("line {}: {error}", index + 1));
            serde_json::from_str(line).map_err(failed)
        })
        .collect()
}

/// A value of a flag: JSON, or text if it is not JSON.
pub(crate) fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// A value of a flag that must be JSON.
pub(crate) fn flag_json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("invalid JSON: {error}"))
}

/// The body of a request: those of its members that are given.
pub(crate) fn given(mut members: Value) -> Value {
    if let Some(members) = members.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_an_array_or_lines_and_a_bad_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("items");
        for text in ["[{\"a\":1},{\"a\":2}]", "{\"a\":1}\n\n{\"a\":2}\n"] {
            fs::write(&file, text).unwrap();
            assert_eq!(items(&file).unwrap().len(), 2, "{text}");
        }
        fs::write(&file, "{\"a\":1}\n{\n").unwrap();
        assert!(items(&file).unwrap_err().message().contains("items: line 2: "));
        let missing = folder.path().join("missing");
        assert!(text(&missing).unwrap_err().message().contains("missing: No such file"));
    }

    #[test]
    fn a_value_is_json_or_text() {
        assert_eq!(value("5"), 5);
        assert_eq!(value("a b"), "a b");
        assert!(flag_json("{").unwrap_err().starts_with("invalid JSON: "));
    }
}
