//! The users of the Redis servers, each with the fewest permissions.
//!
//! The key patterns of the sidecar, the edge and the statistics' pacemaker follow from the catalog of keys
//! (`signalbox_store::keys`), which names writers and readers. The routes primary and the fabric belong to pacemakers
//! alone: patterns would protect nothing there, and Redis would compare them with every key of every command in a script.
//!
//! Commands of the sidecar and the edge are listed one by one. Pacemakers may use all commands that read and write data. No
//! program may use a command that reconfigures, stops or empties a server. Only Sentinels, and a sidecar at its own router's
//! replica, make a server copy another one.

use signalbox_store::keys::{Entry, routes, stats};

/// A Redis server by its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// The primary of the route table.
    Routes,
    /// A router's replica.
    RoutesReplica,
    /// The statistics.
    Stats,
    /// Desired state and events.
    Fabric,
}

impl Server {
    pub(crate) const ALL: [Self; 4] = [Self::Routes, Self::RoutesReplica, Self::Stats, Self::Fabric];

    /// Its name in files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Routes => "routes",
            Self::RoutesReplica => "routes-replica",
            Self::Stats => "stats",
            Self::Fabric => "fabric",
        }
    }
}

/// A user of the Redis servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// A person: everything.
    Operator,
    /// The control plane.
    Pacemaker,
    /// The agent of a router.
    Sidecar,
    /// nginx of a router.
    Edge,
    /// A server that copies another one.
    Replica,
    /// Redis Sentinel.
    Sentinel,
    /// A health check.
    Health,
}

/// Data of any type, scripts and channels; nothing that concerns the server, apart from its counters. In a cluster, the nodes
/// that serve the slots.
const PACEMAKER: &str = "-@all +@read +@write +@pubsub -@dangerous -function +evalsha +script|load +ping +time +info +wait \
                         +cluster|slots +asking";
const SIDECAR_STATS: &str = "-@all +evalsha +script|load +ping +time +get +set +expire +expireat +hget +hgetall +hmget \
                             +hset +hdel +hincrby +smembers +zadd +zcard +zincrby +zrange +zremrangebyrank +zremrangebyscore \
                             +publish";
/// REPLICAOF follows the primary that Sentinels name. The replica is the router's own, and only the edge reads it.
const SIDECAR_REPLICA: &str = "-@all +ping +get +hmget +info +replicaof";
/// ROLE and DBSIZE distinguish a replica that has not copied its primary from an empty table.
const EDGE: &str = "-@all +ping +client|tracking +role +dbsize +get +mget +smembers";
const REPLICA: &str = "-@all +ping +psync +replconf";
/// The list of Redis's documentation of Sentinel.
const SENTINEL: &str = "&__sentinel__:hello -@all +ping +info +role +multi +exec +replicaof +slaveof +publish +subscribe \
                        +config|rewrite +client|setname +client|kill +script|kill";
const HEALTH: &str = "-@all +ping +info";

impl User {
    pub(crate) const ALL: [Self; 7] = [
        Self::Operator,
        Self::Pacemaker,
        Self::Sidecar,
        Self::Edge,
        Self::Replica,
        Self::Sentinel,
        Self::Health,
    ];

    /// The name with which it logs in.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Pacemaker => "pacemaker",
            Self::Sidecar => "sidecar",
            Self::Edge => "edge",
            Self::Replica => "replica",
            Self::Sentinel => "sentinel",
            Self::Health => "health",
        }
    }

    /// Its rules at a server, in the syntax of an ACL file; `None` if it has no access.
    pub(crate) fn rules(self, server: Server) -> Option<String> {
        match (self, server) {
            (Self::Operator, _) => Some("~* &* +@all".to_owned()),
            (Self::Health, _) => Some(HEALTH.to_owned()),
            (Self::Pacemaker, Server::Routes) => Some(format!("~* {PACEMAKER}")),
            // Any channel: live streams have channels by environment, type and topic.
            (Self::Pacemaker, Server::Fabric) => Some(format!("~* &* {PACEMAKER}")),
            (Self::Pacemaker, Server::Stats) => {
                Some(format!("{} &{} {PACEMAKER}", keys(stats::CATALOG, "pacemaker"), stats::ROUTERS_CHANNEL))
            }
            (Self::Sidecar, Server::Stats) => Some(format!(
                "{} &{} {SIDECAR_STATS}",
                keys(stats::CATALOG, "sidecar"),
                stats::ROUTERS_CHANNEL
            )),
            (Self::Sidecar, Server::RoutesReplica) => {
                Some(format!("{} {SIDECAR_REPLICA}", keys(routes::CATALOG, "sidecar")))
            }
            (Self::Edge, Server::RoutesReplica) => Some(format!("{} {EDGE}", keys(routes::CATALOG, "nginx"))),
            (Self::Replica, Server::Routes | Server::Stats | Server::Fabric) => Some(REPLICA.to_owned()),
            // It points the routers' replicas at the new primary.
            (Self::Sentinel, _) => Some(SENTINEL.to_owned()),
            _ => None,
        }
    }
}

/// The patterns of the keys that `program` writes, and of those that it only reads.
fn keys(catalog: &[Entry], program: &str) -> String {
    let names = |list: &str| list.split(", ").any(|name| name == program);
    let mut patterns: Vec<String> = Vec::new();
    for entry in catalog {
        let access = if names(entry.writer) {
            "~"
        } else if names(entry.readers) {
            "%R~"
        } else {
            continue;
        };
        let start = entry.pattern.split('{').next().unwrap_or_default();
        let rest = if start.len() < entry.pattern.len() { "*" } else { "" };
        let pattern = format!("{access}{start}{rest}");
        if !patterns.contains(&pattern) {
            patterns.push(pattern);
        }
    }
    patterns.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinel_reaches_every_server_that_follows_a_primary() {
        for server in Server::ALL {
            let rules = User::Sentinel.rules(server).unwrap_or_default();
            assert!(rules.contains("+replicaof") && !rules.contains('~'), "{}: {rules}", server.name());
        }
    }

    #[test]
    fn a_router_reads_routes_and_writes_only_its_own_counters() {
        let edge = User::Edge.rules(Server::RoutesReplica).unwrap();
        for pattern in ["%R~instances:*", "%R~logkey:*", "%R~policy:*", "%R~cert:*", "%R~serial", "%R~epoch"]
        {
            assert!(edge.split(' ').any(|word| word == pattern), "{edge}");
        }
        assert!(!edge.contains(" ~"), "{edge}");
        let sidecar = User::Sidecar.rules(Server::Stats).unwrap();
        for pattern in ["~position:*", "~router:*", "%R~tokens", "%R~application:*"] {
            assert!(sidecar.split(' ').any(|word| word == pattern), "{sidecar}");
        }
        for (user, server) in
            [(User::Edge, Server::Stats), (User::Edge, Server::Routes), (User::Sidecar, Server::Fabric)]
        {
            assert_eq!(user.rules(server), None);
        }
    }
}
