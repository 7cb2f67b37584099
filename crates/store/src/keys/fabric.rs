//! The fabric: the desired state of the route table, and what pacemakers share among themselves.

use super::Entry;
use crate::{FabricSpace, Key};

/// The rows of `docs/keys.md` for this server.
pub const CATALOG: &[Entry] = &[
    Entry {
        pattern: "routes:instances",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:instances:index",
        kind: "zset",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:addresses",
        kind: "hash",
        lifetime: "while an instance is registered there",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:hosts",
        kind: "hash",
        lifetime: "until the host is deleted",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:hosts:index",
        kind: "zset",
        lifetime: "until the host is deleted",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:revision",
        kind: "string",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:unprojected",
        kind: "zset",
        lifetime: "while changes wait",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:unreported",
        kind: "zset",
        lifetime: "while registrations wait",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routes:table",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "tokens",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "tokens:names",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "duty:<name>",
        kind: "hash",
        lifetime: "for ever",
        writer: "pacemaker",
        readers: "pacemaker",
    },
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

/// HASH: SHA-256 of a token in hexadecimal → its name, scopes and host patterns as JSON.
pub fn tokens() -> Key<FabricSpace> {
    Key::new("tokens")
}

/// HASH: token name → SHA-256 of the token in hexadecimal.
pub fn token_names() -> Key<FabricSpace> {
    Key::new("tokens:names")
}

/// HASH: who holds a singleton duty (`holder`), until when (`until_ms`, this server's clock), and the fencing `epoch`.
pub fn duty(name: &str) -> Key<FabricSpace> {
    Key::new(format!("duty:{name}"))
}
