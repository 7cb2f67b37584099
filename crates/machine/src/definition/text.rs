//! Maps a place within a text to its place in the YAML source of the text.
//!
//! Blocks are indented, folded lines are joined, quotes escape: only the sequence of characters other than whitespace
//! is unchanged. So a place is found by counting those.

use super::yaml::{Mark, Style};

/// How the scalar at a position is written. The position of a block scalar is that of its first line, so its
/// style is read from the line above.
pub(super) fn style(source: &str, at: Mark) -> Style {
    let before = source.get(..at.start).unwrap_or_default();
    let head = before.trim_end();
    // Other content precedes it on the same line, so it is not a block scalar.
    if before[head.len()..].contains('\n') {
        let line = head.rsplit('\n').next().unwrap_or_default();
        // A comment may follow the block header.
        let line = line.find(" #").map_or(line, |comment| &line[..comment]).trim_end();
        let line = line.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-'));
        match line.bytes().last() {
            Some(b'|') => return Style::Literal,
            Some(b'>') => return Style::Folded,
            _ => {}
        }
    }
    at.style(source)
}

/// Whether YAML joins the lines of the text, so that a comment in it would extend to its end.
pub(super) fn swallows(source: &str, at: Mark) -> bool {
    match style(source, at) {
        Style::Literal => false,
        Style::Plain | Style::Single | Style::Folded => true,
        // In a scalar on a single source line, a line break can only be an explicit `\n`.
        Style::Double => source.get(at.start..at.end).is_none_or(|written| written.contains('\n')),
    }
}

/// The byte offset of a line and a column. Both are counted from 1, columns in characters; CR, LF and CR LF
/// each end a line.
pub(super) fn offset(text: &str, line: usize, column: usize) -> usize {
    let mut start = 0;
    for _ in 1..line {
        let Some(end) = text[start..].find(['\n', '\r']).map(|end| start + end) else { break };
        start = if text[end..].starts_with("\r\n") { end + 2 } else { end + 1 };
    }
    let within = text[start..].chars().take(column - 1).map(char::len_utf8).sum::<usize>();
    (start + within).min(text.len())
}

/// The position in the file of the `length` bytes of a text that begin at byte `from`.
pub(super) fn place(source: &str, node: Mark, text: &str, from: usize, length: usize) -> Mark {
    let visible = |text: &str| text.chars().filter(|c| !c.is_whitespace()).count();
    let signs = signs(source, node);
    let before = visible(&text[..from]);
    let marked = visible(&text[from..(from + length).min(text.len())]);
    let after_last = signs.last().map_or(node.start, |sign| sign.end);
    let start = signs.get(before).map_or(after_last, |sign| sign.start);
    let end =
        (before + marked).checked_sub(1).and_then(|last| signs.get(last)).map_or(start, |sign| sign.end);
    Mark { start, end: end.max(start) }
}

/// The characters of a scalar except whitespace, each with its position in the file.
fn signs(source: &str, node: Mark) -> Vec<Mark> {
    let style = style(source, node);
    let (start, end) = match style {
        Style::Single | Style::Double => (node.start + 1, node.end.saturating_sub(1).max(node.start + 1)),
        _ => (node.start, node.end),
    };
    let Some(written) = source.get(start..end) else { return Vec::new() };
    let mut signs = Vec::new();
    let mut rest = written.char_indices().peekable();
    while let Some((n, c)) = rest.next() {
        let at = start + n;
        let mut end = at + c.len_utf8();
        if style == Style::Single && c == '\'' || style == Style::Double && c == '\\' {
            let Some((_, escaped)) = rest.next() else { break };
            end += escaped.len_utf8();
            let digits = match escaped {
                'x' => 2,
                'u' => 4,
                'U' => 8,
                // An escape for a space, a tab or a line break, or one that joins lines.
                'n' | 't' | 'r' | ' ' | '\n' if c == '\\' => continue,
                _ => 0,
            };
            for _ in 0..if c == '\\' { digits } else { 0 } {
                end += rest.next().map_or(0, |(_, c)| c.len_utf8());
            }
        } else if c.is_whitespace() {
            continue;
        }
        signs.push(Mark { start: at, end });
    }
    signs
}
