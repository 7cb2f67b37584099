//! The reference of all keys, and the comparison of the default file with the type.
//!
//! The accepted values are derived from the type: each key gets an invalid value, and the error contains the expected form.

use std::{collections::BTreeSet, fmt::Write as _};

use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue},
};

use crate::{
    Settings,
    known::{self, Key, Kind},
    merge,
};

/// A table of all keys in Markdown: type, default, environment variable and description.
pub fn reference<T: Settings>() -> String {
    let program = T::PROGRAM;
    let defaults = program.defaults();
    let mut page = String::new();
    let mut section = None;
    let keys = known::keys(&defaults);
    for key in &keys {
        let own = match key.kind {
            Kind::Table => Some(key.path.clone()),
            _ => key.path.rsplit_once('.').map(|(section, _)| section.to_owned()),
        };
        if page.is_empty() || own != section {
            let heading = own.as_ref().map_or_else(|| "Top level".to_owned(), |name| format!("`[{name}]`"));
            let _ = write!(
                page,
                "\n### {heading}\n\n| key | accepted | default | description |\n|---|---|---|---|\n"
            );
            section = own;
        }
        let cell = |text: &str| text.replace('|', "\\|");
        let variable = match key.kind {
            Kind::Table => String::new(),
            _ => format!("<br>`{}`", program.variable(&key.path)),
        };
        let default = key.default.as_ref().map_or_else(String::new, |text| format!("`{text}`"));
        let (path, accepted) = (&key.path, cell(&accepted::<T>(&defaults, &keys, key)));
        let _ =
            writeln!(page, "| `{path}`{variable} | {accepted} | {default} | {} |", cell(&key.description));
    }
    page
}

/// Keys that are only in the default file or only in the type. For a test of each program.
pub fn disagreements<T: Settings>() -> Vec<String> {
    let defaults = T::PROGRAM.defaults();
    let keys = known::keys(&defaults);
    let mut found = Vec::new();
    for key in &keys {
        if key.description.is_empty() {
            found.push(format!("{} has no description", key.path));
        }
        let refusal = refusal::<T>(&defaults, &key.path, DeValue::Boolean(true)).unwrap_or_default();
        if !is_file_of(&keys, key) && refusal.starts_with("unknown field") {
            found.push(format!("{} is not in the type", key.path));
        }
    }
    for (flag, path) in T::PROGRAM.flags {
        if !keys.iter().any(|key| key.path == *path) {
            found.push(format!("--{flag} sets {path}, which is not in the default file"));
        }
    }
    let sections: BTreeSet<&str> =
        keys.iter().map(|key| key.path.rsplit_once('.').map_or("", |(section, _)| section)).collect();
    for section in sections {
        let probe = if section.is_empty() { "?".to_owned() } else { format!("{section}.?") };
        // The error lists the fields: unknown field `?`, expected one of `a`, `b`
        let fields = refusal::<T>(&defaults, &probe, DeValue::Boolean(true)).unwrap_or_default();
        for field in fields.split('`').skip(3).step_by(2) {
            let path = probe.replace('?', field);
            let inside = format!("{path}.");
            if !keys.iter().any(|key| key.path == path || key.path.starts_with(&inside)) {
                found.push(format!("{path} is not in the default file"));
            }
        }
    }
    found
}

fn is_file_of(keys: &[Key], key: &Key) -> bool {
    key.path.strip_suffix("_file").is_some_and(|name| keys.iter().any(|key| key.path == name))
}

/// The values that a key accepts, in words.
fn accepted<T: Settings>(defaults: &str, keys: &[Key], key: &Key) -> String {
    let found = match &key.kind {
        _ if is_file_of(keys, key) => return "path".to_owned(),
        Kind::Switch => return "`true` or `false`".to_owned(),
        Kind::Table => return "table".to_owned(),
        Kind::List(_) => {
            let mut list = DeArray::new();
            list.push(Spanned::new(0..0, DeValue::Boolean(true)));
            refusal::<T>(defaults, &key.path, DeValue::Array(list))
        }
        Kind::Text | Kind::Number => refusal::<T>(defaults, &key.path, DeValue::Boolean(true)),
    };
    let found = found.unwrap_or_default();
    let expected = match found.split_once("expected ") {
        Some((_, expected)) => expected,
        // The message of the TOML deserializer for an enum, before it checks the variants.
        None if found == "wanted string or table" => {
            let found = refusal::<T>(defaults, &key.path, DeValue::String("?".into())).unwrap_or_default();
            return found
                .split_once("expected ")
                .map_or(found.clone(), |(_, variants)| variants.trim_start_matches("one of ").to_owned());
        }
        None => &found,
    };
    let words = match expected {
        "a string" => "text",
        "path string" => "path",
        "f64" => "number",
        other => other.trim_start_matches("an ").trim_start_matches("a "),
    };
    match key.kind {
        Kind::List(_) => format!("list: {words}"),
        _ => words.to_owned(),
    }
}

/// The reason why the type does not accept `value` for `path`.
fn refusal<T: Settings>(defaults: &str, path: &str, value: DeValue<'_>) -> Option<String> {
    let mut table = DeTable::parse(defaults).ok()?.into_inner();
    let mut inner = &mut table;
    let mut names = path.split('.').peekable();
    while let Some(name) = names.next() {
        let key = Spanned::new(0..0, name.to_owned().into());
        if names.peek().is_none() {
            inner.insert(key, Spanned::new(0..0, value));
            break;
        }
        let next = inner.entry(key).or_insert_with(|| Spanned::new(0..0, DeValue::Table(DeTable::new())));
        let DeValue::Table(table) = next.get_mut() else { return None };
        inner = table;
    }
    merge::deserialize::<T>(table).err().map(|error| error.message().to_owned())
}
