//! Tokens: who may do what.
//!
//! The root token comes from the configuration and is compared in constant time. All others have a name, scopes and,
//! if wanted, host patterns that confine them to part of the route table. Of a token only its SHA-256 is stored: it is
//! random, so a slow hash would protect nothing and cost every request.
//!
//! **Data.** Fabric `tokens` HASH digest → JSON, and `tokens:names` HASH name → digest; written together by a script.
//! Stats `tokens` HASH is a copy for the sidecars, which do not reach the fabric. It is written after the fabric and
//! compared by the reconciler, so a revoked token can read statistics for as long as the stats Redis is away. The copy
//! also holds the digests of the event bus' tokens ([`Guests`]), which open the statistics if they have the scope.
//!
//! **Failure.** Each request looks its token up in the fabric, so revoking one takes effect with the next request on
//! every pacemaker. While the fabric is away only root gets in; without the fabric little could be done anyway.

mod guest;
mod model;
pub mod store;

pub use guest::{Guest, Guests};
pub use model::{Caller, HostPattern};
pub use signalbox_api::tokens::Scope;
pub use store::{Error, Tokens, digest};

#[cfg(test)]
mod tests;
