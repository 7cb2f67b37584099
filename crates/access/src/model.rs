//! The permissions of a token. Pure.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};

use signalbox_api::tokens::Scope;
use signalbox_route_table::Hostname;

use super::Author;

/// Host names that a token may touch: one name, a wildcard `*.example.org` (everything below it, its own wildcard
/// entry included, not the apex), or `*` for all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostPattern(Hostname);

impl HostPattern {
    /// The pattern that `hostname` describes; the type lists the forms.
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

/// What a token allows.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The permissions.
    pub scopes: Vec<Scope>,
    /// The hosts that the token is confined to; `None` allows every host.
    pub hosts: Option<Vec<HostPattern>>,
    /// The tenants that the token is confined to; `None` allows every tenant.
    // Earlier releases stored them as `environments`.
    #[serde(alias = "environments")]
    pub tenants: Option<Vec<String>>,
    /// The state machines that the token is confined to; `None` allows every machine.
    pub machines: Option<Vec<String>>,
    /// The version types under which the token may register instances, with `*` at the end for a prefix; `None` allows all.
    pub version_types: Option<Vec<String>>,
}

impl Grant {
    /// Whether the token has the list of this name, one of [`signalbox_api::tokens::LISTS`].
    pub(crate) fn has_list(&self, list: &str) -> bool {
        match list {
            "hosts" => self.hosts.is_some(),
            "tenants" => self.tenants.is_some(),
            "machines" => self.machines.is_some(),
            "version_types" => self.version_types.is_some(),
            _ => false,
        }
    }
}

/// What the definition of a state machine allows its actions, in addition to what its author may do.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bounds {
    /// The hosts whose routes the actions may change.
    hosts: Vec<HostPattern>,
    /// The beginning of the IDs of instances that they may register.
    instances: String,
}

/// The holder of the token that a request carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// `root`, or the token's name.
    pub name: String,
    /// The identity of a client of the event bus, when the token is one of the bus.
    pub(crate) bus_client: Option<String>,
    /// The person for whom an authenticating proxy sent the request.
    person: Option<String>,
    root: bool,
    pub(crate) grant: Grant,
    /// The bounds of a state machine's actions; `None` for every other caller.
    bounds: Option<Bounds>,
}

impl Caller {
    /// The holder of the root token, who may do everything.
    pub fn root() -> Self {
        Self { root: true, ..Self::with("root".to_owned(), Grant::default()) }
    }

    pub(crate) fn with(name: String, grant: Grant) -> Self {
        Self { name, bus_client: None, person: None, root: false, grant, bounds: None }
    }

    /// The holder of a stored token. Without `hosts` every host is allowed.
    pub fn named(name: String, scopes: Vec<Scope>, hosts: Option<Vec<HostPattern>>) -> Self {
        Self::with(name, Grant { scopes, hosts, ..Grant::default() })
    }

    /// The actions of a state machine that `author` has defined. They may do what the author may do, and of that only: change
    /// the routes of `hosts`, and register instances whose IDs begin with `instances`. What they register is counted for the
    /// author, or for the machine if root is the author.
    pub fn of_machine(machine: &str, author: &Author, hosts: Vec<HostPattern>, instances: String) -> Self {
        let author = author.caller();
        let grant = if author.root {
            Grant { scopes: Scope::ALL.to_vec(), ..Grant::default() }
        } else {
            author.grant
        };
        Self {
            bus_client: author.bus_client,
            bounds: Some(Bounds { hosts, instances }),
            ..Self::with(format!("machine:{machine}"), grant)
        }
    }

    /// The holder of one of the event bus's tokens. `client` is the identity there, which is not the token.
    pub fn of_bus(client: String, name: String, scopes: Vec<Scope>) -> Self {
        Self { bus_client: Some(client), ..Self::named(name, scopes, None) }
    }

    /// The same caller, as which an authenticating proxy presents `person`.
    #[must_use]
    pub fn for_person(self, person: String) -> Self {
        Self { person: Some(person), ..self }
    }

    /// The person for whom an authenticating proxy sent the request.
    pub fn person(&self) -> Option<&str> {
        self.person.as_deref()
    }

    /// Whether this is the holder of the root token.
    pub fn is_root(&self) -> bool {
        self.root
    }

    /// The identity of the caller on the event bus. Callers with a token of another kind get a prefix that no client of the
    /// bus has.
    pub fn bus_client(&self) -> Cow<'_, str> {
        match &self.bus_client {
            Some(client) => Cow::Borrowed(client),
            None => Cow::Owned(format!("@{}", self.name)),
        }
    }

    /// Who shares limits of requests, streams and waits with the caller: the holders of its token, and of a token that an
    /// authenticating proxy uses for several persons, each person.
    pub fn limited_as(&self) -> Cow<'_, str> {
        match &self.person {
            Some(person) => Cow::Owned(format!("{} {person}", self.bus_client())),
            None => self.bus_client(),
        }
    }

    /// Whether the caller has at least one of `scopes`; root has all.
    pub fn has_any(&self, scopes: &[Scope]) -> bool {
        self.root || scopes.iter().any(|scope| self.grant.scopes.contains(scope))
    }

    /// Whether the caller may change every host.
    pub fn is_unconfined(&self) -> bool {
        self.grant.hosts.is_none() && self.bounds.is_none()
    }

    /// Whether the caller may access messages of this tenant.
    pub fn may_use(&self, tenant: &str) -> bool {
        self.grant.tenants.as_ref().is_none_or(|names| names.iter().any(|name| name == tenant))
    }

    /// The tenants that the caller is confined to.
    pub fn tenants(&self) -> Option<&[String]> {
        self.grant.tenants.as_deref()
    }

    /// Whether the caller may read, define and update this state machine.
    pub fn may_use_machine(&self, machine: &str) -> bool {
        self.grant.machines.as_ref().is_none_or(|names| names.iter().any(|name| name == machine))
    }

    /// Whether the caller may register an instance under this version type. Its requests and errors are counted for it, and
    /// decide about the promotion of the whole version type.
    pub fn may_count_as(&self, version_type: &str) -> bool {
        let covers = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => version_type.starts_with(prefix),
            None => version_type == pattern,
        };
        self.grant.version_types.as_ref().is_none_or(|patterns| patterns.iter().any(covers))
    }

    /// Whether the caller may see the numbers of every version type: neither its hosts nor its version types are limited.
    pub fn sees_all_numbers(&self) -> bool {
        self.grant.version_types.is_none() && self.confinement().is_empty()
    }

    /// Whether the caller may register an instance with this ID, or take its address.
    pub fn may_own(&self, instance: &str) -> bool {
        self.bounds.as_ref().is_none_or(|bounds| instance.starts_with(&*bounds.instances))
    }

    /// Whether the caller may change every host that a pattern covers.
    pub fn may_touch_pattern(&self, pattern: &HostPattern) -> bool {
        self.may_touch(&pattern.0)
    }

    /// Whether the caller may change what the route table holds for `hostname`.
    pub fn may_touch(&self, hostname: &Hostname) -> bool {
        let covers = |hosts: &[HostPattern]| hosts.iter().any(|pattern| pattern.covers(hostname));
        self.grant.hosts.as_deref().is_none_or(covers)
            && self.bounds.as_ref().is_none_or(|bounds| covers(&bounds.hosts))
    }

    /// Whether the caller may change every one of these names. An instance that also serves a host of another owner is off
    /// limits.
    pub fn may_touch_all<'a>(&self, hostnames: impl IntoIterator<Item = &'a Hostname>) -> bool {
        hostnames.into_iter().all(|hostname| self.may_touch(hostname))
    }
}

/// The stored record of a secret, under its digest. All secrets of a token have the same record apart from `until_ms`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) grant: Grant,
    /// When the secret was created, in unix milliseconds.
    #[serde(default)]
    pub(super) created_ms: u64,
    /// When the token expires, in unix milliseconds.
    pub(super) expires_ms: Option<u64>,
    /// When this secret ends because a newer one has replaced it, in unix milliseconds.
    pub(super) until_ms: Option<u64>,
}

impl Stored {
    /// When the secret is no longer valid, in unix milliseconds; `None` if it does not expire.
    pub(super) fn end_ms(&self) -> Option<u64> {
        self.expires_ms.into_iter().chain(self.until_ms).min()
    }

    pub(super) fn is_valid(&self, now_ms: u64) -> bool {
        self.end_ms().is_none_or(|end| now_ms < end)
    }
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
    fn a_token_confined_to_tenants_is_rejected_by_others() {
        let mut caller = Caller::named("a".to_owned(), vec![Scope::Publish], None);
        assert!(caller.may_use("5") && caller.tenants().is_none());
        caller.grant.tenants = Some(vec!["5".to_owned()]);
        assert!(caller.may_use("5") && !caller.may_use("55") && !caller.may_use(""));
        assert!(Caller::root().may_use("5"));
    }

    #[test]
    fn a_token_of_some_machines_does_not_reach_others() {
        let mut caller = Caller::named("a".to_owned(), vec![Scope::Facts], None);
        assert!(caller.may_use_machine("drip"));
        caller.grant.machines = Some(vec!["drip".to_owned()]);
        assert!(caller.may_use_machine("drip") && !caller.may_use_machine("dripping"));
        assert!(Caller::root().may_use_machine("drip"));
    }

    #[test]
    fn a_machine_touches_its_hosts_and_owns_its_instances() {
        let pattern = |name: &str| HostPattern::new(host(name));
        let hosts = || vec![pattern("*.a.example")];
        let of = |author: &Caller| {
            Caller::of_machine("canary", &Author::of(author), hosts(), "machine:canary:".to_owned())
        };
        let caller = of(&Caller::root());
        assert!(caller.may_touch(&host("x.a.example")) && !caller.may_touch(&host("b.example")));
        assert!(caller.may_own("machine:canary:18-1") && !caller.may_own("machine:other:18-1"));
        assert!(!caller.is_root() && !caller.is_unconfined() && Caller::root().may_own("bank-1"));
        assert_eq!((&*caller.name, &*caller.bus_client()), ("machine:canary", "@machine:canary"));
        assert!(caller.may_touch_pattern(&pattern("*.b.a.example")));
        for wider in ["*", "*.example", "a.example"] {
            assert!(!caller.may_touch_pattern(&pattern(wider)), "{wider}");
        }
        // The definition's hosts and the author's both apply, and so do the author's other lists.
        let mut author =
            Caller::named("team".to_owned(), vec![Scope::Routes], Some(vec![pattern("x.a.example")]));
        author.grant.version_types = Some(vec!["a-*".to_owned()]);
        let caller = of(&author);
        assert!(caller.may_touch(&host("x.a.example")) && !caller.may_touch(&host("y.a.example")));
        assert!(caller.may_count_as("a-1") && !caller.may_count_as("shop-7"));
        assert_eq!(&*caller.bus_client(), "@team", "instances are counted for the author");
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
