//! The keys that a default file declares.

use toml::de::{DeTable, DeValue};

/// The form of a value, taken from the default or the example. It determines how text from the environment is parsed. The
/// type of the configuration validates the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Number,
    Switch,
    List(Box<Kind>),
    Table,
}

/// A key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    /// With its section: `bus.workers`.
    pub(crate) path: String,
    pub(crate) kind: Kind,
    /// As written in the file; `None` if the key is commented out.
    pub(crate) default: Option<String>,
    /// The comment above it.
    pub(crate) description: String,
}

impl Kind {
    fn of(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::Integer(_) | DeValue::Float(_) => Self::Number,
            DeValue::Boolean(_) => Self::Switch,
            DeValue::Array(values) => {
                Self::List(Box::new(values.first().map_or(Self::Text, |value| Self::of(value.get_ref()))))
            }
            DeValue::Table(_) => Self::Table,
            DeValue::String(_) | DeValue::Datetime(_) => Self::Text,
        }
    }
}

/// The keys of a default file, in its order. An invalid file has none; loading it as a source reports the error.
pub(crate) fn keys(text: &str) -> Vec<Key> {
    let shown: Vec<&str> = text.lines().map(|line| example(line).unwrap_or(line)).collect();
    let file = File { original: text.lines().collect(), text: shown.join("\n"), shown };
    let Ok(table) = DeTable::parse(&file.text) else { return Vec::new() };
    let mut found = Vec::new();
    file.collect(table.get_ref(), "", &mut found);
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, key)| key).collect()
}

/// The entry in a commented line: `# node = "router-1"`.
fn example(line: &str) -> Option<&str> {
    let entry = line.strip_prefix('#')?.trim_start();
    let (name, value) = entry.split_once(" = ")?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    (is_name && DeValue::parse(value).is_ok()).then_some(entry)
}

struct File<'a> {
    original: Vec<&'a str>,
    /// The lines, commented entries without their `#`.
    shown: Vec<&'a str>,
    text: String,
}

impl File<'_> {
    fn collect(&self, table: &DeTable<'_>, section: &str, found: &mut Vec<(usize, Key)>) {
        for (name, value) in table {
            let path = format!("{section}{}", name.get_ref());
            if let DeValue::Table(inner) = value.get_ref()
                && !inner.is_empty()
            {
                self.collect(inner, &format!("{path}."), found);
                continue;
            }
            let line = self.text[..name.span().start].matches('\n').count();
            let has_default = !self.original[line].starts_with('#') && !value.get_ref().is_table();
            let default = self.text.get(value.span()).filter(|_| has_default);
            let key = Key {
                path,
                kind: Kind::of(value.get_ref()),
                default: default.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")),
                description: self.comment_above(line),
            };
            found.push((name.span().start, key));
        }
    }

    fn comment_above(&self, line: usize) -> String {
        let above = self.shown[..line].iter().rev().map_while(|line| line.strip_prefix('#'));
        let mut words: Vec<&str> = above.map(str::trim).collect();
        words.reverse();
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_comment_above_them_and_examples_have_no_default() {
        let found = keys(
            "# The file.\n\n# Where it listens:\n# address and port.\nlisten = \"a:1\"\n# name = \"x\"\n\n[bus]\n\
             # At a time.\nworkers = 16\n# Networks.\nallow = [\n    1, 2,\n]\n# KEEP = \"2\"\n",
        );
        let key = |path: &str, kind, default: Option<&str>, description: &str| Key {
            path: path.to_owned(),
            kind,
            default: default.map(str::to_owned),
            description: description.to_owned(),
        };
        let listed = Kind::List(Box::new(Kind::Number));
        assert_eq!(
            found,
            [
                key("listen", Kind::Text, Some("\"a:1\""), "Where it listens: address and port."),
                key("name", Kind::Text, None, ""),
                key("bus.workers", Kind::Number, Some("16"), "At a time."),
                key("bus.allow", listed, Some("[ 1, 2, ]"), "Networks."),
            ]
        );
    }
}
