//! The kinds of confinement of a token, and the scopes that each can confine. Pure.
//!
//! A confined token reaches only data that belongs to one of the hosts or tenants of its list. Data that belongs to
//! neither cannot be divided between tenants, so a confined token does not reach it at all. Two places keep this rule: a
//! token whose scope could never be confined is not created ([`check`]), and a handler states in its signature which
//! dimension its data belongs to (`crates/admin-api/src/http/auth.rs`).

use std::fmt;

use signalbox_api::tokens::Scope;

use super::Caller;

/// A way to divide data between tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dimension {
    /// The route table, by host name.
    Hosts,
    /// Events and messages, by tenant.
    Tenants,
    /// Labels and definitions, by state machine.
    Machines,
}

impl Dimension {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Hosts, Self::Tenants, Self::Machines];

    /// The name of the list in a token.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hosts => "hosts",
            Self::Tenants => "tenants",
            Self::Machines => "machines",
        }
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl Caller {
    /// Whether the caller's token has a list for this dimension.
    pub(crate) fn is_confined_to(&self, dimension: Dimension) -> bool {
        match dimension {
            Dimension::Hosts => !self.is_unconfined(),
            Dimension::Tenants => self.tenants().is_some(),
            Dimension::Machines => self.grant.machines.is_some(),
        }
    }

    /// The confinement of the caller's token; empty if it reaches the data of every tenant.
    pub fn confinement(&self) -> Vec<Dimension> {
        Dimension::ALL.into_iter().filter(|dimension| self.is_confined_to(*dimension)).collect()
    }

    /// Whether the caller may access data that is divided by `dimension`, as far as its list allows. A token that is confined
    /// in another way only would see the data of every tenant here.
    pub fn may_enter(&self, dimension: Dimension) -> bool {
        self.is_confined_to(dimension) || self.confinement().is_empty()
    }
}

/// A scope that cannot be confined as requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unconfinable {
    /// The scope.
    pub scope: Scope,
}

impl fmt::Display for Unconfinable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scope = self.scope.as_str();
        match confined_by(self.scope) {
            [] => write!(
                formatter,
                "the scope {scope} reaches data of every tenant and cannot be confined; create a separate token for it"
            ),
            dimensions => {
                let lists: Vec<&str> = dimensions.iter().map(|dimension| dimension.as_str()).collect();
                let lists = lists.join(" or ");
                write!(
                    formatter,
                    "the scope {scope} can be confined only by {lists}; add {lists}, or create a separate token for it"
                )
            }
        }
    }
}

/// The dimensions that the data of a scope is divided by.
fn confined_by(scope: Scope) -> &'static [Dimension] {
    match scope {
        Scope::Routes => &[Dimension::Hosts],
        Scope::Publish | Scope::Queues | Scope::Subscribe => &[Dimension::Tenants],
        Scope::Read => &Dimension::ALL,
        Scope::Facts | Scope::Machines => &[Dimension::Machines],
        Scope::Audit => &[],
    }
}

/// Checks that every scope of a token can be confined by at least one of its lists, so that no scope of a confined token
/// reaches the data of every tenant.
///
/// # Errors
/// The first scope that cannot.
pub fn check(scopes: &[Scope], confinement: &[Dimension]) -> Result<(), Unconfinable> {
    let fits = |scope: &Scope| confined_by(*scope).iter().any(|dimension| confinement.contains(dimension));
    match scopes.iter().find(|scope| !confinement.is_empty() && !fits(scope)) {
        Some(scope) => Err(Unconfinable { scope: *scope }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use signalbox_route_table::Hostname;

    use super::*;
    use crate::HostPattern;

    #[test]
    fn every_scope_of_a_confined_token_is_confined_by_one_of_its_lists() {
        use Dimension::{Hosts, Machines, Tenants};
        assert_eq!(check(Scope::ALL, &[]), Ok(()), "a token that is not confined has any scopes");
        for (scopes, confinement, wrong) in [
            (&[Scope::Routes, Scope::Read][..], &[Hosts][..], None),
            (&[Scope::Publish, Scope::Queues, Scope::Read], &[Tenants], None),
            (&[Scope::Routes, Scope::Publish], &[Hosts, Tenants], None),
            (&[Scope::Routes, Scope::Publish], &[Hosts], Some(Scope::Publish)),
            (&[Scope::Routes], &[Tenants], Some(Scope::Routes)),
            (&[Scope::Read, Scope::Subscribe], &[Tenants], None),
            (&[Scope::Read, Scope::Subscribe], &[Hosts], Some(Scope::Subscribe)),
            (&[Scope::Read, Scope::Audit], &Dimension::ALL, Some(Scope::Audit)),
            (&[Scope::Facts], &[Hosts, Tenants], Some(Scope::Facts)),
            (&[Scope::Machines], &[Hosts], Some(Scope::Machines)),
            (&[Scope::Machines, Scope::Facts, Scope::Read], &[Machines], None),
        ] {
            let found = check(scopes, confinement).err().map(|error| error.scope);
            assert_eq!(found, wrong, "{scopes:?} {confinement:?}");
        }
        let error = check(&[Scope::Queues], &[Hosts]).unwrap_err().to_string();
        assert!(error.contains("only by tenants"), "{error}");
    }

    #[test]
    fn a_confined_caller_enters_only_subsystems_that_its_lists_divide() {
        let hosts = Some(vec![HostPattern::new(Hostname::parse("*.a.example").unwrap())]);
        let of_hosts = Caller::named("a".to_owned(), vec![Scope::Read], hosts);
        assert!(of_hosts.may_enter(Dimension::Hosts) && !of_hosts.may_enter(Dimension::Tenants));
        assert_eq!(of_hosts.confinement(), [Dimension::Hosts]);
        let mut both = of_hosts;
        both.grant.tenants = Some(vec!["5".to_owned()]);
        assert!(both.may_enter(Dimension::Tenants) && !both.may_enter(Dimension::Machines));
        let mut all = both;
        all.grant.machines = Some(vec!["drip".to_owned()]);
        assert!(Dimension::ALL.into_iter().all(|dimension| all.may_enter(dimension)));
        assert!(Caller::root().confinement().is_empty() && Caller::root().may_enter(Dimension::Hosts));
    }
}
