//! API tokens and what they allow.
//!
//! The root token comes from the configuration and is compared in constant time. All others have a name, scopes and,
//! optionally, host patterns that confine them to part of the route table. Only the SHA-256 of a token is stored. Tokens
//! are random, so a slow hash would protect nothing and slow down every request.
//!
//! **Data.** Fabric `tokens` HASH digest → JSON, and `tokens:names` HASH name → digests; written together by a script.
//! Stats `tokens` HASH is a copy for the sidecars, which do not reach the fabric. It is written after the fabric and
//! compared by the reconciler, so a revoked token can read statistics while the stats Redis is unavailable. The copy
//! also holds the digests of the event bus's tokens ([`ExternalTokens`]), which may read statistics if they have the scope.
//!
//! `tokens:used` HASH name → last use is written every half minute from memory, never by a request.
//!
//! **Secrets.** A token can have several secrets, of which all but the newest end at a time that a rotation has set. What
//! belongs to the token (topics, subscriptions) belongs to its name, so a rotation does not touch it.
//!
//! **Browsers** have a session instead of a token ([`Sessions`]). The **audit log** records who changed what ([`AuditLog`]).
//!
//! **Failure.** A valid token is remembered for a second. So a revocation takes effect immediately on the pacemaker that
//! executes it, and within a second on the others. While the fabric is unavailable, only the root token and tokens of the
//! second before are accepted.

mod cache;
pub mod confinement;
mod external;
mod model;
mod store;

pub use confinement::Dimension;
pub use external::{ExternalToken, ExternalTokens};
pub use model::{Caller, HostPattern};
pub use signalbox_api::tokens::Scope;
pub use store::{
    AuditLog, Created, Cursor, Direction, Error, Listed, MAX_SECRETS, Page, Rotated, Sessions, Tokens,
    Wanted, digest,
};

#[cfg(test)]
mod tests;
