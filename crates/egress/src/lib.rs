//! Outgoing HTTP calls: webhooks, feeds and calls of backends.
//!
//! Clients of Signalbox choose the URLs, and the calls start inside the operator's network. Every connection therefore
//! goes to an address that was checked against the allowed networks ([`Client`]). Deliveries, and webhooks of state
//! machines that have a secret, are signed as Standard Webhooks 1.0 defines it ([`Secret`]). Requests of feeds are not
//! signed.
//!
//! A [`Budget`] limits how many calls a process makes at the same time, so that receivers that hang cannot use up its
//! file descriptors. Calls that this crate does not make (health checks, the ACME server) take their [`Place`] from it, too.

mod address;
mod answer;
mod budget;
mod client;
mod connections;
mod signature;
mod trust;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use address::{Lookup, system_lookup};
pub use signalbox_route_table::OwnAddresses;

pub use budget::{Budget, Calls, Limits, Owner, Place, destination, open_files};
pub use client::{Called, Client, Error, Options, Post};
pub use signature::{key as secret_key, new_secret};
pub use trust::client_config;

/// A signing secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    /// The secret as Standard Webhooks writes it: `whsec_…`.
    pub secret: String,
    /// Until when it signs, in unix milliseconds; without an expiry if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

/// The receiver's answer, for display.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answered {
    /// The HTTP status, if there was an answer.
    pub status: Option<u16>,
    /// The beginning of the body of an answer that is not a success.
    pub excerpt: Option<String>,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver accepted it (any 2xx).
    Delivered,
    /// The receiver did not accept it; the caller decides whether to retry.
    Failed {
        /// The reason for the dead letter and the log: a status, a timeout, a rejected address.
        why: String,
        /// The pause that the receiver requested (429, 503), at most an hour.
        retry_after: Option<Duration>,
    },
    /// The receiver is permanently gone (410).
    Gone,
}
