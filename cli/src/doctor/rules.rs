//! The judgement: what was seen in, what is wrong and how to mend it out. No I/O.

mod machines;

use super::{
    Finding,
    Severity::{self, Broken, Warning},
    facts::Facts,
    server::{FABRIC, REPLICA, ROUTES, STATS, Server},
};

/// Clocks that differ by more make leases, signatures and statistics wrong.
const SKEW_MS: u64 = 2_000;
/// Counters that are later than this are late; they are half a second late as a rule.
const LAG_SECONDS: f64 = 10.0;
/// A replica hears its master every second.
const QUIET_SECONDS: u64 = 15;
/// Long enough to renew, short enough to be done.
const EXPIRING_DAYS: f64 = 14.0;
/// Below this, most deliveries fail.
const POOR_HEALTH: u32 = 50;
/// Used memory, in percent of what a server may use.
const FULL_PERCENT: u64 = 90;

/// Everything that is wrong, worst first.
pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for (part, why) in &facts.silent {
        let mend = "start it, and look at its log (`signalbox status` says where); everything else goes on without it";
        found.push(finding(Broken, "silent", part, why, mend));
    }
    facts.servers.iter().for_each(|server| redis(server, &mut found));
    edge(facts, &mut found);
    sidecar(facts, &mut found);
    receivers(facts, &mut found);
    machines::judge(facts, &mut found);
    certificates(facts, &mut found);
    versions(facts, &mut found);
    if facts.zones == Some(false) {
        let what = "the time zones of the world are missing";
        let mend =
            "install tzdata (Debian: apt-get install tzdata); until then gates with a time zone are refused";
        found.push(finding(Broken, "time_zones", "this machine", what, mend));
    }
    found.sort_by(|a, b| (a.severity, a.rule, &a.about).cmp(&(b.severity, b.rule, &b.about)));
    found
}

fn finding(
    severity: Severity,
    rule: &'static str,
    about: &str,
    what: impl Into<String>,
    mend: &str,
) -> Finding {
    Finding { severity, rule, about: about.to_owned(), what: what.into(), mend: mend.to_owned() }
}

fn redis(server: &Server, found: &mut Vec<Finding>) {
    let about = format!("Redis {} ({})", server.role, server.url);
    let mut add = |severity, rule, what: String, mend: &str| {
        found.push(finding(severity, rule, &about, what, mend));
    };
    if server.skew_ms.unsigned_abs() > SKEW_MS {
        let direction = if server.skew_ms > 0 { "before" } else { "behind" };
        let what = format!("its clock is {} ms {direction} this machine's", server.skew_ms.unsigned_abs());
        add(Broken, "clock_skew", what, "run chrony or systemd-timesyncd on every machine");
    }
    let version = server.says("redis_version");
    if version.split('.').next().and_then(|major| major.parse::<u32>().ok()).is_some_and(|major| major < 7) {
        add(Broken, "redis_version", format!("it is Redis {version}"), "install Redis 7.0 or newer");
    }
    if server.role == REPLICA {
        replica(server, &mut add);
    } else {
        keeper(server, &mut add);
    }
}

fn replica(server: &Server, add: &mut impl FnMut(Severity, &'static str, String, &str)) {
    let mend = "REPLICAOF of this server must name the routes master, which must be reachable; routers go on with the last table";
    if !matches!(server.says("role"), "slave" | "replica") {
        add(
            Broken,
            "replication",
            "it is no replica: its router will never hear of a change".to_owned(),
            mend,
        );
    } else if server.says("master_link_status") != "up" {
        let master = format!("{}:{}", server.says("master_host"), server.says("master_port"));
        add(Broken, "replication", format!("its link to the routes master ({master}) is down"), mend);
    } else if let Some(quiet) =
        server.number("master_last_io_seconds_ago").filter(|quiet| *quiet > QUIET_SECONDS)
    {
        add(Warning, "replication", format!("it has heard nothing of its master for {quiet} s"), mend);
    }
}

/// A server whose data is not made again from elsewhere.
fn keeper(server: &Server, add: &mut impl FnMut(Severity, &'static str, String, &str)) {
    let kept = match server.role {
        ROUTES => "routes",
        STATS => "counters",
        FABRIC => "events and what is wanted of the table",
        _ => "data",
    };
    let policy = server.says("maxmemory_policy");
    if !policy.is_empty() && policy != "noeviction" {
        let what =
            format!("maxmemory-policy is {policy}: when memory is short, {kept} vanish without a word");
        add(
            Broken,
            "eviction",
            what,
            "set maxmemory-policy noeviction in its configuration (CONFIG SET takes effect at once)",
        );
    }
    if server.says("aof_enabled") == "0" {
        let what = format!("the append-only file is off: a restart loses {kept}");
        add(
            Broken,
            "aof_off",
            what,
            "set appendonly yes in its configuration (CONFIG SET appendonly yes writes the file at once)",
        );
    } else if server.says("aof_last_write_status") == "err"
        || server.says("aof_last_bgrewrite_status") == "err"
    {
        let what = "the append-only file could not be written last time".to_owned();
        add(
            Broken,
            "aof_failing",
            what,
            "look at its disk: it is full, read-only or broken; its log says which",
        );
    }
    if server.says("role") == "slave" {
        let what = "it is a replica, and will refuse writes".to_owned();
        add(Broken, "read_only", what, "name its master in the configuration of the daemons, or promote it");
    }
    if let (Some(used), Some(most)) = (server.number("used_memory"), server.number("maxmemory"))
        && most > 0
        && used.saturating_mul(100) / most >= FULL_PERCENT
    {
        let what =
            format!("{} % of its memory is used; then it refuses writes", used.saturating_mul(100) / most);
        add(
            Warning,
            "memory",
            what,
            "raise maxmemory, or find out what grows: `signalbox queues list`, `signalbox subscribers list`",
        );
    }
}

fn edge(facts: &Facts, found: &mut Vec<Finding>) {
    for router in &facts.routers {
        let about = format!("router {}", router.node);
        if let Some(alarm) = &router.alarm {
            let mend = "the pacemaker seeds the table anew by itself; to accept the table as it is: POST /edge/accept (docs/operations.md)";
            found.push(finding(
                Broken,
                "table_not_believed",
                &about,
                format!("it does not believe the table: {alarm}"),
                mend,
            ));
        }
        if router.state == "silent" {
            let mend = "start its sidecar; if the router is gone for good, it is forgotten after a minute";
            found.push(finding(Broken, "router_silent", &about, "it has not reported for seconds", mend));
        } else if let Some(behind) = router.behind_by.filter(|behind| *behind > 0) {
            let mend = "look again in a second; if it stays, its replica or its nginx is away";
            found.push(finding(
                Warning,
                "router_behind",
                &about,
                format!("it is {behind} changes behind"),
                mend,
            ));
        }
    }
    if facts.routers.is_empty() && facts.silent.is_empty() {
        let mend = "a sidecar must run beside every nginx and reach the statistics Redis; without one `?wait=` is never answered";
        found.push(finding(Broken, "no_router", "the routers", "none has reported in the last minute", mend));
    }
    match &facts.edge {
        Some(edge) if !edge.connected => {
            let mend = "start the routes replica beside it; routing goes on with what is known";
            found.push(finding(
                Broken,
                "edge_unconnected",
                "nginx",
                "it has no connection to its routes replica",
                mend,
            ));
        }
        Some(edge) if edge.alarm.is_some() && facts.routers.iter().all(|router| router.alarm.is_none()) => {
            let mend = "the pacemaker seeds the table anew by itself; look again in a moment";
            found.push(finding(Broken, "table_not_believed", "nginx", "it does not believe the table", mend));
        }
        _ => {}
    }
}

fn sidecar(facts: &Facts, found: &mut Vec<Finding>) {
    let metrics = &facts.metrics;
    let before = found.len();
    let states = [
        (
            "signalbox_sidecar_fenced",
            "sidecar_fenced",
            "a newer sidecar counts this router's log",
            "two sidecars share a `node`: stop one, or give it a node of its own",
        ),
        (
            "signalbox_sidecar_statistics_away",
            "statistics_away",
            "it cannot reach the statistics Redis; the log waits and nothing is lost",
            "start the statistics Redis",
        ),
        (
            "signalbox_sidecar_statistics_refused",
            "statistics_refused",
            "the statistics Redis refuses to write",
            "look at its memory and its disk",
        ),
        (
            "signalbox_sidecar_statistics_unreadable",
            "statistics_unreadable",
            "the statistics hold something unexpected",
            "the sidecar's log says what; another program writes there",
        ),
        (
            "signalbox_sidecar_log_unreadable",
            "log_unreadable",
            "it cannot read the access log",
            "give its user the right to read it, and its folder the right to be entered",
        ),
    ];
    for (metric, rule, what, mend) in states {
        if metrics.is_set(metric) {
            found.push(finding(Broken, rule, "sidecar", what, mend));
        }
    }
    let lag = metrics.most("signalbox_sidecar_lag_seconds").unwrap_or(0.0);
    if lag > LAG_SECONDS && found.len() == before {
        let mend = "it catches up by itself when it is faster than the traffic; else the statistics Redis is too slow or too far away";
        found.push(finding(
            Broken,
            "sidecar_lag",
            "sidecar",
            format!("its counters are {lag:.0} s behind the log"),
            mend,
        ));
    }
    // Only when the sidecar says that all is well is it nginx that writes nothing.
    if facts.counted == Some(false) && found.len() == before {
        let what =
            "requests are answered and not counted: it does not write the log that the sidecar follows";
        let mend = "`access_log` of nginx and `access_log` of the sidecar must name the same file, its disk must have room, and nginx must be told (USR1) when somebody else moved it";
        found.push(finding(Broken, "nginx_not_logging", "nginx", what, mend));
    }
    if metrics.is_set("signalbox_sidecar_rotation_failed") {
        let mend =
            "it needs the right to rename in the log's folder and to signal nginx; meanwhile the log grows";
        found.push(finding(Warning, "rotation_failed", "sidecar", "it cannot rotate the access log", mend));
    }
}

fn receivers(facts: &Facts, found: &mut Vec<Finding>) {
    for receiver in &facts.receivers {
        let (kind, name) = (if receiver.is_backend { "backend" } else { "subscriber" }, &receiver.name);
        let about = format!("{kind} {name}");
        if let Some(why) = &receiver.disabled {
            let (rule, again) = if receiver.is_backend {
                ("backend_disabled", "put the backend again (PUT /backends/…)")
            } else {
                ("subscriber_disabled", "subscribe again (POST /subscription)")
            };
            let what = format!("nothing is sent to it any more: {why}");
            found.push(finding(Broken, rule, &about, what, &format!("mend the receiver, then {again}")));
        } else if let Some(health) = receiver.health.filter(|health| *health < POOR_HEALTH) {
            let mend = format!("look at its log, or try it: `signalbox subscribers test {name}`");
            found.push(finding(
                Warning,
                "subscriber_failing",
                &about,
                format!("most deliveries fail (health {health} of 100)"),
                &mend,
            ));
        }
        if receiver.dead > 0 {
            let mend = if receiver.is_backend {
                format!("`signalbox objects dead {name}` lists them")
            } else {
                format!(
                    "`signalbox subscribers dead {name}` lists them, `signalbox subscribers redrive {name}` sends them again"
                )
            };
            found.push(finding(
                Warning,
                "dead_letters",
                &about,
                format!("{} events were given up", receiver.dead),
                &mend,
            ));
        }
    }
}

fn certificates(facts: &Facts, found: &mut Vec<Finding>) {
    let days = facts.metrics.least("signalbox_pacemaker_certificate_first_end_days");
    let Some(days) = days.filter(|days| *days < EXPIRING_DAYS) else { return };
    let mend = "put a renewed one in its place; routers take it at once, without a reload";
    let about = "a certificate";
    found.push(if days <= 0.0 {
        finding(Broken, "certificate_expired", about, "it has expired: browsers refuse its hosts", mend)
    } else {
        finding(Warning, "certificate_expiring", about, format!("it expires in {days:.0} days"), mend)
    });
}

fn versions(facts: &Facts, found: &mut Vec<Finding>) {
    let mut versions: Vec<&str> = facts.pacemakers.iter().map(|pacemaker| &*pacemaker.version).collect();
    versions.sort_unstable();
    versions.dedup();
    if versions.len() > 1 {
        let nodes =
            facts.pacemakers.iter().map(|one| format!("{} {}", one.node, one.version)).collect::<Vec<_>>();
        let mend = "finish the upgrade: they work side by side, but only as well as the older one";
        found.push(finding(
            Warning,
            "versions_differ",
            "pacemakers",
            format!("they are of different versions: {}", nodes.join(", ")),
            mend,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{
        facts::{Edge, Pacemaker, Receiver, Router},
        metrics::Metrics,
    };

    fn server(role: &'static str, changed: &[(&str, &str)]) -> Server {
        let healthy: &[(&str, &str)] = if role == REPLICA {
            &[
                ("role", "slave"),
                ("master_link_status", "up"),
                ("master_last_io_seconds_ago", "0"),
                ("aof_enabled", "0"),
                ("maxmemory_policy", "noeviction"),
            ]
        } else {
            &[
                ("role", "master"),
                ("aof_enabled", "1"),
                ("aof_last_write_status", "ok"),
                ("maxmemory_policy", "noeviction"),
                ("used_memory", "5"),
                ("maxmemory", "0"),
            ]
        };
        let fields = [("redis_version", "7.0.15")].iter().chain(healthy).chain(changed);
        let info = fields.map(|(field, value)| ((*field).to_owned(), (*value).to_owned())).collect();
        Server { role, url: "redis://h/".to_owned(), info, skew_ms: 0 }
    }

    /// A system in which nothing is wrong.
    fn healthy() -> Facts {
        let router =
            Router { node: "r1".to_owned(), state: "live".to_owned(), alarm: None, behind_by: Some(0) };
        Facts {
            servers: [ROUTES, REPLICA, STATS, FABRIC].map(|role| server(role, &[])).to_vec(),
            routers: vec![router],
            edge: Some(Edge { connected: true, alarm: None }),
            metrics: metrics(""),
            counted: Some(true),
            receivers: vec![Receiver { name: "s".to_owned(), health: Some(100), ..Receiver::default() }],
            zones: Some(true),
            pacemakers: vec![Pacemaker { node: "p1".to_owned(), version: "1".to_owned() }],
            ..Facts::default()
        }
    }

    pub(super) fn metrics(more: &str) -> Metrics {
        Metrics::read(&format!(
            "signalbox_sidecar_following 1\nsignalbox_sidecar_lag_seconds 0.4\nsignalbox_pacemaker_certificate_first_end_days NaN\n{more}"
        ))
    }

    pub(super) fn rules_of(change: impl FnOnce(&mut Facts)) -> Vec<&'static str> {
        let mut facts = healthy();
        change(&mut facts);
        let found = judge(&facts);
        assert!(found.iter().all(|one| !one.mend.is_empty() && !one.what.is_empty()), "{found:?}");
        found.iter().map(|one| one.rule).collect()
    }

    #[test]
    fn a_healthy_system_has_no_findings() {
        assert_eq!(rules_of(|_| ()), [""; 0]);
    }

    #[test]
    fn a_server_that_is_set_up_wrongly_is_named() {
        for (role, field, value, rule) in [
            (REPLICA, "role", "master", "replication"),
            (REPLICA, "master_link_status", "down", "replication"),
            (REPLICA, "master_last_io_seconds_ago", "99", "replication"),
            (ROUTES, "maxmemory_policy", "allkeys-lru", "eviction"),
            (FABRIC, "maxmemory_policy", "volatile-ttl", "eviction"),
            (STATS, "aof_enabled", "0", "aof_off"),
            (FABRIC, "aof_last_write_status", "err", "aof_failing"),
            (FABRIC, "role", "slave", "read_only"),
            (FABRIC, "maxmemory", "5", "memory"),
            (STATS, "redis_version", "6.2.1", "redis_version"),
        ] {
            let found = rules_of(|facts| facts.servers.push(server(role, &[(field, value)])));
            assert_eq!(found, [rule], "{role} {field} {value}");
        }
        // What only follows may forget: it is filled from its master.
        assert_eq!(
            rules_of(|facts| facts.servers = vec![server(REPLICA, &[("maxmemory_policy", "allkeys-lru")])]),
            [""; 0]
        );
    }

    #[test]
    fn clocks_that_differ_are_named_either_way() {
        for skew_ms in [2_001, -2_001] {
            assert_eq!(rules_of(|facts| facts.servers[0].skew_ms = skew_ms), ["clock_skew"]);
        }
        assert_eq!(rules_of(|facts| facts.servers[0].skew_ms = -2_000), [""; 0]);
    }

    #[test]
    fn a_router_that_lags_is_silent_or_doubts_is_named() {
        assert_eq!(rules_of(|facts| facts.routers[0].behind_by = Some(3)), ["router_behind"]);
        assert_eq!(rules_of(|facts| facts.routers[0].state = "silent".to_owned()), ["router_silent"]);
        assert_eq!(
            rules_of(|facts| facts.routers[0].alarm = Some("older".to_owned())),
            ["table_not_believed"]
        );
        assert_eq!(rules_of(|facts| facts.routers.clear()), ["no_router"]);
        assert_eq!(
            rules_of(|facts| facts.edge = Some(Edge { connected: false, alarm: None })),
            ["edge_unconnected"]
        );
        assert_eq!(
            rules_of(|facts| facts.edge = Some(Edge { connected: true, alarm: Some("x".to_owned()) })),
            ["table_not_believed"]
        );
    }

    #[test]
    fn who_does_not_count_and_why() {
        assert_eq!(rules_of(|facts| facts.counted = Some(false)), ["nginx_not_logging"]);
        assert_eq!(
            rules_of(|facts| facts.metrics = metrics("signalbox_sidecar_lag_seconds{x=\"1\"} 11")),
            ["sidecar_lag"]
        );
        for (metric, rule) in [
            ("fenced", "sidecar_fenced"),
            ("statistics_away", "statistics_away"),
            ("statistics_refused", "statistics_refused"),
            ("statistics_unreadable", "statistics_unreadable"),
            ("log_unreadable", "log_unreadable"),
        ] {
            // The reason that is known is named, and not what follows from it.
            let page = format!("signalbox_sidecar_{metric} 1\nsignalbox_sidecar_lag_seconds 99");
            let found = rules_of(|facts| {
                facts.metrics = metrics(&page);
                facts.counted = Some(false);
            });
            assert_eq!(found, [rule]);
        }
        assert_eq!(
            rules_of(|facts| facts.metrics = metrics("signalbox_sidecar_rotation_failed 1")),
            ["rotation_failed"]
        );
    }

    #[test]
    fn a_receiver_that_gets_nothing_is_named() {
        assert_eq!(
            rules_of(|facts| facts.receivers[0].disabled = Some("410".to_owned())),
            ["subscriber_disabled"]
        );
        assert_eq!(rules_of(|facts| facts.receivers[0].health = Some(49)), ["subscriber_failing"]);
        assert_eq!(rules_of(|facts| facts.receivers[0].dead = 1), ["dead_letters"]);
        let backend = Receiver {
            name: "b".to_owned(),
            is_backend: true,
            disabled: Some("410".to_owned()),
            health: None,
            dead: 2,
        };
        assert_eq!(rules_of(|facts| facts.receivers = vec![backend]), ["backend_disabled", "dead_letters"]);
    }

    #[test]
    fn certificates_are_named_before_they_end() {
        for (days, rules) in
            [("20", vec![]), ("13.5", vec!["certificate_expiring"]), ("-1", vec!["certificate_expired"])]
        {
            let page = format!("signalbox_pacemaker_certificate_first_end_days {days}");
            assert_eq!(rules_of(|facts| facts.metrics = metrics(&page)), rules, "{days}");
        }
    }

    #[test]
    fn time_zones_silent_parts_and_two_versions_are_named() {
        assert_eq!(rules_of(|facts| facts.zones = Some(false)), ["time_zones"]);
        assert_eq!(
            rules_of(|facts| facts.silent.push(("stats".to_owned(), "refused".to_owned()))),
            ["silent"]
        );
        let other = Pacemaker { node: "p2".to_owned(), version: "2".to_owned() };
        assert_eq!(rules_of(|facts| facts.pacemakers.push(other)), ["versions_differ"]);
    }

    #[test]
    fn what_is_broken_comes_first() {
        let mut facts = healthy();
        facts.receivers[0].dead = 1;
        facts.zones = Some(false);
        let found = judge(&facts);
        assert_eq!(found.iter().map(|one| one.severity).collect::<Vec<_>>(), [Broken, Warning]);
    }
}
