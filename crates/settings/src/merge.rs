//! Merges the sources.
//!
//! All texts are treated as one document, one after the other, and every value keeps its span in it. An error of the
//! deserializer has a span, from which the file, the variable or the flag is found.

use std::{borrow::Cow, collections::BTreeMap, fs, io, ops::Range, path::Path};

use serde::de::DeserializeOwned;
use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue, ValueDeserializer},
};

use crate::{
    Error, Program, Sources,
    known::{self, Key, Kind},
};

/// A configuration and its sources.
#[derive(Debug)]
pub struct Loaded<T> {
    /// The configuration.
    pub settings: T,
    /// The origins of its values.
    pub places: Places,
    /// Environment variables with the program's prefix that match no key. They are not errors, because Kubernetes sets such
    /// variables for a service of the same name (`SIGNALBOX_PACEMAKER_PORT`).
    pub ignored: Vec<String>,
}

/// The origins of values.
#[derive(Debug, Default, Clone)]
pub struct Places(BTreeMap<String, String>);

impl Places {
    /// An error about the value of `key` that is found after loading.
    pub fn error(&self, key: &str, message: impl Into<String>) -> Error {
        Error::invalid(self.0.get(key).map_or(key, String::as_str), message)
    }
}

/// Later ones win.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Defaults,
    File,
    Environment,
    Flags,
}

/// A text from one source.
struct Text {
    rank: Rank,
    /// The path of a file, the name of a variable or flag.
    name: String,
    /// The key of a variable or flag. A file has many keys.
    key: Option<String>,
    text: String,
    /// Its start in the document of all texts.
    start: usize,
}

#[derive(Default)]
struct Texts(Vec<Text>);

impl Texts {
    fn push(&mut self, rank: Rank, name: &str, key: Option<&str>, text: String) {
        let start = self.end() + 1;
        self.0.push(Text { rank, name: name.to_owned(), key: key.map(str::to_owned), text, start });
    }

    fn end(&self) -> usize {
        self.0.last().map_or(0, |text| text.start + text.text.len())
    }

    fn at(&self, position: usize) -> Option<&Text> {
        self.0.iter().find(|text| (text.start..=text.start + text.text.len()).contains(&position))
    }

    /// Formats a position for an operator.
    fn place(&self, position: usize, key: Option<&str>) -> String {
        let key = key.unwrap_or_default();
        match self.at(position) {
            Some(text) if text.rank == Rank::File => {
                let before = text.text.get(..position - text.start).unwrap_or_default();
                let line = before.matches('\n').count() + 1;
                let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
                let separator = if key.is_empty() { "" } else { ": " };
                format!("{}:{line}:{column}{separator}{key}", text.name)
            }
            Some(text) if text.rank > Rank::File => text.name.clone(),
            _ if key.is_empty() => "the default file".to_owned(),
            _ => key.to_owned(),
        }
    }
}

pub(crate) fn load<T: DeserializeOwned>(program: &Program, sources: &Sources) -> Result<Loaded<T>, Error> {
    let defaults = program.defaults();
    let keys = known::keys(&defaults);
    let mut texts = Texts::default();
    texts.push(Rank::Defaults, "", None, defaults);
    let config = program.variable("config");
    let named = sources.environment.iter().find(|(name, _)| *name == config);
    let named = sources.file.as_deref().or(named.map(|(_, path)| Path::new(path)));
    if let Some((path, text)) = read(program, named)? {
        texts.push(Rank::File, &path, None, text);
    }
    let variables: BTreeMap<String, &Key> = keys
        .iter()
        .filter(|key| key.kind != Kind::Table)
        .map(|key| (program.variable(&key.path), key))
        .collect();
    let mut ignored = Vec::new();
    for (name, value) in &sources.environment {
        match variables.get(name) {
            Some(key) => texts.push(Rank::Environment, name, Some(&key.path), value.clone()),
            None if name.starts_with(program.prefix) && *name != config => ignored.push(name.clone()),
            None => {}
        }
    }
    for flag in &sources.flags {
        texts.push(Rank::Flags, &flag.name, Some(&flag.key), flag.value.clone());
    }
    let mut merged = DeTable::new();
    for text in &texts.0 {
        lay(&mut merged, layer(text, &keys, &texts)?);
    }
    read_files_of(&mut merged, &keys, &texts)?;
    let settings =
        deserialize(merged.clone()).map_err(|error| explain(&error, program, &merged, &keys, &texts))?;
    let mut places = BTreeMap::new();
    each_value(&merged, "", &mut |path, span| {
        places.insert(path.to_owned(), texts.place(span.start, Some(path)));
    });
    Ok(Loaded { settings, places: Places(places), ignored })
}

pub(crate) fn deserialize<T: DeserializeOwned>(table: DeTable<'_>) -> Result<T, toml::de::Error> {
    // No text is at this position, so an error about the whole configuration has no place.
    let nowhere = usize::MAX..usize::MAX;
    T::deserialize(ValueDeserializer::from(Spanned::new(nowhere, DeValue::Table(table))))
}

/// The path and the text of the configuration file.
fn read(program: &Program, named: Option<&Path>) -> Result<Option<(String, String)>, Error> {
    let Some(path) = named.or(program.file.map(Path::new)) else { return Ok(None) };
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some((path.display().to_string(), text))),
        Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

/// The values of one text.
fn layer<'a>(text: &'a Text, keys: &[Key], texts: &Texts) -> Result<DeTable<'a>, Error> {
    let Some(path) = &text.key else {
        let table = DeTable::parse(&text.text).map_err(|error| {
            let at = text.start + error.span().map_or(0, |span| span.start);
            Error::invalid(texts.place(at, None), error.message())
        })?;
        return Ok(shift_table(table.into_inner(), text.start));
    };
    let kind = keys.iter().find(|key| key.path == *path).map(|key| &key.kind);
    let span = text.start..text.start + text.text.len();
    let value = value(&text.text, kind, text.rank == Rank::Flags);
    let mut value = Spanned::new(span.clone(), shift(value, text.start).into_inner());
    let mut names = path.split('.').rev().peekable();
    loop {
        let name = names.next().unwrap_or_default();
        let mut table = DeTable::new();
        table.insert(Spanned::new(span.clone(), Cow::Borrowed(name)), value);
        if names.peek().is_none() {
            return Ok(table);
        }
        value = Spanned::new(span.clone(), DeValue::Table(table));
    }
}

/// Parses the value of a variable or flag. A list can be separated by commas; text needs no quotation marks.
fn value<'a>(text: &'a str, kind: Option<&Kind>, may_be_quoted: bool) -> Spanned<DeValue<'a>> {
    let span = 0..text.len();
    let plain = || Spanned::new(span.clone(), DeValue::String(Cow::Borrowed(text)));
    let trimmed = text.trim();
    match kind {
        Some(Kind::Text) if !(may_be_quoted && trimmed.starts_with(['"', '\''])) => plain(),
        Some(Kind::List(of)) if !trimmed.starts_with('[') => {
            let mut list = DeArray::new();
            for item in trimmed.split(',').map(str::trim).filter(|item| !item.is_empty()) {
                list.push(Spanned::new(span.clone(), value(item, Some(of), false).into_inner()));
            }
            Spanned::new(span.clone(), DeValue::Array(list))
        }
        _ => DeValue::parse(trimmed).unwrap_or_else(|_| plain()),
    }
}

fn shift(value: Spanned<DeValue<'_>>, by: usize) -> Spanned<DeValue<'_>> {
    let span = value.span();
    let value = match value.into_inner() {
        DeValue::Table(table) => DeValue::Table(shift_table(table, by)),
        DeValue::Array(values) => {
            let mut list = DeArray::new();
            values.into_iter().for_each(|value| list.push(shift(value, by)));
            DeValue::Array(list)
        }
        other => other,
    };
    Spanned::new(span.start + by..span.end + by, value)
}

fn shift_table(table: DeTable<'_>, by: usize) -> DeTable<'_> {
    let entry = |(name, value): (Spanned<_>, _)| {
        let span = name.span();
        (Spanned::new(span.start + by..span.end + by, name.into_inner()), shift(value, by))
    };
    table.into_iter().map(entry).collect()
}

/// Merges `over` into `table`, table by table.
fn lay<'a>(table: &mut DeTable<'a>, over: DeTable<'a>) {
    for (name, value) in over {
        match (table.get_mut(name.get_ref().as_ref()).map(Spanned::get_mut), value.get_ref()) {
            (Some(DeValue::Table(inner)), DeValue::Table(_)) => {
                if let DeValue::Table(over) = value.into_inner() {
                    lay(inner, over);
                }
            }
            _ => {
                table.remove(name.get_ref().as_ref());
                table.insert(name, value);
            }
        }
    }
}

/// Replaces `x` by the content of the file that `x_file` names.
fn read_files_of(merged: &mut DeTable<'_>, keys: &[Key], texts: &Texts) -> Result<(), Error> {
    for name in keys.iter().map(|key| key.path.as_str()) {
        let file_key = format!("{name}_file");
        if !keys.iter().any(|key| key.path == file_key) {
            continue;
        }
        let Some((_, file)) = merged.remove_entry(file_key.as_str()) else { continue };
        let rank = |span: Range<usize>| texts.at(span.start).map(|text| text.rank);
        if let Some(value) = merged.get(name) {
            if rank(value.span()) > rank(file.span()) {
                continue;
            }
            if rank(value.span()) == rank(file.span()) {
                let place = texts.place(file.span().start, Some(name));
                return Err(Error::invalid(place, format!("set either {name} or {file_key}, not both")));
            }
        }
        let Some(path) = file.get_ref().as_str() else {
            let place = texts.place(file.span().start, Some(&file_key));
            return Err(Error::invalid(place, "must be the path of a file"));
        };
        let text = fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
        let name = Spanned::new(file.span(), Cow::Owned(name.to_owned()));
        merged.insert(name, Spanned::new(file.span(), DeValue::String(Cow::Owned(text))));
    }
    Ok(())
}

/// The error of the deserializer, with its place.
fn explain(
    error: &toml::de::Error,
    program: &Program,
    merged: &DeTable<'_>,
    keys: &[Key],
    texts: &Texts,
) -> Error {
    let missing = error.message().strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    if let Some(name) = missing {
        let is_it = |key: &&Key| key.path == name || key.path.ends_with(&format!(".{name}"));
        let path = keys.iter().find(is_it).map_or(name, |key| &key.path);
        let file_key = format!("{path}_file");
        let or_file = match keys.iter().any(|key| key.path == file_key) {
            true => format!("; or name a file that contains it with {file_key}"),
            false => String::new(),
        };
        let variable = program.variable(path);
        let message = format!(
            "is not set. Set it in the configuration file, as {variable}, or with --set {path}=VALUE{or_file}"
        );
        return Error::invalid(path, message);
    }
    let Some(span) = error.span() else { return Error::invalid(program.name, error.message()) };
    let mut smallest: Option<(usize, String)> = None;
    each_value(merged, "", &mut |path, around| {
        let contains = around.start <= span.start && span.end <= around.end;
        if contains && smallest.as_ref().is_none_or(|(length, _)| around.len() < *length) {
            smallest = Some((around.len(), path.to_owned()));
        }
    });
    let key = smallest.map(|(_, path)| path);
    Error::invalid(texts.place(span.start, key.as_deref()), error.message())
}

/// Calls `visit` with every value that is not a table.
fn each_value(table: &DeTable<'_>, section: &str, visit: &mut dyn FnMut(&str, Range<usize>)) {
    for (name, value) in table {
        let path = format!("{section}{}", name.get_ref());
        match value.get_ref() {
            DeValue::Table(inner) => each_value(inner, &format!("{path}."), visit),
            _ => visit(&path, value.span()),
        }
    }
}

#[cfg(test)]
mod tests;
