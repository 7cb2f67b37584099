//! Automatic HTTPS: certificates over ACME (RFC 8555), obtained and renewed.
//!
//! **Purpose.** A host with the policy `"tls": "auto"`, or one that `acme.hosts` covers, gets a certificate without an operator.
//! The certificate is ordered as soon as the host exists. It is renewed after two thirds of its validity period, or at the time
//! that the server suggests (ARI, RFC 9773). It is put into the route table like an uploaded one ([`signalbox_certificates`]).
//!
//! **Data.** Fabric: `acme:names` (name → state), `acme:index`, `acme:due` (names by the time of their next step),
//! `acme:fences` and `acme:fence` (claims), `acme:accounts` (directory → account, encrypted), `acme:orders` and `acme:checks` (budgets of the hour). Routes primary:
//! `challenge:<token>`, which every router answers below `/.well-known/acme-challenge/`.
//!
//! **Life of a name.** [`wanted`] compares the hosts with `acme:names`. [`service`] claims names whose next step is due, and
//! [`order`] performs the step. A claim is a lease of one name with a fencing token: one pacemaker works on a name at a time, and a
//! pacemaker that was suspended cannot store anything. An order is stored with its encrypted key before it is used, so another
//! pacemaker can complete it after a crash.
//!
//! **Invariants.** Each name has its own next step, so a name that fails or reaches a rate limit does not delay others. A
//! certificate in the table is replaced only by one that was checked. Nothing is ordered or requested during a handshake.
//!
//! **Failure.** ACME server unavailable: each name is retried with increasing delays, and its certificate stays. Fabric
//! unavailable: nothing is ordered; existing certificates are presented. No router: no validation is requested, because no router
//! would answer it.

mod account;
mod dns;
mod failure;
mod handle;
mod http;
mod metrics;
mod on_demand;
mod options;
mod order;
mod record;
mod schedule;
mod service;
mod store;
mod wanted;

use std::{collections::HashSet, time::SystemTime};

pub use handle::{Acme, Dependencies};
pub use metrics::Metrics;
pub use options::{Options, Pattern};
pub use service::Service;
pub use store::Error;

use signalbox_certificates::Certificates;
use signalbox_egress::Client;
use signalbox_routing::Routers;
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

/// The state that all parts of this crate share.
#[derive(Debug)]
struct Parts {
    options: Options,
    store: store::Store,
    certificates: Certificates,
    table: signalbox_routing::Store,
    routers: Routers,
    /// Calls the DNS webhook and the check URL.
    client: Client,
    clock: fn() -> SystemTime,
    metrics: Metrics,
    /// Names for which the check URL was called recently.
    asked: on_demand::Asked,
    /// Hosts whose unreadable policy was logged.
    unreadable: parking_lot::Mutex<HashSet<String>>,
    /// Ensures that one account is created at a time.
    creating: Mutex<()>,
    /// Notified when a name's next step may be due.
    nudge: Notify,
    shutdown: CancellationToken,
}
