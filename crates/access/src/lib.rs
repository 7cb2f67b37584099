//! API tokens and what they allow.
//!
//! The root token comes from the configuration and is compared in constant time. All others have a name, scopes and,
//! optionally, host patterns that confine them to part of the route table. Only the SHA-256 of a token is stored. Tokens
//! are random, so a slow hash would protect nothing and slow down every request.
//!
//! **Data.** Fabric `tokens` HASH digest → JSON, and `tokens:names` HASH name → digest; written together by a script.
//! Stats `tokens` HASH is a copy for the sidecars, which do not reach the fabric. It is written after the fabric and
//! compared by the reconciler, so a revoked token can read statistics while the stats Redis is unavailable. The copy
//! also holds the digests of the event bus's tokens ([`ExternalTokens`]), which may read statistics if they have the scope.
//!
//! **Failure.** Each request looks up its token in the fabric, so a revocation takes effect with the next request on
//! every pacemaker. While the fabric is unavailable, only the root token is accepted.

mod external;
mod model;
mod store;

pub use external::{ExternalToken, ExternalTokens};
pub use model::{Caller, HostPattern};
pub use signalbox_api::tokens::Scope;
pub use store::{Created, Error, Listed, Tokens, digest};

#[cfg(test)]
mod tests;
