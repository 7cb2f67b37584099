//! API tokens and what they allow.
//!
//! The root token comes from the configuration and is compared in constant time. All other tokens have a name, scopes
//! and, optionally, host patterns that confine them to part of the route table. Only the SHA-256 of a token is stored.
//! Tokens are random, so a slow hash would protect nothing and slow down every request.
//!
//! **Data.** Fabric `tokens` HASH digest → JSON, and `tokens:names` HASH name → digests; written together by a script.
//! Stats `tokens` HASH is a copy for the sidecars, which cannot connect to the fabric. It is written after the fabric,
//! and the reconciler repairs differences. So if the stats Redis is unavailable during a revocation, the token can read
//! statistics until the next repair. The copy has no digest of the event bus's tokens: clients choose these, so a router that
//! was taken over could guess them.
//!
//! `tokens:used` HASH name → last use is written every half minute from memory, never by a request.
//!
//! **Secrets.** A token can have several secrets. All but the newest expire at the time that the rotation has set.
//! Topics and subscriptions belong to the token's name, so a rotation does not affect them.
//!
//! **State machines** act with the permissions of the token that applied their definition ([`Author`]). One rule decides for them and
//! for the API ([`Caller::may`]).
//!
//! **Browsers** have a session instead of a token ([`Sessions`]). The **audit log** records who changed what
//! ([`AuditLog`]).
//!
//! **Failure.** A valid token is cached for a second. So a revocation takes effect immediately on the pacemaker that
//! executes it, and within a second on the others. While the fabric is unavailable, only the root token and cached
//! tokens are accepted.

mod author;
mod cache;
pub mod confinement;
mod model;
mod rates;
mod store;

pub use author::{Author, Denied, Effect};
pub use confinement::Dimension;
pub use model::{Caller, Grant, HostPattern};
pub use rates::{RateReached, Rates};
pub use signalbox_api::tokens::Scope;
pub use store::{
    AuditLog, Cursor, Direction, Error, MAX_SECRETS, Page, Rotated, Sessions, SharedSecret, Tokens, digest,
};

#[cfg(test)]
mod tests;
