//! Whether an output has the shape of the output on a page: the same members, statuses and words, with any values. `…` on a
//! page matches anything.

use serde_json::Value;

/// The part of an answer that a page shows.
#[derive(Debug)]
pub(super) enum Shown {
    /// Nothing that could be compared.
    Nothing,
    /// JSON, behind its status if that is there.
    Json(Option<u16>, Value),
    /// Lines.
    Lines(Vec<String>),
}

impl Shown {
    pub(super) fn read(text: &str) -> Self {
        let text = text.trim();
        if text.is_empty() {
            return Self::Nothing;
        }
        let (status, rest) = match text.split_at_checked(3) {
            Some((digits, rest)) if rest.starts_with(' ') => (digits.parse().ok(), rest.trim()),
            _ => (None, text),
        };
        let json = if status.is_some() { rest } else { text };
        // Prose may follow an answer; the answer ends where its JSON does.
        let first = serde_json::Deserializer::from_str(&whole(json)).into_iter::<Value>().next();
        match first {
            Some(Ok(value)) if value.is_object() || value.is_array() => Self::Json(status, value),
            _ => Self::Lines(text.lines().map(str::to_owned).collect()),
        }
    }

    /// The status that is shown, as a number before the answer, in its head or in a problem document.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Nothing => None,
            Self::Json(status, value) => status.or_else(|| {
                let status = value.get("code").and(value.get("status")).and_then(Value::as_u64);
                status.and_then(|status| status.try_into().ok())
            }),
            Self::Lines(lines) => lines.first()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok(),
        }
    }

    /// Compares with `printed` and reports the first difference.
    pub(super) fn compare(&self, printed: &str) -> Result<(), String> {
        match self {
            Self::Nothing => Ok(()),
            Self::Json(_, shown) => {
                let printed = printed.trim();
                // A receiver that an earlier step started prints its lines in between; JSON begins a line unless `curl`
                // wrote something before it.
                let at_line =
                    printed.match_indices(['{', '[']).find(|(at, _)| printed[..*at].ends_with('\n'));
                let start = at_line.map(|(at, _)| at).filter(|_| !printed.starts_with(['{', '[']));
                let start = start.or_else(|| printed.find(['{', '[']));
                let start = start.ok_or_else(|| format!("no JSON: {printed}"))?;
                // If there are several answers, the comment shows the last one.
                let found: Value = serde_json::Deserializer::from_str(&printed[start..])
                    .into_iter()
                    .map_while(Result::ok)
                    .last()
                    .ok_or_else(|| format!("no JSON: {printed}"))?;
                members(shown, &found, "").map_err(|what| format!("{what} in {found}"))
            }
            Self::Lines(shown) => lines(shown, printed),
        }
    }
}

const ANYTHING: &str = "\u{2026}";

/// JSON with `…` in places where a value, a member or the rest of a list would be.
fn whole(text: &str) -> String {
    let mut out = String::new();
    let (mut quoted, mut escaped) = (false, false);
    for c in text.chars() {
        if quoted {
            quoted = escaped || c != '"';
            escaped = !escaped && c == '\\';
            out.push(c);
            continue;
        }
        match c {
            '"' => quoted = true,
            '\u{2026}' if out.trim_end().ends_with(':') => {
                out.push_str("\"\u{2026}\"");
                continue;
            }
            // A member or an item that is left out, with the comma before it or after it.
            '\u{2026}' => {
                out.truncate(out.trim_end().trim_end_matches(',').len());
                continue;
            }
            ',' if out.trim_end().ends_with(['{', '[']) => continue,
            _ => {}
        }
        out.push(c);
    }
    out
}

fn members(shown: &Value, found: &Value, at: &str) -> Result<(), String> {
    match (shown, found) {
        (Value::String(text), _) if text == ANYTHING => Ok(()),
        (Value::Object(shown), Value::Object(found)) => shown.iter().try_for_each(|(key, value)| {
            if key == ANYTHING {
                return Ok(());
            }
            let inner = found.get(key).ok_or_else(|| format!("no member `{at}.{key}`"))?;
            members(value, inner, &format!("{at}.{key}"))
        }),
        (Value::Array(shown), Value::Array(found)) => {
            shown.iter().enumerate().try_for_each(|(place, value)| {
                let inner = found.get(place).ok_or_else(|| format!("`{at}` has {} items", found.len()))?;
                members(value, inner, &format!("{at}[{place}]"))
            })
        }
        (Value::Null, _) | (_, Value::Null) => Ok(()),
        (shown, found) if std::mem::discriminant(shown) == std::mem::discriminant(found) => Ok(()),
        _ => Err(format!("`{at}` is another type than {shown}")),
    }
}

/// A line without the parts that differ between runs: numbers of four digits and more, and the text that `…` replaces.
fn plain(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line.trim();
    while let Some(c) = rest.chars().next() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits >= 4 {
            out.push('#');
            rest = &rest[digits..];
        } else if digits > 0 {
            out.push_str(&rest[..digits]);
            rest = &rest[digits..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

fn is_like(shown: &str, printed: &str) -> bool {
    let (shown, printed) = (plain(shown), plain(printed));
    match shown.split_once(ANYTHING) {
        None => shown.split_whitespace().eq(printed.split_whitespace()),
        Some((before, after)) => {
            let last = after.rsplit(ANYTHING).next().unwrap_or_default();
            printed.starts_with(before.trim_end()) && printed.ends_with(last.trim_start())
        }
    }
}

/// Every line that is shown was printed, in this order. Other lines between them are allowed after
/// a `…` and among headers, whose order the server chooses.
fn lines(shown: &[String], printed: &str) -> Result<(), String> {
    let printed: Vec<&str> = printed.lines().map(str::trim_end).collect();
    let mut from = 0;
    for line in shown.iter().filter(|line| !line.trim().is_empty() && line.trim() != ANYTHING) {
        match printed[from..].iter().position(|found| is_like(line, found)) {
            Some(at) => from += at + 1,
            None => return Err(format!("no line like `{line}` in\n{}", printed.join("\n"))),
        }
    }
    Ok(())
}

#[test]
fn members_are_compared_and_values_are_not() {
    let shown = Shown::read("201 {\"a\":1, \"b\":[{\"c\":\"x\"}, …], …}\nprose");
    assert_eq!(shown.status(), Some(201));
    assert!(shown.compare("{\"a\":2,\"b\":[{\"c\":\"y\",\"d\":1},{}],\"e\":3}").is_ok());
    for other in [
        "{\"a\":2}",
        "{\"a\":2,\"b\":[]}",
        "{\"a\":\"x\",\"b\":[{\"c\":\"y\"}]}",
        "{\"a\":1,\"b\":[{}]}",
        "oops",
    ] {
        assert!(shown.compare(other).is_err(), "{other}");
    }
    let problem = Shown::read("{…,\"status\":422,\"code\":\"bad\",\"field\":…}");
    assert_eq!(problem.status(), Some(422));
    assert!(problem.compare("{\"type\":\"t\",\"status\":422,\"code\":\"bad\",\"field\":\"f\"}").is_ok());
}

#[test]
fn lines_are_compared_without_their_numbers() {
    let shown = Shown::read("HTTP/1.1 503 Service\nRetry-After: 1\n…");
    assert_eq!(shown.status(), Some(503));
    assert!(shown.compare("HTTP/1.1 503 Service\r\nDate: x\r\nRetry-After: 1\r\n\r\nbody").is_ok());
    assert!(shown.compare("HTTP/1.1 502 Service\r\nRetry-After: 1\r\n").is_err());
    let shown = Shown::read("received demo: (event 583742922944000)");
    assert!(shown.compare("received demo: (event 583742922944001)").is_ok());
    assert!(shown.compare("received other: (event 583742922944001)").is_err());
}
