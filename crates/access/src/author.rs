//! What a state machine may do: never more than the token that applied its definition. Pure.
//!
//! A machine is another door to effects that the API has as well. So the same rules decide about both: [`Caller::may`] about the
//! kind of effect, and the route table's own checks about hosts, version types and instances, with a [`Caller`] that has the
//! author's permissions ([`Caller::of_machine`]). The permissions are stored with each version of a definition, as they were
//! when it was applied, because a token can be revoked, and its name used again.

use std::fmt;

use serde::{Deserialize, Serialize};

use signalbox_api::tokens::{Scope, StatisticsAccess, statistics_access};

use super::{
    Dimension,
    model::{Caller, Grant},
};

/// A kind of effect that a state machine can have, and that needs a permission in the API as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Change the route table.
    ChangeRoutes,
    /// Publish events without a tenant.
    Publish,
    /// Receive the events of every tenant.
    Listen,
    /// Read statistics of the edge.
    ReadStatistics,
}

impl Effect {
    /// The scope that the effect needs.
    pub fn scope(self) -> Scope {
        match self {
            Self::ChangeRoutes => Scope::Routes,
            Self::Publish => Scope::Publish,
            Self::Listen => Scope::Subscribe,
            Self::ReadStatistics => Scope::Read,
        }
    }
}

/// Why a caller may not have an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denied {
    /// The token does not have this scope.
    Scope(Scope),
    /// The token is confined by these lists, and the effect cannot be limited to them.
    Confined(Vec<&'static str>),
}

impl Denied {
    /// The code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Scope(_) => "scope_missing",
            Self::Confined(_) => "confined_token",
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scope(scope) => write!(formatter, "it needs the scope {}", scope.as_str()),
            Self::Confined(lists) => {
                write!(formatter, "it cannot be limited to the {} of the token", lists.join(" and "))
            }
        }
    }
}

impl Caller {
    /// Whether the caller may have an effect of this kind at all. Which hosts, version types and instances it reaches is
    /// decided where they are known.
    ///
    /// # Errors
    /// The scope or the confinement that forbids it.
    pub fn may(&self, effect: Effect) -> Result<(), Denied> {
        if !self.has_any(&[effect.scope()]) {
            return Err(Denied::Scope(effect.scope()));
        }
        let confined = match effect {
            Effect::ChangeRoutes if self.may_enter(Dimension::Hosts) => Vec::new(),
            // A confined token names a tenant of its own with each event.
            Effect::ChangeRoutes | Effect::Publish | Effect::Listen => {
                self.confinement().into_iter().map(Dimension::as_str).collect()
            }
            Effect::ReadStatistics => match self.statistics_access() {
                StatisticsAccess::Open | StatisticsAccess::WithoutRead => Vec::new(),
                StatisticsAccess::Confined(list) => vec![list],
            },
        };
        if confined.is_empty() { Ok(()) } else { Err(Denied::Confined(confined)) }
    }

    fn statistics_access(&self) -> StatisticsAccess {
        if self.is_root() {
            return StatisticsAccess::Open;
        }
        statistics_access(self.grant.scopes.iter().map(|scope| scope.as_str()), |list| {
            self.grant.has_list(list)
        })
    }
}

/// The token that applied a definition, with its permissions at that time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    /// The name of the token, or `root`; `file` for a definition in the folder of the configuration.
    #[serde(rename = "by")]
    pub name: String,
    /// The identity for which instances are counted; none for root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    #[serde(default)]
    root: bool,
    #[serde(default)]
    grant: Grant,
}

impl Author {
    /// The caller of a request that applies a definition.
    pub fn of(caller: &Caller) -> Self {
        let root = caller.is_root();
        Self {
            name: caller.name.clone(),
            client: (!root).then(|| caller.bus_client().into_owned()),
            root,
            grant: caller.grant.clone(),
        }
    }

    /// The operator who put a definition into the folder of the configuration, with the permissions of root.
    pub fn operator() -> Self {
        Self { name: "file".to_owned(), ..Self::of(&Caller::root()) }
    }

    /// The identity of the client that pays for what the machine does; none for root.
    pub fn client(&self) -> Option<&str> {
        self.client.as_deref()
    }

    /// The author as a caller.
    pub fn caller(&self) -> Caller {
        let mut caller =
            if self.root { Caller::root() } else { Caller::with(String::new(), self.grant.clone()) };
        caller.name.clone_from(&self.name);
        caller.bus_client.clone_from(&self.client);
        caller
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostPattern;
    use signalbox_api::tokens::LISTS;
    use signalbox_route_table::Hostname;

    const ALL: [Effect; 4] = [Effect::ChangeRoutes, Effect::Publish, Effect::Listen, Effect::ReadStatistics];

    fn with(list: &str) -> Caller {
        let names = || Some(vec!["x".to_owned()]);
        let grant = Grant { scopes: Scope::ALL.to_vec(), ..Grant::default() };
        let grant = match list {
            "hosts" => Grant { hosts: Some(vec![HostPattern::new(Hostname::parse("x").unwrap())]), ..grant },
            "tenants" => Grant { tenants: names(), ..grant },
            "machines" => Grant { machines: names(), ..grant },
            "version_types" => Grant { version_types: names(), ..grant },
            other => panic!("a list without a row: {other}"),
        };
        assert!(grant.has_list(list));
        Caller::with("a".to_owned(), grant)
    }

    #[test]
    fn every_effect_obeys_every_list_of_a_token() {
        for effect in ALL {
            assert_eq!(Caller::root().may(effect), Ok(()));
            let all = Caller::with("a".to_owned(), Grant { scopes: Scope::ALL.to_vec(), ..Grant::default() });
            assert_eq!(all.may(effect), Ok(()));
            assert_eq!(
                Caller::with("a".to_owned(), Grant::default()).may(effect),
                Err(Denied::Scope(effect.scope()))
            );
            for list in LISTS {
                let open = match effect {
                    // The route table checks names and version types.
                    Effect::ChangeRoutes => ["hosts", "version_types"].contains(&list),
                    // Events have no version type.
                    Effect::Publish | Effect::Listen => list == "version_types",
                    Effect::ReadStatistics => false,
                };
                let wanted = if open { Ok(()) } else { Err(Denied::Confined(vec![list])) };
                assert_eq!(with(list).may(effect), wanted, "{effect:?} {list}");
            }
        }
    }

    #[test]
    fn an_author_keeps_the_permissions_of_the_token() {
        for caller in [Caller::root(), with("hosts"), with("tenants"), with("version_types")] {
            let author = Author::of(&caller);
            let text = serde_json::to_string(&author).unwrap();
            let read: Author = serde_json::from_str(&text).unwrap();
            assert_eq!(read, author);
            let again = read.caller();
            assert_eq!(
                (again.is_root(), &again.grant, &again.name),
                (caller.is_root(), &caller.grant, &caller.name)
            );
            assert_eq!(again.bus_client(), caller.bus_client());
        }
        // A version that was stored without permissions has none.
        let old: Author = serde_json::from_str(r#"{"by":"root"}"#).unwrap();
        assert_eq!(old.caller().may(Effect::ChangeRoutes), Err(Denied::Scope(Scope::Routes)));
        assert_eq!(Author::operator().caller().may(Effect::ReadStatistics), Ok(()));
    }
}
