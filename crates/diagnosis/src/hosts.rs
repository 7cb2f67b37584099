//! The state of a host: what its requests get, by its policy, the health of its instances, the ejections that routers report,
//! and the requests of the last minute.
//!
//! Every page, list, command and rule that describes a host uses [`Reading::state`].

use crate::{
    Finding,
    Severity::{Critical, Warning},
    Subject,
    text::{count, day_and_time, span},
    thresholds::{MAX_ERROR_PERCENT, MIN_REQUESTS},
};

/// Version types that a sentence names.
const MAX_NAMED: usize = 3;

/// When a mode was set, and by which token or person.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Since {
    /// Unix milliseconds; `None` for a policy that was written by hand.
    pub at_ms: Option<u64>,
    /// The name of the token, or of the person.
    pub by: Option<String>,
}

/// What the policy of a host decides for all of its requests, before an instance is chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Mode {
    /// Requests get an instance.
    #[default]
    Serving,
    /// They wait.
    Paused {
        /// For at most so many milliseconds.
        wait_ms: u64,
        /// When it began.
        since: Since,
    },
    /// They are redirected.
    Redirect {
        /// The target.
        to: String,
    },
    /// The edge answers them.
    Maintenance {
        /// The status of the answer.
        status: u16,
        /// When it began.
        since: Since,
    },
}

/// What is known about a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    /// What its policy decides.
    pub mode: Mode,
    /// Instances that get requests, if they are healthy.
    pub instances: u64,
    /// Other instances, which are draining or on standby.
    pub idle: u64,
    /// Those of `instances` whose health check failed.
    pub unhealthy: u64,
    /// Those of `instances` that a router has ejected; `None` if that is not known.
    pub ejected: Option<u64>,
    /// Version types to which its traffic split gives a part, and of which none of `instances` is.
    pub unserved_shares: Vec<String>,
    /// Hosts to which rules for other paths than `/` lead, and which have no active instance.
    pub unserved_services: Vec<String>,
    /// Whether it has path rules that were not checked.
    pub has_unknown_rules: bool,
    /// Whether the instances of `service` were not read.
    pub has_unknown_service: bool,
    /// The host whose instances these are, if a rule for `/` leads there.
    pub service: Option<String>,
    /// Rules for paths that lead to other hosts or redirect, if none of them is for `/`.
    pub path_rules: u64,
    /// The version types under which its requests are counted. Other hosts may have the same ones.
    pub versions: Vec<String>,
    /// The last minute's requests of these version types; `None` if they are not known.
    pub minute: Option<Minute>,
}

/// Requests of a minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Minute {
    /// All of them.
    pub requests: u64,
    /// Those that an instance answered with 5xx, or that no instance answered.
    pub failed: u64,
}

/// The kinds of states, the first that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Condition {
    /// Requests get an instance.
    Healthy,
    /// Requests wait, because an operator paused the host.
    Paused,
    /// Requests are redirected, because the policy says so.
    Redirects,
    /// The edge answers, because an operator set it.
    Maintenance,
    /// Requests for some paths are routed to other hosts, and the host has no instance for the rest.
    PathsOnly,
    /// Requests get an instance, and whether they fail is not known.
    Unknown,
    /// A version type without an active instance has a share of the requests; they go to the others.
    ShareWithoutInstance,
    /// Some instances are unhealthy.
    Degraded,
    /// Routers have ejected instances.
    Ejected,
    /// A path is routed to a host without an active instance.
    RuleWithoutInstance,
    /// Many requests fail.
    Failing,
    /// More than half of the instances are unhealthy, so that all of them receive requests.
    Unhealthy,
    /// No instance can get requests.
    NoInstance,
}

impl Condition {
    /// All conditions, the best first.
    pub const ALL: [Self; 13] = [
        Self::Healthy,
        Self::Paused,
        Self::Redirects,
        Self::Maintenance,
        Self::PathsOnly,
        Self::Unknown,
        Self::ShareWithoutInstance,
        Self::Degraded,
        Self::Ejected,
        Self::RuleWithoutInstance,
        Self::Failing,
        Self::Unhealthy,
        Self::NoInstance,
    ];

    /// Its name in answers of the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Paused => "paused",
            Self::Redirects => "redirects",
            Self::Maintenance => "maintenance",
            Self::PathsOnly => "paths_only",
            Self::Unknown => "unknown",
            Self::ShareWithoutInstance => "share_without_instance",
            Self::Degraded => "degraded",
            Self::Ejected => "ejected",
            Self::RuleWithoutInstance => "rule_without_instance",
            Self::Failing => "failing",
            Self::Unhealthy => "unhealthy",
            Self::NoInstance => "no_instance",
        }
    }

    /// The condition with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Whether an operator has decided that no instance gets requests, so that its instances need no attention.
    pub fn is_planned(self) -> bool {
        matches!(self, Self::Paused | Self::Redirects | Self::Maintenance)
    }

    /// How bad it is; `None` if it is not a problem.
    pub fn severity(self) -> Option<crate::Severity> {
        match self {
            Self::RuleWithoutInstance | Self::Failing | Self::Unhealthy | Self::NoInstance => Some(Critical),
            Self::ShareWithoutInstance | Self::Degraded | Self::Ejected => Some(Warning),
            _ => None,
        }
    }
}

/// The state of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Its kind.
    pub condition: Condition,
    /// A few words, for lists: `2 of 3 ejected`.
    pub short: String,
    /// A sentence, or two.
    pub summary: String,
    /// Version types with a share that none of its instances receives, if it serves requests.
    pub unserved_shares: Vec<String>,
    /// Hosts without an active instance to which rules for paths lead, if it serves requests.
    pub unserved_services: Vec<String>,
}

impl Reading {
    /// The state at the unix millisecond `now_ms`.
    pub fn state(&self, now_ms: u64) -> State {
        let (condition, short, mut summary) = self.first(now_ms);
        let ejected = self.ejected.unwrap_or(0);
        if ejected > 0 && condition.severity() == Some(Critical) {
            summary += &format!(" {}.", self.out_of(ejected, "ejected"));
        }
        // While an operator answers requests otherwise, or no instance does, no share is served.
        let is_serving = !condition.is_planned() && self.instances > 0;
        let unserved_shares = if is_serving { self.unserved_shares.clone() } else { Vec::new() };
        if !unserved_shares.is_empty() {
            let versions = unserved_shares.join(", ");
            summary +=
                &format!(" The traffic split gives a share to {versions}, which has no active instance.");
        }
        let unserved_services =
            if condition.is_planned() { Vec::new() } else { self.unserved_services.clone() };
        if !unserved_services.is_empty() {
            let services = unserved_services.join(", ");
            summary +=
                &format!(" Paths that are routed to {services} return 503: it has no active instance.");
        }
        State { condition, short, summary, unserved_shares, unserved_services }
    }

    fn first(&self, now_ms: u64) -> (Condition, String, String) {
        let since = |since: &Since| {
            let at = since.at_ms.map(|at| format!(" since {}", day_and_time(at, now_ms))).unwrap_or_default();
            let by = since.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
            at + &by
        };
        match &self.mode {
            Mode::Paused { wait_ms, since: from } => {
                let wait = if wait_ms % 1000 == 0 { span(*wait_ms) } else { format!("{wait_ms} ms") };
                let text = format!(
                    "Paused{}: requests wait for up to {wait} until the host is resumed.",
                    since(from)
                );
                return (Condition::Paused, "paused".to_owned(), text);
            }
            Mode::Redirect { to } => {
                return (Condition::Redirects, "redirects".to_owned(), format!("Redirects to {to}."));
            }
            Mode::Maintenance { status, since: from } => {
                let text = format!("In maintenance{}: the edge answers with {status}.", since(from));
                return (Condition::Maintenance, "maintenance".to_owned(), text);
            }
            Mode::Serving => {}
        }
        if let Some(service) = self.service.as_ref().filter(|_| self.has_unknown_service) {
            let text = format!(
                "Requests are routed to {service}. Whether it has an instance was not checked: a list reads a limited number of \
                 services. The host's own page shows it."
            );
            return (Condition::Unknown, "not known".to_owned(), text);
        }
        // A rule for `/` leads to the instances of another host.
        let of = self.service.as_ref().map(|service| format!(" of {service}")).unwrap_or_default();
        // A host that has had instances, or has some that receive nothing, is not meant to do without.
        let never_had_instances = self.idle == 0 && self.versions.is_empty();
        if self.instances == 0 && self.path_rules > 0 && never_had_instances {
            let (condition, short) = match (self.unserved_services.is_empty(), self.has_unknown_rules) {
                (false, _) => (Condition::RuleWithoutInstance, "rule without instance"),
                (true, true) => (Condition::Unknown, "not known"),
                (true, false) => (Condition::PathsOnly, "paths only"),
            };
            let rules = count(self.path_rules, "path rule");
            let text = format!(
                "Requests for other paths than those of {rules} are answered with 503: no instance can receive them."
            );
            return (condition, short.to_owned(), text);
        }
        if self.instances == 0 {
            let (short, why) = match self.idle {
                0 => (format!("no instance{of}"), format!("no instance{of} can receive them")),
                _ => (
                    format!("no active instance{of}"),
                    format!("every instance{of} is draining or on standby"),
                ),
            };
            let which = match self.path_rules {
                0 => "Requests".to_owned(),
                rules => {
                    format!("Requests for other paths than those of {}", count(rules, "path rule"))
                }
            };
            let text = format!("{which} are answered with 503: {why}.");
            return (Condition::NoInstance, short, text);
        }
        // As in the edge: if few are healthy, the checks themselves may be wrong.
        if self.unhealthy.saturating_mul(2) > self.instances {
            let text = match self.unhealthy >= self.instances {
                true => format!(
                    "No instance{of} is healthy, so health is ignored and all of them receive requests."
                ),
                false => format!(
                    "{}, which are more than half, so health is ignored and all of them receive requests.",
                    self.out_of(self.unhealthy, "unhealthy")
                ),
            };
            return (Condition::Unhealthy, "unhealthy".to_owned(), text);
        }
        if let Some(Minute { requests, failed }) = self.minute
            && is_failing(requests, failed)
        {
            let percent = failed.saturating_mul(100) / requests;
            let text = format!("{}{}.", self.counted(), failures(requests, failed));
            return (Condition::Failing, format!("{percent}% failed"), text);
        }
        let routed = match self.instances {
            1 => format!("Requests are routed to an instance{of}."),
            several => format!("Requests are routed to {several} instances{of}."),
        };
        if !self.unserved_services.is_empty() {
            return (Condition::RuleWithoutInstance, "rule without instance".to_owned(), routed);
        }
        if let Some(ejected) = self.ejected.filter(|ejected| *ejected > 0) {
            let text = format!("{}, because requests to them failed.", self.out_of(ejected, "ejected"));
            return (Condition::Ejected, format!("{ejected} of {} ejected", self.instances), text);
        }
        if self.unhealthy > 0 {
            let text =
                format!("{}; requests are routed to the others.", self.out_of(self.unhealthy, "unhealthy"));
            return (Condition::Degraded, format!("{} unhealthy", self.unhealthy), text);
        }
        if !self.unserved_shares.is_empty() {
            return (Condition::ShareWithoutInstance, "share without instance".to_owned(), routed);
        }
        if self.has_unknown_rules {
            let text = format!(
                "{routed} Where its path rules lead was not checked: a list reads a limited number of services. The host's own page \
                 shows it."
            );
            return (Condition::Unknown, "not known".to_owned(), text);
        }
        if self.minute.is_none() || self.ejected.is_none() {
            let text = format!("{routed} Whether they fail is not known: the statistics cannot be read.");
            return (Condition::Unknown, "not known".to_owned(), text);
        }
        (Condition::Healthy, "healthy".to_owned(), routed)
    }

    /// The version types under which the requests are counted, as the beginning of a sentence. Requests to other hosts with the same
    /// version types are among them.
    fn counted(&self) -> String {
        match &*self.versions {
            [] => String::new(),
            [one] => format!("Version type {one}: "),
            several if several.len() <= MAX_NAMED => format!("Version types {}: ", several.join(", ")),
            several => format!("{}: ", count(several.len() as u64, "version type")),
        }
    }

    fn out_of(&self, some: u64, what: &str) -> String {
        let are = if some == 1 { "is" } else { "are" };
        format!("{some} of {} {are} {what}", count(self.instances, "instance"))
    }
}

/// Whether so many requests of a minute failed that it is a problem.
pub(crate) fn is_failing(requests: u64, failed: u64) -> bool {
    requests >= MIN_REQUESTS
        && failed > 0
        && failed.saturating_mul(100) >= requests.saturating_mul(MAX_ERROR_PERCENT)
}

/// `86% of 1.5 requests/s failed in the last minute`.
pub(crate) fn failures(requests: u64, failed: u64) -> String {
    let percent = failed.saturating_mul(100) / requests.max(1);
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = requests as f64 / 60.0;
    format!("{percent}% of {rate:.1} requests/s failed in the last minute")
}

/// A host name in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The name.
    pub name: String,
    /// Its state.
    pub state: State,
}

/// Checks a host. What an operator has decided is not a problem, and failing requests are one of their version type.
pub fn host(host: &Host) -> Option<Finding> {
    let Host { name, state } = host;
    let (severity, subject) = (state.condition.severity()?, Subject::Host(name.clone()));
    let (id, problem, fix) = match state.condition {
        Condition::NoInstance => (
            "host-without-instance",
            format!("Host {name} has {}.", state.short),
            "Its requests are answered 503. Register or resume an instance, promote a version type that has instances \
             (`signalbox hosts promote`), or remove the host.",
        ),
        Condition::Unhealthy => (
            "host-unhealthy",
            format!("More than half of the instances of host {name} are unhealthy."),
            "Health is ignored, and requests are sent to all of them. Find out why the health checks fail, and start instances that \
             work.",
        ),
        Condition::Ejected => (
            "instances-ejected",
            format!("Host {name}: {}", state.summary),
            "A router sends no requests to an instance that failed several times in a row, for up to a minute. Check the \
             application's log on these instances.",
        ),
        _ => return None,
    };
    Some(Finding::new(severity, id, subject, problem, fix))
}

/// Checks where the rules for paths of a host lead.
pub fn services(host: &Host) -> Option<Finding> {
    let missing = &host.state.unserved_services;
    (!missing.is_empty()).then(|| {
        let subject = Subject::Host(host.name.clone());
        let problem = format!(
            "Host {} routes paths to {}, which has no active instance.",
            host.name,
            missing.join(", ")
        );
        let fix =
            "Requests for these paths return 503. Register or resume an instance there, or correct the rule.";
        Finding::new(Critical, "rule-without-instance", subject, problem, fix)
    })
}

/// Checks the traffic split of a host.
pub fn shares(host: &Host) -> Option<Finding> {
    let missing = &host.state.unserved_shares;
    (!missing.is_empty()).then(|| {
        let subject = Subject::Host(host.name.clone());
        let versions = missing.join(", ");
        let problem = format!(
            "The traffic split of host {} gives a share to {versions}, which has no active instance.",
            host.name
        );
        let fix = "The other version types receive its requests. Register or resume an instance of it, or correct the split.";
        Finding::new(Warning, "share-without-instance", subject, problem, fix)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_795_272_420_000;

    fn serving(instances: u64) -> Reading {
        Reading { instances, ejected: Some(0), minute: Some(Minute::default()), ..Reading::default() }
    }

    fn minute(requests: u64, failed: u64) -> Option<Minute> {
        Some(Minute { requests, failed })
    }

    fn named(reading: &Reading) -> Host {
        Host { name: "a.example".to_owned(), state: reading.state(NOW_MS) }
    }

    fn shown(reading: &Reading) -> (Condition, String) {
        let State { condition, summary, .. } = reading.state(NOW_MS);
        (condition, summary)
    }

    #[test]
    fn a_mode_shows_since_when_and_by_whom() {
        let since = Since { at_ms: Some(NOW_MS - 60_000), by: Some("root".to_owned()) };
        let mode = Mode::Maintenance { status: 503, since: since.clone() };
        let text = "In maintenance since 14:46 UTC by root: the edge answers with 503.";
        assert_eq!(shown(&Reading { mode, ..serving(0) }), (Condition::Maintenance, text.to_owned()));
        let since = Since { at_ms: Some(NOW_MS - 86_400_000), by: None };
        let mode = Mode::Paused { wait_ms: 20_000, since };
        let text =
            "Paused since 2026-11-20 14:47 UTC: requests wait for up to 20 s until the host is resumed.";
        assert_eq!(shown(&Reading { mode, ..serving(1) }), (Condition::Paused, text.to_owned()));
        let mode = Mode::Redirect { to: "https://b.test".to_owned() };
        let text = "Redirects to https://b.test.";
        assert_eq!(shown(&Reading { mode, ..serving(1) }), (Condition::Redirects, text.to_owned()));
    }

    #[test]
    fn a_rule_for_a_path_needs_an_instance_where_it_leads() {
        let unserved = Reading { unserved_services: vec!["b.test".to_owned()], ..serving(1) };
        let text = "Requests are routed to an instance. Paths that are routed to b.test return 503: it has no active \
                    instance.";
        assert_eq!(shown(&unserved), (Condition::RuleWithoutInstance, text.to_owned()));
        let found = services(&named(&unserved)).unwrap();
        assert_eq!((found.id, found.severity), ("rule-without-instance", Critical));
        let paths_only = Reading { path_rules: 1, instances: 0, ..unserved.clone() };
        assert_eq!(shown(&paths_only).0, Condition::RuleWithoutInstance);
        let unchecked = Reading { has_unknown_rules: true, ..serving(1) };
        assert_eq!(shown(&unchecked).0, Condition::Unknown);
        let unchecked = Reading { path_rules: 20, instances: 0, ..unchecked };
        assert_eq!(shown(&unchecked).0, Condition::Unknown, "not `paths_only`, which is no problem");
        let service = Some("s.test".to_owned());
        let unread = Reading { has_unknown_service: true, service, instances: 0, path_rules: 0, ..unchecked };
        assert_eq!(shown(&unread).0, Condition::Unknown, "not `no_instance`, which is a problem");
        assert!(shown(&unread).1.starts_with("Requests are routed to s.test. "));
        let mode = Mode::Redirect { to: "https://c.test".to_owned() };
        assert!(services(&named(&Reading { mode, ..unserved })).is_none());
        assert!(services(&named(&serving(1))).is_none());
    }

    #[test]
    fn a_serving_host_is_described_by_what_its_requests_get() {
        let of = |reading: Reading| shown(&reading);
        assert_eq!(of(serving(0)).0, Condition::NoInstance);
        let text = "No instance is healthy, so health is ignored and all of them receive requests.";
        assert_eq!(of(Reading { unhealthy: 2, ..serving(2) }), (Condition::Unhealthy, text.to_owned()));
        let text = "2 of 3 instances are unhealthy, which are more than half, so health is ignored and all of them receive requests.";
        assert_eq!(of(Reading { unhealthy: 2, ..serving(3) }), (Condition::Unhealthy, text.to_owned()));
        assert_eq!(of(Reading { unhealthy: 1, ..serving(2) }).0, Condition::Degraded);
        let failing = Reading {
            minute: minute(90, 90),
            ejected: Some(2),
            versions: vec!["7".to_owned()],
            ..serving(3)
        };
        let text =
            "Version type 7: 100% of 1.5 requests/s failed in the last minute. 2 of 3 instances are ejected.";
        assert_eq!(of(failing), (Condition::Failing, text.to_owned()));
        let ejected = Reading { ejected: Some(1), minute: minute(10, 10), ..serving(3) };
        let text = "1 of 3 instances is ejected, because requests to them failed.";
        assert_eq!(of(ejected), (Condition::Ejected, text.to_owned()));
        let text = "1 of 3 instances is unhealthy; requests are routed to the others.";
        assert_eq!(of(Reading { unhealthy: 1, ..serving(3) }), (Condition::Degraded, text.to_owned()));
        assert_eq!(of(serving(1)).1, "Requests are routed to an instance.");
        assert_eq!(of(serving(3)).1, "Requests are routed to 3 instances.");
    }

    #[test]
    fn a_host_whose_failures_are_not_known_is_not_healthy() {
        let text = "Requests are routed to an instance. Whether they fail is not known: the statistics cannot be read.";
        for reading in [Reading { minute: None, ..serving(1) }, Reading { ejected: None, ..serving(1) }] {
            assert_eq!(shown(&reading), (Condition::Unknown, text.to_owned()));
            assert_eq!(host(&named(&reading)), None);
        }
        // What is known is shown.
        let of = |reading: Reading| shown(&reading).0;
        assert_eq!(of(Reading { minute: None, ejected: Some(1), ..serving(2) }), Condition::Ejected);
        assert_eq!(of(Reading { ejected: None, minute: minute(90, 90), ..serving(2) }), Condition::Failing);
        assert_eq!(of(Reading { minute: None, unhealthy: 1, ..serving(2) }), Condition::Degraded);
        assert_eq!(of(Reading { minute: None, ..serving(0) }), Condition::NoInstance);
    }

    #[test]
    fn a_host_with_rules_for_paths_is_described_by_what_they_lead_to() {
        let paths = Reading { path_rules: 2, ..serving(0) };
        let text = "Requests for other paths than those of 2 path rules are answered with 503: \
            no instance can receive them.";
        assert_eq!(shown(&paths), (Condition::PathsOnly, text.to_owned()));
        assert_eq!(host(&named(&paths)), None);
        // A host that has lost its instances is not meant to do without.
        for lost in
            [Reading { versions: vec!["7".to_owned()], ..paths.clone() }, Reading { idle: 1, ..paths }]
        {
            assert_eq!(shown(&lost).0, Condition::NoInstance);
            assert!(host(&named(&lost)).is_some());
        }
        let leads = |reading: Reading| Reading { service: Some("b.test".to_owned()), ..reading };
        assert_eq!(shown(&leads(serving(2))).1, "Requests are routed to 2 instances of b.test.");
        let text = "Requests are answered with 503: no instance of b.test can receive them.";
        assert_eq!(shown(&leads(serving(0))), (Condition::NoInstance, text.to_owned()));
        let found = host(&named(&leads(serving(0)))).map(|one| one.problem);
        assert_eq!(found.as_deref(), Some("Host a.example has no instance of b.test."));
    }

    #[test]
    fn only_what_was_not_planned_is_a_finding() {
        let id = |reading: Reading| host(&named(&reading)).map(|one| one.id);
        assert_eq!(id(serving(0)), Some("host-without-instance"));
        assert_eq!(id(Reading { idle: 2, ..serving(0) }), Some("host-without-instance"));
        assert_eq!(id(Reading { idle: 2, ..serving(1) }), None);
        assert_eq!(id(Reading { unhealthy: 2, ..serving(2) }), Some("host-unhealthy"));
        assert_eq!(id(Reading { unhealthy: 1, ..serving(2) }), None);
        assert_eq!(id(Reading { ejected: Some(1), ..serving(2) }), Some("instances-ejected"));
        let mode = Mode::Maintenance { status: 503, since: Since::default() };
        assert_eq!(id(Reading { mode, unhealthy: 2, ..serving(2) }), None);
    }

    #[test]
    fn a_host_whose_instances_are_all_on_standby_has_no_active_one() {
        let reading = Reading { idle: 2, ..serving(0) };
        let text = "Requests are answered with 503: every instance is draining or on standby.";
        assert_eq!(shown(&reading), (Condition::NoInstance, text.to_owned()));
        let problem = |reading: &Reading| host(&named(reading)).map(|one| one.problem);
        assert_eq!(problem(&reading).as_deref(), Some("Host a.example has no active instance."));
        assert_eq!(problem(&serving(0)).as_deref(), Some("Host a.example has no instance."));
    }

    #[test]
    fn a_share_of_a_version_type_without_an_instance_is_named() {
        let split = |reading: Reading| Reading { unserved_shares: vec!["typo".to_owned()], ..reading };
        let found = |reading: Reading| shares(&named(&reading)).map(|one| (one.id, one.problem));
        let problem =
            "The traffic split of host a.example gives a share to typo, which has no active instance.";
        let expected = Some(("share-without-instance", problem.to_owned()));
        assert_eq!(found(split(serving(1))), expected);
        assert_eq!(found(serving(1)), None);
        let text = "Requests are routed to an instance. \
            The traffic split gives a share to typo, which has no active instance.";
        assert_eq!(shown(&split(serving(1))), (Condition::ShareWithoutInstance, text.to_owned()));
        // A worse state hides neither the finding nor the sentence.
        let degraded = split(Reading { unhealthy: 1, ..serving(3) });
        assert_eq!(shown(&degraded).0, Condition::Degraded);
        assert!(shown(&degraded).1.ends_with("gives a share to typo, which has no active instance."));
        assert_eq!(found(degraded), expected);
        let mode = Mode::Maintenance { status: 503, since: Since::default() };
        assert_eq!(found(split(Reading { mode, ..serving(1) })), None);
        assert_eq!(found(split(serving(0))), None, "that is host-without-instance");
    }

    #[test]
    fn a_condition_has_one_name() {
        for one in Condition::ALL {
            assert_eq!(Condition::named(one.name()), Some(one));
        }
        assert_eq!(Condition::named("fine"), None);
    }
}
