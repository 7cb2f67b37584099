//! Literals: tokens that begin with a digit or a quote.

use crate::{
    error::{Fault, Span},
    instant::TimeOfDay,
    number::Number,
    tree::Literal,
};

/// Parses a literal that begins with a digit or a minus: a number, a duration or a time.
pub(crate) fn from_digits(text: &str, span: Span) -> Result<Literal, Fault> {
    // Metadata is parsed by serde_json, so its parser is used here, too: 0.1 must be equal to 0.1 to the last
    // bit.
    match serde_json::from_str::<serde_json::Number>(text) {
        Ok(number) => return Ok(Literal::Number(Number::of(&number))),
        Err(error) if error.to_string().starts_with("number out of range") => {
            return Err(Fault::new(span, format!("`{text}` is beyond what a number can be (about 1.8e308)")));
        }
        Err(_) => {}
    }
    if let Some(time) = TimeOfDay::parse_literal(text) {
        return Ok(Literal::Time(time));
    }
    match duration(text) {
        Some(Some(seconds)) => Ok(Literal::Duration(seconds)),
        Some(None) => Err(Fault::new(span, format!("`{text}` is too long for a duration"))),
        None => {
            let fault = Fault::new(span, format!("`{text}` is not a number, a duration or a time"));
            Err(fault.hint(hint(text)))
        }
    }
}

/// Parses `1d2h30m5s`: each unit at most once, in this order. `Some(None)` if it is a duration that is too
/// long to represent.
pub(crate) fn duration(text: &str) -> Option<Option<i64>> {
    let mut units = [(b'd', 86_400), (b'h', 3600), (b'm', 60), (b's', 1)].into_iter();
    let (mut total, mut rest) = (Some(0_i64), text);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (count, behind) = rest.split_at(digits);
        let unit = *behind.as_bytes().first()?;
        let (_, seconds) = units.find(|(name, _)| *name == unit)?;
        if count.is_empty() {
            return None;
        }
        let part = count.parse::<i64>().ok().and_then(|count| count.checked_mul(seconds));
        total = total.zip(part).and_then(|(sum, part)| sum.checked_add(part));
        rest = &behind[1..];
    }
    (!text.is_empty()).then_some(total)
}

fn hint(text: &str) -> String {
    let bytes = text.as_bytes();
    if let Some(positive) = text.strip_prefix('-')
        && (duration(positive).is_some() || TimeOfDay::parse_literal(positive).is_some())
    {
        "durations and times have no sign; a number of seconds may be negative".into()
    } else if bytes.len() >= 10 && bytes[4] == b'-' && bytes[7] == b'-' {
        format!("a date or an instant needs quotes: \"{text}\"")
    } else if text.contains(':') {
        "a time is written 9:05, 18:30 or 18:30:15, from 00:00 to 23:59:59".into()
    } else if text.ends_with(|c: char| c.is_ascii_alphabetic()) {
        "a duration is written 1d2h30m5s, units in this order, in whole numbers; text needs quotes".into()
    } else if text.len() > 1 && text[1..].contains(['-', '+']) {
        "arithmetic is not supported; text needs quotes".into()
    } else {
        "a number is written as in JSON: 0.5, not .5 or 5. or 05; text needs quotes".into()
    }
}

/// Reads a text that begins with the quote at `start`. Returns the text and the position after its closing
/// quote.
///
/// Escapes are those of JSON, in either kind of quotes.
pub(crate) fn from_quotes(source: &str, start: usize) -> Result<(String, usize), Fault> {
    let quote = if source[start..].starts_with('\'') { '\'' } else { '"' };
    let (mut text, mut at) = (String::new(), start + 1);
    while let Some(c) = source[at..].chars().next() {
        match c {
            _ if c == quote => return Ok((text, at + 1)),
            '\n' | '\r' => break,
            '\\' => {
                let (c, length) = escape(&source[at..]).map_err(|fault| fault.at(at))?;
                text.push(c);
                at += length;
            }
            c => {
                text.push(c);
                at += c.len_utf8();
            }
        }
    }
    let fault = Fault::new(Span { start, end: at }, format!("this text has no closing {quote} on its line"));
    Err(if at < source.len() { fault.hint("a line break within a text is written \\n") } else { fault })
}

struct BadEscape {
    length: usize,
    message: String,
    hint: Option<String>,
}

impl BadEscape {
    fn at(self, start: usize) -> Fault {
        Fault::new(Span { start, end: start + self.length }, self.message).maybe_hint(self.hint)
    }
}

/// Reads the escape at the beginning of a text. Returns its character and its length.
fn escape(text: &str) -> Result<(char, usize), BadEscape> {
    let c = match text[1..].chars().next() {
        Some(c @ ('"' | '\\' | '/')) => c,
        Some('b') => '\u{8}',
        Some('f') => '\u{c}',
        Some('n') => '\n',
        Some('r') => '\r',
        Some('t') => '\t',
        Some('u') => return unicode(text),
        other => {
            let length = 1 + other.filter(|c| !matches!(c, '\n' | '\r')).map_or(0, char::len_utf8);
            let hint = match other {
                Some('\'') => "put the text in double quotes, or write \\u0027",
                _ => "the escapes are those of JSON: \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u0041",
            };
            let message = format!("`{}` is not a valid escape", &text[..length]);
            return Err(BadEscape { length, message, hint: Some(hint.into()) });
        }
    };
    Ok((c, 2))
}

/// Reads `\u0041`, or a surrogate pair for a character beyond U+FFFF.
fn unicode(text: &str) -> Result<(char, usize), BadEscape> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        // `from_str_radix` would accept a sign.
        digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok())?
    };
    let Some(first) = unit(0) else {
        let message = "`\\u` needs four hexadecimal digits".into();
        return Err(BadEscape { length: 2, message, hint: None });
    };
    let (pair, length) = match unit(6) {
        Some(second) if (0xD800..0xDC00).contains(&first) => (vec![first, second], 12),
        _ => (vec![first], 6),
    };
    match char::decode_utf16(pair).next() {
        Some(Ok(c)) => Ok((c, length)),
        _ => {
            let message = "half of a surrogate pair is not a character".into();
            Err(BadEscape { length: 6, message, hint: None })
        }
    }
}
