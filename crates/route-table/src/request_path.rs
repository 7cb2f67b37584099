//! The path of a request as the edge compares it with rules: the same computation as nginx's `$uri` and
//! `lua/signalbox/paths.lua`.

use super::Invalid;

const MAX_TARGET: usize = 8192;

/// The path of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestPath {
    /// The path, decoded, with slashes merged and dots resolved.
    pub(crate) normalized: String,
    /// The same path without the parameters of segments.
    pub(crate) matched: String,
}

impl RequestPath {
    /// Parses a request target: a path, optionally with arguments.
    pub fn parse(target: &str) -> Result<Self, Invalid> {
        let invalid = |detail: &str| Invalid::new("invalid_target", "path", detail);
        if !target.starts_with('/') || target.len() > MAX_TARGET {
            return Err(invalid("`path` must start with `/` and have at most 8192 bytes"));
        }
        let path = target.split(['?', '#']).next().unwrap_or_default();
        let rejected = || invalid("the edge answers this path with 400: it is not a valid path");
        let decoded = decode(path).ok_or_else(rejected)?;
        let normalized = resolve(&decoded).ok_or_else(rejected)?;
        let matched = without_parameters(&normalized).ok_or_else(|| {
            invalid("the edge answers this path with 400: applications read it in different ways")
        })?;
        Ok(Self { normalized, matched })
    }
}

fn decode(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok())?;
            let hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            bytes.push(hex.then(|| u8::from_str_radix(digits, 16).ok()).flatten().filter(|byte| *byte != 0)?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    // The edge also forwards bytes that are not UTF-8. Rules cannot contain them, so their value does not
    // matter.
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Merges slashes and resolves `.` and `..`; `None` if the path leads above the root.
fn resolve(path: &str) -> Option<String> {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()?),
            segment => kept.push(segment),
        }
    }
    let is_folder = path.ends_with(['/']) || path.ends_with("/.") || path.ends_with("/..");
    let end = if is_folder && !kept.is_empty() { "/" } else { "" };
    Some(format!("/{}{end}", kept.join("/")))
}

fn without_parameters(path: &str) -> Option<String> {
    if path.contains('\\') || path.chars().any(|one| one.is_ascii_control()) {
        return None;
    }
    let bare: Vec<&str> =
        path.split('/').map(|segment| segment.split(';').next().unwrap_or_default()).collect();
    // A segment of only parameters would leave two slashes, or dots, which an application could resolve
    // afterwards.
    let hidden = path.contains(';')
        && (bare.iter().any(|segment| matches!(*segment, "." | ".."))
            || bare.iter().skip(1).rev().skip(1).any(|segment| segment.is_empty()));
    (!hidden).then(|| bare.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_as_the_edge_reads_it() {
        for (target, normalized, matched) in [
            ("/", "/", "/"),
            ("/api/x?q=/../y", "/api/x", "/api/x"),
            ("/api/%2e%2e/x", "/x", "/x"),
            ("//api///x/", "/api/x/", "/api/x/"),
            ("/a/./b/..", "/a/", "/a/"),
            ("/a/..", "/", "/"),
            ("/%61pi%2fx", "/api/x", "/api/x"),
            ("/api/%252e%252e/x", "/api/%2e%2e/x", "/api/%2e%2e/x"),
            ("/a;x=1/b;y", "/a;x=1/b;y", "/a/b"),
            ("/a%3Fb", "/a?b", "/a?b"),
            ("/b%C3%BCcher#top", "/bücher", "/bücher"),
            ("/api/%BC", "/api/\u{fffd}", "/api/\u{fffd}"),
        ] {
            let path = RequestPath::parse(target).unwrap();
            assert_eq!((&*path.normalized, &*path.matched), (normalized, matched), "{target}");
        }
    }

    #[test]
    fn a_path_that_the_edge_rejects_is_named() {
        for target in [
            "", "api", "/..", "/a/../..", "/%", "/%0", "/%zz", "/%+1", "/%00", "/a/..;/b", "/a/;x/b",
            "/a%5cb", "/a%0ab", "/.;",
        ] {
            assert_eq!(RequestPath::parse(target).unwrap_err().code, "invalid_target", "{target}");
        }
    }
}
