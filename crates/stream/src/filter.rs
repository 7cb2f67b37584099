//! The filter of a stream.

use regex::{Regex, RegexBuilder};

use super::entry::Head;
use signalbox_bus::is_audit_topic;

/// Maximum length of each parameter, in bytes.
const MAX_BYTES: usize = 1024;
/// Maximum size of a compiled pattern, in bytes.
const PATTERN_BYTES: usize = 64 << 10;

/// The filter of a stream. Every specified part must match.
#[derive(Debug, Default)]
pub struct Filter {
    topic: Option<String>,
    tenant: Option<String>,
    object: Option<String>,
    pattern: Option<Regex>,
    audit: bool,
}

/// Why a filter is rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("`{0}` is longer than {MAX_BYTES} bytes")]
    /// A parameter is too long; contains its name.
    TooLong(&'static str),
    #[error("`pattern` is not a regular expression over `tenant:type:topic`: {0}")]
    /// The pattern is not a valid regular expression, or too large.
    BadPattern(String),
}

impl Filter {
    /// Matches events of this topic, tenant and object, and whose `tenant:type:topic` matches `pattern` as a
    /// whole. `audit`: whether records of the audit log are included.
    ///
    /// # Errors
    /// When a parameter is too long or the pattern is invalid.
    pub fn new(
        topic: Option<String>,
        tenant: Option<String>,
        object: Option<String>,
        pattern: Option<&str>,
        audit: bool,
    ) -> Result<Self, Error> {
        for (name, part) in [
            ("topic", topic.as_deref()),
            ("tenant", tenant.as_deref()),
            ("object", object.as_deref()),
            ("pattern", pattern),
        ] {
            if part.is_some_and(|part| part.len() > MAX_BYTES) {
                return Err(Error::TooLong(name));
            }
        }
        let pattern = pattern.map(whole).transpose()?;
        Ok(Self { topic, tenant, object, pattern, audit })
    }

    /// Whether it takes the events of one tenant only.
    pub(super) fn is_divided(&self) -> bool {
        self.tenant.is_some()
    }

    pub(super) fn takes(&self, event: &Head<'_>) -> bool {
        let is =
            |wanted: &Option<String>, value: &str| wanted.as_deref().is_none_or(|wanted| wanted == value);
        (self.audit || !is_audit_topic(&event.topic))
            && is(&self.topic, &event.topic)
            && is(&self.tenant, &event.tenant)
            && is(&self.object, &event.object)
            && self.pattern.as_ref().is_none_or(|pattern| {
                pattern.is_match(&format!("{}:{}:{}", event.tenant, event.kind, event.topic))
            })
    }
}

/// Compiles the pattern so that it must match a whole text.
fn whole(pattern: &str) -> Result<Regex, Error> {
    let build = |text: &str| {
        RegexBuilder::new(text)
            .size_limit(PATTERN_BYTES)
            .build()
            .map_err(|error| Error::BadPattern(error.to_string()))
    };
    // The pattern is first compiled alone. If its parentheses are balanced, it cannot end the group around
    // it.
    build(pattern)?;
    build(&format!(r"\A(?:{pattern})\z"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use signalbox_bus::EventId;

    fn event<'a>(tenant: &'a str, kind: &'a str, topic: &'a str, object: &'a str) -> Head<'a> {
        Head {
            id: EventId(64),
            last: EventId(0),
            object: object.into(),
            topic: topic.into(),
            kind: kind.into(),
            tenant: tenant.into(),
        }
    }

    fn pattern(text: &str) -> Result<Filter, Error> {
        Filter::new(None, None, None, Some(text), false)
    }

    #[test]
    fn every_part_that_is_given_must_hold() {
        let filter = Filter::new(
            Some("orders".into()),
            Some("shop".into()),
            Some("o1".into()),
            Some("shop:.*"),
            false,
        );
        let filter = filter.unwrap();
        assert!(filter.takes(&event("shop", "update", "orders", "o1")));
        for (tenant, topic, object) in
            [("mall", "orders", "o1"), ("shop", "users", "o1"), ("shop", "orders", "o2")]
        {
            assert!(!filter.takes(&event(tenant, "update", topic, object)));
        }
        assert!(Filter::default().takes(&event("e", "k", "t", "o")), "no filter takes everything");
        let record = event("signalbox", "create", "signalbox.audit", "o");
        assert!(!Filter::default().takes(&record), "apart from the audit log");
        assert!(Filter { audit: true, ..Filter::default() }.takes(&record));
    }

    #[test]
    fn a_pattern_speaks_of_the_whole_name() {
        let filter = pattern("5:page:x|6:page:y").unwrap();
        assert!(filter.takes(&event("5", "page", "x", "o")) && filter.takes(&event("6", "page", "y", "o")));
        assert!(
            !filter.takes(&event("55", "page", "x", "o")) && !filter.takes(&event("5", "page", "xx", "o"))
        );
    }

    #[test]
    fn a_pattern_cannot_break_out_of_its_anchors() {
        for text in ["a|b)|(?:c", "(", "a)", "(?x)a #", "[", "(?P<n>x){1000}{1000}"] {
            assert!(matches!(pattern(text), Err(Error::BadPattern(_))), "{text}");
        }
        assert!(matches!(pattern(&"a".repeat(2000)), Err(Error::TooLong("pattern"))));
    }
}
