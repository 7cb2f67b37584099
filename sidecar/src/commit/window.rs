//! An unfinished window: its increments are too many for one script, so they are committed in parts.

use std::fmt;

use crate::{fold, place::Unreadable};

/// The lines from the stored position to `end`, of which the first parts are counted.
///
/// It is stored in Redis between two parts. Any process can use it to fold the same lines, cut the same parts and continue.
/// The position itself moves only with the last part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The [`fold::FORMAT`] of the sidecar that began it.
    pub format: u32,
    /// The position after its last line.
    pub end: u64,
    /// The number of parts, at least 2.
    pub parts: u32,
    /// [`fold::Increments::digest`] of all parts.
    pub digest: u32,
    /// The number of counted parts.
    pub done: u32,
}

impl Window {
    /// A window without counted parts.
    pub fn new(end: u64, parts: u32, digest: u32) -> Self {
        Self { format: fold::FORMAT, end, parts, digest, done: 0 }
    }

    /// Whether `other` contains the same lines, cut in the same way.
    pub fn is(&self, other: &Self) -> bool {
        Self { done: 0, ..*self } == Self { done: 0, ..*other }
    }

    /// The window after one more part, or `None` if that was the last.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        let done = self.done + 1;
        (done < self.parts).then_some(Self { done, ..self })
    }

    /// Parses the text that [`fmt::Display`] wrote. `done` is stored separately.
    ///
    /// # Errors
    /// If the text has another format.
    pub fn parse(text: &str, done: u64) -> Result<Self, Unreadable> {
        let fields: Vec<u64> =
            text.split(':').map(|field| field.parse().map_err(|_| Unreadable)).collect::<Result<_, _>>()?;
        let [format, end, parts, digest] = fields[..] else { return Err(Unreadable) };
        let small = |value: u64| u32::try_from(value).map_err(|_| Unreadable);
        Ok(Self {
            format: small(format)?,
            end,
            parts: small(parts)?,
            digest: small(digest)?,
            done: small(done)?,
        })
    }
}

/// Writes everything except `done`. This layout is stable; the format number describes the meaning.
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.format, self.end, self.parts, self.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_survives_a_round_trip() {
        let window = Window { done: 2, ..Window::new(1 << 50, 3, u32::MAX) };
        assert_eq!(Window::parse(&window.to_string(), 2), Ok(window));
        for bad in ["", "1:2:3", "1:2:3:4:5", "1:2:x:4", "1:2:3:4294967296"] {
            assert_eq!(Window::parse(bad, 0), Err(Unreadable), "{bad}");
        }
    }

    #[test]
    fn the_last_part_ends_the_window() {
        let window = Window::new(9, 2, 7);
        let next = window.next().unwrap();
        assert_eq!((next.done, next.next()), (1, None));
        assert!(next.is(&window) && !next.is(&Window::new(9, 3, 7)));
    }
}
