//! Texts and trees with `<label>`, `<state_machine>` and `<metadata.PATH>` in them.

use serde_json::Value as Json;

use super::model::Path;

/// A text with placeholders.
#[derive(Debug, Clone, PartialEq)]
pub struct Text {
    pub(crate) parts: Vec<Part>,
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Literal text.
    Literal(Box<str>),
    /// `<label>`.
    Label,
    /// `<state_machine>`.
    StateMachine,
    /// `<metadata.PATH>`.
    Metadata(Path),
}

/// A JSON value whose texts may have placeholders.
#[derive(Debug, Clone, PartialEq)]
pub enum Template {
    /// Null, a boolean or a number.
    Constant(Json),
    /// A text. A single placeholder keeps the type of its value.
    Text(Text),
    /// A list.
    List(Vec<Template>),
    /// An object, in the order of the file.
    Object(Vec<(Box<str>, Template)>),
}

/// A problem in a text: its position in bytes, a message, and a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadText {
    pub(crate) at: usize,
    pub(crate) length: usize,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Text {
    /// The parts in their order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Parses a text. A `<` that does not begin a placeholder is literal, unless the text after it resembles
    /// a misspelled placeholder.
    pub(crate) fn parse(text: &str) -> Result<Self, BadText> {
        let mut parts = Vec::new();
        let (mut literal, mut at) = (String::new(), 0);
        while let Some(open) = text[at..].find('<').map(|open| at + open) {
            literal.push_str(&text[at..open]);
            let Some(close) = text[open..].find('>').map(|close| open + close) else {
                let rest = &text[open + 1..];
                if ["label", "state_machine", "metadata"].iter().any(|name| rest.starts_with(name)) {
                    let message = "this placeholder has no closing `>`".to_owned();
                    let hint = Some("write <label>, <state_machine> or <metadata.PATH>".into());
                    return Err(BadText { at: open, length: rest.len() + 1, message, hint });
                }
                at = open;
                break;
            };
            let name = &text[open + 1..close];
            if let Some(part) = placeholder(name, open, close + 1 - open)? {
                if !literal.is_empty() {
                    parts.push(Part::Literal(std::mem::take(&mut literal).into()));
                }
                parts.push(part);
                at = close + 1;
            } else {
                literal.push('<');
                at = open + 1;
            }
        }
        literal.push_str(&text[at..]);
        if !literal.is_empty() || parts.is_empty() {
            parts.push(Part::Literal(literal.into()));
        }
        Ok(Self { parts })
    }

    /// The metadata paths that its placeholders need.
    pub fn metadata(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().filter_map(|part| match part {
            Part::Metadata(path) => Some(path),
            _ => None,
        })
    }

    /// The placeholder, if the text consists of nothing else.
    pub(crate) fn whole(&self) -> Option<&Part> {
        match &*self.parts {
            [part @ (Part::Label | Part::StateMachine | Part::Metadata(_))] => Some(part),
            _ => None,
        }
    }

    /// The text, if it contains no placeholders.
    pub(crate) fn constant(&self) -> Option<&str> {
        match &*self.parts {
            [Part::Literal(text)] => Some(text),
            _ => None,
        }
    }
}

fn placeholder(name: &str, at: usize, length: usize) -> Result<Option<Part>, BadText> {
    let bad = |message: String, hint: &str| BadText { at, length, message, hint: Some(hint.into()) };
    match name {
        "label" => return Ok(Some(Part::Label)),
        "state_machine" => return Ok(Some(Part::StateMachine)),
        "metadata" => return Ok(Some(Part::Metadata(Path::default()))),
        _ => {}
    }
    if let Some(path) = name.strip_prefix("metadata.") {
        return match super::read::metadata_path(path) {
            Ok(path) => Ok(Some(Part::Metadata(path))),
            Err(_) => Err(bad(
                format!("`<{name}>` has no valid path"),
                "write <metadata.PATH>, with dots between keys",
            )),
        };
    }
    let like_a_path =
        !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'));
    if !like_a_path {
        return Ok(None);
    }
    let hint = "the placeholders are <label>, <state_machine> and <metadata.PATH>";
    Err(bad(format!("unknown placeholder `<{name}>`"), hint))
}

impl Template {
    /// The value below a key of an object.
    pub fn get(&self, key: &str) -> Option<&Template> {
        match self {
            Self::Object(entries) => entries.iter().find(|(name, _)| &**name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The metadata paths that its placeholders need.
    pub fn metadata(&self) -> Vec<&Path> {
        match self {
            Self::Constant(_) => Vec::new(),
            Self::Text(text) => text.metadata().collect(),
            Self::List(items) => items.iter().flat_map(Self::metadata).collect(),
            Self::Object(entries) => entries.iter().flat_map(|(_, value)| value.metadata()).collect(),
        }
    }
}
