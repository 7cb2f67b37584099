//! The fabric: the desired state of the route table, and the shared state of pacemakers.
//!
//! Keys that exist in every shard are in [`super::bus`], [`super::queues`], [`super::objects`] and [`super::machines`].

keys! {
    FabricSpace:
    /// HASH: instance id → its desired state as JSON.
    routes_instances() = "routes:instances", "hash", "no expiry";
    /// ZSET of the ids in `routes:instances`, all with score 0, for reading them in order.
    routes_instances_index() = "routes:instances:index", "zset", "no expiry";
    /// HASH: address → ID of the instance that owns it.
    routes_addresses() = "routes:addresses", "hash", "while an instance is registered there";
    /// HASH: instance ID → the token that registered it.
    routes_registrants() = "routes:registrants", "hash", "while an instance is registered";
    /// HASH: token → the number of its instances in `routes:registrants`.
    routes_registrants_count() = "routes:registrants:count", "hash", "while the token has instances";
    /// SET of the new host names and version types that a token registered.
    routes_registrants_names(token: &str) = "routes:registrants:names:{token}",
        "set", "a day after the first of them";
    /// ZSET of version types by their last registration, in unix seconds.
    routes_version_types() = "routes:version_types", "zset", "30 days after the last registration";
    /// HASH: host name → the version type last registered for it. A name remains after its last instance is removed.
    routes_hosts() = "routes:hosts", "hash", "until the host is deleted";
    /// ZSET of the names in `routes:hosts`, all with score 0, for reading them in order.
    routes_hosts_index() = "routes:hosts:index", "zset", "until the host is deleted";
    /// HASH: host name → its desired policy, as JSON with its revision.
    routes_policies() = "routes:policies", "hash", "until the policy or its host is deleted";
    /// HASH: host name → its promoted version type and what was served before, as JSON with its revision.
    routes_promotions() = "routes:promotions", "hash", "from the first promotion until the host is deleted";
    /// HASH: server name → its desired certificate with an encrypted private key, as JSON with revision and expiry.
    routes_certificates() = "routes:certificates", "hash", "until the certificate is deleted";
    /// ZSET of the server names that have a certificate, all with score 0, so that they sort by name.
    routes_certificates_index() = "routes:certificates:index", "zset", "until the certificate is deleted";
    /// ZSET of server names by the expiry of their certificate, in unix seconds.
    routes_certificates_ends() = "routes:certificates:ends", "zset", "until the certificate is deleted";
    /// HASH: server name → the published expiry of its certificate, and the days that were left.
    routes_certificates_published() = "routes:certificates:published",
        "hash", "until the certificate is deleted";
    /// HASH: server name → the state of its automatic certificate as JSON, with the private key of an open order encrypted.
    acme_names() = "acme:names", "hash", "while the name has automatic HTTPS";
    /// ZSET of the names in `acme:names`, all with score 0, for reading them in order.
    acme_index() = "acme:index", "zset", "while the name has automatic HTTPS";
    /// ZSET of server names by the time of their next step, in unix milliseconds. A name that a pacemaker works on has the end
    /// of its claim.
    acme_due() = "acme:due", "zset", "while the name has automatic HTTPS";
    /// HASH: server name → the fencing token of its latest claim.
    acme_fences() = "acme:fences", "hash", "while the name has automatic HTTPS";
    /// INTEGER: the latest fencing token.
    acme_fence() = "acme:fence", "string", "no expiry";
    /// HASH: URL of an ACME directory → credentials of the account there, encrypted.
    acme_accounts() = "acme:accounts", "hash", "no expiry";
    /// INTEGER: calls of the check URL in the current hour, which begins with the first of them.
    acme_checks() = "acme:checks", "string", "an hour";
    /// HASH of the orders in the current hour, which begins with the first of them: `total`; `=` and an owner → its orders; `~` and
    /// an owner → how often its names had to wait.
    acme_orders() = "acme:orders", "hash", "an hour";
    /// INTEGER that rises with every change of the desired state.
    routes_revision() = "routes:revision", "string", "no expiry";
    /// ZSET of changes that may not be on the routes primary yet, by revision: instance IDs, and host names after an `@`.
    routes_unprojected() = "routes:unprojected", "zset", "while changes wait";
    /// ZSET of instance IDs that may not be in the membership sets of the statistics yet, by revision.
    routes_unreported() = "routes:unreported", "zset", "while registrations wait";
    /// HASH: `epoch` (lineage) and highest `serial` that was written to the routes primary, and in `seeding` the token of the
    /// lineage that it will get.
    routes_table() = "routes:table", "hash", "no expiry";
    /// HASH: router → its last published alarm: a sequence number, and the alarm, `silent` or `-`.
    routes_alarms_published() = "routes:alarms:published", "hash", "30 days after the last";
    /// HASH: the last change of the table that was published as an event: `epoch`, `serial`, and `entry` of the stream.
    routes_announced() = "routes:announced", "hash", "no expiry";
    /// HASH: SHA-256 of a token in hexadecimal → its name, scopes and host patterns as JSON.
    tokens() = "tokens", "hash", "no expiry";
    /// HASH: token name → SHA-256 of its secrets in hexadecimal, newest first, separated by spaces.
    token_names() = "tokens:names", "hash", "no expiry";
    /// HASH: token name, `root`, or `~` and a client of the event bus → when it was last used (unix ms).
    token_uses() = "tokens:used", "hash", "no expiry";
    /// STRING: SHA-256 of the token with which a browser's session was opened. `digest` is the SHA-256 of the session's secret.
    session(digest: &str) = "session:{digest}", "string", "12 hours, or until the log-out";
    /// STRING: the random name of this system in the name of its cookie.
    session_system() = "sessions", "string", "no expiry";
    /// STRING: the secret that encrypts cursors of confined tokens.
    cursor_secret() = "cursors", "string", "no expiry";
    /// STREAM: changes with their authors, and log-ins, each as JSON in the field `record`; `end` is the number of bytes up to its
    /// end. The other parts of the audit log are alike.
    audit() = "audit", "stream", "no expiry, about the latest audit.records, up to 64 MiB";
    /// STREAM: changes and log-ins of callers with many of them, which must not displace those of others.
    audit_frequent() = "audit:frequent", "stream", "no expiry, about the latest audit.records, up to 64 MiB";
    /// STREAM: rejected calls and log-ins, each as JSON in the field `record`. It is separate, because anyone can cause
    /// rejections, and they must not displace changes.
    audit_refused() = "audit:refused", "stream", "no expiry, about the latest 10,000, up to 64 MiB";
    /// HASH: pacemaker → its last report (unix ms, this server's clock) and its version, separated by a space.
    pacemakers() = "pacemakers", "hash", "no expiry, members for 30 s of silence";
    /// HASH: the holder of a singleton task (`holder`), the end of its lease (`until_ms`, this server's clock), and the fencing
    /// `epoch`.
    lease(name: &str) = "lease:{name}", "hash", "no expiry";
}
