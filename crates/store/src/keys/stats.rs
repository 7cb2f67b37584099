//! The statistics. Counters and sets have the names of Paasmaker's statistics, so its tools can read them. The other keys were
//! added by Signalbox.

/// The channel on which a router's new serial is published as `<node> <serial>`, and a changed alarm as
/// `<node> <serial> alarm`.
pub const ROUTERS_CHANNEL: &str = "routers";

/// The id under which all requests of applications are counted. No version type can have this name.
pub const TOTAL: &str = "*";

keys! {
    StatsSpace:
    /// INTEGER: the number of bytes of a router's access log that are counted.
    position(node: &str) = "position:{node}", "string", "no expiry", "sidecar" => "sidecar";
    /// HASH: the identity of the file to which the position belongs, and the process that may change the
    /// position.
    position_file(node: &str) = "position:{node}:file", "hash", "no expiry", "sidecar" => "sidecar";
    /// HASH of the totals of a version type.
    stat(id: &str) = "stat:{id}", "hash", "no expiry", "sidecar" => "sidecar, pacemaker";
    /// HASH of one hour of one metric: unix second → value. `hour` is a unix second, a multiple of 3600.
    history(id: &str, hour: i64, metric: &str) = "history:{id}:{hour}:{metric}",
        "hash", "2 hours after its hour", "sidecar" => "sidecar, pacemaker";
    /// HASH of one hour of one metric in minutes: unix second of the minute → value.
    rollup(id: &str, hour: i64, metric: &str) = "rollup:{id}:{hour}:{metric}",
        "hash", "14 days after its hour", "sidecar" => "sidecar, pacemaker";
    /// HASH of one hour of one bucket of upstream response times, in minutes: unix second of the minute → requests.
    latency(id: &str, hour: i64, bucket: &str) = "latency:{id}:{hour}:{bucket}",
        "hash", "14 days after its hour", "sidecar" => "sidecar, pacemaker";
    /// The same for the answers of one instance, identified by its address.
    instance_latency(address: &str, hour: i64, bucket: &str) = "instance_latency:{address}:{hour}:{bucket}",
        "hash", "2 days after its hour", "sidecar" => "sidecar, pacemaker";
    /// ZSET of the version types with requests in a minute (a unix second), by their number (`requests`), or by the number
    /// that instances failed or answered with 5xx (`errors`). At most about 12,000, those with the highest numbers.
    ranking(minute: i64, by: &str) = "ranking:{minute}:{by}",
        "zset", "10 minutes after its minute", "sidecar" => "sidecar, pacemaker";
    /// SET of the version types in a workspace.
    workspace(id: &str) = "workspace:{id}", "set", "no expiry", "pacemaker" => "sidecar";
    /// SET of the version types of an application.
    application(id: &str) = "application:{id}", "set", "no expiry", "pacemaker" => "sidecar";
    /// SET of the version types of a version.
    version(id: &str) = "version:{id}", "set", "no expiry", "pacemaker" => "sidecar";
    /// SET of the version types that ran on a node.
    node(id: &str) = "node:{id}", "set", "no expiry", "pacemaker" => "sidecar";
    /// HASH: the last report of a router.
    router(node: &str) = "router:{node}",
        "hash", "60 seconds after its last report", "sidecar" => "pacemaker";
    /// ZSET of routers by the time of their last report, in unix milliseconds of this server's clock.
    routers() = "routers", "zset", "no expiry", "sidecar" => "pacemaker";
    /// HASH: SHA-256 of a token in hexadecimal → its name and scopes as JSON.
    tokens() = "tokens", "hash", "no expiry", "pacemaker" => "sidecar";
    /// STRING: identity of the fabric that pacemakers used last.
    fabric() = "fabric", "string", "no expiry";
}
