//! Patterns of queues: regular expressions over `environment:type:name`, whole string, linear time.

use std::fmt;

use regex::{Regex, RegexBuilder};
use regex_syntax::hir::{Hir, Look};

/// Maximum characters of a pattern. A longer one is usually a list, for which several queues are better.
pub(crate) const MAX_PATTERN_CHARACTERS: usize = 4_096;

/// Bytes that the compiled form may take. `(a{100}){100}` is a short text and a large program. Every pattern of literal
/// text, alternatives and `.*` fits that has the maximum length.
const COMPILED_BYTES: usize = 1 << 20;
/// Characters of the shortest message: `a:b:c`.
const SHORTEST_MESSAGE: usize = 5;
/// Bytes of scratch memory for each thread that matches; beyond it matching is slower and still linear.
const SCRATCH_BYTES: usize = 256 << 10;

/// A compiled pattern.
#[derive(Debug, Clone)]
pub(crate) struct Pattern(Regex);

/// The reason why a pattern is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// More characters than [`MAX_PATTERN_CHARACTERS`].
    #[error("the pattern has {0} characters; the limit is {MAX_PATTERN_CHARACTERS}")]
    TooLong(usize),
    /// Not a regular expression.
    #[error("at character {position}: {reason}")]
    Syntax {
        /// The place in the pattern, in characters, from 1.
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
    /// No message has so few characters.
    #[error("the pattern matches no message: it must match the whole of `environment:type:topic`")]
    MatchesNothing,
}

impl Flaw {
    /// The place of the mistake in characters from 1, where there is one.
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
    /// It is anchored as a *tree*: the parsed pattern is placed between two anchors. Anchors around the text could be
    /// bypassed, as with `a|b)|(?:c`, which would then match another tenant's messages.
    ///
    /// # Errors
    /// When it is too long, not a regular expression, or too large when compiled.
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
        // The tree prints as an expression that means exactly this tree; no part of the original text is left in it.
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
        // The library may grow another kind; the mistake is then somewhere.
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
        // A comment to the end of the line would hide a `)$` that follows it.
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
        // Backtracking would take longer than the universe has been there.
        assert!(!matches("((a*)*)*b", &"a".repeat(10_000)));
    }

    proptest! {
        #[test]
        fn anchoring_changes_nothing_but_the_ends(
            pattern in "[ab:.*|()?+]{0,12}", message in "[ab:]{0,6}",
        ) {
            if let Ok(compiled) = Pattern::new(&pattern) {
                // The tree as text in a group; it was parsed alone, so its parentheses are balanced.
                let tree = regex_syntax::parse(&pattern).unwrap();
                let plain = Regex::new(&format!(r"\A(?:{tree})\z")).unwrap();
                prop_assert_eq!(compiled.matches(&message), plain.is_match(&message));
            }
        }
    }

    /// A rejected pattern has the place of its mistake. An accepted one matches only what the pattern without anchors finds.
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
