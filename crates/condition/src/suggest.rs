//! Suggestions: the habits of other languages, and typing errors.

/// An operator of another language at the beginning of `text`, and its equivalent here.
pub(crate) fn operator(text: &str) -> Option<(&'static str, String)> {
    const MEANT: [(&str, &str); 16] = [
        ("===", "="),
        ("!==", "/="),
        ("==", "="),
        ("!=", "/="),
        ("<>", "/="),
        ("=>", ">="),
        ("=<", "<="),
        ("&&", "and"),
        ("&", "and"),
        ("||", "or"),
        ("|", "or"),
        ("!", "not"),
        ("≠", "/="),
        ("≤", "<="),
        ("≥", ">="),
        ("¬", "not"),
    ];
    let (mistake, meant) = MEANT.iter().find(|(mistake, _)| text.starts_with(mistake))?;
    Some((mistake, format!("did you mean `{meant}`?")))
}

/// The hint for a character that cannot begin a token.
pub(crate) fn character(c: char) -> Option<String> {
    let hint = match c {
        '+' | '-' | '*' | '/' | '%' => {
            "arithmetic is not supported; a negative number has its minus right before its digits"
        }
        '.' => "a path begins with its root and has no space around its dots; a number begins with a digit",
        '“' | '”' | '„' | '‘' | '’' | '`' | '«' | '»' => {
            "text needs straight quotes: \"…\" or '…'"
        }
        '{' | '}' => "object literals are not supported; `is in` asks an object for a key",
        '$' => "paths are written as they are: metadata.plan",
        ';' => "tests are joined by `and` or `or`",
        c if c.is_whitespace() || c == '\u{feff}' => "only space, tab and line break may separate",
        _ => return None,
    };
    Some(hint.into())
}

/// A character as messages show it: invisible ones as their code point.
pub(crate) fn shown(c: char) -> String {
    if c.is_control() || c.is_whitespace() || c == '\u{feff}' {
        format!("the character U+{:04X}", u32::from(c))
    } else {
        format!("`{c}`")
    }
}

/// The most similar candidate, if at most a third of the word would have to change.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    // A word of this length is not a typing error, and the distance takes quadratic time.
    if word.len() > 64 {
        return None;
    }
    let distances =
        candidates.into_iter().map(|candidate| (distance(&word, &candidate.to_lowercase()), candidate));
    let (distance, candidate) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance * 3 <= word.chars().count().max(3)).then_some(candidate)
}

/// The edit distance, with swaps of adjacent characters (optimal string alignment): `tiem` is one step from
/// `time`.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=right.len()).collect()];
    for i in 1..=left.len() {
        let mut row = vec![i];
        for j in 1..=right.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(left[i - 1] != right[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_found_and_the_far_is_not() {
        let roots = ["metadata", "feeds", "history", "system"];
        assert_eq!(nearest("metdata", roots), Some("metadata"));
        assert_eq!(nearest("meta_data", roots), Some("metadata"));
        assert_eq!(nearest("Sytsem", roots), Some("system"));
        assert_eq!(nearest("foo", roots), None);
        assert_eq!(nearest(&"m".repeat(5000), roots), None);
        assert_eq!(distance("tiem", "time"), 1);
        assert_eq!(distance("", "abc"), 3);
    }
}
