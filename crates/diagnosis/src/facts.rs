//! Everything that the rules need to know, and the diagnosis of it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    Diagnosis, Finding, Skipped, Subject,
    certificates::{self, Certificate},
    hosts::{self, Host},
    installation::{self, Pacemaker, Part},
    machines::{self, Evaluation, Machine},
    messages::{self, Backend, Bus, Credentials, KeyUse, Parked, Queue, Subscriber},
    redis::{self, Server},
    routers::{self, Nginx, Router},
    sidecar::{self, Counting},
    traffic::{self, Instance, VersionType},
};

/// A caller's result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checked<T> {
    /// The facts.
    Known(T),
    /// They were not collected; with the reason.
    Skipped(String),
}

impl<T> Checked<T> {
    /// The facts, if they are known.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(facts) => Some(facts),
            Self::Skipped(_) => None,
        }
    }
}

/// Declares the facts, each with its type.
macro_rules! facts {
    ($($(#[$doc:meta])* $field:ident: $facts:ty,)+) => {
        /// Facts about a running system.
        #[derive(Debug, Clone)]
        pub struct Facts {
            $($(#[$doc])* pub $field: Checked<$facts>,)+
        }

        impl Facts {
            /// No facts: every check is skipped for `reason` until a caller replaces it.
            pub fn skipped(reason: &str) -> Self {
                Self { $($field: Checked::Skipped(reason.to_owned()),)+ }
            }
        }
    };
}

facts! {
    /// Whether daemons and API endpoints respond.
    parts: Vec<Part>,
    /// The Redis servers.
    redis: Vec<Server>,
    /// The routers that reported in the last minute.
    routers: Vec<Router>,
    /// The nginx behind the admin address.
    nginx: Nginx,
    /// The report of the sidecar behind the admin address.
    counting: Counting,
    /// Whether a request that was made for this was counted.
    request_counted: bool,
    /// Host names.
    hosts: Vec<Host>,
    /// Instances with a health check.
    instances: Vec<Instance>,
    /// The last minute of version types.
    traffic: Vec<VersionType>,
    /// The event bus.
    bus: Bus,
    /// Subscribers of topics.
    subscribers: Vec<Subscriber>,
    /// Pull queues.
    queues: Vec<Queue>,
    /// Backends of objects.
    backends: Vec<Backend>,
    /// Objects that wait for an operator's decision.
    parked_objects: Parked,
    /// How credentials of webhooks are stored.
    credentials: Credentials,
    /// Clients that use many of their idempotency keys.
    idempotency_keys: Vec<KeyUse>,
    /// State machines.
    machines: Vec<Machine>,
    /// How the evaluation of labels keeps up, over all machines.
    evaluation: Evaluation,
    /// Certificates of the route table.
    certificates: Vec<Certificate>,
    /// Running pacemakers.
    pacemakers: Vec<Pacemaker>,
    /// Whether the machine that runs the check knows the named time zones.
    time_zones: bool,
}

/// Collects findings and skipped checks.
#[derive(Default)]
struct Checks(Diagnosis);

impl Checks {
    fn each<T, F: IntoIterator<Item = Finding>>(
        &mut self,
        name: &'static str,
        facts: &Checked<Vec<T>>,
        rule: impl Fn(&T) -> F,
    ) {
        self.one(name, facts, |all| all.iter().flat_map(&rule).collect::<Vec<_>>());
    }

    fn one<T, F: IntoIterator<Item = Finding>>(
        &mut self,
        name: &'static str,
        facts: &Checked<T>,
        rule: impl FnOnce(&T) -> F,
    ) {
        match facts {
            Checked::Known(facts) => self.0.findings.extend(rule(facts)),
            Checked::Skipped(reason) => {
                self.0.skipped.push(Skipped { check: name, reason: reason.clone() });
            }
        }
    }
}

/// Applies every rule. `now_ms` is unix time.
pub fn diagnose(facts: &Facts, now_ms: u64) -> Diagnosis {
    let mut checks = Checks::default();
    checks.each("parts", &facts.parts, installation::part);
    checks.each("redis", &facts.redis, redis::server);
    checks.one("routers", &facts.routers, |all| routers::routers(all));
    checks.one("nginx", &facts.nginx, routers::nginx);
    checks.one("sidecar", &facts.counting, sidecar::counting);
    checks.one("request-counting", &facts.request_counted, |counted| {
        sidecar::probe(*counted, facts.counting.known())
    });
    checks.each("hosts", &facts.hosts, |one| {
        hosts::host(one).into_iter().chain(hosts::services(one)).chain(hosts::shares(one))
    });
    checks.each("instances", &facts.instances, traffic::instance);
    checks.each("traffic", &facts.traffic, traffic::version_type);
    checks.one("bus", &facts.bus, messages::bus);
    checks.each("subscribers", &facts.subscribers, |one| messages::subscriber(one, now_ms));
    checks.each("queues", &facts.queues, messages::queue);
    checks.each("backends", &facts.backends, messages::backend);
    checks.one("objects", &facts.parked_objects, messages::parked);
    checks.one("credentials", &facts.credentials, messages::credentials);
    checks.each("idempotency-keys", &facts.idempotency_keys, messages::idempotency_keys);
    checks.each("machines", &facts.machines, machines::machine);
    checks.one("labels", &facts.evaluation, machines::evaluation);
    checks.each("certificates", &facts.certificates, |one| certificates::certificate(one, now_ms / 1000));
    checks.one("pacemakers", &facts.pacemakers, |all| installation::pacemakers(all));
    checks.one("time-zones", &facts.time_zones, |known| installation::time_zones(*known));
    let Checks(mut diagnosis) = checks;
    remove_local_duplicates(&mut diagnosis.findings);
    // A version type or an instance is reported once, however many hosts it serves.
    let mut seen = BTreeSet::new();
    diagnosis.findings.retain(|one| seen.insert((one.id, one.problem.clone())));
    loudest_first(&mut diagnosis.findings, facts);
    diagnosis
}

/// Sorts findings by severity and kind. Among those of one kind, the loudest come first: hosts with the most requests, and
/// queues and subscribers with the most dead letters.
fn loudest_first(findings: &mut [Finding], facts: &Facts) {
    let mut requests: BTreeMap<&str, u64> = BTreeMap::new();
    for one in facts.traffic.known().into_iter().flatten() {
        *requests.entry(&one.host).or_default() += one.requests;
    }
    let queues = facts.queues.known().into_iter().flatten().map(|one| (&*one.name, one.dead));
    let queues: BTreeMap<&str, u64> = queues.collect();
    let subscribers = facts.subscribers.known().into_iter().flatten().map(|one| (&*one.name, one.dead));
    let subscribers: BTreeMap<&str, u64> = subscribers.collect();
    let of = |all: &BTreeMap<&str, u64>, name: &str| all.get(name).copied().unwrap_or(0);
    let loudness = |subject: &Subject| match subject {
        Subject::Host(host) | Subject::Instance { host, .. } | Subject::VersionType { host, .. } => {
            of(&requests, host)
        }
        Subject::Queue(name) => of(&queues, name),
        Subject::Subscriber(name) => of(&subscribers, name),
        _ => 0,
    };
    findings.sort_by_cached_key(|one| {
        (one.severity, one.id, Reverse(loudness(&one.subject)), one.subject.clone())
    });
}

/// The nginx and the sidecar behind the admin address belong to one of the routers. That router's own report is more
/// precise, because it names the router.
fn remove_local_duplicates(findings: &mut Vec<Finding>) {
    let reported: BTreeSet<&'static str> =
        findings.iter().filter(|one| matches!(one.subject, Subject::Router(_))).map(|one| one.id).collect();
    findings.retain(|one| {
        !matches!(one.subject, Subject::Nginx | Subject::Sidecar) || !reported.contains(one.id)
    });
}
