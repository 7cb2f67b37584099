//! API tokens.

use serde::{Deserialize, Serialize};

use crate::{Time, words::words};

/// A kind of permission. Root has all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Register, drain and remove instances.
    Routes,
    /// Publish events.
    Publish,
    /// Subscribe to events.
    Subscribe,
    /// Use queues.
    Queues,
    /// Report facts to state machines.
    Facts,
    /// Define state machines.
    Machines,
    /// Read routes, statistics and the dashboard.
    Read,
    /// Read the audit log.
    Audit,
}

words!(Scope {
    Routes: "routes",
    Publish: "publish",
    Subscribe: "subscribe",
    Queues: "queues",
    Facts: "facts",
    Machines: "machines",
    Read: "read",
    Audit: "audit",
});

impl AsRef<str> for Scope {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

/// The lists that confine a token.
pub const LISTS: [&str; 4] = ["hosts", "tenants", "machines", "version_types"];

/// Whether a token reads statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatisticsAccess {
    /// It does.
    Open,
    /// It does not have the scope `read`.
    WithoutRead,
    /// It has the scope, but also the list of this name.
    Confined(&'static str),
}

/// Decides whether a token with these scopes reads statistics; `has_list` returns whether it has one of [`LISTS`]. Statistics are counted by
/// version type, and by groups of them, across hosts and tenants. They cannot be divided between tenants, so a token with any
/// list reads none: neither from the sidecar nor through the feed of a state machine.
pub fn statistics_access<'a>(
    mut scopes: impl Iterator<Item = &'a str>,
    has_list: impl Fn(&str) -> bool,
) -> StatisticsAccess {
    if !scopes.any(|scope| scope == Scope::Read.as_str()) {
        return StatisticsAccess::WithoutRead;
    }
    LISTS.into_iter().find(|list| has_list(list)).map_or(StatisticsAccess::Open, StatisticsAccess::Confined)
}

/// A token to be created.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// `[a-z0-9:_-]{1,64}`, not `root` or `file`, and not beginning with `machine:`.
    #[cfg_attr(feature = "schema", schema(example = "deployer"))]
    pub name: String,
    /// At least one.
    pub scopes: Vec<Scope>,
    /// Confine the token to these hosts: `shop.example`, or `*.shop.example` for everything below.
    pub hosts: Option<Vec<String>>,
    /// Confine the token to messages of these tenants.
    pub tenants: Option<Vec<String>>,
    /// Confine the token to these state machines.
    pub machines: Option<Vec<String>>,
    /// Let the token register instances under these version types only: `shop-1`, or `shop-*` for all that begin with `shop-`.
    pub version_types: Option<Vec<String>>,
    /// When the token expires. Without it, the token does not expire.
    pub expires_at: Option<Time>,
}

/// A new secret for a token.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = TokenRotation))]
#[serde(deny_unknown_fields)]
pub struct Rotation {
    /// For how many seconds the secrets before stay valid, up to 30 days; 0 ends them immediately. An hour if absent.
    pub overlap_seconds: Option<u64>,
    /// When the new secret expires. As the secret before if absent.
    pub expires_at: Option<Time>,
}

/// A token; the token itself is shown only when it is created.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = TokenView))]
pub struct Token {
    /// Its name.
    pub name: String,
    /// Its permissions.
    pub scopes: Vec<Scope>,
    /// The hosts that it is confined to.
    pub hosts: Option<Vec<String>>,
    /// The tenants that it is confined to.
    pub tenants: Option<Vec<String>>,
    /// The state machines that it is confined to.
    pub machines: Option<Vec<String>>,
    /// The version types under which it registers instances.
    pub version_types: Option<Vec<String>>,
    /// When its newest secret was created.
    pub created_at: Time,
    /// When it expires.
    pub expires_at: Option<Time>,
    /// When it was last used, to about two minutes.
    pub last_used_at: Option<Time>,
    /// When each secret that a rotation has replaced ends; absent if no such secret is valid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced_until: Vec<Time>,
    /// The secret that clients send.
    pub token: Option<String>,
}

/// Tokens.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TokenList {
    /// The tokens, without their secrets.
    pub tokens: Vec<Token>,
    /// The cursor of the next page; absent on the last one.
    pub next: Option<String>,
    /// How many items match the search, on all pages together; absent if they were not counted.
    pub total: Option<u64>,
}
