//! The fabric: the desired state of the route table, and the shared state of pacemakers.
//!
//! Keys that exist in every shard are in [`super::bus`], [`super::queues`], [`super::objects`] and [`super::machines`].

use super::{Entry, row};
use crate::{FabricSpace, Key};

/// The rows of `docs/keys.md` for this server.
pub const CATALOG: &[Entry] = &[
    row("routes:instances", "hash", "no expiry"),
    row("routes:instances:index", "zset", "no expiry"),
    row("routes:addresses", "hash", "while an instance is registered there"),
    row("routes:registrants", "hash", "while an instance is registered"),
    row("routes:registrants:count", "hash", "while the token has instances"),
    row("routes:hosts", "hash", "until the host is deleted"),
    row("routes:hosts:index", "zset", "until the host is deleted"),
    row("routes:policies", "hash", "until the policy or its host is deleted"),
    row("routes:certificates", "hash", "until the certificate is deleted"),
    row("routes:certificates:index", "zset", "until the certificate is deleted"),
    row("routes:certificates:ends", "zset", "until the certificate is deleted"),
    row("routes:certificates:published", "hash", "until the certificate is deleted"),
    row("acme:names", "hash", "while the name has automatic HTTPS"),
    row("acme:index", "zset", "while the name has automatic HTTPS"),
    row("acme:due", "zset", "while the name has automatic HTTPS"),
    row("acme:fences", "hash", "while the name has automatic HTTPS"),
    row("acme:fence", "string", "no expiry"),
    row("acme:accounts", "hash", "no expiry"),
    row("acme:budget:<purpose>", "string", "an hour"),
    row("routes:revision", "string", "no expiry"),
    row("routes:unprojected", "zset", "while changes wait"),
    row("routes:unreported", "zset", "while registrations wait"),
    row("routes:table", "hash", "no expiry"),
    row("routes:alarms:published", "hash", "30 days after the last"),
    row("routes:announced", "hash", "no expiry"),
    row("tokens", "hash", "no expiry"),
    row("tokens:names", "hash", "no expiry"),
    row("tokens:used", "hash", "no expiry"),
    row("session:<digest>", "string", "12 hours, or until the log-out"),
    row("sessions", "string", "no expiry"),
    row("cursors", "string", "no expiry"),
    row("audit", "stream", "no expiry, about the latest audit.records"),
    row("audit:refused", "stream", "no expiry, about the latest 10,000"),
    row("pacemakers", "hash", "no expiry, members for 30 s of silence"),
    row("lease:<name>", "hash", "no expiry"),
];

/// HASH: instance id → its desired state as JSON.
pub fn routes_instances() -> Key<FabricSpace> {
    Key::new("routes:instances")
}

/// ZSET of the ids in `routes:instances`, all with score 0, for reading them in order.
pub fn routes_instances_index() -> Key<FabricSpace> {
    Key::new("routes:instances:index")
}

/// HASH: address → ID of the instance that owns it.
pub fn routes_addresses() -> Key<FabricSpace> {
    Key::new("routes:addresses")
}

/// HASH: instance ID → the token that registered it.
pub fn routes_registrants() -> Key<FabricSpace> {
    Key::new("routes:registrants")
}

/// HASH: token → the number of its instances in `routes:registrants`.
pub fn routes_registrants_count() -> Key<FabricSpace> {
    Key::new("routes:registrants:count")
}

/// HASH: host name → the version type last registered for it. A name remains after its last instance is removed.
pub fn routes_hosts() -> Key<FabricSpace> {
    Key::new("routes:hosts")
}

/// ZSET of the names in `routes:hosts`, all with score 0, for reading them in order.
pub fn routes_hosts_index() -> Key<FabricSpace> {
    Key::new("routes:hosts:index")
}

/// INTEGER that rises with every change of the desired state.
pub fn routes_revision() -> Key<FabricSpace> {
    Key::new("routes:revision")
}

/// ZSET of changes that may not be on the routes primary yet, by revision: instance IDs, and host names after an `@`.
pub fn routes_unprojected() -> Key<FabricSpace> {
    Key::new("routes:unprojected")
}

/// ZSET of instance IDs that may not be in the membership sets of the statistics yet, by revision.
pub fn routes_unreported() -> Key<FabricSpace> {
    Key::new("routes:unreported")
}

/// HASH: `epoch` (lineage) and highest `serial` that was written to the routes primary, and in `seeding` the token of the
/// lineage that it will get.
pub fn routes_table() -> Key<FabricSpace> {
    Key::new("routes:table")
}

/// HASH: host name → its desired policy, as JSON with its revision.
pub fn routes_policies() -> Key<FabricSpace> {
    Key::new("routes:policies")
}

/// HASH: server name → its desired certificate with an encrypted private key, as JSON with revision and expiry.
pub fn routes_certificates() -> Key<FabricSpace> {
    Key::new("routes:certificates")
}

/// ZSET of the server names that have a certificate, all with score 0, so that they sort by name.
pub fn routes_certificates_index() -> Key<FabricSpace> {
    Key::new("routes:certificates:index")
}

/// ZSET of server names by the expiry of their certificate, in unix seconds.
pub fn routes_certificates_ends() -> Key<FabricSpace> {
    Key::new("routes:certificates:ends")
}

/// HASH: server name → the published expiry of its certificate, and the days that were left.
pub fn routes_certificates_published() -> Key<FabricSpace> {
    Key::new("routes:certificates:published")
}

/// HASH: server name → the state of its automatic certificate as JSON, with the private key of an open order encrypted.
pub fn acme_names() -> Key<FabricSpace> {
    Key::new("acme:names")
}

/// ZSET of the names in `acme:names`, all with score 0, for reading them in order.
pub fn acme_index() -> Key<FabricSpace> {
    Key::new("acme:index")
}

/// ZSET of server names by the time of their next step, in unix milliseconds. A name that a pacemaker works on has the end
/// of its claim.
pub fn acme_due() -> Key<FabricSpace> {
    Key::new("acme:due")
}

/// HASH: server name → the fencing token of its latest claim.
pub fn acme_fences() -> Key<FabricSpace> {
    Key::new("acme:fences")
}

/// INTEGER: the latest fencing token.
pub fn acme_fence() -> Key<FabricSpace> {
    Key::new("acme:fence")
}

/// HASH: URL of an ACME directory → credentials of the account there, encrypted.
pub fn acme_accounts() -> Key<FabricSpace> {
    Key::new("acme:accounts")
}

/// INTEGER: orders in the current hour, which begins with the first of them. `purpose` is `orders` or
/// `asked`.
pub fn acme_budget(purpose: &str) -> Key<FabricSpace> {
    Key::new(format!("acme:budget:{purpose}"))
}

/// HASH: router → its last published alarm: a sequence number, and the alarm, `silent` or `-`.
pub fn routes_alarms_published() -> Key<FabricSpace> {
    Key::new("routes:alarms:published")
}

/// HASH: the last change of the table that was published as an event: `epoch`, `serial`, and `entry` of the stream.
pub fn routes_announced() -> Key<FabricSpace> {
    Key::new("routes:announced")
}

/// HASH: SHA-256 of a token in hexadecimal → its name, scopes and host patterns as JSON.
pub fn tokens() -> Key<FabricSpace> {
    Key::new("tokens")
}

/// HASH: token name → SHA-256 of its secrets in hexadecimal, newest first, separated by spaces.
pub fn token_names() -> Key<FabricSpace> {
    Key::new("tokens:names")
}

/// HASH: token name, `root`, or `~` and a client of the event bus → when it was last used (unix ms).
pub fn token_uses() -> Key<FabricSpace> {
    Key::new("tokens:used")
}

/// STRING: SHA-256 of the token with which a browser's session was opened. `digest` is the SHA-256 of the session's secret.
pub fn session(digest: &str) -> Key<FabricSpace> {
    Key::new(format!("session:{digest}"))
}

/// STRING: the random name of this system in the name of its cookie.
pub fn session_system() -> Key<FabricSpace> {
    Key::new("sessions")
}

/// STRING: the secret that encrypts cursors of confined tokens.
pub fn cursor_secret() -> Key<FabricSpace> {
    Key::new("cursors")
}

/// STREAM: changes with their authors, and log-ins, each as JSON in the field `record`.
pub fn audit() -> Key<FabricSpace> {
    Key::new("audit")
}

/// STREAM: rejected calls and log-ins, each as JSON in the field `record`. It is separate, because anyone can
/// cause rejections, and they must not displace changes.
/// displace changes.
pub fn audit_refused() -> Key<FabricSpace> {
    Key::new("audit:refused")
}

/// HASH: pacemaker → its last report (unix ms, this server's clock) and its version, separated by a space.
pub fn pacemakers() -> Key<FabricSpace> {
    Key::new("pacemakers")
}

/// HASH: the holder of a singleton task (`holder`), the end of its lease (`until_ms`, this server's clock), and the fencing
/// `epoch`.
pub fn lease(name: &str) -> Key<FabricSpace> {
    Key::new(format!("lease:{name}"))
}
