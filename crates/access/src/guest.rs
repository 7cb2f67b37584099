//! Tokens that another room keeps, as far as the sidecars have to know them.

use std::{fmt, sync::Arc};

use super::{Scope, model::Stored};

/// A token of another room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    pub token: String,
    pub name: String,
    pub scopes: Vec<Scope>,
}

impl Guest {
    /// What the sidecars get, as of a token of this room.
    pub(super) fn record(&self) -> Stored {
        Stored { name: self.name.clone(), scopes: self.scopes.clone(), hosts: None, environments: None }
    }
}

type Ask = dyn Fn() -> Option<Vec<Guest>> + Send + Sync;

/// Asks for all of them; nothing while they are not known.
#[derive(Clone)]
pub struct Guests(Arc<Ask>);

impl Guests {
    pub fn new(ask: impl Fn() -> Option<Vec<Guest>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    pub(super) fn nobody() -> Self {
        Self::new(|| Some(Vec::new()))
    }

    pub(super) fn all(&self) -> Option<Vec<Guest>> {
        (self.0)()
    }
}

impl fmt::Debug for Guests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guests").finish_non_exhaustive()
    }
}
