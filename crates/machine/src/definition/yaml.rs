//! YAML as a tree whose nodes have their positions.
//!
//! serde's ways to read one of several shapes (untagged and internally tagged enums) lose positions, so validation
//! follows parsing: the whole file becomes a tree of positions and values first.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value as Json;
use serde_saphyr::{DuplicateKeyPolicy, Location, MergeKeyPolicy, Spanned};

/// Maximum size of a file, in bytes.
pub(crate) const LARGEST: usize = 1024 * 1024;
/// Maximum nesting depth. In an unoptimized build each level uses up to 40 KiB of stack, and a daemon's
/// threads have 2 MiB: a file twice as deep would crash the process.
const MAX_DEPTH: usize = 32;
/// Maximum total size of aliased content, in parser events. Without it, a few lines of nested aliases could
/// exhaust the memory.
const MAX_REPEATED: usize = 100_000;

/// A value with its position.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) at: Mark,
}

#[derive(Debug, Clone)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) at: Mark,
}

/// A position in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    /// The byte offset of the value's text; for an alias, that of the anchored value.
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// How a scalar is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Single,
    Double,
    Literal,
    Folded,
}

impl Node {
    /// The value as JSON, with sorted keys.
    pub(crate) fn to_json(&self) -> Json {
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(value) => (*value).into(),
            Value::Number(number) => Json::Number(number.clone()),
            Value::Text(text) => text.as_str().into(),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(entries) => {
                let sorted: BTreeMap<&str, Json> =
                    entries.iter().map(|(key, node)| (key.name.as_str(), node.to_json())).collect();
                sorted.into_iter().map(|(name, json)| (name.to_owned(), json)).collect()
            }
        }
    }

    /// The entries of a map; none of another value.
    pub(crate) fn entries(&self) -> &[(Key, Self)] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The entry of a map with this key.
    pub(crate) fn entry(&self, key: &str) -> Option<&(Key, Self)> {
        self.entries().iter().find(|(known, _)| known.name == key)
    }

    /// The value of a map at this key.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|(_, node)| node)
    }

    /// The items of a list; none of another value.
    pub(crate) fn items(&self) -> &[Self] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The text, if the value is one.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The kind of value, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text(_) => "a text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}

impl Mark {
    fn of(location: Location) -> Self {
        let span = location.span();
        // Texts in memory always have byte offsets. Files beyond 4 GiB were rejected earlier.
        let number = |n: Option<u64>| n.and_then(|n| usize::try_from(n).ok()).unwrap_or_default();
        let start = number(span.byte_offset());
        Self { start, end: start + number(span.byte_len()) }
    }

    /// The style of the scalar at this position.
    pub(crate) fn style(self, source: &str) -> Style {
        match source.as_bytes().get(self.start) {
            Some(b'"') => Style::Double,
            Some(b'\'') => Style::Single,
            Some(b'|') => Style::Literal,
            Some(b'>') => Style::Folded,
            _ => Style::Plain,
        }
    }
}

/// The YAML parser's error.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) at: Mark,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

/// Reads one document of YAML 1.2, core schema.
pub(crate) fn parse(source: &str) -> Result<Node, Unreadable> {
    if source.len() > LARGEST {
        let message = format!("the file has {} bytes; the limit is {LARGEST}", source.len());
        return Err(Unreadable { at: Mark { start: 0, end: 0 }, message, hint: None });
    }
    let mut options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        reject_unsupported_tags: true,
        underscored_numbers_as_strings: true,
        leading_zero_numbers_as_strings: true,
        with_snippet: false,
    };
    options.alias_limits.max_total_replayed_events = MAX_REPEATED;
    serde_saphyr::from_str_with_options::<Spanned<Value>>(source, options)
        .map(placed)
        .map_err(|error| unreadable(&error, source))
}

fn unreadable(error: &serde_saphyr::Error, source: &str) -> Unreadable {
    use serde_saphyr::Error;
    let error = error.without_snippet();
    let at = error.location().map_or(Mark { start: 0, end: 0 }, |location| place(location, source));
    let (message, hint) = match error {
        Error::DuplicateMappingKey { key: Some(key), .. } => (format!("the key `{key}` is repeated"), None),
        Error::DuplicateMappingKey { .. } => ("a key is repeated".to_owned(), None),
        Error::MergeKeyNotAllowed { .. } => {
            let hint = "`<<` is not part of YAML 1.2; use an alias for a whole value: `key: *anchor`";
            ("merge keys are not supported".to_owned(), Some(hint.to_owned()))
        }
        Error::MultipleDocuments { .. } => {
            let hint = "put all machines below one `state_machines:`, or use separate files";
            ("a file can contain only one YAML document".to_owned(), Some(hint.to_owned()))
        }
        other => {
            // The parser's text ends with the position, which our message already begins with.
            let text = other.to_string();
            let text = text.lines().next().unwrap_or("invalid YAML").to_owned();
            let text = text.rfind(" at line ").map_or(text.clone(), |end| text[..end].to_owned());
            (text, None)
        }
    };
    Unreadable { at, message, hint }
}

/// The position of an error. The parser gives only its line and column.
fn place(location: Location, source: &str) -> Mark {
    if location.span().byte_offset().is_some() {
        return Mark::of(location);
    }
    let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let start = super::text::offset(source, number(location.line()), number(location.column()).max(1));
    Mark { start, end: start }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

/// A value alone has no position: only its parent knows it.
struct ValueVisitor;

fn placed(spanned: Spanned<Value>) -> Node {
    Node { at: Mark::of(spanned.defined), value: spanned.value }
}

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        let number = serde_json::Number::from_f64(value);
        number.map(Value::Number).ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(placed(item));
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = access.next_key::<Spanned<String>>()? {
            entries.push((Key { name: key.value, at: Mark::of(key.defined) }, placed(access.next_value()?)));
        }
        Ok(Value::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(node: &Node, source: &str, out: &mut Vec<String>) {
        match &node.value {
            Value::List(items) => items.iter().for_each(|item| flat(item, source, out)),
            Value::Map(entries) => {
                for (key, value) in entries {
                    out.push(format!("{}={}", key.name, &source[key.at.start..key.at.end]));
                    flat(value, source, out);
                }
            }
            other => out.push(format!(
                "{other:?} {:?} {:?}",
                node.at.style(source),
                &source[node.at.start..node.at.end]
            )),
        }
    }

    #[test]
    fn every_node_has_its_position() {
        let source = "a: yes\nb: &x 'é'\nc: *x\nd: |\n  one\n  two\nf: [18:30, 1_000, 007, 1.5, true, ~, \"q\"]\n\"g\": 18h30m\n";
        let mut out = Vec::new();
        flat(&parse(source).unwrap(), source, &mut out);
        let expected = [
            "a=a",
            "Text(\"yes\") Plain \"yes\"",
            "b=b",
            "Text(\"é\") Single \"'é'\"",
            "c=c",
            // An alias has the position of its anchor.
            "Text(\"é\") Single \"'é'\"",
            "d=d",
            // A block scalar begins at its first line; its style is on the line above, see
            // `super::super::text::style`.
            "Text(\"one\\ntwo\\n\") Plain \"one\\n  two\\n\"",
            "f=f",
            "Text(\"18:30\") Plain \"18:30\"",
            "Text(\"1_000\") Plain \"1_000\"",
            "Text(\"007\") Plain \"007\"",
            "Number(Number(1.5)) Plain \"1.5\"",
            "Bool(true) Plain \"true\"",
            "Null Plain \"~\"",
            "Text(\"q\") Double \"\\\"q\\\"\"",
            "g=\"g\"",
            "Text(\"18h30m\") Plain \"18h30m\"",
        ];
        assert_eq!(out, expected);
    }
}
