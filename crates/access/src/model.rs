//! What a token allows, without any I/O.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};

use signalbox_api::tokens::Scope;
use signalbox_route_table::Hostname;

/// Host names that a token may touch: one name, a wildcard `*.example.org` (everything below it, its own wildcard
/// entry included, not the apex), or `*` for all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostPattern(Hostname);

impl HostPattern {
    pub fn new(hostname: Hostname) -> Self {
        Self(hostname)
    }

    pub(crate) fn covers(&self, hostname: &Hostname) -> bool {
        let pattern = self.0.as_str();
        match pattern.strip_prefix('*') {
            Some("") => true,
            // ".example.org" must end the name and leave something before it.
            Some(suffix) => hostname.as_str().len() > suffix.len() && hostname.as_str().ends_with(suffix),
            None => hostname.as_str() == pattern,
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0.as_str())
    }
}

/// Who is behind a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// `root`, or the token's name.
    pub name: String,
    /// The token itself, when it is one of the event bus: there it is the identity.
    bus_token: Option<String>,
    root: bool,
    scopes: Vec<Scope>,
    /// No list: every host.
    hosts: Option<Vec<HostPattern>>,
    /// No list: every environment.
    environments: Option<Vec<String>>,
}

impl Caller {
    pub fn root() -> Self {
        Self { root: true, ..Self::named("root".to_owned(), Vec::new(), None) }
    }

    pub fn named(name: String, scopes: Vec<Scope>, hosts: Option<Vec<HostPattern>>) -> Self {
        Self { name, bus_token: None, root: false, scopes, hosts, environments: None }
    }

    /// The same caller, confined to these environments.
    pub(crate) fn within(self, environments: Option<Vec<String>>) -> Self {
        Self { environments, ..self }
    }

    /// Whoever presents a token of the event bus.
    pub fn of_bus(token: String, name: String, scopes: Vec<Scope>) -> Self {
        Self { bus_token: Some(token), ..Self::named(name, scopes, None) }
    }

    pub fn is_root(&self) -> bool {
        self.root
    }

    /// The client of the event bus behind this caller. A bus token is its client; others are told apart from those by
    /// a sign that no bus token holds.
    pub fn bus_client(&self) -> Cow<'_, str> {
        match &self.bus_token {
            Some(token) => Cow::Borrowed(token),
            None => Cow::Owned(format!("@{}", self.name)),
        }
    }

    pub fn has_any(&self, scopes: &[Scope]) -> bool {
        self.root || scopes.iter().any(|scope| self.scopes.contains(scope))
    }

    /// Whether no host pattern confines this caller.
    pub fn is_unconfined(&self) -> bool {
        self.hosts.is_none()
    }

    /// Whether messages of this environment are the caller's business.
    pub fn may_use(&self, environment: &str) -> bool {
        self.environments.as_ref().is_none_or(|names| names.iter().any(|name| name == environment))
    }

    /// The environments that the caller is confined to.
    pub fn environments(&self) -> Option<&[String]> {
        self.environments.as_deref()
    }

    pub fn may_touch(&self, hostname: &Hostname) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.iter().any(|pattern| pattern.covers(hostname)))
    }

    /// Whether every name is within the caller's patterns: an instance that also serves another's name is not theirs.
    pub fn may_touch_all<'a>(&self, hostnames: impl IntoIterator<Item = &'a Hostname>) -> bool {
        hostnames.into_iter().all(|hostname| self.may_touch(hostname))
    }
}

/// What is stored of a token, under its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) name: String,
    pub(super) scopes: Vec<Scope>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) hosts: Option<Vec<HostPattern>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) environments: Option<Vec<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Hostname {
        Hostname::parse(name).unwrap()
    }

    #[test]
    fn a_pattern_covers_what_is_below_it_and_not_its_apex() {
        let pattern = HostPattern::new(host("*.shop.example"));
        for name in ["a.shop.example", "b.a.shop.example", "*.shop.example", "*.a.shop.example"] {
            assert!(pattern.covers(&host(name)), "{name}");
        }
        for name in ["shop.example", "myshop.example", "*.example", "*", "a.shop.example.org"] {
            assert!(!pattern.covers(&host(name)), "{name}");
        }
        assert!(HostPattern::new(host("*")).covers(&host("*")));
        assert!(!HostPattern::new(host("shop.example")).covers(&host("a.shop.example")));
    }

    #[test]
    fn a_token_of_some_environments_is_no_token_of_others() {
        let caller = Caller::named("a".to_owned(), vec![Scope::Publish], None);
        assert!(caller.may_use("5") && caller.environments().is_none());
        let caller = caller.within(Some(vec!["5".to_owned()]));
        assert!(caller.may_use("5") && !caller.may_use("55") && !caller.may_use(""));
        assert!(Caller::root().may_use("5"));
    }

    #[test]
    fn a_confined_caller_may_not_touch_an_instance_that_also_serves_another() {
        let hosts = Some(vec![HostPattern::new(host("*.a.example"))]);
        let caller = Caller::named("a".to_owned(), vec![Scope::Routes], hosts);
        assert!(caller.may_touch_all(&[host("x.a.example")]));
        assert!(!caller.may_touch_all(&[host("x.a.example"), host("b.example")]));
        assert!(Caller::root().may_touch_all(&[host("b.example")]));
    }
}
