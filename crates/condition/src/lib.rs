//! The language of a gate's exit condition: `12h has passed since system.entered_state and
//! system.time >= 18:30`. `docs/conditions.md` is its reference.
//!
//! ```text
//! text ─ lexer ─▶ tokens ─ parser ─▶ tree ─┬─▶ evaluate   true, false or unknown, in a few hundred nanoseconds
//!                   (roots are resolved    ├─▶ explain    every operand's value, what blocks, what would open it
//!                    as paths are read)    ├─▶ warnings   results that do not depend on the data
//!                                          ├─▶ variables, feeds, reads_clock
//!                                          └─▶ earliest   the first moment at which time alone can open it
//! ```
//!
//! The crate is pure: data, the present moment and the zone are passed in ([`Facts`]). It performs no I/O.
//!
//! Invariants:
//! * an evaluation never fails and never panics; an impossible comparison is *unknown*, and only *true* opens a gate;
//! * whatever [`Condition::parse`] accepts prints ([`std::fmt::Display`]) as a text that parses to the same condition;
//! * [`Condition::earliest`] is never later than the moment at which an evaluation would first be true.

mod earliest;
mod error;
mod evaluate;
mod explain;
mod facts;
mod fewest;
mod instant;
mod lexer;
mod literal;
mod number;
mod parser;
mod possible;
mod print;
mod reads;
mod reference;
mod roots;
mod suggest;
mod tree;
mod truth;
mod value;
mod warnings;

pub use earliest::Earliest;
pub use error::Error;
pub use evaluate::{NeedsFeed, Verdict};
pub use explain::{Change, Explanation, Node, Operand, Shape, Source};
pub use facts::{Facts, Feed, Feeds, Local, Visit, WEEKDAYS};
pub use instant::instant;
pub use print::path_text;
pub use reference::{Reference, comment, duration, same, time_of_day};
pub use roots::KnownFeeds;
pub use suggest::nearest;
pub use truth::Truth;

use tree::Program;

/// Maximum length of a condition, in bytes.
pub const MAX_BYTES: usize = 16 * 1024;
/// Maximum nesting depth of parentheses.
pub const MAX_DEPTH: usize = 64;

/// A parsed and valid condition.
///
/// Two conditions are equal if they have the same content: whitespace, comments and the notation of literals
/// do not matter.
#[derive(Debug, Clone)]
pub struct Condition {
    text: Box<str>,
    program: Program,
    reads: reads::Reads,
}

impl Condition {
    /// Parses a condition. `feeds` lists the names that are allowed after `feeds.`.
    ///
    /// # Errors
    /// The first problem. Syntax is checked before the roots of paths.
    pub fn parse(text: &str, feeds: KnownFeeds<'_>) -> Result<Self, Error> {
        // A text that is rejected for its length is not quoted.
        let shown = if text.len() > MAX_BYTES { "" } else { text };
        let program = parser::parse(text, feeds).map_err(|fault| fault.in_text(shown))?;
        let reads = reads::Reads::of(&program);
        Ok(Self { text: text.into(), program, reads })
    }

    /// The original text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        self.program == other.program
    }
}
