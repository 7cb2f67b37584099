//! The route table. The first four keys are those of Paasmaker's router and sufficient for routing: a table that was written
//! manually with them works. The others belong to the pacemaker.

use super::Entry;
use crate::{Key, RoutesSpace};

/// The rows of `docs/keys.md` for this server.
pub const CATALOG: &[Entry] = &[
    Entry {
        pattern: "instances:<hostname>",
        kind: "set",
        lifetime: "while an instance serves the name",
        writer: "pacemaker, operator",
        readers: "nginx",
    },
    Entry {
        pattern: "logkey:<hostname>",
        kind: "string",
        lifetime: "while the name is registered",
        writer: "pacemaker, operator",
        readers: "nginx",
    },
    Entry {
        pattern: "instance_ids:<hostname>",
        kind: "set",
        lifetime: "while an instance serves the name",
        writer: "pacemaker",
        readers: "operator",
    },
    Entry {
        pattern: "serial",
        kind: "string",
        lifetime: "no expiry",
        writer: "pacemaker",
        readers: "nginx, sidecar",
    },
    Entry {
        pattern: "instance:<id>",
        kind: "hash",
        lifetime: "while registered; an hour as a tombstone",
        writer: "pacemaker",
        readers: "pacemaker, sidecar",
    },
    Entry {
        pattern: "policy:<hostname>",
        kind: "string",
        lifetime: "while the name needs more than its set",
        writer: "pacemaker",
        readers: "nginx",
    },
    Entry {
        pattern: "cert:<server name>",
        kind: "string",
        lifetime: "until it is replaced or removed",
        writer: "pacemaker, operator",
        readers: "nginx",
    },
    Entry {
        pattern: "certificate:<server name>",
        kind: "hash",
        lifetime: "while the pacemaker has a certificate for the name; an hour as a tombstone",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "challenge:<token>",
        kind: "string",
        lifetime: "an hour",
        writer: "pacemaker",
        readers: "nginx",
    },
    Entry {
        pattern: "rules:<hostname>",
        kind: "hash",
        lifetime: "while the host has a policy; an hour as a tombstone",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "checks",
        kind: "set",
        lifetime: "while an instance has a health check",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "leases",
        kind: "zset",
        lifetime: "no expiry",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "drains",
        kind: "zset",
        lifetime: "no expiry",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "addresses",
        kind: "hash",
        lifetime: "while an instance is registered there",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "revision",
        kind: "string",
        lifetime: "no expiry",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "fencing",
        kind: "hash",
        lifetime: "no expiry",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "changes",
        kind: "stream",
        lifetime: "no expiry, about the latest 4,096 of the lineage",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry {
        pattern: "seeding",
        kind: "string",
        lifetime: "while the table is seeded",
        writer: "pacemaker",
        readers: "pacemaker",
    },
    Entry { pattern: "epoch", kind: "string", lifetime: "no expiry", writer: "pacemaker", readers: "nginx" },
];

/// SET of the addresses that serve a host name.
pub fn instances(hostname: &str) -> Key<RoutesSpace> {
    Key::new(format!("instances:{hostname}"))
}

/// STRING: the version type id that requests for a host name are counted under.
pub fn logkey(hostname: &str) -> Key<RoutesSpace> {
    Key::new(format!("logkey:{hostname}"))
}

/// SET of the ids of the instances that serve a host name; for checking the table, not for routing.
pub fn instance_ids(hostname: &str) -> Key<RoutesSpace> {
    Key::new(format!("instance_ids:{hostname}"))
}

/// INTEGER that rises by one with every change of the table.
pub fn serial() -> Key<RoutesSpace> {
    Key::new("serial")
}

/// HASH of one instance.
pub fn instance(id: &str) -> Key<RoutesSpace> {
    Key::new(format!("instance:{id}"))
}

/// STRING (JSON): the policy of a host name for the edge.
pub fn policy(hostname: &str) -> Key<RoutesSpace> {
    Key::new(format!("policy:{hostname}"))
}

/// STRING (JSON): a certificate chain and its private key, encrypted.
pub fn cert(server_name: &str) -> Key<RoutesSpace> {
    Key::new(format!("cert:{server_name}"))
}

/// HASH: revision and expiry of the certificate that the pacemaker wrote to `cert:<server name>`.
pub fn certificate(server_name: &str) -> Key<RoutesSpace> {
    Key::new(format!("certificate:{server_name}"))
}

/// STRING: the answer to an HTTP-01 challenge of an ACME server (RFC 8555, 8.3), by the challenge's token.
pub fn challenge(token: &str) -> Key<RoutesSpace> {
    Key::new(format!("challenge:{token}"))
}

/// HASH: the policy that was set for a host name, from which `policy:<hostname>` is derived, and its revision.
pub fn rules(hostname: &str) -> Key<RoutesSpace> {
    Key::new(format!("rules:{hostname}"))
}

/// SET of the IDs of instances with a health check.
pub fn checks() -> Key<RoutesSpace> {
    Key::new("checks")
}

/// ZSET of instance IDs by the end of their lease, in unix milliseconds of this server's clock.
pub fn leases() -> Key<RoutesSpace> {
    Key::new("leases")
}

/// ZSET of draining instance IDs by the time of their removal, in unix milliseconds of this server's clock.
pub fn drains() -> Key<RoutesSpace> {
    Key::new("drains")
}

/// HASH: address → ID of the instance that owns it.
pub fn addresses() -> Key<RoutesSpace> {
    Key::new("addresses")
}

/// INTEGER: the highest revision of the desired state in the table.
pub fn revision() -> Key<RoutesSpace> {
    Key::new("revision")
}

/// HASH: state of singleton tasks: the fencing epoch of each (`<lease>.epoch`), and when the lease sweeper last ran
/// (`sweeper.swept_ms`) and last resumed after a pause (`sweeper.resumed_ms`).
pub fn fencing() -> Key<RoutesSpace> {
    Key::new("fencing")
}

/// STREAM of changes of the table, in the order of its serials. An entry's ID begins with its serial.
pub fn changes() -> Key<RoutesSpace> {
    Key::new("changes")
}

/// STRING: the token of the lineage that the table gets after its seeding.
pub fn seeding() -> Key<RoutesSpace> {
    Key::new("seeding")
}

/// STRING: the lineage of the table, newest token first.
pub fn epoch() -> Key<RoutesSpace> {
    Key::new("epoch")
}
