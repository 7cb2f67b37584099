//! Tokens of another subsystem, which the sidecars need to know.

use std::{fmt, sync::Arc};

use super::{
    Scope,
    model::{Grant, Stored},
};

/// A token of another subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalToken {
    /// The SHA-256 of the token in hexadecimal.
    pub digest: String,
    /// The name of its owner.
    pub name: String,
    /// The permissions of the token.
    pub scopes: Vec<Scope>,
}

impl ExternalToken {
    /// The record that the sidecars get, of the same form as that of a stored token.
    pub(super) fn record(&self) -> Stored {
        let grant = Grant { scopes: self.scopes.clone(), ..Grant::default() };
        Stored { name: self.name.clone(), grant, ..Stored::default() }
    }
}

type Ask = dyn Fn() -> Option<Vec<ExternalToken>> + Send + Sync;

/// Returns all external tokens, or `None` while they are unknown.
#[derive(Clone)]
pub struct ExternalTokens(Arc<Ask>);

impl ExternalTokens {
    /// `ask` returns all external tokens, or `None` while they are unknown.
    pub fn new(ask: impl Fn() -> Option<Vec<ExternalToken>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    pub(super) fn none() -> Self {
        Self::new(|| Some(Vec::new()))
    }

    pub(super) fn all(&self) -> Option<Vec<ExternalToken>> {
        (self.0)()
    }
}

impl fmt::Debug for ExternalTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalTokens").finish_non_exhaustive()
    }
}
