//! The route table. The first four keys are those of Paasmaker's router and sufficient for routing: a table that was written
//! manually with them works. The others belong to the pacemaker.

keys! {
    RoutesSpace:
    /// SET of the addresses that serve a host name.
    instances(hostname: &str) = "instances:{hostname}",
        "set", "while an instance serves the name", "pacemaker, operator" => "nginx";
    /// STRING: the version type id that requests for a host name are counted under.
    logkey(hostname: &str) = "logkey:{hostname}",
        "string", "while the name is registered", "pacemaker, operator" => "nginx";
    /// SET of the ids of the instances that serve a host name; for checking the table, not for routing.
    instance_ids(hostname: &str) = "instance_ids:{hostname}",
        "set", "while an instance serves the name", "pacemaker" => "operator";
    /// INTEGER that rises by one with every change of the table.
    serial() = "serial", "string", "no expiry", "pacemaker" => "nginx, sidecar";
    /// HASH of one instance.
    instance(id: &str) = "instance:{id}",
        "hash", "while registered; an hour as a tombstone", "pacemaker" => "pacemaker, sidecar";
    /// STRING (JSON): the policy of a host name for the edge.
    policy(hostname: &str) = "policy:{hostname}",
        "string", "while the name needs more than its set", "pacemaker" => "nginx";
    /// STRING (JSON): a certificate chain and its private key, encrypted.
    cert(server_name: &str) = "cert:{server_name}",
        "string", "until it is replaced or removed", "pacemaker, operator" => "nginx";
    /// HASH: revision and expiry of the certificate that the pacemaker wrote to `cert:<server name>`.
    certificate(server_name: &str) = "certificate:{server_name}",
        "hash", "while the pacemaker has a certificate for the name; an hour as a tombstone";
    /// STRING: the answer to an HTTP-01 challenge of an ACME server (RFC 8555, 8.3), by the challenge's token.
    challenge(token: &str) = "challenge:{token}", "string", "an hour", "pacemaker" => "nginx";
    /// HASH: the policy that was set for a host name, from which `policy:<hostname>` is derived, and its revision.
    rules(hostname: &str) = "rules:{hostname}", "hash", "while the host has a policy; an hour as a tombstone";
    /// HASH: which version type was promoted for a host name, and what was served before, with its revision.
    promotion(hostname: &str) = "promotion:{hostname}",
        "hash", "from the first promotion until the host is deleted; an hour as a tombstone";
    /// SET of the IDs of instances with a health check.
    checks() = "checks", "set", "while an instance has a health check";
    /// ZSET of instance IDs by the end of their lease, in unix milliseconds of this server's clock.
    leases() = "leases", "zset", "no expiry";
    /// ZSET of instance IDs by the end of their drain or of their time on standby, in unix milliseconds of this server's clock.
    drains() = "drains", "zset", "no expiry";
    /// HASH: address → ID of the instance that owns it.
    addresses() = "addresses", "hash", "while an instance is registered there";
    /// INTEGER: the highest revision of the desired state in the table.
    revision() = "revision", "string", "no expiry";
    /// HASH: state of singleton tasks: the fencing epoch of each (`<lease>.epoch`), and when the lease sweeper last ran
    /// (`sweeper.swept_ms`) and last resumed after a pause (`sweeper.resumed_ms`).
    fencing() = "fencing", "hash", "no expiry";
    /// STREAM of changes of the table, in the order of its serials. An entry's ID begins with its serial.
    changes() = "changes", "stream", "no expiry, about the latest 4,096 of the lineage";
    /// STRING: the token of the lineage that the table gets after its seeding.
    seeding() = "seeding", "string", "while the table is seeded";
    /// STRING: the lineage of the table, newest token first.
    epoch() = "epoch", "string", "no expiry", "pacemaker" => "nginx";
}
