//! The part of a policy that leads paths below the host to other hosts, and which rule applies to a path. The edge
//! decides by the same rules in `lua/signalbox/paths.lua`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Access, Invalid, Redirect, access, invalid, require};

const MAX_RULES: usize = 256;
const MAX_PATH: usize = 1024;

/// A rule for paths below the host.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PathRule {
    /// A normalized path: `/api` is the prefix of `/api` and `/api/x`, not of `/apix`.
    #[schema(example = "/api")]
    path: String,
    /// Whether the rule is for this path only, or for all paths below it as well.
    #[serde(rename = "match", default, skip_serializing_if = "Match::is_prefix")]
    matched: Match,
    /// The host whose instances serve the path; without it the host's own. Its choice of instances applies; limits and access are those of the host
    /// that the client asks for.
    #[schema(example = "orders.internal")]
    service: Option<String>,
    /// Whether the instance receives the path without the prefix, and the prefix as `X-Forwarded-Prefix`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    strip: bool,
    /// Who may use the path, in place of the host's `access`. `{}` admits every client.
    pub(super) access: Option<Access>,
    /// Where requests for the path are redirected.
    pub(super) redirect: Option<Redirect>,
}

/// The paths that a rule is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Match {
    /// The path and all paths below it.
    #[default]
    Prefix,
    /// This path only.
    Exact,
}

impl Match {
    // serde requires a reference.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_prefix(&self) -> bool {
        *self == Self::Prefix
    }
}

impl PathRule {
    /// The host to which the path leads, if it is a different one.
    pub(crate) fn service(&self) -> Option<&str> {
        self.service.as_deref()
    }

    /// The hosts that get requests because of the rule.
    pub(super) fn services(&self) -> impl Iterator<Item = &str> {
        self.service().into_iter().chain(self.access.as_ref().and_then(Access::service))
    }

    /// Replaces hidden password hashes with those of the rule in `stored` for the same path.
    pub(super) fn keep_hidden(&mut self, stored: &[Self]) -> Result<(), Invalid> {
        let before = stored.iter().find(|rule| (&rule.path, rule.matched) == (&self.path, self.matched));
        let before = before.and_then(|rule| rule.access.as_ref());
        self.access.iter_mut().try_for_each(|access| access.keep_hidden(before))
    }

    fn check(&mut self) -> Result<(), Invalid> {
        check_path(&self.path)?;
        let strips = !self.strip || self.path != "/" || self.matched == Match::Exact;
        require(strips, "paths.strip", "the prefix `/` has nothing to remove; leave out `strip`")?;
        if let Some(service) = &mut self.service {
            *service = access::service(service, "paths.service")?;
        }
        let leads = self.service.is_some() || self.strip;
        let detail = format!("the rule for {} does nothing: add service, access or redirect", self.path);
        require(leads || self.access.is_some() || self.redirect.is_some(), "paths", detail)?;
        let detail =
            format!("the rule for {} redirects, so its service would never get a request", self.path);
        require(!leads || self.redirect.is_none(), "paths", detail)?;
        self.access.iter_mut().try_for_each(Access::check)?;
        self.redirect.iter().try_for_each(Redirect::check)
    }
}

/// Checks that a normalized request path can equal this path. Otherwise the rule would never match.
fn check_path(path: &str) -> Result<(), Invalid> {
    let wrong = |detail: &str| {
        let shown: String = path.chars().take(80).flat_map(char::escape_debug).collect();
        Err(invalid("paths.path", format!("`{shown}`: {detail}")))
    };
    if !path.starts_with('/') || path.len() > MAX_PATH {
        return wrong("a path must start with `/` and have at most 1024 bytes");
    }
    if path.chars().any(|one| one.is_control() || "?#%;\\".contains(one)) {
        return wrong(
            "a path is compared after decoding, without parameters: it cannot contain ? # % ; \\ or control \
                      characters, so the rule would never match",
        );
    }
    if path.contains("//") || path.split('/').any(|segment| segment == "." || segment == "..") {
        return wrong(
            "a path is compared after slashes are merged and dots resolved, so the rule would never match",
        );
    }
    if path.len() > 1 && path.ends_with('/') {
        return wrong("a path must not end with `/`: `/api` includes `/api/`");
    }
    Ok(())
}

/// Validates the rules and sorts them.
pub(super) fn check(rules: &mut [PathRule]) -> Result<(), Invalid> {
    let fits = (1..=MAX_RULES).contains(&rules.len());
    require(fits, "paths", format!("paths must be a list of 1 to {MAX_RULES} rules"))?;
    rules.iter_mut().try_for_each(PathRule::check)?;
    let mut seen = BTreeSet::new();
    if let Some(twice) = rules.iter().find(|rule| !seen.insert((&rule.path, rule.matched.is_prefix()))) {
        let detail = format!("two rules for the path {}: one of them would never match", twice.path);
        return Err(invalid("paths.path", detail));
    }
    rules.sort_by(|a, b| (&a.path, a.matched.is_prefix()).cmp(&(&b.path, b.matched.is_prefix())));
    Ok(())
}

/// The rule for a normalized path: the exact one, otherwise the one with the longest prefix.
pub(crate) fn find<'a>(rules: &'a [PathRule], path: &str) -> Option<&'a PathRule> {
    let covers = |rule: &&PathRule| match rule.matched {
        Match::Exact => rule.path == path,
        Match::Prefix => {
            rule.path == "/"
                || path.strip_prefix(&*rule.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
    };
    rules.iter().filter(covers).max_by_key(|rule| (rule.matched == Match::Exact, rule.path.len()))
}

impl PathRule {
    /// The path of the rule.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The path that the instance receives instead of `path`, which the rule matches.
    pub(crate) fn sent<'a>(&self, path: &'a str) -> &'a str {
        match self.matched {
            _ if !self.strip => path,
            Match::Exact => "/",
            Match::Prefix => path.strip_prefix(&*self.path).filter(|rest| !rest.is_empty()).unwrap_or("/"),
        }
    }

    /// Whether the rule is for one path only.
    pub(crate) fn is_exact(&self) -> bool {
        self.matched == Match::Exact
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(path: &str) -> PathRule {
        let (matched, path) = match path.strip_prefix('=') {
            Some(path) => (Match::Exact, path),
            None => (Match::Prefix, path),
        };
        PathRule {
            path: path.to_owned(),
            matched,
            service: Some("a.test".to_owned()),
            strip: false,
            access: None,
            redirect: None,
        }
    }

    #[test]
    fn the_longest_prefix_that_ends_at_a_slash_applies_and_an_exact_rule_first() {
        let rules = ["/", "/api", "/api/v2", "=/api/v2"].map(rule);
        for (path, expected) in [
            ("/", "/"),
            ("/apix", "/"),
            ("/api", "/api"),
            ("/api/v1", "/api"),
            ("/api/v2", "=/api/v2"),
            ("/api/v2/x", "/api/v2"),
            ("/API", "/"),
        ] {
            assert_eq!(find(&rules, path), Some(&rule(expected)), "{path}");
        }
        assert_eq!(find(&["/api", "=/"].map(rule), "/other"), None);
    }

    #[test]
    fn a_removed_prefix_leaves_a_path() {
        let strip = |path| PathRule { strip: true, ..rule(path) };
        assert_eq!(strip("/api").sent("/api/x"), "/x");
        assert_eq!(strip("/api").sent("/api"), "/");
        assert_eq!(strip("=/api").sent("/api"), "/");
        assert_eq!(rule("/api").sent("/api/x"), "/api/x");
    }
}
