//! Patterns of queues: regular expressions over `tenant:type:name`, whole string, linear time.

use std::fmt;

use regex::{Regex, RegexBuilder};
use regex_syntax::hir::{Hir, Look};

/// Maximum number of characters in a pattern. A longer one is usually a list, for which several queues are
/// better.
pub(crate) const MAX_PATTERN_CHARACTERS: usize = 4_096;

/// Maximum size of a compiled pattern, in bytes: `(a{100}){100}` is a short text, but a large program. Any
/// pattern of the maximum length that consists of literal text, alternatives and `.*` fits.
const COMPILED_BYTES: usize = 1 << 20;
/// The number of characters in the shortest message: `a:b:c`.
const SHORTEST_MESSAGE: usize = 5;
/// Scratch memory of each matching thread, in bytes. A pattern that needs more is matched more slowly, but in
/// linear time.
const SCRATCH_BYTES: usize = 256 << 10;

/// A compiled pattern.
#[derive(Debug, Clone)]
pub(crate) struct Pattern(Regex);

/// The reason why a pattern is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// It has more than [`MAX_PATTERN_CHARACTERS`] characters.
    #[error("the pattern has {0} characters; the limit is {MAX_PATTERN_CHARACTERS}")]
    TooLong(usize),
    /// It is not a regular expression.
    #[error("at character {position}: {reason}")]
    Syntax {
        /// The position of the mistake, in characters from 1.
        position: usize,
        /// The problem.
        reason: String,
    },
    /// The compiled form would take too much memory.
    #[error(
        "the pattern takes more than {} KiB when it is compiled: use fewer or smaller repetitions (`{{n}}`) and \
         character classes such as `\\w`, or several queues",
        COMPILED_BYTES >> 10
    )]
    TooLarge,
    /// It cannot match any message.
    #[error("the pattern matches no message: it must match the whole of `tenant:type:topic`")]
    MatchesNothing,
}

impl Flaw {
    /// The position of the mistake in characters from 1, if it is known.
    pub fn position(&self) -> Option<usize> {
        match self {
            Self::Syntax { position, .. } => Some(*position),
            _ => None,
        }
    }
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// The anchors are added to the parsed pattern, not to its text. Anchors around the text could be
    /// bypassed: `a|b)|(?:c` would match another tenant's messages.
    ///
    /// # Errors
    /// If it is too long, not a regular expression, or too large when compiled.
    pub(crate) fn new(text: &str) -> Result<Self, Flaw> {
        let characters = text.chars().count();
        if characters > MAX_PATTERN_CHARACTERS {
            return Err(Flaw::TooLong(characters));
        }
        let tree = regex_syntax::parse(text).map_err(|error| syntax(text, &error))?;
        let lengths = tree.properties();
        // An expression that matches nothing has no length.
        let matches_nothing = lengths.minimum_len().is_none();
        if matches_nothing || lengths.maximum_len().is_some_and(|most| most < SHORTEST_MESSAGE) {
            return Err(Flaw::MatchesNothing);
        }
        let anchored = Hir::concat(vec![Hir::look(Look::Start), tree, Hir::look(Look::End)]);
        // The expression is printed from the parsed tree, so it cannot contain unbalanced parts of the
        // original text.
        RegexBuilder::new(&anchored.to_string())
            .size_limit(COMPILED_BYTES)
            .dfa_size_limit(SCRATCH_BYTES)
            .build()
            .map(Self)
            .map_err(|_| Flaw::TooLarge)
    }

    /// Whether the whole of `message` matches.
    pub(crate) fn matches(&self, message: &str) -> bool {
        self.0.is_match(message)
    }
}

fn syntax(text: &str, error: &regex_syntax::Error) -> Flaw {
    let (offset, reason): (usize, &dyn fmt::Display) = match error {
        regex_syntax::Error::Parse(error) => (error.span().start.offset, error.kind()),
        regex_syntax::Error::Translate(error) => (error.span().start.offset, error.kind()),
        // A newer version of the library may have other kinds of errors; their position is unknown.
        _ => (0, &"not a regular expression"),
    };
    let before = text.get(..offset).unwrap_or_default();
    Flaw::Syntax { position: before.chars().count() + 1, reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, message: &str) -> bool {
        Pattern::new(pattern).unwrap_or_else(|flaw| panic!("{pattern}: {flaw}")).matches(message)
    }

    #[test]
    fn a_pattern_speaks_of_the_whole_message() {
        assert!(matches("5:page:x", "5:page:x"));
        assert!(!matches("5:page:x", "55:page:x"), "tenant 55 is not tenant 5");
        assert!(!matches("5:page:x", "5:page:xx"));
        assert!(matches(".*:email_event:.*", "5:email_event:opened"));
        assert!(!matches("email_event", "5:email_event:opened"), "a part is not the whole");
        assert!(!matches("5:page:x", "5:page:x\n"), "not even a line's end");
    }

    #[test]
    fn nothing_in_a_pattern_breaks_out_of_its_anchors() {
        for (pattern, message) in
            [("(?m)b:x:y", "a\nb:x:y\nc"), ("a:x:y|b:x:y", "aa:x:y"), ("a:x:y|b:x:y", "b:x:yy")]
        {
            assert!(!matches(pattern, message), "{pattern} on {message:?}");
        }
        // Without care, the comment would hide the closing `)$`.
        assert!(!matches("(?x) a:x:y #", "a:x:yz"));
        assert!(matches("(?x) a:x:y #", "a:x:y"));
        assert!(Pattern::new("a|b)|(?:c").is_err(), "brackets that only the anchors would close");
    }

    #[test]
    fn a_mistake_is_reported_with_its_place() {
        for (pattern, position) in
            [("a(b", 2), ("ab[", 3), ("é*)", 3), ("a**{2", 4), (r"\p{Nope}", 1), ("a{2,1}", 2)]
        {
            let flaw = Pattern::new(pattern).expect_err(pattern);
            assert_eq!(flaw.position(), Some(position), "{pattern}: {flaw}");
        }
    }

    #[test]
    fn a_pattern_that_matches_no_message_is_rejected() {
        for pattern in ["", "a:b", "(?:)", "^$", r"[^\x00-\x{10ffff}]"] {
            assert_eq!(Pattern::new(pattern).unwrap_err(), Flaw::MatchesNothing, "{pattern:?}");
        }
        assert!(Pattern::new("a:b:c").is_ok());
    }

    #[test]
    fn lists_of_the_maximum_length_are_accepted() {
        let list = |item: &str| {
            let mut list = (0..1_000).map(|n| item.replace('N', &n.to_string())).collect::<Vec<_>>();
            while list.join("|").len() > MAX_PATTERN_CHARACTERS {
                list.pop();
            }
            list.join("|")
        };
        for list in
            [list("N:page:.*"), list(".*:type_N:.*"), list("N:a:.*b.*"), "a".repeat(MAX_PATTERN_CHARACTERS)]
        {
            Pattern::new(&list).unwrap_or_else(|flaw| panic!("{} characters: {flaw}", list.len()));
        }
    }

    #[test]
    fn large_patterns_are_refused_and_nested_stars_are_fast() {
        assert_eq!(Pattern::new(&"a".repeat(10 << 10)).unwrap_err(), Flaw::TooLong(10 << 10));
        assert_eq!(Pattern::new("(?:(?:a{100}){100}){100}").unwrap_err(), Flaw::TooLarge);
        assert!(Pattern::new(&"(".repeat(1000)).is_err());
        // A backtracking engine would never finish.
        assert!(!matches("((a*)*)*b", &"a".repeat(10_000)));
    }

    proptest! {
        #[test]
        fn anchoring_changes_nothing_but_the_ends(
            pattern in "[ab:.*|()?+]{0,12}", message in "[ab:]{0,6}",
        ) {
            if let Ok(compiled) = Pattern::new(&pattern) {
                // The parsed tree as text in a group. The pattern was parsed alone, so its parentheses are
                // balanced.
                let tree = regex_syntax::parse(&pattern).unwrap();
                let plain = Regex::new(&format!(r"\A(?:{tree})\z")).unwrap();
                prop_assert_eq!(compiled.matches(&message), plain.is_match(&message));
            }
        }
    }

    /// A rejected pattern has the position of its mistake. An accepted one matches only what the pattern
    /// without anchors finds.
    #[test]
    fn fuzz_patterns() {
        let examples =
            [".*:email_event:.*", "5:page:(sent|read)", r"(?i)[^:]+:\w{2,9}:\p{L}*", "(?x) a:x:y # z", "a|b"];
        let words = [
            "(?",
            ")",
            "(?:",
            "|",
            "^",
            "$",
            r"\z",
            r"\A",
            "(?m)",
            "(?s)",
            "(?x)",
            "(?-u)",
            "{2,9}",
            "[^",
            "]",
            "&&",
            r"\b",
            r"\n",
            "#",
            "*",
            "+?",
            r"\x{10FFFF}",
            r"\p{Greek}",
            "[[:alpha:]]",
        ];
        let messages = ["6:page:sent", "5:page:sent", "5:page:sent\n6:page:sent", "6:email_event:", "\n", ""];
        let mut fuzz = signalbox_testkit::Fuzz::new("patterns", examples, &words);
        while let Some(text) = fuzz.text() {
            match Pattern::new(&text) {
                Err(flaw) => {
                    let end = text.chars().count() + 1;
                    assert!(flaw.position().is_none_or(|place| (1..=end).contains(&place)), "{text}: {flaw}");
                    assert!(!flaw.to_string().is_empty());
                }
                Ok(pattern) => {
                    let matched = messages.iter().filter(|message| pattern.matches(message));
                    for message in matched {
                        let free = Regex::new(&text).map(|regex| regex.find_iter(message).count() > 0);
                        assert!(free.unwrap_or(true), "{text} matches {message:?} only with its anchors");
                    }
                    fuzz.accepted();
                }
            }
        }
    }
}
