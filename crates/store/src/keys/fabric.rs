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
        pattern: "routes:hosts",
        kind: "hash",
        lifetime: "for ever",
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

/// HASH: host name → its policy as JSON.
pub fn routes_hosts() -> Key<FabricSpace> {
    Key::new("routes:hosts")
}

/// INTEGER that rises with every change of the desired state.
pub fn routes_revision() -> Key<FabricSpace> {
    Key::new("routes:revision")
}

/// ZSET of what was changed here and is not known to stand on the routes master yet, by revision.
pub fn routes_unprojected() -> Key<FabricSpace> {
    Key::new("routes:unprojected")
}

/// HASH: the highest serial and the epoch lineage that the routes master was ever given.
pub fn routes_table() -> Key<FabricSpace> {
    Key::new("routes:table")
}

/// HASH: token name → digest and scopes as JSON.
pub fn tokens() -> Key<FabricSpace> {
    Key::new("tokens")
}

/// HASH: who holds a singleton duty, until when, and the fencing epoch.
pub fn duty(name: &str) -> Key<FabricSpace> {
    Key::new(format!("duty:{name}"))
}
