//! The fabric: the desired state of the route table, and what pacemakers share among themselves.
//!
//! What stands beside it in every shard has files of its own: [`super::bus`], [`super::queues`], [`super::objects`],
//! [`super::machines`].

use super::{Entry, row};
use crate::{FabricSpace, Key};

/// The rows of `docs/keys.md` for this server.
pub const CATALOG: &[Entry] = &[
    row("routes:instances", "hash", "for ever"),
    row("routes:instances:index", "zset", "for ever"),
    row("routes:addresses", "hash", "while an instance is registered there"),
    row("routes:hosts", "hash", "until the host is deleted"),
    row("routes:hosts:index", "zset", "until the host is deleted"),
    row("routes:policies", "hash", "until the policy or its host is deleted"),
    row("routes:certificates", "hash", "until the certificate is deleted"),
    row("routes:certificates:index", "zset", "until the certificate is deleted"),
    row("routes:certificates:ends", "zset", "until the certificate is deleted"),
    row("routes:certificates:told", "hash", "until the certificate is deleted"),
    row("routes:revision", "string", "for ever"),
    row("routes:unprojected", "zset", "while changes wait"),
    row("routes:unreported", "zset", "while registrations wait"),
    row("routes:table", "hash", "for ever"),
    row("routes:alarms:told", "hash", "30 days after the last"),
    row("routes:announced", "hash", "for ever"),
    row("tokens", "hash", "for ever"),
    row("tokens:names", "hash", "for ever"),
    row("pacemakers", "hash", "for ever, members for 30 s of silence"),
    row("duty:<name>", "hash", "for ever"),
];

/// HASH: instance id → its desired state as JSON.
pub fn routes_instances() -> Key<FabricSpace> {
    Key::new("routes:instances")
}

/// ZSET of the ids in `routes:instances`, all of score 0, for reading them in order.
pub fn routes_instances_index() -> Key<FabricSpace> {
    Key::new("routes:instances:index")
}

/// HASH: address → id of the one instance that owns it.
pub fn routes_addresses() -> Key<FabricSpace> {
    Key::new("routes:addresses")
}

/// HASH: host name → the version type last registered for it. A name stays when its last instance goes.
pub fn routes_hosts() -> Key<FabricSpace> {
    Key::new("routes:hosts")
}

/// ZSET of the names in `routes:hosts`, all of score 0, for reading them in order.
pub fn routes_hosts_index() -> Key<FabricSpace> {
    Key::new("routes:hosts:index")
}

/// INTEGER that rises with every change of the desired state.
pub fn routes_revision() -> Key<FabricSpace> {
    Key::new("routes:revision")
}

/// ZSET of what was changed here and is not known to stand on the routes master yet, by revision: instance ids, and
/// host names behind an `@`.
pub fn routes_unprojected() -> Key<FabricSpace> {
    Key::new("routes:unprojected")
}

/// ZSET of instance ids that are not known to stand in the membership sets of the statistics yet, by revision.
pub fn routes_unreported() -> Key<FabricSpace> {
    Key::new("routes:unreported")
}

/// HASH: `epoch` (lineage) and highest `serial` that the routes master was given, and in `seeding` a token of the
/// lineage that it has yet to get.
pub fn routes_table() -> Key<FabricSpace> {
    Key::new("routes:table")
}

/// HASH: host name → the policy that is wanted of it, as JSON with its revision.
pub fn routes_policies() -> Key<FabricSpace> {
    Key::new("routes:policies")
}

/// HASH: server name → the certificate that is wanted for it, its private key encrypted, as JSON with revision and end.
pub fn routes_certificates() -> Key<FabricSpace> {
    Key::new("routes:certificates")
}

/// ZSET of the server names that have a certificate, all of score 0: they sort by name.
pub fn routes_certificates_index() -> Key<FabricSpace> {
    Key::new("routes:certificates:index")
}

/// ZSET of server names by the end of their certificate, in unix seconds.
pub fn routes_certificates_ends() -> Key<FabricSpace> {
    Key::new("routes:certificates:ends")
}

/// HASH: server name → what was told of its certificate's end: that end, and the days that were left.
pub fn routes_certificates_told() -> Key<FabricSpace> {
    Key::new("routes:certificates:told")
}

/// HASH: router → what was told last of it: how often anything was told, and the alarm, `silent` or `-`.
pub fn routes_alarms_told() -> Key<FabricSpace> {
    Key::new("routes:alarms:told")
}

/// HASH: up to where the table's changes were told as events: `epoch`, `serial`, and `entry` of the list of changes.
pub fn routes_announced() -> Key<FabricSpace> {
    Key::new("routes:announced")
}

/// HASH: SHA-256 of a token in hexadecimal → its name, scopes and host patterns as JSON.
pub fn tokens() -> Key<FabricSpace> {
    Key::new("tokens")
}

/// HASH: token name → SHA-256 of the token in hexadecimal.
pub fn token_names() -> Key<FabricSpace> {
    Key::new("tokens:names")
}

/// HASH: pacemaker → when it last said that it serves (unix ms, this server's clock) and its version, a space between.
pub fn pacemakers() -> Key<FabricSpace> {
    Key::new("pacemakers")
}

/// HASH: who holds a singleton duty (`holder`), until when (`until_ms`, this server's clock), and the fencing `epoch`.
pub fn duty(name: &str) -> Key<FabricSpace> {
    Key::new(format!("duty:{name}"))
}
