//! Host names as the route table spells them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Invalid;

/// A host name in the route table: lower case, without trailing dot. `*.example.org` covers all names below
/// `example.org`, and `*` all names that no other entry matches.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hostname(String);

impl Hostname {
    /// Parses a name in any common notation.
    ///
    /// Labels consist of letters, digits, hyphens (not at an end) and underscores, which the DNS allows and
    /// applications use. Names in other scripts must be in their ASCII form (`xn--…`), which is the form of
    /// Host headers.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let name = text.strip_suffix('.').unwrap_or(text);
        let invalid = |reason: &str| {
            let shown: String = text.chars().take(80).flat_map(char::escape_debug).collect();
            Err(Invalid::new("invalid_hostname", "hostnames", format!("`{shown}`: {reason}")))
        };
        if text == "*" {
            return Ok(Self(name.to_owned()));
        }
        if name.is_empty() {
            return invalid("a host name must not be empty");
        }
        if name.len() > 253 {
            return invalid("a host name must have at most 253 characters");
        }
        if name.contains('*') && !name.starts_with("*.") {
            return invalid(
                "`*` must be the complete name, or the complete first part of it, as in `*.shop.example`",
            );
        }
        for label in name.strip_prefix("*.").unwrap_or(name).split('.') {
            if label.is_empty() || label.len() > 63 {
                return invalid("each label must have 1 to 63 characters");
            }
            if !label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_') {
                return invalid("labels may contain letters, digits, - and _ (other scripts in xn-- form)");
            }
            if label.starts_with('-') || label.ends_with('-') {
                return invalid("a label must not start or end with a hyphen");
            }
        }
        Ok(Self(name.to_ascii_lowercase()))
    }

    /// The name as it is in keys.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_is_normalized() {
        for (text, name) in [
            ("Shop.Example", "shop.example"),
            ("shop.example.", "shop.example"),
            ("*.Shop.example", "*.shop.example"),
            ("*", "*"),
            ("localhost", "localhost"),
            ("_dmarc.a-b.example", "_dmarc.a-b.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("127.0.0.1", "127.0.0.1"),
        ] {
            assert_eq!(Hostname::parse(text).unwrap().as_str(), name);
        }
    }

    #[test]
    fn impossible_host_names_are_rejected() {
        let long_label = format!("{}.example", "a".repeat(64));
        let long_name = ["abcdefghi."; 26].concat();
        for text in [
            "",
            ".",
            "..",
            "a..b",
            "a.example..",
            "-a.example",
            "a-.example",
            "a b",
            "a\nb",
            "a\0",
            "bücher.example",
            "a.*.example",
            "*a.example",
            "**",
            "*.*",
            "*.",
            "a/b",
            "a:80",
            "[::1]",
            "a\"b",
            &long_label,
            &long_name,
        ] {
            assert!(Hostname::parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_parsed_name_parses_to_itself(text in "\\PC{0,300}") {
            if let Ok(name) = Hostname::parse(&text) {
                prop_assert_eq!(&Hostname::parse(name.as_str()).unwrap(), &name);
                prop_assert!(name.as_str().len() <= 253 && !name.as_str().ends_with('.'));
                prop_assert!(!name.as_str().bytes().any(|byte| byte.is_ascii_uppercase() || byte <= b' '));
            }
        }

        #[test]
        fn case_and_a_trailing_dot_make_no_difference(text in "[a-zA-Z0-9]{1,20}(\\.[a-zA-Z0-9_]{1,20}){0,3}") {
            let name = Hostname::parse(&text).unwrap();
            prop_assert_eq!(&Hostname::parse(&text.to_ascii_uppercase()).unwrap(), &name);
            prop_assert_eq!(&Hostname::parse(&format!("{text}.")).unwrap(), &name);
        }
    }

    /// An accepted name can be parsed again unchanged, and a request for it finds it.
    #[test]
    fn fuzz_host_names() {
        let examples = ["shop.example", "*.a_b.example.", "*", "xn--bcher-kva.example", "127.0.0.1", "A-1.B"];
        let words =
            [".", "..", "*.", "-", "_", ":80", "[::1]", "xn--", "\u{e9}", " ", "\r\n", "/", "%2e", "\0"];
        let mut fuzz = signalbox_testkit::Fuzz::new("host names", examples, &words);
        while let Some(text) = fuzz.text() {
            let Ok(name) = Hostname::parse(&text) else { continue };
            assert_eq!(Hostname::parse(name.as_str()).ok().as_ref(), Some(&name), "{text}");
            assert!(
                name.as_str().bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()),
                "{text}"
            );
            let host = crate::host_of(&name.as_str().replace('*', "any"));
            assert!(crate::candidates(&host).len() <= 10, "{text}");
            let labels = host.split('.').count();
            assert!(labels > 9 || crate::candidates(&host).contains(&name.to_string()), "{text}");
            fuzz.accepted();
        }
    }
}
