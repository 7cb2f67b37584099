//! The valid roots of paths, and the messages for other roots.

use crate::{
    error::{Fault, Span},
    lexer::Keyword,
    print::path_text,
    suggest,
    tree::{Key, Path, Root, System},
};

/// The feeds that a condition may read.
#[derive(Debug, Clone, Copy)]
pub enum KnownFeeds<'a> {
    /// Any valid feed name. A feed that does not exist is null.
    Any,
    /// Only these names.
    Only(&'a [&'a str]),
}

const ROOTS: [&str; 4] = ["metadata", "feeds", "history", "system"];
const HISTORY: [&str; 2] = ["entered_state", "previous_state"];
const SYSTEM: [(&str, System); 7] = [
    ("time", System::Time),
    ("date", System::Date),
    ("now", System::Now),
    ("weekday", System::Weekday),
    ("entered_state", System::EnteredState),
    ("state_machine", System::StateMachine),
    ("label", System::Label),
];

/// Resolves a path of at least one segment. For an unknown root it returns a placeholder and a fault: parsing
/// continues, because syntax errors take precedence, and the tree is discarded in the end.
pub(crate) fn resolve(segments: &[String], span: Span, feeds: KnownFeeds<'_>) -> (Path, Option<Fault>) {
    let (root, used, fault) = match root(segments, span, feeds) {
        Ok((root, used)) => (root, used, None),
        Err(fault) => (Root::Metadata, segments.len(), Some(fault)),
    };
    let keys = segments[used..].iter().map(|name| Key::new(name)).collect();
    (Path { root, keys, text: path_text(segments).into(), span }, fault)
}

/// The root, and the number of segments that it consists of.
fn root(segments: &[String], span: Span, feeds: KnownFeeds<'_>) -> Result<(Root, usize), Fault> {
    let second = segments.get(1).map(String::as_str);
    match (segments.first().map_or("", String::as_str), second) {
        ("metadata", _) => Ok((Root::Metadata, 1)),
        ("feeds", Some(name)) => feed(name, span, feeds).map(|root| (root, 2)),
        ("history", Some("entered_state")) => Ok((Root::System(System::EnteredState), 2)),
        ("history", Some("previous_state")) => Ok((Root::PreviousState, 2)),
        ("system", Some(name)) => match SYSTEM.iter().find(|(known, _)| *known == name) {
            Some((_, system)) => Ok((Root::System(*system), 2)),
            None => Err(unknown_child("system", name, SYSTEM.map(|(name, _)| name), span)),
        },
        ("history", Some(name)) => Err(unknown_child("history", name, HISTORY, span)),
        (root @ ("system" | "history"), None) => {
            let names =
                if root == "system" { SYSTEM.map(|(name, _)| name).to_vec() } else { HISTORY.to_vec() };
            let fault = Fault::new(span, format!("`{root}` is not a value"));
            Err(fault.hint(format!("write `{root}.` and one of {}", names.join(", "))))
        }
        ("feeds", None) => {
            Err(Fault::new(span, "`feeds` is not a value").hint("name the feed: `feeds.NAME`"))
        }
        _ => Err(unknown_root(segments, span)),
    }
}

fn feed(name: &str, span: Span, feeds: KnownFeeds<'_>) -> Result<Root, Fault> {
    let sound =
        (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    match feeds {
        _ if !sound => Err(Fault::new(span, format!("no feed can be called {name:?}"))
            .hint("the name of a feed is 1 to 64 letters from A to Z, digits and _")),
        KnownFeeds::Only(known) if !known.contains(&name) => {
            let hint = match suggest::nearest(name, known.iter().copied()) {
                Some(near) => format!("did you mean `feeds.{near}`?"),
                None if known.is_empty() => "the state machine has no feeds".into(),
                None => format!("the feeds are {}", known.join(", ")),
            };
            Err(Fault::new(span, format!("unknown feed `{name}`")).hint(hint))
        }
        _ => Ok(Root::Feed(name.into())),
    }
}

fn unknown_child(root: &str, name: &str, names: impl IntoIterator<Item = &'static str>, span: Span) -> Fault {
    let names: Vec<&str> = names.into_iter().collect();
    let hint = match suggest::nearest(name, names.iter().copied()) {
        Some(near) => format!("did you mean `{root}.{near}`?"),
        None => format!("`{root}.` is followed by one of {}", names.join(", ")),
    };
    Fault::new(span, format!("unknown name `{}`", path_text(&[root, name]))).hint(hint)
}

fn unknown_root(segments: &[String], span: Span) -> Fault {
    let text = path_text(segments);
    let [word] = segments else {
        let hint = match suggest::nearest(&segments[0], ROOTS) {
            Some(near) => {
                let mut meant = segments.to_vec();
                near.clone_into(&mut meant[0]);
                format!("did you mean `{}`?", path_text(&meant))
            }
            None => format!("did you mean `metadata.{text}`? A path begins with {}", ROOTS.join(", ")),
        };
        return Fault::new(span, format!("no path begins with `{}`", segments[0])).hint(hint);
    };
    Fault::new(span, format!("`{word}` is not known here")).hint(bare_word(word))
}

/// A single word where a value is expected is usually a text without quotes.
fn bare_word(word: &str) -> String {
    let lower = word.to_lowercase();
    match &*lower {
        "true" | "false" | "null" => format!("did you mean `{lower}`? Keywords are lower case"),
        "none" | "nil" | "undefined" => "did you mean `null`, or `is not defined`?".into(),
        "previous_state" => "did you mean `history.previous_state`?".into(),
        name if SYSTEM.iter().any(|(known, _)| *known == name) => {
            format!("did you mean `system.{name}`, or the text \"{word}\"?")
        }
        name if Keyword::of(name).is_some() => format!("did you mean `{name}`? Keywords are lower case"),
        name => match suggest::nearest(name, ROOTS) {
            Some(near) => format!("did you mean `{near}`, or the text \"{word}\"?"),
            None => {
                format!("did you mean \"{word}\"? Text needs quotes, a fact is written metadata.{word}")
            }
        },
    }
}
