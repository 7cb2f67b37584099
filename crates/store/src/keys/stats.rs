//! The statistics. Counters and sets have the names of Paasmaker's statistics, so its tools can read them. The other keys were
//! added by Signalbox.

use super::Entry;
use crate::{Key, StatsSpace};

/// The rows of `docs/keys.md` for this server.
pub const CATALOG: &[Entry] = &[
    Entry {
        pattern: "position:<node>",
        kind: "string",
        lifetime: "no expiry",
        writer: "sidecar",
        readers: "sidecar",
    },
    Entry {
        pattern: "position:<node>:file",
        kind: "hash",
        lifetime: "no expiry",
        writer: "sidecar",
        readers: "sidecar",
    },
    Entry {
        pattern: "stat:<id>",
        kind: "hash",
        lifetime: "no expiry",
        writer: "sidecar",
        readers: "sidecar, pacemaker",
    },
    Entry {
        pattern: "history:<id>:<hour>:<metric>",
        kind: "hash",
        lifetime: "2 hours after its hour",
        writer: "sidecar",
        readers: "sidecar, pacemaker",
    },
    Entry {
        pattern: "rollup:<id>:<hour>:<metric>",
        kind: "hash",
        lifetime: "14 days after its hour",
        writer: "sidecar",
        readers: "sidecar, pacemaker",
    },
    Entry {
        pattern: "latency:<id>:<hour>:<bucket>",
        kind: "hash",
        lifetime: "14 days after its hour",
        writer: "sidecar",
        readers: "sidecar, pacemaker",
    },
    Entry {
        pattern: "instance_latency:<address>:<hour>:<bucket>",
        kind: "hash",
        lifetime: "2 days after its hour",
        writer: "sidecar",
        readers: "sidecar, pacemaker",
    },
    Entry {
        pattern: "workspace:<id>",
        kind: "set",
        lifetime: "no expiry",
        writer: "pacemaker",
        readers: "sidecar",
    },
    Entry {
        pattern: "application:<id>",
        kind: "set",
        lifetime: "no expiry",
        writer: "pacemaker",
        readers: "sidecar",
    },
    Entry {
        pattern: "version:<id>",
        kind: "set",
        lifetime: "no expiry",
        writer: "pacemaker",
        readers: "sidecar",
    },
    Entry {
        pattern: "node:<id>",
        kind: "set",
        lifetime: "no expiry",
        writer: "pacemaker",
        readers: "sidecar",
    },
    Entry {
        pattern: "router:<node>",
        kind: "hash",
        lifetime: "60 seconds after its last report",
        writer: "sidecar",
        readers: "pacemaker",
    },
    Entry {
        pattern: "routers",
        kind: "zset",
        lifetime: "no expiry",
        writer: "sidecar",
        readers: "pacemaker",
    },
    Entry { pattern: "tokens", kind: "hash", lifetime: "no expiry", writer: "pacemaker", readers: "sidecar" },
    Entry {
        pattern: "fabric",
        kind: "string",
        lifetime: "no expiry",
        writer: "pacemaker",
        readers: "pacemaker",
    },
];

/// The channel on which a router's new serial is published as `<node> <serial>`, and a changed alarm as
/// `<node> <serial> alarm`.
pub const ROUTERS_CHANNEL: &str = "routers";

/// INTEGER: the number of bytes of a router's access log that are counted.
pub fn position(node: &str) -> Key<StatsSpace> {
    Key::new(format!("position:{node}"))
}

/// HASH: the identity of the file to which the position belongs, and the process that may change the
/// position.
pub fn position_file(node: &str) -> Key<StatsSpace> {
    Key::new(format!("position:{node}:file"))
}

/// HASH of the totals of a version type.
pub fn stat(id: &str) -> Key<StatsSpace> {
    Key::new(format!("stat:{id}"))
}

/// HASH of one hour of one metric: unix second → value. `hour` is a unix second, a multiple of 3600.
pub fn history(id: &str, hour: i64, metric: &str) -> Key<StatsSpace> {
    Key::new(format!("history:{id}:{hour}:{metric}"))
}

/// HASH of one hour of one metric in minutes: unix second of the minute → value.
pub fn rollup(id: &str, hour: i64, metric: &str) -> Key<StatsSpace> {
    Key::new(format!("rollup:{id}:{hour}:{metric}"))
}

/// HASH of one hour of one bucket of upstream response times, in minutes: unix second of the minute → requests.
pub fn latency(id: &str, hour: i64, bucket: &str) -> Key<StatsSpace> {
    Key::new(format!("latency:{id}:{hour}:{bucket}"))
}

/// The same for the answers of one instance, identified by its address.
pub fn instance_latency(address: &str, hour: i64, bucket: &str) -> Key<StatsSpace> {
    Key::new(format!("instance_latency:{address}:{hour}:{bucket}"))
}

/// SET of the version types in a workspace.
pub fn workspace(id: &str) -> Key<StatsSpace> {
    Key::new(format!("workspace:{id}"))
}

/// SET of the version types of an application.
pub fn application(id: &str) -> Key<StatsSpace> {
    Key::new(format!("application:{id}"))
}

/// SET of the version types of a version.
pub fn version(id: &str) -> Key<StatsSpace> {
    Key::new(format!("version:{id}"))
}

/// SET of the version types that ran on a node.
pub fn node(id: &str) -> Key<StatsSpace> {
    Key::new(format!("node:{id}"))
}

/// HASH: the last report of a router.
pub fn router(node: &str) -> Key<StatsSpace> {
    Key::new(format!("router:{node}"))
}

/// ZSET of routers by the time of their last report, in unix milliseconds of this server's clock.
pub fn routers() -> Key<StatsSpace> {
    Key::new("routers")
}

/// HASH: SHA-256 of a token in hexadecimal → its name and scopes as JSON.
pub fn tokens() -> Key<StatsSpace> {
    Key::new("tokens")
}

/// STRING: identity of the fabric that pacemakers used last.
pub fn fabric() -> Key<StatsSpace> {
    Key::new("fabric")
}
