//! Redis servers: reachable, durable, and with the right role.

use std::collections::BTreeMap;

use crate::{
    Finding,
    Severity::{Critical, Warning},
    Subject,
    thresholds::{MAX_CLOCK_SKEW_MS, MIN_REDIS_MAJOR, REDIS_MEMORY_PERCENT, REPLICA_SILENT_SECONDS},
};

/// The use of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The primary of the route table.
    Routes,
    /// A router's replica of the route table.
    RoutesReplica,
    /// Counters and router reports.
    Stats,
    /// Desired state and events.
    Fabric,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Routes, Self::RoutesReplica, Self::Stats, Self::Fabric];

    /// Its name in configuration and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Routes => "routes",
            Self::RoutesReplica => "routes-replica",
            Self::Stats => "stats",
            Self::Fabric => "fabric",
        }
    }

    /// The role of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    fn data(self) -> &'static str {
        match self {
            Self::Routes | Self::RoutesReplica => "routes",
            Self::Stats => "counters",
            Self::Fabric => "events and the desired state",
        }
    }

    /// The consequence while no server has the role.
    fn without(self) -> &'static str {
        match self {
            Self::Routes => "Until then routers keep their last table, and routes cannot change.",
            Self::RoutesReplica => "Until then its router keeps its last table.",
            Self::Stats => {
                "Until then requests are served and counted later, and no change can wait for routers."
            }
            Self::Fabric => {
                "Until then requests are served, events are rejected, and nothing can be changed."
            }
        }
    }
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Its use.
    pub role: Role,
    /// Its address; absent if there is one server for the role.
    pub address: Option<String>,
    /// Its state, or why it does not respond.
    pub state: Result<State, String>,
}

/// A server's report. A field that it does not report is empty or absent, and is not evaluated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// `redis_version`.
    pub version: String,
    /// `role`: `master` or `slave`.
    pub replication_role: String,
    /// `master_link_status` is `up`.
    pub link_up: bool,
    /// `master_host` and `master_port`.
    pub primary: String,
    /// `master_last_io_seconds_ago`.
    pub link_silent_seconds: Option<u64>,
    /// `maxmemory_policy`.
    pub eviction_policy: String,
    /// `aof_enabled`.
    pub aof_enabled: Option<bool>,
    /// The last write or rewrite of the append-only file failed.
    pub aof_failing: bool,
    /// `used_memory`.
    pub used_memory: Option<u64>,
    /// `maxmemory`; 0 is unlimited.
    pub max_memory: Option<u64>,
    /// How far its clock is ahead of the caller's; absent if it was not compared.
    pub clock_ahead_ms: Option<i64>,
    /// Whether it rejects commands of a client that did not log in; absent if that was not tried.
    pub is_protected: Option<bool>,
}

impl State {
    /// Reads the answer to INFO.
    pub fn from_info(info: &str) -> Self {
        let fields: BTreeMap<&str, &str> =
            info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
        let text = |field: &str| (*fields.get(field).unwrap_or(&"")).to_owned();
        let number = |field: &str| fields.get(field).and_then(|value| value.parse().ok());
        let failed = |field: &str| fields.get(field) == Some(&"err");
        Self {
            version: text("redis_version"),
            replication_role: text("role"),
            link_up: fields.get("master_link_status") == Some(&"up"),
            primary: format!("{}:{}", text("master_host"), text("master_port")),
            link_silent_seconds: number("master_last_io_seconds_ago"),
            eviction_policy: text("maxmemory_policy"),
            aof_enabled: number("aof_enabled").map(|enabled| enabled == 1),
            aof_failing: failed("aof_last_write_status") || failed("aof_last_bgrewrite_status"),
            used_memory: number("used_memory"),
            max_memory: number("maxmemory"),
            clock_ahead_ms: None,
            is_protected: None,
        }
    }
}

/// Checks one server.
pub fn server(server: &Server) -> Vec<Finding> {
    let role = server.role;
    let name = role.name();
    let subject = Subject::Redis { role: name, address: server.address.clone() };
    let mut found = Vec::new();
    let mut add = |severity, id, problem: String, fix: &str| {
        found.push(Finding::new(severity, id, subject.clone(), problem, fix));
    };
    let state = match &server.state {
        Ok(state) => state,
        Err(reason) => {
            let problem = format!("The {name} Redis does not respond: {reason}.");
            let fix =
                format!("Start the Redis server of the role {name}, or check its log. {}", role.without());
            add(Critical, "redis-unreachable", problem, &fix);
            return found;
        }
    };
    if let Some(ahead) = state.clock_ahead_ms.filter(|ahead| ahead.unsigned_abs() > MAX_CLOCK_SKEW_MS) {
        let direction = if ahead > 0 { "ahead of" } else { "behind" };
        let problem = format!(
            "The clock of the {name} Redis is {} ms {direction} this machine's.",
            ahead.unsigned_abs()
        );
        add(Critical, "redis-clock-skew", problem, "Run chrony or systemd-timesyncd on every machine.");
    }
    if state.is_protected == Some(false) {
        let problem = format!(
            "The {name} Redis accepts commands without a password: any process that reaches it can read and change {}.",
            role.data()
        );
        let fix = "Create users with `signalbox secrets FOLDER`, set aclfile in its configuration, and set user and \
                   password_file of the daemons (docs/security.md).";
        add(Critical, "redis-unprotected", problem, fix);
    }
    let major = state.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major < MIN_REDIS_MAJOR) {
        let problem = format!("The {name} Redis is version {}.", state.version);
        add(Critical, "redis-version", problem, &format!("Install Redis {MIN_REDIS_MAJOR}.0 or newer."));
    }
    if role == Role::RoutesReplica {
        replica(state, &mut add);
    } else {
        store(role, state, &mut add);
    }
    found
}

type Add<'a> = dyn FnMut(crate::Severity, &'static str, String, &str) + 'a;

fn replica(state: &State, add: &mut Add<'_>) {
    let fix = "Point REPLICAOF of this server at the routes primary, and check that the primary is reachable. The router \
               keeps its last table.";
    if !matches!(&*state.replication_role, "slave" | "replica") {
        let problem = "The routes replica does not replicate: its router receives no changes.";
        add(Critical, "replica-not-replicating", problem.to_owned(), fix);
    } else if !state.link_up {
        let problem = format!("The link of the routes replica to its primary ({}) is down.", state.primary);
        add(Critical, "replica-link-down", problem, fix);
    } else if let Some(seconds) =
        state.link_silent_seconds.filter(|seconds| *seconds > REPLICA_SILENT_SECONDS)
    {
        let problem = format!("The routes replica has received nothing from its primary for {seconds} s.");
        add(Warning, "replica-link-silent", problem, fix);
    }
}

/// A server whose data exists nowhere else.
fn store(role: Role, state: &State, add: &mut Add<'_>) {
    let (name, data) = (role.name(), role.data());
    let policy = &*state.eviction_policy;
    if !policy.is_empty() && policy != "noeviction" {
        let problem =
            format!("The {name} Redis evicts {data} when memory runs out (maxmemory-policy is {policy}).");
        let fix = "Set maxmemory-policy noeviction in its configuration. CONFIG SET applies it immediately.";
        add(Critical, "redis-evicts", problem, fix);
    }
    if state.aof_enabled == Some(false) {
        let problem = format!("The {name} Redis writes no append-only file: a restart loses {data}.");
        let fix =
            "Set appendonly yes in its configuration. CONFIG SET appendonly yes writes the file immediately.";
        add(Critical, "redis-aof-off", problem, fix);
    } else if state.aof_failing {
        let problem = format!("The last write of the {name} Redis to its append-only file failed.");
        let fix = "Check its disk, which is full, read-only or broken. Its log shows the error.";
        add(Critical, "redis-aof-failing", problem, fix);
    }
    if matches!(&*state.replication_role, "slave" | "replica") {
        let problem = format!("The {name} Redis is a replica and rejects writes.");
        let fix = "Configure the daemons with the address of its primary, or promote it.";
        add(Critical, "redis-read-only", problem, fix);
    }
    if state.max_memory == Some(0) {
        let problem = format!(
            "The {name} Redis has no memory limit: when memory runs out, the system may kill it instead of writes \
             being rejected."
        );
        let fix = "Set maxmemory in its configuration, to a share of the memory that leaves room for its copies. CONFIG \
                   SET applies it immediately.";
        add(Warning, "redis-memory-unlimited", problem, fix);
    }
    if let (Some(used), Some(max)) = (state.used_memory, state.max_memory)
        && max > 0
        && used.saturating_mul(100) / max >= REDIS_MEMORY_PERCENT
    {
        let percent = used.saturating_mul(100) / max;
        let problem =
            format!("The {name} Redis uses {percent}% of its memory limit. At the limit it rejects writes.");
        let fix =
            "Raise maxmemory, or find out what grows: `signalbox queues list`, `signalbox subscribers list`.";
        add(Warning, "redis-memory", problem, fix);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;

    fn ids(role: Role, changed: &[(&str, &str)]) -> Vec<(&'static str, Severity)> {
        let healthy: &[(&str, &str)] = if role == Role::RoutesReplica {
            &[
                ("role", "slave"),
                ("master_link_status", "up"),
                ("master_last_io_seconds_ago", "0"),
                ("aof_enabled", "0"),
            ]
        } else {
            &[("role", "master"), ("aof_enabled", "1"), ("aof_last_write_status", "ok"), ("used_memory", "5")]
        };
        let common = [("redis_version", "7.0.15"), ("maxmemory_policy", "noeviction"), ("maxmemory", "9")];
        let fields = common.iter().chain(healthy).chain(changed);
        let info: String = fields.map(|(field, value)| format!("{field}:{value}\r\n")).collect();
        let state = State::from_info(&format!("# Server\r\n{info}"));
        let found = server(&Server { role, address: None, state: Ok(state) });
        found.into_iter().map(|one| (one.id, one.severity)).collect()
    }

    #[test]
    fn healthy_servers_have_no_findings() {
        for role in Role::ALL {
            assert_eq!(ids(role, &[]), []);
            assert_eq!(Role::named(role.name()), Some(role));
        }
        assert_eq!(Role::named("cache"), None);
    }

    #[test]
    fn each_wrong_setting_is_a_finding() {
        use Role::{Fabric, Routes, RoutesReplica, Stats};
        for (role, field, value, id, severity) in [
            (RoutesReplica, "role", "master", "replica-not-replicating", Critical),
            (RoutesReplica, "master_link_status", "down", "replica-link-down", Critical),
            (RoutesReplica, "master_last_io_seconds_ago", "16", "replica-link-silent", Warning),
            (Routes, "maxmemory_policy", "allkeys-lru", "redis-evicts", Critical),
            (Fabric, "maxmemory_policy", "volatile-ttl", "redis-evicts", Critical),
            (Stats, "aof_enabled", "0", "redis-aof-off", Critical),
            (Fabric, "aof_last_write_status", "err", "redis-aof-failing", Critical),
            (Fabric, "aof_last_bgrewrite_status", "err", "redis-aof-failing", Critical),
            (Fabric, "role", "slave", "redis-read-only", Critical),
            (Fabric, "maxmemory", "5", "redis-memory", Warning),
            (Stats, "maxmemory", "0", "redis-memory-unlimited", Warning),
            (Stats, "redis_version", "6.2.1", "redis-version", Critical),
        ] {
            assert_eq!(ids(role, &[(field, value)]), [(id, severity)], "{role:?} {field} {value}");
        }
        assert_eq!(ids(RoutesReplica, &[("master_last_io_seconds_ago", "15")]), []);
        assert_eq!(ids(Fabric, &[("used_memory", "89"), ("maxmemory", "100")]), []);
    }

    #[test]
    fn a_replica_may_evict_and_needs_no_append_only_file() {
        let changed = [("maxmemory_policy", "allkeys-lru"), ("aof_enabled", "0")];
        assert_eq!(ids(Role::RoutesReplica, &changed), []);
    }

    #[test]
    fn a_server_that_needs_no_login_is_a_finding_in_every_role() {
        for role in Role::ALL {
            let found = |is_protected| {
                let state = State { is_protected, ..State::default() };
                let found = server(&Server { role, address: None, state: Ok(state) });
                found.into_iter().any(|one| (one.id, one.severity) == ("redis-unprotected", Critical))
            };
            assert_eq!([Some(false), Some(true), None].map(found), [true, false, false], "{role:?}");
        }
    }

    #[test]
    fn a_server_that_reports_nothing_is_not_accused() {
        let silent = Server { role: Role::Routes, address: None, state: Ok(State::from_info("")) };
        assert_eq!(server(&silent), []);
    }

    #[test]
    fn clocks_may_differ_by_two_seconds_either_way() {
        let found = |ahead| {
            let state = State { clock_ahead_ms: Some(ahead), ..State::default() };
            server(&Server { role: Role::Stats, address: None, state: Ok(state) })
        };
        assert!(found(2_000).is_empty() && found(-2_000).is_empty());
        assert!(found(2_001)[0].problem.contains("2001 ms ahead of"), "{:?}", found(2_001));
        assert!(found(-2_001)[0].problem.contains("2001 ms behind"), "{:?}", found(-2_001));
    }

    #[test]
    fn an_unreachable_server_is_named_with_the_reason() {
        let address = Some("redis://h/".to_owned());
        let found =
            server(&Server { role: Role::Stats, address, state: Err("connection refused".to_owned()) });
        assert_eq!((found.len(), found[0].id), (1, "redis-unreachable"));
        assert_eq!(found[0].subject.to_string(), "Redis stats (redis://h/)");
        assert_eq!(found[0].problem, "The stats Redis does not respond: connection refused.");
    }
}
